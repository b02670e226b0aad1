"""Train the embedded model from nothing: one command, one stage, fixed seeds, a fixed number of steps.

    python tools/tiny/train.py --work /tmp/svtool-tiny

Downloads the Debian packages, copies the short recordings into the package, trains the tokenizer and the network
and writes the checkpoint in the official file layout to src/svtool/tiny_model. Interrupted runs go on where they
were (state.pt in the work folder).
"""

from __future__ import annotations

import argparse
import json
import math
import time
from collections.abc import Iterator
from pathlib import Path

import corpus as corpora
import numpy as np
import sentencepiece
import torch
import yaml
from torch import Tensor
from torch.nn import functional

from svtool import tiny
from svtool.assets import QUERIES
from svtool.frontend import Cmvn, Frontend, pad_batch
from svtool.model import ModelConfig, SenseVoice

SEED = 20
BATCH = 16
GROUP = 4  # batches drawn together and sorted by length
STEPS = 5000
# length of the learning-rate schedule: training stops inside it, since the averaged weights no longer improve
SCHEDULE_STEPS = 9000
LANGUAGES = {"auto": 0, "zh": 3, "en": 4, "yue": 7, "ja": 11, "ko": 12}
TEXTNORMS = {"withitn": 14, "woitn": 15}
TAGS = (
    *("zh", "en", "yue", "ja", "ko", "es", "fr", "it", "ru", "nospeech"),
    *("HAPPY", "SAD", "ANGRY", "NEUTRAL", "FEARFUL", "DISGUSTED", "SURPRISED", "EMO_UNKNOWN"),
    *("Speech", "BGM", "Laughter", "Applause", "Cry", "Sneeze", "Breath", "Cough", "Event_UNK"),
    *("withitn", "woitn"),
)
SIZES = {"output_size": 128, "attention_heads": 4, "linear_units": 448, "num_blocks": 5, "tp_blocks": 2}
VOCABULARY = 400


def train_tokenizer(corpus: corpora.Corpus, work: Path) -> sentencepiece.SentencePieceProcessor:
    rng = np.random.default_rng(SEED)
    lines = [one.spoken for one in corpus.prompts if one.id not in corpus.held_out]
    lines += [corpora.written_form(line) for line in lines]
    lines += [tiny.spoken_text(tiny.draw_sequence(rng, "mixed")) for _ in range(3000)]
    (work / "tokenizer.txt").write_text("\n".join(lines), encoding="utf-8")
    sentencepiece.SentencePieceTrainer.train(
        input=str(work / "tokenizer.txt"),
        model_prefix=str(work / "bpe"),
        model_type="bpe",
        vocab_size=VOCABULARY,
        character_coverage=1.0,
        normalization_rule_name="identity",
        user_defined_symbols=[f"<|{tag}|>" for tag in TAGS],
        split_digits=True,
        minloglevel=2,
    )
    return sentencepiece.SentencePieceProcessor(model_file=str(work / "bpe.model"))


def measure_cmvn(corpus: corpora.Corpus) -> Cmvn:
    """Per-mel mean and deviation over 400 training utterances, repeated for the seven stacked frames."""
    plain = Frontend(Cmvn(np.zeros(560, np.float32), np.ones(560, np.float32)))
    rng = np.random.default_rng([SEED, 1])
    rows = []
    for _ in range(400):
        kind, ids = corpus.draw(rng)
        if kind != "nospeech":
            rows.append(plain.features(corpus.example(kind, ids, rng).samples)[:, 240:320])
    mels = np.concatenate(rows).astype(np.float64)
    shift, scale = np.tile(-mels.mean(axis=0), 7), np.tile(1.0 / mels.std(axis=0), 7)
    return Cmvn(shift.round(6).astype(np.float32), scale.round(6).astype(np.float32))


class Batches(torch.utils.data.Dataset[dict[str, Tensor]]):
    """Batch number -> padded tensors; each batch is a function of its number alone."""

    def __init__(
        self,
        corpus: corpora.Corpus,
        cmvn: Cmvn,
        tokenizer: sentencepiece.SentencePieceProcessor,
        steps: range,
    ) -> None:
        self._corpus, self._frontend, self._tokenizer, self._steps = corpus, Frontend(cmvn), tokenizer, steps

    def __len__(self) -> int:
        return len(self._steps)

    def __getitem__(self, index: int) -> dict[str, Tensor]:
        step = self._steps[index]
        group, part = divmod(step, GROUP)
        rng = np.random.default_rng([SEED, 2, group])
        drawn = sorted(
            (self._corpus.draw(rng) for _ in range(BATCH * GROUP)),
            key=lambda one: self._corpus.length(one[1]),
        )
        order = rng.permutation(GROUP)
        mine = drawn[order[part] * BATCH : (order[part] + 1) * BATCH]
        rng = np.random.default_rng([SEED, 3, step])
        return self._collate([self._corpus.example(kind, ids, rng) for kind, ids in mine], rng)

    def _collate(self, examples: list[corpora.Example], rng: np.random.Generator) -> dict[str, Tensor]:
        feats, lens = pad_batch([_mask(self._frontend.features(one.samples), rng) for one in examples])
        targets = [self._tokenizer.encode(one.text) if one.text else [] for one in examples]
        tags = [[self._tokenizer.piece_to_id(f"<|{tag}|>") for tag in one.tags] for one in examples]
        return {
            "feats": torch.from_numpy(feats),
            "lens": torch.from_numpy(lens),
            "language": torch.tensor([LANGUAGES[one.language] for one in examples], dtype=torch.int32),
            "textnorm": torch.tensor([TEXTNORMS[one.textnorm] for one in examples], dtype=torch.int32),
            "targets": torch.tensor([token for one in targets for token in one], dtype=torch.long),
            "target_lens": torch.tensor([len(one) for one in targets], dtype=torch.long),
            "tags": torch.tensor(tags, dtype=torch.long),
        }


def _mask(feats: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """Light SpecAugment: a few mel bands (in all seven stacked frames) and single LFR frames set to the mean."""
    bands = feats.reshape(len(feats), 7, 80)
    for _ in range(rng.integers(0, 3)):
        low = rng.integers(0, 72)
        bands[:, :, low : low + rng.integers(1, 13)] = 0.0
    for _ in range(rng.integers(0, 1 + len(feats) // 20)):
        at = rng.integers(0, len(feats))
        feats[at : at + rng.integers(1, 3)] = 0.0
    return feats


def loss_of(model: SenseVoice, batch: dict[str, Tensor]) -> Tensor:
    with torch.autocast("cpu", dtype=torch.bfloat16):
        logits, lens = model(batch["feats"], batch["lens"], batch["language"], batch["textnorm"])
    logits = logits.float()
    tags = functional.cross_entropy(logits[:, :QUERIES].transpose(1, 2), batch["tags"], label_smoothing=0.05)
    text = functional.ctc_loss(
        logits[:, QUERIES:].log_softmax(-1).transpose(0, 1),
        batch["targets"],
        lens.long() - QUERIES,
        batch["target_lens"],
        zero_infinity=True,
    )
    return text + 0.3 * tags


def rate_at(step: int, steps: int = SCHEDULE_STEPS, peak: float = 2e-3, warmup: int = 400) -> float:
    if step < warmup:
        return peak * (step + 1) / warmup
    return peak * (0.01 + 0.99 * 0.5 * (1 + math.cos(math.pi * (step - warmup) / (steps - warmup))))


def train(
    corpus: corpora.Corpus,
    cmvn: Cmvn,
    tokenizer: sentencepiece.SentencePieceProcessor,
    work: Path,
    steps: int,
) -> SenseVoice:
    torch.manual_seed(SEED)
    model = SenseVoice(ModelConfig(vocab_size=tokenizer.get_piece_size(), **SIZES))
    average = torch.optim.swa_utils.AveragedModel(
        model, multi_avg_fn=torch.optim.swa_utils.get_ema_multi_avg_fn(0.999)
    )
    optimizer = torch.optim.AdamW(
        model.parameters(), lr=1e-3, betas=(0.9, 0.98), weight_decay=0.01, fused=True
    )
    done = _resume(work, model, average, optimizer)
    loader = torch.utils.data.DataLoader(
        Batches(corpus, cmvn, tokenizer, range(done, steps)),
        batch_size=None,
        num_workers=1,
        prefetch_factor=4,
    )
    began, total = time.perf_counter(), 0.0
    for step, batch in enumerate(loader, start=done):
        for group in optimizer.param_groups:
            group["lr"] = rate_at(step)
        loss = loss_of(model, batch)
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 2.0)
        optimizer.step()
        average.update_parameters(model)
        total += float(loss.detach())
        if (step + 1) % 100 == 0:
            print(f"step {step + 1} loss {total / 100:.4f} {time.perf_counter() - began:.0f} s", flush=True)
            total = 0.0
        if (step + 1) % 500 == 0:
            print(
                f"step {step + 1} word errors {validate(average.module, corpus, cmvn, tokenizer)}", flush=True
            )
            state = {
                "step": step + 1,
                "model": model.state_dict(),
                "average": average.state_dict(),
                "optimizer": optimizer.state_dict(),
            }
            torch.save(state, work / "state.tmp")
            (work / "state.tmp").rename(work / "state.pt")
    return average.module  # type: ignore[return-value]


def _resume(work: Path, model: SenseVoice, average: torch.nn.Module, optimizer: torch.optim.Optimizer) -> int:
    if not (work / "state.pt").is_file():
        return 0
    state = torch.load(work / "state.pt", weights_only=True)
    model.load_state_dict(state["model"])
    average.load_state_dict(state["average"])
    optimizer.load_state_dict(state["optimizer"])
    return int(state["step"])


def validate(
    model: SenseVoice, corpus: corpora.Corpus, cmvn: Cmvn, tokenizer: sentencepiece.SentencePieceProcessor
) -> str:
    """Word error rate (%) on 60 mixed sequences of a seed of its own, clean and at 5 dB."""
    import rapidfuzz

    frontend = Frontend(cmvn)
    rates = []
    for snr in (None, 5.0):
        errors = words = 0
        for number in range(60):
            rng = np.random.default_rng([SEED, 4, number])
            sequence = tiny.draw_sequence(rng, "mixed")
            samples = tiny.join([corpus.waves[one] for one in sequence], rng)
            if snr is not None:
                samples = tiny.add_noise(samples, tiny.pink_noise(len(samples), rng), snr)
            feats = torch.from_numpy(frontend.features(samples))[None]
            with torch.inference_mode():
                logits, _ = model(
                    feats, *(torch.tensor([value], dtype=torch.int32) for value in (feats.shape[1], 0, 15))
                )
            ids = logits[0, QUERIES:].argmax(-1).unique_consecutive().tolist()
            heard = tokenizer.decode([one for one in ids if one]).split()
            reference = tiny.spoken_text(sequence).split()
            errors += rapidfuzz.distance.Levenshtein.distance(reference, heard)
            words += len(reference)
        rates.append(f"{100 * errors / words:.2f}")
    return f"clean {rates[0]} 5dB {rates[1]}"


def write_checkpoint(model: SenseVoice, cmvn: Cmvn, work: Path) -> None:
    """The official file layout: float16 weights, config, CMVN text, tokenizer."""
    target = tiny.MODEL_DIR
    half = {name: tensor.to(torch.float16).contiguous() for name, tensor in model.state_dict().items()}
    torch.save(half, target / "model.pt")
    (target / "chn_jpn_yue_eng_ko_spectok.bpe.model").write_bytes((work / "bpe.model").read_bytes())
    (target / "config.yaml").write_text(yaml.safe_dump(_config(), sort_keys=False), encoding="utf-8")
    (target / "configuration.json").write_text(
        json.dumps(_configuration(), indent=2) + "\n", encoding="utf-8"
    )
    (target / "am.mvn").write_text("\n".join(_mvn_lines(cmvn)) + "\n", encoding="utf-8")


def _config() -> dict[str, object]:
    return {
        "encoder": "SenseVoiceEncoderSmall",
        "encoder_conf": {
            **SIZES,
            **{"dropout_rate": 0.0, "positional_dropout_rate": 0.0, "attention_dropout_rate": 0.0},
            **{"input_layer": "pe", "pos_enc_class": "SinusoidalPositionEncoder", "normalize_before": True},
            **{"kernel_size": 11, "sanm_shfit": 0, "selfattention_layer_type": "sanm"},
        },
        "model": "SenseVoiceSmall",
        "model_conf": {"length_normalized_loss": True, "sos": 1, "eos": 2, "ignore_id": -1},
        "tokenizer": "SentencepiecesTokenizer",
        "tokenizer_conf": {"bpemodel": None, "unk_symbol": "<unk>", "split_with_space": True},
        "frontend": "WavFrontend",
        "frontend_conf": {
            **{"fs": 16000, "window": "hamming", "n_mels": 80, "frame_length": 25, "frame_shift": 10},
            **{"lfr_m": 7, "lfr_n": 6, "dither": 0.0, "cmvn_file": None},
        },
    }


def _configuration() -> dict[str, object]:
    metas = {
        "init_param": "model.pt",
        "config": "config.yaml",
        "tokenizer_conf": {"bpemodel": "chn_jpn_yue_eng_ko_spectok.bpe.model"},
        "frontend_conf": {"cmvn_file": "am.mvn"},
    }
    return {
        "framework": "pytorch",
        "task": "auto-speech-recognition",
        "model": {"type": "funasr"},
        "file_path_metas": metas,
    }


def _mvn_lines(cmvn: Cmvn) -> Iterator[str]:
    yield "<Nnet> "
    yield "<Splice> 560 560"
    yield "[ 0 ]"
    for name, values in (("AddShift", cmvn.shift), ("Rescale", cmvn.scale)):
        yield f"<{name}> 560 560 "
        yield f"<LearnRateCoef> 0 [ {' '.join(f'{value:.6f}' for value in values)} ]"
    yield "</Nnet> "


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--work", type=Path, default=Path("/tmp/svtool-tiny"), help="packages, state and logs"
    )
    parser.add_argument("--steps", type=int, default=STEPS)
    parser.add_argument("--threads", type=int, default=1)
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    root = corpora.fetch(options.work)
    corpora.install_short_recordings(corpora.read_prompts(root)[0])
    corpus = corpora.Corpus(root)
    tokenizer = train_tokenizer(corpus, options.work)
    cmvn = measure_cmvn(corpus)
    model = train(corpus, cmvn, tokenizer, options.work, options.steps)
    write_checkpoint(model.eval(), cmvn, options.work)


if __name__ == "__main__":
    main()
