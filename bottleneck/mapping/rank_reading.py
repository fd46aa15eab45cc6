"""Reads the ranks of a job through workers, and takes those from files that an earlier report has read."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from bottleneck import __version__
from bottleneck.errors import TraceError, UsageError
from bottleneck.mapping.digest_files import DigestFolder, stored
from bottleneck.mapping.workers import LocalWorkers, Workers, map_tasks
from bottleneck.schema.digest import RankDigest
from bottleneck.schema.records import replace
from bottleneck.schema.remote import RemoteStatus
from bottleneck.schema.sources import TraceSource
from bottleneck.schema.working_memory import Spool
from bottleneck.units import counted

Read = Callable[[TraceSource], RankDigest]
Result = RankDigest | TraceError | UsageError

# Traces shrink about so many times.
_INFLATES = 12


@dataclass(frozen=True)
class RankReading:
    """The workers that read the ranks of a job, and the folder in which their digests are kept, if in any.

    With ``resumes`` the digests that are there already are used, and all are kept for another time.
    """

    workers: Workers = field(default_factory=LocalWorkers)
    folder: DigestFolder | None = None
    resumes: bool = False

    def results(
        self, read: Read, sources: Sequence[TraceSource], options: str, on_trace: Callable[[int, int, Path], None]
    ) -> Iterator[tuple[int, Result]]:
        """The digest of each source, or why it has none, by its position; ``options`` are those of ``read``.

        The collectives of the digests lie in a temporary file.
        """
        light = _Light()
        keys = [_key(source, options) for source in sources] if self.folder is not None else []
        kept = {at: light(found) for at, key in enumerate(keys) if (found := self._kept(key)) is not None}
        yield from kept.items()
        todo = {at: source for at, source in enumerate(sources) if at not in kept}
        done, total = len(kept), len(sources)
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
                        on_trace(done, total, files[done - len(kept)])
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
    """Digests without what is large: their collectives are in a file, and equal process groups are one object."""

    def __init__(self) -> None:
        self._spool = Spool()
        self._groups: dict[object, Any] = {}

    def __call__(self, digest: RankDigest) -> RankDigest:
        groups = tuple(self._groups.setdefault(group, group) for group in digest.process_groups)
        return replace(stored(digest, self._spool), process_groups=groups)


def _json_bytes(source: TraceSource) -> int:
    """About how much JSON a trace holds; 0 for a file that is not there."""
    try:
        size = source.trace.stat().st_size
    except OSError:
        return 0
    return size * _INFLATES if source.trace.suffix == ".gz" else size


def _key(source: TraceSource, options: str) -> str:
    """Everything that the digest of a source follows from."""
    beside = ("recording.json", "telemetry.csv", *([source.light.file] if source.light is not None else []))
    files = (source.trace, *(source.trace.parent / name for name in beside if source.recording is not None))
    told = (source.marks_ns, source.compiled, source.unprofiled, source.timed_ns, source.extras, source.host)
    return "\n".join((__version__, options, repr(told), *map(stamp, files)))


def stamp(file: Path) -> str:
    """Path, size and time of change of a file; of one in a store what the store calls its version."""
    try:
        status = file.stat()
    except OSError:
        return str(file)
    version = status.version if isinstance(status, RemoteStatus) else status.st_mtime_ns
    return f"{file.resolve()} {status.st_size} {version}"
