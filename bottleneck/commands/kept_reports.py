"""Keeps what a report is rendered from in the user's cache, so that a second look at the same trace need not read it.

A report is kept under a key of everything that it follows from: the content of each file that is read (SHA-256), the
paths as they are shown, the options, and our own code. Time and size of a file do not count: they can stay while the
content changes. The files lie in the user's cache and not beside the trace, so that whoever hands on a trace cannot
hand on a report of it.
"""

import hashlib
import sys
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cache
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING

from bottleneck.schema.analysis import Analysis, Ledger
from bottleneck.schema.records import check_ranges
from bottleneck.schema.step_tracks import StepTracks
from bottleneck.system.kept_files import RecordFolder

if TYPE_CHECKING:
    from bottleneck.pipeline import Options
    from bottleneck.schema.sources import TraceSource

# The oldest are removed beyond so many.
_MOST_KEPT = 64
_BESIDE_A_TRACE = ("recording.json", "telemetry.csv")


@dataclass(frozen=True, eq=False)
class ReportParts:
    """Everything that a report is rendered from.

    ``tracks`` are those of one step, null where none was recorded, or where they were not asked for and
    ``has_tracks`` is False.
    """

    analysis: Analysis
    tracks: StepTracks | None
    has_tracks: bool


class ReportFolder:
    """A folder of kept reports."""

    def __init__(self, folder: Path) -> None:
        self._kept = RecordFolder(folder, ReportParts, "report 1")

    def read(self, key: str) -> ReportParts | None:
        """The report kept under this key, null where there is none; ValueError for a file that cannot be trusted."""
        parts = self._kept.read(key)
        if parts is not None:
            check_ranges(parts.analysis)
            try:
                Ledger(parts.analysis.steps.wall_us, parts.analysis.ledger)
            except AssertionError as exc:
                raise ValueError(str(exc)) from exc
        return parts

    def write(self, key: str, parts: ReportParts) -> None:
        """Keeps a report under this key; OSError where that cannot be done, ValueError where it cannot be written."""
        self._kept.write(key, parts)
        with suppress(OSError):
            for file in self._kept.files()[_MOST_KEPT:]:
                file.unlink(missing_ok=True)


def key_of(paths: Sequence[Path], options: "Options") -> str | None:
    """Everything that the report of these paths follows from; null for what can be read only once, or not at all.

    Raises TraceError where the paths name no trace.
    """
    from bottleneck.schema.sources import find_traces

    sources = [source for path in paths for source in find_traces(path)]
    files = [*dict.fromkeys((*(file for source in sources for file in _files(source)), *options.captures))]
    if not all(file.is_file() for file in files):
        return None
    try:
        contents = [f"{file} {_content(file)}" for file in files]
    except OSError:
        return None
    told = [repr((each.marks_ns, each.compiled, each.unprofiled, each.timed_ns, each.extras)) for each in sources]
    return "\n".join((_code(), repr(replace(options, jobs=1)), *map(str, paths), *told, *contents))


def _files(source: "TraceSource") -> Iterator[Path]:
    """The files that the analysis of a source reads."""
    yield source.trace
    if source.recording is None:
        return
    beside = [*_BESIDE_A_TRACE, *([source.light.file] if source.light is not None else [])]
    yield from (file for name in beside if (file := source.trace.parent / name).exists())


def _content(file: Path) -> str:
    with file.open("rb") as opened:
        return hashlib.file_digest(opened, "sha256").hexdigest()


@cache
def _code() -> str:
    """Our own code, and what calculates for it."""
    import bottleneck

    package = Path(bottleneck.__file__).parent
    files = sorted(file for file in package.rglob("*") if file.suffix in {".py", ".csv"})
    code = hashlib.sha256()
    for file in files:
        code.update(f"{file.relative_to(package)}\n".encode() + file.read_bytes())
    used = (f"{name} {version(name)}" for name in ("numpy", "pandas", "msgspec"))
    return "\n".join((bottleneck.__version__, sys.version, *used, code.hexdigest()))
