"""Times steps in turns, as pairs or in rounds.

So drift of the machine reaches all of them alike. Two sides take turns in pairs of fresh processes until the result is
decided.
"""

import errno
import math
import random
import statistics
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Literal

from bottleneck.errors import WorkloadError
from bottleneck.experiment.fault_scatter import TimedTurn, describe_fault_scatter
from bottleneck.experiment.side import Side, relative_to_root
from bottleneck.experiment.variants import Built
from bottleneck.experiment.worker import Refused, Worker
from bottleneck.harness.messages import Program
from bottleneck.schema.gate_result import Limit, TimeResult
from bottleneck.schema.statistics import (
    GATE_LOOKS,
    LOOKS,
    Batches,
    ChangeRule,
    PairRule,
    ProcessPair,
    SlowdownRule,
    judge_pairs,
    next_look,
    summarise_durations,
    take_batches,
)

# A turn lasts at least this long: in a shorter one, ticks of the scheduler and caches that the other variant filled
# count too much (gate statistics, section 3.2).
TURN_US, STEPS_AT_LEAST, STEPS_AT_MOST = 50_000.0, 3, 2_000
# From here on a cache that was filled by the other variant is little, and turns of more steps would last too long.
LONG_US = 250_000.0

Clock = Callable[[], float]


@dataclass(frozen=True)
class TimedStep:
    """A variant in its process, and the time of its step once warm.

    ``prefetched`` is how many batches the loaders of it, or of the one that it takes turns with, make ready meanwhile.
    Steps that use those up do not count. The others come in bursts, as workers finish: their mean is the step.
    """

    worker: Worker
    name: str
    usual_us: float
    prefetched: int = 0

    @property
    def steps(self) -> tuple[int, int]:
        """The steps of a turn that count, and those before them that do not."""
        counted, before = 1, 0
        if self.usual_us < LONG_US:
            total = max(STEPS_AT_LEAST, math.ceil(TURN_US / max(self.usual_us, TURN_US / STEPS_AT_MOST)))
            counted, before = total - 1, 1
        if self.prefetched:
            return max(counted, 2 * self.prefetched), 1 + self.prefetched
        return counted, before

    @property
    def turn_s(self) -> float:
        """The duration of a turn."""
        return sum(self.steps) * self.usual_us / 1e6

    def turn_us(self) -> float:
        """The typical step of a turn, in microseconds."""
        steps, lead = self.steps
        times_us = self.worker.turn(self.name, steps, lead, self.usual_us)
        return max(1e-3, statistics.fmean(times_us) if self.prefetched else statistics.median(times_us))


@dataclass
class Pairing:
    """Pairs of turns of an original and a changed step.

    The changed step works on ``samples`` times as many samples.

    ``logs`` holds log(changed / original) per sample for each pair, positive where the changed one is slower.
    """

    original: TimedStep
    changed: TimedStep
    draw: random.Random
    samples: float = 1.0
    logs: list[float] = field(default_factory=list)
    original_us: list[float] = field(default_factory=list)
    changed_us: list[float] = field(default_factory=list)

    @property
    def pair_s(self) -> float:
        """The duration of a pair, by the times of warm steps."""
        return self.original.turn_s + self.changed.turn_s

    def take(self) -> None:
        """One pair more, in an order that is drawn."""
        if self.draw.random() < 0.5:
            original_us, changed_us = self.original.turn_us(), self.changed.turn_us()
        else:
            changed_us, original_us = self.changed.turn_us(), self.original.turn_us()
        self.original_us.append(original_us)
        self.changed_us.append(changed_us)
        self.logs.append(math.log(changed_us / (self.samples * original_us)))

    def take_until(
        self, is_enough: Callable[[Sequence[float]], bool], seconds: float, clock: Clock = time.monotonic
    ) -> None:
        """Takes pairs from look to look until they are enough.

        It also ends when the time is over and there are some to look at.
        """
        until = clock() + seconds
        while (wanted := next_look(len(self.logs))) is not None:
            while len(self.logs) < wanted:
                if clock() >= until and len(self.logs) >= LOOKS[0]:
                    return
                self.take()
            if is_enough(self.logs):
                return


def take_rounds(
    steps: Mapping[int, TimedStep], rounds: int, draw: random.Random, tell: Callable[[str], None]
) -> tuple[dict[int, list[float]], dict[int, str]]:
    """Takes the turns of several steps in microseconds, in rounds.

    A round has one of each step, in an order that is drawn anew.

    A step that fails takes no more turns; the second value has its reason instead.
    """
    taken: dict[int, list[float]] = {index: [] for index in steps}
    reasons: dict[int, str] = {}
    for number in range(rounds):
        for index in draw.sample(list(taken), len(taken)):
            try:
                taken[index].append(steps[index].turn_us())
            except Refused as refused:
                reasons[index] = refused.reason
                del taken[index]
        if (number + 1) % 10 == 0 or number + 1 == rounds:
            tell(f"round {number + 1} of {rounds}")
    return taken, reasons


Role = Literal["base", "candidate"]


class SideFailed(Exception):  # noqa: N818 - an outcome, not an error of ours
    """A side whose step was not made or did not run.

    It says why, and whether that may have been for lack of memory.
    """

    def __init__(self, role: Role, label: str, reason: str, *, is_for_memory: bool = False) -> None:
        super().__init__(reason)
        self.role, self.label, self.reason, self.is_for_memory = role, label, reason, is_for_memory


class NoTurns(Exception):  # noqa: N818 - an outcome, not an error of ours
    """Turns that cannot be taken, through no fault of either side.

    Its text states the reason and a remedy.
    """


class SideWorker(Worker):
    """Process that starts in the folder of its side.

    It imports the packages that lie there. ``faults_per_step`` holds the page faults of a step in each turn; null where
    the system does not tell.
    """

    def __init__(self, program: Program, role: Role, side: Side, log: Path) -> None:
        self.role, self._label = role, side.label
        self.faults_per_step: list[float | None] = []
        try:
            super().__init__(program, log, side.variables, folder=side.folder)
        except OSError as error:
            reason = f"no process could be started: {error}"
            raise SideFailed(role, side.label, reason, is_for_memory=error.errno == errno.ENOMEM) from None

    def turn(self, name: str, steps: int, lead: int, usual_us: float) -> list[float]:
        """Returns microseconds of each step of a turn, and counts its page faults."""
        before = self.page_faults()
        times_us = super().turn(name, steps, lead, usual_us)
        after = self.page_faults()
        self.faults_per_step.append(None if before is None or after is None else (after - before) / (steps + lead))
        return times_us

    def refusal(self, refused: Refused) -> Exception:
        """The exception that names the side."""
        if refused.verdict == "not applicable":
            return NoTurns(f"{self._label}: {refused.reason}")
        return SideFailed(self.role, self._label, refused.reason, is_for_memory=refused.is_for_memory)


# The scatter of a pair shrinks with its turns: sd .207, .097, .055 and .026 for 2, 4, 8 and 16 (gate statistics, 3.2).
# On a busy machine making the processes costs more than turns do, so that it pays to take more of them there. Long
# steps get fewer, so that measuring a pair takes no longer than this, nor than a 24th of the time limit, nor than lets
# two batches of seven pairs fit into the time that is left, by what a pair takes besides (a part is kept in reserve).
TURNS, TURNS_AT_LEAST, TURNS_AT_MOST, TURNS_AT_ONCE = 16, 4, 64, 8
MEASURED_SECONDS_AT_MOST, _PAIRS_TO_MEASURE = 16.0, 24
_PAIRS_TO_FIT, _USED = 2 * LOOKS[0], 0.95

# One process after the other sees less (section 3.3, point 8).
ROUNDS_ALONE_AT_LEAST = 12

STEP = "step"
ROLES: tuple[Role, ...] = ("base", "candidate")

_DEFAULT_LIMIT = Limit("step_us", relative=0.03, text="+3%")
_ALONE = "both sides at once did not fit into memory: their processes ran one after the other, which sees less"


@dataclass(frozen=True)
class TimingEffort:
    """Requirements of a verdict on the time, and how long it may take.

    ``alpha`` is the chance of a false alarm of this workload alone. No pair begins that would not end within
    ``time_limit_s``, going by those before it. ``seed`` draws who starts and who goes first. With ``change`` a change
    in either direction is looked for instead of a slowdown beyond the limit. ``limit_origin`` says in words where the
    time limit comes from, where the user did not set it as such.
    """

    limit: Limit = _DEFAULT_LIMIT
    alpha: float = 0.01
    time_limit_s: float = 300.0
    seed: int = 0
    pairs_at_most: int = GATE_LOOKS[-1]
    change: ChangeRule | None = None
    limit_origin: str = ""

    @property
    def rule(self) -> PairRule:
        """Thresholds of the verdict.

        The allowed growth is a share of the step, or a number of microseconds where that is more.
        """
        if self.change is not None:
            return self.change
        floor_us = max(self.limit.floor, self.limit.absolute or 0.0)
        return SlowdownRule(self.limit.relative or 0.0, floor_us, self.alpha)

    @property
    def looks(self) -> tuple[int, ...]:
        """At how many pairs to look."""
        return (*(look for look in LOOKS if look < self.pairs_at_most), self.pairs_at_most)


def time_in_pairs(
    program: Program,
    base: Side,
    candidate: Side,
    effort: TimingEffort | None = None,
    tell: Callable[[str], None] = lambda _: None,
) -> TimeResult:
    """Compares the time of the candidate's step with the base's.

    WorkloadError where the candidate's does not run.
    """
    effort = effort or TimingEffort()
    with tempfile.TemporaryDirectory(prefix="bottleneck-pairs-") as folder:
        return PairedProcesses(
            relative_to_root(program, candidate.folder),
            {"base": base, "candidate": candidate},
            Path(folder),
            effort,
            tell,
        ).result()


@dataclass
class PairedProcesses:
    """Timing of two sides under way.

    The pairs that were taken are kept when a later one fails.

    ``folder`` takes what the processes write. ``open_worker`` starts one.
    """

    program: Program
    sides: Mapping[Role, Side]
    folder: Path
    effort: TimingEffort
    tell: Callable[[str], None] = lambda _: None
    clock: Clock = time.monotonic
    open_worker: Callable[[Program, Role, Side, Path], SideWorker] = SideWorker
    batches: Batches = field(default_factory=Batches)

    def __post_init__(self) -> None:
        self._draw = random.Random(f"pairs {self.effort.seed}")  # noqa: S311 - an order, not a secret
        self._started, self._usual_s, self._besides_s = self.clock(), 0.0, 0.0
        self._is_alone, self._is_over = False, False
        self._turns: dict[Role, list[TimedTurn]] = {"base": [], "candidate": []}

    def result(self) -> TimeResult:
        """Takes all pairs, and returns the result.

        A side that fails is part of it, unless it is the candidate.
        """
        try:
            self._take_all()
        except SideFailed as failed:
            if failed.role == "candidate":
                raise _failure(self.program, failed) from None
            return self._result(f"base fails ({failed.label}): {failed.reason}")
        except NoTurns as state:
            return self._result(str(state))
        return self._result(None)

    def _take_all(self) -> None:
        """Takes all pairs.

        Processes run one after the other where both at once do not fit into memory.
        """
        try:
            take_batches(self.batches, self._take, self.effort.rule, self.effort.looks)
        except SideFailed as failed:
            if not failed.is_for_memory or self.batches.first:
                raise
            self._is_alone = True
            looks = [max(look, ROUNDS_ALONE_AT_LEAST) for look in self.effort.looks]
            take_batches(self.batches, self._take, self.effort.rule, sorted(set(looks)))

    def _result(self, reason: str | None) -> TimeResult:
        seconds, pairs = self.clock() - self._started, self.batches.pairs
        if not pairs:
            return TimeResult("not run", reason, seconds=seconds, seed=self.effort.seed, budget=self.effort.rule.budget)
        result = judge_pairs(self.batches, self.effort.rule)
        limit = (
            f"the time limit of {self.effort.time_limit_s:.0f} s{self.effort.limit_origin} was reached"
            if self._is_over
            else None
        )
        whys = (
            reason,
            limit if result.verdict == "undecided" else None,
            result.reason,
            describe_fault_scatter(list(self._turns.values())) if result.verdict == "undecided" else None,
            _ALONE if self._is_alone else None,
        )
        return replace(
            result,
            reason="; ".join(filter(None, whys)) or None,
            base_us=summarise_durations([pair.base_us for pair in pairs]),
            candidate_us=summarise_durations([pair.candidate_us for pair in pairs]),
            seconds=seconds,
            seed=self.effort.seed,
        )

    def _take(self) -> ProcessPair | None:
        """One pair of fresh processes more; null where the time would not last."""
        began = self.clock()
        if began - self._started + self._usual_s > self.effort.time_limit_s:
            self._is_over = True
            return None
        pair = self._one_after_the_other() if self._is_alone else self._in_turns()
        # What compilers make for the first pair the others find in their caches.
        self._usual_s = self.clock() - began if self.batches.first else 0.0
        batch = self.batches.confirming if self.batches.is_confirming else self.batches.first
        what = "confirming" if self.batches.is_confirming else "taking turns"
        self.tell(f"{what}: pair {len(batch) + 1} of processes, {100 * math.expm1(pair.log_ratio):+.1f} %")
        return pair

    def _in_turns(self) -> ProcessPair:
        """Takes a pair of turns with both sides live at once.

        The side that starts is drawn, and so is the first one at each pair of turns.
        """
        order, began_s = ROLES if self._draw.random() < 0.5 else ROLES[::-1], self.clock()
        with ExitStack() as stack:
            workers = {role: stack.enter_context(self._open(role)) for role in order}
            built = _made(list(workers.values()))
            built_us, prefetched = [made.step_us for made in built], max(made.prefetched for made in built)
            steps = [TimedStep(workers[role], STEP, _middle(built_us), prefetched) for role in ROLES]
            self._check_time(steps[0].turn_s)
            # Both take as many steps a turn, going by one turn of each without the other at its side.
            usual_us = _middle([step.turn_us() for step in steps])
            base, candidate = (replace(step, usual_us=usual_us) for step in steps)
            pairing = Pairing(base, candidate, self._draw)
            turns_began_s = self.clock()
            self._take_turns(pairing)
            turns_s = self.clock() - turns_began_s
        self._besides_s = self.clock() - began_s - turns_s
        for role, us in zip(ROLES, (pairing.original_us, pairing.changed_us), strict=True):
            counted = zip(us, workers[role].faults_per_step[-len(us) :], strict=True)
            self._turns[role] += [TimedTurn(step_us, faults) for step_us, faults in counted if faults is not None]
        base_us, candidate_us = statistics.median(pairing.original_us), statistics.median(pairing.changed_us)
        return ProcessPair(statistics.median(pairing.logs), base_us, candidate_us)

    def _take_turns(self, pairing: Pairing) -> None:
        """Takes turns until their median is known to within the budget.

        Their direction does not end them.
        """
        measured_s = self._measured_s
        for _ in range(turns_of(pairing.pair_s, measured_s)):
            pairing.take()
        most = turns_of(pairing.pair_s, measured_s, TURNS_AT_MOST)
        precision = self.effort.rule.allowed(statistics.median(pairing.original_us))
        while len(pairing.logs) < most and _half_width(pairing.logs) > precision:
            for _ in range(TURNS_AT_ONCE):
                pairing.take()

    def _one_after_the_other(self) -> ProcessPair:
        """One process at a time, in the order ABBA over two rounds."""
        order = ROLES if len(self.batches.pairs) % 2 == 0 else ROLES[::-1]
        us = {role: self._alone(role) for role in order}
        return ProcessPair(math.log(us["candidate"] / us["base"]), us["base"], us["candidate"])

    def _alone(self, role: Role) -> float:
        """Returns the typical step of one side, alone on the machine."""
        with self._open(role) as worker:
            (built,) = _made([worker])
            step = TimedStep(worker, STEP, built.step_us, built.prefetched)
            return statistics.median(step.turn_us() for _ in range(turns_of(2 * step.turn_s, self._measured_s)))

    @property
    def _measured_s(self) -> float:
        """The duration of the turns of a pair, at most."""
        limit_s, pairs_left = self.effort.time_limit_s, _PAIRS_TO_FIT - len(self.batches.pairs)
        most_s = min(MEASURED_SECONDS_AT_MOST, limit_s / _PAIRS_TO_MEASURE)
        if pairs_left <= 0:
            return most_s
        left_s = _USED * (limit_s - (self.clock() - self._started)) - (pairs_left - 1) * self._besides_s
        return max(min(most_s, left_s / pairs_left), 0.0)

    def _open(self, role: Role) -> SideWorker:
        return self.open_worker(self.program, role, self.sides[role], self.folder / f"{role}.txt")

    def _check_time(self, turn_s: float) -> None:
        """Raises NoTurns where the fewest pairs exceed the time limit.

        Only the turns are counted.
        """
        least_s = GATE_LOOKS[0] * turns_of(2 * turn_s, self._measured_s) * 2 * turn_s
        if not self.batches.first and least_s > self.effort.time_limit_s:
            raise NoTurns(
                f"{GATE_LOOKS[0]} pairs of processes would take more than {least_s:.0f} s, "
                f"beyond the time limit of {self.effort.time_limit_s:g} s{self.effort.limit_origin}: "
                f"raise {'that' if self.effort.limit_origin else 'time_limit'} or shorten the step"
            )


def _made(workers: Sequence[SideWorker]) -> list[Built]:
    """Makes the step of each worker at once.

    Of two that fail the candidate is reported.
    """
    for worker in workers:
        worker.start_making(STEP)
    built, failures = [], []
    for worker in workers:
        try:
            built.append(worker.made())
        except SideFailed as failed:
            failures.append(failed)
    if failures:
        raise max(failures, key=lambda failed: failed.role == "candidate")
    return built


def turns_of(turn_s: float, measured_s: float, most: int = TURNS) -> int:
    """The turns of each side where one of each lasts this long together.

    All of them last no longer than ``measured_s``, unless they are the fewest.
    """
    return max(TURNS_AT_LEAST, min(most, int(measured_s / turn_s)))


def _middle(us: Sequence[float]) -> float:
    return math.sqrt(math.prod(us))


def _half_width(logs: Sequence[float]) -> float:
    """Half of the interval of their median."""
    timing = summarise_durations(logs)
    return math.inf if timing is None else (timing.high - timing.low) / 2


def _failure(program: Program, failed: SideFailed) -> WorkloadError:
    return WorkloadError(
        f"{program.target} fails in {failed.label}",
        why=failed.reason,
        fix=f"see that it runs: bottleneck run {' '.join(program.words)}",
    )
