"""Blocks of like length, and processes that share them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from multiprocessing import active_children
from pathlib import Path

import pytest
from wer_doubles import utterance

from svtool.errors import SvtoolError
from svtool.recognizer import Options, Recognizer
from svtool.utterances import Utterance, read_utterances
from svtool.wer import jobs
from svtool.wer.jobs import Opening, answers, blocks

OPTIONS = Options()


def lasting(*lengths: float | None) -> list[Utterance]:
    return [utterance("x", number, duration_s=length) for number, length in enumerate(lengths)]


def test_blocks_hold_each_utterance_once_longest_first() -> None:
    lengths = [float(1 + number * 7 % 30) for number in range(1000)]
    found = blocks(lasting(*lengths))
    order = [index for block in found for index in block]
    assert sorted(order) == list(range(1000))
    assert [lengths[index] for index in order] == sorted(lengths, reverse=True)
    seconds = [sum(lengths[index] for index in block) for block in found]
    assert max(seconds) <= jobs.BLOCK_S
    assert len(found) < 2 + sum(lengths) / (jobs.BLOCK_S - 30)
    assert all(len(block) <= jobs.BLOCK_UTTERANCES for block in found)


def test_blocks_of_odd_lengths() -> None:
    assert blocks([]) == []
    assert blocks(lasting(9999.0, 9999.0)) == [[0], [1]]
    unknown = blocks(lasting(*[None] * 100))
    assert [index for block in unknown for index in block] == list(range(100))
    assert len(unknown) == 4
    assert max(len(block) for block in blocks(lasting(*[0.01] * 1000))) == jobs.BLOCK_UTTERANCES


def test_what_is_left_of_a_run_makes_the_same_blocks() -> None:
    listed = lasting(*(float(1 + number * 7 % 30) for number in range(300)))
    whole = blocks(listed)
    done = {index for block in whole[:5] for index in block}
    left = [index for index in range(300) if index not in done]
    rest = [[left[at] for at in block] for block in blocks([listed[index] for index in left])]
    assert rest == whole[5:]


@pytest.fixture
def listed(monkeypatch: pytest.MonkeyPatch) -> list[Utterance]:
    monkeypatch.setattr(jobs, "BLOCK_S", 20.0)
    return list(read_utterances("tiny:drift").take(24).utterances)


@pytest.fixture
def recognizer(tiny_model: Path) -> Iterator[Recognizer]:
    with closing(Opening(tiny_model, "cpu", 1)()) as opened:
        yield opened


def test_processes_give_the_same_answers_in_the_same_order(
    tiny_model: Path, recognizer: Recognizer, listed: list[Utterance], tmp_path: Path
) -> None:
    (tmp_path / "broken.wav").write_bytes(b"no audio")
    listed.insert(7, Utterance("broken", tmp_path / "broken.wav", "x", duration_s=4.0))
    assert len(blocks(listed)) > 4
    alone = list(answers(recognizer, listed, OPTIONS))
    shared = list(answers(recognizer, listed, OPTIONS, jobs=2, opening=Opening(tiny_model, "cpu", 1)))
    assert shared == alone
    assert sorted(index for index, _ in alone) == list(range(25))
    assert "broken.wav" in (dict(alone)[7].error or "")
    assert active_children() == []


def test_processes_end_with_the_one_who_asked(
    tiny_model: Path, recognizer: Recognizer, listed: list[Utterance]
) -> None:
    running = answers(recognizer, listed, OPTIONS, jobs=2, opening=Opening(tiny_model, "cpu", 1))
    next(running)
    assert active_children()
    running.close()
    assert active_children() == []


def test_an_artifact_that_cannot_be_opened_there_is_one_sentence(
    recognizer: Recognizer, listed: list[Utterance], tmp_path: Path
) -> None:
    gone = Opening(tmp_path / "gone.onnx", "cpu", 1)
    with pytest.raises(SvtoolError, match=r"gone\.onnx does not exist"):
        list(answers(recognizer, listed, OPTIONS, jobs=2, opening=gone))


def test_a_process_that_dies_is_told_and_not_waited_for(
    tiny_model: Path, recognizer: Recognizer, listed: list[Utterance]
) -> None:
    running = answers(recognizer, listed, OPTIONS, jobs=2, opening=Opening(tiny_model, "cpu", 1))
    next(running)
    for child in active_children():
        child.kill()
    with pytest.raises(SvtoolError, match=r"ended by itself .*--jobs"):
        list(running)
