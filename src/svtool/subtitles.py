"""SRT and WebVTT from timed segments. Knows nothing of how the words were found."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from svtool.timing import Segment, Word, group_words

_LINGER_S = 0.5  # CTC marks where a word is recognised, not where its sound ends: let a cue stay a little


@dataclass(frozen=True)
class Cue:
    """One subtitle. Whole milliseconds, start < end."""

    start_ms: int
    end_ms: int
    text: str


def cues(
    segments: Iterable[Segment], *, offset_s: float = 0.0, duration_s: float | None = None
) -> tuple[Cue, ...]:
    """Cues in order of time, never overlapping.

    `offset_s` is added to all times; `duration_s`, the end of the whole recording, bounds them.
    """
    shown = [(segment, " ".join(segment.text.split())) for segment in segments]
    shown = sorted((pair for pair in shown if pair[1]), key=lambda pair: pair[0].start_s)
    last_ms = None if duration_s is None else int(duration_s * 1000)
    found: list[Cue] = []
    for place, (segment, text) in enumerate(shown):
        start_ms = max(_ms(segment.start_s + offset_s), found[-1].end_ms if found else 0)
        end_ms = _ms(segment.end_s + offset_s + _LINGER_S)
        if place + 1 < len(shown):
            end_ms = min(end_ms, _ms(shown[place + 1][0].start_s + offset_s))
        if last_ms is not None:
            end_ms = min(end_ms, last_ms)
            start_ms = min(start_ms, max(last_ms - 1, 0))
        found.append(Cue(start_ms, max(end_ms, start_ms + 1), text))
    return tuple(found)


def cues_from_words(
    words: Iterable[Word], *, offset_s: float = 0.0, duration_s: float | None = None
) -> tuple[Cue, ...]:
    """Cues of at most about 6 s and 42 columns, cut at pauses and sentence ends."""
    return cues(group_words(words), offset_s=offset_s, duration_s=duration_s)


def srt(found: Iterable[Cue]) -> str:
    """SubRip text. It has no escapes, so an arrow in the words is written as another arrow."""
    blocks = [
        f"{number}\n{_clock(cue.start_ms, ',')} --> {_clock(cue.end_ms, ',')}\n{cue.text.replace('-->', '→')}\n"
        for number, cue in enumerate(found, start=1)
    ]
    return "\n".join(blocks)


def vtt(found: Iterable[Cue]) -> str:
    """WebVTT text, with its three escapes."""
    blocks = [
        f"{_clock(cue.start_ms, '.')} --> {_clock(cue.end_ms, '.')}\n{_escaped(cue.text)}\n" for cue in found
    ]
    return "\n".join(["WEBVTT\n", *blocks])


def _escaped(text: str) -> str:
    return text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")


def _ms(seconds: float) -> int:
    return max(0, round(seconds * 1000))


def _clock(ms: int, separator: str) -> str:
    seconds, ms = divmod(ms, 1000)
    minutes, seconds = divmod(seconds, 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours:02d}:{minutes:02d}:{seconds:02d}{separator}{ms:03d}"
