"""Processes of our own code: what they are sent comes back, and they leave nothing behind."""

import os
from collections.abc import Iterator

import pytest

from bottleneck.system.worker_process import LOST, WorkerProcess, receive_message, send_message, serving_streams

pytestmark = pytest.mark.process


def echo() -> None:
    """Sends back each message, after printing it."""
    messages, replies = serving_streams()
    while True:
        message = receive_message(messages)
        print(message, flush=True)
        send_message(message, replies)


@pytest.fixture
def worker() -> Iterator[WorkerProcess]:
    started = WorkerProcess(__name__, "echo()", is_silent=True)
    yield started
    started.end()


def test_messages_come_back_in_their_order_whatever_is_printed(worker: WorkerProcess) -> None:
    for message in ({"step": 1}, [b"two"]):
        worker.send(message)
    assert [worker.receive(), worker.receive()] == [{"step": 1}, [b"two"]]


def test_a_reply_can_be_looked_for_without_waiting(worker: WorkerProcess) -> None:
    assert not worker.has_replied(0.0)
    worker.send("now")
    assert worker.has_replied(None)


def test_a_process_that_has_ended_is_told_by_the_next_reply(worker: WorkerProcess) -> None:
    worker.kill()
    with pytest.raises(LOST):
        worker.receive()


def test_a_process_that_is_ended_is_gone() -> None:
    started = WorkerProcess(__name__, "echo()", is_silent=True)
    started.end()
    with pytest.raises(ProcessLookupError):
        os.kill(started.process, 0)
