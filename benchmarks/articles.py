"""Measures the figures of the articles behind this project, each by the back ends that are installed.

python -m benchmarks.articles --quick                     small sizes, to see that it runs; prints the tables
python -m benchmarks.articles                             all experiments; hours, on a machine that nobody else uses
python -m benchmarks.articles --only mlp --only lenet --backends eager,inductor,tvm
python -m benchmarks.articles --write                     measures nothing: makes the page and its pictures

Each row goes to `benchmarks/results/articles.jsonl` as soon as it is measured; `--write` makes the generated part of
`docs/howto/articles.md` of that file, with the pictures beside it. All back ends of one size take turns
with each other in rounds, so that drift of the machine is common to them; of an experiment with one back end all
sizes do. The results of the first steps of each row are held against eager's, with the tolerance that the change
implies. A back end that cannot run has its reason instead of a time.
"""

import argparse
import importlib.metadata
import json
import math
import os
import random
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path

import msgspec
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from benchmarks.pages import write_between_markers
from bottleneck import __version__
from bottleneck.errors import BottleneckError
from bottleneck.experiment.curve_fit import fit_series
from bottleneck.experiment.pieces.measure import SHORTEST_RATE_S, seconds_of_other_programs
from bottleneck.experiment.sweep import (
    ALL,
    BATCH,
    EAGER,
    Configuration,
    Parameter,
    Series,
    configurations_of,
    environment_of,
    level,
    make_series,
)
from bottleneck.experiment.turns import TimedStep, take_rounds
from bottleneck.experiment.variants import Built
from bottleneck.experiment.worker import Refused, Worker
from bottleneck.harness.machine import available_bytes, cpu_facts, threads_from_environment, usable_processors
from bottleneck.harness.messages import Program
from bottleneck.harness.target import make_program
from bottleneck.report.plots import save_figure
from bottleneck.schema.measurements import Difference, Timing
from bottleneck.schema.trials import Fit, Point
from bottleneck.units import counted, format_share, format_si, format_us

ROOT = Path(__file__).parents[1]
RESULTS = ROOT / "benchmarks/results/articles.jsonl"
PAGE = ROOT / "docs/howto/articles.md"
BATCHES_PICTURE, INTENSITY_PICTURE = (ROOT / f"docs/assets/articles-{name}.svg" for name in ("batches", "intensity"))
COMMAND = "python -m benchmarks.articles"

# What the back ends are made of; the versions of those that are installed stand beside the results.
PACKAGES = (
    *("torch", "apache-tvm", "jax", "jaxlib", "torchax", "torch-xla", "openvino", "onnxruntime", "onnx", "executorch"),
    *("torch-tensorrt", "triton"),
)
_STEP = "step"
_SEED = 39
ROUNDS, ROUNDS_AT_LEAST, SECONDS = 30, 3, 60.0
# Another process is started beside those that wait where this much more than the largest so far is free.
_ROOM = 1.25
# The overhead test of the article: with twice the batch an overhead-bound step grows by a tenth at most.
DOUBLED_AT_MOST = 0.10
BYTES = 8.0  # per element of the chain: read once, written once
_LASTING = {"missing", "not applicable"}


@dataclass(frozen=True)
class Experiment:
    """One experiment of an article: a program, its settings, and the values of one parameter.

    ``values`` are those of the article or around them, ``quick`` small ones for a trial. ``settings`` hold for all
    values, ``quick_settings`` only for the small ones. ``by_backend`` is false where eager alone runs, all values in
    turns with each other.
    """

    name: str
    title: str
    file: str
    parameter: str
    values: tuple[int, ...]
    quick: tuple[int, ...]
    settings: tuple[str, ...] = ()
    quick_settings: tuple[str, ...] = ()
    by_backend: bool = True

    def small(self) -> "Experiment":
        """The same experiment with small sizes."""
        return replace(self, values=self.quick, settings=self.settings + self.quick_settings)

    def program(self) -> Program:
        """The program, with its settings but for the parameter."""
        made = make_program(str(ROOT / self.file), settings=[*self.settings, f"{self.parameter}={self.values[0]}"])
        return replace(made, settings=tuple(pair for pair in made.settings if pair[0] != self.parameter))


_FORWARD, _SMALL = "benchmarks/article_networks.py", (1, 4, 16)
_DOUBLED = tuple(2**power for power in range(13))
EXPERIMENTS = {
    one.name: one
    for one in (
        Experiment("mlp", "Small MLP, forward", _FORWARD, BATCH, (1, 8, 64, 512, 4096, 32768), _SMALL, ("network=mlp",)),
        Experiment(
            "mlp-training",
            "Small MLP, training",
            "examples/small_network.py",
            BATCH,
            (1, 8, 64, 512, 4096, 32768),
            _SMALL,
        ),
        Experiment("lenet", "LeNet-5, forward", _FORWARD, BATCH, (1, 8, 32, 128, 512, 2048), _SMALL, ("network=lenet",)),
        Experiment(
            "lenet-training", "LeNet-5, training", "examples/lenet.py", BATCH, (1, 8, 32, 128, 512, 2048), _SMALL
        ),
        Experiment(
            "vgg19",
            "VGG19, forward",
            "examples/vgg19.py",
            BATCH,
            (1, 10, 100),
            (1, 2, 4),
            quick_settings=("image=32", "width=4"),
        ),
        Experiment(
            "intensity",
            "Arithmetic intensity",
            "examples/intensity.py",
            "repeat",
            tuple(2**power for power in range(9)),
            (1, 8, 64, 512),
            (f"elements={32 * 2**20}",),
            (f"elements={2**16}",),
            by_backend=False,
        ),
        Experiment(
            "doubling-mlp",
            "Batch doubling, small MLP, training",
            "examples/small_network.py",
            BATCH,
            _DOUBLED,
            (1, 2, 4),
            by_backend=False,
        ),
        Experiment(
            "doubling-lenet",
            "Batch doubling, LeNet-5, training",
            "examples/lenet.py",
            BATCH,
            _DOUBLED[:12],
            (1, 2, 4),
            by_backend=False,
        ),
    )
}


@dataclass(frozen=True)
class Machine:
    """The machine and the versions that rows belong to; ``threads`` is null where torch chose their number."""

    model: str
    processors: int
    threads: int | None
    memory_bytes: int | None
    bottleneck: str
    versions: Mapping[str, str]


@dataclass(frozen=True)
class Row:
    """One measured row: a back end at one value of the parameter.

    ``setup_s`` is what making the step took beyond eager's, compiling included. ``differences`` are those of the first
    results from eager's. ``reason`` says why there is no time, and ``others`` how many processors other programs kept
    busy meanwhile. ``rounds`` is how many turns were taken. ``settings`` are those of the program.
    """

    experiment: str
    parameter: str
    value: int
    series: str
    settings: tuple[str, ...]
    machine: Machine
    step_us: Timing | None = None
    setup_s: float | None = None
    differences: tuple[Difference, ...] = ()
    reason: str | None = None
    rounds: int = 0
    others: float | None = None
    is_quick: bool = False
    date: str = ""


def describe_machine() -> Machine:
    """The machine as it is now, with the packages that are installed."""
    facts = cpu_facts()
    versions = {}
    for package in PACKAGES:
        try:
            versions[package] = importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            continue
    return Machine(
        facts.model, usable_processors(), threads_from_environment(), facts.memory_bytes, __version__, versions
    )


@dataclass(frozen=True)
class Effort:
    """How long to measure: ``rounds`` of turns at most, and fewer where they last longer than ``seconds`` together."""

    rounds: int = ROUNDS
    seconds: float = SECONDS

    def rounds_of(self, steps: Sequence[TimedStep]) -> int:
        """How many rounds these steps take, at least the fewest that give an interval."""
        round_s = math.fsum(step.turn_s for step in steps)
        return max(ROUNDS_AT_LEAST, min(self.rounds, int(self.seconds / max(round_s, 1e-9))))


@dataclass
class Bench:
    """Measures experiments, and hands out each row as soon as its times are known.

    ``lasting`` holds why a back end cannot run a program at any size, by both names.
    """

    folder: Path
    effort: Effort
    tell: Callable[[str], None]
    machine: Machine = field(default_factory=describe_machine)
    is_quick: bool = False
    lasting: dict[tuple[str, str], str] = field(default_factory=dict)

    def measure(self, experiment: Experiment, series: Sequence[Series]) -> Iterator[Row]:
        """Measures an experiment: all back ends at one size after the other, or all sizes at once where one runs."""
        chosen = series if experiment.by_backend else make_series(None, None, None)
        values: tuple[int | float | str, ...] = experiment.values
        points = configurations_of([Parameter(experiment.parameter, values)], chosen)
        if not experiment.by_backend:
            yield from self._together(experiment, points)
            return
        for value in experiment.values:
            yield from self._together(experiment, [one for one in points if one.values[experiment.parameter] == value])

    def _together(self, experiment: Experiment, points: Sequence[Configuration]) -> Iterator[Row]:
        """Measures points that take turns with each other, in groups that fit into memory.

        The first of them is eager's; it stays alive as the reference of all results, and takes turns in each group.
        """
        waiting = list(points)
        while waiting:
            before_s, began_s = seconds_of_other_programs(), time.monotonic()
            with ExitStack() as stack, tempfile.TemporaryDirectory(dir=self.folder) as scratch:
                group = _Group(self, experiment, Path(scratch), stack, points[0])
                waiting = group.fill(waiting)
                rows = group.rows()
            others = _busy(before_s, began_s)
            yield from (replace(row, others=others) for row in rows)


class _Group:
    """Processes of several points that are alive together, eager's first."""

    def __init__(
        self, bench: Bench, experiment: Experiment, folder: Path, stack: ExitStack, first: Configuration
    ) -> None:
        self._bench, self._experiment, self._folder, self._stack = bench, experiment, folder, stack
        self._program, self._first = experiment.program(), first
        self._steps: dict[int, TimedStep] = {}
        self._rows: dict[int, Row] = {}
        self._is_counted: dict[int, bool] = {}
        self._peak_bytes = 0
        self._reference: tuple[Worker, Built] | None = None

    def fill(self, waiting: Sequence[Configuration]) -> list[Configuration]:
        """Starts processes as long as they fit into memory, and returns the points that are left."""
        if waiting[0] is not self._first:
            self._start(self._first, is_counted=False)
        left = list(waiting)
        while left:
            free_bytes = available_bytes()
            is_full = free_bytes is not None and free_bytes < _ROOM * self._peak_bytes
            if is_full and any(self._is_counted.values()):
                break
            self._start(left.pop(0), is_counted=True)
        return left

    def _start(self, point: Configuration, *, is_counted: bool) -> None:
        number, experiment = len(self._rows), self._experiment
        row = Row(
            experiment=experiment.name,
            parameter=experiment.parameter,
            value=int(point.values[experiment.parameter]),
            series=point.series.name,
            settings=experiment.settings,
            machine=self._bench.machine,
            is_quick=self._bench.is_quick,
            date=time.strftime("%Y-%m-%d"),
        )
        key = (experiment.name, point.series.name)
        try:
            if key in self._bench.lasting:
                raise Refused("skipped", self._bench.lasting[key])
            row = self._built(number, row, point)
        except Refused as refused:
            if refused.verdict in _LASTING:
                self._bench.lasting[key] = refused.reason
            row = replace(row, reason=refused.reason)
        except OSError as error:
            row = replace(row, reason=f"no process could be started: {error}")
        self._rows[number], self._is_counted[number] = row, is_counted
        self._bench.tell(f"{experiment.name}: {row.parameter}={row.value}, {row.series}: {row.reason or 'made'}")

    def _built(self, number: int, row: Row, point: Configuration) -> Row:
        """Makes the step of a point, and holds its first results against eager's."""
        own = replace(self._program, settings=point.settings(self._program.settings))
        # A cache of its own: a compiler that finds what it made before shows no compile time.
        cache = {"TORCHINDUCTOR_CACHE_DIR": str(self._folder / f"cache-{number}")}
        log, kept = self._folder / f"output-{number}.txt", self._folder / "results.pt"
        worker = self._stack.enter_context(Worker(own, log, {**environment_of(point), **cache}))
        changes = point.series.changes
        built = worker.build(_STEP, changes, kept if changes else None)
        self._peak_bytes = max(self._peak_bytes, built.peak_bytes or 0)
        self._steps[number] = TimedStep(worker, _STEP, built.step_us, built.prefetched)
        if not changes:
            self._reference = self._reference or (worker, built)
            return row
        if self._reference is None:
            return replace(row, differences=(_uncompared("eager itself did not run"),))
        original, usual = self._reference
        try:
            differences = original.compare(changes, kept)
        except Refused as refused:
            differences = (_uncompared(refused.reason),)
        kept.unlink(missing_ok=True)
        return replace(row, setup_s=max(0.0, built.setup_s - usual.setup_s), differences=differences)

    def rows(self) -> list[Row]:
        """Takes the rounds of turns, and returns the rows with their times."""
        rounds = self._bench.effort.rounds_of(list(self._steps.values())) if self._steps else 0
        draw = random.Random(_SEED)
        taken, failed = take_rounds(self._steps, rounds, draw, lambda _: None)
        timings = level(taken)
        rows = {
            number: replace(
                row,
                step_us=timings.get(number),
                reason=failed.get(number, row.reason),
                rounds=rounds if number in timings else 0,
            )
            for number, row in self._rows.items()
        }
        return [row for number, row in rows.items() if self._is_counted[number]]


def _uncompared(reason: str) -> Difference:
    return Difference("outputs", None, None, None, None, reason)


def _busy(before_s: float | None, began_s: float) -> float | None:
    """Processors that other programs kept busy since then; null where the system does not tell."""
    now_s, seconds = seconds_of_other_programs(), time.monotonic() - began_s
    if before_s is None or now_s is None or seconds < SHORTEST_RATE_S:
        return None
    return max(now_s - before_s, 0.0) / seconds


def read_rows(path: Path) -> list[Row]:
    """The rows of a results file, of those measured again the last; SystemExit names a line that is none."""
    rows: dict[str, Row] = {}
    if not path.exists():
        return []
    for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), start=1):
        try:
            row = msgspec.convert(json.loads(line), Row)
        except (ValueError, msgspec.ValidationError) as error:
            raise SystemExit(f"{path}, line {number}: no row of {COMMAND}: {error}; remove the line") from None
        if row.experiment not in EXPERIMENTS:
            known = ", ".join(EXPERIMENTS)
            raise SystemExit(f"{path}, line {number}: no experiment {row.experiment!r} (there are {known}); remove it")
        key = json.dumps([_identity(row.machine), row.experiment, row.settings, row.value, row.series])
        rows.pop(key, None)
        rows[key] = row
    return list(rows.values())


def write_row(path: Path, row: Row) -> None:
    """Appends a row to a results file."""
    with path.open("a", encoding="utf-8") as file:
        file.write(json.dumps(asdict(row)) + "\n")


def _identity(machine: Machine) -> str:
    return json.dumps(asdict(machine), sort_keys=True)


def fit_of(rows: Sequence[Row]) -> Fit | None:
    """The fixed and the growing part of one series over its parameter, with the knee; null without rows."""
    if not rows:
        return None
    points = [Point({row.parameter: row.value}, row.series, step_us=row.step_us) for row in rows]
    (fit,) = fit_series(points, [rows[0].parameter])
    return fit


def growths(rows: Sequence[Row]) -> list[tuple[Row, Row, float]]:
    """Each size with the one twice as large, and by which share the step grows from one to the other."""
    by_value = {row.value: row for row in rows if row.step_us is not None}
    pairs = [(row, by_value[2 * value]) for value, row in sorted(by_value.items()) if 2 * value in by_value]
    return [(row, twice, _us(twice) / _us(row) - 1) for row, twice in pairs]


def is_overhead(growth: float) -> bool:
    """True where twice the batch takes a tenth more at most, the article's sign of overhead."""
    return growth <= DOUBLED_AT_MOST


def _us(row: Row) -> float:
    assert row.step_us is not None
    return row.step_us.median


def intensity_rates(row: Row) -> tuple[float, float]:
    """FLOP/s and bytes per second of the chain: N x repeat, and 8 N, over its time."""
    elements = int(dict(text.split("=", 1) for text in row.settings)["elements"])
    seconds = _us(row) / 1e6
    return elements * row.value / seconds, elements * BYTES / seconds


def results_text(differences: Sequence[Difference]) -> str:
    """How the first results compare with eager's, of the kind of result that is furthest."""
    if not differences:
        return "eager's own"
    wrong = [difference for difference in differences if difference.is_within is False]
    if wrong:
        one = wrong[0]
        how = one.reason or f"by {one.relative:.1e}, {one.allowed:.1e} allowed"
        return f"**wrong**: {one.claim}: {how}"
    held = [difference for difference in differences if difference.relative is not None and difference.allowed]
    if not held:
        return f"not compared: {differences[0].reason}"
    furthest = max(held, key=lambda one: (one.relative or 0.0) / (one.allowed or 1.0))
    return f"{furthest.what} within {furthest.relative:.1e}, {furthest.allowed:.1e} allowed"
