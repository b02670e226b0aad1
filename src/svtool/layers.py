"""Which linear layers a graph has: by name pattern, in groups that a search may move together, and their share of work.

Reads a graph and changes nothing. Knows nothing of how a layer is quantized or how well that goes.
"""

from __future__ import annotations

import fnmatch
import itertools
import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from svtool import graph as graphs
from svtool.errors import UsageError

if TYPE_CHECKING:
    import onnx_ir as ir

_BLOCK = re.compile(r"(?P<stack>.+\.)(?P<index>\d+)\..+")  # "encoder.encoders." and "3" of a layer's name


@dataclass(frozen=True)
class LayerGroup:
    """Linear layers that change precision together, in graph order."""

    name: str
    layers: tuple[str, ...]
    macs: int  # multiply-accumulates per LFR frame


def quantizable(model: ir.Model) -> tuple[str, ...]:
    """Every linear layer but the logits layer, in graph order."""
    return tuple(linear.name for linear in _body(model))


def layer_groups(
    model: ir.Model, *, most: int = 24, leave_out: Collection[str] = ()
) -> tuple[LayerGroup, ...]:
    """All linear layers but the head, consecutive ones of a kind merged so that at most `most` groups result.

    Layers that `leave_out` names are in no group. The groups stand in the order of their first layers. A graph with
    more kinds than `most` (layers that another exporter left nameless) is merged across kinds.
    """
    if most < 1:
        raise UsageError(f"{most} layer groups are asked for: at least one is needed")
    linears = [linear for linear in _body(model) if linear.name not in leave_out]
    position = {linear.name: index for index, linear in enumerate(linears)}
    kinds = _by_kind(linears)
    if len(kinds) > most:
        kinds = {"": linears}
    sizes = {kind: len(members) for kind, members in kinds.items()}
    counts = _share_out(sizes, most)
    parts = [part for kind, members in kinds.items() for part in _split(members, counts[kind])]
    parts.sort(key=lambda part: position[part[0].name])
    return tuple(_group(_span(part), part) for part in parts)


def kind_groups(model: ir.Model) -> tuple[LayerGroup, ...]:
    """One group per kind of layer, the head left out: `linear_q_k_v`, `linear_out`, `w_1`, `w_2`."""
    return tuple(_group(kind, members) for kind, members in _by_kind(_body(model)).items())


def int8_share(model: ir.Model, int8: Collection[str]) -> float:
    """Share (0..1) of the linear multiply-accumulates, the head's counted in the whole, that `int8` names."""
    macs = {linear.name: _macs(linear) for linear in graphs.linears(model)}
    check_names(macs, int8)
    return sum(macs[name] for name in set(int8)) / max(1, sum(macs.values()))


def match(model: ir.Model, patterns: Sequence[str]) -> tuple[str, ...]:
    """Layers that any of the shell patterns names, in graph order. Raises UsageError for one that names none."""
    names = [linear.name for linear in graphs.linears(model)]
    for pattern in patterns:
        if not any(fnmatch.fnmatchcase(name, pattern) for name in names):
            raise UsageError(
                f"the pattern {pattern!r} matches no layer; layers are named like {names[0] if names else '-'}"
            )
    return tuple(name for name in names if any(fnmatch.fnmatchcase(name, pattern) for pattern in patterns))


def check_names(known: Collection[str], names: Collection[str]) -> None:
    """Raises UsageError for a name that is no layer of the graph."""
    unknown = [name for name in names if name not in known]
    if unknown:
        raise UsageError(
            f"{len(unknown)} names are no linear layers of this graph, such as {unknown[0]!r}; "
            f"layers are named like {next(iter(known), '-')}"
        )


def _body(model: ir.Model) -> list[graphs.Linear]:
    return [linear for linear in graphs.linears(model) if not linear.head]


def _by_kind(linears: Sequence[graphs.Linear]) -> dict[str, list[graphs.Linear]]:
    kinds: dict[str, list[graphs.Linear]] = {}
    for linear in linears:
        kinds.setdefault(linear.kind, []).append(linear)
    return kinds


def _share_out(sizes: Mapping[str, int], most: int) -> dict[str, int]:
    """Groups per kind: each further one goes where the groups are largest."""
    counts = dict.fromkeys(sizes, 1)
    for _ in range(most - len(counts)):
        open_kinds = [kind for kind in counts if counts[kind] < sizes[kind]]
        if not open_kinds:
            break
        counts[max(open_kinds, key=lambda kind: sizes[kind] / counts[kind])] += 1
    return counts


def _split(members: Sequence[graphs.Linear], count: int) -> list[Sequence[graphs.Linear]]:
    """`count` consecutive parts whose sizes differ by at most one."""
    edges = [len(members) * index // count for index in range(count + 1)]
    return [members[first:last] for first, last in itertools.pairwise(edges)]


def _group(name: str, members: Sequence[graphs.Linear]) -> LayerGroup:
    return LayerGroup(name, tuple(linear.name for linear in members), sum(map(_macs, members)))


def _macs(linear: graphs.Linear) -> int:
    return linear.shape[0] * linear.shape[1]


def _span(members: Sequence[graphs.Linear]) -> str:
    """`w_1: encoder.encoders.0-9`, or the only layer's own name."""
    first, last = members[0], members[-1]
    if len(members) == 1:
        return first.name
    one, two = _BLOCK.fullmatch(first.name), _BLOCK.fullmatch(last.name)
    if one is None or two is None or first.kind != last.kind:
        return f"{first.name} to {last.name}"
    start = one["stack"] + one["index"]
    same = one["stack"] == two["stack"]
    return (
        f"{first.kind}: {start}-{two['index']}"
        if same
        else f"{first.kind}: {start} to {two['stack']}{two['index']}"
    )
