"""Keeps what held a GPU's memory where the program ran out of it.

The snapshot is written while the error is on its way out of the program: its frames still hold their tensors.
"""

import glob
import sys
from collections.abc import Iterator
from pathlib import Path

from bottleneck.harness.program import describe_error, says_out_of_memory
from bottleneck.harness.torch_private import dump_memory, record_memory_history

_SUFFIX = ".out-of-memory"
# Each takes some 200 bytes, and more with its calls.
_MOST_EVENTS = 100_000


def begin_history() -> bool:
    """Has the allocator note the lines of what it hands out from now on.

    It takes some microseconds for each request. False where there is no GPU or torch has no such history.
    """
    torch = sys.modules.get("torch")
    try:
        return bool(torch is not None and torch.cuda.is_available() and record_memory_history(_MOST_EVENTS))
    except Exception:  # a stand-in of the program's, or a driver that fails
        return False


def keep_snapshot(error: BaseException, folder: Path, rank: int = 0) -> Path | None:
    """Writes the allocator's snapshot beside a recording, if memory ran out.

    Beside it, since a recording without steps is not kept. Null for another error, without a GPU in use, or where the
    snapshot cannot be written: the program's own error is what matters.
    """
    torch = sys.modules.get("torch")
    try:
        if torch is None or not says_out_of_memory(describe_error(error)) or not torch.cuda.is_initialized():
            return None
        path = folder.with_name(f"{folder.name}{_SUFFIX}.rank{rank}.pickle")
        return path if dump_memory(path) else None
    except Exception:
        return None


def snapshots_beside(folder: Path) -> Iterator[Path]:
    """Yields the snapshots that the ranks of a run left beside its folder."""
    yield from sorted(folder.parent.glob(f"{glob.escape(folder.name)}{_SUFFIX}.rank*.pickle"))
