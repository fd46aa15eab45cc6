"""How close the setting that `verify --try workers` chooses comes to the best of the full grid.

python -m benchmarks.loader_settings [--program examples/slow_loader.py] [--seconds 20] [--rounds 12]

First the search runs as in `verify`. Then every setting of its grid takes a turn in each round, in a drawn order, in a
process of its own; what a whole round has in common is removed. The last line is the time of the chosen setting over
that of the best one, both by these rounds, which the search has not seen.
"""

import argparse
import random
import tempfile
from pathlib import Path

from bottleneck.experiment.loader_search import search_settings
from bottleneck.experiment.sweep import level
from bottleneck.experiment.trial import TrialEffort, TrialSetup
from bottleneck.harness.messages import Program


def main() -> None:
    """Prints a row per setting, and the chosen one over the best one."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--program", default="examples/slow_loader.py")
    parser.add_argument("--seconds", type=float, default=20.0, help="of the search")
    parser.add_argument("--rounds", type=int, default=12, help="of the full grid")
    asked = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        setup = TrialSetup(Program(asked.program), Path(folder), TrialEffort(asked.seconds / 1.5), is_cold=False)
        search, _ = search_settings(setup, "workers")
        if search is None or search.best is None:
            raise SystemExit("the search timed no setting")
        settings = [tried.setting for tried in search.settings]
        taken: dict[int, list[float]] = {index: [] for index in range(len(settings))}
        draw = random.Random(0)
        with setup.worker(("workers",), {}) as worker:
            worker.open_loader()
            for _ in range(asked.rounds):
                for index in draw.sample(list(taken), len(taken)):
                    step_us = worker.loader_turn(settings[index], 60.0)
                    assert step_us is not None
                    taken[index].append(step_us)
    timings = level(taken)
    print("| setting | by the search, ms per sample | rungs | full grid, ms per step | 95 % interval |")
    print("|---|---:|---:|---:|---|")
    for index, tried in enumerate(search.settings):
        timing, setting = timings[index], tried.setting
        searched = "-" if tried.sample_us is None else f"{tried.sample_us.median / 1e3:.3f}"
        print(
            f"| {setting.num_workers} workers, prefetch {setting.prefetch_factor} | {searched} | {tried.rungs} "
            f"| {timing.median / 1e3:.1f} | {timing.low / 1e3:.1f} to {timing.high / 1e3:.1f} |"
        )
    best = min(timings, key=lambda index: timings[index].median)
    ratio = timings[settings.index(search.best)].median / timings[best].median
    print(f"\nchosen in {search.seconds:.0f} s: {search.best}\nbest of the grid: {settings[best]}\nratio: {ratio:.2f}")


if __name__ == "__main__":
    main()
