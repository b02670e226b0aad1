"""Transcription over HTTP: an API and a page in front of one recognizer.

`worker` owns the recognizer, `service` turns uploads into recognitions, `app` speaks HTTP, `page` is the Gradio
page, `server` runs them all. Importing this package imports neither FastAPI nor Gradio.
"""

from svtool.serving.server import DEFAULT_HOST, DEFAULT_PORT, serve

__all__ = ["DEFAULT_HOST", "DEFAULT_PORT", "serve"]
