"""`svtool inspect`: what a file is, where it came from, what is wrong with it, and what to do with it next.

Reads anything svtool writes, folders of it, and foreign ONNX. Loads no runtime: a plan is described from its manifest,
a graph from itself. Knows nothing of how any of it is made.
"""

from __future__ import annotations

import json
import math
import os
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from svtool import __version__
from svtool import graph as graphs
from svtool.artifacts import ENGINES, MODEL_NAME
from svtool.errors import ArtifactError, counted
from svtool.flavor import CLASSIC, FLAVORS, RTX, RTX_PORTABLE, compute_capability
from svtool.inspect_facts import (
    calibration_findings,
    journal_facts,
    listed,
    mapping,
    parity_finding,
    search_facts,
)
from svtool.manifest import SCHEMA as MANIFEST_SCHEMA
from svtool.manifest import manifest_path, read_manifest, sha256_file
from svtool.modelfile import how_to_make
from svtool.onnxfacts import GraphFacts, read_facts
from svtool.probes import installed, rtx_runs_on
from svtool.progress import Progress, Silent
from svtool.search import SCHEMA as SEARCH_SCHEMA
from svtool.sections import size_words

SCHEMA = "svtool.inspect/1"
_CALIBRATION, WER_SCHEMA = "svtool.calibration/1", "svtool.validate-wer/1"
_LARGEST_JSON = 64 << 20
_WER_KEYS = (
    *("verdict", "drift_points", "ci_low", "ci_high", "budget", "disagreement", "sqnr_db"),
    *("metric", "utterances", "executed"),
)
CHECKPOINT = "model.pt"
# distributions that bring each library; Jetson's and the wheels' are both named `tensorrt`
_PACKAGES = {
    "tensorrt": ("tensorrt", "tensorrt-cu12", "tensorrt-cu13"),
    "tensorrt_rtx": ("tensorrt-rtx-cu12", "tensorrt-rtx-cu13", "tensorrt-rtx"),
}


@dataclass
class Inspection:
    """Everything found. `problems` make the command fail, `warnings` do not."""

    artifact: Path
    # model, twin, engine, plan, foreign-onnx, calibration, search, report, manifest, checkpoint, directory
    kind: str
    size_bytes: int | None = None
    sha256: str | None = None
    manifest: Mapping[str, Any] | None = None
    graph: GraphFacts | None = None
    calibration: Mapping[str, Any] | None = None
    report: Mapping[str, Any] | None = None
    search: Mapping[str, Any] | None = None  # of a searched engine, or of the journal of a search
    wer: list[dict[str, Any]] = field(default_factory=list)
    members: list[dict[str, Any]] = field(default_factory=list)
    files: dict[str, str | None] = field(default_factory=dict)  # of a checkpoint: name -> sha256
    problems: list[str] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)
    next: list[str] = field(default_factory=list)

    @property
    def exit_code(self) -> int:
        return 1 if self.problems else 0

    def to_json(self) -> dict[str, Any]:
        value = {"schema": SCHEMA} | {key: item for key, item in self.__dict__.items() if key != "graph"}
        value |= {"artifact": str(self.artifact), "precision": self.precision, "int8_share": self.int8_share}
        value["graph"] = _graph_json(self.graph) if self.graph is not None else None
        if self.calibration is not None:
            tables = ("amax", "absmax", "exponents", "audio_digests")
            value["calibration"] = {
                key: len(item) if key in tables and isinstance(item, dict | list) else item
                for key, item in self.calibration.items()
            }
        finite: dict[str, Any] = _finite(value)
        return finite

    @property
    def precision(self) -> str | None:
        """Of the graph where there is one: a manifest may be another file's."""
        if self.graph is not None:
            return self.graph.precision
        named = (self.manifest or {}).get("precision")
        return str(named) if named else None

    @property
    def int8_share(self) -> float | None:
        """0..1 of linear multiply-accumulates, as counted in the graph, else as the manifest says."""
        if self.graph is not None:
            return self.graph.int8_share
        share = (self.manifest or {}).get("int8_share")
        return float(share) if isinstance(share, int | float) else None


def inspect(path: Path, progress: Progress | None = None) -> Inspection:
    """Raises ArtifactError when the file is missing, unreadable or nothing that svtool knows."""
    progress = progress or Silent()
    if path.is_dir():
        return _inspect_folder(path, progress)
    if not path.is_file():
        raise ArtifactError(f"{path} does not exist: {how_to_make(path)}")
    if path.stat().st_size == 0:
        raise ArtifactError(f"{path} is empty (0 bytes): cut off or never written; make or copy it again")
    if path.suffix == ".json":
        return _inspect_json(path, progress)
    if path.suffix == ".plan":
        return _inspect_plan(path, progress)
    return _inspect_onnx(path, progress)


# --- one kind each -------------------------------------------------------------------------------


def _inspect_onnx(path: Path, progress: Progress) -> Inspection:
    if path.suffix != ".onnx":
        raise ArtifactError(
            f"{path} is nothing that svtool knows: it reads .onnx, .plan, its own .json files and folders of them"
        )
    progress.stage(f"reading {path.name}")
    found = Inspection(path, "foreign-onnx", graph=read_facts(path))
    _add_file(found, progress)
    assert found.graph is not None
    if found.manifest is not None:
        found.kind = _kind(found.manifest)
    elif any(key.startswith("svtool.") for key in found.graph.metadata):
        _judge_by_metadata(found, found.graph)
    _check_graph(found, found.graph)
    _check_manifest(found)
    if found.kind in ("twin", "engine"):
        _check_model_beside(found)
    _add_wer(found)
    found.next += _next_onnx(found)
    return found


def _inspect_plan(path: Path, progress: Progress) -> Inspection:
    found = Inspection(path, "plan")
    _add_file(found, progress)
    if found.manifest is None:
        found.warnings.append(
            f"{_no_manifest(path)}; a plan does not say what is in it, so nothing else is known, and svtool runs no "
            "plan without its manifest"
        )
        found.next.append("svtool build-trt MODEL  (writes plan and manifest)")
        return found
    _check_machine(found, found.manifest)
    _check_manifest(found)
    _check_twin(found, found.manifest)
    _check_model_beside(found)
    if not found.manifest.get("verified_on_gpu"):
        found.warnings.append("this plan has not been run on a GPU yet")
        found.next.append(f"svtool verify {path}  (on the GPU it is for)")
    _add_wer(found)
    if found.problems:
        found.next = [f"svtool build-trt {_model_of(found)} -o {path} {_precision_flags(found.precision)}"]
    elif not found.wer:
        found.next.append(f"svtool validate-wer {_model_of(found)} {path}{_data(found)}")
    return found


def _inspect_json(path: Path, progress: Progress) -> Inspection:
    raw = _read_json(path)
    schema = str(raw.get("schema", ""))
    if schema == MANIFEST_SCHEMA:
        if not isinstance(raw.get("sha256"), str):
            raise ArtifactError(f"{path} is damaged (it has no sha256): make it and its artifact again")
        artifact = path.with_suffix("")
        if artifact.is_file() and manifest_path(artifact) == path:
            return inspect(artifact, progress)
        described = read_manifest(artifact)
        found = Inspection(path, "manifest", manifest=described)
        found.warnings.append(
            f"{artifact.name}, which it describes, is not here: only the manifest could be read"
        )
        return found
    if schema == _CALIBRATION:
        return _inspect_calibration(path, raw)
    if schema == SEARCH_SCHEMA:
        return _inspect_journal(path, raw)
    if schema.startswith("svtool."):
        return _inspect_report(path, raw, schema)
    raise ArtifactError(
        f"{path} is no file of svtool: its schema is {schema or 'missing'}, expected {MANIFEST_SCHEMA}, {_CALIBRATION} "
        "or a report written with --json"
    )


def _inspect_calibration(path: Path, raw: dict[str, Any]) -> Inspection:
    from svtool.calibration import load_cache

    found = Inspection(path, "calibration", size_bytes=path.stat().st_size, sha256=sha256_file(path))
    found.calibration = raw
    found.warnings += calibration_findings(raw)
    model = path.parent / MODEL_NAME
    try:
        load_cache(path, str(raw.get("onnx_digest")))
    except ArtifactError as error:
        (found.problems if raw.get("tool") == __version__ else found.warnings).append(str(error))
    if model.is_file():
        digest = _manifest_or_none(model).get("onnx_digest")
        if digest not in (None, raw.get("onnx_digest")):
            found.warnings.append(f"it was calibrated for another model than {model}, which is beside it")
    if not found.problems:
        where = model if model.is_file() else "MODEL"
        found.next.append(f"svtool build-trt {where} --int8 --calibration {path}")
    return found


def _inspect_journal(path: Path, raw: dict[str, Any]) -> Inspection:
    """A search that was stopped, or found nothing: one that ends well takes its journal away."""
    if not isinstance(raw.get("entries"), Mapping):
        raise ArtifactError(
            f"{path} is damaged (it has no entries): remove it, and the search starts anew with  svtool build-trt "
            "MODEL --int8 --drift-budget POINTS"
        )
    found = Inspection(path, "search", size_bytes=path.stat().st_size, sha256=sha256_file(path))
    found.search = journal_facts(raw)
    plan = path.with_name(path.name.removesuffix(".json").removesuffix(".search") + ".plan")
    model = path.with_name(MODEL_NAME)
    found.warnings.append(f"the search for {plan.name} was stopped, or found no map within its budget")
    found.next.append(
        f"svtool build-trt {model if model.is_file() else 'MODEL'} --int8 --drift-budget POINTS -o {plan}  (the same "
        "command again goes on from here; with other limits or data it starts anew)"
    )
    return found


def _inspect_report(path: Path, raw: dict[str, Any], schema: str) -> Inspection:
    found = Inspection(path, "report", size_bytes=path.stat().st_size, sha256=sha256_file(path), report=raw)
    if schema != WER_SCHEMA:
        return found
    found.warnings += [str(one) for one in listed(raw.get("warnings"))]
    for role in ("baseline", "candidate"):
        side = mapping(raw.get(role))
        artifact = side.get("artifact")
        if not artifact:
            continue
        here = Path(str(artifact))
        if not here.is_file():
            found.warnings.append(f"the {role} {artifact} is not here any more")
        elif side.get("sha256") not in (None, sha256_file(here)):
            found.warnings.append(f"the {role} {artifact} has changed since: the report is of another file")
    if str(raw.get("verdict")) not in ("pass", "None"):
        found.warnings.append(f"its verdict is {raw['verdict']}")
    candidate, baseline = (
        _file_or(mapping(raw.get(role)).get("artifact"), role.upper()) for role in ("candidate", "baseline")
    )
    model = baseline if baseline != "BASELINE" else "MODEL"
    verdicts = {
        "pass": f"svtool serve {candidate}",
        "fail": f"svtool build-trt {model} --int8 --drift-budget POINTS  (finds what must stay in fp16)",
    }
    more = f"svtool validate-wer {baseline} {candidate} --data LIST  (with more utterances)"
    found.next.append(verdicts.get(str(raw.get("verdict")), more))
    return found


def _inspect_folder(path: Path, progress: Progress) -> Inspection:
    found = Inspection(path, "directory")
    files = list(_members(path))
    progress.stage(f"reading {path}", total=len(files))
    for file in files:
        found.members.append(_member(file, path))
        progress.advance()
    if (path / CHECKPOINT).is_file():
        found.kind = "checkpoint"
        _add_checkpoint(found)
    elif not found.members:
        raise ArtifactError(
            f"{path} holds no model, engine, calibration cache or report: make a model with  "
            f"svtool export SOURCE -o {path}"
        )
    for member in found.members:
        target = found.problems if member["state"] in ("damaged", "mismatch") else found.warnings
        if member["note"]:
            target.append(f"{member['name']}: {member['note']}")
    if len(found.members) > 0:
        found.next.append(f"svtool inspect {path / found.members[0]['name']}")
    return found


def _members(folder: Path) -> Iterator[Path]:
    """Artifacts, caches and reports here and one level below, models first; manifests stand with their artifacts."""
    files = [one for one in (*folder.glob("[!.]*"), *folder.glob("[!.]*/[!.]*")) if one.is_file()]
    wanted = [one for one in files if one.suffix in (".onnx", ".plan")]
    orphans = [
        one for one in files if one.suffix == ".json" and one.with_suffix("") not in wanted and _is_ours(one)
    ]
    order = {".onnx": 0, ".plan": 1, ".json": 2}
    yield from sorted(
        wanted + orphans,
        key=lambda one: (str(one.parent), one.name != MODEL_NAME, order[one.suffix], one.name),
    )


def _is_ours(path: Path) -> bool:
    try:
        return str(_read_json(path).get("schema", "")).startswith("svtool.")
    except ArtifactError:
        return False


def _member(file: Path, folder: Path) -> dict[str, Any]:
    """One line. Graphs are not read: a folder of engines would take minutes."""
    row: dict[str, Any] = {
        "name": str(file.relative_to(folder)),
        "kind": "plan" if file.suffix == ".plan" else "onnx",
        "precision": None,
        "size_bytes": file.stat().st_size,
        "state": "ok",
        "note": None,
    }
    if file.suffix == ".json":
        try:
            found = _inspect_json(file, Silent())
        except ArtifactError as error:
            return row | {"kind": "json", "state": "damaged", "note": str(error)}
        state = {"state": "damaged", "note": found.problems[0]} if found.problems else {}
        return row | {"kind": found.kind} | state
    if not manifest_path(file).is_file():
        return row | {"state": "no manifest", "note": "has no manifest" if file.suffix == ".plan" else None}
    try:
        described = read_manifest(file)
    except ArtifactError as error:
        return row | {"state": "damaged", "note": str(error)}
    row |= {"kind": _kind(described), "precision": described.get("precision")}
    if described.get("sha256") != sha256_file(file):
        row |= {"state": "mismatch", "note": "is not the file its manifest describes"}
    return row


def _add_checkpoint(found: Inspection) -> None:
    from svtool.assets import BPE_NAME, CHECKPOINT_NAME, CMVN_NAME, CONFIG_NAME

    for name in (CHECKPOINT_NAME, CONFIG_NAME, CMVN_NAME, BPE_NAME):
        file = found.artifact / name
        found.files[name] = sha256_file(file) if file.is_file() else None
        if found.files[name] is None:
            found.problems.append(f"the checkpoint has no {name}: svtool export cannot read it")
    if not found.problems:
        found.next.insert(0, f"svtool export {found.artifact}")


# --- what several kinds share --------------------------------------------------------------------


def _add_file(found: Inspection, progress: Progress) -> None:
    """Size, digest and manifest; a manifest that describes another file is a problem."""
    path = found.artifact
    progress.stage(f"checking {path.name}")
    found.size_bytes, found.sha256 = path.stat().st_size, sha256_file(path)
    if not manifest_path(path).is_file():
        return
    found.manifest = read_manifest(path)
    if found.manifest.get("sha256") != found.sha256:
        found.problems.append(
            f"{path} is not the file its manifest describes (sha256 {found.sha256[:12]}…, manifest "
            f"{str(found.manifest.get('sha256'))[:12]}…): cut off, damaged or replaced; make it again"
        )


def _kind(described: Mapping[str, Any]) -> str:
    """An ONNX engine is a twin where it stands beside a plan of its name."""
    if described.get("kind") == "model":
        return "model"
    if described.get("runtime") in {flavor.runtime for flavor in FLAVORS.values()}:
        return "plan"
    return "engine" if described.get("provider") or described.get("kind") == "ort-engine" else "twin"


def _no_manifest(path: Path) -> str:
    return f"its manifest {manifest_path(path).name} is missing"


def _manifest_or_none(path: Path) -> dict[str, Any]:
    try:
        return read_manifest(path)
    except ArtifactError:
        return {}


def _check_graph(found: Inspection, graph: GraphFacts) -> None:
    if graph.runs_problems:
        points = counted(len(graph.runs_problems), "point")
        found.warnings.append(f"svtool cannot run it: {points} of its contract not met, as said under Graph")
    elif graph.build_problem is not None and found.kind in ("model", "foreign-onnx") and not graph.dynamic:
        found.warnings.append(f"no engine can be built from it: {graph.build_problem}")
    if graph.dynamic:
        found.warnings.append(
            "it is dynamically quantized: TensorRT cannot build it, and its numbers depend on the CPU"
        )
    if graph.external and graph.external["missing"]:
        found.problems.append(
            f"its weights are in {', '.join(graph.external['missing'])}, which is not beside it: copy that file too"
        )
    named = (found.manifest or {}).get("precision")
    if named and named != graph.precision:
        found.warnings.append(f"its manifest says {named}, its graph is {graph.precision}")
    unlike_others = not graph.dynamic and graphs.PRECISION_KEY not in graph.metadata and graph.metadata
    if found.kind == "foreign-onnx" and unlike_others and found.manifest is None and not graph.runs_problems:
        found.warnings.append(_no_manifest(found.artifact))


def _judge_by_metadata(found: Inspection, graph: GraphFacts) -> None:
    """Without a manifest: ours only if it still is what our metadata says. Other tools copy metadata along."""
    claimed = graph.metadata.get(graphs.PRECISION_KEY, graph.precision)
    if graph.dynamic or claimed != graph.precision:
        found.warnings.append(
            f"another tool made it from a file of svtool: its metadata says {claimed}, its graph is {graph.precision}"
        )
        return
    beside = found.artifact.with_suffix(".plan").is_file()
    found.kind = "model" if graph.precision == "fp32" else "twin" if beside else "engine"
    found.warnings.append(_no_manifest(found.artifact))


def _check_manifest(found: Inspection) -> None:
    """What the build knew and its manifest kept: the calibration's warnings, how near float32 it is, the search."""
    described = found.manifest or {}
    found.search = search_facts(described)
    found.warnings += [
        f"its calibration: {one}" for one in calibration_findings(mapping(described.get("calibration")))
    ]
    if poor := parity_finding(described, found.precision):
        found.warnings.append(poor)
    if found.search is not None and found.search["verdict"] not in ("pass", None):
        found.warnings.append(
            f"its search ended {found.search['verdict']}: {'; '.join(found.search['reasons']) or 'no reason kept'}"
        )


def _check_machine(found: Inspection, described: Mapping[str, Any]) -> None:
    """Another TensorRT or GPU than here, as far as this machine can tell without loading either."""
    flavor = next((one for one in FLAVORS.values() if one.runtime == described.get("runtime")), None)
    if flavor is None:
        found.warnings.append(f"its runtime is {described.get('runtime')!r}, which is no TensorRT")
        return
    built = mapping(described.get("built_with")).get(flavor.runtime)
    here = installed(*_PACKAGES[flavor.runtime])
    if here is not None and built is not None and here != built:
        found.warnings.append(
            f"it was built with {flavor.title} {built}, here is {here}: it runs only with the version it was built with"
        )
    capability, wanted = compute_capability(), described.get("compute_capability")
    if capability is None:
        return
    if flavor is CLASSIC and capability != wanted:
        found.warnings.append(f"it was built for compute capability {wanted}, this GPU has {capability}")
    if flavor is RTX and not _covers(str(wanted), capability):
        found.warnings.append(
            f"it was built for {_portable_words(wanted)}, this GPU has compute capability {capability}"
        )


def _portable_words(wanted: Any) -> str:
    return f"compute capability {RTX_PORTABLE if wanted == 'portable' else wanted}"


def _covers(wanted: str, capability: str) -> bool:
    """Whether an RTX plan for `wanted`, "portable" or a list, runs on a GPU; 7.5 is covered on request only."""
    if wanted == "portable":
        return capability != "7.5" and rtx_runs_on(capability)
    return any(
        capability == one or (one.startswith("12") and capability.startswith("12."))
        for one in wanted.split(", ")
    )


def _check_twin(found: Inspection, described: Mapping[str, Any]) -> None:
    twin = found.artifact.with_name(str(described.get("twin", found.artifact.with_suffix(".onnx").name)))
    if not twin.is_file():
        found.warnings.append(f"its ONNX twin {twin.name} is missing: it cannot be checked without a GPU")
        return
    if described.get("twin_sha256") not in (None, sha256_file(twin)):
        found.problems.append(
            f"the ONNX twin {twin.name} beside it is another file than the one it was built with"
        )
        return
    found.next.append(f"svtool transcribe FILE -m {twin}  (the same text without a GPU)")


def _check_model_beside(found: Inspection) -> None:
    model = found.artifact.parent / str((found.manifest or {}).get("model", MODEL_NAME))
    wanted, here = (found.manifest or {}).get("onnx_digest"), _manifest_or_none(model).get("onnx_digest")
    if wanted and here and wanted != here:
        found.warnings.append(f"{model.name} beside it is another model than the one it was built from")


def _add_wer(found: Inspection) -> None:
    """Results in the manifest, and reports beside the file that judged exactly these bytes."""
    recorded = (found.manifest or {}).get("wer")
    if isinstance(recorded, Mapping) and recorded:
        found.wer.append({"from": "manifest"} | dict(recorded))
    for file in sorted(found.artifact.parent.glob("*.json")):
        try:
            raw = _read_json(file)
        except ArtifactError:
            continue
        side = mapping(raw.get("candidate"))
        if (
            raw.get("schema") == WER_SCHEMA
            and found.sha256 is not None
            and side.get("sha256") == found.sha256
        ):
            keys = _WER_KEYS
            found.wer.append({"from": file.name} | {key: raw.get(key) for key in keys})
    if any(one.get("verdict") == "fail" for one in found.wer):
        found.warnings.append("validate-wer has failed it")


def _next_onnx(found: Inspection) -> list[str]:
    path, graph = found.artifact, found.graph
    assert graph is not None
    if found.problems:
        return [f"svtool export SOURCE -o {path.parent} --force  and build again"]
    if found.kind == "model":
        return [f"svtool build-trt {path} --int8{_data(found)}", f"svtool transcribe FILE -m {path}"]
    if graph.runs_problems:
        return ["svtool export SOURCE  (SOURCE is a checkpoint folder, iic/SenseVoiceSmall, or tiny)"]
    if found.kind == "foreign-onnx" and graph.build_problem is None:
        return [f"svtool build-trt {path} --fp16", f"svtool transcribe FILE -m {path}"]
    if found.wer:
        return [f"svtool serve {path}"]
    return [f"svtool validate-wer {_model_of(found)} {path}{_data(found)}"]


def _model_of(found: Inspection) -> Path | str:
    """The model it was built from: beside it or under `engines/`, else the word for one. Only files that are there."""
    described = found.manifest or {}
    wanted = described.get("onnx_digest")
    beside = found.artifact.parent / str(described.get("model", MODEL_NAME))
    if beside.is_file() and beside != found.artifact:
        digest = _manifest_or_none(beside).get("onnx_digest")
        if None in (wanted, digest) or wanted == digest:
            return beside
    if wanted is not None:
        for model in sorted(ENGINES.glob(f"*/{MODEL_NAME}")):
            if _manifest_or_none(model).get("onnx_digest") == wanted:
                return model
    return "MODEL"


def _file_or(named: Any, word: str) -> str:
    return str(named) if named and Path(str(named)).is_file() else word


def _precision_flags(precision: str | None) -> str:
    flags = {"fp16": "--fp16", "int8": "--int8", "int8-weights": "--int8 --weight-only"}
    return flags.get(str(precision), " (add --int8 or --fp16, as it was)")


def _data(found: Inspection) -> str:
    """The embedded model brings its own lists."""
    name = mapping((found.manifest or {}).get("source")).get("name")
    if name is None and found.graph is not None:
        name = found.graph.metadata.get("svtool.source")
    return "" if name == "tiny" else " --data LIST"


# --- small things --------------------------------------------------------------------------------


def _read_json(path: Path) -> dict[str, Any]:
    if path.stat().st_size > _LARGEST_JSON:
        raise ArtifactError(f"{path} is too large for a file of svtool ({size_words(path.stat().st_size)})")
    try:
        raw = json.loads(path.read_text(encoding="utf-8"))
    except (ValueError, OSError, RecursionError) as error:
        raise ArtifactError(f"{path} is cut off or no JSON ({error}): make or copy it again") from error
    if not isinstance(raw, dict):
        raise ArtifactError(f"{path} is no file of svtool: it holds a {type(raw).__name__}, not an object")
    return raw


def _graph_json(graph: GraphFacts) -> dict[str, Any]:
    contract = {
        "runs": not graph.runs_problems,
        "problems": list(graph.runs_problems),
        "builds": graph.build_problem is None,
        "build_problem": graph.build_problem,
    }
    facts = {
        key: value for key, value in asdict(graph).items() if key not in ("runs_problems", "build_problem")
    }
    return facts | {"dynamic_quantization": graph.dynamic, "contract": contract}


def _finite(value: Any) -> Any:
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, Mapping):
        return {str(key): _finite(item) for key, item in value.items()}
    if isinstance(value, os.PathLike):
        return str(value)
    return [_finite(item) for item in value] if isinstance(value, list | tuple) else value
