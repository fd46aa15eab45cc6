"""Reads and writes files of this machine, and reads those of stores.

They may be anything on a hostile disk. Stores are read by fsspec. Of a store only what the user names is opened, and
what a listing of it names below it. fsspec can chain file systems in one address (``zip://a::http://b``) and follow
references in files. Neither is done here: a name from a listing is never parsed as an address, and other file systems
than those of ``PACKAGES`` are refused. universal_pathlib parses such names (0.3.10): in a folder with an object named
``evil::x`` it can list nothing.
"""

import errno
import fnmatch
import os
import re
import stat
import threading
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path, PurePath, PurePosixPath
from queue import Empty, SimpleQueue
from typing import TYPE_CHECKING, Any, BinaryIO, TypeVar, cast

from bottleneck.errors import TraceError, UsageError

R = TypeVar("R")


def read_file(path: Path, most_bytes: int) -> bytes:
    """Returns the content of a regular file.

    Raises OSError for a pipe, a device or a folder, and for more bytes than allowed. A pipe is not waited for. The size
    is checked while reading: a file may grow, and a device has none.
    """
    with path.open("rb") if is_remote(path) else _open_regular(path) as file:
        data = file.read(most_bytes + 1)
    if len(data) > most_bytes:
        raise OSError(errno.EFBIG, f"it is too large: over {most_bytes} bytes")
    return data


def _open_regular(path: Path) -> BinaryIO:
    handle = os.open(path, os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_BINARY", 0))
    file = open(handle, "rb")  # noqa: PTH123, SIM115 - a handle, not a path; the caller closes the file
    if not stat.S_ISREG(os.fstat(handle).st_mode):
        file.close()
        raise OSError(errno.EINVAL, "it is no regular file")
    return file


def write_whole(path: Path, content: bytes | str) -> None:
    """Writes a file that a reader never sees half written.

    Raises OSError where it cannot be written, and leaves nothing behind then.
    """
    partial = path.with_name(f".{path.name.removeprefix('.')}.{os.getpid()}.{os.urandom(4).hex()}")
    try:
        partial.write_bytes(content if isinstance(content, bytes) else content.encode("utf-8"))
        partial.replace(path)
    finally:
        partial.unlink(missing_ok=True)


def is_remote(path: PurePath) -> bool:
    """True for the address of a file in a store (``RemotePath``).

    Such an address is no path of this machine.
    """
    return not isinstance(path, Path)


def cannot_read(path: Path, error: OSError) -> TraceError:
    """The error of a file that could not be read."""
    why = error.strerror or type(error).__name__
    if is_remote(path):
        return TraceError(f"cannot read {path}", why=why, fix="check the address, and the credentials for it")
    return TraceError(f"cannot read {path}: {why.lower()}", fix="check the path and its permissions")


# The package that fsspec needs for each; null for its own.
PACKAGES: Mapping[str, str | None] = {
    "s3": "s3fs",
    "gs": "gcsfs",
    "az": "adlfs",
    "abfs": "adlfs",
    "hdfs": "pyarrow",
    "file": None,
    "local": None,
    "memory": None,
}
_ON_DISK = frozenset({"file", "local"})
_ADDRESS = re.compile(r"([a-z][a-z0-9+.-]+):/.*", re.DOTALL)
# What a store calls the version of a file, its time of change or its checksum.
_VERSIONS = (
    "ETag",
    "etag",
    "md5Hash",
    "content_md5",
    "generation",
    "mtime",
    "LastModified",
    "last_modified",
    "created",
)
# fsspec reads ahead by so much; what a read returns is as large as was asked for.
_READ_AHEAD_BYTES = 4 * 2**20
# A request that takes longer will not be answered: a block of that size takes as long at 70 kB/s.
STALLED_AFTER_S = 60.0

# Readers of traces take a Path; of that class's methods they need those below.
if TYPE_CHECKING:
    _Base = Path
else:
    _Base = PurePosixPath


@dataclass(frozen=True)
class RemoteStatus:
    """Fields of ``os.stat_result`` that a store knows.

    Its text changes when the file does.
    """

    st_mode: int
    st_size: int
    version: str


class RemotePath(_Base):
    """File or folder of a store, such as s3://bucket/job.

    It equals others of the same address. Its methods are those of ``pathlib.Path``, and raise OSError as those do.
    """

    _known: RemoteStatus | None = None

    def __str__(self) -> str:
        text = super().__str__()
        if not self.parts or not self.parts[0].endswith(":"):
            return text  # one that is relative to another
        protocol, _, rest = text.partition(":")
        return f"{protocol}://{rest}" if protocol in _ON_DISK else f"{protocol}:/{rest}"

    @property
    def protocol(self) -> str:
        """The name of its file system, as in its address."""
        return self.parts[0].removesuffix(":")

    def stat(self, *, follow_symlinks: bool = True) -> Any:  # noqa: ARG002 - as of paths
        """A ``RemoteStatus``, asked for once."""
        if self._known is None:
            self._known = _status(self._asked(lambda files, path: files.info(path)))
        return self._known

    def is_file(self) -> bool:
        """True for a file that is there.

        False too where the store refuses to tell.
        """
        return self._is(stat.S_ISREG)

    def is_dir(self) -> bool:
        """True for a folder that is there."""
        return self._is(stat.S_ISDIR)

    def exists(self, *, follow_symlinks: bool = True) -> bool:  # noqa: ARG002 - as of paths
        """True where there is something."""
        return self._is(bool)

    def is_symlink(self) -> bool:
        """False: those of a listing are left out."""
        return False

    def resolve(self, strict: bool = False) -> "RemotePath":  # noqa: ARG002 - as of paths
        """Itself."""
        return self

    def glob(self, pattern: str) -> Iterator["RemotePath"]:  # type: ignore[override]
        """Files and folders in this folder whose names match, apart from links."""
        for name, entry in sorted(self._listing().items()):
            if fnmatch.fnmatchcase(name, pattern):
                child = self / name
                child._known = _status(entry)
                yield child

    def open(self, mode: str = "rb", **_: Any) -> BinaryIO:  # type: ignore[override]
        """The file for reading, which fetches blocks as they are read."""
        assert mode == "rb"
        opened = self._asked(lambda files, path: files.open(path, "rb", block_size=_READ_AHEAD_BYTES))
        return cast("BinaryIO", _Translated(opened, self))

    def _is(self, kind: Callable[[int], bool]) -> bool:
        try:
            return kind(self.stat().st_mode)
        except OSError:  # who opens it next gets the reason
            return False

    def _listing(self) -> dict[str, Mapping[str, Any]]:
        """The entries of the folder, by name; names that lead elsewhere are left out."""
        entries = self._asked(lambda files, path: files.ls(path, detail=True))
        named = {entry["name"].rstrip("/").rpartition("/")[2]: entry for entry in entries if not entry.get("islink")}
        return {name: entry for name, entry in named.items() if name not in {"", ".", "..", self.name}}

    def _asked(self, ask: Callable[[Any, str], R]) -> R:
        """The answer of the file system about the path there."""
        kind = _file_system_class(self.protocol)
        host = self.parts[1] if len(self.parts) > 1 else ""
        with _as_os_error(self):
            # The listing of a store has no say in which store it is.
            options = {} if self.protocol in _ON_DISK else kind._get_kwargs_from_urls(f"{self.protocol}://{host}")
            return _answered(lambda: ask(kind(**options), kind._strip_protocol(str(self))))


def _answered(ask: Callable[[], R]) -> R:
    """Returns the answer of a store.

    Raises OSError where it has given none in time. A thread that still waits for it ends with us.
    """
    answers: SimpleQueue[tuple[bool, Any]] = SimpleQueue()

    def wait() -> None:
        try:
            answers.put((True, ask()))
        except BaseException as failure:
            answers.put((False, failure))

    threading.Thread(target=wait, name="bottleneck-store", daemon=True).start()
    try:
        is_answer, answer = answers.get(timeout=STALLED_AFTER_S)
    except Empty as exc:
        raise OSError(errno.ETIMEDOUT, f"the store has not answered for {STALLED_AFTER_S:g} s") from exc
    if not is_answer:
        raise answer
    return cast("R", answer)


class _Translated:
    """A file of fsspec whose errors are OSErrors."""

    def __init__(self, file: Any, path: RemotePath) -> None:
        self._file, self._path = file, path

    def read(self, size: int = -1) -> bytes:
        with _as_os_error(self._path):
            return _answered(lambda: cast("bytes", self._file.read(size)))

    def seek(self, position: int) -> int:
        with _as_os_error(self._path):
            return cast("int", self._file.seek(position))

    def __enter__(self) -> "_Translated":
        return self

    def __exit__(self, *_: object) -> None:
        self._file.close()


class _as_os_error:  # noqa: N801 - a context, read as a phrase
    """Turns what the packages of stores raise into OSError.

    Those exceptions are of any class. The error has a number and a reason.
    """

    def __init__(self, path: RemotePath) -> None:
        self._path = path

    def __enter__(self) -> None:
        pass

    def __exit__(self, _kind: object, failure: BaseException | None, _trace: object) -> None:
        if not isinstance(failure, Exception) or (isinstance(failure, OSError) and failure.strerror):
            return
        number = next((number for kind, number in _NUMBERS.items() if isinstance(failure, kind)), errno.EIO)
        message = " ".join(str(failure).split())[:200]
        reason = os.strerror(number) if number != errno.EIO else f"{type(failure).__name__}: {message}".rstrip(": ")
        raise OSError(number, reason, str(self._path)) from failure


_NUMBERS = {
    FileNotFoundError: errno.ENOENT,
    PermissionError: errno.EACCES,
    NotADirectoryError: errno.ENOTDIR,
    IsADirectoryError: errno.EISDIR,
}


def _status(entry: Mapping[str, Any]) -> RemoteStatus:
    modes = {"file": stat.S_IFREG, "directory": stat.S_IFDIR}
    versions = [f"{name}={entry[name]}" for name in _VERSIONS if entry.get(name) is not None]
    return RemoteStatus(modes.get(entry["type"], 0), int(entry.get("size") or 0), " ".join(versions))


def located(path: Path) -> Path:
    """Returns the path itself, or that in a store whose address it is.

    An address reads s3://bucket/job. Raises UsageError for a file system that is not known, or whose package is not
    installed.
    """
    text = str(path)
    address = _ADDRESS.fullmatch(text)
    if address is None or isinstance(path, RemotePath) or os.path.lexists(text):
        return path
    protocol = address[1]
    if protocol not in PACKAGES:
        *others, last = (f"{name}://" for name in PACKAGES if name not in {"local", "memory"})
        raise UsageError(
            f"cannot read {protocol}:// addresses",
            why=f"those that can be read are {', '.join(others)} and {last}",
            fix="copy the traces to one of them, or to this machine",
        )
    if "::" in text:
        raise UsageError(f"cannot read {text}", why="it chains file systems by ::", fix="name one address alone")
    _file_system_class(protocol)
    return RemotePath(text)


def _file_system_class(protocol: str) -> Any:
    try:
        fsspec = import_module("fsspec")
    except ImportError as exc:
        raise UsageError(
            f"{protocol}:// needs fsspec, which is not installed here",
            why=str(exc),
            fix="install it: pip install fsspec",
        ) from exc
    try:
        return fsspec.get_filesystem_class(protocol)
    except ImportError as exc:
        package = PACKAGES[protocol]
        raise UsageError(
            f"{protocol}:// needs {package}, which is not installed here",
            why=str(exc),
            fix=f"install it: pip install {package}",
        ) from exc
