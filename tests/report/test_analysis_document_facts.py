"""The sentences of a report about how its numbers came about."""

from dataclasses import replace

import pytest

from bottleneck.report import analysis_document as facts
from bottleneck.schema.analysis import Coverage, TelemetrySummary, UnknownWork
from tests.report.samples import gpu_overhead

KERNEL = (
    "void at::native::vectorized_elementwise_kernel<4, at::native::BinaryFunctor<float, float, float, "
    "at::native::binary_internal::MulFunctor<float> >, std::array<char*, 3ul> >(int, std::array<char*, 3ul>)"
)


@pytest.mark.parametrize(
    ("source", "words"), [("whole", "the whole trace, taken as one;"), ("marks", "the marks of"), ("odd", "odd;")]
)
def test_the_window_tells_how_its_steps_were_found(source: str, words: str) -> None:
    analysis = gpu_overhead()
    told = dict(facts.facts(replace(analysis, steps=replace(analysis.steps, source=source))))
    assert f"found by: {words}" in told["window"]


@pytest.mark.parametrize(("settled", "is_told"), [(False, True), (True, False), (None, False)])
def test_steps_that_had_not_settled_are_told(settled: bool | None, is_told: bool) -> None:
    analysis = gpu_overhead()
    told = dict(facts.facts(replace(analysis, steps=replace(analysis.steps, settled=settled))))
    assert ("not settled" in told["step"]) is is_told


@pytest.mark.parametrize(
    ("name", "shown"), [(KERNEL, "vectorized_elementwise_kernel<MulFunctor<float>>"), ("aten::mm", "aten::mm")]
)
def test_only_names_with_all_their_template_arguments_are_shortened(name: str, shown: str) -> None:
    coverage = Coverage(1.0, 0.5, (UnknownWork(name, 2000.0, "no price"),))
    (lines,) = facts.coverage(replace(gpu_overhead(), coverage=coverage)).items
    assert lines[1] == f"2.00 ms {shown}: no price"


@pytest.mark.parametrize(("priced", "lead"), [(1.0, ""), (0.5, "at least ")])
def test_what_was_reached_is_a_lower_bound_where_work_has_no_price(priced: float, lead: str) -> None:
    analysis = replace(gpu_overhead(), coverage=Coverage(1.0, priced, ()))
    reached = dict(facts.facts(analysis))["reached"]
    assert reached.startswith("at least ") == bool(lead)
    assert reached.removeprefix(lead)[0].isdigit()


NOTHING_READ = TelemetrySummary(3, None, None, None, None, None, ())


def test_what_no_sensor_told_is_absent_and_not_zero() -> None:
    told = dict(facts.facts(replace(gpu_overhead(), telemetry=NOTHING_READ)))
    assert not {"sensors", "host"} & set(told)


def test_energy_is_told_only_with_how_wrong_it_may_be() -> None:
    telemetry = replace(NOTHING_READ, energy_j=3.84, energy_error_j=0.21)
    assert dict(facts.facts(replace(gpu_overhead(), telemetry=telemetry)))["sensors"] == (
        "3.84 J per step (give or take 0.2 J)"
    )
    unsure = replace(telemetry, energy_error_j=None)
    assert "sensors" not in dict(facts.facts(replace(gpu_overhead(), telemetry=unsure)))
