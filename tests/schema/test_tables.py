"""The main thread of a trace, from events made by hand."""

import pandas as pd
import pytest

from bottleneck.schema.tables import EVENTS, main_thread

_Row = tuple[str, str, float, str]
_NODE = "autograd::engine::evaluate_function: MulBackward0"


def _main(*rows: _Row) -> str | None:
    """Label of the main thread of events of these categories, names, durations and threads."""
    frame = pd.DataFrame(rows, columns=["category", "name", "dur_us", "thread"]).assign(ts_us=0.0)
    texts = {name: frame[name].astype("category") for name in ("category", "name", "thread")}
    events = EVENTS.check(frame.assign(**texts, dur_us=frame["dur_us"].astype("float64"))[list(EVENTS.columns)])
    code = main_thread(events)
    return None if code < 0 else str(events["thread"].cat.categories[code])


_FORWARD, _BACKWARD = ("op", "aten::mul", 10.0, "1/1"), ("op", _NODE, 90.0, "1/2")


@pytest.mark.parametrize(
    ("rows", "thread"),
    [
        ((_FORWARD, _BACKWARD, ("python", "train.py(3): step", 50.0, "1/1")), "1/1"),
        ((_FORWARD, _BACKWARD), "1/1"),
        ((_BACKWARD,), "1/2"),
        ((_FORWARD, ("annotation", "load", 900.0, "1/3")), "1/1"),
        ((("runtime", "cudaLaunchKernel", 5.0, "1/4"), ("annotation", "train", 1.0, "1/4")), "1/4"),
        ((("runtime", "cudaLaunchKernel", 5.0, "1/4"),), "1/4"),
        ((("op", "aten::mul", 7.0, "1/9"), ("op", "aten::add", 7.0, "1/5")), "1/9"),
        ((("kernel", "gemm", 5.0, "0/7"),), None),
    ],
    ids=[
        "frames",
        "forward ops",
        "backward alone",
        "frames without ops",
        "calls",
        "calls alone",
        "first of equals",
        "-",
    ],
)
def test_the_main_thread_is_that_which_runs_the_program(rows: tuple[_Row, ...], thread: str | None) -> None:
    assert _main(*rows) == thread
