"""`svtool doctor`: what works on this machine, tried and not guessed, and a verdict for every command.

Every trial runs in a child process with a time limit, so that a library that crashes or hangs is an answer too.
Judges what `probes` found. A missing GPU is no failure: exit 1 means that not even the CPU path works.
"""

from __future__ import annotations

import tempfile
import threading
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from svtool import __version__, probes
from svtool.child import run_child
from svtool.errors import SvtoolError
from svtool.parity import INT8_TRUE_FROM
from svtool.progress import Progress, Silent
from svtool.sections import size_words
from svtool.staging import staging

SCHEMA = "svtool.doctor/1"
TIME_LIMIT_S = 60.0  # a first CUDA start takes seconds, an import on a cold disk longer
_AT_ONCE = 3
CPU, CUDA, TENSORRT = probes.CPU, "CUDAExecutionProvider", "TensorrtExecutionProvider"
BASE = ("numpy", "onnx", "onnx_ir", "onnxruntime", "av", "soxr", "sentencepiece", "yaml", "rapidfuzz")
READS = ("numpy", "onnx", "onnx_ir")  # of the base: what graphs are read with
EXPORT = ("torch", "onnxscript", "onnxsim")
SERVE = ("fastapi", "uvicorn", "python_multipart", "gradio")
_HUB = ("huggingface-hub", "modelscope")
_VNNI = {"avx512_vnni", "avx_vnni", "amx_int8"}
_LITTLE_DISK = 4 << 30  # checkpoint, model and one engine at full size
_CLASSIC_MAJORS = (10, 11)
_INSTALL = "in svtool's folder, run  pip install -e '.{}'"

Found = Mapping[str, Any]


@dataclass(frozen=True)
class Verdict:
    command: str
    ok: bool
    why: str
    fix: str | None = None  # a command; None when ok, or when nothing here can help


@dataclass(frozen=True)
class Facts:
    """What the probes answered. A probe that crashed or hung has {"error": why} in its place."""

    machine: Found
    cpu_flags: tuple[str, ...]
    libraries: Mapping[str, Found]  # module -> {"version", "error"}
    hub: Mapping[str, str | None]  # distribution -> version
    providers: Mapping[str, Found]  # name -> {"available", "started", "reason"}
    needs: Mapping[str, list[str]]  # provider -> NVIDIA libraries it is linked against
    tensorrt: Mapping[str, Found]  # flavor -> {"version", "error", "missing", ...}
    cuda: Found
    decoders: Found

    @property
    def devices(self) -> list[Found]:
        return list(self.cuda.get("driver", {}).get("devices", ()))


@dataclass(frozen=True)
class Diagnosis:
    facts: Facts
    verdicts: tuple[Verdict, ...]
    pair: Mapping[str, Any]  # ONNX Runtime's TensorRT provider against the TensorRT here
    exit_code: int
    notes: tuple[str, ...] = field(default=())

    def to_json(self) -> dict[str, Any]:
        return {
            "schema": SCHEMA,
            "ok": self.exit_code == 0,
            "svtool": __version__,
            **asdict(self.facts),
            "onnxruntime_tensorrt_pair": dict(self.pair),
            "tensorrt_paths": {name: path_words(name, found) for name, found in self.facts.tensorrt.items()},
            "int8_on_cpu": int8_words(self.facts.cpu_flags),
            "verdicts": [asdict(verdict) for verdict in self.verdicts],
            "notes": list(self.notes),
        }


def diagnose(progress: Progress | None = None, *, limit_s: float = TIME_LIMIT_S) -> Diagnosis:
    return judge(collect(progress or Silent(), limit_s))


# --- trying --------------------------------------------------------------------------------------


def collect(progress: Progress, limit_s: float = TIME_LIMIT_S) -> Facts:
    """Run every probe, a few at a time; takes seconds."""
    from svtool.utterances import AUDIO_SUFFIXES
    from svtool.wer.gate import cpu_flags

    needs = probes.provider_needs()
    wanted = sorted({name for names in needs.values() for name in names})
    jobs: dict[str, tuple[str, Found]] = {
        "serve": ("libraries", {"modules": SERVE}),
        "export": ("libraries", {"modules": EXPORT}),
        "base": ("libraries", {"modules": BASE}),
        "rtx": ("tensorrt", {"flavor": "rtx"}),
        "classic": ("tensorrt", {"flavor": "classic"}),
        "cuda": ("cuda", {"libraries": wanted}),
        "decoders": ("decoders", {"suffixes": sorted(AUDIO_SUFFIXES)}),
        "providers": ("providers", {}),
    }
    answers = try_all(jobs, "trying libraries", progress, limit_s)
    names = list(dict.fromkeys([*answers["providers"].get("available", ()), CPU]))
    # made and removed here: a child that is ended removes nothing
    with staging(Path(tempfile.gettempdir()), "doctor") as folder:
        trials = {name: ("provider", {"name": name, "folder": str(folder)}) for name in names}
        started = try_all(trials, "starting providers", progress, limit_s)
    libraries: dict[str, Found] = {}
    for group, modules in (("base", BASE), ("export", EXPORT), ("serve", SERVE)):
        answer = answers[group]
        libraries |= {
            name: answer.get(name, {"version": None, "error": answer.get("error")}) for name in modules
        }
    return Facts(
        machine=probes.machine(),
        cpu_flags=cpu_flags(),
        libraries=libraries,
        hub={name: probes.installed(name) for name in _HUB},
        providers={name: _provider(answer) for name, answer in started.items()},
        needs=needs,
        tensorrt={name: answers[name] for name in ("rtx", "classic")},
        cuda=answers["cuda"],
        decoders=answers["decoders"],
    )


def try_all(
    jobs: Mapping[str, tuple[str, Found]], stage: str, progress: Progress, limit_s: float
) -> dict[str, Found]:
    """{job: answer of the probe}; {"error": why} for one that raised, crashed or took longer than `limit_s`."""
    progress.stage(stage, total=len(jobs))
    stop = threading.Event()
    answers: dict[str, Found] = {}
    pool = ThreadPoolExecutor(_AT_ONCE)
    try:
        futures = {
            pool.submit(_try, probe, payload, limit_s, stop): name for name, (probe, payload) in jobs.items()
        }
        for future in as_completed(futures):
            answers[futures[future]] = future.result()
            progress.advance()
    finally:
        stop.set()  # on Ctrl-C the children end too
        pool.shutdown(cancel_futures=True)
    return {name: answers[name] for name in jobs}


class _Over(Exception):
    pass


def _try(probe: str, payload: Found, limit_s: float, stop: threading.Event) -> Found:
    def tick(elapsed_s: float) -> None:
        if stop.is_set() or elapsed_s > limit_s:
            raise _Over

    try:
        return run_child(f"probes:{probe}", payload, Silent(), tick=tick).value
    except _Over:
        return {"error": f"did not answer within {limit_s:g} s"}
    except SvtoolError as error:
        # the head says how it ended; what it printed last is below
        return {"error": str(error).splitlines()[0]}


def _provider(answer: Found) -> Found:
    reason = answer.get("reason", answer.get("error"))
    return {"available": True, "started": bool(answer.get("started")), "reason": reason}


# --- judging -------------------------------------------------------------------------------------


def judge(facts: Facts) -> Diagnosis:
    """Facts to verdicts; runs nothing."""
    base = _base(facts)
    verdicts = (
        _export(facts),
        _build_rtx(facts),
        _build_classic(facts),
        _needs_base("calibrate", base, "on the CPU"),
        _needs_base("build-ort", base, _ort_words(facts)),
        _verify(facts, base),
        _validate(facts, base),
        _inspect(facts),
        base,
        _plan(facts),
        _serve(facts, base),
    )
    # torch that is not installed is a choice; torch that does not load is broken
    broken = not base.ok or facts.libraries["torch"].get("error") not in (None, "not installed")
    return Diagnosis(facts, verdicts, pair(facts), int(broken), tuple(_notes(facts)))


def _base(facts: Facts) -> Verdict:
    name = "transcribe ONNX"
    failed = {one: facts.libraries[one].get("error") for one in BASE if facts.libraries[one].get("error")}
    if failed:
        why = "; ".join(f"{one}: {error}" for one, error in failed.items())
        return Verdict(name, False, why, _INSTALL.format(""))
    cpu = facts.providers.get(CPU, {})
    if not cpu.get("started"):
        why = f"ONNX Runtime does not start on the CPU: {cpu.get('reason') or 'no CPU provider'}"
        return Verdict(name, False, why, "pip install --force-reinstall onnxruntime-gpu")
    if problem := facts.machine.get("temp"):
        return Verdict(name, False, problem, "set TMPDIR to a folder that can be written")
    wav = facts.decoders.get("formats", {}).get(".wav", facts.decoders.get("error"))
    if wav:
        return Verdict(name, False, f"WAV files do not decode: {wav}", "pip install --force-reinstall av")
    return Verdict(name, True, "on the CPU" + (", or with --device cuda" if _starts(facts, CUDA) else ""))


def _export(facts: Facts) -> Verdict:
    needed = {
        one: facts.libraries[one].get("error") for one in ("torch", "onnxscript", "onnx", "onnxruntime")
    }
    failed = {one: error for one, error in needed.items() if error}
    if failed:
        why = "; ".join(f"{one}: {error}" for one, error in failed.items())
        return Verdict("export", False, why, _INSTALL.format("[export]"))
    simplifier = facts.libraries["onnxsim"].get("error")
    return Verdict(
        "export", True, f"without onnxsim ({simplifier}): --no-simplify" if simplifier else "with onnxsim"
    )


def _build_rtx(facts: Facts) -> Verdict:
    name, problem = "build-trt --flavor rtx", flavor_problem(facts.tensorrt["rtx"])
    if problem:
        return Verdict(name, False, problem, _INSTALL.format("[trt-rtx]"))
    return Verdict(name, True, "builds without a GPU")


def _build_classic(facts: Facts) -> Verdict:
    name, found = "build-trt --flavor classic", facts.tensorrt["classic"]
    problem = flavor_problem(found)
    if problem is None and major(found) not in _CLASSIC_MAJORS:
        problem = f"TensorRT {found['version']} is not supported: 10.3 to 11"
    if problem:
        return Verdict(name, False, f"{problem}; it builds only on the target GPU", _INSTALL.format("[trt]"))
    if not facts.devices:
        fix = "svtool build-trt --flavor rtx" if flavor_problem(facts.tensorrt["rtx"]) is None else None
        return Verdict(name, False, f"it builds only on the target GPU: {no_gpu(facts)}", fix)
    return Verdict(name, True, f"for compute capability {facts.devices[0]['compute_capability']}")


def _needs_base(command: str, base: Verdict, words: str) -> Verdict:
    return Verdict(command, True, words) if base.ok else Verdict(command, False, base.why, base.fix)


def _validate(facts: Facts, base: Verdict) -> Verdict:
    words = "plans too" if _plan(facts).ok else "a plan is judged by its ONNX twin"
    return _scores_int8(facts, _needs_base("validate-wer", base, words))


def _verify(facts: Facts, base: Verdict) -> Verdict:
    """Needs what runs a plan, and what runs its twin."""
    plan = _plan(facts)
    if not facts.devices:
        return Verdict("verify", False, plan.why, "svtool verify PLAN  (on the GPU that the plan is for)")
    if not plan.ok:
        return Verdict("verify", False, plan.why, plan.fix)
    return _scores_int8(facts, _needs_base("verify", base, f"a plan against its ONNX twin, {plan.why}"))


def _scores_int8(facts: Facts, verdict: Verdict) -> Verdict:
    """The same verdict, unless ONNX Runtime is too old for int8 twins."""
    here = str(facts.libraries["onnxruntime"].get("version"))
    numbers = tuple(int(part) for part in here.split(".")[:2] if part.isdigit())
    if not verdict.ok or numbers >= INT8_TRUE_FROM:
        return verdict
    least = ".".join(map(str, INT8_TRUE_FROM))
    why = f"fp16 and fp32 only: onnxruntime {here} scores int8 twins wrongly before {least}"
    fix = f"pip install 'onnxruntime-gpu>={least}'  (Python 3.11 or newer)"
    return Verdict(verdict.command, False, why, fix)


def _inspect(facts: Facts) -> Verdict:
    """Loads no runtime, so it answers where nothing else does."""
    failed = {one: facts.libraries[one].get("error") for one in READS if facts.libraries[one].get("error")}
    if failed:
        why = "; ".join(f"{one}: {error}" for one, error in failed.items())
        return Verdict("inspect", False, why, _INSTALL.format(""))
    return Verdict("inspect", True, "any artifact, on any machine")


def _plan(facts: Facts) -> Verdict:
    name = "transcribe plan"
    if not facts.devices:
        return Verdict(
            name,
            False,
            no_gpu(facts),
            "svtool transcribe FILE -m <plan's name>.onnx  (the twin, on the CPU)",
        )
    bindings = facts.cuda.get("bindings", {})
    if bindings and all(one.get("error") for one in bindings.values()):
        why = "; ".join(f"{one}: {found['error']}" for one, found in bindings.items())
        return Verdict(name, False, why, "pip install cuda-python")
    usable = [flavor for flavor, found in facts.tensorrt.items() if flavor_problem(found) is None]
    if not usable:
        return Verdict(name, False, "neither TensorRT-RTX nor TensorRT loads", _INSTALL.format("[trt]"))
    capability = str(facts.devices[0]["compute_capability"])
    if usable == ["rtx"] and not probes.rtx_runs_on(capability):
        why = f"TensorRT-RTX runs on {probes.RTX_RUNS_ON}, this GPU has compute capability {capability}"
        return Verdict(name, False, why, _INSTALL.format("[trt]"))
    return Verdict(name, True, f"with {' or '.join(usable)}")


def _serve(facts: Facts, base: Verdict) -> Verdict:
    failed = {one: facts.libraries[one].get("error") for one in SERVE if facts.libraries[one].get("error")}
    if not base.ok or not failed:
        return _needs_base("serve", base, "HTTP and web page")
    why = "; ".join(f"{one}: {error}" for one, error in failed.items())
    return Verdict("serve", False, why, _INSTALL.format("[serve]"))


def flavor_problem(found: Found) -> str | None:
    if error := found.get("error"):
        return str(error)
    return f"it lacks {', '.join(found['missing'])}" if found.get("missing") else None


def no_gpu(facts: Facts) -> str:
    return str(
        facts.cuda.get("error")
        or facts.cuda.get("driver", {}).get("error")
        or "the driver shows no CUDA device"
    )


def _starts(facts: Facts, name: str) -> bool:
    return bool(facts.providers.get(name, {}).get("started"))


def _ort_words(facts: Facts) -> str:
    return "for the CPU and for CUDA" if _starts(facts, CUDA) else "for the CPU"


def major(found: Found) -> int | None:
    head = str(found.get("version", "")).split(".")[0]
    return int(head) if head.isdigit() else None


def pair(facts: Facts) -> dict[str, Any]:
    """ONNX Runtime's TensorRT provider is linked against one major of TensorRT and uses no other."""
    needs = next((one for one in facts.needs.get(TENSORRT, ()) if one.startswith("libnvinfer.so")), None)
    here, there = facts.tensorrt["classic"].get("version"), facts.libraries["onnxruntime"].get("version")
    wanted = needs.rsplit(".", 1)[-1] if needs else None
    supported = None
    if wanted is None:
        words = f"onnxruntime {there} has no TensorRT provider"
    elif here is None:
        words = f"onnxruntime {there} needs TensorRT {wanted} ({needs}), none is installed"
    else:
        supported = str(major(facts.tensorrt["classic"])) == wanted
        fits = "a supported pair" if supported else "NOT a supported pair: its TensorRT provider cannot start"
        words = f"onnxruntime {there} needs TensorRT {wanted} ({needs}), here is {here}: {fits}"
    return {
        "onnxruntime": there, "needs": needs, "tensorrt": here, "supported": supported,
        "words": f"{words}; svtool's own plans do not use this provider",
    }  # fmt: skip


def path_words(flavor: str, found: Found) -> str:
    """How svtool builds and runs with this library."""
    if problem := flavor_problem(found):
        return f"not used: {problem}"
    if flavor == "classic" and major(found) not in _CLASSIC_MAJORS:
        return "not used: svtool supports 10.3 to 11"
    typed = (
        "strongly typed by its network flag" if found.get("strongly_typed_flag") else "always strongly typed"
    )
    weak = ", its FP16 and INT8 builder flags are left alone" if found.get("weak_typing") else ""
    where = (
        "plans for the GPU it is built on"
        if flavor == "classic"
        else f"portable plans, for {probes.RTX_RUNS_ON}"
    )
    return f"{typed}, precision comes from the graph{weak}; {where}"


def int8_words(flags: tuple[str, ...]) -> str:
    """What the processor means for int8 accuracy. No word on speed: that is measured, not derived."""
    present = set(flags)
    if present & _VNNI:
        return "VNNI: int8 products are summed in 32 bits and do not saturate"
    if present & {"avx2", "avx512f"}:
        return (
            "no VNNI: the fused int8 kernels of ONNX Runtime saturate in 16 bits; svtool turns them off "
            "(session.x64quantprecision), other programs may get worse text from the same file"
        )
    if present & {"asimddp", "i8mm"}:
        return "dot products of int8 in 32 bits: nothing saturates"
    return "not known: the system does not tell its instruction sets"


def _notes(facts: Facts) -> Iterator[str]:
    for folder, free in facts.machine.get("disks", {}).items():
        if isinstance(free, int) and free < _LITTLE_DISK:
            yield f"only {size_words(free)} are free at {folder}: a full-size model and one engine need 4 GiB"
    if facts.devices and not _starts(facts, CUDA) and CUDA in facts.providers:
        yield (
            f"a GPU is here, but ONNX Runtime does not start on it ({facts.providers[CUDA].get('reason')}): --device "
            "cuda will be refused, and svtool never falls back to the CPU in silence"
        )
    if not any(facts.hub.values()):
        yield f"checkpoints cannot be downloaded by name: {_INSTALL.format('[hub]')}"
    tried = facts.decoders.get("formats", {})
    if bad := [
        f"{suffix} ({why})" for suffix, why in tried.items() if why and not why.startswith("not tried")
    ]:
        yield f"these audio formats do not work here: {', '.join(bad)}"
