"""Reads source lines that a trace names, within the program's folder."""

import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from bottleneck.schema.evidence import Evidence
from bottleneck.schema.op_names import PYTHON_FRAME, place_of

_LONGEST_TEXT = 200
_LARGEST_FILE = 5_000_000
# Larger files are not parsed for the operators of a function.
LARGEST_SOURCE = 1_000_000


class SourceFiles:
    """Files of a working folder by the lines of a trace.

    Without a folder no file is looked for or opened.
    """

    def __init__(self, evidence: Evidence, root: Path | None) -> None:
        self._root = None if root is None else root.resolve()
        recording = evidence.recording
        search_path = () if recording is None else recording.search_path
        # Relative to the working folder: in these a name that the profiler has cut may begin.
        self._folders = tuple(dict.fromkeys((*search_path, "")))
        self._paths = _paths_by_source(evidence)
        self._lines: dict[str, Sequence[str]] = {}

    def locate(self, source: str) -> tuple[str, int]:
        """Finds file and line of a source, relative to the folder."""
        place = place_of(source)
        if place is None:
            return source, 0
        paths = self._paths.get((place.file, place.line), ())
        # Two files of one name with code in the same line: nobody knows which.
        path = next(iter(paths)) if len(paths) == 1 else place.file
        return self.relative(path), place.line

    def relative(self, path: str) -> str:
        """Shortens a path to the working folder, else to its name."""
        path = path.replace("\\", "/")
        if self._root is not None:
            for folder in self._folders:
                file = self._inside(self._root / folder / path)
                if file is not None:
                    return file.relative_to(self._root).as_posix()
        is_elsewhere = path.startswith(("/", "..")) or re.match(r"^[A-Za-z]:", path) is not None
        return path.rpartition("/")[2] if is_elsewhere else path

    def text(self, file: str, line: int) -> str:
        """Reads that line, without indent and cut; else empty."""
        if file not in self._lines:
            self._lines[file] = self._read(file)
        lines = self._lines[file]
        return lines[line - 1].strip()[:_LONGEST_TEXT] if 1 <= line <= len(lines) else ""

    def _inside(self, path: Path) -> Path | None:
        """Finds the file, if it lies in the folder, links followed."""
        try:
            real = path.resolve()
            is_file = self._root is not None and real.is_relative_to(self._root) and real.is_file()
        except (OSError, ValueError, RuntimeError):  # a name that no system takes, a loop of links
            return None
        return real if is_file else None

    def _read(self, file: str) -> Sequence[str]:
        path = None if self._root is None else self._inside(self._root / file)
        try:
            if path is None or path.stat().st_size > _LARGEST_FILE:
                return ()
            return path.read_text(encoding="utf-8", errors="replace").splitlines()
        except OSError:
            return ()


def _paths_by_source(evidence: Evidence) -> Mapping[tuple[str, int], set[str]]:
    """The paths that each file and line of the tables stands for."""
    tables = (evidence.linked.ops, evidence.linked.kernels, evidence.linked.places)
    sources = (label for table in tables if table is not None for label in table["source"].cat.categories)
    places = [place for source in sources if (place := place_of(source)) is not None]
    wanted = {(place.file, place.line) for place in places}
    frames: dict[tuple[str, int], set[str]] = {}
    for label in evidence.linked.trace.events["name"].cat.categories if wanted else ():
        match = PYTHON_FRAME.match(label) if "): " in label else None
        if match is not None:
            path = match["path"].replace("\\", "/")
            key = path.rpartition("/")[2], int(match["line"])
            if key in wanted:
                frames.setdefault(key, set()).add(path)
    return frames


# The text of a file of the program, by its name; empty where it is not at hand.
Read = Callable[[str], str]


def read_nothing(_file: str) -> str:
    """No file is at hand."""
    return ""


def read_below(root: Path) -> Read:
    """Makes a function that reads files below a folder only.

    Links out of it are not followed.
    """

    def read(file: str) -> str:
        try:
            path = (root / file).resolve()
            is_ours = path.is_relative_to(root.resolve()) and path.is_file() and path.stat().st_size <= LARGEST_SOURCE
            return path.read_text(encoding="utf-8", errors="replace") if is_ours else ""
        except (OSError, ValueError, RuntimeError):  # a name that no system takes, a loop of links
            return ""

    return read
