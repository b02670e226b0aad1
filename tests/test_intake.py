"""What a file looks like when it is not what it should be, and where a text file is broken."""

from __future__ import annotations

import bz2
import gzip
import json
import lzma
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from svtool.errors import ArtifactError
from svtool.intake import read_json, read_text, read_toml, read_yaml, stranger

Reader = Callable[[Path, str], Any]


def written(folder: Path, content: bytes) -> Path:
    path = folder / "file"
    path.write_bytes(content)
    return path


def safetensors() -> bytes:
    head = json.dumps({"a": {"dtype": "F32", "shape": [1], "data_offsets": [0, 4]}}).encode()
    return struct.pack("<Q", len(head)) + head + bytes(4)


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b"", "is empty: copy or download it again"),
        (b"version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 9\n", "git lfs pull"),
        (b"\n <!DOCTYPE html><html>", "is an HTML page"),
        (b"\xef\xbb\xbf<HTML>", "is an HTML page"),
        (bytes(5000), "nothing but zeros"),
        (gzip.compress(b"x"), "is a gzip archive: unpack it"),
        (bz2.compress(b"x"), "is a bzip2 archive: unpack it"),
        (lzma.compress(b"x"), "is an xz archive: unpack it"),
        (b"GGUF\x03\x00\x00\x00", "is a GGUF model"),
        (safetensors(), "is a safetensors file"),
        (b"Not found\nsorry", "is a text file ('Not found')"),
        ("模型不存在".encode() * 1000, "is a text file ('模型不存在"),
        (b"\x80\x02\x8a\x0a", None),
        (b"PK\x03\x04", None),
        (b"\x08\x0a\x12\x07pytorch", None),
        (b"caf\xe9 au lait", None),
    ],
)
def test_what_is_told_from_the_first_bytes(tmp_path: Path, content: bytes, said: str | None) -> None:
    found = stranger(written(tmp_path, content))
    assert found is None if said is None else said in str(found)


def test_text_is_no_fault_where_text_is_due(tmp_path: Path) -> None:
    assert stranger(written(tmp_path, b"model: SenseVoiceSmall"), text=True) is None
    assert "HTML" in str(stranger(written(tmp_path, b"<html>"), text=True))


@pytest.mark.parametrize(
    ("read", "content", "said"),
    [
        (read_text, b"a\nbc\xff", "line 2, column 3 (byte 0xff is not UTF-8)"),
        (read_text, "é\né\xe9".encode()[:-1], "line 2, column 2"),
        (read_text, "a: b".encode("utf-16"), "is UTF-16 text"),
        (read_yaml, b"a: 1\nb: c: d\n", "line 2, column 5"),
        (read_yaml, b"a:\n\tb: 1\n", "line 2, column 1"),
        (read_yaml, b"a: [1, 2\n", "line 2, column 1"),
        (read_yaml, b"a: *nowhere\n", "line 1, column 4"),
        (read_yaml, b"a: 1\nb: \x07\n", "line 2, column 4 (character 0x07"),
        (read_yaml, b"a: !!python/name:os.system\n", "line 1, column 4"),
        (read_yaml, b"a: 2024-13-45\n", "cannot mean"),
        (read_yaml, b"[" * 5000, "nested too deeply"),
        (read_json, b'{"a": 1,\n "b": }', "line 2, column 7"),
        (read_json, b"[" * 200_000, "nested too deeply"),
        (read_toml, b"[gate]\nbudget = = 1", "(at line 2, column 10)"),
        (read_toml, b"<html>", "HTML page"),
    ],
)
def test_a_broken_file_is_one_sentence_with_the_place_and_a_remedy(
    tmp_path: Path, read: Reader, content: bytes, said: str
) -> None:
    path = written(tmp_path, content)
    with pytest.raises(ArtifactError) as caught:
        read(path, "mend it")
    message = str(caught.value)
    assert message.startswith(f"{path} ")
    assert said in message
    assert "\n" not in message
    assert "mend it" in message or "UTF-8" in message or "download it again" in message


@pytest.mark.parametrize(
    ("read", "content"), [(read_yaml, b"a: 1"), (read_json, b'{"a": 1}'), (read_toml, b"a = 1")]
)
@pytest.mark.parametrize("mark", [b"", b"\xef\xbb\xbf"])
def test_a_sound_file_is_read_with_and_without_a_byte_order_mark(
    tmp_path: Path, read: Reader, content: bytes, mark: bytes
) -> None:
    assert read(written(tmp_path, mark + content), "mend it") == {"a": 1}
