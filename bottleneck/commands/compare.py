"""``bottleneck compare``: compares two sides and presents the result.

Reads or records both sides first, and applies --fail-on.
"""

import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from bottleneck.commands.analysis_options import (
    StepsOption,
    WholeOption,
    WindowOption,
    chosen_device,
    refuse_unfinished,
    window_options,
)
from bottleneck.commands.report_options import (
    RESULT_FORMATS,
    Quiet,
    Settings,
    Train,
    check_picture,
    form_of,
    format_option,
    output_option,
    output_style,
    picture_option,
    write_report,
)
from bottleneck.errors import TraceError, UndecidedError, UsageError
from bottleneck.report.output import draw_picture, write_note
from bottleneck.system.interrupts import answered, says_what_is_kept

if TYPE_CHECKING:
    from bottleneck.compare.sides import ComparedSide, Touched
    from bottleneck.experiment.record_once import Ceilings
    from bottleneck.experiment.side import Side
    from bottleneck.harness.messages import Program
    from bottleneck.pipeline import Options
    from bottleneck.schema.comparison import Comparison
    from bottleneck.schema.gate_result import Limit, TimeResult
    from bottleneck.schema.measurements import Timing

Kind = Literal["lock", "recorded", "ref", "worktree"]
Say = Callable[[str], None]

_WORKTREE = "worktree"
_LONGEST_LABEL = 40
# With fewer pairs no interval excludes anything; a difference that they show is confirmed by as many again.
_PAIRS = 7
_TIME_LIMIT_S = 900.0  # half of these pairs take over five minutes where a process of torch takes 20 s to start
_LOCK_SUFFIX = ".toml"
_KEPT = "recordings and files named are as they were, and nothing else is kept; the same command begins anew"


def compare_command(
    before: Annotated[
        str,
        typer.Argument(
            metavar="A",
            help="Before: a trace, a recording, a folder of rank traces, analysis.json, a lock-file, or a git ref.",
        ),
    ],
    after: Annotated[
        str,
        typer.Argument(metavar="B", help="After: any of these; `.` or `worktree` are the sources as they lie here."),
    ],
    workload: Annotated[
        Path | None,
        typer.Option("--workload", "-w", metavar="FILE", help="The program to record at a git ref or in the worktree."),
    ] = None,
    settings: Settings = None,
    train: Train = False,
    form: Annotated[str | None, format_option("the comparison")] = None,
    output: Annotated[Path | None, output_option("the comparison")] = None,
    plot: Annotated[Path | None, picture_option("Draw the waterfall to this .png, .svg or .pdf file.")] = None,
    ledger: Annotated[Path | None, picture_option("Draw the ledgers of both side by side to such a file.")] = None,
    top: Annotated[int, typer.Option(min=1, max=1000, metavar="N", help="Show so many ops; 10 unless given.")] = 10,
    fail_on: Annotated[
        str | None,
        typer.Option(metavar="LIMITS", help="Exit code 1 beyond these: step=+3%,syncs=+0; counters as in a lock-file."),
    ] = None,
    steps: StepsOption = None,
    window: WindowOption = None,
    whole: WholeOption = False,
    device: Annotated[
        str | None, typer.Option(metavar="NAME", help="Judge both against this device, as `report` does.")
    ] = None,
    quiet: Quiet = False,
) -> None:
    """Says what changed between two recordings: by account, then by module and op, adding up to the change of the step.

    \b
    bottleneck compare before.json.gz after.json.gz
    bottleneck compare recording/ other-recording/ --plot waterfall.png
    bottleneck compare main . --workload examples/mlp.py
    bottleneck compare .bottleneck/mlp.lock.toml recording/ --fail-on syncs=+0

    A file or folder goes before a git ref of the same name. Exit code 0 whatever changed, unless --fail-on says so.
    """  # noqa: D301 - the escape keeps the lines of the examples apart
    from bottleneck.gate.settings import limits_of_option
    from bottleneck.report.comparison import render

    rendered_as = form_of(form, output, RESULT_FORMATS)
    check_picture(plot)
    check_picture(ledger)
    limits = limits_of_option("--fail-on", fail_on)
    say: Say = (lambda _: None) if quiet else write_note
    with (
        says_what_is_kept(_KEPT),
        answered(),
        tempfile.TemporaryDirectory(prefix="bottleneck-compare-", ignore_cleanup_errors=True) as scratch,
    ):
        sources = [find_source(text, say, has_program=workload is not None) for text in (before, after)]
        program = _find_program(workload, tuple(settings or ()), sources, train=train)
        options = window_options(steps, window, chosen_device(device), whole=whole)
        comparison = _compare(sources, program, options, Path(scratch), say)
    write_report(render(comparison, rendered_as, output_style(output), top=top), output)
    draw_picture("waterfall", plot, comparison)
    draw_picture("both ledgers", ledger, comparison)
    broken = _broken_limits(limits, comparison)
    for line in broken:
        write_note(line)
    if broken:
        raise typer.Exit(1)


@dataclass(frozen=True)
class SideSource:
    """A side as named on the command line.

    It is a lock-file, recordings on disk, a git ref or the working tree.

    ``root`` is that of the clone, ``commit`` the full name of a ref's commit; empty for all other kinds.
    """

    kind: Kind
    text: str
    root: Path | None = None
    commit: str = ""

    @property
    def has_code(self) -> bool:
        """True if a program has to be recorded there."""
        return self.kind in {"ref", "worktree"}

    @property
    def label(self) -> str:
        """The name in the comparison: a long path by its last part."""
        if self.kind == "worktree":
            return "the working tree"
        if self.kind == "ref":
            return f"{self.text} ({self.commit[:7]})"
        return self.text if len(self.text) <= _LONGEST_LABEL else Path(self.text).name or self.text


def labels_of(sources: Sequence[SideSource]) -> tuple[str, ...]:
    """Gives the labels of the sides.

    They are the whole paths where the labels would be the same.
    """
    labels = tuple(source.label for source in sources)
    return labels if len(set(labels)) == len(labels) else tuple(source.text for source in sources)


def find_source(text: str, say: Say, *, has_program: bool) -> SideSource:
    """Finds the side that a word names.

    A file or folder with traces goes before a git ref. TraceError where it is neither.

    ``has_program`` is true if there is something to record: then `.` is the working tree, unless it is a recording.
    """
    from bottleneck.experiment.git_clone import find_commit, find_root, git_in
    from bottleneck.schema.recording import is_recording
    from bottleneck.schema.sources import NO_TRACES_WHY, trace_files
    from bottleneck.system.files import is_remote, located

    path = located(Path(text))
    if is_remote(path):
        return SideSource("recorded", text)
    try:
        root = find_root(Path.cwd())
    except FileNotFoundError:  # the working folder was deleted: recordings elsewhere can be compared all the same
        root = None
    is_here = text == "." and has_program and not is_recording(path)
    if is_here or (text == _WORKTREE and not path.exists()):
        return SideSource("worktree", text, root)
    commit = None if root is None else find_commit(git_in(root), text)
    is_comparable = path.exists()
    if path.is_dir():
        is_comparable = is_recording(path) or any(True for _ in trace_files(path))
        is_comparable = is_comparable or (commit is None and text != "." and _holds_ranks(path))
    if is_comparable:
        if commit is not None:
            say(f"{text} is taken for the file or folder of that name; the git ref is {commit[:7]}")
        return SideSource("lock" if path.is_file() and path.name.endswith(_LOCK_SUFFIX) else "recorded", text)
    if commit is None:
        raise TraceError(
            f"{text} is nothing to compare",
            why=NO_TRACES_WHY if path.is_dir() else "there is no such file, and git knows no commit of that name here",
            fix="name a trace, a recording, analysis.json, a lock-file or a git ref",
        )
    return SideSource("ref", text, root, commit)


def _holds_ranks(folder: Path) -> bool:
    """True for a folder with traces in the folders of its hosts."""
    from bottleneck.schema.sources import find_traces

    try:
        return bool(find_traces(folder))
    except TraceError:
        return False


def _find_program(
    workload: Path | None, settings: tuple[str, ...], sources: Sequence[SideSource], *, train: bool
) -> "Program | None":
    """Finds the program to record at refs.

    None where no side is one. UsageError where it is missing, or not needed.
    """
    from bottleneck.experiment.git_clone import find_root
    from bottleneck.experiment.worktree import moved_target
    from bottleneck.harness.target import make_program

    with_code = [source for source in sources if source.has_code]
    if workload is None:
        if settings or train:
            raise UsageError("--set and --train need a program", fix="name it: --workload FILE")
        if with_code:
            words = " ".join(source.text for source in sources)
            raise UsageError(
                f"{with_code[0].text} names sources, and no program to record there",
                fix=f"bottleneck compare {words} --workload FILE",
            )
        return None
    if not with_code:
        raise UsageError("--workload is recorded at git refs, and neither side is one", fix="leave --workload out")
    if not workload.is_file():
        raise UsageError(
            f"there is no workload {workload} in the working tree",
            fix="name a file with workload(), with `model` and `inputs`, or a script",
        )
    program = make_program(str(workload), settings=settings, train=train)
    return replace(program, target=moved_target(str(workload), find_root(Path.cwd()), Path.cwd()))


def _compare(
    sources: Sequence[SideSource], program: "Program | None", options: "Options", scratch: Path, say: Say
) -> "Comparison":
    from bottleneck.compare.build import compare
    from bottleneck.compare.change_summary import source_notes
    from bottleneck.experiment.git_clone import touched_lines

    are_recorded = all(source.has_code for source in sources)
    timed: TimeResult | None = None
    if program is not None and are_recorded:
        before, after, timed = _record_both(sources, program, scratch, say)
    else:
        sides = []
        for source, label in zip(sources, labels_of(sources), strict=True):
            if program is not None and source.has_code:
                with _side_at(source, program, scratch) as side:
                    sides.append(_record(program, side, scratch, shared_ceilings(say), say))
            else:
                sides.append(_read_side(source, label, options))
        before, after = sides
    touched: Touched | None = None  # the lines that differ between two commits, or a commit and the working tree
    if sources[0].kind == "ref" and sources[1].has_code and sources[0].root is not None:
        touched = touched_lines(Path.cwd(), sources[0].commit, sources[1].commit)
    comparison = compare(before, after, touched, timed)
    notes = source_notes(comparison, are_recorded=are_recorded, has_diff=touched is not None)
    return replace(comparison, notes=(*comparison.notes, *notes))


def _read_side(source: SideSource, label: str, options: "Options") -> "ComparedSide":
    """A lock-file's counts, a saved analysis, or the case of traces on disk."""
    from bottleneck.compare.sides import ComparedSide
    from bottleneck.gate.count import count
    from bottleneck.gate.lockfile import read_lock
    from bottleneck.pipeline import explain, saved_analysis
    from bottleneck.system.files import located

    path = located(Path(source.text))
    if source.kind == "lock":
        return ComparedSide(label, source.text, counts=read_lock(path).counts)
    refuse_unfinished([path])
    saved = saved_analysis([path], options)
    if saved is not None:
        return ComparedSide(label, source.text, saved=saved)
    case = explain([path], options)
    return ComparedSide(label, source.text, case=case, counts=count(case))


def _record_both(
    sources: Sequence[SideSource], program: "Program", scratch: Path, say: Say
) -> "tuple[ComparedSide, ComparedSide, TimeResult]":
    """Records both sides in turns.

    Their ledgers add up to the steps that were timed in turns, as the gate times them.
    """
    from bottleneck.experiment.turns import TimingEffort, time_in_pairs
    from bottleneck.schema.statistics import ChangeRule

    ceilings = shared_ceilings(say)
    with ExitStack() as stack:
        before, after = (stack.enter_context(_side_at(source, program, scratch)) for source in sources)
        say(f"timing both in turns, in {_PAIRS} pairs of fresh processes or twice as many; this takes some minutes")
        effort = TimingEffort(pairs_at_most=_PAIRS, time_limit_s=_TIME_LIMIT_S, change=ChangeRule())
        timed = time_in_pairs(program, before, after, effort, tell=say)
        if timed.ratio is None:
            say(f"the turns do not tell the times apart: {timed.reason}")
        old = _record(program, before, scratch, ceilings, say, timed.base_us)
        new = _record(program, after, scratch, ceilings, say, timed.candidate_us)
    return old, new, timed


def _record(
    program: "Program", side: "Side", scratch: Path, ceilings: "Ceilings", say: Say, step: "Timing | None" = None
) -> "ComparedSide":
    """Records one side once, judged by ceilings that sides share.

    ``step`` is its time where that is known better.
    """
    from bottleneck.compare.sides import ComparedSide
    from bottleneck.experiment.record_once import record_side
    from bottleneck.gate.count import count

    say(f"recording {program.target} at {side.label}")
    folder = Path(tempfile.mkdtemp(prefix="side-", dir=scratch))
    case = record_side(program, folder, side, ceilings, step)
    return ComparedSide(side.label, side.label, case=case, counts=count(case, side.folder))


def shared_ceilings(say: Say) -> "Ceilings":
    """The ceilings of this machine, which all recordings of a command share."""
    from bottleneck.calibrate.cache import find_calibration
    from bottleneck.experiment.record_once import Ceilings

    return Ceilings(lambda notes: find_calibration(notes.device_facts, notes.threads, say))


@contextmanager
def _side_at(source: SideSource, program: "Program", scratch: Path) -> "Iterator[Side]":
    """Gives the sources of a side for the length of the block.

    They are the working folder, or a worktree of the commit.
    """
    from bottleneck.experiment.side import Side
    from bottleneck.experiment.worktree import base_side, lacks
    from bottleneck.gate.settings import find_pyproject, read_settings

    settings = read_settings(find_pyproject(Path.cwd()))
    if source.kind == "worktree":
        yield Side(source.label, Path.cwd(), settings.environment)
        return
    with base_side(source.root, source.text, settings.setup, scratch, Path.cwd()) as base:
        reason = base.reason or lacks(base, program.target)
        if base.side is None or reason is not None:
            raise UsageError(
                f"{source.label} cannot be recorded", why=reason or "", fix="name a recording of it instead"
            )
        yield Side(source.label, base.side.folder, {**settings.environment, **base.side.environment})


def _broken_limits(limits: "Sequence[Limit]", comparison: "Comparison") -> list[str]:
    """Gives a line for each limit that the change exceeds.

    UndecidedError where a side does not know the metric.
    """
    from bottleneck.gate.settings import STEP

    counters = {counter.name: (counter.before, counter.after) for counter in comparison.counters}
    broken = []
    for limit in limits:
        times = comparison.before.step_us, comparison.after.step_us
        before, after = times if limit.metric == STEP else counters.get(limit.metric, (None, None))
        if before is None or after is None:
            raise UndecidedError(
                f"--fail-on {limit.metric}: not known of both sides",
                why="the comparison lists what is known, and why the rest is not",
                fix="name two recordings that have it, or leave this limit out",
            )
        if not limit.allows(before, after):
            broken.append(f"over the limit: {limit.metric} {before:,.0f} to {after:,.0f}, allowed {limit.text}")
    return broken
