"""Which TensorRT is installed and whether it can work here. Imports neither until asked to, and touches no name of it.

Two libraries share one API: `tensorrt` (classic, builds on the target GPU) and `tensorrt_rtx` (builds anywhere,
plans run on RTX-class GPUs).
"""

from __future__ import annotations

import ctypes
import importlib
import importlib.util
import sys
from collections import deque
from dataclasses import dataclass
from types import ModuleType
from typing import Any

from svtool.errors import ArtifactError, MissingDependency, SvtoolError, UsageError


@dataclass(frozen=True)
class Flavor:
    name: str  # "rtx", "classic"
    runtime: str  # module name, and the manifest's word for it
    title: str
    extra: str


RTX = Flavor("rtx", "tensorrt_rtx", "TensorRT-RTX", "trt-rtx")
CLASSIC = Flavor("classic", "tensorrt", "TensorRT", "trt")
RTX_PORTABLE = "8.0, 8.6, 8.9 and 12.x"  # compute capabilities of a plan that names none
FLAVORS = {flavor.name: flavor for flavor in (RTX, CLASSIC)}


class NoTensorRT(MissingDependency):
    def __init__(self) -> None:
        SvtoolError.__init__(
            self,
            "building a plan needs TensorRT-RTX or TensorRT: in svtool's folder, run  pip install -e '.[trt-rtx]'  "
            "(builds without a GPU) or  pip install -e '.[trt]'  (on the target GPU; Jetson: JetPack's own)",
        )


def choose_flavor(wanted: str = "auto") -> Flavor:
    """Classic TensorRT where it is installed and a GPU answers (it fits that GPU best), TensorRT-RTX otherwise.

    Raises NoTensorRT, or ArtifactError when only classic TensorRT is here and no GPU is.
    """
    if wanted not in {"auto", *FLAVORS}:
        raise UsageError(f"the flavor {wanted!r} is not one of auto, {', '.join(FLAVORS)}")
    installed = [flavor for flavor in FLAVORS.values() if is_installed(flavor)]
    if wanted != "auto":
        if FLAVORS[wanted] not in installed:
            chosen = FLAVORS[wanted]
            raise MissingDependency(f"--flavor {wanted}", chosen.title, chosen.extra)
        installed = [FLAVORS[wanted]]
    if not installed:
        raise NoTensorRT
    if CLASSIC in installed and has_cuda_device():
        return CLASSIC
    if RTX in installed:
        return RTX
    raise ArtifactError(
        "TensorRT builds only on a machine with the target GPU, and no CUDA device answers here: build there, or "
        "build a portable plan with  pip install -e '.[trt-rtx]'"
    )


def is_installed(flavor: Flavor) -> bool:
    if flavor.runtime in sys.modules:  # find_spec refuses modules that carry no spec
        return sys.modules[flavor.runtime] is not None
    return importlib.util.find_spec(flavor.runtime) is not None


def import_flavor(flavor: Flavor) -> ModuleType:
    """The library itself. Raises MissingDependency when absent, ArtifactError when it does not load."""
    try:
        return importlib.import_module(flavor.runtime)
    except ModuleNotFoundError as error:
        raise MissingDependency("this plan", flavor.title, flavor.extra) from error
    except (ImportError, OSError) as error:
        raise ArtifactError(f"{flavor.title} is installed but does not load: {error}") from error


def version(module: ModuleType) -> str:
    return str(getattr(module, "__version__", "unknown"))


def has_cuda_device() -> bool:
    return cuda_device_count() > 0


def cuda_device_count() -> int:
    """Devices the CUDA driver shows; 0 without a driver. Asked before any TensorRT object is made.

    Without a driver TensorRT's own objects return None or crash, so the driver is asked directly.
    """
    driver = _driver()
    count = ctypes.c_int(0)
    if driver is None or driver.cuDeviceGetCount(ctypes.byref(count)) != 0:
        return 0
    return count.value


def compute_capability() -> str | None:
    """`8.9` of the first CUDA device; None without one."""
    driver = _driver()
    if driver is None or not has_cuda_device():
        return None
    numbers = []
    for attribute in (75, 76):  # CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR, _MINOR
        value = ctypes.c_int(0)
        if driver.cuDeviceGetAttribute(ctypes.byref(value), attribute, 0) != 0:
            return None
        numbers.append(str(value.value))
    return ".".join(numbers)


def gpu_name() -> str | None:
    """`NVIDIA L4` of the first CUDA device; None without one."""
    driver = _driver()
    name = ctypes.create_string_buffer(256)
    if driver is None or not has_cuda_device() or driver.cuDeviceGetName(name, len(name), 0) != 0:
        return None
    return name.value.decode(errors="replace")


def _driver() -> ctypes.CDLL | None:
    """The CUDA driver's library, started; None where it is absent or finds no GPU."""
    for name in ("nvcuda.dll",) if sys.platform == "win32" else ("libcuda.so.1", "libcuda.so"):
        try:
            driver = ctypes.CDLL(name)
        except OSError:
            continue
        return driver if driver.cuInit(0) == 0 else None
    return None


def make_logger(trt: Any) -> tuple[Any, deque[str]]:
    """A logger for TensorRT objects, and the last errors that it was told: the library would print them itself."""
    errors: deque[str] = deque(maxlen=8)

    class Log(trt.ILogger):  # type: ignore[misc]
        def __init__(self) -> None:
            trt.ILogger.__init__(self)

        def log(self, severity: Any, msg: str) -> None:
            if severity in (trt.ILogger.INTERNAL_ERROR, trt.ILogger.ERROR):
                errors.append(msg.strip())

    return Log(), errors
