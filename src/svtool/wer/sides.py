"""The two sides of a comparison: what each must bring, and how its answers are collected completely.

Knows answers (texts and tags) and where they came from. Knows nothing of scoring, engines or audio.
"""

from __future__ import annotations

import shlex
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, Protocol

from svtool.errors import SvtoolError, counted

if TYPE_CHECKING:
    from svtool.progress import Progress
    from svtool.utterances import Utterance

Plain = str | int | float | bool | None
Role = Literal["baseline", "candidate"]
ROLES: tuple[Role, Role] = ("baseline", "candidate")
# Scores of two sides say something about the engines only when these agree.
SHARED_CONDITIONS = ("segmentation", "frontend", "dither", "language", "itn")
# A baseline less exact than its candidate is most likely a mistake on the command line.
_EXACTNESS = {"int8": 1, "int8-weights": 2, "fp16": 3, "fp32": 4}
_FIRST = 5  # files named in a message about many
TAGS = ("language", "emotion", "events", "itn")


class Heard(Protocol):
    """What the gate reads of a decoded hypothesis (`svtool.decode.Hypothesis` has these)."""

    @property
    def text(self) -> str: ...
    @property
    def language(self) -> str | None: ...
    @property
    def emotion(self) -> str | None: ...
    @property
    def events(self) -> Sequence[str]: ...
    @property
    def itn(self) -> bool | None: ...


@dataclass(frozen=True, slots=True)
class Answer:
    """What one side made of one utterance; `error` instead of a text when it failed on it."""

    text: str = ""
    language: str | None = None
    emotion: str | None = None
    events: tuple[str, ...] = ()
    itn: bool | None = None
    duration_s: float | None = None
    error: str | None = None
    bad_audio: bool = False  # the error is the audio's, so any other side fails on it too

    @classmethod
    def of(cls, heard: Heard, duration_s: float | None = None) -> Answer:
        return cls(heard.text, heard.language, heard.emotion, tuple(heard.events), heard.itn, duration_s)


class Transcriber(Protocol):
    def __call__(self, utterances: Sequence[Utterance], /) -> Iterable[tuple[int, Answer]]:
        """(index into `utterances`, answer), each index once, in any order, as soon as it is known.

        A list in order is `enumerate(answers)`.
        """


@dataclass(frozen=True)
class Side:
    """One of the two things compared. Conditions are what the run used, e.g. {"batch": 8, "itn": False}."""

    name: str
    transcribe: Transcriber
    artifact: Path | None = None
    digest: str | None = None  # sha256 of the artifact
    ran_digest: str | None = None  # of the file that ran: the artifact's own, or its twin's
    provider: str | None = None  # what really ran it
    executed: bool = True  # False: a twin or saved texts stood in for the artifact
    note: str | None = None  # in words, e.g. "plan cannot run here: its ONNX twin was run"
    conditions: Mapping[str, Plain] = field(default_factory=dict)
    transcribe_alone: Transcriber | None = None  # the same at batch 1, for the cross-check

    def to_json(self) -> dict[str, Any]:
        """Which artifact stands on this side and what ran, as every report says it."""
        return {
            "name": self.name,
            "artifact": str(self.artifact) if self.artifact else None,
            "sha256": self.digest,
            "provider": self.provider,
            "executed": self.executed,
            "note": self.note,
        }


def require_same_conditions(baseline: Side, candidate: Side) -> None:
    for key in SHARED_CONDITIONS:
        here, there = baseline.conditions.get(key), candidate.conditions.get(key)
        if key in baseline.conditions and key in candidate.conditions and here != there:
            raise SvtoolError(
                f"{baseline.name} ran with {key} {here!r} and {candidate.name} with {there!r}: "
                "run both alike, else the difference is not the engine's"
            )


def same_file(baseline: Side, candidate: Side) -> bool:
    """Whether one file ran on both sides: equal texts are then no measurement."""
    pairs = ((baseline.digest, candidate.digest), (baseline.ran_digest, candidate.ran_digest))
    return any(before is not None and before == after for before, after in pairs)


def pairing_notes(baseline: Side, candidate: Side) -> tuple[str, ...]:
    """What makes a pair prove less than it seems to: one file on both sides, or sides that look swapped."""
    if baseline.digest is not None and baseline.digest == candidate.digest:
        return ("baseline and candidate are the same file; this proves only the pipeline",)
    found = []
    if baseline.ran_digest is not None and baseline.ran_digest == candidate.ran_digest:
        found.append(
            "the same file ran for baseline and candidate (one is the other's ONNX twin); "
            "this proves only the pipeline"
        )
    before, after = (str(side.conditions.get("precision")) for side in (baseline, candidate))
    if before in _EXACTNESS and after in _EXACTNESS and _EXACTNESS[before] < _EXACTNESS[after]:
        first, second = (side.artifact or side.name for side in (candidate, baseline))
        found.append(
            f"the baseline {baseline.name} is {before} and the candidate {candidate.name} is {after}: they look "
            "swapped, and drift then says what the exact model costs against the reduced one; the other way "
            f"round is  svtool validate-wer {first} {second}"
        )
    return tuple(found)


def collect_answers(side: Side, utterances: Sequence[Utterance], progress: Progress) -> list[Answer]:
    progress.stage(f"Transcribing with {side.name}", total=len(utterances))
    answers = collect(side.name, side.transcribe, utterances, progress)
    if all(answer.error is not None for answer in answers):
        raise all_failed(side.name, answers, None)
    return answers


def all_failed(name: str, answers: Iterable[Answer], listed: str | None) -> SvtoolError:
    """Whose fault it is: the audio's when each error is, else the side's."""
    failed = list(answers)
    own = next((one.error for one in failed if not one.bad_audio), None)
    if own is not None:
        return SvtoolError(f"{name} failed on every utterance; the first error was: {own}")
    return SvtoolError(bad_audio_words([str(one.error) for one in failed], len(failed), listed))


def bad_audio_words(reasons: Sequence[str], utterances: int, listed: str | None) -> str:
    """`reasons` name the files. The list is checked by a command that looks at all of them."""
    more = len(reasons) - _FIRST
    first = "; ".join(reasons[:_FIRST]) + (f"; and {more:,} more" if more > 0 else "")
    of = f"{len(reasons):,} of {counted(utterances, 'utterance')}"
    check = f": see all with  svtool data check {shlex.quote(listed)}" if listed else ""
    return f"{listed or 'the list'}: the audio of {of} cannot be used by any model ({first}){check}"


def collect(
    name: str, transcribe: Transcriber, utterances: Sequence[Utterance], progress: Progress
) -> list[Answer]:
    """In the order of `utterances`."""
    found: dict[int, Answer] = {}
    for index, answer in each_once(name, transcribe, utterances):
        found[index] = answer
        progress.advance()
    return [found[index] for index in range(len(utterances))]


def each_once(
    name: str, transcribe: Transcriber, utterances: Sequence[Utterance]
) -> Iterator[tuple[int, Answer]]:
    """As they come; an answer missing, doubled or out of range is refused, never guessed."""
    waited_for = bytearray(b"\1" * len(utterances))
    for index, answer in transcribe(utterances):
        if not 0 <= index < len(utterances) or not waited_for[index]:
            raise SvtoolError(
                f"{name} answered number {index} twice or out of range: its texts cannot be matched"
            )
        waited_for[index] = 0
        yield index, answer
    if missing := sum(waited_for):
        raise SvtoolError(
            f"{name} answered {len(utterances) - missing} of {counted(len(utterances), 'utterance')}; "
            f"first without: {utterances[waited_for.index(1)].id}"
        )


class TagAgreement:
    """Running counts of utterances with the same tag on both sides."""

    def __init__(self) -> None:
        self._told, self._same = dict.fromkeys(TAGS, 0), dict.fromkeys(TAGS, 0)

    def add(self, baseline: Answer, candidate: Answer) -> None:
        for tag in TAGS:
            before, after = _tag(baseline, tag), _tag(candidate, tag)
            if before is not None or after is not None:
                self._told[tag] += 1
                self._same[tag] += before == after

    def percent(self) -> dict[str, float | None]:
        """None for a tag that neither side ever gave."""
        return {tag: 100.0 * self._same[tag] / told if told else None for tag, told in self._told.items()}


def _tag(answer: Answer, tag: str) -> object:
    return frozenset(answer.events) or None if tag == "events" else getattr(answer, tag)
