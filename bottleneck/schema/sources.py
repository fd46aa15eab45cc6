"""Finds the traces that a path names: the input of the pipeline.

Each comes with what a recording states about its rank.
"""

import re
import shlex
from collections.abc import Iterator
from pathlib import Path

from msgspec import Struct

from bottleneck.errors import TraceError
from bottleneck.schema.compiled_kernels import Compiled, compiled_file, is_compiled_file, read_compiled
from bottleneck.schema.measurements import Extras, Timing
from bottleneck.schema.reasons import Reason
from bottleneck.schema.recording import (
    LightWindow,
    RankTrace,
    Recording,
    is_light_file,
    is_recording,
    read_recording,
)
from bottleneck.schema.records import replace
from bottleneck.system.files import cannot_read, is_remote
from bottleneck.system.perfetto import holds_perfetto


class TraceSource(Struct, frozen=True):
    """One rank's trace on disk, with what belongs to it.

    That is the recording that it is part of, if any, and the kernels that its program compiled.

    ``marks_ns``, ``unprofiled`` and ``timed_ns`` are what the recording states about this rank; ``extras`` is null but
    for the first rank. ``light`` is the rank's window with the fewest options, where its trace is there. ``host`` is
    where it was recorded, as the name of the file or its folder tells; ``rank`` is its rank, as the recording or the
    name of the file tells. ``first_step`` is the number of the step that begins at the first mark. ``set_aside`` tells
    why each step that is found does not count, null where it does, once the ranks of a job share their steps.
    """

    trace: Path
    recording: Recording | None = None
    marks_ns: tuple[int, ...] | None = None
    compiled: Compiled | None = None
    unprofiled: Timing | None = None
    timed_ns: tuple[int, int] | None = None
    extras: Extras | None = None
    light: LightWindow | None = None
    host: str | None = None
    rank: int | None = None
    first_step: int | None = None
    set_aside: tuple[Reason | None, ...] | None = None


def find_traces(path: Path) -> list[TraceSource]:
    """Finds the traces that a path stands for.

    They are the path itself, those of a recording, or every trace in a folder. A folder without a trace may hold a
    folder for each host, itself or some levels down; links are not followed.
    """
    try:
        return _found(path)
    except OSError as exc:
        raise cannot_read(path, exc) from exc


def _found(path: Path) -> list[TraceSource]:
    if path.suffix == ".py" and path.is_file():
        raise TraceError(f"{path} is a program, not a trace", fix=f"record it: bottleneck run {shlex.quote(str(path))}")
    if not path.is_dir():
        return [_bare(path)]
    if is_recording(path):
        recording = read_recording(path)
        return [_of_rank(path, recording, trace) for trace in recording.traces] or _no_trace(path)
    return _in_folder(path) or _of_hosts(path, path, _MOST_LEVELS) or _no_trace(path)


_MOST_LEVELS = 3
_SAVED_NAME = "analysis.json"


# How files with traces are named; one that has another name is known by its first bytes.
TRACE_SUFFIXES = (".json", ".json.gz", ".pftrace", ".pftrace.gz")
NO_TRACES_WHY = (
    "the folder has neither recording.json with a trace nor files ending in .json, .json.gz or .pftrace that are traces"
)


def is_trace_file(path: Path) -> bool:
    """Returns whether a file is named as a trace, or holds one.

    A trace under another name is one in Perfetto's protobuf.
    """
    return path.name.endswith(TRACE_SUFFIXES) or holds_perfetto(path)


def trace_files(folder: Path) -> Iterator[Path]:
    """Yields files of a folder that may be traces, in no order.

    Hidden ones count by their names alone.
    """
    if is_remote(folder):
        # In a store each file that is opened costs a request.
        yield from (file for suffix in TRACE_SUFFIXES for file in folder.glob(f"*{suffix}"))
        return
    for file in folder.glob("*"):
        if file.name.endswith(TRACE_SUFFIXES) or (not file.name.startswith(".") and holds_perfetto(file)):
            yield file


def _in_folder(folder: Path) -> list[TraceSource]:
    return [_bare(file) for file in sorted(trace_files(folder)) if _is_trace(file)]


def _of_hosts(job: Path, folder: Path, levels: int) -> list[TraceSource]:
    """Finds traces in the folders of a folder, one per host.

    The folder names the host unless the file's name tells another.
    """
    sources = []
    for inner in sorted(folder.glob("[!.]*")):
        if inner.is_symlink() or not inner.is_dir() or is_recording(inner):
            continue
        host = inner.relative_to(job).as_posix()
        here = [replace(source, host=source.host or host) for source in _in_folder(inner)]
        sources += here or (_of_hosts(job, inner, levels - 1) if levels > 1 else [])
    return sources


def is_saved_analysis(path: Path) -> bool:
    """True if the file is an ``analysis.json``."""
    try:
        if not path.is_file():
            return False
        with path.open("rb") as file:
            return b'"bottleneck/analysis/' in file.read(200)
    except OSError:  # the reader raises, with a remedy
        return False


# torch.profiler.tensorboard_trace_handler names a file by host, process and nanoseconds (until 1.12 milliseconds).
_OF_HANDLER = re.compile(r"(?!rank\W?\d)(?P<host>.*[^.])_\d+\.(\d+\.)?pt\.trace\.(json|pftrace)(\.gz)?")


# rank3.json, trace.rank3.json.gz, rank_3_step_10.json, worker-rank=3.pt.trace.json.
_NAMED_RANK = re.compile(r"(?<![a-z])rank[-_=.]?0*(\d{1,7})(?!\d)", re.IGNORECASE)


def _bare(file: Path) -> TraceSource:
    named, ranks = _OF_HANDLER.fullmatch(file.name), set(_NAMED_RANK.findall(file.name))
    rank = int(ranks.pop()) if len(ranks) == 1 else None
    return TraceSource(file, host=named["host"] if named else None, rank=rank)


def _of_rank(folder: Path, recording: Recording, trace: RankTrace) -> TraceSource:
    file = folder / trace.file
    if file.exists() and not file.is_file():
        raise TraceError(f"cannot read {file}: it is no regular file", fix="record again")
    # Recordings of one rank once kept its step times for the whole recording only.
    is_alone = len(recording.traces) == 1
    return TraceSource(
        trace=file,
        recording=recording,
        marks_ns=trace.step_marks_ns or None,
        compiled=read_compiled(folder / compiled_file(trace.rank)),
        unprofiled=trace.unprofiled or (recording.unprofiled if is_alone else None),
        timed_ns=trace.timed_ns or (recording.timed_ns if is_alone else None),
        extras=recording if trace.rank == recording.traces[0].rank else None,
        light=trace.light if trace.light is not None and (folder / trace.light.file).is_file() else None,
        rank=trace.rank,
        first_step=trace.first_step,
    )


def _is_trace(path: Path) -> bool:
    if not path.is_file() or is_compiled_file(path) or is_light_file(path):
        return False
    # In a store each file that is opened costs a request.
    return path.name != _SAVED_NAME if is_remote(path) else not is_saved_analysis(path)


def _no_trace(path: Path) -> list[TraceSource]:
    raise TraceError(
        f"{path} holds no trace",
        why=NO_TRACES_WHY,
        fix="name a trace file, or record one: bottleneck run FILE",
    )
