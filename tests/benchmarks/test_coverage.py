"""Tests the coverage of the public traces, and that the benchmark detects violations."""

from collections.abc import Sequence
from pathlib import Path

import pytest

from benchmarks.coverage import Coverage, cover, page, survey, total_share
from benchmarks.pages import write_between_markers
from tests.builders import Event, kernel, launch, op, write_trace

POINTWISE = "void at::native::vectorized_elementwise_kernel<4, relu>(int)"


@pytest.fixture(scope="module")
def covers(traces: Path) -> list[Coverage]:
    return survey(traces)


@pytest.mark.corpus
def test_the_eager_traces_of_h100_and_mi300x_are_modelled_to_99_percent(covers: Sequence[Coverage]) -> None:
    eager = {one.name: one.share(one.modelled_us) for one in covers if one.eager}
    assert len(eager) == 6
    assert min(eager.values()) >= 0.99, eager


@pytest.mark.corpus
def test_most_kernel_time_of_all_gpu_traces_with_shapes_is_modelled(covers: Sequence[Coverage]) -> None:
    assert len([one for one in covers if one.counts]) >= 40
    assert total_share(covers) >= 0.92


@pytest.mark.corpus
def test_no_floor_exceeds_the_measured_time_in_any_trace(covers: Sequence[Coverage]) -> None:
    assert sum(one.groups for one in covers) > 30_000
    assert [text for one in covers for text in one.violations] == []


def relu(elements: int, correlation: int, at: float) -> list[Event]:
    """A relu whose kernel takes 10 us."""
    return [
        op("aten::relu", at, 8, dims=[[elements]], external_id=correlation),
        launch(correlation, at + 1, 5),
        kernel(correlation, at + 20, 10.25, POINTWISE),
    ]


def covered(folder: Path, events: Sequence[Event]) -> Coverage:
    found = cover(write_trace(folder / "trace.json", events))
    assert found is not None
    return found


def test_a_floor_above_the_measured_time_is_a_violation(tmp_path: Path) -> None:
    # On an H100, 10 us are enough for 34 MB from memory; a cache may serve 50 more, but not 8 GB.
    assert covered(tmp_path, relu(1_000_000, 1, 0.0)).violations == ()
    served = covered(tmp_path, relu(5_000_000, 1, 0.0))
    assert (served.violations, served.cached) == ((), 1)
    assert len(covered(tmp_path, relu(1_000_000_000, 1, 0.0)).violations) == 1


def test_kernels_that_no_call_launched_or_a_graph_replayed_are_in_the_denominator(tmp_path: Path) -> None:
    replayed = [
        op("run", 200, 20, dims=[[4]], external_id=5),
        launch(5, 205, 5, "cudaGraphLaunch"),
        kernel(5, 230, 10.25, "unlike_any_other"),
        kernel(5, 250, 10.25, "unlike_any_other"),
    ]
    found = covered(tmp_path, [*relu(1_000_000, 1, 0.0), kernel(9, 100, 10.25, "launched_before"), *replayed])
    assert found.share(found.modelled_us) == pytest.approx(1 / 4)
    assert found.share(found.linked_us) == pytest.approx(1 / 4)
    assert found.unmodelled_us.to_dict() == pytest.approx(
        {"replayed by a graph": 20.5, "launched before the window": 10.25}
    )
    assert "| 25.0% | 25.0% |" in page([found])


def test_a_replayed_kernel_with_a_match_is_modelled_by_evidence(tmp_path: Path) -> None:
    replayed = [launch(5, 205, 5, "cudaGraphLaunch"), kernel(5, 230, 10.25, POINTWISE)]
    found = covered(tmp_path, [*relu(1_000_000, 1, 0.0), *replayed])
    assert (found.share(found.modelled_us), found.share(found.completed_us)) == pytest.approx((1.0, 0.5))
    assert (found.share(found.matched_us), found.capture_us) == pytest.approx((0.5, 0.0))


def test_a_capture_beside_a_trace_models_what_it_replays(tmp_path: Path) -> None:
    write_trace(tmp_path / "model__capture_traces__0.json", relu(1_000_000, 1, 0.0))
    replayed = [op("run", 0, 4, dims=[[4]]), launch(5, 5, 5, "cudaGraphLaunch"), kernel(5, 30, 10.25, POINTWISE)]
    shares = []
    for name in ("model__run.json", "other__run.json"):
        found = cover(write_trace(tmp_path / name, replayed))
        assert found is not None
        shares.append((found.share(found.modelled_us), found.share(found.matched_us), found.share(found.capture_us)))
    assert shares == [(1.0, 1.0, 1.0), (0.0, 0.0, 0.0)]


def test_files_that_are_no_trace_or_hold_no_shapes_are_not_covered(tmp_path: Path) -> None:
    (tmp_path / "other.json").write_text("[1, 2]")
    assert cover(tmp_path / "other.json") is None
    shapeless = [op("aten::relu", 0, 8), launch(1, 1, 5), kernel(1, 20, 10.25)]
    assert cover(write_trace(tmp_path / "shapeless.json", shapeless)) is None


def test_only_the_part_between_the_markers_of_a_page_is_written(tmp_path: Path) -> None:
    note = tmp_path / "page.md"
    note.write_text("before\n<!-- coverage:begin -->\nold\n<!-- coverage:end -->\nafter\n")
    write_between_markers(note, "coverage", "new")
    assert note.read_text() == "before\n<!-- coverage:begin -->\nnew\n<!-- coverage:end -->\nafter\n"
    with pytest.raises(ValueError, match="no markers"):
        write_between_markers(note, "other", "new")
