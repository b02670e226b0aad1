"""Audio files made on the spot: WAV headers of every kind by hand, compressed containers through PyAV."""

from __future__ import annotations

import io
import struct

import av
import numpy as np
import numpy.typing as npt

PCM, FLOAT, ALAW, MULAW, EXTENSIBLE = 1, 3, 6, 7, 0xFFFE
_GUID_TAIL = b"\x00\x00\x00\x00\x10\x00\x80\x00\x00\xaa\x00\x38\x9b\x71"


def tone(
    seconds: float = 1.0, rate: int = 16_000, hertz: float = 440.0, level: float = 0.3
) -> npt.NDArray[np.float32]:
    return (level * np.sin(2 * np.pi * hertz * np.arange(int(seconds * rate)) / rate)).astype(np.float32)


def int16(samples: npt.ArrayLike) -> npt.NDArray[np.int16]:
    return np.clip(np.rint(np.asarray(samples) * 32768), -32768, 32767).astype("<i2")


def packed24(samples: npt.ArrayLike) -> bytes:
    whole = np.rint(np.asarray(samples) * 2**23).astype("<i4")
    return whole.view("u1").reshape(-1, 4)[:, :3].tobytes()


def chunk(name: bytes, body: bytes, size: int | None = None) -> bytes:
    return name + struct.pack("<I", len(body) if size is None else size) + body + b"\0" * (len(body) % 2)


def wav(
    data: bytes,
    *,
    tag: int = PCM,
    bits: int = 16,
    rate: int = 16_000,
    channels: int = 1,
    before: bytes = b"",
    data_size: int | None = None,
    riff_size: int | None = None,
    extensible: bool = False,
) -> bytes:
    block = channels * bits // 8
    fields = struct.pack("<HIIHH", channels, rate, rate * block, block, bits)
    if extensible:
        extra = struct.pack("<HHIH", 22, bits, (1 << channels) - 1, tag) + _GUID_TAIL
        fmt = struct.pack("<H", EXTENSIBLE) + fields + extra
    else:
        fmt = struct.pack("<H", tag) + fields
    body = b"WAVE" + before + chunk(b"fmt ", fmt) + chunk(b"data", data, data_size)
    return b"RIFF" + struct.pack("<I", len(body) if riff_size is None else riff_size) + body


def encode(
    container: str,
    codec: str,
    samples: npt.NDArray[np.float32],
    rate: int = 16_000,
    layout: str = "mono",
    options: dict[str, str] | None = None,
) -> bytes:
    """`samples` [N], the same in every channel."""
    out = io.BytesIO()
    with av.open(out, "w", format=container, options=options or {}) as file:
        stream = file.add_stream(codec, rate=rate, layout=layout)
        if codec == "wmav2":
            stream.bit_rate = 64_000  # it has no default
        stream.codec_context.open()
        frame = av.AudioFrame.from_ndarray(
            np.repeat(samples[None], stream.codec_context.channels, axis=0), format="fltp", layout=layout
        )
        frame.sample_rate, frame.pts = rate, 0
        resampler = av.AudioResampler(
            format=stream.codec_context.format,
            layout=layout,
            rate=rate,
            frame_size=stream.codec_context.frame_size or None,
        )
        for piece in (*resampler.resample(frame), *resampler.resample(None)):
            file.mux(stream.encode(piece))
        file.mux(stream.encode(None))
    return out.getvalue()


def video_only() -> bytes:
    out = io.BytesIO()
    with av.open(out, "w", format="mp4") as file:
        stream = file.add_stream("mpeg4", rate=10)
        stream.width = stream.height = 32
        stream.pix_fmt = "yuv420p"
        for _ in range(3):
            file.mux(stream.encode(av.VideoFrame(32, 32, "yuv420p")))
        file.mux(stream.encode(None))
    return out.getvalue()
