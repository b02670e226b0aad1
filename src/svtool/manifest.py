"""The JSON sidecar of every artifact, and the one way to write a file whole or not at all.

Knows nothing of what the artifacts hold: each command puts its own facts in.
"""

from __future__ import annotations

import hashlib
import json
import os
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from datetime import datetime, timezone
from importlib import metadata
from pathlib import Path
from typing import Any

from svtool import __version__
from svtool.errors import ArtifactError

SCHEMA = "svtool.manifest/1"
_MODEL = "model.onnx"
_PRECISIONS = ("int8", "fp16", "fp32")
# of the fields that readers rely on; what a kind of artifact has on top is its writer's
_TYPES: dict[str, type] = {
    **dict.fromkeys(("artifact", "kind", "runtime", "precision", "model", "twin", "twin_sha256"), str),
    **dict.fromkeys(("source", "options", "built_with"), dict),
    "tag_ids": list,
}


def sha256_file(path: Path) -> str:
    digest = hashlib.sha256()
    with path.open("rb") as stream:
        while block := stream.read(1 << 20):
            digest.update(block)
    return digest.hexdigest()


def sha256_bytes(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


@contextmanager
def whole_file(path: Path) -> Iterator[Path]:
    """Yield a temporary path beside `path`; it takes the name on success and is removed on any failure."""
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, name = tempfile.mkstemp(prefix=f".{path.stem}-", suffix=path.suffix, dir=path.parent)
    os.close(handle)
    work = Path(name)
    try:
        yield work
        os.chmod(work, 0o666 & ~_umask())
        _flush(work)
        work.replace(path)
    finally:
        work.unlink(missing_ok=True)


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask


def _flush(path: Path) -> None:
    with path.open("rb") as stream:
        os.fsync(stream.fileno())


def write_json(path: Path, value: dict[str, Any]) -> None:
    with whole_file(path) as work:
        work.write_text(
            json.dumps(value, indent=2, ensure_ascii=False, allow_nan=False) + "\n", encoding="utf-8"
        )


def manifest_path(artifact: Path) -> Path:
    """`int8.plan` -> `int8.plan.json`."""
    return artifact.with_name(artifact.name + ".json")


def write_manifest(artifact: Path, manifest: dict[str, Any]) -> None:
    """Write the sidecar of a finished artifact; adds its name, digest, size and the time."""
    head = {
        "schema": SCHEMA,
        "artifact": artifact.name,
        "sha256": sha256_file(artifact),
        "size_bytes": artifact.stat().st_size,
        "created": datetime.now(timezone.utc).isoformat(timespec="seconds"),
    }
    write_json(manifest_path(artifact), head | manifest)


def read_manifest(artifact: Path) -> dict[str, Any]:
    """The sidecar of an artifact. Raises ArtifactError when it is missing, damaged or of another schema."""
    path = manifest_path(artifact)
    if not path.is_file():
        raise ArtifactError(
            f"{artifact} has no manifest ({path.name}): copy it there, or make both with  {rebuild_command(artifact)}"
        )
    try:
        manifest = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise ArtifactError(f"{path} cannot be read: {error.strerror}") from error
    except (ValueError, RecursionError) as error:
        raise _damaged(artifact, f"not JSON: {error}") from error
    if not isinstance(manifest, dict) or manifest.get("schema") != SCHEMA:
        found = manifest.get("schema") if isinstance(manifest, dict) else type(manifest).__name__
        raise ArtifactError(
            f"{path} has schema {found!r}, this svtool reads {SCHEMA!r}: make it and its artifact again with  "
            f"{rebuild_command(artifact)}"
        )
    _check_fields(artifact, manifest)
    return manifest


def _check_fields(artifact: Path, manifest: dict[str, Any]) -> None:
    digest = manifest.get("sha256")
    if not isinstance(digest, str) or len(digest) != 64:
        raise _damaged(artifact, f"its sha256 is {digest!r}")
    for name, kind in _TYPES.items():
        if name in manifest and not isinstance(manifest[name], kind):
            raise _damaged(artifact, f"its {name} is {manifest[name]!r}")


def _damaged(artifact: Path, why: str) -> ArtifactError:
    return ArtifactError(
        f"{manifest_path(artifact)} is damaged ({why}): make it and its artifact again with  "
        f"{rebuild_command(artifact)}"
    )


def check_digest(artifact: Path, wanted: str | None, described: Mapping[str, Any] | None = None) -> None:
    """Raise ArtifactError unless the file is the one its manifest describes. `None` = nothing is known of it.

    `described`: the manifest, for the command that makes the artifact again.
    """
    if wanted is not None and (not artifact.is_file() or sha256_file(artifact) != wanted):
        raise ArtifactError(
            f"{artifact} is not the file its manifest describes (another sha256: cut off, damaged or replaced): "
            f"make it again with  {rebuild_command(artifact, described)}"
        )


def rebuild_command(artifact: Path, described: Mapping[str, Any] | None = None) -> str:
    """The command that makes an artifact again, as well as its name and manifest tell."""
    described, folder = described or {}, artifact.parent
    if described.get("kind", "model" if artifact.name == _MODEL else "engine") == "model":
        name = str(described.get("source", {}).get("name", "SOURCE"))
        # other names are those of folders, and where they lay is not known
        return f"svtool export {name if name == 'tiny' else 'SOURCE'} -o {folder} --force"
    named = next((one for one in _PRECISIONS if one in artifact.stem), "")
    precision = str(described.get("precision", named))
    # without a manifest the model it was built from is known only where one lies beside it
    known = bool(described) or (folder / _MODEL).is_file()
    model = str(folder / str(described.get("model", _MODEL))) if known else "MODEL"
    output = "" if known and artifact.stem == precision else f" -o {artifact.with_suffix('.plan')}"
    if not precision:
        command = "build-trt" if artifact.suffix == ".plan" else "build-ort"
        return f"svtool {command} {model} -o {artifact}  (add --int8 or --fp16, as it was)"
    if described.get("options", {}).get("command") == "build-ort" or artifact.stem.startswith("ort-"):
        flags = "" if precision == "fp32" else f" --{precision}"
        device = " --device cuda" if described.get("provider") == "cuda" else ""
        output = "" if known and artifact.stem == f"ort-{precision}" else f" -o {artifact}"
        return f"svtool build-ort {model}{flags}{device}{output}"
    flags = {"int8-weights": "--int8 --weight-only"}.get(precision, f"--{precision}")
    return f"svtool build-trt {model} {flags}{output}"


def versions(*distributions: str) -> dict[str, str]:
    """Installed versions of the distributions named, svtool and Python first; absent ones are left out."""
    import platform

    found = {"svtool": __version__, "python": platform.python_version()}
    for name in distributions:
        try:
            found[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    return found
