"""Chinese: numbers, units and symbols brought to how they are spoken, through wetext; script through OpenCC.

Knows what the libraries leave undone and what they get wrong. Knows nothing of other languages, of versions or of
scoring.

Both ways of writing meet in the spoken form: 25% and 百分之二十五, 10kg and 十公斤, 2个 and 两个 (which becomes 二个).
The other way round, from speech to digits, would lose words: 一起 and 三五个人 are no numbers, and wetext's own
inverse answers some sentences with nothing at all. A number without a measure word is read as the library reads it:
120 alone becomes 一二零 and differs from 一百二十. Units come out in Simplified (千克, 点), so texts in Traditional
script need `chinese-simplified`.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Callable
from functools import lru_cache

from svtool.errors import MissingDependency
from svtool.wer.normalise import KEPT_TEXTS, SPACE_BY_UNSPACED, basic, strip_tags, without_odd_characters

LIBRARY = "wetext"
SCRIPT_LIBRARY = "opencc-py"  # wetext's own table breaks Cantonese (嘅 becomes 慨) and leaves 乾燥 as it is

# The library's time grows with the text and only digits need it: everything else goes around.
_CLAUSES = re.compile(r'([。、!?;"\n]+|[,.:](?!\d))')
_DIGIT = re.compile(r"[0-9]")
_SPACE_BEFORE_SIGN = re.compile(r"(?<=\d)\s+(?=[%°‰])")
_AMOUNT = re.compile(r"([¥$€£])\s*([\d.,]*\d[百千万亿]+)")  # the library reads ¥35000, and leaves ¥3.5万
_CURRENCY = {"¥": "元", "$": "美元", "€": "欧元", "£": "英镑"}
# Spoken in two ways, written in one: both sides of a comparison get the first.
_SPOKEN_ALIKE = (
    (re.compile("幺"), "一"),
    (re.compile("〇"), "零"),
    (re.compile("两"), "二"),  # the library reads 2个 as 两个 and 2次 as 二次
    (re.compile("公斤"), "千克"),
)


def make(*, simplified: bool) -> Callable[[str], str]:
    try:
        from wetext import Normalizer
    except ImportError as error:
        raise MissingDependency("the normaliser chinese", LIBRARY, "wer") from error
    read_aloud: Callable[[str], str] = Normalizer(lang="zh", operator="tn").normalize
    to_script = _simplifier() if simplified else str

    @lru_cache(maxsize=KEPT_TEXTS)
    def chinese(text: str) -> str:
        text = unicodedata.normalize("NFKC", without_odd_characters(text))
        text = to_script(strip_tags(text))
        if _DIGIT.search(text):
            text = _numbers_spoken(text, read_aloud)
        for pattern, spoken in _SPOKEN_ALIKE:
            text = pattern.sub(spoken, text)
        return basic(text)

    return chinese


def _simplifier() -> Callable[[str], str]:
    try:
        from opencc import OpenCC
    except ImportError as error:
        raise MissingDependency("the normaliser chinese-simplified", SCRIPT_LIBRARY, "wer") from error
    convert: Callable[[str], str] = OpenCC("t2s").convert
    return convert


def _numbers_spoken(text: str, read_aloud: Callable[[str], str]) -> str:
    text = SPACE_BY_UNSPACED.sub("", text)  # `2023 年` is a year only when written together
    text = _SPACE_BEFORE_SIGN.sub("", text)
    text = _AMOUNT.sub(lambda found: found[2] + _CURRENCY[found[1]], text)
    clauses = _CLAUSES.split(text)
    return "".join(read_aloud(one) if _DIGIT.search(one) else one for one in clauses)
