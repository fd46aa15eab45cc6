"""Reads the log that a watched run left, whole or cut off."""

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt
from msgspec import Struct

from bottleneck.errors import TraceError
from bottleneck.schema.watch_log import (
    FORMAT,
    HEADER_FILES,
    PHASES,
    STEP_FIELDS,
    STEP_RECORD,
    SlowStep,
    WatchHeader,
    has_loader_phases,
)

Floats = npt.NDArray[np.float64]
_DTYPE = np.dtype([(name, {"d": "<f8", "f": "<f4", "I": "<u4"}[kind]) for name, kind in STEP_FIELDS])
_RANK = re.compile(r"rank(\d{1,6})\.json$", re.ASCII)
# Steps that take so many times the median are told of apart.
_SLOW = 2.0
_MOST_SLOW_BYTES, _LONGEST_LINE = 64_000_000, 100_000


class WatchedRank(Struct, frozen=True):
    """One rank's log.

    ``records`` has a row per record, of one step or several; times per step are means in it.
    """

    header: WatchHeader
    records: Any
    slow: tuple[SlowStep, ...]

    @property
    def steps(self) -> int:
        """Steps that were timed."""
        return int(self.records["count"].sum())

    @property
    def step_us(self) -> Floats:
        """The mean time of a step in each record."""
        return np.asarray(self.records["us"] / self.records["count"], dtype=np.float64)

    @property
    def total_us(self) -> float:
        """The time of all steps."""
        return float(self.records["us"].sum(dtype=np.float64))

    @property
    def usual_us(self) -> float:
        """The median step."""
        return float(np.median(np.repeat(self.step_us, self.records["count"].astype(np.int64))))

    @property
    def is_parted(self) -> bool:
        """Tells whether a loader's batches part the phases of its steps."""
        return has_loader_phases([float(self.records[f"{phase}_us"].sum(dtype=np.float64)) for phase in PHASES])

    def phases_us(self) -> Mapping[str, float]:
        """The mean time of each phase per step, in records that are not slow."""
        usual = self.records[self.step_us <= _SLOW * self.usual_us]
        steps = int(usual["count"].sum())
        return {phase: float(usual[f"{phase}_us"].sum(dtype=np.float64)) / steps for phase in PHASES}


def is_watched(folder: Path) -> bool:
    """Tells whether the folder holds the log of a watched run."""
    return folder.is_dir() and any(folder.glob(HEADER_FILES))


def read_watched(folder: Path) -> tuple[WatchedRank, ...]:
    """Reads all ranks, in order.

    TraceError where there is no log, or none of a step.
    """
    headers = {int(match[1]): path for path in folder.glob(HEADER_FILES) if (match := _RANK.search(path.name))}
    ranks = []
    for number, path in sorted(headers.items()):
        header = read_header(path)
        records = _records(folder / f"steps.rank{number}.bin")
        if records.size:
            ranks.append(WatchedRank(header, records, _slow(folder / f"slow.rank{number}.jsonl")))
    if not ranks:
        problems = [problem for path in headers.values() if (problem := read_header(path).problem)]
        raise TraceError(
            f"{folder} holds no step of a watched run",
            why=problems[0] if problems else "the program ended before its second step",
            fix="see that the program trains; --step NAME or bottleneck.step() says what ends a step",
        )
    return tuple(ranks)


def read_header(path: Path) -> WatchHeader:
    """Reads the facts of a rank. TraceError where it is no file of ours."""
    try:
        header = msgspec.json.decode(path.read_bytes(), type=WatchHeader)
    except (OSError, msgspec.MsgspecError, RecursionError) as exc:
        raise TraceError(f"cannot read {path}", why=str(exc), fix="watch the program again") from exc
    if header.format != FORMAT:
        raise TraceError(f"{path} is of another version of bottleneck", fix="read it with that version")
    return header


def _records(path: Path) -> Any:
    """The records; what a killed process wrote of the last one is left out."""
    try:
        data = path.read_bytes()
    except OSError:
        return np.zeros(0, dtype=_DTYPE)
    records = np.frombuffer(data[: len(data) // STEP_RECORD.size * STEP_RECORD.size], dtype=_DTYPE)
    times = np.array([records[name] for name, kind in STEP_FIELDS if kind != "I"], dtype=np.float64)
    is_sound = (records["count"] > 0) & np.isfinite(times).all(axis=0) & (records["us"] >= 0)
    return records[is_sound]


def _slow(path: Path) -> tuple[SlowStep, ...]:
    """The slow steps; a line that cannot be read is left out."""
    slow = []
    try:
        with path.open("rb") as lines:
            for line in lines.readlines(_MOST_SLOW_BYTES):
                try:
                    slow.append(msgspec.json.decode(line[:_LONGEST_LINE], type=SlowStep))
                except (msgspec.MsgspecError, RecursionError):
                    continue
    except OSError:
        return ()
    return tuple(step for step in slow if len(step.phases_us) == len(step.usual_phases_us) == len(PHASES))
