"""Successive halving of a loader's settings, by laws on a clock of our own, and once in a real process."""

import random
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bottleneck.experiment import loader_search as module
from bottleneck.experiment.loader_call import SourceCall
from bottleneck.experiment.loader_search import (
    Halving,
    grid,
    larger_batches,
    quickest_batch,
    survivors,
    time_batches,
    try_loader_settings,
    with_batches,
)
from bottleneck.experiment.trial import ChangePrediction, TrialEffort, TrialSetup
from bottleneck.experiment.worker import Refused
from bottleneck.harness.messages import Program
from bottleneck.schema.measurements import LoaderSetting, Timing
from bottleneck.schema.trials import LoaderSearch, TriedSetting

TIMINGS = (
    st.tuples(*(st.floats(0.1, 1e6) for _ in range(3)))
    .map(sorted)
    .map(lambda ends: Timing(ends[1], ends[0], ends[2], 9))
)
RUNG = st.lists(TIMINGS, min_size=1, max_size=12).map(lambda timings: dict(enumerate(timings)))
COSTS_S = st.lists(st.floats(0.01, 30.0), min_size=1, max_size=9)


@dataclass
class Turns:
    """Turns that take these seconds, with a scatter, on a clock that only they move on."""

    costs_s: Sequence[float]
    scatter: float = 0.0
    now_s: float = 0.0
    taken: list[int] = field(default_factory=list)
    draw: random.Random = field(default_factory=lambda: random.Random(1))

    def turn(self, index: int, limit_s: float) -> float | None:
        cost_s = self.costs_s[index] * (1.0 + self.scatter * self.draw.random())
        self.now_s += min(cost_s, limit_s)
        self.taken.append(index)
        return cost_s * 1e6 if cost_s <= limit_s else None

    def halving(self, until_s: float = 1e9) -> Halving:
        return Halving(self.turn, list(range(len(self.costs_s))), until_s, random.Random(0), lambda: self.now_s)


@given(RUNG)
def test_no_rung_keeps_a_setting_over_one_that_is_clearly_better(timings: dict[int, Timing]) -> None:
    kept = survivors(timings)
    for stays in kept:
        better = {index for index, timing in timings.items() if timing.high < timings[stays].low}
        assert better <= set(kept)


@given(RUNG)
def test_a_rung_drops_only_what_is_clear_of_the_best_and_in_the_worse_half(timings: dict[int, Timing]) -> None:
    kept = survivors(timings)
    best = min(timings.values(), key=lambda timing: timing.median)
    assert len(kept) >= (len(timings) + 1) // 2
    assert all(timings[index].low > best.high for index in set(timings) - set(kept))


def test_a_rung_drops_the_worse_half_where_the_noise_allows_it() -> None:
    clear = {index: Timing(value, value - 1, value + 1, 9) for index, value in enumerate((10.0, 40.0, 20.0, 30.0))}
    assert survivors(clear) == [0, 2]
    assert survivors({**clear, 1: Timing(40.0, 5.0, 60.0, 9)}) == [0, 2, 1]


@given(COSTS_S, st.floats(0.0, 400.0))
def test_the_time_is_never_exceeded(costs_s: list[float], until_s: float) -> None:
    turns = Turns(costs_s, 0.3)
    is_over = not turns.halving(until_s).run()
    assert turns.now_s <= until_s * (1 + 1e-9)
    assert is_over or turns.now_s < until_s or len(costs_s) == 1


@given(st.lists(st.integers(1, 20), min_size=2, max_size=9, unique=True))
def test_the_quickest_is_found_where_settings_differ_by_more_than_they_scatter(costs_s: list[int]) -> None:
    turns = Turns([10.0 + cost_s for cost_s in costs_s], 0.02)
    halving = turns.halving()
    assert halving.run()
    quickest = costs_s.index(min(costs_s))
    assert quickest in halving.alive
    assert halving.best(own=-1) == quickest


def test_rungs_double_their_rounds_and_halve_their_settings() -> None:
    turns = Turns([1.0, 2.0, 3.0, 4.0])
    halving = turns.halving()
    assert halving.run()
    assert [turns.taken.count(index) for index in range(4)] == [9, 9, 3, 3]
    assert halving.rungs == {0: 2, 1: 1}


def test_a_round_that_is_not_finished_counts_for_nobody() -> None:
    turns = Turns([1.0, 1.0])
    halving = turns.halving(until_s=3.5)
    assert not halving.run()
    assert {timing.n for timing in halving.timings.values()} == {1}


def test_a_setting_that_fails_is_left_out_with_its_reason() -> None:
    turns = Turns([1.0, 2.0, 3.0])

    def turn(index: int, limit_s: float) -> float | None:
        if index == 0:
            raise Refused("failed", "no shared memory")
        return turns.turn(index, limit_s)

    halving = Halving(turn, [0, 1, 2], 1e9, random.Random(0), lambda: turns.now_s)
    assert halving.run()
    assert halving.reasons == {0: "no shared memory"} and halving.best(own=2) == 1


def test_the_program_as_it_is_is_never_the_setting_to_try() -> None:
    halving = Turns([1.0, 2.0]).halving()
    halving.run()
    assert halving.alive == [0] and halving.best(own=0) == 1
    assert Turns([1.0]).halving().best(own=0) is None


@given(st.integers(1, 64), st.integers(0, 70), st.booleans())
def test_the_grid_has_no_more_workers_than_processors_and_begins_with_the_programs_own(
    processors: int, workers: int, may_pin: bool
) -> None:
    own = LoaderSetting(workers, 3 if workers else None)
    settings = grid(own, processors, may_pin=may_pin)
    assert settings[0] == own and len(set(settings)) == len(settings)
    assert {setting.num_workers for setting in settings[1:]} >= {1} and 0 in {one.num_workers for one in settings}
    assert all(setting.num_workers <= processors for setting in settings[1:])
    assert any(setting.pin_memory for setting in settings) == may_pin
    assert all((setting.prefetch_factor is None) == (setting.num_workers == 0) for setting in settings)


def test_larger_batches_are_tried_where_the_data_set_has_two_of_them() -> None:
    best = LoaderSetting(2, 4, persistent_workers=True)
    sizes = [one.batch_size for one in larger_batches(best, 32, 8)]
    assert sizes == [32, 64, 128] and larger_batches(best, 32, 8)[1] == replace(best, batch_size=64)
    assert [one.batch_size for one in larger_batches(best, 32, 7)] == [32, 64]
    assert larger_batches(best, 32, 3) == () == larger_batches(best, None, 100)


def test_batches_are_compared_per_sample_and_one_that_fails_has_the_reason() -> None:
    sizes = larger_batches(LoaderSetting(), 10, 100)

    def turn(setting: LoaderSetting, _: float) -> float | None:
        if setting.batch_size == 40:
            raise Refused("failed", "out of memory")
        return {10: 100.0, 20: 160.0}[setting.batch_size or 0]

    search = Turns([1.0, 2.0]).halving()
    tried, stopped_by = time_batches(sizes, turn, search)
    assert stopped_by is None
    medians = [one.sample_us and round(one.sample_us.median, 6) for one in tried]
    assert medians == [10.0, 8.0, None] and [one.is_own for one in tried] == [True, False, False]
    assert tried[2].reason == "out of memory"
    assert time_batches((), turn, search) == ((), None)


def _batches(*timings: Timing | None) -> tuple[TriedSetting, ...]:
    sizes = enumerate(timings)
    return tuple(TriedSetting(LoaderSetting(2, 4, batch_size=32 << at), us, is_own=at == 0) for at, us in sizes)


@pytest.mark.parametrize(
    ("timings", "size"),
    [
        ((Timing(8.0, 7.0, 9.0, 3), Timing(6.0, 5.0, 6.5, 3), Timing(4.0, 3.0, 6.9, 3)), 128),
        ((Timing(8.0, 7.0, 9.0, 3), Timing(6.0, 5.0, 6.5, 3), None), 64),
        ((Timing(8.0, 7.0, 9.0, 3), Timing(6.0, 5.0, 7.5, 3)), None),
        ((None, Timing(6.0, 5.0, 7.5, 3)), None),
        ((), None),
    ],
)
def test_the_call_has_the_quickest_batch_size_where_it_is_clear_of_the_programs_own(
    timings: tuple[Timing | None, ...], size: int | None
) -> None:
    search = LoaderSearch((), LoaderSetting(2, 4), samples=32, notes=("first",))
    call = SourceCall("train.py", 4, "DataLoader(data, batch_size=size)")
    done = with_batches(search, call, _batches(*timings))
    assert done.constructor == f"DataLoader(data, batch_size={size or 'size'}, num_workers=2, prefetch_factor=4)"
    assert len(done.notes) == 2 and (f"batch_size={size}" in done.notes[1]) == (size is not None)


def test_a_search_without_a_best_setting_writes_no_call() -> None:
    assert with_batches(LoaderSearch(()), None, ()).constructor is None


LOADER = """
import torch
from torch.utils.data import DataLoader, Dataset


class Slow(Dataset):
    def __len__(self):
        return 64

    def __getitem__(self, index):
        total = 0
        for number in range(2000):
            total += number % (index + 1)
        return torch.tensor([float(total)])


def workload(batch_size=4):
    others = DataLoader(torch.zeros(64, 1), batch_size=4)
    loader = DataLoader(Slow(), batch_size=batch_size, shuffle=True)  # the one that is waited for
    model = torch.nn.Linear(1, 1)
    batches, zeros = iter(loader), iter(others)

    def step():
        nonlocal batches, zeros
        batch, zero = next(batches, None), next(zeros, None)
        if batch is None:
            batches = iter(loader)
            batch = next(batches)
        if zero is None:
            zeros = iter(others)
            zero = next(zeros)
        return model(batch / 1e5 + zero).mean()

    return step
"""


@pytest.fixture
def setup(tmp_path: Path) -> TrialSetup:
    pytest.importorskip("torch")
    file = tmp_path / "slow.py"
    file.write_text(LOADER)
    return TrialSetup(Program(str(file)), tmp_path, TrialEffort(budget_s=20.0), is_cold=False)


def test_the_loader_that_is_waited_for_is_searched_and_its_call_written(
    setup: TrialSetup, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "_RUNGS", 1)
    trial = try_loader_settings(setup, ("workers",), ChangePrediction())
    search = trial.loader_search
    assert search is not None and search.samples == 4 and search.settings[0].is_own
    assert search.settings[0].setting == LoaderSetting()
    assert search.settings[0].sample_us is not None and search.settings[0].sample_us.n >= 1
    assert search.best is not None and search.best in {tried.setting for tried in search.settings[1:]}
    assert any("2 loaders" in note for note in search.notes) and any("left out" in note for note in search.notes)
    assert [difference.is_within for difference in trial.differences] == [True] * len(trial.differences)
    assert trial.differences and trial.change == "workers"
    assert (search.constructor is not None) == (trial.verdict == "faster")
    if search.constructor is not None:
        larger = quickest_batch(search.batches)
        size = "batch_size" if larger is None else larger.batch_size
        assert search.constructor.startswith(f"DataLoader(Slow(), batch_size={size}, shuffle=True, num_workers=")
        assert search.line == "slow.py:19"


def test_ctrl_c_leaves_what_is_known(setup: TrialSetup, monkeypatch: pytest.MonkeyPatch) -> None:
    def stop(halving: Halving) -> bool:
        halving.timings[0] = Timing(8.0, 8.0, 8.0, 1)
        halving.timings[1] = Timing(4.0, 4.0, 4.0, 1)
        raise KeyboardInterrupt

    monkeypatch.setattr(Halving, "run", stop)
    trial = try_loader_settings(setup, ("workers",), ChangePrediction())
    assert trial.verdict == "skipped" and trial.stopped_by == "user"
    assert trial.loader_search is not None and trial.loader_search.stopped_by == "user"
    assert trial.loader_search.settings[0].sample_us == Timing(2.0, 2.0, 2.0, 1)
    # No turns in pairs confirmed it: the call is none to write down.
    assert trial.loader_search.constructor is None and trial.loader_search.line is None
