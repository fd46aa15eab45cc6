"""The roofline picture: what it shows is in the analysis, and nothing in an analysis breaks or steers it."""

import json
import math
import subprocess
import sys
from pathlib import Path

import pytest
from matplotlib.text import Annotation, Text

from bottleneck.pipeline import analyse
from bottleneck.report.page import to_html
from bottleneck.report.plots import save_figure
from bottleneck.report.plots.labels import covered_by, extent
from bottleneck.report.plots.roofline_plot import roofline
from bottleneck.report.roofline_points import (
    ACROSS,
    GUIDES_NOTE,
    UP,
    absences,
    fastest_bandwidth,
    plane_of,
    points,
    roofs,
    whole_step,
)
from bottleneck.schema.analysis import Analysis
from bottleneck.schema.records import replace
from tests.report.page.parsed_page import ParsedPage
from tests.report.samples import H100, NO_DEVICE, SAMPLES, cpu, empty, gpu_overhead, hostile, inconclusive, kernel
from tests.samples import recordings

ALL = pytest.mark.parametrize("analysis", SAMPLES.values(), ids=SAMPLES)


def words(analysis: Analysis) -> list[str]:
    """Every text of the picture that holds something."""
    return [text.get_text() for text in roofline(analysis).findobj(Text) if text.get_text()]


@ALL
@pytest.mark.parametrize("kind", ["png", "svg"])
def test_every_analysis_can_be_drawn(analysis: Analysis, kind: str, tmp_path: Path) -> None:
    save_figure(roofline, tmp_path / f"roofline.{kind}", analysis)
    start = (tmp_path / f"roofline.{kind}").read_bytes()[:5]
    assert start in {b"\x89PNG\r", b"<?xml"}
    assert [path.name for path in tmp_path.iterdir()] == [f"roofline.{kind}"]


def test_the_same_analysis_gives_the_same_svg_without_a_date(tmp_path: Path) -> None:
    texts = []
    for name in ("a.svg", "b.svg"):
        save_figure(roofline, tmp_path / name, gpu_overhead())
        texts.append((tmp_path / name).read_text())
    assert texts[0] == texts[1]
    assert "<dc:date>" not in texts[0]


def test_a_hostile_name_puts_no_element_into_the_svg(tmp_path: Path) -> None:
    save_figure(roofline, tmp_path / "a.svg", hostile())
    assert "<script" not in (tmp_path / "a.svg").read_text()


@ALL
def test_no_text_of_the_picture_is_read_as_mathematics(analysis: Analysis) -> None:
    assert not [text for text in roofline(analysis).findobj(Text) if text.get_parse_math()]


@ALL
def test_labels_of_kernels_cover_neither_one_another_nor_the_border(analysis: Analysis) -> None:
    figure = roofline(analysis)
    frame = figure.axes[0].bbox
    covered = [covered_by(text) for text in figure.findobj(Annotation)]
    for index, boxes in enumerate(covered):
        for box in boxes:
            assert frame.x0 <= box.x0 and box.x1 <= frame.x1 and frame.y0 <= box.y0 and box.y1 <= frame.y1
            assert not any(box.overlaps(other) for others in covered[:index] for other in others)


@ALL
def test_everything_written_lies_on_the_paper(analysis: Analysis) -> None:
    figure = roofline(analysis)
    for text in figure.texts:
        box = extent(text)
        assert box.x0 >= 0 and box.x1 <= figure.bbox.x1 and box.y0 >= 0 and box.y1 <= figure.bbox.y1, text.get_text()


def test_the_five_longest_kernels_are_named_with_their_share() -> None:
    shown = words(gpu_overhead())
    for label in ("elementwise<Gelu(float)> (3.9 %)", "triton_poi_fused_add_mul_0 (1.2 %)"):
        assert label in shown
    assert "triton_poi_fused_add_mul_1 (1.1 %)" not in shown


def test_a_point_lies_at_the_geometric_mean_of_its_traffic_and_at_its_speed() -> None:
    gemm = points(gpu_overhead())[0]
    assert gemm.intensity == pytest.approx(0.98e12 / math.sqrt(0.4e9 * 0.5e9))
    assert (gemm.intensity_low, gemm.intensity_high) == (0.98e12 / 0.5e9, 0.98e12 / 0.4e9)
    assert gemm.flops_per_s == pytest.approx(0.98e12 / 1210.4e-6)


def assert_below_roofs(analysis: Analysis) -> None:
    """No mark of the picture lies above a slope or a flat line that is drawn for it."""
    highest = max((roof.flops_per_s for roof in roofs(analysis)), default=math.inf)
    slope = fastest_bandwidth(analysis.device) or math.inf
    for point in points(analysis):
        assert point.flops_per_s <= (point.own_roof_flops_per_s or highest)
        assert point.flops_per_s <= point.intensity * slope * (1 + 1e-9)
        assert point.intensity_low <= point.intensity * (1 + 1e-9)
    star = whole_step(analysis)
    assert star is None or star[1] <= star[0] * slope * (1 + 1e-9)


@ALL
def test_nothing_of_an_analysis_is_drawn_above_the_roof_that_applies_to_it(analysis: Analysis) -> None:
    if analysis.device.source is not None and analysis is not SAMPLES["hostile"]:
        assert_below_roofs(analysis)


@pytest.mark.parametrize("recording", recordings(), ids=lambda folder: folder.name)
def test_nothing_of_a_sample_recording_is_drawn_above_the_roof_that_applies_to_it(recording: Path) -> None:
    assert_below_roofs(analyse([recording]))


def test_a_kernel_of_fewer_multiplications_than_its_op_has_a_roof_of_its_own() -> None:
    shape = {"bytes_low": 1e6, "bytes_high": 1e6, "dtype": "bf16", "engine": "matrix", "bound": "compute"}
    flops = H100.peaks_flops_per_s["bf16_tensor"] * 10e-6
    winograd = kernel("winograd", 6.0, 100.0, flops=flops, compute_us=10 / 2.25, **shape)
    plain = kernel("plain", 12.0, 100.0, flops=flops, compute_us=10.0, **shape)
    above, below = sorted(points(replace(gpu_overhead(), kernels=(winograd, plain))), key=lambda point: point.us)
    assert above.own_roof_flops_per_s == pytest.approx(2.25 * H100.peaks_flops_per_s["bf16_tensor"])
    assert below.own_roof_flops_per_s is None
    legend = "own roof: Winograd, FFT, inexact cost or peak"
    assert legend in words(replace(gpu_overhead(), kernels=(winograd, plain)))
    assert legend not in words(replace(gpu_overhead(), kernels=(plain,)))


def test_data_from_a_cache_is_drawn_at_the_traffic_that_memory_can_have_delivered() -> None:
    rate = H100.bandwidth_bytes_per_s or 0.0
    shape = {"flops": 1e6, "bound": "memory"}
    cached = kernel("cached", 1.0, 100.0, bytes_low=2e-6 * rate, bytes_high=2e-6 * rate, **shape)
    streamed = kernel("streamed", 4.0, 100.0, bytes_low=2e-6 * rate, bytes_high=2e-6 * rate, **shape)
    both = replace(gpu_overhead(), kernels=(streamed, cached))
    assert any("data from a cache" in text for text in words(both))
    far, near = points(both)
    assert near.intensity == pytest.approx(2 * near.intensity_high) and far.intensity == pytest.approx(
        far.intensity_high
    )


def test_the_star_counts_the_waiting() -> None:
    star = whole_step(gpu_overhead())
    assert star is not None
    assert star[1] < points(gpu_overhead())[0].flops_per_s
    assert "the whole step, waiting included" in words(gpu_overhead())
    assert "the whole step, waiting included" not in words(inconclusive())


def test_only_the_roofs_that_kernels_are_held_against_are_drawn() -> None:
    assert [roof.key for roof in roofs(gpu_overhead())] == ["bf16_tensor", "fp32_vector"]
    assert [roof.key for roof in roofs(empty())] == ["bf16_tensor"]
    assert roofs(inconclusive()) == ()


def test_kernels_without_a_cost_call_up_the_roof_of_their_engine_and_dtype() -> None:
    row = replace(gpu_overhead().kernels[0], flops=None, compute_us=None, engine="vector", dtype="fp32")
    device = replace(gpu_overhead().device, peaks_flops_per_s={"int8_tensor": 2e14, "fp32_vector": 1e13})
    unmodelled = replace(gpu_overhead(), kernels=(row,), device=device)
    assert [roof.key for roof in roofs(unmodelled)] == ["fp32_vector"]
    nameless = replace(unmodelled, kernels=(replace(row, engine=None, dtype=None),))
    assert [roof.key for roof in roofs(nameless)] == ["int8_tensor"]


def test_of_two_roofs_at_one_height_the_kernels_dtype_and_engine_decide() -> None:
    twin = replace(H100, peaks_flops_per_s={"fp16_tensor": 989.4e12, **H100.peaks_flops_per_s, "fp64_tensor": 66.9e12})
    assert [roof.key for roof in roofs(replace(gpu_overhead(), device=twin))] == ["bf16_tensor", "fp32_vector"]


def test_a_floor_at_half_the_peak_does_not_call_up_the_roof_of_another_dtype() -> None:
    row = kernel("half", 10.0, 100.0, dtype="fp32", flops=7.85e6, bytes_low=1e6, bytes_high=1e6, compute_us=1.0)
    device = replace(H100, peaks_flops_per_s={"fp32_vector": 15.7e12, "fp64_vector": 7.8e12})
    assert [roof.key for roof in roofs(replace(gpu_overhead(), kernels=(row,), device=device))] == ["fp32_vector"]


def test_of_very_many_kernels_the_largest_are_drawn_and_the_rest_is_counted() -> None:
    rows = tuple(
        kernel(f"k{index}", 1.0 + index, 1e6, flops=1e6, bytes_low=1e6, bytes_high=1e6, bound="memory")
        for index in range(400)
    )
    many = replace(gpu_overhead(), kernels=rows)
    assert len(points(many)) == 300 and points(many)[0].name == "k399"
    assert "lies in kernels smaller than the 300 shown" in absences(many)


def test_one_name_labels_one_point() -> None:
    shape = {"flops": 1e9, "bytes_low": 1e6, "bytes_high": 1e6, "bound": "memory"}
    rows = (kernel("same", 9.0, 100.0, **shape), kernel("same", 5.0, 100.0, **shape), kernel("b", 1.0, 100.0, **shape))
    shown = words(replace(gpu_overhead(), kernels=rows))
    assert "same (9.0 %)" in shown and "b (1.0 %)" in shown and "same (5.0 %)" not in shown


def test_a_roof_says_its_figure_and_its_ridge() -> None:
    shown = words(gpu_overhead())
    assert "bf16 tensor 989 TFLOP/s, ridge 295 FLOP/B" in shown and "memory 3.35 TB/s" in shown


def test_a_cpu_shows_its_fastest_cache_as_a_second_slope() -> None:
    assert "fastest cache 210 GB/s" in words(cpu())
    assert not [text for text in words(gpu_overhead()) if "cache" in text]


@ALL
def test_the_page_and_the_picture_draw_the_same_lines_and_words(analysis: Analysis) -> None:
    drawn, plane = set(words(analysis)), plane_of(analysis.device, roofs(analysis))
    page = json.loads(ParsedPage(to_html(analysis)).embedded("words"))["roofline"]
    assert page["flats"] == [[flat.label, flat.short_label, flat.flops_per_s, flat.ridge] for flat in plane.flats]
    assert page["slopes"] == [[slope.label, slope.bytes_per_s, slope.is_cache] for slope in plane.slopes]
    assert (page["axes"], page["guides"]) == ([ACROSS, UP], list(plane.guides))
    assert {ACROSS, UP} <= drawn
    assert (GUIDES_NOTE in drawn) is bool(page["guides"])
    known = {flat.label for flat in plane.flats} | {flat.short_label for flat in plane.flats}
    assert {text for text in drawn if "ridge" in text} <= known


def test_guides_run_at_half_and_a_quarter_of_the_highest_roof_and_of_its_slope() -> None:
    (axes,) = roofline(gpu_overhead()).axes
    peak, rate = H100.peaks_flops_per_s["bf16_tensor"], H100.bandwidth_bytes_per_s or 0.0
    dashed = [line for line in axes.lines if line.get_linestyle() == "--" and line.get_color() == "0.6"]
    for line, share in zip(dashed, (0.5, 0.25), strict=True):
        (left, ridge, _), (low, knee, high) = line.get_data()
        assert knee == high == pytest.approx(share * peak) and ridge == pytest.approx(peak / rate)
        assert low == pytest.approx(share * left * rate)


def test_time_that_has_no_point_is_counted() -> None:
    assert absences(gpu_overhead()) == (
        "not drawn: 2.4 % of busy time that is unmodelled and 1.2 % of busy time that does no arithmetic"
    )
    assert absences(replace(gpu_overhead(), kernels=points_only(gpu_overhead()))) == ""


def points_only(analysis: Analysis) -> tuple[object, ...]:
    """The kernels that have a point."""
    return tuple(row for row in analysis.kernels if row.flops and row.bytes_low)


def test_what_cannot_be_drawn_is_said_in_the_picture() -> None:
    assert any("no roofs are known" in text for text in words(inconclusive()))
    assert any("no kernel has both" in text for text in words(empty()))
    assert not [text for text in words(gpu_overhead()) if "no roofs" in text or "no kernel" in text]


@pytest.mark.parametrize("value", [1e-300, 1e-9, 1e300])
def test_absurd_numbers_are_drawn_at_the_edge(value: float, tmp_path: Path) -> None:
    row = kernel("absurd", 10.0, 250.0, flops=value, bytes_low=1 / value, bytes_high=1.0, bound="compute")
    save_figure(roofline, tmp_path / "a.png", replace(empty(), kernels=(row,)))
    assert 1e3 <= points(replace(empty(), kernels=(row,)))[0].flops_per_s <= 1e19


def test_a_device_with_peaks_but_no_bandwidth_has_flat_roofs_only() -> None:
    device = replace(NO_DEVICE, peaks_flops_per_s={"fp32_vector": 1e12})
    shown = words(replace(gpu_overhead(), device=device))
    assert "fp32 vector 1.00 TFLOP/s" in shown
    assert not [text for text in shown if text.startswith("memory ")]


def test_drawing_needs_no_display_and_leaves_pyplot_alone(tmp_path: Path) -> None:
    code = (
        "import sys; from pathlib import Path; from tests.report.samples import cpu;"
        "from bottleneck.report.plots import save_figure; from bottleneck.report.plots.roofline_plot import roofline;"
        f"save_figure(roofline, Path({str(tmp_path / 'a.png')!r}), cpu());"
        "assert 'matplotlib.pyplot' not in sys.modules"
    )
    environment = {"MPLBACKEND": "TkAgg", "PATH": "", "PYTHONPATH": str(Path(__file__).parents[3])}
    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
