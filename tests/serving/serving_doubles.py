"""Doubles for faults and slowness that no real engine shows on demand, and sounds to send."""

from __future__ import annotations

import io
import threading
import wave
from collections.abc import Sequence

import numpy as np

from svtool.backends import FloatArray
from svtool.errors import SvtoolError
from svtool.recognizer import Options, Transcript


class FakeRecognizer:
    """Says how long each waveform was. `gate` holds it back; samples above 2.0 make the whole batch raise."""

    def __init__(self) -> None:
        self.gate = threading.Event()
        self.gate.set()
        self.batches: list[int] = []
        self.options: list[Options] = []
        self.threads: set[int] = set()
        self.closed = False

    def transcribe(
        self, waveforms: Sequence[FloatArray], options: Options | None = None
    ) -> list[Transcript | SvtoolError]:
        assert options is not None
        self.batches.append(len(waveforms))
        self.options.append(options)
        self.threads.add(threading.get_ident())
        assert self.gate.wait(20)
        peaks = [float(np.abs(one).max(initial=0.0)) for one in waveforms]
        if any(peak > 3.0 for peak in peaks):
            raise SystemExit("the thread ends")
        if any(peak > 2.0 for peak in peaks):
            raise RuntimeError("device-side assert")
        return [self._answer(one, peak) for one, peak in zip(waveforms, peaks, strict=True)]

    def close(self) -> None:
        self.closed = True

    def _answer(self, samples: FloatArray, peak: float) -> Transcript | SvtoolError:
        if peak > 1.5:
            return SvtoolError("the engine returned NaN or infinite logits for item 0")
        seconds = len(samples) / 16_000
        return Transcript(f"heard {seconds:.2f} s", "en", "NEUTRAL", ("Speech",), seconds, no_speech=False)


def wav_bytes(seconds: float = 1.0, *, peak: float = 0.3, rate: int = 16_000) -> bytes:
    """A tone, 16 bits; as 32-bit float when the peak is over full scale."""
    time = np.arange(int(seconds * rate)) / rate
    tone = peak * np.sin(2 * np.pi * 440 * time)
    if peak > 1:
        return _float_wav(tone.astype("<f4"), rate)
    out = io.BytesIO()
    with wave.open(out, "wb") as file:
        file.setnchannels(1)
        file.setsampwidth(2)
        file.setframerate(rate)
        file.writeframes(np.rint(tone * 32768).astype("<i2").tobytes())
    return out.getvalue()


def _float_wav(samples: np.ndarray, rate: int) -> bytes:  # type: ignore[type-arg]
    data = samples.tobytes()
    head = b"fmt " + (16).to_bytes(4, "little") + (3).to_bytes(2, "little") + (1).to_bytes(2, "little")
    head += rate.to_bytes(4, "little") + (rate * 4).to_bytes(4, "little") + (4).to_bytes(2, "little")
    head += (32).to_bytes(2, "little") + b"data" + len(data).to_bytes(4, "little")
    return b"RIFF" + (4 + len(head) + len(data)).to_bytes(4, "little") + b"WAVE" + head + data
