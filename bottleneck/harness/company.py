"""The other ranks of the program: all profile the same steps, or their collectives could not be held together.

Ranks agree through a file in the folder of the recording and never wait for one another: a rank that waits keeps the
others waiting in a collective. The lowest rank decides when the steps have settled and are timed, and names a step a
little ahead. No rank can pass it unawares: none ends a step whose collectives rank 0 has not reached.
"""

import json
from dataclasses import dataclass
from pathlib import Path

WINDOW_FILE = ".notes.window.json"
# A step more than it takes, for programs whose ranks meet less than once a step.
_AHEAD = 2


@dataclass(frozen=True)
class WindowAt:
    """The step after which the windows open, and how many steps before it are timed."""

    step: int
    timed: int


class Company:
    """What a rank knows of the others' windows."""

    def __init__(self, folder: Path, rank: int, ranks: int) -> None:
        self._path, self._rank = folder / WINDOW_FILE, rank
        self._opening: WindowAt | None = None
        self.is_alone = ranks < 2

    @property
    def follows(self) -> bool:
        """Whether another rank decides."""
        return not self.is_alone and self._rank > 0

    def may_open(self, step: int, timed: int) -> bool:
        """Whether the windows open after this step, for the rank that decides; asked when it has timed enough steps."""
        if self.is_alone:
            return True
        if self._opening is None:
            self._opening = WindowAt(step + _AHEAD, timed + _AHEAD)
            partial = self._path.with_name(f"{WINDOW_FILE}.new")
            try:
                partial.write_text(json.dumps(vars(self._opening)))
                partial.replace(self._path)
            except OSError:  # a full disk, which the recording will tell of
                return True
        return step >= self._opening.step

    def opening(self) -> WindowAt | None:
        """What the rank that decides has said; null as long as it has not."""
        if self._opening is None:
            try:
                self._opening = WindowAt(**json.loads(self._path.read_bytes()))
            except (OSError, ValueError, TypeError):
                return None
        return self._opening
