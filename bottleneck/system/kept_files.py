"""Keeps records in files of the user's cache.

Each has a key that names everything that it follows from. A file holds the key, the record and a checksum of both. It
is written under another name and renamed when whole.
"""

import hashlib
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Generic, TypeVar

import msgspec
import numpy as np

from bottleneck.system.files import read_file, write_whole

R = TypeVar("R")

_CHECKSUM_BYTES = 32
# A page of the largest public traces is made from 3 MB; a job of 100,000 collectives per rank takes 4 MB.
_LARGEST_BYTES = 256 * 2**20


def bytes_of(value: Any) -> object:
    """Encodes an array as bytes and a number of numpy as one of Python.

    It is the hook with which records are encoded.
    """
    if isinstance(value, np.ndarray):
        return value.tobytes()
    if isinstance(value, np.generic):
        return value.item()
    raise TypeError(f"{type(value).__name__} cannot be kept")


def array_of(kind: Any, data: Any) -> Any:
    """Decodes the array of an annotation such as NDArray[float64].

    It is the hook with which records are decoded.
    """
    if not isinstance(data, bytes):
        raise TypeError("an array is kept as bytes")
    return np.frombuffer(data, dtype=kind.__args__[1].__args__[0])


class RecordFolder(Generic[R]):
    """Folder of records of one kind.

    ``form`` names what they are and the version of their files: 'report 1'.
    """

    def __init__(self, folder: Path, kind: type[R], form: str, decode: Callable[[Any, Any], Any] = array_of) -> None:
        self._folder, self._kind, self._decode = folder, kind, decode
        self._magic = f"bottleneck {form}\n".encode()
        self._suffix = f".{form.partition(' ')[0]}"

    def read(self, key: str) -> R | None:
        """Returns the record kept under this key.

        Null where there is none. Raises ValueError for a file that cannot be trusted.
        """
        try:
            data = read_file(self._path(key), _LARGEST_BYTES)
        except OSError:
            return None
        start = len(self._magic) + _CHECKSUM_BYTES
        checksum, body = data[len(self._magic) : start], data[start:]
        if not data.startswith(self._magic) or hashlib.sha256(body).digest() != checksum:
            raise ValueError("its checksum is another")
        try:
            stored_key, record = msgspec.msgpack.decode(body, type=tuple[str, self._kind], dec_hook=self._decode)  # type: ignore[name-defined]
        except (AssertionError, OverflowError, RecursionError, TypeError, msgspec.MsgspecError) as exc:
            raise ValueError(str(exc)) from exc
        if stored_key != key:
            raise ValueError("it is that of other traces or options")
        return record  # type: ignore[no-any-return]

    def write(self, key: str, record: R) -> Path:
        """Keeps a record under this key, and returns its file.

        Raises OSError where that cannot be done.
        """
        body = msgspec.msgpack.encode((key, record), enc_hook=bytes_of)
        self._folder.mkdir(parents=True, exist_ok=True)
        path = self._path(key)
        write_whole(path, self._magic + hashlib.sha256(body).digest() + body)
        return path

    def files(self) -> Sequence[Path]:
        """Returns the files of the folder, the latest first.

        Those being written are among them. Raises OSError if the folder cannot be read.
        """
        return sorted(self._folder.glob(f"*{self._suffix}*"), key=lambda file: -file.stat().st_mtime)

    def _path(self, key: str) -> Path:
        return (
            self._folder / f"{hashlib.sha256(key.encode('utf-8', 'backslashreplace')).hexdigest()[:32]}{self._suffix}"
        )
