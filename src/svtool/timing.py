"""Words and segments of one utterance with approximate times. Knows nothing of tokens' ids, models or file formats.

Times come from the CTC path: one frame is 60 ms, so they are good to about that, and the end of a word is where
its last token was seen, not where its sound ends.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

_FRAME_MS = 60.0
_LEAD_MS = 30.0  # an LFR frame is centred on its fbank frame: frame t covers 60t-30 .. 60t+30 ms
_LAST_MS = 25.0  # the shortest audio whose last frame is t ends 25 ms after 60t

_CJK = re.compile(
    "[\u2e80-\u2fdf\u3005-\u3007\u3041-\u309f\u30a1-\u30fa\u30fc-\u30ff\u31f0-\u31ff\u3400-\u4dbf\u4e00-\u9fff"
    "\uf900-\ufaff\uff66-\uff9f\U00020000-\U0003ffff]"
)
_CJK_PUNCTUATION = re.compile("[\u3000-\u3003\u3008-\u3020\u30fb\uff01-\uff65]")
_SENTENCE_ENDS = ".?!。？！…"
_OPENING = ("Ps", "Pi")
_BYTE_PIECE = re.compile(r"<0x([0-9A-F]{2})>")


@dataclass(frozen=True)
class Word:
    """A word, or one CJK character, with the punctuation that clings to it."""

    text: str
    start_s: float
    end_s: float
    spaced: bool = False  # the text has a space before it

    def shifted(self, offset_s: float) -> Word:
        return replace(self, start_s=self.start_s + offset_s, end_s=self.end_s + offset_s)


@dataclass(frozen=True)
class Segment:
    """Words that are shown together."""

    text: str
    start_s: float
    end_s: float
    words: tuple[Word, ...]


@dataclass(frozen=True)
class Span:
    """Where one token was seen: frames `start` .. `end` (exclusive), counted from the first audio frame."""

    piece: str
    start: int
    end: int


def time_words(
    text: str, spans: Sequence[Span], frames: int, duration_s: float | None = None
) -> tuple[Word, ...]:
    """The words of `text`, each with 0 <= start < end <= duration, in order.

    Args:
        text: what the tokens say, white space already single.
        spans: the text tokens of the CTC path, in order.
        frames: audio frames of this utterance (without the four queries).
        duration_s: length of the audio; without it the shortest one that has so many frames.
    """
    words = split_words(text)
    if not words or frames < 1:
        return ()
    limits = _character_limits(spans, frames)
    lengths = np.array([len(word) for word, _ in words])
    last = np.cumsum(lengths)
    # one to one as a rule; where the tokenizer decodes to other characters, spread them over those that it has
    first_index = (last - lengths) * len(limits) // last[-1]
    last_index = (last - 1) * len(limits) // last[-1]
    frame_ms = _frame_times(frames, duration_s)
    times = np.interp(
        np.stack([limits[first_index, 0], limits[last_index, 1]]), np.arange(frames + 1), frame_ms
    )
    times_s = _in_whole_ms(times) / 1000.0
    return tuple(
        Word(word, float(start), float(end), spaced)
        for (word, spaced), start, end in zip(words, times_s[0], times_s[1], strict=True)
    )


def _character_limits(spans: Sequence[Span], frames: int) -> npt.NDArray[np.float64]:
    """Start and end [characters, 2] in frames; the characters of one token share its span evenly."""
    rows: list[tuple[float, float]] = []
    for span in spans:
        count = _characters(span.piece)
        step = (span.end - span.start) / max(count, 1)
        rows += [(span.start + step * one, span.start + step * (one + 1)) for one in range(count)]
    return np.array(rows or [(0.0, float(frames))])


def _characters(piece: str) -> int:
    """Visible characters of a piece. A byte piece counts where a UTF-8 character begins."""
    byte = _BYTE_PIECE.fullmatch(piece)
    if byte:
        return int(not 0x80 <= int(byte[1], 16) < 0xC0)
    return sum(not character.isspace() for character in piece.replace("▁", " "))


def _frame_times(frames: int, duration_s: float | None) -> npt.NDArray[np.float64]:
    """The limits of all frames in ms, [frames + 1], rising from 0 to at most the duration."""
    shortest = _FRAME_MS * (frames - 1) + _LAST_MS
    limit = shortest if duration_s is None else duration_s * 1000.0
    times = np.arange(frames + 1, dtype=np.float64) * _FRAME_MS - _LEAD_MS
    times[0] = 0.0
    times[-1] = max(limit, shortest)
    if limit < shortest:  # audio that was padded to make its only frame
        times *= limit / shortest
    return times


def _in_whole_ms(times: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
    """Rounded down to ms, which keeps the order and the limit, unless a word would vanish."""
    whole = np.floor(times + 1e-6)
    return whole if (whole[0] < whole[1]).all() else times


def split_words(text: str) -> list[tuple[str, bool]]:
    """Words of a text and whether a space stands before each. Joined again they are the text."""
    words: list[tuple[str, bool]] = []
    for number, part in enumerate(text.split()):
        for place, word in enumerate(_split_part(part)):
            words.append((word, number > 0 and place == 0))
    return words


def _split_part(part: str) -> Iterator[str]:
    """Cut a text without spaces: every CJK character is a word, a run of anything else is one."""
    word, kind = "", ""  # kind of what has been said in this word: "", "cjk" or "other"
    for character in part:
        new_kind = _kind(character)
        begins = new_kind == "cjk" or (kind == "cjk" and (new_kind == "other" or _opens(character)))
        if begins and kind:
            yield word
            word, kind = "", ""
        word += character
        kind = new_kind or kind
    if word:
        yield word


def _kind(character: str) -> str:
    if _CJK.match(character):
        return "cjk"
    return "other" if character.isalnum() else ""


def _opens(character: str) -> bool:
    return unicodedata.category(character) in _OPENING


def group_words(
    words: Iterable[Word], *, max_s: float = 6.0, max_columns: int = 42, pause_s: float = 0.8
) -> tuple[Segment, ...]:
    """Segments of at most `max_s` and `max_columns`, cut at pauses and sentence ends too. No word is dropped."""
    groups: list[list[Word]] = []
    for word in words:
        if not groups or _breaks(groups[-1], word, max_s, max_columns, pause_s):
            groups.append([])
        groups[-1].append(word)
    return tuple(
        Segment(join_words(group), group[0].start_s, group[-1].end_s, tuple(group)) for group in groups
    )


def _breaks(group: list[Word], word: Word, max_s: float, max_columns: int, pause_s: float) -> bool:
    last = group[-1]
    sentence_over = last.text[-1] in _SENTENCE_ENDS and last.end_s - group[0].start_s >= 1.0
    return (
        sentence_over
        or word.start_s - last.end_s >= pause_s
        or word.end_s - group[0].start_s > max_s
        or columns(join_words([*group, word])) > max_columns
    )


def is_cjk(character: str) -> bool:
    """Whether a character belongs to writing without spaces: Chinese or Japanese, its punctuation included."""
    return bool(_CJK.match(character) or _CJK_PUNCTUATION.match(character))


def join_texts(texts: Iterable[str]) -> str:
    """Texts that follow each other, with a space between two of them except inside writing without spaces."""
    joined = ""
    for text in filter(None, texts):
        joined += " " * needs_space(joined, text) + text
    return joined


def needs_space(before: str, after: str) -> bool:
    return bool(before and after) and not (is_cjk(before[-1]) and is_cjk(after[0]))


def follow(parts: Iterable[tuple[float, Sequence[Word]]]) -> tuple[Word, ...]:
    """The words of consecutive stretches of one recording, each with the second at which it starts.

    They spell what `join_texts` makes of the stretches' texts.
    """
    words: list[Word] = []
    for offset_s, stretch in parts:
        shifted = [word.shifted(offset_s) for word in stretch]
        if words and shifted:
            shifted[0] = replace(shifted[0], spaced=needs_space(words[-1].text, shifted[0].text))
        words += shifted
    return tuple(words)


def join_words(words: Sequence[Word]) -> str:
    """The text that the words were cut from."""
    return "".join(" " * (word.spaced and place > 0) + word.text for place, word in enumerate(words))


def columns(text: str) -> int:
    """Width on screen: a CJK character takes two columns."""
    return sum(2 if unicodedata.east_asian_width(character) in "WF" else 1 for character in text)
