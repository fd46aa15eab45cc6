"""Builds the section on the critical path: what the time of the step consists of, hop by hop."""

from bottleneck.report.document import TableColumn, TableRow, TableSection, number_columns
from bottleneck.report.kernel_names import essential_name
from bottleneck.report.text import UNKNOWN, percents, scale_of
from bottleneck.schema.analysis import CriticalPath, PathPart, ReplayCheck
from bottleneck.schema.records import replace
from bottleneck.units import counted, format_share

TITLE = "Critical path"


def critical_path(path: CriticalPath | None, most: int) -> TableSection | None:
    """The longest parts of the path, and how well the replay behind it reproduces the step; null without one."""
    if path is None or not path.parts:
        return None
    table = path_table(path, most)
    replayed = f"from a replay of {check_words(path.check)}"
    doubt = () if path.check.reason is None else (f"no what-if from this trace: {path.check.reason}",)
    return replace(table, notes=(*table.notes, replayed, *doubt))


def path_table(path: CriticalPath, most: int) -> TableSection:
    """The critical path as a table of its longest parts and the rest."""
    shown, rest = path.parts[:most], path.parts[most:]
    us = [part.us for part in shown] + ([sum(part.us for part in rest)] if rest else [])
    shares = [part.share for part in shown] + ([sum(part.share for part in rest)] if rest else [])
    scale = scale_of(path.step_us)
    numbers = list(zip(scale.column(us), percents(shares), strict=True))
    rows = [
        TableRow((part_name(part), part.what, part.source or UNKNOWN, *number))
        for part, number in zip(shown, numbers, strict=False)
    ]
    if rest:
        rows.append(TableRow((counted(len(rest), "more part"), "", "", *numbers[len(shown)]), "rest"))
    rows.append(TableRow(("step", "", "", *numbers[-1]), "total"))
    columns = (
        TableColumn("part", "name"),
        TableColumn("where", "words"),
        TableColumn("line", "place"),
        *number_columns((scale.unit, "share")),
    )
    return TableSection(TITLE, columns, tuple(rows), (PATH_NOTE,))


PATH_NOTE = "the chain of work that sets the time of the step: what is not on it is hidden behind it"


def part_name(part: PathPart) -> str:
    """A kernel by its essential name; everything else as it is."""
    return essential_name(part.name) if part.what == "device" else part.name


def check_words(check: ReplayCheck) -> str:
    """The replay check in words: 'error +0.01 % against the measured step; …'."""
    words = f"{counted(check.steps, 'step')}, error {100 * check.error:+.2f} % against the measured one"
    if check.held_share > 0:
        words += f"; {format_share(check.held_share)} of it are delays that nothing on record explains"
    return words
