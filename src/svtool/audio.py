"""Any audio to mono 16 kHz float32: files, bytes and arrays.

Sample values are scaled by their type alone: integers to -1..1 by their width, floats as they are, whatever
their peak. Channels are averaged, every rate is resampled. Knows nothing of features, models or utterance
lists, and opens nothing but what it was given: a demuxer that could name another file or a URL is never used.
"""

from __future__ import annotations

import io
import re
import shlex
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO

import numpy as np
import numpy.typing as npt

from svtool.errors import AudioError, counted, shown
from svtool.sniff import DEMUXERS, HEAD_BYTES, looks_like_text, plain_header, sniff

if TYPE_CHECKING:
    import av
    from av.audio.frame import AudioFrame
    from av.container import InputContainer
    from av.packet import Packet

FloatArray = npt.NDArray[np.float32]

SAMPLE_RATE = 16_000
MAX_CHANNELS = 16  # in arrays: the axis that is this short, or shorter, holds the channels
_RATES = (1_000, 768_000)  # outside, a header or a caller is wrong; a rate of 1 Hz would swell 16 000 times
_BLOCK_S = 30  # mixed this much at a time: memory follows the result, not the source's rate and channels
_ABSURD_PEAK = 1e6  # 120 dB over full scale: squares of such values no longer fit the frontend's float32
_INTEGER_PEAK = 8.0  # lossy decoders overshoot 1.0 by less than this; floats beyond it were integers once

# what samples without a header most often are under such a name, in FFmpeg's words
_RAW_FORMS = {
    **dict.fromkeys((".pcm", ".raw", ".lpcm", ".s16", ".s16le"), "-f s16le -ar 16000 -ac 1"),
    **dict.fromkeys((".f32", ".f32le"), "-f f32le -ar 16000 -ac 1"),
    **dict.fromkeys((".sln", ".slin"), "-f s16le -ar 8000 -ac 1"),
    **dict.fromkeys((".ulaw", ".ul", ".mulaw"), "-f mulaw -ar 8000 -ac 1"),
    **dict.fromkeys((".alaw", ".al"), "-f alaw -ar 8000 -ac 1"),
    ".gsm": "-f gsm",
}
_LONGEST_IN_COMMAND = 200
# a length field in RIFF is a promise only when its writer knew the end: streams leave 0 or a huge number
_RIFF_STREAMED = 0x7FFF_0000
# headers of these carry the true length, so a shorter result means a cut file
_EXACT_LENGTH = {"flac", "mov", "w64", "aiff", "au", "caf", "matroska"}

_ENCODING_BYTES = {
    encoding: bits // 8
    for encodings, bits in (
        ("u8 s8 alaw mulaw", 8),
        ("s16le s16be", 16),
        ("s24le s24be", 24),
        ("s32le s32be f32le f32be", 32),
        ("f64le f64be", 64),
    )
    for encoding in encodings.split()
}


@dataclass(frozen=True)
class Audio:
    """One recording as the models want it, and what it was."""

    samples: FloatArray  # [N] mono, 16 kHz, -1..1 (lossy decoders and floats may exceed it)
    rate: int  # Hz, of the source
    channels: int  # of the source
    warnings: tuple[str, ...] = ()

    @property
    def duration_s(self) -> float:
        return len(self.samples) / SAMPLE_RATE


@dataclass(frozen=True)
class PcmFormat:
    """What raw samples without a header are; nothing is taken for raw samples unless one of these says so."""

    rate: int  # Hz
    encoding: str = "s16le"
    channels: int = 1

    def __post_init__(self) -> None:
        if self.encoding not in _ENCODING_BYTES:
            known = ", ".join(_ENCODING_BYTES)
            raise AudioError(
                f"unknown PCM encoding {self.encoding!r}: use one of {known}", reason="bad_array"
            )
        if not 1 <= self.channels <= MAX_CHANNELS:
            raise AudioError(
                f"PCM needs 1 to {MAX_CHANNELS} channels, not {self.channels}", reason="bad_array"
            )
        _check_rate(self.rate, "PCM", "bad_array")

    @property
    def frame_bytes(self) -> int:
        return _ENCODING_BYTES[self.encoding] * self.channels


def decode_audio(
    source: Path | bytes,
    *,
    name: str | None = None,
    max_duration_s: float | None = None,
    pcm: PcmFormat | None = None,
) -> Audio:
    """Decode a file or the bytes of one. The format is found from the content; `name` (default: the path as
    given) serves messages, each of which names it once, and tells headerless G.722 (`*.g722`). Audio longer than
    `max_duration_s` is refused as soon as decoding gets there.

    A file that breaks off or holds damaged parts gives what could be decoded, with a warning; a file with an
    audio stream of length zero gives zero samples.
    """
    label = shown(name if name is not None else (str(source) if isinstance(source, Path) else "audio"))
    with _opened(source, label) as stream:
        warnings: list[str] = []
        demuxer, options = _raw_demuxer(stream, pcm, warnings) if pcm else (_demuxer(stream, label), {})
        if demuxer == "wav":
            _check_riff_length(stream, warnings)
        return _decode(stream, demuxer, options, label, max_duration_s, warnings)


def from_array(array: npt.ArrayLike, rate: float) -> Audio:
    """Samples from memory, [N], [N, channels] or [channels, N], of any rate.

    Integers are scaled by their type's width (uint8 around 128, as in WAV), floats are taken as they are.
    Refused: int64 and uint64 (their scale says nothing), and shapes whose channel axis is not plain.
    """
    if isinstance(rate, bool) or not float(rate).is_integer():
        raise AudioError(f"the sample rate must be a whole number of Hz, not {rate!r}", reason="bad_array")
    _check_rate(int(rate), "the array", "bad_array")
    mixer = _Mixer("the array")
    mixer.add(_by_channel(np.asarray(array)), int(rate))
    return mixer.result([])


def _by_channel(array: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """The array as [channels, N]."""
    if array.dtype.kind not in "fiu" or array.dtype in (np.int64, np.uint64):
        raise AudioError(
            f"samples of type {array.dtype} have no agreed scale: pass int16, int32, uint8 or floats (-1..1)",
            reason="bad_array",
        )
    if array.ndim == 1:
        return array[None, :]
    if array.ndim != 2:
        raise AudioError(f"an array of shape {array.shape} is not [N] or [N, channels]", reason="bad_array")
    rows, columns = array.shape
    channels_first, channels_last = 1 <= rows <= MAX_CHANNELS, 1 <= columns <= MAX_CHANNELS
    if rows == 1 or (channels_first and not channels_last):
        return array
    if columns == 1 or (channels_last and not channels_first):
        return array.T
    raise AudioError(
        f"an array of shape {array.shape} does not tell channels from time: pass [N], or one axis of 1 to "
        f"{MAX_CHANNELS} channels and one of more samples than that",
        reason="bad_array",
    )


def _check_rate(rate: int, label: str, reason: str) -> None:
    low, high = _RATES
    if not low <= rate <= high:
        raise AudioError(f"{label}: a sample rate of {rate} Hz is outside {low} to {high} Hz", reason=reason)


@contextmanager
def _opened(source: Path | bytes, label: str) -> Iterator[BinaryIO]:
    # always a Python file object: a path handed to FFmpeg would be parsed as a URL or an option
    if isinstance(source, bytes | bytearray | memoryview):
        yield io.BytesIO(source)
        return
    try:
        stream: BinaryIO = source.open("rb")
    except IsADirectoryError as error:
        raise AudioError(f"{label} is a directory, not an audio file", reason="not_audio") from error
    except FileNotFoundError as error:
        lost = " (a link to what is not there)" if source.is_symlink() else ""
        raise AudioError(f"{label} does not exist{lost}", reason="missing") from error
    except (OSError, ValueError) as error:
        # the text of an OSError would name the file once more
        why = getattr(error, "strerror", None) or error
        raise AudioError(f"{label} cannot be opened: {why}", reason="missing") from error
    with stream:
        yield stream if stream.seekable() else io.BytesIO(_read_all(stream, label))


def _read_all(stream: BinaryIO, label: str) -> bytes:
    try:
        return stream.read()
    except OSError as error:
        raise AudioError(f"{label} cannot be read: {error.strerror}", reason="broken") from error


def _demuxer(stream: BinaryIO, label: str) -> str:
    found = sniff(stream)
    if found:
        return found
    head = stream.read(HEAD_BYTES)
    stream.seek(0)
    suffix = Path(label).suffix.lower()
    if not head:
        raise AudioError(f"{label} is empty (0 bytes)", reason="not_audio")
    if suffix == ".g722" and not looks_like_text(head):
        return "g722"
    hint = ""
    if looks_like_text(head):
        hint = ": it looks like text"
    elif suffix in _RAW_FORMS:
        hint = f": samples without a header; {_wav_command(label, suffix)}"
    raise AudioError(f"{label} is not in a known audio format{hint}", reason="not_audio")


def _wav_command(label: str, suffix: str) -> str:
    """How to make a WAV file of samples whose format nothing but their owner can know."""
    name = label if len(label) <= _LONGEST_IN_COMMAND else f"recording{suffix}"
    name = f"./{name}" if name.startswith("-") else name
    source, target = shlex.quote(name), shlex.quote(name[: -len(suffix)] + ".wav")
    return f"make a WAV of them, with the rate they have, as  ffmpeg {_RAW_FORMS[suffix]} -i {source} {target}  does"


def _raw_demuxer(stream: BinaryIO, pcm: PcmFormat, warnings: list[str]) -> tuple[str, dict[str, str]]:
    size = stream.seek(0, io.SEEK_END)
    stream.seek(0)
    if size % pcm.frame_bytes:
        warnings.append(f"ignored {counted(size % pcm.frame_bytes, 'byte')} after the last whole sample")
    return pcm.encoding, {"sample_rate": str(pcm.rate), "ch_layout": f"{pcm.channels}c"}


def _check_riff_length(stream: BinaryIO, warnings: list[str]) -> None:
    head = stream.read(8)
    size = stream.seek(0, io.SEEK_END)
    stream.seek(0)
    declared = int.from_bytes(head[4:8], "big" if head[:4] == b"RIFX" else "little") + 8
    # writers differ by the padding byte, so a byte or two prove nothing
    if head[:4] in (b"RIFF", b"RIFX") and size + 2 < declared < _RIFF_STREAMED:
        warnings.append(f"the file ends early: {size} of {declared} bytes are there")


def _decode(
    stream: BinaryIO,
    demuxer: str,
    options: dict[str, str],
    label: str,
    max_duration_s: float | None,
    warnings: list[str],
) -> Audio:
    reader = _Reader(label, max_duration_s)
    with _container(stream, demuxer, options, label) as container:
        audio_stream = _audio_stream(container, label)
        reader.read(container, audio_stream)
        declared_s = _declared_s(container, audio_stream) if demuxer in _EXACT_LENGTH else 0.0
        context = audio_stream.codec_context
        rate, channels = int(context.sample_rate or 0), int(context.channels or 0)
    if not reader.decoded_s and (reader.damage or declared_s):
        raise AudioError(
            f"{label} is broken: nothing in it could be decoded", reason="broken"
        ) from reader.damage
    if reader.damaged:
        warnings.append(f"skipped {counted(reader.damaged, 'damaged part')}")
    if declared_s - reader.decoded_s > max(0.5, 0.01 * declared_s):
        warnings.append(
            f"the file ends early: {reader.decoded_s:.2f} s of {declared_s:.2f} s could be decoded"
        )
    if not reader.decoded_s:
        return Audio(np.zeros(0, np.float32), rate, channels, tuple(warnings))
    return reader.mixer.result(warnings)


def _audio_stream(container: InputContainer, label: str) -> av.AudioStream:
    found = container.streams.audio
    if not found:
        raise AudioError(f"{label} has no audio stream", reason="no_audio_stream")
    best = next((one for one in found if one == container.streams.best("audio")), found[0])
    # typed as always there, but None where FFmpeg has no decoder or the header makes no sense
    if getattr(best, "codec_context", None) is None:
        raise AudioError(f"{label}: there is no decoder for its audio", reason="no_decoder")
    return best


@contextmanager
def _container(
    stream: BinaryIO, demuxer: str, options: dict[str, str], label: str
) -> Iterator[InputContainer]:
    import av

    # The demuxer is named, so nothing is probed; the whitelists stand behind it: formats that include other
    # files (concat, HLS, DASH, SDP ...) cannot be reached, nor any protocol that opens something.
    options = {**options, "format_whitelist": ",".join((*DEMUXERS, demuxer)), "protocol_whitelist": "none"}
    if demuxer == "wav":
        # packets of 64 KiB instead of 4, and no search for DTS inside PCM: 10 s open in 3 ms instead of 30
        options |= {"max_size": "65536", "probesize": "2048"}
    try:
        with av.open(stream, "r", format=demuxer, options=options, metadata_errors="replace") as container:
            yield container
    except av.FFmpegError as error:
        raise AudioError(_why_not_opened(stream, label, error), reason="broken") from error


def _why_not_opened(stream: BinaryIO, label: str, error: av.FFmpegError) -> str:
    """FFmpeg has one sentence for every damaged header, which says no more than that it is damaged."""
    import av

    if not isinstance(error, av.InvalidDataError | av.EOFError):
        return f"{label} cannot be read: {error.strerror}"
    stream.seek(0)
    header = plain_header(stream.read(HEAD_BYTES))
    lost: list[str] = []
    stream.seek(0)
    _check_riff_length(stream, lost)
    if header is not None:
        _check_rate(header[0], label, "broken")
    return (
        f"{label} is broken: {lost[0]}"
        if lost
        else f"{label} is broken or cut off: its header makes no sense"
    )


def _declared_s(container: InputContainer, audio_stream: av.AudioStream) -> float:
    if audio_stream.duration and audio_stream.time_base:
        return float(audio_stream.duration * audio_stream.time_base)
    return (container.duration or 0) / 1e6


class _Reader:
    """Pulls frames out of a container into a mixer, block by block, within a duration limit."""

    def __init__(self, label: str, max_duration_s: float | None) -> None:
        self.mixer = _Mixer(label)
        self.decoded_s = 0.0
        self.damaged = 0
        self.damage: Exception | None = None
        self._label = label
        self._max_duration_s = max_duration_s

    def read(self, container: InputContainer, audio_stream: av.AudioStream) -> None:
        block: list[npt.NDArray[Any]] = []
        kind: tuple[int, int, bool] | None = None  # rate, channels, planar
        held = 0
        for frame in self._frames(container, audio_stream):
            frame_kind = (frame.sample_rate, frame.layout.nb_channels, frame.format.is_planar)
            if kind and (frame_kind != kind or held >= _BLOCK_S * kind[0]):
                self._flush(block, kind)
                block, held = [], 0
            kind = frame_kind
            _check_rate(kind[0], self._label, "broken")
            self.decoded_s += frame.samples / kind[0]
            if self._max_duration_s is not None and self.decoded_s > self._max_duration_s:
                raise AudioError(
                    f"{self._label} is longer than the limit of {self._max_duration_s:g} s", reason="too_long"
                )
            block.append(frame.to_ndarray())
            held += frame.samples
        if kind and block:
            self._flush(block, kind)

    def _frames(self, container: InputContainer, audio_stream: av.AudioStream) -> Iterator[AudioFrame]:
        import av

        try:
            for packet in container.demux(audio_stream):
                try:
                    frames = _of_whole_samples(packet, audio_stream).decode()
                except av.FFmpegError as error:
                    # one damaged packet leaves the next ones decodable
                    self.damaged, self.damage = self.damaged + 1, error
                    continue
                yield from frames
        except av.FFmpegError as error:
            self.damaged, self.damage = self.damaged + 1, error

    def _flush(self, block: list[npt.NDArray[Any]], kind: tuple[int, int, bool]) -> None:
        rate, channels, planar = kind
        joined = np.concatenate(block, axis=1)  # [C, N] planar, [1, N * C] interleaved
        self.mixer.add(joined if planar else joined.reshape(-1, channels).T, rate)


def _of_whole_samples(packet: Packet[av.AudioStream], audio_stream: av.AudioStream) -> Packet[av.AudioStream]:
    """Older FFmpeg turns down a whole PCM packet when the file ends inside a sample; cut that sample off."""
    import av

    context = audio_stream.codec_context
    if not context.name.startswith("pcm_"):
        return packet
    bits = re.search(r"\d+", context.name)  # pcm_s24le; A-law and mu-law have 8
    size = (int(bits[0]) if bits else 8) // 8 * context.layout.nb_channels
    if size == 0 or packet.size % size == 0 or packet.size < size:
        return packet
    whole: Packet[Any] = av.Packet(bytes(packet)[: packet.size // size * size])
    whole.stream = audio_stream
    whole.pts, whole.dts, whole.time_base = packet.pts, packet.dts, packet.time_base
    return whole


class _Mixer:
    """Averages channels and resamples, block by block; `result` gives the whole."""

    def __init__(self, label: str) -> None:
        self._label = label
        self._parts: list[FloatArray] = []
        self._resampler: Any = None
        self._rate = 0  # of the current run of blocks
        self._source: tuple[int, int] | None = None  # rate and channels of the first block
        self._mono_energy = 0.0
        self._channel_energy = 0.0  # mean over channels
        self._peak = 0.0
        self._changed = False

    def add(self, block: npt.NDArray[Any], rate: int) -> None:
        """`block`: [channels, N] of any real type."""
        if self._source is None:
            self._source = (rate, len(block))
        if rate != self._rate:
            self._change_rate(rate)
        samples = _scaled(block)
        if block.dtype.kind == "f":
            self._check_values(samples)
        mono = samples[0] if len(samples) == 1 else samples.mean(axis=0, dtype=np.float32)
        if len(samples) > 1:
            self._channel_energy += sum(float(np.vdot(one, one)) for one in samples) / len(samples)
            self._mono_energy += float(np.vdot(mono, mono))
        self._parts.append(self._resampler.resample_chunk(mono) if self._resampler else mono)

    def result(self, warnings: list[str]) -> Audio:
        assert self._source is not None
        self._end_run()
        samples = np.ascontiguousarray(
            self._parts[0] if len(self._parts) == 1 else np.concatenate(self._parts)
        )
        rate, channels = self._source
        return Audio(samples, rate, channels, (*warnings, *self._warnings(channels)))

    def _change_rate(self, rate: int) -> None:
        import soxr

        self._changed = self._rate != 0
        self._end_run()
        self._rate = rate
        self._resampler = (
            None if rate == SAMPLE_RATE else soxr.ResampleStream(rate, SAMPLE_RATE, 1, dtype="float32")
        )

    def _end_run(self) -> None:
        if self._resampler:
            self._parts.append(self._resampler.resample_chunk(np.zeros(0, np.float32), last=True))
            self._resampler = None

    def _check_values(self, samples: FloatArray) -> None:
        peak = float(np.abs(samples).max(initial=0.0))  # NaN and Inf pass through max
        if not peak <= _ABSURD_PEAK:
            what = "NaN or infinite samples" if not np.isfinite(peak) else f"samples as large as {peak:.3g}"
            raise AudioError(f"{self._label} holds {what}", reason="not_finite")
        self._peak = max(self._peak, peak)

    def _warnings(self, channels: int) -> Iterator[str]:
        # unrelated channels keep 1/channels of their energy in the average; far less means that they cancel
        if channels > 1 and self._mono_energy < 0.2 / channels * self._channel_energy:
            yield "the channels cancel each other when averaged (opposite phase): record or pick one channel"
        if self._peak > _INTEGER_PEAK:
            yield f"float samples reach {self._peak:.0f}, full scale is 1.0: were they 16-bit integers?"
        if self._changed:
            yield "the sample rate changes inside the file"


def _scaled(block: npt.NDArray[Any]) -> FloatArray:
    """Float32 by type alone, a fresh array; the peak decides nothing."""
    with np.errstate(over="ignore"):  # float64 beyond float32 becomes Inf, which is refused after
        samples = np.array(block, dtype=np.float32, order="C")
    if block.dtype.kind == "f":
        return samples
    half_range = np.float32(2.0 ** (block.dtype.itemsize * 8 - 1))
    if block.dtype.kind == "u":
        samples -= half_range
    samples *= 1 / half_range
    return samples
