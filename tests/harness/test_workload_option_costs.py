from collections.abc import Callable
from typing import Any

import pytest

from bottleneck.harness import workload as option_costs
from bottleneck.harness.window import GUARD, Detail
from bottleneck.harness.workload import run_option_costs, summarise_rounds, windows_to_open

torch: Any = pytest.importorskip("torch")

EVERYTHING = Detail(shapes=True, stacks=True, memory=True)


@pytest.fixture(autouse=True)
def _quickly(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(option_costs, "ROUNDS_AT_MOST", 3)
    monkeypatch.setattr(option_costs, "OPTIONS_SECONDS_AT_MOST", 1e9)
    monkeypatch.setattr(GUARD, "yielded", False)


def adding() -> Callable[[], Any]:
    values = torch.ones(4)
    return lambda: values.add_(1.0)


def test_every_option_has_a_ratio_over_all_rounds() -> None:
    costs = run_option_costs(adding(), torch, (10.0, 20.0), EVERYTHING)
    assert costs.reason is None
    assert [cost.option for cost in costs.costs] == ["ops", "shapes", "stacks", "memory", "all"]
    assert all(cost.ratio.n == 3 and cost.ratio.low <= cost.ratio.median <= cost.ratio.high for cost in costs.costs)
    assert GUARD.window is None


def test_each_window_has_one_option_and_the_last_those_of_the_kept_one() -> None:
    kept = Detail(shapes=True, stacks=False, memory=True)
    details = windows_to_open(kept)
    on = {name: (detail.shapes, detail.stacks, detail.memory) for name, detail in details.items()}
    assert on == {
        "ops": (False, False, False),
        "shapes": (True, False, False),
        "stacks": (False, True, False),
        "memory": (False, False, True),
        "all": (True, False, True),
    }


def test_steps_too_long_for_the_time_allowed_are_not_tried(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(option_costs, "OPTIONS_SECONDS_AT_MOST", 4.0)
    calls: list[int] = []
    costs = run_option_costs(lambda: calls.append(1), torch, (400_000.0, 500_000.0), EVERYTHING)
    assert not calls and costs.costs == ()
    assert costs.reason == "steps of 400 ms are too long to try each option on some of them"


def test_too_few_rounds_are_no_result(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(option_costs, "OPTIONS_SECONDS_AT_MOST", 1e-3)
    costs = run_option_costs(adding(), torch, (1.0, 2.0), EVERYTHING)
    assert costs.costs == () and costs.reason == "0 s were over before each option was tried 3 times"


def test_a_step_that_cannot_be_repeated_is_a_reason_and_no_window_stays_open() -> None:
    left = iter(range(12))
    costs = run_option_costs(lambda: next(left), torch, (2000.0, 2000.0), EVERYTHING)
    assert costs.reason == "the step could not be repeated: StopIteration"
    assert GUARD.window is None


def test_a_program_with_a_profiler_of_its_own_is_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(GUARD, "yielded", True)
    assert run_option_costs(adding(), torch, (10.0, 20.0), EVERYTHING).reason is not None


def test_the_ratio_is_the_median_over_the_rounds() -> None:
    (cost,) = summarise_rounds([{"ops": 1.5}, {"ops": 9.0}, {"ops": 1.6}]).costs
    assert (cost.ratio.low, cost.ratio.median, cost.ratio.high, cost.ratio.n) == (1.5, 1.6, 9.0, 3)
