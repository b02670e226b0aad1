"""A small random SenseVoice graph written node by node, shaped like an exported one, without needing torch."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

WIDTH, UNITS, HEADS, VOCABULARY, FEATURES = 32, 48, 4, 40, 560
TAGS = (30, 31, 32, 33, 35)
BATCH, FRAMES, LOGIT_FRAMES = "batch_size", "feats_length", "logits_length"


class Builder:
    def __init__(self, seed: int, loud: float) -> None:
        self.rng = np.random.default_rng(seed)
        self.loud = loud
        self.nodes: list[onnx.NodeProto] = []
        self.weights: list[onnx.TensorProto] = []

    def weight(self, name: str, numbers: Any) -> str:
        self.weights.append(numpy_helper.from_array(np.asarray(numbers), name))
        return name

    def op(self, op: str, inputs: Sequence[str], output: str | Sequence[str], **attributes: Any) -> str:
        outputs = [output] if isinstance(output, str) else list(output)
        self.nodes.append(
            helper.make_node(op, list(inputs), outputs, name=f"node_{outputs[0]}", **attributes)
        )
        return outputs[0]

    def linear(self, source: str, layer: str, rows: int, columns: int, *, gain: float = 1.0) -> str:
        scale = gain / np.sqrt(rows)
        kernel = self.rng.standard_normal((rows, columns)).astype(np.float32) * np.float32(scale)
        bias = self.rng.standard_normal(columns).astype(np.float32) * np.float32(0.1)
        product = self.op("MatMul", [source, self.weight(f"val_{layer}", kernel)], f"{layer}.product")
        output = "ctc_logits" if layer == "ctc.ctc_lo" else f"{layer}.out"
        return self.op("Add", [product, self.weight(f"{layer}.bias", bias)], output)

    def norm(self, source: str, layer: str, width: int) -> str:
        gain = 1 + 0.1 * self.rng.standard_normal(width).astype(np.float32)
        shift = 0.1 * self.rng.standard_normal(width).astype(np.float32)
        inputs = [source, self.weight(f"{layer}.weight", gain), self.weight(f"{layer}.bias", shift)]
        return self.op("LayerNormalization", inputs, f"{layer}.out", axis=-1, epsilon=1e-5)

    def block(self, x: str, layer: str, width: int) -> str:
        size = WIDTH // HEADS
        attention = f"{layer}.self_attn"
        qkv = self.linear(
            self.norm(x, f"{layer}.norm1", width), f"{attention}.linear_q_k_v", width, 3 * WIDTH
        )
        parts = [f"{attention}.{name}" for name in "qkv"]
        self.op("Split", [qkv], parts, axis=2, num_outputs=3)
        heads = []
        for part in parts:
            split = self.op("Reshape", [part, "heads_shape"], f"{part}.split")
            heads.append(self.op("Transpose", [split], f"{part}.heads", perm=[0, 2, 1, 3]))
        scaled = self.op("Mul", [heads[0], "score_scale"], f"{attention}.scaled")
        keys = self.op("Transpose", [heads[1]], f"{attention}.keys", perm=[0, 1, 3, 2])
        scores = self.op("MatMul", [scaled, keys], f"{attention}.scores")
        masked = self.op("Add", [scores, "scores_mask"], f"{attention}.masked")
        weights = self.op("Softmax", [masked], f"{attention}.weights", axis=-1)
        mixed = self.op("MatMul", [weights, heads[2]], f"{attention}.mixed")
        joined = self.op("Transpose", [mixed], f"{attention}.joined", perm=[0, 2, 1, 3])
        flat = self.op("Reshape", [joined, "flat_shape"], f"{attention}.flat")
        assert size * HEADS == WIDTH
        attended = self.linear(flat, f"{attention}.linear_out", WIDTH, WIDTH)
        x = self.residual(
            x, self.op("Add", [attended, self.memory(parts[2], attention)], f"{attention}.sum"), layer
        )
        inner = self.linear(self.norm(x, f"{layer}.norm2", WIDTH), f"{layer}.feed_forward.w_1", WIDTH, UNITS)
        inner = self.op("Relu", [inner], f"{layer}.relu")
        out = self.linear(inner, f"{layer}.feed_forward.w_2", UNITS, WIDTH, gain=self.loud)
        return self.op("Add", [x, out], f"{layer}.out")

    def residual(self, x: str, attended: str, layer: str) -> str:
        return (
            attended if layer.endswith("encoders0.0") else self.op("Add", [x, attended], f"{layer}.attended")
        )

    def memory(self, value: str, layer: str) -> str:
        kernel = self.rng.standard_normal((WIDTH, 1, 11)).astype(np.float32) * np.float32(0.1)
        kept = self.op("Mul", [value, "valid"], f"{layer}.kept")
        moved = self.op("Transpose", [kept], f"{layer}.moved", perm=[0, 2, 1])
        weight = self.weight(f"{layer}.fsmn_block.weight", kernel)
        conv = self.op("Conv", [moved, weight], f"{layer}.conv", group=WIDTH, pads=[5, 5], kernel_shape=[11])
        back = self.op("Transpose", [conv], f"{layer}.back", perm=[0, 2, 1])
        return self.op(
            "Mul", [self.op("Add", [back, kept], f"{layer}.memory_sum"), "valid"], f"{layer}.memory"
        )

    def front(self) -> str:
        """Queries, input scale, position encoding, masks: everything in front of the first block."""
        half = FEATURES // 2
        rates = np.exp(np.arange(half) * (-np.log(10000.0) / (half - 1))).astype(np.float32)[None]
        ints = {"zero": 0, "one": 1, "four": 4, "minus_one": -1}
        for name, number in ints.items():
            self.weight(name, np.array([number], np.int64))
        self.weight("fixed", np.array([[1, 2]], np.int32))
        self.weight("embed", self.rng.standard_normal((16, FEATURES)).astype(np.float32))
        self.weight("heads_shape", np.array([0, -1, HEADS, WIDTH // HEADS], np.int64))
        self.weight("flat_shape", np.array([0, -1, WIDTH], np.int64))
        self.weight("score_scale", np.float32((WIDTH // HEADS) ** -0.5))
        batch = self.op("Shape", ["language"], "batch")
        fixed = self.op(
            "Expand", ["fixed", self.op("Concat", [batch, "one"], "fixed_shape", axis=0)], "fixed_rows"
        )
        rows = [self.op("Unsqueeze", [name, "one"], f"{name}_row") for name in ("language", "textnorm")]
        ids = self.op("Concat", [rows[0], fixed, rows[1]], "query_ids", axis=1)
        queries = self.op("Gather", ["embed", ids], "queries", axis=0)
        joined = self.op("Concat", [queries, "speech"], "joined", axis=1)
        scaled = self.op("Mul", [joined, self.weight("input_scale", np.float32(WIDTH**0.5))], "scaled")
        time = self.op("Shape", ["speech"], "time", start=1, end=2)
        total = self.op("Squeeze", [self.op("Add", [time, "four"], "total_1")], "total")
        steps = [
            self.weight(f"range_{name}", np.array(number, np.int64)) for name, number in (("0", 0), ("1", 1))
        ]
        position = self.op("Range", [steps[0], total, steps[1]], "position")
        counted = self.op("Cast", [position], "position_f", to=TensorProto.FLOAT)
        counted = self.op("Add", [counted, self.weight("from_one", np.float32(1))], "counted")
        column = self.op("Unsqueeze", [counted, "one"], "counted_column")
        angles = self.op("Mul", [column, self.weight("rates", rates)], "angles")
        waves = [self.op(name, [angles], name.lower()) for name in ("Sin", "Cos")]
        x = self.op("Add", [scaled, self.op("Concat", waves, "waves", axis=1)], "x")
        self.op(
            "Add", ["speech_lengths", self.weight("queries_count", np.array(4, np.int32))], "encoder_out_lens"
        )
        lengths = self.op("Unsqueeze", ["encoder_out_lens", "one"], "lengths_column")
        lengths = self.op("Cast", [lengths], "lengths64", to=TensorProto.INT64)
        inside = self.op(
            "Less", [self.op("Unsqueeze", [position, "zero"], "position_row"), lengths], "inside"
        )
        self.op(
            "Cast", [self.op("Unsqueeze", [inside, "minus_one"], "inside_3d")], "valid", to=TensorProto.FLOAT
        )
        numbers = [self.weight("open", np.float32(0)), self.weight("shut", np.float32(-1e4))]
        mask = self.op("Where", [inside, *numbers], "mask")
        self.op("Unsqueeze", [mask, self.weight("axes_12", np.array([1, 2], np.int64))], "scores_mask")
        return x


def make(*, seed: int = 0, loud: float = 1.0, opset: int = 18) -> onnx.ModelProto:
    """The graph of the contract: two blocks and one after the first norm. `loud` scales the feed-forward outputs."""
    build = Builder(seed, loud)
    x = build.block(build.front(), "encoder.encoders0.0", FEATURES)
    x = build.block(x, "encoder.encoders.0", WIDTH)
    x = build.block(build.norm(x, "encoder.after_norm", WIDTH), "encoder.tp_encoders.0", WIDTH)
    build.linear(build.norm(x, "encoder.tp_norm", WIDTH), "ctc.ctc_lo", WIDTH, VOCABULARY)
    inputs = [helper.make_tensor_value_info("speech", TensorProto.FLOAT, [BATCH, FRAMES, FEATURES])]
    inputs += [
        helper.make_tensor_value_info(name, TensorProto.INT32, [BATCH])
        for name in ("speech_lengths", "language", "textnorm")
    ]
    outputs = [
        helper.make_tensor_value_info("ctc_logits", TensorProto.FLOAT, [BATCH, LOGIT_FRAMES, VOCABULARY]),
        helper.make_tensor_value_info("encoder_out_lens", TensorProto.INT32, [BATCH]),
    ]
    graph = helper.make_graph(build.nodes, "small", inputs, outputs, build.weights)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=10)
    model = onnx.shape_inference.infer_shapes(model)
    helper.set_model_props(model, {"svtool.tag_ids": ",".join(str(tag) for tag in TAGS), "comment": "small"})
    return model


def write(path: Path, **options: Any) -> Path:
    onnx.save(make(**options), path)
    return path
