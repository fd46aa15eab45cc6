"""Follows the program from the start of its process to its first steady step.

The interpreter tells of imports, torch of compilations. With ``--startup`` a bare thread samples the stack as well.
What each tells is a layer of stretches on one clock; an instant belongs to the first layer that has it, so that the
parts add up to the whole.
"""

import _thread
import bisect
import contextlib
import os
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from types import FrameType
from typing import Any, NamedTuple

from bottleneck.harness.lines import is_program
from bottleneck.harness.run_log import innermost_line
from bottleneck.harness.torch_private import COMPILING_FILES, compilations
from bottleneck.schema.op_names import line_source
from bottleneck.schema.start_up import StartKind, StartLedger, StartPart
from bottleneck.system.process_usage import bytes_from_storage, seconds_since_start

PERIOD_S = 0.01
_MOST_SAMPLES, _DEEPEST = 20_000, 200
# What Python imports modules with.
_import_system: Any = sys.modules["_frozen_importlib"]
# A step is steady from the first on that takes at most so many times the median of the unprofiled ones.
STEADY = 1.5


class PartKey(NamedTuple):
    """Names the work of a stretch, by the fields that tell parts apart."""

    kind: StartKind
    name: str = ""
    source: str | None = None


class Stretch(NamedTuple):
    """A stretch of the clock that only runs forward, in ns."""

    begin_ns: int
    end_ns: int
    key: PartKey | None = None


def disjoint(stretches: Iterable[Stretch]) -> list[Stretch]:
    """The stretches in order, each cut where the one before it ends."""
    cut: list[Stretch] = []
    end_ns = 0
    for stretch in sorted(stretches, key=lambda stretch: stretch[:2]):
        begin_ns = max(stretch.begin_ns, end_ns)
        if stretch.end_ns > begin_ns:
            cut.append(stretch._replace(begin_ns=begin_ns))
            end_ns = stretch.end_ns
    return cut


def divide(whole: Stretch, layers: Sequence[Iterable[Stretch]]) -> tuple[list[list[Stretch]], list[Stretch]]:
    """Gives each instant of the whole to the first layer that has it.

    Returns what each layer got, and what none has.
    """
    free, taken = [whole], []
    for layer in layers:
        got, left = [], []
        stretches = disjoint(layer)
        ends_ns = [stretch.end_ns for stretch in stretches]
        for gap in free:
            at_ns = gap.begin_ns
            for stretch in stretches[bisect.bisect_right(ends_ns, gap.begin_ns) :]:
                if stretch.begin_ns >= gap.end_ns:
                    break
                begin_ns, end_ns = max(stretch.begin_ns, at_ns), min(stretch.end_ns, gap.end_ns)
                if begin_ns > at_ns:
                    left.append(Stretch(at_ns, begin_ns))
                got.append(stretch._replace(begin_ns=begin_ns, end_ns=end_ns))
                at_ns = end_ns
            if at_ns < gap.end_ns:
                left.append(Stretch(at_ns, gap.end_ns))
        free = left
        taken.append(got)
    return taken, free


class ImportClock:
    """Times the imports of the main thread by top-level package, each for itself alone.

    Modules of the standard library count for what imports them, those of the program are its own Python. It replaces
    the function of the import system that loads a module. Its frame has the file name of that system, so that
    tracebacks leave it out as they do the others. A module takes a microsecond more.
    """

    def __init__(self, clock_ns: Callable[[], int]) -> None:
        self.stretches: list[Stretch] = []
        self.cold: dict[str, bool] = {}
        self.sources: dict[str, str | None] = {}
        self._clock_ns = clock_ns
        self._thread = threading.get_ident()
        self._open: list[tuple[str, int]] = []
        self._plain: Any = None
        self._ours: Any = None

    def start(self) -> None:
        """Follows each import from now on."""
        self._plain = getattr(_import_system, "_load_unlocked", None)
        if self._plain is None:  # another version of Python
            return
        space = {"enter": self.enter, "leave": self.leave, "load": self._plain}
        exec(compile(_LOAD, _FROZEN, "exec"), space)
        self._ours = space["_load_unlocked"]
        _import_system._load_unlocked = self._ours

    def stop(self) -> None:
        """Gives the import system its own function back."""
        if self._ours is not None and _import_system._load_unlocked is self._ours:
            _import_system._load_unlocked = self._plain
        self._ours = None

    def enter(self, spec: Any) -> bool:
        """Notes that a module's load begins; true where its end counts too."""
        if self._ours is None or threading.get_ident() != self._thread:
            return False
        package = spec.name.partition(".")[0]
        if self._open and self._open[-1][0] == package:
            return False
        if package in sys.stdlib_module_names or not _is_library(spec.origin):
            return False
        if package not in self.sources:
            self._note_first(package, spec)
        now_ns = self._clock_ns()
        self._close(now_ns)
        self._open.append((package, now_ns))
        return True

    def leave(self) -> None:
        """Notes that this load has ended: the import around it goes on."""
        now_ns = self._clock_ns()
        self._close(now_ns)
        self._open.pop()
        if self._open:
            self._open[-1] = (self._open[-1][0], now_ns)

    def _close(self, now_ns: int) -> None:
        if self._open:
            package, began_ns = self._open[-1]
            self.stretches.append(Stretch(began_ns, now_ns, PartKey("import", package)))

    def _note_first(self, package: str, spec: Any) -> None:
        with contextlib.suppress(Exception):  # specs and frames of any kind
            self.sources[package] = None
            cached = spec.cached
            if cached is not None:
                self.cold[package] = not os.path.exists(cached)  # noqa: PTH110 - as plain text
            innermost = innermost_line(sys._getframe(1))
            if innermost is not None:
                self.sources[package] = line_source(innermost[0].file, innermost[0].line)


_FROZEN = "<frozen importlib._bootstrap>"
_LOAD = """
def _load_unlocked(spec):
    is_timed = enter(spec)
    try:
        return load(spec)
    finally:
        if is_timed:
            leave()
"""


def _is_library(origin: str | None) -> bool:
    return origin is None or origin in ("built-in", "frozen") or not is_program(origin)


# By the end of a file's name and a function (null: any): the work of a library, and what a report calls it.
_WORK: tuple[tuple[tuple[str, ...], tuple[str, ...] | None, StartKind, str], ...] = (
    (("torch", "_inductor", "select_algorithm.py"), None, "autotune", "torch.compile"),
    (("torch", "_inductor", "runtime", "triton_heuristics.py"), ("autotune_to_one_config",), "autotune", "Triton"),
    (("triton", "runtime", "autotuner.py"), None, "autotune", "Triton"),
    (("torch", "_inductor", "cudagraph_trees.py"), None, "capture", "torch.compile"),
    (("torch", "cuda", "graphs.py"), None, "capture", "CUDA graph"),
    (("torch", "cuda", "__init__.py"), ("_lazy_init",), "cuda", ""),
    (("torch", "serialization.py"), ("load",), "weights", "torch.load"),
    (("safetensors", "torch.py"), ("load_file", "load_model"), "weights", "safetensors"),
    (("torch", "nn", "modules", "module.py"), ("load_state_dict",), "weights", "load_state_dict"),
    (("transformers", "modeling_utils.py"), ("from_pretrained",), "weights", "from_pretrained"),
    (("torch", "utils", "data", "dataloader.py"), ("_get_iterator", "__init__"), "data", "start of the loader"),
    (("torch", "utils", "data", "dataloader.py"), None, "data", "batches"),
    (("datasets", "load.py"), None, "data", "datasets.load_dataset"),
    *((name, None, "compile", "") for name in COMPILING_FILES),
)
_BY_FILE: dict[str, list[tuple[str, tuple[str, ...] | None, StartKind, str]]] = {}
for _path, _functions, _kind, _name in _WORK:
    _BY_FILE.setdefault(_path[-1], []).append((os.path.join(*_path), _functions, _kind, _name))  # noqa: PTH118
# Which of a stack's frames tells what the time is spent on: a tuner inside of a compiler, a loader inside of a model.
_ORDER: tuple[StartKind, ...] = ("autotune", "capture", "cuda", "weights", "compile", "data")
# The argument of a function that names the file it reads.
_FILE_ARGUMENTS = {"torch.load": "f", "safetensors": "filename"}


def work_of(frame: FrameType) -> tuple[StartKind, str] | None:
    """The work of a library that a frame tells of; null for any other."""
    file, function = frame.f_code.co_filename, frame.f_code.co_name
    for end, functions, kind, name in _BY_FILE.get(file.rpartition(os.sep)[2], ()):
        if file.endswith(end) and (functions is None or function in functions):
            # The compiled function itself runs in frames of these files too, and they are imported.
            return None if kind == "compile" and function in ("run", "<module>") else (kind, name)
    return None


class StartSampler:
    """Samples a thread's stack; each sample covers the time since the last."""

    def __init__(self, thread: int, clock_ns: Callable[[], int]) -> None:
        self.stretches: list[Stretch] = []
        self.read_bytes: dict[PartKey, int] = {}
        self._thread, self._clock_ns = thread, clock_ns
        self._files: set[tuple[int, str]] = set()
        self._is_on = True
        self._may_look = sys.gettrace() is None  # a debugger writes copies of local variables back

    def start(self) -> None:
        """Samples from now on, in a thread that the program does not see."""
        _thread.start_new_thread(self._run, (os.getpid(),))

    def stop(self) -> None:
        """Ends the thread at its next turn."""
        self._is_on = False

    def _run(self, process: int) -> None:
        period_s, before_ns = PERIOD_S, self._clock_ns()
        while True:
            time.sleep(period_s)
            if not self._is_on or os.getpid() != process:
                return
            frame = sys._current_frames().get(self._thread)
            if frame is None:
                return
            now_ns = self._clock_ns()
            with contextlib.suppress(Exception):  # of what the program's code looks like: nothing of it is lost
                self.note(frame, before_ns, now_ns)
            del frame
            before_ns = now_ns
            if len(self.stretches) >= _MOST_SAMPLES:
                period_s = 1.0

    def note(self, frame: FrameType, begin_ns: int, end_ns: int) -> None:
        """Adds a stretch that ended with this stack."""
        key = self._key(frame)
        last = self.stretches[-1] if self.stretches else None
        if last is not None and last.key == key and last.end_ns == begin_ns:
            self.stretches[-1] = last._replace(end_ns=end_ns)
        elif key is not None:
            self.stretches.append(Stretch(begin_ns, end_ns, key))

    def _key(self, top: FrameType) -> PartKey | None:
        innermost = innermost_line(top)
        source = None if innermost is None else line_source(innermost[0].file, innermost[0].line)
        works: dict[StartKind, tuple[str, FrameType]] = {}
        frame: FrameType | None = top
        depth = 0
        while frame is not None and depth < _DEEPEST:
            work = work_of(frame)
            if work is not None:
                works[work[0]] = work[1], frame
            frame, depth = frame.f_back, depth + 1
        for kind in _ORDER:
            if kind in works:
                name, frame = works[kind]
                key = PartKey(kind, name, source)
                self._look(key, frame)
                return key
        if innermost is None or source is None:
            return None
        return PartKey("program", f"{innermost[0].function}()", source)

    def _look(self, key: PartKey, frame: FrameType) -> None:
        """Adds the size of the file that a call reads, once."""
        argument = _FILE_ARGUMENTS.get(key.name)
        if argument is None or not self._may_look:
            return
        file = frame.f_locals.get(argument)
        if isinstance(file, str | os.PathLike):
            call = id(frame), os.fspath(file)
            if call not in self._files:
                self._files.add(call)
                self.read_bytes[key] = self.read_bytes.get(key, 0) + os.stat(file).st_size  # noqa: PTH116


class StartUpWatch:
    """The start of the program in this process, until ``stop``.

    ``began_ns`` is when the first line of ours ran, by ``clock_ns``. ``since_s`` tells the time since the process was
    started; null where the system does not tell.
    """

    def __init__(
        self,
        *,
        is_sampled: bool = False,
        began_ns: int | None = None,
        clock_ns: Callable[[], int] = time.perf_counter_ns,
        since_s: Callable[[], float | None] = seconds_since_start,
    ) -> None:
        now_ns, age_s = clock_ns(), since_s()
        ours_ns = now_ns if began_ns is None else began_ns
        self._clock_ns = clock_ns
        # The system tells it to a hundredth of a second.
        self._start_ns = ours_ns if age_s is None else min(now_ns - round(age_s * 1e9), ours_ns)
        self._known = [Stretch(self._start_ns, ours_ns, PartKey("interpreter"))]
        self._own = [Stretch(ours_ns, now_ns)]
        self._imports = ImportClock(clock_ns)
        self._sampler = StartSampler(threading.get_ident(), clock_ns) if is_sampled else None
        self._wall_offset_ns = time.time_ns() - now_ns
        self._is_over = False
        self.steps_began_ns: int | None = None
        self._ends: list[Stretch] = []

    def start(self) -> None:
        """Tells that the program begins now; what came before was ours."""
        self._imports.start()
        if self._sampler is not None:
            self._sampler.start()
        self._own[0] = self._own[0]._replace(end_ns=self._clock_ns())

    @contextlib.contextmanager
    def setting_aside(self) -> Iterator[None]:
        """Takes the time inside for our own."""
        began_ns = self._clock_ns()
        try:
            yield
        finally:
            if not self._is_over:
                self._own.append(Stretch(began_ns, self._clock_ns()))

    def begin_steps(self) -> None:
        """Tells that the first step begins now, unless it has begun before."""
        if self.steps_began_ns is None:
            self.steps_began_ns = self._clock_ns()

    def stop(self) -> None:
        """Follows nothing any more."""
        self._is_over = True
        self._imports.stop()
        if self._sampler is not None:
            self._sampler.stop()

    def finish(self, steps: Sequence[Stretch], own: Sequence[Stretch], usual_s: float | None) -> StartLedger:
        """Ends the watch and sums the start.

        ``steps`` are the program's first ones in order, ``own`` is time between them that was ours, ``usual_s`` the
        median of the unprofiled steps; null where none were timed.
        """
        self.stop()
        if steps and self.steps_began_ns is not None:
            first = steps[0]
            steps = [first._replace(begin_ns=max(first.begin_ns, self.steps_began_ns)), *steps[1:]]
        steady = None if usual_s is None else find_steady(steps, usual_s)
        now_ns = self._clock_ns()
        end_ns = now_ns if steady is None else steps[steady].begin_ns
        began_ns = self.steps_began_ns if self.steps_began_ns is not None and self.steps_began_ns < end_ns else end_ns
        whole = Stretch(self._start_ns, end_ns)
        graphs = [graph for graph in compilations() if graph.begin_ns - self._wall_offset_ns < end_ns]
        samples = [] if self._sampler is None else self._sampler.stretches
        lines = [
            Stretch(sample.begin_ns, min(sample.end_ns, began_ns), sample.key)
            for sample in samples
            if sample.key is not None and sample.key.kind == "program"
        ]
        taken, free = divide(
            whole,
            (
                [*self._own, *own],
                self._known,
                self._imports.stretches,
                _of_kinds(samples, "autotune", "capture"),
                [
                    Stretch(
                        graph.begin_ns - self._wall_offset_ns,
                        graph.end_ns - self._wall_offset_ns,
                        PartKey("compile", graph.name, graph.source),
                    )
                    for graph in graphs
                ],
                _of_kinds(samples, "cuda", "weights", "data", "compile"),
                lines,
                [Stretch(self._start_ns, began_ns, PartKey("program"))],
            ),
        )
        aside, *parted = taken
        seconds: dict[PartKey, float] = {}
        for stretch in (stretch for layer in parted for stretch in layer):
            assert stretch.key is not None, "only our own stretches have no key"
            seconds[stretch.key] = seconds.get(stretch.key, 0.0) + _length_s(stretch)
        rest_s = sum(map(_length_s, free))
        # Where no step was steady nothing tells warm-up from the steps.
        steps_s = rest_s if steady is None or usual_s is None else min(rest_s, steady * usual_s)
        seconds[PartKey("steps")], seconds[PartKey("warm-up")] = steps_s, rest_s - steps_s
        parts = [self._part(key, length_s, graphs) for key, length_s in seconds.items() if length_s > 0]
        return StartLedger(
            total_s=sum(part.seconds for part in parts),
            own_s=sum(map(_length_s, aside)),
            parts=tuple(sorted(parts, key=lambda part: -part.seconds)),
            steps=steady,
            is_sampled=self._sampler is not None,
            storage_bytes=bytes_from_storage(),
        )

    def _part(self, key: PartKey, seconds: float, graphs: Sequence[Any]) -> StartPart:
        if key.kind == "import":
            source, is_cold = self._imports.sources.get(key.name), self._imports.cold.get(key.name)
            return StartPart(key.kind, key.name, seconds, source, is_cold=is_cold)
        mine = [graph for graph in graphs if key == PartKey("compile", graph.name, graph.source)]
        stages: dict[str, float] = {}
        for graph in mine:
            for stage, stage_s in graph.stages.items():
                stages[stage] = stages.get(stage, 0.0) + stage_s
        hits, misses = sum(graph.hits for graph in mine), sum(graph.misses for graph in mine)
        return StartPart(
            *key[:2],
            seconds,
            key.source,
            bytes=None if self._sampler is None else self._sampler.read_bytes.get(key),
            is_cold=misses > 0 if hits or misses else None,
            stages=stages,
        )


def _of_kinds(samples: Iterable[Stretch], *kinds: StartKind) -> list[Stretch]:
    return [sample for sample in samples if sample.key is not None and sample.key.kind in kinds]


def _length_s(stretch: Stretch) -> float:
    return (stretch.end_ns - stretch.begin_ns) / 1e9


def find_steady(steps: Sequence[Stretch], usual_s: float) -> int | None:
    """Finds the first step that is as short as usual; null without one."""
    return next((number for number, step in enumerate(steps) if _length_s(step) <= STEADY * usual_s), None)
