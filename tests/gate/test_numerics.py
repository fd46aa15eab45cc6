"""Outputs held to a lock-file: what rounding explains passes, what it does not is named with its size."""

from dataclasses import replace
from pathlib import Path

import pytest

from bottleneck.gate.judge import judge_outputs, verdict_of, with_summary
from bottleneck.gate.lockfile import kept, read_lock, write_lock
from bottleneck.gate.numerics import count_summing, judge_numerics, merge_numerics, tolerance_of, with_precision
from bottleneck.report.ci.outputs import GATE_FORMATS
from bottleneck.schema.counters import Counts, Fingerprint, Lock
from bottleneck.schema.gate_result import CounterChange, Gate, WorkloadResult
from bottleneck.schema.numerics import Numerics, NumericsResult, TensorDigest
from tests.report.ci.test_schemas import errors

LOSS = TensorDigest("float32", (), norm=2.3, mean=2.3, projection=2.3)
WEIGHT = TensorDigest("float32", (10, 256), 0, 0, 1.8, 4e-4, 2.9, 0.028, -0.011)
OUTPUTS = Numerics(3, {"returned of step 1": LOSS, "Net.head.weight": WEIGHT}, precision="fp32", reductions=15)


def counts(numerics: Numerics | None, **facts: object) -> Counts:
    """Counts with these outputs."""
    fingerprint = Fingerprint({"torch": "2.13"}, {"threads": 1, **facts})  # type: ignore[arg-type]
    return Counts({"ops": 9}, fingerprint, numerics=numerics)


def lock(numerics: Numerics | None) -> Lock:
    """A lock-file with these outputs."""
    return Lock("step", ("step.py",), counts(numerics))


def changed(name: str, **values: object) -> Numerics:
    """The outputs with one of them changed."""
    return replace(OUTPUTS, tensors={**OUTPUTS.tensors, name: replace(OUTPUTS.tensors[name], **values)})  # type: ignore[arg-type]


def judged(numerics: Numerics, of_lock: Numerics | None = OUTPUTS) -> NumericsResult:
    return judge_outputs(lock(of_lock), counts(numerics))


def test_the_same_outputs_pass() -> None:
    result = judged(OUTPUTS)
    assert (result.verdict, result.compared, result.changes) == ("same", 2, ())


@pytest.mark.parametrize("growth", [1 + 1e-6, 1 - 1e-6])
def test_what_rounding_explains_passes(growth: float) -> None:
    other = changed("returned of step 1", norm=2.3 * growth, mean=2.3 * growth, projection=2.3 * growth)
    assert judged(other).verdict == "same"


@pytest.mark.parametrize(
    ("name", "values", "what"),
    [
        ("returned of step 1", {"norm": 2.301, "mean": 2.301, "projection": 2.301}, "2.3 to 2.301"),
        ("returned of step 1", {"nan": 1}, "NaN 0 to 1"),
        ("returned of step 1", {"inf": 1}, "infinite elements 0 to 1"),
        ("returned of step 1", {"dtype": "float64"}, "dtype float32 to float64"),
        ("Net.head.weight", {"shape": (11, 256)}, "shape [10, 256] to [11, 256]"),
        ("Net.head.weight", {"moved": 0.0308}, "change by the steps 0.028 to 0.0308"),
        ("Net.head.weight", {"moved_projection": -0.0109}, "direction of that change -0.011 to -0.0109"),
    ],
)
def test_what_differs_is_named_with_both_values(name: str, values: dict[str, object], what: str) -> None:
    result = judged(changed(name, **values))
    (change,) = result.changes
    assert result.verdict == "differs" and change.name == name and what in change.what


def test_the_first_output_that_differs_is_named_first_with_its_size() -> None:
    both = {name: replace(each, norm=2 * each.norm) for name, each in OUTPUTS.tensors.items()}
    first, _ = judged(replace(OUTPUTS, tensors=both)).changes
    assert first.name == "returned of step 1" and first.difference == pytest.approx(0.5)
    assert first.tolerance == pytest.approx(tolerance_of(LOSS, OUTPUTS))


def test_an_output_more_or_less_differs() -> None:
    alone = replace(OUTPUTS, tensors={"returned of step 1": LOSS})
    assert [change.what for change in judged(alone).changes] == ["it is not there any more"]
    assert [change.what for change in judged(OUTPUTS, alone).changes] == ["it is new"]


def test_the_tolerance_follows_format_and_number_of_sums() -> None:
    exact = replace(LOSS, dtype="float64")
    assert tolerance_of(exact, replace(OUTPUTS, precision="fp64")) < 1e-12 < tolerance_of(LOSS, OUTPUTS) < 1e-4
    assert tolerance_of(LOSS, replace(OUTPUTS, precision="bf16")) > 0.01
    assert tolerance_of(LOSS, replace(OUTPUTS, reductions=60)) == pytest.approx(2 * tolerance_of(LOSS, OUTPUTS))
    assert tolerance_of(replace(LOSS, dtype="int64"), OUTPUTS) == 0.0


def test_sums_are_counted_and_the_least_precise_format_is_kept() -> None:
    ops = {"aten::addmm": 2, "aten::_log_softmax_backward_data": 1, "aten::add_": 8, "aten::sum": 3, "aten::view": 5}
    assert count_summing(ops) == 6
    found = with_precision(OUTPUTS, ["fp32", None, "bf16"], ops)
    assert (found.precision, found.reductions) == ("bf16", 6)


def test_runs_that_differ_make_an_output_unstable_and_it_is_not_gated() -> None:
    noisy = changed("returned of step 1", norm=9.0)
    merged = merge_numerics([OUTPUTS, OUTPUTS, noisy])
    assert merged is not None and set(merged.tensors) == {"Net.head.weight"}
    assert "norm 2.3 to 9" in merged.unstable["returned of step 1"]
    result = judged(noisy, merged)
    assert result.verdict == "same" and result.compared == 1 and "returned of step 1" in result.unstable
    assert merge_numerics([OUTPUTS, None]) is None


@pytest.mark.parametrize(
    ("of_lock", "now", "verdict", "reason"),
    [
        (None, counts(OUTPUTS), "new", "gate --update --numerics"),
        (OUTPUTS, counts(None), "not compared", "not known"),
        (OUTPUTS, counts(Numerics(reason="of a script")), "not compared", "of a script"),
        (OUTPUTS, counts(OUTPUTS, isa="AVX512"), "not compared", "AVX512"),
        (OUTPUTS, counts(replace(OUTPUTS, steps=5)), "not compared", "after 3 steps"),
        (
            replace(OUTPUTS, tensors={}, unstable={"x": "y"}),
            counts(replace(OUTPUTS, tensors={})),
            "not compared",
            "every",
        ),
    ],
)
def test_what_cannot_be_compared_says_why(of_lock: Numerics | None, now: Counts, verdict: str, reason: str) -> None:
    result = judge_outputs(lock(of_lock), now)
    assert result.verdict == verdict and reason in (result.reason or "")


def test_outputs_come_back_from_the_lock_file(tmp_path: Path) -> None:
    path = tmp_path / "x.lock.toml"
    hostile = replace(OUTPUTS, tensors={**OUTPUTS.tensors, 'a"b\n= ]': replace(LOSS, nan=3)}, unstable={"x": "runs"})
    write_lock(path, lock(hostile))
    assert read_lock(path) == kept(lock(hostile))
    assert list(read_lock(path).counts.numerics.tensors) == list(hostile.tensors)  # type: ignore[union-attr]


SAME = (CounterChange("ops", 9, 9, "same"),)


@pytest.mark.parametrize("form", GATE_FORMATS)
def test_every_format_tells_that_outputs_differ(form: str) -> None:
    outputs = judge_numerics(lock(OUTPUTS), counts(changed("returned of step 1", norm=2.4)))
    result = WorkloadResult("step", ("step.py",), verdict_of(SAME, None, outputs), "", counters=SAME, numerics=outputs)
    result = replace(with_summary(result), lock="x")
    assert result.verdict == "fail" and "--metric numerics" not in with_summary(result).what
    text = GATE_FORMATS[form].render(Gate((result,), 1, "step regressed."))
    if form != "openmetrics":
        assert "returned of step 1" in text
    if form in {"junit", "sarif", "gitlab"}:
        assert errors(form, Gate((result,), 1, "step regressed.")) == []


def test_outputs_that_were_asked_for_and_are_not_in_the_lock_file_measure_nothing() -> None:
    assert verdict_of(SAME, None, NumericsResult("new", reason="none")) == "nothing measured"
    assert verdict_of(SAME, None, NumericsResult("not compared", reason="of a script")) == "pass"
    assert verdict_of(SAME, None, NumericsResult("same", 2)) == "pass"
