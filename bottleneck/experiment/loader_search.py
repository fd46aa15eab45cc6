"""Searches the settings of a loader by successive halving.

The best one is then tried as any change is.

Turns of all settings that are left come in rounds, each in an order that is drawn. After a rung of rounds the better
half stays, and the next rung has twice as many rounds (Jamieson and Talwalkar 2016, "Non-stochastic best arm
identification and hyperparameter optimization", figure 1; the rungs are theirs, what the noise hides is kept besides).
"""

import random
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

from bottleneck.experiment.loader_call import SourceCall, write_constructor
from bottleneck.experiment.sweep import level
from bottleneck.experiment.trial import ChangePrediction, TrialSetup, try_changes
from bottleneck.experiment.turns import Clock
from bottleneck.experiment.worker import Refused
from bottleneck.schema.measurements import LoaderSetting, Timing
from bottleneck.schema.trials import LoaderSearch, Trial, TriedSetting
from bottleneck.units import counted

PREFETCH_FACTORS = (2, 4, 8)
# The batch sizes that are tried with the best setting, over the program's own.
_TIMES_BATCH = (1, 2, 4)
# The part of the search's time that is left for these.
_BATCH_SHARE = 0.15
# Rounds of the first rung; three are the fewest that show a scatter.
_ROUNDS, _RUNGS = 3, 4
# Of the seconds for the pairs of a change: with those and as many that confirm them, two minutes at the default.
_SEARCH_BUDGETS = 1.5

Turn = Callable[[int, float], float | None]


def grid(own: LoaderSetting, processors: int, *, may_pin: bool) -> tuple[LoaderSetting, ...]:
    """Lists the settings to try, the program's own first.

    Workers are 0, 1, 2, 4 … up to the processors. They stay from epoch to epoch: to start them anew only takes longer.
    """
    counts = [0, *(2**power for power in range(processors.bit_length()) if 2**power <= processors)]
    pins = (False, True) if may_pin else (own.pin_memory,)
    tried = (
        LoaderSetting(count, prefetch, pin, persistent_workers=count > 0)
        for count in counts
        for prefetch in (PREFETCH_FACTORS if count else (None,))
        for pin in pins
    )
    return tuple(dict.fromkeys((own, *tried)))


def survivors(timings: Mapping[int, Timing]) -> list[int]:
    """Returns the settings that a rung keeps.

    They are the better half by median, and what cannot be told from the best.

    The best is that of the lowest median. A setting is clear of it where its interval begins above the end of that of
    the best.
    """
    ranked = sorted(timings, key=lambda index: (timings[index].median, index))
    best = timings[ranked[0]]
    half = (len(ranked) + 1) // 2
    return [index for rank, index in enumerate(ranked) if rank < half or timings[index].low <= best.high]


@dataclass
class Halving:
    """Successive halving under way; what it has measured stays where it is ended.

    ``turn`` gives the microseconds of a setting's turn, or null where that was not over within the seconds it is given.
    """

    turn: Turn
    alive: list[int]
    until: float
    draw: random.Random
    clock: Clock = time.monotonic
    tell: Callable[[str], None] = lambda _: None
    rungs_at_most: int | None = None
    timings: dict[int, Timing] = field(default_factory=dict)
    rungs: dict[int, int] = field(default_factory=dict)
    reasons: dict[int, str] = field(default_factory=dict)

    def run(self) -> bool:
        """Runs all rungs; false where the time was over before."""
        taken: dict[int, list[float]] = {index: [] for index in self.alive}
        rounds = _ROUNDS
        for rung in range(self.rungs_at_most or _RUNGS):
            self.tell(f"{counted(len(self.alive), 'setting')} of the loader, rung {rung + 1}")
            for _ in range(rounds):
                if not self._take_round(taken):
                    return False
            self.alive = survivors({index: self.timings[index] for index in self.alive})
            taken = {index: taken[index] for index in self.alive}
            self.rungs.update(dict.fromkeys(self.alive, rung + 1))
            if len(self.alive) < 2:
                break
            rounds *= 2
        return True

    def _take_round(self, taken: dict[int, list[float]]) -> bool:
        """Takes a turn of each setting; an unfinished round does not count."""
        times: dict[int, float] = {}
        for index in self.draw.sample(self.alive, len(self.alive)):
            left_s = self.until - self.clock()
            if left_s <= 0:
                return False
            try:
                step_us = self.turn(index, left_s)
            except Refused as refused:
                if refused.has_died or refused.verdict == "skipped":
                    raise
                self.reasons[index] = refused.reason
                continue
            if step_us is None:
                return False
            times[index] = step_us
        self.alive = [index for index in self.alive if index in times]
        for index, step_us in times.items():
            taken[index].append(step_us)
        self.timings.update(level({index: taken[index] for index in self.alive}))
        return bool(times)

    def best(self, own: int) -> int | None:
        """Returns the setting of the lowest median besides the program's own.

        Null without any turn. It is one of those that the search left, where there are any.
        """
        others = {index: timing for index, timing in self.timings.items() if index not in {own, *self.reasons}}
        left = {index: timing for index, timing in others.items() if index in self.alive}
        measured = left or others
        return min(measured, key=lambda index: (measured[index].median, index), default=None)


@dataclass(frozen=True)
class _Loader:
    """The loader that is searched, as its process describes it."""

    number: int
    loaders: int
    own: LoaderSetting
    samples: int | None
    batches: int
    processors: int
    is_on_gpu: bool
    call: SourceCall | None

    @classmethod
    def from_values(cls, values: Mapping[str, Any]) -> "_Loader":
        """The description that a process replied."""
        call = values["call"]
        own = LoaderSetting(**values["own"])
        return cls(**{**values, "own": own, "call": None if call is None else SourceCall(**call)})

    def notes(self) -> tuple[str, ...]:
        """Says which settings were left out, and why."""
        several = f"of {self.loaders} loaders, this is the one that the step waits for the longest"
        processors = (
            f"the program may use {counted(self.processors, 'processor')}: settings with more workers than that were "
            "left out, since workers beyond them only take turns"
        )
        pins = "pinned memory was left out: the step works on no NVIDIA GPU"
        return tuple(filter(None, (several if self.loaders > 1 else "", processors, "" if self.is_on_gpu else pins)))


def try_loader_settings(setup: TrialSetup, names: tuple[str, ...], prediction: ChangePrediction) -> Trial:
    """Searches the settings of the loader, and tries the best one in pairs.

    Where the search came to nothing, the change is tried as it is without one. Ctrl-C leaves what is known by then.
    """
    (name,) = names
    search, number = search_settings(setup, name)
    trial = Trial(name, setup.changes[name].title, "skipped", "interrupted", stopped_by="user", loader_search=search)
    if search is not None and search.stopped_by == "user":
        return _with_constructor(trial, search)
    try:
        if search is None or search.best is None:
            return replace(try_changes(setup, names, prediction), loader_search=search)
        tuned = setup.changes[name].with_values({"loader": number, "setting": asdict(search.best)})
        measured = try_changes(replace(setup, changes={**setup.changes, name: tuned}), names, prediction)
    except KeyboardInterrupt:
        return trial if search is None else _with_constructor(trial, replace(search, stopped_by="user"))
    return _with_constructor(measured, search)


def _with_constructor(trial: Trial, search: LoaderSearch) -> Trial:
    """Adds the call that makes the setting, where it is one to keep."""
    if trial.verdict != "faster":
        return replace(trial, loader_search=replace(search, constructor=None, line=None))
    return replace(trial, loader_search=search)


def search_settings(setup: TrialSetup, name: str) -> tuple[LoaderSearch | None, int]:
    """Searches the settings in a process of its own.

    The record is null where the loader's turns cannot be taken. The number is that of the loader.
    """
    began = time.monotonic()
    seconds = min(_SEARCH_BUDGETS * setup.effort.budget_s, max(0.0, setup.until - began) / 2)
    setup.tell("making the step for turns of its loader")
    with setup.worker((name,), {}) as worker:
        worker.until = began + seconds
        try:
            loader = _Loader.from_values(worker.open_loader())
        except Refused:
            return None, 0
        settings = grid(loader.own, loader.processors, may_pin=loader.is_on_gpu)
        draw = random.Random(f"{setup.effort.seed} settings")  # noqa: S311 - an order, not a secret
        halving = Halving(
            lambda index, limit_s: worker.loader_turn(settings[index], limit_s),
            list(range(len(settings))),
            began + (1 - _BATCH_SHARE) * seconds,
            draw,
            tell=setup.tell,
        )
        stopped_by, best = _run(halving), halving.best(0)
        batches: tuple[TriedSetting, ...] = ()
        if stopped_by != "user" and best is not None and -1 not in halving.reasons:
            sizes = larger_batches(settings[best], loader.samples, loader.batches)
            halving.until = worker.until
            batches, ended_by = time_batches(sizes, worker.loader_turn, halving)
            stopped_by = "user" if ended_by == "user" else stopped_by
    record = _record(halving, loader, settings, time.monotonic() - began, stopped_by)
    return with_batches(record, loader.call, batches), loader.number


def with_batches(search: LoaderSearch, call: SourceCall | None, batches: tuple[TriedSetting, ...]) -> LoaderSearch:
    """Adds the batch sizes that were timed, and the call to write."""
    if search.best is None:
        return replace(search, batches=batches)
    larger = quickest_batch(batches)
    if larger is None:
        note = "the call keeps the batch size, since another changes the results: --try batch-x2 tries one, per sample"
    else:
        note = (
            f"the call has batch_size={larger.batch_size}, the quickest per sample, in place of {search.samples}: it "
            "changes the results, and the speedup above is without it"
        )
    constructor = write_constructor(None if call is None else call.text, larger or search.best)
    return replace(search, batches=batches, constructor=constructor, notes=(*search.notes, note))


def quickest_batch(batches: Sequence[TriedSetting]) -> LoaderSetting | None:
    """Returns the setting with the batch size of the lowest time per sample.

    Null unless its interval ends below that of the program's own size.
    """
    own_us = next((tried.sample_us for tried in batches if tried.is_own), None)
    larger = [(tried.sample_us, tried.setting) for tried in batches if tried.sample_us and not tried.is_own]
    if own_us is None or not larger:
        return None
    best_us, setting = min(larger, key=lambda pair: pair[0].median)
    return setting if best_us.high < own_us.low else None


def larger_batches(setting: LoaderSetting, samples: int | None, batches: int) -> tuple[LoaderSetting, ...]:
    """Gives the setting with the program's own batch size and larger ones.

    None where the loader does not tell its batch size, or the data set has no two batches of the next size.
    """
    sizes = [] if samples is None else [samples * times for times in _TIMES_BATCH if times == 1 or batches >= 2 * times]
    return tuple(replace(setting, batch_size=size) for size in sizes) if len(sizes) > 1 else ()


def time_batches(
    sizes: Sequence[LoaderSetting], turn: Callable[[LoaderSetting, float], float | None], search: Halving
) -> tuple[tuple[TriedSetting, ...], Literal["time", "user"] | None]:
    """Times batch sizes per sample, once the search is over.

    A size is tried in turns with the others; one that the program cannot take has the reason.
    """
    if not sizes:
        return (), None

    def per_sample(index: int, limit_s: float) -> float | None:
        step_us = turn(sizes[index], limit_s)
        return None if step_us is None else step_us / (sizes[index].batch_size or 1)

    order = list(range(len(sizes)))
    sizing = Halving(per_sample, order, search.until, search.draw, search.clock, search.tell, rungs_at_most=1)
    stopped_by = _run(sizing)
    tried = (
        TriedSetting(size, sizing.timings.get(index), sizing.rungs.get(index, 0), index == 0, sizing.reasons.get(index))
        for index, size in enumerate(sizes)
    )
    return tuple(tried) if sizing.timings else (), stopped_by


def _run(halving: Halving) -> Literal["time", "user"] | None:
    try:
        return None if halving.run() else "time"
    except KeyboardInterrupt:
        return "user"
    except Refused as refused:
        if refused.verdict != "skipped":
            halving.reasons.setdefault(-1, refused.reason)
        return "time"


def _record(
    halving: Halving,
    loader: _Loader,
    settings: Sequence[LoaderSetting],
    seconds: float,
    stopped_by: Literal["time", "user"] | None,
) -> LoaderSearch:
    """The record of a search; the program's own setting is the first."""
    best = halving.best(0)
    call = loader.call
    tried = tuple(
        TriedSetting(
            setting,
            _per_sample(halving.timings.get(index), loader.samples),
            halving.rungs.get(index, 0),
            index == 0,
            halving.reasons.get(index),
        )
        for index, setting in enumerate(settings)
    )
    died = halving.reasons.get(-1)
    return LoaderSearch(
        settings=tried,
        best=None if best is None else settings[best],
        line=None if call is None else f"{Path(call.path).name}:{call.line}",
        samples=loader.samples,
        seconds=seconds,
        notes=(*loader.notes(), *([f"the search ended early: {died}"] if died else [])),
        stopped_by=stopped_by,
    )


def _per_sample(timing: Timing | None, samples: int | None) -> Timing | None:
    if timing is None or samples is None:
        return timing
    return Timing(timing.median / samples, timing.low / samples, timing.high / samples, timing.n)
