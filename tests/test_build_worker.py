from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx_ir as ir
import pytest

import small_graph
from graph_runs import run
from svtool import build_worker, calibration, layers, parity, precision
from svtool import graph as graphs
from svtool.progress import Silent

LOUD = "encoder.encoders.0.feed_forward.w_2.product"


def prepared(folder: Path, *, loud: float, imported: bool = False) -> ir.Model:
    """The fp16 or int8 twin of a build that nobody gave any recordings."""
    path = small_graph.write(folder / "model.onnx", loud=loud)
    model = graphs.load_model(path)
    if imported:
        scales = {linear.source: 4.0 for linear in graphs.linears(model)}
        calibration.save_cache(folder / "ranges.json", calibration.import_scales(path, scales, frontend={}))
    payload: dict[str, Any] = {
        "model": str(path),
        "onnx_digest": graphs.model_digest(model),
        "precision": "int8" if imported else "fp16",
        "layers": layers.quantizable(model)[:2] if imported else [],
        "keep_fp32": [],
        "cache": str(folder / "ranges.json") if imported else None,
        "tag_ids": [],
        "head": "logits",
        "twin": str(folder / "twin.onnx"),
        "graph": str(folder / "graph.onnx"),
        "threads": 1,
    }
    build_worker.prepare(payload, Silent())
    return graphs.load_model(folder / "twin.onnx")


@pytest.mark.parametrize("imported", [False, True])
def test_what_noise_alone_overflows_stays_float32_where_no_audio_was_heard(
    tmp_path: Path, imported: bool
) -> None:
    """The product is made an output: ONNX Runtime on a CPU keeps inner fp16 tensors in float32 and hides overflow."""
    twin = prepared(tmp_path, loud=1e5, imported=imported)
    values = {str(output.name): output for node in twin.graph for output in node.outputs}
    twin.graph.outputs.append(values[LOUD])
    found = run(twin, parity.make_feed(12, (12, 5)))[2]
    assert found.dtype == np.float32
    assert precision.FP16_MAX < np.abs(found).max() < np.inf


def test_fp16_without_ranges_leaves_quiet_layers_in_fp16(tmp_path: Path) -> None:
    types = {linear.node.inputs[1].dtype.name for linear in graphs.linears(prepared(tmp_path, loud=1.0))}  # type: ignore[union-attr]
    assert types == {"FLOAT16"}
