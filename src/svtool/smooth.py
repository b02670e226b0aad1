"""SmoothQuant-style rescaling: loud channels of a linear layer's input are divided by what its weight rows regain.

The factors are powers of two and the divisions are folded into the constants that make the channel, so the folded
float32 graph computes the same bits. Folds: LayerNormalization -> linear layers, and linear -> Relu -> linear. The
values of attention feed the FSMN branch too and stay as they are. Knows nothing of how channels were measured.

Exactness rests on no number leaving the normal range of float32. The constants are checked; activations would have
to come within 2**-100 of zero without being zero, which the rounding of a LayerNormalization or a bias rules out.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from svtool import graph as graphs
from svtool import rewrite
from svtool.errors import ArtifactError, UsageError

if TYPE_CHECKING:
    import onnx_ir as ir

FloatArray = npt.NDArray[np.floating]
Exponents = Mapping[str, Sequence[int]]  # source tensor -> log2 of the factor that each channel is divided by

SMOOTH_KEY = "svtool.smooth"  # digest of the exponents, in the metadata of a folded graph
MOST = 12  # |exponent|: a factor of 4096 either way
# What fp16 holds well later: the largest magnitude of a scaled row, column or channel stays within these, or moves
# no further out. The lower one keeps a column's int8 step (1/127 of it) a normal fp16 number.
_LEAST_LOG2, _MOST_LOG2 = -7, 13  # 2**13 < 65504 / 4
_NORMAL = float(np.finfo(np.float32).smallest_normal)
_CALIBRATE = "calibrate again with  svtool calibrate MODEL --data LIST"


@dataclass(frozen=True)
class _Scaled:
    """A constant with one channel per index of `axis`; `sign` is that of the exponent on it."""

    value: ir.Value
    axis: int
    sign: int
    node: ir.Node  # the reader whose copy is scaled
    index: int  # of the input there
    narrow: bool  # fp16 will store it

    @property
    def channels(self) -> int:
        assert self.value.const_value is not None
        return int(self.value.const_value.shape.numpy()[self.axis])


@dataclass(frozen=True)
class _Fold:
    source: str
    channels: int
    makers: tuple[_Scaled, ...]
    rows: tuple[_Scaled, ...]  # weights of the linears that read it


def foldable(model: ir.Model) -> dict[str, int]:
    """Inputs of linear layers whose channels can be rescaled exactly, with their number of channels K."""
    return {fold.source: fold.channels for fold in _folds(model)}


def exponents(
    model: ir.Model, channel_absmax: Mapping[str, FloatArray], alpha: float
) -> dict[str, tuple[int, ...]]:
    """log2 of max|x|**alpha / max|w|**(1 - alpha) per channel of every foldable tensor, rounded.

    Factors are relative to their median, since a common one changes nothing; a channel that is always zero, in the
    input or in the weights, gets 0. Clipped so that constants stay normal in float32 and comfortable in fp16.

    Args:
        channel_absmax: largest magnitude [K] of each channel by tensor name; other tensors are not looked at.
        alpha: 0 (weights are made even) .. 1 (activations are made even).
    """
    if not 0.0 <= alpha <= 1.0:
        raise UsageError(f"the smoothing strength {alpha:g} is not within 0 and 1")
    found: dict[str, tuple[int, ...]] = {}
    for fold in _folds(model):
        inputs = _channel_maxima(fold, channel_absmax)  # [K]
        weights = np.max([_extent(part, found)[1] for part in fold.rows], axis=0)  # [K]
        wanted = _rounded(inputs, weights, alpha)
        least, most = _limits(fold, inputs, found)
        found[fold.source] = tuple(int(one) for one in np.clip(wanted, least, most))
    return found


def smooth(model: ir.Model, exponents: Exponents) -> ir.Model:
    """The graph with every channel of `exponents`' tensors divided by 2**exponent, and its outputs unchanged.

    Raises ArtifactError for a graph that is folded or converted already, and for tensors or factors that do not fit.
    """
    model = rewrite.with_types(model.clone())
    rewrite.refuse_converted(model, ("FLOAT16", "BFLOAT16"))
    if SMOOTH_KEY in model.metadata_props:
        raise ArtifactError("the graph is smoothed already: start from the model that svtool export wrote")
    folds = {fold.source: fold for fold in _folds(model)}
    for source in exponents:
        if source not in folds:
            raise ArtifactError(f"no fold exists at the tensor {source!r} of this graph: {_CALIBRATE}")
    for source, fold in folds.items():
        if source in exponents:
            _apply(model.graph, fold, _checked(fold, exponents[source]))
    model.metadata_props[SMOOTH_KEY] = _digest(exponents)
    return model


def _folds(model: ir.Model) -> Iterator[_Fold]:
    """In graph order, so that a weight's rows are settled before its columns."""
    by_node = {linear.node: linear for linear in graphs.linears(model)}
    by_bias = {linear.bias: linear for linear in by_node.values() if linear.bias is not None}
    for node in model.graph:
        if node.op_type == "LayerNormalization":
            makers = _norm_constants(node)
        elif node.op_type == "Relu":
            makers = _linear_constants(node, by_node, by_bias)
        else:
            continue
        rows = _rows(node.outputs[0], by_node)
        channels = {part.channels for part in (*makers, *rows)}
        if makers and rows and len(channels) == 1:
            yield _Fold(str(node.outputs[0].name), channels.pop(), makers, rows)


def _rows(value: ir.Value, by_node: Mapping[ir.Node, graphs.Linear]) -> tuple[_Scaled, ...]:
    """Weights of the linears that read `value`; none when anything else reads it too, or the logits layer."""
    found: list[_Scaled] = []
    pending = [value]
    while pending:
        value = pending.pop()
        if value.is_graph_output():
            return ()
        for use in value.uses():
            if _is_plain_cast(use.node):
                pending.append(use.node.outputs[0])
                continue
            weight = use.node.inputs[1] if use.node in by_node and use.idx == 0 else None
            if weight is None or by_node[use.node].head or not _is_own(weight):
                return ()
            found.append(_Scaled(weight, 0, 1, use.node, 1, narrow=True))
    return tuple(found)


def _norm_constants(node: ir.Node) -> tuple[_Scaled, ...]:
    parts = [
        _Scaled(value, 0, -1, node, index, narrow=False)
        for index, value in enumerate(node.inputs)
        if index and value is not None
    ]
    return tuple(parts) if parts and all(_is_vector(part.value) for part in parts) else ()


def _linear_constants(
    relu: ir.Node, by_node: Mapping[ir.Node, graphs.Linear], by_bias: Mapping[ir.Node, graphs.Linear]
) -> tuple[_Scaled, ...]:
    """Columns and bias of the linear in front of a Relu; none when another node reads what it makes."""
    value = relu.inputs[0]
    while value is not None and len(value.uses()) == 1 and not value.is_graph_output():
        maker = value.producer()
        if maker is None:
            return ()
        if _is_plain_cast(maker):
            value = maker.inputs[0]
            continue
        linear = by_bias.get(maker) or by_node.get(maker)
        return _columns(linear) if linear is not None else ()
    return ()


def _columns(linear: graphs.Linear) -> tuple[_Scaled, ...]:
    weight = linear.node.inputs[1]
    if weight is None or not _is_own(weight) or linear.node.outputs[0].is_graph_output():
        return ()
    parts = [_Scaled(weight, 1, -1, linear.node, 1, narrow=True)]
    for index, value in enumerate(linear.bias.inputs if linear.bias is not None else ()):
        if value is not None and value.const_value is not None:
            # the layer is named after its bias, so a shared one cannot be copied under another name
            if not (_is_vector(value) and _is_own(value)):
                return ()
            assert linear.bias is not None
            parts.append(_Scaled(value, 0, -1, linear.bias, index, narrow=True))
    return tuple(parts)


def _is_plain_cast(node: ir.Node) -> bool:
    if node.op_type == "Identity":
        return True
    return (
        node.op_type == "Cast" and node.outputs[0].dtype is not None and node.outputs[0].dtype.name == "FLOAT"
    )


def _is_vector(value: ir.Value) -> bool:
    tensor = value.const_value
    return tensor is not None and tensor.dtype.name == "FLOAT" and len(tensor.shape) == 1


def _is_own(value: ir.Value) -> bool:
    """A float32 constant with one reader."""
    tensor = value.const_value
    return tensor is not None and tensor.dtype.name == "FLOAT" and len(value.uses()) == 1


def _channel_maxima(fold: _Fold, channel_absmax: Mapping[str, FloatArray]) -> npt.NDArray[np.float64]:
    if fold.source not in channel_absmax:
        raise ArtifactError(f"the calibration has no channel maxima of {fold.source!r}: {_CALIBRATE}")
    maxima = np.asarray(channel_absmax[fold.source], np.float64)
    if maxima.shape != (fold.channels,) or not np.isfinite(maxima).all() or (maxima < 0).any():
        raise ArtifactError(
            f"the channel maxima {list(maxima.shape)} of {fold.source!r} are not {fold.channels} finite numbers "
            f"from zero up: {_CALIBRATE}"
        )
    return maxima


def _rounded(inputs: FloatArray, weights: FloatArray, alpha: float) -> npt.NDArray[np.float64]:
    """log2 factors [K] relative to their median over the channels that are alive."""
    alive = (inputs > 0) & (weights > 0)
    factors = np.zeros(len(inputs))
    if alive.any():
        factors[alive] = alpha * np.log2(inputs[alive]) - (1 - alpha) * np.log2(weights[alive])
        factors[alive] -= np.median(factors[alive])
    return np.rint(factors)


def _limits(
    fold: _Fold, inputs: npt.NDArray[np.float64], settled: Exponents
) -> tuple[npt.NDArray[np.float64], npt.NDArray[np.float64]]:
    """Least and most exponent [K] that keep every constant and the activation within range; zero always fits."""
    least, most = np.full(fold.channels, -float(MOST)), np.full(fold.channels, float(MOST))
    room = [(-1, *_room(inputs, inputs, narrow=True))]
    room += [
        (part.sign, *_room(*_extent(part, settled), narrow=part.narrow))
        for part in (*fold.makers, *fold.rows)
    ]
    for sign, down, up in room:
        least = np.maximum(least, down if sign > 0 else -up)
        most = np.minimum(most, up if sign > 0 else -down)
    return np.minimum(least, 0), np.maximum(most, 0)


def _room(
    smallest: npt.NDArray[np.float64], largest: npt.NDArray[np.float64], *, narrow: bool
) -> tuple[npt.NDArray[np.float64], npt.NDArray[np.float64]]:
    """How many binary places channels of these magnitudes [K] may move down (<= 0) and up (>= 0)."""
    with np.errstate(divide="ignore"):
        low, high = np.log2(smallest), np.log2(largest)
    bottom, top = np.log2(_NORMAL) + 1, 126.0
    down, up = bottom - low, top - high
    if narrow:
        down, up = np.maximum(down, _LEAST_LOG2 - high), np.minimum(up, _MOST_LOG2 - high)
    down, up = np.where(largest > 0, down, -np.inf), np.where(largest > 0, up, np.inf)
    return np.minimum(np.ceil(down), 0), np.maximum(np.floor(up), 0)


def _extent(part: _Scaled, settled: Exponents) -> tuple[npt.NDArray[np.float64], npt.NDArray[np.float64]]:
    """Smallest nonzero and largest magnitude [K] along the channels, rows scaled as already settled."""
    assert part.value.const_value is not None
    numbers = np.abs(part.value.const_value.numpy())
    first = part.node.inputs[0]
    if part.axis == 1 and first is not None and (rows := settled.get(graphs.source_name(first))) is not None:
        numbers = np.ldexp(numbers, np.array(rows, np.int32)[:, None])
    if numbers.ndim == 2:
        others = 1 - part.axis
        smallest = np.where(numbers > 0, numbers, np.inf).min(axis=others)
        return smallest.astype(np.float64), numbers.max(axis=others).astype(np.float64)
    return numbers.astype(np.float64), numbers.astype(np.float64)


def _checked(fold: _Fold, factors: Sequence[int]) -> npt.NDArray[np.int32]:
    whole = np.asarray(factors)
    if whole.shape != (fold.channels,) or (whole != np.rint(whole)).any() or (np.abs(whole) > 2 * MOST).any():
        raise ArtifactError(
            f"the factors {list(whole.shape)} of {fold.source!r} are not {fold.channels} whole exponents of two "
            f"within {2 * MOST}: {_CALIBRATE}"
        )
    return whole.astype(np.int32)


def _apply(graph: ir.Graph, fold: _Fold, factors: npt.NDArray[np.int32]) -> None:
    for part in (*fold.makers, *fold.rows):
        assert part.value.const_value is not None
        numbers = part.value.const_value.numpy()
        shift = part.sign * (factors[:, None] if part.axis == 0 and numbers.ndim == 2 else factors)
        scaled = np.ldexp(numbers, shift)
        if not _exact(numbers, scaled, shift):
            raise ArtifactError(
                f"the factors of {fold.source!r} take {part.value.name} out of float32's normal range: {_CALIBRATE}"
            )
        _replace(graph, part, scaled)


def _exact(before: FloatArray, after: FloatArray, shift: npt.NDArray[np.int32]) -> bool:
    moved = (after != 0) & (shift != 0)
    normal = np.abs(after[moved]).min(initial=1.0) >= _NORMAL
    return bool(np.isfinite(after).all() and normal and np.array_equal(np.ldexp(after, -shift), before))


def _replace(graph: ir.Graph, part: _Scaled, numbers: FloatArray) -> None:
    import onnx_ir as ir

    name = str(part.value.name)
    if len(part.value.uses()) == 1:
        part.value.const_value = ir.Tensor(numbers, name=name)
        return
    # one vector serves several norms, as in a model that was never trained
    copy = rewrite.register(graph, f"{name}/smooth@{part.node.outputs[0].name}", numbers)
    part.node.replace_input_with(part.index, copy)


def _digest(exponents: Exponents) -> str:
    lines = [f"{source} {[int(one) for one in exponents[source]]}" for source in sorted(exponents)]
    return hashlib.sha256("\n".join(lines).encode()).hexdigest()
