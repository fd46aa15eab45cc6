"""How often `bottleneck verify` takes an original for faster or slower than itself.

python -m benchmarks.aa [--times 100] [--budget 10] [FILE …]

Each time a fresh process holds two copies of the same step, which take turns as original and changed step do. A copy
that comes out ahead has to do so again in another fresh process, as every change has to. Files take turns, too.
"""

import argparse
import tempfile
import time
from collections import Counter
from pathlib import Path

from bottleneck.experiment.trying import Effort, Lab, Prediction, try_changes
from bottleneck.harness.target import find_form
from bottleneck.harness.trial_program import Program

EXAMPLES = Path(__file__).parents[1] / "examples"
_USUAL = ("mlp.py", "pointwise.py", "transformer.py", "matmul.py")


def main() -> None:
    """Prints a line each time, and in the end how often each verdict came."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--times", type=int, default=100)
    parser.add_argument("--budget", type=float, default=10.0)
    parser.add_argument("files", nargs="*", default=[str(EXAMPLES / name) for name in _USUAL])
    asked = parser.parse_args()
    verdicts: Counter[str] = Counter()
    started = time.monotonic()
    with tempfile.TemporaryDirectory() as folder:
        for number in range(asked.times):
            file = asked.files[number % len(asked.files)]
            program = Program(file, form=find_form(Path(file)), seed=number)
            lab = Lab(program, Path(folder), Effort(asked.budget, seed=number))
            trial = try_changes(lab, (), Prediction())
            verdicts[trial.verdict] += 1
            ratio = trial.speedup
            told = "-" if ratio is None else f"{ratio.median:.3f} [{ratio.low:.3f}, {ratio.high:.3f}] of {ratio.n}"
            print(f"{number + 1:4} {Path(file).name:16} {trial.verdict:13} {told}  {trial.reason or ''}", flush=True)
    said = ", ".join(f"{verdict} {count}" for verdict, count in sorted(verdicts.items()))
    false = verdicts["faster"] + verdicts["slower"]
    print(f"{asked.times} times the original against itself: {said}; faster or slower {false / asked.times:.1%}")
    print(f"{(time.monotonic() - started) / asked.times:.1f} s each")


if __name__ == "__main__":
    main()
