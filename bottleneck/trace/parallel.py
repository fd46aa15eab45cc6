"""Decodes the event list in worker processes, which hand columns back through shared memory.

The reader inflates the text, cuts it into stretches of whole events and gives each to a worker in turn. It takes their
columns back in the order of the file, and decodes itself what a worker could not, so that the result is that of one
process.
"""

import gc
import mmap
import os
import re
import tempfile
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from typing import IO, TYPE_CHECKING, Any, cast

import numpy as np
from msgspec import Struct

from bottleneck.schema.records import replace
from bottleneck.system.worker_process import LOST, WorkerProcess, receive_message, send_message, serving_streams
from bottleneck.trace.columns import Array, Columns, EventBlock, Recoding
from bottleneck.trace.damage import Damage
from bottleneck.trace.decode import ABSENT, DECODE_ERRORS, AnyEvent, EventDecoder
from bottleneck.trace.salvage import Salvager

if TYPE_CHECKING:
    from bottleneck.trace.read import TraceDocument

# Text after which it is seen how much follows, and how much has to follow for workers to be started: each takes as much
# processor time to start as 10 to 20 MB take to decode.
LOOK_AFTER_BYTES, WORTH_WORKERS_BYTES = 8 * 1024**2, 96 * 1024**2
# How long the reader waits for workers that are not ready (null: for ever); until they are, it decodes.
PATIENCE_MS: float | None = 0.0

# Room for a stretch of text and for its columns. What does not fit is decoded by the reader.
_TEXT_BYTES = _COLUMN_BYTES = 3 * 1024**2 // 2
_SLOT_BYTES = _TEXT_BYTES + _COLUMN_BYTES
_SLOTS_PER_WORKER = 3
_ALIGNMENT_BYTES = 8
_READY = "ready"


class Inseparable(Exception):  # noqa: N818 - a property of the file, not an error of ours
    """Some stretch of the file cannot be decoded without those before it."""


class _State(Struct, frozen=True):
    """Properties of the events read so far that hold from then on.

    Each changes once, if ever.
    """

    needs_exact: bool
    any_fraction: bool


class _Task(Struct, frozen=True):
    """A stretch of text in the shared memory.

    With it comes the state that the reader was in when it gave the task.
    """

    offset: int
    size: int
    boundary: re.Pattern[bytes]
    state: _State


class _Reply(Struct, frozen=True):
    """The columns of a task, whose arrays lie in the shared memory.

    Null where the reader has to decode the text. ``lengths`` are those of the arrays; a negative one is that of a
    column without any value.
    """

    before: _State
    after: _State
    block: EventBlock
    lengths: list[int] | None


def add_events(
    document: "TraceDocument[AnyEvent]",
    columns: Columns,
    decoder: EventDecoder,
    jobs: int,
    share_read: Callable[[], float],
) -> None:
    """Adds all events of the document to the columns.

    With more than one job, that many workers decode a large file. ``share_read`` tells how much of the file was read to
    get the last text. Raises Inseparable where one process has to read the file from its beginning.
    """
    workers: DecoderProcesses | None = None
    taken = 0
    try:
        for text in document.texts():
            taken += len(text)
            if workers is None and jobs > 1 and _are_worth_it(taken, share_read()):
                workers = DecoderProcesses(document.salvager, columns, decoder, jobs)
            if workers is None or not workers.give(text, document.boundary):
                if workers is not None:
                    workers.finish()
                columns.add(document.events_of(text))
        if workers is not None:
            workers.finish()
    finally:
        if workers is not None:
            workers.close()
    for events in document.last_events():
        columns.add(events)


def _are_worth_it(taken_bytes: int, share_read: float) -> bool:
    return taken_bytes > LOOK_AFTER_BYTES and taken_bytes * (1 / share_read - 1) > WORTH_WORKERS_BYTES


class DecoderProcesses:
    """Processes that decode stretches of text in turn.

    They share a piece of memory with this process.
    """

    def __init__(self, salvager: Salvager[AnyEvent], columns: Columns, decoder: EventDecoder, jobs: int) -> None:
        self._salvager = salvager
        self._columns = columns
        self._decoder = decoder
        self._given: deque[_Task] = deque()
        self._next = self._oldest = 0
        self._slots = jobs * _SLOTS_PER_WORKER
        self._failed = False
        with _nameless_file() as file:
            file.truncate(self._slots * _SLOT_BYTES)
            self._memory = mmap.mmap(file.fileno(), 0)
            self._workers = [_start(file.fileno()) for _ in range(jobs)]
        self._starting = [*self._workers]
        self._recodings = [Recoding(columns) for _ in range(jobs)]

    def give(self, text: bytes, boundary: re.Pattern[bytes]) -> bool:
        """False where the reader has to decode this text."""
        if len(text) > _TEXT_BYTES or not self._are_ready():
            return False
        if len(self._given) == self._slots:
            self._take_oldest()
        task = _Task(self._next % self._slots * _SLOT_BYTES, len(text), boundary, self._state())
        self._memory[task.offset : task.offset + task.size] = text
        self._given.append(task)
        try:
            self._workers[self._next % len(self._workers)].send(task)
        except OSError:
            self._failed = True
        self._next += 1
        return True

    def _are_ready(self) -> bool:
        for worker in [*self._starting]:
            if worker.has_replied(PATIENCE_MS):
                self._failed |= _reply_of(worker) != _READY
                self._starting.remove(worker)
        return not self._starting and not self._failed

    def _state(self) -> _State:
        return _State(self._decoder.needs_exact, self._columns.any_fraction)

    def finish(self) -> None:
        """Adds all blocks that were given and not taken back."""
        while self._given:
            self._take_oldest()

    def _take_oldest(self) -> None:
        """Adds the next block of the file to the columns."""
        task, number = self._given.popleft(), self._oldest % len(self._workers)
        self._oldest += 1
        reply = None if self._failed else _reply_of(self._workers[number])
        if not isinstance(reply, _Reply):
            self._failed = True
            self._decode(task)
        else:
            fits = reply.lengths is not None and reply.before == self._state()
            if not fits:
                self._decode(task)
            self._recodings[number].learn(reply.block.values)
            if fits:
                self._columns.append(self._with_arrays(reply, task), self._recodings[number])
                self._decoder.needs_exact = reply.after.needs_exact
                self._columns.any_fraction = reply.after.any_fraction
        if self._columns.may_fold_categories():
            raise Inseparable

    def _decode(self, task: _Task) -> None:
        text = self._memory[task.offset : task.offset + task.size]
        events = _events_alone(text, task.boundary, self._decoder, self._salvager)
        if events is None:
            raise Inseparable
        self._columns.add(events)

    def _with_arrays(self, reply: _Reply, task: _Task) -> EventBlock:
        assert reply.lengths is not None
        dtypes = [column.dtype for _, column in self._columns.each()]
        return replace(reply.block, arrays=_arrays(self._memory, task.offset + _TEXT_BYTES, dtypes, reply.lengths))

    def close(self) -> None:
        """Ends the workers at once."""
        for worker in self._workers:
            worker.kill()
        for worker in self._workers:
            worker.end()


def _nameless_file() -> IO[bytes]:
    """Opens a file without a name.

    Nothing is left of it however this process ends. It lies in memory where the system can.
    """
    if hasattr(os, "memfd_create"):
        return os.fdopen(os.memfd_create("bottleneck"), "r+b")
    return cast("IO[bytes]", tempfile.TemporaryFile())


def _start(memory: int) -> WorkerProcess:
    return WorkerProcess(__name__, f"work({memory})", inherited=[memory], is_silent=True)


def _reply_of(worker: WorkerProcess) -> Any:
    """Reads the next reply of a worker.

    Null where the worker has ended, or something else writes to its pipe.
    """
    try:
        return worker.receive()
    except LOST:
        return None


def _events_alone(
    text: bytes, boundary: re.Pattern[bytes], decoder: EventDecoder, salvager: Salvager[AnyEvent]
) -> Sequence[AnyEvent] | None:
    """Decodes the events of a stretch of text.

    Null where its damage goes on in the text that follows.
    """
    try:
        return decoder.decode(text)
    except DECODE_ERRORS:
        salvage = salvager.salvage(text[1:-1], boundary)
        return None if salvage.rest or salvage.ended else salvage.events


def _places(offset: int, dtypes: Sequence[np.dtype[Any]], lengths: Sequence[int]) -> Iterator[tuple[int, int]]:
    """Gives (begin, end) of each array in the memory.

    The arrays lie one after the other. Both are equal for an array without values.
    """
    for dtype, length in zip(dtypes, lengths, strict=True):
        end = offset + max(length, 0) * dtype.itemsize
        yield offset, end
        offset = end + -end % _ALIGNMENT_BYTES


def _arrays(memory: mmap.mmap, offset: int, dtypes: Sequence[np.dtype[Any]], lengths: Sequence[int]) -> list[Array]:
    places = _places(offset, dtypes, lengths)
    return [
        np.broadcast_to(np.int64(ABSENT), -length) if length < 0 else np.frombuffer(memory, dtype, length, begin)
        for dtype, length, (begin, _) in zip(dtypes, lengths, places, strict=True)
    ]


def work(memory_file: int) -> None:
    """Runs the program of a worker.

    It serves standard input until the reader ends it, or has ended itself.
    """
    messages, replies = serving_streams()
    gc.disable()
    serve(mmap.mmap(memory_file, 0), messages, replies)


def serve(memory: mmap.mmap, tasks: IO[bytes], replies: IO[bytes]) -> None:
    """Decodes the tasks in turn, until there are no more."""
    worker = _BlockDecoder(memory)
    send_message(_READY, replies)
    with suppress(*LOST):
        while True:
            send_message(worker.reply(receive_message(tasks)), replies)
            worker.clear()


class _BlockDecoder:
    """The decoders and columns of a worker.

    Only the codes and the state outlive a task.
    """

    def __init__(self, memory: mmap.mmap) -> None:
        self._memory = memory
        self._damage = Damage()
        self._decoder = EventDecoder()
        self._salvager = Salvager(self._decoder, self._damage)
        self._columns = Columns(self._damage)

    def clear(self) -> None:
        """Forgets the last task."""
        self._damage.clear()
        self._columns.clear()

    def reply(self, task: _Task) -> _Reply:
        """The columns of a task."""
        self._decoder.needs_exact |= task.state.needs_exact
        self._columns.any_fraction |= task.state.any_fraction
        before, counts = self._state(), [*map(len, self._columns.codes())]
        text = self._memory[task.offset : task.offset + task.size]
        events = _events_alone(text, task.boundary, self._decoder, self._salvager)
        self._columns.add(events or [])
        block = self._columns.block(counts)
        lengths = None if events is None else self._put(block.arrays, task.offset + _TEXT_BYTES)
        return _Reply(before, self._state(), replace(block, arrays=[]), lengths)

    def _state(self) -> _State:
        return _State(self._decoder.needs_exact, self._columns.any_fraction)

    def _put(self, arrays: Sequence[Array], offset: int) -> list[int] | None:
        """Writes the arrays to the memory and gives their lengths.

        Null where they do not fit.
        """
        lengths = [-len(array) if array.strides == (0,) else len(array) for array in arrays]
        places = [*_places(offset, [array.dtype for array in arrays], lengths)]
        if places[-1][1] > offset + _COLUMN_BYTES:
            return None
        for array, (begin, end) in zip(arrays, places, strict=True):
            if end > begin:
                self._memory[begin:end] = array.tobytes()
        return lengths
