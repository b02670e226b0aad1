"""`svtool data check`: everything that can be said of an utterance list before a model hears it.

Decodes every file once, one in memory at a time. Knows lists, samples and the normaliser that texts are scored
with. Knows nothing of models.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from svtool.assets import LANGUAGES
from svtool.audiofacts import faults as faults_of
from svtool.audiofacts import samples_digest
from svtool.errors import AudioError, counted
from svtool.frontend import MIN_SAMPLES
from svtool.lists import Fault, fault
from svtool.progress import Progress, Silent
from svtool.sections import Row, Section, page
from svtool.segment import is_silent
from svtool.utterances import SAMPLE_RATE, Survey, Utterance, decode_audio, part_faults, survey
from svtool.wer.normalise import get_normaliser

if TYPE_CHECKING:
    from rich.text import Text

SCHEMA = "svtool.data-check/1"
BUCKETS = (
    ("under 1 s", 1.0),
    ("1 to 5 s", 5.0),
    ("5 to 15 s", 15.0),
    ("15 to 30 s", 30.0),
    ("over 30 s", float("inf")),
)
NORMALISER = "basic"
LONG_S = 30.0  # calibration skips what is longer, recognition cuts it into segments
_FASTEST = 35.0  # characters a second: nobody reads that fast, so the text is most likely another recording's
_OFF_S, _OFF_SHARE = 0.5, 0.05  # of a duration column, against the audio
_BAR = 24  # columns of the longest bar


@dataclass(frozen=True, slots=True)
class Heard:
    """What one file of the list turned out to be; `error` alone where it could not be decoded."""

    id: str
    error: str | None = None
    samples: int = 0  # at 16 kHz
    rate: int = 0  # Hz, of the source
    channels: int = 0
    digest: str = ""
    silent: bool = False
    clipped: bool = False
    quiet: bool = False
    zeros: bool = False
    warnings: tuple[str, ...] = ()

    @property
    def duration_s(self) -> float:
        return self.samples / SAMPLE_RATE


@dataclass(frozen=True)
class Report:
    path: Path
    format: str
    utterances: int
    decoded: int
    with_text: int
    seconds: float  # of audio decoded
    shortest_s: float | None
    median_s: float | None
    longest_s: float | None
    durations: Mapping[str, int]  # bucket -> utterances
    languages: Mapping[str, int]  # "" = not named
    language_seconds: Mapping[str, float]
    sample_rates: Mapping[int, int]  # Hz of the source -> files
    channels: Mapping[int, int]
    normaliser: str  # that "empty after normalising" is about
    faults: tuple[Fault, ...]  # the list is unfit as it is
    notes: tuple[Fault, ...]  # worth knowing
    remarks: tuple[str, ...]  # of the format's reader

    @property
    def exit_code(self) -> int:
        return 1 if self.faults or not self.utterances else 0

    def to_json(self) -> dict[str, Any]:
        value: dict[str, Any] = {"schema": SCHEMA} | asdict(self) | {"path": str(self.path)}
        for name in ("faults", "notes"):
            value[name] = [
                {"kind": one.kind, "count": len(one.names), "message": one.words, "names": list(one.names)}
                for one in getattr(self, name)
            ]
        value["sample_rates"] = {str(rate): count for rate, count in self.sample_rates.items()}
        value["channels"] = {str(number): count for number, count in self.channels.items()}
        value["hours"] = round(self.seconds / 3600, 4)
        return value | {"seconds": round(self.seconds, 3), "ok": self.exit_code == 0}


def check(spec: str | Path, audio: Path | None = None, progress: Progress | None = None) -> Report:
    """Read and decode the whole list. Raises SvtoolError where it cannot be read at all."""
    progress = progress or Silent()
    found = survey(spec, audio)
    heard = _hear(found, progress)
    decoded = _decoded(found, heard)
    durations = sorted(what.duration_s for _, what in decoded)
    texts = _texts(found)
    spoken: defaultdict[str, float] = defaultdict(float)
    for one, what in decoded:
        spoken[one.language or ""] += what.duration_s
    return Report(
        path=found.path,
        format=found.format,
        utterances=len(found.utterances),
        decoded=len(decoded),
        with_text=sum(one.text is not None for one in found.utterances),
        seconds=sum(durations),
        shortest_s=durations[0] if durations else None,
        median_s=durations[len(durations) // 2] if durations else None,
        longest_s=durations[-1] if durations else None,
        durations=_histogram(durations),
        languages=dict(Counter(one.language or "" for one in found.utterances).most_common()),
        language_seconds={name: round(seconds, 3) for name, seconds in spoken.items()},
        sample_rates=dict(Counter(what.rate for _, what in decoded).most_common()),
        channels=dict(Counter(what.channels for _, what in decoded).most_common()),
        normaliser=get_normaliser(NORMALISER).id,
        faults=(
            *found.faults,
            *part_faults(found),
            *_audio_faults(heard),
            *_same_audio(decoded, texts, True),
        ),
        notes=(
            *_audio_notes(decoded),
            *_text_notes(found, decoded, texts),
            *_same_audio(decoded, texts, False),
        ),
        remarks=found.notes,
    )


def audio_faults(found: Survey, progress: Progress) -> tuple[Fault, ...]:
    """What decoding the whole list finds wrong with it."""
    heard = _hear(found, progress)
    return (*_audio_faults(heard), *_same_audio(_decoded(found, heard), _texts(found), True))


def _decoded(found: Survey, heard: Sequence[Heard | None]) -> list[tuple[Utterance, Heard]]:
    pairs = zip(found.utterances, heard, strict=True)
    return [(one, what) for one, what in pairs if what is not None and what.error is None]


def _texts(found: Survey) -> dict[str, str]:
    """Normalised, by id."""
    normaliser = get_normaliser(NORMALISER)
    return {one.id: normaliser(one.text) for one in found.utterances if one.text is not None}


def _hear(found: Survey, progress: Progress) -> list[Heard | None]:
    """None for files that are not there and for parts of recordings: both are faults of the list already."""
    progress.stage("decoding", total=len(found.utterances))
    heard = []
    for one in found.utterances:
        heard.append(_heard(one) if one.part is None and one.audio.is_file() else None)
        progress.advance()
    return heard


def _heard(one: Utterance) -> Heard:
    try:
        audio = decode_audio(one.audio)
    except AudioError as error:
        return Heard(one.id, str(error))
    flaws = faults_of(audio)
    return Heard(
        one.id,
        samples=len(audio.samples),
        rate=audio.rate,
        channels=audio.channels,
        digest=samples_digest(audio.samples),
        silent=is_silent(audio.samples),
        clipped=flaws.clipped,
        quiet=flaws.quiet,
        zeros=flaws.zeros,
        warnings=audio.warnings,
    )


def _histogram(durations: Sequence[float]) -> dict[str, int]:
    counts = dict.fromkeys((name for name, _ in BUCKETS), 0)
    for seconds in durations:
        counts[next(name for name, below in BUCKETS if seconds < below)] += 1
    return counts


def _audio_faults(heard: Sequence[Heard | None]) -> Iterator[Fault]:
    whats = [what for what in heard if what is not None]
    broken = [what for what in whats if what.error is not None]
    messages, ids = [f"{what.id}: {what.error}" for what in broken], [what.id for what in broken]
    yield from fault("undecodable", "audio file", messages, "cannot be decoded", ids)
    short = [what.id for what in whats if what.error is None and what.samples < MIN_SAMPLES]
    yield from fault("too_short", "utterance", short, "too short to hold a frame of speech")


def _audio_notes(decoded: Sequence[tuple[Utterance, Heard]]) -> Iterator[Fault]:
    flaws = {
        "silent": "without anything as loud as speech",
        "clipped": "clipped at full scale",
        "quiet": "very quiet",
        "zeros": "with long stretches of digital silence",
    }
    for kind, words in flaws.items():
        yield from fault(kind, "utterance", [what.id for _, what in decoded if getattr(what, kind)], words)
    long = [what.id for _, what in decoded if what.duration_s > LONG_S]
    yield from fault(
        "too_long", "utterance", long, f"over {LONG_S:g} s: cut when transcribed, skipped by calibration"
    )
    warned = [f"{what.id}: {'; '.join(what.warnings)}" for _, what in decoded if what.warnings]
    yield from fault("damaged", "audio file", warned, "decoded with a warning")
    wrong = [
        f"{one.id}: {one.duration_s:g} s, in truth {what.duration_s:.2f} s"
        for one, what in decoded
        if one.duration_s is not None and _is_off(one.duration_s, what.duration_s)
    ]
    yield from fault("wrong_duration", "utterance", wrong, "of another length than the list says")


def _is_off(said: float, true: float) -> bool:
    return abs(said - true) > max(_OFF_S, _OFF_SHARE * true)


def _text_notes(
    found: Survey, decoded: Sequence[tuple[Utterance, Heard]], texts: Mapping[str, str]
) -> Iterator[Fault]:
    every = found.utterances
    absent = [one.id for one in every if one.text is None]
    yield from fault(
        "no_text", "utterance", absent, "without a reference text: validate-wer needs one for each"
    )
    blank = [one.id for one in every if one.text is not None and not one.text.strip()]
    yield from fault("empty_text", "reference text", blank, "empty: right only where nobody speaks")
    gone = [one.id for one in every if (one.text or "").strip() and not texts[one.id]]
    yield from fault(
        "empty_after_normalising", "reference text", gone, "with nothing but punctuation or tags"
    )
    hurried = [
        one.id
        for one, what in decoded
        if what.samples and len(texts.get(one.id, "")) > _FASTEST * max(what.duration_s, 1.0)
    ]
    yield from fault("text_too_long", "text", hurried, "too long for the audio: of another recording?")
    mute = [what.id for one, what in decoded if what.silent and texts.get(one.id)]
    yield from fault("silent_with_text", "utterance", mute, "with a text, but nothing as loud as speech")
    foreign = [f"{one.id}: {one.language}" for one in every if one.language and one.language not in LANGUAGES]
    known = ", ".join(name for name in LANGUAGES if name not in ("auto", "nospeech"))
    yield from fault(
        "unknown_language", "utterance", foreign, f"in a language the model has not: it knows {known}"
    )


def _same_audio(
    decoded: Sequence[tuple[Utterance, Heard]], texts: Mapping[str, str], contradicting: bool
) -> Iterator[Fault]:
    """Recordings that are in the list more than once: with different texts one of these is wrong."""
    groups: defaultdict[str, list[str]] = defaultdict(list)
    for one, what in decoded:
        if what.samples:
            groups[what.digest].append(one.id)
    found = [
        ids
        for ids in groups.values()
        if len(ids) > 1 and (len({texts[one] for one in ids if one in texts}) > 1) is contradicting
    ]
    kind = "contradicting_texts" if contradicting else "duplicate_audio"
    tail = f"under several ids with {'different texts' if contradicting else 'the same text'}"
    yield from fault(
        kind, "recording", [" = ".join(ids) for ids in found], tail, [one for ids in found for one in ids]
    )


# ---- for people


def render(report: Report, width: int) -> Text:
    sections = (
        Section(f"{report.path}", tuple(_facts(report))),
        Section("Durations", tuple(_bars(report))),
        Section("Faults", tuple(Row("", str(one), "bad") for one in report.faults)),
        Section(
            "Notes",
            (
                *(Row("", str(one), "warn") for one in report.notes),
                *(Row("", one) for one in report.remarks),
            ),
        ),
        Section("Verdict", (_verdict(report),)),
    )
    return page(sections, width)


def _facts(report: Report) -> Iterator[Row]:
    yield Row("format", report.format)
    yield Row("utterances", f"{report.utterances:,}, {report.with_text:,} with a reference text")
    lengths = ""
    if report.shortest_s is not None and report.longest_s is not None:
        lengths = f"; {report.shortest_s:.2f} to {report.longest_s:.2f} s, half under {report.median_s:.2f} s"
    yield Row("audio", f"{_time(report.seconds)} in {counted(report.decoded, 'file')} decoded{lengths}")
    languages = (
        f"{name or 'not named'} {count:,} ({_time(report.language_seconds.get(name, 0.0))})"
        for name, count in report.languages.items()
    )
    yield Row("languages", ", ".join(languages) or "none")
    rates = (f"{rate:,} Hz ({count:,})" for rate, count in report.sample_rates.items())
    yield Row("sample rates", ", ".join(rates) or "none")
    channels = (f"{number} ({count:,})" for number, count in report.channels.items())
    yield Row("channels", ", ".join(channels) or "none")


def _bars(report: Report) -> Iterator[Row]:
    most = max(report.durations.values(), default=0)
    for name, count in report.durations.items():
        # a bucket that is not empty shows, however small it is beside the others
        bar = "█" * -(-_BAR * count // most) if most else ""
        yield Row(name, f"{bar} {count:,}")


def _verdict(report: Report) -> Row:
    if not report.utterances:
        return Row("", "the list holds no utterances", "bad")
    if report.faults:
        total = sum(len(one.names) for one in report.faults)
        return Row(
            "",
            f"unfit as it is: {counted(total, 'fault')} of {counted(len(report.faults), 'kind')}; correct them, or "
            f"leave them out with  svtool data convert {report.path} -o list.jsonl --leave-out",
            "bad",
        )
    noted = f", {counted(len(report.notes), 'kind')} of note above" if report.notes else ""
    return Row("", f"fit for use{noted}", "good")


def _time(seconds: float) -> str:
    if seconds >= 3600:
        return f"{seconds / 3600:.2f} h"
    return f"{seconds / 60:.1f} min" if seconds >= 60 else f"{seconds:.1f} s"
