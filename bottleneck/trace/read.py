"""Reads a trace file of any era into a ``Trace``.

It finds the event list, decodes it in chunks, and assembles EVENTS. The text is never parsed as a whole: each block is
cut after its last complete event. In sound JSON a cut between events looks like `}, {"ph"`, with "ph" for the key that
the first event begins with. A nested list of objects would have to begin with that key too to be mistaken for one; then
the chunk does not decode and is taken apart.
"""

import gc
import itertools
import os
import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Generic, NoReturn

from bottleneck.errors import TraceError
from bottleneck.schema.linked_trace import Trace
from bottleneck.system.files import is_remote
from bottleneck.system.working_memory import returns_memory
from bottleneck.trace.assemble import Assembled, assemble
from bottleneck.trace.columns import Columns
from bottleneck.trace.damage import Damage
from bottleneck.trace.decode import DECODE_ERRORS, Entry, EventDecoder, ListDecoder, load_leniently
from bottleneck.trace.foreign import reject_json, reject_value
from bottleneck.trace.inflate import ignore_progress, read_blocks
from bottleneck.trace.metadata import Metadata, flavour_of, missing_device_work, read_metadata, several_traces
from bottleneck.trace.parallel import Inseparable, add_events
from bottleneck.trace.salvage import ANY_BOUNDARY, Salvager, restore_backslashes
from bottleneck.units import counted

_LIST_KEY = re.compile(rb'"traceEvents"\s*:\s*')
_BLANKS = b" \t\r\n"
_BOM = b"\xef\xbb\xbf"
_LIMIT_BYTES = 16 * 1024**2
_KEYS_TRIED = 32
# Enough to see the first key of the first event.
_LOOK_AHEAD_BYTES = 4096


def read_header(path: Path, blocks: Iterator[bytes], damage: Damage) -> tuple[bytes, bytes]:
    """Reads the header of the document in ``blocks``.

    Also gives the text after it, which begins with an event. The header is an object closed after its empty event list,
    '' for a bare array. Raises TraceError when no list of events follows it.
    """
    text = next(blocks, b"").removeprefix(_BOM).lstrip(_BLANKS)
    if text.startswith(b"["):
        start, header = 1, b""
    elif text.startswith(b"{"):
        text, start = _find_list(path, text, blocks, damage)
        header = text[: start - 1] + b"[]}"
    else:
        reject_value(path, text)
    rest = text[start:].lstrip(_BLANKS)
    while len(rest) < _LOOK_AHEAD_BYTES and (block := next(blocks, b"")):
        rest = (rest + block).lstrip(_BLANKS)
    if rest.startswith(b"["):
        reject_value(path, rest)
    return header, rest


def _find_list(path: Path, text: bytes, blocks: Iterator[bytes], damage: Damage) -> tuple[bytes, int]:
    """Finds the bracket that opens the list.

    Gives the text read so far and the position after the bracket.
    """
    searched = tried = 0
    while tried < _KEYS_TRIED:
        for match in itertools.islice(_LIST_KEY.finditer(text, searched), _KEYS_TRIED):
            tried += 1
            if match.end() < len(text) and _is_top_level(text[: match.start()]):
                return text, _after_bracket(path, text, match.end())
        searched = max(0, len(text) - len(b'"traceEvents" : ') - 64)
        block = next(blocks, b"")
        if not block or len(text) > _LIMIT_BYTES:
            break
        text += block
    unverified = _LIST_KEY.search(text)
    if unverified is None or unverified.end() == len(text):
        _reject_without_list(path, text)
    damage["metadata"] += 1
    return text, _after_bracket(path, text, unverified.end())


def _is_top_level(header: bytes) -> bool:
    """True where a key after the text is one of the outermost object."""
    try:
        return isinstance(load_leniently(header + b'"traceEvents":null}'), dict)
    except DECODE_ERRORS:
        return False


def _after_bracket(path: Path, text: bytes, start: int) -> int:
    if text[start : start + 1] != b"[":
        reject_value(path, text[start:])
    return start + 1


def _reject_without_list(path: Path, text: bytes) -> NoReturn:
    try:
        top = load_leniently(text)
    except DECODE_ERRORS:
        raise TraceError(
            f"{path} is no readable JSON",
            why="no list of trace events was found in it",
            fix="record it again; the program may have ended while it was written",
        ) from None
    reject_json(path, top, ())


_FIRST_KEY = re.compile(rb'\{\s*("(?:[^"\\]|\\.)*")\s*:')

_WINDOW_BYTES = 4096
_ANY_BOUNDARY_AFTER_BYTES = 8 * 1024**2
_LONGEST_EVENT_BYTES = 256 * 1024**2
_FOOTER_LIMIT_BYTES = 16 * 1024**2


class TraceDocument(Generic[Entry]):
    """One trace document.

    Iterate it once, then read ``header`` and ``footer``, the texts around the event list. ``boundary`` is the pattern
    at which the last of its ``texts`` was cut.
    """

    def __init__(self, path: Path, blocks: Iterator[bytes], damage: Damage, decoder: ListDecoder[Entry]) -> None:
        self._path = path
        self._blocks = blocks
        self._damage = damage
        self._decoder = decoder
        self._tail: list[bytes] = []
        self._ended = False
        self.salvager = Salvager(decoder, damage)
        self.boundary = ANY_BOUNDARY
        self.header = b""
        self.footer = b""

    def __iter__(self) -> Iterator[Sequence[Entry]]:
        for text in self.texts():
            yield self.events_of(text)
        yield from self.last_events()

    def texts(self) -> Iterator[bytes]:
        """Yields stretches of the event list that text follows.

        Each is a list of its own.
        """
        self.header, rest = read_header(self._path, self._blocks, self._damage)
        if rest.startswith(b"]"):
            self._take_footer(rest[1:])
            return
        self.boundary = _boundary_after(rest)
        self._tail = [rest]
        for block in self._blocks:
            end, start = self._last_cut(block)
            if not start:
                self._lengthen(block)
                continue
            text = b"".join((b"[", *self._tail, memoryview(block)[:end], b"]"))
            self._tail = [block[start:]]
            yield text

    def events_of(self, text: bytes) -> Sequence[Entry]:
        """Gives the events of the last of the ``texts``.

        Damage may go on in the text that follows, or end the list.
        """
        try:
            return self._decoder.decode(text)
        except DECODE_ERRORS:
            salvage = self.salvager.salvage(text[1:-1], self.boundary)
            if salvage.ended:
                self._take_footer(b",".join([salvage.rest, *self._tail]))
            elif salvage.rest:
                self._tail = [salvage.rest, b",", *self._tail]
            return salvage.events

    def _lengthen(self, block: bytes) -> None:
        """Adds a block without a cut to the tail.

        No event ends in it, or only one that begins with another key.
        """
        self._tail.append(block)
        size = sum(map(len, self._tail))
        if size > _ANY_BOUNDARY_AFTER_BYTES:
            self.boundary = ANY_BOUNDARY
        if size > _LONGEST_EVENT_BYTES:
            raise TraceError(
                f"{self._path} holds no end of an event in {size >> 20} MiB",
                why="events take a few hundred bytes; the file is damaged or no trace",
                fix="record it again",
            )

    def last_events(self) -> Iterator[Sequence[Entry]]:
        """Events after the ``texts``, which no text follows."""
        if self._ended:
            return
        text, begun = _without_begun_event(b"".join(self._tail).rstrip(b"\0" + _BLANKS))
        end, start = self._last_cut(text)
        if start:
            try:
                yield self._decoder.decode(b"[" + text[:end] + b"]")
                text = text[start:]
            except DECODE_ERRORS:
                pass
        broken = self._damage["broken"]
        salvage = self.salvager.salvage_last(text, self.boundary)
        yield salvage.events
        if salvage.ended:
            self._take_footer(salvage.rest)
        elif self._damage["broken"] > broken:
            # The last one that could not be read is the one that the end of the file cut off.
            self._damage["broken"] -= 1
            self._damage["truncated-json"] += 1
        else:
            self._damage["truncated-json" if begun else "unclosed-json"] += 1

    def _last_cut(self, block: bytes) -> tuple[int, int]:
        """Finds the last cut between two events in the block.

        Gives (end of the last complete event, start of the next), or (0, 0) when there is no cut.
        """
        window = _WINDOW_BYTES
        while True:
            start = max(0, len(block) - window)
            cut = None
            for match in self.boundary.finditer(block, start):
                cut = match
            if cut:
                return cut.start() + 1, cut.end(1)
            if start == 0:
                return 0, 0
            window *= 16

    def _take_footer(self, text: bytes) -> None:
        pieces = [text]
        for block in self._blocks:
            # Reading on to the end finds damage of the compressed stream, and costs next to nothing.
            if sum(map(len, pieces)) < _FOOTER_LIMIT_BYTES:
                pieces.append(block)
        self.footer = b"".join(pieces)
        self._ended = True


def _boundary_after(text: bytes) -> re.Pattern[bytes]:
    """Gives the pattern of the text between two events.

    The list of these events begins with ``text``.
    """
    match = _FIRST_KEY.match(text)
    return re.compile(rb"\}(\s*,\s*)(?=\{\s*" + re.escape(match[1]) + rb"\s*:)") if match else ANY_BOUNDARY


def _without_begun_event(text: bytes) -> tuple[bytes, bytes]:
    """Parts the text at its last closing brace.

    The second part is the begin of an event that follows a comma there and has no brace.
    """
    end = text.rfind(b"}") + 1
    rest = text[end:].strip(_BLANKS)
    return (text[:end], rest.strip(b"," + _BLANKS)) if rest.startswith(b",") else (text, b"")


_AGAIN = "record it again; the program may have ended, or the disk been full, while it was written"

_ON_TRACE_READY = "on_trace_ready=lambda prof: prof.export_chrome_trace('trace.json')"

# Epoch times in microseconds are above this from 2001 on; times since boot or since start are below.
_EPOCH_FROM_NS = 10**18


@returns_memory
def read_trace(path: str | Path, jobs: int = 1, on_bytes: Callable[[int, int], None] = ignore_progress) -> Trace:
    """Reads the trace that torch.profiler wrote to a file.

    The file is .json or .json.gz, from PyTorch 1.4 to today. With several jobs, so many processes decode a large file;
    the trace is the same. ``on_bytes`` is called as by ``read_blocks``. Damage is repaired or left out, and listed in
    ``caveats``. Raises TraceError for a file that cannot be read, is no PyTorch trace, or holds no events.
    """
    path = Path(path) if isinstance(path, str) else path
    try:
        # A pipe can be read only once, and says nothing of its size.
        is_file = is_remote(path) or os.path.isfile(path)  # noqa: PTH113 - never raises
        return _read(path, jobs if os.name == "posix" and is_file else 1, on_bytes)
    except Inseparable:
        return _read(path, 1, on_bytes)


def _read(path: Path, jobs: int, on_bytes: Callable[[int, int], None]) -> Trace:
    damage, decoder, share_read = Damage(), EventDecoder(), 1.0

    def note(read_bytes: int, size_bytes: int) -> None:
        nonlocal share_read
        share_read = read_bytes / size_bytes
        on_bytes(read_bytes, size_bytes)

    document = TraceDocument(path, read_blocks(path, damage, note), damage, decoder)
    columns = Columns(damage)
    with _collector_off():
        add_events(document, columns, decoder, jobs, lambda: share_read)
    metadata = read_metadata(document.header, document.footer, damage)
    if not columns.has_work():
        _reject(path, columns, metadata)
    assembled = assemble(columns, _names(columns))
    if assembled.events.empty:
        raise TraceError(f"no event in {path} can be used", why=_damage_report(damage, columns.count), fix=_AGAIN)
    return _trace(path, columns, metadata, assembled)


@contextmanager
def _collector_off() -> Iterator[None]:
    """Turns off the cyclic collector for the block.

    There are no cycles to find, and to look for them would add 4 % to the time.
    """
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()


def _names(columns: Columns) -> list[str]:
    names = list(columns.names)
    if not columns.damage["backslash"]:
        return names
    # In a file with unescaped Windows paths some of them, such as torch\nn, are legal escapes and decode silently.
    restored = [restore_backslashes(name) for name in names]
    columns.damage["restored-name"] += sum(old != new for old, new in zip(names, restored, strict=True))
    return restored


def _reject(path: Path, columns: Columns, metadata: Metadata) -> NoReturn:
    """Raises TraceError for a file without any op or device work, with the reason."""
    damage = columns.damage
    if not (metadata.is_pytorch() or columns.is_pytorch()):
        if not columns.counts and (damage["broken"] or damage["truncated-json"]):
            raise TraceError(f"no event in {path} can be read", why=_damage_report(damage, 0), fix=_AGAIN)
        reject_json(path, metadata.keys, columns.counts)
    if damage["broken"] or damage["truncated-json"]:
        raise TraceError(
            f"{path} holds no readable op or kernel", why=_damage_report(damage, columns.count), fix=_AGAIN
        )
    what, calls = f"{path} is a PyTorch trace without any op or kernel", columns.runtime_calls()
    if calls:
        raise TraceError(
            what,
            why=f"it holds {counted(calls, 'call')} of the device's runtime alone: nothing ran in the profiler's "
            "window, or ops were not recorded and the records of kernels were lost",
            fix="record ProfilerActivity.CPU too, and let whole steps run inside the window",
        )
    if columns.is_pytorch() and columns.count > 1:
        raise TraceError(
            what,
            why="it holds only marks and Python frames, as where it is exported after the schedule's cycle has ended: "
            "that of the next one has just begun",
            fix=f"export each cycle when it is whole: {_ON_TRACE_READY}",
        )
    raise TraceError(
        what,
        why="the profiler window never became active, or ended at once",
        fix="let the program run more steps than wait + warmup of the schedule, call prof.step() in each, and export "
        f"when the cycle is whole: {_ON_TRACE_READY}",
    )


def _damage_report(damage: Damage, total: int) -> str:
    return "; ".join(caveat.message for caveat in damage.caveats(total))


def _trace(path: Path, columns: Columns, metadata: Metadata, assembled: Assembled) -> Trace:
    flavour = flavour_of(columns, metadata)
    return Trace(
        path=str(path),
        flavour=flavour,
        events=assembled.events,
        op_args=assembled.op_args,
        signatures=assembled.signatures,
        launch_args=assembled.launch_args,
        device_args=assembled.device_args,
        memory=assembled.memory,
        devices=metadata.devices,
        start_unix_ns=_start_unix_ns(metadata.base_ns, assembled.first_ns),
        integer_timestamps=not columns.any_fraction,
        rank=metadata.rank,
        world_size=metadata.world_size,
        counts=dict(columns.counts),
        facts=metadata.facts,
        caveats=(
            *columns.damage.caveats(columns.count),
            *several_traces(metadata),
            *missing_device_work(columns, metadata),
        ),
        origin_ns=assembled.first_ns,
        module_paths=metadata.module_paths,
        process_groups=metadata.process_groups,
        counters=assembled.counters,
    )


def _start_unix_ns(base_ns: int | None, first_ns: int) -> int | None:
    if first_ns >= _EPOCH_FROM_NS:
        return first_ns
    return None if base_ns is None else base_ns + first_ns
