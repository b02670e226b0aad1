"""Waveforms to transcripts: segments, features, duration-sorted batches, decoding, merging.

Knows nothing of HTTP or the terminal. One bad utterance fails alone: its place in the results holds the error.
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from itertools import islice
from operator import length_hint
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from svtool import decode, modelfile, segment
from svtool.artifacts import artifact_file
from svtool.assets import (
    CHECKPOINT_NAME,
    LANGUAGES,
    TEXTNORMS,
    Assets,
    missing_assets,
    read_assets,
    require_assets,
)
from svtool.audio import Audio, decode_audio
from svtool.backends import Backend, Batch, FloatArray, Output, load_backend
from svtool.errors import ArtifactError, SvtoolError, UsageError
from svtool.frontend import LFR_FRAME_S, SAMPLE_RATE, Frontend, pad_batch
from svtool.progress import Progress, Silent
from svtool.timing import Segment, Word, follow, group_words, join_texts

if TYPE_CHECKING:
    from svtool.config import OrtConfig
    from svtool.decode import Hypothesis

TOO_SHORT = "too_short"
SILENCE = "silence"
_WINDOW_S = 600.0  # audio decoded ahead and sorted together: bounds memory on long lists
_WINDOW_FILES = 256

Source = Path | Callable[[], Audio]
"""A file, or what gives its audio (or raises the SvtoolError that becomes its result)."""


@dataclass(frozen=True)
class Options:
    """How to transcribe. `language` is a hint to the model, not a filter; `allow_languages` is a filter."""

    language: str = "auto"
    itn: bool = False
    allow_languages: tuple[str, ...] = ()
    batch_size_s: float = 60.0  # padded audio seconds in one batch
    batch_size_n: int = 32
    max_segment_s: float = 30.0
    gate_silence: bool = True

    def __post_init__(self) -> None:
        if not 0 < self.batch_size_s < math.inf:
            raise UsageError(
                f"a batch of {self.batch_size_s:g} seconds cannot be made: give a finite number over 0"
            )


@dataclass(frozen=True)
class Transcript:
    """What was heard in one utterance. Times are seconds from its start and approximate (60 ms frames)."""

    text: str
    language: str | None
    emotion: str | None
    events: tuple[str, ...]
    duration_s: float
    no_speech: bool
    reason: str | None = None  # why nothing was run: "too_short" or "silence"
    itn: bool | None = None
    words: tuple[Word, ...] = ()
    warnings: tuple[str, ...] = ()  # about the audio, such as a file that ends early
    rich_text: str = ""  # with emotion and event emoji, as SenseVoice's own post-processing writes them

    @property
    def segments(self) -> tuple[Segment, ...]:
        return group_words(self.words)


@dataclass(frozen=True)
class _Piece:
    """One model input: a stretch of at most `max_segment_s` of one utterance."""

    start: int  # samples
    feats: FloatArray  # [T, 560]
    silent: bool
    owner: int = 0  # place of its utterance in the window

    @property
    def to_run(self) -> bool:
        return len(self.feats) > 0 and not self.silent

    @property
    def duration_s(self) -> float:
        return len(self.feats) * LFR_FRAME_S


@dataclass
class _Loaded:
    duration_s: float = 0.0
    pieces: list[_Piece] = field(default_factory=list)
    error: SvtoolError | None = None
    warnings: tuple[str, ...] = ()

    @property
    def to_run_s(self) -> float:
        return sum(piece.duration_s for piece in self.pieces if piece.to_run)


class Recognizer:
    """A backend with its front end and vocabulary. Owned by one thread, like its backend."""

    def __init__(self, backend: Backend, assets: Assets, *, artifact: Path | None = None) -> None:
        self.backend = backend
        self.assets = assets
        self.artifact = artifact
        self.frontend = Frontend(assets.cmvn)

    def transcribe(
        self, waveforms: Sequence[FloatArray], options: Options | None = None
    ) -> list[Transcript | SvtoolError]:
        """Transcribe waveforms f32 [N] (mono, 16 kHz). The result keeps the order; a failure is its own entry."""
        options = options or Options()
        loaded = [self._prepare(samples, options) for samples in waveforms]
        return self._run(loaded, options)

    def transcribe_files(
        self,
        sources: Iterable[Source],
        options: Options | None = None,
        progress: Progress | None = None,
    ) -> Iterator[Transcript | SvtoolError]:
        """Decode and transcribe files, in order, in memory bounded by ten minutes of audio at a time.

        Progress counts seconds of audio, so that one long file moves; each window is a stage of its own, since
        nothing is known of the files after it.
        """
        options, progress, pending = options or Options(), progress or Silent(), iter(sources)
        done, known = 0, length_hint(sources)

        def load(source: Source) -> _Loaded:
            try:
                audio = decode_audio(source) if isinstance(source, Path) else source()
                loaded = self._prepare(audio.samples, options)
                loaded.warnings = audio.warnings
                return loaded
            except SvtoolError as error:
                return _Loaded(error=error)

        # decoding and features release the GIL for most of their time; the model runs on this thread alone
        with ThreadPoolExecutor(max_workers=min(4, os.cpu_count() or 1)) as pool:
            while True:
                progress.stage("reading audio")
                window = _fill_window(pool, load, pending)
                if not window:
                    break
                progress.stage(_stage_name(done, len(window), known), sum(one.to_run_s for one in window))
                yield from self._run(window, options, progress)
                done += len(window)

    def features(self, samples: FloatArray) -> FloatArray:
        return self.frontend.features(samples)

    def close(self) -> None:
        self.backend.close()

    def _prepare(self, samples: FloatArray, options: Options) -> _Loaded:
        loaded = _Loaded(duration_s=len(samples) / SAMPLE_RATE)
        try:
            for part in segment.split(samples, max_s=options.max_segment_s):
                piece = samples[part.start : part.end]
                silent = options.gate_silence and segment.is_silent(piece)
                # a tail under 25 ms has no frame of its own and nothing to hear
                feats = self.frontend.features(piece)
                loaded.pieces.append(_Piece(part.start, feats, silent))
        except SvtoolError as error:
            loaded.error = error
        return loaded

    def _run(
        self, loaded: list[_Loaded], options: Options, progress: Progress | None = None
    ) -> list[Transcript | SvtoolError]:
        progress = progress or Silent()
        renumbered = [
            replace(piece, owner=owner)
            for owner, one in enumerate(loaded)
            for piece in one.pieces
            if piece.to_run
        ]
        heard: list[list[tuple[int, Hypothesis]]] = [[] for _ in loaded]
        for group in self._batches(renumbered, options):
            for piece, result in zip(group, self._infer_group(group, options), strict=True):
                if isinstance(result, SvtoolError):
                    loaded[piece.owner].error = result
                else:
                    heard[piece.owner].append((piece.start, result))
            progress.advance(sum(piece.duration_s for piece in group))
        return [_finish(one, parts) for one, parts in zip(loaded, heard, strict=True)]

    def _batches(self, pieces: list[_Piece], options: Options) -> Iterator[list[_Piece]]:
        limits = self.backend.limits
        budget = max(1, int(options.batch_size_s / LFR_FRAME_S))
        group: list[_Piece] = []
        most = 0
        for piece in sorted(pieces, key=lambda one: len(one.feats), reverse=True):
            if group and (len(group) == most or len(group[0].feats) * (len(group) + 1) > budget):
                yield group
                group = []
            if not group:  # sorted downwards: the first of a group is its longest
                most = min(options.batch_size_n, limits.batch_for(len(piece.feats)) or options.batch_size_n)
            group.append(piece)
        if group:
            yield group

    def _infer_group(self, group: list[_Piece], options: Options) -> list[Hypothesis | SvtoolError]:
        try:
            return self._decode_group(group, options)
        except Exception as error:  # noqa: BLE001 - runtimes raise many kinds; whatever it is, halve and go on
            if len(group) == 1:
                return [_as_svtool_error(error)]
            middle = len(group) // 2
            return self._infer_group(group[:middle], options) + self._infer_group(group[middle:], options)

    def _decode_group(self, group: list[_Piece], options: Options) -> list[Hypothesis | SvtoolError]:
        feats = [piece.feats for piece in group]
        languages = [options.language] * len(group)
        output = self.infer(feats, languages, options.itn)
        results: list[Hypothesis | SvtoolError] = []
        for index in range(len(group)):
            results.append(self._decode_one(output, index))
        if options.allow_languages and options.language == "auto":
            self._hold_to_languages(feats, output, results, options)
        return results

    def _hold_to_languages(
        self,
        feats: list[FloatArray],
        output: Output,
        results: list[Hypothesis | SvtoolError],
        options: Options,
    ) -> None:
        """Run again, with the best allowed language, what was heard as a language that is not allowed."""
        allowed = options.allow_languages
        again = [
            index
            for index, one in enumerate(results)
            if not isinstance(one, SvtoolError) and not one.no_speech and one.language not in allowed
        ]
        if not again:
            return
        chosen = [decode.choose_language(output, index, self.assets.tokens, allowed) for index in again]
        second = self.infer([feats[index] for index in again], chosen, options.itn)
        for row, index in enumerate(again):
            results[index] = self._decode_one(second, row, allow_languages=allowed)

    def _decode_one(
        self, output: Output, index: int, allow_languages: tuple[str, ...] = ()
    ) -> Hypothesis | SvtoolError:
        try:
            return decode.decode(output, index, self.assets.tokens, allow_languages=allow_languages or None)
        except SvtoolError as error:
            return error

    def infer(self, features: list[FloatArray], languages: list[str], itn: bool) -> Output:
        """Run features [T_i, 560] as one padded batch."""
        feats, lens = pad_batch(features)
        limit = self.backend.limits.max_frames
        if feats.shape[1] > limit:
            raise SvtoolError(
                f"a segment of {feats.shape[1] * LFR_FRAME_S:.0f} s is longer than the engine's "
                f"{limit * LFR_FRAME_S:.0f} s: use shorter segments or a longer --profile"
            )
        textnorm = TEXTNORMS["withitn" if itn else "woitn"]
        return self.backend.infer(
            Batch(
                feats,
                lens,
                np.array([LANGUAGES[one] for one in languages], dtype=np.int32),
                np.full(len(features), textnorm, dtype=np.int32),
            )
        )


def _stage_name(done: int, count: int, known: int) -> str:
    """`transcribing (seconds of audio, files 1-40 of 300)`; `known` 0 = how many there are is not known."""
    if known == count == 1:
        return "transcribing (seconds of audio)"
    whole = f" of {known}" if known else ""
    return f"transcribing (seconds of audio, files {done + 1}-{done + count}{whole})"


def _fill_window(
    pool: ThreadPoolExecutor,
    load: Callable[[Source], _Loaded],
    pending: Iterator[Source],
) -> list[_Loaded]:
    window: list[_Loaded] = []
    seconds = 0.0
    while seconds < _WINDOW_S and len(window) < _WINDOW_FILES:
        chunk = list(islice(pending, 16))
        if not chunk:
            break
        for loaded in pool.map(load, chunk):
            window.append(loaded)
            seconds += loaded.duration_s
    return window


def _finish(loaded: _Loaded, heard: list[tuple[int, Hypothesis]]) -> Transcript | SvtoolError:
    if loaded.error is not None:
        return loaded.error
    if not heard:
        long_enough = any(len(piece.feats) for piece in loaded.pieces)
        return Transcript(
            "",
            None,
            None,
            (),
            loaded.duration_s,
            no_speech=True,
            reason=SILENCE if long_enough else TOO_SHORT,
            warnings=loaded.warnings,
        )
    parts = [(start / SAMPLE_RATE, one) for start, one in sorted(heard, key=lambda pair: pair[0])]
    return replace(merge(parts, loaded.duration_s), warnings=loaded.warnings)


def merge(parts: Sequence[tuple[float, Hypothesis]], duration_s: float) -> Transcript:
    """One transcript of the hypotheses of consecutive segments, each with its offset in seconds."""
    spoken = [one for _, one in parts if not one.no_speech] or [parts[0][1]]
    return Transcript(
        text=join_texts(one.text for _, one in parts),
        language=_most_said(spoken, "language"),
        emotion=_most_said(spoken, "emotion"),
        events=tuple(dict.fromkeys(event for _, one in parts for event in one.events)),
        duration_s=duration_s,
        no_speech=all(one.no_speech for _, one in parts),
        itn=spoken[0].itn,
        words=follow((offset, one.words) for offset, one in parts),
        rich_text=join_texts([decode.rich_text(one.raw) for _, one in parts]),
    )


def _most_said(spoken: list[Hypothesis], name: str) -> str | None:
    """The value that the most text carries; the first one wins a tie."""
    weight: dict[str | None, int] = {}
    for one in spoken:
        value = getattr(one, name)
        weight[value] = weight.get(value, 0) + 1 + len(one.text)
    return max(weight, key=lambda value: weight[value])


def _as_svtool_error(error: Exception) -> SvtoolError:
    if isinstance(error, SvtoolError):
        return error
    wrapped = SvtoolError(
        f"the engine failed: {(str(error).strip().splitlines() or [type(error).__name__])[0]}"
    )
    wrapped.__cause__ = error
    return wrapped


def check_artifact(artifact: Path) -> Path:
    """The file or checkpoint folder that an artifact means, after what can be told at once of why it will not open."""
    path = artifact_file(artifact)
    if not path.exists():
        raise ArtifactError(f"{artifact} does not exist: {modelfile.how_to_make(artifact)}")
    if path.is_dir():
        _check_checkpoint(path)
        return path
    if path.suffix not in (".onnx", ".plan"):
        raise ArtifactError(
            f"{path} is no model: name a .onnx file, a .plan file or the directory that holds one"
        )
    # the file that was named comes first: what should lie beside it does not matter where it is no good itself
    if path.suffix == ".onnx":
        modelfile.check(path)
    else:
        from svtool.backends.trt import check_plan

        check_plan(path)
    if missing := missing_assets(path.parent):
        raise ArtifactError(
            f"{path} needs {', '.join(missing)} beside it, which svtool export writes with the model: "
            f"copy {'them' if len(missing) > 1 else 'it'} to {path.parent.resolve()}"
        )
    return path


def _check_checkpoint(folder: Path) -> None:
    require_assets(folder)
    if not (folder / CHECKPOINT_NAME).is_file():
        raise ArtifactError(
            f"{folder} holds neither model.onnx nor {CHECKPOINT_NAME}: make a model with  svtool export SOURCE  "
            f"{modelfile.SOURCES}"
        )


def open_recognizer(
    artifact: Path, *, device: str = "auto", threads: int | None = None, settings: OrtConfig | None = None
) -> Recognizer:
    """Open an artifact with the assets beside it. A directory means its `model.onnx`, else its checkpoint."""
    path = check_artifact(artifact)
    root = path if path.is_dir() else path.parent
    assets = read_assets(root, name=root.resolve().name)
    backend = load_backend(path, provider=device, threads=threads, settings=settings)
    return Recognizer(backend, assets, artifact=path)
