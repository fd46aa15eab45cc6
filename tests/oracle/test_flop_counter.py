"""Costs against torch's own FLOP counter: equal where it is right, and right where it is not.

The counter sees every dispatched op with its true shapes; we see only what the profiler recorded of the same work.
"""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

from bottleneck.cost import compute_costs
from bottleneck.cost.attribution import attribute

torch = pytest.importorskip("torch", reason="torch is not installed")

F = torch.nn.functional
Work = Callable[[], object]
ENGINES = ["matmul", "convolution", "attention"]


@pytest.fixture(autouse=True)
def _seeded():
    torch.manual_seed(0)


@pytest.fixture
def recorded(tmp_path: Path) -> Callable[[Work], pd.DataFrame]:
    """The costs of the ops that work, of those that the profiler recorded."""

    def record(work: Work) -> pd.DataFrame:
        with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU], record_shapes=True) as profiler:
            work()
        path = tmp_path / "trace.json"
        profiler.export_chrome_trace(str(path))
        events = [event for event in json.loads(path.read_text())["traceEvents"] if event.get("cat") == "cpu_op"]
        return attributed_ops(sorted(events, key=lambda event: (event["tid"], event["ts"], -event["dur"])))

    return record


def attributed_ops(events: list[dict[str, Any]]) -> pd.DataFrame:
    """The costs of workers among op events that are sorted by thread and start, outermost first."""
    keys = ("Input Dims", "Input type", "Input Strides", "Concrete Inputs")
    texts = [[json.dumps(event["args"][key]) if key in event["args"] else None for key in keys] for event in events]
    names = [event["name"] for event in events]
    signatures = pd.DataFrame(texts, columns=["dims", "types", "strides", "concrete"], dtype=object)
    signatures.insert(0, "name", pd.Series(names, dtype=object))
    costs = compute_costs(signatures)
    rows = pd.array(range(len(events)), dtype="Int32")
    ops = pd.DataFrame({"parent": pd.array(parents(events), dtype="Int32"), "signature": rows})
    ops["dur_us"] = ops["self_us"] = [float(event["dur"]) for event in events]
    ops["name"] = pd.Categorical(names)
    host = {"op": rows, "kind": "compute", "family": "host", "auxiliary": False, "replayed": False}
    kernels = pd.DataFrame({**host, "dur_us": [event["dur"] for event in events]})
    attribution = attribute(ops, kernels.astype({"kind": "category", "family": "category"}), costs)
    return costs.assign(name=names)[attribution["op"].notna()]


def parents(events: list[dict[str, Any]]) -> list[int | None]:
    """The row of the event that encloses each event on its thread."""
    found: list[int | None] = []
    open_rows: list[int] = []
    for row, event in enumerate(events):
        while open_rows and not encloses(events[open_rows[-1]], event):
            open_rows.pop()
        found.append(open_rows[-1] if open_rows else None)
        open_rows.append(row)
    return found


def encloses(outer: dict[str, Any], inner: dict[str, Any]) -> bool:
    return outer["tid"] == inner["tid"] and inner["ts"] + inner["dur"] <= outer["ts"] + outer["dur"] + 1e-3


def counted(work: Work) -> int:
    from torch.utils.flop_counter import FlopCounterMode

    with FlopCounterMode(display=False) as counter:
        work()
    return counter.get_total_flops()


def engine_flops(costs: pd.DataFrame) -> float:
    """FLOPs for the matrix engine."""
    return costs["matrix_flops"].sum()


def trained(module: Any, *inputs: Any) -> Work:
    """One forward and backward pass, the gradients of the inputs included."""
    leaves = [tensor.requires_grad_() for tensor in inputs]
    return lambda: module(*leaves).sum().backward()


def multilayer():
    layers = (torch.nn.Linear(24, 48), torch.nn.GELU(), torch.nn.Linear(48, 24), torch.nn.LayerNorm(24))
    return torch.nn.Sequential(*layers)


class ResidualBlock(torch.nn.Module):
    """Two convolutions with a strided shortcut, as ResNet-18 has them."""

    def __init__(self) -> None:
        super().__init__()
        self.first = torch.nn.Conv2d(8, 16, 3, stride=2, padding=1, bias=False)
        self.second = torch.nn.Conv2d(16, 16, 3, padding=1, bias=False)
        self.shortcut = torch.nn.Conv2d(8, 16, 1, stride=2, bias=False)
        self.norms = torch.nn.ModuleList(torch.nn.BatchNorm2d(16) for _ in range(3))

    def forward(self, x):
        out = F.relu(self.norms[0](self.first(x)))
        return F.relu(self.norms[1](self.second(out)) + self.norms[2](self.shortcut(x)))


class MathEncoder(torch.nn.Module):
    """A BERT encoder block whose attention is written out as products and a softmax."""

    def __init__(self, width: int = 32, heads: int = 4) -> None:
        super().__init__()
        self.heads, self.qkv, self.out = heads, torch.nn.Linear(width, 3 * width), torch.nn.Linear(width, width)
        self.norm, self.mlp = torch.nn.LayerNorm(width), multilayer_of(width)

    def forward(self, x):
        batch, length, width = x.shape
        q, k, v = (part.view(batch, length, self.heads, -1).transpose(1, 2) for part in self.qkv(x).chunk(3, -1))
        scores = torch.softmax(q @ k.transpose(-1, -2) / 8**0.5, -1)
        x = self.norm(x + self.out((scores @ v).transpose(1, 2).reshape(batch, length, width)))
        return x + self.mlp(x)


def multilayer_of(width: int):
    return torch.nn.Sequential(torch.nn.Linear(width, 4 * width), torch.nn.GELU(), torch.nn.Linear(4 * width, width))


def right_cases() -> dict[str, Callable[[], Work]]:
    nn, r = torch.nn, torch.randn
    return {
        "linear": lambda: trained(nn.Linear(24, 40), r(6, 7, 24)),
        "linear without bias": lambda: trained(nn.Linear(24, 40, bias=False), r(6, 24)),
        "mlp": lambda: trained(multilayer(), r(6, 24)),
        "bmm": lambda: trained(torch.bmm, r(3, 5, 7), r(3, 7, 9)),
        "matmul that broadcasts": lambda: trained(torch.matmul, r(3, 5, 7), r(7, 9)),
        "einsum": lambda: trained(lambda a, b: torch.einsum("bik,bjk->bij", a, b), r(3, 5, 7), r(3, 9, 7)),
        "addmm": lambda: trained(torch.addmm, r(9), r(5, 7), r(7, 9)),
        "baddbmm": lambda: trained(torch.baddbmm, r(1, 1, 9), r(3, 5, 7), r(3, 7, 9)),
        "conv1d": lambda: trained(nn.Conv1d(4, 6, 3, stride=2, padding=1), r(2, 4, 15)),
        "conv2d": lambda: trained(nn.Conv2d(4, 6, (3, 5), stride=(2, 1), padding=(0, 2)), r(2, 4, 9, 11)),
        "conv2d dilated": lambda: trained(nn.Conv2d(4, 6, 3, padding=2, dilation=2), r(2, 4, 9, 9)),
        "conv2d same padding": lambda: trained(nn.Conv2d(4, 6, 3, padding="same"), r(2, 4, 9, 9)),
        "conv2d grouped, forward": lambda: lambda: nn.Conv2d(8, 12, 3, groups=4)(r(2, 8, 9, 9)),
        "conv3d": lambda: trained(nn.Conv3d(3, 4, 3, stride=2, padding=1), r(2, 3, 7, 8, 9)),
        "transposed conv1d": lambda: trained(nn.ConvTranspose1d(4, 6, 3, stride=2), r(2, 4, 9)),
        "transposed conv2d": lambda: trained(nn.ConvTranspose2d(4, 6, 3, 2, 1, output_padding=1), r(2, 4, 9, 9)),
        "bfloat16": lambda: trained(nn.Linear(24, 40, dtype=torch.bfloat16), r(6, 24, dtype=torch.bfloat16)),
        "encoder": lambda: trained(MathEncoder(), r(2, 11, 32)),
        "residual block": lambda: trained(ResidualBlock(), r(2, 8, 12, 12)),
    }


@pytest.mark.parametrize("case", right_cases())
def test_products_and_convolutions_agree_with_the_counter_to_the_last_flop(case, recorded):
    work = right_cases()[case]()
    costs, expected = recorded(work), counted(work)
    assert expected > 0
    assert engine_flops(costs) == expected


def test_attention_agrees_with_the_formulas_that_the_counter_applies_on_a_gpu(recorded):
    from torch.utils import flop_counter

    shape = (2, 3, 16, 8)
    costs = recorded(trained(F.scaled_dot_product_attention, *(torch.randn(shape) for _ in range(3))))
    attention = costs[costs["family"] == "attention"].set_index("name")["matrix_flops"]
    name = "aten::_scaled_dot_product_flash_attention_for_cpu"
    assert attention[name] == flop_counter.sdpa_flop_count(shape, shape, shape)
    backward = flop_counter.sdpa_backward_flop_count(shape, shape, shape, shape)
    assert attention[f"{name}_backward"] == backward == 2.5 * attention[name]


def test_attention_that_the_counter_cannot_see_on_a_cpu_is_modelled(recorded):
    q = torch.randn(2, 3, 16, 8)
    work = lambda: F.scaled_dot_product_attention(q, q, q)  # noqa: E731 - a work is an expression to run twice
    assert counted(work) == 0
    assert engine_flops(recorded(work)) == 2 * (2 * 3) * 16 * 16 * (8 + 8)


def test_causal_attention_costs_the_pairs_that_exist_where_the_counter_counts_all(recorded):
    from torch.utils import flop_counter

    q = torch.randn(2, 3, 16, 8)
    costs = recorded(lambda: F.scaled_dot_product_attention(q, q, q, is_causal=True))
    assert engine_flops(costs) == 2 * (2 * 3) * (16 * 17 // 2) * (8 + 8)
    on_gpu = torch.ops.aten._scaled_dot_product_flash_attention
    meta = torch.empty(2, 3, 16, 8, device="meta", dtype=torch.bfloat16)
    assert counted(lambda: on_gpu(meta, meta, meta, is_causal=True)) == flop_counter.sdpa_flop_count(*[q.shape] * 3)


@pytest.mark.parametrize("groups", [4, 8])
def test_backward_of_a_grouped_convolution_costs_two_forwards_where_the_counter_forgets_the_groups(groups, recorded):
    conv = torch.nn.Conv2d(8, 8, 3, padding=1, groups=groups, bias=False)
    work = trained(conv, torch.randn(2, 8, 9, 9))
    costs = recorded(work)
    forward = 2 * 2 * 81 * 8 * (8 // groups) * 9
    on_engine = "vector_flops" if groups == 8 else "matrix_flops"
    ours = costs[costs["family"] == "convolution"][on_engine]
    assert ours.tolist() == [forward, 2 * forward]
    assert counted(work) - forward > 2 * forward


@pytest.mark.parametrize(
    ("operation", "expected"),
    [
        (lambda: torch.mv(torch.ones(6, 5), torch.ones(5)), 2 * 6 * 5),
        (lambda: torch.addmv(torch.ones(6), torch.ones(6, 5), torch.ones(5)), 2 * 6 * 5 + 6),
        (lambda: torch.dot(torch.ones(9), torch.ones(9)), 2 * 9),
        (lambda: torch.addr(torch.ones(6, 5), torch.ones(6), torch.ones(5)), 3 * 6 * 5),
        (lambda: torch.outer(torch.ones(6), torch.ones(5)), 6 * 5),
    ],
)
def test_vector_products_have_a_price_where_the_counter_gives_none(operation, expected, recorded):
    assert counted(operation) == 0
    costs = recorded(operation)
    assert costs["matrix_flops"].sum() == 0
    assert costs[costs["family"].isin([*ENGINES, "pointwise"])]["vector_flops"].sum() == expected


def int8(*shape: int):
    return torch.ones(shape, dtype=torch.int8)


def half(*shape: int):
    return torch.ones(shape, dtype=torch.bfloat16)


@pytest.mark.parametrize(
    ("operation", "expected"),
    [
        (lambda: torch.addbmm(torch.ones(3, 4), torch.ones(2, 3, 5), torch.ones(2, 5, 4)), 2 * 2 * 3 * 4 * 5),
        (lambda: torch._int_mm(int8(32, 16), int8(16, 8)), 2 * 32 * 16 * 8),
        (
            lambda: torch._grouped_mm(half(8, 16), half(2, 16, 8), torch.tensor([4, 8], dtype=torch.int32)),
            2 * 8 * 16 * 8,
        ),
    ],
)
def test_products_that_the_counter_does_not_know_are_modelled(operation, expected, recorded):
    assert counted(operation) == 0
    assert engine_flops(recorded(operation)) == expected


def test_a_bias_that_is_copied_first_is_paid_for_beside_the_product(recorded):
    costs = recorded(lambda: torch.nn.Linear(24, 40)(torch.randn(6, 24)))
    assert {"aten::addmm", "aten::copy_"} <= set(costs["name"])
    assert "aten::linear" not in set(costs["name"])
