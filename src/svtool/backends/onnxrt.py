"""ONNX Runtime as a backend, for models and for the twins of plans. Knows nothing of audio or text."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from svtool import manifest, modelfile
from svtool.backends import Batch, Limits, Output, greedy_head
from svtool.config import OrtConfig, OrtCudaConfig
from svtool.errors import ArtifactError, SvtoolError, UsageError
from svtool.graph import LOGITS, TAG_IDS_KEY

INPUTS = ("speech", "speech_lengths", "language", "textnorm")
GREEDY_OUTPUTS = ("token_ids", "token_logprobs", "tag_logits", "encoder_out_lens")
LOGITS_OUTPUTS = ("ctc_logits", "encoder_out_lens")

# without VNNI the fused int8 kernels saturate, and the result would depend on the CPU; no GPU makes those errors
SWITCHES = {"session.x64quantprecision": "1"}
# a form of int8 that cannot saturate (`quantize.to_int8_cpu`); the switch would only halve its speed
CPU_INT8 = "uint8 x int8, pairs within 16 bits"
CPU, CUDA = "CPUExecutionProvider", "CUDAExecutionProvider"
_PROVIDERS = {"cpu": CPU, "cuda": CUDA}


def providers_named(provider: str) -> list[str]:
    """`auto` and `cpu` -> the CPU; `cuda` -> CUDA first. `auto` never picks a GPU behind the caller's back."""
    name = "cpu" if provider == "auto" else provider
    if name not in _PROVIDERS:
        raise UsageError(f"device {provider!r} is not known: use one of auto, {', '.join(_PROVIDERS)}")
    return [_PROVIDERS[name]]


class OnnxRuntimeBackend:
    """Owned by one thread. Either head; logits are reduced to token ids on the host.

    `logits`: asks a greedy engine, which has them inside, for its logits too.
    """

    runtime = "onnxruntime"

    def __init__(
        self,
        path: Path,
        *,
        provider: str = "auto",
        threads: int | None = None,
        settings: OrtConfig | None = None,
        logits: bool = False,
    ) -> None:
        described: dict[str, Any] = {}
        if manifest.manifest_path(path).is_file() and path.is_file():
            described = manifest.read_manifest(path)
            manifest.check_digest(path, described["sha256"], described)
        self._session = open_session(
            path,
            providers_named(provider),
            threads=threads,
            settings=settings,
            switches={} if described.get("options", {}).get("int8_form") == CPU_INT8 else SWITCHES,
            shown=LOGITS if logits else None,
        )
        self.provider = str(self._session.get_providers()[0])
        outputs = tuple(one.name for one in self._session.get_outputs())
        inputs = tuple(one.name for one in self._session.get_inputs())
        if inputs != INPUTS or outputs not in (GREEDY_OUTPUTS, LOGITS_OUTPUTS, (*GREEDY_OUTPUTS, LOGITS)):
            raise ArtifactError(
                f"{path} is no SenseVoice model: it takes {', '.join(inputs)} and gives {', '.join(outputs)}; "
                f"make one with  svtool export SOURCE  {modelfile.SOURCES}"
            )
        self._greedy = outputs != LOGITS_OUTPUTS
        self.gives_logits = outputs != GREEDY_OUTPUTS
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
    path: Path,
    providers: Sequence[str] = (CPU,),
    *,
    threads: int | None = None,
    settings: OrtConfig | None = None,
    switches: Mapping[str, str] = SWITCHES,
    shown: str | None = None,
) -> Any:
    """A session that really runs on the first provider named, with true int8 arithmetic on every CPU.

    `threads` goes before the settings'; `shown`: an inner tensor to make an output too, behind the others.
    Raises ArtifactError when the file is missing or unreadable, SvtoolError when the provider does not start.
    """
    import onnxruntime

    modelfile.check(path)
    onnxruntime.set_default_logger_severity(
        4
    )  # its errors come back as exceptions; the log repeats them in colour
    settings = settings or OrtConfig()
    options = _session_options(settings, threads, switches)
    wanted = [(CUDA, cuda_options(settings.cuda)) if name == CUDA else name for name in providers]
    try:
        model = str(path) if shown is None else _with_output(path, shown)
        session = onnxruntime.InferenceSession(model, options, providers=wanted)
    except Exception as error:
        raise modelfile.unreadable(path, f"ONNX Runtime {onnxruntime.__version__}", error) from error
    started = session.get_providers()
    if started[0] != providers[0]:
        raise SvtoolError(
            f"{providers[0]} was asked for, but ONNX Runtime started {started[0]}: run svtool with --device cpu, "
            "or install the CUDA libraries this onnxruntime-gpu needs"
        )
    return session


def _session_options(settings: OrtConfig, threads: int | None, switches: Mapping[str, str]) -> Any:
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.log_severity_level = 3
    # waiting threads must not burn the cores that decode the next files
    options.add_session_config_entry("session.intra_op.allow_spinning", str(int(settings.cpu.spinning)))
    for key, value in switches.items():
        options.add_session_config_entry(key, value)
    options.enable_cpu_mem_arena = settings.cpu.arena
    if threads or settings.cpu.threads:
        options.intra_op_num_threads = threads or settings.cpu.threads
    if settings.cpu.inter_op_threads > 1:
        options.execution_mode = onnxruntime.ExecutionMode.ORT_PARALLEL
        options.inter_op_num_threads = settings.cpu.inter_op_threads
    return options


def cuda_options(settings: OrtCudaConfig) -> dict[str, str]:
    """As the CUDA provider takes them: every value is text."""
    found = {
        "arena_extend_strategy": settings.arena_extend_strategy,
        "cudnn_conv_algo_search": settings.cudnn_conv_algo_search,
        "do_copy_in_default_stream": str(int(settings.do_copy_in_default_stream)),
    }
    if settings.gpu_mem_limit_mb is not None:
        found["gpu_mem_limit"] = str(settings.gpu_mem_limit_mb << 20)
    return found


def _with_output(path: Path, name: str) -> bytes:
    """The model with an inner float32 tensor as its last output. Protobuf messages merge when they are joined."""
    import onnx

    added = onnx.ModelProto()
    added.graph.output.append(onnx.helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, None))
    data: bytes = path.read_bytes() + added.SerializeToString()
    return data


def _tag_ids(session: Any, path: Path) -> tuple[int, ...]:
    listed = session.get_modelmeta().custom_metadata_map.get(TAG_IDS_KEY)
    if not listed:
        raise ArtifactError(f"{path} lists no {TAG_IDS_KEY} in its metadata: {modelfile.again(path)}")
    return tuple(int(one) for one in listed.split(","))
