from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from svtool.errors import ArtifactError
from svtool.manifest import (
    SCHEMA,
    manifest_path,
    read_manifest,
    rebuild_command,
    sha256_file,
    whole_file,
    write_json,
    write_manifest,
)


def test_a_manifest_names_its_artifact_and_digest(tmp_path: Path) -> None:
    artifact = tmp_path / "int8.plan"
    artifact.write_bytes(b"plan")
    write_manifest(artifact, {"kind": "engine"})
    assert manifest_path(artifact).name == "int8.plan.json"
    manifest = read_manifest(artifact)
    assert (manifest["artifact"], manifest["size_bytes"], manifest["kind"]) == ("int8.plan", 4, "engine")
    assert manifest["sha256"] == sha256_file(artifact)


ZEROS = "0" * 64
HEAD = f'{{"schema": "{SCHEMA}", "sha256": "{ZEROS}"'
DAMAGED = [
    *("", "{", "[]", '{"schema": "other/1"}', "\x00\x01", "[" * 100_000),
    f'{{"schema": "{SCHEMA}"}}',
    HEAD + ', "source": null}',
    HEAD + ', "tag_ids": 3}',
    HEAD + ', "runtime": []}',
]


@pytest.mark.parametrize("content", DAMAGED)
def test_a_damaged_manifest_is_named(tmp_path: Path, content: str) -> None:
    artifact = tmp_path / "model.onnx"
    manifest_path(artifact).write_text(content)
    with pytest.raises(ArtifactError, match=r"model\.onnx\.json .*svtool export .* --force"):
        read_manifest(artifact)


def test_a_missing_manifest_names_the_command(tmp_path: Path) -> None:
    with pytest.raises(ArtifactError, match="svtool export"):
        read_manifest(tmp_path / "model.onnx")


@pytest.mark.parametrize(
    ("name", "described", "wanted"),
    [
        ("model.onnx", {"kind": "model", "source": {"name": "tiny"}}, "svtool export tiny -o e --force"),
        ("model.onnx", {"kind": "model", "source": {"name": "my"}}, "svtool export SOURCE -o e --force"),
        ("model.onnx", None, "svtool export SOURCE -o e --force"),
        ("int8.onnx", None, "svtool build-trt MODEL --int8 -o e/int8.plan"),
        ("trunc.plan", None, "svtool build-trt MODEL -o e/trunc.plan  (add --int8 or --fp16, as it was)"),
        ("mine.onnx", None, "svtool build-ort MODEL -o e/mine.onnx  (add --int8 or --fp16, as it was)"),
        ("fp16.plan", {"kind": "engine", "precision": "fp16"}, "svtool build-trt e/model.onnx --fp16"),
        (
            "mine.onnx",
            {"kind": "engine", "precision": "int8", "model": "m.onnx"},
            "svtool build-trt e/m.onnx --int8 -o e/mine.plan",
        ),
    ],
)
def test_the_command_that_makes_it_again(name: str, described: dict[str, Any] | None, wanted: str) -> None:
    assert rebuild_command(Path("e") / name, described) == wanted


def test_a_failed_write_leaves_the_old_file_and_no_other(tmp_path: Path) -> None:
    path = tmp_path / "a.json"
    path.write_text("old")
    with pytest.raises(RuntimeError, match="stop"):
        _write_half(path)
    assert [one.name for one in tmp_path.iterdir()] == ["a.json"]
    assert path.read_text() == "old"


def _write_half(path: Path) -> None:
    with whole_file(path) as work:
        work.write_text("half")
        raise RuntimeError("stop")


def test_json_is_strict(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="JSON"):
        write_json(tmp_path / "a.json", {"x": float("nan")})
    assert list(tmp_path.iterdir()) == []
