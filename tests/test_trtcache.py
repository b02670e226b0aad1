"""The text format of other tools: what is written comes back, and nothing else gets in."""

from __future__ import annotations

from pathlib import Path

import pytest

from svtool import trtcache
from svtool.errors import ArtifactError

HEADER = "TRT-8501-EntropyCalibration2"


def read(tmp_path: Path, *lines: str, header: str = HEADER, end: str = "\n") -> dict[str, float]:
    path = tmp_path / "foreign.cache"
    path.write_bytes((end.join([header, *lines]) + end).encode())
    return trtcache.read(path)


def test_ranges_come_back_as_float32_scales(tmp_path: Path) -> None:
    amax = {"a": 127.0, "encoder/layer.0:x": 0.31, "name: with colon": 1e-3, "ünï": 6e4}
    trtcache.write(tmp_path / "own.cache", amax)
    assert trtcache.read(tmp_path / "own.cache") == pytest.approx(amax, rel=1e-7)
    assert (tmp_path / "own.cache").read_text(encoding="utf-8").splitlines()[:2] == [HEADER, "a: 3f800000"]


@pytest.mark.parametrize("header", [HEADER, "TRT-101600-MinMaxCalibration", "TRT-7103-EntropyCalibration"])
@pytest.mark.parametrize("end", ["\n", "\r\n"])
def test_other_writers_are_understood(tmp_path: Path, header: str, end: str) -> None:
    lines = ["images: 3C010A14", "(Unnamed Layer* 12) [Constant]_output: 3f800000", ""]
    found = read(tmp_path, *lines, header=header, end=end)
    assert found["(Unnamed Layer* 12) [Constant]_output"] == 127.0
    assert found["images"] == pytest.approx(1.00024412, rel=1e-7)


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("x: 7fc00000", "the scale of 'x' is nan"),
        ("x: 7f800000", "the scale of 'x' is inf"),
        ("x: bf800000", "the scale of 'x' is -1"),
        ("x: 00000000", "the scale of 'x' is 0"),
        ("x: 80000000", "the scale of 'x' is -0"),
        ("x: 3c010a1g", "expected 8 hexadecimal digits"),
        ("x: 0x3c010a", "expected 8 hexadecimal digits"),
        ("x: 3c01", "expected 8 hexadecimal digits"),
        ("x: 3c010a1400", "expected 8 hexadecimal digits"),
        ("x: 0.0078", "expected 8 hexadecimal digits"),
        ("x: 3c010a14 7", "is not `tensor: scale`"),
        ("x:", "expected 8 hexadecimal digits"),
        ("encoder.enc", "is not `tensor: scale`"),
        ("good: 3f800000", "'good' has a scale already"),
    ],
)
def test_bad_lines_are_named_by_number(tmp_path: Path, line: str, words: str) -> None:
    with pytest.raises(ArtifactError, match=rf"foreign\.cache, line 3: .*{words}"):
        read(tmp_path, "good: 3f800000", line, "later: 3f800000")


@pytest.mark.parametrize("header", ["", "{", "svtool.calibration/1", "TRT-8501", "\x00\x01", "a: 3f800000"])
def test_other_files_are_refused(tmp_path: Path, header: str) -> None:
    with pytest.raises(
        ArtifactError, match=r"line 1: .* is not the first line of a TensorRT calibration cache"
    ):
        read(tmp_path, "a: 3f800000", header=header)


def test_missing_and_binary_files_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ArtifactError, match="does not exist"):
        trtcache.read(tmp_path / "none")
    (tmp_path / "binary").write_bytes(b"\xff\xfe\x00TRT")
    with pytest.raises(ArtifactError, match="is not a text file"):
        trtcache.read(tmp_path / "binary")


@pytest.mark.parametrize("value", [0.0, -1.0, float("nan"), float("inf"), 1e300, 1e-60])
def test_what_is_no_scale_is_not_written(tmp_path: Path, value: float) -> None:
    with pytest.raises(ArtifactError, match="cannot be written"):
        trtcache.write(tmp_path / "own.cache", {"good": 1.0, "bad": value})
    assert not list(tmp_path.iterdir())


def test_a_name_that_would_break_the_lines_is_not_written(tmp_path: Path) -> None:
    with pytest.raises(ArtifactError, match="cannot be written"):
        trtcache.write(tmp_path / "own.cache", {"two\nlines": 1.0})
