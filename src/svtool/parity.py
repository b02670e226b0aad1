"""Runs a graph and the float32 model it came from on the same inputs in ONNX Runtime, and says how far apart they are.

The inputs are seeded noise of the size of normalised features: a check that the graph computes the same function,
not a measure of recognition (`validate-wer` is that).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from svtool import graph as graphs
from svtool.backends.onnxrt import SWITCHES, open_session
from svtool.errors import ArtifactError
from svtool.frontend import FEATURE_SIZE

# (time axis, lengths): one frame; ragged with no length equal to the axis; a full batch of two
SHAPES: tuple[tuple[int, tuple[int, ...]], ...] = ((1, (1,)), (37, (31, 17, 5)), (171, (171, 40)))
INT8_TRUE_FROM = (1, 31)  # older ONNX Runtimes score fp16 graphs with Q/DQ wrongly, whatever the switch


@dataclass(frozen=True)
class Parity:
    sqnr_db: float  # over the logits of valid frames; inf when equal
    argmax_agreement: float  # percent of valid frames
    max_abs: float
    shapes: tuple[tuple[int, int], ...]  # (B, T) that ran
    onnxruntime: str
    switches: dict[str, str]

    def to_json(self) -> dict[str, Any]:
        value = asdict(self) | {"shapes": [list(shape) for shape in self.shapes]}
        return value | {"sqnr_db": None if math.isinf(self.sqnr_db) else round(self.sqnr_db, 2)}


def onnxruntime_version() -> str:
    import onnxruntime

    return str(onnxruntime.__version__)


def make_feed(frames: int, lengths: Sequence[int], seed: int = 0) -> dict[str, npt.NDArray[Any]]:
    """Noise features, zero where padded, with mixed languages and text normalisation."""
    rng = np.random.default_rng(seed)
    batch = len(lengths)
    speech = rng.standard_normal((batch, frames, FEATURE_SIZE), dtype=np.float32)
    for row, length in zip(speech, lengths, strict=True):
        row[length:] = 0
    return {
        "speech": speech,
        "speech_lengths": np.array(lengths, np.int32),
        "language": np.resize(np.array([0, 4, 3], np.int32), batch),
        "textnorm": np.resize(np.array([15, 14], np.int32), batch),
    }


def run(session: Any, path: Path, feed: dict[str, npt.NDArray[Any]]) -> list[npt.NDArray[Any]]:
    """Logits and lengths. Raises ArtifactError when ONNX Runtime stops in the middle of the graph."""
    try:
        results: list[npt.NDArray[Any]] = session.run([graphs.LOGITS, graphs.LENGTHS], feed)
    except Exception as error:  # ONNX Runtime's classes share no base of their own
        shape = list(feed["speech"].shape)
        reason = (str(error).strip().splitlines() or [type(error).__name__])[0]
        raise ArtifactError(f"{path} does not run on features {shape}: {reason}") from error
    return results


def compare(reference: Path, candidate: Path, *, threads: int | None = None) -> Parity:
    """Run both files, both with the logits head. Raises ArtifactError for wrong types, lengths or NaN."""
    import onnxruntime

    wanted = _run_all(reference, threads)
    found = _run_all(candidate, threads)
    signal = noise = 0.0
    agreed = frames = 0
    largest = 0.0
    for (_, lengths), one, two in zip(SHAPES, wanted, found, strict=True):
        if one.shape != two.shape:
            raise ArtifactError(
                f"{candidate} returned logits {list(two.shape)}, {reference} returns {list(one.shape)}"
            )
        for item, length in enumerate(lengths):
            a, b = (logits[item, : length + 4].astype(np.float64) for logits in (one, two))
            signal += float(np.square(a).sum())
            noise += float(np.square(a - b).sum())
            largest = max(largest, float(np.abs(a - b).max()))
            agreed += int((a.argmax(-1) == b.argmax(-1)).sum())
            frames += len(a)
    return Parity(
        10 * math.log10(max(signal, 1e-30) / noise) if noise else math.inf,
        100.0 * agreed / frames,
        largest,
        tuple((len(lengths), time) for time, lengths in SHAPES),
        onnxruntime.__version__,
        dict(SWITCHES),
    )


def _run_all(path: Path, threads: int | None) -> list[npt.NDArray[np.float32]]:
    session = open_session(path, threads=threads)
    results = []
    for frames, lengths in SHAPES:
        logits, lens = run(session, path, make_feed(frames, lengths))
        shape = (len(lengths), frames + 4)
        if logits.dtype != np.float32 or lens.dtype != np.int32 or logits.shape[:2] != shape:
            raise ArtifactError(
                f"{path} returned {logits.dtype} {list(logits.shape)} and {lens.dtype} lengths, expected float32 "
                f"{list(shape)} and int32"
            )
        if list(lens) != [length + 4 for length in lengths]:
            raise ArtifactError(
                f"{path} returned the lengths {list(lens)} for {list(lengths)}, expected four more each"
            )
        for item, length in enumerate(lengths):
            if not np.isfinite(logits[item, : length + 4]).all():
                raise ArtifactError(f"{path} returned logits that are not finite for the shape {list(shape)}")
        results.append(logits)
    return results
