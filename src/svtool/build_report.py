"""What `svtool build-trt` says when it is done, as data and as a table. Knows nothing of how anything was built."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from svtool.build_search import describe
from svtool.errors import counted
from svtool.flavor import RTX_PORTABLE
from svtool.profiles import megabytes
from svtool.search import Found, Step

if TYPE_CHECKING:
    from rich.console import RenderableType

_EXIT_CODES = {"pass": 0, "fail": 1, "inconclusive": 3}


@dataclass(frozen=True)
class BuildReport:
    plan: Path
    twin: Path
    precision: str
    head: str
    library: str
    library_version: str
    compute_capability: str | None  # what the plan runs on; "portable" for TensorRT-RTX's own choice
    profiles: tuple[str, ...]
    estimated_bytes: dict[str, int]  # device memory for activations, per profile
    plan_bytes: int
    twin_bytes: int
    parity: Mapping[str, Any]
    quantized_layers: int
    int8_share: float  # of linear multiply-accumulates, 0..1
    calibration: str | None  # where the ranges came from
    seconds: dict[str, float]
    peak_rss_bytes: dict[str, int]
    requested: Mapping[str, Mapping[str, int]]
    search: Found | None = None
    verified_on: str | None = None  # GPU that ran it at every corner of its profiles
    warnings: tuple[str, ...] = ()

    @property
    def verdict(self) -> str | None:
        """Of the search's last measurement, on the twin that ships; None without a search."""
        return self.search.best.signals.verdict if self.search and self.search.best else None

    @property
    def exit_code(self) -> int:
        """3 when the search had too little data to prove that the budget holds."""
        return _EXIT_CODES[self.verdict] if self.verdict else 0

    def to_json(self) -> dict[str, Any]:
        return (
            {"schema": "svtool.build-trt/1"}
            | self.__dict__
            | {"plan": str(self.plan), "twin": str(self.twin), "warnings": list(self.warnings)}
            | {"search": self.search.to_json() if self.search else None, "verdict": self.verdict}
        )


def render(report: BuildReport) -> RenderableType:
    from rich.console import Group
    from rich.table import Table

    table = Table(title=f"{report.plan.name}: {report.precision}", show_header=False, title_justify="left")
    table.add_column(style="bold")
    table.add_column(overflow="fold")  # a path is never cut: it is there to be copied
    for name, value in _rows(report):
        table.add_row(name, value)
    return Group(table, _path(report.search)) if report.search else table


def _rows(report: BuildReport) -> list[tuple[str, str]]:
    sqnr = report.parity["sqnr_db"]
    rows = [
        (
            "plan",
            f"{report.plan} ({megabytes(report.plan_bytes)}, {report.library} {report.library_version}, "
            f"for {_targets(report.compute_capability)})" + _why_larger(report),
        ),
        ("twin", f"{report.twin} ({megabytes(report.twin_bytes)}, ONNX, logits head)"),
        (
            "profiles",
            ", ".join(f"{name} (about {megabytes(size)})" for name, size in report.estimated_bytes.items()),
        ),
    ]
    if report.search and report.search.best:
        signals = report.search.best.signals
        why = "" if signals.verdict == "pass" else f": {'; '.join(signals.reasons)}"
        rows.append(("budget", describe(signals) + why))
    if report.quantized_layers:
        kind = "int8 weights" if report.precision == "int8-weights" else "int8"
        rows.append(
            (kind, f"{report.quantized_layers} layers, {100 * report.int8_share:.1f} % of linear work")
        )
    return [
        *rows,
        ("ranges", report.calibration or "none: what could be too large for fp16 stays float32"),
        (
            "against float32",
            f"{sqnr} dB, {report.parity['argmax_agreement']:.2f} % of frames agree (random features, "
            "not speech: validate-wer measures that)",
        ),
        ("time", ", ".join(f"{name} {seconds:.1f} s" for name, seconds in report.seconds.items())),
        (
            "peak memory",
            ", ".join(f"{name} {megabytes(size)}" for name, size in report.peak_rss_bytes.items()),
        ),
        ("run on a GPU", report.verified_on or f"not yet: on the target,  svtool verify {report.plan}"),
        *(("warning", warning) for warning in report.warnings),
    ]


def _why_larger(report: BuildReport) -> str:
    if report.plan_bytes < 2 * report.twin_bytes:
        return ""
    return "; beside the weights it holds what a GPU needs to run it, on a model this small the larger part"


def _path(found: Found) -> RenderableType:
    from rich.console import Group
    from rich.table import Table

    table = Table(title="search: what was tried", title_justify="left")
    for name in ("measured on", "in int8", "back in fp16", "drift", "disagree", "SQNR", "limits"):
        table.add_column(name, overflow="fold")
    for step in found.steps:
        table.add_row(*_cells(step))
    if found.best is None or not found.best.fp16:
        return table
    return Group(table, "back in fp16: " + ", ".join(found.best.fp16))


def _cells(step: Step) -> tuple[str, ...]:
    signals = step.signals
    return (
        step.on,
        f"{100 * step.share:.1f} %",
        _returned(step.fp16),
        "-" if signals.drift is None else f"{signals.drift:+.2f}",
        "-" if signals.disagreement is None else f"{signals.disagreement:.2f} %",
        "-" if signals.sqnr_db is None else f"{signals.sqnr_db:.1f} dB",
        "fail" if not step.holds else "hold" if signals.verdict == "pass" else "hold, unproven",
    )


def _returned(groups: Sequence[str]) -> str:
    """The group's name when it is one: two maps of one group each must be told apart."""
    if len(groups) != 1:
        return counted(len(groups), "group") if groups else "nothing"
    return groups[0].replace("encoder.", "")


def _targets(capability: str | None) -> str:
    if capability == "portable":
        return f"compute capability {RTX_PORTABLE}"
    return f"compute capability {capability}"
