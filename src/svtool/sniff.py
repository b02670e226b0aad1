"""Which container some bytes are, by their content alone.

Knows signatures and the frame headers of MPEG audio and ADTS; decodes nothing. A file with no known signature
is not audio here: guessing (as demuxer probing does) would read a text file or random bytes as sound.
"""

from __future__ import annotations

import re
from typing import BinaryIO, Literal

HEAD_BYTES = 65_536
_CHAIN = 3  # consecutive frame headers that make a stream of frames; random bytes pass with odds below 1e-10

# kbit/s for each (MPEG-1 or not, layer), from index 1 of the header field
_KBITS = {
    (True, 1): tuple(range(32, 449, 32)),
    (True, 2): (32, 48, 56, 64, 80, 96, 112, 128, 160, 192, 224, 256, 320, 384),
    (True, 3): (32, 40, 48, 56, 64, 80, 96, 112, 128, 160, 192, 224, 256, 320),
    (False, 1): (32, 48, 56, 64, 80, 96, 112, 128, 144, 160, 176, 192, 224, 256),
    (False, 2): (8, 16, 24, 32, 40, 48, 56, 64, 80, 96, 112, 128, 144, 160),
    (False, 3): (8, 16, 24, 32, 40, 48, 56, 64, 80, 96, 112, 128, 144, 160),
}
_RATES = (44_100, 48_000, 32_000)  # of MPEG-1; halved for MPEG-2, quartered for MPEG-2.5
_SYNC = re.compile(rb"\xff[\xe0-\xff]")

# demuxer names are FFmpeg's
_SIGNATURES = (
    ("wav", re.compile(rb"(RIFF|RF64|BW64|RIFX)....WAVE", re.DOTALL)),
    ("avi", re.compile(rb"RIFF....AVI ", re.DOTALL)),
    ("w64", re.compile(rb"riff\x2e\x91\xcf\x11")),
    ("aiff", re.compile(rb"FORM....AIF[FC]", re.DOTALL)),
    ("au", re.compile(rb"\.snd")),
    ("caf", re.compile(rb"caff\x00")),
    ("flac", re.compile(rb"fLaC")),
    ("ogg", re.compile(rb"OggS")),
    ("matroska", re.compile(rb"\x1a\x45\xdf\xa3")),
    ("mov", re.compile(rb"....(ftyp|moov|mdat|wide|free|skip)", re.DOTALL)),
    ("amr", re.compile(rb"#!AMR")),
    ("asf", re.compile(rb"\x30\x26\xb2\x75\x8e\x66\xcf\x11")),
)
DEMUXERS = (*(name for name, _ in _SIGNATURES), "mp3", "aac")


def sniff(stream: BinaryIO) -> str | None:
    """The demuxer for what the stream holds, or None. The stream is left at its start."""
    offset = 0
    try:
        while True:
            stream.seek(offset)
            head = stream.read(HEAD_BYTES)
            tag = _id3_bytes(head)
            if not tag:
                return _match(head)
            offset += tag
    finally:
        stream.seek(0)


def plain_header(head: bytes) -> tuple[int, int] | None:
    """(Hz, channels) as a WAV or AU header has them, possible or not; None for other files and half a header."""
    if _SIGNATURES[0][1].match(head):
        order: Literal["little", "big"] = "big" if head[:4] == b"RIFX" else "little"
        at = 12
        while at + 16 <= len(head):
            if head[at : at + 4] == b"fmt ":
                return _number(head[at + 12 : at + 16], order), _number(head[at + 10 : at + 12], order)
            size = _number(head[at + 4 : at + 8], order)
            at += 8 + size + size % 2
    if head[:4] == b".snd" and len(head) >= 24:
        return _number(head[16:20], "big"), _number(head[20:24], "big")
    return None


def _number(field: bytes, order: Literal["little", "big"]) -> int:
    return int.from_bytes(field, order)


def looks_like_text(head: bytes) -> bool:
    """Whether every byte is printable ASCII or white space."""
    return bool(head) and not head.translate(None, bytes(range(32, 127)) + b"\t\n\r\f")


def _id3_bytes(head: bytes) -> int:
    """Length of an ID3v2 tag at the start (MP3, ADTS and FLAC files carry them), 0 without one."""
    if len(head) < 10 or head[:3] != b"ID3" or max(head[6:10]) > 127:
        return 0
    size = 0
    for seven_bits in head[6:10]:
        size = size << 7 | seven_bits
    return 10 + size + (10 if head[5] & 0x10 else 0)


def _match(head: bytes) -> str | None:
    for name, signature in _SIGNATURES:
        if signature.match(head):
            return name
    return _framed(head)


def _framed(head: bytes) -> str | None:
    """Audio without a container is recognised by a chain of frames, each one ending where the next begins."""
    for sync in _SYNC.finditer(head):
        found = _chain(head, sync.start())
        if found:
            return found
    return None


def _chain(head: bytes, start: int) -> str | None:
    first = _frame(head, start)
    if first is None:
        return None
    kind, at = first[0], start + first[1]
    for count in range(1, _CHAIN):
        if at == len(head) and (count > 1 or start == 0):
            break  # a recording of one or two frames
        following = _frame(head, at)
        if following is None or following[0] != kind:
            return None
        at += following[1]
    return kind[0]


def _frame(head: bytes, at: int) -> tuple[tuple[str, int, int], int] | None:
    """((demuxer, version and layer bits, rate), length in bytes) of the frame whose header stands at `at`."""
    header = head[at : at + 7]
    if len(header) < 7 or header[0] != 0xFF or header[1] & 0xE0 != 0xE0:
        return None
    return _adts_frame(header) if header[1] & 0x06 == 0 else _mpeg_frame(header)


def _adts_frame(header: bytes) -> tuple[tuple[str, int, int], int] | None:
    rate = header[2] >> 2 & 15
    length = (header[3] & 3) << 11 | header[4] << 3 | header[5] >> 5
    if header[1] & 0xF0 != 0xF0 or rate > 12 or length < 7:
        return None
    return ("aac", header[1], rate), length


def _mpeg_frame(header: bytes) -> tuple[tuple[str, int, int], int] | None:
    version, layer = header[1] >> 3 & 3, 4 - (header[1] >> 1 & 3)
    bits, rate_index = header[2] >> 4, header[2] >> 2 & 3
    if version == 1 or rate_index == 3 or bits in (0, 15):
        return None
    rate = _RATES[rate_index] // {3: 1, 2: 2, 0: 4}[version]
    bits_per_second = _KBITS[version == 3, layer][bits - 1] * 1000
    padding = header[2] >> 1 & 1
    if layer == 1:
        length = (12 * bits_per_second // rate + padding) * 4
    else:
        samples = 576 if layer == 3 and version != 3 else 1152
        length = samples // 8 * bits_per_second // rate + padding
    return ("mp3", header[1] & 0x1E, rate), length
