"""How much of the logits int8 costs: signal-to-quantization-noise of the float32 graph with Q/DQ around chosen layers.

The float32 graph runs first and its logits are kept; then one candidate graph at a time is written, run and dropped.
The arithmetic is the true one on every CPU (`onnxrt.SWITCHES`). Knows nothing of where ranges come from or of what a
figure is good for.
"""

from __future__ import annotations

import gc
import tempfile
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from svtool import graph as graphs
from svtool import quantize, smooth
from svtool.backends.onnxrt import open_session
from svtool.errors import ArtifactError
from svtool.progress import Progress, Silent
from svtool.ranges import Sample, feed
from svtool.sqnr import Sqnr
from svtool.staging import staging

if TYPE_CHECKING:
    from svtool.calibration import Calibration
    from svtool.layers import LayerGroup

MOST_SAMPLES = 16
MOST_FRAMES = 3000  # LFR frames, 180 s: 300 MB of logits at 25,055 tokens


class Scorer:
    """Reference logits of a few utterances, and the score of any candidate against them."""

    def __init__(
        self,
        model_path: Path,
        samples: Iterable[Sample],
        *,
        exponents: Mapping[str, Sequence[int]] | None = None,
        threads: int | None = None,
        progress: Progress | None = None,
    ) -> None:
        """`exponents` smooth every candidate; the reference needs none, its output would be the same."""
        self._path = model_path
        self._exponents = exponents
        self._threads = threads
        self._progress = progress or Silent()
        self.samples = choose(samples)
        if not self.samples:
            raise ArtifactError(f"no utterance is left to compare int8 graphs of {model_path} on")
        self._reference = self._logits(model_path)

    def sqnr(self, amax: Mapping[str, float], layers: Sequence[str] | None) -> float:
        """dB over all frames, with `layers` in int8 (None: all but the head); inf when nothing changes."""
        if layers is not None and not layers:
            return float("inf")
        with staging(Path(tempfile.gettempdir()), "sensitivity") as folder:
            candidate = folder / "candidate.onnx"
            self._write(candidate, amax, layers)
            running = Sqnr()
            for reference, logits in zip(self._reference, self._logits(candidate), strict=True):
                running.add(reference, logits)
        found = running.db
        if found is None or found == float("-inf"):
            raise ArtifactError(
                f"the int8 graph of {self._path} gives logits that are not finite: check the ranges, or calibrate again"
            )
        return found

    def _write(self, path: Path, amax: Mapping[str, float], layers: Sequence[str] | None) -> None:
        model = graphs.load_model(self._path)
        if self._exponents:
            model = smooth.smooth(model, self._exponents)
        graphs.save_model(quantize.to_int8(model, amax, layers=layers), path)
        del model
        gc.collect()  # graphs are full of cycles: the weights would stay while the session loads its own

    def _logits(self, path: Path) -> list[npt.NDArray[np.float32]]:
        session: Any = open_session(path, threads=self._threads)
        logits = []
        for sample in self.samples:
            try:
                logits.append(session.run([graphs.LOGITS], feed(sample))[0])
            except ArtifactError:
                raise
            except Exception as error:  # ONNX Runtime's classes share no base of their own
                shape = list(sample.feats.shape)
                raise ArtifactError(
                    f"{path} failed on the utterance {sample.id!r} of shape {shape}: {error}"
                ) from error
            self._progress.advance()
        return logits


def choose(samples: Iterable[Sample]) -> tuple[Sample, ...]:
    """At most MOST_SAMPLES, spread evenly, and at most MOST_FRAMES in all: the longest go first."""
    every = list(samples)
    count = min(len(every), MOST_SAMPLES)
    chosen = [every[index * len(every) // count] for index in range(count)]
    while len(chosen) > 1 and sum(len(sample.feats) for sample in chosen) > MOST_FRAMES:
        del chosen[max(range(len(chosen)), key=lambda index: len(chosen[index].feats))]
    return tuple(chosen)


def group_sqnr(
    model_path: Path,
    samples: Iterable[Sample],
    calibration: Calibration,
    groups: Sequence[LayerGroup],
    *,
    threads: int | None = None,
    progress: Progress | None = None,
) -> dict[str, float]:
    """Group name -> dB with only that group in int8, by the calibration's ranges: low = sensitive."""
    progress = progress or Silent()
    chosen = choose(samples)
    progress.stage("sensitivity of layer groups", len(chosen) * (1 + len(groups)))
    scorer = _scorer(model_path, chosen, calibration, threads, progress)
    return {group.name: scorer.sqnr(calibration.amax, group.layers) for group in groups}


def sqnr_of(
    model_path: Path,
    samples: Iterable[Sample],
    calibration: Calibration,
    layers: Sequence[str] | None,
    *,
    use_max: bool = False,
    threads: int | None = None,
    progress: Progress | None = None,
) -> float:
    """dB with `layers` in int8; `use_max` takes the largest magnitudes seen in place of the chosen clipping points."""
    ranges = largest_ranges(calibration) if use_max else calibration.amax
    return _scorer(model_path, samples, calibration, threads, progress).sqnr(ranges, layers)


def largest_ranges(calibration: Calibration) -> dict[str, float]:
    """The ranges that method `max` would have chosen on the same audio."""
    return {name: calibration.absmax[name] for name in calibration.amax}


def _scorer(
    model_path: Path,
    samples: Iterable[Sample],
    calibration: Calibration,
    threads: int | None,
    progress: Progress | None,
) -> Scorer:
    return Scorer(model_path, samples, exponents=calibration.exponents, threads=threads, progress=progress)
