"""Costs of replayed graphs and other kernels without an op: those of the same kernels at capture or elsewhere."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from bottleneck.cost import compute_costs
from bottleneck.cost.attribution import attribute
from bottleneck.cost.graph_replay import CostedTrace, Sequences, align, assign_replayed_costs
from bottleneck.cost.shape_inference import infer_shapes
from bottleneck.schema.reasons import PLACES
from bottleneck.trace.link import link
from bottleneck.trace.read import read_trace
from bottleneck.trace.steps import whole_window
from tests.builders import Event, kernel, launch, op, write_trace
from tests.builders import complete as event

GEMM = "ampere_sgemm_128x64_nn"
ADD = "void at::native::vectorized_elementwise_kernel<4, at::native::CUDAFunctor_add<float> >"

# The ops of one step: name, shapes, and its kernels with their grids.
Step = Sequence[tuple[str, list[object], Sequence[tuple[str, int]]]]
STEP: Step = (
    ("aten::mm", [[64, 32], [32, 16]], [(GEMM, 4)]),
    ("aten::add", [[64, 16], [64, 16], []], [(ADD, 8)]),
    ("aten::mm", [[64, 16], [16, 48]], [(GEMM, 6), ("void cublasLt::splitKreduce_kernel<32, 16>", 2)]),
)
STEP_FLOPS = 2 * 64 * 32 * 16 + 64 * 16 + 2 * 64 * 16 * 48


def eager(step: Step, at: float, first: int) -> list[Event]:
    """The step run op by op: each op with its launches and their kernels, from correlation ``first`` on."""
    events: list[Event] = []
    for name, dims, kernels in step:
        events.append(op(name, at, 20.0, dims=dims))
        for kernel_name, blocks in kernels:
            events += [launch(first, at + 2, 1), kernel(first, at + 50, 10, kernel_name, grid=[blocks, 1, 1])]
            first, at = first + 1, at + 10
        at += 20
    return events


def captured(step: Step, at: float, first: int, named: bool = False) -> list[Event]:
    """The step captured into a graph: ops and launches, no kernels; HIP names the kernels that it launches."""
    events = [event("cudaStreamBeginCapture", "cuda_runtime", at, 1, args={"correlation": 900})]
    for name, dims, kernels in step:
        events.append(op(name, at + 5, 20.0, dims=dims))
        for kernel_name, _ in kernels:
            more = {"kernel": kernel_name} if named else {}
            args = {"correlation": first, **more}
            events.append(event("cudaLaunchKernel", "cuda_runtime", at + 7, 1, args=args))
            first, at = first + 1, at + 5
        at += 25
    return [*events, event("cudaStreamEndCapture", "cuda_runtime", at + 5, 1, args={"correlation": 901})]


def replay(step: Step, at: float, correlation: int, gridless: bool = False) -> list[Event]:
    """The step as one launch of a graph."""
    events = [launch(correlation, at, 5, "cudaGraphLaunch")]
    for kernel_name, blocks in (each for _, _, kernels in step for each in kernels):
        at += 20
        events.append(kernel(correlation, at, 10, kernel_name, grid=[0, 0, 0] if gridless else [blocks, 1, 1]))
    return events


def costed(folder: Path, *events: list[Event], name: str = "trace.json") -> CostedTrace:
    trace = read_trace(write_trace(folder / name, [each for part in events for each in part]))
    linked = infer_shapes(link(trace, whole_window(trace)))
    costs = compute_costs(linked.trace.signatures)
    return CostedTrace(linked, costs, attribute(linked.ops, linked.kernels, costs))


def flops(found: CostedTrace, replayed: bool) -> float:
    """FLOPs attributed to kernels that were replayed, or to the others."""
    mine = (found.linked.kernels["replayed"] == replayed) & found.attribution["share"].notna()
    rows = found.costs.iloc[found.attribution["signature"][mine].astype("int64")]
    amounts = (rows["matrix_flops"] + rows["vector_flops"]).to_numpy()
    return float((amounts * found.attribution["share"][mine]).sum())


def test_a_replay_costs_what_the_eager_step_costs(tmp_path):
    alone = costed(tmp_path, eager(STEP, 0, 1), replay(STEP, 1000, 50))
    both, caveats = assign_replayed_costs(alone)
    assert flops(alone, replayed=True) == 0
    assert flops(both, replayed=True) == pytest.approx(flops(both, replayed=False)) == STEP_FLOPS
    assert [caveat.slug for caveat in caveats] == ["replayed-costs"]
    assert "4 of 4 kernels" in caveats[0].message


def test_every_replay_costs_the_same(tmp_path):
    both, _ = assign_replayed_costs(costed(tmp_path, eager(STEP, 0, 1), replay(STEP, 1000, 50), replay(STEP, 2000, 51)))
    assert flops(both, replayed=True) == pytest.approx(2 * STEP_FLOPS)


@pytest.mark.parametrize("named", [True, False])
def test_a_replay_costs_what_its_capture_costs_with_and_without_names(tmp_path, named):
    found, _ = assign_replayed_costs(
        costed(tmp_path, captured(STEP, 0, 1, named), replay(STEP, 1000, 50, gridless=True))
    )
    assert flops(found, replayed=True) == pytest.approx(STEP_FLOPS)
    evidence = found.costs["evidence"].dropna()
    assert set(evidence) == {(PLACES["at_capture"],)}


@pytest.mark.parametrize("named", [True, False])
def test_a_replay_costs_what_a_capture_in_another_file_costs(tmp_path, named):
    alone = costed(tmp_path, replay(STEP, 1000, 50, gridless=True))
    other = costed(tmp_path, captured(STEP, 0, 1, named), name="capture.json")
    found, _ = assign_replayed_costs(alone, [other])
    assert flops(found, replayed=True) == pytest.approx(STEP_FLOPS)
    assert found.attribution["op"].isna().all()
    names = found.linked.trace.signatures["name"].iloc[found.attribution["signature"].astype("int64")]
    assert names.tolist() == ["aten::mm", "aten::add", "aten::mm", "aten::mm"]


def test_a_replay_without_a_match_stays_unmodelled(tmp_path):
    alone = costed(tmp_path, replay(STEP, 1000, 50))
    found, caveats = assign_replayed_costs(alone)
    assert found.attribution["share"].isna().all() and found.attribution["signature"].isna().all()
    assert caveats == ()


def test_a_capture_of_another_program_matches_nothing_and_is_reported_as_unused(tmp_path):
    other = costed(tmp_path, captured(STEP[1:], 0, 1), name="capture.json")
    found, caveats = assign_replayed_costs(costed(tmp_path, replay(STEP[:1], 1000, 50)), [other])
    assert found.attribution["share"].isna().all()
    assert [caveat.slug for caveat in caveats] == ["capture-unused"]


def test_kernels_of_another_grid_do_not_match(tmp_path):
    wider = [(name, dims, [(kernel_name, 100 * blocks) for kernel_name, blocks in each]) for name, dims, each in STEP]
    found, _ = assign_replayed_costs(costed(tmp_path, eager(STEP, 0, 1), replay(wider, 1000, 50)))
    assert flops(found, replayed=True) == 0


def test_matches_of_different_sizes_count_only_where_neighbours_differ(tmp_path):
    small = ("aten::mm", [[64, 8], [8, 16]], [(GEMM, 4)])
    large = ("aten::mm", [[64, 800], [800, 16]], [(GEMM, 4)])
    add, exp = STEP[1], ("aten::exp", [[64, 16]], [("exp_kernel", 8)])
    steps = [small, add, large, exp]
    alone, _ = assign_replayed_costs(costed(tmp_path, eager(steps, 0, 1), replay([small], 1000, 50)))
    assert flops(alone, replayed=True) == 0
    assigned, _ = assign_replayed_costs(costed(tmp_path, eager(steps, 0, 1), replay([add, large, exp], 1000, 50)))
    assert flops(assigned, replayed=True) == 64 * 16 + 2 * 64 * 800 * 16


def test_captures_of_one_length_that_differ_match_nothing(tmp_path):
    other = (("aten::mm", [[99, 32], [32, 16]], [(GEMM, 4)]), *STEP[1:])
    found, _ = assign_replayed_costs(
        costed(tmp_path, captured(STEP, 0, 1), captured(other, 500, 20), replay(STEP, 1000, 50))
    )
    assert flops(found, replayed=True) == 0


def test_a_capture_with_products_at_other_positions_matches_nothing(tmp_path):
    found, _ = assign_replayed_costs(costed(tmp_path, captured(STEP[:2], 0, 1), replay([STEP[1], STEP[0]], 1000, 50)))
    assert flops(found, replayed=True) == 0


def test_a_kernel_launched_before_the_trace_costs_what_its_match_in_it_costs(tmp_path):
    orphans = [kernel(77 + turn, 1000 + 20 * turn, 10, GEMM, grid=[4, 1, 1]) for turn in range(3)]
    found, _ = assign_replayed_costs(costed(tmp_path, eager(STEP[:2], 0, 1), orphans))
    paid = found.attribution["share"].notna()
    assert paid.all()
    assert found.costs["evidence"].dropna().tolist() == [(PLACES["elsewhere"],)]
    assert found.attribution["group"].nunique() == 5


def test_a_kernel_that_took_far_longer_than_its_match_is_of_another_size(tmp_path):
    found, _ = assign_replayed_costs(
        costed(tmp_path, eager(STEP[:2], 0, 1), [kernel(77, 1000, 200, GEMM, grid=[4, 1, 1])])
    )
    assert found.attribution["share"].isna().sum() == 1


def test_a_call_of_which_a_kernel_is_missing_is_not_attributed(tmp_path):
    found, _ = assign_replayed_costs(costed(tmp_path, eager(STEP, 0, 1), [kernel(77, 1000, 10, GEMM, grid=[6, 1, 1])]))
    assert found.attribution["share"].isna().sum() == 1


def test_an_unmodelled_match_gives_its_reason(tmp_path):
    unknown: Step = [("mine::layer", [[64, 32]], [("mine_kernel", 4)])]
    found, _ = assign_replayed_costs(costed(tmp_path, captured(unknown, 0, 1, named=True), replay(unknown, 1000, 50)))
    row = int(found.attribution["signature"].iloc[0])
    assert found.attribution["share"].isna().all()
    assert found.costs["reason"].iloc[row].words == "no formula for mine::layer (the same kernel at capture)"


def test_a_match_under_an_op_without_work_has_no_cost(tmp_path):
    free: Step = [("aten::view", [[64, 32], []], [("odd_kernel", 4)])]
    found, _ = assign_replayed_costs(costed(tmp_path, eager(free, 0, 1), replay(free, 1000, 50)))
    assert found.attribution["signature"].isna().all()


def test_a_trace_whose_kernels_all_have_ops_stays_as_it_is(tmp_path):
    alone = costed(tmp_path, eager(STEP, 0, 1))
    assert assign_replayed_costs(alone) == (alone, ())


def slow_align(elements: Sequences) -> list[int]:
    """Element by element: the candidates that share the widest stretch of the radii that are tried."""

    def stretch(row: int, radius: int) -> list[int]:
        return [
            int(elements.token[at]) if 0 <= at < len(tokens) and elements.sequence[at] == elements.sequence[row] else -1
            for at in range(row - radius, row + radius + 1)
        ]

    tokens, found = elements.token, []
    for row in range(len(tokens)):
        best, radius = -1, 0
        while elements.wanted[row] and radius < len(tokens):
            same = [at for at in np.flatnonzero(elements.candidates) if stretch(at, radius) == stretch(row, radius)]
            if not same:
                break
            agreed = len({int(elements.kind[at]) for at in same}) == 1
            best, radius = (int(same[0]) if agreed else -1), 2 * radius + 1
        found.append(best)
    return found


@given(st.data())
def test_aligning_whole_tables_agrees_with_looking_at_each_element(data):
    count = data.draw(st.integers(1, 24))
    sequence = np.sort(data.draw(st.lists(st.integers(0, 2), min_size=count, max_size=count)))
    token, kind = (
        np.array(data.draw(st.lists(st.integers(0, 2), min_size=count, max_size=count)), np.int64) for _ in range(2)
    )
    wanted = np.array(data.draw(st.lists(st.booleans(), min_size=count, max_size=count)))
    elements = Sequences(token, sequence.astype(np.int64), kind, wanted, ~wanted)
    assert align(elements).tolist() == slow_align(elements)
