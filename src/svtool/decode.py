"""From a backend's output to a hypothesis: CTC greedy, the four tags, plain text, times. Knows nothing of audio.

The first four frames answer the four queries (language, emotion, event, text normalisation). They are read each
for itself and never become text; the words come from the frames after them.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from svtool.assets import QUERIES
from svtool.backends import FloatArray, IntArray, Output
from svtool.errors import ArtifactError, SvtoolError, UsageError
from svtool.timing import Segment, Span, Word, group_words, time_words

if TYPE_CHECKING:
    from svtool.assets import Tokens

_LANGUAGE, _EMOTION, _EVENT, _ITN = range(QUERIES)
_NO_SPEECH = "nospeech"
_UNKNOWN = ("EMO_UNKNOWN", "Event_UNK")  # the model's own "I cannot tell"
# tags and control symbols, also where ordinary pieces happen to spell one
_SPECIAL = re.compile(r"<\|[^<>|]*\|>|</?s>|<unk>|<pad>")


@dataclass(frozen=True)
class Hypothesis:
    """What was recognised in one utterance (or one piece of a long one; times count from its start)."""

    text: str  # without any tag; "" when no_speech
    language: str | None  # None when no_speech, or when the vocabulary has no language tags
    emotion: str | None  # tag name such as "HAPPY"; None = the model could not tell
    events: tuple[str, ...]  # tag names such as "Speech", "BGM"
    itn: bool | None  # what the model says it did, to be compared with what was asked
    no_speech: bool
    words: tuple[Word, ...]
    raw: str  # the tagged string as FunASR's greedy search gives it; input of rich_text
    token_ids: tuple[int, ...]  # the text tokens
    confidence: float | None  # exp(mean log-probability of the text tokens), 0..1

    @property
    def segments(self) -> tuple[Segment, ...]:
        return group_words(self.words)


@dataclass(frozen=True)
class _Item:
    """The valid rows of one utterance, checked."""

    ids: IntArray  # [T+4]
    logprobs: FloatArray  # [T+4]
    tags: FloatArray  # [4, K]


@dataclass(frozen=True)
class _Runs:
    """A path of frames with consecutive repeats collapsed and blanks dropped."""

    ids: npt.NDArray[np.int64]  # [N]
    starts: npt.NDArray[np.int64]  # [N], first frame
    ends: npt.NDArray[np.int64]  # [N], one past the last frame


def decode(
    output: Output,
    index: int,
    tokens: Tokens,
    *,
    allow_languages: Collection[str] | None = None,
    timestamps: bool = True,
    duration_s: float | None = None,
) -> Hypothesis:
    """The hypothesis of item `index` of a batch.

    `allow_languages` restricts the reported language (see `choose_language` for a rerun with it).
    `duration_s` is the length of the item's audio; it only tightens the times of very short clips.
    Raises SvtoolError when the engine gave numbers that cannot be trusted, ArtifactError when it was built for
    another vocabulary: a broken result is never an empty text.
    """
    item = _read(output, index, tokens)
    runs = _collapse(item.ids[QUERIES:], tokens.blank_id)
    is_text = ~np.isin(runs.ids, np.fromiter(tokens.tag_ids, dtype=np.int64))
    token_ids = runs.ids[is_text].tolist()
    text = _plain(tokens.text(token_ids))
    languages = _languages(tokens, allow_languages)
    silent = _says_no_speech(item, tokens) or not any(character.isalnum() for character in text)
    words: tuple[Word, ...] = ()
    if timestamps and not silent:
        spans = [
            Span(tokens.pieces[token], int(start), int(end))
            for token, start, end in zip(token_ids, runs.starts[is_text], runs.ends[is_text], strict=True)
        ]
        words = time_words(text, spans, len(item.ids) - QUERIES, duration_s)
    itn = _choose(item, _ITN, tokens.itn_ids, tokens)
    return Hypothesis(
        text="" if silent else text,
        language=None if silent else _choose(item, _LANGUAGE, languages, tokens),
        emotion=_known(_choose(item, _EMOTION, tokens.emotion_ids, tokens)),
        events=_events(item, runs, tokens),
        itn=None if itn is None else itn == "withitn",
        no_speech=silent,
        words=words,
        raw=raw_text(_collapse(item.ids, tokens.blank_id).ids.tolist(), tokens),
        token_ids=tuple(token_ids),
        confidence=None if silent else _confidence(item.logprobs[QUERIES:], runs, is_text),
    )


def choose_language(output: Output, index: int, tokens: Tokens, allowed: Collection[str]) -> str:
    """The likeliest of the `allowed` languages for item `index`, to run it again with that language."""
    languages = _languages(tokens, allowed)
    chosen = _choose(_read(output, index, tokens), _LANGUAGE, languages, tokens)
    if chosen is None:
        raise ArtifactError("this vocabulary has no language tags, so no language can be chosen")
    return chosen


def greedy(ids: npt.ArrayLike, blank_id: int = 0) -> list[int]:
    """CTC greedy: one token for every run of equal frames, then blanks dropped."""
    collapsed: list[int] = _collapse(np.asarray(ids, dtype=np.int64), blank_id).ids.tolist()
    return collapsed


def raw_text(ids: Collection[int], tokens: Tokens) -> str:
    """Decoded text with the tags in it, as a tokenizer that treats tags as symbols would print it."""
    parts: list[str] = []
    plain: list[int] = []
    tags = frozenset(tokens.tag_ids)
    for token in ids:
        if token in tags:
            parts += [_decoded(plain, tokens, first=not parts), tokens.pieces[token]]
            plain = []
        else:
            plain.append(token)
    parts.append(_decoded(plain, tokens, first=not parts))
    return "".join(parts)


def _decoded(ids: list[int], tokens: Tokens, *, first: bool) -> str:
    """Text between two tags, with the spaces that decoding it alone would strip."""
    text = tokens.text(ids)
    pieces = "".join(
        piece for piece in (tokens.pieces[token] for token in ids) if not _SPECIAL.fullmatch(piece)
    )
    before = "" if first else " " * (len(pieces) - len(pieces.lstrip("▁")))
    after = " " * (len(pieces) - len(pieces.rstrip("▁")))
    return before + text + after if text else before


def _read(output: Output, index: int, tokens: Tokens) -> _Item:
    """Item `index` without its padding. Everything that the padding holds is ignored."""
    rows = int(output.logit_lens[index])
    if not QUERIES <= rows <= output.token_ids.shape[1]:
        raise SvtoolError(
            f"the engine reports {rows} valid frames for item {index} of a batch that has "
            f"{output.token_ids.shape[1]}: rebuild it with  svtool build-trt"
        )
    item = _Item(
        output.token_ids[index, :rows], output.token_logprobs[index, :rows], output.tag_logits[index]
    )
    logits = None if output.logits is None else output.logits[index, :rows]
    if not all(_finite(values) for values in (item.logprobs, item.tags, logits) if values is not None):
        raise SvtoolError(
            f"the engine returned NaN or infinite logits for item {index}: it overflows on this audio; "
            "compare it with its model by  svtool validate-wer, or use the fp32 model"
        )
    if item.tags.shape[-1] != len(tokens.tag_ids):
        raise ArtifactError(
            f"the engine scores {item.tags.shape[-1]} tags, the vocabulary has {len(tokens.tag_ids)}: "
            "export and build again from one checkpoint"
        )
    if int(item.ids.min()) < 0 or int(item.ids.max()) >= len(tokens.pieces):
        raise ArtifactError(
            f"the engine returned token id {int(item.ids.max())}, the vocabulary has {len(tokens.pieces)}: "
            "export and build again from one checkpoint"
        )
    return item


def _finite(values: FloatArray) -> bool:
    """Whether all values are finite. A dot product answers in one fast pass, except for huge finite values."""
    flat = np.ascontiguousarray(values).reshape(-1)
    with np.errstate(all="ignore"):
        product = np.dot(flat, flat)
    return bool(np.isfinite(product)) or bool(np.isfinite(flat).all())


def _collapse(ids: npt.NDArray[np.integer], blank_id: int) -> _Runs:
    starts = np.flatnonzero(np.diff(ids, prepend=-1))
    ends = np.append(starts[1:], len(ids))
    kept = ids[starts] != blank_id
    return _Runs(ids[starts][kept].astype(np.int64), starts[kept], ends[kept])


def _choose(item: _Item, slot: int, classes: Mapping[str, int], tokens: Tokens) -> str | None:
    """The class of one query position that its own frame scores highest."""
    if not classes:
        return None
    scores = _scores(item, slot, tokens)
    return max(classes, key=lambda name: scores[classes[name]])


def _scores(item: _Item, slot: int, tokens: Tokens) -> dict[int, float]:
    return dict(zip(tokens.tag_ids, item.tags[slot].tolist(), strict=True))


def _languages(tokens: Tokens, allowed: Collection[str] | None) -> dict[str, int]:
    every = {name: token for name, token in tokens.language_ids.items() if name != _NO_SPEECH}
    if not allowed:
        return every
    unknown = sorted(set(allowed) - set(every))
    if unknown:
        raise UsageError(f"language {', '.join(unknown)} is not among this model's: use {', '.join(every)}")
    return {name: every[name] for name in every if name in set(allowed)}


def _says_no_speech(item: _Item, tokens: Tokens) -> bool:
    """Whether the language frame prefers `nospeech` to every language, allowed or not."""
    candidates = dict(_languages(tokens, None))
    if _NO_SPEECH in tokens.language_ids:
        candidates[_NO_SPEECH] = tokens.language_ids[_NO_SPEECH]
    return _choose(item, _LANGUAGE, candidates, tokens) == _NO_SPEECH


def _known(name: str | None) -> str | None:
    return None if name in _UNKNOWN else name


def _events(item: _Item, runs: _Runs, tokens: Tokens) -> tuple[str, ...]:
    """The event frame's answer, then events tagged inside the text, each once."""
    by_id = {token: name for name, token in tokens.event_ids.items()}
    inside = [by_id[token] for token in runs.ids.tolist() if token in by_id]
    found = [_choose(item, _EVENT, tokens.event_ids, tokens), *inside]
    return tuple(dict.fromkeys(name for name in found if name is not None and name not in _UNKNOWN))


def _confidence(logprobs: FloatArray, runs: _Runs, is_text: npt.NDArray[np.bool_]) -> float | None:
    """Every token counts with its best frame."""
    peaks = [
        float(logprobs[start:end].max())
        for start, end in zip(runs.starts[is_text], runs.ends[is_text], strict=True)
    ]
    return min(1.0, float(np.exp(np.mean(peaks)))) if peaks else None


def _plain(text: str) -> str:
    """Text without anything that reads as a tag, single spaces."""
    while _SPECIAL.search(text):  # taking one out may put another together
        text = _SPECIAL.sub(" ", text)
    return " ".join(text.split())


# --- SenseVoice's emoji post-processing -------------------------------------------------------------------------

_EMOTION_EMOJI = {
    "HAPPY": "😊",
    "SAD": "😔",
    "ANGRY": "😡",
    "NEUTRAL": "",
    "FEARFUL": "😰",
    "DISGUSTED": "🤢",
    "SURPRISED": "😮",
}
_EVENT_EMOJI = {
    "BGM": "🎼",
    "Speech": "",
    "Applause": "👏",
    "Laughter": "😀",
    "Cry": "😭",
    "Sneeze": "🤧",
    "Breath": "",
    "Cough": "🤧",
}
_SEGMENT_STARTS = ("zh", "en", "yue", "ja", "ko", _NO_SPEECH)
_STARTS_SEGMENT = re.compile("|".join(re.escape(f"<|{name}|>") for name in (*_SEGMENT_STARTS, "lang")))
# in the order in which the original deletes them, which shows where deleting one tag makes another
_DELETED = (
    *(
        *_SEGMENT_STARTS,
        "HAPPY",
        "SAD",
        "ANGRY",
        "NEUTRAL",
        "BGM",
        "Speech",
        "Applause",
        "Laughter",
        "FEARFUL",
    ),
    *("DISGUSTED", "SURPRISED", "Cry", "EMO_UNKNOWN", "Sneeze", "Breath", "Cough", "Sing", "Speech_Noise"),
    *("withitn", "woitn", "GBG", "Event_UNK"),
)
_EMOTION_MARKS = frozenset(mark for mark in _EMOTION_EMOJI.values() if mark)
_EVENT_MARKS = frozenset((*(mark for mark in _EVENT_EMOJI.values() if mark), "😷"))
_BESIDE_MARK = re.compile(f" ?([{''.join(sorted(_EMOTION_MARKS | _EVENT_MARKS))}]) ?")
_ANY_TAG = re.compile(r"<\|[^<>|]*\|>")


def rich_text(raw: str) -> str:
    """Text with emoji for emotion and events, as SenseVoice's own post-processing makes it from a tagged string.

    Equal to it except that tags which it does not know (`<|OTHER|>`, `<|de|>`, `<|/Speech|>`) are removed and
    not left in the text. Takes any string.
    """
    pieces = [
        _marked(piece) for piece in _STARTS_SEGMENT.split(raw.replace("<|nospeech|><|Event_UNK|>", "❓"))
    ]
    joined = pieces[0]
    shown = None  # the first segment never counts as showing its event
    for piece in pieces[1:]:
        if shown is not None and piece[:1] == shown:
            piece = piece[1:]
        if not piece:
            continue
        shown = piece[0] if piece[0] in _EVENT_MARKS else None
        if piece[-1] in _EMOTION_MARKS and joined[-1:] == piece[-1]:
            joined = joined[:-1]
        joined += piece.strip()
    return _without_tags(joined.replace("The.", " ")).strip()


def _marked(piece: str) -> str:
    """One segment: its tags counted and taken out, event emoji in front, emotion emoji behind."""
    counts = {}
    for name in _DELETED:
        tag = f"<|{name}|>"
        counts[name] = piece.count(tag)
        piece = piece.replace(tag, "")
    emotion = "NEUTRAL"
    for name in _EMOTION_EMOJI:
        if counts[name] > counts[emotion]:
            emotion = name
    for name, mark in _EVENT_EMOJI.items():
        if counts[name]:
            piece = mark + piece
    return _BESIDE_MARK.sub(r"\1", piece + _EMOTION_EMOJI[emotion]).strip()


def _without_tags(text: str) -> str:
    while _ANY_TAG.search(text):
        text = _ANY_TAG.sub("", text)
    return text
