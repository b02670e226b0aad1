"""The worker: one thread, a bounded queue, every future resolved."""

from __future__ import annotations

import threading
import time
from concurrent.futures import CancelledError, Future, wait

import numpy as np
import pytest
from serving_doubles import FakeRecognizer

from svtool.errors import ArtifactError, SvtoolError
from svtool.recognizer import Options, Transcript
from svtool.serving.worker import Busy, QueueLimits, Stopped, Worker

OPTIONS = Options()


def tone(seconds: float = 0.5, peak: float = 0.5) -> np.ndarray:  # type: ignore[type-arg]
    return np.full(int(seconds * 16_000), peak, dtype=np.float32)


@pytest.fixture
def worker(fake: FakeRecognizer):  # type: ignore[no-untyped-def]
    made = Worker(lambda: fake, QueueLimits(waiting_n=4, waiting_s=10.0, batch_n=3, batch_s=5.0))
    made.start()
    yield made
    fake.gate.set()
    made.close()


def hold(worker: Worker, fake: FakeRecognizer) -> Future[Transcript]:
    """Occupy the worker with one job until the gate opens."""
    fake.gate.clear()
    running = worker.submit(tone(), OPTIONS)
    until(lambda: worker.status().busy_s is not None)
    return running


def until(condition) -> None:  # type: ignore[no-untyped-def]
    deadline = time.monotonic() + 5
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.005)


def test_what_waits_runs_as_one_batch_on_one_thread(worker: Worker, fake: FakeRecognizer) -> None:
    first = hold(worker, fake)
    waiting = [worker.submit(tone(0.5 + number / 10), OPTIONS) for number in range(3)]
    fake.gate.set()
    assert [job.result(5).text for job in (first, *waiting)] == [
        *("heard 0.50 s", "heard 0.50 s", "heard 0.60 s", "heard 0.70 s")
    ]
    assert fake.batches == [1, 3]
    assert len(fake.threads) == 1
    assert threading.get_ident() not in fake.threads


def test_a_batch_holds_equal_options_and_keeps_to_its_budget(worker: Worker, fake: FakeRecognizer) -> None:
    first = hold(worker, fake)
    jobs = [
        worker.submit(tone(3.0), OPTIONS),
        worker.submit(tone(0.5), Options(language="zh")),
        worker.submit(tone(3.0), OPTIONS),
        worker.submit(tone(1.0), OPTIONS),
    ]
    fake.gate.set()
    wait([first, *jobs], 5)
    # the head takes the later one that fits; the other options and the one too long run on their own
    assert fake.batches == [1, 2, 1, 1]
    assert [one.language for one in fake.options] == ["auto", "auto", "zh", "auto"]


@pytest.mark.case("U1")
def test_a_failing_item_does_not_fail_its_mates(worker: Worker, fake: FakeRecognizer) -> None:
    first = hold(worker, fake)
    good, bad, also_good = (worker.submit(tone(peak=peak), OPTIONS) for peak in (0.5, 2.5, 0.5))
    fake.gate.set()
    assert first.result(5).text == good.result(5).text == also_good.result(5).text == "heard 0.50 s"
    with pytest.raises(SvtoolError, match="device-side assert"):
        bad.result(5)
    assert worker.submit(tone(), OPTIONS).result(5).text == "heard 0.50 s"


@pytest.mark.case("B7")
def test_an_error_of_one_item_reaches_its_future(worker: Worker) -> None:
    with pytest.raises(SvtoolError, match="NaN or infinite"):
        worker.submit(tone(peak=1.8), OPTIONS).result(5)
    assert worker.status().failed == 1


@pytest.mark.case("U11")
def test_a_full_queue_refuses_and_says_when_to_come_back(worker: Worker, fake: FakeRecognizer) -> None:
    hold(worker, fake)
    for _ in range(4):
        worker.submit(tone(), OPTIONS)
    with pytest.raises(Busy) as refused:
        worker.submit(tone(), OPTIONS)
    assert 1 <= refused.value.retry_after_s <= 60


def test_the_queue_is_bounded_in_seconds_too_but_takes_one_long_recording(
    worker: Worker, fake: FakeRecognizer
) -> None:
    hold(worker, fake)
    long = worker.submit(tone(30.0), OPTIONS)
    with pytest.raises(Busy):
        worker.submit(tone(), OPTIONS)
    fake.gate.set()
    assert long.result(5).text == "heard 30.00 s"


@pytest.mark.case("U1")
def test_a_cancelled_job_leaves_the_queue_at_once(worker: Worker, fake: FakeRecognizer) -> None:
    first = hold(worker, fake)
    gone, stays = worker.submit(tone(), OPTIONS), worker.submit(tone(0.7), OPTIONS)
    assert gone.cancel()
    assert worker.status().waiting == 1
    fake.gate.set()
    wait([first, stays], 5)
    assert fake.batches == [1, 1]
    with pytest.raises(CancelledError):
        gone.result(0)


@pytest.mark.case("U12")
@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_a_dead_worker_resolves_its_futures_and_says_so(worker: Worker, fake: FakeRecognizer) -> None:
    hold(worker, fake)
    deadly, behind = worker.submit(tone(peak=4.0), OPTIONS), worker.submit(tone(), Options(itn=True))
    fake.gate.set()
    for job in (deadly, behind):
        with pytest.raises(Stopped, match="has died"):
            job.result(5)
    until(lambda: not worker.status().alive)
    with pytest.raises(Stopped, match="has died"):
        worker.submit(tone(), OPTIONS)
    assert fake.closed


def test_closing_finishes_what_waits(worker: Worker, fake: FakeRecognizer) -> None:
    first = hold(worker, fake)
    waiting = worker.submit(tone(), OPTIONS)
    fake.gate.set()
    worker.close()
    assert first.result(0).text == waiting.result(0).text == "heard 0.50 s"
    assert fake.closed
    with pytest.raises(Stopped, match="is stopping"):
        worker.submit(tone(), OPTIONS)


def test_closing_a_stuck_worker_fails_what_waits(worker: Worker, fake: FakeRecognizer) -> None:
    first = hold(worker, fake)
    waiting = worker.submit(tone(), OPTIONS)
    worker.close(drain_s=0.05)
    for job in (first, waiting):
        with pytest.raises(Stopped):
            job.result(0)


def test_what_opening_raises_reaches_the_caller() -> None:
    def refuse() -> FakeRecognizer:
        raise ArtifactError("engines/x.onnx does not exist")

    with pytest.raises(ArtifactError, match=r"engines/x\.onnx"):
        Worker(refuse).start()
