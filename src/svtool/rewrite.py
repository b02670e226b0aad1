"""What every pass over a graph shares: nodes and constants with fixed names, types that nobody wrote down, refusals.

Knows nothing of precision or of what a pass is for.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy.typing as npt

from svtool import graph as graphs
from svtool.errors import ArtifactError

if TYPE_CHECKING:
    import onnx_ir as ir


class Maker:
    """Appends nodes and constants with fixed names, so that the same input gives the same bytes."""

    def __init__(self, graph: ir.Graph) -> None:
        self._graph = graph

    def constant(self, name: str, numbers: npt.NDArray[Any]) -> ir.Value:
        return register(self._graph, name, numbers)

    def node(self, op: str, inputs: Sequence[ir.Value], name: str, **attributes: int) -> ir.Value:
        node, output = self._new(op, inputs, name, attributes)
        self._graph.append(node)
        return output

    def node_after(self, place: ir.Node | None, op: str, inputs: Sequence[ir.Value], name: str) -> ir.Value:
        node, output = self._new(op, inputs, name, {})
        if place is None:
            self._graph.insert_before(self._graph[0], node)
        else:
            self._graph.insert_after(place, node)
        return output

    def node_before(
        self, place: ir.Node, op: str, inputs: Sequence[ir.Value], name: str, **attributes: int
    ) -> ir.Value:
        node, output = self._new(op, inputs, name, attributes)
        self._graph.insert_before(place, node)
        return output

    def _new(
        self, op: str, inputs: Sequence[ir.Value], name: str, attributes: Mapping[str, int]
    ) -> tuple[ir.Node, ir.Value]:
        import onnx_ir as ir

        output = ir.Value(name=name)
        listed = [ir.AttrInt64(key, int(value)) for key, value in attributes.items()]
        return ir.Node("", op, inputs, listed, outputs=[output], name=f"{op}/{name}"), output


def with_types(model: ir.Model) -> ir.Model:
    """Lift constants to initializers, and infer the types nobody wrote down."""
    from onnx_ir.passes import common

    model = common.LiftConstantsToInitializersPass(lift_all_constants=True, size_limit=0)(model).model
    if any(output.dtype is None for node in model.graph for output in node.outputs):
        model = common.ShapeInferencePass()(model).model
    untyped = [str(output.name) for node in model.graph for output in node.outputs if output.dtype is None]
    if untyped:
        raise ArtifactError(
            f"the type of {untyped[0]!r} cannot be inferred: export the model again with  svtool export SOURCE"
        )
    return model


def refuse_converted(model: ir.Model, kinds: Sequence[str]) -> None:
    graphs.check_not_quantized(model, "the graph")
    for value in (output for node in model.graph for output in node.outputs):
        if value.dtype is not None and value.dtype.name in kinds:
            raise ArtifactError(
                f"the graph is {value.dtype.name} already (at {value.name}): start from the float32 model, "
                "made with  svtool export SOURCE"
            )


def register(graph: ir.Graph, name: str, numbers: npt.NDArray[Any]) -> ir.Value:
    import onnx_ir as ir

    if name in graph.initializers:
        return graph.initializers[name]
    tensor = ir.Tensor(numbers, name=name)
    value = ir.Value(
        name=name, shape=ir.Shape(numbers.shape), type=ir.TensorType(tensor.dtype), const_value=tensor
    )
    graph.register_initializer(value)
    return value


def describe(value: ir.Value, dtype: ir.DataType, dims: Sequence[Any] | None) -> None:
    import onnx_ir as ir

    value.type = ir.TensorType(dtype)
    value.shape = ir.Shape(dims) if dims is not None else None


def copied_shape(value: ir.Value) -> ir.Shape | None:
    import onnx_ir as ir

    return ir.Shape(list(value.shape)) if value.shape is not None else None
