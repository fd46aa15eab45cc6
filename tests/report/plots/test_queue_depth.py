"""The picture of the queue depth: it shows the curve, and says why when there is none."""

from pathlib import Path

import numpy as np
import pytest

from bottleneck.errors import UsageError
from bottleneck.report.plots import save_figure
from bottleneck.report.plots.timeline_plot import queue_figure
from bottleneck.schema.analysis import Queue
from bottleneck.schema.records import replace
from tests.report.samples import SAMPLES

ANALYSIS = SAMPLES["gpu_overhead"]


def test_picture_shows_the_curve_in_the_unit_of_its_axis() -> None:
    (axes,) = queue_figure(ANALYSIS).axes
    (line,) = axes.get_lines()
    assert ANALYSIS.queue is not None
    assert np.array(line.get_xydata()) * (1e3, 1.0) == pytest.approx(np.array(ANALYSIS.queue.curve))
    assert "ms" in axes.get_xlabel()


def test_stretches_without_anything_queued_are_shaded() -> None:
    (axes,) = queue_figure(ANALYSIS).axes
    bars = axes.collections[-1].get_paths()
    spans = [(path.vertices[:, 0].min(), path.vertices[:, 0].max()) for path in bars]
    assert spans == [pytest.approx((0.0, 5.2))]


@pytest.mark.parametrize("kind", ["png", "svg"])
def test_picture_is_written_and_an_svg_is_the_same_each_time(tmp_path: Path, kind: str) -> None:
    files = [tmp_path / f"{number}.{kind}" for number in (1, 2)]
    for file in files:
        save_figure(queue_figure, file, ANALYSIS)
    first, second = (file.read_bytes() for file in files)
    assert first == second and len(first) > 1000


@pytest.mark.parametrize("queue", [None, Queue(None, 0.0, 0, ((0.0, 0.0),))])
def test_analysis_without_a_queue_is_refused_with_the_reason(queue: Queue | None) -> None:
    with pytest.raises(UsageError, match="no queue depth"):
        queue_figure(replace(ANALYSIS, queue=queue))
