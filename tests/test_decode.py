"""Decoding: CTC greedy, tags, text, times and emoji, on hand-made logits and against funasr (tests/golden)."""

from __future__ import annotations

import itertools
import json
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import sentencepiece
from hypothesis import example, given, settings
from hypothesis import strategies as st

from svtool.assets import Tokens
from svtool.backends import Output, greedy_head
from svtool.decode import Hypothesis, choose_language, decode, greedy, raw_text, rich_text
from svtool.errors import ArtifactError, SvtoolError, UsageError
from svtool.timing import Span, Word, join_words, split_words, time_words

GOLDEN = Path(__file__).parent / "golden"
TAG = re.compile(r"<\|[^<>|]*\|>")
QUIET = -8.0  # logit of everything that is not meant


@pytest.fixture(scope="module")
def golden_model() -> dict[str, Any]:
    loaded: dict[str, Any] = json.loads((GOLDEN / "model.json").read_text(encoding="utf-8"))
    return loaded


GOLDEN_TOKENS = Tokens(GOLDEN / "tokenizer.model")
PROCESSOR = sentencepiece.SentencePieceProcessor(model_file=str(GOLDEN / "tokenizer.model"))
EVERY_ID = st.integers(0, len(GOLDEN_TOKENS.pieces) - 1)
HEAD = ("en", "HAPPY", "Speech", "woitn")


@pytest.fixture(scope="module")
def tokens() -> Tokens:
    return GOLDEN_TOKENS


def encode(text: str) -> list[int]:
    ids: list[int] = PROCESSOR.EncodeAsIds(text)
    return ids


def logits_of(path: Sequence[int], tokens: Tokens, seen: float = 4.0) -> npt.NDArray[np.float32]:
    """Logits [frames, V] whose argmax is `path`."""
    logits = np.full((len(path), len(tokens.pieces)), QUIET, dtype=np.float32)
    logits[np.arange(len(path)), list(path)] = seen
    return logits


def output_of(*items: npt.NDArray[np.float32], tokens: Tokens, padding: float = 0.0) -> Output:
    """A padded batch. The padding is filled with `padding` in every output."""
    lengths = np.array([len(item) for item in items], dtype=np.int32)
    logits = np.zeros((len(items), int(lengths.max()), len(tokens.pieces)), dtype=np.float32)
    for place, item in enumerate(items):
        logits[place, : len(item)] = item
    made = greedy_head(logits, lengths, tokens.tag_ids)
    for row, length in enumerate(lengths.tolist()):
        logits[row, length:] = padding
        made.token_logprobs[row, length:] = padding
        made.token_ids[row, length:] = tokens.tag_ids[0] if padding else 0
    return made


def path_of(text: Sequence[int], tokens: Tokens, head: Sequence[str] = HEAD) -> list[int]:
    return [*(tokens.tag_id(name) for name in head), *text]


def decode_path(path: Sequence[int], tokens: Tokens, **options: Any) -> Hypothesis:
    return decode(output_of(logits_of(path, tokens), tokens=tokens), 0, tokens, **options)


# --- collapsing -------------------------------------------------------------------------------------------------


@pytest.mark.case("D1")
def test_consecutive_repeats_collapse_before_blanks_drop() -> None:
    assert greedy([5, 5, 0, 5, 3, 3, 0, 0, 9]) == [5, 5, 3, 9]
    assert greedy([]) == []
    assert greedy([0, 0]) == []


@pytest.mark.case("D1")
@given(st.lists(st.integers(1, 6), max_size=20), st.data())
def test_any_ids_survive_repeats_and_blanks(ids: list[int], data: st.DataObject) -> None:
    path: list[int] = []
    for place, token in enumerate(ids):
        needs_blank = place > 0 and ids[place - 1] == token
        path += [0] * data.draw(st.integers(int(needs_blank), 2)) + [token] * data.draw(st.integers(1, 3))
    assert greedy(path) == ids


@pytest.mark.case("D1")
def test_text_is_in_order_of_time(tokens: Tokens) -> None:
    ids = encode("the boy and the gold")
    spread = [token for one in ids for token in (one, one, 0)]
    assert decode_path(path_of(spread, tokens), tokens).text == "the boy and the gold"


# --- tags -------------------------------------------------------------------------------------------------------


def test_each_tag_is_read_at_its_own_position(tokens: Tokens) -> None:
    found = decode_path(path_of(encode("hello"), tokens, ("ja", "SAD", "BGM", "withitn")), tokens)
    assert (found.language, found.emotion, found.events, found.itn) == ("ja", "SAD", ("BGM",), True)
    assert not found.no_speech
    assert found.text == "hello"


def test_a_position_is_restricted_to_its_class(tokens: Tokens) -> None:
    """A language tag, a text token and a blank where an emotion, an event and an ITN mark belong."""
    logits = logits_of(
        [tokens.tag_id("en"), tokens.tag_id("zh"), encode("gold")[-1], 0, *encode("gold")], tokens
    )
    for slot, second in ((1, "ANGRY"), (2, "Laughter"), (3, "withitn")):
        logits[slot, tokens.tag_id(second)] = 1.0
    found = decode(output_of(logits, tokens=tokens), 0, tokens)
    assert (found.language, found.emotion, found.events, found.itn) == ("en", "ANGRY", ("Laughter",), True)
    assert found.text == "gold"


def test_the_same_tag_across_the_boundary_changes_nothing(tokens: Tokens) -> None:
    woitn = tokens.tag_id("woitn")
    found = decode_path(path_of([woitn, woitn, *encode("gold")], tokens), tokens)
    assert (found.text, found.itn) == ("gold", False)


def test_what_the_model_cannot_tell_is_none(tokens: Tokens) -> None:
    found = decode_path(path_of(encode("gold"), tokens, ("en", "EMO_UNKNOWN", "Event_UNK", "woitn")), tokens)
    assert (found.emotion, found.events) == (None, ())


def test_events_inside_the_text_are_kept(tokens: Tokens) -> None:
    laughter = tokens.tag_id("Laughter")
    found = decode_path(path_of([*encode("the boy"), laughter, *encode("gold"), laughter], tokens), tokens)
    assert found.events == ("Speech", "Laughter")
    assert found.text == "the boy gold"


@pytest.mark.case("D2")
def test_no_special_token_reaches_the_text(tokens: Tokens) -> None:
    everything = [*encode("the boy"), 1, 2, *tokens.tag_ids, *encode("gold")]
    found = decode_path(path_of(everything, tokens), tokens)
    assert found.text == "the boy gold"
    assert not TAG.search(found.text)
    assert "<|Applause|>" in found.raw


@pytest.mark.case("D2")
def test_ordinary_pieces_cannot_spell_a_special(tmp_path: Path) -> None:
    letters = list("<|>/sunkzha")
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(["a < | > / s u n k z h"] * 4),
        model_prefix=str(tmp_path / "spelling"),
        model_type="char",
        vocab_size=3 + 1 + 4 + len(letters),
        hard_vocab_limit=False,
        normalization_rule_name="identity",
        user_defined_symbols=[f"<|{tag}|>" for tag in HEAD],
        minloglevel=2,
    )
    spelled = Tokens(tmp_path / "spelling.model")
    ids = [spelled.pieces.index(letter) for letter in "a<|zh|>a<s><unk>a</s><|<|zh|>zh|>"]
    path = [token for one in ids for token in (one, 0)]
    found = decode_path(path_of(path, spelled), spelled)
    assert found.text == "a a a"
    assert [word.text for word in found.words] == ["a", "a", "a"]


@pytest.mark.case("D8")
@pytest.mark.parametrize(("tag", "said"), [("withitn", True), ("woitn", False)])
def test_itn_is_what_the_fourth_position_says(tag: str, said: bool, tokens: Tokens) -> None:
    assert decode_path(path_of(encode("gold"), tokens, ("en", "HAPPY", "Speech", tag)), tokens).itn is said


@pytest.mark.case("D7")
def test_the_language_is_chosen_among_the_allowed(tokens: Tokens) -> None:
    logits = logits_of(path_of(encode("gold"), tokens, ("yue", "HAPPY", "Speech", "woitn")), tokens)
    logits[0, tokens.tag_id("zh")] = 2.0
    logits[0, tokens.tag_id("en")] = 1.0
    logits[0, tokens.tag_id("de")] = 3.0  # a tag of the vocabulary that is no language of the model
    output = output_of(logits, tokens=tokens)
    assert choose_language(output, 0, tokens, ("zh", "en")) == "zh"
    assert choose_language(output, 0, tokens, ("en",)) == "en"
    assert decode(output, 0, tokens).language == "yue"
    assert decode(output, 0, tokens, allow_languages=("en", "zh")).language == "zh"


@pytest.mark.case("D7")
@pytest.mark.parametrize("name", ["xx", "auto", "nospeech", "de"])
def test_an_unknown_allowed_language_is_refused(name: str, tokens: Tokens) -> None:
    output = output_of(logits_of(path_of(encode("gold"), tokens), tokens), tokens=tokens)
    with pytest.raises(UsageError, match=f"{name}.*zh, en, yue, ja, ko"):
        choose_language(output, 0, tokens, ("zh", name))
    with pytest.raises(UsageError):
        decode(output, 0, tokens, allow_languages=(name,))


# --- no speech --------------------------------------------------------------------------------------------------


@pytest.mark.case("D12")
def test_the_nospeech_tag_is_honoured(tokens: Tokens) -> None:
    found = decode_path(path_of(encode("hello"), tokens, ("nospeech", "EMO_UNKNOWN", "BGM", "woitn")), tokens)
    assert (found.text, found.no_speech, found.language, found.words) == ("", True, None, ())
    assert (found.events, found.confidence) == (("BGM",), None)
    assert found.raw == "<|nospeech|><|EMO_UNKNOWN|><|BGM|><|woitn|> hello"
    kept = decode_path(
        path_of(encode("hello"), tokens, ("nospeech", *HEAD[1:])), tokens, allow_languages=("en",)
    )
    assert kept.no_speech


@pytest.mark.case("D12")
@pytest.mark.parametrize("text", ["", "。", " ", ", . ?", "、。、", "."])
def test_punctuation_and_space_alone_are_no_speech(text: str, tokens: Tokens) -> None:
    known = {piece for piece in tokens.pieces if len(piece) == 1}
    ids = [tokens.pieces.index(one) for one in text.replace(" ", "▁") if one in known]
    found = decode_path(path_of([token for one in ids for token in (one, 0)], tokens), tokens)
    assert (found.text, found.no_speech, found.words, found.segments) == ("", True, (), ())


def test_no_audio_frames_at_all(tokens: Tokens) -> None:
    found = decode_path(path_of([], tokens), tokens)
    assert (found.text, found.no_speech, found.words) == ("", True, ())


# --- results that cannot be trusted -----------------------------------------------------------------------------


@pytest.mark.case("B7")
@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("field", ["token_logprobs", "tag_logits", "logits"])
def test_non_finite_numbers_are_an_error_for_that_item_only(field: str, value: float, tokens: Tokens) -> None:
    good = logits_of(path_of(encode("gold"), tokens), tokens)
    output = output_of(good, good.copy(), tokens=tokens)
    array = getattr(output, field)
    array[(1, *(size // 2 for size in array[1].shape))] = value
    assert decode(output, 0, tokens).text == "gold"
    with pytest.raises(SvtoolError, match="item 1"):
        decode(output, 1, tokens)
    with pytest.raises(SvtoolError, match="item 1"):
        choose_language(output, 1, tokens, ("en",))


@pytest.mark.case("B7")
def test_a_greedy_engine_without_logits_is_checked_too(tokens: Tokens) -> None:
    made = output_of(logits_of(path_of(encode("gold"), tokens), tokens), tokens=tokens)
    slim = Output(made.token_ids, made.token_logprobs, made.tag_logits, made.logit_lens)
    assert decode(slim, 0, tokens).text == "gold"
    slim.token_logprobs[0, 5] = np.nan
    with pytest.raises(SvtoolError, match="NaN"):
        decode(slim, 0, tokens)


def test_large_finite_logits_are_fine(tokens: Tokens) -> None:
    logits = logits_of(path_of(encode("gold"), tokens), tokens)
    output = output_of(logits, tokens=tokens)
    assert output.logits is not None
    output.logits[0, 4, 7] = -3e38
    assert decode(output, 0, tokens).text == "gold"


@pytest.mark.parametrize("rows", [-1, 0, 3, 99])
def test_an_impossible_length_is_an_error(rows: int, tokens: Tokens) -> None:
    output = output_of(logits_of(path_of(encode("gold"), tokens), tokens), tokens=tokens)
    output.logit_lens[0] = rows
    with pytest.raises(SvtoolError, match="valid frames"):
        decode(output, 0, tokens)


def test_an_engine_of_another_vocabulary_is_refused(tokens: Tokens) -> None:
    made = output_of(logits_of(path_of(encode("gold"), tokens), tokens), tokens=tokens)
    fewer = Output(made.token_ids, made.token_logprobs, made.tag_logits[:, :, :-1], made.logit_lens)
    with pytest.raises(ArtifactError, match="tags"):
        decode(fewer, 0, tokens)
    for wrong in (len(tokens.pieces), -1):
        made.token_ids[0, 5] = wrong
        with pytest.raises(ArtifactError, match="token id"):
            decode(made, 0, tokens)


# --- times ------------------------------------------------------------------------------------------------------


@pytest.mark.case("D11")
def test_times_follow_the_path(tokens: Tokens) -> None:
    """60 ms frames, the four queries taken off."""
    hello, gold = encode("hello"), encode("gold")
    path = [0, 0, *hello, *[0] * 8, *gold, 0]
    found = decode_path(path_of(path, tokens), tokens)
    assert [word.text for word in found.words] == ["hello", "gold"]
    first, second = found.words
    assert first.start_s == pytest.approx(0.06 * 2 - 0.03)
    assert first.end_s == pytest.approx(0.06 * (2 + len(hello)) - 0.03)
    assert second.start_s == pytest.approx(0.06 * (10 + len(hello)) - 0.03)
    assert second.end_s <= 0.06 * (len(path) - 1) + 0.025
    assert decode_path(path_of(path, tokens), tokens, timestamps=False).words == ()


@pytest.mark.case("D11")
def test_a_short_item_of_a_batch_has_its_own_times(tokens: Tokens) -> None:
    short = logits_of(path_of([0, *encode("gold")], tokens), tokens)
    long = logits_of(path_of([*[0] * 40, *encode("hello boy"), *[0] * 20], tokens), tokens)
    alone = decode(output_of(short, tokens=tokens), 0, tokens)
    for padding in (0.0, 50.0, np.nan):
        batch = output_of(long, short, tokens=tokens, padding=padding)
        assert decode(batch, 1, tokens) == alone
        assert decode(batch, 0, tokens).words[0].start_s > 2.0


def test_every_cjk_character_is_a_word_with_its_punctuation(tokens: Tokens) -> None:
    ids = encode("今天天气很好。")
    assert len(ids) < 7  # some pieces hold several characters, which share its frames
    path = [token for one in ids for token in (one, 0)]
    found = decode_path(path_of(path, tokens), tokens)
    assert [word.text for word in found.words] == ["今", "天", "天", "气", "很", "好。"]
    assert all(one.end_s <= two.start_s for one, two in itertools.pairwise(found.words))


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("hello world", ["hello", "world"]),
        ("don't stop, it's 1.5", ["don't", "stop,", "it's", "1.5"]),
        ("我用Python写ASR。", ["我", "用", "Python", "写", "ASR。"]),
        ("你（好）吗？", ["你", "（好）", "吗？"]),
        ("「はい」とカー", ["「は", "い」", "と", "カ", "ー"]),
        ("안녕하세요 오늘", ["안녕하세요", "오늘"]),
        ("。", ["。"]),
        ("", []),
    ],
)
def test_words(text: str, words: list[str]) -> None:
    assert [word for word, _ in split_words(text)] == words


@given(st.text(max_size=40))
def test_words_joined_are_the_text(text: str) -> None:
    text = " ".join(text.split())
    words = [Word(word, 0.0, 1.0, spaced) for word, spaced in split_words(text)]
    assert join_words(words) == text


@pytest.mark.case("D11")
@given(
    st.text(max_size=30),
    st.lists(st.tuples(st.text(max_size=5), st.integers(0, 3), st.integers(1, 3)), max_size=12),
    st.one_of(st.none(), st.floats(0.001, 4.0)),
)
@example("今天", [("今天", 0, 1)], None)
@example("a b", [("<0xE4>", 0, 1), ("<0xBB>", 0, 1), ("▁", 0, 1)], 0.01)
def test_any_words_have_sound_times(
    text: str, steps: list[tuple[str, int, int]], duration_s: float | None
) -> None:
    """Also for a text that the pieces do not spell, and for a duration shorter than the frames."""
    spans, frame = [], 0
    for piece, gap, length in steps:
        spans.append(Span(piece, frame + gap, frame + gap + length))
        frame += gap + length
    frames = max(frame, 1)
    text = " ".join(text.split())
    words = time_words(text, spans, frames, duration_s)
    assert join_words(words) == text
    limit = 0.06 * frames if duration_s is None else duration_s
    assert all(0.0 <= word.start_s < word.end_s <= limit + 1e-9 for word in words)
    assert all(
        one.start_s <= two.start_s and one.end_s <= two.end_s for one, two in itertools.pairwise(words)
    )


# --- everything at once -----------------------------------------------------------------------------------------


@pytest.mark.case("D2", "D11", "D12")
@given(st.lists(EVERY_ID, min_size=4, max_size=40), st.floats(0.5, 9.0))
@settings(deadline=None, max_examples=200)
def test_any_path_decodes(path: list[int], seen: float) -> None:
    tokens = GOLDEN_TOKENS
    output = output_of(logits_of(path, tokens, seen), tokens=tokens)
    found = decode(output, 0, tokens)
    assert not TAG.search(found.text)
    assert not re.search(r"<unk>|</?s>", found.text)
    assert found.no_speech == (found.text == "")
    assert found.text == " ".join(found.text.split())
    assert join_words(found.words) == found.text
    assert "".join(segment.text for segment in found.segments).replace(" ", "") == found.text.replace(" ", "")
    assert (found.confidence is None) == found.no_speech
    if found.confidence is not None:
        assert 0.0 < found.confidence <= 1.0
    assert found.raw == PROCESSOR.DecodeIds(greedy(path))


def test_raw_is_funasrs_greedy_string(golden_model: dict[str, Any], tokens: Tokens) -> None:
    with np.load(GOLDEN / "model_outputs.npz") as archive:
        batches = [archive[f"batch_{index}"] for index in range(len(golden_model["items"]))]
    output = output_of(*batches, tokens=tokens, padding=9.0)
    for index, item in enumerate(golden_model["items"]):
        found = decode(output, index, tokens)
        assert found.raw == item["raw_text"]
        frames = item["frames"]
        assert all(word.end_s <= 0.06 * frames for word in found.words)


def test_confidence_is_the_mean_of_the_tokens_best_frames(tokens: Tokens) -> None:
    gold = encode("gold")
    logits = logits_of(path_of([*gold, gold[-1]], tokens), tokens)
    logits[-1, gold[-1]] = 0.0  # a weaker repeat of the last token does not count
    output = output_of(logits, tokens=tokens)
    expected = float(np.exp(output.token_logprobs[0, 4 : 4 + len(gold)].mean()))
    assert decode(output, 0, tokens).confidence == pytest.approx(expected)


# --- emoji ------------------------------------------------------------------------------------------------------


@pytest.mark.case("D3")
def test_rich_text_equals_funasr() -> None:
    """One reasoned difference: tags that funasr does not know stay in its text and are removed from ours (D2)."""
    rows = json.loads((GOLDEN / "rich_text.json").read_text(encoding="utf-8"))
    assert len(rows) >= 300
    assert not [row for row in rows if "raises" in row]
    for row in rows:
        expected = row["rich"]
        while TAG.search(expected):
            expected = TAG.sub("", expected)
        assert rich_text(row["raw"]) == expected.strip(), row["raw"]


@pytest.mark.parametrize(
    ("raw", "rich"),
    [
        (
            "<|en|><|HAPPY|><|BGM|><|withitn|>Hello there. <|en|><|HAPPY|><|BGM|><|withitn|>Bye.",
            "🎼Hello there.Bye.😊",
        ),
        ("<|ja|><|SAD|><|Cough|><|withitn|>はい。", "🤧はい。😔"),
        ("<|nospeech|><|EMO_UNKNOWN|><|BGM|><|woitn|>", "🎼"),
        ("<|nospeech|><|Event_UNK|>", "❓"),
        ("<|zh|><|Applause|>a<|zh|><|Applause|>b<|zh|><|Applause|>c", "👏ab👏c"),
        ("<|en|><|OTHER|><|Speech|><|woitn|>plain", "plain"),
    ],
)
def test_rich_text_check_vectors(raw: str, rich: str) -> None:
    assert rich_text(raw) == rich


@pytest.mark.case("D3")
def test_segments_that_hold_only_an_event() -> None:
    head = "<|en|><|NEUTRAL|><|{}|><|woitn|>"
    raw = "".join(
        (head.format("Speech"), head.format("BGM") + "1.5", head.format("BGM"), head.format("BGM") + "a")
    )
    assert rich_text(raw) == "🎼1.5a"


PARTS = st.one_of(
    st.sampled_from([GOLDEN_TOKENS.pieces[token] for token in GOLDEN_TOKENS.tag_ids]),
    st.sampled_from(["The.", "1.5", " ", "😊", "🎼", "❓", "<|", "|>", "<|lang|>", "\n", "a"]),
    st.text(max_size=4),
)


@pytest.mark.case("D3")
@given(st.lists(PARTS, max_size=14).map("".join))
@settings(deadline=None, max_examples=400)
def test_rich_text_takes_anything(raw: str) -> None:
    rich = rich_text(raw)
    assert rich == rich.strip()
    assert not TAG.search(rich)


@pytest.mark.case("D4")
def test_plain_text_has_no_emoji(tokens: Tokens) -> None:
    found = decode_path(path_of(encode("gold"), tokens, ("en", "EMO_UNKNOWN", "BGM", "woitn")), tokens)
    assert (found.text, found.emotion) == ("gold", None)
    assert rich_text(found.raw) == "🎼gold"


@given(st.lists(EVERY_ID.filter(bool), max_size=20))
def test_raw_text_is_what_sentencepiece_prints(ids: list[int]) -> None:
    assert raw_text(ids, GOLDEN_TOKENS) == PROCESSOR.DecodeIds(ids)
