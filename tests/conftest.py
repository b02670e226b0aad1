"""What every test may use: the embedded model's assets, a small random model, and quiet caches."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest

from svtool.assets import Assets, find_assets


@pytest.fixture(scope="session", autouse=True)
def _own_cache(tmp_path_factory: pytest.TempPathFactory) -> None:
    """Rendered lists go to a folder of the test run (or $SVTOOL_TEST_CACHE, to render once for many runs)."""
    import os

    if "SVTOOL_CACHE" not in os.environ:
        os.environ["SVTOOL_CACHE"] = str(tmp_path_factory.mktemp("cache"))


@pytest.fixture(scope="session", autouse=True)
def _ctrl_c_works() -> None:
    """A shell starts background jobs with SIGINT ignored, and children inherit that: the tests of Ctrl-C need it."""
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture(scope="session")
def tiny_assets() -> Assets:
    return find_assets("tiny")


@pytest.fixture
def in_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty working directory."""
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture(scope="session")
def tiny_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The embedded model, exported once for the whole run."""
    from svtool.export import ExportOptions, export

    folder = tmp_path_factory.mktemp("engines") / "tiny"
    export("tiny", folder, ExportOptions())
    return folder / "model.onnx"


@pytest.fixture(scope="session")
def tiny_int8(tiny_model: Path) -> Path:
    """The int8 plan of the embedded model, built beside it by TensorRT-RTX, with its ONNX twin."""
    pytest.importorskip("tensorrt_rtx")
    from svtool.build import BuildOptions, build

    return build(tiny_model, BuildOptions(precision="int8")).plan
