"""Writes the log of a watched run.

It has a record for each step, bounded, and a line for each slow one.

What was written outlives a process that is killed. A file that has become too long is written anew with every two
records folded into one, so that it never outgrows some megabytes.
"""

import dataclasses
import json
import os
from collections.abc import Sequence
from itertools import starmap
from pathlib import Path
from typing import Any

from bottleneck.schema.watch_log import STEP_FIELDS, STEP_RECORD, SlowStep, WatchHeader
from bottleneck.system.files import write_whole

MOST_RECORDS, MOST_SLOW = 200_000, 2_000
_NAMES = tuple(name for name, _ in STEP_FIELDS)
_KEPT_FIRST, _KEPT_LAST, _LARGEST = {"first"}, {"end_s", "memory_bytes"}, {"longest_us"}


class StepLog:
    """The files of one rank. Methods raise OSError where they cannot be written."""

    def __init__(self, folder: Path, rank: int, most_records: int = MOST_RECORDS) -> None:
        self._steps = folder / f"steps.rank{rank}.bin"
        self._slow = folder / f"slow.rank{rank}.jsonl"
        self._header = folder / f"watch.rank{rank}.json"
        self._most = most_records
        self._buffer, self._slow_lines = bytearray(), bytearray()
        self._written = self._slow_steps = 0
        # How many steps a record has, and those that wait until there are so many.
        self._per_record = 1
        self._waiting: list[Sequence[Any]] = []

    def add(self, records: Sequence[Sequence[Any]]) -> None:
        """Adds steps, by STEP_FIELDS."""
        if self._per_record == 1:
            self._buffer += b"".join(starmap(STEP_RECORD.pack, records))
            return
        self._waiting += records
        while len(self._waiting) >= self._per_record:
            self._buffer += STEP_RECORD.pack(*fold(self._waiting[: self._per_record]))
            del self._waiting[: self._per_record]

    @property
    def takes_slow(self) -> bool:
        """True until there are too many slow steps."""
        return self._slow_steps < MOST_SLOW

    def add_slow(self, slow: SlowStep) -> None:
        """Adds what is known of a slow step, unless there were too many."""
        if self.takes_slow:
            self._slow_steps += 1
            # Not by asdict, whose deep copies take as long as all the rest: the program waits.
            self._slow_lines += json.dumps(vars(slow), default=vars).encode() + b"\n"

    def start_over(self) -> None:
        """Forgets the steps that were added, which were parts of steps."""
        for waiting in (self._buffer, self._slow_lines, self._waiting):
            waiting.clear()
        self._written, self._per_record = 0, 1
        for file in (self._steps, self._slow):
            file.unlink(missing_ok=True)

    def flush(self) -> None:
        """Writes what was added; the file is folded where it has become too long."""
        if self._buffer:
            _append(self._steps, bytes(self._buffer))
            self._written += len(self._buffer) // STEP_RECORD.size
            self._buffer.clear()
        if self._slow_lines:
            _append(self._slow, bytes(self._slow_lines))
            self._slow_lines.clear()
        if self._written > self._most:
            records = list(STEP_RECORD.iter_unpack(self._steps.read_bytes()))
            pairs = [fold(records[place : place + 2]) for place in range(0, len(records), 2)]
            write_whole(self._steps, b"".join(STEP_RECORD.pack(*pair) for pair in pairs))
            self._written, self._per_record = len(pairs), 2 * self._per_record

    def write_header(self, header: WatchHeader) -> None:
        """Writes what is known of the run, in place of what was."""
        write_whole(self._header, json.dumps(dataclasses.asdict(header)) + "\n")

    def close(self) -> None:
        """Writes the steps that still wait for others."""
        if self._waiting:
            self._buffer += STEP_RECORD.pack(*fold(self._waiting))
            self._waiting.clear()
        self.flush()


def fold(records: Sequence[Sequence[Any]]) -> tuple[Any, ...]:
    """Folds records of consecutive steps into one."""
    folded = []
    for place, name in enumerate(_NAMES):
        values = [record[place] for record in records]
        if name in _KEPT_FIRST:
            folded.append(values[0])
        elif name in _KEPT_LAST:
            folded.append(values[-1])
        else:
            folded.append(max(values) if name in _LARGEST else sum(values))
    return tuple(folded)


def _append(path: Path, data: bytes) -> None:
    number = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | getattr(os, "O_NOFOLLOW", 0), 0o644)
    try:
        os.write(number, data)
    finally:
        os.close(number)
