"""The normalisers that work through libraries: what they must make equal, what they must not, and their ids.

Expectations are what a listener would write down as the same words; they hold with whatever version the range in
pyproject.toml brings.
"""

from __future__ import annotations

import subprocess
import sys
from importlib.metadata import version

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from wer_doubles import side, utterance

from svtool.errors import SvtoolError, UsageError
from svtool.wer.gate import GateOptions, validate
from svtool.wer.normalise import NAMES, get_normaliser
from svtool.wer.report import require_comparable, to_json

HEAVY = ("english", "chinese", "chinese-simplified", "auto")


@pytest.mark.case("W5")
@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("Twenty-five dollars!", "$25"),
        ("two hundred and one", "201"),
        ("in nineteen ninety nine", "In 1999,"),
        ("one million", "1,000,000"),
        ("fifty percent", "50%"),
        ("three point five", "3.5"),
        ("the twenty-first", "the 21st"),
        ("I've got it", "i have got it"),
        ("don’t stop", "do not stop"),
        ("ｄｏｎ＇ｔ stop", "DO NOT STOP"),
        ("we won't", "we will not"),
        ("Mr. Smith", "mister smith"),
        ("the colour of organisation", "the color of organization"),
        ("five o'clock", "5 o’clock"),
        ("um, hello uh there", "hello there"),
        ("hello [noise] there", "hello there"),
        ("naïve café", "naive cafe"),
        ("<|en|><|NEUTRAL|>hello.<|en|>bye", "hello bye"),
        ("wait...5 of us", "wait 5 of us"),
        ("a < b and c > d", "a b and c d"),
        ("今天 good", "今天 GOOD"),
        ("co\u00adoperate\u200b now", "cooperate now"),
    ],
)
def test_english_makes_equal(one: str, other: str) -> None:
    english = get_normaliser("english")
    assert english(one) == english(other) != ""


@pytest.mark.case("W5")
@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("我有2个苹果", "我有两个苹果"),
        ("第1名", "第一名"),
        ("2023年10月5日", "二零二三年十月五日"),
        ("二〇二三年", "2023 年"),
        ("增长25%", "增长百分之二十五"),
        ("增长 25 ％", "增长百分之二十五。"),
        ("走了3.5公里", "走了三点五公里"),
        ("３.５km", "三点五公里"),
        ("重10kg", "重十公斤"),
        ("重10 kg", "重十千克"),
        ("下午3:30", "下午三点三十分"),
        ("2点半", "两点半"),
        ("¥100", "一百元"),
        ("¥3.5万", "三点五万元"),
        ("$5", "五美元"),
        ("1,000元", "一千元"),
        ("200块", "两百块"),
        ("200块", "二百块"),
        ("去过2次", "去过两次"),
        ("零下5℃", "零下五摄氏度"),
        ("三分之一", "1/3"),
        ("拨110", "拨幺幺零"),
        ("今天，天气 好！", "今天天气好"),
        ("用 Python3 写", "用python三写"),
        ("<|zh|>我有3个", "我有三个"),
    ],
)
@pytest.mark.parametrize("name", ["chinese", "chinese-simplified"])
def test_chinese_makes_equal(name: str, one: str, other: str) -> None:
    chinese = get_normaliser(name)
    assert chinese(one) == chinese(other) != ""


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("臺灣", "台湾"),
        ("食飯未呀", "食饭未呀"),
        ("乾燥", "干燥"),
        ("皇后在後面", "皇后在后面"),
        ("我有2個蘋果", "我有两个苹果"),
        ("兩萬元", "20000元"),
    ],
)
def test_script_is_only_dropped_where_asked(one: str, other: str) -> None:
    assert get_normaliser("chinese-simplified")(one) == get_normaliser("chinese-simplified")(other)
    assert get_normaliser("chinese")(one) != get_normaliser("chinese")(other)


@pytest.mark.parametrize(
    "text", ["一起去", "三五个人", "万一下雨", "三心二意", "十分好", "嘅嘢", "看一看", "乾坤"]
)
def test_words_that_hold_a_numeral_stay(text: str) -> None:
    assert get_normaliser("chinese")(text) == text
    assert get_normaliser("chinese-simplified")(text) == text


@pytest.mark.parametrize(
    ("name", "one", "other"),
    [
        ("english", "twenty five", "twenty six"),
        ("english", "$25", "25"),
        ("english", "can", "can't"),
        ("chinese", "我有2个", "我有3个"),
        ("chinese", "25%", "25"),
        ("chinese", "十公斤", "十公里"),
        ("chinese", "20", "200"),
    ],
)
def test_true_errors_stay_errors(name: str, one: str, other: str) -> None:
    assert get_normaliser(name)(one) != get_normaliser(name)(other)


@pytest.mark.case("W1")
@pytest.mark.parametrize("name", HEAVY)
@pytest.mark.parametrize("text", ["", " ", "。", "...", "?!", "$", "<|en|>", "“”", "\ud800", "\x00"])
def test_what_nobody_spoke_is_empty(name: str, text: str) -> None:
    assert get_normaliser(name)(text, "en") == ""
    assert get_normaliser(name)(text, "zh") == ""


NUMERIC = st.text(alphabet="0123456789.,:/%$¥¢-+ '\"{}\\[]()<>|~年月日点个两kgm°½²①٣ab好", max_size=16)


@pytest.mark.parametrize("name", ["english", "chinese-simplified"])
@given(st.one_of(st.text(max_size=12), NUMERIC))
@example("\ud8003")
@example('a}"3"{\\')
@settings(max_examples=150, deadline=None, database=None)
def test_libraries_never_abort_a_report(name: str, text: str) -> None:
    once = get_normaliser(name)(text)
    assert once == " ".join(once.split())
    assert any(char.isalnum() for char in once) or once == "" or not once.isascii()


@pytest.mark.case("W10")
def test_the_id_names_library_and_version() -> None:
    whisper, wetext, opencc = (version(one) for one in ("whisper-normalizer", "wetext", "opencc-py"))
    english, chinese = f"english/1+whisper-normalizer-{whisper}", f"chinese/1+wetext-{wetext}"
    simplified = f"chinese-simplified/1+wetext-{wetext}+opencc-py-{opencc}"
    assert get_normaliser("english").id == english
    assert get_normaliser("chinese").id == chinese
    assert get_normaliser("chinese-simplified").id == simplified
    assert get_normaliser("auto").id == f"auto/1({english}, {simplified}, basic/1)"
    for name in NAMES:
        one = get_normaliser(name)
        assert get_normaliser(one.id) is get_normaliser(f"{name}/1") is one


@pytest.mark.case("W10")
@pytest.mark.parametrize("name", ["english/2", "english/1+whisper-normalizer-0.0.1", "auto/1()"])
def test_another_version_is_refused(name: str) -> None:
    with pytest.raises(UsageError, match=name.partition("/")[0] + "/1"):
        get_normaliser(name)


@pytest.mark.parametrize(
    ("language", "text", "expected"),
    [
        ("en", "fifty percent", "50%"),
        ("zh", "25%", "百分之二十五"),
        ("yue", "食飯2次", "食饭二次"),
        ("ko", "25%", "25"),
        ("ja", "3個", "3個"),
        ("unlabelled", "Don't", "don't"),
        (None, "25%", "25"),
    ],
)
def test_auto_goes_by_the_language(language: str | None, text: str, expected: str) -> None:
    assert get_normaliser("auto")(text, language) == expected


def test_one_normaliser_does_not_mind_the_language() -> None:
    assert get_normaliser("english")("fifty percent", "zh") == "50%"
    assert get_normaliser("basic")("50%", "zh") == "50"


@pytest.mark.case("W5", "W10")
def test_a_report_scores_all_three_texts_alike_and_says_by_what() -> None:
    utterances = [utterance("I have twenty five dollars", 0), utterance("增长25%", 1, language="zh-CN")]
    sides = (
        side("model", ["I've got $25", "增长百分之二十五"]),
        side("engine", ["i've got 25 dollars", "增长25％"]),
    )
    report = validate(*sides, utterances, GateOptions(normaliser="auto"))
    assert report.baseline.counts.errors == 1  # got
    assert report.whole.against_baseline.errors == 0
    assert report.normaliser == get_normaliser("auto").id
    shown = to_json(report)["worst"][0]
    assert shown["reference"] == "I have twenty five dollars"
    assert shown["normalised"]["reference"] == "i have $25"
    plain = validate(*sides, utterances, GateOptions())
    with pytest.raises(SvtoolError, match="basic/1"):
        require_comparable(to_json(report), to_json(plain))


@pytest.mark.parametrize(
    ("name", "absent", "library"),
    [
        ("english", "whisper_normalizer", "whisper-normalizer"),
        ("chinese", "wetext", "wetext"),
        ("chinese-simplified", "opencc", "opencc-py"),
        ("auto", "wetext", "wetext"),
    ],
)
def test_without_the_library_the_install_command_is_told(name: str, absent: str, library: str) -> None:
    """In a process of its own, where the library cannot be imported and nothing was made before."""
    code = (
        f"import sys; sys.modules[{absent!r}] = None\n"
        "from svtool.wer.normalise import get_normaliser\n"
        "assert get_normaliser('basic')('Ok.') == 'ok'\n"
        "from svtool.errors import MissingDependency\n"
        f"try: get_normaliser({name!r})\n"
        "except MissingDependency as error: print(error)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert f"needs {library}, not installed here" in done.stdout
    assert "pip install -e '.[wer]'" in done.stdout


def test_texts_said_before_are_not_normalised_again() -> None:
    english = get_normaliser("english")
    english("a text that comes back three times")
    calls = english.apply.cache_info()  # type: ignore[attr-defined]
    english("a text that comes back three times")
    assert english.apply.cache_info().hits == calls.hits + 1  # type: ignore[attr-defined]
