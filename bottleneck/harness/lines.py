"""Records the source line of each function of the program over time.

It adds that to the trace, and reads those lines' text. The profiler names a frame by the line at which its function
begins, or at which the window found it. It does know the line of each call, but only its event tree tells, and no
export writes it.

The profiler tells the lines of calls only: `x + 1` is none, and its op would belong to the first line of the function,
or to the one at which the window found it. Where the text of the program is at hand, operators are found in it.
"""

import ast
import bisect
import itertools
import linecache
import os
import re
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, cached_property
from pathlib import Path
from types import FrameType, ModuleType
from typing import Any

from bottleneck.harness.native_export import NativeActivity
from bottleneck.harness.operator_lines import OperatorLines
from bottleneck.harness.torch_private import event_tree, may_trace_hooks
from bottleneck.schema.op_names import PYTHON_FRAME, file_of, numbered_cell
from bottleneck.schema.recording import kept_source
from bottleneck.schema.source_text import GENERATED
from bottleneck.system.files import read_file

CATEGORY = "python_line"
_GENERATED = re.compile(GENERATED)
_INSTALLED = ("site-packages/", "dist-packages/", "lib/python")


@dataclass(frozen=True)
class Line:
    """Stretch at one line.

    It has the methods that torch's exporter asks of every activity.
    """

    label: str
    start_ns: int
    end_ns: int
    process: int
    thread: int
    category: str = CATEGORY

    def name(self) -> str:
        """The frame's name with the line of the call: 'train.py(57): main'."""
        return self.label

    def timestamp(self) -> int:
        """Start on the Unix clock in nanoseconds."""
        return self.start_ns

    def duration(self) -> int:
        """Length in nanoseconds."""
        return self.end_ns - self.start_ns

    def device_id(self) -> int:
        """The process."""
        return self.process

    def resource_id(self) -> int:
        """The thread."""
        return self.thread

    def type(self) -> str:
        """The category."""
        return self.category

    def _none(self) -> int:
        return 0

    linked_correlation_id = correlation_id = flow_id = _none

    def metadata_json(self) -> str:
        """Nothing more is known."""
        return ""


class WithLines:
    """The results of a profiler with the lines among its activities.

    ``followed`` are stretches that tell every line of the program: then they stand for the profiler's own frames of its
    files, whose clock is another. ``lines`` are those among the activities, once these were asked for. ``own`` are the
    stretches of our own hooks. Where the profiler records no frames (``has_frames``), no lines are looked for.
    """

    def __init__(
        self, results: Any, followed: Sequence[Line] = (), own: Sequence[Line] = (), has_frames: bool = True
    ) -> None:
        self._results = results
        self._followed = followed
        self._own = own
        self._has_frames = has_frames
        self.lines = followed

    def __getattr__(self, name: str) -> Any:
        return getattr(self._results, name)

    def trace_activities(self) -> list[Any]:
        """Returns all activities, as torch's exporter in Python asks for them.

        They are without lines where none can be told.
        """
        activities = [activity for activity in self._results.trace_activities() if _is_readable(activity)]
        if self._followed:
            mine = (activity for activity in activities if not _is_own_frame(activity.name()))
            return [*_named(mine), *_named(self._followed), *self._own]
        self._look_for_lines(activities)
        return [*_named(activities), *_named(self.lines), *self._own]

    def added(self) -> list[Any]:
        """The lines and our own stretches, which torch's exporter in C++ does not know."""
        self._look_for_lines(
            activity for activity in map(NativeActivity, self._results.events()) if _is_readable(activity)
        )
        return [*_named(self.lines), *self._own]

    def renamed(self, frame: str) -> str | None:
        """Returns the name of a frame in the trace.

        Null where the followed lines stand for it.
        """
        return None if self._followed and _is_own_frame(frame) else with_cell_numbers(frame)

    def _look_for_lines(self, activities: Iterable[Any]) -> None:
        if self.siblings:
            self.lines = find_lines(self.siblings, activities)

    @cached_property
    def siblings(self) -> list[list[Any]]:
        """Returns the events of each frame.

        None where this version of torch does not tell them, or the program was followed. Read once: the tree of a
        window takes as long to read as its activities.
        """
        roots = () if self._followed or not self._has_frames else event_tree(self._results)
        return list(siblings_in(roots)) if roots else []


class _Renamed:
    """An activity under another name."""

    def __init__(self, activity: Any, name: str) -> None:
        self._activity, self._name = activity, name

    def __getattr__(self, name: str) -> Any:
        return getattr(self._activity, name)

    def name(self) -> str:
        """The other name."""
        return self._name


def _named(activities: Iterable[Any]) -> Iterable[Any]:
    """The activities; those of a notebook's cells by the numbers of the cells."""
    if not _cell_numbers():
        return activities
    pairs = ((activity, activity.name()) for activity in activities)
    return [
        activity if (new := with_cell_numbers(name)) == name else _Renamed(activity, new) for activity, name in pairs
    ]


def with_cell_numbers(name: str) -> str:
    """Returns the name of a frame.

    Of one in a notebook's cell it is with the number of the cell, where IPython tells it.
    """
    path, parenthesis, rest = name.partition("(")
    number = _cell_numbers().get(path) if parenthesis else None
    numbered = None if number is None else numbered_cell(path, number)
    return name if numbered is None else f"{numbered}({rest}"


def _cell_numbers() -> Mapping[str, int]:
    """Returns the number of each cell by the name of its file.

    Empty outside of notebooks, and where IPython tells none.
    """
    shell = getattr(sys.modules.get("IPython.core.interactiveshell"), "InteractiveShell", None)
    compiler = getattr(getattr(shell, "_instance", None), "compile", None)
    names = getattr(compiler, "_filename_map", None)  # what IPython names cells by in tracebacks
    return names if isinstance(names, dict) else {}


def _is_readable(activity: Any) -> bool:
    """True if it has a name that can be read.

    torch 2.13 reads that of the frame in which a module was imported from freed memory.
    """
    try:
        activity.name()
    except UnicodeDecodeError:
        return False
    return True


def _is_own_frame(name: str) -> bool:
    file, parenthesis, rest = name.partition("(")
    return bool(parenthesis) and file.endswith(".py") and "): " in rest and is_program(file)


def find_lines(
    siblings: Sequence[list[Any]], activities: Iterable[Any], operators: OperatorLines | None = None
) -> list[Line]:
    """Finds the lines from which code of the program called something.

    Calls from one line that follow each other are one. ``operators`` tells those of ops that no call made.
    """
    operators = operators or OperatorLines(_read_here)
    frames = [list(_calls_of(events, operators)) for events in siblings]
    calls = [call for frame in frames for call in frame]
    whole_ns = max((call.end_ns for call in calls), default=0) - min((call.start_ns for call in calls), default=0)
    for frame in frames:
        if frame and frame[-1].end_ns - frame[0].start_ns >= _OPEN_ALL_ALONG * whole_ns:
            _stretch(frame)
    first = {
        (call.start_ns, call.first): thread for thread, call in {one.thread: one for one in reversed(calls)}.items()
    }
    place = _places({**_first_ops(siblings), **first}, activities)
    # A nanosecond more on both sides, so that the call lies inside its line.
    return [
        Line(call.label, call.start_ns - 1, call.end_ns + 1, *place[call.thread])
        for call in calls
        if call.thread in place
    ]


# A frame with calls in more than this part of the window was open before it: its name tells the line where the window
# began, which is not where its time went.
_OPEN_ALL_ALONG = 0.5
_LONG_NS = 100_000


@dataclass
class _Call:
    """Calls from one line.

    The first one's name, the span of all, the profiler's own number of the thread. ``follower_ns`` is the start of what
    follows in the same frame; null at its end.
    """

    label: str
    first: str
    start_ns: int
    end_ns: int
    thread: int
    follower_ns: int | None = None


def _stretch(frame: list[_Call]) -> None:
    """Lengthens the calls of one frame up to what follows, where long.

    A function of C goes on without a record.
    """
    for call in frame:
        if call.follower_ns is not None and call.follower_ns - call.end_ns >= _LONG_NS:
            call.end_ns = call.follower_ns - 2  # lines get a nanosecond more on both sides


def siblings_in(roots: Sequence[Any]) -> Iterator[list[Any]]:
    """The events of the profiler's tree, those of each frame together."""
    stack = [list(roots)]
    while stack:
        siblings = stack.pop()
        yield siblings
        stack += [children for event in siblings if (children := event.children)]


def _calls_of(siblings: list[Any], operators: OperatorLines) -> Iterator[_Call]:
    """Returns calls among the events of one frame.

    Those from one line that follow each other are one.
    """
    current: _Call | None = None
    for event, label in zip(siblings, _labels_of(siblings, operators), strict=True):
        if current is not None and label == current.label:
            current.end_ns = event.end_time_ns
            continue
        if current is not None:
            current.follower_ns = event.start_time_ns
            yield current
        current = None
        if label is not None:
            current = _Call(label, _name_of(event), event.start_time_ns, event.end_time_ns, event.start_tid)
    if current is not None:
        yield current


def _labels_of(siblings: list[Any], operators: OperatorLines) -> list[str | None]:
    """Labels each event of one frame.

    A call is labelled by its caller, an op between calls by the text.
    """
    labels = [_label(event) for event in siblings]
    labelled = [at for at, label in enumerate(labels) if label is not None]
    if len(labelled) == len(labels):
        return labels
    for before, after in itertools.pairwise((-1, *labelled, len(labels))) if labelled else ():
        ops = [at for at in range(before + 1, after) if _is_op(siblings[at])]
        sides = [None if at in {-1, len(labels)} else PYTHON_FRAME.match(str(labels[at])) for at in (before, after)]
        frames = {(side["path"], side.string[side.end() :]) for side in sides if side is not None}
        if not ops or len(frames) != 1:
            continue
        ((file, function),) = frames
        if before < 0 and function == "<module>":
            continue  # the window begins somewhere in the module
        first, last = (None if side is None else int(side["line"]) for side in sides)
        lines = operators.lines_of(file, function, first, last, [_name_of(siblings[at]) for at in ops])
        for at, line in zip(ops, lines, strict=True):
            labels[at] = None if line is None else f"{file}({line}): {function}"
    return labels


def _is_op(event: Any) -> bool:
    return _name_of(event).startswith("aten::")


def _name_of(event: Any) -> str:
    """Gives an event's name; empty where torch has none that is text."""
    try:
        return str(getattr(event, "name", ""))
    except UnicodeDecodeError:
        return ""


def _label(event: Any) -> str | None:
    try:
        caller = getattr(event.extra_fields, "caller", None)
        if caller is None or not is_program(caller.file_name):
            return None
        return f"{caller.file_name}({caller.line_number}): {caller.function_name}"
    except (TypeError, UnicodeDecodeError):  # torch 2.13 has no Python type for a run of the garbage collector
        return None


def _first_ops(siblings: Iterable[list[Any]]) -> dict[tuple[int, str], int]:
    """Returns the profiler's own number of each thread.

    It is by start and name of an op in it: torch before 2.13 tells ops alone.
    """
    by_op: dict[int, tuple[int, str]] = {}
    for event in itertools.chain.from_iterable(siblings):
        thread = event.start_tid
        if thread not in by_op and _is_op(event):
            by_op[thread] = (event.start_time_ns, _name_of(event))
    return {key: thread for thread, key in by_op.items()}


def _places(threads: Mapping[tuple[int, str], int], activities: Iterable[Any]) -> dict[int, tuple[int, int]]:
    """Returns process and thread of the profiler's own numbers of threads.

    They are as activities name them.
    """
    places: dict[int, tuple[int, int]] = {}
    wanted = len({*threads.values()})
    for activity in activities:
        thread = threads.get((activity.timestamp(), activity.name()))
        if thread is not None:
            places[thread] = (activity.device_id(), activity.resource_id())
            if len(places) == wanted:
                break
    return places


@cache
def is_program(file: str) -> bool:
    """True if a file is the program's: neither installed nor generated nor ours.

    The profiler may have cut its name at an entry of sys.path.
    """
    if (file.startswith("<") and not file.startswith("<ipython-input-")) or any(part in file for part in _INSTALLED):
        return False
    if _GENERATED.search(file.replace(os.sep, "/")):
        return False
    package = file.replace(os.sep, "/").split("/")[0].removesuffix(".py")
    if Path(file).is_absolute() or not package:
        return True
    if package in sys.stdlib_module_names or package == __name__.partition(".")[0]:
        return False
    origin = getattr(sys.modules.get(package), "__file__", None) or ""
    return not any(part in origin.replace(os.sep, "/") for part in _INSTALLED)


# In nearly every program far fewer lines take part in a step.
_MOST_TEXTS = 300
_LARGEST_FILE_BYTES = 5_000_000
# Before the program is loaded: a file that was written later is not what runs.
_LOADED_S = time.time()


def texts_of(lines: Iterable[Line], folder: str, loaded_s: float = _LOADED_S) -> dict[str, str]:
    """Reads the text of these lines in short by 'model.py:57'.

    It is without secrets, and of those that take most time, up to a bound. Names that the profiler has cut are looked
    for in sys.path, whose relative entries begin in ``folder``. A line has no text where files of one name differ in
    it, and where its file was written after ``loaded_s``.
    """
    spent_ns: Counter[str] = Counter()
    for line in lines:
        spent_ns[line.label] += line.end_ns - line.start_ns
    read = cache(lambda name: _read_lines(name, folder, loaded_s))
    texts: dict[str, str] = {}
    for label, _ in spent_ns.most_common(_MOST_TEXTS):
        match = PYTHON_FRAME.match(label)
        if match is not None:
            number = int(match["line"])
            file_lines = read(match["path"])
            text = kept_source(file_lines[number - 1]) if 0 < number <= len(file_lines) else ""
            key = f"{file_of(with_cell_numbers(label).partition('(')[0])}:{number}"
            texts[key] = text if texts.get(key, text) == text else ""
    return {key: text for key, text in texts.items() if text}


def lines_of_steps(lines: Iterable[Line], marks_ns: Sequence[int]) -> frozenset[str]:
    """Returns the lines, 'model.py:57', at which most of the steps were.

    That is half of the steps between these marks or more.
    """
    steps: dict[str, set[int]] = {}
    for line in lines:
        match = PYTHON_FRAME.match(line.label)
        step = bisect.bisect_right(marks_ns, line.end_ns)
        if match is not None and step > 0:
            key = f"{os.path.basename(match['path'])}:{match['line']}"  # noqa: PTH119 - as plain text
            steps.setdefault(key, set()).add(step)
    least = max(1, (len(marks_ns) - 1) / 2)
    return frozenset(key for key, numbers in steps.items() if len(numbers) >= least)


def _read_here(name: str) -> Sequence[str]:
    """Reads the lines of a file of the program.

    Its folder is taken as far as it is known now.
    """
    try:
        return _read_lines(name, os.getcwd(), _LOADED_S)  # noqa: PTH109 - as plain text
    except OSError:
        return ()


def _read_lines(name: str, folder: str, loaded_s: float) -> Sequence[str]:
    """Reads the lines of a file of the program.

    None where it is not at hand, not unique or not what was loaded.
    """
    in_memory = linecache.cache.get(name)
    if in_memory is not None and len(in_memory) == 4 and in_memory[1] is None:  # a cell of a notebook
        return in_memory[2]
    paths = {os.path.realpath(Path(folder, entry, name)) for entry in sys.path if isinstance(entry, str)}
    files = [path for path in paths if os.path.isfile(path) and is_program(path)]  # noqa: PTH113 - as plain text
    try:
        if len(files) != 1 or Path(files[0]).stat().st_mtime > loaded_s:
            return ()
        return read_file(Path(files[0]), _LARGEST_FILE_BYTES).decode("utf-8", "replace").splitlines()
    except (OSError, ValueError):
        return ()


# The files of a program that are looked through; a large one has more, which come later.
_MOST_FILES = 200


def program_lines(loaded_s: float = _LOADED_S) -> Iterator[tuple[str, Sequence[str]]]:
    """Returns the loaded files of the program with their lines.

    That of `__main__` comes first; those that were written since are left out. The files are read as text; nothing of
    the program is called.
    """
    main = sys.modules.get("__main__")
    modules = [module for module in (main, *sys.modules.values()) if type(module) is ModuleType]
    files = dict.fromkeys(
        file
        for module in modules
        if isinstance(file := module.__dict__.get("__file__"), str) and file.endswith(".py")
        if is_own_file(file)
    )
    for file in list(files)[:_MOST_FILES]:
        try:
            if Path(file).stat().st_mtime <= loaded_s:
                yield file, read_file(Path(file), _LARGEST_FILE_BYTES).decode("utf-8", "replace").splitlines()
        except (OSError, ValueError):
            continue


_IMPORT = re.compile(r"^\s*(?:import|from)\s")


def lines_that_say(words: "re.Pattern[str]") -> Iterator[str]:
    """Finds the lines of the program with these words.

    As 'train.py:5', in the order of `program_lines`. Imports and comments are left out.
    """
    for file, lines in program_lines():
        for number, line in enumerate(lines, start=1):
            if words.search(line.partition("#")[0]) and not _IMPORT.match(line):
                yield f"{os.path.basename(file)}:{number}"  # noqa: PTH119 - as plain text


def texts_at(places: Collection[str]) -> dict[str, str]:
    """Reads the text of these lines ('model.py:57') in short.

    They are of the program's loaded files, and without secrets.
    """
    texts: dict[str, str] = {}
    for file, lines in program_lines() if places else ():
        name = os.path.basename(file)  # noqa: PTH119 - as plain text
        for place in places:
            number = place.removeprefix(f"{name}:")
            if number != place and number.isdecimal() and 0 < int(number) <= len(lines):
                texts.setdefault(place, kept_source(lines[int(number) - 1]))
    return texts


OURS = str(Path(__file__).parents[1]) + os.sep
# The profiler's clock and ours may be apart by less than what lies between a line's beginning and its first op.
_LEAD_NS = 500

Tracer = Callable[[FrameType, str, Any], Any]


class LineTracer:
    """Notes the stretches that one thread spends in each line.

    The lines are those of the program's own files, while it is on.
    """

    def __init__(self) -> None:
        self.lines: list[Line] = []
        self._open: dict[FrameType, tuple[int, int]] = {}
        self._known: dict[str, bool] = {}
        self._is_on = False

    def start(self) -> None:
        """Begins, in this thread, with the functions that are under way.

        Not where a debugger watches.
        """
        if sys.gettrace() is not None or not _may_trace():
            return
        self._is_on = True
        frame: FrameType | None = sys._getframe(1)
        while frame is not None:
            if self._is_own(frame):
                frame.f_trace = self._in_frame
                self._begin(frame)
            frame = frame.f_back
        sys.settrace(self._call)

    def stop(self) -> None:
        """Ends all stretches."""
        if not self._is_on:
            return
        self._is_on = False
        if sys.gettrace() == self._call:
            sys.settrace(None)
        for frame in list(self._open):
            frame.f_trace = None
            self._end(frame)

    def _call(self, frame: FrameType, _event: str, _argument: Any) -> Tracer | None:
        return self._in_frame if self._is_own(frame) else None

    def _in_frame(self, frame: FrameType, event: str, _argument: Any) -> Tracer:
        if event == "line":
            self._end(frame)
            self._begin(frame)
        elif event == "return":
            self._end(frame)
        return self._in_frame

    def _begin(self, frame: FrameType) -> None:
        if self._is_on:
            self._open[frame] = (time.time_ns() - _LEAD_NS, frame.f_lineno)

    def _end(self, frame: FrameType) -> None:
        started = self._open.pop(frame, None)
        if started is not None:
            code = frame.f_code
            label = f"{code.co_filename}({started[1]}): {code.co_name}"
            until_ns = time.time_ns() - _LEAD_NS
            self.lines.append(Line(label, started[0], until_ns, os.getpid(), threading.get_native_id()))

    def _is_own(self, frame: FrameType) -> bool:
        name = frame.f_code.co_filename
        is_own = self._known.get(name)
        if is_own is None:
            is_own = self._known[name] = is_own_file(name)
        return is_own


def is_own_file(file: str) -> bool:
    """True for a whole path to a file of the program's own.

    It is neither installed, nor torch's, nor ours.
    """
    return not file.startswith((OURS, _torch_folder())) and is_program(file)


def _torch_folder() -> str:
    return str(Path(getattr(sys.modules.get("torch"), "__file__", None) or OURS).parent) + os.sep


def _may_trace(version: tuple[int, ...] = sys.version_info[:2]) -> bool:
    """True if tracing leaves alone what runs compiled.

    Seen with Python 3.11, whose successors trace in another way.
    """
    return version <= (3, 11) or not may_trace_hooks()


def first_line(makes: Callable[[ast.AST], bool], file: str | None = None) -> str | None:
    """Finds the first line of the program with such a node.

    Of one file, if it is given. 'train.py:34', null where there is none. The text is parsed, never run.
    """
    for path, lines in program_lines():
        if file is not None and os.path.realpath(path) != os.path.realpath(file):
            continue
        try:
            tree = ast.parse("\n".join(lines))
        except (SyntaxError, ValueError, RecursionError, MemoryError):
            continue
        numbers = [node.lineno for node in ast.walk(tree) if isinstance(node, ast.stmt | ast.expr) and makes(node)]
        if numbers:
            return f"{os.path.basename(path)}:{min(numbers)}"  # noqa: PTH119 - as plain text
    return None
