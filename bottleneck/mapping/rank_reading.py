"""Reads the ranks of a job through workers.

Those that an earlier report has read come from files: the digests of ranks are kept, so that a report that was
interrupted goes on where it was. What it compares the ranks by is kept apart, as ``StoredCalls``: of many ranks it
takes more than memory has.
"""

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec

from bottleneck import __version__
from bottleneck.errors import TraceError, UsageError
from bottleneck.mapping.workers import LocalWorkers, Workers, map_tasks
from bottleneck.schema.digest import Calls, CollectiveCalls, RankDigest
from bottleneck.schema.records import replace
from bottleneck.schema.sources import TraceSource
from bottleneck.system.files import RemoteStatus
from bottleneck.system.kept_files import RecordFolder, array_of, bytes_of
from bottleneck.system.working_memory import Spool
from bottleneck.units import counted

Read = Callable[[TraceSource], RankDigest]
Result = RankDigest | TraceError | UsageError

# Traces shrink about so many times.
_INFLATES = 12
# What a report that was never resumed left behind.
_STALE_AFTER_S = 30 * 86_400.0


class DigestFolder:
    """A folder of digests; one that cannot be written or read keeps nothing."""

    def __init__(self, folder: Path, now_s: float | None = None) -> None:
        self._kept = RecordFolder(folder, RankDigest, "digest 3", _decoded)
        self._written: list[Path] = []
        now_s = time.time() if now_s is None else now_s
        with suppress(OSError):
            for file in self._kept.files():
                if now_s - file.stat().st_mtime > _STALE_AFTER_S:
                    file.unlink()

    def read(self, key: str) -> RankDigest | None:
        """Reads the digest that was kept for this key.

        Null where there is none that is whole.
        """
        with suppress(ValueError):
            digest = self._kept.read(key)
            return digest if digest is not None and _fits(digest) else None
        return None

    def write(self, key: str, digest: RankDigest) -> None:
        """Keeps the digest under this key."""
        with suppress(OSError):
            self._written.append(self._kept.write(key, digest))

    def remove_written(self) -> None:
        """Removes what this object has written."""
        for path in self._written:
            with suppress(OSError):
                path.unlink()


@dataclass(frozen=True)
class StoredCalls:
    """The collectives of a rank in a temporary file."""

    spool: Spool
    position: int
    size: int

    def read(self) -> CollectiveCalls:
        """The collectives in memory."""
        data = self.spool.read(self.position, self.size)
        return msgspec.msgpack.decode(data, type=CollectiveCalls, dec_hook=_decoded)


def stored(digest: RankDigest, spool: Spool) -> RankDigest:
    """The digest with its collectives in a temporary file."""
    data = msgspec.msgpack.encode(digest.calls.read(), enc_hook=bytes_of)
    position = spool.reserve(len(data))
    spool.write(position, data)
    return replace(digest, calls=StoredCalls(spool, position, len(data)))


def _decoded(kind: Any, data: Any) -> Any:
    """The collectives of a digest, or an array."""
    return msgspec.convert(data, CollectiveCalls, dec_hook=_decoded) if kind is Calls else array_of(kind, data)


def _fits(digest: RankDigest) -> bool:
    """True where the columns are of one length and their codes name something."""
    calls = digest.calls.read()
    columns = (calls.message, calls.group, calls.start_us, calls.end_us, calls.is_inside)
    codes = ((calls.message, len(calls.messages)), (calls.group, len(calls.groups)))
    return (
        len({column.size for column in columns}) == 1
        and digest.step_start_us.size == digest.step_wall_us.size
        and all(((column >= 0) & (column < count)).all() for column, count in codes)
    )


@dataclass(frozen=True)
class RankReading:
    """Reads the ranks of a job with workers and a folder of digests.

    The folder is null where none are kept. With ``resumes`` the digests that are there already are used, and all are
    kept for another time.
    """

    workers: Workers = field(default_factory=LocalWorkers)
    folder: DigestFolder | None = None
    resumes: bool = False

    def results(
        self, read: Read, sources: Sequence[TraceSource], options: str, on_trace: Callable[[int, int, Path], None]
    ) -> Iterator[tuple[int, Result]]:
        """Yields the position of each source with its digest, or its error.

        ``options`` are those of ``read``. The collectives of the digests lie in a temporary file.
        """
        light = _Light()
        keys = [_key(source, options) for source in sources] if self.folder is not None else []
        done_before = {at: light(digest) for at, key in enumerate(keys) if (digest := self._kept(key)) is not None}
        yield from done_before.items()
        todo = {at: source for at, source in enumerate(sources) if at not in done_before}
        done, total = len(done_before), len(sources)
        if not todo:
            return
        files = [source.trace for source in todo.values()]
        on_trace(done, total, files[0])
        try:
            with closing(map_tasks(read, todo, self.workers, sum(map(_json_bytes, todo.values())))) as results:
                for at, result in results:
                    if self.folder is not None and isinstance(result, RankDigest):
                        self.folder.write(keys[at], result)
                    done += 1
                    if done < total:
                        on_trace(done, total, files[done - len(done_before)])
                    yield at, light(result) if isinstance(result, RankDigest) else result
        except KeyboardInterrupt as stopped:
            if self.folder is not None:
                ranks = counted(total, "rank")
                stopped.add_note(f"{done:,} of {ranks} are read; the same command with --resume reads the rest")
            raise
        if self.folder is not None and not self.resumes:
            self.folder.remove_written()

    def _kept(self, key: str) -> RankDigest | None:
        return self.folder.read(key) if self.resumes and self.folder is not None else None


class _Light:
    """Keeps digests without what is large.

    Their collectives are in a file, and equal process groups are one object.
    """

    def __init__(self) -> None:
        self._spool = Spool()
        self._groups: dict[object, Any] = {}

    def __call__(self, digest: RankDigest) -> RankDigest:
        groups = tuple(self._groups.setdefault(group, group) for group in digest.process_groups)
        return replace(stored(digest, self._spool), process_groups=groups)


def _json_bytes(source: TraceSource) -> int:
    """Estimates the bytes of JSON of a trace.

    It is 0 for a file that is not there.
    """
    try:
        size = source.trace.stat().st_size
    except OSError:
        return 0
    return size * _INFLATES if source.trace.suffix == ".gz" else size


def _key(source: TraceSource, options: str) -> str:
    """Everything that the digest of a source follows from."""
    beside = ("recording.json", "telemetry.csv", *([source.light.file] if source.light is not None else []))
    files = (source.trace, *(source.trace.parent / name for name in beside if source.recording is not None))
    parts = (
        source.marks_ns,
        source.compiled,
        source.unprofiled,
        source.timed_ns,
        source.extras,
        source.host,
        source.first_step,
        source.set_aside,
    )
    return "\n".join((__version__, options, repr(parts), *map(stamp, files)))


def stamp(file: Path) -> str:
    """Gives path, size and time of change of a file.

    Of a file in a store it gives what the store calls its version.
    """
    try:
        status = file.stat()
    except OSError:
        return str(file)
    version = status.version if isinstance(status, RemoteStatus) else status.st_mtime_ns
    return f"{file.resolve()} {status.st_size} {version}"
