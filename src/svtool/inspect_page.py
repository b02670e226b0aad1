"""An inspection for people: titled rows of what was found. Knows no files."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from svtool.errors import counted
from svtool.flavor import RTX_PORTABLE
from svtool.inspect import CHECKPOINT, WER_SCHEMA, Inspection
from svtool.inspect_facts import listed, mapping, number, quantity
from svtool.onnxfacts import GraphFacts
from svtool.sections import Row, Section, page, size_words

if TYPE_CHECKING:
    from rich.text import Text

_LISTED = 3  # layers named before the rest is counted


def render(found: Inspection, width: int) -> Text:
    described = found.manifest or {}
    sections = [
        Section(f"{found.artifact}: {_kind_words(found)}", tuple(_file_rows(found))),
        Section("Files", tuple(_member_rows(found))),
        Section("Graph", tuple(_graph_rows(found, found.graph)) if found.graph is not None else ()),
        Section("Precision", tuple(_precision_rows(found))),
        Section("Profiles", tuple(_profile_rows(described))),
        Section("Provenance", tuple(_provenance_rows(found))),
        Section("Calibration", tuple(_calibration_rows(found.calibration or described.get("calibration")))),
        Section("Search", tuple(_search_rows(found))),
        Section("Accuracy", tuple(_accuracy_rows(found))),
        Section("Report", tuple(_report_rows(found.report or {}))),
    ]
    marked = any(row.level in ("bad", "warn") for section in sections for row in section.rows)
    sections += [
        Section("Findings", tuple(_finding_rows(found, marked))),
        Section("Next", tuple(Row("", command) for command in found.next)),
    ]
    return page(sections, width)


_KIND_WORDS = {
    "model": "float32 model",
    "twin": "ONNX engine (twin of a plan)",
    "engine": "ONNX Runtime engine",
    "plan": "TensorRT plan",
    "foreign-onnx": "ONNX from elsewhere",
    "calibration": "calibration cache",
    "search": "journal of a precision search",
    "checkpoint": "checkpoint folder",
    "directory": "folder",
}


# as members of a folder; others are their kind
_NOUNS = {
    "onnx": "ONNX file",
    "engine": "ONNX Runtime engine",
    "calibration": "calibration cache",
    "search": "search journal",
    "manifest": "lone manifest",
    "json": "damaged JSON file",
}


def _kind_words(found: Inspection) -> str:
    words = _KIND_WORDS.get(found.kind, found.kind)
    dynamic = found.graph is not None and found.graph.dynamic
    return f"{words}, dynamically quantized" if dynamic else words


def _digest(value: Any) -> str:
    """The start of a digest; files come from outside, so there may be none."""
    return f"{value[:16]}…" if isinstance(value, str) and value else "not recorded"


def _file_rows(found: Inspection) -> Iterator[Row]:
    if found.size_bytes is not None:
        yield Row("size", size_words(found.size_bytes))
    if found.sha256 is not None:
        state = ""
        if found.manifest is not None:
            state = (
                ", as its manifest says"
                if found.manifest.get("sha256") == found.sha256
                else ", NOT as its manifest says"
            )
        yield Row("sha256", f"{_digest(found.sha256)}{state}")
    described = found.manifest or {}
    if "runtime" in described:
        yield Row("runs in", f"{described['runtime']}, head {described.get('head', 'not known')}")
    if "created" in described:
        yield Row("made", str(described["created"]))
    if found.members:
        yield Row("holds", _counted(found.members))
    for name, digest in found.files.items():
        yield Row(name, f"sha256 {_digest(digest)}" if digest else "missing", "plain" if digest else "bad")


def _member_rows(found: Inspection) -> Iterator[Row]:
    for member in found.members:
        facts = [member["kind"], member["precision"], size_words(member["size_bytes"]), member["state"]]
        level = {"ok": "good", "no manifest": "warn"}.get(member["state"], "bad")
        yield Row("", f"{member['name']}: {', '.join(filter(None, facts))}", level)


def _graph_rows(found: Inspection, graph: GraphFacts) -> Iterator[Row]:
    for problem in graph.runs_problems:
        yield Row("contract", f"not met: {problem}", "bad")
    if not graph.runs_problems:
        yield Row("contract", f"met, {graph.head} head: svtool runs it", "good")
    if graph.build_problem is None:
        yield Row("engines", "can be built from it", "good")
    elif found.kind not in ("twin", "engine"):
        yield Row("engines", f"cannot be built from it: {graph.build_problem}")
    for name, words in graph.inputs.items():
        yield Row("input", f"{name} {words}")
    for name, words in graph.outputs.items():
        yield Row("output", f"{name} {words}")
    opsets = ", ".join(f"{domain} {version}" for domain, version in graph.opset.items())
    yield Row("format", f"opset {opsets}, IR version {graph.ir_version}, {counted(graph.nodes, 'node')}")
    yield Row("producer", graph.producer)
    weights = f"{size_words(graph.weight_bytes)} of weights"
    yield Row(
        "weights", weights + (f" in {', '.join(graph.external['files'])}" if graph.external else " inside")
    )


def _precision_rows(found: Inspection) -> Iterator[Row]:
    graph, described = found.graph, found.manifest or {}
    if found.precision is not None:
        source = "read from the graph" if graph is not None else "as its manifest says"
        yield Row("precision", f"{found.precision} ({source})")
    if graph is not None and graph.linears:
        yield Row("linear layers", ", ".join(f"{count} {kind}" for kind, count in graph.linears.items()))
        if graph.dynamic:
            yield Row("quantized", "dynamically", "warn")
    if found.int8_share is not None and found.precision != "fp32":
        yield Row("int8 share", f"{100 * found.int8_share:.1f} % of linear multiply-accumulates")
    layers = mapping(described.get("precision_map"))
    for kind, names in layers.items():
        if isinstance(names, list) and names:
            more = f" and {len(names) - _LISTED} more" if len(names) > _LISTED else ""
            yield Row(f"map {kind}", f"{len(names)}: {', '.join(map(str, names[:_LISTED]))}{more}")


def _profile_rows(described: Mapping[str, Any]) -> Iterator[Row]:
    estimates = mapping(described.get("estimated_bytes"))
    for profile in listed(described.get("profiles")):
        facts = mapping(profile)
        name = f"{facts.get('batch')}:{facts.get('seconds', 0):g}"
        size = facts.get("estimated_bytes", estimates.get(name))
        memory = (
            f"about {size_words(size)} of GPU memory per context"
            if isinstance(size, int)
            else "memory not estimated"
        )
        batch = quantity(facts.get("batch"), "utterance")
        yield Row(name, f"up to {batch} of {facts.get('seconds', 0):g} s, {memory}")


def _provenance_rows(found: Inspection) -> Iterator[Row]:
    described = found.manifest or {}
    source = mapping(described.get("source"))
    kept = found.graph.metadata if found.graph is not None else {}
    name = source.get("name", kept.get("svtool.source"))
    if name:
        revision = source.get("revision")
        yield Row("source", f"{name}{f', revision {revision}' if revision else ''}")
    checkpoint = mapping(source.get("files")).get(CHECKPOINT, kept.get("svtool.checkpoint_sha256"))
    if checkpoint:
        yield Row("checkpoint", f"sha256 {_digest(checkpoint)}")
    if "onnx_digest" in described:
        yield Row("model digest", _digest(described["onnx_digest"]))
    options = mapping(described.get("options")) or {
        key.removeprefix("svtool.export."): value
        for key, value in kept.items()
        if key.startswith("svtool.export.")
    }
    if options:
        yield Row("options", _scalars(options))
    if "compute_capability" in described:
        wanted = described["compute_capability"]
        words = (
            f"portable over compute capability {RTX_PORTABLE}"
            if wanted == "portable"
            else f"compute capability {wanted}"
        )
        yield Row("built for", words)
    if "built_with" in described:
        yield Row(
            "built with",
            ", ".join(f"{key} {value}" for key, value in mapping(described["built_with"]).items()),
        )


def _calibration_rows(calibration: Any) -> Iterator[Row]:
    facts = mapping(calibration)
    if not facts:
        return
    digest = f", digest {_digest(facts['list_digest'])}" if facts.get("list_digest") else ""
    yield Row("list", f"{facts.get('list_name') or 'not recorded'}{digest}")
    points = f" {facts['percentile']}" if facts.get("percentile") is not None else ""
    smooth = f", smoothed by {facts['smooth']}" if facts.get("smooth") else ""
    yield Row("method", f"{facts.get('method')}{points}{smooth}")
    skipped = ", ".join(f"{count} {why}" for why, count in mapping(facts.get("skipped")).items())
    yield Row(
        "utterances",
        f"{facts.get('used', 'not known how many')} used, {quantity(facts.get('frames'), 'frame')}, "
        f"skipped: {skipped or 'none'}",
    )
    if languages := mapping(facts.get("languages")):
        yield Row("languages", ", ".join(f"{name} {count}" for name, count in languages.items()))
    if ranges := mapping(facts.get("amax")):
        values = [value for value in ranges.values() if isinstance(value, int | float)]
        span = f", {min(values):.3g} to {max(values):.3g}" if values else ""
        yield Row("ranges", f"{counted(len(ranges), 'tensor')}{span}")
    sqnr = mapping(facts.get("sqnr"))
    if isinstance(sqnr.get("db"), int | float):
        groups = mapping(sqnr.get("groups"))
        each = "".join(
            f", {name} {value:.1f}" for name, value in groups.items() if isinstance(value, int | float)
        )
        yield Row("SQNR", f"{sqnr['db']:.1f} dB with all linears int8{each}")
    if "onnx_digest" in facts:
        yield Row("for the model", _digest(facts["onnx_digest"]))


def _search_rows(found: Inspection) -> Iterator[Row]:
    facts = found.search or {}
    if not facts:
        return
    if found.kind == "search":
        yield from _journal_rows(facts)
        return
    limits = [
        words
        for key, words in (
            ("budget", "drift of {:g} points"),
            ("max_disagreement", "disagreement of {:g} %"),
            ("min_sqnr_db", "SQNR from {:g} dB"),
        )
        if (value := facts[key]) is not None
        for words in [words.format(value)]
    ]
    yield Row(
        "allowed", f"{', '.join(limits) or 'not recorded'}, on {facts['data'] or 'a list not recorded'}"
    )
    groups = facts["fp16"]
    yield Row(
        "back in fp16", f"{counted(len(groups), 'group')}: {'; '.join(groups)}" if groups else "nothing"
    )
    yield Row(
        "tried", f"{counted(facts['measured'], 'measurement')}, {facts['kept_within']} within the budget"
    )
    if facts["ranges_db"] is not None and facts["max_ranges_db"] is not None:
        mine, plain = facts["ranges_db"], facts["max_ranges_db"]
        yield Row("its ranges", f"{mine:.1f} dB with this map, plain max ranges {plain:.1f} dB")


def _journal_rows(facts: Mapping[str, Any]) -> Iterator[Row]:
    yield Row("baseline", f"{counted(facts['baseline'], 'answer')} of the float32 model kept")
    outcomes = ", ".join(f"{count} {verdict}" for verdict, count in facts["verdicts"].items())
    maps = counted(facts["maps"], "precision map")
    yield Row(
        "measured",
        f"{maps} in {counted(facts['measured'], 'measurement')}{f': {outcomes}' if outcomes else ''}",
    )
    if best := facts["best"]:
        yield Row("best", f"{_drift_words(best)} ({best['on']})", _level(best))
        for reason in best["reasons"]:
            yield Row("reason", reason)
    for index, (name, decibels) in enumerate(facts["ranking_db"].items()):
        yield Row(
            "ranking" if index == 0 else f"  {index + 1}", f"{decibels:.1f} dB with {name} alone in int8"
        )


def _level(result: Mapping[str, Any]) -> str:
    return {"pass": "good", "fail": "bad"}.get(str(result.get("verdict")), "warn")


def _accuracy_rows(found: Inspection) -> Iterator[Row]:
    described = found.manifest or {}
    parity = mapping(described.get("parity"))
    if parity:
        against = "PyTorch" if described.get("kind") == "model" else "the float32 model"
        sqnr = "equal" if parity.get("sqnr_db") is None else f"SQNR {parity['sqnr_db']:.1f} dB"
        yield Row(
            "parity",
            f"against {against}: {sqnr}, argmax {parity.get('argmax_agreement', 0):.2f} % (random features)",
        )
    for one in found.wer:
        yield Row("drift", f"{_drift_words(one)} ({one['from']})", _level(one))
    if found.search and found.kind != "search":
        words = f"its search, on the {found.search['on'] or 'graph'}, over the list it chose by"
        yield Row("drift", f"{_drift_words(found.search)} ({words})", _level(found.search))
    elif not found.wer and found.kind in ("plan", "twin", "engine"):
        yield Row("drift", "not measured")
    if found.kind == "plan" and found.manifest is not None:
        checked = mapping(described.get("verification"))
        words = (
            f"yes{': ' if checked else ''}{_scalars(checked)}" if described.get("verified_on_gpu") else "no"
        )
        yield Row("run on a GPU", words)


def _drift_words(report: Mapping[str, Any]) -> str:
    words = [str(report.get("verdict", "")).upper()]
    drift, low, high = (report.get(key) for key in ("drift_points", "ci_low", "ci_high"))
    if isinstance(drift, int | float):
        between = (
            f" ({low:+.2f} to {high:+.2f})" if number(low) is not None and number(high) is not None else ""
        )
        words.append(f"{drift:+.2f} points{between}")
    for key, unit in (
        ("budget", "points budget"),
        ("disagreement", "% disagreement"),
        ("sqnr_db", "dB SQNR"),
    ):
        if isinstance(report.get(key), int | float):
            words.append(f"{report[key]:.4g} {unit}")
    if report.get("utterances"):
        words.append(quantity(report["utterances"], "utterance"))
    if report.get("executed") is False:
        words.append("on the twin, the plan itself did not run")
    return ", ".join(filter(None, words))


def _report_rows(report: Mapping[str, Any]) -> Iterator[Row]:
    if not report:
        return
    yield Row("schema", str(report.get("schema")))
    if report.get("schema") != WER_SCHEMA:
        for key, value in report.items():
            if isinstance(value, str | int | float) and key != "schema":
                yield Row(key, str(value))
        return
    yield Row("verdict", _drift_words(report), _level(report))
    for reason in listed(report.get("reasons")):
        yield Row("reason", str(reason))
    for role in ("baseline", "candidate"):
        side = mapping(report.get(role))
        rate = side.get("rate_percent")
        shown = f", {report.get('metric')} {rate:.2f} %" if isinstance(rate, int | float) else ""
        yield Row(role, f"{side.get('artifact') or side.get('name')}, {side.get('provider')}{shown}")
    if data := mapping(report.get("data")):
        yield Row("data", _scalars(data))


def _finding_rows(found: Inspection, marked: bool) -> Iterator[Row]:
    for problem in found.problems:
        yield Row("", problem, "bad")
    for warning in found.warnings:
        yield Row("", warning, "warn")
    if not found.problems and not found.warnings:
        yield Row(
            "",
            "nothing beside what is marked above" if marked else "nothing to report",
            "plain" if marked else "good",
        )


def _counted(members: Sequence[Mapping[str, Any]]) -> str:
    counts = Counter(str(member["kind"]) for member in members)
    return ", ".join(counted(count, _NOUNS.get(kind, kind)) for kind, count in counts.items())


def _scalars(values: Mapping[str, Any]) -> str:
    kept = ((key, value) for key, value in values.items() if isinstance(value, str | int | float))
    return ", ".join(
        f"{key} {'yes' if value is True else 'no' if value is False else value}" for key, value in kept
    )
