"""How often the gate calls an unchanged step slower, and how often it sees one that really is.

python -m benchmarks.gate [--runs 3] [--slowdown 0 5 10] [--load 1] [--beside 0] [--results FILE]
python -m benchmarks.gate --results FILE --table [--resample 2000] [--write benchmarks/results/gate.md]
python -m benchmarks.gate --results FILE --made 2000 [--write benchmarks/results/gate.md]

The step is that of examples/mlp.py with 19 layers. The candidate has as many, or one or two more: 5 and 10 % more work,
by its ops and FLOPs, which are counted. Every run measures as `bottleneck gate` does, on two folders that
differ in that number alone; its result is one line of the file, so that runs of several sessions add up. `--load` keeps
so many processors busy with a process each, of no use, which stays on its processor. `--beside` keeps so many more runs
under way at the same time, which load the machine for each other as the jobs of a CI machine do: with `--load 0` a run
has one process that computes at its side, and two while a pair of the other starts.
"""

import argparse
import json
import math
import os
import random
import statistics
import subprocess
import sys
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from importlib.metadata import version
from multiprocessing import get_context
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from scipy.stats import binomtest
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.flop_counter import FlopCounterMode

from benchmarks.pages import write_between_markers
from bottleneck.experiment.side import Side
from bottleneck.experiment.turns import TimingEffort, time_in_pairs
from bottleneck.harness.messages import Program
from bottleneck.schema.gate_result import TimeResult
from bottleneck.schema.statistics import Batches, ProcessPair, SlowdownRule, estimate, judge_pairs, take_batches

EXAMPLE = Path(__file__).parents[1] / "examples" / "mlp.py"
LAYERS = "layers: int = 3"

# By how many percent slower the candidate is, and the layers that it has.
BASE = 19
CANDIDATES = {0: 19, 5: 20, 10: 21}
BUDGET = 0.03

# It ends with us, however we end.
_BUSY = """
import os, sys
os.sched_setaffinity(0, {int(sys.argv[1])})
while os.getppid() == int(sys.argv[2]):
    sum(range(100_000))
"""


@dataclass(frozen=True)
class Run:
    """One line of the file: what was asked, and what came of it.

    ``base_us`` is the base's typical step, ``load_average`` that of the minute before the run, ``beside`` how many
    others were under way at the same time.
    """

    slowdown: int
    load: int
    verdict: str
    pairs: tuple[float, ...]
    confirming: int
    seconds: float
    smallest_visible: float | None
    cores: int = 0
    torch: str = ""
    seed: int = 0
    reason: str | None = None
    base_us: float | None = None
    load_average: float | None = None
    beside: int = 0

    @property
    def is_red(self) -> bool:
        """Whether the gate would have failed."""
        return self.verdict == "slower"

    @property
    def is_decided(self) -> bool:
        """Whether the gate would have said anything."""
        return self.verdict in {"slower", "fine", "faster"}


def main() -> None:
    """Makes the runs, or prints what the file holds."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--slowdown", type=int, nargs="+", choices=sorted(CANDIDATES), default=sorted(CANDIDATES))
    parser.add_argument("--load", type=int, default=1)
    parser.add_argument("--beside", type=int, default=0, help="how many runs more are under way at the same time")
    parser.add_argument("--results", type=Path, help="the file that every run is added to")
    parser.add_argument("--table", action="store_true", help="print what the file holds; make no run")
    parser.add_argument("--resample", type=int, default=0, help="draw so many runs more from the pairs in the file")
    parser.add_argument("--made", type=int, default=0, help="judge so many made samples of each known slowdown instead")
    parser.add_argument("--write", type=Path, help="write the table into this page")
    asked = parser.parse_args()
    runs = list(read(asked.results)) if asked.results is not None and asked.results.exists() else []
    if asked.made:
        print(text := made(runs, asked.made))
        if asked.write is not None:
            write_between_markers(asked.write, "made", text)
        return
    if not asked.table:
        for run in make_runs(asked.slowdown * asked.runs, asked.load, asked.beside):
            runs.append(run)
            if asked.results is not None:
                with asked.results.open("a", encoding="utf-8") as file:
                    file.write(json.dumps(run.__dict__) + "\n")
            print(tell(run), flush=True)
    text = "\n\n".join(filter(None, (table(runs), resampled(runs, asked.resample) if asked.resample else "")))
    print(text)
    if asked.write is not None:
        write_between_markers(asked.write, "gate", text)


def make_runs(slowdowns: Sequence[int], load: int, beside: int) -> Iterator[Run]:
    """Whole runs, one of each slowdown in this order; each is told as soon as it is over."""
    with TemporaryDirectory() as folder, busy(load), ProcessPoolExecutor(1 + beside, get_context("spawn")) as pool:
        runs = [pool.submit(_run, Path(folder), slowdown, load, beside) for slowdown in slowdowns]
        yield from (run.result() for run in as_completed(runs))


def _run(folder: Path, slowdown: int, load: int, beside: int) -> Run:
    own, seed = folder / str(os.getpid()), random.SystemRandom().randrange(2**31)
    base, candidate = (_side(own / name, name, layers) for name, layers in _sides(slowdown))
    load_average = round(os.getloadavg()[0], 2)
    found = time_in_pairs(Program(EXAMPLE.name), base, candidate, TimingEffort(seed=seed))
    return Run(
        slowdown=slowdown,
        load=load,
        verdict=found.verdict,
        pairs=found.pairs,
        confirming=found.confirming,
        seconds=round(found.seconds, 2),
        smallest_visible=found.smallest_visible,
        cores=len(os.sched_getaffinity(0)),
        torch=version("torch"),
        seed=seed,
        reason=found.reason,
        base_us=None if found.base_us is None else round(found.base_us.median, 1),
        load_average=load_average,
        beside=beside,
    )


def _sides(slowdown: int) -> tuple[tuple[str, int], tuple[str, int]]:
    return ("base", BASE), (f"plus-{slowdown}", CANDIDATES[slowdown])


def _side(folder: Path, label: str, layers: int) -> Side:
    """A folder with the example, of so many layers. One thread: two on a busy machine wait for each other."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / EXAMPLE.name).write_text(with_layers(layers), encoding="utf-8")
    return Side(label, folder, {"OMP_NUM_THREADS": "1"})


def with_layers(layers: int) -> str:
    """The example with another number of layers, as an edit would make it."""
    source = EXAMPLE.read_text(encoding="utf-8")
    assert source.count(LAYERS) == 1
    return source.replace(LAYERS, f"layers: int = {layers}")


@contextmanager
def busy(load: int) -> Iterator[list[subprocess.Popen[bytes]]]:
    """Keeps so many processors busy."""
    processes = []
    with ExitStack() as stack:
        for core in sorted(os.sched_getaffinity(0))[:load]:
            process = stack.enter_context(subprocess.Popen([sys.executable, "-c", _BUSY, str(core), str(os.getpid())]))
            stack.callback(process.kill)
            processes.append(process)
        yield processes


def read(path: Path) -> Iterator[Run]:
    """The runs in a file; a line that was cut off is left out."""
    for line in path.read_text(encoding="utf-8").splitlines():
        try:
            values = json.loads(line)
        except ValueError:
            continue
        yield Run(**{**values, "pairs": tuple(values["pairs"])})


def tell(run: Run) -> str:
    """A run in one line."""
    middle = f"{estimate(run.pairs).middle:+.1%}" if run.pairs else "-"
    count = (
        f"{len(run.pairs)} pairs, {run.confirming} of them to confirm" if run.confirming else f"{len(run.pairs)} pairs"
    )
    return f"+{run.slowdown} %: {run.verdict:9} {middle}, {count}, {run.seconds:.0f} s  {run.reason or ''}"


def table(runs: Sequence[Run]) -> str:
    """What the runs came to, one row per slowdown and load; and one of all loads where there were several."""
    head = (
        "| true slowdown (by ops, FLOPs, time) | beside it | runs | red | green | undecided | red of all, 95 % "
        "| red of those that decide, 95 % | pairs | seconds | smallest visible |\n"
        "|---|---|---:|---:|---:|---:|---|---|---:|---:|---:|"
    )
    rows = [_row(group, _company(group[0])) for group in _groups(runs)]
    for slowdown in sorted({run.slowdown for run in runs}):
        alike = [run for run in runs if run.slowdown == slowdown]
        if len({_company(run) for run in alike}) > 1:
            rows.append(_row(alike, "any of these"))
    return "\n".join([head, *rows, "", _machine(runs)])


def _groups(runs: Sequence[Run]) -> list[list[Run]]:
    """The runs that met the same conditions."""
    groups: dict[tuple[int, int, int], list[Run]] = {}
    for run in runs:
        groups.setdefault((run.load, run.beside, run.slowdown), []).append(run)
    return [groups[kind] for kind in sorted(groups)]


def _company(run: Run) -> str:
    kinds = (("busy process", "busy processes", run.load), ("other run", "other runs", run.beside))
    return ", ".join(f"{count} {one if count == 1 else many}" for one, many, count in kinds if count) or "nothing"


def _row(runs: Sequence[Run], company: str) -> str:
    first, red = runs[0], sum(run.is_red for run in runs)
    decided = sum(run.is_decided for run in runs)
    visible = [run.smallest_visible for run in runs if run.smallest_visible is not None]
    cells = (
        f"+{first.slowdown} % ({_work(first.slowdown)}, {_measured(runs)})",
        company,
        len(runs),
        red,
        decided - red,
        len(runs) - decided,
        share(red, len(runs)),
        share(red, decided),
        f"{statistics.fmean(len(run.pairs) for run in runs):.1f}",
        f"{statistics.fmean(run.seconds for run in runs):.0f}",
        f"{statistics.median(visible):.1%}" if visible else "-",
    )
    return f"| {' | '.join(map(str, cells))} |"


def share(count: int, of: int) -> str:
    """A share with its interval by Clopper and Pearson."""
    if not of:
        return "-"
    found = binomtest(count, of).proportion_ci(0.95, method="exact")
    return f"{count / of:.1%} ({found.low:.1%} to {found.high:.1%})"


def _measured(runs: Sequence[Run]) -> str:
    """The slowdown by the first seven pairs of every run, which no verdict chose."""
    logs = [value for run in runs for value in run.pairs[:7]]
    return f"{statistics.median(logs):+.1%}" if logs else "-"


def _work(slowdown: int) -> str:
    before, after = work(BASE), work(CANDIDATES[slowdown])
    return ", ".join(f"{now / then - 1:+.1%}" for then, now in zip(before, after, strict=True))


def work(layers: int) -> tuple[int, int]:
    """Ops and FLOPs of one step with so many layers, counted as torch dispatches them."""

    class Counting(TorchDispatchMode):
        ops = 0

        def __torch_dispatch__(
            self, func: Any, types: Any, args: Any = (), kwargs: Mapping[str, Any] | None = None
        ) -> Any:
            self.ops += 1
            return func(*args, **(kwargs or {}))

    own: dict[str, Any] = {}
    exec(compile(with_layers(layers), EXAMPLE.name, "exec"), own)
    step = own["workload"]()
    step()
    with Counting() as counting:
        step()
    with FlopCounterMode(display=False) as flops:
        step()
    return counting.ops, flops.get_total_flops()


def _machine(runs: Iterable[Run]) -> str:
    kinds = Counter(f"{run.cores} processors, torch {run.torch}" for run in runs)
    told = "; ".join(f"{kind}: {count} runs" for kind, count in kinds.items())
    return f"{told}. The budget is {BUDGET:.0%}; a red run has been confirmed by fresh pairs; green is fine or faster."


def resampled(runs: Sequence[Run], times: int, seed: int = 0) -> str:
    """What runs would come to whose pairs are drawn from those in the file, as if all had met the same conditions."""
    draw = random.Random(seed)
    lines = [
        f"**Resampled**, not run: {times} runs of each row, whose pairs are drawn with replacement from all recorded "
        "pairs of that row. Pairs of one run met the same neighbours on the machine; here they are mixed.",
        "",
        "| true slowdown | beside it | recorded pairs | red | green | undecided | pairs |",
        "|---|---|---:|---:|---:|---:|---:|",
    ]
    for group in _groups(runs):
        logs, first = [value for run in group for value in run.pairs], group[0]
        if logs:
            found = [_resample(logs, draw) for _ in range(times)]
            lines.append(f"| +{first.slowdown} % | {_company(first)} | {len(logs)} | {_shares(found)} |")
    return "\n".join(lines)


# By how many percent made samples are slower: not at all, by the usual budget, and well beyond it.
MADE = (0, 3, 8)


def made(runs: Sequence[Run], times: int, seed: int = 0) -> str:
    """The verdicts on made samples: the noise of recorded unchanged steps, slower by a known share.

    Each sample takes its pairs from one recorded run, so that quiet and disturbed runs stay what they were: what they
    differ by from the mean of that run, which is 0 but for chance, widened by what a mean of so few takes away.
    """
    draw = random.Random(seed)
    lines = ["| slower by | noise of | runs | red | green | undecided | pairs |", "|---|---|---:|---:|---:|---:|---:|"]
    for group in _groups([run for run in runs if not run.slowdown and len(run.pairs) > 1]):
        for percent in MADE:
            shift = math.log1p(percent / 100)
            sources = [_residuals(draw.choice(group).pairs) for _ in range(times)]
            found = [_resample([log + shift for log in logs], draw) for logs in sources]
            cells = (f"{percent} %", f"unchanged steps beside {_company(group[0])}", len(group), _shares(found))
            lines.append(f"| {' | '.join(map(str, cells))} |")
    return "\n".join(lines)


def _residuals(logs: Sequence[float]) -> list[float]:
    mean, widened = statistics.fmean(logs), math.sqrt(len(logs) / (len(logs) - 1))
    return [(log - mean) * widened for log in logs]


def _resample(logs: Sequence[float], draw: random.Random) -> TimeResult:
    batches, rule = Batches(), SlowdownRule(BUDGET)
    take_batches(batches, lambda: ProcessPair(draw.choice(logs), 1.0, 1.0), rule)
    return judge_pairs(batches, rule)


def _shares(found: Sequence[TimeResult]) -> str:
    verdicts = Counter(each.verdict for each in found)
    green = verdicts["fine"] + verdicts["faster"]
    shares = (f"{count / len(found):.1%}" for count in (verdicts["slower"], green, verdicts["undecided"]))
    return " | ".join([*shares, f"{statistics.fmean(len(each.pairs) for each in found):.1f}"])


if __name__ == "__main__":
    main()
