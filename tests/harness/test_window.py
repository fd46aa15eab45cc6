"""The limits of what a window records beside its budget of events."""

import math

import pytest

from bottleneck.harness import window as bounds
from bottleneck.harness.window import Bounds


@pytest.fixture
def memory(monkeypatch: pytest.MonkeyPatch) -> dict[str, float]:
    sizes = {"now": 3e9, "peak": 5e9}
    monkeypatch.setattr(bounds, "resident_bytes", lambda: sizes["now"])
    monkeypatch.setattr(bounds, "peak_bytes", lambda: sizes["peak"])
    return sizes


@pytest.mark.parametrize(("size_bytes", "expected"), [(5.9e9, None), (6.1e9, "1 GB of memory"), (math.inf, None)])
def test_memory_counts_beyond_what_was_ever_used(
    size_bytes: float, expected: str | None, memory: dict[str, float], monkeypatch: pytest.MonkeyPatch
) -> None:
    seconds = iter([100.0, 100.2])
    monkeypatch.setattr(bounds.time, "perf_counter", lambda: next(seconds))
    window = Bounds()
    memory["now"] = size_bytes
    assert window.passed() == expected


def test_memory_is_read_at_a_period_and_not_in_each_step(
    memory: dict[str, float], monkeypatch: pytest.MonkeyPatch
) -> None:
    seconds = iter([100.0, 100.05, 100.2, 100.25])
    monkeypatch.setattr(bounds.time, "perf_counter", lambda: next(seconds))
    window = Bounds()
    memory["now"] = 7e9
    assert [window.passed() for _ in range(3)] == [None, "1 GB of memory", None]


def test_a_minute_is_enough(monkeypatch: pytest.MonkeyPatch) -> None:
    seconds = iter([100.0, 159.0, 160.0])
    monkeypatch.setattr(bounds.time, "perf_counter", lambda: next(seconds))
    window = Bounds()
    assert [window.passed(), window.passed()] == [None, "60 s"]
