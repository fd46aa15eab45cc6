"""The waterfall of findings goes down from the step by what each adds, and never draws what no finding predicts."""

from pathlib import Path

import pytest

from bottleneck.errors import UsageError
from bottleneck.report.plots import save_figure
from bottleneck.report.plots.ledger_plots import savings_figure
from bottleneck.schema.analysis import Analysis, Finding, Interval
from bottleneck.schema.records import replace
from tests.report.samples import SAMPLES


def finding(slug: str, low: float, high: float, **more: object) -> Finding:
    made = Finding(slug, slug, (), Interval(low, high), None, "do it", None, added_gain_us=Interval(low, high))
    return replace(made, **more)


def with_findings(*findings: Finding) -> Analysis:
    step = SAMPLES["gpu_overhead"]
    return replace(step, findings=findings, steps=replace(step.steps, wall_us=10_000.0))


def labels(analysis: Analysis) -> list[str]:
    (axes,) = savings_figure(analysis).axes
    return [label.get_text() for label in axes.get_yticklabels()]


def test_each_bar_begins_where_the_one_above_ends_at_best() -> None:
    (axes,) = savings_figure(with_findings(finding("a", 1000, 2000), finding("b", 0, 3000))).axes
    spans = [(bar.get_x(), bar.get_x() + bar.get_width()) for bar in axes.patches]
    assert spans == [(0, 10), (9, 10), (8, 9), (8, 8), (5, 8), (0, 5)]


def test_findings_without_a_gain_per_step_are_not_drawn() -> None:
    shown = with_findings(
        finding("a", 0, 100),
        finding("b", 0, 100, per="sample"),
        finding("c", 0, 100, on_request=True),
        finding("d", 0, 0),
        finding("e", 0, 100, added_gain_us=None),
    )
    assert labels(shown) == ["step today", "a", "step with all of them"]


def test_unmodelled_work_is_told_and_is_no_bar() -> None:
    analysis = with_findings(finding("a", 0, 100))
    unknown = replace(analysis.ledger[0], account="unknown", group="unknown", us=5000.0, share=0.5)
    figure = savings_figure(replace(analysis, ledger=(*analysis.ledger, unknown)))
    assert any("unmodelled work, of which no gain is known" in text.get_text() for text in figure.texts)
    assert len(figure.axes[0].get_yticklabels()) == 3


def test_without_gains_there_is_no_picture() -> None:
    with pytest.raises(UsageError, match="no gain to draw"):
        savings_figure(with_findings())


@pytest.mark.parametrize("kind", ["png", "svg", "pdf"])
def test_a_picture_is_the_same_each_time(tmp_path: Path, kind: str) -> None:
    files = [tmp_path / f"{number}.{kind}" for number in (1, 2)]
    for file in files:
        save_figure(savings_figure, file, with_findings(finding("a", 10, 100)))
    first, second = (file.read_bytes() for file in files)
    assert first == second and len(first) > 1000
