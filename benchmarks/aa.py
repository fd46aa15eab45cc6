"""Counts how often `bottleneck verify` takes an original for faster or slower than itself.

python -m benchmarks.aa [--times 100] [--budget 10] [FILE …]
python -m benchmarks.aa --budget 12 --write benchmarks/results/advice.md

Each time a fresh process holds two copies of the same step, which take turns as original and changed step do. A copy
that comes out ahead has to do so again in other fresh processes, as every change has to. Files take turns, too.
"""

import argparse
import math
import statistics
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from benchmarks.pages import write_between_markers
from bottleneck.experiment.trial import ChangePrediction, TrialEffort, TrialSetup, try_changes
from bottleneck.harness.messages import Program
from bottleneck.harness.target import find_form
from bottleneck.schema.measurements import Ratio

EXAMPLES = Path(__file__).parents[1] / "examples"
_USUAL = ("mlp.py", "pointwise.py", "transformer.py", "matmul.py")


@dataclass(frozen=True)
class Outcome:
    """The result of one try: its verdict, the speedup that was measured, and why it is not decided."""

    file: str
    verdict: str
    ratio: Ratio | None
    reason: str

    @property
    def is_false(self) -> bool:
        """True if a step came out faster or slower than itself."""
        return self.verdict in {"faster", "slower"}


def main() -> None:
    """Prints a line each time, and in the end how often each verdict came."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--times", type=int, default=100)
    parser.add_argument("--budget", type=float, default=10.0)
    parser.add_argument("--write", type=Path, help="page that holds the aa markers")
    parser.add_argument("files", nargs="*", default=[str(EXAMPLES / name) for name in _USUAL])
    asked = parser.parse_args()
    outcomes = []
    started = time.monotonic()
    for outcome in tries(asked.times, asked.budget, asked.files):
        outcomes.append(outcome)
        ratio = outcome.ratio
        told = "-" if ratio is None else f"{ratio.median:.3f} [{ratio.low:.3f}, {ratio.high:.3f}] of {ratio.n}"
        print(f"{len(outcomes):4} {outcome.file:16} {outcome.verdict:13} {told}  {outcome.reason}", flush=True)
    text = table(outcomes, (time.monotonic() - started) / max(len(outcomes), 1))
    print(text)
    if asked.write is not None:
        write_between_markers(asked.write, "aa", text)


def tries(times: int, budget_s: float, files: Sequence[str]) -> Iterator[Outcome]:
    """The original against itself, so many times."""
    with tempfile.TemporaryDirectory() as folder:
        for number in range(times):
            file = files[number % len(files)]
            program = Program(file, form=find_form(Path(file)), seed=number)
            trial = try_changes(
                TrialSetup(program, Path(folder), TrialEffort(budget_s, seed=number)), (), ChangePrediction()
            )
            yield Outcome(Path(file).name, trial.verdict, trial.speedup, trial.reason or "")


def table(outcomes: Sequence[Outcome], seconds: float) -> str:
    """How often each verdict came, per program, and how narrow the intervals were."""
    lines = [
        "| program | times | faster or slower | no effect | inconclusive | seen in one process, not in fresh ones | "
        "half width of the interval, median |",
        "|---|---:|---:|---:|---:|---:|---:|",
    ]
    files = dict.fromkeys(outcome.file for outcome in outcomes)
    lines += [_row(file, [outcome for outcome in outcomes if outcome.file == file]) for file in files]
    false = sum(outcome.is_false for outcome in outcomes)
    share = f"{false / len(outcomes):.1%}" if outcomes else "-"
    lines += ["", f"Faster or slower than itself {false} times of {len(outcomes)} ({share}); {seconds:.0f} s each."]
    return "\n".join(lines)


def _row(file: str, outcomes: Sequence[Outcome]) -> str:
    counts = [sum(outcome.verdict == verdict for outcome in outcomes) for verdict in ("no effect", "inconclusive")]
    unconfirmed = sum("did not confirm" in outcome.reason for outcome in outcomes)
    widths = [math.log(each.ratio.high / each.ratio.low) / 2 for each in outcomes if each.ratio is not None]
    width = f"{statistics.median(widths):.1%}" if widths else "-"
    cells = (file, len(outcomes), sum(each.is_false for each in outcomes), *counts, unconfirmed, width)
    return f"| {' | '.join(map(str, cells))} |"


if __name__ == "__main__":
    main()
