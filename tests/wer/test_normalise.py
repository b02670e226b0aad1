from __future__ import annotations

import time

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from svtool.errors import UsageError
from svtool.wer.normalise import get_normaliser, strip_tags

basic = get_normaliser("basic")


@pytest.mark.case("W5")
@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("ＡＳＲ，Ok！", "asr ok"),
        ("Don’t stop.", "don't stop"),
        ("don‘t stop", "don't stop"),
        ("don´t stop", "DON'T STOP"),
        ("“Rock ’n’ Roll”", "rock n roll"),
        ("the dogs' bowl", "the dogs bowl"),
        ("well-known", "well known"),
        ("a_b", "a b"),
        ("１２３号", "123号"),
        ("ｶﾞｲﾄﾞ", "ガイド"),
        ("今天 用 Python 写。", "今天用Python写"),
        ("今天\u3000天气，好！", "今天天气好"),
        ("Straße", "STRASSE"),
        ("cafe\u0301", "CAFÉ"),
        ("co\u00adoperate\u200b now\ufeff", "cooperate now"),
        ("hello 😀👍🏽 world ☺️ 1️⃣", "hello world 1"),
        ("  a\t b\r\nc ", "a b c"),
        ("안녕하세요?", "안녕하세요"),
        ("'네'라고", "네 라고"),
        ("他说‘好’了", "他说好了"),
        ("20 ℃ ™", "20 c tm"),
        ("ΣΑΣ", "σας"),
    ],
)
def test_basic_makes_equal(one: str, other: str) -> None:
    assert basic(one) == basic(other)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("I'm, you're; we'll!", "i'm you're we'll"),
        ("l’homme aujourd’hui", "l'homme aujourd'hui"),
        ("O'Clock 'quoted'", "o'clock quoted"),
        ("3.5 km", "3 5 km"),
        ("。！？", ""),
        ("ー々〆", "ー々〆"),
        ("", ""),
        ("\ud800 lone", "lone"),
    ],
)
def test_basic_gives(text: str, expected: str) -> None:
    assert basic(text) == expected


@pytest.mark.parametrize("name", ["basic", "none"])
@pytest.mark.parametrize(
    "text",
    [
        "<|en|><|NEUTRAL|><|Speech|><|woitn|>ok",
        "ok<|/Laughter|>",
        "<s>ok</s>",
        "<|ZH|>ok<unk>",
        "<|a b-c.1|> ok",
    ],
)
def test_tags_are_never_scored(name: str, text: str) -> None:
    assert get_normaliser(name)(text) == "ok"


def test_wide_tags_are_tags_too() -> None:
    assert basic("＜｜en｜＞ok") == "ok"


def test_a_tag_separates_the_segments_around_it() -> None:
    assert basic("Hello there.<|en|>Bye.") == "hello there bye"
    assert strip_tags("a < b | c > d") == "a < b | c > d"


def test_none_keeps_all_but_tags() -> None:
    assert get_normaliser("none")("<|en|>Hello, World ") == "Hello, World"


@given(st.text(max_size=40))
@example("ŉ")
@settings(max_examples=300, deadline=None)
def test_basic_is_total_and_stable(text: str) -> None:
    once = basic(text)
    assert basic(once) == once
    assert once == " ".join(once.split())


@pytest.mark.case("W10")
def test_normalisers_are_versioned_and_named() -> None:
    assert basic.id == "basic/1"
    assert get_normaliser("basic/1") is basic
    with pytest.raises(UsageError, match=r"basic/9.*this svtool has basic/1"):
        get_normaliser("basic/9")
    with pytest.raises(UsageError, match="this svtool has basic, none, english"):
        get_normaliser("klingon")


def test_basic_is_fast() -> None:
    texts = [f"Zebra, {number} don't 今天去公园 please!" for number in range(3000)]
    begin = time.process_time()
    for text in texts:
        basic(text)
    assert len(texts) / (time.process_time() - begin) > 5000
