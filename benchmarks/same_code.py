"""Measures by how much two recordings of the same code differ, and how much of that their own steps show.

python -m benchmarks.same_code [--rounds 8] [FILE …]
python -m benchmarks.same_code --gate-runs benchmarks/gate_runs.jsonl --write benchmarks/results/run.md

Each file is recorded once a round in a process of its own, as `bottleneck run` does it, but for the profiled window,
which is kept short. Two neighbouring recordings of a file are a pair. "Spread" is the difference that their steps alone
would allow: half of the interval of each median, as the root of the sum of squares. A pair is quiet where other
programs kept less than a quarter of a processor busy during both recordings.

With --gate-runs nothing is recorded: neighbouring runs of `benchmarks.gate` timed the same base, some minutes apart.
Each of their times is the median of seven processes and more, so that single recordings differ rather more.
"""

import argparse
import json
import math
import os
import resource
import statistics
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

from benchmarks.pages import write_between_markers
from bottleneck.experiment.record_once import Recorder
from bottleneck.harness.messages import Program, RecordOptions
from bottleneck.harness.target import find_form
from bottleneck.schema.measurements import Timing

EXAMPLES = Path(__file__).parents[1] / "examples"
_USUAL = ("mlp.py", "pointwise.py", "transformer.py", "matmul.py")
_QUIET = 0.25


@dataclass(frozen=True)
class Recorded:
    """The unprofiled steps of one recording, and the processors that other programs kept busy meanwhile."""

    steps: Timing
    others: float


@dataclass(frozen=True)
class Pair:
    """Two neighbouring recordings of one file."""

    file: str
    first: Recorded
    second: Recorded

    @property
    def difference(self) -> float:
        """The longer median over the shorter one, less 1."""
        medians = self.first.steps.median, self.second.steps.median
        return max(medians) / min(medians) - 1

    @property
    def spread(self) -> float:
        """The difference that the steps alone would allow."""
        halves = [(each.steps.high - each.steps.low) / 2 / each.steps.median for each in (self.first, self.second)]
        return math.hypot(*halves)

    @property
    def is_quiet(self) -> bool:
        """True if other programs kept few processors busy."""
        return max(self.first.others, self.second.others) < _QUIET


def main() -> None:
    """Prints a line per recording, and in the end the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=8)
    parser.add_argument("--write", type=Path, help="page that holds the same-code markers")
    parser.add_argument("--gate-runs", type=Path, help="results of benchmarks.gate, instead of recordings")
    parser.add_argument("files", nargs="*", default=[str(EXAMPLES / name) for name in _USUAL])
    asked = parser.parse_args()
    text = gate_table(asked.gate_runs) if asked.gate_runs else recorded_table(asked.files, asked.rounds)
    print(text)
    if asked.write is not None:
        write_between_markers(asked.write, "same-code", text)


def gate_table(file: Path) -> str:
    """How far neighbouring runs of the gate lie apart in the time of the same base."""
    base_us = [json.loads(line)["base_us"] for line in file.read_text(encoding="utf-8").splitlines()]
    differences = sorted(max(both) / min(both) - 1 for both in pairwise(base_us))
    shares = [f"{differences[math.ceil(part * len(differences)) - 1]:.1%}" for part in (0.5, 0.75, 0.9, 0.95)]
    lines = [
        "| pairs of runs | difference of the base: median | 3 of 4 below | 9 of 10 below | 19 of 20 below | largest |",
        "|---:|---:|---:|---:|---:|---:|",
        f"| {len(differences)} | {' | '.join(shares)} | {differences[-1]:.0%} |",
    ]
    return "\n".join(lines)


def recorded_table(files: Sequence[str], rounds: int) -> str:
    """Records every file once a round; a line per recording meanwhile."""
    found: dict[str, list[Recorded]] = {file: [] for file in files}
    for _ in range(rounds):
        for file, recordings in found.items():
            each = record(file)
            recordings.append(each)
            said = f"{each.steps.median:10.1f} us [{each.steps.low:.1f}, {each.steps.high:.1f}]"
            print(f"{Path(file).name:16} {said}, others {each.others:.2f}", file=sys.stderr, flush=True)
    pairs = [Pair(Path(file).name, *both) for file, recordings in found.items() for both in pairwise(recordings)]
    return table(pairs)


def record(file: str) -> Recorded:
    """One recording of the file in a process of its own."""
    busy, ours, began = _busy_seconds(), _our_seconds(), time.monotonic()
    with tempfile.TemporaryDirectory() as folder:
        program = Program(file, form=find_form(Path(file)))
        options = RecordOptions(steps=1, shapes=False, stacks=False, batch_test=False, option_costs=False)
        recording, _ = Recorder(dict(os.environ)).record(program, Path(folder), options, "times")
    others = (_busy_seconds() - busy - (_our_seconds() - ours)) / (time.monotonic() - began)
    assert recording.unprofiled is not None
    return Recorded(recording.unprofiled, max(0.0, others))


def _busy_seconds() -> float:
    """The time that all processors of this machine have worked, from Linux's own count; idle and waiting left out."""
    ticks = [int(word) for word in Path("/proc/stat").read_text(encoding="ascii").split("\n", 1)[0].split()[1:9]]
    return (sum(ticks) - ticks[3] - ticks[4]) / os.sysconf("SC_CLK_TCK")


def _our_seconds() -> float:
    """The processor time of this process and of those that it has waited for."""
    used = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(each.ru_utime + each.ru_stime for each in used)


def table(pairs: Sequence[Pair]) -> str:
    """How far pairs lie apart, on a quiet machine and beside other programs."""
    lines = [
        "| machine | pairs | difference: median | 9 of 10 below | largest | spread of the steps, median | "
        "beyond that spread |",
        "|---|---:|---:|---:|---:|---:|---:|",
    ]
    for name, chosen in (
        ("quiet", [pair for pair in pairs if pair.is_quiet]),
        ("beside other programs", [pair for pair in pairs if not pair.is_quiet]),
    ):
        lines.append(_row(name, chosen))
    return "\n".join(lines)


def _row(name: str, pairs: Sequence[Pair]) -> str:
    if not pairs:
        return f"| {name} | 0 | - | - | - | - | - |"
    differences = sorted(pair.difference for pair in pairs)
    ninth = differences[math.ceil(0.9 * len(differences)) - 1]
    spread = statistics.median(pair.spread for pair in pairs)
    beyond = sum(pair.difference > pair.spread for pair in pairs)
    shares = [f"{share:.1%}" for share in (statistics.median(differences), ninth, differences[-1], spread)]
    return f"| {name} | {len(pairs)} | {' | '.join(shares)} | {beyond} of {len(pairs)} |"


if __name__ == "__main__":
    main()
