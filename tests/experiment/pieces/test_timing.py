"""Turns of a piece by a clock of the test's own: medians, ratios of neighbours, and what fails alone."""

import random
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import pytest

from bottleneck.experiment.pieces.kinds import PieceKind, Way, Ways
from bottleneck.experiment.pieces.recorded_calls import NotRebuilt
from bottleneck.experiment.pieces.timing import PieceHost, PieceTimer


@dataclass
class Clock:
    """A clock that stands still but for the work that is done."""

    now_s: float = 0.0
    turns: list[str] = field(default_factory=list)

    def __call__(self) -> float:
        return self.now_s

    def way(self, name: str, us: float | Callable[[int], float]) -> Way:
        count = iter(range(1_000_000))

        def run() -> None:
            self.now_s += (us(next(count)) if callable(us) else us) / 1e6

        return Way(run, lambda: self.turns.append(name))


@pytest.fixture
def clock() -> Clock:
    return Clock()


def times(clock: Clock, *us: float) -> Any:
    ways = [clock.way(str(place), each) for place, each in enumerate(us)]
    return PieceTimer(clock, random.Random(0)).times(Ways(*ways))


def test_the_ratio_is_changed_over_as_it_is(clock: Clock) -> None:
    found = times(clock, 20_000.0, 5_000.0, 30_000.0)
    assert found.as_is_us.median == pytest.approx(20_000)
    assert found.changed_us.median == pytest.approx(5_000)
    assert found.ratio.median == pytest.approx(0.25)
    assert found.at_worst.median == pytest.approx(1.5)
    assert found.ratio.n >= 7


def test_a_way_that_is_not_there_has_no_ratio(clock: Clock) -> None:
    assert times(clock, 20_000.0, 5_000.0).at_worst is None


def test_every_round_has_one_turn_of_each_way_in_a_drawn_order(clock: Clock) -> None:
    times(clock, 20_000.0, 20_000.0)
    rounds = [clock.turns[at : at + 2] for at in range(4, len(clock.turns), 2)]
    assert all(sorted(each) == ["0", "1"] for each in rounds)
    assert len({tuple(each) for each in rounds}) == 2


def test_a_pause_of_the_system_in_one_part_of_a_turn_does_not_count(clock: Clock) -> None:
    paused = clock.way("0", lambda call: 50_000.0 if call % 30 == 7 else 300.0)
    found = PieceTimer(clock, random.Random(0)).times(Ways(paused, clock.way("1", 300.0)))
    assert found.ratio.median == pytest.approx(1.0)


def spec(kind: str) -> dict[str, Any]:
    return {
        "kind": kind,
        "finding": "unfused-chain",
        "change": "compile",
        "what": "a piece",
        "calls": 1.0,
        "recorded_us": None,
        "share": 1.0,
        "ops": [],
        "settings": {},
        "promise_us": 1.0,
    }


def answer(make: Callable[..., Ways]) -> dict[str, Any]:
    torch = pytest.importorskip("torch")
    host = PieceHost({"own": PieceKind(make)}, lambda _threads: torch)
    assert "value" in host.answer({"do": "load", "threads": None})
    return host.answer({"do": "piece", "piece": spec("own"), "device": "cpu"})


def test_a_piece_that_runs_has_times() -> None:
    reply = answer(lambda _torch, _spec, _device: Ways(Way(lambda: None), Way(lambda: None)))
    assert reply["value"]["ratio"]["n"] >= 7


def test_a_piece_that_raises_is_answered_with_its_error() -> None:
    def make(*_: object) -> Ways:
        raise RuntimeError("DefaultCPUAllocator: can't allocate memory\nand more")

    assert answer(make) == {
        "verdict": "failed",
        "reason": "RuntimeError: DefaultCPUAllocator: can't allocate memory",
    }


def test_a_piece_that_the_recording_does_not_describe_is_no_failure() -> None:
    def make(*_: object) -> Ways:
        raise NotRebuilt("aten::own takes a dictionary")

    assert answer(make) == {"verdict": "not applicable", "reason": "aten::own takes a dictionary"}
