"""Records of graphs, breaks, recompiles and skips of torch.compile.

A recording keeps them, and the reader of torch's own compile log makes the same ones: both call ``summarize``.
"""

import math
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Annotated, Any, NamedTuple

from bottleneck.schema.compile_causes import (
    BREAK_CAUSES,
    OTHER_BREAK,
    OTHER_RECOMPILE,
    OTHER_SKIP,
    RECOMPILE_CAUSES,
    RECOMPILES,
    SKIP_CAUSES,
    cause_of,
)
from bottleneck.schema.records import Doc

_LONGEST_TEXT = 200
_MOST_LINES = 12
_STACK, _LONGEST_NUMBER = "___stack", 9


@dataclass(frozen=True)
class GraphHealth:
    """One compiled graph: its ops, its compiling, its calls.

    The numbers of the step are null until a trace of steps tells them.
    """

    compile_id: Annotated[str, Doc("number of the function and of its compilation, '0/1'")]
    function: Annotated[str, Doc("name of the function, with what resumed it after a break")]
    source: Annotated[str | None, Doc("first line of the function; null where unknown")]
    ops: Annotated[int | None, Doc("ops that the graph captured; null where not told")] = None
    kernels: Annotated[float | None, Doc("kernels of one call of its forward; null where not told")] = None
    seconds: Annotated[float | None, Doc("time of compiling it, backward included; null where not told", "s")] = None
    guards: Annotated[int | None, Doc("conditions that torch checks before each call; null where not told")] = None
    is_warm: Annotated[
        bool | None, Doc("true where a cache on disk had its code, false where none had; null where not told")
    ] = None
    calls: Annotated[float | None, Doc("calls per step; null where no trace of steps tells")] = None
    guards_us: Annotated[
        float | None, Doc("time per step of checking guards before it; null where no trace of steps tells", "us")
    ] = None
    failure: Annotated[str | None, Doc("why the function runs uncompiled; null where it does not")] = None


@dataclass(frozen=True)
class BreakHealth:
    """One line at which torch.compile broke graphs, with its price per step.

    ``price_us`` is the host time from one graph to the next and the entry of one more graph in the backward pass; its
    lower end leaves out the ops that run there.
    """

    cause: Annotated[str, Doc("key of the cause: value, print, branch, library …")]
    source: Annotated[str | None, Doc("innermost line of the program, 'model.py:57'; null where unknown")]
    text: Annotated[str, Doc("first line of what torch says")]
    count: Annotated[int, Doc("times that a compilation broke there")] = 1
    compile_ids: Annotated[tuple[str, ...], Doc("graphs that end there")] = ()
    lines: Annotated[tuple[str, ...], Doc("lines of the program that led there, outermost first")] = ()
    price_us: Annotated[
        tuple[float, float] | None, Doc("what it costs per step, from least to most; null where not known", "us")
    ] = None
    price_reason: Annotated[str | None, Doc("why there is no price: no-steps, not-entered or no-calls")] = "no-steps"
    eager_ops: Annotated[tuple[str, ...], Doc("ops that run uncompiled there, most frequent first")] = ()
    eager_calls: Annotated[float | None, Doc("their calls per step; null where no trace of steps tells")] = None


@dataclass(frozen=True)
class Recompile:
    """One function that was compiled again, since a guard of an earlier graph failed."""

    compile_id: Annotated[str, Doc("the compilation that followed")]
    function: Annotated[str, Doc("name of the function")]
    source: Annotated[str | None, Doc("first line of the function; null where unknown")]
    cause: Annotated[str, Doc("key of the cause: size, number, mode …; 'other' where torch does not tell")]
    guard: Annotated[str | None, Doc("the guard that failed; null where torch does not tell")]
    expected: Annotated[str | None, Doc("value that the earlier graph was made for; null where not told")] = None
    actual: Annotated[str | None, Doc("value that came; null where torch does not tell")] = None
    subject: Annotated[str | None, Doc("variable that the guard is about; null where not told")] = None
    index: Annotated[int | None, Doc("dimension whose size changed; null for other guards")] = None
    failed: Annotated[str | None, Doc("earlier graph whose guard failed; null where not told")] = None
    seconds: Annotated[float | None, Doc("time of compiling again; null where not told", "s")] = None

    @property
    def guard_words(self) -> str:
        """Tells the guard with the value that it expected and the one that came."""
        if self.guard is None:
            return "torch does not tell which guard failed"
        if self.expected is None or self.subject is None:
            return self.guard
        # Values that are on Python's stack where a graph breaks have no name of the program's.
        subject = "value at break" if _STACK in self.subject else self.subject
        size = f"size {self.index} of " if self.index is not None else ""
        came = "another" if self.actual is None else self.actual
        return f"{size}{subject}: {_shortened(self.expected)}, then {_shortened(came)}"

    @property
    def code(self) -> str:
        """The code against it, with the names of the guard."""
        has_name = self.subject is not None and self.subject.isidentifier() and _STACK not in self.subject
        index = 0 if self.index is None else self.index
        code = RECOMPILES[self.cause].code
        return code.replace("{name}", str(self.subject) if has_name else "x").replace("{index}", str(index))


def _shortened(text: str) -> str:
    """Shortens a number with many digits."""
    try:
        return f"{float(text):.4g}" if len(text) > _LONGEST_NUMBER else text
    except ValueError:
        return text


@dataclass(frozen=True)
class CudagraphSkip:
    """Graphs that torch did not capture as a CUDA graph for one reason."""

    cause: Annotated[str, Doc("key of the cause: mutation, cpu, dynamic, op; 'other' where torch does not tell")]
    source: Annotated[str | None, Doc("line of the program; null where torch does not tell")]
    text: Annotated[str, Doc("first line of what torch says; empty where it says nothing")]
    count: Annotated[int, Doc("graphs that were skipped")] = 1
    compile_ids: Annotated[tuple[str, ...], Doc("the graphs")] = ()
    price_us: Annotated[
        tuple[float, float] | None, Doc("what it costs per step, from least to most; null where not known", "us")
    ] = None
    price_reason: Annotated[
        str | None, Doc("why there is no price: no-steps, not-entered, or no-device for a program without a GPU")
    ] = "no-steps"


def known_sum(seconds: Iterable[float | None]) -> float | None:
    """Adds up the times that are known; null where none is."""
    measured = [one for one in seconds if one is not None]
    return math.fsum(measured) if measured else None


@dataclass(frozen=True)
class CompileHealth:
    """The graphs of a program that uses torch.compile.

    Breaks, recompiles and skipped CUDA graphs stand beside them.

    ``is_partial`` is true where torch kept its last compilations only, or a log was damaged.
    """

    graphs: Annotated[tuple[GraphHealth, ...], Doc("compilations in order")]
    breaks: Annotated[tuple[BreakHealth, ...], Doc("lines that break graphs")] = ()
    recompiles: Annotated[tuple[Recompile, ...], Doc("functions compiled again, in order")] = ()
    skips: Annotated[tuple[CudagraphSkip, ...], Doc("graphs not captured as CUDA graphs")] = ()
    is_partial: Annotated[bool, Doc("whether compilations are missing")] = False

    @property
    def seconds(self) -> float | None:
        """The time of all compilations whose time is known; null where none is."""
        return known_sum(graph.seconds for graph in self.graphs)

    @property
    def start(self) -> str:
        """Tells whether caches had the graphs: 'cold', 'warm', 'partly warm' or ''."""
        kinds = {graph.is_warm for graph in self.graphs if graph.is_warm is not None and graph.ops}
        return "" if not kinds else "partly warm" if len(kinds) == 2 else "warm" if kinds.pop() else "cold"

    @property
    def named_recompiles(self) -> tuple[Recompile, ...]:
        """Functions compiled again for a guard that torch names, the longest first."""
        named = (one for one in self.recompiles if one.guard is not None)
        return tuple(sorted(named, key=lambda one: -(one.seconds or 0.0)))


@dataclass(frozen=True)
class CompileLog:
    """The log of one process: the graphs that it compiled.

    ``damaged`` counts lines that are no records of torch's, or too long; ``rank`` is null where the name tells none.
    """

    path: Annotated[str, Doc("the log")]
    health: Annotated[CompileHealth, Doc("graphs, breaks, recompiles and skips")]
    damaged: Annotated[int, Doc("lines that could not be read")] = 0
    rank: Annotated[int | None, Doc("rank of a job; null where the name of the log tells none")] = None
    torch_version: Annotated[str | None, Doc("version of torch; null where the log does not tell")] = None


class CodeFrame(NamedTuple):
    """A line of Python that led somewhere."""

    file: str
    line: int
    function: str


class BreakEvent(NamedTuple):
    """One break as torch tells it.

    ``compile_id`` is null where it does not say which graph ended.
    """

    text: str
    frames: tuple[CodeFrame, ...]
    compile_id: str | None = None


# Fields of torch's metrics of one compilation that are read; the same in a process and in its log.
METRICS = (
    "compile_id",
    "co_name",
    "co_filename",
    "co_firstlineno",
    "graph_op_count",
    "guard_count",
    "entire_frame_compile_time_s",
    "duration_us",
    "start_time",
    "fail_type",
    "fail_reason",
    "restart_reasons",
    "recompile_reason",
    "cudagraph_skip_reason",
    "inductor_fx_local_cache_hit_count",
    "inductor_fx_local_cache_miss_count",
    "aotautograd_local_cache_hit_count",
    "aotautograd_local_cache_miss_count",
)
Metrics = Mapping[str, Any]


class CompileEvents(NamedTuple):
    """Facts that torch tells of its compilations, in order.

    ``recompiles`` are by compile id the reasons why each earlier graph did not fit, the newest graph's first; metrics
    have the first alone, in newer versions. ``guards`` are those of graphs, ``kernels`` counts, and ``skips`` counts
    skipped CUDA graphs (null where nothing counts them).
    """

    metrics: Sequence[Metrics]
    breaks: Sequence[BreakEvent] = ()
    recompiles: Mapping[str, Sequence[str]] = {}
    guards: Mapping[str, str] = {}
    kernels: Mapping[str, int] = {}
    skips: int | None = None
    is_partial: bool = False


ShortName = Callable[[str], str]
IsProgram = Callable[[str], bool]


def summarize(events: CompileEvents, short_name: ShortName, is_program: IsProgram) -> CompileHealth:
    """Builds the record from what torch tells.

    ``short_name`` names a file as a report shows it, ``is_program`` tells files of the program from installed ones.
    """
    graphs = _graphs(events, short_name)
    return CompileHealth(
        graphs=tuple(graphs.values()),
        breaks=_breaks(events, graphs, short_name, is_program),
        recompiles=_recompiles(events, graphs),
        skips=_skips(events, short_name, is_program),
        is_partial=events.is_partial,
    )


def number_of(value: object) -> float | None:
    """Returns a finite number that is not below zero; null for anything else."""
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    return float(value) if is_number and 0 <= value < 1e15 else None  # type: ignore[arg-type,operator]


def _count(value: object) -> int | None:
    number = number_of(value)
    return None if number is None else int(number)


def _text(value: object) -> str | None:
    return value if isinstance(value, str) and value else None


# torch puts the instruction at which it was before what happened there (from 2.9 on).
_PREAMBLE = re.compile(r"^Encountered graph break when attempting to trace ")


def first_line(text: str) -> str:
    """Returns the first line that says something, at most 200 characters of it."""
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return next((line for line in lines if not _PREAMBLE.match(line)), lines[0] if lines else "")[:_LONGEST_TEXT]


def _seconds(one: Metrics) -> float | None:
    entire, whole = number_of(one.get("entire_frame_compile_time_s")), number_of(one.get("duration_us"))
    times = [time for time in (entire, None if whole is None else whole / 1e6) if time is not None]
    return max(times, default=None)


def _is_warm(one: Metrics) -> bool | None:
    hits, misses = (
        sum(_count(one.get(f"{cache}_local_cache_{kind}_count")) or 0 for cache in ("inductor_fx", "aotautograd"))
        for kind in ("hit", "miss")
    )
    return None if not hits and not misses else hits > 0 and not _count(one.get("inductor_fx_local_cache_miss_count"))


def _place(file: object, line: object, short_name: ShortName) -> str | None:
    number = _count(line)
    return f"{short_name(file)}:{number}" if isinstance(file, str) and file and number else None


def _graphs(events: CompileEvents, short_name: ShortName) -> dict[str, GraphHealth]:
    """Returns the graphs by compile id.

    The compilation of a backward pass adds to its forward's time.
    """
    graphs: dict[str, GraphHealth] = {}
    for one in events.metrics:
        key = str(one.get("compile_id") or "")
        if not key:
            continue
        seconds, is_warm = _seconds(one), _is_warm(one)
        if key in graphs:
            forward = graphs[key]
            both = [time for time in (forward.seconds, seconds) if time is not None]
            graphs[key] = replace(
                forward,
                seconds=math.fsum(both) if both else None,
                is_warm=is_warm if forward.is_warm is None else forward.is_warm and is_warm is not False,
            )
            continue
        failure = _text(one.get("fail_reason")) or _text(one.get("fail_type"))
        graphs[key] = GraphHealth(
            compile_id=key,
            function=(_text(one.get("co_name")) or "")[:_LONGEST_TEXT],
            source=_place(one.get("co_filename"), one.get("co_firstlineno"), short_name),
            ops=_count(one.get("graph_op_count")),
            kernels=events.kernels.get(key),
            seconds=seconds,
            guards=_count(one.get("guard_count")),
            is_warm=is_warm,
            failure=None if failure is None else first_line(failure),
        )
    return _named_by_frame(graphs)


def _named_by_frame(graphs: dict[str, GraphHealth]) -> dict[str, GraphHealth]:
    """Names a compilation that failed by the function that others of its number have."""
    named = {key.partition("/")[0]: graph for key, graph in graphs.items() if graph.function}
    return {
        key: graph
        if graph.function or (other := named.get(key.partition("/")[0])) is None
        else replace(graph, function=other.function, source=other.source)
        for key, graph in graphs.items()
    }


_RESUMED = re.compile(r"^(?:torch_dynamo_resume_in_)(?P<function>.{1,300})_at_(?P<line>\d{1,9})$")


def resumed_function(name: str) -> str:
    """Names the function of which a part follows a break.

    Gives the name itself for any other.
    """
    match = _RESUMED.match(name)
    return match["function"] if match else name


def _graph_that_ended(event: BreakEvent, metrics: Sequence[Metrics]) -> tuple[str, ...]:
    """Returns the graphs that may have ended at a break.

    They are parts of the function in which it lies, compiled again for that reason, of those the last that begins
    before it.
    """
    if event.compile_id is not None:
        return (event.compile_id,)
    if not event.frames:
        return ()
    outer, first = event.frames[0], first_line(event.text)
    named: dict[str, int] = {}
    unnamed: dict[str, int] = {}
    for one in metrics:
        name = one.get("co_name")
        reasons = one.get("restart_reasons")
        if not isinstance(name, str) or one.get("co_filename") != outer.file:
            continue
        if resumed_function(name) != resumed_function(outer.function):
            continue
        texts = [str(reason) for reason in reasons] if isinstance(reasons, list | tuple | set) else []
        match = _RESUMED.match(name)
        begin = int(match["line"]) if match else 0
        if begin <= outer.line and (not texts or any(first in text for text in texts)):
            (named if texts else unnamed)[str(one.get("compile_id"))] = begin
    begins = named or unnamed
    return tuple(key for key, begin in begins.items() if begin == max(begins.values()))


def _shown_frame(frames: Sequence[CodeFrame], is_program: IsProgram) -> CodeFrame | None:
    own = [frame for frame in frames if is_program(frame.file)]
    return own[-1] if own else frames[-1] if frames else None


def _breaks(
    events: CompileEvents, graphs: Mapping[str, GraphHealth], short_name: ShortName, is_program: IsProgram
) -> tuple[BreakHealth, ...]:
    """Returns breaks by line and cause, in the order of their first."""
    breaks: dict[tuple[str | None, str], BreakHealth] = {}
    for event in events.breaks:
        frame = _shown_frame(event.frames, is_program)
        source = None if frame is None else _place(frame.file, frame.line, short_name)
        text = first_line(event.text)
        cause = cause_of(event.text, BREAK_CAUSES, OTHER_BREAK)
        own = [one for one in event.frames if is_program(one.file)][-_MOST_LINES:]
        lines = [line for one in own if (line := _place(one.file, one.line, short_name)) is not None]
        ids = [key for key in _graph_that_ended(event, events.metrics) if key in graphs or event.compile_id]
        before = breaks.get((source, cause))
        if before is None:
            breaks[source, cause] = BreakHealth(cause, source, text, 1, tuple(ids), tuple(lines))
            continue
        breaks[source, cause] = replace(
            before,
            count=before.count + 1,
            compile_ids=tuple(dict.fromkeys((*before.compile_ids, *ids))),
            lines=max(before.lines, tuple(lines), key=len),
        )
    return tuple(breaks.values())


_FAILED = re.compile(r"^\s*(?P<failed>\d{1,9}/\d{1,9}): (?P<guard>.*)$", re.DOTALL)
_TENSOR = re.compile(
    r"^tensor '(?P<subject>.{1,300}?)' (?P<what>[\w ]+) mismatch(?: at index (?P<index>\d{1,3}))?"
    r"\.? expected (?P<expected>.{1,200}?), actual (?P<actual>.{1,200}?)\.?$"
)
_EQUAL = re.compile(r"^(?P<subject>[^=<>!]{1,300}?)\s*==\s*(?P<expected>.{1,200})$")
_LOCAL = re.compile(r"[LG]\[['\"](\w{1,200})['\"]\]")


def _guard_text(text: str) -> str:
    """Returns a guard without the code behind it, with plain names of variables."""
    guard = re.split(r"\s{2,}#\s|\n", text.strip(), maxsplit=1)[0].strip()
    return _LOCAL.sub(r"\1", guard)[:_LONGEST_TEXT]


def _recompiles(events: CompileEvents, graphs: Mapping[str, GraphHealth]) -> tuple[Recompile, ...]:
    """Returns the compilations of a function after its first.

    A reason names the guard of one earlier graph and the value that this one was made for. Each earlier graph has one:
    that which is about another variable than those of earlier recompiles is what changed now. The value that came is
    what the new graph is made for: its own guards tell, or the reason of a later recompile.
    """
    reasons: dict[str, Sequence[str]] = {
        str(one.get("compile_id")): (text,) for one in events.metrics if (text := _text(one.get("recompile_reason")))
    }
    reasons.update((key, texts) for key, texts in events.recompiles.items() if texts)
    values = {key: _equalities(text) for key, text in events.guards.items()}
    for match in (match for texts in reasons.values() for text in texts if (match := _FAILED.match(text))):
        values.setdefault(match["failed"], {}).update(_equalities(_guard_text(match["guard"])))
    recompiles = []
    seen: dict[str, set[str | None]] = {}
    for key, graph in graphs.items():
        if key.endswith("/0") and key not in reasons:
            continue
        rows = [_recompile(graph, text, values.get(key, {})) for text in reasons.get(key, ("",))]
        before = seen.setdefault(key.partition("/")[0], set())
        row = next((row for row in rows if row.subject not in before), rows[0])
        before.add(row.subject)
        recompiles.append(row)
    return tuple(recompiles)


def _recompile(graph: GraphHealth, text: str, values: Mapping[str, str]) -> Recompile:
    """Takes a reason apart; ``values`` are what the new graph requires of each variable."""
    match = _FAILED.match(text)
    guard = _guard_text(match["guard"] if match else text)
    row = Recompile(
        compile_id=graph.compile_id,
        function=graph.function,
        source=graph.source,
        cause=cause_of(guard, RECOMPILE_CAUSES, OTHER_RECOMPILE) if guard else OTHER_RECOMPILE.key,
        guard=guard or None,
        failed=match["failed"] if match else None,
        seconds=graph.seconds,
    )
    if tensor := _TENSOR.match(guard):
        index = None if tensor["index"] is None else int(tensor["index"])
        return replace(
            row, subject=tensor["subject"], index=index, expected=tensor["expected"], actual=tensor["actual"]
        )
    if equal := _EQUAL.match(guard):
        subject = equal["subject"].strip()
        return replace(row, subject=subject, expected=equal["expected"].strip(), actual=values.get(subject))
    return row


def _equalities(text: str) -> dict[str, str]:
    """Returns the values that guards require, by what they are about."""
    pairs = {}
    for line in text.splitlines():
        guard = _guard_text(line.rpartition("EQUALS_MATCH: ")[2] if "EQUALS_MATCH: " in line else line)
        if match := _EQUAL.match(guard):
            pairs[match["subject"].strip()] = match["expected"].strip()
    return pairs


def grouped_reasons(texts: Sequence[str]) -> dict[str, list[str]]:
    """Groups the reasons of one function, in order, by the compilation that followed them.

    Torch looks at its graphs from the newest to the oldest: where a number does not fall, another compilation begins.
    """
    groups: list[list[str]] = []
    frame, last = "", -1
    for text in texts:
        match = _FAILED.match(text)
        if match is None:
            return {}
        frame, _, number = match["failed"].partition("/")
        if not groups or int(number) >= last:
            groups.append([])
        groups[-1].append(text)
        last = int(number)
    return {f"{frame}/{at}": group for at, group in enumerate(groups, 1)}


_FOUND_FROM = re.compile(r'File "(?P<file>[^"\n]{1,1000})", line (?P<line>\d{1,9}), in (?P<function>[^\n]{1,300})')


def frames_in(text: str) -> tuple[CodeFrame, ...]:
    """Returns the lines of a traceback in a text, outermost first."""
    return tuple(CodeFrame(one["file"], int(one["line"]), one["function"]) for one in _FOUND_FROM.finditer(text))


_SKIPPING = re.compile(r"^(?:(?:skipping|disabling) cudagraphs due to |Found from\s*:?)+", re.IGNORECASE)


def _skips(events: CompileEvents, short_name: ShortName, is_program: IsProgram) -> tuple[CudagraphSkip, ...]:
    """Returns skipped CUDA graphs by reason and line.

    Those that torch counts without telling why stand last, as one.
    """
    skips: dict[tuple[str, str | None], CudagraphSkip] = {}
    for one in events.metrics:
        text = _text(one.get("cudagraph_skip_reason"))
        if text is None:
            continue
        frame = _shown_frame(frames_in(text), is_program)
        source = None if frame is None else _place(frame.file, frame.line, short_name)
        said = re.sub(r"\.?\s*Found from\s*:?.*$", "", _SKIPPING.sub("", first_line(text))).strip()
        cause = cause_of(said, SKIP_CAUSES, OTHER_SKIP)
        key = str(one.get("compile_id"))
        before = skips.get((cause, source))
        skips[cause, source] = (
            CudagraphSkip(cause, source, said, 1, (key,))
            if before is None
            else replace(before, count=before.count + 1, compile_ids=tuple(dict.fromkeys((*before.compile_ids, key))))
        )
    untold = (events.skips or 0) - sum(one.count for one in skips.values())
    rest = (CudagraphSkip(OTHER_SKIP.key, None, "", untold),) if untold > 0 else ()
    return (*skips.values(), *rest)


_LIBRARIES = re.compile(r"(^<(?!ipython-input-))|[/\\](?:site|dist)-packages[/\\]|[/\\]lib[/\\]python\d[\w.]*[/\\]")


def is_own_file(file: str) -> bool:
    """True if a file, by its path, is neither installed nor Python's."""
    return not _LIBRARIES.search(file)
