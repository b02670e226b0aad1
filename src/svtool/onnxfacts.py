"""What any ONNX graph is, read from the graph itself: sizes, precision of its linear layers, and what of svtool's
contract it meets. Changes nothing, runs nothing, and believes no manifest.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Any

from svtool import graph as graphs
from svtool import modelfile
from svtool.backends.onnxrt import GREEDY_OUTPUTS, LOGITS_OUTPUTS
from svtool.errors import ArtifactError
from svtool.frontend import FEATURE_SIZE

if TYPE_CHECKING:
    import onnx_ir as ir

_PRODUCTS = ("MatMul", "Gemm", "FusedMatMul")
_INTEGER = {
    "MatMulInteger": "int8-dynamic",
    "MatMulIntegerToFloat": "int8-dynamic",
    "DynamicQuantizeMatMul": "int8-dynamic",
    "QLinearMatMul": "int8",
    "QGemm": "int8",
    "MatMulNBits": "int4-weights",
}
_WEIGHT_INPUT = {"QLinearMatMul": 3, "QGemm": 3}  # of the others it is the second input
_KINDS = {"FLOAT": "fp32", "DOUBLE": "fp64", "FLOAT16": "fp16", "BFLOAT16": "bf16"}
_SMALL = ("INT8", "UINT8", "INT4", "UINT4", "FLOAT8E4M3FN", "FLOAT4E2M1")
# nodes between a stored weight and the product it enters
_CARRIERS = ("DequantizeLinear", "Cast", "Transpose", "Identity", "Reshape", "Squeeze", "Unsqueeze")
_QUERY_OUTPUTS = {"token_ids": "INT32", "token_logprobs": "FLOAT", "tag_logits": "FLOAT"}
_SHOWN = 200  # characters of one metadata entry


@dataclass(frozen=True)
class GraphFacts:
    precision: (
        str  # of the linear layers: "fp32", "fp16", "int8", "int8-weights", "int8-dynamic", ... or "none"
    )
    linears: dict[str, int]  # precision -> count
    int8_share: float | None  # of all linear multiply-accumulates; None without linears
    head: str | None  # "logits", "greedy"; None = neither of ours
    inputs: dict[str, str]  # name -> "float32 [batch_size, feats_length, 560]"
    outputs: dict[str, str]
    opset: dict[str, int]
    ir_version: int
    producer: str
    nodes: int
    ops: dict[str, int]
    weight_bytes: int
    external: dict[str, Any] | None  # files, missing, outside
    metadata: dict[str, str]
    runs_problems: tuple[str, ...]  # why svtool cannot run it; empty = it can
    build_problem: str | None  # why no engine can be built from it

    @property
    def dynamic(self) -> bool:
        return "int8-dynamic" in self.linears


def read_facts(path: Path) -> GraphFacts:
    """Raises ArtifactError when the file is no ONNX model."""
    model = graphs.load_model(path, any_version=True)
    too_new = modelfile.version_problem(modelfile.read_header(path))
    linears = list(_linears(model))
    counts = Counter(kind for kind, _ in linears)
    whole = sum(size for _, size in linears)
    small = sum(size for kind, size in linears if kind.startswith("int8"))
    producer = f"{model.producer_name or ''} {model.producer_version or ''}".strip()
    external = _external(model, path)
    return GraphFacts(
        precision=_precision(counts),
        linears=dict(sorted(counts.items())),
        int8_share=small / whole if whole else None,
        head=_head(model),
        inputs={str(value.name): _words(value) for value in model.graph.inputs},
        outputs={str(value.name): _words(value) for value in model.graph.outputs},
        opset={domain or "ai.onnx": version for domain, version in model.opset_imports.items()},
        ir_version=int(model.ir_version),
        producer=producer or "not named",
        nodes=len(list(model.graph.all_nodes())),
        ops=dict(Counter(node.op_type for node in model.graph.all_nodes()).most_common()),
        weight_bytes=graphs.weight_bytes(model),
        external=external,
        metadata={key: _short(value) for key, value in model.metadata_props.items()},
        runs_problems=(*([f"it {too_new}"] if too_new else []), *_runs_problems(model, external)),
        build_problem=f"it {too_new}"
        if too_new
        else _build_problem(model, path, external, _precision(counts)),
    )


def _linears(model: ir.Model) -> Iterator[tuple[str, int]]:
    """(precision, multiply-accumulates per frame) of every product with a stored weight."""
    for node in model.graph.all_nodes():
        known = _INTEGER.get(node.op_type)
        if known is None and node.op_type not in _PRODUCTS:
            continue
        position = _WEIGHT_INPUT.get(node.op_type, 1)
        if position >= len(node.inputs):
            continue
        tensor, carriers = _stored(node.inputs[position])
        if tensor is None or len(tensor.shape) < 2:
            continue
        size = 1
        for length in tensor.shape.numpy():
            size *= int(length)
        yield known or _kind(node, tensor, carriers), size


def _stored(value: ir.Value | None) -> tuple[ir.TensorProtocol | None, list[str]]:
    """The weight behind a value, and the operators between."""
    carriers: list[str] = []
    while value is not None:
        if value.const_value is not None:
            return value.const_value, carriers
        producer = value.producer()
        if producer is None or producer.op_type not in (*_CARRIERS, "Constant"):
            return None, carriers
        if producer.op_type == "Constant":
            attribute = producer.attributes.get("value")
            return (attribute.as_tensor() if attribute is not None else None), carriers
        carriers.append(producer.op_type)
        value = producer.inputs[0]
    return None, carriers


def _kind(node: ir.Node, tensor: ir.TensorProtocol, carriers: list[str]) -> str:
    dtype = tensor.dtype.name
    if dtype not in _SMALL or "DequantizeLinear" not in carriers:
        return _KINDS.get(dtype, dtype.lower())
    bits = "int4" if dtype.endswith("4") else "fp8" if dtype.startswith("FLOAT") else "int8"
    return bits if _activation_is_quantized(node.inputs[0]) else f"{bits}-weights"


def _activation_is_quantized(value: ir.Value | None) -> bool:
    while value is not None:
        producer = value.producer()
        if producer is None or producer.op_type not in _CARRIERS:
            return False
        if producer.op_type == "DequantizeLinear":
            return True
        value = producer.inputs[0]
    return False


def _precision(counts: Counter[str]) -> str:
    """What an engine is called by: its lowest precision, the head and pinned layers aside."""
    order = ("int4-weights", "int4", "fp8", "int8-dynamic", "int8", "int8-weights", "fp16", "bf16", "fp32")
    return next((kind for kind in order if counts[kind]), "none")


def _head(model: ir.Model) -> str | None:
    outputs = tuple(str(value.name) for value in model.graph.outputs)
    return {GREEDY_OUTPUTS: "greedy", LOGITS_OUTPUTS: "logits"}.get(outputs)


def _words(value: ir.Value) -> str:
    """`float32 [batch_size, feats_length, 560]`."""
    names = {"FLOAT": "float32", "DOUBLE": "float64"}
    dtype = value.dtype.name if value.dtype is not None else "no type"
    if value.shape is None:
        return f"{names.get(dtype, dtype.lower())} of unknown shape"
    return f"{names.get(dtype, dtype.lower())} [{', '.join(str(size) for size in _dims(value))}]"


def _dims(value: ir.Value) -> list[int | str]:
    if value.shape is None:
        return []
    return [size if isinstance(size, int) else size.value or "?" for size in value.shape]


def _external(model: ir.Model, path: Path) -> dict[str, Any] | None:
    import onnx_ir

    tensors = (value.const_value for value in model.graph.initializers.values())
    names = sorted({str(one.location) for one in tensors if isinstance(one, onnx_ir.ExternalTensor)})
    if not names:
        return None
    outside = [
        name for name in names if PurePosixPath(name).is_absolute() or ".." in PurePosixPath(name).parts
    ]
    missing = [name for name in names if name not in outside and not (path.parent / name).is_file()]
    return {"files": names, "missing": missing, "outside": outside}


def _external_problem(external: dict[str, Any] | None) -> str | None:
    if external and external["missing"]:
        return f"its weights are in {', '.join(external['missing'])}, which is not beside it"
    if external and external["outside"]:
        return f"its weights are in {', '.join(external['outside'])}, outside its folder"
    return None


def _runs_problems(model: ir.Model, external: dict[str, Any] | None) -> Iterator[str]:
    inputs = [str(value.name) for value in model.graph.inputs]
    outputs = [str(value.name) for value in model.graph.outputs]
    if inputs != list(graphs.INPUTS):
        yield f"it takes {', '.join(inputs) or 'nothing'}, expected {', '.join(graphs.INPUTS)} in this order"
    if tuple(outputs) not in (LOGITS_OUTPUTS, GREEDY_OUTPUTS):
        expected = f"{', '.join(LOGITS_OUTPUTS)} (or the greedy head's {', '.join(GREEDY_OUTPUTS)})"
        yield f"it gives {', '.join(outputs) or 'nothing'}, expected {expected}"
    for value in (*model.graph.inputs, *model.graph.outputs):
        yield from _value_problems(value)
    if graphs.tag_ids(model) is None:
        yield f"its metadata has no {graphs.TAG_IDS_KEY}, the ids of the vocabulary's tags"
    if problem := _external_problem(external):
        yield problem


def _value_problems(value: ir.Value) -> Iterator[str]:
    name, dims = str(value.name), _dims(value)
    dtypes = {name: dtype for name, (dtype, _) in (graphs.INPUTS | graphs.OUTPUTS).items()} | _QUERY_OUTPUTS
    if name not in dtypes:
        return
    found = value.dtype.name if value.dtype is not None else "no type"
    if found != dtypes[name]:
        yield f"{name} is {found}, expected {dtypes[name]}"
    dynamic = len(graphs.AXES.get(name, ()))
    if fixed := [size for size in dims[:dynamic] if isinstance(size, int)]:
        yield f"{name} has a fixed batch or time axis ({', '.join(map(str, fixed))}): {dims}"
    if name == "speech" and len(dims) == 3 and dims[2] != FEATURE_SIZE:
        yield f"speech has features of width {dims[2]}, expected {FEATURE_SIZE}"


def _build_problem(
    model: ir.Model, path: Path, external: dict[str, Any] | None, precision: str
) -> str | None:
    if problem := _external_problem(external):
        return problem
    try:
        graphs.check_contract(model, path)
    except ArtifactError as error:
        return str(error)
    if precision != "fp32":
        return f"its linear layers are {precision}: engines are built from the float32 model"
    return None


def _short(text: str) -> str:
    return text if len(text) <= _SHOWN else f"{text[: _SHOWN - 1]}…"
