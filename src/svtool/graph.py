"""What svtool reads out of its own ONNX graph: contract, linear layers, residual adds, digest. Changes nothing.

Knows nothing of precision, TensorRT or files other than the model's own.
"""

from __future__ import annotations

import contextlib
import hashlib
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from svtool import modelfile
from svtool.errors import ArtifactError
from svtool.frontend import FEATURE_SIZE

if TYPE_CHECKING:
    from collections.abc import Iterator

    import onnx_ir as ir

LOGITS = "ctc_logits"
LENGTHS = "encoder_out_lens"
INPUTS = {
    "speech": ("FLOAT", 3),
    "speech_lengths": ("INT32", 1),
    "language": ("INT32", 1),
    "textnorm": ("INT32", 1),
}
OUTPUTS = {LOGITS: ("FLOAT", 3), LENGTHS: ("INT32", 1)}
# the dynamic axes by name; the sizes after them are fixed
AXES = {
    "speech": ("batch_size", "feats_length"),
    "speech_lengths": ("batch_size",),
    "language": ("batch_size",),
    "textnorm": ("batch_size",),
    LOGITS: ("batch_size", "logits_length"),
    LENGTHS: ("batch_size",),
}
TAG_IDS_KEY = "svtool.tag_ids"  # comma-separated ids of the vocabulary's <|...|> pieces
PRECISION_KEY = "svtool.precision"
MAX_PROTOBUF_BYTES = 2**31 - 1

_DYNAMIC_OPS = (
    "DynamicQuantizeLinear",
    "MatMulInteger",
    "ConvInteger",
    "DynamicQuantizeMatMul",
    "MatMulNBits",
)
_STATIC_OPS = ("QuantizeLinear", "DequantizeLinear", "QLinearMatMul", "QLinearConv")


@dataclass(frozen=True)
class Linear:
    """One MatMul with a constant weight."""

    name: str  # "encoder.encoders.0.feed_forward.w_1"
    source: str  # the tensor it multiplies, named as in the float32 model
    shape: tuple[int, int]  # weight [K, N]
    node: ir.Node
    bias: ir.Node | None  # the Add after it
    head: bool  # makes the logits

    @property
    def kind(self) -> str:
        """Last part of the name: `linear_q_k_v`, `linear_out`, `w_1`, `w_2`, `ctc_lo`."""
        return self.name.split("@")[0].rsplit(".", 1)[-1]


def load_model(path: Path, *, any_version: bool = False) -> ir.Model:
    """Read a model; weights in external data stay on disk until used. Raises ArtifactError.

    `any_version`: also one that this ONNX Runtime does not read.
    """
    import onnx_ir

    if any_version:
        modelfile.read_header(path)
    else:
        modelfile.check(path)
    try:
        return onnx_ir.load(path)
    except Exception as error:  # protobuf's exception types differ between its majors
        raise modelfile.unreadable(path, "onnx_ir", error) from error


def save_model(model: ir.Model, path: Path) -> None:
    """Write one self-contained file, the same bytes for the same graph."""
    with path.open("wb") as stream:
        stream.writelines(_pieces(model))


def to_bytes(model: ir.Model) -> bytes:
    """The model with every weight inside, wherever it was stored. Raises ArtifactError above protobuf's 2 GB."""
    return b"".join(_pieces(model))


def _pieces(model: ir.Model) -> Iterator[bytes]:
    from svtool import onnxfile

    # judged by size: protobuf's exception types differ between its majors
    if (size := weight_bytes(model)) > MAX_PROTOBUF_BYTES:
        raise ArtifactError(
            f"the graph has {size / 1e9:.1f} GB of weights: one ONNX file holds 2 GB, and the runtimes that svtool "
            "writes for read one file"
        )
    return onnxfile.pieces(model)


def weight_bytes(model: ir.Model) -> int:
    """Size of all weights, inside the file or beside it; reads none of them."""
    tensors = (value.const_value for value in model.graph.initializers.values())
    return sum(tensor.nbytes for tensor in tensors if tensor is not None)


def release_weights(model: ir.Model) -> None:
    """Unmap weights kept in external data; they are mapped again when next read."""
    import onnx_ir

    for value in model.graph.initializers.values():
        if isinstance(value.const_value, onnx_ir.ExternalTensor):
            with contextlib.suppress(BufferError):  # somebody still holds a view: it stays mapped
                value.const_value.release()


def check_contract(model: ir.Model, path: Path) -> None:
    """Refuse graphs that are not the model `svtool export` writes. Raises ArtifactError with the next command."""
    remedy = modelfile.again(path)
    check_not_quantized(model, path)
    for kind, wanted, values in (
        ("input", INPUTS, model.graph.inputs),
        ("output", OUTPUTS, model.graph.outputs),
    ):
        found = {str(value.name): value for value in values}
        if kind == "output" and "token_ids" in found:
            raise ArtifactError(
                f"{path} already has the greedy head: build from the model with the logits head"
            )
        if set(found) != set(wanted):
            raise ArtifactError(
                f"{path} has the {kind}s {', '.join(found) or 'none'}, expected {', '.join(wanted)}: {remedy}"
            )
        for name, (dtype, rank) in wanted.items():
            _check_tensor(found[name], dtype, rank, path, remedy)
    width = _dims(model.graph.inputs[[str(v.name) for v in model.graph.inputs].index("speech")])[2]
    if width != FEATURE_SIZE:
        raise ArtifactError(f"{path} takes features of width {width}, expected {FEATURE_SIZE}: {remedy}")
    if not any(True for _ in linears(model)):
        raise ArtifactError(
            f"{path} has no MatMul with a constant weight (merged into Gemm by another tool?): {remedy}"
        )


def check_not_quantized(model: ir.Model, path: Path | str) -> None:
    """Refuse graphs somebody has quantized already."""
    ops = {node.op_type for node in model.graph.all_nodes()}
    dynamic = [op for op in _DYNAMIC_OPS if op in ops]
    if dynamic:
        raise ArtifactError(
            f"{path} is a dynamically quantized model ({', '.join(dynamic)}), which TensorRT cannot build: "
            "start from the float32 model, made with  svtool export SOURCE  "
            "then  svtool build-trt MODEL --int8"
        )
    static = [op for op in _STATIC_OPS if op in ops]
    if static:
        raise ArtifactError(
            f"{path} is quantized already ({', '.join(static)}): start from the float32 model, made with  "
            "svtool export SOURCE"
        )


def linears(model: ir.Model) -> Iterator[Linear]:
    """Every constant-weight MatMul in graph order. Names are unique."""
    seen: set[str] = set()
    for node in model.graph:
        weight = node.inputs[1] if node.op_type == "MatMul" else None
        if weight is None or weight.const_value is None or len(weight.const_value.shape) != 2:
            continue
        bias = _bias(node)
        name = _layer_name(node, bias)
        if name in seen:  # a bias or weight shared by two layers cannot name both
            name = f"{name}@{node.name}"
        seen.add(name)
        last = (bias or node).outputs[0]
        rows, columns = (int(size) for size in weight.const_value.shape.numpy())
        first = node.inputs[0]
        assert first is not None
        yield Linear(name, source_name(first), (rows, columns), node, bias, leads_to_logits(last))


def leads_to_logits(value: ir.Value) -> bool:
    while value.name != LOGITS and [user.op_type for user in users(value)] == ["Cast"]:
        value = users(value)[0].outputs[0]
    return value.name == LOGITS


def users(value: ir.Value) -> list[ir.Node]:
    return [use.node for use in value.uses()]


def source_name(value: ir.Value) -> str:
    """The name a value had before casts were put behind it."""
    producer = value.producer()
    while producer is not None and producer.op_type == "Cast" and producer.inputs[0] is not None:
        value = producer.inputs[0]
        producer = value.producer()
    return str(value.name)


def residual_adds(model: ir.Model) -> list[ir.Node]:
    """Adds of two computed tensors that reach a LayerNormalization through Adds alone, in graph order."""
    reach: set[ir.Node] = set()
    found = []
    for node in reversed(list(model.graph)):
        if node.op_type != "Add" or has_constant_input(node):
            continue
        if any(user.op_type == "LayerNormalization" or user in reach for user in users(node.outputs[0])):
            reach.add(node)
            found.append(node)
    return found[::-1]


def has_constant_input(node: ir.Node) -> bool:
    return any(value is not None and value.const_value is not None for value in node.inputs)


def after_linears(model: ir.Model) -> set[ir.Node]:
    """Linear MatMuls and every node that depends on one: what precision passes may touch."""
    reached = {linear.node for linear in linears(model)}
    for node in model.graph:
        producers = (value.producer() for value in node.inputs if value is not None)
        if any(producer in reached for producer in producers):
            reached.add(node)
    return reached


def tag_ids(model: ir.Model) -> tuple[int, ...] | None:
    text = model.metadata_props.get(TAG_IDS_KEY)
    return tuple(int(part) for part in text.split(",")) if text else None


def model_digest(model: ir.Model) -> str:
    """sha256 over what the graph computes: inputs, outputs, opset, nodes in order, initializers by name.

    Documentation, metadata, value_info, the producer and the order of initializers do not count, nor does where
    the weights are stored.
    """
    digest = hashlib.sha256()
    graph = model.graph
    for domain, version in sorted(model.opset_imports.items()):
        digest.update(f"opset {domain} {version}\n".encode())
    for kind, values in (("input", graph.inputs), ("output", graph.outputs)):
        for value in values:
            digest.update(f"{kind} {value.name} {value.dtype} {value.shape}\n".encode())
    for node in graph:
        digest.update(_node_text(node).encode())
    for name in sorted(graph.initializers):
        tensor = graph.initializers[name].const_value
        assert tensor is not None
        digest.update(f"weight {name} {tensor.dtype} {list(tensor.shape)}\n".encode())
        digest.update(tensor.tobytes())
    return digest.hexdigest()


def _node_text(node: ir.Node) -> str:
    import onnx_ir

    names = [value.name if value is not None else "" for value in node.inputs]
    parts = [f"node {node.domain} {node.op_type} {names} {[value.name for value in node.outputs]}"]
    for key in sorted(node.attributes):
        attribute = node.attributes[key]
        value = attribute.value
        if isinstance(value, onnx_ir.TensorProtocol):
            value = hashlib.sha256(value.tobytes()).hexdigest() + f" {value.dtype} {list(value.shape)}"
        parts.append(f"{key}={attribute.type.name}:{value}")
    return " ".join(parts) + "\n"


def _check_tensor(value: ir.Value, dtype: str, rank: int, path: Path, remedy: str) -> None:
    found = value.dtype.name if value.dtype is not None else "no type"
    dims = _dims(value)
    if found != dtype or len(dims) != rank:
        raise ArtifactError(
            f"{path}: {value.name} is {found} of rank {len(dims)}, expected {dtype} of rank {rank}: {remedy}"
        )
    dynamic = dims[:2] if rank == 3 else dims[:1]
    if any(isinstance(size, int) for size in dynamic):
        raise ArtifactError(
            f"{path}: {value.name} has the fixed shape {dims}, batch and time must be dynamic: {remedy}"
        )


def _dims(value: ir.Value) -> list[int | str | None]:
    if value.shape is None:
        return []
    return [size if isinstance(size, int) else size.value for size in value.shape]


def _bias(node: ir.Node) -> ir.Node | None:
    after = users(node.outputs[0])
    alone = len(after) == 1 and after[0].op_type == "Add" and has_constant_input(after[0])
    return after[0] if alone else None


def _layer_name(node: ir.Node, bias: ir.Node | None) -> str:
    # exporters fold the weight's transpose and lose its name; the bias keeps the module's
    for owner, suffix in ((bias, ".bias"), (node, ".weight")):
        for value in owner.inputs if owner is not None else ():
            if value is not None and value.const_value is not None and str(value.name).endswith(suffix):
                return str(value.name).removesuffix(suffix)
    return str(node.name)
