from __future__ import annotations

import random

import jiwer
import pytest

from svtool.wer.normalise import get_normaliser
from svtool.wer.score import (
    Counts,
    Tokeniser,
    align,
    count,
    join_tokens,
    language_key,
    metric_of,
    total,
)

tokens = Tokeniser()
basic = get_normaliser("basic")

# reference, hypothesis, (hits, substitutions, deletions, insertions): counted by hand.
KNOWN = [
    ("", "", (0, 0, 0, 0)),
    ("", "yeah okay", (0, 0, 0, 2)),
    ("hello", "", (0, 0, 1, 0)),
    ("hello", "hello", (1, 0, 0, 0)),
    ("hello", "hallo", (0, 1, 0, 0)),
    ("a b c", "a c", (2, 0, 1, 0)),
    ("a c", "a b c", (2, 0, 0, 1)),
    ("a b c", "a x c", (2, 1, 0, 0)),
    ("a b c d", "d", (1, 0, 3, 0)),
    ("d", "a b c d", (1, 0, 0, 3)),
    ("a b c", "b c d", (2, 0, 1, 1)),
    ("a b c", "x y z w", (0, 3, 0, 1)),
    ("one two three", "ONE, two three!", (3, 0, 0, 0)),
    ("don't go", "don’t go", (2, 0, 0, 0)),
    ("do not go", "don't go", (1, 1, 1, 0)),
    ("a a a", "a", (1, 0, 2, 0)),
    ("今天天气好", "今天天汽好", (4, 1, 0, 0)),
    ("今天天气好", "今天气好", (4, 0, 1, 0)),
    ("今天天气好", "今天的天气好", (5, 0, 0, 1)),
    ("今天天气好。", "今天 天气 好", (5, 0, 0, 0)),
    ("今天用Python写ASR", "今天用Python写ASR", (6, 0, 0, 0)),
    ("今天用Python写ASR", "今夭用Python写ASR", (5, 1, 0, 0)),
    ("今天用Python写ASR", "今天用python写 a s r", (5, 1, 0, 2)),
    ("我有2个iPhone15", "我有2个 iphone15", (5, 0, 0, 0)),
    ("我有2个iPhone15", "我有两个 iphone", (3, 2, 0, 0)),
    ("ラーメンを食べる", "ラメンを食べる", (7, 0, 1, 0)),
    ("ｶﾞﾝﾊﾞﾚ", "ガンバレ", (4, 0, 0, 0)),
    ("食飯未呀", "食饭未呀", (3, 1, 0, 0)),
    ("안녕하세요 여러분", "안녕하세요 여러분", (2, 0, 0, 0)),
    ("안녕하세요 여러분", "안녕하새요 여러분", (1, 1, 0, 0)),
    ("สวัสดีครับ", "สวัสดีครบ", (9, 0, 1, 0)),
    ("𠮷野家", "吉野家", (2, 1, 0, 0)),
    ("<|en|>hello", "hello<|woitn|>", (1, 0, 0, 0)),
    ("。", "", (0, 0, 0, 0)),
    ("。", "嗯", (0, 0, 0, 1)),
    ("über allen gipfeln", "uber allen gipfeln", (2, 1, 0, 0)),
]


@pytest.mark.case("W2")
@pytest.mark.parametrize(("reference", "hypothesis", "expected"), KNOWN)
def test_known_values(reference: str, hypothesis: str, expected: tuple[int, int, int, int]) -> None:
    counts = count(tokens(basic(reference)), tokens(basic(hypothesis)))
    assert counts == Counts(*expected)
    assert counts.reference_tokens == len(tokens(basic(reference)))
    assert counts.hypothesis_tokens == len(tokens(basic(hypothesis)))


def test_a_chinese_sentence_is_not_one_word() -> None:
    counts = count(tokens("今天用Python写ASR"), tokens("今天用Python学ASR"))
    assert counts.rate == 1 / 6


def test_korean_both_ways() -> None:
    by_character = Tokeniser(korean="characters")
    assert tokens("안녕 여러분") == ["안녕", "여러분"]
    assert by_character("안녕 여러분 ok") == ["안", "녕", "여", "러", "분", "ok"]
    assert by_character.metric("안녕") == "CER"
    assert by_character.id != tokens.id


def test_unnormalised_wide_punctuation_does_not_glue_words() -> None:
    assert tokens("好，Ok！ok。") == ["好", "，", "Ok", "！", "ok", "。"]


@pytest.mark.case("W2")
@pytest.mark.parametrize(
    ("references", "language", "expected"),
    [
        (["hello there"], "en", "WER"),
        (["안녕 여러분"], "ko", "WER"),
        (["bonjour"], "fr", "WER"),
        (["今天"], "zh", "CER"),
        (["食飯"], "yue", "CER"),
        (["ラーメン"], "ja", "CER"),
        (["今天", "2023年"], "zh", "CER"),
        (["今天用Python"], "zh", "MER"),
        (["今天", "ok"], "zh", "MER"),
        (["今天", "hello"], None, "MER"),
        (["123"], "zh-CN", "CER"),
        (["", "42"], "en", "WER"),
        ([""], None, "WER"),
    ],
)
def test_the_rate_is_named_by_what_was_counted(
    references: list[str], language: str | None, expected: str
) -> None:
    assert metric_of((tokens.metric(text) for text in references), language) == expected


@pytest.mark.parametrize(
    ("told", "key"),
    [("EN", "en"), ("en-US", "en"), ("zh_CN", "zh"), ("zn", "zh"), (None, "unlabelled"), (" ", "unlabelled")],
)
def test_language_key(told: str | None, key: str) -> None:
    assert language_key(told) == key


@pytest.mark.case("W4")
def test_equal_to_jiwer_on_plain_english() -> None:
    words = ["zero", "one", "two", "three", "alpha", "bravo", "seven", "nine", "the", "a", "of"]
    generator = random.Random(7)
    pairs = []
    for _ in range(200):
        reference = [generator.choice(words) for _ in range(generator.randint(1, 12))]
        hypothesis = [generator.choice(words) if generator.random() < 0.2 else word for word in reference]
        hypothesis = [word for word in hypothesis if generator.random() > 0.1]
        hypothesis += ["extra"] * generator.randint(0, 1)
        pairs.append((" ".join(reference), " ".join(hypothesis)))
    for reference, hypothesis in pairs:
        ours, theirs = (
            count(tokens(reference), tokens(hypothesis)),
            jiwer.process_words(reference, hypothesis),
        )
        assert (ours.hits, ours.substitutions) == (theirs.hits, theirs.substitutions)
        assert (ours.deletions, ours.insertions) == (theirs.deletions, theirs.insertions)
        assert ours.rate == pytest.approx(theirs.wer, abs=1e-12)
    corpus = total(count(tokens(reference), tokens(hypothesis)) for reference, hypothesis in pairs)
    assert corpus.rate == pytest.approx(
        jiwer.wer([one for one, _ in pairs], [two for _, two in pairs]), abs=1e-12
    )


@pytest.mark.case("W3")
def test_the_corpus_rate_is_divided_once() -> None:
    wrong, right = count(["a"], ["b"]), count(["w"] * 99, ["w"] * 99)
    assert total([wrong, right]).rate == 0.01
    assert wrong + right == total([wrong, right])


@pytest.mark.case("W1")
def test_empty_references_are_counted_and_never_divided_by() -> None:
    files = [
        count(tokens(basic(r)), tokens(basic(h))) for r, h in (("", ""), ("。", "yeah"), ("hello", "hello"))
    ]
    assert [one.rate for one in files] == [None, None, 0.0]
    assert [one.errors for one in files] == [0, 1, 0]
    assert total(files).rate == 1.0
    assert total([]).rate is None


def test_alignment_puts_back_both_texts() -> None:
    reference, hypothesis = tokens("我 在 new york 吃饭"), tokens("我 在 york 吃 饭 了")
    chunks = align(reference, hypothesis)
    assert [token for chunk in chunks for token in chunk.reference] == reference
    assert [token for chunk in chunks for token in chunk.hypothesis] == hypothesis
    assert [chunk.kind for chunk in chunks] == ["equal", "delete", "equal", "insert"]
    assert join_tokens(hypothesis) == "我在york吃饭了"
