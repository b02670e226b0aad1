"""A graph as the bytes of one ONNX file, weight by weight: what protobuf writes, without its copies of all weights.

Knows the layout of the two outermost messages. Knows nothing of what the graph computes.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import onnx_ir as ir

_GRAPH = 7  # field of ModelProto
_INITIALIZER = 5  # field of GraphProto


def pieces(model: ir.Model) -> Iterator[bytes]:
    """The bytes of the file in order, every weight inside, wherever it was stored; one weight in memory at a time."""
    proto, tensors = _without_weights(model)
    before, after = _split(proto.graph, _INITIALIZER)
    head, tail = _split(proto, _GRAPH)
    size = len(before) + len(after) + sum(len(one) for tensor in tensors for one in _entry(tensor))
    yield head + _key(_GRAPH, size) + before
    for tensor in tensors:
        yield from _entry(tensor)
    yield after + tail


def _without_weights(model: ir.Model) -> tuple[Any, list[ir.TensorProtocol]]:
    """The message with nothing in it for the initializers, and their tensors in its order."""
    import onnx_ir

    model = model.clone()
    tensors: list[ir.TensorProtocol] = []
    for value in model.graph.initializers.values():
        tensor = value.const_value
        if tensor is None:
            continue
        tensor.name = value.name
        tensors.append(tensor)
        value.const_value = onnx_ir.ExternalTensor(
            "elsewhere", 0, 0, tensor.dtype, shape=onnx_ir.Shape(tensor.shape.numpy()), name=str(value.name)
        )
    proto = onnx_ir.to_proto(model)
    del proto.graph.initializer[:]
    return proto, tensors


def _entry(tensor: ir.TensorProtocol) -> tuple[bytes, bytes]:
    """One initializer as a field of the graph: key, and message."""
    import onnx_ir

    if isinstance(tensor, onnx_ir.ExternalTensor):
        tensor = onnx_ir.Tensor(tensor.numpy(), name=tensor.name)
    message = bytes(onnx_ir.to_proto(tensor).SerializeToString(deterministic=True))
    return _key(_INITIALIZER, len(message)), message


def _split(message: Any, number: int) -> tuple[bytes, bytes]:
    """The message's fields before and after field `number`, which is left out."""
    parts = type(message)(), type(message)()
    for part, first in zip(parts, (True, False), strict=True):
        part.CopyFrom(message)
        for field, _ in message.ListFields():
            if field.number == number or (field.number < number) != first:
                part.ClearField(field.name)
    one, two = (bytes(part.SerializeToString(deterministic=True)) for part in parts)
    return one, two


def _key(number: int, size: int) -> bytes:
    """Tag and length of a nested message."""
    return _varint(number << 3 | 2) + _varint(size)


def _varint(value: int) -> bytes:
    encoded = bytearray()
    while value > 0x7F:
        encoded.append(value & 0x7F | 0x80)
        value >>= 7
    encoded.append(value)
    return bytes(encoded)
