"""Recognises files that are not PyTorch traces.

The reader raises its errors, which name the format and a remedy.
"""

from collections.abc import Iterable
from pathlib import Path
from typing import NoReturn

from bottleneck.errors import TraceError

_EXPORT = "pass the JSON file that torch.profiler's export_chrome_trace wrote"

# First bytes -> (format of the file, remedy).
_MAGIC: tuple[tuple[bytes, str, str], ...] = (
    (b"PK\x03\x04", "a zip archive inside another file", "unpack it and pass the trace inside"),
    (b"PK\x05\x06", "an empty zip archive", "pack it again"),
    (b"SQLite format 3\0", "an SQLite database, perhaps an Nsight Systems export", _EXPORT),
    (b"NVR\0", "an Nsight Compute report", _EXPORT),
    (b"\x28\xb5\x2f\xfd", "a zstd archive", "unpack it with `zstd -d`"),
    (b"BZh", "a bzip2 archive", "unpack it with `bunzip2`"),
    (b"\xfd7zXZ\0", "an xz archive", "unpack it with `unxz`"),
    (b"7z\xbc\xaf\x27\x1c", "a 7-zip archive", "unpack it and pass the trace inside"),
    *((bytes((0x80, protocol)), "a Python pickle, which bottleneck never loads", _EXPORT) for protocol in range(2, 6)),
    *((mark, "UTF-16 text", "convert it: iconv -f UTF-16 -t UTF-8 IN > OUT") for mark in (b"\xff\xfe", b"\xfe\xff")),
    (b"\x1f\x8b", "compressed by gzip more than twice", "unpack it once"),
    (b"\x7fELF", "an ELF program", _EXPORT),
    (b"\x89HDF", "an HDF5 file", _EXPORT),
    (b"\x93NUMPY", "a NumPy array", _EXPORT),
    (b"PAR1", "a Parquet file", _EXPORT),
    (b"%PDF", "a PDF document", _EXPORT),
    (b"\x89PNG", "a PNG picture", _EXPORT),
    (b"<", "an HTML or XML page", "pass the trace itself; downloads can save a login page in its place"),
    (b"version https://git-lfs", "a Git LFS pointer", "fetch the file itself: git lfs pull"),
)
_TAR = b"ustar"
# Reports of Nsight Systems have no documented first bytes.
_OF_NSIGHT_SYSTEMS = frozenset({".nsys-rep", ".qdrep", ".qdstrm"})


def reject_by_magic(path: Path, first: bytes) -> None:
    """Raises TraceError when a file begins as another format does.

    ``first`` are the first bytes of the text. The error names the format.
    """
    if path.suffix in _OF_NSIGHT_SYSTEMS and b"\0" in first[:4096]:
        _reject(path, "a report of Nsight Systems", f"record the program with torch.profiler too, and {_EXPORT}")
    for magic, kind, fix in _MAGIC:
        if first.startswith(magic):
            _reject(path, kind, fix)
    if first[257:262] == _TAR:
        _reject(path, "a tar archive", "unpack it and pass the trace inside")
    if first[:1] == b"\x0a" and b"\0" in first[:64]:
        _reject(path, "a damaged Perfetto trace or another binary file", _EXPORT)
    if b"\0" in first[:512].rstrip(b"\0"):
        _reject(path, "a binary file", _EXPORT)
    if not first.strip(b"\0 \t\r\n"):
        raise TraceError(f"{path} holds nothing but blanks", fix=_EXPORT)


def _reject(path: Path, kind: str, fix: str) -> NoReturn:
    raise TraceError(f"{path} is {kind}, not a PyTorch profiler trace", fix=fix)


_WATCHED = "the log of a run that bottleneck watched"

# A key at the top of a JSON object -> the format.
_BY_KEY: tuple[tuple[str, str], ...] = (
    ("viztracer_metadata", "a VizTracer trace"),
    ("nodes", "a PyTorch execution trace (ExecutionTraceObserver): ops without times"),
    ("rocprofiler-sdk-tool", "a rocprofv3 file"),
    ("nbformat", "a Jupyter notebook"),
    ("ledger", "an analysis of bottleneck, not a trace"),
    ("step_source", _WATCHED),
)

# The format -> raw event categories, or their starts.
_CATEGORIES_OF = {
    "a VizTracer trace": "FEE",
    "a torch.compile chromium_events file; it holds compile times, no ops and no kernels": "dynamo_timed",
    "an ONNX Runtime profile": "Session Node",
    "a Chrome browser trace": "toplevel v8 disabled-by-default devtools __metadata webkit",
    "a Composer profiler trace": "event,trainer after_dataloader",
    "a rocprof trace": "hip_api",
    "a Horovod timeline": "Horovod",
}


def reject_json(path: Path, top: object, categories: Iterable[str]) -> NoReturn:
    """Raises TraceError for JSON that holds no PyTorch work.

    The error names the writer where that is known. ``top`` holds the outermost keys, ``categories`` the raw categories
    of its events if it has any.
    """
    categories = list(categories)
    kind = _recognise(top, categories)
    if kind:
        _reject(path, kind, f"bottleneck watch {path.parent}" if kind == _WATCHED else _EXPORT)
    what = "a trace that another tool wrote" if categories else "JSON without trace events"
    raise TraceError(
        f"{path} is {what}, not a PyTorch profiler trace",
        why="it holds no torch op and no device kernel" if categories else "it has no list named traceEvents",
        fix=_EXPORT,
    )


def _recognise(top: object, categories: list[str]) -> str | None:
    keys = set(top) if isinstance(top, Iterable) else set()
    writers = [kind for key, kind in _BY_KEY if key in keys]
    writers += [
        kind
        for kind, starts in _CATEGORIES_OF.items()
        for start in starts.split()
        if any(category.startswith(start) or f",{start}" in category for category in categories)
    ]
    return writers[0] if writers else None


_VALUES = {b"{": "an object", b'"': "a string", b"null": "null", b"true": "true", b"false": "false"}


def reject_value(path: Path, text: bytes) -> NoReturn:
    """Raises TraceError for JSON without a list of events.

    Another value is in its place.
    """
    if text[:1] == b"[":
        _reject(path, "a list of lists, such as a memory timeline", _EXPORT)
    kind = next((kind for start, kind in _VALUES.items() if text.startswith(start)), None)
    if kind is None and not (text[:1].isdigit() or text[:1] == b"-"):
        first = text.decode("utf-8", "replace")[:1]
        raise TraceError(f"{path} is not JSON", why=f"unexpected {first!r} at its beginning", fix=_EXPORT)
    kind = kind or "a number"
    raise TraceError(f"{path} is not a trace", why=f"it holds {kind} where the list of events should be", fix=_EXPORT)
