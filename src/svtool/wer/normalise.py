"""Text made comparable before scoring, by named and versioned normalisers.

Knows Unicode categories and which scripts are written without spaces. Knows nothing of languages' grammar
(numbers, contractions, spelling), of scoring, or of engines.

A change of any output needs a new version: reports of different versions are never compared.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Callable
from dataclasses import dataclass

from svtool.errors import UsageError

# Regex ranges of scripts whose words are not separated by spaces: each character is one token.
_THAI_LAO_TIBETAN_MYANMAR_KHMER = r"\u0e00-\u0fff\u1000-\u109f\u1780-\u17ff"
_HAN_AND_MARKS = (
    r"\u2e80-\u2fdf\u3005-\u3007\u3021-\u3029\u3031-\u3035\u3038-\u303c\u3400-\u4dbf\u4e00-\u9fff"
)
_KANA_BOPOMOFO = (
    r"\u3041-\u309a\u309d-\u309f\u30a1-\u30fa\u30fc-\u312f\u31a0-\u31bf\u31f0-\u31ff\uff66-\uff9f"
)
_RARE_HAN_AND_KANA = r"\uf900-\ufaff\U0001aff0-\U0001b16f\U00020000-\U0003ffff"
UNSPACED = _THAI_LAO_TIBETAN_MYANMAR_KHMER + _HAN_AND_MARKS + _KANA_BOPOMOFO + _RARE_HAN_AND_KANA
HANGUL = r"\u1100-\u11ff\u3131-\u318e\ua960-\ua97f\uac00-\ud7ff\uffa0-\uffdc"

_TAG = re.compile(r"<\|[^<>|]*\|>|</?(?:s|unk|blank|pad)>", re.IGNORECASE)
# Next to Han, kana or Hangul a quotation mark quotes ('네'라고); only elsewhere is it part of a word.
_WORD = rf"[^\W_{UNSPACED}{HANGUL}]"
_LETTER = rf"[^\W\d_{UNSPACED}{HANGUL}]"
_QUOTE = re.compile(rf"(?<!{_WORD})'|'(?!{_LETTER})")
_SPACE_BY_UNSPACED = re.compile(rf"(?<=[{UNSPACED}])\s+|\s+(?=[{UNSPACED}])")
_IS_UNSPACED = re.compile(rf"[{UNSPACED}]")
_APOSTROPHES = frozenset("'’‘‛ʼʻ´`＇′")
_ZERO_WIDTH_SPACE = 0x200B


class _Table(dict[int, str | None]):
    """A `str.translate` table that asks for each character once."""

    def __init__(self, decide: Callable[[str], str | None]) -> None:
        super().__init__()
        self._decide = decide

    def __missing__(self, code: int) -> str | None:
        self[code] = self._decide(chr(code))
        return self[code]


def _before_nfkc(char: str) -> str | None:
    """NFKC would turn spacing accents into a space plus a loose accent: they go first."""
    if char in _APOSTROPHES:
        return "'"
    if ord(char) == _ZERO_WIDTH_SPACE:
        return " "
    match unicodedata.category(char):
        case "Cf":
            return None
        case "Sk":
            return " "
        case _:
            return None if "VARIATION SELECTOR" in unicodedata.name(char, "") else char


def _after_nfkc(char: str) -> str | None:
    if char in _APOSTROPHES:  # NFKC and case folding bring new ones: ŉ becomes ʼn
        return "'"
    category = unicodedata.category(char)
    # An unassigned character is most often an emoji newer than this Python, but rare Han is kept.
    if category == "Cn":
        return char if _IS_UNSPACED.match(char) else " "
    if category == "Me":
        return None
    return " " if category[0] in "PSZC" else char


_BEFORE = _Table(_before_nfkc)
_AFTER = _Table(_after_nfkc)


def strip_tags(text: str) -> str:
    """`<|en|>Hello` -> ` Hello`: SenseVoice tags and tokenizer specials are never scored."""
    return _TAG.sub(" ", text) if "<" in text else text


def _none(text: str) -> str:
    return strip_tags(text).strip()


def _basic(text: str) -> str:
    if text.isascii():
        return _bare_words(strip_tags(text).lower().translate(_BEFORE).translate(_AFTER))
    text = unicodedata.normalize("NFKC", text.translate(_BEFORE))
    text = unicodedata.normalize("NFKC", strip_tags(text).casefold())
    text = _bare_words(text.translate(_AFTER))
    return _SPACE_BY_UNSPACED.sub("", text)


def _bare_words(text: str) -> str:
    if "'" in text:
        text = _QUOTE.sub(" ", text)
    return " ".join(text.split())


@dataclass(frozen=True)
class Normaliser:
    name: str
    version: int
    apply: Callable[[str], str]

    @property
    def id(self) -> str:
        """What reports record and compare, e.g. `basic/1`."""
        return f"{self.name}/{self.version}"

    def __call__(self, text: str) -> str:
        return self.apply(text)


NORMALISERS = {one.name: one for one in (Normaliser("basic", 1, _basic), Normaliser("none", 1, _none))}


def get_normaliser(name: str) -> Normaliser:
    """`basic` or `none`; a versioned id (`basic/1`) is taken when this svtool has that very version."""
    found = NORMALISERS.get(name.partition("/")[0])
    if found is None or name not in (found.name, found.id):
        known = ", ".join(one.id for one in NORMALISERS.values())
        raise UsageError(f"no normaliser {name!r} here: this svtool has {known}")
    return found
