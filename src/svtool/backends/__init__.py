"""The one seam to an inference runtime: what goes in, what comes out, and who may open which artifact.

A backend is owned by one thread. It knows nothing of audio, text or files other than its own artifact.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

import numpy as np
import numpy.typing as npt

from svtool.assets import QUERIES

if TYPE_CHECKING:
    from pathlib import Path

    from svtool.config import OrtConfig

FloatArray = npt.NDArray[np.float32]
IntArray = npt.NDArray[np.int32]


@dataclass(frozen=True)
class Batch:
    """One padded batch, in the order of the graph's inputs."""

    feats: FloatArray  # [B, T, 560], zero after CMVN where padded
    feat_lens: IntArray  # [B], LFR frames
    language: IntArray  # [B], query rows: auto 0, zh 3, en 4, yue 7, ja 11, ko 12
    textnorm: IntArray  # [B], query rows: withitn 14, woitn 15


@dataclass(frozen=True)
class Output:
    """What decoding needs; `logits` only from engines with the logits head."""

    token_ids: IntArray  # [B, T+4], argmax of every frame, the four query positions first
    token_logprobs: FloatArray  # [B, T+4], natural log
    tag_logits: FloatArray  # [B, 4, K], raw logits of the K tag ids at the four query positions
    logit_lens: IntArray  # [B] = feat_lens + 4
    logits: FloatArray | None = None  # [B, T+4, V]


@dataclass(frozen=True)
class Limits:
    """Largest batch the artifact takes. None = bounded by memory alone (a model, not a plan)."""

    max_batch: int | None = None
    max_frames: int = 4096  # LFR frames without the four queries
    # largest (batch, frames) of each optimization profile; () = every pair within the above
    profiles: tuple[tuple[int, int], ...] = ()

    def batch_for(self, frames: int) -> int | None:
        """Largest batch whose longest item has `frames` frames."""
        return max((batch for batch, longest in self.profiles if frames <= longest), default=self.max_batch)


class Backend(Protocol):
    limits: Limits
    runtime: str  # "torch", "onnxruntime", "tensorrt", "tensorrt_rtx"
    provider: str  # what really runs it, e.g. "CPUExecutionProvider"
    tag_ids: tuple[int, ...]

    def infer(self, batch: Batch) -> Output: ...

    def close(self) -> None: ...


def greedy_head(logits: FloatArray, logit_lens: IntArray, tag_ids: tuple[int, ...]) -> Output:
    """The greedy head in numpy, for engines that return `logits` f32 [B, T+4, V].

    Padded frames are never read: they come back as blank with probability 1.
    """
    token_ids = np.zeros(logits.shape[:2], dtype=np.int32)
    token_logprobs = np.zeros(logits.shape[:2], dtype=np.float32)
    for row, length in enumerate(logit_lens):
        valid = logits[row, :length]
        token_ids[row, :length] = valid.argmax(axis=-1)
        # infinite logits give NaN here, which decoding refuses by name
        with np.errstate(all="ignore"):
            spread = np.exp(valid - valid.max(axis=-1, keepdims=True)).sum(axis=-1)
            token_logprobs[row, :length] = -np.log(spread)
    tag_logits = logits[:, :QUERIES][:, :, np.asarray(tag_ids, dtype=np.int64)]
    return Output(token_ids, token_logprobs, tag_logits, logit_lens, logits)


def load_backend(
    artifact: Path, *, provider: str = "auto", threads: int | None = None, settings: OrtConfig | None = None
) -> Backend:
    """Open any artifact: a checkpoint folder (torch), a `.onnx` (ONNX Runtime) or a `.plan` (TensorRT).

    `settings` are ONNX Runtime's: the others have none.
    Raises ArtifactError when the file is missing, foreign or built for another machine.
    """
    if artifact.suffix == ".onnx":
        from svtool.backends.onnxrt import OnnxRuntimeBackend

        return OnnxRuntimeBackend(artifact, provider=provider, threads=threads, settings=settings)
    if artifact.suffix == ".plan":
        from svtool.backends.trt import open_plan

        return open_plan(artifact)
    from svtool.backends.torch import TorchBackend

    return TorchBackend.from_checkpoint(artifact, device=provider, threads=threads)
