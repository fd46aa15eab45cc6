"""Compiled kernels: bytes of their own buffers, FLOPs of what they fuse, and no cost where something is missing."""

import json
from pathlib import Path

import pandas as pd
import pytest

from bottleneck.cost import compute_costs
from bottleneck.cost.call import Cost
from bottleneck.cost.inductor_cpp import add_compiled_kernels, compute_kernel_costs
from bottleneck.cost.shape_inference import infer_shapes
from bottleneck.schema.compiled_kernels import Compiled, CompiledBuffer, CompiledKernel, CompiledOp
from bottleneck.schema.linked_trace import Linked
from bottleneck.schema.reasons import Reason
from bottleneck.schema.records import replace
from bottleneck.trace.link import link
from bottleneck.trace.read import read_trace
from bottleneck.trace.steps import find_steps
from tests.builders import op, write_trace

N = 1000


def buffer(read: tuple[int, int] | None, written: tuple[int, int] | None, kind: str = "float") -> CompiledBuffer:
    return CompiledBuffer((N,), (1,), kind, read, written)


def fused(name: str, *arguments: tuple[list[int], str], share: float = 1.0, calls: int = 1) -> CompiledOp:
    dims, types = [list(shape) for shape, _ in arguments], [kind for _, kind in arguments]
    texts = ["" if shape or kind != "Scalar" else "2" for shape, kind in arguments]
    return CompiledOp(name, json.dumps(dims), json.dumps(types), "[]", json.dumps(texts), share, calls)


MUL = fused("aten::mul", ([N], "float"), ([], "Scalar"))
CHAIN = CompiledKernel(
    "graph_0_cpp_fused_mul_0", (buffer((N, N), None), buffer(None, (N, N))), (replace(MUL, calls=8),)
)


def cost(kernel: CompiledKernel) -> Cost:
    (found,) = compute_kernel_costs([kernel])
    assert isinstance(found, Cost)
    return found


class TestKernelCost:
    def test_a_chain_moves_its_ends_and_computes_every_link(self) -> None:
        chain = cost(CHAIN)
        assert (chain.bytes_low, chain.bytes_high, chain.vector_flops) == (8 * N, 8 * N, 8 * N)
        assert (chain.math_dtype, chain.matrix_flops, chain.special_ops) == ("fp32", 0, 0)

    def test_arithmetic_equals_that_of_the_same_ops_in_eager_mode(self) -> None:
        ops = (MUL, fused("aten::exp", ([N], "float")), fused("aten::sum", ([N], "float"), ([], "ScalarList")))
        eager = compute_costs(
            pd.DataFrame([{key: getattr(each, key) for key in ("name", "dims", "types")} for each in ops])
        )
        kernel = cost(replace(CHAIN, ops=ops))
        assert kernel.vector_flops == eager["vector_flops"].sum()
        assert kernel.special_ops == eager["special_ops"].sum() == N

    def test_bytes_are_an_interval_where_addresses_depend_on_data(self) -> None:
        kernel = cost(replace(CHAIN, buffers=(buffer((0, 600), None), buffer(None, (N, N), "c10::BFloat16"))))
        assert (kernel.bytes_low, kernel.bytes_high) == (2 * N, 2 * N + 4 * 600)

    def test_only_the_part_of_an_op_that_the_loops_can_do_is_charged(self) -> None:
        assert cost(replace(CHAIN, ops=(replace(MUL, share=0.25),))).vector_flops == N / 4

    def test_double_anywhere_picks_the_peak_for_double(self) -> None:
        double = fused("aten::mul", ([N], "double"), ([N], "double"))
        assert cost(replace(CHAIN, ops=(MUL, double))).math_dtype == "fp64"

    def test_fetching_by_index_is_no_arithmetic(self) -> None:
        fetch = fused("aten::index", ([N], "float"), ([[N]], "TensorList"))
        assert cost(replace(CHAIN, ops=(fetch, MUL))).vector_flops == N

    def test_products_belong_to_templates(self) -> None:
        product = fused("aten::mm", ([10, 10], "c10::BFloat16"), ([10, 10], "c10::BFloat16"))
        template = cost(replace(CHAIN, ops=(product, MUL), is_template=True))
        assert (template.matrix_flops, template.math_dtype) == (2000, "bf16")
        assert cost(replace(CHAIN, ops=(product, MUL))).matrix_flops == 0

    def test_kernels_do_not_share_their_ops(self) -> None:
        empty, twice = CompiledKernel("k"), replace(CHAIN, ops=(MUL, MUL))
        found = compute_kernel_costs([CHAIN, empty, twice, CHAIN])
        assert [each.vector_flops for each in found if isinstance(each, Cost)] == [8 * N, 0, 2 * N, 8 * N]

    def test_a_kernel_that_moves_nothing_and_fuses_nothing_is_free(self) -> None:
        assert cost(CompiledKernel("k")).bytes_high == 0


class TestUnmodelledKernel:
    def test_the_reason_of_the_harness_is_kept(self) -> None:
        assert compute_kernel_costs([CompiledKernel("k", reason="sizes vary")]) == [
            Reason("compiled_kernel", ("sizes vary",))
        ]

    def test_an_op_without_formula_leaves_the_kernel_unmodelled(self) -> None:
        kernel = replace(CHAIN, ops=(MUL, fused("aten::no_such_op", ([N], "float"))))
        (reason,) = compute_kernel_costs([kernel])
        assert isinstance(reason, Reason) and reason.code == "no_formula"
        assert reason.words == "it fuses an unmodelled op: no formula for aten::no_such_op"

    def test_an_unknown_element_type_leaves_the_kernel_unmodelled(self) -> None:
        kernel = replace(CHAIN, buffers=(buffer((N, N), None, "torch.odd"),))
        assert compute_kernel_costs([kernel, CHAIN])[0] == Reason("unknown_dtype", ("'torch.odd'",))


def linked(folder: Path) -> Linked:
    """A compiled region with a kernel that is noted, one that is not, and a product of torch's own."""
    trace = read_trace(
        write_trace(
            folder / "t.json",
            [
                op("Torch-Compiled Region: 0/0", 0, 100),
                op(CHAIN.name, 10, 20),
                op("graph_9_cpp_fused_add_0", 40, 20),
                op("aten::mul", 70, 20, dims=[[N], [N]], types=["float", "float"]),
            ],
        )
    )
    return infer_shapes(link(trace, find_steps(trace, None)))


class TestAddKernels:
    @pytest.fixture
    def both(self, tmp_path: Path) -> tuple[Linked, pd.DataFrame]:
        before = linked(tmp_path)
        return before, compute_costs(before.trace.signatures)

    def names(self, found: Linked) -> dict[str, str | None]:
        """The name in CALLS that each op points to."""
        calls = found.trace.signatures["name"]
        rows = found.ops["signature"].to_numpy(dtype="int64", na_value=-1)
        pointed = [None if row < 0 else calls.iloc[row] for row in rows]
        return dict(zip(found.ops["name"].astype(str), pointed, strict=True))

    def test_kernels_get_calls_and_costs_behind_those_that_were_there(self, both: tuple[Linked, pd.DataFrame]) -> None:
        before, costs = both
        after, costed = add_compiled_kernels(before, costs, Compiled((CHAIN,)))
        assert self.names(after) == {
            "Torch-Compiled Region: 0/0": "Torch-Compiled Region: 0/0",
            CHAIN.name: CHAIN.name,
            "graph_9_cpp_fused_add_0": None,
            "aten::mul": "aten::mul",
        }
        assert len(costed) == len(after.trace.signatures) == len(costs) + 2
        pd.testing.assert_frame_equal(costed.iloc[: len(costs)]["bytes_low"].to_frame(), costs[["bytes_low"]])
        assert costed["vector_flops"].iloc[len(costs)] == 8 * N
        assert after.trace.signatures["dims"].iloc[len(costs)] == f"[[{N}], [{N}]]"

    def test_regions_only_dispatch_when_all_kernels_are_named(self, both: tuple[Linked, pd.DataFrame]) -> None:
        after, costed = add_compiled_kernels(*both, Compiled((CHAIN,)))
        assert list(costed["family"].iloc[-2:]) == ["compiled", "dispatch"]
        after, _ = add_compiled_kernels(*both, Compiled((CHAIN,), problem="not watched"))
        assert self.names(after)["Torch-Compiled Region: 0/0"] is None

    def test_a_trace_of_nothing_but_kernels_has_costs(self, tmp_path: Path) -> None:
        trace = read_trace(write_trace(tmp_path / "t.json", [op(CHAIN.name, 10, 20)]))
        before = infer_shapes(link(trace, find_steps(trace, None)))
        _, costed = add_compiled_kernels(before, compute_costs(before.trace.signatures), Compiled((CHAIN,)))
        assert list(costed["family"]) == ["compiled"]
        assert list(costed["math_dtype"]) == ["fp32"]

    def test_a_trace_without_compiled_code_stays_as_it_is(self, tmp_path: Path) -> None:
        trace = read_trace(write_trace(tmp_path / "t.json", [op("aten::mul", 70, 20, dims=[[N]], types=["float"])]))
        before = infer_shapes(link(trace, find_steps(trace, None)))
        costs = compute_costs(before.trace.signatures)
        assert add_compiled_kernels(before, costs, Compiled((CHAIN,))) == (before, costs)
