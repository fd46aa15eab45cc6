"""Keeps the digests of ranks in files, so that a report that was interrupted goes on where it was.

What a report compares the ranks by is kept apart, as ``StoredCalls``: of many ranks it takes more than memory has.

A file holds the key that its digest was made for, the digest and a checksum. It is written under another name and
renamed when whole; one that is damaged, or was made for another key, counts as not there.
"""

import hashlib
import os
import time
import zlib
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from bottleneck.schema.digest import Calls, CollectiveCalls, RankDigest
from bottleneck.schema.records import replace
from bottleneck.schema.working_memory import Spool

_MAGIC = b"bottleneck digest 1\n"
_SUFFIX = ".digest"
# A job of 100,000 collectives per rank takes 4 MB.
_LARGEST_BYTES = 256 * 2**20
# What a report that was never resumed left behind.
_STALE_AFTER_S = 30 * 86_400.0


class DigestFolder:
    """A folder of digests; one that cannot be written or read keeps nothing."""

    def __init__(self, folder: Path, now_s: float | None = None) -> None:
        self._folder = folder
        self._written: list[Path] = []
        now_s = time.time() if now_s is None else now_s
        with suppress(OSError):
            for file in [*folder.glob(f"*{_SUFFIX}*")]:
                if now_s - file.stat().st_mtime > _STALE_AFTER_S:
                    file.unlink()

    def read(self, key: str) -> RankDigest | None:
        """The digest that was kept for this key; null where there is none that is whole."""
        try:
            path = self._path(key)
            if path.stat().st_size > _LARGEST_BYTES:
                return None
            return _from_bytes(path.read_bytes(), key)
        except (OSError, ValueError, TypeError, msgspec.MsgspecError):
            return None

    def write(self, key: str, digest: RankDigest) -> None:
        """Keeps the digest under this key."""
        path = self._path(key)
        partial = path.with_suffix(f"{_SUFFIX}.{os.getpid()}")
        with suppress(OSError):
            self._folder.mkdir(parents=True, exist_ok=True)
            partial.write_bytes(_to_bytes(key, digest))
            partial.replace(path)
            self._written.append(path)

    def remove_written(self) -> None:
        """Removes what this object has written."""
        for path in self._written:
            with suppress(OSError):
                path.unlink()

    def _path(self, key: str) -> Path:
        return self._folder / f"{hashlib.sha256(key.encode()).hexdigest()[:32]}{_SUFFIX}"


@dataclass(frozen=True)
class StoredCalls:
    """The collectives of a rank in a temporary file."""

    spool: Spool
    position: int
    size: int

    def read(self) -> CollectiveCalls:
        """The collectives in memory."""
        data = self.spool.read(self.position, self.size)
        return msgspec.msgpack.decode(data, type=CollectiveCalls, dec_hook=_array)


def stored(digest: RankDigest, spool: Spool) -> RankDigest:
    """The digest with its collectives in a temporary file."""
    data = msgspec.msgpack.encode(digest.calls.read(), enc_hook=_array_bytes)
    position = spool.reserve(len(data))
    spool.write(position, data)
    return replace(digest, calls=StoredCalls(spool, position, len(data)))


def _to_bytes(key: str, digest: RankDigest) -> bytes:
    body = msgspec.msgpack.encode((key, digest), enc_hook=_array_bytes)
    return _MAGIC + zlib.crc32(body).to_bytes(4, "little") + body


def _array_bytes(values: Any) -> bytes:
    if not isinstance(values, np.ndarray):
        raise NotImplementedError
    return values.tobytes()


def _from_bytes(data: bytes, key: str) -> RankDigest | None:
    start = len(_MAGIC) + 4
    checksum, body = data[len(_MAGIC) : start], data[start:]
    if not data.startswith(_MAGIC) or zlib.crc32(body).to_bytes(4, "little") != checksum:
        return None
    found, digest = msgspec.msgpack.decode(body, type=tuple[str, RankDigest], dec_hook=_array)
    return digest if found == key and _fits(digest) else None


def _array(kind: Any, data: Any) -> Any:
    """The array of an annotation such as NDArray[float64]; the collectives of a digest."""
    if kind is Calls:
        return msgspec.convert(data, CollectiveCalls, dec_hook=_array)
    return np.frombuffer(data, dtype=kind.__args__[1].__args__[0])


def _fits(digest: RankDigest) -> bool:
    """True where the columns are of one length and their codes name something."""
    calls = digest.calls.read()
    columns = (calls.message, calls.group, calls.start_us, calls.end_us, calls.is_inside)
    return (
        len({column.size for column in columns}) == 1
        and digest.step_start_us.size == digest.step_wall_us.size
        and _name(calls)
    )


def _name(calls: CollectiveCalls) -> bool:
    pairs = ((calls.message, len(calls.messages)), (calls.group, len(calls.groups)))
    return all(((codes >= 0) & (codes < count)).all() for codes, count in pairs)
