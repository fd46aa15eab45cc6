"""The folder of a block that the ranks of a job record together: each comes and goes when it does."""

import re
from pathlib import Path
from typing import TYPE_CHECKING

from bottleneck.errors import UsageError

if TYPE_CHECKING:
    from bottleneck.harness.claim import Claim, Course

# What a rank writes while it measures.
_OF_RANK = re.compile(r"(?:\.notes|\.partial\.trace|\.fresh\.trace|compiled)\.rank(\d+)\..*")
# What stands in the folder once all ranks are done.
_FINISHED = ("recording.json", "analysis.json", "roofline.png", "telemetry.csv", "trace.rank*.json.gz")


class SharedPlace:
    """One rank's view of the folder, with the interface of ``Place``.

    Another rank may have been here for a while: its files are left alone, by force too. Rank 0 has the claim, and
    removes an old recording.
    """

    def __init__(self, folder: Path, rank: int, *, force: bool) -> None:
        self.folder, self._rank, self._force = folder.absolute(), rank, force
        self._claim: Claim | None = None

    def make(self) -> Path:
        """The absolute path of the folder, found fit for writing; UsageError if it is not."""
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            if self._force:
                self._remove_old()
            elif any(not self._is_of_others(path) for path in self.folder.iterdir()):
                raise UsageError(
                    f"{self.folder} is not empty",
                    why="a recording never overwrites what it finds",
                    fix="name another folder, or pass --force",
                )
            if self._rank == 0:
                self._occupy()
        except OSError as exc:
            raise UsageError(
                f"cannot write to the folder {self.folder}", why=exc.strerror or str(exc), fix="name another folder"
            ) from exc
        return self.folder

    def note(self, course: "Course") -> None:
        """Leaves word of what is being done here, for whoever finds it unfinished."""
        if self._claim is not None:
            try:
                self._claim.note(course)
            except OSError:  # a full disk; the recording itself will say so
                return

    def release(self, *, is_finished: bool = True) -> None:
        """Leaves the folder; the mark of an unfinished recording goes with the last rank, whichever that is."""
        from bottleneck.harness.claim import CLAIM_FILE

        claim, self._claim = self._claim, None
        if claim is not None:
            claim.release(is_finished=is_finished)
        elif is_finished:
            (self.folder / CLAIM_FILE).unlink(missing_ok=True)

    def discard(self) -> bool:
        """Leaves the folder, which others may use."""
        self.release(is_finished=self._claim is not None)
        return False

    def _is_of_others(self, path: Path) -> bool:
        from bottleneck.harness.claim import CLAIM_FILE

        found = _OF_RANK.fullmatch(path.name)
        return path.name == CLAIM_FILE or (found is not None and int(found[1]) != self._rank)

    def _remove_old(self) -> None:
        for path in self.folder.iterdir():
            found = _OF_RANK.fullmatch(path.name)
            if found is not None and int(found[1]) == self._rank:
                path.unlink()
        if self._rank == 0:
            for pattern in _FINISHED:
                for path in self.folder.glob(pattern):
                    path.unlink()

    def _occupy(self) -> None:
        from bottleneck.harness.claim import claim

        self._claim = claim(self.folder)
        if self._claim is None:
            raise UsageError(
                f"another run is recording into {self.folder}",
                why="two recordings in one folder would spoil each other",
                fix="wait for it to end, or name another folder",
            )
