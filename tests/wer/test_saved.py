"""Texts made before as a side: every format finds its utterances, and nothing is dropped without a word."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

import pytest
from wer_doubles import side

from svtool.errors import SvtoolError, UsageError
from svtool.utterances import Utterance, UtteranceList
from svtool.wer.gate import GateOptions, validate
from svtool.wer.report import to_json
from svtool.wer.saved import Named, named, open_saved
from svtool.wer.sides import Answer, Side

IDS = ("s1-a", "s1-b", "s2-a")
TEXTS = ("one two", "三 four", "")


@pytest.fixture
def listed(tmp_path: Path) -> UtteranceList:
    audio = tmp_path / "audio"
    utterances = tuple(
        Utterance(id=key, audio=audio / f"{key}.wav", text=text, duration_s=2.0)
        for key, text in zip(IDS, TEXTS, strict=True)
    )
    return UtteranceList(tmp_path / "list.jsonl", utterances, "d" * 64)


def heard(one: Side, listed: UtteranceList | Sequence[Utterance]) -> dict[str, Answer]:
    asked = list(listed)
    return {asked[index].id: answer for index, answer in one.transcribe(asked)}


def opened(path: Path, listed: UtteranceList, role: str = "candidate") -> Side:
    found = named(path)
    assert found is not None
    return open_saved(found, listed, role)  # type: ignore[arg-type]


FORMATS = {
    "kaldi": ("text", "s1-a one two\ns1-b 三 four\ns2-a\n"),
    "kaldi with a byte-order mark, tabs and CRLF": (
        "hyp.txt",
        "\ufeffs1-a\tone two\r\ns1-b  三 four\r\ns2-a\r\n",
    ),
    "trn": ("hyp.trn", "one two (s1-a)\n三 four (s1-b)\n(s2-a)\n"),
    "trn with comments": ("hyp.trn", ";; made by hand\none two (s1-a)\n\n三 four (s1-b)\n (s2-a)\n"),
    "trn by its look": ("hyp.txt", "one two (s1-a)\n三 four (s1-b)\n (s2-a)\n"),
    "json lines by id": (
        "hyp.jsonl",
        '{"id": "s2-a", "text": ""}\n{"id": "s1-a", "pred_text": "one two"}\n\n{"key": "s1-b", "hyp": "三 four"}\n',
    ),
}


@pytest.mark.parametrize("name", FORMATS)
def test_formats(name: str, listed: UtteranceList, tmp_path: Path) -> None:
    file, content = FORMATS[name]
    (tmp_path / file).write_bytes(content.encode())
    found = opened(tmp_path / file, listed)
    assert {key: answer.text for key, answer in heard(found, listed).items()} == dict(
        zip(IDS, TEXTS, strict=True)
    )
    assert not found.executed
    assert f"its texts were saved in {tmp_path / file}" in (found.note or "")
    assert heard(found, listed.utterances[1:2])["s1-b"].text == "三 four"


def transcribed(audio: str, text: str | None, **more: object) -> str:
    return json.dumps({"schema": "svtool.transcribe/1", "audio": audio, "text": text, "error": None} | more)


@pytest.mark.parametrize("place", ["{root}/audio/", "audio/", "elsewhere/", ""])
def test_lines_of_transcribe_are_matched_by_their_audio(
    place: str, listed: UtteranceList, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    path, where = tmp_path / "hyp.jsonl", place.format(root=tmp_path)
    tags = {"language": "en", "emotion": "HAPPY", "events": ["Speech"], "duration_s": 2.5}
    rows = [
        transcribed(f"{where}s1-a.wav", "one two", **tags),
        transcribed(f"{where}s1-b.wav", None, error="cannot be read"),
        transcribed(f"{where}s2-a.wav", ""),
    ]
    path.write_text("\n".join(rows))
    found = opened(path, listed)
    answers = heard(found, listed)
    assert answers["s1-a"] == Answer("one two", "en", "HAPPY", ("Speech",), None, 2.5)
    assert answers["s1-b"].error == "cannot be read"
    assert ("matched by the name of the audio file alone" in (found.note or "")) == (
        where in ("elsewhere/", "")
    )


def test_a_folder_of_kaldi_is_its_text_and_a_model_is_no_text(tmp_path: Path) -> None:
    (tmp_path / "text").write_text("a b\n")
    assert named(tmp_path) == Named(tmp_path / "text")
    (tmp_path / "model.onnx").write_bytes(b"")
    assert named(tmp_path) is None
    assert named(tmp_path / "model.onnx") is None
    assert named(Path("absent/int8.plan")) is None


@pytest.mark.parametrize(
    ("file", "content", "said"),
    [
        ("hyp.txt", "s1-a one\ns2-a\n", r"no text for 1 of 3 utterances \(s1-b\)"),
        ("hyp.txt", "S1-A x\ns1-b x\ns2-a\n", r"\(s1-a\); 1 of its lines belong to no utterance \(S1-A\)"),
        ("hyp.txt", "s1-a x\ns1-a y\ns1-b x\ns2-a\n", r"1 text too many \(s1-a\)"),
        ("hyp.trn", "one two (s1-a)\nthree\n", r"line 2: no id in brackets"),
        ("hyp.jsonl", '{"id": "s1-a"}\n', r"line 1: has no text \(looked for text,"),
        ("hyp.jsonl", '{"id": "s1-a", "text": null}\n', "line 1: has no text"),
        ("hyp.jsonl", '{"text": "x"}\n', "line 1: tells neither an id nor an audio file"),
        ("hyp.jsonl", '{"id": "s1-a", "text": "x"}\n{"id"\n', "line 2: not valid JSON"),
        ("hyp.jsonl", "{\n1", "neither JSON lines nor a report"),
        ("hyp.txt", "\n \n", "is empty"),
        ("hyp.txt", b"s1-a \xff\xfe\n", "line 1: not UTF-8"),
    ],
)
def test_what_cannot_be_matched_is_counted_and_named(
    file: str, content: str | bytes, said: str, listed: UtteranceList, tmp_path: Path
) -> None:
    path = tmp_path / file
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    with pytest.raises(SvtoolError, match=said):
        opened(path, listed)


def test_texts_of_other_utterances_are_left_out_and_said(listed: UtteranceList, tmp_path: Path) -> None:
    (tmp_path / "text").write_text("s1-a x\nz1 x\ns1-b x\ns2-a\nz2\n")
    found = opened(tmp_path / "text", listed)
    assert "2 saved texts without an utterance here left out (z1, z2)" in (found.note or "")


def test_two_files_of_one_name_are_never_mixed_up(tmp_path: Path) -> None:
    both = tuple(Utterance(id=one, audio=tmp_path / one / "1.wav", text="x") for one in ("a", "b"))
    listed = UtteranceList(tmp_path / "l", both, "d")
    path = tmp_path / "hyp.jsonl"
    path.write_text(transcribed("b/1.wav", "of b") + "\n" + transcribed("a/1.wav", "of a"))
    assert {key: one.text for key, one in heard(opened(path, listed), listed).items()} == {
        "a": "of a",
        "b": "of b",
    }
    path.write_text(transcribed("x/1.wav", "of b") + "\n" + transcribed("y/1.wav", "of a"))
    with pytest.raises(SvtoolError, match="no text for 2 of 2"):
        opened(path, listed)


# --- what an earlier comparison kept ---------------------------------------------------------------


def kept(listed: UtteranceList, path: Path) -> Path:
    options = GateOptions(data={"list": "list.jsonl", "sha256": listed.digest, "results": str(path)})
    before = side("m.onnx", ["one two", "三", "x"], digest="a" * 64, conditions={"itn": False})
    after = side("e.onnx", TEXTS, digest="b" * 64, conditions={"itn": False})
    report = validate(before, after, listed.utterances, options, results=path)
    (path.parent / "report.json").write_text(json.dumps(to_json(report), indent=1))
    return path


@pytest.mark.parametrize("name", ["results.jsonl", "report.json"])
@pytest.mark.parametrize(
    ("role", "suffix", "digest", "text"),
    [
        ("baseline", "", "a", "三"),
        ("candidate", "", "b", "三 four"),
        ("baseline", ":candidate", "b", "三 four"),
        ("candidate", ":baseline", "a", "三"),
    ],
)
def test_a_comparison_that_was_kept_gives_either_side(
    name: str, role: str, suffix: str, digest: str, text: str, listed: UtteranceList, tmp_path: Path
) -> None:
    kept(listed, tmp_path / "results.jsonl")
    found = opened(Path(f"{tmp_path / name}{suffix}"), listed, role)
    assert (found.digest, found.conditions["itn"], found.executed) == (digest * 64, False, False)
    assert heard(found, listed)["s1-b"].text == text


def test_other_conditions_are_still_refused(listed: UtteranceList, tmp_path: Path) -> None:
    found = opened(kept(listed, tmp_path / "results.jsonl"), listed, "baseline")
    with pytest.raises(SvtoolError, match=r"m\.onnx ran with itn False and now with True"):
        validate(found, side("now", TEXTS, conditions={"itn": True}), listed.utterances)


def test_results_of_another_list_are_said_to_be(listed: UtteranceList, tmp_path: Path) -> None:
    path = kept(listed, tmp_path / "results.jsonl")
    other = UtteranceList(listed.path, listed.utterances[:2], "e" * 64)
    assert "made on another list or selection" in (opened(path, other).note or "")


def test_a_run_that_was_killed_is_not_taken_for_whole(listed: UtteranceList, tmp_path: Path) -> None:
    path = kept(listed, tmp_path / "results.jsonl")
    rows = path.read_bytes().splitlines(keepends=True)
    path.write_bytes(b"".join([*rows[:5], rows[5][:20]]))
    assert heard(opened(path, listed, "baseline"), listed)
    with pytest.raises(SvtoolError, match="no text for 2 of 3 utterances"):
        opened(path, listed)


def test_a_report_that_kept_no_texts_names_the_option(listed: UtteranceList, tmp_path: Path) -> None:
    report = validate(side("a", TEXTS), side("b", TEXTS), listed.utterances)
    path = tmp_path / "report.json"
    path.write_text(json.dumps(to_json(report)))
    with pytest.raises(SvtoolError, match="--results FILE"):
        opened(path, listed)
    kept(listed, tmp_path / "results.jsonl").unlink()
    with pytest.raises(SvtoolError, match=r"results\.jsonl, which is missing"):
        opened(path, listed)


def test_a_side_of_texts_that_have_no_sides(listed: UtteranceList, tmp_path: Path) -> None:
    (tmp_path / "hyp.txt").write_text(FORMATS["kaldi"][1])
    with pytest.raises(UsageError, match="leave :baseline out"):
        opened(tmp_path / "hyp.txt:baseline", listed)
    with pytest.raises(SvtoolError, match=r"absent\.jsonl does not exist"):
        opened(tmp_path / "absent.jsonl", listed)
