"""A diagnosis for people: titled rows of what was tried, and the verdicts last. Tries nothing."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from svtool import __version__
from svtool.doctor import (
    BASE,
    EXPORT,
    SERVE,
    Diagnosis,
    Facts,
    flavor_problem,
    int8_words,
    no_gpu,
    path_words,
)
from svtool.errors import counted
from svtool.sections import Row, Section, page, size_words

if TYPE_CHECKING:
    from rich.text import Text


def render(diagnosis: Diagnosis, width: int) -> Text:
    facts = diagnosis.facts
    sections = (
        Section("Machine", tuple(_machine_rows(facts))),
        Section("Libraries", tuple(_library_rows(facts))),
        Section("ONNX Runtime", tuple(_provider_rows(diagnosis))),
        Section("TensorRT", tuple(_tensorrt_rows(facts))),
        Section("CUDA", tuple(_cuda_rows(facts))),
        Section("Audio", tuple(_audio_rows(facts))),
        Section("Notes", tuple(Row("", note, "warn") for note in diagnosis.notes)),
        Section("Commands", tuple(_verdict_rows(diagnosis))),
    )
    return page(sections, width)


def _machine_rows(facts: Facts) -> Iterator[Row]:
    machine = facts.machine
    yield Row("svtool", f"{__version__}, Python {machine['python']}, {machine['system']}")
    memory = machine["memory_bytes"]
    words = (
        f", {size_words(memory)} of memory, {size_words(machine['memory_available_bytes'])} free"
        if memory
        else ""
    )
    yield Row("processor", f"{counted(machine['cpus'] or 0, 'CPU')}{words}")
    yield Row(
        "int8 on it", f"{int8_words(facts.cpu_flags)} ({', '.join(facts.cpu_flags) or 'no flags known'})"
    )
    for folder, free in machine["disks"].items():
        yield Row("free disk", f"{size_words(free) if free is not None else 'not known'} at {folder}")
    problem = machine["temp"]
    yield Row("temp folder", problem or "can be written", "bad" if problem else "good")


def _library_rows(facts: Facts) -> Iterator[Row]:
    """A line for each group, and one for each library that should be there or does not load."""
    for title, names in (("base", BASE), ("export", EXPORT), ("serve", SERVE)):
        found = {name: facts.libraries[name] for name in names}
        works = [f"{name} {one['version']}" for name, one in found.items() if not one.get("error")]
        absent = [
            name for name, one in found.items() if one.get("error") == "not installed" and names is not BASE
        ]
        if works or absent:
            missing = [f"not installed: {', '.join(absent)}"] if absent else []
            yield Row(title, "; ".join([", ".join(works) or "none", *missing]))
        for name, one in found.items():
            if one.get("error") and name not in absent:
                yield Row(name, str(one["error"]), "bad")
    hub = [f"{name} {version}" for name, version in facts.hub.items() if version]
    yield Row("hub", ", ".join(hub) or "no hub client is installed")


def _provider_rows(diagnosis: Diagnosis) -> Iterator[Row]:
    for name, found in diagnosis.facts.providers.items():
        label = name.removesuffix("ExecutionProvider")
        if found["started"]:
            yield Row(label, "starts", "good")
        else:
            yield Row(label, f"listed, does not start: {found['reason'] or 'no reason given'}", "warn")
    level = "warn" if diagnosis.pair["supported"] is False else "plain"
    yield Row("with TensorRT", diagnosis.pair["words"], level)


def _tensorrt_rows(facts: Facts) -> Iterator[Row]:
    for flavor, title in (("rtx", "TensorRT-RTX"), ("classic", "TensorRT")):
        found = facts.tensorrt[flavor]
        if found.get("error") == "not installed":
            yield Row(title, "not installed", "dim")
            continue
        bad = flavor_problem(found) is not None
        version = f"{found['version']}: " if found.get("version") else ""
        yield Row(title, f"{version}{path_words(flavor, found)}", "bad" if bad else "plain")


def _cuda_rows(facts: Facts) -> Iterator[Row]:
    driver = facts.cuda.get("driver", {})
    yield Row("driver", no_gpu(facts) if not facts.devices else f"CUDA {driver.get('version')}")
    if (hidden := facts.machine.get("cuda_visible_devices")) is not None:
        yield Row("visible", f"CUDA_VISIBLE_DEVICES={hidden or '(empty: every GPU is hidden)'}")
    for index, device in enumerate(facts.devices):
        free = device["free_bytes"]
        words = (
            f"{size_words(free)} of {size_words(device['memory_bytes'])} free"
            if free is not None
            else "memory not known"
        )
        yield Row(
            f"GPU {index}", f"{device['name']}, compute capability {device['compute_capability']}, {words}"
        )
    libraries = facts.cuda.get("libraries", {})
    here = [name for name, place in libraries.items() if place == "loader"]
    elsewhere = {name: place for name, place in libraries.items() if place not in (None, "loader")}
    yield Row("found", ", ".join(here) or "no CUDA library")
    for name, place in elsewhere.items():
        yield Row("found aside", f"{name} in {place}: a program must load it by path")
    if missing := [name for name, place in libraries.items() if place is None]:
        yield Row("not found", ", ".join(missing))
    for name, found in facts.cuda.get("bindings", {}).items():
        yield Row(name, found.get("error") or "loads", "dim" if found.get("error") else "plain")


def _audio_rows(facts: Facts) -> Iterator[Row]:
    if error := facts.decoders.get("error"):
        yield Row("decoding", str(error), "bad")
        return
    formats = facts.decoders["formats"]
    works = [suffix.removeprefix(".") for suffix, why in formats.items() if why is None]
    yield Row("works", " ".join(works) or "nothing", "good" if works else "bad")
    for suffix, why in formats.items():
        if why is not None:
            yield Row(suffix, why, "dim" if why.startswith("not tried") else "bad")
    codecs = [name for name, there in facts.decoders["codecs"].items() if there]
    yield Row("also decoders", f"{' '.join(codecs) or 'none'} (no clip tried)")


def _verdict_rows(diagnosis: Diagnosis) -> Iterator[Row]:
    for verdict in diagnosis.verdicts:
        level = "good" if verdict.ok else "plain"
        yield Row("", f"{verdict.command}: {'ok' if verdict.ok else 'not here'}, {verdict.why}", level)
        if verdict.fix:
            yield Row("", f"-> {verdict.fix}", "plain")
