"""Which artifact a command means when none is named: the newest one under `engines/` that this machine can run."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from svtool.errors import ArtifactError
from svtool.manifest import manifest_path, read_manifest
from svtool.modelfile import SOURCES
from svtool.progress import Progress

ENGINES = Path("engines")
MODEL_NAME = "model.onnx"
TINY_MODEL = ENGINES / "tiny" / MODEL_NAME
TINY_NOTE = (
    "note: `tiny` is the embedded demonstration model (one speaker, few words); "
    "for the real one:  svtool export iic/SenseVoiceSmall"
)


def runs_here(manifest: dict[str, Any]) -> bool:
    """ONNX artifacts run anywhere; plans only where a CUDA device answers."""
    if manifest.get("runtime") == "onnxruntime":
        return True
    from svtool.flavor import cuda_device_count

    return cuda_device_count() > 0


def listed(folder: Path) -> list[tuple[Path, dict[str, Any]]]:
    """Every artifact with a readable manifest in `folder` and one level below, newest first."""
    found = []
    for path in [*folder.glob("*.json"), *folder.glob("*/*.json")]:
        artifact = path.with_suffix("")
        if artifact.suffix in (".onnx", ".plan") and artifact.is_file() and manifest_path(artifact) == path:
            found.append((artifact, read_manifest(artifact)))
    return sorted(found, key=lambda pair: (pair[0].stat().st_mtime_ns, pair[0].name), reverse=True)


def default_artifact(folder: Path = ENGINES) -> Path:
    """The newest artifact under `folder` whose runtime starts here. Raises ArtifactError when there is none."""
    for artifact, manifest in listed(folder):
        if runs_here(manifest):
            return artifact
    raise ArtifactError(f"no model or engine under {folder}/: make one with  svtool export SOURCE  {SOURCES}")


def artifact_file(artifact: Path) -> Path:
    """A directory means its `model.onnx` where it has one."""
    return artifact / MODEL_NAME if (artifact / MODEL_NAME).is_file() else artifact


def choose(named: Path | None, progress: Progress) -> Path:
    """The artifact named, else the default one, which is then named on stderr."""
    if named is not None:
        file = artifact_file(named)
        if file.suffix == ".onnx" and file.is_file() and not manifest_path(file).is_file():
            progress.note(
                f"note: {file} has no manifest ({manifest_path(file).name}): whether it is whole cannot be checked"
            )
        return named
    artifact = default_artifact()
    progress.note(f"using {artifact}")
    if is_tiny(artifact):
        progress.note(TINY_NOTE)
    return artifact


def is_tiny(artifact: Path) -> bool:
    """Whether the artifact comes from the embedded demonstration model."""
    path = manifest_path(artifact)
    return path.is_file() and read_manifest(artifact).get("source", {}).get("name") == "tiny"
