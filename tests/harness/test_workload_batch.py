import itertools
import os
from collections.abc import Callable
from typing import Any

import pytest

from bottleneck.harness import workload as batch
from bottleneck.harness.stopwatch import Clocks, Stopwatch
from bottleneck.harness.workload import Doubling, run_batch_test, summarise_pairs
from bottleneck.schema.measurements import BatchTest

torch: Any = pytest.importorskip("torch")


@pytest.fixture(autouse=True)
def _quickly(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(batch, "SECONDS", 0.0)
    monkeypatch.setattr(batch, "USUAL_SECONDS", 0.0)
    monkeypatch.setattr(batch, "WARM_SECONDS", 0.0)
    monkeypatch.setattr(batch, "BLOCK_STEPS_AT_MOST", 2)


class Steps:
    """Makes steps that count their calls; a step of 0 samples or fewer cannot be made."""

    def __init__(self) -> None:
        self.calls: dict[int, int] = {}

    def __call__(self, size: int) -> Callable[[], None]:
        def step() -> None:
            self.calls[size] = self.calls.get(size, 0) + 1

        return step


def run(make: Callable[[int], Callable[[], Any]], size: object = 4, **more: Any) -> BatchTest:
    asked = {"usual_us": 1.0, "is_asked": False, **more}
    return run_batch_test(make(4), torch, Doubling(size, make), asked["usual_us"], is_asked=asked["is_asked"])


def test_both_sizes_take_steps_in_turns() -> None:
    steps = Steps()
    test = run(steps)
    assert set(steps.calls) == {4, 8}
    assert test.reason is None and test.batch_size == 4
    assert test.ratio is not None and test.ratio.n == batch.PAIRS_AT_LEAST
    assert test.once is not None and test.twice is not None and test.once.n == test.twice.n == 2 * test.ratio.n


@pytest.mark.parametrize(("high_us", "is_asked", "pairs"), [(204.0, False, 6), (220.0, False, 40), (204.0, True, 40)])
def test_a_test_that_comes_by_itself_ends_once_the_ratio_is_known_well(
    high_us: float, is_asked: bool, pairs: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    steps, doubled_us = Steps(), itertools.cycle([200.0, high_us])
    once = steps(4)

    def time_steps(step: Callable[[], None], *_: object) -> list[float]:
        return [100.0 if step is once else next(doubled_us)]

    monkeypatch.setattr(batch, "time_steps", time_steps)
    monkeypatch.setattr(batch, "SECONDS", 1.0)
    monkeypatch.setattr(batch, "USUAL_SECONDS", 1.0)
    test = run_batch_test(once, torch, Doubling(4, steps), 1.0, is_asked=is_asked)
    assert test.ratio is not None and test.ratio.n == pairs


def test_the_order_within_pairs_alternates() -> None:
    order: list[int] = []
    run(lambda size: lambda: order.append(size))
    timed = order[-6 * batch.PAIRS_AT_LEAST :]  # one step that leads in and two that count, of each size
    blocks = [timed[place] for place in range(0, len(timed), 3)]
    assert blocks == [4, 8, 8, 4] * (batch.PAIRS_AT_LEAST // 2)


def test_the_ratio_ignores_a_drift_that_both_sizes_share() -> None:
    pace = [1.0 + 0.5 * index for index in range(8)]
    test = summarise_pairs([([100.0 * factor] * 3, [150.0 * factor] * 3) for factor in pace])
    assert test.ratio is not None
    assert (test.ratio.low, test.ratio.median, test.ratio.high) == pytest.approx((1.5, 1.5, 1.5))


@pytest.mark.parametrize("size", [None, "many", True, 2.5, 0])
def test_a_batch_size_that_is_no_count_is_not_doubled(size: object) -> None:
    test = run(Steps(), size)
    assert test.ratio is None and test.reason is not None and repr(size) in test.reason


@pytest.mark.parametrize(
    "error", [ValueError("expected 4\nsecond line"), torch.OutOfMemoryError("no room"), MemoryError(), SystemExit(3)]
)
def test_what_the_doubled_step_raises_is_the_reason(error: BaseException) -> None:
    def make(size: int) -> Callable[[], None]:
        def fail() -> None:
            raise error

        return fail if size > 4 else lambda: None

    test = run(make)
    assert test.once is None and test.reason is not None
    assert test.reason.startswith(f"the step at batch_size=8 failed: {type(error).__name__}")
    assert "second line" not in test.reason


def test_an_interrupt_of_the_users_is_not_swallowed() -> None:
    def make(size: int) -> Callable[[], None]:
        if size > 4:
            raise KeyboardInterrupt
        return lambda: None

    with pytest.raises(KeyboardInterrupt):
        run(make)


def test_long_steps_are_left_alone_unless_asked_for() -> None:
    steps = Steps()
    test = run(steps, usual_us=1e6)
    assert not steps.calls and test.reason == "6 pairs of steps would take 18.0 s; --batch-test runs it all the same"
    assert run(steps, usual_us=1e6, is_asked=True).ratio is not None


def test_a_step_that_took_long_to_make_is_not_made_again() -> None:
    steps = Steps()
    test = run_batch_test(steps(4), torch, Doubling(4, steps).after(9.0).after(8.0), 1.0, is_asked=False)
    assert test.reason is not None and "took 17.0 s" in test.reason


def test_too_little_memory_is_a_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(batch, "peak_resident_bytes", lambda: 3_000_000_000)
    monkeypatch.setattr(batch, "available_bytes", lambda: 5_000_000_000)
    test = run(Steps())
    assert test.reason == "a second step of twice the size may need 6.00 GB of memory, and 5.00 GB are free"


def test_what_the_doubled_step_writes_is_not_seen(capfd: pytest.CaptureFixture[str]) -> None:
    def make(size: int) -> Callable[[], None]:
        os.write(1, f"made {size}\n".encode())
        os.write(2, f"made {size}\n".encode())
        return lambda: os.write(1, b"a step\n")

    assert run(make).ratio is not None
    os.write(1, b"after\n")
    assert capfd.readouterr() == ("made 4\nafter\n", "made 4\n")


def test_static_code_stays_static_at_twice_the_size() -> None:
    config = pytest.importorskip("torch._dynamo.config")
    seen: list[bool] = []
    run(lambda size: lambda: seen.append(config.automatic_dynamic_shapes) if size == 8 else None)
    assert seen and not any(seen)
    assert config.automatic_dynamic_shapes


def test_a_step_that_works_twice_as_long_has_a_ratio_of_two(monkeypatch: pytest.MonkeyPatch) -> None:
    now_ns = 0
    clocks = Clocks(wall_ns=lambda: now_ns, tick_ns=lambda: now_ns)
    monkeypatch.setattr("bottleneck.harness.stopwatch.Stopwatch", lambda torch: Stopwatch(torch, clocks))

    def make(size: int) -> Callable[[], None]:
        def step() -> None:
            nonlocal now_ns
            now_ns += 500_000 * size

        return step

    test = run(make, usual_us=2000.0)
    assert test.once is not None and test.twice is not None and test.ratio is not None
    assert (test.once.median, test.twice.median) == (2000.0, 4000.0)
    assert (test.ratio.low, test.ratio.median, test.ratio.high) == (2.0, 2.0, 2.0)
