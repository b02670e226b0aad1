"""Alignments as sclite prints them, written by hand: raw texts above, aligned tokens below, *** where one is missing.

Every table was also given to SCTK's sclite 2.4.10 (as .trn files of the same tokens), which counted the same; the
last test holds the one kind where it does not.
"""

from __future__ import annotations

import jiwer
import pytest

from svtool.wer.normalise import get_normaliser
from svtool.wer.score import Counts, Tokeniser, align, count

GAP = "***"
TABLES = [
    # English
    ("the cat sat on the mat", "the cat sat on mat", "the cat sat on the mat", "the cat sat on *** mat"),
    ("the cat sat", "the big cat sat", "the *** cat sat", "the big cat sat"),
    ("The cat sat.", "the hat sat", "the cat sat", "the hat sat"),
    ("i saw new york city", "i saw newyork city", "i saw new york city", "i saw *** newyork city"),
    ("we can not go", "we cannot go", "we can not go", "we *** cannot go"),
    ("yes", "yes yes yes", "*** *** yes", "yes yes yes"),
    ("no no no stop", "no stop", "no no no stop", "*** *** no stop"),
    ("it's ten o'clock", "its ten o’clock!", "it's ten o'clock", "its ten o'clock"),
    ("room 42 b", "room 42b", "room 42 b", "room *** 42b"),
    ("turn left here", "", "turn left here", "*** *** ***"),
    ("", "thank you", "*** ***", "thank you"),
    ("well-known e-mail", "well known email", "well known e mail", "well known *** email"),
    # Chinese and Cantonese
    ("今天天气很好", "今天天汽好", "今 天 天 气 很 好", "今 天 天 汽 *** 好"),
    ("我要去北京。", "我想要去北京", "我 *** 要 去 北 京", "我 想 要 去 北 京"),
    ("请打开空调", "打开空调", "请 打 开 空 调", "*** 打 开 空 调"),
    ("谢谢，谢谢！", "谢谢", "谢 谢 谢 谢", "*** *** 谢 谢"),
    ("二〇二三年", "二零二三年", "二 〇 二 三 年", "二 零 二 三 年"),
    ("你食咗飯未呀", "你食左飯未", "你 食 咗 飯 未 呀", "你 食 左 飯 未 ***"),
    ("𠮷野家", "吉野家", "𠮷 野 家", "吉 野 家"),
    # Japanese: long marks, small kana and half width are characters like any other
    ("コーヒーを飲む", "コーヒ飲む", "コ ー ヒ ー を 飲 む", "コ ー ヒ *** *** 飲 む"),
    ("ちょっと待って", "ちょと待つて", "ち ょ っ と 待 っ て", "ち ょ *** と 待 つ て"),
    ("ｶﾞｿﾘﾝ代", "ガソリン台", "ガ ソ リ ン 代", "ガ ソ リ ン 台"),
    # mixed text
    ("今天用Python写ASR", "今天用 Python 学 asr", "今 天 用 python 写 asr", "今 天 用 python 学 asr"),
    ("打开WiFi和GPS", "打开Wi-Fi和GPS", "打 开 *** wifi 和 gps", "打 开 wi fi 和 gps"),
    ("我有2个iPhone15", "我有2个iPhone 15", "我 有 2 个 *** iphone15", "我 有 2 个 iphone 15"),
    ("买3斤apple吧", "买三斤apple", "买 3 斤 apple 吧", "买 三 斤 apple ***"),
    ("OK，没问题", "okay没问题", "ok 没 问 题", "okay 没 问 题"),
    (
        "play 周杰伦 的 song",
        "play周杰轮的song please",
        "play 周 杰 伦 的 song ***",
        "play 周 杰 轮 的 song please",
    ),
    # Thai and Lao have no spaces between words either
    ("ขอบคุณ", "ขอบคน", "ข อ บ ค ุ ณ", "ข อ บ ค *** น"),
]
KOREAN = [
    ("words", "나는 학교에 간다", "나는 학교 간다", "나는 학교에 간다", "나는 학교 간다"),
    ("words", "할 수 있다", "할수 있다", "할 수 있다", "*** 할수 있다"),
    ("characters", "나는 학교에 간다", "나는 학교 간다", "나 는 학 교 에 간 다", "나 는 학 교 *** 간 다"),
    ("characters", "할 수 있다", "할수 있다", "할 수 있 다", "할 수 있 다"),
    ("characters", "카카오톡 API 켜", "카카오톡 api 꺼", "카 카 오 톡 api 켜", "카 카 오 톡 api 꺼"),
]
ROWS = [("words", *table) for table in TABLES] + KOREAN
basic = get_normaliser("basic")


def counted(reference: list[str], hypothesis: list[str]) -> Counts:
    """Column by column, as a person reads the table."""
    pairs = list(zip(reference, hypothesis, strict=True))
    return Counts(
        hits=sum(expected == given for expected, given in pairs),
        substitutions=sum(expected != given and GAP not in (expected, given) for expected, given in pairs),
        deletions=sum(given == GAP for _, given in pairs),
        insertions=sum(expected == GAP for expected, _ in pairs),
    )


@pytest.mark.case("W2", "W5")
@pytest.mark.parametrize(("korean", "reference", "hypothesis", "upper", "lower"), ROWS)
def test_tables(korean: str, reference: str, hypothesis: str, upper: str, lower: str) -> None:
    tokens = Tokeniser(korean)  # type: ignore[arg-type]
    columns = upper.split(), lower.split()
    expected, given = (tokens(basic(text)) for text in (reference, hypothesis))
    assert expected == [token for token in columns[0] if token != GAP]
    assert given == [token for token in columns[1] if token != GAP]
    assert count(expected, given) == counted(*columns)
    assert aligned(expected, given) == count(expected, given)


def aligned(expected: list[str], given: list[str]) -> Counts:
    sizes = dict.fromkeys(("equal", "replace", "delete", "insert"), 0)
    for chunk in align(expected, given):
        sizes[chunk.kind] += max(len(chunk.reference), len(chunk.hypothesis))
    return Counts(*sizes.values())


def test_there_are_enough_of_them() -> None:
    from test_score import KNOWN

    assert len(KNOWN) + len(ROWS) >= 60


@pytest.mark.parametrize(("language_way", "metric"), [("words", "WER"), ("characters", "CER")])
def test_korean_is_named_by_how_it_was_counted(language_way: str, metric: str) -> None:
    assert Tokeniser(language_way).metric("나는 학교에 간다") == metric  # type: ignore[arg-type]


def test_errors_are_the_fewest_possible() -> None:
    """sclite weighs a substitution 4 and a gap 3, so it takes six gaps (18) before five substitutions (20) and counts
    six errors. Ours, like jiwer's, are the fewest."""
    reference, hypothesis = "a b c x y", "d e f a b"
    ours, theirs = count(reference.split(), hypothesis.split()), jiwer.process_words(reference, hypothesis)
    assert ours.errors == theirs.substitutions + theirs.deletions + theirs.insertions == 5
