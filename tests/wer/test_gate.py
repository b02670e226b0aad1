from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
import pytest
from wer_doubles import side, utterance, utterances

from svtool.decode import Hypothesis
from svtool.errors import SvtoolError, UsageError
from svtool.sqnr import Sqnr
from svtool.utterances import Utterance
from svtool.wer.checks import ENOUGH_CHANGED, ENOUGH_UTTERANCES
from svtool.wer.gate import Answer, GateOptions, GateReport, Side, cpu_flags, validate

TEXT = "one two three four five six seven eight nine ten"
ONE_WRONG = "one two three four five six seven eight nine tin"


def run(
    baseline: Sequence[str | Answer],
    candidate: Sequence[str | Answer],
    options: GateOptions | None = None,
    listed: list[Utterance] | None = None,
) -> GateReport:
    listed = listed or utterances([TEXT] * len(baseline))
    return validate(side("base", baseline), side("cand", candidate), listed, options)


def changed(number: int, of: int, text: str = ONE_WRONG) -> list[str]:
    """`number` of the texts have one wrong word, spread evenly."""
    wrong = {round(at) for at in np.linspace(0, of - 1, number)} if number else set()
    return [text if index in wrong else TEXT for index in range(of)]


def decibels(value: float) -> Sqnr:
    running = Sqnr()
    signal = np.ones((1, 1000))
    running.add(signal, signal * (1 + 10 ** (-value / 20)))
    return running


# --- the verdict ----------------------------------------------------------------------------------


def test_identical_texts_pass_with_exactly_no_drift() -> None:
    report = run(changed(30, 300), changed(30, 300))
    assert (report.verdict, report.exit_code) == ("pass", 0)
    assert report.whole.drift == 0.0
    assert report.whole.interval is not None
    assert (report.whole.interval.low, report.whole.interval.high) == (0.0, 0.0)
    assert (report.disagreement, report.differing, report.more_utterances) == (0.0, 0, None)


def test_drift_above_the_budget_fails() -> None:
    report = run(changed(0, 300), changed(90, 300))
    assert (report.verdict, report.exit_code) == ("fail", 1)
    assert report.whole.drift == pytest.approx(3.0)
    assert "lies above the budget of 0.5" in report.reasons[0]


def test_drift_within_the_budget_passes() -> None:
    report = run(changed(0, 2000), changed(40, 2000))
    assert (report.verdict, report.exit_code) == ("pass", 0)
    assert report.whole.drift == pytest.approx(0.2)
    assert not report.warnings


def test_a_better_candidate_passes() -> None:
    assert run(changed(90, 300), changed(0, 300)).verdict == "pass"


def test_an_interval_across_the_budget_is_inconclusive_and_says_what_would_decide() -> None:
    report = run(changed(0, 300), changed(12, 300))
    assert (report.verdict, report.exit_code) == ("inconclusive", 3)
    assert report.more_utterances is not None
    assert 300 < report.more_utterances < 3000
    assert "more utterances like these would decide" in report.reasons[0]


@pytest.mark.parametrize(("budget", "verdict"), [(0.0, "fail"), (3.0, "inconclusive"), (10.0, "pass")])
def test_the_budget_is_the_callers(budget: float, verdict: str) -> None:
    assert run(changed(0, 300), changed(90, 300), GateOptions(budget=budget)).verdict == verdict


@pytest.mark.parametrize("options", [{"budget": -0.1}, {"budget": math.nan}, {"resamples": 10}])
def test_options_that_mean_nothing_are_usage_errors(options: dict[str, float]) -> None:
    with pytest.raises(UsageError):
        GateOptions(**options)  # type: ignore[arg-type]


@pytest.mark.case("Q16")
def test_few_utterances_are_said_to_be_few() -> None:
    few = run(changed(0, ENOUGH_UTTERANCES - 1), changed(0, ENOUGH_UTTERANCES - 1))
    assert few.whole.utterances == 199
    assert any("only 199 utterances (1,990 words of reference text)" in warning for warning in few.warnings)
    assert any(
        "too few utterances for the interval to mean much, it is too narrow to trust" in warning
        for warning in few.warnings
    )
    assert not run(changed(0, ENOUGH_UTTERANCES), changed(ENOUGH_CHANGED, ENOUGH_UTTERANCES)).warnings


@pytest.mark.parametrize(
    ("number", "said"),
    [(0, "none of 2,000 texts changed"), (1, "(1 of 2,000)"), (ENOUGH_CHANGED - 1, "(4 of 2,000)")],
)
def test_an_interval_drawn_from_hardly_any_change_is_said_to_be_too_narrow(number: int, said: str) -> None:
    (warning,) = run(changed(0, 2000), changed(number, 2000)).warnings
    assert said in warning
    assert "too few here for it to mean much, it is too narrow to trust" in warning
    assert not run(changed(0, 2000), changed(ENOUGH_CHANGED, 2000)).warnings


def test_one_file_on_both_sides_has_no_drift_to_be_wrong_about() -> None:
    texts = [TEXT] * 300
    report = validate(side("a", texts, digest="x"), side("b", texts, digest="x"), utterances(texts))
    assert not any("too narrow" in warning for warning in report.warnings)


def test_notes_on_the_list_come_first_among_the_warnings() -> None:
    note = "language 'zn' is read as 'zh' (3 utterances)"
    assert run([TEXT] * 3, [TEXT] * 3, GateOptions(notes=(note,))).warnings[0] == note


# --- hard checks ----------------------------------------------------------------------------------


def test_disagreement_fails_where_drift_is_blind() -> None:
    """Both sides equally wrong, at different words: no drift at all."""
    other = "uno two three four five six seven eight nine ten"
    texts = (changed(300, 300), changed(300, 300, other))
    assert run(*texts).verdict == "pass"
    report = run(*texts, GateOptions(max_disagreement=10))
    assert (report.verdict, report.whole.drift) == ("fail", 0.0)
    assert report.disagreement == pytest.approx(20.0)
    assert "changed 20.00 % of the words" in report.reasons[0]
    assert "above the limit of 10 %" in report.reasons[0]
    assert run(*texts, GateOptions(max_disagreement=20)).verdict == "pass"


def test_disagreement_can_be_judged_on_the_hard_audio_alone() -> None:
    hard = [utterance(TEXT, number, snr="5") for number in range(50)]
    easy = [utterance(TEXT, number + 50, snr="clean") for number in range(950)]
    candidate = ["one two three x y z seven eight nine ten"] * 50 + [TEXT] * 950
    baseline = ["one two three a b c seven eight nine ten"] * 50 + [TEXT] * 950
    everywhere = GateOptions(max_disagreement=10)
    assert run(baseline, candidate, everywhere, hard + easy).verdict == "pass"
    on_hard = GateOptions(max_disagreement=10, disagreement_where=("snr", "5"))
    assert run(baseline, candidate, on_hard, hard + easy).verdict == "fail"
    with pytest.raises(UsageError, match="snr = 0, but this list's snr is 5, clean"):
        run(
            baseline,
            candidate,
            GateOptions(max_disagreement=10, disagreement_where=("snr", "0")),
            hard + easy,
        )


def test_text_out_of_nothing_is_disagreement() -> None:
    listed = utterances([""] * 300)
    report = run([""] * 300, ["yeah"] + [""] * 299, GateOptions(max_disagreement=10), listed)
    assert report.verdict == "fail"
    assert report.disagreement is None


@pytest.mark.parametrize(("measured", "verdict"), [(38.0, "pass"), (30.0, "fail")])
def test_sqnr_has_a_limit(measured: float, verdict: str) -> None:
    texts, asked = changed(0, 300), []

    def measure(sample: Sequence[Utterance]) -> Sqnr:
        asked.extend(sample)
        return decibels(measured)

    options = GateOptions(min_sqnr_db=35)
    report = validate(side("a", texts), side("b", texts), utterances(texts), options, measure_sqnr=measure)
    assert report.verdict == verdict
    assert report.sqnr_db == pytest.approx(measured)
    assert len(asked) == options.sqnr_sample
    assert (asked[0].id, asked[-1].id) == ("u0", "u299")


def test_a_limit_that_could_not_be_measured_is_no_pass() -> None:
    report = run(changed(0, 300), changed(0, 300), GateOptions(min_sqnr_db=35))
    assert report.verdict == "inconclusive"
    assert any("was not measured" in reason for reason in report.reasons)


@pytest.mark.parametrize("failing", ["base", "cand"])
def test_an_utterance_a_side_failed_on_fails_the_gate(failing: str) -> None:
    good: list[str | Answer] = [TEXT] * 2000
    broken = [*good[:-1], Answer(error="logits are not finite")]
    report = run(broken, good) if failing == "base" else run(good, broken)
    assert report.verdict == "fail"
    assert f"{failing} failed on 1 of 2,000 utterances (u1999: logits are not finite)" in report.reasons[0]


def test_a_side_that_fails_on_everything_is_an_error_and_not_a_score() -> None:
    with pytest.raises(SvtoolError, match=r"cand failed on every utterance.*no such provider"):
        run([TEXT] * 3, [Answer(error="no such provider")] * 3)


BAD = Answer(error="a.wav is not in a known audio format", bad_audio=True)
LISTED = GateOptions(data={"list": "my lists/l.jsonl"})


def test_a_list_of_bad_audio_is_blamed_and_not_the_model() -> None:
    with pytest.raises(SvtoolError) as refused:
        run([BAD] * 7, [BAD] * 7, LISTED)
    said = str(refused.value)
    assert said.startswith("my lists/l.jsonl: the audio of 7 of 7 utterances cannot be used by any model")
    assert "(a.wav is not in a known audio format; " in said
    assert "; and 2 more)" in said
    assert said.endswith("svtool data check 'my lists/l.jsonl'")
    assert "base" not in said


@pytest.mark.parametrize("saved", [False, True])  # saved texts need no audio, so that one side alone fails
def test_bad_audio_among_good_is_told_once_and_charged_to_no_side(saved: bool) -> None:
    good: list[str | Answer] = [TEXT] * 2000
    bad = [*good[:-1], BAD]
    report = run(good if saved else bad, bad, LISTED)
    assert report.verdict == "fail"
    (reason,) = report.reasons[-1:] if not saved else [one for one in report.reasons if "audio" in one]
    assert "the audio of 1 of 2,000 utterances cannot be used by any model (a.wav is not" in reason
    assert not any("failed on" in one for one in report.reasons)
    assert report.candidate.failed == (("u1999", BAD.error),)


def test_what_both_sides_fail_on_is_told_once_and_points_at_the_audio() -> None:
    failed: list[str | Answer] = [*[TEXT] * 1999, Answer(error="out of memory")]
    (reason,) = run(failed, failed, LISTED).reasons
    assert "both sides failed on the same 1 of 2,000 utterances, so look at their audio" in reason
    assert "(u1999: out of memory): svtool data check 'my lists/l.jsonl'" in reason


# --- what goes in ---------------------------------------------------------------------------------


def test_missing_references_are_named() -> None:
    listed = utterances([TEXT, None, "", None])
    with pytest.raises(SvtoolError, match=r"2 of 4 utterances without reference text \(u1, u3\)"):
        run([TEXT] * 4, [TEXT] * 4, None, listed)


def test_an_empty_list_is_refused() -> None:
    with pytest.raises(SvtoolError, match="empty"):
        validate(side("a", []), side("b", []), [])


def test_answers_come_in_any_order_but_complete() -> None:
    def backwards(asked: Sequence[Utterance]) -> Iterator[tuple[int, Answer]]:
        return ((index, Answer(asked[index].text or "")) for index in reversed(range(len(asked))))

    listed = utterances(["one", "two", "three"])
    report = validate(side("a", ["one", "two", "three"]), Side("b", backwards), listed)
    assert report.differing == 0
    with pytest.raises(SvtoolError, match="b answered 2 of 3 utterances; first without: u2"):
        validate(side("a", ["one"] * 3), side("b", ["one", "two"]), listed)
    with pytest.raises(SvtoolError, match="twice"):
        validate(side("a", ["one"] * 3), Side("b", lambda asked: [(0, Answer()), (0, Answer())]), listed)


def test_sides_that_ran_differently_are_not_compared() -> None:
    one = side("a", [TEXT], conditions={"segmentation": "30 s", "batch": 8})
    other = side("b", [TEXT], conditions={"segmentation": "vad", "batch": 1})
    with pytest.raises(SvtoolError, match="a ran with segmentation '30 s' and b with 'vad'"):
        validate(one, other, utterances([TEXT]))


@pytest.mark.case("W1")
def test_empty_references_never_abort() -> None:
    listed = utterances(["", "。", "hello"])
    report = run(["", "yeah", "hello"], ["", "yeah", "hello"], None, listed)
    assert report.baseline.counts.errors == 1
    assert report.baseline.counts.rate == 1.0
    assert report.worst[0].baseline.rate is None


@pytest.mark.case("W1")
def test_a_list_of_empty_references_is_inconclusive() -> None:
    report = run(["", ""], ["", "yeah"], None, utterances(["", "。"]))
    assert (report.verdict, report.whole.drift, report.whole.interval) == ("inconclusive", None, None)
    assert "drift is undefined" in report.reasons[0]


@pytest.mark.case("W5")
def test_one_normaliser_on_all_three_texts() -> None:
    report = run(["asr ok"], ["ASR，ｏｋ。"], None, utterances(["ＡＳＲ，Ok！"]))
    assert (report.baseline.counts.errors, report.candidate.counts.errors, report.differing) == (0, 0, 0)
    raw = run(["asr ok"], ["ASR，ｏｋ。"], GateOptions(normaliser="none"), utterances(["ＡＳＲ，Ok！"]))
    assert raw.differing == 1
    assert raw.worst[0].raw == ("ＡＳＲ，Ok！", "asr ok", "ASR，ｏｋ。")


def test_tags_in_texts_are_not_scored() -> None:
    report = run(["<|en|><|NEUTRAL|>hello"], ["hello"], None, utterances(["hello"]))
    assert report.baseline.counts.errors == 0


# --- what comes out -------------------------------------------------------------------------------


@pytest.mark.case("Q10")
def test_a_candidate_that_drops_words_shows_as_deletions() -> None:
    report = run(changed(0, 300), changed(60, 300, "one two three"))
    assert (report.baseline.counts.deletions, report.candidate.counts.deletions) == (0, 420)
    assert (report.candidate.counts.substitutions, report.candidate.counts.insertions) == (0, 0)


@pytest.mark.case("Q11")
def test_long_clips_alone_going_wrong_fail_and_are_named() -> None:
    listed = [utterance(TEXT, number, duration_s=3.0) for number in range(1960)]
    listed += [utterance(TEXT, number + 1960, duration_s=22.0) for number in range(40)]
    candidate = [TEXT] * 1960 + [ONE_WRONG, TEXT] * 20
    report = run([TEXT] * 2000, candidate, None, listed)
    assert report.whole.interval is not None
    assert report.whole.interval.high < 0.5
    assert report.verdict == "fail"
    assert report.worst_duration == "15-30 s"
    assert "duration 15-30 s" in report.reasons[0]
    assert [group.name for group in report.by_duration] == ["<5 s", "15-30 s"]


def test_a_small_bucket_does_not_fail_by_chance() -> None:
    listed = [utterance(TEXT, number, duration_s=3.0) for number in range(1990)]
    listed += [utterance(TEXT, number + 1990, duration_s=22.0) for number in range(12)]
    candidate = [TEXT] * 1990 + [ONE_WRONG, TEXT, TEXT, TEXT] * 3
    report = run([TEXT] * 2002, candidate, None, listed)
    assert (report.verdict, report.worst_duration) == ("pass", "15-30 s")


def test_duration_buckets_and_their_edges() -> None:
    lengths = [0.0, 4.99, 5.0, 14.99, 15.0, 30.0, 30.01, None]
    listed = [utterance(TEXT, number, duration_s=length) for number, length in enumerate(lengths)]
    report = run([TEXT] * 8, [TEXT] * 8, None, listed)
    assert [(group.name, group.utterances) for group in report.by_duration] == [
        ("<5 s", 2),
        ("5-15 s", 2),
        ("15-30 s", 2),
        (">30 s", 1),
        ("unknown", 1),
    ]


def test_a_length_the_list_does_not_tell_comes_from_the_answer() -> None:
    listed = [utterance(TEXT, 0, duration_s=None)]
    report = run([TEXT], [Answer(TEXT, duration_s=7.0)], None, listed)
    assert report.by_duration[0].name == "5-15 s"


@pytest.mark.case("W2", "Q14")
def test_languages_apart_each_by_its_own_metric() -> None:
    listed = [utterance(TEXT, 0, language="en"), utterance("今天天气好", 1, language="zh-CN")]
    report = run([TEXT, "今天天气好"], [TEXT, "今天天汽好"], None, listed)
    rates = {group.name: (group.metric, group.candidate.rate) for group in report.by_language}
    assert rates == {"en": ("WER", 0.0), "zh": ("CER", 0.2)}
    assert report.whole.metric == "MER"


def test_any_column_of_the_list() -> None:
    listed = [utterance(TEXT, 0, snr="5"), utterance(TEXT, 1, snr="clean"), utterance(TEXT, 2)]
    report = run([TEXT] * 3, [ONE_WRONG, TEXT, TEXT], GateOptions(columns=("snr",)), listed)
    drifts = {group.name: group.drift for group in report.by_column["snr"]}
    assert drifts == {"5": 10.0, "clean": 0.0, "unlabelled": 0.0}


def test_the_worst_come_first() -> None:
    listed = utterances(["a b c", "a b c", "a b c", "a b c"])
    baseline = ["a b c", "x y c", "a b c", "z b c"]
    report = run(baseline, ["a b c", "x y c", "x y z", "w b c"], None, listed)
    assert [one.id for one in report.worst] == ["u2", "u3", "u1"]


@pytest.mark.case("Q14")
def test_tags_are_compared() -> None:
    said = Answer(TEXT, language="en", emotion="NEUTRAL", events=("Speech", "BGM"), itn=True)
    same = Answer(TEXT, language="en", emotion="NEUTRAL", events=("BGM", "Speech"), itn=True)
    other = Answer(TEXT, language="zh", emotion=None, events=("Speech",), itn=False)
    assert run([said] * 2, [same] * 2).tag_agreement == dict.fromkeys(
        ["language", "emotion", "events", "itn"], 100.0
    )
    assert run([said] * 2, [same, other]).tag_agreement["itn"] == 50.0
    assert run([TEXT], [TEXT]).tag_agreement["language"] is None


@pytest.mark.case("Q14")
def test_punctuation_that_disappears_is_counted() -> None:
    report = run(["<|en|>One, two.", "好。"], ["one two", "好"], None, utterances(["one two", "好"]))
    assert (report.baseline.punctuation, report.candidate.punctuation) == (3, 0)
    assert report.differing == 0


@pytest.mark.case("W7")
def test_batched_texts_are_checked_against_batch_1() -> None:
    texts = changed(0, 300)
    alone = side("alone", texts).transcribe
    broken = side("alone", [""] * 300).transcribe
    good = validate(side("a", texts), side("b", texts, transcribe_alone=alone), utterances(texts))
    assert good.verdict == "pass"
    assert good.candidate.alone is not None
    assert (good.candidate.alone.utterances, good.candidate.alone.differing) == (32, ())
    bad = validate(side("a", texts), side("b", texts, transcribe_alone=broken), utterances(texts))
    assert bad.verdict == "fail"
    assert "b: 32 of 32 texts changed when each utterance was run alone" in bad.reasons[0]


def test_an_artifact_that_did_not_run_is_said_so() -> None:
    note = "plan cannot run here: its ONNX twin was run"
    report = validate(
        side("a", [TEXT]), side("int8.plan", [TEXT], executed=False, note=note), utterances([TEXT])
    )
    assert not report.executed
    assert f"candidate int8.plan: engine itself not executed; {note}" in report.warnings
    assert run([TEXT], [TEXT]).executed


def pair(baseline: dict[str, object], candidate: dict[str, object]) -> tuple[str, ...]:
    texts = [TEXT] * ENOUGH_UTTERANCES
    before, after = side("a.onnx", texts, **baseline), side("b.onnx", texts, **candidate)
    report = validate(before, after, utterances(texts))
    assert report.exit_code == 0
    return tuple(one for one in report.warnings if not one.startswith("none of 200 texts changed"))


def test_one_file_on_both_sides_is_said_to_prove_nothing_of_the_engine() -> None:
    assert pair({"digest": "ab"}, {"digest": "ab"}) == (
        "baseline and candidate are the same file; this proves only the pipeline",
    )
    (said,) = pair({"digest": "ab", "ran_digest": "cd"}, {"digest": "cd", "ran_digest": "cd"})
    assert "the same file ran for baseline and candidate" in said
    assert pair({"digest": "ab"}, {"digest": "cd"}) == pair({}, {}) == ()


@pytest.mark.parametrize(
    ("baseline", "candidate", "swapped"),
    [
        ("int8", "fp32", True),
        ("fp16", "fp32", True),
        ("int8", "fp16", True),
        ("int8-weights", "fp16", True),
        ("int8-weights", "int8", False),
        ("fp32", "int8", False),
        ("int8", "int8", False),
        (None, "fp32", False),
    ],
)
def test_sides_that_look_swapped_are_warned_of(
    baseline: str | None, candidate: str | None, swapped: bool
) -> None:
    found = pair({"conditions": {"precision": baseline}}, {"conditions": {"precision": candidate}})
    assert len(found) == swapped
    assert all("svtool validate-wer b.onnx a.onnx" in one for one in found)


@pytest.mark.parametrize(("number", "said"), [(1, "only 1 utterance ("), (2, "only 2 utterances (")])
def test_one_utterance_is_not_plural(number: int, said: str) -> None:
    assert said in run([TEXT] * number, [TEXT] * number).warnings[0]


@pytest.mark.case("Q12")
def test_cpu_flags_that_decide_int8_arithmetic(tmp_path: Path) -> None:
    told = tmp_path / "cpuinfo"
    told.write_text("processor: 0\nflags\t\t: fpu sse2 avx2 avx512_vnni\n")
    assert cpu_flags(told) == ("avx2", "avx512_vnni")
    told.write_text("Features : fp asimddp i8mm\n")
    assert cpu_flags(told) == ("asimddp", "i8mm")
    assert cpu_flags(tmp_path / "absent") == ()


def test_a_hypothesis_becomes_an_answer() -> None:
    heard = Hypothesis(
        text="hi",
        language="en",
        emotion="HAPPY",
        events=("BGM",),
        itn=True,
        no_speech=False,
        words=(),
        raw="<|en|><|HAPPY|><|BGM|><|withitn|>hi",
        token_ids=(5,),
        confidence=0.9,
    )
    assert Answer.of(heard, 1.5) == Answer("hi", "en", "HAPPY", ("BGM",), True, 1.5)
