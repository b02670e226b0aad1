"""Ranges of a model's tensors on real utterances: the cache they are kept in, and the run that makes one.

A cache is keyed by everything it depends on and carries the digest of its own content: it is refused by name when
any of it differs or somebody changed it. Knows nothing of engines being built.
"""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from svtool import __version__, layers, manifest, sensitivity, smooth, thresholds
from svtool import graph as graphs
from svtool.assets import LANGUAGES
from svtool.audiofacts import QUIET_PEAK, ZERO_SHARE, faults, samples_digest
from svtool.errors import ArtifactError, UsageError, counted
from svtool.frontend import LFR_FRAME_S, MIN_SAMPLES, SAMPLE_RATE
from svtool.progress import Progress, Silent
from svtool.ranges import ChannelProbes, Probes, Running, Sample, Skipped, largest
from svtool.segment import THRESHOLD_DBFS

if TYPE_CHECKING:
    import onnx_ir as ir

    from svtool.assets import Assets
    from svtool.config import CalibrationConfig
    from svtool.frontend import Cmvn
    from svtool.utterances import UtteranceList

__all__ = [
    "METHODS",
    "Calibration",
    "Sample",
    "Skipped",
    "calibrate",
    "calibrate_list",
    "check_complete",
    "default_cache",
    "frontend_settings",
    "import_scales",
    "largest",
    "load_cache",
    "load_for",
    "read_cache",
    "read_samples",
    "save_cache",
]

SCHEMA = "svtool.calibration/1"
METHODS = ("percentile", "max", "entropy", "mse")
IMPORTED = "imported"  # the method of scales that another tool chose
MIN_UTTERANCES = 64  # fewer leave the tails of the ranges to chance
MIN_SECONDS = 60.0
MOST_LOSS_DB = 3.0  # against max ranges: more, and the clipping costs more than it saves
_NAMED = 5

REASONS = {
    "silent": f"silent (no sound above {THRESHOLD_DBFS:g} dBFS over 300 Hz)",
    "too_long": "too long (over {max_seconds:g} s)",
    "too_short": f"too short (under {1000 * MIN_SAMPLES / SAMPLE_RATE:g} ms)",
    "missing": "not there",
    "not_audio": "not audio",
    "broken": "broken",
    "no_audio_stream": "without an audio stream",
    "no_decoder": "in a format with no decoder",
    "not_finite": "with NaN, infinite or absurd samples",
}
"""Why an utterance was not run, as people read it; caches keep the word on the left."""


@dataclass(frozen=True)
class Calibration:
    """Ranges and everything they depend on; `amax` clips int8, `absmax` decides what fp16 can hold.

    Both are those of the smoothed graph when `smooth` is above zero; `onnx_digest` is the original model's.
    """

    onnx_digest: str
    list_name: str
    list_digest: str
    frontend: Mapping[str, Any]
    method: str  # one of METHODS, or IMPORTED
    percentile: float | None  # of method "percentile" alone
    used: int
    frames: int  # LFR frames, without queries
    skipped: Mapping[str, int]  # reason -> count
    amax: Mapping[str, float]
    absmax: Mapping[str, float]
    languages: Mapping[str, int] = field(default_factory=dict)
    warnings: tuple[str, ...] = ()
    tool: str = __version__
    max_seconds: float = 30.0  # longer utterances were skipped
    smooth: float = 0.0  # strength of the rescaling, 0 = none
    exponents: Mapping[str, Sequence[int]] = field(default_factory=dict)  # log2 per channel, see `smooth.py`
    # logits of the float32 Q/DQ graph, dB: `db` with all linear layers in int8, `max_db` the same by max ranges,
    # `groups` with one kind of layer alone; and the number of `utterances` compared
    sqnr: Mapping[str, Any] = field(default_factory=dict)
    built_with: Mapping[str, str] = field(
        default_factory=dict
    )  # libraries that ran and that exported the model
    # of the audio that was used, sorted, so that validation can refuse it; none in caches made before these were kept
    audio_digests: tuple[str, ...] = ()

    def to_json(self) -> dict[str, Any]:
        exponents = {name: " ".join(map(str, one)) for name, one in self.exponents.items()}
        own = {"warnings": list(self.warnings), "exponents": exponents}  # a line per tensor, not per channel
        content = {"schema": SCHEMA} | asdict(replace(self, exponents={})) | own
        # left out where there are none, so that the digest of an older cache stays what it was
        digests = content.pop("audio_digests")
        return content | ({"audio_digests": list(digests)} if digests else {})

    @property
    def digest(self) -> str:
        return _digest(self.to_json())

    @property
    def seconds(self) -> float:
        """Audio behind the ranges, to the frame."""
        return self.frames * LFR_FRAME_S

    @property
    def lost_db(self) -> float | None:
        """How much worse int8 is with these ranges than with max ranges on the same audio; None = not measured."""
        mine, best = self.sqnr.get("db"), self.sqnr.get("max_db")
        return best - mine if mine is not None and best is not None else None

    @property
    def bad(self) -> bool:
        """Whether the ranges clip so much that no engine is built from them."""
        return self.lost_db is not None and self.lost_db > MOST_LOSS_DB


def calibrate(
    model_path: Path,
    samples: Iterable[Sample | Skipped],
    *,
    method: str = "percentile",
    percentile: float = 99.999,
    smoothing: float = 0.0,
    scales: Mapping[str, float] | None = None,
    max_seconds: float = 30.0,
    list_name: str = "",
    list_digest: str = "",
    frontend: Mapping[str, Any] | None = None,
    multilingual: bool = False,
    notes: Sequence[str] = (),
    score: bool = True,
    threads: int | None = None,
    progress: Progress | None = None,
    total: int | None = None,
) -> Calibration:
    """Stream `samples` through the model. Raises ArtifactError when none is usable or a tensor is not finite.

    `scales` (tensor -> amax, complete) are kept in place of measured clipping points. With `smoothing` above zero
    the samples are read twice. `score` measures what int8 costs with these ranges. `notes` on the list become
    warnings.
    """
    progress = progress or Silent()
    check_settings(method, percentile, smoothing)
    model = _load(model_path)
    digest = graphs.model_digest(model)
    # every skipped utterance is told in the first pass over the samples
    tally = _Tally(max_seconds, list_name, progress, told=0 if smoothing else _NAMED)
    exponents: dict[str, tuple[int, ...]] = {}
    if smoothing:
        progress.stage("measuring channels", total)
        first = _Tally(max_seconds, list_name, progress)
        exponents = _balance(model, samples, smoothing, threads, first)
        model = smooth.smooth(model, exponents)
    method = IMPORTED if scales is not None else method
    probes = Probes(model, histograms=method not in ("max", IMPORTED))
    del model  # its weights may be as large as the session's
    progress.stage("calibrating", total)
    with probes.session(threads) as run:
        tally.stream(samples, run)
    made = Calibration(
        onnx_digest=digest,
        list_name=list_name,
        list_digest=list_digest,
        frontend=dict(frontend or {}),
        method=method,
        percentile=percentile if method == "percentile" else None,
        used=tally.used.total(),
        frames=tally.frames,
        skipped=dict(sorted(tally.skipped.items())),
        amax=dict(scales) if scales is not None else probes.clipping_points(_chooser(method, percentile)),
        absmax=probes.absmax(),
        languages=dict(sorted(tally.used.items())),
        max_seconds=max_seconds,
        smooth=smoothing,
        exponents=exponents,
        built_with=_libraries(model_path),
        audio_digests=tuple(sorted(tally.digests)),
    )
    del probes
    if score:
        made = replace(made, sqnr=_score(model_path, tally.kept.samples, made, threads, progress))
    return replace(made, warnings=(*notes, *tally.warnings(multilingual), *_costs(made)))


def import_scales(
    model_path: Path, scales: Mapping[str, float], *, frontend: Mapping[str, Any]
) -> Calibration:
    """A cache of another tool's clipping points alone (tensor -> amax, complete): no audio has been heard."""
    return Calibration(
        onnx_digest=graphs.model_digest(_load(model_path)),
        list_name="",
        list_digest="",
        frontend=dict(frontend),
        method=IMPORTED,
        percentile=None,
        used=0,
        frames=0,
        skipped={},
        amax=dict(scales),
        absmax={},
        warnings=(
            "scales without audio: what fp16 can hold is not measured, so the residual stream stays float32, and "
            "neither is what int8 costs: give --data LIST too",
        ),
        built_with=_libraries(model_path),
    )


def calibrate_list(
    model_path: Path,
    job: Mapping[str, Any],
    *,
    threads: int | None = None,
    progress: Progress | None = None,
) -> Calibration:
    """`calibrate` on an utterance list. `job`: `list`, `assets` (folder), `method`, `percentile`, `max_seconds`, and
    where wanted `smooth` and `scales`."""
    from svtool.assets import find_assets
    from svtool.utterances import read_utterances

    assets = find_assets(job["assets"])
    utterances = read_utterances(job["list"])
    return calibrate(
        model_path,
        read_samples(utterances, assets, max_seconds=job["max_seconds"]),
        method=job["method"],
        percentile=job["percentile"],
        smoothing=job.get("smooth", 0.0),
        scales=job.get("scales"),
        max_seconds=job["max_seconds"],
        list_name=job["list"],
        list_digest=utterances.digest,
        frontend=frontend_settings(assets.cmvn),
        multilingual=assets.name != "tiny",
        notes=utterances.notes,
        threads=threads,
        progress=progress,
        total=len(utterances.utterances),
    )


def default_cache(model_path: Path, spec: str) -> Path:
    """Where the ranges of a model on the list `spec` are kept: beside the model, named after the list."""
    name = spec.replace(":", "-") if spec.startswith("tiny:") else Path(spec).stem
    return model_path.parent / f"{name}.calibration.json"


def save_cache(path: Path, calibration: Calibration) -> None:
    content = calibration.to_json()
    manifest.write_json(path, {"schema": SCHEMA, "sha256": _digest(content)} | content)


def load_cache(
    path: Path,
    onnx_digest: str,
    *,
    list_digest: str | None = None,
    frontend: Mapping[str, Any] | None = None,
    method: str | None = None,
    percentile: float | None = None,
    smoothing: float | None = None,
    max_seconds: float | None = None,
) -> Calibration:
    """Read a cache for the model with `onnx_digest`; keyword arguments left None are not compared.

    Raises ArtifactError that names what differs: never a silent reuse.
    """
    calibration = read_cache(path)
    wanted = {
        "onnx_digest": ("model", onnx_digest),
        "tool": ("svtool version", __version__),
        "list_digest": ("utterance list", list_digest),
        "frontend": ("front end", frontend),
        "method": ("method", method),
        "percentile": ("percentile", percentile),
        "smooth": ("smoothing", smoothing),
        "max_seconds": ("longest utterance", max_seconds),
    }
    for key, (name, value) in wanted.items():
        found = getattr(calibration, key)
        if value is not None and found != value:
            raise ArtifactError(
                f"{path} was calibrated for another {name} ({_brief(found)}, here {_brief(value)}): {_again(path)}"
            )
    return calibration


def load_for(
    path: Path,
    onnx_digest: str,
    settings: CalibrationConfig,
    *,
    list_digest: str,
    frontend: Mapping[str, Any] | None,
    method: str | None = None,
) -> Calibration:
    """`load_cache`, held to everything that `settings` say; `method` where they did not choose it (IMPORTED)."""
    method = method or settings.method
    return load_cache(
        path,
        onnx_digest,
        list_digest=list_digest,
        frontend=frontend,
        method=method,
        percentile=settings.percentile if method == "percentile" else None,
        smoothing=settings.smooth,
        max_seconds=settings.max_seconds,
    )


def read_cache(path: Path) -> Calibration:
    """Any undamaged cache, whatever it was made for. Raises ArtifactError."""
    raw = _content(path)
    again = _again(path)
    try:
        exponents = {name: tuple(map(int, text.split())) for name, text in raw.pop("exponents").items()}
        own = {"warnings": tuple(raw["warnings"]), "audio_digests": tuple(raw.get("audio_digests", ()))}
        calibration = Calibration(**raw | own | {"exponents": exponents})
        tables = (("amax", calibration.amax.items()), ("absmax", calibration.absmax.items()))
    except (TypeError, AttributeError, KeyError, ValueError) as error:
        raise ArtifactError(f"the calibration cache {path} is damaged ({error}): {again}") from error
    for kind, table in tables:
        for name, value in table:
            usable = isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
            if not usable or value < 0 or (kind == "amax" and value == 0):
                raise ArtifactError(
                    f"{path}: the {kind} of {name!r} is {value!r}, not a finite positive number: {again}"
                )
    return calibration


def check_complete(calibration: Calibration, model: ir.Model, path: Path) -> None:
    """Raise ArtifactError naming the file `path` when a linear layer of the model has no range in it."""
    missing = [source for source in _needed(model) if source not in calibration.amax]
    if missing:
        raise ArtifactError(f"{path} lacks {_listed(missing, 'range')}: {_again(path)}")


def matched_scales(model: ir.Model, scales: Mapping[str, float], path: Path) -> tuple[dict[str, float], int]:
    """Scales of the model's linear inputs in graph order, and how many others `path` held. Raises ArtifactError."""
    missing = [source for source in _needed(model) if source not in scales]
    if missing:
        raise ArtifactError(
            f"{path} lacks {_listed(missing, 'scale')} of this model: it was made from another graph; take the "
            "scales of this very model.onnx, or calibrate here with  svtool calibrate MODEL --data LIST"
        )
    sources = dict.fromkeys(linear.source for linear in graphs.linears(model))
    kept = {source: scales[source] for source in sources if source in scales}
    return kept, len(scales) - len(kept)


def frontend_settings(cmvn: Cmvn) -> dict[str, Any]:
    """What of the front end the ranges depend on."""
    from svtool import frontend

    normalisation = manifest.sha256_bytes(cmvn.shift.tobytes() + cmvn.scale.tobytes())
    return {
        "sample_rate": frontend.SAMPLE_RATE,
        "dither": 0,
        "lfr": "7/6",
        "mels": 80,
        "cmvn_sha256": normalisation,
    }


def read_samples(
    utterances: UtteranceList, assets: Assets, *, max_seconds: float = 30.0
) -> Iterable[Sample | Skipped]:
    """Decode a list lazily, one utterance in memory at a time; iterating again decodes it again.

    Every second utterance runs with its own language and ITN, the others with `auto` and no ITN, so that the
    ranges cover the query rows people use.
    """
    return _ListSamples(utterances, assets, max_seconds)


@dataclass(frozen=True)
class _ListSamples:
    utterances: UtteranceList
    assets: Assets
    max_seconds: float

    def __iter__(self) -> Iterator[Sample | Skipped]:
        from svtool.assets import TEXTNORMS
        from svtool.errors import AudioError
        from svtool.frontend import Frontend
        from svtool.segment import is_silent
        from svtool.utterances import decode_audio

        frontend = Frontend(self.assets.cmvn)
        for index, utterance in enumerate(self.utterances.utterances):
            try:
                audio = decode_audio(utterance.audio, name=utterance.id)
            except AudioError as error:
                yield Skipped(utterance.id, error.reason)
                continue
            count = len(audio.samples)
            if not MIN_SAMPLES <= count <= self.max_seconds * SAMPLE_RATE:
                yield Skipped(utterance.id, "too_short" if count < MIN_SAMPLES else "too_long")
            elif is_silent(audio.samples):
                yield Skipped(utterance.id, "silent")
            else:
                own = index % 2 == 1
                yield Sample(
                    utterance.id,
                    frontend.features(audio.samples),
                    LANGUAGES.get(utterance.language or "auto", 0) if own else LANGUAGES["auto"],
                    TEXTNORMS["withitn" if own else "woitn"],
                    utterance.language or "",
                    *faults(audio),
                    samples_digest(audio.samples),
                )


class _Spread:
    """Some samples of a stream of unknown length, evenly spread: every k-th, k doubled whenever there are too many."""

    def __init__(self) -> None:
        self.samples: list[Sample] = []
        self._every = 1
        self._seen = 0

    def add(self, sample: Sample) -> None:
        if self._seen % self._every == 0:
            self.samples.append(sample)
        self._seen += 1
        if len(self.samples) == 2 * sensitivity.MOST_SAMPLES:
            del self.samples[1::2]
            self._every *= 2


@dataclass
class _Tally:
    """What happened to the utterances of one pass over a list."""

    max_seconds: float
    list_name: str
    progress: Progress
    told: int = _NAMED  # skipped utterances that a note names
    used: Counter[str] = field(default_factory=Counter)  # language -> utterances
    skipped: Counter[str] = field(default_factory=Counter)
    frames: int = 0
    digests: set[str] = field(default_factory=set)
    faults: Counter[str] = field(default_factory=Counter)
    kept: _Spread = field(default_factory=_Spread)

    def stream(self, samples: Iterable[Sample | Skipped], run: Running) -> None:
        """Run what can be run. Raises ArtifactError when that is nothing."""
        max_frames = _frames(self.max_seconds)
        for sample in samples:
            self.progress.advance()
            if isinstance(sample, Sample) and not 1 <= len(sample.feats) <= max_frames:
                sample = Skipped(sample.id, "too_long" if len(sample.feats) else "too_short")
            if isinstance(sample, Skipped):
                self._skip(sample)
            else:
                run(sample)
                self._add(sample)
        if self.told and (more := self.skipped.total() - self.told) > 0:
            self.progress.note(f"and {more:,} more skipped")
        if not self.used:
            reasons = counted_reasons(self.skipped, self.max_seconds) or "it is empty"
            raise ArtifactError(
                f"no utterance of {self.list_name or 'the list'} can calibrate: {reasons}; {self._remedy()}"
            )

    def _remedy(self) -> str:
        """What to do when everything was skipped, by the reasons there were."""
        steps = []
        if "too_long" in self.skipped:
            steps.append(
                f"take recordings of {self.max_seconds:g} s or less, or raise max_seconds under [calibration] in a "
                "TOML file and give it with --config"
            )
        if self.skipped.keys() - {"too_long", "too_short", "silent"}:
            steps.append(f"see what is wrong with  svtool data check {self.list_name or 'LIST'}")
        if not steps or "silent" in self.skipped:
            steps.append("name another list, of recordings with speech, with --data")
        return "; ".join(steps)

    def _add(self, sample: Sample) -> None:
        self.used[sample.spoken or "unknown"] += 1
        self.frames += len(sample.feats)
        for fault in ("clipped", "quiet", "zeros"):
            self.faults[fault] += getattr(sample, fault)
        if sample.digest:
            self.digests.add(sample.digest)
        self.kept.add(sample)

    def _skip(self, sample: Skipped) -> None:
        self.skipped[sample.reason] += 1
        if self.skipped.total() <= self.told:
            self.progress.note(f"skipped {sample.id!r}: {_reason(sample.reason, self.max_seconds)}")

    def warnings(self, multilingual: bool) -> tuple[str, ...]:
        total, seconds = self.used.total(), self.frames * LFR_FRAME_S
        found = []
        if total < MIN_UTTERANCES:
            found.append(f"used only {counted(total, 'utterance')}; ranges want at least {MIN_UTTERANCES}")
        if seconds < MIN_SECONDS:
            found.append(f"used only {seconds:.1f} s of audio; ranges want at least {MIN_SECONDS:.0f} s")
        if self.skipped:
            reasons = counted_reasons(self.skipped, self.max_seconds)
            found.append(f"skipped {counted(self.skipped.total(), 'utterance')}: {reasons}")
        for fault, text in (
            ("clipped", "clipped at full scale"),
            ("quiet", f"very quiet (under {20 * math.log10(QUIET_PEAK):.0f} dBFS at their loudest)"),
            ("zeros", f"digital silence for more than {ZERO_SHARE:.0%} of their length"),
        ):
            if self.faults[fault]:
                found.append(f"{text}: {self.faults[fault]} of {counted(total, 'utterance')}")
        if multilingual and (narrow := self._narrow()):
            found.append(f"{narrow}: a multilingual model wants every language it will hear")
        return tuple(found)

    def _narrow(self) -> str | None:
        """What to say of the languages when there are not two that the model knows."""
        known = [name for name in self.used if name in LANGUAGES and name not in ("auto", "nospeech")]
        if not known:
            return "the list names no languages that the model knows"
        if len(known) > 1:
            return None
        return f"every utterance {'' if len(self.used) == 1 else 'of a known language '}is {known[0]}"


def check_settings(method: str, percentile: float, smoothing: float) -> None:
    if method not in METHODS or not 0 < percentile <= 100:
        raise UsageError(
            f"calibration method {method!r} at {percentile}: choose {', '.join(METHODS[1:])}, "
            "or percentile in (0, 100]"
        )
    if not 0 <= smoothing <= 1:
        raise UsageError(f"smoothing of {smoothing:g}: choose 0 (none) to 1")


def _load(model_path: Path) -> ir.Model:
    model = graphs.load_model(model_path)
    graphs.check_contract(model, model_path)
    return model


def _frames(seconds: float) -> int:
    return math.ceil(round(seconds / LFR_FRAME_S, 6))


def _balance(
    model: ir.Model,
    samples: Iterable[Sample | Skipped],
    alpha: float,
    threads: int | None,
    tally: _Tally,
) -> dict[str, tuple[int, ...]]:
    """Exponents from a first pass over the samples; the second one must find them all again."""
    if iter(samples) is samples:
        raise ValueError("smoothing reads the samples twice: give a sequence, not an iterator")
    probes = ChannelProbes(model, smooth.foldable(model))
    with probes.session(threads) as run:
        tally.stream(samples, run)
    return smooth.exponents(model, probes.largest(), alpha)


def _chooser(method: str, percentile: float) -> Any:
    """Histogram and largest magnitude -> clipping point; None for the largest itself."""
    if method == "percentile":
        return lambda counts, _: thresholds.percentile(counts, percentile)
    return {"entropy": thresholds.entropy, "mse": thresholds.mse}.get(method)


def _score(
    model_path: Path, samples: list[Sample], made: Calibration, threads: int | None, progress: Progress
) -> dict[str, Any]:
    groups = layers.kind_groups(graphs.load_model(model_path))
    chosen = sensitivity.choose(samples)
    alike = made.method == "max"
    progress.stage("measuring what int8 costs", len(chosen) * (len(groups) + (2 if alike else 3)))
    scorer = sensitivity.Scorer(
        model_path, chosen, exponents=made.exponents, threads=threads, progress=progress
    )
    mine = _decibels(scorer.sqnr(made.amax, None))
    best = mine if alike else _decibels(scorer.sqnr(sensitivity.largest_ranges(made), None))
    each = {group.name: _decibels(scorer.sqnr(made.amax, group.layers)) for group in groups}
    return {"db": mine, "max_db": best, "utterances": len(chosen), "groups": each}


def _decibels(value: float) -> float | None:
    """None where int8 changes nothing at all."""
    return round(value, 2) if math.isfinite(value) else None


def _costs(made: Calibration) -> tuple[str, ...]:
    if not made.bad:
        return ()
    remedy = {
        IMPORTED: "these scales do not fit this audio: check what the other tool was given (this very model, audio "
        "like this, which clipping), or calibrate here, without --from-trt-cache",
        "percentile": "use --method max, or a higher --percentile",
    }
    return (
        f"the ranges are BAD, build-trt will refuse them: int8 is {made.lost_db:.1f} dB worse than with max ranges on "
        f"the same audio ({made.sqnr['db']:g} against {made.sqnr['max_db']:g} dB, at most {MOST_LOSS_DB:g}): "
        + remedy.get(made.method, "use --method max"),
    )


def _libraries(model_path: Path) -> dict[str, str]:
    """Versions the digest of the model and the ranges may depend on; the exporter's where the manifest tells them."""
    described = manifest.read_manifest(model_path) if manifest.manifest_path(model_path).is_file() else {}
    here = manifest.versions("numpy", "onnxruntime", "onnxruntime-gpu", "soxr", "av")
    return here | dict(described.get("built_with", {}))


def _needed(model: ir.Model) -> list[str]:
    """Inputs of the layers that int8 may take: all but the head."""
    return list(dict.fromkeys(linear.source for linear in graphs.linears(model) if not linear.head))


def _content(path: Path) -> dict[str, Any]:
    """What the file holds without schema and digest, both of them checked."""
    again = _again(path)
    if not path.is_file():
        raise ArtifactError(f"the calibration cache {path} does not exist: {again}")
    try:
        raw = json.loads(path.read_text(encoding="utf-8"))
    except (ValueError, OSError, RecursionError) as error:
        raise ArtifactError(
            f"the calibration cache {path} is truncated or damaged ({error}): {again}"
        ) from error
    schema = raw.get("schema") if isinstance(raw, dict) else None
    if schema != SCHEMA:
        raise ArtifactError(f"{path} has format {schema!r}, this svtool reads {SCHEMA!r}: {again}")
    if raw.pop("sha256", None) != _digest(raw):
        raise ArtifactError(
            f"{path} was changed after svtool wrote it (its sha256 does not fit its content): {again}; scales of "
            "another tool come in with  svtool calibrate MODEL --from-trt-cache FILE"
        )
    del raw["schema"]
    return dict(raw)


def _digest(content: Mapping[str, Any]) -> str:
    return manifest.sha256_bytes(json.dumps(content, sort_keys=True).encode())


def _again(path: Path) -> str:
    return f"calibrate again with  svtool calibrate MODEL --data LIST -o {path}"


def counted_reasons(skipped: Mapping[str, int], max_seconds: float) -> str:
    """`2 silent (...), 1 too long (over 30 s)`; empty for none."""
    return ", ".join(f"{count:,} {_reason(reason, max_seconds)}" for reason, count in sorted(skipped.items()))


def _reason(reason: str, max_seconds: float) -> str:
    return REASONS[reason].format(max_seconds=max_seconds) if reason in REASONS else reason


def _listed(names: Sequence[str], noun: str) -> str:
    shown = ", ".join(repr(name) for name in names[:3])
    more = f" and {len(names) - 3} more" if len(names) > 3 else ""
    return f"{len(names)} {noun}{'' if len(names) == 1 else 's'} ({shown}{more})"


def _brief(value: Any) -> str:
    text = value if isinstance(value, str) else json.dumps(value, sort_keys=True)
    return text[:12] + "…" if len(text) == 64 else text
