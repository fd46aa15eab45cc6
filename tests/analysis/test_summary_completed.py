"""Telling what prices rest on: only where it matters, and most time first."""

from dataclasses import replace

from bottleneck.schema.analysis import Caveat
from bottleneck.schema.tables import COSTS, SIGNATURES
from tests.analysis.scenes import Kernel, Op, Scene, analysis_of, table

DTYPE, SIZES = "dtype from kernel names", "sizes from the ops around it"


def caveat(texts: list[str | None], kernels: list[Kernel]) -> list[Caveat]:
    """The caveats on evidence of a scene whose ops rest on these facts, in order."""
    scene = Scene(100, kernels, ops=[Op(-9 + at, 1, "aten::mm") for at in range(len(texts))])
    linked = scene.linked()
    linked = replace(
        linked,
        trace=replace(linked.trace, signatures=table(SIGNATURES, [{"name": "aten::mm"}] * len(texts))),
        ops=linked.ops.assign(signature=linked.ops["signature"].fillna(0).to_numpy() + range(len(texts))),
    )
    linked = replace(linked, ops=linked.ops.astype({"signature": "Int32"}))
    costs = table(COSTS, [{"evidence": text} for text in texts])
    analysis = analysis_of(scene, linked=linked, costs=costs)
    return [each for each in analysis.caveats if each.slug == "completed-calls"]


def test_facts_are_told_once_each_and_the_longest_first():
    kernels = [Kernel(0, 10, op=0), Kernel(10, 40, op=1), Kernel(50, 50, op=2)]
    (found,) = caveat([DTYPE, f"{SIZES}; {DTYPE}", None], kernels)
    assert found.share == 0.5
    assert f"({SIZES}; {DTYPE})" in found.message and "50.0 %" in found.message


def test_what_hardly_matters_is_not_told():
    assert caveat([DTYPE, None], [Kernel(0, 0.5, op=0), Kernel(1, 99, op=1)]) == []


def test_recorded_calls_are_nothing_to_tell():
    assert caveat([None], [Kernel(0, 100, op=0)]) == []
