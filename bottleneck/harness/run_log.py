"""Follows a run between and after its measured steps.

It logs the end of each step and samples the program's stack.

A step costs one reading of each clock. The samples come from a thread of our own, which runs only when nothing more is
timed or profiled.
"""

import _thread
import bisect
import contextlib
import gc
import linecache
import math
import os
import re
import statistics
import sys
import threading
import time
from array import array
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import combinations, pairwise
from types import FrameType, MappingProxyType
from typing import Any, NamedTuple

from bottleneck.harness.lines import OURS, is_program
from bottleneck.harness.searched import PrecedingSearches, searched_at
from bottleneck.harness.torch_private import COMPILING_FILES, CompiledGraph
from bottleneck.schema.measurements import (
    BetweenKind,
    BetweenPlace,
    PiledHooks,
    RunSteps,
    SampledLine,
    SearchedContainer,
    StepGrowth,
)
from bottleneck.schema.op_names import line_source, place_of
from bottleneck.schema.recording import kept_source

PERIOD_S = 0.02
# A sample holds the interpreter for 20 to 50 us.
_MOST_SAMPLES, _MOST_STEPS, _DEEPEST = 20_000, 1_000_000, 200

# Of the switch interval: a thread that waited so long for the interpreter had to make the other one hand over.
_FORCED = 0.8
_QUICK_S = 5e-5
# A line is looked at so often at most; a search through so many items takes longer than what is around it.
_MOST_LOOKS, _MANY_ITEMS = 5, 200

# (file, line, function) of the program's frames, outermost first.
Stack = tuple[tuple[str, int, str], ...]

_DATALOADER = os.path.join("torch", "utils", "data", "dataloader.py")  # noqa: PTH118 - as plain text
_MODULE_CALL = os.path.join("torch", "nn", "modules", "module.py")  # noqa: PTH118 - as plain text
_SERIALIZATION = os.path.join("torch", "serialization.py")  # noqa: PTH118 - as plain text
_COMPILERS = tuple(
    os.path.join(*name)  # noqa: PTH118 - as plain text
    for name in COMPILING_FILES
)
# Calls of what was compiled before; and the import of the compiler, which the first optimizer asks for.
_NO_COMPILING = ("run", "<module>")
_OF_WORKERS = ("_get_iterator", "_shutdown_workers", "__del__", "_clean_up_worker")


class LinePlace(NamedTuple):
    """The innermost line of the program in a stack.

    ``callees`` are the first functions of libraries below it.
    """

    file: str
    line: int
    function: str
    callees: tuple[str, ...] = ()


@dataclass(frozen=True)
class StackSample:
    """The stack at an instant of the steps' clock.

    Also what the library was doing then, and the innermost line.
    """

    at_ns: int
    stack: Stack
    kind: BetweenKind | None
    place: LinePlace | None = None


def kind_of(file: str, function: str) -> BetweenKind | None:
    """The work that a frame of a library tells of."""
    if file.endswith(_DATALOADER):
        return "workers" if function in _OF_WORKERS else "input"
    if file.endswith(_SERIALIZATION) and function == "save":
        return "checkpoint"
    return "compile" if file.endswith(_COMPILERS) and function not in _NO_COMPILING else None


def read_stack(frame: FrameType | None) -> tuple[Stack, BetweenKind | None]:
    """Reads the program's frames down to its first call of a module.

    Also gives what the library below was doing.
    """
    frames: list[tuple[str, int, str]] = []
    kinds: set[BetweenKind] = set()
    depth = 0
    while frame is not None and depth < _DEEPEST:
        code, depth = frame.f_code, depth + 1
        if code.co_filename.endswith(_MODULE_CALL):
            frames.clear()
        elif not code.co_filename.startswith(OURS) and is_program(code.co_filename):
            frames.append((code.co_filename, frame.f_lineno, code.co_name))
        elif (kind := kind_of(code.co_filename, code.co_name)) is not None:
            kinds.add(kind)
        frame = frame.f_back
    order: tuple[BetweenKind, ...] = ("compile", "checkpoint", "workers", "input")
    return tuple(reversed(frames)), next((kind for kind in order if kind in kinds), None)


_LIBRARY_FOLDER = re.compile(r"^.*(?:site-packages|dist-packages|[Ll]ib[/\\\\]python[\d.]+t?)[/\\\\]")
_MOST_CALLEES = 2


def innermost_line(frame: FrameType | None) -> tuple[LinePlace, FrameType] | None:
    """Gives the innermost line of the program, with its frame.

    It may be inside a module. Null where there is none.
    """
    below: list[str] = []
    depth = 0
    while frame is not None and depth < _DEEPEST:
        code, depth = frame.f_code, depth + 1
        file = code.co_filename
        if not file.startswith(OURS) and is_program(file):
            callees = tuple(reversed(below[-_MOST_CALLEES:]))
            return LinePlace(file, frame.f_lineno, code.co_name, callees), frame
        if not file.startswith((OURS, "<")):
            below.append(f"{_LIBRARY_FOLDER.sub('', file).replace(os.sep, '/')}: {code.co_name}")
        frame = frame.f_back
    return None


@dataclass
class LineWatch:
    """Finds the line of the program that a stack is at.

    It looks once at what the line's membership tests look through.
    """

    searched: dict[tuple[str, int], SearchedContainer] = field(default_factory=dict)
    may_look: bool = True
    _looks: "Counter[tuple[str, int]]" = field(default_factory=Counter)
    _tests: PrecedingSearches = field(default_factory=PrecedingSearches)

    def place_of(self, top: FrameType, *, is_forced: bool) -> LinePlace | None:
        """Finds the line of the program that this frame is at.

        ``is_forced`` where the thread handed over at the first instruction at which it had to.

        What a search through many items takes is sampled at that instruction, which may be on a line that follows.
        """
        innermost = innermost_line(top)
        if innermost is None:
            return None
        place, frame = innermost
        self._look(place, frame)
        line = self._tests.before(top, frame) if is_forced else None
        if line is None or line == place.line:
            return place
        tested = LinePlace(place.file, line, place.function)
        self._look(tested, frame)
        seen = self.searched.get((place.file, line))
        return tested if seen is not None and seen.is_scanned and seen.items >= _MANY_ITEMS else place

    def _look(self, place: LinePlace, frame: FrameType) -> None:
        key = (place.file, place.line)
        if not self.may_look or key in self.searched or self._looks[key] >= _MOST_LOOKS:
            return
        self._looks[key] += 1
        container = searched_at(frame, linecache.getline(*key))
        if container is not None:
            self.searched[key] = container


class QuickHandover:
    """Has the interpreter hand over to a sampler at once.

    Only while the program has no other thread of Python.

    Else the sampler waits until the program lets it, which is in an op of torch as a rule: a line of pandas that took
    0.4 ms was sampled in the call of `torch.tensor` that followed, which took 5 us. With other threads it would change
    how these take turns.
    """

    def __init__(self) -> None:
        self._usual_s = sys.getswitchinterval()

    @property
    def interval_s(self) -> float:
        """The time after which a thread that wants to run gets its turn."""
        return sys.getswitchinterval()

    def adjust(self, threads: int) -> None:
        """Looks whether there are others beside the sampler and the thread that it samples."""
        if threads <= 2 and math.isclose(self.interval_s, self._usual_s):
            sys.setswitchinterval(_QUICK_S)
        elif threads > 2:
            self.give_back()

    def give_back(self) -> None:
        """Puts the program's own interval back, unless it has set another meanwhile."""
        if math.isclose(self.interval_s, _QUICK_S):
            sys.setswitchinterval(self._usual_s)


@dataclass
class RunLog:
    """The ends of the steps of one source, from the first on.

    They are read from a clock that only runs forward.

    ``own_ns`` is what we took after a step's end, ``profiled`` are the steps in which a window was open; both by the
    number of the step that follows that end. ``step_lines`` ('train.py:57') were in most of the profiled steps.
    ``cpu_clock_ns`` reads the processor time of the program, which other programs do not stretch as they do the time
    of the wall; null where it is not followed. ``compilations`` are those of torch.compile, by the clock of the steps.
    """

    clock_ns: Callable[[], int] = time.perf_counter_ns
    cpu_clock_ns: Callable[[], int] | None = None
    ticks: "array[int]" = field(default_factory=lambda: array("q"))
    cpu_ticks: "array[int]" = field(default_factory=lambda: array("q"))
    own_ns: dict[int, int] = field(default_factory=dict)
    profiled: set[int] = field(default_factory=set)
    samples: list[StackSample] = field(default_factory=list)
    functions: frozenset[tuple[str, str]] = frozenset()
    step_lines: frozenset[str] = frozenset()
    compilations: Sequence[CompiledGraph] = ()
    is_full: bool = False
    _sleep: Callable[[float], None] = time.sleep
    watch: LineWatch = field(default_factory=LineWatch)
    _sampled_from: int | None = None
    _is_sampling: bool = False
    _handover: QuickHandover | None = None

    def mark(self) -> None:
        """Notes the end of a step."""
        if self.cpu_clock_ns is not None:
            self.cpu_ticks.append(self.cpu_clock_ns())
        self.ticks.append(self.clock_ns())

    def note_own(self, *, is_profiled: bool) -> None:
        """Notes that all since the last mark was our own time.

        ``is_profiled`` says whether the step that follows is profiled.
        """
        step = len(self.ticks) - 1
        self.own_ns[step] = self.clock_ns() - self.ticks[step]
        if is_profiled:
            self.profiled.add(step)

    def first_steps(self) -> tuple[list[tuple[int, int]], list[tuple[int, int]]]:
        """The begin and end of the steps so far that were not profiled.

        Also the stretches between them that were our own, or were profiled. When the first step began is not known: it
        is taken to begin at 0.
        """
        steps: list[tuple[int, int]] = []
        own: list[tuple[int, int]] = []
        begin_ns = 0
        for number, end_ns in enumerate(self.ticks):
            own_end_ns = end_ns + self.own_ns.get(number, 0)
            (own if number - 1 in self.profiled else steps).append((begin_ns, end_ns))
            own.append((end_ns, own_end_ns))
            begin_ns = own_end_ns
        return steps, own

    def restart(self) -> None:
        """Forgets the steps: another source was found to end them."""
        del self.ticks[:], self.cpu_ticks[:]
        self.own_ns.clear()
        self.profiled.clear()

    def start_sampling(self) -> None:
        """Samples the stack of this thread from now on.

        A step has just ended in it.
        """
        stack, _ = read_stack(sys._getframe(1))
        self.functions = frozenset((file, function) for file, _, function in stack)
        # A debugger writes the copies of local variables that it reads back into the program.
        self.watch.may_look = sys.gettrace() is None
        self._sampled_from, self._is_sampling = threading.get_ident(), True
        self._handover = QuickHandover()
        os.register_at_fork(after_in_child=self._handover.give_back)
        _thread.start_new_thread(self._sample, (os.getpid(),))

    def stop_sampling(self) -> None:
        """Ends the thread at its next turn."""
        self._is_sampling = False
        if self._handover is not None:
            self._handover.give_back()

    def _sample(self, process: int) -> None:
        handover = self._handover or QuickHandover()
        try:
            self._sample_until_told(process, handover)
        finally:
            handover.give_back()

    def _sample_until_told(self, process: int, handover: QuickHandover) -> None:
        period_s = PERIOD_S
        while True:
            forced_ns = round(_FORCED * handover.interval_s * 1e9)
            due_ns = self.clock_ns() + round(period_s * 1e9)
            self._sleep(period_s)
            if not self._is_sampling or os.getpid() != process or self._sampled_from is None:
                return
            frames = sys._current_frames()
            frame = frames.get(self._sampled_from)
            if frame is None:
                return
            handover.adjust(len(frames))
            del frames
            at_ns, place = self.clock_ns(), None
            with contextlib.suppress(Exception):  # of what the program's code looks like: nothing of it is lost
                place = self.watch.place_of(frame, is_forced=at_ns - due_ns >= forced_ns)
            self.samples.append(StackSample(at_ns, *read_stack(frame), place))
            del frame
            if len(self.samples) >= _MOST_SAMPLES:
                self.samples, period_s = self.samples[::2], 2 * period_s
            if len(self.ticks) > _MOST_STEPS:
                self.is_full = True
                return

    def summarise(self) -> RunSteps | None:
        """Summarises the whole run.

        Null where there are too few steps to tell anything.
        """
        return summarise_run(self)


# From so many steps on, what is usual is told from what is not; a step of more than so many times its neighbours'
# median holds something else besides.
_LEAST_STEPS, _FAR = 20, 3.0
_LEAST_BLOCK, _BLOCKS = 10, 20
# Growth is told from so many blocks on, where far more of the later ones are longer than earlier ones than by chance
# (Kendall's tau, 2.6 of its standard deviations), and the last is longer than the first by this factor.
_LEAST_TREND_BLOCKS, _LEAST_TAU, _DEVIATIONS, _LEAST_GROWTH = 6, 0.5, 2.6, 1.3
_LEAST_SAMPLES, _MOST_PLACES, _LEAST_SHARE = 3, 5, 0.03
# Of the samples in usual steps: lines with less are not kept, and none where there are too few samples to tell.
_MOST_LINES, _LEAST_OF_LINE, _LEAST_IN_STEPS, _MOST_OF_LINE = 12, 0.02, 20, 0.5


@dataclass(frozen=True)
class _FollowedStep:
    """One step that was not profiled.

    Holds its number, begin and length, and the median of the steps around it.
    """

    number: int
    begin_ns: int
    us: float
    usual_us: float

    @property
    def is_usual(self) -> bool:
        return self.us <= _FAR * self.usual_us

    @property
    def elsewhere_us(self) -> float:
        return 0.0 if self.is_usual else self.us - self.usual_us


def summarise_run(log: RunLog) -> RunSteps | None:
    """Summarises the whole run.

    Null where there are too few steps to tell anything.
    """
    steps = _steps_of(log)
    if len(steps) < _LEAST_STEPS:
        return None
    usual = [step for step in steps if step.is_usual]
    sampled = _by_step(steps, log.samples)
    long = [step for step in steps if not step.is_usual]
    parts = _divide_long(long, sampled, log)
    growth = _growth(usual, sampled) if _is_more_work(usual, log.cpu_ticks) else None
    return RunSteps(
        steps=len(steps),
        total_us=sum(step.us for step in steps),
        typical_us=statistics.median(step.us for step in usual),
        elsewhere_us=parts.elsewhere_us,
        held_us=parts.held_us,
        gaps=len(long),
        places=_places_of(parts),
        growth=growth,
        hooks=None if growth is None else find_piled_hooks(len(log.ticks)),
        lines=_lines_of([sample for step in usual for sample in sampled.get(step.number, ())], log.watch.searched),
    )


def _lines_of(
    samples: Sequence[StackSample], searched: Mapping[tuple[str, int], SearchedContainer]
) -> tuple[SampledLine, ...]:
    """Gives the lines that usual steps were at, most samples first.

    Empty where there are too few samples.
    """
    if len(samples) < _LEAST_IN_STEPS:
        return ()
    by_line: dict[tuple[str, int, str], list[tuple[str, ...]]] = {}
    for sample in samples:
        if sample.place is not None:
            file, line, function, callees = sample.place
            by_line.setdefault((file, line, function), []).append(callees)
    ordered = sorted(by_line.items(), key=lambda entry: -len(entry[1]))[:_MOST_LINES]
    return tuple(
        SampledLine(
            source=line_source(file, line),
            share=len(chains) / len(samples),
            function=function,
            text=_text_of(file, line),
            callees=_most_called(chains),
            searched=searched.get((file, line)),
        )
        for (file, line, function), chains in ordered
        if len(chains) / len(samples) >= _LEAST_OF_LINE
    )


def _most_called(chains: Sequence[tuple[str, ...]]) -> tuple[str, ...]:
    """Gives the library functions that most samples of a line were in.

    The chain ends where they no longer agree.
    """
    callees: tuple[str, ...] = ()
    for depth in range(_MOST_CALLEES):
        named = Counter(chain[depth] for chain in chains if chain[:depth] == callees and len(chain) > depth)
        most = next(iter(named.most_common(1)), None)
        if most is None or most[1] < _MOST_OF_LINE * len(chains):
            break
        callees = (*callees, most[0])
    return callees or _most_called_of_package(chains)


def _most_called_of_package(chains: Sequence[tuple[str, ...]]) -> tuple[str, ...]:
    """Gives the most sampled function of the most sampled package.

    Empty where that package has too few of the samples. A line of pandas calls several functions of its own.
    """
    named = Counter(chain[0] for chain in chains if chain and not chain[0].startswith("torch/"))
    packages: Counter[str] = Counter()
    for function, count in named.items():
        packages[function.partition("/")[0]] += count
    package, count = next(iter(packages.most_common(1)), ("", 0))
    if count < _MOST_OF_LINE * len(chains):
        return ()
    return (next(function for function, _ in named.most_common() if function.partition("/")[0] == package),)


def _steps_of(log: RunLog) -> list[_FollowedStep]:
    """Gives the steps that were not profiled, less our own time.

    Each has the median of its block.
    """
    timed: list[tuple[int, int, float]] = []
    for number, (begin_ns, end_ns) in enumerate(pairwise(log.ticks)):
        if number not in log.profiled:
            own_ns = log.own_ns.get(number, 0)
            timed.append((number, begin_ns + own_ns, max(end_ns - begin_ns - own_ns, 0) / 1e3))
    size = max(_LEAST_BLOCK, len(timed) // _BLOCKS)
    steps: list[_FollowedStep] = []
    for low in range(0, len(timed), size):
        # The last block is filled up with those before it.
        block = timed[low : low + size] if low + size <= len(timed) else timed[-size:]
        usual_us = statistics.median(us for _, _, us in block)
        steps += [_FollowedStep(*step, usual_us) for step in timed[low : low + size]]
    return steps


def _by_step(steps: Sequence[_FollowedStep], samples: Iterable[StackSample]) -> dict[int, list[StackSample]]:
    begins = [step.begin_ns for step in steps]
    by_number: dict[int, list[StackSample]] = {}
    for sample in samples:
        at = bisect.bisect_right(begins, sample.at_ns) - 1
        if at >= 0 and sample.at_ns <= steps[at].begin_ns + steps[at].us * 1e3:
            by_number.setdefault(steps[at].number, []).append(sample)
    return by_number


# File, line, function that it calls, and what the library was doing.
_Place = tuple[str, int, str | None, BetweenKind | None]


def _is_of_step(place: _Place, step_lines: frozenset[str]) -> bool:
    """Tells whether the steps themselves were at this line.

    Then another program, as a rule, held them up.
    """
    file, line, _, kind = place
    return kind in {None, "input"} and f"{os.path.basename(file)}:{line}" in step_lines  # noqa: PTH119 - as plain text


class _LongParts(NamedTuple):
    """Time of long steps beyond the usual ones.

    It is divided by place; ``held_us`` were held up, of ``unknown_us`` nothing is known. ``inner`` are the lines (file
    and number) that most samples of a place were at, ``elements`` lines that read elements one by one, where most were
    at such.
    """

    place_us: Mapping[_Place, float]
    held_us: float
    unknown_us: float
    inner: Mapping[_Place, tuple[str, int]] = MappingProxyType({})
    elements: Mapping[_Place, tuple[str, int]] = MappingProxyType({})

    @property
    def elsewhere_us(self) -> float:
        return math.fsum(self.place_us.values()) + self.unknown_us


def _divide_long(
    long: Sequence[_FollowedStep], sampled: Mapping[int, Sequence[StackSample]], log: RunLog
) -> _LongParts:
    """Divides what long steps take beyond the usual ones.

    The compiler tells its own part. The samples of the rest share it out, for the steps since sampling began; too few
    of them tell nothing.
    """
    place_us: dict[_Place, float] = defaultdict(float)
    left_us: dict[int, float] = {}
    gaps: list[tuple[_FollowedStep, Sequence[StackSample]]] = []
    for step in long:
        compiled = _compiled_in(step, log.compilations)
        for place, (us, _) in compiled.items():
            place_us[place] += us
        spans = [span for _, of_place in compiled.values() for span in of_place]
        others = [
            sample
            for sample in sampled.get(step.number, ())
            if not any(begin_ns <= sample.at_ns < end_ns for begin_ns, end_ns in spans)
        ]
        left_us[step.number] = max(step.elsewhere_us - math.fsum(us for us, _ in compiled.values()), 0.0)
        gaps.append((step, others))
    located = list(_find_places(gaps, log.functions))
    counts = Counter(place for place, _ in located)
    total = sum(counts.values())
    if total < _LEAST_SAMPLES:
        return _LongParts(place_us, 0.0, math.fsum(left_us.values()))
    elsewhere = {place: count for place, count in counts.items() if not _is_of_step(place, log.step_lines)}
    in_step = total - sum(elsewhere.values())
    # A long step does the work of a usual one too: only what is beyond that, at the same lines, is held up.
    held = max(in_step - _usual_samples(gaps, left_us), 0.0)
    shared = held + sum(elsewhere.values())
    shared_us = _shared_us(long, left_us, log.samples[0].at_ns, are_held=held > shared / 2)
    if shared == 0:
        return _LongParts(place_us, shared_us, math.fsum(left_us.values()) - shared_us)
    for place, count in elsewhere.items():
        place_us[place] += shared_us * count / shared
    unknown_us = math.fsum(left_us.values()) - shared_us
    lines = _lines_inside(located)
    return _LongParts(place_us, shared_us * held / shared, unknown_us, _inner_lines(lines), _element_lines(lines))


# Long steps before sampling began are like those after it where they take so many times as long at most.
_LIKE, _LEAST_LIKE = 1.5, 2


def _shared_us(long: Sequence[_FollowedStep], left_us: Mapping[int, float], first_ns: int, *, are_held: bool) -> float:
    """Gives the time of long steps that samples share out.

    That is the time since the first sample, and that of earlier steps that take about as long as the sampled ones: an
    evaluation comes every so many steps. What other programs delay (``are_held``) does not come again like this.
    """
    sampled_us = [left_us[step.number] for step in long if step.begin_ns + step.us * 1e3 >= first_ns]
    if are_held or len(sampled_us) < _LEAST_LIKE:
        return math.fsum(sampled_us)
    usual_us = statistics.median(sampled_us)
    earlier_us = [left_us[step.number] for step in long if step.begin_ns + step.us * 1e3 < first_ns]
    return math.fsum(sampled_us) + math.fsum(us for us in earlier_us if usual_us / _LIKE <= us <= usual_us * _LIKE)


def _usual_samples(gaps: Sequence[tuple[_FollowedStep, Sequence[StackSample]]], left_us: Mapping[int, float]) -> float:
    """Gives the number of samples that the long steps have of usual ones.

    ``left_us`` is what a long step takes beyond a usual one and beyond what the compiler tells.
    """
    return math.fsum(
        len(samples) * step.usual_us / (step.usual_us + left_us[step.number])
        for step, samples in gaps
        if step.usual_us > 0
    )


def _compiled_in(
    step: _FollowedStep, graphs: Sequence[CompiledGraph]
) -> dict[_Place, tuple[float, list[tuple[int, int]]]]:
    """Gives the time in this step that each function was compiled in, and when.

    All of them together take no more than the step has beyond a usual one. A compilation inside of another is a part
    of that.
    """
    parts: dict[_Place, tuple[float, list[tuple[int, int]]]] = {}
    at_ns, end_ns, left_us = step.begin_ns, step.begin_ns + round(step.us * 1e3), step.elsewhere_us
    for graph in sorted(graphs, key=lambda graph: graph.begin_ns):
        begin_ns, until_ns = max(graph.begin_ns, at_ns), min(graph.end_ns, end_ns)
        place = None if graph.source is None else place_of(graph.source)
        if place is None or until_ns <= begin_ns:
            continue
        key: _Place = (place.file, place.line, graph.name.removesuffix("()"), "compile")
        us, spans = parts.get(key, (0.0, []))
        more_us = min((until_ns - begin_ns) / 1e3, left_us)
        parts[key] = (us + more_us, [*spans, (begin_ns, until_ns)])
        at_ns, left_us = until_ns, left_us - more_us
    return parts


def _find_places(
    gaps: Sequence[tuple[_FollowedStep, Sequence[StackSample]]], functions: frozenset[tuple[str, str]]
) -> Iterator[tuple[_Place, Stack]]:
    """Gives the line and the stack of each sample in the long steps.

    The line is the innermost in a function that the steps run in too.
    """
    for _, samples in gaps:
        restarts = any(sample.kind == "workers" for sample in samples)
        for sample in samples:
            # New workers deliver their first batch late.
            kind = "workers" if restarts and sample.kind == "input" else sample.kind
            place = _place_in(sample.stack, functions)
            if place is not None:
                yield (*place, kind), sample.stack


def _lines_inside(located: Iterable[tuple[_Place, Stack]]) -> dict[_Place, Counter[tuple[str, int]]]:
    """Counts the samples of each place by the program's innermost line.

    It is inside of the function that the place calls, and outside of modules; other places are left out.
    """
    lines: dict[_Place, Counter[tuple[str, int]]] = defaultdict(Counter)
    for place, stack in located:
        if place[2] is not None:
            lines[place][stack[-1][:2]] += 1
    return lines


def _inner_lines(lines: Mapping[_Place, Counter[tuple[str, int]]]) -> dict[_Place, tuple[str, int]]:
    """Gives the line that most samples of a place were at."""
    most = {place: counts.most_common(1)[0] for place, counts in lines.items()}
    return {place: line for place, (line, count) in most.items() if count >= _MOST_OF_LINE * lines[place].total()}


# `values[t + 1]`, and the loop whose variable it is; a call of anything but these does more than read elements.
_ELEMENT = re.compile(r"\w\[([A-Za-z_]\w{0,30})(?: ?[+-] ?\w{1,30})?\]")
_LOOP = re.compile(r"for (.{1,100}?) in ")
_CALL = re.compile(r"(\w{1,60})\(")
_PLAIN_CALLS = frozenset({"len", "float", "int", "bool", "min", "max", "abs", "item"})


def _element_lines(lines: Mapping[_Place, Counter[tuple[str, int]]]) -> dict[_Place, tuple[str, int]]:
    """Gives the line with most samples that reads elements one by one.

    Null where less than half of a place's samples were at such lines.
    """
    read: dict[_Place, tuple[str, int]] = {}
    for place, counts in lines.items():
        elements = Counter({line: count for line, count in counts.items() if _reads_elements(*line)})
        if elements and elements.total() >= _MOST_OF_LINE * counts.total():
            read[place] = elements.most_common(1)[0][0]
    return read


def _reads_elements(file: str, line: int) -> bool:
    """True for a line that reads at the variable of a loop.

    The loop is around it, and it calls nothing that does more.
    """
    text = linecache.getline(file, line)
    read = set(_ELEMENT.findall(text))
    return bool(read) and _PLAIN_CALLS.issuperset(_CALL.findall(text)) and bool(read & _loop_variables(file, line))


def _loop_variables(file: str, line: int) -> set[str]:
    """Returns the variables of the loops around a line, within its function."""
    lines, variables = linecache.getlines(file)[:line], set[str]()
    indent = _indent(lines[-1]) if lines else 0
    for text in reversed(lines[-_MOST_AROUND:]):
        if not text.strip() or _indent(text) >= indent:
            continue
        indent, code = _indent(text), text.strip()
        if code.startswith(("def ", "class ", "async def ")):
            break
        if (loop := _LOOP.match(code)) is not None:
            variables.update(re.findall(r"\w+", loop[1]))
    return variables


_MOST_AROUND = 200  # lines of a function that are looked at


def _indent(text: str) -> int:
    return len(text) - len(text.lstrip())


def _places_of(parts: _LongParts) -> tuple[BetweenPlace, ...]:
    """The lines that held the time between steps, largest first."""
    total_us = parts.elsewhere_us
    ordered = sorted(parts.place_us.items(), key=lambda entry: -entry[1])[:_MOST_PLACES]
    return tuple(
        _between_place(place, us / total_us, parts) for place, us in ordered if us > 0 and us / total_us >= _LEAST_SHARE
    )


def _between_place(place: _Place, share: float, parts: _LongParts) -> BetweenPlace:
    file, line, function, kind = place
    elements = parts.elements.get(place) if kind is None else None
    inner = elements or parts.inner.get(place)
    kind = kind if elements is None else "elements"
    return BetweenPlace(
        source=line_source(file, line),
        share=share,
        function=function,
        kind=kind,
        text=_text_of(file, line),
        inner=None if inner is None else line_source(*inner),
        inner_text=None if inner is None else _text_of(*inner),
    )


def _place_in(stack: Stack, functions: frozenset[tuple[str, str]]) -> tuple[str, int, str | None] | None:
    """Finds the innermost line in a function that the steps run in.

    Also gives the function that this line has called.
    """
    if not stack:
        return None
    inside = 0
    while inside + 1 < len(stack) and (stack[inside + 1][0], stack[inside + 1][2]) in functions:
        inside += 1
    file, line, _ = stack[inside]
    return file, line, stack[inside + 1][2] if inside + 1 < len(stack) else None


def _text_of(file: str, line: int) -> str | None:
    return kept_source(linecache.getline(file, line)) or None


def _blocks(usual: Sequence[_FollowedStep]) -> list[Sequence[_FollowedStep]]:
    size = max(_LEAST_BLOCK, len(usual) // _BLOCKS)
    return [usual[low : low + size] for low in range(0, len(usual) - size + 1, size)]


def _trend(points: Sequence[tuple[float, float]]) -> bool:
    """Tells whether the points rise with time.

    The later ones have to be higher far more often than by chance, and the last far higher than the first.
    """
    count = len(points)
    if count < _LEAST_TREND_BLOCKS:
        return False
    tau = statistics.fmean((late > early) - (late < early) for (_, early), (_, late) in combinations(points, 2))
    chance = math.sqrt(2 * (2 * count + 5) / (9 * count * (count - 1)))
    return tau >= max(_LEAST_TAU, _DEVIATIONS * chance) and points[-1][1] >= _LEAST_GROWTH * points[0][1]


def _is_more_work(usual: Sequence[_FollowedStep], cpu_ticks: Sequence[int]) -> bool:
    """Tells whether the processor time of the steps grows too.

    It has to grow by half as much at least. True as well where it is unknown.

    Without that, other programs stretch the later steps: the load of a machine changes while a program runs.
    """
    if not cpu_ticks:
        return True
    blocks = _blocks(usual)
    cpu_us = [
        statistics.median(cpu_ticks[step.number + 1] - cpu_ticks[step.number] for step in block) / 1e3
        for block in blocks
    ]
    if not _trend([(float(number), us) for number, us in enumerate(cpu_us)]):
        return False
    first_us, last_us = (statistics.median(step.us for step in blocks[at]) for at in (0, -1))
    return cpu_us[-1] - cpu_us[0] >= (last_us - first_us) / 2


def _growth(usual: Sequence[_FollowedStep], sampled: dict[int, list[StackSample]]) -> StepGrowth | None:
    """Measures the growth of the steps by the median slope between blocks.

    Null where they do not grow.
    """
    points = [
        (statistics.fmean(step.number for step in block), statistics.median(step.us for step in block))
        for block in _blocks(usual)
    ]
    if not _trend(points):
        return None
    slope_us = statistics.median(
        (late_us - early_us) / (late - early) for (early, early_us), (late, late_us) in combinations(points, 2)
    )
    (first, first_us), (last, last_us) = points[0], points[-1]
    if slope_us * (last - first) < (last_us - first_us) / 3:
        return None
    early, late = _spent_by_line(usual, sampled)
    if _all_grow_alike(early, late):
        return None
    return StepGrowth(slope_us, round(first), first_us, round(last), last_us, *_grown_place(early, late))


_Spent = Counter[tuple[str, int]]
# Of the growth: with more at one line, that line grows. Of the time by line, what two parts of a run share at least
# where all of their lines grow alike.
_ONE_LINE_GROWS, _ALIKE = 0.6, 0.6


def _all_grow_alike(early: _Spent, late: _Spent) -> bool:
    """Tells whether later steps do more of the same.

    Longer episodes or sequences are more work at each line. What is kept from step to step grows at one.
    """
    early_us, late_us = sum(early.values()), sum(late.values())
    grown_us = [us - early.get(line, 0) for line, us in late.items() if us > early.get(line, 0)]
    if not early_us or not grown_us or max(grown_us) > _ONE_LINE_GROWS * sum(grown_us):
        return False
    shared = math.fsum(min(us / late_us, early.get(line, 0) / early_us) for line, us in late.items())
    return shared >= _ALIKE


def _spent_by_line(usual: Sequence[_FollowedStep], sampled: dict[int, list[StackSample]]) -> tuple[_Spent, _Spent]:
    """Gives the time of a step by program line.

    It is that in the first and in the last third, in microseconds, as far as the samples tell.
    """
    third = len(usual) // 3
    spent: list[Counter[tuple[str, int]]] = []
    for part in (usual[:third], usual[-third:]):
        place_counts = Counter(
            sample.stack[-1][:2] for step in part for sample in sampled.get(step.number, []) if sample.stack
        )
        scale = sum(step.us for step in part) / len(part) / max(sum(place_counts.values()), 1)
        spent.append(Counter({place: count * scale for place, count in place_counts.items()}))
    return spent[0], spent[1]


def _grown_place(early: _Spent, late: _Spent) -> tuple[str | None, str | None]:
    """Finds the program line with most of the growth, and its text."""
    if sum(late.values()) <= 0:
        return None, None
    (file, line), _ = max(late.items(), key=lambda entry: entry[1] - early.get(entry[0], 0))
    return f"{os.path.basename(file)}:{line}", _text_of(file, line)  # noqa: PTH119 - as plain text


# So many hooks of one module are no design.
_MANY_HOOKS = 10


def find_piled_hooks(steps: int) -> PiledHooks | None:
    """Finds the module with the most hooks of one kind.

    Null where there are too few to have come with the steps.
    """
    torch = sys.modules.get("torch")
    if torch is None:
        return None
    kinds = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks")
    most, name = 0, ""
    hooks: Mapping[int, Any] = {}
    for thing in gc.get_objects():
        if not issubclass(type(thing), torch.nn.Module):
            continue
        for kind in kinds:
            held = thing.__dict__.get(kind) or {}
            if len(held) > most:
                most, hooks, name = len(held), held, type(thing).__name__
    if most < max(_MANY_HOOKS, steps // 4):
        return None
    code = getattr([*hooks.values()][-1], "__code__", None)
    return PiledHooks(name, most, None if code is None else _registered_at(code))


def _registered_at(code: Any) -> str:
    """Gives the line near a hook's definition that registers hooks.

    It is the line of the definition where none does.
    """
    lines = linecache.getlines(code.co_filename)
    near = [number for number, text in enumerate(lines, 1) if "register_" in text and "hook" in text]
    best = min(near, key=lambda number: (number < code.co_firstlineno, abs(number - code.co_firstlineno)), default=None)
    return f"{os.path.basename(code.co_filename)}:{best or code.co_firstlineno}"  # noqa: PTH119 - as plain text
