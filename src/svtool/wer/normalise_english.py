"""English: spelled-out numbers, contractions and spellings brought to one form, through whisper-normalizer.

Knows what the library gets wrong on the way. Knows nothing of other languages, of versions or of scoring.

What the library decides and a reader of the scores should know: numbers become digits with their sign ($25, 50%,
21st), contractions and titles are written out (`don't` -> `do not`, `Mr` -> `mister`), British spellings become
American ones, accents go, and um, uh, hmm, mm and whatever stands in brackets are not scored at all.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Callable
from functools import lru_cache

from svtool.errors import MissingDependency
from svtool.wer.normalise import KEPT_TEXTS, strip_tags, without_odd_characters

LIBRARY = "whisper-normalizer"
# The library would take the o for a zero: "five o'clock" became "50 clock".
_OCLOCK = re.compile(r"\bo'clock\b", re.IGNORECASE)
_SPOKEN = re.compile(r"[^\W_]")
_DOTS = re.compile(r"\.{2,}")  # the library keeps a dot before a digit, and of "wait...5" kept them all
# The library takes < and > for brackets: "a < b and c > d" would lose all that stands between.
_ANGLES = str.maketrans("<>", "  ")


def make() -> Callable[[str], str]:
    try:
        from whisper_normalizer.english import EnglishTextNormalizer
    except ImportError as error:
        raise MissingDependency("the normaliser english", LIBRARY, "wer") from error
    library: Callable[[str], str] = EnglishTextNormalizer()

    @lru_cache(maxsize=KEPT_TEXTS)
    def english(text: str) -> str:
        # the library takes Hangul apart and leaves single signs behind, which nobody spoke
        words = unicodedata.normalize("NFC", library(_prepared(text))).split()
        return " ".join(word for word in words if _SPOKEN.search(word))

    return english


def _prepared(text: str) -> str:
    text = strip_tags(unicodedata.normalize("NFKC", without_odd_characters(text))).translate(_ANGLES)
    return _DOTS.sub(" ", _OCLOCK.sub("oclock", text))
