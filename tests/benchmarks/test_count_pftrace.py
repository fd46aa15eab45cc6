"""Perfetto traces that recent torch wrote: the reader's figures are those counted by the message classes alone."""

from collections import Counter
from pathlib import Path

import pytest

from bottleneck.pipeline import analyse
from bottleneck.schema.linked_trace import Trace
from bottleneck.trace.read import read_trace
from tests.trace.perfetto_files import converted, trace_of
from tests.trace.test_perfetto import EVENTS

from benchmarks.count_pftrace import count, covered_ns, read_count, slices_of, verdict  # isort: skip - needs the extra

_FOLDER = Path(__file__).resolve().parents[3] / "shared" / "pftraces"
_FILES = sorted(_FOLDER.glob("*.pftrace"))
needs_files = pytest.mark.skipif(not _FILES, reason="the folder of Perfetto traces is not beside this checkout")


@needs_files
def test_all_three_files_are_read_as_they_were_counted() -> None:
    assert len(_FILES) == 3
    for path in _FILES:
        assert read_count(path) == count(path)


@needs_files
def test_the_loop_that_was_recorded_twice_agrees_where_both_recorded_the_same() -> None:
    kineto, monitor = (_named(name) for name in ("training_loop.", "training_loop_monitor."))
    assert _replayed(kineto) == _replayed(monitor)
    assert sum(_replayed(kineto).values()) == 195
    assert _names(kineto, "copy") == _names(monitor, "copy")
    # Kineto alone recorded the optimizer: its calls, and its kernels outside of the graph.
    extra = _names(kineto, "op") - _names(monitor, "op")
    assert sum(extra.values()) == 6
    assert not _names(monitor, "op") - _names(kineto, "op")


@needs_files
def test_the_reports_of_both_recordings_agree_but_for_the_optimizer() -> None:
    kineto, monitor = (analyse([_path(name)]) for name in ("training_loop.", "training_loop_monitor."))
    assert (kineto.steps.count, monitor.steps.count) == (2, 2)
    assert kineto.verdict.bound == monitor.verdict.bound == "device"
    assert (kineto.totals.kernel_count, monitor.totals.kernel_count) == (67, 65)
    assert kineto.totals.copy_count == monitor.totals.copy_count == 4
    assert kineto.totals.h2d_bytes == monitor.totals.h2d_bytes
    optimizer_us = next(phase.us for phase in kineto.phases if phase.name == "optimizer")
    assert monitor.steps.wall_us == pytest.approx(kineto.steps.wall_us - optimizer_us, rel=0.02)


def _named(name: str) -> Trace:
    return read_trace(_path(name))


def _path(name: str) -> Path:
    return next(path for path in _FILES if name in path.name)


def _names(trace: Trace, category: str) -> Counter[str]:
    return Counter(trace.events["name"][trace.events["category"] == category].tolist())


def _replayed(trace: Trace) -> Counter[str]:
    graph = trace.device_args[trace.device_args["graph"].fillna(0) > 0]
    rows = trace.events.loc[graph["event"].to_numpy()]
    return Counter(rows["name"][rows["category"] == "kernel"].tolist())


def test_figures_of_a_made_trace_are_those_of_its_events(tmp_path: Path) -> None:
    path = tmp_path / "trace.pftrace"
    path.write_bytes(trace_of(converted(EVENTS)))
    found = count(path)
    assert (found.kernels, found.copies, found.ops, found.calls) == (3, 1, 3, 2)
    assert found.busy_ns == covered_ns(slices_of(path)[:0]) + 290_000 + 20_000
    assert found == read_count(path)
    assert verdict(path).startswith("overhead-bound")
