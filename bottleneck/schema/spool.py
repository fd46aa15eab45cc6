"""A temporary file for what is too large to hold; up to some megabytes it stays in memory."""

import tempfile
import weakref

from bottleneck.errors import WorkloadError

_HELD_BYTES = 32 * 2**20


class Spool:
    """Keeps bytes in the folder for temporary files (TMPDIR), in memory as long as they are few.

    The file has no name and is gone with this object.
    """

    def __init__(self) -> None:
        self._file = tempfile.SpooledTemporaryFile(max_size=_HELD_BYTES)  # noqa: SIM115 - closed with this object
        weakref.finalize(self, self._file.close)
        self._size = 0

    def reserve(self, size: int) -> int:
        """The position of so many new bytes, to be written later."""
        self._size += size
        return self._size - size

    def write(self, position: int, data: bytes) -> None:
        """Puts bytes at a position that was reserved."""
        try:
            self._file.seek(position)
            self._file.write(data)
        except OSError as exc:
            raise WorkloadError(
                f"cannot write to the folder for temporary files, {tempfile.gettempdir()}",
                why=exc.strerror or str(exc),
                fix="make room, or name another folder: TMPDIR=/folder",
            ) from exc

    def read(self, position: int, size: int) -> bytes:
        """The bytes at a position."""
        self._file.seek(position)
        found: bytes = self._file.read(size)
        return found
