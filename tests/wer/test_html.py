"""The HTML page: complete, closed in itself, and never mistaking a text for markup."""

from __future__ import annotations

import base64
import math
import re
import wave
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path

import numpy as np
import pytest
from report_samples import HOSTILE, rich_report, silent_report, sound_report
from wer_doubles import side, utterances

from svtool.audio import decode_audio
from svtool.wer import sound
from svtool.wer.elements import Html, element, joined, visible
from svtool.wer.gate import validate
from svtool.wer.html import _bins, _common_scale, _marked, page
from svtool.wer.plots import Scale, track
from svtool.wer.score import align
from svtool.wer.words import GLOSSARY

VOID = {"meta", "link", "br"}


class Outline(HTMLParser):
    """Tags, anchors and text of a page; a tag that is closed out of order is an error."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.attributes: list[tuple[str, str, str]] = []
        self.words: list[str] = []
        self._open: list[str] = []
        self.feed(text)
        self.close()
        assert self._open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.attributes += [(tag, name, value or "") for name, value in attrs]
        if tag not in VOID:
            self._open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self._open.pop() == tag

    def handle_data(self, data: str) -> None:
        if self._open and self._open[-1] != "style":
            self.words.append(data)

    @property
    def text(self) -> str:
        return " ".join(" ".join(self.words).split())

    def values(self, name: str) -> list[str]:
        return [value for _, of, value in self.attributes if of == name]


def test_all_parts_are_there() -> None:
    outline = Outline(page(rich_report(wrong=10, budget=1000.0)))
    for part in (
        "Fail",
        "Three signals",
        "Before you trust it",
        "engine itself not executed",
        "Drift by language",
        "Drift by duration",
        "Drift by snr",
        "Change per utterance",
        "Worst utterances",
        "candidate, u299: ran out of <b>memory</b>",
        "same emotion tag",
        "basic/1",
        "How it was measured",
        "Provenance",
        "ab12",
        "<list>.jsonl",
        *(word for word, _ in GLOSSARY),
    ):
        assert part in outline.text, part
    assert "40.0" in outline.text  # dB
    assert "limit 35 dB" in outline.text


def test_nothing_is_asked_of_the_network_and_nothing_runs() -> None:
    text = page(rich_report())
    outline = Outline(text)
    assert not {"script", "iframe", "img", "object", "form", "base"} & set(outline.tags)
    assert not [name for _, name, _ in outline.attributes if name.startswith("on")]
    links = [value for name in ("href", "src", "action") for value in outline.values(name)]
    assert [link for link in links if not link.startswith(("#", "data:"))] == []
    assert "default-src 'none'" in " ".join(outline.values("content"))
    style = text[text.index("<style>") : text.index("</style>")]
    assert not re.search(r"@import|url\(|https?:", style)


def test_texts_of_other_people_stay_texts() -> None:
    outline = Outline(page(rich_report()))
    assert "script" not in outline.tags
    assert "<script>alert(1)</script> @everyone | `code`" in outline.text
    assert "\x07" not in outline.text
    assert "\u202e" not in outline.text
    assert "[U+202E]" in outline.text


def test_links_within_the_page_lead_somewhere_and_names_are_unique() -> None:
    outline = Outline(page(rich_report()))
    names = outline.values("id")
    assert len(names) == len(set(names))
    targets = {link[1:] for link in outline.values("href") if link.startswith("#")}
    assert len(targets) > 8
    assert targets <= set(names)
    assert set(outline.values("aria-labelledby")) <= set(names)


def test_every_plot_says_in_words_what_it_shows() -> None:
    outline = Outline(page(rich_report(max_disagreement=10)))
    labels = outline.values("aria-label")
    assert any(re.match(r"drift \+[\d.]+, from .* to .*; budget 0\.5$", label) for label in labels)
    assert any(re.match(r"disagreement [\d.]+; limit 10 %$", label) for label in labels)
    assert any(label.startswith("zh: drift ") for label in labels)


@pytest.mark.parametrize("verdict", ["pass", "fail", "inconclusive"])
def test_the_verdict_stands_first_and_in_the_title(verdict: str) -> None:
    report = replace(sound_report(), verdict=verdict)  # type: ignore[arg-type]
    text = page(report)
    assert f"<title>{verdict.upper()}: b against a</title>" in text
    assert f'<header class="{verdict}">' in text
    assert text.index(f">{verdict.capitalize()}</span>") < text.index("Three signals")


def test_too_little_data_is_never_shown_as_within_the_budget() -> None:
    few = validate(side("a", ["one two"] * 20), side("b", ["one two"] * 20), utterances(["one two"] * 20))
    assert few.verdict == "inconclusive"
    assert ">too little data</span>" in page(few)
    assert ">within the budget</span>" not in page(few)
    assert ">within the budget</span>" in page(sound_report())
    itself = replace(few, verdict="pass")
    assert ">within the budget</span>" in page(itself)


def test_what_stood_in_for_an_artifact_is_named() -> None:
    saved = side("a", ["one"], executed=False, conditions={"saved_texts": "a.jsonl"})
    report = validate(saved, side("b", ["one"], executed=False), utterances(["one"]))
    outline = Outline(page(report))
    assert "not known (saved texts)" in outline.text
    assert "not known (twin)" in outline.text


def test_many_reasons_do_not_hide_the_page() -> None:
    reasons = tuple(f"reason {number}" for number in range(9))
    outline = Outline(page(replace(sound_report(), reasons=reasons)))
    assert all(reason in outline.text for reason in reasons)
    assert "6 more reasons" in outline.text


def test_a_report_without_words_or_changes_has_a_page() -> None:
    outline = Outline(page(silent_report()))
    assert "no reference text holds a word" in outline.text
    assert not re.search(r"\b(nan|none|inf)\b", outline.text.lower())
    same = Outline(page(replace(sound_report(), sqnr_db=math.inf)))
    assert "250 of 250 utterances have as many errors as before, 0 fewer, 0 more." in same.text
    assert "∞ infinite: the logits are identical" in same.text
    assert "Worst utterances" not in same.text


def test_differences_are_marked_and_characters_are_not_spaced() -> None:
    words = align(["a", "b", "c", "d"], ["a", "x", "c", "d", "e"])
    assert _marked(words) == "a <del>b</del><ins>x</ins> c d <ins>e</ins>"
    assert _marked(align(list("今天好"), list("今好"))) == "今<del>天</del>好"
    assert _marked(align([*"用", "python"], [*"用"])) == "用<del>python</del>"
    assert _marked([]) == "<em>(empty)</em>"


def test_bars_of_the_distribution_add_up_and_the_outermost_hold_the_rest() -> None:
    bins = _bins({-9: 1, -1: 4, 0: 100, 2: 3, 6: 1, 40: 2})
    assert [number for _, number, _ in bins] == [1, 0, 0, 0, 0, 4, 0, 3, 0, 0, 0, 3]
    assert (bins[0][0], bins[-1][0]) == ("−6 or more", "+6 or more")
    assert [(label, number) for label, number, _ in _bins({0: 5, 1: 2})] == [("−1", 0), ("+1", 2)]


def test_a_bucket_of_a_handful_does_not_squeeze_the_scale() -> None:
    (whole,) = sound_report().by_language
    handful = replace(whole, utterances=3, interval=replace(whole.interval, low=-80.0, high=90.0))  # type: ignore[type-var]
    assert _common_scale((whole, handful), 0.5).high < 1
    assert _common_scale((handful,), 0.5).high > 90


def test_a_scale_keeps_everything_inside_and_counts_in_round_steps() -> None:
    scale = Scale.over((0.0, 0.5, -1.3, 2.2))
    assert 0 < scale.at(-1.3) < scale.at(0.0) < scale.at(2.2) < 100
    assert scale.ticks() == [-1.0, 0.0, 1.0, 2.0]
    assert (scale.at(-50), scale.at(50)) == (0.0, 100.0)
    assert Scale.over(()).ticks()
    assert Scale.over((3.0, 3.0)).at(3.0) == 50.0


def test_an_interval_that_leaves_the_plot_is_marked_as_cut() -> None:
    scale = Scale(0.0, 1.0)
    assert "interval cut" in track(scale, 0.5, (0.2, 7.0), label="")
    assert "interval cut" not in track(scale, 0.5, (0.2, 0.7), label="")


def test_elements_escape_what_is_not_markup() -> None:
    made = element("p", "<b>", element("br"), Html("<i>"), title='"<&', class_="a", hidden=True, lang=None)
    assert made == '<p title="&quot;&lt;&amp;" class="a" hidden>&lt;b&gt;<br><i></p>'
    assert joined("a & b", None, "") == "a &amp; b"
    assert visible("a\x00\ud800\u200d\tb") == "a␀[U+D800]\u200d\tb"


def tone(path: Path, seconds: float) -> np.ndarray:
    samples = (8000 * np.sin(np.arange(int(seconds * 16000)) * 0.2)).astype(np.int16)
    with wave.open(str(path), "wb") as written:
        written.setparams((1, 2, 16000, 0, "NONE", ""))
        written.writeframes(samples.tobytes())
    return samples


def test_audio_of_the_worst_is_on_the_page_sample_by_sample(tmp_path: Path) -> None:
    samples = tone(tmp_path / "a.wav", 0.7)
    report = rich_report(wrong=1, audio=tmp_path / "a.wav")
    assert not [tag for tag in Outline(page(report)).tags if tag == "audio"]
    outline = Outline(page(report, audio=True))
    (source,) = [value for tag, name, value in outline.attributes if (tag, name) == ("audio", "src")]
    head, _, data = source.partition(",")
    assert head == "data:audio/flac;base64"
    heard = decode_audio(base64.b64decode(data))
    assert np.array_equal(np.rint(heard.samples * 32768).astype(np.int16), samples)


def test_audio_that_cannot_be_read_is_told_and_long_audio_is_cut(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    report = rich_report(wrong=1, audio=tmp_path / "gone.wav")
    outline = Outline(page(report, audio=True))
    assert "audio" not in outline.tags
    assert "No audio: " in outline.text
    assert "gone.wav" in outline.text
    monkeypatch.setattr(sound, "MOST_S", 0.5)
    tone(tmp_path / "gone.wav", 1.2)
    found = sound.read_sound(tmp_path / "gone.wav")
    assert (found.cut, found.duration_s, decode_audio(found.flac).duration_s) == (True, 1.2, 0.5)


def test_the_hostile_text_is_hostile() -> None:
    assert all(part in HOSTILE for part in ("<script>", "@", "|", "`", "\x07", "\u202e", "]]>"))
