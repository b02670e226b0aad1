"""The model an engine is built from: checked against the contract, its sizes read once.

Knows the graph and its manifest. Knows nothing of precision, profiles or TensorRT.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from svtool import graph as graphs
from svtool import layers, manifest, modelfile
from svtool.assets import BPE_NAME, CMVN_NAME
from svtool.errors import ArtifactError
from svtool.layers import LayerGroup

if TYPE_CHECKING:
    import onnx_ir as ir

_MAX_FRAMES = 4096


@dataclass(frozen=True)
class Source:
    """The model and what a build needs to know of it."""

    path: Path
    manifest: Mapping[str, Any]
    digest: str
    tag_ids: tuple[int, ...]
    width: int
    units: int
    heads: int
    vocabulary: int
    parameters: int
    max_frames: int
    groups: tuple[LayerGroup, ...]  # may become int8, for a search to move
    pinned: tuple[str, ...]  # linear layers the user keeps out of int8
    other_macs: int  # of linear layers that never become int8: the logits layer and the pinned ones

    @property
    def name(self) -> str:
        return str(self.manifest.get("source", {}).get("name", ""))

    def apart(self, folder: Path) -> str | None:
        """A warning when `folder` lacks what engines are opened with and the model's own folder has."""
        needed = (CMVN_NAME, BPE_NAME, "config.yaml", "tokens.json")
        home = self.path.parent
        lacking = [name for name in needed if (home / name).is_file() and not (folder / name).is_file()]
        if not lacking:
            return None
        return (
            f"{folder.resolve()} lacks {', '.join(lacking)}, which an engine is opened with: "
            f"copy them from {home}, or build with -o in that folder"
        )

    @property
    def is_tiny(self) -> bool:
        """Whether it is the embedded demonstration model."""
        return self.name == "tiny"


def read_source(path: Path, head: str = "logits", *, keep: Sequence[str] = ()) -> Source:
    """Check a model against the contract and read its sizes. `keep`: patterns of layers that stay out of int8.

    Raises ArtifactError, or UsageError for a pattern that names no layer.
    """
    model = graphs.load_model(path)
    graphs.check_contract(model, path)
    linears = list(graphs.linears(model))
    last = next((linear for linear in linears if linear.head), None)
    if last is None:
        raise ArtifactError(f"{path}: no linear layer makes {graphs.LOGITS}: {modelfile.again(path)}")
    described = manifest.read_manifest(path) if manifest.manifest_path(path).is_file() else {}
    if described and described.get("kind") != "model":
        raise ArtifactError(
            f"{path} is an engine ({described.get('precision')}): build from the float32 model.onnx"
        )
    pinned = layers.match(model, keep)
    groups = layers.layer_groups(model, leave_out=pinned)
    return Source(
        path=path,
        manifest=described,
        digest=graphs.model_digest(model),
        tag_ids=_tag_ids(model, path, described, needed=head == "greedy"),
        width=last.shape[0],
        units=max(linear.shape[1] for linear in linears if not linear.head),
        heads=_attention_heads(model),
        vocabulary=last.shape[1],
        parameters=sum(
            value.const_value.size for value in model.graph.initializers.values() if value.const_value
        ),
        max_frames=int(described.get("max_frames", _MAX_FRAMES)),
        groups=groups,
        pinned=pinned,
        other_macs=sum(linear.shape[0] * linear.shape[1] for linear in linears)
        - sum(group.macs for group in groups),
    )


def _tag_ids(model: ir.Model, path: Path, described: Mapping[str, Any], *, needed: bool) -> tuple[int, ...]:
    ids = described.get("tag_ids") or graphs.tag_ids(model) or ()
    if needed and not ids:
        raise ArtifactError(
            f"{path} does not say which ids are tags (no manifest, no metadata {graphs.TAG_IDS_KEY}): "
            f"build with  --head logits, or {modelfile.again(path)}"
        )
    return tuple(int(tag) for tag in ids)


def _attention_heads(model: ir.Model) -> int:
    for node in model.graph:
        shape = node.inputs[0].shape if node.op_type == "Softmax" and node.inputs[0] is not None else None
        if shape is not None and len(shape) == 4 and isinstance(shape[1], int):
            return shape[1]
    return 4
