"""ONNX Runtime as a backend, for models and for the twins of plans. Knows nothing of audio or text."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from svtool import manifest
from svtool.backends import Batch, Limits, Output, greedy_head
from svtool.errors import ArtifactError, SvtoolError, UsageError
from svtool.graph import TAG_IDS_KEY

INPUTS = ("speech", "speech_lengths", "language", "textnorm")
GREEDY_OUTPUTS = ("token_ids", "token_logprobs", "tag_logits", "encoder_out_lens")
LOGITS_OUTPUTS = ("ctc_logits", "encoder_out_lens")

# without VNNI the fused int8 kernels saturate, and the result would depend on the CPU; no GPU makes those errors
SWITCHES = {"session.x64quantprecision": "1"}
_PROVIDERS = {"cpu": "CPUExecutionProvider", "cuda": "CUDAExecutionProvider"}


def providers_named(provider: str) -> list[str]:
    """`auto` and `cpu` -> the CPU; `cuda` -> CUDA first. `auto` never picks a GPU behind the caller's back."""
    name = "cpu" if provider == "auto" else provider
    if name not in _PROVIDERS:
        raise UsageError(f"device {provider!r} is not known: use one of auto, {', '.join(_PROVIDERS)}")
    return [_PROVIDERS[name]]


class OnnxRuntimeBackend:
    """Owned by one thread. Either head; logits are reduced to token ids on the host."""

    runtime = "onnxruntime"

    def __init__(self, path: Path, *, provider: str = "auto", threads: int | None = None) -> None:
        if manifest.manifest_path(path).is_file() and path.is_file():
            described = manifest.read_manifest(path)
            manifest.check_digest(path, described["sha256"], described)
        self._session = open_session(path, providers_named(provider), threads=threads)
        self.provider = str(self._session.get_providers()[0])
        outputs = tuple(one.name for one in self._session.get_outputs())
        inputs = tuple(one.name for one in self._session.get_inputs())
        if inputs != INPUTS or outputs not in (GREEDY_OUTPUTS, LOGITS_OUTPUTS):
            raise ArtifactError(
                f"{path} is no SenseVoice model: it takes {', '.join(inputs)} and gives {', '.join(outputs)}; "
                "make one with  svtool export"
            )
        self._greedy = outputs == GREEDY_OUTPUTS
        self.tag_ids = _tag_ids(self._session, path)
        self.limits = Limits()

    def infer(self, batch: Batch) -> Output:
        feeds = dict(zip(INPUTS, (batch.feats, batch.feat_lens, batch.language, batch.textnorm), strict=True))
        results = self._session.run(None, feeds)
        if self._greedy:
            return Output(*results)
        return greedy_head(results[0], results[1], self.tag_ids)

    def close(self) -> None:
        self._session = None


def open_session(
    path: Path, providers: Sequence[str] = ("CPUExecutionProvider",), *, threads: int | None = None
) -> Any:
    """A session that really runs on the first provider named, with true int8 arithmetic on every CPU.

    Raises ArtifactError when the file is missing or unreadable, SvtoolError when the provider does not start.
    """
    import onnxruntime

    if not path.is_file():
        raise ArtifactError(
            f"{path} does not exist: make it with  svtool export  (and svtool build-trt for engines)"
        )
    onnxruntime.set_default_logger_severity(
        4
    )  # its errors come back as exceptions; the log repeats them in colour
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 3
    # waiting threads must not burn the cores that decode the next files
    options.add_session_config_entry("session.intra_op.allow_spinning", "0")
    for key, value in SWITCHES.items():
        options.add_session_config_entry(key, value)
    if threads:
        options.intra_op_num_threads = threads
    try:
        session = onnxruntime.InferenceSession(str(path), options, providers=list(providers))
    except Exception as error:
        raise ArtifactError(
            f"{path} cannot be loaded by ONNX Runtime {onnxruntime.__version__}: {_first_line(error)}"
        ) from error
    started = session.get_providers()
    if started[0] != providers[0]:
        raise SvtoolError(
            f"{providers[0]} was asked for, but ONNX Runtime started {started[0]}: run svtool with --device cpu, "
            "or install the CUDA libraries this onnxruntime-gpu needs"
        )
    return session


def _first_line(error: Exception) -> str:
    return (str(error).strip().splitlines() or [type(error).__name__])[0]


def _tag_ids(session: Any, path: Path) -> tuple[int, ...]:
    listed = session.get_modelmeta().custom_metadata_map.get(TAG_IDS_KEY)
    if not listed:
        raise ArtifactError(
            f"{path} lists no {TAG_IDS_KEY} in its metadata: export it again with  svtool export"
        )
    return tuple(int(one) for one in listed.split(","))
