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
import itertools
import json
import math
import random
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path

import msgspec
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FixedLocator, FuncFormatter, LogLocator, NullLocator

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
from bottleneck.experiment.worker import Refused, Worker
from bottleneck.harness.machine import available_bytes, cpu_facts, threads_from_environment, usable_processors
from bottleneck.harness.messages import Program
from bottleneck.harness.target import make_program
from bottleneck.report.plots import save_figure
from bottleneck.report.sweep import fit_sentences
from bottleneck.schema.measurements import Difference, Timing
from bottleneck.schema.trials import Fit, Point
from bottleneck.units import counted, format_ratio, format_si, format_us, listed

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
# Of the processors: with more, other programs disturb what is measured.
_MUCH_BESIDE = 0.25
# First calls of processes without a compiler differ by so much.
_NO_COMPILER_S = 0.1
_LASTING = {"missing", "not applicable"}


@dataclass(frozen=True)
class Experiment:
    """One experiment of an article: a program, its settings, and the values of one parameter.

    ``article`` says what the article measured, ``remark`` what is to know of our own figures. ``values`` are those of
    the article or around them, ``quick`` small ones for a trial. ``settings`` hold for all values, ``quick_settings``
    only for the small ones. ``by_backend`` is false where eager alone runs, all values in turns with each other.
    """

    name: str
    title: str
    article: str
    file: str
    parameter: str
    values: tuple[int, ...]
    quick: tuple[int, ...]
    settings: tuple[str, ...] = ()
    quick_settings: tuple[str, ...] = ()
    by_backend: bool = True
    remark: str = ""

    def small(self) -> "Experiment":
        """The same experiment with small sizes."""
        settings = dict(text.split("=", 1) for text in (*self.settings, *self.quick_settings))
        return replace(self, values=self.quick, settings=tuple(f"{name}={value}" for name, value in settings.items()))

    def program(self) -> Program:
        """The program, with its settings but for the parameter."""
        made = make_program(str(ROOT / self.file), settings=[*self.settings, f"{self.parameter}={self.values[0]}"])
        return replace(made, settings=tuple(pair for pair in made.settings if pair[0] != self.parameter))


_FORWARD = "benchmarks/article_networks.py"
_SMALL, _DOUBLED = (1, 64, 1024), tuple(2**power for power in range(13))
_TOY = (
    "10,000 epochs of a network of two layers took SimpleChains.jl 0.41 s and PyTorch 15 s on a CPU with AVX-512, "
    "0.72 s and 70 s on one with AVX2; JAX took 2 to 22 times as long as SimpleChains.jl."
)
_LENET = (
    "10 epochs of MNIST at batch 2048 took PyTorch 17.7 s on an A100 and 16 s on a V100, transfers included, and "
    "SimpleChains.jl 3 s on a CPU of 32 cores, 1 s on one of 18 cores with AVX-512, and 5.3 s on a laptop. Of 600,000 "
    "samples that is 29.5, 26.7, 5.0, 1.7 and 8.8 us for each."
)
_WRONG = (
    "Inductor of torch 2.13 gives wrong gradients of the convolutions here at some batch sizes, by a tenth of the "
    "largest value and more; at which, depends on the number of threads. With two "
    "`bottleneck sweep examples/lenet.py --set batch_size=12 --backends eager,inductor` shows it."
)
_DOUBLING = (
    "where twice the batch takes only 10 % longer, the step is overhead; where the time doubles, it is the work itself."
)
EXPERIMENTS = {
    one.name: one
    for one in (
        Experiment(
            name="mlp",
            title="Small MLP, forward",
            article=_TOY + " Those times are of training.",
            file=_FORWARD,
            parameter=BATCH,
            values=(1, 8, 64, 512, 4096, 32768),
            quick=_SMALL,
            settings=("network=mlp",),
        ),
        Experiment(
            name="mlp-training",
            title="Small MLP, training",
            article=_TOY,
            file="examples/small_network.py",
            parameter=BATCH,
            values=(1, 8, 64, 512, 4096, 32768),
            quick=_SMALL,
        ),
        Experiment(
            name="lenet",
            title="LeNet-5, forward",
            article=_LENET + " Those times are of training.",
            file=_FORWARD,
            parameter=BATCH,
            values=(1, 8, 32, 128, 512, 2048),
            quick=_SMALL,
            settings=("network=lenet",),
        ),
        Experiment(
            name="lenet-training",
            title="LeNet-5, training",
            article=_LENET,
            file="examples/lenet.py",
            parameter=BATCH,
            values=(1, 8, 32, 128, 512, 2048),
            quick=_SMALL,
            remark=_WRONG,
        ),
        Experiment(
            name="vgg19",
            title="VGG19, forward",
            article=(
                "at batch 100 the network compiled whole by XLA took 0.23 s on a TPU core, and the original 52.4 s on "
                "a CPU: 2.3 ms and 524 ms for each image. Batches of 1, 10 and 100 were measured."
            ),
            file="examples/vgg19.py",
            parameter=BATCH,
            values=(1, 10, 100),
            quick=(1, 2, 4),
            quick_settings=("width=4",),
        ),
        Experiment(
            name="intensity",
            title="Arithmetic intensity",
            article=(
                "on an A100 the time stays flat up to about 64 multiplications; the rate is 0.2 TFLOP/s at first and "
                "doubles with them, up to 9.75 TFLOP/s; the bandwidth is saturated below 32 and falls above 64. The "
                "data sheet's 19.5 TFLOP/s and 1.5 TB/s cross at 104 multiplications."
            ),
            file="examples/intensity.py",
            parameter="repeat",
            values=tuple(2**power for power in range(9)),
            quick=(1, 8, 64, 512),
            settings=(f"elements={32 * 2**20}",),
            quick_settings=(f"elements={2**16}",),
            by_backend=False,
        ),
        Experiment(
            name="doubling-mlp",
            title="Batch doubling: small MLP, training",
            article=_DOUBLING,
            file="examples/small_network.py",
            parameter=BATCH,
            values=_DOUBLED,
            quick=(1, 2, 4),
            by_backend=False,
        ),
        Experiment(
            name="doubling-lenet",
            title="Batch doubling: LeNet-5, training",
            article=_DOUBLING,
            file="examples/lenet.py",
            parameter=BATCH,
            values=_DOUBLED[:12],
            quick=(1, 2, 4),
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
            with ExitStack() as stack, tempfile.TemporaryDirectory(dir=self.folder) as scratch:
                group = _Group(self, experiment, Path(scratch), stack, points[0])
                waiting = group.fill(waiting)
                before_s, began_s = seconds_of_other_programs(), time.monotonic()
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
        self._reference: tuple[Worker, float] | None = None

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
            self._reference = self._reference or (worker, built.setup_s)
            return row
        if self._reference is None:
            return replace(row, differences=(_uncompared("eager itself did not run"),))
        original, usual_s = self._reference
        try:
            differences = original.compare(changes, kept)
        except Refused as refused:
            differences = (_uncompared(refused.reason),)
        kept.unlink(missing_ok=True)
        return replace(row, setup_s=max(0.0, built.setup_s - usual_s), differences=differences)

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
    for number, line in enumerate(path.read_bytes().splitlines(), start=1):
        try:
            row = msgspec.json.decode(line, type=Row)
            fault = _fault(row)
        except (msgspec.MsgspecError, ValueError, RecursionError) as error:
            fault = str(error)
        if fault is not None:
            raise SystemExit(f"{path}, line {number}: no row of {COMMAND}: {fault}; remove the line") from None
        key = json.dumps([_identity(row.machine), row.experiment, row.settings, row.value, row.series])
        rows.pop(key, None)
        rows[key] = row
    return list(rows.values())


def _fault(row: Row) -> str | None:
    """What keeps a row from being one of an experiment; null where nothing does."""
    experiment = EXPERIMENTS.get(row.experiment)
    if experiment is None:
        return f"there is no experiment {row.experiment!r}, but {listed(list(EXPERIMENTS))}"
    if (row.parameter, row.settings) not in {(experiment.parameter, one.settings) for one in _sizes(experiment)}:
        return f"parameter and settings are not those of {experiment.name}"
    times_us = () if row.step_us is None else (row.step_us.low, row.step_us.median, row.step_us.high)
    is_ordered = list(times_us) == sorted(times_us) and all(time_us > 0 for time_us in times_us)
    return None if row.value > 0 and is_ordered else "value and times have to be positive, and the interval in order"


def _sizes(experiment: Experiment) -> tuple[Experiment, Experiment]:
    return experiment, experiment.small()


def write_row(path: Path, row: Row) -> None:
    """Appends a row to a results file."""
    with path.open("ab") as file:
        file.write(msgspec.json.encode(row) + b"\n")


def _identity(machine: Machine) -> str:
    """The machine as the page tells it: what a system keeps of its memory for itself differs from start to start."""
    memory_bytes = None if machine.memory_bytes is None else round(machine.memory_bytes, _MEMORY_DIGITS)
    return json.dumps(asdict(replace(machine, memory_bytes=memory_bytes)), sort_keys=True)


_MEMORY_DIGITS = -8  # tenths of a gigabyte


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


def tell(rows: Sequence[Row]) -> str:
    """The text of the page: machine by machine, and of each the experiments in their order."""
    if not rows:
        return (
            f"No results are here yet. `{COMMAND}` measures them, for hours, on a machine that nobody else uses, and "
            f"`{COMMAND} --write` then makes this part of the page."
        )
    machines = {_identity(row.machine): row.machine for row in rows}
    parts = []
    for identity, machine in machines.items():
        own = [row for row in rows if _identity(row.machine) == identity]
        parts += [f"### {machine.model}", *_about(machine, own)]
        for experiment in EXPERIMENTS.values():
            chosen = [row for row in own if row.experiment == experiment.name]
            if chosen:
                said = (f"#### {experiment.title}", f"The article: {experiment.article}", experiment.remark)
                parts.append("\n\n".join(filter(None, said)))
                parts += _told(experiment, sorted(chosen, key=lambda row: row.value))
    return "\n\n".join(parts)


def _about(machine: Machine, rows: Sequence[Row]) -> Iterator[str]:
    threads = "" if machine.threads is None else f", {counted(machine.threads, 'thread')} of torch"
    memory = "" if machine.memory_bytes is None else f", {format_si(machine.memory_bytes, 'B')} of memory"
    versions = ", ".join(f"{name} {version}" for name, version in machine.versions.items())
    dates = sorted({row.date for row in rows})
    when = dates[0] if len(dates) == 1 else f"{dates[0]} to {dates[-1]}"
    yield (
        f"{counted(machine.processors, 'processor')}{threads}{memory}; {versions}, bottleneck {machine.bottleneck}; "
        f"measured {when}."
    )
    busy = max((row.others for row in rows if row.others is not None), default=None)
    if busy is not None and busy > _MUCH_BESIDE * machine.processors:
        yield (
            f"**Not a quiet machine**: other programs kept up to {busy:.1f} of its processors busy meanwhile; the "
            f"measurement was allowed {machine.processors}. Rows of one size took turns and can be compared; times of "
            "different sizes less so."
        )
    if any(row.is_quick for row in rows):
        yield "**Small sizes** (`--quick`): these rows only show that the experiments run."


def _told(experiment: Experiment, rows: Sequence[Row]) -> list[str]:
    if experiment.by_backend:
        return _by_backend(rows)
    timed = [row for row in rows if row.step_us is not None]
    table = _intensity_table(timed) if experiment.name == "intensity" else _doubling_table(timed)
    return [*table, *_knee_line(rows), *_reasons(rows)]


def _table(head: Sequence[str], lines: Sequence[Sequence[str]]) -> str:
    cells = [head, ["---", *["---:"] * (len(head) - 2), "---"], *lines]
    return "\n".join(f"| {' | '.join(line)} |" for line in cells)


def _by_backend(rows: Sequence[Row]) -> list[str]:
    """A line for each back end: time per sample at each size, compile time, knee, and its results against eager's."""
    values = sorted({row.value for row in rows})
    lines = []
    for series in dict.fromkeys(row.series for row in rows):
        own = {row.value: row for row in rows if row.series == series}
        if any(row.step_us is not None for row in own.values()):
            times = [_per_sample(own.get(value)) for value in values]
            lines.append([series, *times, _compile_time(own.values()), _knee(list(own.values())), _results(own)])
    head = ["back end", *(f"{rows[0].parameter} {value}" for value in values), "compile", "knee", "results"]
    if not lines:
        return ["Nothing was measured.", *_reasons(rows)]
    return ["Time per sample:", _table(head, lines), *_reasons(rows)]


def _per_sample(row: Row | None) -> str:
    return "-" if row is None or row.step_us is None else format_us(_us(row) / row.value)


def _compile_time(rows: Iterable[Row]) -> str:
    """The median over the sizes of what making the step took beyond eager's."""
    seconds = [row.setup_s for row in rows if row.setup_s is not None]
    if not seconds:
        return "-"
    median_s = statistics.median(seconds)
    return f"<{_NO_COMPILER_S:g} s" if median_s < _NO_COMPILER_S else format_us(median_s * 1e6)


def _results(rows: Mapping[int, Row]) -> str:
    """The comparison of results of the size at which they are furthest: a wrong one first."""
    timed = [row.differences for row in rows.values() if row.step_us is not None]
    return results_text([difference for differences in timed for difference in differences])


def _knee(rows: Sequence[Row]) -> str:
    fit = fit_of(rows)
    return "none" if fit is None or not fit.knee else format_ratio(fit.knee)


def _reasons(rows: Sequence[Row]) -> list[str]:
    """Why rows have no time, and why back ends have no knee; those with the same reason share a line."""
    sharing: dict[str, list[str]] = {}
    for series in dict.fromkeys(row.series for row in rows):
        own = [row for row in rows if row.series == series]
        for reason in dict.fromkeys(row.reason for row in own if row.step_us is None):
            values = [row.value for row in own if row.step_us is None and row.reason == reason]
            where = "" if len(values) == len(own) else f" at {own[0].parameter} {listed(values)}"
            sharing.setdefault(f"no time{where}: {reason}", []).append(series)
        fit = fit_of(own)
        if fit is not None and fit.points and not fit.knee:
            reason = fit.knee_reason or "the step has no fixed part that shows"
            sharing.setdefault(f"no knee: {reason}", []).append(series)
    lines = [f"- {listed(series)}: {reason}" for reason, series in sharing.items()]
    return ["\n".join(lines)] if lines else []


def _knee_line(rows: Sequence[Row]) -> list[str]:
    fit = fit_of(rows)
    if fit is None or not fit.points:
        return []
    return [" ".join(fit_sentences(fit))]


def _intensity_table(rows: Sequence[Row]) -> list[str]:
    lines = []
    for row in rows:
        flops_per_s, bytes_per_s = intensity_rates(row)
        rates = (format_si(flops_per_s, "FLOP/s"), format_si(bytes_per_s, "B/s"))
        lines.append([str(row.value), f"{row.value / BYTES:.3g}", format_us(_us(row)), *rates])
    return [_table(["multiplications", "FLOP/B", "time", "arithmetic", "bandwidth"], lines)] if lines else []


def _doubling_table(rows: Sequence[Row]) -> list[str]:
    pairs = growths(rows)
    lines = [
        [f"{row.value} to {twice.value}", format_us(_us(row)), format_us(_us(twice)), f"{growth:+.0%}", _sign(growth)]
        for row, twice, growth in pairs
    ]
    return (
        [_table(["batch", "step", "with twice the batch", "grows by", "by the article's test"], lines)] if lines else []
    )


def _sign(growth: float) -> str:
    return "overhead" if is_overhead(growth) else "not overhead alone"


# Okabe and Ito's colours, with markers that say the same in grey.
_STYLES = tuple(
    zip(("#0072B2", "#E69F00", "#009E73", "#D55E00", "#CC79A7", "#56B4E9", "#000000"), "os^DvPX", strict=True)
)


def draw_batches(rows: Sequence[Row]) -> Figure:
    """Time per sample over the batch size, by back end; a panel for each network, with each knee as a ring."""
    experiments = [one for one in EXPERIMENTS.values() if one.by_backend and _timed(rows, one.name)]
    names = list(dict.fromkeys(row.series for row in rows if row.step_us is not None))
    figure = Figure(figsize=(9.0, 3.2 * math.ceil(len(experiments) / 2) + 0.8), layout="constrained")
    for place, experiment in enumerate(experiments, start=1):
        axes = figure.add_subplot(math.ceil(len(experiments) / 2), 2, place)
        own = _timed(rows, experiment.name)
        for name in dict.fromkeys(row.series for row in own):
            _draw_curve(axes, [row for row in own if row.series == name], names.index(name))
        axes.set(title=experiment.title, xlabel="batch size", ylabel="us for each sample")
        _log_axes(axes, [row.value for row in own])
    labelled = {
        label: line for axes in figure.axes for line, label in zip(*axes.get_legend_handles_labels(), strict=True)
    }
    figure.legend(labelled.values(), labelled.keys(), loc="outside lower center", ncols=4, frameon=False)
    return figure


def _log_axes(axes: Axes, values: Iterable[int]) -> None:
    """Sets both axes logarithmic, with the measured values along x and plain numbers for ticks."""
    axes.set(xscale="log", yscale="log")
    axes.xaxis.set_major_locator(FixedLocator(sorted(set(values))))
    axes.xaxis.set_minor_locator(NullLocator())
    axes.yaxis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0), numticks=12))
    axes.yaxis.set_minor_locator(NullLocator())
    for axis in (axes.xaxis, axes.yaxis):
        axis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,.0f}" if value >= 1 else f"{value:.6g}"))


def _draw_curve(axes: Axes, rows: Sequence[Row], number: int) -> None:
    colour, marker = _STYLES[number % len(_STYLES)]
    dashes = ("-", "--")[number // len(_STYLES) % 2]
    x = [row.value for row in rows]
    axes.plot(
        x,
        [_us(row) / row.value for row in rows],
        label=rows[0].series,
        color=colour,
        marker=marker,
        linestyle=dashes,
        markersize=4,
    )
    fit = fit_of(rows)
    if fit is not None and fit.knee and x[0] <= fit.knee <= x[-1]:
        at_knee_us = (fit.step_us(fit.knee) or math.nan) / fit.knee
        axes.plot([fit.knee], [at_knee_us], "o", color=colour, fillstyle="none", markersize=10)


def draw_intensity(rows: Sequence[Row]) -> Figure:
    """The chain of multiplications: its time with the knee, and beside it the two rates."""
    own = _timed(rows, "intensity")
    figure = Figure(figsize=(9.0, 3.4), layout="constrained")
    left, right = figure.subplots(1, 2)
    x = [row.value for row in own]
    left.plot(x, [_us(row) / 1e3 for row in own], "o-", color=_STYLES[0][0])
    fit = fit_of(own)
    if fit is not None and fit.knee:
        left.axvline(fit.knee, color="#444444", linestyle=":", label=f"knee at {format_ratio(fit.knee)}")
        left.legend(frameon=False)
    left.set(xlabel="multiplications of each number", ylabel="ms", title="Time")
    for index, (name, label) in enumerate((("GFLOP/s", "arithmetic"), ("GB/s", "bandwidth"))):
        colour, marker = _STYLES[index]
        rates = [intensity_rates(row)[index] / 1e9 for row in own]
        right.plot(x, rates, marker=marker, color=colour, label=f"{label} ({name})")
    right.set(xlabel="multiplications of each number", title="Rates")
    right.legend(frameon=False)
    for axes in (left, right):
        _log_axes(axes, x)
    return figure


def _timed(rows: Sequence[Row], name: str) -> list[Row]:
    return sorted(
        (row for row in rows if row.experiment == name and row.step_us is not None), key=lambda row: row.value
    )


def pictures(rows: Sequence[Row]) -> dict[Path, Callable[[Sequence[Row]], Figure]]:
    """The pictures that these rows suffice for."""
    has_batches = any(one.by_backend and _timed(rows, one.name) for one in EXPERIMENTS.values())
    has_chain = bool(_timed(rows, "intensity"))
    every = ((BATCHES_PICTURE, draw_batches, has_batches), (INTENSITY_PICTURE, draw_intensity, has_chain))
    return {path: draw for path, draw, is_there in every if is_there}


_CAPTIONS = {
    BATCHES_PICTURE: "Time per sample over the batch size by back end; rings are knees",
    INTENSITY_PICTURE: "Time and rates of the chain of multiplications",
}


def page_text(rows: Sequence[Row]) -> str:
    """The generated part of the page: pictures of the machine that was measured last, then all tables."""
    latest = _of_latest(rows)
    images = [f"![{_CAPTIONS[path]}](../assets/{path.name})" for path in pictures(latest)]
    caption = [f"The pictures are of {latest[-1].machine.model}."] if images else []
    return "\n\n".join([*images, *caption, tell(rows)])


def _of_latest(rows: Sequence[Row]) -> list[Row]:
    return [row for row in rows if _identity(row.machine) == _identity(rows[-1].machine)]


def write_page(rows: Sequence[Row]) -> None:
    """Writes the generated part of the page and its pictures; SystemExit for rows of small sizes."""
    if any(row.is_quick for row in rows):
        raise SystemExit(f"{COMMAND} --write: some rows are of --quick, which are no figures of the articles")
    latest = _of_latest(rows)
    for path, draw in pictures(latest).items():
        save_figure(draw, path, latest)
    write_between_markers(PAGE, "articles", page_text(rows))


def main() -> int:
    """Measures the experiments, or writes the page; the exit status is 1 where no row has a time."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="small sizes and few rounds, to see that it runs")
    parser.add_argument("--only", action="append", choices=tuple(EXPERIMENTS), metavar="NAME", help="one experiment")
    parser.add_argument("--values", metavar="A,B", help="only these values of the parameter, such as the batch size")
    parser.add_argument("--backends", default=ALL, metavar="A,B", help="back ends beside eager, as `sweep` names them")
    parser.add_argument("--rounds", type=int, default=None, help=f"rounds of turns at most ({ROUNDS}; quick: 5)")
    parser.add_argument("--seconds", type=float, default=SECONDS, help="seconds of turns for each size")
    parser.add_argument("--results", type=Path, help=f"file of JSON lines (default {RESULTS.relative_to(ROOT)})")
    parser.add_argument("--write", action="store_true", help="measure nothing; write the page of the results file")
    chosen = parser.parse_args()
    results: Path | None = chosen.results or (None if chosen.quick else RESULTS)
    if chosen.write:
        write_page(read_rows(chosen.results or RESULTS))
        return 0
    try:
        series = make_series(f"{EAGER},{chosen.backends}", None, None)
    except BottleneckError as error:
        raise SystemExit(f"{error.what}; {error.fix}") from None
    if results is not None and not results.absolute().parent.is_dir():
        raise SystemExit(f"--results {results}: there is no folder {results.parent}; make it first")
    rounds = chosen.rounds or (5 if chosen.quick else ROUNDS)
    rows = []
    with tempfile.TemporaryDirectory(prefix="articles-") as folder:
        bench = Bench(Path(folder), Effort(rounds, chosen.seconds), _note, is_quick=chosen.quick)
        experiments = [EXPERIMENTS[name] for name in chosen.only or EXPERIMENTS]
        sized = [only_values(one.small() if chosen.quick else one, chosen.values) for one in experiments]
        every = (bench.measure(one, series) for one in sized)
        try:
            for row in itertools.chain.from_iterable(every):
                rows.append(row)
                if results is not None:
                    write_row(results, row)
        except KeyboardInterrupt:
            _note("interrupted; the rows that are measured follow, and those of the size under way are lost")
    print(tell(rows))
    return 0 if any(row.step_us is not None for row in rows) else 1


def only_values(experiment: Experiment, values: str | None) -> Experiment:
    """The experiment at some of its values; SystemExit where it has none of them."""
    if values is None:
        return experiment
    chosen = tuple(value for value in experiment.values if str(value) in values.split(","))
    if not chosen:
        known = listed(list(map(str, experiment.values)))
        raise SystemExit(f"--values {values}: {experiment.name} has {known}")
    return replace(experiment, values=chosen)


def _note(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


if __name__ == "__main__":
    sys.exit(main())
