"""Text made comparable before scoring, by named and versioned normalisers.

Knows Unicode categories, which scripts are written without spaces, and which normaliser a language gets. Knows
nothing of languages' grammar (`normalise_english` and `normalise_chinese` have that from libraries), of scoring, or of
engines.

A change of any output needs a new version: reports of different versions are never compared. A normaliser that
works through a library has the library's version in its id as well.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cache
from importlib.metadata import PackageNotFoundError, version

from svtool.errors import MissingDependency, UsageError

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
SPACE_BY_UNSPACED = re.compile(rf"(?<=[{UNSPACED}])\s+|\s+(?=[{UNSPACED}])")
_IS_UNSPACED = re.compile(rf"[{UNSPACED}]")
_APOSTROPHES = frozenset("'’‘‛ʼʻ´`＇′")
_ZERO_WIDTH_SPACE = 0x200B
# Libraries are slow and two engines' texts are most often the reference itself: what was said is remembered.
KEPT_TEXTS = 1 << 15


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


def _of_ascii(char: str) -> str | None:
    before = _before_nfkc(char)
    return before and _after_nfkc(before)


_BEFORE = _Table(_before_nfkc)
_AFTER = _Table(_after_nfkc)
_ASCII = _Table(_of_ascii)  # NFKC changes none of these: both steps at once


def without_odd_characters(text: str) -> str:
    """For libraries: one kind of apostrophe, nothing invisible, nothing that UTF-8 cannot hold."""
    return text.translate(_BEFORE).encode("utf-8", "ignore").decode("utf-8").replace("\0", " ")


def strip_tags(text: str) -> str:
    """`<|en|>Hello` -> ` Hello`: SenseVoice tags and tokenizer specials are never scored."""
    return _TAG.sub(" ", text) if "<" in text else text


def _none(text: str) -> str:
    return strip_tags(text).strip()


def basic(text: str) -> str:
    if text.isascii():
        return _bare_words(strip_tags(text).lower().translate(_ASCII))
    text = unicodedata.normalize("NFKC", text.translate(_BEFORE))
    text = unicodedata.normalize("NFKC", strip_tags(text).casefold())
    text = _bare_words(text.translate(_AFTER))
    return SPACE_BY_UNSPACED.sub("", text)


def _bare_words(text: str) -> str:
    if "'" in text:
        text = _QUOTE.sub(" ", text)
    return " ".join(text.split())


@dataclass(frozen=True)
class Normaliser:
    name: str
    version: int
    apply: Callable[[str], str]
    libraries: tuple[str, ...] = ()  # e.g. "wetext-0.1.8"
    by_language: Mapping[str, Normaliser] = field(default_factory=dict)  # of others `apply` takes care

    @property
    def id(self) -> str:
        """What reports record and compare: `basic/1`, `english/1+whisper-normalizer-0.1.15`."""
        used = dict.fromkeys(one.id for one in self.by_language.values())
        inner = f"({', '.join((*used, NORMALISERS['basic'].id))})" if used else ""
        return "+".join((f"{self.name}/{self.version}", *self.libraries)) + inner

    def __call__(self, text: str, language: str | None = None) -> str:
        """`language` is a key such as `zh`; only `auto` minds it."""
        chosen = self.by_language.get(language or "", self)
        return chosen.apply(text)


NORMALISERS = {one.name: one for one in (Normaliser("basic", 1, basic), Normaliser("none", 1, _none))}
NAMES = (*NORMALISERS, "english", "chinese", "chinese-simplified", "auto")


def get_normaliser(name: str) -> Normaliser:
    """One of NAMES; a versioned id (`basic/1`) is taken when this svtool has that very version.

    Raises MissingDependency when the library of a heavy one is not installed.
    """
    bare = name.partition("/")[0]
    if bare not in NAMES:
        raise UsageError(f"no normaliser {name!r} here: this svtool has {', '.join(NAMES)}")
    found = NORMALISERS.get(bare) or _from_library(bare)
    if name not in (bare, f"{bare}/{found.version}", found.id):
        raise UsageError(f"no normaliser {name!r} here: this svtool has {found.id}")
    return found


@cache
def _from_library(name: str) -> Normaliser:
    """Made when asked for and once: the libraries read megabytes of tables."""
    from svtool.wer import normalise_chinese as chinese
    from svtool.wer import normalise_english as english

    match name:
        case "english":
            return Normaliser(name, 1, english.make(), (_installed(english.LIBRARY),))
        case "chinese":
            return Normaliser(name, 1, chinese.make(simplified=False), (_installed(chinese.LIBRARY),))
        case "chinese-simplified":
            libraries = (_installed(chinese.LIBRARY), _installed(chinese.SCRIPT_LIBRARY))
            return Normaliser(name, 1, chinese.make(simplified=True), libraries)
        case _:
            # lists mix both scripts, Cantonese ones most of all, and the model writes Simplified
            simplified = _from_library("chinese-simplified")
            of_each = {"en": _from_library("english")} | dict.fromkeys(("zh", "cmn", "yue"), simplified)
            return Normaliser("auto", 1, basic, by_language=of_each)


def _installed(library: str) -> str:
    try:
        return f"{library}-{version(library)}"
    except PackageNotFoundError as error:  # importable, but nobody can say which version it is
        raise MissingDependency(
            "the version in a normaliser's name", f"{library} as a package", "wer"
        ) from error
