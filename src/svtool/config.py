"""Settings of one model family, parsed once into frozen dataclasses. Knows nothing of what they are used for.

The defaults live here; `configs/sensevoice-small.toml` states the same values for people to copy and edit.
"""

from __future__ import annotations

import dataclasses
import difflib
import math
import types
import typing
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from svtool.errors import ArtifactError, UsageError
from svtool.frontend import LFR_FRAME_S
from svtool.intake import read_toml


@dataclass(frozen=True)
class Profile:
    """Largest batch and longest audio that one optimization profile takes. Written `B:SECONDS`."""

    batch: int
    seconds: float

    @property
    def frames(self) -> int:
        """LFR frames, without the four query positions (they are made inside the graph)."""
        return math.ceil(round(self.seconds / LFR_FRAME_S, 6))

    def __str__(self) -> str:
        return f"{self.batch}:{self.seconds:g}"


SHORTEST_PROFILE_S = LFR_FRAME_S  # less is no frame


def parse_profile(text: str) -> Profile:
    """`16:30` is a batch of 16 utterances of up to 30 seconds. Raises UsageError."""
    batch, separator, seconds = text.partition(":")
    try:
        profile = Profile(int(batch), float(seconds))
    except ValueError:
        separator = ""
    if not separator or profile.batch < 1 or not SHORTEST_PROFILE_S <= profile.seconds < math.inf:
        raise UsageError(
            f"the profile {text!r} is not B:SECONDS, such as 16:30 (16 utterances of up to 30 seconds)"
        )
    return profile


@dataclass(frozen=True)
class EngineConfig:
    profiles: tuple[Profile, ...] = (Profile(32, 5), Profile(16, 15), Profile(8, 30))
    workspace_mb: int | None = None  # None: the library's own limit


@dataclass(frozen=True)
class PrecisionConfig:
    exclude: tuple[str, ...] = ()  # linear layers kept out of int8, shell patterns
    keep_fp32: tuple[str, ...] = ()  # linear layers kept out of fp16, shell patterns


@dataclass(frozen=True)
class CalibrationConfig:
    method: str = "percentile"  # "max", "percentile", "entropy" or "mse"
    percentile: float = 99.999  # best of 99.9, 99.99, 99.999 and max on the embedded model, by a small margin
    max_seconds: float = 30.0  # longer utterances are skipped and counted
    smooth: float = 0.0  # 0..1: how much of the loud channels moves from activations into weights


@dataclass(frozen=True)
class GateConfig:
    drift_budget: float = 0.5  # points of WER/CER
    max_disagreement: float | None = None  # percent; None: not checked
    min_sqnr_db: float | None = None


_EXAMPLE = "configs/sensevoice-small.toml of svtool's repository"
MOST_THREADS = 256
ARENA_STRATEGIES = ("kNextPowerOfTwo", "kSameAsRequested")
CUDNN_SEARCHES = ("HEURISTIC", "DEFAULT", "EXHAUSTIVE")


@dataclass(frozen=True)
class OrtCpuConfig:
    """ONNX Runtime on the CPU."""

    threads: int | None = None  # of one operator; None: all cores. `--threads` goes before it
    inter_op_threads: int = 1  # operators that run side by side; over 1 is seldom faster on this graph
    arena: bool = True  # keep freed memory for the next batch; false: less memory, slower
    spinning: bool = False  # threads that wait burn their core: faster alone, slower beside audio decoding

    def __post_init__(self) -> None:
        for name in ("threads", "inter_op_threads"):
            number = getattr(self, name)
            if number is not None and not 1 <= number <= MOST_THREADS:
                raise UsageError(f"{name} = {number}: give a number from 1 to {MOST_THREADS}")


@dataclass(frozen=True)
class OrtCudaConfig:
    """ONNX Runtime's CUDA provider; names and values are its own, the memory limit in MiB."""

    gpu_mem_limit_mb: int | None = None  # of the arena; None: all the GPU has
    arena_extend_strategy: str = "kNextPowerOfTwo"
    # the provider's own default, EXHAUSTIVE, times every algorithm again for each new audio length
    cudnn_conv_algo_search: str = "HEURISTIC"
    do_copy_in_default_stream: bool = True

    def __post_init__(self) -> None:
        if self.gpu_mem_limit_mb is not None and self.gpu_mem_limit_mb < 1:
            raise UsageError(f"gpu_mem_limit_mb = {self.gpu_mem_limit_mb}: give 1 or more, or leave it out")
        for name, known in (
            ("arena_extend_strategy", ARENA_STRATEGIES),
            ("cudnn_conv_algo_search", CUDNN_SEARCHES),
        ):
            if (value := getattr(self, name)) not in known:
                raise UsageError(f"{name} = {value!r}: {_nearest(value, list(known))}")


@dataclass(frozen=True)
class OrtConfig:
    cpu: OrtCpuConfig = OrtCpuConfig()
    cuda: OrtCudaConfig = OrtCudaConfig()


@dataclass(frozen=True)
class Config:
    engine: EngineConfig = EngineConfig()
    precision: PrecisionConfig = PrecisionConfig()
    calibration: CalibrationConfig = CalibrationConfig()
    gate: GateConfig = GateConfig()  # thresholds of the real model stay unset until measured on real weights
    gate_tiny: GateConfig = GateConfig(0.5, 10.0, 35.0)
    onnxruntime: OrtConfig = OrtConfig()


def load_config(path: Path) -> Config:
    """Read a TOML file; keys it leaves out keep their defaults. Raises ArtifactError for anything it cannot mean."""
    try:
        raw = read_toml(path, f"compare it with {_EXAMPLE}")
    except FileNotFoundError as error:
        raise ArtifactError(
            f"{path} does not exist: start from a copy of {_EXAMPLE}, or leave --config out"
        ) from error
    config: Config = _build(Config, raw, str(path), "")
    return config


def _build(kind: Any, raw: Mapping[str, Any], path: str, section: str) -> Any:
    hints = typing.get_type_hints(kind)
    values = {}
    for key, value in raw.items():
        where = f"{section}.{key}" if section else key
        if key not in hints:
            raise ArtifactError(f"{path} has the unknown key {where!r}: {_nearest(key, list(hints))}")
        values[key] = _convert(hints[key], value, path, where)
    try:
        return kind(**values)
    except UsageError as error:  # in a file it is a bad file, not a wrong command
        raise ArtifactError(f"{path}: in [{section}]: {error}") from error


def _convert(hint: Any, value: Any, path: str, where: str) -> Any:
    if dataclasses.is_dataclass(hint):
        if isinstance(value, Mapping):
            return _build(hint, value, path, where)
    elif typing.get_origin(hint) is tuple:
        item = typing.get_args(hint)[0]
        if isinstance(value, list) and all(isinstance(part, str) for part in value):
            try:
                return tuple(parse_profile(part) if item is Profile else part for part in value)
            except UsageError as error:  # in a file it is a bad file, not a wrong command
                raise ArtifactError(f"{path}: {where}: {error}") from error
    else:
        options = typing.get_args(hint) if isinstance(hint, types.UnionType) else (hint,)
        if type(value) in options:
            return value
        if type(value) is int and float in options:
            return float(value)
    raise ArtifactError(f"{path}: {where} cannot be {value!r}")


def _nearest(key: str, known: list[str]) -> str:
    close = difflib.get_close_matches(key, known, n=1, cutoff=0.0)
    return f"did you mean {close[0]!r}? (known here: {', '.join(known)})"
