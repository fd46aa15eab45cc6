"""Chooses the changes with which a step fits into the memory of a device, at the least time.

Each set is a sequence of changes to the recorded step (`smaller_steps`), whose peak and price follow as those of any
step. The sets are tried from the cheapest on. The one that fits is then run under fake tensors, as far as it can be.
"""

import json
from collections.abc import Iterator, Sequence

import numpy as np
from msgspec import Struct

from bottleneck.predict.changes import NoStep, Record
from bottleneck.predict.gains import predict_gain
from bottleneck.predict.peak_memory import RESERVED_BYTES, step_memory
from bottleneck.predict.price import PricedWork, price_work, step_of
from bottleneck.predict.smaller_steps import (
    Block,
    blocks_of,
    fused,
    gathered_bytes,
    planned_bytes,
    recomputed,
    sharded,
    state_bytes_saved,
    swapped,
    with_bf16_parameters,
    with_states_of,
)
from bottleneck.schema.analysis import Interval
from bottleneck.schema.device import Device
from bottleneck.schema.intervals import Floats
from bottleneck.schema.memory_fit import MemoryFit, MemoryRemedy, MemorySet, RefusedRemedy, RemedyName
from bottleneck.schema.predicted_step import Backend
from bottleneck.schema.records import replace
from bottleneck.schema.step_calls import StepCall, StepCalls
from bottleneck.units import US_PER_S

PARTS = (2, 4, 8, 16)
# So many calls may be recorded for a step in micro-batches.
_MOST_CALLS = 40_000
# The number of blocks to recompute is chosen among so many values.
_LEVELS = 12
_RANKS = (2, 4, 8, 16, 32, 64, 128, 256, 512, 1024)
_SHOWN_RANKS = 3
_TRIES = 6
# Costs that differ by less than this part of the step are the same.
_SAME_COST = 0.001
_BF16 = "bf16-autocast"
_IN_PLACE = "inplace-activations"
_STATES: tuple[RemedyName, ...] = ("bf16-states", "8bit-states", "bf16-parameters")
_SWAPS: tuple[RemedyName, ...] = ("swap", "swap-overlapped")
_CHANGES_RESULTS = frozenset({_BF16, *_STATES})
# Rather a setting than a library, and rather a library than code of one's own.
_EFFORT: dict[str, int] = {"bf16-states": 2, "8bit-states": 2, "swap-overlapped": 4, "fused-activations": 2}
_FUSED = "fused-optimizer"
_RUN = frozenset({_BF16, _FUSED, _IN_PLACE, "accumulate", "checkpoint"})


class Choice(Struct, frozen=True):
    """A set of changes: which of them, and how far."""

    autocast: bool = False
    fused_optimizer: bool = False
    in_place: bool = False
    parts: int = 1
    blocks: int = 0
    is_fused: bool = False
    swap: RemedyName | None = None
    states: RemedyName | None = None

    @property
    def names(self) -> tuple[RemedyName, ...]:
        """The changes in the order in which they are made."""
        names: list[RemedyName | None] = [
            "bf16-autocast" if self.autocast else None,
            "fused-optimizer" if self.fused_optimizer else None,
            "inplace-activations" if self.in_place else None,
            "accumulate" if self.parts > 1 else None,
            "checkpoint" if self.blocks else None,
            "fused-activations" if self.is_fused else None,
            self.swap,
            self.states,
        ]
        return tuple(name for name in names if name is not None)

    def steps(self) -> "Iterator[tuple[RemedyName, Choice]]":
        """The changes one after another, each with the set up to it."""
        made = Choice()
        for field, name in (
            ("autocast", "bf16-autocast"),
            ("fused_optimizer", "fused-optimizer"),
            ("in_place", "inplace-activations"),
            ("parts", "accumulate"),
            ("blocks", "checkpoint"),
            ("is_fused", "fused-activations"),
            ("swap", self.swap),
            ("states", self.states),
        ):
            value = getattr(self, field)
            if value != getattr(made, field):
                made = replace(made, **{field: value})
                yield name, made  # type: ignore[misc]  # swap and states are not null where they differ


def cheapest_first(choices: Sequence[Choice], costs: Sequence[float], unit: float) -> list[Choice]:
    """The sets by the time that they add.

    Of those that cost the same within a thousandth of the step: fewer that change results, fewer that are known by a
    formula alone, less effort.
    """

    def key(number: int) -> tuple[float, ...]:
        names = choices[number].names
        return (
            round(costs[number] / max(unit, 1e-9) / _SAME_COST),
            sum(name in _CHANGES_RESULTS for name in names),
            sum(name not in _RUN for name in names),
            sum(_EFFORT.get(name, 1) for name in names),
            costs[number],
        )

    return [choices[number] for number in sorted(range(len(choices)), key=key)]


class _Fitter:
    """The sets of changes of one program on one device: their steps, peaks and costs."""

    def __init__(self, record: Record, device: Device, backend: Backend, pace: float | None) -> None:
        self._record, self.device, self._backend, self._pace = record, device, backend, pace
        self._recorded: dict[tuple[str, ...], StepCalls | NoStep] = {}
        self._made: dict[Choice, StepCalls] = {}
        self.moved: dict[Choice, tuple[int, float]] = {}
        self._us_by_call: dict[str, float] = {}
        self.base = self.run(())
        self.base_peak = _peak(self.base)
        self.blocks = self._blocks_by_worth()
        self._prices: dict[tuple[str, ...], PricedWork | None] = {}
        self.before = self.price((), self.base)

    def run(self, changes: tuple[str, ...]) -> StepCalls:
        """The step of the program with these changes; raises NoStep."""
        if changes not in self._recorded:
            try:
                self._recorded[changes] = self._record(changes)
            except NoStep as state:
                self._recorded[changes] = state
        step = self._recorded[changes]
        if isinstance(step, NoStep):
            raise step
        return step

    def price(self, key: tuple[str, ...], calls: StepCalls, backend: Backend | None = None) -> PricedWork | None:
        """The work of a step with its times; null where it cannot be priced."""
        key = (*key, str(backend or self._backend))
        if key not in self._prices:
            priced = price_work(calls, self.device, backend or self._backend, self._pace)
            self._prices[key] = None if isinstance(priced, str) else priced
        return self._prices[key]

    def _blocks_by_worth(self) -> tuple[Block, ...]:
        """The blocks whose recomputing frees something, the most bytes per call first, the earlier of equals."""
        worth = []
        for number, block in enumerate(blocks_of(self.base)):
            changed = recomputed(self.base, [block])
            extra = len(changed.calls) - len(self.base.calls)
            saved = sum(one.bytes for one in changed.storages[len(self.base.storages) :])
            if extra and saved:
                worth.append((-round(saved / extra), number, block))
        return tuple(block for _, _, block in sorted(worth, key=lambda one: one[:2]))

    def changes_of(self, choice: Choice, *, with_blocks: bool) -> tuple[str, ...]:
        """The changes of a set that the program is run with."""
        names = [_BF16] if choice.autocast else []
        names += [_FUSED] if choice.fused_optimizer else []
        names += [_IN_PLACE] if choice.in_place else []
        names += [f"accumulate-{choice.parts}"] if choice.parts > 1 else []
        if with_blocks and choice.blocks:
            paths = [block.name for block in self.blocks[: choice.blocks]]
            names.append(f"checkpoint-blocks:{json.dumps({'blocks': paths})}")
        return tuple(names)

    def step(self, choice: Choice, *, confirmed: bool = False) -> StepCalls:
        """The step with these changes; ``confirmed`` runs the program with those that can be run. Raises NoStep."""
        calls = self.run(self.changes_of(choice, with_blocks=confirmed))
        if choice.blocks and not confirmed:
            calls = self._recomputed(choice, calls)
        if choice.is_fused:
            calls = fused(calls)
        if choice.swap is not None:
            calls = self._swapped(choice, calls)
        return _with_states(calls, choice.states)

    def peak(self, choice: Choice) -> int:
        """The peak of the step with these changes, before they are run; raises NoStep."""
        whole = replace(choice, states=None)
        if whole not in self._made:
            self._made[whole] = self.step(whole)
        return _peak(_with_states(self._made[whole], choice.states))

    def _recomputed(self, choice: Choice, calls: StepCalls) -> StepCalls:
        plain = replace(choice, is_fused=False, swap=None, states=None)
        if plain not in self._made:
            names = {block.name for block in self.blocks[: choice.blocks]}
            self._made[plain] = recomputed(calls, [block for block in blocks_of(calls) if block.name in names])
        return self._made[plain]

    def _swapped(self, choice: Choice, calls: StepCalls) -> StepCalls:
        link = self.device.link_bytes_per_s
        if not link:
            raise NoStep("the speed of the link to the host is not known")
        us = self._us_of_calls(calls)
        made = swapped(calls, us, link, overlapped=choice.swap == "swap-overlapped")
        added = made.added_us
        if choice.swap == "swap-overlapped":
            # The copies read and write device memory beside the kernels.
            added = 2 * made.moved_bytes / (self.device.bandwidth_bytes_per_s or link) * US_PER_S
        self.moved[replace(choice, states=None)] = 2 * made.moved_bytes, added
        return made.calls

    def _us_of_calls(self, calls: StepCalls) -> Floats:
        """The time of each call, the waiting for the host spread over them."""
        missing = [call for call in calls.calls if _signature(call) not in self._us_by_call]
        if missing:
            priced = price_work(replace(calls, calls=tuple(missing)), self.device, self._backend, self._pace)
            if isinstance(priced, str):
                raise NoStep(priced)
            self._us_by_call |= dict.fromkeys(map(_signature, missing), 0.0)
            rows = step_of(priced).kernels
            for row in rows:
                for position in row.calls:
                    self._us_by_call[_signature(missing[position])] = row.us / len(row.calls)
        us = np.array([self._us_by_call[_signature(call)] for call in calls.calls])
        stretch = 1.0 if self.before is None or not self.before.busy_us else self.before.us() / self.before.busy_us
        return us * max(stretch, 1.0)

    def share_of_blocks(self, blocks: int) -> float:
        """The part of the kernels' time of recomputing all blocks that these take."""
        us = [
            float(self._us_of_calls(self._recomputed(Choice(blocks=number), self.base)).sum())
            for number in (0, blocks, len(self.blocks))
        ]
        return (us[1] - us[0]) / (us[2] - us[0]) if us[2] > us[0] else 1.0

    def added_us(self, name: RemedyName, choice: Choice) -> Interval | None:
        """The time that one change of a set adds by itself; null where it has no price. Raises NoStep."""
        if self.before is None:
            return None
        whole = replace(choice, states=None)
        if name in _SWAPS:
            self.peak(whole)
            us = self.moved[whole][1]
            return Interval(0.0, us) if name == "swap-overlapped" else Interval(us, us * 1.25)
        if name in _STATES:
            bandwidth = self.device.bandwidth_bytes_per_s
            saved = state_bytes_saved(self.base, _with_states(self.base, name))
            return Interval(-2 * saved / bandwidth * US_PER_S, 0.0) if bandwidth else None
        if name == "fused-activations":
            after = self.price((), self.base, "compile")
        elif name == "checkpoint":
            alone = Choice(blocks=choice.blocks)
            after = self.price(("checkpoint", str(choice.blocks)), self._recomputed(alone, self.base))
        else:
            alone = {
                "bf16-autocast": Choice(autocast=True),
                "fused-optimizer": Choice(fused_optimizer=True),
                "inplace-activations": Choice(in_place=True),
                "accumulate": Choice(parts=choice.parts),
            }[name]
            after = self.price((name, str(choice.parts)), self.run(self.changes_of(alone, with_blocks=False)))
        return added(self.before, after)

    def remedy(self, name: RemedyName, choice: Choice, peak_before: int, *, is_run: bool = False) -> MemoryRemedy:
        """A change of a set, with what it saves after those before it; raises NoStep."""
        peak = self.peak(choice)
        checkpoint = name == "checkpoint"
        return MemoryRemedy(
            name=name,
            saved_bytes=peak_before - peak,
            peak_bytes=peak,
            added_us=self.added_us(name, choice),
            basis="run" if name in _RUN and (is_run or not checkpoint) else "formula",
            is_same_result=name not in _CHANGES_RESULTS,
            blocks=tuple(block.name for block in self.blocks[: choice.blocks]) if checkpoint else (),
            of_blocks=len(self.blocks) if checkpoint else 0,
            parts=choice.parts if name == "accumulate" else None,
            moved_bytes=self.moved[replace(choice, states=None)][0] if name in _SWAPS else None,
        )


def added(before: PricedWork | None, after: PricedWork | None) -> Interval | None:
    """The time that a changed step takes longer, with the interval of its speedup."""
    if before is None or after is None:
        return None
    gain = predict_gain(before, after)
    us = before.us()
    return Interval(us / gain.interval.high - us, us / gain.interval.low - us)


def together(parts: Sequence[Interval | None]) -> Interval | None:
    """The sum of times; null where one is not known."""
    times = [part for part in parts if part is not None]
    if len(times) < len(parts):
        return None
    return Interval(sum(one.low for one in times), sum(one.high for one in times))


def _signature(call: StepCall) -> str:
    return "\n".join((call.name, call.dims, call.types, call.strides, call.concrete))


def _with_states(calls: StepCalls, states: RemedyName | None) -> StepCalls:
    if states is None:
        return calls
    return (
        with_bf16_parameters(calls) if states == "bf16-parameters" else with_states_of(calls, states.partition("-")[0])
    )


def _peak(calls: StepCalls) -> int:
    memory = step_memory(calls)
    if memory is None:
        raise NoStep("the lifetimes of its tensors are not known")
    return memory.peak_bytes


def fit_memory(
    record: Record, device: Device, backend: Backend = "eager", pace: float | None = None
) -> MemoryFit | None:
    """Finds what makes a step fit into the memory of a device; null where that memory is not known.

    ``record`` gives the steps of the program with changes. Raises NoStep where the step as it is cannot be had.
    """
    if device.memory_bytes is None:
        return None
    fitter = _Fitter(record, device, backend, pace)
    usable = max(device.memory_bytes - RESERVED_BYTES, 0)
    peak, is_there = fitter.base_peak, fitter.base_peak <= usable
    alone, refused = _alone(fitter)
    best, same, by_formula = _sets(fitter, alone, usable) if not is_there else (None, None, None)
    made = [one for one in fitter.base.storages if one.created >= 0]
    return MemoryFit(
        memory_bytes=device.memory_bytes,
        usable_bytes=usable,
        peak_bytes=peak,
        fits=is_there,
        alone=tuple(alone),
        best=best,
        same_results=same,
        by_formula=by_formula,
        ranks=_ranks(fitter.base, usable),
        planned_bytes=planned_bytes(fitter.base),
        made_bytes=sum(one.bytes for one in made),
        alive_bytes=_peak(replace(fitter.base, storages=tuple(made))) if made else 0,
        refused=tuple(refused),
    )


def _sets(
    fitter: _Fitter, alone: Sequence[MemoryRemedy], usable: int
) -> tuple[MemorySet, MemorySet | None, MemorySet | None]:
    """The best set, the cheapest with the same results, and a cheaper one that is known by formula."""
    priced = _Priced(fitter, _choices(fitter, alone))
    runs = [one for one in priced.choices if _RUN.issuperset(one.names)]
    best, cheapest = priced.search(runs, usable), priced.search(priced.choices, usable)
    if best is None or cheapest is None:
        best, cheapest = cheapest or best, None
    if best is None:
        return _nearest(fitter, priced.choices, usable), None, None
    same = None
    if not all(one.is_same_result for one in best.remedies):
        keeping = [one for one in priced.choices if not _CHANGES_RESULTS & {*one.names}]
        same = priced.search([one for one in keeping if _RUN.issuperset(one.names)], usable)
        same = same or priced.search(keeping, usable)
    others = [made.remedies for made in (best, same) if made is not None]
    return best, same, cheapest if cheapest is not None and cheapest.remedies not in others else None


def _alone(fitter: _Fitter) -> tuple[list[MemoryRemedy], list[RefusedRemedy]]:
    """Each change by itself as far as it goes, and why others do not apply."""
    calls, refused, remedies = fitter.base, list[RefusedRemedy](), list[MemoryRemedy]()
    candidates: list[tuple[RemedyName, Choice]] = []
    if "bf16_tensor" not in fitter.device.peaks_flops_per_s:
        refused.append(RefusedRemedy("bf16-autocast", "the device has no units for products in bf16"))
    elif not calls.settings.autocast:
        candidates.append(("bf16-autocast", Choice(autocast=True)))
    if calls.batch_size:
        # A larger number of parts divides the batch only where a smaller one does.
        candidates += [
            ("accumulate", Choice(parts=parts))
            for parts in PARTS
            if calls.batch_size % parts == 0 and len(calls.calls) * parts <= _MOST_CALLS
        ]
    if calls.settings.training:
        candidates += _of_training(fitter, refused)
    for name, choice in candidates:
        try:
            remedy = fitter.remedy(name, choice, fitter.base_peak)
            if name == "bf16-parameters" and choice.autocast:
                cast = fitter.added_us("bf16-autocast", choice)
                remedy = replace(remedy, added_us=together([remedy.added_us, cast]))
        except NoStep as state:
            reason = RefusedRemedy(name, state.reason)
            refused += [] if reason in refused else [reason]
            continue
        if remedy.saved_bytes > 0:
            remedies.append(remedy)
        else:
            refused.append(RefusedRemedy(name, "by itself it would not lower the peak"))
    if calls.settings.training:
        remedies += _of_ranks(fitter)
    return sorted(remedies, key=lambda one: -one.saved_bytes), refused


def _of_training(fitter: _Fitter, refused: list[RefusedRemedy]) -> Iterator[tuple[RemedyName, Choice]]:
    """Yields the changes that only a step with a backward pass can have."""
    calls = fitter.base
    yield "fused-optimizer", Choice(fused_optimizer=True)
    yield "inplace-activations", Choice(in_place=True)
    if fitter.blocks:
        yield "checkpoint", Choice(blocks=len(fitter.blocks))
    else:
        refused.append(RefusedRemedy("checkpoint", "needs numbered blocks, as those of an nn.ModuleList"))
    if not calls.settings.compiled:
        yield "fused-activations", Choice(is_fused=True)
    for swap in _SWAPS:
        yield swap, Choice(swap=swap)
    for states in _STATES[:2] if calls.bytes_of("optimizer state") else ():
        yield states, Choice(states=states)
    if "bf16_tensor" in fitter.device.peaks_flops_per_s:
        yield "bf16-parameters", Choice(autocast=not calls.settings.autocast, states="bf16-parameters")


def _of_ranks(fitter: _Fitter) -> Iterator[MemoryRemedy]:
    """The step on several ranks, whose links carry the parameters twice and the gradients once."""
    calls, link = fitter.base, fitter.device.link_bytes_per_s
    parameters = calls.bytes_of("parameter")
    for ranks in _RANKS[:_SHOWN_RANKS]:
        peak = _peak(sharded(calls, ranks))
        if peak >= fitter.base_peak or not gathered_bytes(calls):
            continue
        moved = int(3 * parameters * (ranks - 1) / ranks)
        longest = moved / link * US_PER_S if link else None
        busy = 0.0 if fitter.before is None else fitter.before.us()
        yield MemoryRemedy(
            "fsdp",
            fitter.base_peak - peak,
            peak,
            None if longest is None else Interval(max(longest - busy, 0.0), longest),
            "formula",
            is_same_result=True,
            parts=ranks,
            moved_bytes=moved,
        )


def _choices(fitter: _Fitter, alone: Sequence[MemoryRemedy]) -> list[Choice]:
    """The sets of changes that can be made together; those that bring nothing alone may still do so in a set."""
    calls = fitter.base
    names = {one.name for one in alone}
    trains = bool(calls.settings.training)
    blocks = len(fitter.blocks) if trains else 0
    levels = sorted({round(blocks * part / _LEVELS) for part in range(_LEVELS + 1)}) if blocks else [0]
    autocast = [False, *([True] if "bf16-autocast" in names or "bf16-parameters" in names else [])]
    parts = [1, *sorted(one.parts for one in alone if one.name == "accumulate" and one.parts)]
    has_link = trains and bool(fitter.device.link_bytes_per_s)
    return [
        Choice(cast, fused_optimizer, in_place, part, level, is_fused, swap, states)
        for cast in autocast
        for fused_optimizer in (False, *([True] if _FUSED in names else []))
        for in_place in (False, *([True] if _IN_PLACE in names else []))
        for part in parts
        for level in levels
        for is_fused in (False, *([True] if trains and not calls.settings.compiled else []))
        for swap in (None, *(_SWAPS if has_link else ()))
        for states in (None, *(name for name in _STATES if name in names))
        if states != "bf16-parameters" or cast or calls.settings.autocast
    ][1:]


class _Priced:
    """Sets of changes with the time that each adds."""

    def __init__(self, fitter: _Fitter, choices: Sequence[Choice]) -> None:
        self._fitter, self.choices = fitter, choices
        self._known: dict[tuple[str, int], float] = {}
        self._costs = {choice: self._cost_us(choice) for choice in choices}
        self._sets: dict[Choice, MemorySet] = {}

    def _cost_us(self, choice: Choice) -> float:
        """The sum of what each change adds in the middle, none less than nothing; without prices their number."""
        total = 0.0
        for name in choice.names:
            extent = {"accumulate": choice.parts}.get(name, choice.blocks if name in ("checkpoint", *_SWAPS) else 0)
            if (name, extent) not in self._known:
                share = self._fitter.share_of_blocks(choice.blocks) if name == "checkpoint" else 1.0
                whole = replace(choice, blocks=len(self._fitter.blocks)) if name == "checkpoint" else choice
                us = self._fitter.added_us(name, _only(name, whole))
                self._known[name, extent] = 1.0 if us is None else max((us.low + us.high) / 2, 0.0) * share
            total += self._known[name, extent]
        return total

    def search(self, choices: Sequence[Choice], usable: int) -> MemorySet | None:
        """The cheapest of these sets that fits, and still does when the program is run with it."""
        before = self._fitter.before
        unit = 1.0 if before is None else before.us()
        allowed, tries = usable, 0
        for choice in cheapest_first(choices, [self._costs[choice] for choice in choices], unit):
            try:
                if (peak := self._fitter.peak(choice)) > allowed:
                    continue
                if choice not in self._sets:
                    self._sets[choice] = _set(self._fitter, choice, usable)
            except NoStep:
                continue
            made = self._sets[choice]
            if made.fits:
                return made
            tries += 1
            if tries >= _TRIES:
                return None
            allowed = min(allowed, usable - (made.peak_bytes - peak))
        return None


def _only(name: RemedyName, choice: Choice) -> Choice:
    """One change of a set; what is swapped depends on the blocks that are recomputed."""
    return Choice(
        autocast=name == "bf16-autocast",
        fused_optimizer=name == "fused-optimizer",
        in_place=name == "inplace-activations",
        parts=choice.parts if name == "accumulate" else 1,
        blocks=choice.blocks if name in ("checkpoint", *_SWAPS) else 0,
        is_fused=name == "fused-activations",
        swap=name if name in _SWAPS else None,
        states=name if name in _STATES else None,
    )


def _nearest(fitter: _Fitter, choices: Sequence[Choice], usable: int) -> MemorySet:
    """The set with the lowest peak, where none fits."""
    peaks: list[tuple[int, int]] = []
    for number, choice in enumerate(choices):
        try:
            peaks.append((fitter.peak(choice), number))
        except NoStep:
            continue
    nearest = choices[min(peaks)[1]] if peaks else Choice()
    return _set(fitter, nearest, usable)


def _set(fitter: _Fitter, choice: Choice, usable: int) -> MemorySet:
    """A set whose program was run with its changes; raises NoStep."""
    confirmed = fitter.step(choice, confirmed=True)
    changes = fitter.changes_of(choice, with_blocks=True)
    run = fitter.run(changes)
    remedies, before = [], fitter.base_peak
    for name, made in choice.steps():
        remedies.append(fitter.remedy(name, made, before, is_run=True))
        before = remedies[-1].peak_bytes
    backend: Backend | None = "compile" if choice.is_fused else None
    after = fitter.price(changes, run, backend)
    parts = [added(fitter.before, after) if changes or choice.is_fused else Interval(0.0, 0.0)]
    parts += [one.added_us for one in remedies if one.name in (*_SWAPS, *_STATES)]
    peak = _peak(confirmed)
    return MemorySet(
        remedies=tuple(remedies),
        peak_bytes=peak,
        estimated_bytes=fitter.peak(choice),
        is_confirmed=bool(changes),
        fits=peak <= usable,
        added_us=together(parts),
        step=None if after is None else replace(step_of(after), kernels=()),
        ranks=None if peak <= usable else _ranks(confirmed, usable),
    )


def _ranks(calls: StepCalls, usable: int) -> int | None:
    """The fewest ranks of FSDP with which a step fits; null where none of those tried do."""
    return next((ranks for ranks in _RANKS if _peak(sharded(calls, ranks)) <= usable), None)
