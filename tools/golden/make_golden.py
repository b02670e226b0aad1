"""Write the golden vectors under tests/golden with the public `funasr` package. README.md says how.

Runs in its own environment: nothing here is imported by svtool or its tests. Everything is seeded; a second
run with the package versions of ORIGIN.json writes the same numbers.
"""

from __future__ import annotations

import argparse
import io
import json
import random
import sys
from importlib import metadata
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

REPOSITORY = Path(__file__).resolve().parents[2]
GOLDEN = REPOSITORY / "tests" / "golden"
SOUNDS = REPOSITORY / "src" / "svtool" / "tiny_model" / "sounds"

PACKAGES = ("funasr", "torch", "kaldi-native-fbank", "numpy", "sentencepiece", "av")

# The official vocabulary's tags that have a meaning for SenseVoice Small, and some that do not.
LANGUAGE_TAGS = ("zh", "en", "yue", "ja", "ko")
OTHER_TAGS = ("de", "fr", "ASR", "AED", "SER")
EVENT_TAGS = (
    *("Speech", "/Speech", "BGM", "/BGM", "Laughter", "/Laughter", "Applause", "/Applause"),
    *("Cry", "Sneeze", "Breath", "Cough", "Sing", "Speech_Noise", "GBG", "Event_UNK"),
)
EMOTION_TAGS = (
    "HAPPY",
    "SAD",
    "ANGRY",
    "NEUTRAL",
    "FEARFUL",
    "DISGUSTED",
    "SURPRISED",
    "OTHER",
    "EMO_UNKNOWN",
)
ITN_TAGS = ("withitn", "woitn")
TAGS = (*LANGUAGE_TAGS, *OTHER_TAGS, "nospeech", *EVENT_TAGS, *EMOTION_TAGS, *ITN_TAGS)

SENTENCES = (
    "the tribal chieftain called for the boy and presented him with fifty pieces of gold",
    "hello there, this is a small test. the weather is good today, isn't it?",
    "the other one is the last of the three, and that is all there is to it.",
    "今天天气很好。我们去公园吧。",
    "はい。今日はいい天気です。",
    "안녕하세요 오늘 날씨가 좋네요",
)
VOCABULARY = 192

ENCODER = {
    "output_size": 64,
    "attention_heads": 4,
    "linear_units": 96,
    "num_blocks": 3,
    "tp_blocks": 2,
    "dropout_rate": 0.1,
    "positional_dropout_rate": 0.1,
    "attention_dropout_rate": 0.1,
    "input_layer": "pe",
    "normalize_before": True,
    "kernel_size": 11,
    "sanm_shfit": 0,
    "selfattention_layer_type": "sanm",
}
ITEMS = (  # LFR frames, language, textnorm
    (37, "zh", "woitn"),
    (1, "en", "withitn"),
    (12, "auto", "woitn"),
    (29, "ja", "withitn"),
    (2, "ko", "woitn"),
    (23, "yue", "withitn"),
    (5, "nospeech", "woitn"),
    (31, "en", "woitn"),
)
INPUT_SEED = 20240717

LENGTHS = (
    *(400, 401, 559, 560, 561, 719, 720, 879, 880, 1039, 1040, 1199, 1200, 1359, 1360, 1361, 1519, 1520),
    *(1600, 2319, 2320, 2321, 3200, 4000, 4719, 4720, 8000),
)
NOISE_SEED = 7
NOISE_SAMPLES = 16000
SPEECH_FILES = ("hello-world.g722", "please-try-again.g722", "vm-youhave.g722")


def tokenizer_bytes() -> bytes:
    """A SentencePiece BPE model with the tags as user defined symbols, as SenseVoice's raw strings need."""
    import sentencepiece

    model = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(SENTENCES * 4),
        model_writer=model,
        model_type="bpe",
        vocab_size=VOCABULARY,
        character_coverage=1.0,
        normalization_rule_name="identity",  # the NFKC table alone would weigh 240 kB
        user_defined_symbols=[f"<|{tag}|>" for tag in TAGS],
        unk_id=0,
        bos_id=1,
        eos_id=2,
        pad_id=-1,
        num_threads=1,
        minloglevel=2,
    )
    return model.getvalue()


def model_inputs(frames: int, index: int) -> npt.NDArray[np.float32]:
    """Features [frames, 560] on a grid of 1/64, so that the legacy generator gives them everywhere alike."""
    draws = np.random.RandomState(INPUT_SEED + index).standard_normal((frames, 560))
    return (np.round(draws * 64) / 64).astype(np.float32)


def build_model(vocabulary: int) -> Any:
    """funasr's SenseVoiceSmall, every parameter away from its initial value and exact in float16."""
    from funasr.models.sense_voice.model import SenseVoiceSmall

    torch.manual_seed(3)
    model = SenseVoiceSmall(
        encoder="SenseVoiceEncoderSmall",
        encoder_conf=dict(ENCODER),
        input_size=560,
        vocab_size=vocabulary,
        length_normalized_loss=True,
    ).eval()
    with torch.no_grad():
        model.ctc.ctc_lo.weight.mul_(4.0)  # spread logits, so that argmax does not hang on the last bit
        for name, parameter in model.named_parameters():
            if parameter.dim() == 1:
                parameter.add_(torch.randn_like(parameter) * 0.2)
            if "fsmn_block" in name:
                parameter.mul_(2.0)
        model.ctc.ctc_lo.bias[0] += 1.5  # some blanks
        for name, parameter in model.named_parameters():
            mantissa, exponent = torch.frexp(parameter)
            parameter.copy_(torch.ldexp(torch.round(mantissa * 64) / 64, exponent))  # 6 bits: compresses well
            parameter[parameter.abs() < 2.0**-13] = 0.0  # out of float16's full precision
            assert torch.equal(parameter.half().float(), parameter), name
    return model


def make_model() -> None:
    from funasr.models.sense_voice.export_meta import export_forward
    from funasr.tokenizer.sentencepiece_tokenizer import SentencepiecesTokenizer

    path = GOLDEN / "tokenizer.model"
    path.write_bytes(tokenizer_bytes())
    tokenizer = SentencepiecesTokenizer(bpemodel=str(path))
    model = build_model(tokenizer.get_vocab_size())
    raw: list[torch.Tensor] = []
    model.ctc.ctc_lo.register_forward_hook(
        lambda _module, _inputs, output: raw.append(output.detach().clone())
    )

    inputs = [model_inputs(frames, index) for index, (frames, _, _) in enumerate(ITEMS)]
    most = max(frames for frames, _, _ in ITEMS)
    speech = np.zeros((len(ITEMS), most, 560), dtype=np.float32)
    for row, features in zip(speech, inputs, strict=True):
        row[: len(features)] = features
    lengths = torch.tensor([frames for frames, _, _ in ITEMS], dtype=torch.int32)
    language = torch.tensor([model.lid_dict[name] for _, name, _ in ITEMS], dtype=torch.int32)
    textnorm = torch.tensor([model.textnorm_dict[name] for _, _, name in ITEMS], dtype=torch.int32)
    arrays: dict[str, npt.NDArray[Any]] = {
        "lengths": lengths.numpy(),
        "language": language.numpy(),
        "textnorm": textnorm.numpy(),
    }
    texts: list[str] = []
    with torch.no_grad():
        batch, out_lengths = export_forward(model, torch.from_numpy(speech), lengths, language, textnorm)
        for index, (frames, language_name, textnorm_name) in enumerate(ITEMS):
            rows = int(out_lengths[index])
            assert rows == frames + 4
            raw.clear()
            results, _ = model.inference(
                torch.from_numpy(inputs[index]).clone()[None],
                torch.tensor([frames]),
                key=["item"],
                tokenizer=tokenizer,
                data_type="fbank",
                device="cpu",
                language=language_name,
                text_norm=textnorm_name,
            )
            alone = raw[0][0, :rows]
            difference = (alone - batch[index, :rows]).abs().max().item()
            assert difference < 1e-5, difference
            assert torch.equal(alone.argmax(-1), batch[index, :rows].argmax(-1))
            arrays[f"batch_{index}"] = batch[index, :rows].numpy()
            arrays[f"alone_{index}"] = alone.numpy()
            texts.append(results[0]["text"])
    np.savez_compressed(GOLDEN / "model_outputs.npz", **arrays)
    state = {name: tensor.numpy().astype(np.float16) for name, tensor in model.state_dict().items()}
    for name, tensor in model.state_dict().items():
        assert np.array_equal(state[name].astype(np.float32), tensor.numpy()), name
    np.savez_compressed(GOLDEN / "model_weights.npz", **state)
    description = {
        "encoder_conf": ENCODER,
        "vocab_size": tokenizer.get_vocab_size(),
        "input_seed": INPUT_SEED,
        "items": [
            {"frames": frames, "language": name, "textnorm": norm, "raw_text": text}
            for (frames, name, norm), text in zip(ITEMS, texts, strict=True)
        ],
    }
    write_json(GOLDEN / "model.json", description)


def tag_strings() -> list[str]:
    """Strings a greedy decoder can give, and some that it should not."""
    strings = [
        "<|en|><|HAPPY|><|BGM|><|withitn|>Hello there. <|en|><|HAPPY|><|BGM|><|withitn|>Bye.",
        "<|ja|><|SAD|><|Cough|><|withitn|>はい。",
        "<|nospeech|><|EMO_UNKNOWN|><|BGM|><|woitn|>",
        "<|nospeech|><|Event_UNK|>",
        "<|zh|><|Applause|>a<|zh|><|Applause|>b<|zh|><|Applause|>c",
        *(
            "",
            " ",
            "\n",
            "The.",
            "The.The.",
            "1.5",
            "<|",
            "|>",
            "<||>",
            "<|lang|>",
            "<|zh|>",
            "😊",
            "😊 😊",
            "🎼",
        ),
        *(
            "<|<|zh|>|>",
            "<|z<|HAPPY|>h|>",
            "<|en|>a 😊<|HAPPY|>",
            "<|en|>🎼<|en|>🎼",
            "<|en|>🎼<|en|>🎼a<|en|>🎼",
        ),
        "<|en|><|NEUTRAL|><|Speech|><|woitn|>version 1.5 is out. The. next is 2.0",
        "<|nospeech|><|HAPPY|><|Event_UNK|>",
    ]
    strings += [f"<|{tag}|>" for tag in TAGS]
    strings += [f"<|en|><|NEUTRAL|><|Speech|><|withitn|>one <|{tag}|> two" for tag in TAGS]
    strings += [f"<|zh|><|{tag}|><|{tag}|><|HAPPY|>好" for tag in TAGS]
    draw = random.Random(11)
    words = (
        *(
            "hello",
            "Bye.",
            "The.",
            "The end.",
            "1.5",
            "3,000",
            "今天天气很好。",
            "はい。",
            "네",
            "嗯",
            "。",
            "yeah",
        ),
        *(" ", "  ", "\t", "a", "I'm", "😊", "🎼", "👏", "😷", "❓", "🤧", "<s>", "x|y", "<en>"),
    )
    heads = (*LANGUAGE_TAGS, "nospeech")
    for _ in range(140):  # well-formed segments, one to four
        strings.append("".join(_segment(draw, heads, words) for _ in range(draw.randint(1, 4))))
    for _ in range(90):  # any tags anywhere
        parts = [f"<|{draw.choice(TAGS)}|>" if draw.random() < 0.6 else draw.choice(words) for _ in range(12)]
        strings.append("".join(parts[: draw.randint(1, 12)]))
    return list(dict.fromkeys(strings))


def _segment(draw: random.Random, heads: tuple[str, ...], words: tuple[str, ...]) -> str:
    tags = (draw.choice(heads), draw.choice(EMOTION_TAGS), draw.choice(EVENT_TAGS), draw.choice(ITN_TAGS))
    text = draw.choice(("", " ")).join(draw.choice(words) for _ in range(draw.randint(0, 4)))
    return "".join(f"<|{tag}|>" for tag in tags) + text


def make_rich_text() -> None:
    from funasr.utils.postprocess_utils import rich_transcription_postprocess

    rows = []
    for raw in tag_strings():
        try:
            rows.append({"raw": raw, "rich": rich_transcription_postprocess(raw)})
        except Exception as error:  # noqa: BLE001 - whatever it raises is the recorded fact
            rows.append({"raw": raw, "raises": type(error).__name__})
    write_json(GOLDEN / "rich_text.json", rows)


def write_am_mvn(path: Path) -> None:
    """CMVN in the official file format: 560 values of period 80 in the range of real speech."""
    bands = np.arange(80)
    shift = -(8.3 + 5.5 * np.sin(np.pi * bands / 95) + 0.2 * np.cos(bands))
    scale = 0.155 - 0.035 * np.sin(np.pi * bands / 110) + 0.004 * np.cos(bands * 0.7)
    lines = ["<Nnet>", "<Splice> 560 560", "[ 0 ]"]
    for name, values in (("AddShift", shift), ("Rescale", scale)):
        numbers = " ".join(f"{value:.6f}" for value in np.tile(values, 7))
        lines += [f"<{name}> 560 560", f"<LearnRateCoef> 0 [ {numbers} ]"]
    path.write_text("\n".join([*lines, "</Nnet>", ""]), encoding="ascii")


def signals() -> dict[str, npt.NDArray[np.int16]]:
    """16 kHz waveforms in 16-bit steps."""
    time_s = np.arange(16000) / 16000

    def int16(wave: npt.NDArray[np.float64]) -> npt.NDArray[np.int16]:
        return np.rint(np.clip(wave, -1, 32767 / 32768) * 32767).astype(np.int16)

    def chirp(low: float, high: float, seconds: float) -> npt.NDArray[np.int16]:
        t = time_s[: int(16000 * seconds)]
        return int16(0.5 * np.sin(2 * np.pi * (low * t + (high - low) * t * t / (2 * seconds))))

    return {
        "tone_100": int16(0.3 * np.sin(2 * np.pi * 100 * time_s))[:8000],
        "tone_440": int16(0.5 * np.sin(2 * np.pi * 440 * time_s))[:8000],
        "tone_1000_quiet": int16(0.01 * np.sin(2 * np.pi * 1000 * time_s))[:8000],
        "tone_3900_loud": int16(np.sin(2 * np.pi * 3900 * time_s))[:8000],
        "tones_chord": int16(
            sum(0.2 * np.sin(2 * np.pi * f * time_s + f) for f in (220.0, 277.2, 1330.0, 5100.0))
        )[:9999],
        "square_300_full": np.where(np.sin(2 * np.pi * 300 * time_s[:5000]) >= 0, 32767, -32768).astype(
            np.int16
        ),
        "silence": np.zeros(3000, np.int16),
        "offset": np.full(3000, 1234, np.int16),
        "click": (np.arange(3000) == 1700).astype(np.int16) * 20000,
        "chirp_up": chirp(20, 7900, 1.0),
        "chirp_down": chirp(6000, 100, 1.0),
        "speech": speech(),
    }


def noise(samples: int) -> npt.NDArray[np.int16]:
    """White noise by integer draws of the legacy generator, which are the same everywhere."""
    return np.random.RandomState(NOISE_SEED).randint(-6000, 6001, size=samples).astype(np.int16)


def speech() -> npt.NDArray[np.int16]:
    """Three shipped recordings joined, at most 3 s."""
    import av

    pieces = []
    for name in SPEECH_FILES:
        with av.open(str(SOUNDS / name), format="g722") as container:
            pieces += [frame.to_ndarray().reshape(-1) for frame in container.decode(audio=0)]
    return np.concatenate(pieces).astype(np.int16)[:48000]


def make_frontend() -> None:
    from funasr.frontends.wav_frontend import WavFrontend

    write_am_mvn(GOLDEN / "am.mvn")
    frontend = WavFrontend(
        cmvn_file=str(GOLDEN / "am.mvn"),
        fs=16000,
        window="hamming",
        n_mels=80,
        frame_length=25,
        frame_shift=10,
        lfr_m=7,
        lfr_n=6,
        dither=0.0,
    )

    def features(samples: npt.NDArray[np.int16]) -> npt.NDArray[np.float32]:
        wave = torch.from_numpy(samples.astype(np.float32) / 32768)
        feats, lengths = frontend(wave[None], torch.tensor([len(samples)]))
        assert feats.shape == (1, int(lengths[0]), 560)
        return np.asarray(feats[0].numpy(), dtype=np.float32)

    arrays: dict[str, npt.NDArray[Any]] = {}
    for name, samples in signals().items():
        arrays[f"samples_{name}"] = samples
        arrays[f"features_{name}"] = features(samples)
    whole = noise(NOISE_SAMPLES)
    arrays["features_noise"] = features(whole)
    arrays["noise_seed"] = np.array(NOISE_SEED)
    arrays["lengths"] = np.array(LENGTHS)
    for length in LENGTHS:
        arrays[f"length_{length}"] = features(whole[:length])
    np.savez_compressed(GOLDEN / "frontend.npz", **arrays)


def write_json(path: Path, value: Any) -> None:
    path.write_text(json.dumps(value, ensure_ascii=False, indent=1) + "\n", encoding="utf-8")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("parts", nargs="*", default=["model", "rich_text", "frontend"])
    parts = {"model": make_model, "rich_text": make_rich_text, "frontend": make_frontend}
    GOLDEN.mkdir(parents=True, exist_ok=True)
    torch.set_num_threads(1)
    for part in parser.parse_args().parts:
        parts[part]()
    versions = {name: metadata.version(name) for name in PACKAGES}
    write_json(GOLDEN / "ORIGIN.json", {"python": sys.version.split()[0], "packages": versions})


if __name__ == "__main__":
    main()
