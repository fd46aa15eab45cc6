"""Reads lock-files as they stood in another commit."""

import tempfile
from pathlib import Path

from bottleneck.errors import TraceError
from bottleneck.experiment.sources import find_root, git_in
from bottleneck.gate.lockfile import read_lock
from bottleneck.schema.counters import Lock


def read_lock_at(commit: str, path: Path) -> Lock | None:
    """The lock-file of a commit of the clone around it; null where that has none, or none that can be read."""
    root = find_root(path.parent)
    if root is None or not commit:
        return None
    place = (path.parent.resolve() / path.name).relative_to(root)
    answer = git_in(root)("show", f"{commit}:{place.as_posix()}")
    if not answer.is_good:
        return None
    with tempfile.TemporaryDirectory(prefix="bottleneck-lock-") as scratch:
        file = Path(scratch) / path.name
        file.write_bytes(answer.output)
        try:
            return read_lock(file)
        except TraceError:
            return None
