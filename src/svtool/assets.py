"""Finds a SenseVoice directory and reads what is not weights: config, CMVN, tokens, ids. Needs no torch.

A source is `tiny` (embedded), a local directory in the official file layout, or a hub id.
"""

from __future__ import annotations

import re
import warnings
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np

from svtool import tiny
from svtool.errors import ArtifactError, SvtoolError, UsageError
from svtool.frontend import FEATURE_SIZE, Cmvn, FloatArray
from svtool.intake import AGAIN, read_text, read_yaml, stranger
from svtool.manifest import sha256_file
from svtool.progress import Progress, Silent

CHECKPOINT_NAME = "model.pt"
CONFIG_NAME = "config.yaml"
CONFIGURATION_NAME = "configuration.json"
CMVN_NAME = "am.mvn"
BPE_NAME = "chn_jpn_yue_eng_ko_spectok.bpe.model"

QUERIES = 4  # language, emotion, event, text normalisation: positions in front of the audio
# query rows of the model's 16-row table, and the aliases people really type
LANGUAGES = {"auto": 0, "zh": 3, "en": 4, "yue": 7, "ja": 11, "ko": 12, "nospeech": 13}
TEXTNORMS = {"withitn": 14, "woitn": 15}
LANGUAGE_ALIASES = {"zn": "zh", "cn": "zh", "jp": "ja", "kr": "ko"}

# the tags each of the four query positions may take; a vocabulary need not have all of them
LANGUAGE_TAGS = ("zh", "en", "yue", "ja", "ko", "nospeech")
EMOTION_TAGS = (
    *("HAPPY", "SAD", "ANGRY", "NEUTRAL", "FEARFUL", "DISGUSTED", "SURPRISED", "OTHER", "EMO_UNKNOWN"),
)
EVENT_TAGS = (
    *("Speech", "BGM", "Laughter", "Applause", "Cry", "Sneeze", "Breath", "Cough"),
    *("Sing", "Speech_Noise", "GBG", "Event_UNK"),
)
ITN_TAGS = ("withitn", "woitn")

HUB_MODELS = {"iic/SenseVoiceSmall": "modelscope", "FunAudioLLM/SenseVoiceSmall": "huggingface"}
# sha256 of the published files, the same on both hubs
OFFICIAL_SHA256 = {
    CHECKPOINT_NAME: "833ca2dcfdf8ec91bd4f31cfac36d6124e0c459074d5e909aec9cabe6204a3ea",
    BPE_NAME: "aa87f86064c3730d799ddf7af3c04659151102cba548bce325cf06ba4da4e6a8",
    CMVN_NAME: "29b3c740a2c0cfc6b308126d31d7f265fa2be74f3bb095cd2f143ea970896ae5",
}
_HUB_FILES = (CHECKPOINT_NAME, CONFIG_NAME, CONFIGURATION_NAME, CMVN_NAME, BPE_NAME)


_CMVN_PARTS = ("<AddShift>", "<Rescale>")


class Tokens:
    """The vocabulary: pieces, tags, and ids to text. Blank is id 0."""

    blank_id = 0

    def __init__(self, path: Path) -> None:
        import sentencepiece

        if found := stranger(path):
            raise ArtifactError(f"{path} {found}")
        self._processor = sentencepiece.SentencePieceProcessor()
        try:
            self._processor.Load(str(path))
        except (OSError, RuntimeError) as error:
            raise ArtifactError(f"{path} is no SentencePiece model, or a damaged one: {AGAIN}") from error
        size = self._processor.GetPieceSize()
        self.pieces: tuple[str, ...] = tuple(self._processor.IdToPiece(index) for index in range(size))
        self.tag_ids = tuple(index for index, piece in enumerate(self.pieces) if _TAG.fullmatch(piece))
        self._by_tag = {self.pieces[index][2:-2]: index for index in self.tag_ids}
        silent = {self.blank_id, *self.tag_ids}
        silent.update(index for index in range(size) if self._processor.IsControl(index))
        self._silent = frozenset(silent)

    def tag_name(self, token_id: int) -> str:
        """`en` for the id of `<|en|>`."""
        return self.pieces[token_id][2:-2]

    def tag_id(self, name: str) -> int:
        return self._by_tag[name]

    def text(self, ids: Iterable[int]) -> str:
        """Decoded text without tags, blanks or control symbols."""
        kept = [int(one) for one in ids if int(one) not in self._silent]
        return str(self._processor.DecodeIds(kept)).strip() if kept else ""

    def _class_ids(self, names: Iterable[str]) -> dict[str, int]:
        return {name: self._by_tag[name] for name in names if name in self._by_tag}

    @cached_property
    def language_ids(self) -> dict[str, int]:
        return self._class_ids(LANGUAGE_TAGS)

    @cached_property
    def emotion_ids(self) -> dict[str, int]:
        return self._class_ids(EMOTION_TAGS)

    @cached_property
    def event_ids(self) -> dict[str, int]:
        return self._class_ids(EVENT_TAGS)

    @cached_property
    def itn_ids(self) -> dict[str, int]:
        return self._class_ids(ITN_TAGS)


_TAG = re.compile(r"<\|[^|]+\|>")


@dataclass(frozen=True)
class Assets:
    """One SenseVoice directory, read and checked."""

    root: Path
    name: str  # "tiny", the hub model's name, or the folder's
    revision: str | None
    config: Mapping[str, Any]
    cmvn: Cmvn
    tokens: Tokens

    @property
    def checkpoint(self) -> Path | None:
        path = self.root / CHECKPOINT_NAME
        return path if path.is_file() else None

    def file(self, name: str) -> Path:
        return self.root / name

    def without_checkpoint(self) -> str:
        """What to say when there is no checkpoint."""
        if self.file(CHECKPOINT_NAME).is_dir():
            return f"{self.file(CHECKPOINT_NAME)} is a folder, not the file that torch.save writes: {AGAIN}"
        if self.file("model.onnx").is_file():
            return (
                f"{self.root} has no {CHECKPOINT_NAME}: it is exported already; build an engine with  "
                f"svtool build-trt {self.root}"
            )
        return f"{self.root} has no {CHECKPOINT_NAME}: put the checkpoint there, or name another source"


def find_assets(
    source: str | Path, *, revision: str | None = None, progress: Progress | None = None
) -> Assets:
    """Read the source `tiny`, a directory, or a hub id (downloaded through the hub's own client).

    Raises UsageError for an unknown source, ArtifactError for a directory that is not SenseVoice Small.
    """
    if str(source) == "tiny":
        return read_assets(tiny.MODEL_DIR, name="tiny")
    if str(source) in HUB_MODELS:
        root = _download(str(source), revision, progress or Silent())
        return read_assets(root, name=str(source).split("/")[1], revision=revision)
    root = Path(source)
    if not root.is_dir():
        known = ", ".join(["tiny", *HUB_MODELS])
        what = "is a file, not a directory" if root.exists() else "is no directory and no known model"
        beside = f", such as the one it is in ({root.parent})" if root.is_file() else ""
        raise UsageError(f"{source} {what}: name a directory{beside}, or one of {known}")
    return read_assets(root, name=root.resolve().name)


def missing_assets(root: Path) -> list[str]:
    """Names of the files, weights apart, without which a folder cannot be used."""
    return [one for one in (CONFIG_NAME, CMVN_NAME, BPE_NAME) if not (root / one).is_file()]


def require_assets(root: Path) -> None:
    """Raise ArtifactError for a folder that lacks one of those files."""
    if missing := missing_assets(root):
        raise ArtifactError(
            f"{root if root.name else root.resolve()} is no SenseVoice directory: it lacks {', '.join(missing)}; copy "
            "the whole release into it, or have it downloaded with  svtool export iic/SenseVoiceSmall"
        )


def read_assets(root: Path, *, name: str, revision: str | None = None) -> Assets:
    """Read a directory in the official layout. The checkpoint may be absent (an exported directory)."""
    require_assets(root)
    config = _read_config(root / CONFIG_NAME)
    cmvn, tokens = read_cmvn(root / CMVN_NAME), Tokens(root / BPE_NAME)
    if not tokens.language_ids:
        raise ArtifactError(
            f"{root / BPE_NAME} is the tokenizer of another model: it has no <|zh|>, <|en|>, ...; take the one of "
            "the checkpoint's release"
        )
    return Assets(root, name, revision, config, cmvn, tokens)


def _read_config(path: Path) -> dict[str, Any]:
    config = read_yaml(path, f"repair it there, or {AGAIN}")
    if not isinstance(config, dict):
        raise ArtifactError(f"{path} holds no settings (names with values): {AGAIN}")
    wanted = {
        ("model",): "SenseVoiceSmall",
        ("encoder",): "SenseVoiceEncoderSmall",
        ("frontend_conf", "fs"): 16000,
        ("frontend_conf", "window"): "hamming",
        ("frontend_conf", "n_mels"): 80,
        ("frontend_conf", "frame_length"): 25,
        ("frontend_conf", "frame_shift"): 10,
        ("frontend_conf", "lfr_m"): 7,
        ("frontend_conf", "lfr_n"): 6,
    }
    for keys, value in wanted.items():
        found = _look_up(config, keys)
        if found != value:
            raise ArtifactError(
                f"{path} is not SenseVoice Small: {'.'.join(keys)} is {found!r}, expected {value!r}; "
                "svtool handles no other model family"
            )
    if not isinstance(config.get("encoder_conf"), dict):
        raise ArtifactError(f"{path} has no encoder_conf section: take it from the release of the checkpoint")
    return config


def _look_up(config: Any, keys: tuple[str, ...]) -> Any:
    for key in keys:
        config = config.get(key) if isinstance(config, dict) else None
    return config


def read_cmvn(path: Path) -> Cmvn:
    """Shift and scale f32 [560] from a Kaldi-nnet text file (`am.mvn`)."""
    lines = read_text(path, AGAIN).splitlines()
    found: dict[str, FloatArray] = {}
    for number, (head, line) in enumerate(pairwise(lines), start=2):
        kind = head.split(maxsplit=1)[0] if head.strip() else ""
        if kind in _CMVN_PARTS:
            found[kind] = _cmvn_values(line, f"{path} is broken at line {number}")
    absent = [kind for kind in _CMVN_PARTS if kind not in found]
    if absent:
        raise ArtifactError(f"{path} is no CMVN file: it has no {' and no '.join(absent)} part; {AGAIN}")
    return Cmvn(shift=found["<AddShift>"], scale=found["<Rescale>"])


def _cmvn_values(line: str, where: str) -> FloatArray:
    """The 560 values of `<LearnRateCoef> 0 [ v1 ... v560 ]`."""
    cells = line.split()[3:-1]
    if len(cells) != FEATURE_SIZE or not line.rstrip().endswith("]"):
        raise ArtifactError(
            f"{where} ({len(cells)} values, expected {FEATURE_SIZE}, and a closing ]): {AGAIN}"
        )
    values = np.empty(FEATURE_SIZE, dtype=np.float32)
    for index, cell in enumerate(cells):
        try:
            values[index] = float(cell)
        except ValueError:
            values[index] = np.nan
        if not np.isfinite(values[index]):
            raise ArtifactError(f"{where}, value {index + 1} ({cell!r} is no finite number): {AGAIN}")
    return values


def parse_language(value: str) -> str:
    """A language name in any case -> `auto`, `zh`, `en`, `yue`, `ja` or `ko`.

    A common misspelling is taken with a warning; anything else raises UsageError.
    """
    name = value.strip().lower()
    if name in LANGUAGE_ALIASES:
        meant = LANGUAGE_ALIASES[name]
        warnings.warn(f"language {value!r} is read as {meant!r}", stacklevel=2)
        return meant
    allowed = [one for one in LANGUAGES if one != "nospeech"]
    if name not in allowed:
        raise UsageError(f"language {value!r} is not known: use one of {', '.join(allowed)}")
    return name


def _download(source: str, revision: str | None, progress: Progress) -> Path:
    kind = HUB_MODELS[source]
    progress.note(
        f"fetching {source} ({kind}, revision {revision or 'default'}); about 940 MB the first time"
    )
    try:
        root = (
            _from_huggingface(source, revision)
            if kind == "huggingface"
            else _from_modelscope(source, revision)
        )
    except ImportError as error:
        raise SvtoolError(
            f"downloading {source} needs the hub clients: in svtool's folder, run  "
            f"pip install -e '.[hub]', or {_by_hand()}"
        ) from error
    except Exception as error:
        raise SvtoolError(f"{source} could not be downloaded ({_in_short(error)}): {_by_hand()}") from error
    _check_digests(root, source, revision, progress)
    return root


def _in_short(error: Exception, most: int = 160) -> str:
    text = " ".join(str(error).split()) or type(error).__name__
    return text if len(text) <= most else text[: most - 1] + "…"


def _by_hand() -> str:
    return (
        f"put {', '.join(_HUB_FILES)} of the model into a folder such as ./SenseVoiceSmall "
        "and run  svtool export ./SenseVoiceSmall"
    )


def _from_huggingface(source: str, revision: str | None) -> Path:
    from huggingface_hub import snapshot_download

    return Path(snapshot_download(source, revision=revision, allow_patterns=list(_HUB_FILES)))


def _from_modelscope(source: str, revision: str | None) -> Path:
    from modelscope.hub.snapshot_download import snapshot_download

    return Path(snapshot_download(source, revision=revision, allow_patterns=list(_HUB_FILES)))


def _check_digests(root: Path, source: str, revision: str | None, progress: Progress) -> None:
    for name, wanted in OFFICIAL_SHA256.items():
        found = sha256_file(root / name)
        if found == wanted:
            continue
        if revision is None:
            raise ArtifactError(
                f"{root / name} has sha256 {found[:12]}…, the published {source} has {wanted[:12]}…: delete it and "
                "run again, or name the --revision you mean"
            )
        progress.note(
            f"{name} of revision {revision} differs from the first published one (sha256 {found[:12]}…)"
        )
