"""The Gradio page: upload or record, choose, read. Knows nothing of decoding or batching: it awaits the service.

What a browser uploads lies in the page's own private folder. A request may name any path on this machine, so
nothing outside that folder is ever read, and no URL is ever fetched.
"""

from __future__ import annotations

import asyncio
import os
import wave
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from svtool.errors import AudioError, SvtoolError
from svtool.serving import markup
from svtool.serving.service import Service

if TYPE_CHECKING:
    from fastapi import FastAPI

TITLE = "svtool · speech to text"
LANGUAGE_CHOICES = [
    ("Detect automatically", "auto"),
    ("English", "en"),
    ("普通话 · Mandarin", "zh"),
    ("粵語 · Cantonese", "yue"),
    ("日本語 · Japanese", "ja"),
    ("한국어 · Korean", "ko"),
]
# an upload lives at least this long, far beyond any request, and at most this long plus one round
_KEEP_S = 900
_SWEEP_EVERY_S = 60


@dataclass(frozen=True)
class Example:
    label: str
    recordings: tuple[str, ...]


EXAMPLES = (
    Example("Digits", ("digits/4", "digits/1", "digits/9", "digits/7", "digits/2")),
    Example("Letters", ("letters/s", "letters/v", "letters/t", "letters/o", "letters/l")),
    Example("Phonetic alphabet", ("phonetic/t_p", "phonetic/i_p", "phonetic/n_p", "phonetic/y_p")),
    Example("A prompt", ("hello", "please-try-again", "goodbye")),
)


def mount_page(app: FastAPI, service: Service, folder: Path) -> FastAPI:
    """Build the page and mount it at `/`; returns the mounted app. `folder` is private, empty, and must outlive it.

    Gradio reads its folder and its telemetry switch from the environment, so both are set here for the process.
    """

    async def mount() -> FastAPI:
        return _mount(app, service, folder)

    try:
        asyncio.get_running_loop()
    except RuntimeError:
        # without a running event loop Gradio makes one for every lock of its own, and closes none of them
        return asyncio.run(mount())
    else:
        return _mount(app, service, folder)


def _mount(app: FastAPI, service: Service, folder: Path) -> FastAPI:
    uploads = folder / "uploads"
    uploads.mkdir(mode=0o700)
    os.environ["GRADIO_TEMP_DIR"] = str(uploads)
    os.environ["GRADIO_ANALYTICS_ENABLED"] = "False"
    import gradio as gr

    examples = _render_examples(folder / "examples") if service.engine.is_tiny else {}
    demo = _build(service, uploads, examples)
    # a mounted page counts as not launched, and Gradio then lets a request name any file of this machine
    demo.has_launched = True
    gr.mount_gradio_app(
        app,
        demo,
        path="/",
        ssr_mode=False,
        show_error=False,
        max_file_size=service.limits.file_bytes,
        allowed_paths=[str(folder / "examples")],
        footer_links=[],
        run_history=False,
        theme=_theme(),
        css=(Path(__file__).parent / "page.css").read_text(encoding="utf-8"),
    )
    mounted: FastAPI = app.routes[-1].app  # type: ignore[attr-defined]
    return mounted


def _build(service: Service, uploads: Path, examples: dict[str, Path]) -> Any:
    import gradio as gr

    with gr.Blocks(title=TITLE, analytics_enabled=False, delete_cache=(_SWEEP_EVERY_S, _KEEP_S)) as demo:
        gr.HTML(markup.head(service.engine) + markup.tiny_notice(service.engine))
        with gr.Row(elem_classes="sv-columns", equal_height=False):
            with gr.Column(elem_classes="sv-card", scale=5, min_width=300):
                audio = gr.Audio(
                    sources=["upload", "microphone"],
                    type="filepath",
                    label="Recording",
                    show_label=False,
                    editable=False,
                    buttons=[],
                    elem_id="sv-audio",
                )
                buttons = _example_buttons(examples)
                language = gr.Dropdown(
                    LANGUAGE_CHOICES, value="auto", label="Language spoken", filterable=False
                )
                itn = gr.Checkbox(
                    label="Punctuation, capitals and digits (ITN)", value=not service.engine.is_tiny
                )
                start = gr.Button("Transcribe", variant="primary", size="lg", elem_classes="sv-go")
            with gr.Column(elem_classes="sv-card", scale=7, min_width=300):
                output = gr.HTML(markup.EMPTY, elem_id="sv-output")
        gr.HTML(markup.foot())
        _refuse_urls(audio, uploads)
        settings: dict[str, Any] = {
            "fn": _handler(service, uploads),
            "inputs": [audio, language, itn],
            "outputs": output,
            "concurrency_limit": service.worker.limits.batch_n * 2,
            "show_progress": "full",
        }
        start.click(**settings, api_name="transcribe", api_visibility="undocumented")
        for button, path in buttons:
            chosen = button.click(
                partial(str, path), outputs=audio, api_visibility="private", show_progress="hidden"
            )
            chosen.then(**settings, api_visibility="private")
        audio.clear(lambda: markup.EMPTY, outputs=output, api_visibility="private", show_progress="hidden")
    demo.queue(max_size=service.limits.in_flight)
    return demo


def _example_buttons(examples: dict[str, Path]) -> list[tuple[Any, Path]]:
    import gradio as gr

    if not examples:
        return []
    gr.HTML('<p class="sv-label">Or try an example</p>')
    with gr.Row(elem_classes="sv-examples"):
        return [(gr.Button(label, size="sm", min_width=60), path) for label, path in examples.items()]


def _handler(service: Service, uploads: Path) -> Callable[[str | None, str, bool], Awaitable[str]]:
    async def transcribe(path: str | None, language: str, itn: bool) -> str:
        if not path:
            return markup.EMPTY
        try:
            checked = uploaded_file(path, uploads)
            return markup.result(
                await service.recognize(checked, name=checked.name, language=language, itn=bool(itn))
            )
        except SvtoolError as error:
            return markup.failure(error)

    return transcribe


def uploaded_file(path: str, uploads: Path) -> Path:
    """The real path of an uploaded file. Raises AudioError for anything that is not inside `uploads`."""
    real = Path(os.path.realpath(path))
    if not real.is_relative_to(uploads.resolve()) or not real.is_file():
        raise AudioError(
            "this recording was not uploaded here, or it has expired: upload it again", reason="missing"
        )
    return real


def _refuse_urls(audio: Any, uploads: Path) -> None:
    """Gradio would download a URL given in place of an upload, and copy a file; only uploads may come in."""
    import gradio as gr

    accept = audio.async_move_resource_to_block_cache

    async def only_uploads(path: str | Path | None) -> str | None:
        if path is not None and not _is_local(str(path), uploads):
            raise gr.Error("only uploaded recordings are taken")
        accepted: str | None = await accept(path)
        return accepted

    audio.async_move_resource_to_block_cache = only_uploads


def _is_local(path: str, uploads: Path) -> bool:
    return Path(os.path.realpath(path)).is_relative_to(uploads.parent.resolve())


def _theme() -> Any:
    import gradio as gr

    # system fonts: nothing is fetched, by the server or by the browser
    return gr.themes.Base(
        primary_hue="teal",
        neutral_hue="slate",
        radius_size="lg",
        font=("ui-sans-serif", "system-ui", "-apple-system", "Segoe UI", "Noto Sans", "sans-serif"),
        font_mono=("ui-monospace", "SFMono-Regular", "Menlo", "Consolas", "monospace"),
    ).set(
        body_text_color_subdued="*neutral_500",
        body_text_color_subdued_dark="*neutral_400",
        body_background_fill="*neutral_50",
        body_background_fill_dark="*neutral_950",
        block_border_width="0px",
        block_background_fill="transparent",
        block_background_fill_dark="transparent",
        button_primary_background_fill="*primary_700",
        button_primary_background_fill_hover="*primary_800",
        button_primary_background_fill_dark="*primary_700",
        button_primary_background_fill_hover_dark="*primary_600",
        button_primary_text_color="white",
    )


def _render_examples(folder: Path) -> dict[str, Path]:
    """Short clips of the embedded recordings, joined as the embedded utterance lists join them."""
    import numpy as np

    from svtool import tiny
    from svtool.audio import decode_audio

    def recording(name: str) -> tiny.FloatArray:
        return tiny.trim(decode_audio(tiny.SOUNDS_DIR / f"{name}.g722").samples)

    folder.mkdir(mode=0o700)
    clips = {}
    for number, example in enumerate(EXAMPLES):
        rng = np.random.default_rng(number)
        samples = tiny.to_int16(tiny.join([recording(one) for one in example.recordings], rng))
        path = folder / f"{example.label.lower().replace(' ', '-')}.wav"
        with wave.open(str(path), "wb") as out:
            out.setnchannels(1)
            out.setsampwidth(2)
            out.setframerate(tiny.SAMPLE_RATE)
            out.writeframes(samples.astype("<i2").tobytes())
        clips[example.label] = path
    return clips
