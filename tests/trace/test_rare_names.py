"""Rare names: few names change nothing; of very many those with the least time share one, and all time stays."""

import inspect
from pathlib import Path

import pytest

from bottleneck.pipeline import analyse
from bottleneck.schema.linked_trace import Trace
from bottleneck.trace import rare_names
from bottleneck.trace.rare_names import fold_rare_names
from bottleneck.trace.read import read_trace
from tests.builders import H100, kernel, launch, op, write_trace


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """A trace of six kernels with a name each, of 1 to 6 us, under six ops."""
    events = [
        event
        for number in range(6)
        for event in (
            op(f"my::op_{number}", 20.0 * number, 10.0),
            launch(number + 1, 20.0 * number + 1, 4.0),
            kernel(number + 1, 20.0 * number + 8, 1.0 + number, f"kernel_{number}"),
        )
    ]
    return write_trace(tmp_path / "trace.json", events, deviceProperties=[H100])


def _names(trace: Trace, kind: str) -> list[str]:
    return trace.events["name"][trace.events["category"] == kind].astype(str).tolist()


def test_few_names_are_kept(path: Path) -> None:
    trace = read_trace(path)
    assert fold_rare_names(trace, 6) is trace


def test_of_many_names_those_with_the_least_time_share_one(path: Path) -> None:
    before = read_trace(path)
    after = fold_rare_names(before, 2)
    assert _names(after, "kernel") == [*["other kernels"] * 4, "kernel_4", "kernel_5"]
    assert _names(after, "op") == ["my::op_0", "my::op_1", *["other ops"] * 4]
    assert _names(after, "runtime") == _names(before, "runtime")
    assert after.events["dur_us"].equals(before.events["dur_us"])
    assert [caveat.slug for caveat in after.caveats] == ["rare-names"] * 2
    assert "6 names of kernels; the 4 with the least time, 47.6 % of theirs" in after.caveats[0].message


def test_an_analysis_with_names_in_common_has_the_same_sums(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = analyse([path])
    monkeypatch.setattr(inspect.unwrap(rare_names.fold_rare_names), "__defaults__", (2,))
    folded = analyse([path])
    assert folded.ledger == whole.ledger and folded.totals == whole.totals
    assert sum(row.us for row in folded.kernels) == pytest.approx(sum(row.us for row in whole.kernels))
    assert sum(row.calls for row in folded.kernels) == sum(row.calls for row in whole.kernels) == 6
    assert {row.name for row in folded.kernels} == {"kernel_4", "kernel_5", "other kernels"}
    assert {fold.name for fold in folded.ops} == {"my::op_0", "my::op_1", "other ops"}
