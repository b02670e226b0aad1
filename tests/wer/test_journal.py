"""Answers on disk: nothing lost by a kill, nothing done twice, nothing taken for what it is not."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
import tracemalloc
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from wer_doubles import side, utterances

from svtool.errors import SvtoolError
from svtool.progress import Silent
from svtool.utterances import Utterance
from svtool.wer.gate import GateOptions, GateReport, validate
from svtool.wer.journal import SCHEMA, Results
from svtool.wer.report import to_json
from svtool.wer.sides import ROLES, Answer, Side

TEXTS = [f"one two three {'four' if number % 7 else 'for'} 第{number}句" for number in range(60)]
SAID = [text.replace("three", "tree") if number % 9 == 0 else text for number, text in enumerate(TEXTS)]
OPTIONS = GateOptions(data={"list": "list.jsonl", "sha256": "d" * 64})


class Stopped(Exception):
    """Stands for whatever ends a run."""


class Counting:
    """A side's function that says how often it was asked, and may stop after some answers."""

    def __init__(self, texts: Sequence[str], stop_after: int | None = None) -> None:
        self.asked: list[str] = []
        self._texts, self._stop_after = texts, stop_after

    def __call__(self, asked: Sequence[Utterance], /) -> Iterator[tuple[int, Answer]]:
        for index in reversed(range(len(asked))):
            if self._stop_after is not None and len(self.asked) == self._stop_after:
                raise Stopped
            self.asked.append(asked[index].id)
            text = self._texts[int(asked[index].id[1:])]
            yield index, Answer(text, "en", "HAPPY", ("Speech",), itn=False, duration_s=2.5)


def compare(path: Path | None, candidate: Counting, options: GateOptions = OPTIONS) -> GateReport:
    base = side("base", TEXTS, digest="a" * 64)
    judged = Side("cand", candidate, digest="b" * 64)
    return validate(base, judged, utterances(TEXTS), options, results=path)


def lines(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


def test_a_stopped_run_goes_on_with_what_is_missing_and_ends_alike(tmp_path: Path) -> None:
    path = tmp_path / "new" / "results.jsonl"
    with pytest.raises(Stopped):
        compare(path, Counting(SAID, stop_after=23))
    rest = Counting(SAID)
    resumed = compare(path, rest)
    assert len(rest.asked) == len(TEXTS) - 23
    assert to_json(resumed) == to_json(compare(None, Counting(SAID)))
    again = Counting(SAID)
    assert to_json(compare(path, again)) == to_json(resumed)
    assert again.asked == []


def test_an_interrupted_run_says_where_its_answers_are(tmp_path: Path) -> None:
    class Noting(Silent):
        said: list[str] = []  # noqa: RUF012 - one instance

        def note(self, message: str) -> None:
            self.said.append(message)

    def interrupted(asked: Sequence[Utterance]) -> Iterator[tuple[int, Answer]]:
        yield 0, Answer("one")
        raise KeyboardInterrupt

    listed, path = utterances(TEXTS), tmp_path / "results.jsonl"
    with pytest.raises(KeyboardInterrupt):
        validate(side("a", TEXTS), Side("b", interrupted), listed, OPTIONS, Noting(), results=path)
    assert Noting.said == [f"the answers so far are kept in {path}: the same command goes on there"]


def test_the_file_holds_one_line_per_side_and_utterance_and_the_counts(tmp_path: Path) -> None:
    path = tmp_path / "results.jsonl"
    report = compare(path, Counting(SAID))
    head, *rest = lines(path)
    assert head["schema"] == SCHEMA
    assert (head["baseline"]["sha256"], head["candidate"]["sha256"]) == ("a" * 64, "b" * 64)
    for role, texts in (("baseline", TEXTS), ("candidate", SAID)):
        found = {line["id"]: line["text"] for line in rest if line["side"] == role}
        assert found == {f"u{number}": text for number, text in enumerate(texts)}
    assert "第0句" in path.read_text(encoding="utf-8")
    scores = [line for line in rest if line["side"] == "scores"]
    assert len(scores) == len(TEXTS)
    assert sum(sum(line["candidate"][1:]) for line in scores) == report.candidate.counts.errors > 0
    size = path.stat().st_size
    compare(path, Counting(SAID))
    assert path.stat().st_size == size


def test_another_normaliser_scores_the_same_texts_again(tmp_path: Path) -> None:
    path = tmp_path / "results.jsonl"
    compare(path, Counting(SAID))
    again = Counting(SAID)
    compare(path, again, replace(OPTIONS, normaliser="none"))
    assert again.asked == []
    assert [line["with"].split("/")[0] for line in lines(path)[1:] if line["side"] == "scored"] == [
        "basic",
        "none",
    ]


@pytest.mark.parametrize("cut", [1, 20, 60])
def test_a_torn_last_line_is_done_again(tmp_path: Path, cut: int) -> None:
    path = tmp_path / "results.jsonl"
    with pytest.raises(Stopped):
        compare(path, Counting(SAID, stop_after=10))
    path.write_bytes(path.read_bytes()[:-cut])
    rest = Counting(SAID)
    assert to_json(compare(path, rest)) == to_json(compare(None, Counting(SAID)))
    assert len(rest.asked) == len(TEXTS) - 9


def test_failed_utterances_are_tried_again(tmp_path: Path) -> None:
    """What failed may have been put right: a missing file, a full disk."""
    path = tmp_path / "results.jsonl"
    broken = [Answer(error="missing.wav does not exist") if n == 5 else Answer(t) for n, t in enumerate(SAID)]
    base = side("base", TEXTS, digest="a" * 64)
    first = validate(base, side("cand", broken, digest="b" * 64), utterances(TEXTS), OPTIONS, results=path)
    assert [name for name, _ in first.candidate.failed] == ["u5"]
    again = Counting(SAID)
    second = compare(path, again)
    assert again.asked == ["u5"]
    assert second.candidate.failed == ()
    assert compare(path, Counting(SAID)).candidate.failed == ()


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"digest": "c" * 64}, "candidate: sha256"),
        ({"conditions": {"itn": True}}, "candidate: conditions"),
        ({"provider": "elsewhere"}, "candidate: provider"),
    ],
)
def test_results_of_another_comparison_are_refused_and_kept(
    tmp_path: Path, change: dict[str, Any], said: str
) -> None:
    path = tmp_path / "results.jsonl"
    compare(path, Counting(SAID))
    kept = path.read_bytes()
    other = side("cand", SAID, **{"digest": "b" * 64} | change)
    with pytest.raises(SvtoolError, match=f"results of another comparison \\({said}.*--results"):
        validate(side("base", TEXTS, digest="a" * 64), other, utterances(TEXTS), OPTIONS, results=path)
    assert path.read_bytes() == kept


def test_results_on_another_list_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "results.jsonl"
    compare(path, Counting(SAID))
    with pytest.raises(SvtoolError, match="data: sha256"):
        compare(path, Counting(SAID), replace(OPTIONS, data={"list": "list.jsonl", "sha256": "e" * 64}))
    moved = replace(OPTIONS, data={"list": "elsewhere/list.jsonl", "sha256": "d" * 64})
    assert compare(path, Counting(SAID), moved).verdict


@pytest.mark.parametrize(
    "held", ['{"audio": "a.wav", "text": "x"}\n', "a b c\n", "[1]\n", '{"schema": 1}\n{\n']
)
def test_a_file_of_something_else_is_never_written_over(tmp_path: Path, held: str) -> None:
    path = tmp_path / "results.jsonl"
    path.write_text(held)
    with pytest.raises(SvtoolError, match=r"results\.jsonl.* no results file of svtool validate-wer"):
        compare(path, Counting(SAID))
    assert path.read_text() == held


def test_damage_in_the_middle_is_named(tmp_path: Path) -> None:
    path = tmp_path / "results.jsonl"
    compare(path, Counting(SAID))
    whole = path.read_text(encoding="utf-8").splitlines(keepends=True)
    path.write_text("".join([*whole[:5], "{broken\n", *whole[6:]]), encoding="utf-8")
    with pytest.raises(SvtoolError, match="line 6"):
        compare(path, Counting(SAID))


def test_two_runs_on_one_file_at_a_time_are_refused(tmp_path: Path) -> None:
    pytest.importorskip("fcntl")
    path = tmp_path / "results.jsonl"
    with (
        Results(path, utterances(TEXTS)),
        pytest.raises(SvtoolError, match="in use by another svtool validate-wer"),
    ):
        compare(path, Counting(SAID))


def test_texts_are_not_kept_in_memory() -> None:
    """2 x 200 answers of 20 kB are 8 MB; they pass by one at a time."""
    number, text = 200, "x" * 20_000

    def heard(asked: Sequence[Utterance]) -> Iterator[tuple[int, Answer]]:
        for index, one in enumerate(asked):
            yield index, Answer(text + one.id)

    options = GateOptions(resamples=100, worst=3, normaliser="none")
    listed = utterances(["word"] * number)
    tracemalloc.start()
    try:
        validate(Side("a", heard), Side("b", heard), listed, options)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 3_000_000


SLOW = """
import sys, time
from pathlib import Path
sys.path.insert(0, {here!r})
from test_journal import KILLED, compare_killed
compare_killed(Path(sys.argv[1]), slowly=True)
"""
KILLED = 2000


def compare_killed(path: Path | None, *, slowly: bool = False) -> GateReport:
    texts = [f"number {index} of many words" for index in range(KILLED)]

    def answering(wrong: int) -> Any:
        def transcribe(asked: Sequence[Utterance]) -> Iterator[tuple[int, Answer]]:
            for index, one in enumerate(asked):
                if slowly and index % 20 == 0:
                    time.sleep(0.01)
                number = int(one.id[1:])
                yield index, Answer("number" if number % wrong == 0 else one.text or "")

        return transcribe

    before, after = (Side(name, answering(wrong), digest=name * 64) for name, wrong in (("a", 50), ("b", 40)))
    return validate(before, after, utterances(texts), OPTIONS, results=path)


def test_a_process_that_is_killed_loses_nothing_it_had_answered(tmp_path: Path) -> None:
    path = tmp_path / "results.jsonl"
    child = subprocess.Popen([sys.executable, "-c", SLOW.format(here=str(Path(__file__).parent)), str(path)])
    try:
        deadline = time.monotonic() + 60
        while time.monotonic() < deadline and child.poll() is None:
            if path.is_file() and path.read_bytes().count(b"\n") > KILLED + 200:  # in its second side
                break
            time.sleep(0.02)
        assert child.poll() is None, "ended before it could be killed"
    finally:
        os.kill(child.pid, signal.SIGKILL)
        child.wait()
    whole = path.read_bytes()
    answered = whole.count(b"\n")
    assert KILLED < answered < 2 * KILLED
    resumed = compare_killed(path)
    assert path.read_bytes().startswith(whole[: whole.rindex(b"\n") + 1])
    said = [(line["side"], line["id"]) for line in lines(path)[1:] if line["side"] in ROLES]
    assert len(said) == len(set(said)) == 2 * KILLED
    assert to_json(resumed) == to_json(compare_killed(None))
