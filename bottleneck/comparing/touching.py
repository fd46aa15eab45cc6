"""Whether the diff between two refs touches a line that a trace names."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

from bottleneck.comparing.sides import Touched


@dataclass(frozen=True)
class Diff:
    """The lines that a diff touches, by file; ``touched`` is null where there is no diff."""

    touched: Touched | None = None

    @cached_property
    def _by_name(self) -> Mapping[str, Sequence[tuple[str, frozenset[int]]]]:
        found: dict[str, list[tuple[str, frozenset[int]]]] = {}
        for path, lines in (self.touched or {}).items():
            found.setdefault(path.rpartition("/")[2], []).append((path, lines))
        return found

    def touches(self, source: str | None) -> bool | None:
        """Whether it touches 'file.py:57'; null without a diff or a line.

        Traces name files by the end of their paths, a diff from the root of the repository: one ends with the other.
        """
        if source is None or self.touched is None:
            return None
        file, _, line = source.replace("\\", "/").rpartition(":")
        if not line.isdecimal() or len(line) > 9:
            return False
        files = self._by_name.get(file.rpartition("/")[2], ())
        return any(int(line) in lines and _is_end(file, path) for path, lines in files)


def _is_end(one: str, other: str) -> bool:
    short, long = sorted((one, other), key=len)
    return long == short or long.endswith(f"/{short}")
