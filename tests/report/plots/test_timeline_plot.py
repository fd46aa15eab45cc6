"""The picture of one step: every event lies in its lane, causes of idle time differ, and hostile names stay text."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from matplotlib.colors import to_hex

from bottleneck.errors import UsageError
from bottleneck.report.plots import save_figure
from bottleneck.report.plots.timeline_plot import timeline_figure
from bottleneck.schema.analysis import GROUPS
from bottleneck.schema.step_tracks import Lane, StepTimeline, StepTracks
from tests.report.samples import SAMPLES

ONE = SAMPLES["gpu_overhead"]
LANES = (Lane("stream 7", "device"), Lane("idle: why", "idle"), Lane("main thread", "host", 2))
ROWS = (  # lane, depth, name, start, length, group
    (0, 0, 0, 100.0, 200.0, GROUPS.index("compute")),
    (0, 0, 0, 300.1, 100.0, GROUPS.index("compute")),
    (0, 0, 1, 600.0, 100.0, GROUPS.index("memory")),
    (1, 0, 2, 0.0, 100.0, GROUPS.index("overhead")),
    (1, 0, 3, 400.1, 199.9, GROUPS.index("overhead")),
    (2, 0, 4, 0.0, 700.0, -1),
    (2, 1, 5, 10.0, 80.0, -1),
)


def tracks(names: tuple[str, ...] = ("gemm", "copy", "python", "sync", "aten::linear", "aten::addmm")) -> StepTracks:
    lane, depth, name, start, dur, group = (np.array(column) for column in zip(*ROWS, strict=True))
    none = [np.full(len(ROWS), -1)] * 5
    return StepTracks("step 3", 0.0, 1000.0, LANES, names, lane, depth, name, start, dur, group, *none)


def test_lanes_stand_beneath_one_another_and_the_legend_names_groups_and_causes() -> None:
    figure = timeline_figure(ONE, StepTimeline((tracks(),)))
    (axes,) = figure.axes
    assert [text.get_text() for text in axes.get_yticklabels()] == ["stream 7", "idle: why", "main thread"]
    legend = [text.get_text() for text in figure.legends[0].get_texts()]
    assert legend == ["compute", "memory", "idle: sync", "idle: python"]
    looks = {(to_hex(patch.get_facecolor()), patch.get_hatch()) for patch in figure.legends[0].get_patches()}
    assert len(looks) == len(legend)


def test_neighbours_in_one_pixel_are_one_bar_and_others_keep_their_place() -> None:
    (axes,) = timeline_figure(ONE, StepTimeline((tracks(),))).axes
    compute = axes.collections[0].get_paths()
    assert len(compute) == 1
    ends = compute[0].vertices[:, 0]
    assert (ends.min(), ends.max()) == pytest.approx((100.0, 400.1), abs=0.01)


def test_the_title_asks_the_question_and_names_trace_and_step() -> None:
    texts = [text.get_text() for text in timeline_figure(ONE, StepTimeline((tracks(),))).texts]
    assert texts[0] == "What happens when in one step?"
    assert Path(ONE.recording.path).name in texts[1] and "step 3, 1.00 ms under the profiler" in texts[1]


def test_lanes_and_levels_that_have_no_room_are_named() -> None:
    one = tracks()
    hosts = tuple(Lane(f"thread {place}", "host", 9) for place in range(6))
    many = replace(one, lanes=(*LANES[:2], *hosts))
    assert (
        timeline_figure(ONE, StepTimeline((many,)))
        .texts[1]
        .get_text()
        .endswith("not shown: 2 more host threads and calls nested more deeply")
    )


@pytest.mark.parametrize("kind", ["png", "svg", "pdf"])
def test_a_picture_is_the_same_each_time(tmp_path: Path, kind: str) -> None:
    files = [tmp_path / f"{number}.{kind}" for number in (1, 2)]
    for file in files:
        save_figure(timeline_figure, file, ONE, StepTimeline((tracks(),)))
    first, second = (file.read_bytes() for file in files)
    assert first == second and len(first) > 1000


def test_names_of_a_trace_stay_text(tmp_path: Path) -> None:
    names = ("$\\frac{", "</svg><script>", "$x$\x1b[31m", "\u202egnp", "\ud800 lone" * 9, "w" * 10_000)
    save_figure(timeline_figure, tmp_path / "step.svg", ONE, StepTimeline((tracks(names),)))
    assert "<script" not in (tmp_path / "step.svg").read_text()


def test_an_analysis_without_events_is_refused_with_the_reason() -> None:
    with pytest.raises(UsageError, match="no step over time"):
        timeline_figure(ONE, None)
