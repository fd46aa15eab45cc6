"""Creates, checks and claims the folder of a recording, and removes it if nothing was recorded."""

import contextlib
import os
from collections.abc import Callable
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING

from bottleneck.errors import UsageError

if TYPE_CHECKING:
    from bottleneck.commands.finish_run import Told
    from bottleneck.harness.claim import Claim, Course

# All that a recording ever writes into its folder.
_OURS = (
    "recording.json",
    "analysis.json",
    "roofline.png",
    "telemetry.csv",
    "trace.rank*.json.gz",
    "compiled.rank*.json",
    "bottleneck-crash.txt",
    ".run.json",
    ".recording.json.*",
    ".analysis.json.*",
    ".roofline.png.*",
    ".telemetry.csv.*",
    ".partial.*",
    ".fresh.*",
    ".notes*",
    ".job.*",
)
_TRIES = 20


def stem_of(target: str) -> str:
    """The name of the program as part of that of a folder."""
    stem = "".join(letter if letter.isalnum() or letter in "-_." else "-" for letter in Path(target).stem)
    return stem[:80] or "program"


class Place:
    """A folder for one recording; ``output`` is the one that the user names, null to make one after the program.

    A recording never overwrites what it finds, unless by force, and then only what another recording left.
    """

    def __init__(self, output: Path | None, target: str, *, force: bool = False) -> None:
        self._output, self._target, self._force = output, target, force
        self._made: list[Path] = []
        self._claim: Claim | None = None
        self._is_begun = False
        self.folder = Path()

    def make(self) -> Path:
        """The absolute path of the folder, found fit for writing; UsageError, and nothing left behind, if it is not."""
        try:
            self.folder = self._new_folder() if self._output is None else self._named_folder(self._output.absolute())
            self._occupy()
        except BaseException:
            self.discard()
            raise
        return self.folder

    def make_shared(self, join: "Callable[[Callable[[], None]], None]") -> None:
        """As ``make``, for several ranks of one job: ``join`` says which of them comes first and has to make room."""
        assert self._output is not None, "ranks agree on a folder before it is made"
        self.folder = self._named_folder(self._output.absolute())
        try:
            join(self._make_room)
        except OSError as exc:
            raise _cannot("write to", self.folder, exc) from exc

    def _make_room(self) -> None:
        from bottleneck.harness.claim import is_claimed

        self._refuse_what_is_there()
        if is_claimed(self.folder):
            raise UsageError(
                f"another run is recording into {_shown(self.folder)}", fix="name another folder with -o DIR"
            )
        _remove_recording(self.folder)

    def note(self, course: "Course") -> None:
        """Leaves word of what is being done here, for whoever finds it unfinished."""
        self._is_begun = True
        if self._claim is not None:
            try:
                self._claim.note(course)
            except OSError:  # a full disk; the recording itself will say so
                return

    def leave(self, told: "Told") -> None:
        """Leaves the folder to others: marked if its recording has to be finished, without it if it holds nothing."""
        if told.is_worth_keeping:
            self.release(is_finished=told.is_finished)
        else:
            self.discard()

    def release(self, *, is_finished: bool = True) -> None:
        """Leaves the folder to others, with the mark of an unfinished recording or without."""
        claim, self._claim = self._claim, None
        if claim is not None:
            claim.release(is_finished=is_finished)

    def give_up(self) -> None:
        """Takes the folder away again if nothing was begun in it."""
        if not self._is_begun:
            self.discard()

    def discard(self) -> bool:
        """Whether the folder is gone: only if it was made here and holds nothing but what a recording leaves."""
        if self._claim is not None and self.folder in self._made:
            _remove_recording(self.folder)
        self.release()
        for made in self._made:
            try:
                made.rmdir()
            except OSError:
                return False
        return bool(self._made)

    def _new_folder(self) -> Path:
        for _ in range(_TRIES):
            now = datetime.now().astimezone()
            name = f"bottleneck-{stem_of(self._target)}-{now:%Y%m%d-%H%M%S}-{os.urandom(2).hex()}"
            if self._mkdir(Path(name).absolute()):
                return Path(name).absolute()
        raise UsageError("cannot find a free name for the folder", fix="name one with -o DIR")

    def _named_folder(self, folder: Path) -> Path:
        for path in reversed([folder, *folder.parents]):
            self._mkdir(path)
        if folder.is_symlink():
            raise UsageError(
                f"{_shown(folder)} is a symbolic link",
                why="a recording is never written through one",
                fix=f"name the folder itself: -o {_shown(folder.resolve())}",
            )
        return folder

    def _mkdir(self, path: Path) -> bool:
        """Whether the folder was made; false if it is there already."""
        try:
            if path.is_dir():
                return False
            path.mkdir()
        except FileExistsError:
            if path.is_dir():
                return False
            raise UsageError(
                f"{_shown(path)} is no folder", why="something else has this name", fix="name another with -o DIR"
            ) from None
        except (OSError, ValueError) as exc:
            raise _cannot("make", path, exc) from exc
        self._made.insert(0, path)
        return True

    def _occupy(self) -> None:
        """Claims the folder, which also proves that it can be written to, and makes room in it."""
        from bottleneck.harness.claim import CLAIM_FILE, claim

        try:
            self._refuse_what_is_there()
            if (self.folder / CLAIM_FILE).is_symlink():
                (self.folder / CLAIM_FILE).unlink()
            self._claim = claim(self.folder)
            if self._claim is None:
                raise UsageError(
                    f"another run is recording into {_shown(self.folder)}",
                    why="two recordings in one folder would spoil each other",
                    fix="wait for it to end, or name another folder with -o DIR",
                )
            # Another run may have come and gone in between.
            self._refuse_what_is_there(apart_from=CLAIM_FILE)
            _remove_recording(self.folder, apart_from=CLAIM_FILE)
        except OSError as exc:
            raise _cannot("write to", self.folder, exc) from exc

    def _refuse_what_is_there(self, apart_from: str = "") -> None:
        if not self._force and any(path.name != apart_from for path in self.folder.iterdir()):
            raise UsageError(
                f"{_shown(self.folder)} is not empty",
                why="a recording never overwrites what it finds",
                fix="name another folder with -o, or pass --force",
            )


def remove_made(folder: Path) -> None:
    """Removes a folder that was made for a recording that came to nothing, unless something else lies in it."""
    _remove_recording(folder)
    with contextlib.suppress(OSError):
        folder.rmdir()


def _remove_recording(folder: Path, apart_from: str = "") -> None:
    """Removes what a recording leaves, and nothing else; of links only the link."""
    for pattern in _OURS:
        for path in folder.glob(pattern):
            if path.name != apart_from:
                path.unlink()


def _cannot(do: str, path: Path, exc: OSError | ValueError) -> UsageError:
    reason = exc.strerror if isinstance(exc, OSError) else str(exc)
    return UsageError(
        f"cannot {do} the folder {_shown(path)}", why=reason or str(exc), fix="name one that can be written with -o DIR"
    )


def _shown(path: Path) -> str:
    from bottleneck.report.text import clean

    return clean(str(path))
