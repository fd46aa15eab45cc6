"""Keeps the digests of ranks in files, so that a report that was interrupted goes on where it was.

What a report compares the ranks by is kept apart, as ``StoredCalls``: of many ranks it takes more than memory has.
"""

import time
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec

from bottleneck.schema.digest import Calls, CollectiveCalls, RankDigest
from bottleneck.schema.kept_files import RecordFolder, array_of, bytes_of
from bottleneck.schema.records import replace
from bottleneck.schema.working_memory import Spool

# What a report that was never resumed left behind.
_STALE_AFTER_S = 30 * 86_400.0


class DigestFolder:
    """A folder of digests; one that cannot be written or read keeps nothing."""

    def __init__(self, folder: Path, now_s: float | None = None) -> None:
        self._kept = RecordFolder(folder, RankDigest, "digest 2", _decoded)
        self._written: list[Path] = []
        now_s = time.time() if now_s is None else now_s
        with suppress(OSError):
            for file in self._kept.files():
                if now_s - file.stat().st_mtime > _STALE_AFTER_S:
                    file.unlink()

    def read(self, key: str) -> RankDigest | None:
        """The digest that was kept for this key; null where there is none that is whole."""
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
    return (
        len({column.size for column in columns}) == 1
        and digest.step_start_us.size == digest.step_wall_us.size
        and _name(calls)
    )


def _name(calls: CollectiveCalls) -> bool:
    pairs = ((calls.message, len(calls.messages)), (calls.group, len(calls.groups)))
    return all(((codes >= 0) & (codes < count)).all() for codes, count in pairs)
