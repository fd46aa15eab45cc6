"""Holds predictions against machines that nothing was learned from, and learns how far a host may be from the others.

python -m benchmarks.kernelbench.machines FOLDER TRACES          prints the table by machine that was left out
python -m benchmarks.kernelbench.machines FOLDER TRACES --ship   and puts the interval of a host's pace into the package
python -m benchmarks.kernelbench.machines FOLDER TRACES --write  and the table into benchmarks/results/accuracy.md

A machine is left out with all of its programs: rates, the pace of its host, and intervals come from the others, and
from the hosts of public traces in the folder TRACES. Takes a quarter of an hour of one processor. Two programs need the
package `einops`.
"""

import argparse
import math
import statistics
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from benchmarks.kernelbench.__main__ import table
from benchmarks.kernelbench.hosts import TracedHost, pace_half, traced_hosts
from benchmarks.kernelbench.judge import (
    MARGIN,
    Errors,
    Judged,
    judge,
    judged_by,
    learn,
    learn_errors,
    samples,
    write_intervals,
)
from benchmarks.kernelbench.learn import Sample, device_times
from benchmarks.kernelbench.programs import read_steps, read_timings
from benchmarks.pages import write_between_markers
from bottleneck.predict.host_pace import host_time_units, sensitivities, slower_than_usual, step_us
from bottleneck.predict.interval import ANOTHER_BOARD, ANOTHER_HOST, COVERAGE, read_spreads
from bottleneck.schema.intervals import Flags, Floats
from bottleneck.units import format_share

PAGE = Path(__file__).parents[2] / "benchmarks/results/accuracy.md"
# From this part on, the host's times set that of the step.
_HOST_BOUND = 0.5


@dataclass(frozen=True)
class LeftOut:
    """One timing of a machine that was left out.

    It holds the prediction, half of its interval below and above as logarithms, and the part of the step by which it
    grows with its host's times.
    """

    judged: Judged
    low: float
    high: float
    host_part: float

    @property
    def error(self) -> float:
        """Measured over predicted time, as a logarithm."""
        return math.log(self.judged.timing.us / self.judged.us)

    @property
    def is_inside(self) -> bool:
        """True where the measured time lies in the interval."""
        return -self.low <= self.error <= self.high

    @property
    def lacking(self) -> float:
        """The spread of the device's time that would bring the measured time into the interval."""
        half = self.high if self.error > 0 else self.low
        return math.sqrt(max(self.error**2 - half**2, 0.0)) / (1.0 - self.host_part)

    def widened(self, board: float) -> "LeftOut":
        """The same with this spread between boards, as far as the device sets the time."""
        of_device = board * (1.0 - self.host_part)
        return replace(self, low=math.hypot(self.low, of_device), high=math.hypot(self.high, of_device))

    @property
    def width(self) -> float:
        """High end over low end."""
        return math.exp(self.low + self.high)

    @property
    def is_host_bound(self) -> bool:
        """True where the host sets the pace."""
        return self.host_part > _HOST_BOUND


def adjusted_paces(paces: Floats, hardware: Mapping[int, str]) -> Floats:
    """Returns the logarithms of paces relative to the usual one of the years of their devices."""
    return np.log(paces / [slower_than_usual(hardware[number]) for number in range(len(paces))])


def hardware_of(sample: Sample) -> dict[int, str]:
    """Returns the device of each machine."""
    return {number: timing.hardware for number, timing in zip(sample.machine.tolist(), sample.timings, strict=True)}


@dataclass(frozen=True)
class Unseen:
    """Timings of machines that were left out: the pace of their hosts not known, and given.

    ``is_board``: their board was left out too.
    """

    name: str
    is_board: bool
    unknown: tuple[LeftOut, ...]
    given: tuple[LeftOut, ...]

    @property
    def is_one_machine(self) -> bool:
        """True where no other machine was left out with it."""
        return len({timing.judged.timing.machine for timing in self.given}) == 1


def leave_out(eager: Sample, compiled: Sample, machines: Collection[int], hosts: Sequence[TracedHost]) -> Unseen:
    """Predicts the timings of machines from those of the others, without the spread between boards."""
    (kept, held), (kept_compiled, held_compiled) = (_parted(sample, machines) for sample in (eager, compiled))
    own = learn(eager, compiled).paces
    learned = learn(kept, kept_compiled)
    errors = learn_errors(judge(kept, kept_compiled, learned))
    hardware = hardware_of(eager)
    others = [score for number, score in enumerate(adjusted_paces(learned.paces, hardware)) if number not in machines]
    usual = math.exp(statistics.mean(others)) * np.array([slower_than_usual(hardware[n]) for n in range(len(own))])
    half = pace_half((others, [host.score for host in hosts]))
    first: list[LeftOut] = []
    second: list[LeftOut] = []
    for sample in (held, held_compiled):
        if sample.timings:
            first += _with_intervals(sample, learned.rates, usual, errors, half)
            second += _with_intervals(sample, learned.rates, own, errors, 0.0)
    names = " and ".join(sorted({timing.machine for timing in held.timings}))
    is_board = not {hardware[number] for number in machines} & {timing.hardware for timing in kept.timings}
    return Unseen(names, is_board, tuple(first), tuple(second))


def _parted(sample: Sample, machines: Collection[int]) -> tuple[Sample, Sample]:
    """Returns the timings of the other machines, and those of these."""
    is_held: Flags = np.isin(sample.machine, list(machines))
    return sample.some(~is_held), sample.some(is_held)


def _with_intervals(
    sample: Sample, rates: Mapping[str, float], paces: Floats, errors: Errors, half: float
) -> list[LeftOut]:
    """Returns the timings with their intervals, made as `predict_step` makes them."""
    _, device_us = device_times(sample, rates)
    pace = paces[sample.machine]
    lead, issue = (np.asarray(units) * pace for units in host_time_units(sample.counts, rates))
    middle = step_us(device_us, lead, issue, rates)
    low, high = (
        np.log(step_us(device_us, lead * factor, issue * factor, rates) / middle)
        for factor in (math.exp(-half), math.exp(half))
    )
    host_part = 1.0 - np.transpose(sensitivities(device_us, lead, issue, rates))[:, 0]
    left_out = []
    for row, judged in enumerate(judged_by(sample, rates, paces)):
        if judged.run not in errors.spreads:
            continue  # the other machines were not timed that way
        spread = math.log(errors.factor(judged))
        ends = math.hypot(spread, low[row]), math.hypot(spread, high[row])
        left_out.append(LeftOut(judged, *ends, float(host_part[row])))
    return left_out


def board_half(unseen: Sequence[Unseen]) -> float:
    """Returns the spread between boards that brings enough timings of boards that were left out into their intervals.

    Each board weighs the same. Timings whose pace the device sets count, that of the host being given.
    """
    weighed = []
    for board in unseen:
        by_device = [timing for timing in board.given if not timing.is_host_bound]
        weighed += [(timing.lacking, 1.0 / len(by_device)) for timing in by_device]
    reached, wanted = 0.0, (COVERAGE + MARGIN) * len(unseen)
    for lacking, weight in sorted(weighed):
        reached += weight
        if reached >= wanted:
            return lacking
    raise AssertionError("all weights add up to more than what is wanted")


def with_boards(unseen: Sequence[Unseen]) -> list[Unseen]:
    """The same, where a board was left out with the spread that the other boards taught."""
    widened = []
    for one in unseen:
        others = [other for other in unseen if other.is_board and not _share_a_machine(one, other)]
        half = board_half(others) if one.is_board else 0.0
        unknown, given = (tuple(timing.widened(half) for timing in timings) for timings in (one.unknown, one.given))
        widened.append(replace(one, unknown=unknown, given=given))
    return widened


def _share_a_machine(one: Unseen, other: Unseen) -> bool:
    first, second = ({timing.judged.timing.machine for timing in side.given} for side in (one, other))
    return bool(first & second)


def unseen_table(unseen: Sequence[Unseen]) -> str:
    """The errors and intervals of each machine that was left out."""
    alone = [one for one in unseen if one.is_one_machine]
    unknown = tuple(timing for one in alone for timing in one.unknown)
    given = tuple(timing for one in alone for timing in one.given)
    rows = []
    for one in (*unseen, Unseen("all machines, each alone", False, unknown, given)):
        by_host, by_device = (
            [timing for timing in one.unknown if timing.is_host_bound == is_bound] for is_bound in (True, False)
        )
        share = format_share(len(by_host) / len(one.unknown))
        name = f"{one.name}, and its board" if one.is_board else one.name
        cells = [len(one.unknown), share, *_figures(one.unknown)]
        rows.append([name, *cells, *_figures(by_host)[1:], *_figures(by_device)[1:], *_figures(one.given)])
    heads = ["left out", "timings", "host-bound", "median error", "inside", "high / low"]
    for part in ("host-bound", "others"):
        heads += [f"{part}: inside", "high / low"]
    return table([*heads, "pace given: median error", "inside", "high / low"], rows)


def _figures(timings: Sequence[LeftOut]) -> list[str]:
    """Median error, share inside, and median width."""
    error = statistics.median(abs(math.exp(-timing.error) - 1.0) for timing in timings)
    inside = statistics.mean(timing.is_inside for timing in timings)
    return [f"{error:.1%}", f"{inside:.0%}", f"{statistics.median(timing.width for timing in timings):.2f}"]


def hosts_table(hosts: Sequence[TracedHost]) -> str:
    """The hosts of public traces."""
    rows = [(host.source, host.device, f"{host.op_us:.1f}", f"{math.exp(host.score):.1f}") for host in hosts]
    return table(("trace", "device", "us per op, profiled", "in 2022"), rows)


def main() -> None:
    """Reads, leaves out, prints, ships and writes."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("traces", type=Path)
    parser.add_argument("--ship", action="store_true")
    parser.add_argument("--write", action="store_true")
    wanted = parser.parse_args()
    steps, failed = read_steps(wanted.folder)
    for key, why in failed.items():
        print("left out:", *key, why)
    eager, compiled = samples(read_timings(wanted.folder), steps)
    hosts = traced_hosts(wanted.traces)
    print(hosts_table(hosts))
    hardware = hardware_of(eager)
    boards = {name: [number for number in hardware if hardware[number] == name] for name in hardware.values()}
    groups = [[number] for number in hardware] + [numbers for numbers in boards.values() if len(numbers) > 1]
    unseen = [leave_out(eager, compiled, numbers, hosts) for numbers in groups]
    text = unseen_table(with_boards(unseen))
    paces = adjusted_paces(learn(eager, compiled).paces, hardware)
    halves = {
        ANOTHER_HOST: (pace_half((paces.tolist(), [host.score for host in hosts])), len(paces) + len(hosts)),
        ANOTHER_BOARD: (board_half([one for one in unseen if one.is_board]), len(boards)),
    }
    for name, (half, count) in halves.items():
        text += f"\n\n{name}: a factor of {math.exp(half):.2f} up or down, from {count}"
    print(text)
    if wanted.ship:
        others = tuple(name for name in read_spreads() if name not in halves)
        write_intervals([(name, f"{half:.4f}", count) for name, (half, count) in halves.items()], others)
    if wanted.write:
        write_between_markers(PAGE, "machines", text)


if __name__ == "__main__":
    main()
