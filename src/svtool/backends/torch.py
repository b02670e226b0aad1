"""The PyTorch checkpoint as a backend: the reference every other runtime is compared with."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from svtool.backends import Batch, Limits, Output, greedy_head
from svtool.errors import MissingDependency, SvtoolError

if TYPE_CHECKING:
    from svtool.assets import Assets


class TorchBackend:
    """Owned by one thread. float32, no gradients."""

    runtime = "torch"
    precision = "fp32"

    def __init__(self, model: Any, tag_ids: tuple[int, ...], *, device: str = "cpu") -> None:
        self._model = model.to(device)
        self._device = device
        self.provider = device
        self.tag_ids = tag_ids
        self.limits = Limits()

    @classmethod
    def from_assets(cls, assets: Assets, *, device: str = "auto", threads: int | None = None) -> TorchBackend:
        """Load the checkpoint of `assets`. `auto` is the CPU: another device is used only when named."""
        try:
            import torch
        except ImportError as error:
            raise MissingDependency("running a PyTorch checkpoint", "torch", "export") from error
        from svtool.model import load_checkpoint

        device = "cpu" if device == "auto" else device
        if device.startswith("cuda") and not torch.cuda.is_available():
            raise SvtoolError(
                "device cuda was asked for, but PyTorch finds no CUDA device here: use --device cpu"
            )
        if threads:
            torch.set_num_threads(threads)
        return cls(load_checkpoint(assets), assets.tokens.tag_ids, device=device)

    @classmethod
    def from_checkpoint(
        cls, source: Path, *, device: str = "auto", threads: int | None = None
    ) -> TorchBackend:
        from svtool.assets import find_assets

        return cls.from_assets(find_assets(source), device=device, threads=threads)

    def infer(self, batch: Batch) -> Output:
        import torch

        inputs = (batch.feats, batch.feat_lens, batch.language, batch.textnorm)
        with torch.inference_mode():
            logits, lens = self._model(*(torch.from_numpy(one).to(self._device) for one in inputs))
        return greedy_head(logits.cpu().numpy(), lens.cpu().numpy(), self.tag_ids)

    def close(self) -> None:
        self._model = None
