"""Counts and self times of ops against `key_averages()` of the profiler that recorded the same trace."""

from pathlib import Path

import pytest

from bottleneck.trace.link import link
from bottleneck.trace.read import read_trace
from bottleneck.trace.steps import whole_window

torch = pytest.importorskip("torch", reason="torch is not installed")

# A trace holds times in us with three decimals: each op and each op inside it is rounded by at most this much.
ROUNDED_US = 0.001


def _train() -> None:
    """Two steps of a small network: nested ops, a backward pass, an optimizer that works in loops, views."""
    torch.manual_seed(0)
    model = torch.nn.Sequential(
        torch.nn.Conv2d(3, 8, 3), torch.nn.BatchNorm2d(8), torch.nn.ReLU(), torch.nn.Flatten(), torch.nn.LazyLinear(5)
    )
    images, labels = torch.randn(4, 3, 8, 8), torch.randint(5, (4,))
    model(images)
    optimizer = torch.optim.AdamW(model.parameters(), foreach=False)
    for _ in range(2):
        optimizer.zero_grad()
        torch.nn.functional.cross_entropy(model(images), labels).backward()
        optimizer.step()


def test_counts_and_self_times_agree_with_key_averages(tmp_path: Path) -> None:
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profiler:
        _train()
    path = tmp_path / "trace.json"
    profiler.export_chrome_trace(str(path))
    trace = read_trace(path)
    ours = link(trace, whole_window(trace)).ops.groupby("name", observed=True)["self_us"].agg(["sum", "size"])
    inside = link(trace, whole_window(trace)).ops.groupby("name", observed=True)["children"].sum()

    theirs = {row.key: row for row in profiler.key_averages() if row.key in ours.index}
    assert set(ours.index) == set(theirs)
    assert len(theirs) > 40
    assert sum(row.self_cpu_time_total for row in theirs.values()) > 0
    for name, (self_us, count) in ours.iterrows():
        assert count == theirs[name].count, name
        rounded_us = (count + inside[name]) * ROUNDED_US
        assert self_us == pytest.approx(theirs[name].self_cpu_time_total, abs=rounded_us), name
