"""Keeps what a report is rendered from in the user's cache, so that a second look at the same trace need not read it.

A report is kept under a key of everything that it follows from: the content of each file that is read (SHA-256), the
paths as they are shown, the options, and our own code. Time and size of a file do not count: they can stay while the
content changes. The files lie in the user's cache and not beside the trace, so that whoever hands on a trace cannot
hand on a report of it.
"""

import hashlib
import os
import secrets
import sys
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cache
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bottleneck.schema.analysis import Analysis
from bottleneck.schema.step_tracks import StepTracks

if TYPE_CHECKING:
    from bottleneck.pipeline import Options
    from bottleneck.schema.sources import TraceSource

_MAGIC = b"bottleneck report 1\n"
_SUFFIX = ".report"
_CHECKSUM_BYTES = 32
# A page of the largest public traces is made from 3 MB.
_LARGEST_BYTES = 256 * 2**20
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
        self._folder = folder

    def read(self, key: str) -> ReportParts | None:
        """The report kept under this key, null where there is none; ValueError for a file that cannot be trusted."""
        import msgspec

        from bottleneck.schema.files import read_file

        try:
            data = read_file(self._path(key), _LARGEST_BYTES)
        except OSError:
            return None
        try:
            return _from_bytes(data, key)
        except (AssertionError, OverflowError, RecursionError, TypeError, msgspec.MsgspecError) as exc:
            raise ValueError(str(exc)) from exc

    def write(self, key: str, parts: ReportParts) -> None:
        """Keeps a report under this key; OSError where that cannot be done, ValueError where it cannot be written."""
        body = _to_bytes(key, parts)
        self._folder.mkdir(parents=True, exist_ok=True)
        partial = self._path(key).with_suffix(f"{_SUFFIX}.{os.getpid()}.{secrets.token_hex(4)}")
        try:
            partial.write_bytes(_MAGIC + hashlib.sha256(body).digest() + body)
            partial.replace(self._path(key))
        finally:
            partial.unlink(missing_ok=True)
        self._remove_oldest()

    def _path(self, key: str) -> Path:
        return self._folder / f"{hashlib.sha256(key.encode('utf-8', 'backslashreplace')).hexdigest()[:32]}{_SUFFIX}"

    def _remove_oldest(self) -> None:
        with suppress(OSError):
            files = sorted(self._folder.glob(f"*{_SUFFIX}*"), key=lambda file: -file.stat().st_mtime)
            for file in files[_MOST_KEPT:]:
                file.unlink(missing_ok=True)


def _to_bytes(key: str, parts: ReportParts) -> bytes:
    import msgspec

    return msgspec.msgpack.encode((key, parts), enc_hook=_plain)


def _plain(value: Any) -> object:
    import numpy as np

    if isinstance(value, np.ndarray):
        return value.tobytes()
    if isinstance(value, np.generic):
        return value.item()
    raise TypeError(f"{type(value).__name__} cannot be kept")


def _array(kind: Any, data: object) -> object:
    """The array of an annotation such as NDArray[float64]."""
    import numpy as np

    if not isinstance(data, bytes):
        raise TypeError("an array is kept as bytes")
    return np.frombuffer(data, dtype=kind.__args__[1].__args__[0])


def _from_bytes(data: bytes, key: str) -> ReportParts:
    import msgspec

    from bottleneck.schema.analysis import Ledger
    from bottleneck.schema.records import check_ranges

    start = len(_MAGIC) + _CHECKSUM_BYTES
    checksum, body = data[len(_MAGIC) : start], data[start:]
    if not data.startswith(_MAGIC) or hashlib.sha256(body).digest() != checksum:
        raise ValueError("its checksum is another")
    found, parts = msgspec.msgpack.decode(body, type=tuple[str, ReportParts], dec_hook=_array)
    if found != key:
        raise ValueError("it is that of other traces or options")
    check_ranges(parts.analysis)
    Ledger(parts.analysis.steps.wall_us, parts.analysis.ledger)
    return parts


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
