"""What a process tells of its own threads."""

import ctypes
import hashlib
import sys
import threading

import pytest

from bottleneck.system.process_usage import is_thread_at_work

_SET_NAME = 15  # of prctl
NAME = "pt_of_a_test"


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux tells what a thread is at")
def test_a_thread_is_at_work_while_it_computes_and_not_while_it_waits() -> None:
    is_named, may_end = threading.Event(), threading.Event()
    seen = []

    def work() -> None:
        ctypes.CDLL(None).prctl(_SET_NAME, NAME.encode())
        is_named.set()
        may_end.wait()

    def compute() -> None:
        ctypes.CDLL(None).prctl(_SET_NAME, NAME.encode())
        while not is_seen.is_set():
            hashlib.sha256(block).digest()  # without the interpreter's lock

    waiting = threading.Thread(target=work)
    waiting.start()
    is_named.wait()
    while not seen or seen[-1]:  # until it waits
        seen.append(is_thread_at_work(NAME))
    assert not is_thread_at_work("pt_of_nobody")

    block, is_seen = bytes(10_000_000), threading.Event()
    computing = threading.Thread(target=compute)
    computing.start()
    while not is_thread_at_work(NAME):  # ends as soon as it is seen to compute
        pass
    is_seen.set()
    may_end.set()
    waiting.join()
    computing.join()
