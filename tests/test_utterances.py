"""Decoding of audio, utterance lists, and what command-line arguments mean."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

from audio_fixtures import ALAW, FLOAT, MULAW, chunk, encode, int16, packed24, tone, video_only, wav
from svtool import utterances
from svtool.errors import AudioError, SvtoolError, UsageError
from svtool.utterances import Input, PcmFormat, decode_audio, expand_inputs, from_array, read_utterances

TONE = tone(2.0)
TONE16 = int16(TONE).tobytes()
RNG = np.random.default_rng(11)


def peak_hertz(samples: np.ndarray) -> float:
    spectrum = np.abs(np.fft.rfft(samples * np.hanning(len(samples))))
    return float(np.argmax(spectrum)) * 16_000 / len(samples)


def reason(source: Path | bytes, **options: object) -> str:
    with pytest.raises(AudioError) as caught:
        decode_audio(source, **options)  # type: ignore[arg-type]
    return caught.value.reason


# ---- WAV of every kind

STREAMED = 0xFFFF_FFFF
WAVS = {
    "8 bit": (wav((np.rint(TONE * 128) + 128).astype("u1").tobytes(), bits=8), 1 / 128),
    "16 bit": (wav(TONE16), 1 / 32768),
    "24 bit": (wav(packed24(TONE), bits=24), 1e-6),
    "32 bit": (wav(np.rint(TONE.astype(float) * 2**31).astype("<i4").tobytes(), bits=32), 1e-6),
    "float32": (wav(TONE.astype("<f4").tobytes(), tag=FLOAT, bits=32), 0),
    "float64": (wav(TONE.astype("<f8").tobytes(), tag=FLOAT, bits=64), 0),
    "extensible 16 bit": (wav(TONE16, extensible=True), 1 / 32768),
    "extensible float": (wav(TONE.astype("<f4").tobytes(), tag=FLOAT, bits=32, extensible=True), 0),
    "JUNK before fmt": (wav(TONE16, before=chunk(b"JUNK", bytes(28))), 1 / 32768),
    "LIST before fmt": (wav(TONE16, before=chunk(b"LIST", b"INFOISFT\x04\0\0\0\xff\xfe\xfa\0")), 1 / 32768),
    "odd chunk before fmt": (wav(TONE16, before=chunk(b"bext", bytes(601))), 1 / 32768),
    "data size 0": (wav(TONE16, data_size=0, riff_size=0), 1 / 32768),
    "data size ffffffff": (wav(TONE16, data_size=STREAMED, riff_size=STREAMED), 1 / 32768),
    "odd byte at the end": (wav(TONE16 + b"\1"), 1 / 32768),
}


@pytest.mark.case("A5", "A9")
@pytest.mark.parametrize(("data", "error"), WAVS.values(), ids=WAVS)
def test_wav_headers_and_sample_types(data: bytes, error: float) -> None:
    audio = decode_audio(data)
    assert (audio.rate, audio.channels, audio.warnings) == (16_000, 1, ())
    assert audio.samples.dtype == np.float32
    assert len(audio.samples) == len(TONE)
    assert np.abs(audio.samples - TONE).max() <= error
    assert audio.duration_s == 2.0


@pytest.mark.case("A5")
@pytest.mark.parametrize(("tag", "codec"), [(ALAW, "pcm_alaw"), (MULAW, "pcm_mulaw")])
def test_telephony_wav(tag: int, codec: str) -> None:
    eight = tone(2.0, 8_000)
    raw = encode(codec.removeprefix("pcm_"), codec, eight, 8_000)
    audio = decode_audio(wav(raw, tag=tag, bits=8, rate=8_000))
    assert audio.rate == 8_000
    assert peak_hertz(audio.samples) == 440
    assert np.abs(audio.samples).max() == pytest.approx(0.3, abs=0.02)
    same = decode_audio(raw, pcm=PcmFormat(8_000, codec.removeprefix("pcm_")))
    np.testing.assert_array_equal(audio.samples, same.samples)


def test_16_bit_is_exact_and_quick() -> None:
    words = RNG.integers(-32768, 32768, 160_000).astype("<i2")
    data = wav(words.tobytes())
    np.testing.assert_array_equal(decode_audio(data).samples, words.astype(np.float32) / 32768)
    quickest = 1.0
    for _ in range(10):
        begin = time.perf_counter()
        decode_audio(data)
        quickest = min(quickest, time.perf_counter() - begin)
    assert quickest < 0.05  # 3 ms on a free core


# ---- containers

CONTAINERS = {
    "flac": ("flac", "flac", 16_000),
    "ogg flac": ("ogg", "flac", 16_000),
    "mp3": ("mp3", "libmp3lame", 16_000),
    "mp3 44.1k": ("mp3", "libmp3lame", 44_100),
    "mp2": ("mp2", "mp2", 48_000),
    "m4a": ("ipod", "aac", 44_100),
    "3gp": ("3gp", "aac", 16_000),
    "aac": ("adts", "aac", 16_000),
    "opus": ("ogg", "libopus", 48_000),
    "webm": ("webm", "libopus", 48_000),
    "mka": ("matroska", "aac", 44_100),
    "aiff": ("aiff", "pcm_s16be", 16_000),
    "caf": ("caf", "pcm_s16le", 16_000),
    "au": ("au", "pcm_s16be", 16_000),
    "w64": ("w64", "pcm_s16le", 16_000),
    "adpcm wav": ("wav", "adpcm_ms", 16_000),
    "mp3 in wav": ("wav", "libmp3lame", 16_000),
    "avi": ("avi", "libmp3lame", 16_000),
    "amr": ("amr", "libopencore_amrnb", 8_000),
    "wma": ("asf", "wmav2", 44_100),
}


@pytest.mark.case("A7")
@pytest.mark.parametrize(("container", "codec", "rate"), CONTAINERS.values(), ids=CONTAINERS)
def test_containers_are_known_by_content(container: str, codec: str, rate: int) -> None:
    audio = decode_audio(encode(container, codec, tone(2.0, rate), rate), name="wrong.txt")
    assert audio.warnings == ()
    assert audio.duration_s == pytest.approx(2.0, abs=0.15)  # codecs pad their last frame
    assert peak_hertz(audio.samples[: 2 * 16_000 - 800]) == pytest.approx(440, abs=1)
    assert 0.2 < np.abs(audio.samples).max() < 0.4


def test_mp3_after_a_large_tag() -> None:
    plain = encode("mp3", "libmp3lame", TONE, options={"id3v2_version": "0"})
    size = 200_000
    tag = b"ID3\x04\0\0" + bytes(size >> shift & 127 for shift in (21, 14, 7, 0)) + bytes(size)
    np.testing.assert_array_equal(decode_audio(tag + plain).samples, decode_audio(plain).samples)


@pytest.mark.case("A7")
def test_raw_g722_is_known_by_name_alone(tmp_path: Path) -> None:
    raw = encode("g722", "g722", TONE)
    (tmp_path / "speech.G722").write_bytes(raw)
    audio = decode_audio(tmp_path / "speech.G722")
    assert len(audio.samples) == len(TONE)
    assert peak_hertz(audio.samples) == 440
    assert reason(raw) == "not_audio"
    np.testing.assert_array_equal(decode_audio(raw, name="a.g722").samples, audio.samples)
    # the content wins over the name, and text is never sound
    assert decode_audio(wav(TONE16), name="a.g722").samples[100] == np.float32(int16(TONE)[100]) / 32768
    assert reason(b"print('hello')\n" * 100, name="a.g722") == "not_audio"


# ---- what is not audio

PNG = b"\x89PNG\r\n\x1a\n\0\0\0\rIHDR\0\0\0\1\0\0\0\1\x08\2\0\0\0"
FOREIGN = {
    "text": b"hello, this is text\n" * 400,
    "python": Path(__file__).read_bytes(),
    "zeros": bytes(100_000),
    "ones": b"\xff" * 100_000,
    "random": RNG.bytes(300_000),
    "png": PNG + RNG.bytes(5_000),
    "pdf": b"%PDF-1.7\n%\xe2\xe3\xcf\xd3\n" + RNG.bytes(5_000),
    "elf": b"\x7fELF\2\1\1" + RNG.bytes(5_000),
    "raw pcm": TONE16,
    "empty": b"",
    "one byte": b"R",
}


@pytest.mark.case("A7", "A9")
@pytest.mark.parametrize("data", FOREIGN.values(), ids=FOREIGN)
@pytest.mark.parametrize("name", ["a.wav", "a.mp3", "a.pcm", "a"])
def test_unknown_bytes_are_never_audio(data: bytes, name: str, tmp_path: Path) -> None:
    assert reason(data, name=name) == "not_audio"
    (tmp_path / name).write_bytes(data)
    assert reason(tmp_path / name) == "not_audio"


def test_random_bytes_are_never_audio() -> None:
    for seed in range(60):
        assert reason(np.random.default_rng(seed).bytes(40_000)) == "not_audio"


def test_a_codec_without_decoder_is_named_as_such() -> None:
    assert reason(wav(TONE16, tag=0x999)) == "no_decoder"


BROKEN = {
    "header cut": wav(TONE16)[:20],
    "no data chunk": wav(b"")[:-8],
    "rate 0": wav(TONE16, rate=0),
    "rate 1": wav(TONE16, rate=1),
    "no channels": wav(TONE16, channels=0),
    "m4a without its index": encode("ipod", "aac", TONE)[:6_000],
    "flac header alone": encode("flac", "flac", TONE)[:60],
    "ogg magic": b"OggS" + bytes(500),
    "webm magic": b"\x1a\x45\xdf\xa3" + RNG.bytes(500),
}


@pytest.mark.parametrize("data", BROKEN.values(), ids=BROKEN)
def test_broken_files_say_so(data: bytes) -> None:
    assert reason(data) == "broken"


def test_no_audio_stream_and_no_file(tmp_path: Path) -> None:
    assert reason(video_only()) == "no_audio_stream"
    assert reason(tmp_path / "absent.wav") == "missing"
    assert reason(Path("nul\0.wav")) == "missing"
    assert reason(tmp_path) == "not_audio"


@pytest.mark.case("A1")
def test_an_empty_stream_is_no_error() -> None:
    for data in (
        wav(b""),
        wav(b"", data_size=STREAMED, riff_size=STREAMED),
        wav(b"", rate=8_000, channels=2),
    ):
        audio = decode_audio(data)
        assert audio.samples.shape == (0,)
        assert audio.duration_s == 0.0
    for length in (1, 160, 399, 400):
        assert len(decode_audio(wav(TONE16[: 2 * length])).samples) == length


def test_a_cut_file_gives_what_is_there_and_a_warning() -> None:
    samples = (RNG.standard_normal(80_000) * 0.1).astype(np.float32)
    whole_wav, flac = wav(int16(samples).tobytes()), encode("flac", "flac", samples)
    mka = encode("matroska", "aac", samples)
    for data in (whole_wav, flac, mka):
        audio = decode_audio(data[: len(data) // 2])
        assert 1.5 < audio.duration_s < 3.5
        assert any("ends early" in warning for warning in audio.warnings)


def test_damage_inside_is_skipped_with_a_warning() -> None:
    data = bytearray(encode("mp3", "libmp3lame", tone(10.0)))
    data[len(data) // 2 : len(data) // 2 + 900] = RNG.bytes(900)
    audio = decode_audio(bytes(data))
    assert audio.duration_s == pytest.approx(10.0, abs=0.5)


def test_nothing_is_written_to_stderr(tmp_path: Path) -> None:
    files = {
        "cut.wav": wav(TONE16)[:4_000],
        "bad.mp3": bytearray(encode("mp3", "libmp3lame", TONE)),
        **BROKEN,
    }
    files["bad.mp3"][2_000:2_500] = RNG.bytes(500)  # type: ignore[index]
    for name, data in files.items():
        (tmp_path / name).write_bytes(bytes(data))
    script = (
        "import sys, pathlib; from svtool.errors import AudioError; from svtool.audio import decode_audio\n"
        "for path in pathlib.Path(sys.argv[1]).iterdir():\n"
        "    try: decode_audio(path)\n"
        "    except AudioError: pass\n"
    )
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", script, str(tmp_path)],
        capture_output=True,
        check=False,
        text=True,
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


# ---- nothing else is opened

OUTSIDE = {
    "m3u8": "#EXTM3U\n#EXT-X-TARGETDURATION:9\n#EXTINF:9,\n{target}\n#EXT-X-ENDLIST\n",
    "ffconcat": "ffconcat version 1.0\nfile '{target}'\n",
    "sdp": "v=0\no=- 0 0 IN IP4 127.0.0.1\ns=x\nc=IN IP4 127.0.0.1\nt=0 0\nm=audio 5004 RTP/AVP 0\n",
    "mpd": '<?xml version="1.0"?><MPD><Period><BaseURL>{target}</BaseURL></Period></MPD>',
    "asx": '<asx version="3.0"><entry><ref href="{target}"/></entry></asx>',
    "url": "{target}",
}


@pytest.mark.case("U8")
@pytest.mark.parametrize("kind", OUTSIDE)
@pytest.mark.parametrize("suffix", ["wav", "own"])
def test_lists_of_other_resources_open_nothing(kind: str, suffix: str, tmp_path: Path) -> None:
    (tmp_path / "secret.wav").write_bytes(wav(TONE16))
    for target in (
        "secret.wav",
        (tmp_path / "secret.wav").as_uri(),
        "http://127.0.0.1:9/a.wav",
        "concat:secret.wav",
    ):
        text = OUTSIDE[kind].format(target=target)
        path = tmp_path / f"list.{kind if suffix == 'own' else 'wav'}"
        path.write_text(text)
        assert reason(path) == "not_audio"
        assert reason(text.encode(), name=path.name) == "not_audio"


@pytest.mark.case("U8")
def test_the_demuxer_behind_the_sniffing_opens_nothing_either(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Were a playlist taken for a known container, the whitelists would still stop it."""
    from svtool import audio

    (tmp_path / "secret.wav").write_bytes(wav(TONE16))
    monkeypatch.chdir(tmp_path)
    listing = OUTSIDE["ffconcat"].format(target="secret.wav").encode()
    for forced in ("concat", "hls", "wav", "mov"):
        monkeypatch.setattr(audio, "sniff", lambda _, forced=forced: forced)
        assert reason(listing) == "broken"


@pytest.mark.case("U8")
@pytest.mark.parametrize(
    "name",
    [
        "-i.wav",
        "--help",
        "http:a.wav",
        "pipe:0",
        "concat:x.wav",
        "a b\tc.wav",
        "语音.wav",
        "100%d.wav",
        "x\n.wav",
    ],
)
def test_odd_file_names(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path(name).write_bytes(wav(TONE16))
    assert len(decode_audio(Path(name)).samples) == len(TONE)
    Path(name).write_bytes(b"not audio")
    with pytest.raises(AudioError) as caught:
        decode_audio(Path(name))
    assert str(caught.value).isprintable()


# ---- limits


@pytest.mark.case("U3")
def test_duration_limit_stops_decoding() -> None:
    bomb = encode("flac", "flac", np.zeros(48_000 * 120, np.float32), 48_000, "stereo")
    assert len(bomb) < 40_000
    begin = time.perf_counter()
    assert reason(bomb, max_duration_s=30.0) == "too_long"
    assert time.perf_counter() - begin < 1.0
    assert decode_audio(wav(TONE16), max_duration_s=2.0).duration_s == 2.0
    assert reason(wav(TONE16), max_duration_s=1.99) == "too_long"
    # a header that declares little and holds much is no way around
    assert reason(wav(TONE16, data_size=0, riff_size=0), max_duration_s=1.0) == "too_long"


# ---- rates


@pytest.mark.case("A4")
@pytest.mark.parametrize("rate", [8_000, 11_025, 16_000, 22_050, 44_100, 48_000, 96_000])
def test_rates_keep_pitch_and_length(rate: int) -> None:
    source = tone(1.7, rate)
    expected = round(len(source) * 16_000 / rate)
    for audio in (decode_audio(wav(int16(source).tobytes(), rate=rate)), from_array(source, rate)):
        assert audio.rate == rate
        assert abs(len(audio.samples) - expected) <= 1
        assert peak_hertz(audio.samples[:16_000]) == 440
        assert np.abs(audio.samples[800:-800]).max() == pytest.approx(0.3, abs=0.003)


def test_long_audio_is_resampled_without_seams() -> None:
    source = tone(70.0, 44_100, 1000.0)
    audio = decode_audio(wav(int16(source).tobytes(), rate=44_100))
    assert len(audio.samples) == 70 * 16_000
    assert np.abs(audio.samples - tone(70.0, 16_000, 1000.0))[200:-200].max() < 1e-3


# ---- scale, values, channels


@pytest.mark.case("A3")
def test_scale_follows_the_type_never_the_peak() -> None:
    for gain in (1.0, 1.05, 3.5):
        loud = TONE * np.float32(gain / 0.3)
        np.testing.assert_array_equal(decode_audio(wav(loud.tobytes(), tag=FLOAT, bits=32)).samples, loud)
        np.testing.assert_array_equal(from_array(loud, 16_000).samples, loud)
    quiet = np.array([0, 1, -1, 2] * 200, np.int16)
    np.testing.assert_array_equal(from_array(quiet, 16_000).samples, quiet.astype(np.float32) / 32768)


def test_integers_held_as_floats_are_warned_about() -> None:
    audio = from_array(int16(TONE).astype(np.float32), 16_000)
    assert any("integers" in warning for warning in audio.warnings)
    assert np.abs(audio.samples).max() > 9_000


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf, 1e30])
def test_samples_that_are_no_numbers(value: float) -> None:
    for kind in ("<f4", "<f8"):
        bad = np.stack([TONE, TONE], axis=1).astype(kind)
        bad[1000, 1] = value
        assert reason(wav(bad.tobytes(), tag=FLOAT, bits=bad.dtype.itemsize * 8, channels=2)) == "not_finite"
        with pytest.raises(AudioError) as caught:
            from_array(bad, 16_000)
        assert caught.value.reason == "not_finite"


@pytest.mark.case("A6")
def test_channels_are_averaged() -> None:
    silent = np.zeros_like(TONE)
    left = decode_audio(wav(int16(np.stack([TONE, silent], 1)).tobytes(), channels=2))
    assert (left.channels, left.warnings, len(left.samples)) == (2, (), len(TONE))
    np.testing.assert_array_equal(left.samples, int16(TONE) / np.float32(65536))
    six = np.stack([TONE * level for level in (1, 0.5, 0, 0, 0.25, 0.25)], 1)
    audio = decode_audio(wav(int16(six).tobytes(), channels=6, extensible=True))
    assert audio.channels == 6
    np.testing.assert_allclose(audio.samples, TONE / 3, atol=2e-5)
    flac = decode_audio(encode("flac", "flac", TONE, layout="5.1"))
    np.testing.assert_allclose(flac.samples, TONE, atol=1e-4)


@pytest.mark.case("A6")
def test_opposite_phase_is_warned_about() -> None:
    opposite = np.stack([TONE, -TONE], 1)
    audio = decode_audio(wav(int16(opposite).tobytes(), channels=2))
    assert any("opposite phase" in warning for warning in audio.warnings)
    assert any("opposite phase" in warning for warning in from_array(opposite, 44_100).warnings)
    unrelated = RNG.standard_normal((16_000, 6)).astype(np.float32) * 0.1
    assert from_array(unrelated, 16_000).warnings == ()
    assert from_array(np.zeros((16_000, 2), np.float32), 16_000).warnings == ()


@pytest.mark.parametrize(
    "kind", ["int8", "int16", ">i2", "int32", "uint8", "uint16", "float16", "float32", "float64"]
)
def test_arrays_of_any_type(kind: str) -> None:
    dtype = np.dtype(kind)
    if dtype.kind == "f":
        array, step = TONE.astype(dtype), float(np.finfo(dtype).eps)
    else:
        half = 2.0 ** (dtype.itemsize * 8 - 1)
        array = (np.rint(TONE.astype(float) * half) + (half if dtype.kind == "u" else 0)).astype(dtype)
        step = 1 / half
    before = array.copy()
    audio = from_array(array, 16_000)
    np.testing.assert_allclose(audio.samples, TONE, atol=max(step, 1e-7))
    audio.samples[:] = 0
    np.testing.assert_array_equal(array, before)


def test_array_shapes() -> None:
    stereo = np.stack([TONE, TONE * 0.5])
    for array in (stereo, stereo.T, np.asfortranarray(stereo)):
        audio = from_array(array, 16_000)
        assert audio.channels == 2
        np.testing.assert_allclose(audio.samples, TONE * 0.75, atol=1e-7)
    for array in (TONE[None], TONE[:, None], list(TONE), TONE[::-1][::-1]):
        assert len(from_array(array, 16_000).samples) == len(TONE)
    for empty in (np.zeros(0, np.float32), np.zeros((0, 1), np.int16), np.zeros((2, 0), np.float32)):
        assert from_array(empty, 8_000).samples.shape == (0,)


@pytest.mark.parametrize(
    "array",
    [
        np.float32(1),
        np.zeros((2, 2), np.float32),
        np.zeros((2, 9), np.float32),
        np.zeros((100, 100), np.float32),
        np.zeros((1, 2, 100), np.float32),
        np.zeros(9, np.int64),
        np.zeros(9, np.complex64),
        np.zeros(9, bool),
        np.array(["a"]),
        np.array([None]),
    ],
    ids=str,
)
def test_unclear_arrays_are_refused(array: np.ndarray) -> None:
    with pytest.raises(AudioError) as caught:
        from_array(array, 16_000)
    assert caught.value.reason == "bad_array"


@pytest.mark.parametrize("rate", [0, -16_000, 1, 10**9, 44_100.5, True, float("nan"), float("inf")])
def test_senseless_rates_are_refused(rate: float) -> None:
    with pytest.raises(AudioError, match="rate"):
        from_array(TONE, rate)


@pytest.mark.case("A4", "A9")
def test_raw_samples_need_their_format() -> None:
    assert reason(TONE16, name="a.pcm") == "not_audio"
    np.testing.assert_array_equal(
        decode_audio(TONE16, pcm=PcmFormat(16_000)).samples, int16(TONE) / np.float32(32768)
    )
    odd = decode_audio(TONE16 + b"\1", pcm=PcmFormat(8_000))
    assert odd.rate == 8_000
    assert len(odd.samples) == 2 * len(TONE)
    assert any("ignored 1 byte after" in warning for warning in odd.warnings)
    stereo = decode_audio(TONE.repeat(2).astype("<f4").tobytes(), pcm=PcmFormat(16_000, "f32le", 2))
    np.testing.assert_array_equal(stereo.samples, TONE)
    assert len(decode_audio(b"", pcm=PcmFormat(16_000)).samples) == 0
    for bad in ({"encoding": "mp3"}, {"channels": 0}, {"channels": 99}):
        with pytest.raises(AudioError):
            PcmFormat(16_000, **bad)  # type: ignore[arg-type]
    with pytest.raises(AudioError):
        PcmFormat(0)


@pytest.mark.case("A10")
def test_decoding_twice_is_identical() -> None:
    data = encode("mp3", "libmp3lame", tone(1.0, 44_100), 44_100)
    assert decode_audio(data).samples.tobytes() == decode_audio(data).samples.tobytes()


# ---- utterance lists


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for name in ("a.wav", "b c.wav", "语音.wav"):
        (tmp_path / name).write_bytes(wav(TONE16[:800]))
    (tmp_path / "clips").mkdir()
    (tmp_path / "clips" / "cv_1.mp3").write_bytes(b"x")
    return tmp_path


def write_jsonl(path: Path, *entries: dict, newline: str = "\n", bom: bool = False) -> Path:
    text = newline.join(json.dumps(entry, ensure_ascii=False) for entry in entries) + newline
    path.write_bytes((b"\xef\xbb\xbf" if bom else b"") + text.encode())
    return path


@pytest.mark.parametrize("bom", [False, True])
@pytest.mark.parametrize("newline", ["\n", "\r\n", "\n\n"])
def test_jsonl(folder: Path, newline: str, bom: bool) -> None:
    entries = [
        {
            "audio": "a.wav",
            "text": "one\u2028two",
            "language": "en",
            "id": 7,
            "duration": 0.025,
            "subset": "5db",
        },
        {"audio": "b c.wav", "text": "", "emotion": "HAPPY", "events": ["BGM", "Speech"], "n": [1, 2]},
        {"audio": str(folder / "语音.wav"), "text": "你好\u0085", "language": "zh-CN"},
    ]
    found = read_utterances(write_jsonl(folder / "list.jsonl", *entries, newline=newline, bom=bom))
    one, two, three = found
    assert (one.id, one.text, one.language, one.duration_s) == ("7", "one\u2028two", "en", 0.025)
    assert one.extra == {"subset": "5db"}
    assert (two.id, two.text, two.language, two.emotion, two.events) == (
        "b c.wav",
        "",
        None,
        "HAPPY",
        ("BGM", "Speech"),
    )
    assert two.extra == {"n": "[1, 2]"}
    assert (three.audio, three.text, three.language) == (folder / "语音.wav", "你好\u0085", "zh")
    assert len(found) == 3


def test_other_tools_column_names(folder: Path) -> None:
    sensevoice = {
        "key": "k",
        "source": "a.wav",
        "target": "hi",
        "text_language": "<|en|>",
        "emo_target": "<|SAD|>",
    }
    sensevoice["event_target"] = "<|Speech|>"
    one = read_utterances(write_jsonl(folder / "s.jsonl", sensevoice)).utterances[0]
    assert (one.id, one.text, one.language, one.emotion, one.events) == ("k", "hi", "en", "SAD", ("Speech",))
    nemo = {"audio_filepath": "a.wav", "text": "hi", "duration": 1}
    assert read_utterances(write_jsonl(folder / "n.jsonl", nemo)).utterances[0].duration_s == 1.0


@pytest.mark.parametrize("newline", ["\n", "\r\n"])
def test_tables(folder: Path, newline: str) -> None:
    rows = ["id\taudio\ttext\tspeaker", 'u1\ta.wav\the said "hi\tx', "u2\tb c.wav\tyes\ty", ""]
    (folder / "t.tsv").write_text(newline.join(rows), encoding="utf-8-sig", newline="")
    one, two = read_utterances(folder / "t.tsv")
    assert (one.text, one.extra, two.audio.name) == ('he said "hi', {"speaker": "x"}, "b c.wav")
    (folder / "t.csv").write_text(newline.join(["audio,text", 'a.wav,"well, ""yes"""', ""]), newline="")
    assert read_utterances(str(folder / "t.csv")).utterances[0].text == 'well, "yes"'
    (folder / "excel.txt").write_bytes("audio\ttext\r\na.wav\t你好\r\n".encode("utf-16"))
    assert read_utterances(folder / "excel.txt").utterances[0].text == "你好"


def test_common_voice(folder: Path) -> None:
    (folder / "test.tsv").write_text("client_id\tpath\tsentence\tlocale\nc\tcv_1.mp3\t你好\tzh-HK\n")
    one = read_utterances(folder / "test.tsv").utterances[0]
    assert (one.audio, one.text, one.language) == (folder / "clips" / "cv_1.mp3", "你好", "yue")
    assert one.extra == {"client_id": "c"}


def write_kaldi(folder: Path, scp: str, text: str | None = None, **others: str) -> Path:
    (folder / "wav.scp").write_text(scp)
    if text is not None:
        (folder / "text").write_text(text)
    for name, content in others.items():
        (folder / name).write_text(content)
    return folder


def test_kaldi(folder: Path) -> None:
    write_kaldi(folder, "u1 a.wav\r\nu2\tb c.wav\r\n", "u2 two  words\nu1\n", utt2lang="u1 en\n")
    one, two = read_utterances(folder)
    assert (one.id, one.text, one.language) == ("u1", "", "en")
    assert (two.text, two.audio, two.language) == ("two  words", folder / "b c.wav", None)
    assert read_utterances(folder / "wav.scp").utterances == (one, two)
    (folder / "text").unlink()
    assert [each.text for each in read_utterances(folder)] == [None, None]


@pytest.mark.parametrize(
    ("scp", "text", "words"),
    [
        ("u1 sox a.wav -t wav - |\n", "u1 x\n", "commands are not run.*u1"),
        ("u1 a.wav\nu1 a.wav\n", "u1 x\n", "1 duplicate id.*u1"),
        (
            "u1 a.wav\nu2 a.wav\n",
            "u1 x\nu3 y\n",
            "1 id of text without audio in wav.scp.*u3.*1 id of wav.scp without text.*u2",
        ),
        ("u1 gone.wav\n", "u1 x\n", "1 audio file missing.*gone.wav"),
        ("u1\n", "u1 x\n", "no audio file is named"),
        ("", "", "no utterances"),
    ],
)
def test_kaldi_problems(folder: Path, scp: str, text: str, words: str) -> None:
    with pytest.raises(SvtoolError, match=words) as caught:
        read_utterances(write_kaldi(folder, scp, text))
    assert caught.value.exit_code == 1


def test_kaldi_segments_are_refused(folder: Path) -> None:
    with pytest.raises(SvtoolError, match="segments"):
        read_utterances(write_kaldi(folder, "u1 a.wav\n", "u1 x\n", segments="u1 a 0 1\n"))


def test_problems_of_a_list_come_together(folder: Path) -> None:
    entries = [{"audio": "a.wav", "id": "x"}, {"audio": "b c.wav", "id": "x"}]
    entries += [{"audio": f"no{i}.wav"} for i in range(5)]
    with pytest.raises(SvtoolError) as caught:
        read_utterances(write_jsonl(folder / "list.jsonl", *entries))
    message = str(caught.value)
    assert "1 duplicate id (x)" in message
    assert "5 audio files missing" in message
    assert "no0.wav" in message
    assert "2 more" in message
    assert "no4.wav" not in message


@pytest.mark.parametrize(
    ("name", "content", "words"),
    [
        ("l.jsonl", '{"audio": "a.wav"}\n{"audio": \n', "l.jsonl, line 2: not valid JSON"),
        ("l.jsonl", "[1]\n", "line 1: not a JSON object"),
        ("l.jsonl", '{"text": "x"}\n', "line 1: no audio file is named"),
        ("l.jsonl", '{"audio": 3}\n', "line 1: the audio is 3, a number"),
        ("l.jsonl", '{"audio": "a.wav", "text": 3}\n', "line 1: the text is 3"),
        ("l.jsonl", '{"audio": "a.wav", "duration": "x"}\n', "line 1: the duration"),
        ("l.jsonl", '{"audio": "a.wav", "duration": NaN}\n', "line 1: the duration"),
        ("l.jsonl", '{"audio": "nul\\u0000.wav"}\n', "1 audio file missing"),
        ("l.jsonl", '{"audio": "\\ud800.wav"}\n', "1 audio file missing"),
        ("l.jsonl", '{"audio": "clips"}\n', "1 audio file missing"),
        ("l.jsonl", "[" * 100_000, "line 1: not valid JSON"),
        ("l.jsonl", "\n \n", "no utterances"),
        ("l.tsv", "file_name\ttext\na.wav\tx\n", "names no audio column"),
        ("l.csv", "audio,text\na.wav,x,y\n", "line 2: 3 cells"),
        ("l.csv", "", "no utterances"),
        ("l.csv", "audio,text\n" + '"' + "x" * 200_000, "l.csv, line 2"),
    ],
)
def test_malformed_lists(folder: Path, name: str, content: str, words: str) -> None:
    (folder / name).write_text(content)
    with pytest.raises(SvtoolError, match=words):
        read_utterances(folder / name)


def test_lists_that_are_no_text_or_absent(folder: Path) -> None:
    (folder / "l.jsonl").write_bytes(b'{"audio": "a.wav"}\n{"audio": "\xff"}\n')
    with pytest.raises(SvtoolError, match="line 2: not UTF-8"):
        read_utterances(folder / "l.jsonl")
    for spec in (folder / "gone.jsonl", "nul\0"):
        with pytest.raises(SvtoolError, match="does not exist"):
            read_utterances(spec)
    with pytest.raises(SvtoolError, match=r"no wav\.scp"):
        read_utterances(folder)


def test_digest_follows_the_entries_not_the_place(
    folder: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    entry = {"audio": "a.wav", "text": "x", "language": "en"}
    digest = read_utterances(write_jsonl(folder / "l.jsonl", entry)).digest
    elsewhere = tmp_path_factory.mktemp("elsewhere")
    (elsewhere / "a.wav").write_bytes((folder / "a.wav").read_bytes())
    assert read_utterances(write_jsonl(elsewhere / "m.jsonl", entry)).digest == digest
    assert read_utterances(write_jsonl(folder / "l.jsonl", {**entry, "text": "y"})).digest != digest
    (elsewhere / "a.wav").write_bytes(wav(TONE16))
    assert read_utterances(elsewhere / "m.jsonl").digest != digest


def test_take_spreads_evenly(folder: Path) -> None:
    whole = read_utterances(
        write_jsonl(folder / "l.jsonl", *({"audio": "a.wav", "id": str(i)} for i in range(10)))
    )
    assert [one.id for one in whole.take(4)] == ["0", "2", "5", "7"]
    assert whole.take(4).digest not in (whole.digest, whole.take(5).digest)
    assert whole.take(99) is whole
    with pytest.raises(UsageError):
        whole.take(0)


def test_tiny_lists_are_rendered_by_name(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from svtool import tiny

    path = write_jsonl(folder / "list.jsonl", {"audio": "a.wav", "text": "x"})
    monkeypatch.setattr(tiny, "render", lambda name: {"drift": path}[name])
    assert read_utterances("tiny:drift").path == path
    monkeypatch.undo()
    with pytest.raises(SvtoolError, match="tiny:nope"):
        read_utterances("tiny:nope")


# ---- command-line arguments


def test_expand_inputs(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(folder)
    for name in (
        "sub/z.FLAC",
        "sub/y.mp3",
        "sub/notes.txt",
        "sub/.hidden.wav",
        "sub/.git/x.wav",
        "sub/deep/d.opus",
    ):
        Path(name).parent.mkdir(parents=True, exist_ok=True)
        Path(name).write_bytes(b"x")
    Path("empty").mkdir()
    Path("x[1].wav").write_bytes(b"x")
    Path("-i.wav").write_bytes(b"x")

    def expand(*args: str) -> list[str]:
        return [str(one.error or one.name) for one in expand_inputs(list(args))]

    assert expand("sub") == ["sub/y.mp3", "sub/z.FLAC", "sub/deep/d.opus"]
    assert expand("[ab]*.wav", "./a.wav", "a.wav") == ["a.wav", "b c.wav"]
    assert expand("x[1].wav", "-i.wav", "-", "-") == ["x[1].wav", "-i.wav", "stdin"]
    assert expand("**/*.opus") == ["sub/deep/d.opus"]
    assert expand("gone.wav", "gone*.wav") == ["gone.wav", "'gone*.wav' matches nothing"]
    (alone,) = expand("empty")
    assert alone.startswith("empty holds no audio files (looked for .wav, .flac")
    assert expand("sub/notes.txt") == ["sub/notes.txt"]
    assert expand() == []
    with pytest.raises(UsageError):
        expand("")
    assert expand_inputs(["-"]) == [Input("stdin")]
    assert reason(Path("empty")) == "not_audio"


def test_a_folder_gives_no_pipe_and_reports_links_to_nowhere(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe.wav")
    (tmp_path / "folder.wav").mkdir()
    (tmp_path / "lost.wav").symlink_to("gone.wav")
    assert [one.path for one in expand_inputs([str(tmp_path)])] == [tmp_path / "lost.wav"]


BAD_NAMES = ["plain.wav", "line\nbreak.wav", "esc\x1b[31m.wav", "bad\udcff.wav"]


@pytest.mark.parametrize("name", BAD_NAMES, ids=ascii)
@pytest.mark.parametrize(
    "content", [None, b"", b"text", b"\x00\x01" * 50, wav(TONE16[:800])[:30]], ids=["gone", *"0123"]
)
def test_every_refusal_names_the_file_once_on_one_line(
    tmp_path: Path, name: str, content: bytes | None
) -> None:
    path = tmp_path / name
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(AudioError) as caught:
        decode_audio(path)
    message = str(caught.value)
    assert message.isprintable()
    assert message.count(tmp_path.name) == 1
    assert message.count(".wav") == 1


def test_a_link_to_itself_names_the_file_once(tmp_path: Path) -> None:
    (tmp_path / "loop.wav").symlink_to("loop.wav")
    with pytest.raises(AudioError, match=r"loop\.wav cannot be opened: Too many levels") as caught:
        decode_audio(tmp_path / "loop.wav")
    assert str(caught.value).count("loop.wav") == 1


def test_audio_names_are_offered_by_one_module() -> None:
    assert set(utterances.__all__) >= {"decode_audio", "from_array", "Audio", "PcmFormat"}
    assert os.path.basename(utterances.__file__) == "utterances.py"
