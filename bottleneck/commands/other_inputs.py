"""Reports inputs that are no traces: compile logs and snapshots of the allocator."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from bottleneck.commands.report_options import output_style, write_report
from bottleneck.errors import TraceError, UsageError

if TYPE_CHECKING:
    from bottleneck.report.terminal import TerminalStyle

_FORMS = frozenset({"terminal", "markdown", "json", "html"})


@dataclass(frozen=True)
class OtherInput:
    """A kind of input: its name, what it holds, how it is known, and its report in a format."""

    name: str
    holds: str
    is_it: Callable[[Path], bool]
    text: "Callable[[Path, str, TerminalStyle], str]"


def _is_compile_log(path: Path) -> bool:
    from bottleneck.trace.compile_log import compile_log_files

    return bool(compile_log_files(path))


def _compile_log_text(path: Path, form: str, style: "TerminalStyle") -> str:
    from bottleneck.report.compile_health import log_text
    from bottleneck.trace.compile_log import read_compile_logs

    return log_text(read_compile_logs(path), path.name, form, style)


def _is_snapshot(path: Path) -> bool:
    from bottleneck.trace.allocator_snapshot import is_allocator_snapshot

    return is_allocator_snapshot(path)


def _snapshot_text(path: Path, form: str, style: "TerminalStyle") -> str:
    from bottleneck.analysis.held_memory import explain_snapshot
    from bottleneck.report.held_memory import held_text
    from bottleneck.trace.allocator_snapshot import read_allocator_snapshot

    snapshot = read_allocator_snapshot(path)
    held = explain_snapshot(snapshot)
    if not held:
        raise TraceError(
            f"{path.name} holds no memory",
            why="it has no segment and no event of any device",
            fix="take it while the program holds memory: torch.cuda.memory._dump_snapshot('snapshot.pickle')",
        )
    return held_text(held, path.name, form, style, snapshot.left_out)


OTHER_INPUTS = (
    OtherInput(
        "a compile log",
        "what torch.compile made of a program, and no times of steps",
        _is_compile_log,
        _compile_log_text,
    ),
    OtherInput(
        "a snapshot of the allocator",
        "what the memory of a device is used for, and no times of steps",
        _is_snapshot,
        _snapshot_text,
    ),
)


def report_other_input(paths: Sequence[Path], form: str, output: Path | None) -> bool:
    """Reports the one path where it is such an input; false where it is none."""
    from bottleneck.system.files import is_remote

    if len(paths) != 1 or is_remote(paths[0]):
        return False
    kind = next((kind for kind in OTHER_INPUTS if kind.is_it(paths[0])), None)
    if kind is None:
        return False
    if form not in _FORMS:
        raise UsageError(
            f"{kind.name} has no report in the format {form}",
            why=f"it holds {kind.holds}",
            fix="pass --format terminal, markdown, json or html",
        )
    write_report(kind.text(paths[0], form, output_style(output)), output)
    return True
