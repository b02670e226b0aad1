"""The page's own HTML: head, results, notices. Everything that came from outside is escaped here.

Knows nothing of Gradio or HTTP.
"""

from __future__ import annotations

import re
from html import escape

from svtool.decode import rich_text
from svtool.errors import SvtoolError
from svtool.recognizer import Transcript
from svtool.serving.service import Engine, Recognition

LANGUAGE_NAMES = {"zh": "Mandarin", "en": "English", "yue": "Cantonese", "ja": "Japanese", "ko": "Korean"}
EMOTIONS = {
    "HAPPY": ("😊", "Happy"),
    "SAD": ("😔", "Sad"),
    "ANGRY": ("😡", "Angry"),
    "NEUTRAL": ("😐", "Neutral"),
    "FEARFUL": ("😰", "Fearful"),
    "DISGUSTED": ("🤢", "Disgusted"),
    "SURPRISED": ("😮", "Surprised"),
    "OTHER": ("🎭", "Other"),
}
EVENTS = {
    "Speech": ("💬", "Speech"),
    "BGM": ("🎼", "Music"),
    "Applause": ("👏", "Applause"),
    "Laughter": ("😀", "Laughter"),
    "Cry": ("😭", "Crying"),
    "Sneeze": ("🤧", "Sneeze"),
    "Breath": ("🌬️", "Breath"),
    "Cough": ("😷", "Cough"),
    "Sing": ("🎤", "Singing"),
    "Speech_Noise": ("🔊", "Speech in noise"),
    "GBG": ("🔉", "Background noise"),
}
RUNTIMES = {
    "onnxruntime": "ONNX Runtime",
    "tensorrt": "TensorRT",
    "tensorrt_rtx": "TensorRT-RTX",
    "torch": "PyTorch",
}
_EMOJI = re.compile("[" + "".join(emoji[0] for emoji, _ in (*EMOTIONS.values(), *EVENTS.values())) + "❓]+")

_LONG_TEXT = 300  # characters; more is set smaller

EMPTY = (
    '<div class="sv-empty"><span class="sv-empty-mark" aria-hidden="true"></span>'
    "<p>Choose a recording, then press <b>Transcribe</b>.</p></div>"
)


def head(engine: Engine) -> str:
    facts = (("Engine", engine.name), ("Precision", engine.precision), ("Runs on", runs_on(engine)))
    items = "".join(f"<div><dt>{name}</dt><dd>{escape(value)}</dd></div>" for name, value in facts)
    return (
        '<header class="sv-head"><div><h1>svtool</h1><p>Speech to text, with emotion and sound events</p></div>'
        f"<dl>{items}</dl></header>"
    )


def runs_on(engine: Engine) -> str:
    """`ONNX Runtime, CPU`."""
    runtime = RUNTIMES.get(engine.runtime, engine.runtime)
    provider = engine.provider.removesuffix("ExecutionProvider")
    if provider.startswith(runtime):  # `TensorRT 10.13`
        return provider
    return f"{runtime}, {provider.upper() if len(provider) <= 4 else provider}" if provider else runtime


def tiny_notice(engine: Engine) -> str:
    if not engine.is_tiny:
        return ""
    return (
        '<aside class="sv-notice"><b>Demonstration model.</b> It knows one speaker and a small English vocabulary: '
        "digits, letters, the phonetic alphabet, telephone prompts. It is not a recogniser for your voice. Try the "
        "examples, or export the full model with <code>svtool export iic/SenseVoiceSmall</code>.</aside>"
    )


def foot() -> str:
    return (
        '<footer class="sv-foot"><span>API: <code>POST /api/recognize</code></span>'
        '<a href="/docs" target="_blank">API reference</a><a href="/health" target="_blank">Health</a>'
        "<span>Recordings are removed from this server within minutes.</span></footer>"
    )


def failure(error: SvtoolError) -> str:
    return f'<div class="sv-failure" role="alert"><b>That did not work.</b><p>{escape(str(error))}</p></div>'


def result(done: Recognition) -> str:
    heard = done.transcript
    return (
        f'<article class="sv-result">{_text(done)}{_marks(heard)}{_warnings(done)}{_segments(heard)}'
        f"{_figures(done)}</article>"
    )


def _text(done: Recognition) -> str:
    heard = done.transcript
    if done.no_speech_reason:
        return f'<p class="sv-silent">{done.no_speech_reason}</p>'
    # not from `raw`: of a long recording that is one tagged string for every stretch, with no space between them
    tags = "".join(f"<|{name}|>" for name in (heard.language, heard.emotion, *heard.events) if name)
    marked = _EMOJI.sub(r'<span class="sv-emoji">\g<0></span>', escape(rich_text(tags + heard.text)))
    size = "sv-text sv-long" if len(heard.text) > _LONG_TEXT else "sv-text"
    return f'<p class="{size}" lang="{escape(heard.language or "")}" dir="auto">{marked}</p>'


def _marks(heard: Transcript) -> str:
    marks = []
    if heard.language:
        marks.append(_mark("Language", "🌐", LANGUAGE_NAMES.get(heard.language, heard.language)))
    if heard.emotion:
        marks.append(_mark("Emotion", *EMOTIONS.get(heard.emotion, ("🎭", heard.emotion))))
    marks += [_mark("Sound", *EVENTS.get(event, ("🔉", event))) for event in heard.events]
    return f'<ul class="sv-marks">{"".join(marks)}</ul>' if marks else ""


def _mark(kind: str, emoji: str, name: str) -> str:
    return (
        f'<li title="{kind}"><span class="sv-unseen">{kind}: </span>'
        f'<span class="sv-emoji" aria-hidden="true">{emoji}</span><span>{escape(name)}</span></li>'
    )


def _warnings(done: Recognition) -> str:
    return "".join(f'<p class="sv-warning">{escape(one)}</p>' for one in done.warnings)


def _segments(heard: Transcript) -> str:
    if not heard.segments:
        return ""
    rows = "".join(
        f"<tr><td>{clock(one.start_s)}</td><td>{clock(one.end_s)}</td><td dir='auto'>{escape(one.text)}</td></tr>"
        for one in heard.segments
    )
    title = "<caption>Segments <span>times are approximate</span></caption>"
    names = "<thead><tr><th>Start</th><th>End</th><th>Text</th></tr></thead>"
    table = f'<table class="sv-segments">{title}{names}<tbody>{rows}</tbody></table>'
    return f'<div class="sv-scroll" tabindex="0">{table}</div>'


def _figures(done: Recognition) -> str:
    figures = [f"{done.transcript.duration_s:.1f} s of audio", f"{done.took_s:.2f} s to transcribe"]
    if done.rtf:
        figures.append(
            f"{1 / done.rtf:.0f}× real time" if done.rtf < 1 else f"{done.rtf:.1f} s per second of audio"
        )
    return f'<p class="sv-figures">{"".join(f"<span>{one}</span>" for one in figures)}</p>'


def clock(seconds: float) -> str:
    """`1:02.48`."""
    hundredths = round(seconds * 100)
    return f"{hundredths // 6000}:{hundredths // 100 % 60:02d}.{hundredths % 100:02d}"
