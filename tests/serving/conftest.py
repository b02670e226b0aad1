"""Services over a double of the recognizer."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
from serving_doubles import FakeRecognizer

from svtool.serving.service import Engine, RequestLimits, Service
from svtool.serving.worker import QueueLimits, Worker


@pytest.fixture
def fake() -> FakeRecognizer:
    return FakeRecognizer()


ServiceMaker = Callable[..., Service]


@pytest.fixture
def make_service(fake: FakeRecognizer) -> Iterator[ServiceMaker]:
    made: list[Service] = []

    def make(
        *, queue: QueueLimits | None = None, limits: RequestLimits | None = None, is_tiny: bool = False
    ) -> Service:
        worker = Worker(lambda: fake, queue)
        worker.start()
        engine = Engine("fake/model.onnx", "fp32", "onnxruntime", "CPUExecutionProvider", is_tiny)
        made.append(Service(worker, engine, limits))
        return made[-1]

    yield make
    fake.gate.set()
    for service in made:
        service.close()
