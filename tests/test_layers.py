"""The structure is a test: imports point down only, and nothing heavy is imported before it is needed."""

from __future__ import annotations

import ast
import resource
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
PACKAGE = ROOT / "src" / "svtool"
# from the bottom up; a module may import from its own layer's lower neighbours and everything below
LAYERS = [
    {"errors", "__init__"},
    {
        "progress",
        "config",
        "manifest",
        "sniff",
        "intake",
        "staging",
        "frontend",
        "timing",
        "child",
        "onnxfile",
        "sections",
    },
    {"audio", "audiofacts", "lists", "subtitles", "sqnr", "thresholds", "trtcache"},
    {"tiny"},
    {"utterances", "assets", "segment"},
    {"model", "graph", "modelfile", "flavor", "interop"},
    {"rewrite", "layers"},
    {"backends", "smooth", "precision", "quantize", "parity", "onnxfacts"},
    {"decode", "artifacts", "simplify", "interop", "probes"},
    {"source", "profiles", "search"},
    {"ranges"},
    {"recognizer", "verify"},
    {
        *("calibration", "sensitivity", "wer", "search_worker", "data_check", "data_convert"),
        *("build", "build_ort", "build_ranges", "build_report", "build_search", "build_worker", "plan"),
        *("export", "serving", "transcribe", "demo"),
        *("inspect", "inspect_facts", "inspect_page", "doctor", "doctor_page"),
    },
    {"calibrate"},
    {"cli"},
    {"__main__"},
]
HEAVY = {
    *(
        "torch",
        "onnx",
        "onnx_ir",
        "onnxruntime",
        "onnxsim",
        "onnxscript",
        "tensorrt",
        "tensorrt_rtx",
        "pycuda",
    ),
    *("cuda", "av", "soxr", "sentencepiece", "rapidfuzz", "gradio", "fastapi", "uvicorn"),
    *("opencc", "wetext", "whisper_normalizer"),
}


def layer_of(module: str) -> int:
    name = module.split(".")[0]
    return next(index for index, names in enumerate(LAYERS) if name in names)


def module_level_imports(path: Path) -> list[str]:
    """Modules imported when the file is imported: not inside functions, not under TYPE_CHECKING."""
    found: list[str] = []
    for node in ast.parse(path.read_text(encoding="utf-8")).body:
        if isinstance(node, ast.Import):
            found += [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and node.module:
            found.append(node.module)
            found += [f"{node.module}.{alias.name}" for alias in node.names if node.module == "svtool"]
    return found


def all_imports(path: Path) -> set[str]:
    """Every svtool module imported anywhere in the file."""
    found: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.ImportFrom) and node.module:
            if node.module == "svtool":
                found |= {alias.name for alias in node.names if not alias.name.startswith("__")}
            elif node.module.startswith("svtool."):
                found.add(node.module.removeprefix("svtool."))
    return found


FILES = sorted(PACKAGE.rglob("*.py"))


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(PACKAGE)))
def test_imports_point_down(path: Path) -> None:
    module = ".".join(path.relative_to(PACKAGE).with_suffix("").parts)
    for imported in all_imports(path):
        assert layer_of(imported) <= layer_of(module), f"{module} imports {imported} from above"


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(PACKAGE)))
def test_nothing_heavy_at_module_level(path: Path) -> None:
    allowed = {"torch"} if path.name == "model.py" else set()
    heavy = {name.split(".")[0] for name in module_level_imports(path)} & HEAVY
    assert heavy <= allowed


def test_help_answers_quickly() -> None:
    assert min(_cpu_seconds("-m", "svtool", "--help") for _ in range(3)) < 0.3


def _cpu_seconds(*arguments: str) -> float:
    """Processor time of a Python process: unlike wall time it does not depend on what else the machine does."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    subprocess.run([sys.executable, *arguments], capture_output=True, check=True)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


@pytest.mark.case("P1", "P7")
def test_base_use_needs_no_torch_and_no_funasr() -> None:
    code = (
        "import sys\n"
        "import svtool.cli, svtool.recognizer, svtool.backends.onnxrt, svtool.utterances\n"
        "bad = {'torch', 'torchaudio', 'funasr', 'gradio', 'fastapi', 'tensorrt', 'tensorrt_rtx'} & set(sys.modules)\n"
        "sys.exit(str(bad) if bad else 0)"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
