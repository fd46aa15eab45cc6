"""Explains the traces that an agent names, and keeps the last explanation."""

import re
from collections import OrderedDict
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from bottleneck.errors import UsageError
from bottleneck.schema.analysis import Analysis
from bottleneck.schema.recording import RECORDING_FILE
from bottleneck.schema.sources import find_traces

if TYPE_CHECKING:
    from bottleneck.schema.evidence import Explanation

# Analyses are small; an explanation holds the events of its trace.
_MOST_ANALYSES = 16
_ADDRESS = re.compile(r"[A-Za-z][A-Za-z0-9+.-]+://")

Progress = Callable[[float, float | None, str], None]
"""Told how far some work is, of how much where that is known, in words; raises where the work is cancelled."""

_Key = tuple[str, ...]


class TraceReader:
    """Reads what paths name, as ``bottleneck report`` does.

    ``check`` raises for recordings that cannot be read yet. ``jobs`` processes decode a large trace.
    """

    def __init__(self, check: Callable[[Sequence[Path]], None] = lambda _: None, jobs: int = 1) -> None:
        self._check, self._jobs = check, jobs
        self._analyses: OrderedDict[_Key, Analysis] = OrderedDict()
        self._last: tuple[_Key, Explanation] | None = None

    def analysis(self, text: str, tell: Progress) -> Analysis:
        """The analysis of what `bottleneck report` takes.

        Raises BottleneckError where it cannot be read.
        """
        from bottleneck.pipeline import saved_analysis

        path = local_path(text)
        saved = saved_analysis([path])
        if saved is not None:
            return saved
        key = self._key(path)
        if key not in self._analyses:
            self._explain(path, key, tell)
        self._analyses.move_to_end(key)
        return self._analyses[key]

    def explanation(self, text: str, tell: Progress) -> "Explanation":
        """The analysis of a trace with its events.

        Raises as ``analysis`` does, UsageError for a saved analysis too.
        """
        from bottleneck.pipeline import saved_analysis

        path = local_path(text)
        if saved_analysis([path]) is not None:
            raise UsageError(f"{path} is a finished analysis, without the events of its trace", fix="pass the trace")
        key = self._key(path)
        if self._last is None or self._last[0] != key:
            return self._explain(path, key, tell)
        return self._last[1]

    def _key(self, path: Path) -> _Key:
        """Names the files of a path, and when they changed."""
        from bottleneck.mapping.rank_reading import stamp

        self._check([path])
        recording = [path / RECORDING_FILE] if path.is_dir() else []
        return (str(path.absolute()), *map(stamp, [*(source.trace for source in find_traces(path)), *recording]))

    def _explain(self, path: Path, key: _Key, tell: Progress) -> "Explanation":
        from bottleneck.pipeline import Options, explain

        def on_trace(done: int, total: int, _path: Path, read_bytes: int = 0, size_bytes: int = 0, /) -> None:
            if total > 1:
                tell(done, total, "traces read")
            else:
                tell(read_bytes / 1e6, size_bytes / 1e6 or None, "MB read")

        self._last = None  # two large explanations would not fit into memory
        explained = explain([path], Options(jobs=self._jobs), on_trace)
        self._last, self._analyses[key] = (key, explained), explained.analysis
        while len(self._analyses) > _MOST_ANALYSES:
            self._analyses.popitem(last=False)
        return explained


def local_path(text: str) -> Path:
    """The path of a file or folder of this machine.

    UsageError for an address or an empty text.
    """
    if not text or _ADDRESS.match(text) or "\0" in text:
        raise UsageError(
            "this is no path of this machine",
            why="the server reads local files alone" if text else "the path is empty",
            fix="pass the path of a trace, a recording, a folder of rank traces or analysis.json",
        )
    return Path(text)
