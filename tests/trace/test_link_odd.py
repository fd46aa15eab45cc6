"""Traces that no profiler would write are linked without an error, and nothing of them is lost."""

import random
from pathlib import Path

import pytest

from bottleneck.errors import TraceError
from bottleneck.trace.link import link
from bottleneck.trace.read import read_trace
from bottleneck.trace.steps import find_steps, whole_window
from tests.builders import Event, complete, frame, kernel, launch, memcpy, op, step, write_trace

IDS = [1, 2, 3, None, "x", 2**64, -1]


def odd_event(random_: random.Random) -> Event:
    at = random_.choice([random_.uniform(0, 100), float(random_.randint(0, 30)), 1e12, -5.0, 3.0, 1e300])
    dur = random_.choice([0.0, 1.0, random_.uniform(0, 50), -3.0, 1e13])
    odd = random_.choice(IDS)
    thread = random_.choice([1, 2, "stream 7", -5])
    node = {"Sequence number": odd, "Fwd thread id": random_.choice([0, 1, None, 2**70])}
    return random_.choice(
        [
            op(random_.choice(["a", ""]), at, dur, tid=thread, external_id=odd),
            complete("backward", "cpu_op", at, dur, tid=thread, args=node),
            launch(odd, at, dur, random_.choice(["cudaLaunchKernel", "cudaGraphLaunch", "cudaDeviceSynchronize"])),
            kernel(odd, at, dur, random_.choice(["k", ""]), args={"External id": odd, "graph id": odd}),
            memcpy(odd, at, dur, random_.choice([0, 5, -1])),
            step(random_.randint(0, 2), at, dur),
            frame(random_.choice(["nn.Module: X_0", "a.py(3): f", "torch/profiler/profiler.py(3): stop"]), at, dur),
            complete("Optimizer.step#SGD.step", "user_annotation", at, dur),
        ]
    )


@pytest.mark.parametrize("seed", range(60))
def test_an_odd_trace_is_linked_and_keeps_its_work(tmp_path: Path, seed: int) -> None:
    random_ = random.Random(seed)
    events = [odd_event(random_) for _ in range(random_.randint(1, 12))]
    try:
        trace = read_trace(write_trace(tmp_path / "trace.json", events))
    except TraceError:
        return
    for window in (find_steps(trace), whole_window(trace), find_steps(trace, [0, 10**9, 2 * 10**18])):
        result = link(trace, window)
        assert window.wall_us >= 0
        assert len(result.ops) == len(trace.op_args)
        assert len(result.kernels) == (len(trace.device_args) or len(result.ops))
