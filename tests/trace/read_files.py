"""Files for the tests of reading: any bytes, and a whole trace compared with another."""

import gzip
import json
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from bottleneck.errors import TraceError
from bottleneck.schema.linked_trace import Trace
from bottleneck.schema.tables import DEVICE_ARGS, EVENTS, LAUNCH_ARGS, MEMORY, OP_ARGS, SIGNATURES
from bottleneck.trace.read import read_trace
from tests.builders import Event


def read_bytes(folder: Path, data: bytes | str) -> Trace:
    """The trace in a file with this content."""
    path = folder / "trace.json"
    path.write_bytes(data if isinstance(data, bytes) else data.encode())
    return read_trace(path)


def read_list(folder: Path, events: Sequence[object], text: str = '{{"schemaVersion": 1, "traceEvents": {}}}') -> Trace:
    """The trace in a file whose event list is this one."""
    return read_bytes(folder, text.format(json.dumps(list(events))))


def refusal(folder: Path, data: bytes | str) -> TraceError:
    """The error that a file with this content is refused with."""
    with pytest.raises(TraceError) as caught:
        read_bytes(folder, data)
    assert "\n" not in caught.value.what + caught.value.why + caught.value.fix
    return caught.value


def slugs(trace: Trace) -> list[str]:
    """The caveats' slugs."""
    return [caveat.slug for caveat in trace.caveats]


def categories(trace: Trace) -> list[str]:
    """Category per event, in order."""
    return list(trace.events["category"])


def names(trace: Trace) -> list[str]:
    """Name per event, in order."""
    return list(trace.events["name"])


def assert_same(left: Trace, right: Trace, *except_for: str) -> None:
    """Fails when two traces differ in a table or a fact other than the path and those named."""
    for name in Trace.__struct_fields__:
        if name in {"path", *except_for}:
            continue
        one, other = getattr(left, name), getattr(right, name)
        if isinstance(one, pd.DataFrame):
            pd.testing.assert_frame_equal(one, other, check_exact=True)
        else:
            assert one == other, name


def check_promises(trace: Trace) -> None:
    """Fails unless the tables keep what ``tables`` declares of them."""
    for table, frame_ in (
        (EVENTS, trace.events),
        (OP_ARGS, trace.op_args),
        (SIGNATURES, trace.signatures),
        (LAUNCH_ARGS, trace.launch_args),
        (DEVICE_ARGS, trace.device_args),
        (MEMORY, trace.memory),
    ):
        table.check(frame_)
    ts_us, dur_us = trace.events["ts_us"].to_numpy(), trace.events["dur_us"].to_numpy()
    assert ts_us[0] == 0
    later = np.diff(ts_us)
    assert ((later > 0) | ((later == 0) & (np.diff(dur_us) <= 0))).all()
    assert (dur_us >= 0).all() and np.isfinite(dur_us).all()
    kinds = trace.events["category"]
    for frame_, wanted in (
        (trace.op_args, {"op", "collective"}),
        (trace.launch_args, {"runtime"}),
        (trace.device_args, {"kernel", "copy", "fill"}),
    ):
        assert frame_["event"].tolist() == np.flatnonzero(kinds.isin(wanted)).tolist()
    rows = trace.op_args["signature"].dropna()
    assert rows.between(0, len(trace.signatures) - 1).all()
    assert set(rows) == set(range(len(trace.signatures)))
    assert not trace.signatures.duplicated().any()
    own = trace.events["name"].astype(object)[trace.op_args["event"][rows.index]].tolist()
    assert own == trace.signatures["name"][rows.astype("int64")].tolist()


def gzipped(data: bytes) -> bytes:
    """One gzip member."""
    return gzip.compress(data, mtime=0)


def chain(count: int, start_us: float = 1000.0) -> list[Event]:
    """That many ops, one after the other, each under its own name."""
    return [
        {
            "ph": "X",
            "cat": "cpu_op",
            "name": f"aten::op{index}",
            "pid": 1,
            "tid": 1,
            "ts": start_us + index,
            "dur": 0.5,
            "args": {"External id": index},
        }
        for index in range(count)
    ]
