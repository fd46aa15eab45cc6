import json
import re
from pathlib import Path

import pytest

from bottleneck.commands.report_options import RESULT_FORMATS
from bottleneck.report.plots import save_figure
from bottleneck.report.plots.sweep_plot import sweep_figure
from bottleneck.report.sweep import charts, floor_us, render, sentence, three
from bottleneck.schema.measurements import Difference, Timing
from bottleneck.schema.records import replace
from bottleneck.schema.trials import Point, SeriesResults, Sweep
from bottleneck.units import format_us

from .sweeps import batches, chain, chain_point, failed, of, roof

LONG = "RuntimeError: [enforce fail at alloc_cpu.cpp:124] DefaultCPUAllocator: not enough memory: you tried to allocate"


def grown(sweep: Sweep, *points: Point) -> Sweep:
    return of((*sweep.points, *points), *sweep.parameters, roofs=sweep.roofs)


CASES = {
    "one curve": chain(),
    "two curves": chain("eager", "inductor"),
    "many curves": chain(*(f"backend number {index}" for index in range(9)), repeats=(1, 64)),
    "batches": batches(lambda size: 300.0 + 2.0 * size),
    "failing": grown(batches(lambda size: 300.0 + size), failed("batch_size", 256, LONG)),
    "nothing": of((failed("n", 1, "it failed"), failed("n", 2, "it failed")), "n"),
    "words": of(tuple(replace(chain_point(1), values={"dtype": name}) for name in ("float32", "bfloat16")), "dtype"),
    "no parameter": of((replace(chain_point(1), values={}), replace(chain_point(1, "inductor"), values={}))),
    "two parameters": of(
        tuple(replace(chain_point(a), values={"repeat": a, "hidden": b}) for a in (1, 2, 4) for b in (64, 128)),
        "repeat",
        "hidden",
    ),
    "hostile": of(
        tuple(replace(chain_point(1), values={"p" * 90: f"\x1b[31m|{i}`<b>\n$x_1$"}, series="s|\n") for i in range(2)),
        "p" * 90,
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_the_report_is_at_most_80_columns_wide(name: str) -> None:
    text = render(CASES[name], "terminal")
    # The command at the end is not broken, so that it can be copied.
    assert all(len(line) <= 80 for line in text.splitlines()[:-1]), text
    assert "\x1b" not in text


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("form", RESULT_FORMATS)
def test_every_format_renders_every_sweep_the_same_way_twice(name: str, form: str) -> None:
    text = render(CASES[name], form)
    assert text == render(CASES[name], form)
    assert text.endswith("\n") and "nan" not in text.lower().split()


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("kind", ["png", "svg"])
def test_every_sweep_can_be_drawn(name: str, kind: str, tmp_path: Path) -> None:
    path = tmp_path / f"sweep.{kind}"
    save_figure(sweep_figure, path, CASES[name])
    assert path.read_bytes()[:5] in {b"\x89PNG\r", b"<?xml"}


def test_the_same_sweep_gives_the_same_svg(tmp_path: Path) -> None:
    for name in ("a.svg", "b.svg"):
        save_figure(sweep_figure, tmp_path / name, CASES["two curves"])
    assert (tmp_path / "a.svg").read_bytes() == (tmp_path / "b.svg").read_bytes()


def cells(text: str, first: str) -> list[str]:
    """The cells of the first row of a table that begins with this one, without marks."""
    return next(row for line in text.splitlines() if (row := re.split(r"\s{2,}", line.strip("░▓█ ")))[0] == first)


def test_a_row_holds_time_interval_throughput_memory_bound_and_share() -> None:
    row = cells(render(CASES["batches"], "terminal"), "64")
    assert row == ["64", "428 us", "428 us", "150 k", "164 MB", "overhead", "95.0 %"]


def test_the_peak_of_a_cpu_is_one_of_matrix_products() -> None:
    for kind, words in (("cpu", "fp32 matrix products "), ("cuda", "fp32 tensor ")):
        peak = replace(roof(), peak="fp32_tensor", kind=kind)
        assert f"A processor; {words}" in render(of((chain_point(64),), "repeat", roofs=(peak,)), "terminal")


def test_rates_stand_beside_the_roofs_that_they_are_shares_of() -> None:
    text = render(chain(), "terminal")
    work = text[text.index("Work against the roofs") :]
    # 8 MiB at 32 GB/s are 262 us; the step takes 5 % longer than that.
    assert cells(work, "1") == ["1", "262 us", "0.125", "3.81 GFLOP/s", "4.8 %", "30.5 GB/s", "95.2 %"]
    assert cells(work, "256") == ["256", "3.36 ms", "32.0", "76.2 GFLOP/s", "95.2 %", "2.38 GB/s", "7.4 %"]


def test_a_step_that_is_faster_than_its_roofs_claims_no_share_of_them() -> None:
    fast = chain_point(1, slower=0.5)
    assert floor_us(fast, roof()) is None
    text = render(of((fast, chain_point(64, slower=1.5)), "repeat", roofs=(roof(),)), "terminal")
    work = text[text.index("Work against the roofs") :]
    assert cells(work, "1")[-1] == "-"
    assert not re.search(r"1\d\d\.\d %", work)


def test_the_knee_and_the_line_are_reported() -> None:
    text = " ".join(render(CASES["batches"], "terminal").split())
    assert "t = 300 us + 2.00 us x batch_size from 1 to 64" in text
    assert "Both parts are equal at batch_size = 150: below it the step is mostly fixed." in text
    assert "Largest batch_size that fits the memory: 7,900, by a line through the peaks." in text


def test_parts_that_overlap_are_reported_as_a_maximum() -> None:
    text = " ".join(render(chain(), "terminal").split())
    assert "t = max(275 us, 13.8 us x repeat)" in text
    assert "Both parts overlap and are equal at repeat = 20.0" in text


def test_a_point_that_failed_keeps_its_row_and_its_reason() -> None:
    text = render(CASES["failing"], "terminal")
    assert cells(text, "256")[1:] == ["-", "-", "-", "-", "-", "-"]
    assert "not enough memory" in " ".join(text.split())
    assert "batch_size, 4 of 5 points" in text


def test_what_compiling_took_is_told_where_it_is_long() -> None:
    compiled = tuple(replace(chain_point(repeat), setup_s=12.5) for repeat in (1, 2))
    text = render(of(compiled, "repeat"), "terminal")
    assert cells(text, "1")[3] == "12.5 s" and "compiling included" in text
    assert "set-up" not in render(of(tuple(replace(point, setup_s=0.1) for point in compiled), "repeat"), "terminal")


def test_curves_stand_side_by_side_in_one_unit() -> None:
    text = render(CASES["two curves"], "terminal")
    assert cells(text, "repeat=1") == ["repeat=1", "275", "301"]
    assert text.index("Step time in us") < text.index("Points: eager")


def test_ways_to_run_one_step_are_rows_of_one_table_the_fastest_first() -> None:
    """Fourteen back ends had a table of one row each, nine of them without a figure."""
    ways = [
        replace(chain_point(1, name, slower), values={})
        for name, slower in (("eager", 2.0), ("whole-step", 1.0), ("inductor", 4.0))
    ]
    ways[1] = replace(ways[1], setup_s=9.5)
    absent = [
        Point({}, name, reason=reason)
        for name, reason in (("tvm", "needs a step without training"), ("xla", "needs a step without training"))
    ]
    text = render(of((*ways, *absent, Point({}, "cudagraphs", reason="needs a GPU")), roofs=(roof(),)), "terminal")
    table = text[text.index("Ways to run the step") : text.index("Work against the roofs")]
    assert re.findall(r"^. (\S+) +[\d.]+ [um]s ", table, re.MULTILINE) == ["whole-step", "eager", "inductor"]
    assert "2.00x" in table and "9.50 s" in table and "0.50x" in table
    assert "• tvm, xla: needs a step without training" in text and "• cudagraphs: needs a GPU" in text
    assert "Points" not in text
    assert "whole-step is clearly the fastest, 2.00 times as fast as eager" in text


def test_a_way_that_shows_no_arithmetic_where_others_do_is_held_against_no_roof() -> None:
    eager = replace(chain_point(1, "eager"), values={})
    hidden = replace(eager, series="executorch", flops=0.0, flops_per_s=0.0)
    shown = render(of((eager, hidden), roofs=(roof(),)), "terminal")
    table, _, roofs = shown.partition("Work against the roofs")
    assert "executorch" in table and "eager" in roofs and "executorch" not in roofs


def test_the_sentence_says_along_which_values_which_bound_holds() -> None:
    assert sentence(chain()) == "The step is memory-bound from repeat=1 to 16, compute-bound from 32 to 256."
    mixed = (chain_point(1), replace(chain_point(2), bound="mixed"), replace(chain_point(4), bound=None))
    words = "The step is memory-bound at repeat=1, held back by several bounds at 2, without a verdict at 4."
    assert sentence(of(mixed, "repeat")) == words


def test_the_best_point_stands_beside_the_next_that_is_measurably_less() -> None:
    """It stood beside the worst point, which a disturbance may have made."""
    text = " ".join(render(batches(lambda size: 200.0 + size + (1e4 if size == 1 else 0)), "terminal").split())
    assert "First Take batch_size=64: 242 k samples per second, 3.27 times as many as with batch_size=16" in text
    assert "Measure again on a quiet machine" in render(batches(lambda size: 100.0 * size), "terminal")


def test_a_point_that_lies_apart_is_named_and_points_on_no_line_get_none() -> None:
    """One disturbed point of a sweep made its report print a fit within 99.2 %."""
    text = " ".join(render(batches(lambda size: (300.0 + 2 * size) * (100 if size == 4 else 1)), "terminal").split())
    assert "t = 300 us + 2.00 us x batch_size from 1 to 64, within" in text
    assert "but for batch_size=4, which lies apart (95 %:" in text
    wild = batches(lambda size: {1: 900.0, 4: 100.0, 16: 2000.0, 64: 300.0}[size])
    shown = " ".join(render(wild, "terminal").split())
    assert "No line describes the points: they lie up to" in shown and "t = " not in shown
    assert [curve.label for chart in charts(wild) for curve in chart.curves] == ["eager", "eager"]


def test_signs_of_a_device_name_are_left_out() -> None:
    swept = replace(chain(), roofs=(replace(roof(), device="Intel(R) Xeon(R) Processor"),))
    assert "Intel Xeon Processor; " in " ".join(render(swept, "terminal").split())


def test_the_sentence_says_where_which_series_is_fastest() -> None:
    assert sentence(CASES["two curves"]) == "eager is clearly the fastest at every place."
    points = [chain_point(1), chain_point(1, "b", 2.0), chain_point(64, slower=2.0), chain_point(64, "b")]
    assert sentence(of(tuple(points), "repeat")) == (
        "eager is clearly the fastest at repeat=1; b is clearly the fastest at repeat=64."
    )


def test_a_series_whose_interval_overlaps_the_next_is_not_called_the_fastest() -> None:
    alike = (chain_point(1), chain_point(1, "b", 1.03))
    assert sentence(of(alike, "repeat")) == "No series is clearly the fastest."


def test_what_a_column_means_is_reported_once() -> None:
    text = render(CASES["two curves"], "terminal")
    assert text.count("share: of the step, held back by its bound") == text.count("what the roofs allow") == 1


def test_the_sentence_of_a_sweep_in_which_everything_failed() -> None:
    assert sentence(CASES["nothing"]) == "Nothing was measured; the reasons stand in the table."


def test_the_json_holds_every_field_and_says_what_it_is() -> None:
    data = json.loads(render(chain(), "json"))
    assert list(data)[:2] == ["schema", "version"]
    assert data["schema"] == "bottleneck/sweep/1"
    assert data["points"][0]["values"] == {"repeat": 1}
    assert data["points"][0]["step_us"]["n"] == 20
    assert data["fits"][0]["model"] == "max"
    assert data["roofs"][0]["peak"] == "fp32_vector"


def test_the_plot_shows_the_ridge_of_the_intensity_experiment() -> None:
    words = [text.get_text() for axes in sweep_figure(chain()).axes for text in axes.texts]
    assert any("ridge 2.5 FLOP/B" in text for text in words)
    assert any(text.startswith("memory 32.0 GB/s") for text in words)
    assert "mostly fixed below 20" in words


def test_the_plot_has_no_roofline_where_nothing_is_known_of_the_work() -> None:
    assert len(sweep_figure(CASES["batches"]).axes) == 2
    assert len(sweep_figure(chain()).axes) == 3


def test_the_plot_has_a_legend_for_several_curves_only() -> None:
    assert not sweep_figure(chain()).legends
    (legend,) = sweep_figure(CASES["two curves"]).legends
    assert [text.get_text() for text in legend.get_texts()] == ["eager", "inductor"]


@pytest.mark.parametrize(
    ("value", "shown"), [(1234.5, "1,234"), (123.4, "123"), (12.34, "12.3"), (0.01234, "0.0123"), (0.0, "0")]
)
def test_three_digits_are_shown_without_an_exponent(value: float, shown: str) -> None:
    assert three(value) == shown


def test_page_draws_the_curves_with_every_measured_point() -> None:
    for sweep in (chain(), chain("eager", "inductor")):
        page = render(sweep, "html")
        marks = re.findall(r"<title>([^<]+, repeat=[^<]+)</title>", page)
        assert len(marks) == 2 * len(sweep.points)
        assert sweep.points[0].step_us is not None
        assert f"eager, repeat=1: {format_us(sweep.points[0].step_us.median)}" in marks
        assert ("mostly fixed below " in page) == (len(sweep.fits) == 1 and sweep.fits[0].knee is not None)


def test_page_of_a_sweep_without_a_measured_point_has_no_chart() -> None:
    sweep = chain()
    failed = replace(sweep, points=tuple(replace(point, step_us=None) for point in sweep.points), fits=())
    assert 'class="chart"' not in render(failed, "html")


def timed(series: str, us: float) -> Point:
    return Point(values={}, series=series, step_us=Timing(us, us, us, 20), flops=1e3, bytes_low=1e3, peak="fp32_vector")


def test_the_floor_is_eager_one_compiled_call_and_the_arithmetic_alone() -> None:
    points = (timed("eager", 15.4), timed("executorch", 7.0), timed("aot-package", 4.1))
    sweep = Sweep(program=("net.py",), parameters=(), points=points, roofs=(roof(),))
    # 1000 bytes at 32 GB/s take 0.031 us, longer than 1000 FLOPs at 80 GFLOP/s.
    floor = "eager 15.4 us, one compiled call 4.10 us (aot-package), the arithmetic alone 0.03 us"
    assert floor in " ".join(render(sweep, "terminal").split())
    without = Sweep(program=("net.py",), parameters=(), points=(points[0], timed("inductor", 9.0)), roofs=(roof(),))
    assert "one compiled call" not in render(without, "terminal")


def test_results_stand_beside_what_is_allowed_and_a_wrong_one_is_named() -> None:
    good = Difference("outputs", absolute=1e-7, relative=1e-7, allowed=1e-5, is_within=True)
    wrong = Difference("outputs", absolute=1.0, relative=0.5, allowed=1e-5, is_within=False)
    results = (
        SeriesResults("inductor", (good,)),
        SeriesResults("tvm", (wrong,)),
        SeriesResults("torchscript", (Difference("loss", 0.0, 0.0, 1e-5, is_within=True),)),
        SeriesResults("xla", reason="it died"),
    )
    points = (timed("eager", 10.0), timed("inductor", 9.0))
    text = " ".join(render(Sweep(("net.py",), (), points, results=results), "terminal").split())
    assert "inductor: outputs within 1e-07 of the largest value (1e-05 allowed)" in text
    assert "tvm: WRONG, outputs within 5e-01" in text
    assert "torchscript: loss the same" in text
    assert "xla: not compared, it died" in text
