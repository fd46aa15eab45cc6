"""Laws of linking: the order of rows, the names of threads and the zero of the clock decide nothing."""

from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from bottleneck.analysis.faults import find_faults
from bottleneck.schema.linked_trace import Linked, Trace
from bottleneck.schema.records import replace
from bottleneck.trace.link import link
from bottleneck.trace.steps import find_steps
from tests import trace_cache

NAMES = [
    "AMD-AGI+TraceLens__tests__traces__h100__gaunernst_bert-small-uncased__1016001.json.gz",
    "AMD-AGI+TraceLens__tests__traces__mi300__resnet_act_checkpoint.json.gz",
    "pytorch+ao__tutorials__quantize_vit__bfloat16_at_05a20b2.json.gz",
    "pytorch+kineto__tb_plugin__test__gpu_metrics_input_at_71530b1.json.gz",
    "JeolKorpi+dtu_mlops__log__vae_profile_train__LAPTOP-E0BGNU52_15772.1769416834165145600.pt.trace.json.gz",
]


@pytest.fixture(scope="module", params=NAMES, ids=lambda name: name[:40])
def trace(request: pytest.FixtureRequest, traces: Path) -> Trace:
    return trace_cache.read(traces / request.param)


def linked(trace: Trace) -> Linked:
    return link(trace, find_steps(trace))


def shuffled(trace: Trace) -> tuple[Trace, "np.ndarray[tuple[int], np.dtype[np.int64]]"]:
    """The trace with the rows of every table in another order, and the new row of each old event."""
    random = np.random.default_rng(7)
    order = random.permutation(len(trace.events))
    new_row = np.empty(len(order), dtype=np.int64)
    new_row[order] = np.arange(len(order))

    def moved(table: pd.DataFrame) -> pd.DataFrame:
        rows = random.permutation(len(table))
        return table.assign(event=new_row[table["event"].to_numpy()]).iloc[rows].reset_index(drop=True)

    events = trace.events.iloc[order].reset_index(drop=True)
    tables = {name: moved(getattr(trace, name)) for name in ("op_args", "launch_args", "device_args")}
    return replace(trace, events=events, **tables), new_row


def test_the_order_of_rows_decides_nothing(trace: Trace) -> None:
    other, new_row = shuffled(trace)
    before, after = linked(trace), linked(other)
    assert after.window == before.window
    assert find_faults(after) == find_faults(before)
    for name, columns in (("ops", ["event"]), ("kernels", ["event", "launch"])):
        expected = getattr(before, name).copy()
        for column in columns:
            known = expected[column].notna()
            expected.loc[known, column] = new_row[expected.loc[known, column].astype(int)]
        pd.testing.assert_frame_equal(getattr(after, name), expected)


def test_the_names_of_threads_decide_nothing(trace: Trace) -> None:
    threads = trace.events["thread"].cat.categories
    renamed = {name: f"{len(threads) - position:06}/{position}" for position, name in enumerate(threads)}
    column = trace.events["thread"].cat.rename_categories(renamed)
    column = column.cat.set_categories(sorted(renamed.values()))
    before, after = linked(trace), linked(replace(trace, events=trace.events.assign(thread=column)))
    for name, track in (("ops", "thread"), ("kernels", "stream")):
        old, new = getattr(before, name), getattr(after, name)
        assert new[track].astype(object).tolist() == old[track].astype(object).map(renamed).tolist()
        pd.testing.assert_frame_equal(new.drop(columns=track), old.drop(columns=track))


def test_the_zero_of_the_clock_decides_nothing(trace: Trace) -> None:
    shift_us = 86_400e6 + 0.125
    before = linked(trace)
    after = linked(replace(trace, events=trace.events.assign(ts_us=trace.events["ts_us"] + shift_us)))
    assert after.window.wall_us == pytest.approx(before.window.wall_us, abs=1e-3)
    assert len(after.window.steps) == len(before.window.steps)
    for name in ("ops", "kernels"):
        old, new = getattr(before, name), getattr(after, name)
        times = [column for column in old.columns if column.endswith("_us")]
        pd.testing.assert_frame_equal(new.drop(columns=times), old.drop(columns=times))
        pd.testing.assert_frame_equal(new[["dur_us"]], old[["dur_us"]])


def test_every_event_of_the_device_and_every_op_is_kept_once(trace: Trace) -> None:
    result = linked(trace)
    assert sorted(result.ops["event"]) == sorted(trace.op_args["event"])
    source = trace.device_args if len(trace.device_args) else trace.op_args
    assert sorted(result.kernels["event"]) == sorted(source["event"])


def test_self_times_add_up_to_the_roots(trace: Trace) -> None:
    ops = linked(trace).ops
    assert ops["self_us"].sum() == pytest.approx(ops.loc[ops["parent"].isna(), "dur_us"].sum())
    assert (ops["self_us"] >= 0).all()
