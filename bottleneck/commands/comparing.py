"""What ``bottleneck compare`` does: makes both sides, compares them, draws, prints, and ends as --fail-on says."""

import sys
import tempfile
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from bottleneck.errors import UsageError

if TYPE_CHECKING:
    from bottleneck.commands.comparing_sides import Side
    from bottleneck.compare.sides import Touched
    from bottleneck.schema.comparison import Comparison

_PICTURES = (".png", ".svg")
_NOT_IN_TURNS = (
    "The two were recorded one after the other, not in turns: small differences of time may be the machine's. "
    "`bottleneck gate` times them in turns."
)
_UNTOUCHED = (
    "Both count the same, and the diff touches no line that an op or a wait here comes from: look to the machine, to "
    "libraries and to data for what differs in time."
)


@dataclass(frozen=True)
class Wanted:
    """What the command line asks for."""

    before: str
    after: str
    workload: Path | None = None
    settings: tuple[str, ...] = ()
    train: bool = False
    steps: str | None = None
    whole: bool = False
    device: str | None = None
    top: int = 10
    fail_on: str | None = None
    quiet: bool = False


def compare_sides(wanted: Wanted, form: str, output: Path | None, plot: Path | None) -> None:
    """Compares both sides and presents the result; leaves with 1 beyond a limit, 5 where one cannot be held."""
    from bottleneck.commands.comparing_limits import broken, parse_limits
    from bottleneck.commands.interrupts import answered

    if plot is not None and plot.suffix not in _PICTURES:
        raise UsageError(f"cannot draw to {plot}", fix="name a file that ends in .png or .svg")
    limits = parse_limits(wanted.fail_on)
    with answered(), tempfile.TemporaryDirectory(prefix="bottleneck-compare-", ignore_cleanup_errors=True) as scratch:
        comparison = _compare(wanted, Path(scratch))
    _present(comparison, form, output, wanted.top)
    if plot is not None:
        _draw(comparison, plot)
    told = broken(limits, comparison)
    for line in told:
        print(f"bottleneck: {line}", file=sys.stderr)
    if told:
        raise typer.Exit(1)


def _compare(wanted: Wanted, scratch: Path) -> "Comparison":
    from bottleneck.commands.comparing_sides import Maker, labels_of, name_side, options_of, program_of
    from bottleneck.compare.build import compare

    tell = _silent if wanted.quiet else _say
    asked = [name_side(text, tell, has_program=wanted.workload is not None) for text in (wanted.before, wanted.after)]
    program = program_of(wanted, asked)
    maker = Maker(options_of(wanted), program, scratch, tell)
    before, after = (maker.make(side, label) for side, label in zip(asked, labels_of(asked), strict=True))
    touched = _touched(*asked)
    comparison = compare(before, after, touched)
    notes = [_NOT_IN_TURNS] if all(side.is_source for side in asked) else []
    notes += [_UNTOUCHED] if touched is not None and _is_untouched(comparison) else []
    return replace(comparison, notes=(*comparison.notes, *notes))


def _is_untouched(comparison: "Comparison") -> bool:
    """Whether nothing that is known to have changed lies in the diff: no counter differs, and no line is in it."""
    differs = any(step.before != step.after for step in comparison.counters)
    touched = [row.is_touched for row in comparison.rows] + [bar.is_touched for bar in comparison.bars]
    return not differs and not any(touched)


def _touched(before: "Side", after: "Side") -> "Touched | None":
    """The lines that differ between two commits, or a commit and the working tree; null without a diff."""
    if before.kind != "ref" or not after.is_source or before.root is None:
        return None
    from bottleneck.experiment.sources import touched_lines

    return touched_lines(Path.cwd(), before.commit, after.commit)


def _present(comparison: "Comparison", form: str, output: Path | None, top: int) -> None:
    from bottleneck.commands.report_options import send, stream_look
    from bottleneck.report.comparison_formats import render, to_json, to_markdown
    from bottleneck.report.output import write_text

    is_printed = output is None or str(output) == "-"
    if form == "json":
        text = to_json(comparison)
    elif form == "markdown":
        text = to_markdown(comparison, top=top)
    elif not is_printed:
        text = render(comparison, top=top)
    else:
        look = stream_look(sys.stdout)
        text = render(comparison, look.width, color=look.color, encoding=look.encoding, top=top)
    if is_printed:
        send(text)
    else:
        write_text(text, output)


def _draw(comparison: "Comparison", path: Path) -> None:
    from bottleneck.report.plots.waterfall_plot import save_waterfall

    if comparison.change_us is None:
        raise UsageError(f"there is no waterfall to draw to {path}", why="one side has counters only, and no times")
    save_waterfall(comparison, path)


def _say(text: str) -> None:
    if not text.startswith(" "):
        print(f"bottleneck: {text.removeprefix('bottleneck: ')}", file=sys.stderr, flush=True)


def _silent(_text: str) -> None:
    return
