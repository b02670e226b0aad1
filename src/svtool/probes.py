"""What this machine has, found by trying it: libraries imported, providers started, clips decoded, the driver asked.

Functions that take a payload run in child processes (`child`), since a broken library may crash or hang; the others
only read. Every answer is plain JSON. Knows nothing of what svtool's commands need.
"""

from __future__ import annotations

import ctypes
import importlib
import importlib.util
import os
import platform
import re
import shutil
import struct
import sys
import tempfile
from collections.abc import Callable, Mapping
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO

from svtool.errors import AudioError, SvtoolError
from svtool.flavor import FLAVORS, RTX_PORTABLE, import_flavor, is_installed, version

if TYPE_CHECKING:
    from svtool.progress import Progress

CPU = "CPUExecutionProvider"
_RTX_CAPABILITIES = ("7.5", "8.0", "8.6", "8.9", "12.")
RTX_RUNS_ON = f"{RTX_PORTABLE} (7.5 on request)"
# what the build and the runtime call; TensorRT 11 has all of them, and so has 10.3
_TENSORRT_NAMES = (
    *("Builder.build_serialized_network", "Builder.create_network", "Builder.create_optimization_profile"),
    *("OnnxParser", "ILogger", "Logger", "MemoryPoolType", "Runtime", "TensorIOMode"),
)
_CLIP_S = 0.3
# suffix -> (container, encoder, rate) that PyAV can write a clip of it with
_CLIPS = {
    ".wav": ("wav", "pcm_s16le", 16_000),
    ".wave": ("wav", "pcm_s16le", 16_000),
    ".w64": ("w64", "pcm_s16le", 16_000),
    **dict.fromkeys((".aif", ".aiff", ".aifc"), ("aiff", "pcm_s16be", 16_000)),
    **dict.fromkeys((".au", ".snd"), ("au", "pcm_s16be", 16_000)),
    ".caf": ("caf", "pcm_s16le", 16_000),
    ".flac": ("flac", "flac", 16_000),
    ".g722": ("g722", "g722", 16_000),
    ".mp3": ("mp3", "mp3", 16_000),
    ".mp2": ("mp2", "mp2", 16_000),
    **dict.fromkeys((".m4a", ".m4b"), ("ipod", "aac", 16_000)),
    ".mp4": ("mp4", "aac", 16_000),
    ".mov": ("mov", "aac", 16_000),
    ".3gp": ("3gp", "aac", 16_000),
    ".aac": ("adts", "aac", 16_000),
    **dict.fromkeys((".ogg", ".oga", ".opus"), ("ogg", "libopus", 48_000)),
    ".webm": ("webm", "libopus", 48_000),
    **dict.fromkeys((".mka", ".mkv"), ("matroska", "flac", 16_000)),
    ".amr": ("amr", "libopencore_amrnb", 8_000),
    ".wma": ("asf", "wmav2", 16_000),
    ".avi": ("avi", "mp3", 16_000),
}
# decoders of formats that no encoder here writes
_DECODERS = ("vorbis", "amrwb", "alac")
# looked for when ONNX Runtime names none (a build for the CPU)
_CUDA_LIBRARIES = (
    "libcudart.so.13",
    "libcudart.so.12",
    "libcublas.so.13",
    "libcublas.so.12",
    "libcudnn.so.9",
)


# --- in a child process --------------------------------------------------------------------------


def libraries(payload: Mapping[str, Any], progress: Progress) -> dict[str, Any]:
    """Import every module named: {module: {"version", "error"}}."""
    return {name: _imported(name) for name in payload["modules"]}


def providers(payload: Mapping[str, Any], progress: Progress) -> dict[str, Any]:
    """Those ONNX Runtime lists, which says nothing of whether they start."""
    import onnxruntime

    return {"available": list(onnxruntime.get_available_providers())}


def provider(payload: Mapping[str, Any], progress: Progress) -> dict[str, Any]:
    """Start a session of one product on one execution provider, as svtool would, and run it in the folder named."""
    import numpy as np

    from svtool.backends.onnxrt import open_session

    name = payload["name"]
    path = Path(payload["folder"]) / f"{name}.onnx"  # providers are tried at the same time
    path.write_bytes(_tiny_graph())
    try:
        session = open_session(path, [name])
        (result,) = session.run(None, {"x": np.full((2, 4), 0.5, np.float32)})
    except Exception as error:  # noqa: BLE001 - whatever stops it is the answer
        return {"started": False, "reason": _why_not(path, name) or _first_line(error)}
    started = session.get_providers()[0] == name
    right = bool(np.array_equal(result, np.full((2, 4), 2.0, np.float32)))
    return {"started": started and right, "reason": None if right else f"it computed {result.tolist()}"}


def decoders(payload: Mapping[str, Any], progress: Progress) -> dict[str, Any]:
    """Write and read back a clip of every suffix named: {suffix: None when it works, else why not}."""
    found: dict[str, Any] = {suffix: _decodes(suffix) for suffix in payload["suffixes"]}
    return {"formats": found, "codecs": {name: _has_decoder(name) for name in _DECODERS}}


def cuda(payload: Mapping[str, Any], progress: Progress) -> dict[str, Any]:
    """The driver's own words, without nvidia-smi: version, devices, memory, and which CUDA libraries load."""
    loaded = {name: _find_library(name) for name in payload["libraries"] or _CUDA_LIBRARIES}
    return {"driver": _driver(), "libraries": loaded, "bindings": _bindings()}


def tensorrt(payload: Mapping[str, Any], progress: Progress) -> dict[str, Any]:
    """Import one TensorRT and say what of it svtool uses is there; makes no object of it."""
    flavor = FLAVORS[payload["flavor"]]
    if not is_installed(flavor):
        return {"version": None, "error": "not installed"}
    try:
        library = import_flavor(flavor)
    except SvtoolError as error:
        return {"version": None, "error": str(error)}
    flags = getattr(library, "BuilderFlag", None)
    creation = getattr(library, "NetworkDefinitionCreationFlag", None)
    return {
        "version": version(library),
        "error": None,
        "missing": [name for name in _TENSORRT_NAMES if not _has(library, name)],
        "strongly_typed_flag": hasattr(creation, "STRONGLY_TYPED"),
        "weak_typing": hasattr(flags, "FP16") or hasattr(flags, "INT8"),
    }


# --- here ----------------------------------------------------------------------------------------


def provider_needs() -> dict[str, list[str]]:
    """NVIDIA libraries that ONNX Runtime's own GPU providers are linked against, read from their files."""
    found = {}
    for name, stem in (("CUDAExecutionProvider", "cuda"), ("TensorrtExecutionProvider", "tensorrt")):
        file = _package_folder("onnxruntime") / "capi" / f"libonnxruntime_providers_{stem}.so"
        names = needed_libraries(file) if file.is_file() else []
        found[name] = [one for one in names if re.match(r"lib(cu|nv)(?!da\.)", one)]
    return found


def needed_libraries(file: Path) -> list[str]:
    """DT_NEEDED of a 64-bit little-endian ELF file; [] for anything else."""
    try:
        with file.open("rb") as stream:
            return _needed(stream)
    except (OSError, struct.error, ValueError):
        return []


def machine() -> dict[str, Any]:
    """Python, processor, memory and disks."""
    from svtool.tiny import cache_dir

    memory = memory_bytes()
    return {
        "python": platform.python_version(),
        "executable": sys.executable,
        "system": f"{platform.system()} {platform.machine()}",
        "cpus": len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count(),
        "memory_bytes": memory[0],
        "memory_available_bytes": memory[1],
        "disks": {
            str(folder): _free_bytes(folder)
            for folder in (Path.cwd(), cache_dir(), Path(tempfile.gettempdir()))
        },
        "temp": _temp_problem(),
        "cuda_visible_devices": os.environ.get("CUDA_VISIBLE_DEVICES"),
    }


def memory_bytes(
    meminfo: Path = Path("/proc/meminfo"), limit: Path = Path("/sys/fs/cgroup/memory.max")
) -> tuple[int | None, int | None]:
    """(total, available), a container's limit counted."""
    try:
        lines = dict(line.split(":", 1) for line in meminfo.read_text().splitlines() if ":" in line)
        total, free = (int(lines[name].split()[0]) * 1024 for name in ("MemTotal", "MemAvailable"))
    except (OSError, KeyError, ValueError):
        return None, None
    try:
        most = int(limit.read_text())
        used = int((limit.parent / "memory.current").read_text())
    except (OSError, ValueError):  # no container, or "max"
        return total, free
    return min(total, most), max(0, min(free, most - used))


def installed(*names: str) -> str | None:
    """Version of the first distribution of these that is installed."""
    for name in names:
        try:
            return metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    return None


def rtx_runs_on(capability: str) -> bool:
    return capability.startswith(_RTX_CAPABILITIES)


# --- parts ---------------------------------------------------------------------------------------


def _imported(name: str) -> dict[str, Any]:
    try:
        module = importlib.import_module(name)
    except ModuleNotFoundError as error:
        missing = error.name == name.split(".")[0]
        return {"version": None, "error": "not installed" if missing else _first_line(error)}
    except Exception as error:  # noqa: BLE001 - whatever stops it is the answer
        return {"version": None, "error": f"does not load: {_first_line(error)}"}
    return {"version": str(getattr(module, "__version__", "unknown")), "error": None}


def _tiny_graph() -> bytes:
    """y = x [N, 4] times a matrix of ones."""
    import numpy as np
    from onnx import TensorProto, helper, numpy_helper

    inputs, outputs = (helper.make_tensor_value_info(one, TensorProto.FLOAT, ["n", 4]) for one in "xy")
    weight = numpy_helper.from_array(np.ones((4, 4), np.float32), "w")
    graph = helper.make_graph(
        [helper.make_node("MatMul", ["x", "w"], ["y"])], "tiny", [inputs], [outputs], [weight]
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)
    return bytes(model.SerializeToString())


def _why_not(path: Path, name: str) -> str | None:
    """ONNX Runtime falls back in silence towards its caller: the reason stands in its log only."""
    import onnxruntime

    def again() -> None:
        onnxruntime.set_default_logger_severity(2)
        onnxruntime.InferenceSession(str(path), providers=[name, CPU])

    return reason_of(_logged(again))


def reason_of(log: str) -> str | None:
    """The library that is missing, or the first error, in what ONNX Runtime logged."""
    missing = re.search(r"(lib[\w.+-]+?\.so[\w.]*): cannot open shared object file", log)
    if missing:
        return f"{missing.group(1)} is not found"
    # [E:onnxruntime:Default, file.cc:1 function] message
    errors = re.findall(
        r"\[[EW]:onnxruntime:[^\]]*\]\s*(?:\S+::\S+\s+)?(.+)", re.sub(r"\x1b\[[\d;]*m", "", log)
    )
    return re.sub(r"\s+", " ", errors[0])[:200] if errors else None


def _logged(call: Callable[[], None]) -> str:
    """What native code writes to stderr during `call`."""
    with tempfile.TemporaryFile() as log:
        kept = os.dup(2)
        os.dup2(log.fileno(), 2)
        try:
            call()
        except Exception as error:  # noqa: BLE001 - its text is wanted
            os.write(2, str(error).encode())
        finally:
            os.dup2(kept, 2)
            os.close(kept)
        log.seek(0)
        return log.read().decode(errors="replace")


def _decodes(suffix: str) -> str | None:
    from svtool.audio import SAMPLE_RATE, decode_audio

    if suffix not in _CLIPS:
        return "not tried: no clip of it can be made"
    try:
        clip = _clip(*_CLIPS[suffix])
    except Exception as error:  # noqa: BLE001 - whatever stops it is the answer
        return f"not tried: no encoder here ({_first_line(error)})"
    try:
        audio = decode_audio(clip, name=f"clip{suffix}")
    except AudioError as error:
        return str(error)
    near = abs(len(audio.samples) / SAMPLE_RATE - _CLIP_S) < 0.2
    return None if near and float(abs(audio.samples).max()) > 0.1 else "decodes to something else"


def _clip(container: str, encoder: str, rate: int) -> bytes:
    """A short tone, mono."""
    import io

    import av
    import numpy as np

    tone = (0.3 * np.sin(2 * np.pi * 440 * np.arange(int(_CLIP_S * rate)) / rate)).astype(np.float32)
    out = io.BytesIO()
    with av.open(out, "w", format=container) as file:
        stream: Any = file.add_stream(encoder, rate=rate, layout="mono")
        stream.bit_rate = 12_200 if container == "amr" else 64_000
        context = stream.codec_context
        context.open()
        frame = av.AudioFrame.from_ndarray(tone[None], format="fltp", layout="mono")
        frame.sample_rate, frame.pts = rate, 0
        size = context.frame_size or None
        resampler = av.AudioResampler(format=context.format, layout="mono", rate=rate, frame_size=size)
        for piece in (*resampler.resample(frame), *resampler.resample(None)):
            file.mux(stream.encode(piece))
        file.mux(stream.encode(None))
    return out.getvalue()


def _has_decoder(name: str) -> bool:
    import av

    try:
        av.codec.Codec(name, "r")
    except Exception:  # noqa: BLE001 - PyAV's class for it moved between versions
        return False
    return True


def _driver() -> dict[str, Any]:
    """libcuda through ctypes."""
    empty: dict[str, Any] = {"library": None, "version": None, "error": None, "devices": []}
    for name in ("nvcuda.dll",) if sys.platform == "win32" else ("libcuda.so.1", "libcuda.so"):
        try:
            driver = ctypes.CDLL(name)
        except OSError:
            continue
        found = empty | {"library": name}
        if status := driver.cuInit(0):
            return found | {"error": f"cuInit: {_cuda_error(driver, status)}"}
        number, count = ctypes.c_int(0), ctypes.c_int(0)
        if driver.cuDriverGetVersion(ctypes.byref(number)) == 0:
            found["version"] = f"{number.value // 1000}.{number.value % 1000 // 10}"
        if status := driver.cuDeviceGetCount(ctypes.byref(count)):
            return found | {"error": f"cuDeviceGetCount: {_cuda_error(driver, status)}"}
        return found | {"devices": [_device(driver, index) for index in range(count.value)]}
    return empty | {"error": "no NVIDIA driver (libcuda.so.1 is not found)"}


def _cuda_error(driver: Any, status: int) -> str:
    text = ctypes.c_char_p()
    driver.cuGetErrorString(status, ctypes.byref(text))
    return f"{(text.value or b'unknown').decode()} ({status})"


def _device(driver: Any, index: int) -> dict[str, Any]:
    handle, name = ctypes.c_int(0), ctypes.create_string_buffer(128)
    driver.cuDeviceGet(ctypes.byref(handle), index)
    driver.cuDeviceGetName(name, len(name), handle)
    numbers = []
    for attribute in (75, 76):  # CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR, _MINOR
        value = ctypes.c_int(0)
        driver.cuDeviceGetAttribute(ctypes.byref(value), attribute, handle)
        numbers.append(str(value.value))
    total = ctypes.c_size_t(0)
    driver.cuDeviceTotalMem_v2(ctypes.byref(total), handle)
    device = {"name": name.value.decode(errors="replace"), "compute_capability": ".".join(numbers)}
    return device | {"memory_bytes": total.value, "free_bytes": _free_on(driver, handle)}


def _free_on(driver: Any, handle: ctypes.c_int) -> int | None:
    """Free memory is known inside a context only; None when the device has not even room for one."""
    context, free, total = ctypes.c_void_p(), ctypes.c_size_t(0), ctypes.c_size_t(0)
    if driver.cuDevicePrimaryCtxRetain(ctypes.byref(context), handle) != 0:
        return None
    try:
        if driver.cuCtxSetCurrent(context) != 0:
            return None
        status = driver.cuMemGetInfo_v2(ctypes.byref(free), ctypes.byref(total))
        return free.value if status == 0 else None
    finally:
        driver.cuDevicePrimaryCtxRelease_v2(handle)


def _find_library(name: str) -> str | None:
    """Where the library is: "loader" (any program finds it), a pip package's folder (its user must look), or None."""
    try:
        ctypes.CDLL(name)
    except OSError:
        folder = _package_folder("nvidia")
        inside = next(iter(sorted(folder.glob(f"*/lib/{name}*"))), None) if folder != Path() else None
        return str(inside) if inside is not None else None
    return "loader"


def _bindings() -> dict[str, Any]:
    """The two ways to reach the device from Python, in the order svtool tries them."""
    return {"pycuda": _imported("pycuda.driver"), "cuda-python": _imported("cuda.bindings.runtime")}


def _has(library: Any, dotted: str) -> bool:
    for part in dotted.split("."):
        if not hasattr(library, part):
            return False
        library = getattr(library, part)
    return True


def _package_folder(name: str) -> Path:
    """Folder of a package, without importing it; the empty path when it is not installed."""
    try:
        spec = importlib.util.find_spec(name)
    except (ImportError, ValueError):
        return Path()
    places = list(spec.submodule_search_locations or ()) if spec is not None else []
    return Path(places[0]) if places else Path()


def _needed(stream: BinaryIO) -> list[str]:
    head = stream.read(64)
    if head[:6] != b"\x7fELF\x02\x01":
        return []
    (offset,) = struct.unpack_from("<Q", head, 0x28)
    size, count = struct.unpack_from("<HH", head, 0x3A)
    stream.seek(offset)
    table = stream.read(size * count)
    # (type, file offset, size, linked section) of every section
    sections = [
        (
            struct.unpack_from("<I", table, at + 4)[0],
            *struct.unpack_from("<QQI", table, at + 24),
        )
        for at in range(0, len(table), size)
    ]
    for kind, start, length, link in sections:
        if kind == 6:  # SHT_DYNAMIC
            entries = struct.iter_unpack("<QQ", _bytes(stream, start, length))
            names = _bytes(stream, *sections[link][1:3])
            return [names[value : names.index(b"\0", value)].decode() for tag, value in entries if tag == 1]
    return []


def _bytes(stream: BinaryIO, start: int, length: int) -> bytes:
    stream.seek(start)
    return stream.read(length)


def _free_bytes(folder: Path) -> int | None:
    while not folder.exists() and folder != folder.parent:
        folder = folder.parent
    try:
        return shutil.disk_usage(folder).free
    except OSError:
        return None


def _temp_problem() -> str | None:
    try:
        with tempfile.TemporaryFile() as file:
            file.write(b"svtool")
            file.flush()
    except OSError as error:
        return f"{tempfile.gettempdir()} cannot be written: {error.strerror}"
    return None


def _first_line(error: BaseException) -> str:
    return (str(error).strip().splitlines() or [type(error).__name__])[0]
