"""What is said of a recording that cannot be opened: its fault once and by name, and a command where one helps."""

from __future__ import annotations

import re
import shlex
import struct
from pathlib import Path

import av
import pytest

from audio_fixtures import encode, int16, tone, wav
from svtool.audio import decode_audio
from svtool.errors import AudioError

TONE = tone()
TONE16 = int16(TONE).tobytes()


@pytest.mark.parametrize("rate", [0, 1, 999, 800_000, 0x8000_0000, 0xFFFF_FFFF])
@pytest.mark.parametrize("kind", ["wav", "wav after another chunk", "au"])
def test_a_rate_no_recording_has_is_named(rate: int, kind: str) -> None:
    data = {
        "wav": wav(TONE16, rate=1)[:24] + struct.pack("<I", rate) + wav(TONE16, rate=1)[28:],
        "wav after another chunk": wav(TONE16, rate=4444, before=b"LIST\x03\0\0\0abc\0").replace(
            struct.pack("<I", 4444), struct.pack("<I", rate)
        ),
        "au": b".snd" + struct.pack(">5I", 24, len(TONE16), 3, rate, 1) + TONE16,
    }[kind]
    with pytest.raises(AudioError, match=rf"^x: a sample rate of {rate} Hz is outside 1000 to 768000 Hz$"):
        decode_audio(data, name="x")


CONTAINERS = {
    "wav": wav(TONE16),
    "flac": encode("flac", "flac", TONE),
    "m4a": encode("ipod", "aac", TONE),
    "ogg": encode("ogg", "libopus", TONE),
    "mka": encode("matroska", "aac", TONE),
    "caf": encode("caf", "pcm_s16le", TONE),
    "aiff": encode("aiff", "pcm_s16be", TONE),
}


@pytest.mark.parametrize("kind", CONTAINERS)
def test_a_file_cut_in_its_header_is_told_so_once(kind: str) -> None:
    for length in (14, 20, 24, 30, 36, 40, 43):
        with pytest.raises(AudioError) as refused:
            decode_audio(CONTAINERS[kind][:length], name="x")
        message = str(refused.value)
        assert "Invalid" not in message
        assert message.count("broken") == 1
        if kind == "wav":
            whole = len(CONTAINERS["wav"])
            assert message == f"x is broken: the file ends early: {length} of {whole} bytes are there"


@pytest.mark.parametrize(
    "name", ["raw.pcm", "a b.RAW", "-x.ulaw", "in/x.alaw", "x.sln", "x.f32", "it's.s16le"]
)
def test_samples_without_a_header_come_with_the_command_that_gives_them_one(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(AudioError, match="without a header; make a WAV of them") as refused:
        decode_audio(bytes(range(256)) * 9, name=name)
    command = re.search(r"ffmpeg (.+)  does$", str(refused.value))
    assert command
    *options, source, target = shlex.split(command[1])
    assert (options[0], options[-1]) == ("-f", "-i")
    assert options[1] in av.formats_available
    assert Path(source) == Path(name)
    assert not target.startswith("-")
    assert Path(target) == Path(name).with_suffix(".wav")


def test_a_very_long_name_does_not_fill_the_message_thrice() -> None:
    with pytest.raises(AudioError) as refused:
        decode_audio(bytes(range(256)) * 9, name="x" * 900 + ".pcm")
    assert "-i recording.pcm recording.wav" in str(refused.value)
