"""Corpora as people have them: trees, `.trn`, Kaldi segments, odd files; nothing in them is dropped in silence."""

from __future__ import annotations

import json
import os
import re
import unicodedata
from pathlib import Path

import pytest

from audio_fixtures import int16, tone, wav
from svtool.errors import SvtoolError
from svtool.lists.kaldi import read_table
from svtool.utterances import Survey, read_utterances, survey

WAV = wav(int16(tone(0.1)).tobytes())


def put(path: Path, content: bytes | str = WAV) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content.encode() if isinstance(content, str) else content)
    return path


def kinds(found: Survey) -> dict[str, tuple[str, ...]]:
    return {one.kind: one.names for one in found.faults}


@pytest.fixture
def librispeech(tmp_path: Path) -> Path:
    root = tmp_path / "LibriSpeech"
    for subset, speaker in (("test-clean", "1089"), ("test-other", "367")):
        chapter = root / subset / speaker / "134"
        for number in range(2):
            put(chapter / f"{speaker}-134-000{number}.flac")
        lines = [f"{speaker}-134-000{number} HE SAID {number}" for number in range(2)]
        put(chapter / f"{speaker}-134.trans.txt", "\n".join(lines) + "\n")
    put(root / "SPEAKERS.TXT", "1089 | M")
    return root


@pytest.fixture
def aishell(tmp_path: Path) -> Path:
    root = tmp_path / "data_aishell"
    lines = []
    for part, speaker in (("test", "S0764"), ("dev", "S0724")):
        for number in range(2):
            name = f"BAC009{speaker}W012{number}"
            put(root / "wav" / part / speaker / f"{name}.wav")
            lines.append(f"{name} 甚至 出现 交易 {number}")
    put(root / "transcript" / "aishell_transcript_v0.8.txt", "\n".join(lines))
    return root


def test_a_librispeech_tree_whole_and_in_part(librispeech: Path) -> None:
    whole = read_utterances(librispeech)
    assert [one.id for one in whole] == ["1089-134-0000", "1089-134-0001", "367-134-0000", "367-134-0001"]
    one = whole.utterances[2]
    assert (one.text, one.language) == ("HE SAID 0", "en")
    assert one.extra == {"speaker": "367", "subset": "test-other"}
    assert one.audio == librispeech / "test-other" / "367" / "134" / "367-134-0000.flac"
    assert [one.id for one in read_utterances(librispeech / "test-other")] == ["367-134-0000", "367-134-0001"]
    assert len(read_utterances(librispeech / "test-other" / "367" / "134")) == 2


def test_a_tree_names_audio_without_text_and_text_without_audio(librispeech: Path) -> None:
    chapter = librispeech / "test-clean" / "1089" / "134"
    (chapter / "1089-134-0001.flac").unlink()
    put(chapter / "1089-134-0009.flac")
    put(chapter / "._1089-134-0000.flac", b"left by macOS")
    with pytest.raises(SvtoolError) as caught:
        read_utterances(librispeech)
    message = str(caught.value)
    assert "1 text without an audio file of its id" in message
    assert "1089-134-0001" in message
    assert "1 audio file without text" in message
    assert "1089-134-0009.flac" in message
    assert "svtool data check" in message


def test_one_id_in_two_files_or_with_two_texts_is_refused(librispeech: Path) -> None:
    put(librispeech / "test-clean" / "1089" / "134" / "1089-134-0000.wav")
    trans = librispeech / "test-other" / "367" / "134" / "367-134.trans.txt"
    put(trans, trans.read_text() + "367-134-0000 AGAIN\n")
    found = kinds(survey(librispeech))
    assert set(found) == {"several_audio", "duplicate_id"}
    assert found["duplicate_id"] == ("367-134-0000",)
    assert "1089-134-0000.wav" in found["several_audio"][0]


def test_an_aishell_tree_whole_and_one_part(aishell: Path) -> None:
    assert len(read_utterances(aishell)) == 4
    part = survey(aishell / "wav" / "test")
    assert [one.id for one in part.utterances] == ["BAC009S0764W0120", "BAC009S0764W0121"]
    assert part.utterances[0].text == "甚至 出现 交易 0"
    assert part.utterances[0].language == "zh"
    assert part.utterances[0].extra == {"speaker": "S0764", "subset": "test"}
    assert part.faults == ()
    assert part.notes == ("2 texts of aishell_transcript_v0.8.txt belong to other folders",)
    # the corpus as published has audio that nobody transcribed
    put(aishell / "wav" / "test" / "S0764" / "BAC009S0764W0999.wav")
    assert "BAC009S0764W0999.wav" in kinds(survey(aishell / "wav" / "test"))["audio_without_text"][0]


def test_archives_that_nobody_unpacked_are_named(tmp_path: Path) -> None:
    put(tmp_path / "wav" / "S0002.tar.gz", b"x")
    with pytest.raises(SvtoolError, match=r"unpack its archives first \(S0002\.tar\.gz\)"):
        read_utterances(tmp_path)
    put(tmp_path / "train.tsv", "path\tsentence\n")
    with pytest.raises(SvtoolError, match=r"name one of its lists: train\.tsv"):
        read_utterances(tmp_path)


def test_multilingual_librispeech(tmp_path: Path) -> None:
    put(tmp_path / "audio" / "10" / "20" / "10_20_000001.flac")
    put(tmp_path / "transcripts.txt", "10_20_000001\twie geht es\n")
    (one,) = read_utterances(tmp_path)
    assert (one.text, one.language) == ("wie geht es", None)


@pytest.mark.parametrize("newline", ["\n", "\r\n", "\r"])
@pytest.mark.parametrize("mark", ["", "\ufeff"])
def test_trn(tmp_path: Path, newline: str, mark: str) -> None:
    rows = [";; a comment", "well (uh) yes (spk-u1)", "(spk-u2)", "你好 \t(spk-u3) "]
    path = put(tmp_path / "ref.trn", mark + newline.join(rows) + newline)
    for number in (1, 2, 3, 4):
        put(tmp_path / "sounds" / f"spk-u{number}.wav")
    found = survey(path)
    assert found.faults == ()
    assert [(one.id, one.text) for one in found.utterances] == [
        ("spk-u1", "well (uh) yes"),
        ("spk-u2", ""),
        ("spk-u3", "你好"),
    ]
    assert found.notes == (f"1 audio file under {tmp_path} without a text in ref.trn",)
    assert len(read_utterances(path)) == 3


def test_trn_with_its_audio_elsewhere_and_its_faults(tmp_path: Path) -> None:
    put(tmp_path / "audio" / "u1.wav")
    put(tmp_path / "audio" / "u4.wav")
    path = put(
        tmp_path / "texts" / "ref.trn", "one (u1)\none (u1)\nlost (u2)\nno id here\n{ a / b } c (u4)\n"
    )
    assert "u1" in kinds(survey(path))["text_without_audio"]
    found = survey(path, tmp_path / "audio")
    assert [one.id for one in found.utterances] == ["u1"]
    said = kinds(found)
    assert said["duplicate_id"] == ("u1",)
    assert said["text_without_audio"] == ("u2",)
    assert said["alternatives"] == ("u4",)
    assert "line 4: no (id)" in said["malformed"][0]
    with pytest.raises(SvtoolError, match="audio folder"):
        survey(path, tmp_path / "gone")


def test_kaldi_segments_are_told_apart_and_refused_as_files(tmp_path: Path) -> None:
    put(tmp_path / "call.wav")
    put(tmp_path / "wav.scp", "call call.wav\nother call.wav\n")
    put(tmp_path / "segments", "u1 call 0.00 0.05\nu2 call 0.05 -1\nu3 gone 0 1\nu4 call 2 1\nu5 call\n")
    put(tmp_path / "text", "u1 one\nu2 two\nu9 nine\n")
    put(tmp_path / "utt2spk", "u1 s1\nu2 s2\n")
    found = survey(tmp_path)
    assert [(one.id, one.part, one.text, one.extra) for one in found.utterances] == [
        ("u1", (0.0, 0.05), "one", {"speaker": "s1"}),
        ("u2", (0.05, None), "two", {"speaker": "s2"}),
    ]
    said = [str(one) for one in found.faults]
    assert "1 segment of recordings that wav.scp lacks (u3 of gone)" in said
    assert "1 recording of wav.scp without a segment (other)" in said
    assert "1 id of text without audio in segments (u9)" in said
    assert any("2 malformed lines" in one for one in said)


def test_a_whole_recording_is_never_taken_for_a_part_of_it(tmp_path: Path) -> None:
    put(tmp_path / "a.wav")
    rows = [{"audio_filepath": "a.wav", "offset": 0.0, "duration": 0.1, "text": "x"}]
    put(tmp_path / "nemo.jsonl", json.dumps(rows[0]) + "\n")
    assert read_utterances(tmp_path / "nemo.jsonl").utterances[0].part is None
    put(tmp_path / "nemo.jsonl", json.dumps({**rows[0], "offset": 0.05}) + "\n")
    with pytest.raises(SvtoolError, match=r"1 utterance cut out of longer recordings.*svtool data convert"):
        read_utterances(tmp_path / "nemo.jsonl")


def test_aishell2_calls_its_texts_trans_txt(tmp_path: Path) -> None:
    put(tmp_path / "wav" / "C1" / "IC1.wav")
    put(tmp_path / "wav.scp", "IC1\twav/C1/IC1.wav\n")
    put(tmp_path / "trans.txt", "IC1\t一 二\n")
    assert read_utterances(tmp_path).utterances[0].text == "一 二"


@pytest.mark.parametrize(
    ("written", "there"),
    [
        ("sub\\a b.wav", "sub/a b.wav"),
        ("sub\\a.wav", "clips/sub/a.wav"),
        (unicodedata.normalize("NFD", "Äpfel.wav"), unicodedata.normalize("NFC", "Äpfel.wav")),
        (unicodedata.normalize("NFC", "が.wav"), unicodedata.normalize("NFD", "が.wav")),
        (" a.wav ", "a.wav"),
        ("a#1%20?.wav", "a#1%20?.wav"),
        ("-rf.wav", "-rf.wav"),
        ('it\'s "b".wav', 'it\'s "b".wav'),
    ],
    ids=ascii,
)
def test_odd_paths(tmp_path: Path, written: str, there: str) -> None:
    path = put(tmp_path / there)
    put(tmp_path / "list.jsonl", json.dumps({"audio": written}) + "\n")
    (one,) = read_utterances(tmp_path / "list.jsonl")
    assert one.audio.samefile(path)
    assert one.id == written


def test_what_is_written_comes_before_what_may_be_meant(tmp_path: Path) -> None:
    written, other = put(tmp_path / "a\\b.wav"), put(tmp_path / "a" / "b.wav")
    put(tmp_path / "list.jsonl", json.dumps({"audio": "a\\b.wav"}) + "\n")
    (one,) = read_utterances(tmp_path / "list.jsonl")
    assert one.audio.samefile(written)
    assert not one.audio.samefile(other)


def test_csv_of_a_country_with_decimal_commas(tmp_path: Path) -> None:
    put(tmp_path / "a.wav")
    put(tmp_path / "l.csv", '\ufeffaudio;text;duration\r\na.wav;"eins; zwei";0.1\r\n')
    (one,) = read_utterances(tmp_path / "l.csv")
    assert (one.text, one.duration_s) == ("eins; zwei", 0.1)


def test_every_malformed_line_is_counted(tmp_path: Path) -> None:
    put(tmp_path / "a.wav")
    lines = [
        '{"audio": "a.wav"}',
        "{",
        "[]",
        '{"text": "no audio"}',
        '{"audio": "a.wav", "id": 1, "text": 5}',
    ]
    path = put(tmp_path / "list.jsonl", "\n".join(lines))
    found = survey(path)
    assert len(found.utterances) == 1
    assert sum(len(one.names) for one in found.faults if one.kind == "malformed") == 4
    with pytest.raises(
        SvtoolError, match=r"line 2: not valid JSON.*and 3 more malformed lines: see all with"
    ):
        read_utterances(path)


def test_kaldi_tables_keep_the_first_of_a_doubled_key(tmp_path: Path) -> None:
    path = put(tmp_path / "hyp", "u1  one  two \r\n\r\nu2\nu1 other\n")
    table, faults = read_table(path)
    assert table == {"u1": "one  two", "u2": ""}
    assert [one.names for one in faults] == [("u1",)]


def test_the_digest_of_a_tree_does_not_depend_on_its_place(librispeech: Path, tmp_path: Path) -> None:
    digest = read_utterances(librispeech).digest
    moved = tmp_path / "elsewhere"
    librispeech.rename(moved)
    assert read_utterances(moved).digest == digest
    assert read_utterances(os.path.relpath(moved)).digest == digest


def test_languages_that_are_misspelt_or_unknown_are_told_with_their_count(tmp_path: Path) -> None:
    spelled = ["zn", "ZN", "<|zn|>", "jp", "kr", "cn", "zh-CN", "en_US", None, "de", "de-DE", "fr", "auto"]
    put(tmp_path / "a.wav")
    rows = [{"id": at, "audio": "a.wav", "language": one} for at, one in enumerate(spelled)]
    listed = put(tmp_path / "l.jsonl", "\n".join(map(json.dumps, rows)))
    found = read_utterances(listed)
    assert [one.language for one in found][:8] == ["zh", "zh", "zh", "ja", "ko", "zh", "zh", "en"]
    assert found.notes == (
        "language 'zn' is read as 'zh' (3 utterances)",
        "language 'jp' is read as 'ja' (1 utterance)",
        "language 'kr' is read as 'ko' (1 utterance)",
        "language 'cn' is read as 'zh' (1 utterance)",
        "3 utterances in a language that the model does not know: de (2), fr (1); it knows zh, en, yue, ja, ko",
    )
    assert found.take(2).notes == found.notes
    assert survey(listed).notes == found.notes[:4]


@pytest.mark.parametrize(
    ("entry", "words"),
    [
        ({"audio": 5, "text": [1]}, "the audio is 5, a number, not a string"),
        ({"audio_filepath": ["a"]}, 'the audio is ["a"], a list, not a string'),
        ({"audio": True}, "the audio is true, true or false, not a string"),
        ({"audio": {"path": "a.wav"}}, 'the audio is {"path": "a.wav"}, an object, not a string'),
        ({"audio": "a.wav", "text": [1]}, "the text is [1], a list, not a string"),
        ({"audio": "a.wav", "id": {"a": 1}}, 'the id is {"a": 1}, an object, not a string'),
        ({"audio": None}, "no audio file is named"),
        ({"audio": " "}, "no audio file is named"),
    ],
)
def test_what_is_no_string_is_told_with_its_kind_and_line(
    tmp_path: Path, entry: dict[str, object], words: str
) -> None:
    put(tmp_path / "a.wav")
    listed = put(tmp_path / "l.jsonl", '{"audio": "a.wav"}\n' + json.dumps(entry))
    with pytest.raises(SvtoolError, match=re.escape(f"l.jsonl, line 2: {words}")):
        read_utterances(listed)
