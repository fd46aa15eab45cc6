"""The articles' experiments: laws of knee and doubling, groups that fit into memory, refusals, the page."""

import dataclasses
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchmarks import articles
from benchmarks.articles import (
    EXPERIMENTS,
    Bench,
    Effort,
    Machine,
    Row,
    draw_batches,
    draw_intensity,
    fit_of,
    growths,
    intensity_rates,
    is_overhead,
    only_values,
    page_text,
    read_rows,
    results_text,
    tell,
    write_page,
    write_row,
)
from bottleneck.experiment.sweep import make_series
from bottleneck.experiment.variants import Built
from bottleneck.experiment.worker import Refused
from bottleneck.report.plots import save_figure
from bottleneck.schema.measurements import Difference, Timing

MACHINE = Machine("Some CPU", 4, None, 8_000_000_000, "0.1.0", {"torch": "2.13.0"})
SIZES = (1, 8, 64, 512, 4096)
FIXED, EACH = st.floats(1.0, 1e4), st.floats(1e-2, 1e2)


def row(value: int, us: float | None, series: str = "eager", experiment: str = "mlp", **more: Any) -> Row:
    timing = None if us is None else Timing(us, us, us, 9)
    parameter, settings = EXPERIMENTS[experiment].parameter, EXPERIMENTS[experiment].settings
    return Row(experiment, parameter, value, series, settings, MACHINE, timing, date="2026-01-02", **more)


def rows_by(law: Callable[[int], float], sizes: Sequence[int] = SIZES, experiment: str = "mlp") -> list[Row]:
    return [row(size, law(size), experiment=experiment) for size in sizes]


def knee_of(rows: Sequence[Row]) -> float:
    fit = fit_of(rows)
    assert fit is not None and fit.knee is not None
    return fit.knee


@given(FIXED, st.floats(3.0, 2000.0))
def test_the_knee_is_the_batch_at_which_both_parts_are_equal(fixed: float, knee: float) -> None:
    assert knee_of(rows_by(lambda size: fixed * (1 + size / knee))) == pytest.approx(knee, rel=1e-3)


@given(FIXED, EACH, st.floats(0.01, 100.0))
def test_a_machine_that_is_slower_in_all_has_the_same_knee(fixed: float, each: float, slower: float) -> None:
    first, second = (fit_of(rows_by(lambda size: by * (fixed + each * size))) for by in (1.0, slower))  # noqa: B023
    assert first is not None and second is not None
    assert (first.knee is None) == (second.knee is None)
    assert (second.knee or 0.0) == pytest.approx(first.knee or 0.0, rel=1e-3)


@given(st.permutations(SIZES))
def test_the_order_of_rows_changes_no_knee(sizes: Sequence[int]) -> None:
    assert knee_of(rows_by(lambda size: 100.0 + size, sizes)) == pytest.approx(100.0)


@given(st.integers(1, 6))
def test_at_the_knee_a_sample_takes_twice_its_least_time(power: int) -> None:
    rows = rows_by(lambda size: 3.0 * (size + 2**power))
    fit = fit_of(rows)
    assert fit is not None and fit.knee is not None
    at_knee_us = fit.step_us(fit.knee)
    assert at_knee_us is not None and at_knee_us / fit.knee == pytest.approx(6.0, rel=1e-3)


def test_a_step_that_does_not_grow_has_no_knee_and_says_why() -> None:
    text = tell(rows_by(lambda _: 50.0))
    assert "| none |" in text and "- eager: no knee: the step does not grow with batch_size from 1 to 4096" in text


def test_two_sizes_give_no_knee() -> None:
    fit = fit_of(rows_by(lambda size: 1.0 + size, (1, 8)))
    assert fit is not None and fit.knee is None and "a line needs 3 values" in (fit.knee_reason or "")


def test_the_chain_bends_at_the_ridge_and_its_rates_are_its_work_by_its_time() -> None:
    elements, flops_per_s, bytes_per_s = 32 * 2**20, 80e9, 32e9
    rows = rows_by(
        lambda repeat: max(8 * elements / bytes_per_s, repeat * elements / flops_per_s) * 1e6,
        [2**power for power in range(9)],
        "intensity",
    )
    assert knee_of(rows) == pytest.approx(20.0)
    assert intensity_rates(rows[0]) == pytest.approx((bytes_per_s / 8, bytes_per_s))
    assert intensity_rates(rows[-1])[0] == pytest.approx(flops_per_s)
    assert "| 256 | 32 | 107 ms | 80.0 GFLOP/s | 2.50 GB/s |" in tell(rows)


@given(FIXED, EACH)
def test_twice_the_batch_takes_between_as_long_and_twice_as_long(fixed: float, each: float) -> None:
    shares = [growth for _, _, growth in growths(rows_by(lambda size: fixed + each * size, (1, 2, 4, 8, 16)))]
    assert len(shares) == 4 and all(-1e-9 < share < 1.0 for share in shares)
    assert shares == sorted(shares)


def test_a_tenth_more_for_twice_the_batch_is_overhead_and_more_is_not() -> None:
    rows = [row(1, 100.0, experiment="doubling-mlp"), row(2, 109.0, experiment="doubling-mlp")]
    rows += [row(4, 200.0, experiment="doubling-mlp"), row(16, 300.0, experiment="doubling-mlp")]
    assert [(one.value, twice.value, is_overhead(growth)) for one, twice, growth in growths(rows)] == [
        (1, 2, True),
        (2, 4, False),
    ]
    text = tell(rows)
    assert "| 1 to 2 | 100 us | 109 us | +9% | overhead |" in text
    assert "| 2 to 4 | 109 us | 200 us | +83% | not overhead alone |" in text


def test_a_size_without_a_time_has_no_growth() -> None:
    assert growths([row(1, 100.0), row(2, None, reason="out of memory"), row(4, 110.0)]) == []


def difference(relative: float, allowed: float) -> Difference:
    return Difference("outputs", relative, relative, allowed, relative <= allowed)


def test_results_are_told_of_the_furthest_and_a_wrong_one_goes_first() -> None:
    near, far = difference(1e-7, 1e-5), difference(9e-6, 1e-5)
    assert results_text([near, far]) == "outputs within 9.0e-06, 1.0e-05 allowed"
    assert results_text([near, difference(0.5, 1e-5)]).startswith("**wrong**: outputs differ: by 5.0e-01")
    assert results_text([Difference("outputs", None, None, None, None, "no time")]) == "not compared: no time"


def test_a_back_end_that_is_not_there_has_its_reason_and_one_that_failed_at_a_size_has_its_size() -> None:
    rows = rows_by(lambda size: 100.0 + size)
    rows += [row(size, None, "tvm", reason="TVM: pip install apache-tvm") for size in SIZES]
    rows += [row(size, 50.0 + size, "xla", setup_s=2.0, differences=(difference(0.0, 1e-5),)) for size in SIZES[:-1]]
    rows += [row(SIZES[-1], None, "xla", reason="out of memory")]
    text = tell(rows)
    assert "- tvm: no time: TVM: pip install apache-tvm" in text and "| tvm |" not in text
    assert "- xla: no time at batch_size 4096: out of memory" in text
    assert "| xla | 51.0 us | 7.25 us | 1.78 us | 1.10 us | - | 2.00 s | 50.0 |" in text


def test_back_ends_with_the_same_reason_share_a_line_and_a_step_without_a_compiler_took_no_time_to_make() -> None:
    rows = [row(1, None, name, reason="needs a GPU") for name in ("tensorrt", "cudagraphs")]
    text = tell([*rows, row(1, 5.0, "torchscript", setup_s=0.01)])
    assert "- tensorrt and cudagraphs: no time: needs a GPU" in text and "| <0.1 s |" in text


def test_a_busy_machine_and_small_sizes_are_said() -> None:
    assert "Not a quiet machine" in tell([row(1, 5.0, others=1.5)])
    assert "Not a quiet machine" not in tell([row(1, 5.0, others=0.5)])
    assert "Small sizes" in tell([row(1, 5.0, is_quick=True)]) and "Small sizes" not in tell([row(1, 5.0)])


def test_two_machines_have_sections_of_their_own() -> None:
    other = dataclasses.replace(row(1, 7.0), machine=dataclasses.replace(MACHINE, model="Another CPU"))
    text = tell([row(1, 5.0), other])
    assert text.count("#### Small MLP, forward") == 2 and "### Some CPU" in text and "### Another CPU" in text


def test_rows_are_read_as_written_and_one_measured_again_replaces_the_older(tmp_path: Path) -> None:
    results = tmp_path / "articles.jsonl"
    older, newer, other = row(1, 5.0), row(1, 4.0, differences=(difference(0.0, 1.0),)), row(8, 6.0)
    for one in (older, other, newer):
        write_row(results, one)
    assert read_rows(results) == [other, newer]
    assert read_rows(tmp_path / "none.jsonl") == []


NOT_ROWS = {
    "cut": b'{"experiment": ',
    "list": b"[]",
    "nothing": b"null",
    "empty": b"",
    "too little": b'{"experiment": "mlp"}',
    "not text": b"\xff\xfe",
    "deep": b"[" * 100_000,
}


@pytest.mark.parametrize("line", NOT_ROWS.values(), ids=NOT_ROWS)
def test_a_line_that_is_no_row_is_named(tmp_path: Path, line: bytes) -> None:
    results = tmp_path / "articles.jsonl"
    write_row(results, row(1, 5.0))
    with results.open("ab") as file:
        file.write(line + b"\n")
    with pytest.raises(SystemExit, match=r"articles\.jsonl, line 2: no row"):
        read_rows(results)


@pytest.mark.parametrize(
    ("changed", "why"),
    [
        ({"experiment": "resnet"}, "no experiment 'resnet'"),
        ({"settings": ("network=vgg",)}, "settings are not those of mlp"),
        ({"parameter": "width"}, "settings are not those of mlp"),
        ({"value": 0}, "positive"),
        ({"step_us": Timing(0.0, 0.0, 0.0, 3)}, "positive"),
        ({"step_us": Timing(5.0, 6.0, 7.0, 3)}, "interval in order"),
    ],
)
def test_a_row_that_no_experiment_makes_is_named(tmp_path: Path, changed: dict[str, Any], why: str) -> None:
    results = tmp_path / "articles.jsonl"
    write_row(results, dataclasses.replace(row(1, 5.0), **changed))
    with pytest.raises(SystemExit, match=f"line 1: .*{why}.*; remove the line"):
        read_rows(results)


def test_rows_of_small_sizes_do_not_get_onto_the_page() -> None:
    with pytest.raises(SystemExit, match="--quick"):
        write_page([row(1, 5.0, is_quick=True)])


def test_the_page_has_what_the_results_say() -> None:
    page = articles.PAGE.read_text(encoding="utf-8")
    assert f"<!-- articles:begin -->\n{page_text(read_rows(articles.RESULTS))}\n<!-- articles:end -->" in page


def test_the_page_names_every_experiment() -> None:
    page = articles.PAGE.read_text(encoding="utf-8")
    assert [name for name in EXPERIMENTS if f"`{name}`" not in page] == []


def test_pictures_are_drawn_of_what_was_measured_and_linked(tmp_path: Path) -> None:
    batches = [*rows_by(lambda size: 100.0 + size), *[row(size, 20.0 + size, "inductor") for size in SIZES]]
    chain = rows_by(lambda repeat: max(20.0, repeat), [2**power for power in range(9)], "intensity")
    save_figure(draw_batches, tmp_path / "batches.svg", batches)
    save_figure(draw_intensity, tmp_path / "intensity.svg", chain)
    for name in ("batches", "intensity"):
        assert (tmp_path / f"{name}.svg").read_text(encoding="utf-8").count("<path") > 10
    assert "articles-batches.svg" in page_text(batches) and "articles-intensity.svg" not in page_text(batches)
    assert "articles-intensity.svg" in page_text(chain)


class MadeWorker:
    """Stands in for the process of a step: a millisecond for each step, 3 GB of memory."""

    alive = 0
    asked: list[tuple[str, ...]] = []  # noqa: RUF012 - emptied by each test

    def __init__(self, program: Any, log: Path, environment: dict[str, str]) -> None:
        self._caches = environment["TORCHINDUCTOR_CACHE_DIR"]

    def __enter__(self) -> "MadeWorker":
        type(self).alive += 1
        return self

    def __exit__(self, *_: object) -> None:
        type(self).alive -= 1

    def build(self, name: str, changes: tuple[str, ...], keep: Path | None) -> Built:
        self.asked.append(changes)
        if changes == ("backend-tvm",):
            raise Refused("missing", "TVM: pip install apache-tvm")
        return Built(2.0 if changes else 0.5, 3_000_000_000, 1.0, 1000.0)

    def turn(self, name: str, steps: int, lead: int, usual_us: float) -> list[float]:
        return [1000.0] * steps

    def compare(self, changes: tuple[str, ...], kept: Path) -> tuple[Difference, ...]:
        return (difference(0.0, 1e-5),)


@pytest.fixture
def made(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Bench:
    MadeWorker.asked.clear()
    monkeypatch.setattr(articles, "Worker", MadeWorker)
    return Bench(tmp_path, Effort(rounds=3, seconds=1.0), lambda _: None, MACHINE)


def measured(bench: Bench, name: str, backends: str) -> list[Row]:
    return list(bench.measure(EXPERIMENTS[name].small(), make_series(f"eager,{backends}", None, None)))


def test_each_back_end_has_a_row_at_each_size_and_one_that_is_missing_is_asked_once(made: Bench) -> None:
    rows = measured(made, "mlp", "inductor,tvm")
    assert [(one.value, one.series) for one in rows] == [
        (size, name) for size in EXPERIMENTS["mlp"].quick for name in ("eager", "inductor", "tvm")
    ]
    assert {one.reason for one in rows if one.series == "tvm"} == {"TVM: pip install apache-tvm"}
    assert MadeWorker.asked.count(("backend-tvm",)) == 1
    compiled = next(one for one in rows if one.series == "inductor")
    assert compiled.setup_s == 1.5 and compiled.rounds == 3 and compiled.step_us is not None
    assert compiled.step_us.median == pytest.approx(1000.0) and compiled.differences[0].is_within
    assert MadeWorker.alive == 0


def test_processes_that_do_not_fit_together_are_measured_in_groups_with_eager_in_each(
    made: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(articles, "available_bytes", lambda: 9_000_000_000 - 3_000_000_000 * MadeWorker.alive)
    rows = measured(made, "vgg19", "inductor,torchscript,openvino,xla")
    assert len(rows) == 5 * len(EXPERIMENTS["vgg19"].quick) and all(one.step_us is not None for one in rows)
    assert MadeWorker.asked.count(()) > len(EXPERIMENTS["vgg19"].quick)


def test_all_sizes_of_an_experiment_with_eager_alone_take_turns_together(made: Bench) -> None:
    rows = measured(made, "doubling-mlp", "inductor")
    assert [(one.value, one.series) for one in rows] == [(size, "eager") for size in (1, 2, 4)]
    assert [growth for _, _, growth in growths(rows)] == pytest.approx([0.0, 0.0])


def test_long_rounds_are_fewer_and_never_too_few() -> None:
    step = articles.TimedStep(None, "step", 1e6)  # type: ignore[arg-type] - a second for each turn
    assert Effort(30, 10.0).rounds_of([step]) == 10
    assert Effort(30, 10.0).rounds_of([step] * 100) == articles.ROUNDS_AT_LEAST
    assert Effort(30, 1e6).rounds_of([step]) == 30


@pytest.mark.process
def test_a_network_runs_by_eager_and_torchscript_with_the_same_results(tmp_path: Path) -> None:
    pytest.importorskip("torch")
    experiment = dataclasses.replace(EXPERIMENTS["mlp"].small(), values=(2,))
    bench = Bench(tmp_path, Effort(rounds=3, seconds=1.0), lambda _: None, is_quick=True)
    eager, script = bench.measure(experiment, make_series("eager,torchscript", None, None))
    assert (eager.series, eager.reason, eager.differences) == ("eager", None, ())
    assert script.reason is None and [one.is_within for one in script.differences] == [True]
    assert all(one.step_us is not None and one.step_us.median > 0 for one in (eager, script))
    assert "| torchscript |" in tell([eager, script])


def test_some_values_of_an_experiment_are_measured_where_asked() -> None:
    vgg = EXPERIMENTS["vgg19"]
    assert only_values(vgg, None) == vgg
    assert only_values(vgg, "10,1").values == (1, 10)
    with pytest.raises(SystemExit, match="vgg19 has 1, 10 and 100"):
        only_values(vgg, "7")
