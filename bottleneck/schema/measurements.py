"""Frozen records of what is measured on a program.

They hold step times, compilation, results, profiler options and pieces.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Annotated, Literal

from bottleneck.schema.compile_health import CompileHealth
from bottleneck.schema.op_names import place_of
from bottleneck.schema.records import Doc
from bottleneck.schema.start_up import StartLedger
from bottleneck.units import US_PER_S, counted, format_share, format_us

# What a window of the profiler may record: ops alone, one option more, or all that the kept window had on.
ProfilerOption = Literal["ops", "shapes", "stacks", "memory", "all"]

# What the batch test proves: the step is (mostly) fixed, proportional to the batch, some of both; or it was too noisy.
Growth = Literal["fixed", "proportional", "both", "undecided"]

# "wrong": the results differ by more than the change implies. "not applicable": the step has nothing for it to change.
# "missing": something has to be installed first. "failed": it raised, or its process died.
TrialVerdict = Literal[
    "faster", "slower", "no effect", "inconclusive", "wrong", "not applicable", "missing", "failed", "skipped"
]


@dataclass(frozen=True)
class Timing:
    """Step times: median with its interval, over n steps."""

    median: Annotated[float, Doc("median", "us")]
    low: Annotated[float, Doc("lower end of the interval of the median", "us")]
    high: Annotated[float, Doc("upper end of the interval of the median", "us")]
    n: Annotated[int, Doc("how many times it was measured")]


@dataclass(frozen=True)
class StepTime:
    """One step of the recording, with its wall time.

    ``set_aside`` says why it does not count, null where it counts.
    """

    name: Annotated[str, Doc("number or name given by the program or the profiler")]
    us: Annotated[float, Doc("wall time while profiled", "us")]
    set_aside: Annotated[str | None, Doc("why the analysis excludes it; null where it counts")] = None
    set_aside_code: Annotated[str | None, Doc("the same as a code; null too in older analyses")] = None


@dataclass(frozen=True)
class StepTimes:
    """Steps of the window: mean wall time, spread, and unprofiled time.

    The unprofiled time is there where it was measured.

    ``windows_us`` is the mean step of each window that was recorded; this one was the fastest. ``boundary`` is the
    event that ended a step of the program, ``seen`` its number while the program was observed.
    """

    count: Annotated[int, Doc("steps in the window; 1 when none were found")]
    wall_us: Annotated[
        float, Doc("the time that the ledger partitions: the unprofiled median where known, else the mean", "us")
    ]
    profiled_us: Annotated[Timing | None, Doc("steps while profiled, on host and device together", "us")]
    unprofiled_us: Annotated[Timing | None, Doc("steps without the profiler; null when not measured", "us")]
    perturbation: Annotated[float | None, Doc("profiled time / unprofiled time", "ratio")]
    source: Annotated[
        str, Doc("how the steps were found: marks, profiler, optimizer, server, repeats, or whole for none")
    ]
    each: Annotated[
        tuple[StepTime, ...], Doc("steps of the recording in order, including those that are excluded")
    ] = ()
    settled: Annotated[bool | None, Doc("whether the unprofiled steps showed no trend; null where not known")] = None
    windows_us: Annotated[
        tuple[float, ...], Doc("mean step of each window that was recorded; the fastest was kept", "us")
    ] = ()
    boundary: Annotated[
        str | None,
        Doc("event that ended a step of the program; null where none was found or the harness repeats the step"),
    ] = None
    seen: Annotated[int | None, Doc("number of such events until the measurement was complete")] = None

    @property
    def step_word(self) -> str:
        """Names the step of ``wall_us``: 'mean step', 'median step' or 'step'."""
        return "median step" if self.unprofiled_us is not None else "mean step" if self.count > 1 else "step"


def tell_step(name: str, seen: int) -> str:
    """Description of the step boundary, for the summary and the report."""
    return f"step = {name}, {seen} seen"


@dataclass(frozen=True)
class GraphBreak:
    """Line of the program at which torch.compile broke a graph.

    It has the reason, and how often it happened until the window ended.
    """

    file: str
    line: int
    reason: str
    count: int


@dataclass(frozen=True)
class Compilation:
    """Compilations by torch.compile from the program's start to the window's end.

    ``graphs`` are those that dynamo captured, ``recompiles`` the times that a function was compiled again since its
    guards failed. ``breaks`` holds the lines as far as dynamo tells them, files relative to the working folder.
    ``cudagraph_skips`` are graphs not captured as CUDA graphs, and ``health`` each graph, break, recompile and skip;
    both are null in older recordings, ``health`` also where torch does not tell.
    """

    graphs: int
    graph_breaks: int
    recompiles: int
    breaks: tuple[GraphBreak, ...] = ()
    cudagraph_skips: int | None = None
    health: CompileHealth | None = None


# Aids to debugging that a process may have left on, by the names that a recording keeps.
DebugName = Literal[
    "anomaly-detection",
    "deterministic-algorithms",
    "launch-blocking",
    "sync-warnings",
    "dispatch-mode",
    "profile-function",
    "trace-function",
    "monitoring",
    "memory-tracing",
    "development-mode",
    "debug-allocator",
    "debug-build",
    "sanitizer",
    "injected-tool",
    "environment",
]


@dataclass(frozen=True)
class DebugMode:
    """An aid to debugging that was on in the profiled process.

    ``detail`` is its setting or its owner ('coverage.CTracer'), ``source`` the line of the program that names it
    ('train.py:5'), null where none does. ``share`` is the part of a step's processor time that it took, ``call_us``
    what a call of an empty Python function takes with it; null where not measured.
    """

    name: DebugName
    detail: str = ""
    source: str | None = None
    share: float | None = None
    call_us: float | None = None


# What a line of the program may choose and ops only show.
SettingName = Literal["threads", "narrow", "double", "loader", "embedding"]


@dataclass(frozen=True)
class Padding:
    """Part of a program's inputs that is padding.

    The inputs are ids of embeddings, or frames that the model gets.

    Padding ids are all the same, repeated at one end of their row. Padding frames are zeros at the end of a row of
    numbers, such as a spectrogram, of a batch whose longest row has none.

    ``rows`` were looked at, the longest of ``columns`` ids or frames (``unit``).
    """

    share: float
    rows: int
    columns: int
    unit: Literal["id", "frame"] = "id"


ValuePlace = Literal["parameter", "buffer", "gradient", "state", "variable", "input", "output"]


@dataclass(frozen=True)
class OddTensor:
    """Host tensor that held subnormal numbers, NaN or zeros.

    Subnormal numbers are below the smallest normal one.

    ``name`` is that of the parameter, buffer or variable ('Net.decay', 'trace'), or the class of the module that got or
    gave it. ``source`` is the line that makes it, or that called the module; null where none is known. ``sizes`` are
    those of the tensor. The shares are parts of the numbers that were looked at.
    """

    place: ValuePlace
    name: str
    subnormal_share: float = 0.0
    nan_share: float = 0.0
    sizes: tuple[int, ...] = ()
    source: str | None = None
    zero_share: float = 0.0


@dataclass(frozen=True)
class SpareGradients:
    """Parameters that get gradients but belong to no optimizer.

    They are as they were some steps before.

    ``parameters`` counts them and ``numbers`` what they hold; ``trained`` counts those that optimizers have.
    ``modules`` are the outermost modules that hold no other parameters ('Net.encoder'), ``calls`` the names of those
    that were called, as the profiler gives them in the order of first calls ('Encoder_0'), and ``source`` is the line
    of the first such call. With ``passes_on`` an input of such a call needs a gradient too.
    """

    parameters: int
    numbers: int
    trained: int
    modules: tuple[str, ...] = ()
    calls: tuple[str, ...] = ()
    source: str | None = None
    passes_on: bool = False


@dataclass(frozen=True)
class ValuesLook:
    """Result of a look at the values of host tensors.

    It covers one step that was not measured, and the time after it.

    ``numbers`` were looked at; ``flushes`` tells whether the processor takes subnormal numbers for 0. ``zeros`` are
    large matrices that held next to nothing but zeros.
    """

    numbers: int
    flushes: bool = False
    odd: tuple[OddTensor, ...] = ()
    spare: SpareGradients | None = None
    zeros: tuple[OddTensor, ...] = ()


@dataclass(frozen=True)
class RepeatedModule:
    """Module with equal inputs and results in two steps.

    Others got new inputs in these steps.

    ``label`` is its name in a trace, by the order of first calls ('TextTower_0'), ``source`` the line that calls it.
    ``calls`` counts its calls per step; ``repeated`` are the numbers of those that gave the same, empty for all.
    """

    label: str
    source: str | None
    calls: int = 1
    repeated: tuple[int, ...] = ()


@dataclass(frozen=True)
class Keeper:
    """A variable of the program that holds more tensors after each step.

    ``name`` is that in the program ('losses', 'self.history'), ``source`` the line that adds to it ('eval.py:16'), null
    where none was found. ``per_step`` counts what is added, ``has_graph`` tells whether those tensors hold a graph of
    autograd. A ``sum`` is one tensor to which each step adds, with a graph that gets longer.
    """

    name: str
    source: str | None = None
    per_step: float = 1.0
    has_graph: bool = False
    is_sum: bool = False


@dataclass(frozen=True)
class MemoryGrowth:
    """Memory of the process at two step boundaries around the timed steps.

    They are ``steps`` steps apart.

    ``host_bytes`` and ``device_bytes`` are the growth per step of resident memory, and of what the allocator of the
    device has handed out; null where not known, 0 where memory became free. ``left_bytes`` were available on the host
    then, ``device_left_bytes`` on the device.
    """

    steps: int
    host_bytes: float | None = None
    device_bytes: float | None = None
    left_bytes: int | None = None
    device_left_bytes: int | None = None
    keepers: tuple[Keeper, ...] = ()


@dataclass(frozen=True)
class Ratio:
    """Ratio of step times over n pairs of neighbouring measurements.

    It is the estimate with its interval. The two measurements of a pair are next to each other in time.
    """

    median: Annotated[float, Doc("point estimate; 1 is unchanged", "ratio")]
    low: Annotated[float, Doc("lower end of the interval", "ratio")]
    high: Annotated[float, Doc("upper end of the interval", "ratio")]
    n: Annotated[int, Doc("number of measurements, or of pairs")]


@dataclass(frozen=True)
class BatchTest:
    """Unprofiled steps of ``batch_size`` samples (``once``) and of twice as many (``twice``), in turns.

    ``reason`` says why there are no times; null where there are.
    """

    batch_size: int | None
    once: Timing | None = None
    twice: Timing | None = None
    ratio: Ratio | None = None
    reason: str | None = None


@dataclass(frozen=True)
class BatchProof:
    """Result of the batch test: t = fixed + proportional x batch.

    Both parts are at the original batch size.
    """

    batch_size: Annotated[int | None, Doc("samples in a step; null when not known")]
    once_us: Annotated[
        Timing | None, Doc("unprofiled steps at that size, interleaved with those at twice the size", "us")
    ] = None
    twice_us: Annotated[Timing | None, Doc("steps at twice that size", "us")] = None
    ratio: Annotated[
        Ratio | None,
        Doc("twice_us / once_us: median over pairs of neighbouring blocks, with its 95 % interval by order statistics"),
    ] = None
    fixed_us: Annotated[
        Timing | None, Doc("part of the step that is the same for any batch: (2 - ratio) x once_us", "us")
    ] = None
    proportional_us: Annotated[Timing | None, Doc("part of the step that grows with its batch", "us")] = None
    fixed_share: Annotated[Ratio | None, Doc("fixed part of the step")] = None
    growth: Annotated[
        Growth | None,
        Doc("'fixed' (ratio up to 1.2), 'proportional' (from 1.8), 'both', or 'undecided' by its interval"),
    ] = None
    agrees: Annotated[
        bool | None, Doc("whether the overhead in the ledger fits into the fixed part; null where undecided")
    ] = None
    sentence: Annotated[str, Doc("conclusion, in words")] = ""
    reason: Annotated[str | None, Doc("why the test was not run; null when it was")] = None


@dataclass(frozen=True)
class OptionCost:
    """Overhead of one profiler option besides that of ops.

    It is profiled / unprofiled step time with this option.
    """

    option: Annotated[ProfilerOption, Doc("'ops' alone, 'ops' with one more option, or 'all' options of the recording")]
    ratio: Annotated[
        Ratio,
        Doc(
            "profiled step / unprofiled step: median over rounds of windows, with its 95 % interval by order statistics"
        ),
    ]


@dataclass(frozen=True)
class OptionCosts:
    """Overhead of each profiler option on this step.

    ``reason`` is why that is not known.
    """

    costs: Annotated[tuple[OptionCost, ...], Doc("one entry per option")] = ()
    reason: Annotated[str | None, Doc("why there is none; null when there is")] = None


@dataclass(frozen=True)
class PageFaults:
    """Minor page faults per step, of profiled and unprofiled steps.

    They are those of the process, null where not counted. ``lightly`` are those of the window with the fewest options.

    A minor fault maps a page of ``page_bytes`` that needs no reading from disk: the first touch of new memory.
    """

    page_bytes: int
    profiled: float | None = None
    unprofiled: float | None = None
    lightly: float | None = None

    def us_of(self, count: float | None, fresh_bytes_per_s: float | None) -> float:
        """Gives what so many faults take at this rate; 0 where unknown."""
        return count * self.page_bytes / fresh_bytes_per_s * US_PER_S if count and fresh_bytes_per_s else 0.0


@dataclass(frozen=True)
class PeakMemory:
    """Most memory in use at once, of a device or the process.

    A device's is counted by its allocator, the process's by what is resident.

    ``since``: while unprofiled steps ran, or since the program started. ``bytes`` is null where that is not known, and
    ``reason`` says why. ``reserved_bytes`` is what the allocator of that device held at most, used or not.
    """

    bytes: int | None
    of: Literal["device", "process"]
    since: Literal["steps", "start"]
    reason: str | None = None
    reserved_bytes: int | None = None


RestingKind = Literal["parameters", "buffers", "gradients", "optimizer state"]


@dataclass(frozen=True)
class RestingMemory:
    """Memory of one device that models and optimizers held before the window.

    ``device`` is its index, null for memory of the host. ``bytes`` are by kind, each block once.
    """

    device: int | None
    bytes: Mapping[RestingKind, int]


BetweenKind = Literal["workers", "input", "checkpoint", "compile", "elements"]


@dataclass(frozen=True)
class BetweenPlace:
    """Line that held the program between its steps.

    It also names the function that the line called, if any.
    """

    source: Annotated[str, Doc("line, 'train.py:88'")]
    share: Annotated[float, Doc("part of the samples of the time between steps", "share")]
    function: Annotated[str | None, Doc("function of the program that the line was in a call of; null where none")] = (
        None
    )
    kind: Annotated[
        BetweenKind | None,
        Doc("work of torch that it was at, or a loop that reads elements one by one; null where neither is known"),
    ] = None
    text: Annotated[str | None, Doc("what the line says; null where unknown")] = None
    inner: Annotated[str | None, Doc("line inside of that function that held most of it; null where none did")] = None
    inner_text: Annotated[str | None, Doc("what that line says; null where unknown")] = None

    def words(self) -> str:
        """'evaluate(), train.py:88'; the line alone where it calls no function of the program.

        What torch compiled there is said: 'compiling forward(), model.py:19'.
        """
        place = self.source if self.function is None else f"{self.function}(), {self.source}"
        return f"compiling {place}" if self.kind == "compile" else place


@dataclass(frozen=True)
class StepGrowth:
    """Steps that take longer from one to the next.

    They are compared by the medians of blocks of steps.
    """

    slope_us: Annotated[float, Doc("by how much a step takes longer than the one before", "us")]
    first_step: Annotated[int, Doc("number of the step in the middle of the first block")]
    first_us: Annotated[float, Doc("median of that block", "us")]
    last_step: Annotated[int, Doc("number of the step in the middle of the last block")]
    last_us: Annotated[float, Doc("median of that block", "us")]
    source: Annotated[str | None, Doc("line at which most of the growth was sampled; null where unknown")] = None
    text: Annotated[str | None, Doc("what the line says; null where unknown")] = None

    def words(self) -> str:
        """By how much each step is longer, and the first and the last."""
        grown = f"{format_us(self.first_us)} at step {self.first_step}, {format_us(self.last_us)} at {self.last_step}"
        return f"each step takes {format_us(self.slope_us)} longer than the one before: {grown}"


@dataclass(frozen=True)
class PiledHooks:
    """Hooks of one module that grow in number with the steps."""

    module: Annotated[str, Doc("class of the module")]
    count: Annotated[int, Doc("its hooks at the end of the run")]
    source: Annotated[str | None, Doc("line that registers them; null where unknown")] = None


# Samples say where in an account the time is from so much per step on: shorter Python is sampled at the op after it.
LEAST_SAMPLED_US = 10e3
# Containers whose items a membership test compares one by one.
_SCANNED = frozenset({"list", "tuple", "deque"})


@dataclass(frozen=True)
class SearchedContainer:
    """Container that a membership test of a line looks through.

    It is as it was seen once while the program ran.
    """

    name: Annotated[str, Doc("what the line calls it, 'history[u]'")]
    kind: Annotated[str, Doc("its built-in type: list, tuple, deque, set, dict …")]
    items: Annotated[int, Doc("how many items it held")]

    @property
    def is_scanned(self) -> bool:
        """True if a membership test compares its items one by one."""
        return self.kind in _SCANNED

    def words(self) -> str:
        """'history[u] is a list of 1,523 items'."""
        return f"{self.name} is a {self.kind} of {self.items:,} items"


@dataclass(frozen=True)
class SampledLine:
    """Line that usual steps were at, by samples of the stack.

    The samples were taken while nothing was timed or profiled.

    Samples need the interpreter: Python shorter than its switch interval (5 ms) is sampled at the next op or call that
    lets go of it. They tell where inside a function, or an account, the time is, and not how much there is.
    """

    source: Annotated[str, Doc("line, 'train.py:88'")]
    share: Annotated[float, Doc("part of the samples in usual steps", "share")]
    function: Annotated[str, Doc("function of the program that the line is in")]
    text: Annotated[str | None, Doc("what the line says; null where unknown")] = None
    callees: Annotated[
        tuple[str, ...], Doc("functions of libraries that most of its samples were in, the one it calls first")
    ] = ()
    searched: Annotated[
        SearchedContainer | None, Doc("container that a membership test of the line looks through; null where not seen")
    ] = None

    @property
    def calls_torch(self) -> bool:
        """True if most of its samples were in a call of torch."""
        return bool(self.callees) and self.callees[0].startswith("torch/")


@dataclass(frozen=True)
class RunSteps:
    """The steps of a script, less those that were profiled.

    They reach from the first to the last that was seen to end.

    A step that takes more than three times the median of those around it holds something else too, or was held up: what
    it takes longer is ``elsewhere_us`` by the compiler's own clock and by the samples at lines that are not in each
    step, and ``held_us`` by those at lines of the steps. Without samples all of it is ``elsewhere_us``.
    """

    steps: Annotated[int, Doc("steps that were seen and not profiled")]
    total_us: Annotated[float, Doc("time from the first to the last of them, without what bottleneck took", "us")]
    typical_us: Annotated[float, Doc("median of the usual steps", "us")]
    elsewhere_us: Annotated[float, Doc("part of that time that is in no usual step", "us")]
    gaps: Annotated[int, Doc("number of the steps that hold it")]
    places: Annotated[tuple[BetweenPlace, ...], Doc("lines that held it, by samples of the stack, largest first")] = ()
    held_us: Annotated[
        float, Doc("part of that time in which steps were held up, by another program as a rule", "us")
    ] = 0
    growth: Annotated[StepGrowth | None, Doc("growth from step to step; null where there is none")] = None
    hooks: Annotated[PiledHooks | None, Doc("hooks that pile up; null where none do")] = None
    lines: Annotated[tuple[SampledLine, ...], Doc("lines that usual steps were at, by samples, most first")] = ()

    def spread(self, source: str | None, us: float, known_us: Mapping[str, float]) -> dict[SampledLine, float]:
        """Spreads a function's time over its sampled lines.

        The function is named as 'step() (model.py:4)'. Empty where no line was sampled.

        ``known_us`` is what the trace tells of lines already: they get what their samples say beyond it. Lines that
        call torch are left out, since their time is that of ops.
        """
        place = None if source is None else place_of(source)
        if source is None or place is None or not place.is_function:
            return {}
        function = source.partition(" (")[0].removesuffix("()")
        mine = [
            line
            for line in self.lines
            if line.function == function
            and (at := place_of(line.source)) is not None
            and at.file == place.file
            and not line.calls_torch
        ]
        whole = math.fsum(line.share for line in mine)
        all_us = us + math.fsum(known_us.get(line.source, 0.0) for line in mine)
        more = {line: max(all_us * line.share / whole - known_us.get(line.source, 0.0), 0.0) for line in mine}
        more_us = math.fsum(more.values())
        return {line: us * line_us / more_us for line, line_us in more.items()} if more_us > 0 else {}

    def named_places(self) -> tuple[BetweenPlace, ...]:
        """The places with those of one name as one, largest first.

        It is what most of them are: a line that evaluates starts the loader's workers too.
        """
        by_name: dict[str, list[BetweenPlace]] = {}
        for place in sorted(self.places, key=lambda place: -place.share):
            by_name.setdefault(place.words(), []).append(place)
        whole = [replace(parts[0], share=math.fsum(part.share for part in parts)) for parts in by_name.values()]
        return tuple(sorted(whole, key=lambda place: -place.share))

    @property
    def elsewhere_share(self) -> float:
        """Part of the run that is in no usual step."""
        return self.elsewhere_us / self.total_us if self.total_us > 0 else 0.0


@dataclass(frozen=True)
class BusyThread:
    """Python thread besides that of the steps, with its main place.

    The place is the function and the line that it was mostly at.

    ``cpu_share`` is its processor time while unprofiled steps ran, as a part of that time.
    """

    function: str
    source: str
    cpu_share: float


@dataclass(frozen=True)
class OtherThreads:
    """Processor time of Python threads while unprofiled steps ran, as parts of that time.

    ``cpu_share`` is that of the thread of the steps, ``queued_share`` the part in which it could run but had no
    processor. In the rest it waited: for the interpreter, a device, a file. ``threads`` are others that computed.
    """

    wall_s: float
    cpu_share: float
    queued_share: float
    threads: tuple[BusyThread, ...] = ()

    @property
    def waiting_share(self) -> float:
        """Part of the time in which the steps' thread was blocked.

        It neither ran nor waited for a processor.
        """
        return max(1.0 - self.cpu_share - self.queued_share, 0.0)


@dataclass(frozen=True)
class ChildWork:
    """CPU time of the program's process and of those it started.

    It counts the processes that the program waited for.

    ``processes`` is how many `multiprocessing` made of them; null where it made none.
    """

    own_cpu_s: float
    children_cpu_s: float
    processes: int | None = None

    @property
    def children_share(self) -> float:
        """Share of the CPU time that the other processes used."""
        total_s = self.own_cpu_s + self.children_cpu_s
        return self.children_cpu_s / total_s if total_s > 0 else 0.0

    def describe(self) -> str:
        """The share of the other processes as a clause."""
        count = "processes" if self.processes is None else counted(self.processes, "process", "processes")
        were = "was" if self.processes == 1 else "were"
        share = format_share(self.children_share)
        return f"{share} of the CPU time was used by {count} that the program started, which {were} not recorded"


@dataclass(frozen=True)
class Extras:
    """Measurements besides step times and the trace.

    ``settled`` tells whether the unprofiled steps had stopped to get quicker or slower. ``windows_us`` is the mean step
    of each window that was opened; the trace is that of the quickest.
    """

    settled: bool | None = None
    windows_us: tuple[float, ...] = ()
    page_faults: PageFaults | None = None
    peak_memory: PeakMemory | None = None
    option_costs: OptionCosts | None = None
    batch_test: BatchTest | None = None
    run: RunSteps | None = None
    child_work: ChildWork | None = None
    start_up: StartLedger | None = None


@dataclass(frozen=True)
class Difference:
    """Largest difference between original and changed in one kind of result.

    It has a measure of how much the change implies.

    ``relative`` is the largest difference over the largest magnitude of the original; null where nothing is comparable,
    and ``reason`` says why.
    """

    what: Literal["outputs", "loss", "gradients", "parameters"]
    absolute: float | None
    relative: float | None
    allowed: float | None
    is_within: bool | None
    reason: str | None = None

    @property
    def claim(self) -> str:
        """Names what differs, with its verb."""
        return f"{self.what} {'differs' if self.what == 'loss' else 'differ'}"


@dataclass(frozen=True)
class MeasuredPiece:
    """One piece of the step, timed as it is and changed.

    The two are timed in turns. ``reason`` says why there are no times. ``at_worst`` is the ratio of the least
    favourable way to make the change, where a program may need it.
    """

    kind: Annotated[str, Doc("kind of piece, such as 'chain' or 'optimizer'")]
    finding: Annotated[str, Doc("slug of the finding whose gain it measures")]
    change: Annotated[str, Doc("the change, as `bottleneck verify` calls it; 'library-op' for one that it cannot make")]
    what: Annotated[str, Doc("ops and sizes of the piece")]
    calls: Annotated[float, Doc("how often the step runs it")]
    recorded_us: Annotated[
        float | None, Doc("time of all its calls in the recorded step; null where they cannot be told apart", "us")
    ]
    share: Annotated[float, Doc("part of the finding's work that it stands for", "share")]
    as_is_us: Annotated[Timing | None, Doc("one call as it is", "us")] = None
    changed_us: Annotated[Timing | None, Doc("one call with the change", "us")] = None
    ratio: Annotated[
        Ratio | None, Doc("changed / as it is: median over pairs of turns, with its 95 % interval by order statistics")
    ] = None
    at_worst: Annotated[Ratio | None, Doc("the same for the least favourable way to make the change")] = None
    reason: Annotated[str | None, Doc("why it was not measured; null where it was")] = None
    source: Annotated[str | None, Doc("line with most of its work, 'model.py:57'; null where unknown")] = None
    module: Annotated[str | None, Doc("path of nn.Modules with most of its work; null where unknown")] = None


@dataclass(frozen=True)
class MeasuredPieces:
    """Measured pieces of a recording, and those that found no time."""

    budget_s: Annotated[float, Doc("seconds that measuring was allowed to take", "s")]
    spent_s: Annotated[float, Doc("seconds that it took", "s")]
    machine: Annotated[str, Doc("processor or device that they were measured on")]
    threads: Annotated[int | None, Doc("threads that torch computed with")]
    torch: Annotated[str | None, Doc("version of torch")]
    pieces: Annotated[tuple[MeasuredPiece, ...], Doc("pieces that were tried, most promising first")] = ()
    left_out: Annotated[tuple[str, ...], Doc("pieces that found no time, with the seconds that they need")] = ()
    other_processors: Annotated[
        float | None, Doc("processors that other programs kept busy meanwhile; null where the system does not tell")
    ] = None


_MOST_NAMED = 3


def missing_pieces(measured: MeasuredPieces) -> tuple[str, ...]:
    """The lines that name the pieces without times, each with the reason."""
    failed = [f"not measured: {piece.what}: {piece.reason}" for piece in measured.pieces if piece.reason is not None]
    return (*failed, *left_out_words(measured))


def left_out_words(measured: MeasuredPieces, most: int = _MOST_NAMED) -> tuple[str, ...]:
    """Gives the line that names the pieces that found no time.

    It also says how to measure them. Empty where all pieces were measured.
    """
    left = measured.left_out
    if not left:
        return ()
    named = "; ".join(left[:most]) + ("; …" if len(left) > most else "")
    return (
        f"{counted(len(left), 'piece')} left out for lack of time: {named}; to measure more: bottleneck run "
        f"--probe-budget {larger_budget_s(measured):g}",
    )


def larger_budget_s(measured: MeasuredPieces) -> float:
    """A budget that more pieces fit into."""
    return max(60.0, 3 * measured.budget_s)


@dataclass(frozen=True)
class LoaderSetting:
    """Arguments of a DataLoader that change its speed.

    ``prefetch_factor`` is null without workers, and ``batch_size`` where the batches stay as they are.
    """

    num_workers: int = 0
    prefetch_factor: int | None = None
    pin_memory: bool = False
    persistent_workers: bool = False
    batch_size: int | None = None
