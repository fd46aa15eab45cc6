"""Whatever two steps take, what compare prints of them adds up from what is on screen."""

import math

from hypothesis import given, settings
from hypothesis import strategies as st

from bottleneck.report.comparison import build, render
from bottleneck.report.document import TableSection, Waterfall
from bottleneck.report.terminal import TerminalStyle
from bottleneck.schema.comparison import Bar, ChangeRow, CompareSide, Comparison

ACCOUNTS = ("compute", "memory", "memory.copy", "overhead.python", "overhead.input", "overhead.sync", "unknown")
BUSY = ("compute", "memory", "memory.copy", "unknown")

# The same examples in every run, and no deadline that a clock decides.
_law = settings(deadline=None, derandomize=True)

US = st.one_of(st.just(0.0), st.floats(1e-4, 1e-1), st.floats(0.1, 1e3), st.floats(1e3, 1e8))


@st.composite
def comparisons(draw: st.DrawFn) -> Comparison:
    """Two steps with some accounts each, whose busy time is split among a few ops on both sides."""
    names = draw(st.lists(st.sampled_from(ACCOUNTS), min_size=1, unique=True))
    bars = tuple(Bar(name, name.partition(".")[0], draw(US), draw(US)) for name in names)
    busy = [bar for bar in bars if bar.account in BUSY]
    rows = [
        part
        for bar in busy
        for part in _split(bar, draw(st.lists(st.floats(0.0, 1.0), min_size=1, max_size=4)), draw(st.booleans()))
    ]
    sides = (math.fsum(bar.before_us for bar in bars), math.fsum(bar.after_us for bar in bars))
    return Comparison(
        CompareSide("a", "a", "cpu", sides[0]),
        CompareSide("b", "b", "cpu", sides[1]),
        bars=bars,
        rows=tuple(rows),
        modules=tuple(rows),
        idle=tuple(bar for bar in bars if bar not in busy),
    )


def _split(bar: Bar, shares: list[float], by_count: bool) -> list[ChangeRow]:
    """The time of an account in parts, the last of which is what is left."""
    parts, before, after = [], bar.before_us, bar.after_us
    for index, share in enumerate([*shares[1:], 1.0]):
        low, high = before * share, after * share
        before, after = before - low, after - high
        change = high - low
        parts.append(
            ChangeRow(
                name=f"aten::op{index}",
                module=f"{bar.account}.{index}" if index else None,
                shapes=None,
                family=None,
                kind="slower",
                matched_by="op",
                calls_before=1.0,
                calls_after=2.0,
                before_us=low,
                after_us=high,
                count_us=change * by_count,
                mean_us=change * (not by_count),
            )
        )
    return parts


def number(cell: str) -> float:
    """A cell as a person adds it up: what rounds to nothing counts nothing."""
    return 0.0 if cell[:1] in {"<", ">", ""} else float(cell.replace(",", ""))


def adds_up(cells: list[str], total: str) -> bool:
    return math.isclose(math.fsum(map(number, cells)), number(total), rel_tol=1e-9, abs_tol=1e-6)


@_law
@given(comparisons(), st.integers(1, 4))
def test_everything_printed_of_a_comparison_adds_up(comparison: Comparison, top: int) -> None:
    document = build(comparison, top)
    (waterfall,) = [section for section in document.sections if isinstance(section, Waterfall)]
    first, *falls, last = waterfall.bars
    assert adds_up([first.before, *(fall.change for fall in falls)], last.after)
    assert adds_up([fall.before for fall in falls], first.before)
    assert adds_up([fall.after for fall in falls], last.after)
    assert all(adds_up([fall.before, fall.change], fall.after) for fall in falls)
    tables = {part.title.split(",")[0]: part.rows for part in document.sections if isinstance(part, TableSection)}
    *lines, total = tables.get("What changed") or [None]
    if total is not None:
        assert adds_up([row.cells[4] for row in lines], total.cells[4])
        assert all(adds_up([row.cells[2], row.cells[3]], row.cells[4]) for row in lines if row.cells[2])
        assert total.cells[4] == last.change
    *modules, total = tables.get("By module") or [None]
    if total is not None:
        for column in (1, 2, 3):
            assert adds_up([row.cells[column] for row in modules], total.cells[column])
        assert all(adds_up([row.cells[1], row.cells[3]], row.cells[2]) for row in modules)
        assert not any(cell.startswith("-") for row in modules for cell in row.cells[1:3])


@_law
@given(comparisons(), st.sampled_from([24, 40, 64, 80]))
def test_no_line_of_any_comparison_is_wider_than_the_terminal(comparison: Comparison, width: int) -> None:
    assert max(map(len, render(comparison, "terminal", TerminalStyle(width)).splitlines())) <= width
