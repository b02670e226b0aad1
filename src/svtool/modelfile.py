"""A model file before anything opens it: whether it is a whole ONNX file, and one that this ONNX Runtime reads.

Reads keys and lengths of the outermost message and no weights, so that it costs nothing at any size. Also says how a
file that is missing or no good is made. Knows nothing of what the graph computes.
"""

from __future__ import annotations

import io
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import BinaryIO

from svtool import manifest
from svtool.assets import HUB_MODELS
from svtool.errors import ArtifactError
from svtool.intake import stranger

SOURCES = "(SOURCE is a checkpoint folder, iic/SenseVoiceSmall, or tiny)"

_IR_VERSION, _OPSET_IMPORT, _GRAPH = 1, 8, 7  # fields of ModelProto
_DOMAIN, _VERSION = 1, 2  # fields of OperatorSetIdProto
_VARINT, _FIXED64, _NESTED, _FIXED32 = 0, 1, 2, 5  # protobuf's wire types
_LONGEST_OPSET = 4096  # bytes of one opset entry, a name and a number
# what every ONNX Runtime that svtool installs reads: for these none has to be asked
_SURE_IR, _SURE_OPSETS = 10, {"": 23, "ai.onnx": 23, "com.microsoft": 1}
_BEYOND = 10_000  # a version that no runtime reads
_LIMITS = re.compile(r"max supported IR version: (\d+)|support for domain \S+ is till opset (\d+)")
_NOISE = re.compile(
    r"^\[ONNXRuntimeError\] : \d+ : \w+ : |Load model from .+? failed:|\S*onnxruntime_src/\S+ .*?\)(?: const)? "
)


@dataclass
class Header:
    ir_version: int = 0
    opsets: dict[str, int] = field(default_factory=dict)
    has_graph: bool = False


class _CutOff(Exception):
    """`wanted`: the bytes that the file must have at least."""

    def __init__(self, wanted: int) -> None:
        self.wanted = wanted


class _NotProtobuf(Exception):
    pass


def check(path: Path) -> None:
    """Raise ArtifactError unless the file is there, whole, and of versions that this ONNX Runtime reads."""
    if problem := version_problem(read_header(path)):
        raise ArtifactError(f"{path} {problem}: {again(path)}")


def version_problem(header: Header) -> str | None:
    """Why this ONNX Runtime cannot read a file with these versions, as "has IR version ..."."""
    if header.ir_version > _SURE_IR and (most := _most_ir()) is not None and header.ir_version > most:
        return f"has IR version {header.ir_version}, and {_runtime()} here reads up to {most}"
    for domain, opset in header.opsets.items():
        if opset <= _SURE_OPSETS.get(domain, 0):
            continue
        if (most := _most_opset(domain)) is not None and opset > most:
            return f"has opset {opset} of {domain or 'ai.onnx'}, and {_runtime()} here reads up to {most}"
    return None


def read_header(path: Path) -> Header:
    """Versions of an ONNX file. Raises ArtifactError when it is missing, cut off or something else."""
    if not path.is_file():
        raise ArtifactError(f"{path} does not exist: {how_to_make(path)}")
    size = path.stat().st_size
    if not size:
        raise ArtifactError(f"{path} is empty (0 bytes): cut off or never written; {again(path)}")
    if found := stranger(path, remedy=again(path)):
        raise ArtifactError(f"{path} {found}")
    try:
        with path.open("rb") as stream:
            header = _read(stream, size)
    except _CutOff as cut:
        raise ArtifactError(
            f"{path} is cut off: {size:,} bytes of at least {cut.wanted:,} are there; {again(path)}"
        ) from cut
    except _NotProtobuf as error:
        raise ArtifactError(f"{path} is not a readable ONNX model: {again(path)}") from error
    if not (header.has_graph and header.ir_version and header.opsets):
        raise ArtifactError(
            f"{path} is not a readable ONNX model (it holds no graph, or was cut off before its opset): {again(path)}"
        )
    return header


def unreadable(path: Path, by: str, error: BaseException) -> ArtifactError:
    """For a file that `check` lets pass and its reader does not."""
    return ArtifactError(f"{path} is not a readable ONNX model ({by}: {words(error)}): {again(path)}")


def again(path: Path) -> str:
    """How to have a bad file made again: by its manifest where it has one."""
    if manifest.manifest_path(path).is_file():
        try:
            described = manifest.read_manifest(path)
        except ArtifactError:
            described = {}
        return f"make it again with  {manifest.rebuild_command(path, described)}"
    # svtool replaces nothing that it did not write: no command could put a new one in its place
    return f"copy it again, or make a model with  svtool export SOURCE  {SOURCES}"


def how_to_make(path: Path) -> str:
    """The commands that make what is missing at `path`, as somebody typed it."""
    if (hub := _hub_model(path)) is not None:
        return (
            f"make it with  svtool export {hub}  and then name the folder that this writes, "
            f"engines/{hub.split('/')[1]}"
        )
    is_model = path.suffix not in (".onnx", ".plan") or path.name == "model.onnx"
    folder = path if path.suffix not in (".onnx", ".plan") else path.parent
    if str(path) == "tiny":
        return "make it with  svtool export tiny  and then name the folder that this writes, engines/tiny"
    tiny = folder.name == "tiny"
    export = f"svtool export {'tiny' if tiny else 'SOURCE'} -o {folder}"
    what_source = "" if tiny else f"  {SOURCES}"
    if is_model:
        return f"make it with  {export}{what_source}"
    if (folder / "model.onnx").is_file():
        return f"make it with  {manifest.rebuild_command(path)}"
    build = manifest.rebuild_command(path, {"kind": "engine", "model": "model.onnx"})
    return f"make it with  {export}  and  {build}{what_source}"


def _hub_model(path: Path) -> str | None:
    """The hub id that was meant: a name such as iic/SenseVoiceSmall is no folder until it is exported."""
    typed = str(path).lower()
    names = {name.lower(): name for name in HUB_MODELS}
    if typed in names:
        return names[typed]
    return next(iter(HUB_MODELS)) if typed == "sensevoicesmall" else None


def _runtime() -> str:
    import onnxruntime

    return f"ONNX Runtime {onnxruntime.__version__}"


# --- what this ONNX Runtime reads: it has no function that says so, and names its limit when it refuses -------------


@lru_cache(maxsize=1)
def _most_ir() -> int | None:
    return _limit_named(_smallest_model(_BEYOND, "", 1))


@lru_cache
def _most_opset(domain: str) -> int | None:
    """None for a domain that is not ONNX's own: its owner counts the versions."""
    return _limit_named(_smallest_model(_SURE_IR, domain, _BEYOND))


def _limit_named(model: bytes) -> int | None:
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    try:
        onnxruntime.InferenceSession(model, options, providers=["CPUExecutionProvider"])
    except Exception as error:  # noqa: BLE001 - ONNX Runtime's classes share no base of their own
        found = _LIMITS.search(str(error))
        return int(found[1] or found[2]) if found else None
    return None


def _smallest_model(ir_version: int, domain: str, opset: int) -> bytes:
    name = domain.encode()
    entry = _key(_DOMAIN, _NESTED) + _number(len(name)) + name + _key(_VERSION, _VARINT) + _number(opset)
    return b"".join(
        (
            _key(_IR_VERSION, _VARINT) + _number(ir_version),
            _key(_GRAPH, _NESTED) + _number(0),
            _key(_OPSET_IMPORT, _NESTED) + _number(len(entry)) + entry,
        )
    )


def _key(number: int, wire: int) -> bytes:
    return _number(number << 3 | wire)


def _number(value: int) -> bytes:
    encoded = bytearray()
    while value > 0x7F:
        encoded.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes((*encoded, value))


# --- the outermost message -------------------------------------------------------------------------------------------


def _read(stream: BinaryIO, size: int) -> Header:
    header = Header()
    for number, wire, value in _fields(stream, size):
        if number == _IR_VERSION and wire == _VARINT:
            header.ir_version = value
        elif number == _GRAPH and wire == _NESTED:
            header.has_graph = True
        elif number == _OPSET_IMPORT and wire == _NESTED and value <= _LONGEST_OPSET:
            domain, version = _opset(stream.read(value))
            header.opsets[domain] = version
    return header


def _opset(entry: bytes) -> tuple[str, int]:
    stream = io.BytesIO(entry)
    domain, version = "", 0
    try:
        for number, wire, value in _fields(stream, len(entry)):
            if number == _DOMAIN and wire == _NESTED:
                domain = stream.read(value).decode("utf-8", "replace")
            elif number == _VERSION and wire == _VARINT:
                version = value
    except _CutOff as cut:  # the file is long enough: it is this entry that does not fit itself
        raise _NotProtobuf("an opset entry") from cut
    return domain, version


def _fields(stream: BinaryIO, end: int) -> Iterator[tuple[int, int, int]]:
    """(field, wire type, number or length) up to `end`; nested ones are skipped, and start where the stream stands."""
    while (at := stream.tell()) < end:
        key = _varint(stream, end)
        number, wire = key >> 3, key & 7
        if not number or wire not in (_VARINT, _FIXED64, _NESTED, _FIXED32):
            raise _NotProtobuf(f"byte {at}")
        value = _varint(stream, end) if wire in (_VARINT, _NESTED) else {_FIXED64: 8, _FIXED32: 4}[wire]
        after = stream.tell() + (value if wire != _VARINT else 0)
        if after > end:
            raise _CutOff(after)
        yield number, wire, value
        stream.seek(after)


def _varint(stream: BinaryIO, end: int) -> int:
    value = 0
    for shift in range(0, 70, 7):
        byte = stream.read(1)
        if not byte or stream.tell() > end:
            raise _CutOff(end + 1)
        value |= (byte[0] & 0x7F) << shift
        if byte[0] < 0x80:
            return value
    raise _NotProtobuf("a number of more than ten bytes")


def words(error: BaseException) -> str:
    """What a library says, without where in its own source it says so."""
    lines = _NOISE.sub("", str(error).strip()).strip().splitlines()
    return lines[0] if lines else type(error).__name__
