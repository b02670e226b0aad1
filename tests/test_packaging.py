from __future__ import annotations

import subprocess
import sys
import zipfile
from pathlib import Path

import pytest
from packaging.requirements import Requirement

from svtool import assets, tiny

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

ROOT = Path(__file__).parent.parent
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
EXTRAS = PROJECT["optional-dependencies"]
EVERY = [
    Requirement(one) for one in PROJECT["dependencies"] + [one for some in EXTRAS.values() for one in some]
]


@pytest.mark.case("P6", "W4")
@pytest.mark.parametrize("requirement", EVERY, ids=str)
def test_every_dependency_has_an_upper_bound(requirement: Requirement) -> None:
    if requirement.name in ("pycuda", "types-PyYAML"):  # calendar versions: no number says "breaking"
        return
    assert any(one.operator in ("<", "<=", "==") for one in requirement.specifier)


@pytest.mark.case("P2", "P3", "P7")
def test_the_base_install_names_no_heavy_library() -> None:
    names = {Requirement(one).name for one in PROJECT["dependencies"]}
    assert not names & {
        "torch",
        "torchaudio",
        "tensorrt",
        "tensorrt-rtx-cu12",
        "gradio",
        "fastapi",
        "funasr",
        "pycuda",
    }


@pytest.mark.case("P3")
def test_jetson_versions_are_admitted() -> None:
    (trt,) = (Requirement(one) for one in EXTRAS["trt"] if one.startswith("tensorrt"))
    assert trt.specifier.contains("10.3.0")
    assert PROJECT["requires-python"] == ">=3.10"


@pytest.mark.parametrize(("platform", "machine", "chosen"), [
    ("linux", "x86_64", "onnxruntime-gpu"), ("linux", "aarch64", "onnxruntime"), ("darwin", "arm64", "onnxruntime"),
    ("win32", "AMD64", "onnxruntime"),
])  # fmt: skip
def test_one_onnxruntime_per_platform(platform: str, machine: str, chosen: str) -> None:
    surroundings = {"sys_platform": platform, "platform_machine": machine}
    named = [
        one.name
        for one in map(Requirement, PROJECT["dependencies"])
        if one.name.startswith("onnxruntime") and one.marker is not None and one.marker.evaluate(surroundings)
    ]
    assert named == [chosen]


def test_the_embedded_model_is_small_and_complete() -> None:
    names = (
        assets.CHECKPOINT_NAME,
        assets.CONFIG_NAME,
        assets.CONFIGURATION_NAME,
        assets.CMVN_NAME,
        assets.BPE_NAME,
    )
    assert sum((tiny.MODEL_DIR / name).stat().st_size for name in names) <= 6_000_000
    for name in ("NOTICE", "MODEL_CARD.md"):
        assert (tiny.MODEL_DIR / name).is_file()


def test_the_wheel_carries_the_model_and_its_notice(tmp_path: Path) -> None:
    subprocess.run(
        [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(tmp_path)],
        cwd=ROOT,
        check=True,
        capture_output=True,
    )
    (wheel,) = tmp_path.glob("*.whl")
    names = zipfile.ZipFile(wheel).namelist()
    assert "svtool/tiny_model/model.pt" in names
    assert "svtool/py.typed" in names
    assert {"svtool/wer/page.css", "svtool/wer/schema.json"} <= set(names)
    assert sum(name.endswith(".g722") for name in names) == 281
    assert any(name.endswith("licenses/LICENSE") for name in names)
    assert any(name.endswith("tiny_model/NOTICE") for name in names)
