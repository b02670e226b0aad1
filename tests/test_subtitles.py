"""Subtitle files: what players and parsers require of them."""

from __future__ import annotations

import itertools
import re

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from svtool.subtitles import Cue, cues, cues_from_words, srt, vtt
from svtool.timing import Segment, Word, columns, follow, group_words, join_texts, join_words

SRT_TIMES = re.compile(r"^(\d\d+):([0-5]\d):([0-5]\d),(\d{3}) --> (\d\d+):([0-5]\d):([0-5]\d),(\d{3})$")


def speak(text: str, *, start_s: float = 0.0, word_s: float = 0.3, gap_s: float = 0.1) -> list[Word]:
    words = []
    for number, word in enumerate(text.split()):
        begin = start_s + number * (word_s + gap_s)
        words.append(Word(word, begin, begin + word_s, spaced=True))
    return words


def test_srt_text() -> None:
    found = (Cue(0, 1500, "hello there"), Cue(3_725_040, 3_726_000, "bye"))
    assert srt(found) == (
        "1\n00:00:00,000 --> 00:00:01,500\nhello there\n\n2\n01:02:05,040 --> 01:02:06,000\nbye\n"
    )


def test_vtt_text() -> None:
    assert vtt((Cue(61_001, 62_000, "a < b & c"),)) == (
        "WEBVTT\n\n00:01:01.001 --> 00:01:02.000\na &lt; b &amp; c\n"
    )


def test_nothing_said_is_still_a_file_of_its_format() -> None:
    assert srt(()) == ""
    assert vtt(()) == "WEBVTT\n"


def test_an_arrow_or_a_line_break_in_the_words_cannot_end_a_cue() -> None:
    found = cues([Segment("one --> two\n\n3\nfour", 0.0, 1.0, ())])
    for text in (srt(found), vtt(found)):
        assert text.count("-->") == 1
    assert [cue.text for cue in found] == ["one --> two 3 four"]
    assert srt(found).count("\n\n") == 0


def test_long_speech_is_cut_by_time_and_width() -> None:
    segments = group_words(speak("word " * 100))
    assert len(segments) > 1
    assert all(segment.end_s - segment.start_s <= 6.0 for segment in segments)
    assert all(columns(segment.text) <= 42 for segment in segments)


def test_a_pause_and_a_sentence_end_cut() -> None:
    words = [
        *speak("one two"),
        *speak("three four", start_s=2.0),
        *speak("that is all. and more", start_s=3.0),
    ]
    assert [segment.text for segment in group_words(words)] == [
        "one two",
        "three four that is all.",
        "and more",
    ]


def test_chinese_counts_two_columns_a_character() -> None:
    words = [Word("好", place * 0.1, place * 0.1 + 0.06) for place in range(50)]
    assert [len(segment.text) for segment in group_words(words)] == [21, 21, 8]


def test_a_word_wider_than_a_line_stays_whole() -> None:
    assert [
        segment.text for segment in group_words([Word("x" * 60, 0.0, 9.0), Word("y", 9.0, 9.1, True)])
    ] == [
        "x" * 60,
        "y",
    ]


@pytest.mark.case("D11")
def test_offsets_are_added_and_the_recordings_end_is_kept() -> None:
    (cue,) = cues_from_words([Word("bye", 1.0, 1.2)], offset_s=58.5, duration_s=59.8)
    assert (cue.start_ms, cue.end_ms) == (59_500, 59_800)


@pytest.mark.case("D11")
def test_stretches_of_a_recording_follow_each_other() -> None:
    english = [Word("one", 0.0, 0.2), Word("two", 0.3, 0.5, spaced=True)]
    chinese = [Word("你", 0.0, 0.1), Word("好。", 0.1, 0.2)]
    parts = [(0.0, english), (30.0, []), (40.0, chinese), (50.0, chinese), (60.0, english)]
    words = follow(parts)
    assert join_words(words) == "one two 你好。你好。 one two"
    assert join_words(words) == join_texts(join_words(stretch) for _, stretch in parts)
    assert [word.start_s for word in words][2:4] == pytest.approx([40.0, 40.1])


texts = st.text(max_size=8)
times = st.floats(0, 4000, allow_nan=False)


@st.composite
def spoken(draw: st.DrawFn) -> list[Word]:
    """Words in order of time, as decoding gives them."""
    ends = sorted(draw(st.lists(times, min_size=0, max_size=24)))
    pairs = zip(ends[::2], ends[1::2], strict=False)
    return [Word(draw(texts.filter(str.strip)), start, end, draw(st.booleans())) for start, end in pairs]


@given(spoken(), st.floats(0, 100), st.one_of(st.none(), st.floats(0.5, 5000)))
@settings(deadline=None, max_examples=150)
def test_any_words_give_well_formed_files(
    words: list[Word], offset_s: float, duration_s: float | None
) -> None:
    found = cues_from_words(words, offset_s=offset_s, duration_s=duration_s)
    assert all(cue.start_ms < cue.end_ms for cue in found)
    if duration_s is None:
        assert all(one.end_ms <= two.start_ms for one, two in itertools.pairwise(found))
    assert len([line for line in srt(found).split("\n") if SRT_TIMES.match(line)]) == len(found)
    assert vtt(found).count("-->") == len(found)
    assert "".join(join_words(segment.words) for segment in group_words(words)).replace(" ", "") == "".join(
        word.text for word in words
    ).replace(" ", "")
