"""Sides that answer from lists, so that every gate test says in full what both engines said."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from svtool.utterances import Utterance
from svtool.wer.sides import Answer, Side


def utterance(
    text: str | None,
    number: int = 0,
    *,
    language: str | None = "en",
    duration_s: float | None = 3.0,
    **extra: str,
) -> Utterance:
    return Utterance(
        id=f"u{number}",
        audio=Path(f"u{number}.wav"),
        text=text,
        language=language,
        emotion=None,
        events=(),
        duration_s=duration_s,
        extra=extra,
    )


def utterances(texts: Sequence[str | None], **fields: str | float | None) -> list[Utterance]:
    return [utterance(text, number, **fields) for number, text in enumerate(texts)]  # type: ignore[arg-type]


def side(name: str, texts: Sequence[str | Answer], **fields: object) -> Side:
    answers = [text if isinstance(text, Answer) else Answer(text) for text in texts]
    return Side(name, lambda asked: enumerate(answers[: len(asked)]), **fields)  # type: ignore[arg-type]
