"""Every error svtool raises on purpose, and the exit code each one turns into.

Knows nothing of the terminal: `cli.py` is the one place that prints an error and exits.
A message is one sentence that names the artifact, the mismatch and, where there is one, the next command; what
messages share in wording (`counted`, `shown`) is here too.
"""

from __future__ import annotations


def counted(count: int, noun: str) -> str:
    """`1 audio file`, `2,400 audio files`: for nouns whose plural takes an s."""
    return f"{count:,} {noun}" + ("" if count == 1 else "s")


def shown(name: str) -> str:
    """A file's name on one line, whatever it holds: line breaks, escape codes and odd bytes come as escapes."""
    return name if name.isprintable() else ascii(name)


class SvtoolError(Exception):
    """A failed check, a bad input file or a runtime error (exit 1)."""

    exit_code = 1


class UsageError(SvtoolError):
    """The command was asked for something it cannot mean (exit 2)."""

    exit_code = 2


class ArtifactError(SvtoolError):
    """A checkpoint, model, engine, cache or manifest is missing, foreign, damaged or does not match."""


class AudioError(SvtoolError):
    """Input audio that cannot be used. `reason` is a stable word for scripts.

    Reasons: `missing`, `not_audio`, `broken`, `no_audio_stream`, `no_decoder`, `too_long`, `not_finite`, `bad_array`.
    """

    def __init__(self, message: str, *, reason: str) -> None:
        super().__init__(message)
        self.reason = reason


class MissingDependency(SvtoolError):
    """An optional library is not installed; the message carries the install command."""

    def __init__(self, needed_for: str, library: str, extra: str) -> None:
        super().__init__(
            f"{needed_for} needs {library}, not installed here: in svtool's folder, run  pip install -e '.[{extra}]'"
        )
