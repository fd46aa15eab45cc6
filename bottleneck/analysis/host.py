"""Finds what each host thread was doing, and where, at any time."""

import re
from collections.abc import Iterator, Mapping
from typing import cast

import numpy as np
import pandas as pd
from msgspec import Struct

from bottleneck.analysis.held_up import held_up_calls
from bottleneck.schema.accounts import HOST_STATES
from bottleneck.schema.evidence import Evidence
from bottleneck.schema.intervals import (
    NOTHING,
    Codes,
    Flags,
    Floats,
    Integers,
    Segments,
    Spans,
    by_track,
    grouped,
    innermost,
    outermost,
    union,
)
from bottleneck.schema.linked_trace import Linked, Trace
from bottleneck.schema.loading import LOADER_CALL
from bottleneck.schema.op_names import OWN_FRAME, OWN_STRETCH
from bottleneck.schema.tables import FRESH_FROM_BYTES, WAITS, as_integers, main_thread, text_matches
from bottleneck.system.working_memory import return_freed_memory, returns_memory

LOADER = rf"{LOADER_CALL.pattern}|\b(load|wait_for|next)_batch\b"
_SYNC_OP = r"^aten::(item|_local_scalar_dense|nonzero|is_nonzero)$"
# Ops that compute, on whatever device their tensors are; views, metadata and allocations are not among them.
_COMPUTING_OP = (
    r"^aten::_?(add|sub|mul|div|neg|abs|exp|log|sqrt|rsqrt|pow|clamp|where|eq|ne|gt|lt|ge|le|sum|mean|max|min|argmax"
    r"|argmin|norm|std|var|cumsum|sort|topk|unique2?|cat|stack|copy|to_copy|fill|zero|ones|zeros|full|arange|linspace"
    r"|eye|tril|triu|rand|randn|randint|randperm|random|normal|uniform|bernoulli|exponential|multinomial|mm|bmm|addmm"
    r"|baddbmm|matmul|linear|convolution|mkldnn_\w+|softmax|log_softmax|relu|gelu|sigmoid|tanh|embedding|nonzero|flip"
    r"|roll|repeat|bincount|histc|searchsorted|index|gather|clone|contiguous|constant_pad_nd|(index|scatter|masked|fft"
    r"|linalg|logical|bitwise|foreach|native|upsample|adaptive|max_pool|avg_pool)_\w+)_?$"
)
_COMPILE_FRAME = (
    r"torch/_dynamo/convert_frame\.py|torch/_inductor/compile_fx\.py\(\d+\): \w*compile_fx\w*$"
    r"|torch/_inductor/(async_compile|codecache)\.py\(\d+\): (wait|load\w*|compile\w*)$"
    r"|triton_heuristics\.py\(\d+\): (autotune_to_one_config|benchmark_all_configs|_?precompile\w*)$"
    r"|triton/compiler/compiler\.py\(\d+\): compile$|triton/runtime/autotuner\.py\(\d+\): (_bench|benchmark)$"
)
_PROFILER_FRAME = (
    r"torch/profiler/profiler\.py\(\d+\): (start|stop|step|start_trace|stop_trace|_transit_action|prepare_trace)$"
    r"|torch/autograd/profiler\.py\(\d+\): (_start_trace|_prepare_trace|_disable_profiler)$"
)
# Calls that return when a timer, a lock, a socket or a process lets them; the time in them is nobody's work.
_CALL = r"^<(?:built-in (?:function|method)|method) '?"
_SLEEP = rf"{_CALL}(?:time\.)?sleep\b"
_POLL = (
    rf"{_CALL}(?:(?:poll|control)'? of '?select\.|(?:_?accept|recv\w*)'? of '?_?(?:socket|ssl)\b)"
    rf"|{_CALL}(?:select|GetQueuedCompletionStatus)>|(?:selectors|socket)\.py\(\d+\): (?:select|accept)$"
)
_WAITING_CALL = "|".join(
    (
        rf"{_CALL}(?:poll|control)'? of '?select\.",
        rf"{_CALL}(?:acquire|join)'? of '?_thread\.",
        rf"{_CALL}get'? of '?_queue\.",
        rf"{_CALL}(?:_?accept|recv\w*|send\w*|connect\w*)'? of '?_?(?:socket|ssl)\b",
        rf"{_CALL}read'? of '?_ssl\.",
        rf"{_CALL}(?:select|waitpid|wait4|waitid|wait|GetQueuedCompletionStatus)>",
    )
)
_WAITING_FRAME = (
    r"(?:^|/[Ll]ib/(?:python[\d.]+t?/)?)(?:threading\.py\(\d+\): (?:wait|wait_for|join|acquire|_wait_for_tstate_lock)"
    r"|queue\.py\(\d+\): get|selectors\.py\(\d+\): select|socket\.py\(\d+\): (?:accept|readinto)"
    r"|subprocess\.py\(\d+\): (?:wait|communicate)|concurrent/futures/_base\.py\(\d+\): (?:result|wait)"
    r"|multiprocessing/(?:connection\.py\(\d+\): (?:wait|_recv|poll)|queues\.py\(\d+\): get))$"
)

# Per category of EVENTS: (state, pattern of names); the first match wins, null is a name that tells nothing.
_RULES: Mapping[str, tuple[tuple[str | None, str], ...]] = {
    "sync": ((None, "Stream Wait Event"), ("sync", "")),  # one stream waiting for another does not hold the host
    "op": (
        ("input", LOADER),
        (None, r"^ProfilerStep|^Optimizer\."),  # annotations that traces before 1.12 call ops
        ("compile", r" \(dynamo_timed\)$"),
        ("sync", _SYNC_OP),
        ("host_compute", _COMPUTING_OP),
        ("dispatch", ""),
    ),
    "annotation": (("input", LOADER), ("gc", r"^Python GC"), ("compile", r"_compile\b|autotun| \(dynamo_timed\)$")),
    "python": (
        ("input", r"utils/data/dataloader\.py\(\d+\): (?:__next__|_shutdown_workers)$"),
        ("gc", r"^gc\.py\(|^<built-in (function|method) collect\b|^Python GC"),
        ("compile", _COMPILE_FRAME),
        ("profiler", f"{_PROFILER_FRAME}|{OWN_FRAME}"),
        ("wait", _SLEEP),
        ("wait", _WAITING_CALL),
        ("wait", _WAITING_FRAME),
    ),
    # The spans named after the profiler cover the whole recording and tell nothing.
    "profiler": (
        (None, r"^PyTorch Profiler|trace \(\d+\)$|^Record Window|^Iteration Start"),
        ("compile", r"Lazy Function Loading|Module Loading"),
        ("profiler", ""),
    ),
}

# The state of a thread in a call into the runtime, by the kind of the call; in any other call it dispatches.
STATE_OF_CALL = {
    **dict.fromkeys(("launch", "graph_launch", "copy", "fill", "enqueue"), "launch"),
    **dict.fromkeys(WAITS, "sync"),
    **dict.fromkeys(("allocate", "free", "map", "memory"), "allocator"),
    "load": "compile",
}


# A lock that is free and a socket that is ready take less.
LEAST_WAIT_US = 20.0
# Up to here the time of an op is that of issuing it, wherever it computes.
_LONGEST_DISPATCH_US = 10.0


def state_of(category: str, name: str) -> str | None:
    """Gives the state that an event puts its thread in.

    It is one of HOST_STATES, by the event's category and name. Null when it tells nothing.

    Calls into the runtime go by their kind, not their name.
    """
    for state, pattern in _COMPILED.get(category, ()):
        if pattern.search(name):
            return state
    return None


# Frames of Windows have backslashes.
_COMPILED = {
    category: tuple((state, re.compile(pattern.replace("/", r"[/\\]"))) for state, pattern in rules)
    for category, rules in _RULES.items()
}


def owned_segments(ops: pd.DataFrame) -> tuple[Floats, Floats, Integers]:
    """Gives the stretches in which an op is its thread's innermost.

    They are starts, ends and rows in OPS.
    """
    start, end = ops["ts_us"].to_numpy(), _nested_end(ops)
    parent = ops["parent"].to_numpy(dtype=np.int64, na_value=-1)
    thread, depth = ops["thread"].cat.codes.to_numpy(), ops["depth"].to_numpy(dtype=np.int64)
    rows = np.flatnonzero(end > start)
    time = np.concatenate((start[rows], end[rows]))
    owner = np.concatenate((rows, parent[rows]))
    # At one instant inner ends come before outer ends, ends before starts, outer starts before inner starts.
    rank = np.concatenate((depth[rows], -1 - depth[rows]))
    track = np.concatenate((thread[rows], thread[rows]))
    order = by_track(track, time, rank)
    time, owner, track = time[order], owner[order], track[order]
    held = np.flatnonzero((track[:-1] == track[1:]) & (owner[:-1] >= 0) & (time[1:] > time[:-1]))
    return time[held], time[held + 1], owner[held]


# Giving back a page of 4 KiB takes 0.05 to 0.3 us on bare machines and up to 0.9 us on virtual ones (measured).
_LONGEST_UNMAP_US_PER_BYTE = 1.0 / 4096


def freed_blocks(linked: Linked) -> pd.DataFrame:
    """Gives the rows of MEMORY that free large host blocks.

    ``end_us`` is until when that may have held the thread.

    The allocator reports a block just before it frees it: what follows, up to the next event of the thread, is the
    system taking the pages back, as far as that takes.
    """
    memory, events = linked.trace.memory, linked.trace.events
    freed = memory[(memory["bytes"] <= -FRESH_FROM_BYTES) & ~memory["on_device"]]
    start = freed["ts_us"].to_numpy()
    end = start - freed["bytes"].to_numpy() * _LONGEST_UNMAP_US_PER_BYTE
    mine = _codes_as_in_events(freed["thread"], linked)
    others, threads = _codes_as_in_events(memory["thread"], linked), events["thread"].cat.codes.to_numpy()
    for code, rows in grouped(mine):
        began = events["ts_us"].to_numpy()[threads == code]
        ended = began + events["dur_us"].to_numpy()[threads == code]
        marks = np.concatenate((began, ended, memory["ts_us"].to_numpy()[others == code], [np.inf]))
        marks.sort(kind="stable")  # which merges what is in order
        following = marks[np.searchsorted(marks, start[rows], side="right")]
        end[rows] = np.where(np.isfinite(following), np.minimum(end[rows], following), start[rows])
    return freed.assign(end_us=end)


def innermost_op(ops: pd.DataFrame, thread: str, times: Floats) -> Integers:
    """Gives the innermost op open on a thread at each time.

    It is a row in OPS, -1 where none is open.
    """
    mine = np.flatnonzero((ops["thread"] == thread).to_numpy())
    start, end = ops["ts_us"].to_numpy(), (ops["ts_us"] + ops["dur_us"]).to_numpy()
    return innermost(mine, start, end, as_integers(ops["parent"]), times)


def _nested_end(ops: pd.DataFrame) -> Floats:
    """Gives the ends of ops, cut to nest.

    Siblings then do not overlap and no op outlives its parent.

    Whole-microsecond traces round starts and durations apart, so that neighbours overlap by 1 us.
    """
    start = ops["ts_us"].to_numpy()
    end: Floats = start + ops["dur_us"].to_numpy()
    parent = ops["parent"].to_numpy(dtype=np.int64, na_value=-1)
    family = np.where(parent < 0, -1 - ops["thread"].cat.codes.to_numpy().astype(np.int64), parent)
    order = np.argsort(family, kind="stable")
    siblings = np.flatnonzero(family[order[:-1]] == family[order[1:]])
    end[order[siblings]] = np.minimum(end[order[siblings]], start[order[siblings + 1]])
    depth = ops["depth"].to_numpy()
    by_depth = np.argsort(depth, kind="stable")
    for level in np.split(by_depth, np.flatnonzero(np.diff(depth[by_depth])) + 1)[1:]:
        end[level] = np.minimum(end[level], np.where(parent[level] < 0, np.inf, end[parent[level]]))
    return end


_NONE = -1
# Types of the states and threads of a million events and more.
STATE, THREAD = np.int8, np.int32
_NO_EVENT = np.iinfo(np.int64).max  # in segments: the stretch belongs to no row of EVENTS
_PYTHON = HOST_STATES.index("python")
_SYNC = HOST_STATES.index("sync")
_START_UP = HOST_STATES.index("start_up")
_INPUT, _ALLOCATOR = HOST_STATES.index("input"), HOST_STATES.index("allocator")
_WAIT, _COMPILE = HOST_STATES.index("wait"), HOST_STATES.index("compile")
_STALL = HOST_STATES.index("stall")
_DISPATCH, _HOST_COMPUTE = HOST_STATES.index("dispatch"), HOST_STATES.index("host_compute")
_RECORDED = ("op", "annotation", "python")

ByThread = Mapping[int, Segments]


class ThreadStates(Struct, frozen=True):
    """The states of a thread at some instants.

    ``state`` is an index in HOST_STATES, one more for unknown; ``event`` the row in EVENTS that put it there (-1:
    none); ``thread`` the thread of that event: itself, or the main thread where it has no events.
    """

    state: Codes
    event: Integers
    thread: Codes


class Host(Struct, frozen=True):
    """All host threads, by code of EVENTS.thread.

    ``states`` has per state (index in HOST_STATES) the stretches spent in it.

    ``everywhere`` holds what the profiler reports for the process and not for a thread. ``recorded`` is the stretch in
    which the trace tells of the host at all; in it a thread without events runs Python. ``ops`` holds outermost ops,
    ``loaders`` the marks of data loaders, ``waits`` the calls that wait (rows of EVENTS), ``places`` rows of PLACES and
    ``inner`` innermost ops (rows of OPS) of threads without places where others have them. ``blocked`` are waits that
    another thread may end, all but sleep, ``polls`` those for what comes over a socket. ``present`` are the stretches
    with Python frames, where threads wait. ``sync_calls`` are the starts of waiting calls, sorted, ``held_up`` calls
    of ops that are held up.
    """

    main_thread: int
    labels: Mapping[str, int]
    states: Mapping[int, Mapping[int, Segments]]
    everywhere: Mapping[int, Segments]
    recorded: Segments
    ops: ByThread
    loaders: ByThread
    waits: ByThread
    places: ByThread
    inner: ByThread
    blocked: ByThread
    polls: ByThread
    present: ByThread
    sync_calls: Floats
    held_up: pd.DataFrame

    def sync_calls_between(self, start: float, end: float) -> int:
        """Number of calls that wait for a device and begin in [start, end)."""
        return int(np.count_nonzero((self.sync_calls >= start) & (self.sync_calls < end)))

    def at(self, thread: int, times: Floats) -> ThreadStates:
        """Gives the states of a thread.

        Where it has no events those of the main thread count: a backward thread waits for it.
        """
        state = np.full(times.shape, len(HOST_STATES), dtype=STATE)
        event, source_thread = (np.full(times.shape, _NONE, dtype=kind) for kind in (np.int64, THREAD))
        open_ = np.arange(times.size)
        for level, segments, who in self._stack(thread):
            row = segments.at(times[open_])
            claimed = open_[row >= 0]
            state[claimed], event[claimed], source_thread[claimed] = level, row[row >= 0], who
            open_ = open_[row < 0]
        if self.threads_that_wait:
            self._ask_others(thread, times, (state, event, source_thread))
        event[(state == _PYTHON) | (event == _NO_EVENT)] = _NONE
        return ThreadStates(state, event, source_thread)

    def _ask_others(self, thread: int, times: Floats, answer: tuple[Codes, Integers, Codes]) -> None:
        """Fills in what other threads do while this one waits.

        It waits for one of them, or is not there.

        A thread that runs the program's code or ops answers first, then one that waits for requests.
        """
        state, event, source_thread = answer
        is_blocked = (state == _WAIT) & (self.blocked.get(thread, NOTHING).at(times) >= 0)
        is_away = (state == _PYTHON) & (thread in self.present) & (self.present.get(thread, NOTHING).at(times) < 0)
        asked = np.flatnonzero(is_blocked | is_away)
        others = self._others(thread)
        for other in others:
            other_state, row = self._alone(other, times[asked])
            works = (other_state < len(HOST_STATES)) & (other_state != _WAIT)
            chosen = asked[works]
            state[chosen], event[chosen], source_thread[chosen] = other_state[works], row[works], other
            asked = asked[~works]
        for other in others:
            row = self.polls.get(other, NOTHING).at(times[asked])
            chosen = asked[row >= 0]
            state[chosen], event[chosen], source_thread[chosen] = _WAIT, row[row >= 0], other
            asked = asked[row < 0]

    def _alone(self, thread: int, times: Floats) -> tuple[Codes, Integers]:
        """Gives state and event of a thread by its own evidence.

        This is its own events and the program's code on it. One more than the states stands for unknown.
        """
        row = self.places.get(thread, NOTHING).at(times)
        state = np.where(row >= 0, _PYTHON, len(HOST_STATES)).astype(STATE)
        event = np.full(times.size, _NONE, dtype=np.int64)
        for code, segments in sorted(self.states.get(thread, {}).items(), key=_by_state, reverse=True):
            row = segments.at(times)
            state[row >= 0], event[row >= 0] = code, row[row >= 0]
        return state, event

    @property
    def threads_that_wait(self) -> frozenset[int]:
        """The threads with waits that are on record."""
        return frozenset({*self.blocked, *self.polls})

    def _others(self, thread: int) -> list[int]:
        """Gives the threads that this one may wait for.

        They may do the work that it waits for, or wait for it in its place.
        """
        if not self.threads_that_wait:
            return []
        return [other for other in sorted({*self.ops, *self.places, *self.polls}) if other != thread]

    def changes(self, thread: int) -> Iterator[Floats]:
        """Instants at which the answer for a thread, or its place, may change."""
        several: list[Segments] = [segments for _, segments, _ in self._stack(thread)]
        for source in {thread, self.main_thread, *self._others(thread)}:
            several += [
                by_thread[source] for by_thread in (self.places, self.inner, self.loaders) if source in by_thread
            ]
        several += [segments for other in self._others(thread) for segments in self.states.get(other, {}).values()]
        several += [self.present[code] for code in {thread} if code in self.present]
        for segments in several:
            yield segments.start
            yield segments.end

    def states_of(self, state: str) -> dict[int, Segments]:
        """The stretches that threads spent in a state."""
        code = HOST_STATES.index(state)
        return {thread: stretches[code] for thread, stretches in self.states.items() if code in stretches}

    def holds(self, state: str, thread: str, times: Floats) -> Flags:
        """Marks times at which this label's thread was in a state."""
        stretches = self.states.get(self.labels.get(thread, _NONE), {})
        return stretches.get(HOST_STATES.index(state), NOTHING).at(times) >= 0

    def _stack(self, thread: int) -> Iterator[tuple[int, Segments, int]]:
        """Yields states in the order in which they claim an instant.

        Each comes with its stretches and the thread that they belong to.
        """
        for state, segments in sorted(self.everywhere.items(), key=_by_state):
            yield state, segments, self.main_thread
        for source in dict.fromkeys((thread, self.main_thread)):
            for state, segments in sorted(self.states.get(source, {}).items(), key=_by_state):
                yield state, segments, source
        yield _PYTHON, self.recorded, thread


def _by_state(item: tuple[int, Segments]) -> int:
    return item[0]


def _issuers(linked: Linked) -> frozenset[int]:
    """Gives the threads that issue work for others.

    Only where no work of the device tells its launch. They run calls of the runtime and nothing else: what holds one up
    holds up all work behind it in its queue.
    """
    if linked.is_host_only or linked.kernels["launch"].notna().any():
        return frozenset()
    events = linked.trace.events
    thread = events["thread"].cat.codes.to_numpy()
    works = events["category"].isin(("op", "python", "line", "annotation")).to_numpy()
    calls = _is_category(events, "runtime")
    return frozenset(np.setdiff1d(thread[calls], thread[works]).tolist())


@returns_memory
def read_host(linked: Linked) -> Host:
    """The states and places of all host threads."""
    events = linked.trace.events
    rows, states = _stateful_rows(linked.trace)
    start = events["ts_us"].to_numpy()[rows]
    end = start + events["dur_us"].to_numpy()[rows]
    thread = events["thread"].cat.codes.to_numpy()[rows]
    labels = events["thread"].cat.categories
    runtime = _is_category(events, "runtime")[rows]
    states = _settled(states, runtime, thread, start, end)
    sync_calls = np.sort(start[(states == _SYNC) & runtime])
    states[np.isin(rows, _blocking_copies(linked))] = _SYNC
    states[np.isin(rows, np.array(linked.one_offs, dtype=np.int64))] = _START_UP

    freed = freed_blocks(linked)
    if len(freed):
        rows = np.append(rows, np.full(len(freed), _NO_EVENT))
        states = np.append(states, np.full(len(freed), _ALLOCATOR, dtype=STATE))
        start, end = np.append(start, freed["ts_us"]), np.append(end, freed["end_us"])
        thread = np.append(thread, _codes_as_in_events(freed["thread"], linked))

    held_up = held_up_calls(linked)
    if len(held_up):
        stalls = _stalls(linked, held_up)
        rows, start, end = np.append(rows, stalls.row), np.append(start, stalls.start), np.append(end, stalls.end)
        states = np.append(states, np.full(stalls.row.size, _STALL, dtype=STATE))
        thread = np.append(thread, events["thread"].cat.codes.to_numpy()[stalls.row])

    def in_category(name: str) -> Flags:
        return np.append(_is_category(events, name), False)[np.minimum(rows, len(events))]

    def by_thread(chosen: Flags) -> dict[int, Segments]:
        return {code: outermost(start, end, rows, mine) for code, mine in _of_each(thread, chosen)}

    of_process, issuers = _process_tracks(events), _issuers(linked)
    return_freed_memory()
    threads: dict[int, dict[int, Segments]] = {}
    everywhere: dict[int, Segments] = {}
    for state in np.unique(states).tolist():
        for code, segments in by_thread(states == state).items():
            holds_all = code in of_process or (state == _COMPILE and code in issuers)
            target = everywhere if holds_all else threads.setdefault(code, {})
            target[state] = segments
    places = places_of(linked)
    return Host(
        main_thread=main_thread(events),
        labels={str(label): code for code, label in enumerate(labels)},
        states=threads,
        everywhere=everywhere,
        recorded=_recorded(events),
        ops=by_thread(in_category("op")),
        loaders=by_thread((states == _INPUT) & ~in_category("python")),
        waits=by_thread((states == _SYNC) & in_category("runtime")),
        places=places,
        inner=_inner(linked, places),
        blocked=by_thread((states == _WAIT) & ~_named(events, rows, _SLEEP)),
        polls=by_thread((states == _WAIT) & _named(events, rows, _POLL)),
        present=_presence(events) if (states == _WAIT).any() else {},
        sync_calls=sync_calls,
        held_up=held_up,
    )


def _stalls(linked: Linked, held_up: pd.DataFrame) -> Segments:
    """Gives the stretches in which calls are held up, with their rows in EVENTS.

    Such a stretch is the end of the longest one in which the op was innermost.
    """
    start, end, owner = owned_segments(linked.ops)
    beyond_us = pd.Series(held_up["beyond_us"].to_numpy(), index=held_up["op"].to_numpy())
    mine = np.flatnonzero(np.isin(owner, beyond_us.index.to_numpy()))
    longest = pd.Series(end[mine] - start[mine]).groupby(owner[mine]).idxmax().to_numpy(dtype=np.int64)
    chosen = mine[longest]
    begin = np.maximum(start[chosen], end[chosen] - beyond_us[owner[chosen]].to_numpy())
    return Segments(begin, end[chosen], as_integers(linked.ops["event"])[owner[chosen]])


_OWN = re.compile(f"^{re.escape(OWN_STRETCH)}$|{OWN_FRAME}")


def own_stretches(events: pd.DataFrame) -> Spans:
    """The stretches of the trace in which hooks of ours ran."""
    rows = np.flatnonzero(text_matches(events["name"], _OWN.search))
    start, dur = (events[name].to_numpy()[rows] for name in ("ts_us", "dur_us"))
    return union(start, start + dur)


def host_of(evidence: Evidence) -> Host:
    """Gives the host of the evidence's trace.

    It is read once, and not at all where the pipeline has kept it.
    """
    if read_host not in evidence.cache:
        evidence.cache[read_host] = read_host(evidence.linked)
    return cast("Host", evidence.cache[read_host])


# Up to so many threads, each is looked for by itself: to sort them takes three times the memory of what is sorted.
_FEW_THREADS = 8


def _of_each(thread: Codes, chosen: Flags) -> Iterator[tuple[int, Integers]]:
    """Each thread with its rows among those chosen, in order."""
    codes = np.flatnonzero(np.bincount(thread[chosen])).tolist()
    if len(codes) <= _FEW_THREADS:
        yield from ((code, np.flatnonzero(chosen & (thread == code))) for code in codes)
    else:
        part = np.flatnonzero(chosen)
        yield from ((code, part[mine]) for code, mine in grouped(thread[part]))


def _blocking_copies(linked: Linked) -> Integers:
    """Rows in EVENTS of the calls that issued copies to pageable memory.

    Such a call returns when its copy is done: there is no buffer of ours that it could go on to fill later.
    """
    launch, is_read = as_integers(linked.kernels["launch"]), linked.kernels["copy_way"] == "to_host"
    return launch[(is_read & (linked.kernels["host_memory"] == "pageable")).to_numpy() & (launch >= 0)]


def places_of(linked: Linked) -> dict[int, Segments]:
    """PLACES by code of EVENTS.thread."""
    if linked.places is None:
        return {}
    code = _codes_as_in_events(linked.places["thread"], linked)
    start, end = (linked.places[name].to_numpy() for name in ("ts_us", "end_us"))
    return {thread: Segments(start[rows], end[rows], rows) for thread, rows in grouped(code)}


def _inner(linked: Linked, places: Mapping[int, Segments]) -> dict[int, Segments]:
    if not places:
        return {}
    start, end, owner = owned_segments(linked.ops)
    code = _codes_as_in_events(linked.ops["thread"], linked)[owner]
    rows_by_thread = {thread: rows for thread, rows in grouped(code) if thread not in places}
    return {thread: Segments(start[rows], end[rows], owner[rows]) for thread, rows in rows_by_thread.items()}


def _codes_as_in_events(column: "pd.Series[str]", linked: Linked) -> Integers:
    labels = linked.trace.events["thread"].cat.categories
    return np.asarray(labels.get_indexer(column.cat.categories)[column.cat.codes.to_numpy()], dtype=np.int64)


def _stateful_rows(trace: Trace) -> tuple[Integers, Codes]:
    """Gives rows of EVENTS that tell a state, and the state.

    The kind or name tells it. Names are matched once each, not per row.
    """
    events = trace.events
    category, names = events["category"].cat, events["name"].cat
    category_codes, name_codes = category.codes.to_numpy(), names.codes.to_numpy()
    calls = trace.launch_args["event"].to_numpy()
    rows: list[Integers] = [calls]
    states: list[Codes] = [_states_of_calls(trace.launch_args["call_kind"])]
    for wanted in _RULES:
        if wanted not in category.categories:
            continue
        mine = np.flatnonzero(category_codes == category.categories.get_loc(wanted))
        codes = name_codes[mine]
        state_by_name = np.full(len(names.categories), _NONE, dtype=STATE)
        for code in np.flatnonzero(np.bincount(codes, minlength=len(names.categories))):
            state = state_of(wanted, str(names.categories[int(code)]))
            if state is not None:
                state_by_name[code] = HOST_STATES.index(state)
        row_states: Codes = state_by_name[codes]
        if wanted == "python":
            row_states[(row_states == _WAIT) & (events["dur_us"].to_numpy()[mine] < LEAST_WAIT_US)] = _NONE
        rows.append(mine[row_states != _NONE])
        states.append(row_states[row_states != _NONE])
    return np.concatenate(rows), np.concatenate(states)


def _states_of_calls(kind: "pd.Series[str]") -> Codes:
    """The states of calls into the runtime."""
    by_kind = [HOST_STATES.index(STATE_OF_CALL.get(label, "dispatch")) for label in kind.cat.categories]
    return np.array([*by_kind, _DISPATCH], dtype=STATE)[kind.cat.codes.to_numpy()]


def _presence(events: pd.DataFrame) -> dict[int, Segments]:
    """The stretches of each thread in which a Python frame is open."""
    frames = np.flatnonzero(_is_category(events, "python"))
    start = events["ts_us"].to_numpy()[frames]
    end, thread = start + events["dur_us"].to_numpy()[frames], events["thread"].cat.codes.to_numpy()[frames]
    return {code: outermost(start, end, frames, rows) for code, rows in grouped(thread.astype(np.int64))}


def _process_tracks(events: pd.DataFrame) -> frozenset[int]:
    """Gives the codes of EVENTS.thread that stand for the process and are no thread.

    Kineto writes what the profiler cost to pid -1 in JSON, and to a track of its own in a Perfetto file.
    """
    thread = events["thread"].cat
    size = len(thread.categories)
    others = np.bincount(thread.codes.to_numpy()[~_is_category(events, "profiler")], minlength=size)
    labels = enumerate(thread.categories)
    return frozenset(code for code, label in labels if not others[code] or str(label).startswith("-1/"))


def _named(events: pd.DataFrame, rows: Integers, pattern: str) -> Flags:
    """Marks rows of EVENTS whose name the pattern finds.

    Rows beyond EVENTS are never marked.
    """
    matches = np.append(text_matches(events["name"], re.compile(pattern).search), False)
    return np.asarray(matches[np.minimum(rows, len(events))])


def _is_category(events: pd.DataFrame, name: str) -> Flags:
    codes, categories = events["category"].cat.codes.to_numpy(), events["category"].cat.categories
    return codes == categories.get_loc(name) if name in categories else np.zeros(codes.size, dtype=bool)


def _settled(states: Codes, runtime: Flags, thread: Codes, start: Floats, end: Floats) -> Codes:
    """Settles the states of ops that their names leave open.

    The runtime calls inside them decide. The other states stay as they are.

    An op that could wait for the device and makes no waiting call, such as item() of a CPU tensor, is dispatch. So is
    one that computes if it makes any call, since it computes on the device then, or is short. A trace without any
    runtime call cannot tell: there ops that could wait do, and none counts as computing on the host.
    """
    could_wait, computes = (~runtime & (states == state) for state in (_SYNC, _HOST_COMPUTE))
    if not runtime.any():
        return np.where(computes, _DISPATCH, states)
    waits = _hold_call(could_wait, runtime & (states == _SYNC), thread, start, end)
    is_dispatch = (could_wait & ~waits) | (computes & (end - start <= _LONGEST_DISPATCH_US))
    return np.where(is_dispatch | _hold_call(computes, runtime, thread, start, end), _DISPATCH, states)


def _hold_call(asked: Flags, is_call: Flags, thread: Codes, start: Floats, end: Floats) -> Flags:
    """Marks the asked rows inside which one of the calls begins.

    The call is on their thread.
    """
    holds = np.zeros(asked.size, dtype=bool)
    candidates = np.flatnonzero(asked | is_call)
    for _, rows in grouped(thread[candidates]):
        mine = candidates[rows]
        calls, doubtful = np.sort(start[mine[is_call[mine]]]), mine[asked[mine]]
        holds[doubtful] = np.searchsorted(calls, end[doubtful]) > np.searchsorted(calls, start[doubtful])
    return holds


def _recorded(events: pd.DataFrame) -> Segments:
    recorded = np.logical_or.reduce([_is_category(events, name) for name in _RECORDED])
    if not recorded.any():
        return NOTHING
    start_us, dur_us = (events[name].to_numpy() for name in ("ts_us", "dur_us"))
    first = np.flatnonzero(recorded)[:1]
    return outermost(start_us[first], np.max(start_us + dur_us, where=recorded, initial=-np.inf, keepdims=True), first)
