"""The bars of ledgers add up to their steps, one for each analysis or rank, in colours and hatches."""

from pathlib import Path

import pytest
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle

from bottleneck.errors import UsageError
from bottleneck.report.plots import save_figure
from bottleneck.report.plots.ledger_plots import both_ledgers_figure, ledger_figure
from bottleneck.schema.analysis import Analysis
from bottleneck.schema.records import replace
from tests.report import comparisons
from tests.report.samples import SAMPLES

ONE, SEVERAL = SAMPLES["gpu_overhead"], SAMPLES["multi_rank"]


def parts(analysis: Analysis) -> dict[int, list[Rectangle]]:
    """The rectangles of each bar, by its row."""
    return parts_of(ledger_figure(analysis))


def parts_of(figure: Figure) -> dict[int, list[Rectangle]]:
    """The rectangles of each bar of a figure, by its row."""
    (axes,) = figure.axes
    rows: dict[int, list[Rectangle]] = {}
    for patch in axes.patches:
        assert isinstance(patch, Rectangle)
        rows.setdefault(round(patch.get_y() + patch.get_height() / 2), []).append(patch)
    return rows


def test_the_parts_of_a_bar_add_up_to_the_step() -> None:
    (bar,) = parts(ONE).values()
    assert len(bar) == sum(entry.us > 0 for entry in ONE.ledger)
    widths = sum(part.get_width() for part in bar)
    assert widths * 1e3 == pytest.approx(ONE.steps.wall_us)  # the axis is in ms
    assert bar[-1].get_x() + bar[-1].get_width() == pytest.approx(widths)


def test_groups_differ_without_colour_too() -> None:
    (bar,) = parts(ONE).values()
    assert len({part.get_hatch() for part in bar}) == len({part.get_facecolor() for part in bar})


def test_several_ranks_stand_side_by_side() -> None:
    assert len(parts(SEVERAL)) == len(SEVERAL.ranks)


def test_the_title_asks_the_question_and_names_the_trace() -> None:
    texts = [text.get_text() for text in ledger_figure(ONE).texts]
    assert texts[0] == "Where does the step go?" and Path(ONE.recording.path).name in texts[1]


@pytest.mark.parametrize("kind", ["png", "svg", "pdf"])
def test_a_picture_is_the_same_each_time(tmp_path: Path, kind: str) -> None:
    files = [tmp_path / f"{number}.{kind}" for number in (1, 2)]
    for file in files:
        save_figure(ledger_figure, file, ONE)
    first, second = (file.read_bytes() for file in files)
    assert first == second and len(first) > 1000


def test_a_step_without_time_is_refused_with_the_reason() -> None:
    with pytest.raises(UsageError, match="no time to draw"):
        ledger_figure(replace(ONE, ledger=(), ranks=()))


def test_both_sides_of_a_comparison_stand_beneath_one_another() -> None:
    comparison = comparisons.slower()
    before, after = parts_of(both_ledgers_figure(comparison)).values()
    ratio = sum(part.get_width() for part in after) / sum(part.get_width() for part in before)
    assert comparison.before.step_us is not None and comparison.after.step_us is not None
    assert ratio == pytest.approx(comparison.after.step_us / comparison.before.step_us, rel=1e-3)


def test_ledgers_of_a_side_without_times_are_refused() -> None:
    comparison = comparisons.slower()
    with pytest.raises(UsageError, match="no time to draw"):
        both_ledgers_figure(replace(comparison, before=replace(comparison.before, step_us=None)))
