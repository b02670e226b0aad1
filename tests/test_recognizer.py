"""One test body over both backends: the same audio gives the same text however it is batched, cut or called."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest

import trt_double
from svtool import tiny
from svtool.assets import Assets
from svtool.audio import Audio, decode_audio
from svtool.backends import Backend, Batch, FloatArray, Limits, Output
from svtool.errors import SvtoolError
from svtool.frontend import Frontend, pad_batch
from svtool.recognizer import SILENCE, TOO_SHORT, Options, Recognizer, Transcript, open_recognizer


@pytest.fixture(scope="module", params=["torch", "onnxruntime", "tensorrt_rtx"])
def recognizer(
    request: pytest.FixtureRequest, tiny_model: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Recognizer]:
    """One body of tests for all backends; TensorRT's runs over doubles of the library and the device."""
    artifact = tiny.MODEL_DIR if request.param == "torch" else tiny_model
    opened = open_recognizer(artifact, threads=1)
    if request.param == "tensorrt_rtx":
        double = trt_double.open_double(tiny_model, tmp_path_factory.mktemp("plan")).backend
        opened = Recognizer(double, opened.assets)
    assert opened.backend.runtime == request.param
    yield opened
    opened.close()


@pytest.fixture(scope="module")
def clips() -> list[FloatArray]:
    """Thirty utterances of different lengths."""
    folder = tiny.render("calibration").parent
    paths = [
        folder / f"{part}-{number:04d}.wav" for part in ("clean", "10db", "5db") for number in range(20, 30)
    ]
    return [decode_audio(path).samples for path in paths]


def texts(results: list[Transcript | SvtoolError]) -> list[str]:
    assert all(isinstance(one, Transcript) for one in results), results
    return [one.text for one in results if isinstance(one, Transcript)]


@pytest.mark.case("R1")
def test_text_is_the_same_at_every_batch_size(recognizer: Recognizer, clips: list[FloatArray]) -> None:
    alone = texts(recognizer.transcribe(clips, Options(batch_size_n=1)))
    assert sum(map(bool, alone)) == len(clips)
    for size in (3, 7, 30):
        assert texts(recognizer.transcribe(clips, Options(batch_size_n=size, batch_size_s=1e9))) == alone


@pytest.mark.case("R2")
def test_logits_do_not_depend_on_batch_mates_or_padding(
    recognizer: Recognizer, clips: list[FloatArray]
) -> None:
    short = recognizer.features(clips[0])[:10]
    long = np.random.default_rng(3).standard_normal((400, 560)).astype(np.float32)
    alone = _infer(recognizer.backend, [short])
    mixed = _infer(recognizer.backend, [short, long])
    np.testing.assert_allclose(mixed[0, : len(short) + 4], alone[0], atol=2e-5)
    feats, lens = pad_batch([short, long])
    feats[0, len(short) :] = 50.0  # what stands in the padding must not matter
    dirty = recognizer.backend.infer(_batch(feats, lens)).logits
    assert dirty is not None
    np.testing.assert_allclose(dirty[0, : len(short) + 4], alone[0], atol=2e-5)


def _infer(backend: Backend, features: list[FloatArray]) -> FloatArray:
    output = backend.infer(_batch(*pad_batch(features)))
    assert output.logits is not None
    return output.logits


def _batch(feats: FloatArray, lens: np.ndarray) -> Batch:
    return Batch(feats, lens, np.zeros(len(lens), np.int32), np.full(len(lens), 15, np.int32))


@pytest.mark.case("R3")
def test_the_front_end_is_stateless_over_16_threads(tiny_assets: Assets) -> None:
    frontend = Frontend(tiny_assets.cmvn)
    rng = np.random.default_rng(5)
    waves = [rng.standard_normal(int(rng.integers(400, 40000))).astype(np.float32) * 0.1 for _ in range(50)]
    serial = [frontend.features(wave) for wave in waves]
    with ThreadPoolExecutor(16) as pool:
        for _ in range(16):
            for ours, theirs in zip(pool.map(frontend.features, waves), serial, strict=True):
                assert np.array_equal(ours, theirs)


@pytest.mark.case("R3", "R4")
def test_16_threads_with_a_recognizer_each_agree(tiny_model: Path, clips: list[FloatArray]) -> None:
    def run(_: int) -> list[str]:
        own = open_recognizer(tiny_model, threads=1)
        try:
            return texts(own.transcribe(clips[:6]))
        finally:
            own.close()

    expected = run(0)
    with ThreadPoolExecutor(16) as pool:
        assert all(one == expected for one in pool.map(run, range(16)))


@pytest.mark.case("A1")
@pytest.mark.parametrize("samples", [0, 1, 160, 399, 400, 401, 560])
def test_very_short_audio_is_an_answer(recognizer: Recognizer, samples: int) -> None:
    wave = np.random.default_rng(1).standard_normal(samples).astype(np.float32) * 0.1
    (result,) = recognizer.transcribe([wave], Options(gate_silence=False))
    assert isinstance(result, Transcript)
    if samples < 400:
        assert (result.text, result.no_speech, result.reason) == ("", True, TOO_SHORT)
    else:
        assert result.reason is None


@pytest.mark.case("A1", "R7", "R14")
def test_long_audio_is_cut_and_nothing_is_dropped(recognizer: Recognizer, clips: list[FloatArray]) -> None:
    pause = np.random.default_rng(2).standard_normal(8000).astype(np.float32) * 1e-3
    pieces = [part for clip in clips[:10] for part in (clip, pause)] * 2
    whole = np.concatenate(pieces)
    assert len(whole) / 16000 > 95
    (result,) = recognizer.transcribe([whole])
    assert isinstance(result, Transcript)
    assert result.duration_s == pytest.approx(len(whole) / 16000)
    starts = [word.start_s for word in result.words]
    assert starts == sorted(starts)
    assert result.words[-1].end_s <= result.duration_s
    assert starts[-1] > result.duration_s - 15
    said = sum(len(text.split()) for text in texts(recognizer.transcribe(clips[:10]))) * 2
    assert abs(len(result.words) - said) <= 0.1 * said


@pytest.mark.case("D12", "A12", "U18")
@pytest.mark.parametrize("seconds", [0.3, 5.0])
def test_silence_is_no_speech_without_running_the_model(recognizer: Recognizer, seconds: float) -> None:
    (result,) = recognizer.transcribe([np.zeros(int(seconds * 16000), np.float32)])
    assert isinstance(result, Transcript)
    assert (result.text, result.no_speech, result.reason, result.words) == ("", True, SILENCE, ())


@pytest.mark.case("A3")
def test_a_peak_over_one_changes_no_text(recognizer: Recognizer, clips: list[FloatArray]) -> None:
    loud = [clip * np.float32(1.05 / np.abs(clip).max()) for clip in clips[:8]]
    full = [clip * np.float32(1.00 / np.abs(clip).max()) for clip in clips[:8]]
    assert texts(recognizer.transcribe(loud)) == texts(recognizer.transcribe(full))
    gain = recognizer.features(loud[0]) - recognizer.features(full[0])
    log_gain = 2 * np.log(1.05) * recognizer.assets.cmvn.scale
    np.testing.assert_allclose(gain, np.broadcast_to(log_gain, gain.shape), atol=2e-3)


@pytest.mark.case("A10")
def test_two_runs_are_identical(recognizer: Recognizer, clips: list[FloatArray]) -> None:
    assert recognizer.transcribe(clips[:5]) == recognizer.transcribe(clips[:5])


@pytest.mark.case("D8")
def test_itn_reaches_the_model(recognizer: Recognizer, clips: list[FloatArray]) -> None:
    for itn in (True, False):
        for result in recognizer.transcribe(clips[:5], Options(itn=itn)):
            assert isinstance(result, Transcript)
            assert result.itn is itn


@pytest.mark.case("A4")
@pytest.mark.parametrize("rate", [8000, 11025, 22050, 44100, 48000])
def test_every_rate_gives_the_same_mel_bin(tiny_assets: Assets, rate: int) -> None:
    from svtool.audio import from_array

    def tone(at: int) -> FloatArray:
        return (0.3 * np.sin(2 * np.pi * 440 * np.arange(at) / at)).astype(np.float32)

    frontend = Frontend(tiny_assets.cmvn)
    ours, reference = (frontend.features(from_array(tone(at), at).samples) for at in (rate, 16000))
    assert abs(len(ours) - len(reference)) <= 1
    cmvn = tiny_assets.cmvn
    peaks = [np.argmax((one[5] / cmvn.scale - cmvn.shift)[240:320]) for one in (ours, reference)]
    assert peaks[0] == peaks[1]


class FailingBackend:
    """Fails on batches that hold one marked utterance: a fault that no real input causes."""

    limits = Limits()
    runtime = "double"
    provider = "double"

    def __init__(self, real: Backend, marked_frames: int) -> None:
        self._real, self._marked = real, marked_frames
        self.tag_ids = real.tag_ids

    def infer(self, batch: Batch) -> Output:
        if self._marked in batch.feat_lens:
            raise MemoryError("no memory for this one")
        return self._real.infer(batch)

    def close(self) -> None: ...


@pytest.mark.case("U1", "B7")
def test_one_failing_utterance_fails_alone(recognizer: Recognizer, clips: list[FloatArray]) -> None:
    some = clips[:7]
    expected = texts(recognizer.transcribe(some))
    marked = len(recognizer.features(some[3]))
    assert sum(len(recognizer.features(one)) == marked for one in some) == 1
    broken = Recognizer(FailingBackend(recognizer.backend, marked), recognizer.assets)
    results = broken.transcribe(some)
    assert isinstance(results[3], SvtoolError)
    assert "no memory" in str(results[3])
    assert texts(results[:3] + results[4:]) == expected[:3] + expected[4:]


def test_not_finite_audio_fails_alone(recognizer: Recognizer, clips: list[FloatArray]) -> None:
    bad = clips[1].copy()
    bad[100] = np.nan
    results = recognizer.transcribe([clips[0], bad, clips[2]])
    assert isinstance(results[1], SvtoolError)
    assert texts([results[0], results[2]]) == texts(recognizer.transcribe([clips[0], clips[2]]))


@pytest.mark.case("D7")
def test_allowed_languages_hold(recognizer: Recognizer, clips: list[FloatArray]) -> None:
    for result in recognizer.transcribe(clips[:4], Options(allow_languages=("zh", "ja"))):
        assert isinstance(result, Transcript)
        assert result.no_speech or result.language in ("zh", "ja")


@pytest.mark.case("B5", "E6")
def test_audio_over_the_engines_limit_is_refused_by_name(
    recognizer: Recognizer, clips: list[FloatArray]
) -> None:
    class Small(FailingBackend):
        limits = Limits(max_batch=2, max_frames=20)

    small = Recognizer(Small(recognizer.backend, -1), recognizer.assets)
    (result,) = small.transcribe([clips[0]])
    assert isinstance(result, SvtoolError)
    assert "--profile" in str(result)


def test_plus_minus_half_a_bit_changes_few_texts(recognizer: Recognizer) -> None:
    folder = tiny.render("drift").parent
    clean = [decode_audio(folder / f"clean-{number:04d}.wav").samples for number in range(0, 800, 8)]
    rng = np.random.default_rng(9)
    noisy = [clip + (rng.uniform(-0.5, 0.5, len(clip)) / 32768).astype(np.float32) for clip in clean]
    same = sum(
        a == b
        for a, b in zip(texts(recognizer.transcribe(clean)), texts(recognizer.transcribe(noisy)), strict=True)
    )
    assert same >= 0.98 * len(clean)


class Recorded:
    """What a progress bar would have shown."""

    def __init__(self) -> None:
        self.stages: list[tuple[str, float | None]] = []
        self.advances: list[float] = []

    def stage(self, name: str, total: float | None = None) -> None:
        self.stages.append((name, total))

    def advance(self, amount: float = 1.0) -> None:
        self.advances.append(amount)

    def note(self, message: str) -> None: ...


def test_progress_moves_inside_one_long_file(recognizer: Recognizer, clips: list[FloatArray]) -> None:
    whole = Audio(np.concatenate(clips[:20]), 16_000, 1)
    seen = Recorded()
    list(recognizer.transcribe_files([lambda: whole], Options(batch_size_s=30.0), seen))
    (total,) = [total for name, total in seen.stages if total is not None]
    assert total == pytest.approx(whole.duration_s, rel=0.02)
    assert len(seen.advances) >= 4
    assert sum(seen.advances) == pytest.approx(total)


def test_a_source_that_raises_fails_alone(recognizer: Recognizer, clips: list[FloatArray]) -> None:
    def refuse() -> Audio:
        raise SvtoolError("no such thing")

    first, second = recognizer.transcribe_files([refuse, lambda: Audio(clips[0], 16_000, 1)])
    assert str(first) == "no such thing"
    assert isinstance(second, Transcript)
