"""The two sides of ``bottleneck compare``: what a word on the command line means, and the side made of it."""

import tempfile
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from bottleneck.errors import TraceError, UsageError

if TYPE_CHECKING:
    from bottleneck.commands.comparing import Wanted
    from bottleneck.compare.sides import ComparedSide
    from bottleneck.experiment.program import Program
    from bottleneck.experiment.record_once import Ceilings
    from bottleneck.experiment.side import Stand
    from bottleneck.pipeline import Options

WORKTREE = "worktree"
_LONGEST_LABEL = 40
_LOCK_SUFFIX = ".toml"
_TRACES = ("*.json", "*.json.gz")

Kind = Literal["lock", "recorded", "ref", "worktree"]
Tell = Callable[[str], None]


@dataclass(frozen=True)
class Side:
    """What a word means. ``root`` is that of the clone, ``commit`` the full name of a ref's; empty for all others."""

    kind: Kind
    text: str
    root: Path | None = None
    commit: str = ""

    @property
    def is_source(self) -> bool:
        """Whether a program has to be recorded there."""
        return self.kind in {"ref", "worktree"}

    @property
    def label(self) -> str:
        """What the comparison calls it: a long path by its last part."""
        if self.kind == "worktree":
            return "the working tree"
        if self.kind == "ref":
            return f"{self.text} ({self.commit[:7]})"
        return self.text if len(self.text) <= _LONGEST_LABEL else Path(self.text).name or self.text


def labels_of(sides: Sequence[Side]) -> tuple[str, ...]:
    """What the sides are called; by their whole paths where they would have the same name."""
    labels = tuple(side.label for side in sides)
    return labels if len(set(labels)) == len(labels) else tuple(side.text for side in sides)


def name_side(text: str, tell: Tell, *, has_program: bool) -> Side:
    """What a word means: a file or folder with traces goes before a git ref; TraceError where it is neither.

    ``has_program`` tells whether there is something to record: then `.` is the working tree, unless it is a recording.
    """
    from bottleneck.experiment.sources import find_commit, find_root, git_in
    from bottleneck.schema.recording import is_recording

    path, root = Path(text), find_root(Path.cwd())
    is_here = text == "." and has_program and not is_recording(path)
    if is_here or (text == WORKTREE and not path.exists()):
        return Side("worktree", text, root)
    commit = None if root is None else find_commit(git_in(root), text)
    if _holds_traces(path):
        if commit is not None:
            tell(f"{text} is taken for the file or folder of that name; the git ref is {commit[:7]}")
        return Side("lock" if path.is_file() and path.name.endswith(_LOCK_SUFFIX) else "recorded", text)
    if commit is None:
        raise _unknown(text, path)
    return Side("ref", text, root, commit)


def _holds_traces(path: Path) -> bool:
    """Whether it is a file, or a folder that could be compared."""
    from bottleneck.schema.recording import is_recording

    if not path.is_dir():
        return path.exists()
    return is_recording(path) or any(next(path.glob(pattern), None) for pattern in _TRACES)


def _unknown(text: str, path: Path) -> TraceError:
    if path.is_dir():
        why = "the folder has neither recording.json with a trace nor files ending in .json or .json.gz"
    else:
        why = "there is no such file, and git knows no commit of that name here"
    return TraceError(
        f"{text} is nothing to compare",
        why=why,
        fix="name a trace, a recording, analysis.json, a lock-file or a git ref",
    )


def options_of(wanted: "Wanted") -> "Options":
    """How traces are to be read, as ``report`` does."""
    from bottleneck.commands.report import chosen_device, parse_steps
    from bottleneck.pipeline import Options

    asked = None if wanted.steps is None else parse_steps(wanted.steps, whole=wanted.whole)
    return Options(wanted.whole, chosen_device(wanted.device, None), asked)


def program_of(wanted: "Wanted", sides: Sequence[Side]) -> "Program | None":
    """The program that is recorded at refs; null where no side is one. UsageError where it is missing, or of no use."""
    sources = [side for side in sides if side.is_source]
    if wanted.workload is None and (wanted.settings or wanted.train):
        raise UsageError("--set and --train need a program", fix="name it: --workload FILE")
    if wanted.workload is None and sources:
        raise UsageError(
            f"{sources[0].text} names sources, and no program to record there",
            fix=f"bottleneck compare {wanted.before} {wanted.after} --workload FILE",
        )
    if wanted.workload is None:
        return None
    if not sources:
        raise UsageError("--workload is recorded at git refs, and neither side is one", fix="leave --workload out")
    return _program(wanted, wanted.workload)


def _program(wanted: "Wanted", path: Path) -> "Program":
    from bottleneck.commands.run_options import RunOptions, make_plan
    from bottleneck.experiment.program import Program
    from bottleneck.experiment.worktree import find_root, moved_target

    if not path.is_file():
        raise UsageError(
            f"there is no workload {path} in the working tree",
            fix="name a file with workload(), with `model` and `inputs`, or a script",
        )
    plan = make_plan(RunOptions(str(path), settings=wanted.settings, train=wanted.train), Path)
    target = moved_target(str(path), find_root(Path.cwd()), Path.cwd())
    return Program(target, (), plan.form, plan.settings, plan.train)


@dataclass(frozen=True)
class Maker:
    """Makes sides: reads what lies on disk, and records ``program`` at refs, into folders of ``scratch``."""

    options: "Options"
    program: "Program | None"
    scratch: Path
    tell: Tell

    def make(self, side: Side, label: str) -> "ComparedSide":
        """The side with as much as can be known of it; raises as reading and recording do."""
        if side.kind == "lock":
            return _of_lock(side, label)
        return self._of_sources(side) if side.is_source else self._of_files(side, label)

    def _of_files(self, side: Side, label: str) -> "ComparedSide":
        from bottleneck.commands.report import with_kept_ceilings
        from bottleneck.compare.sides import ComparedSide
        from bottleneck.gate.count import count
        from bottleneck.pipeline import explain, saved_analysis

        path = Path(side.text)
        options = with_kept_ceilings([path], self.options)
        saved = saved_analysis([path], options)
        if saved is not None:
            return ComparedSide(label, side.text, saved=saved)
        case = explain([path], options)
        return ComparedSide(label, side.text, case=case, counts=count(case))

    def _of_sources(self, side: Side) -> "ComparedSide":
        from bottleneck.compare.sides import ComparedSide
        from bottleneck.experiment.record_once import record_program
        from bottleneck.gate.count import count

        assert self.program is not None, "a program is asked for before sides are made"
        with ExitStack() as stack:
            stand = self._stand(side, self.program, stack)
            self.tell(f"recording {self.program.target} at {side.label}")
            folder = Path(tempfile.mkdtemp(prefix="side-", dir=self.scratch))
            case = record_program(self.program, folder, stand, self.ceilings)
            counts = count(case, stand.folder)
        return ComparedSide(side.label, side.label, case=case, counts=counts)

    @cached_property
    def ceilings(self) -> "Ceilings":
        """Those of this machine, which both sides share."""
        from bottleneck.experiment.record_once import Ceilings

        return Ceilings(self.tell)

    def _stand(self, side: Side, program: "Program", stack: ExitStack) -> "Stand":
        """Where the program runs: here, or in a worktree of the commit for as long as the stack lasts."""
        from bottleneck.experiment.side import Stand
        from bottleneck.experiment.worktree import base_stand, lacks
        from bottleneck.gate.settings import find_pyproject, read_settings

        settings = read_settings(find_pyproject(Path.cwd()))
        if side.kind == "worktree":
            return Stand(side.label, Path.cwd(), settings.environment)
        base = stack.enter_context(base_stand(side.root, side.text, settings.setup, self.scratch, Path.cwd()))
        reason = base.reason or lacks(base, program.target)
        if base.stand is None or reason is not None:
            raise UsageError(f"{side.label} cannot be recorded", why=reason or "", fix="name a recording of it instead")
        return Stand(side.label, base.stand.folder, {**settings.environment, **base.stand.environment})


def _of_lock(side: Side, label: str) -> "ComparedSide":
    from bottleneck.compare.sides import ComparedSide
    from bottleneck.gate.lockfile import read_lock

    return ComparedSide(label, side.text, counts=read_lock(Path(side.text)).counts)
