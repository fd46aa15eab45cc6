"""Rules of norms and activations that are written out op by op."""

from collections.abc import Sequence
from pathlib import Path

import pytest

from bottleneck.advice import advise
from bottleneck.advice.written_layers import written_activation, written_norm
from bottleneck.schema.evidence import Evidence
from tests.advice.cases import program_line, two_steps
from tests.builders import Event, op

WIDE, COLUMN, VECTOR, NUMBER = [8, 128, 512], [8, 128, 1], [512], list[int]()
Step = tuple[str, Sequence[Sequence[int]], str]
LAYER_NORM: list[Step] = [
    ("mean", [WIDE], "[-1]"),
    ("sub", [WIDE, COLUMN], ""),
    ("pow", [WIDE, NUMBER], "2"),
    ("mean", [WIDE], "[-1]"),
    ("sub", [WIDE, COLUMN], ""),
    ("add", [COLUMN, NUMBER], ""),
    ("sqrt", [COLUMN], ""),
    ("div", [WIDE, COLUMN], ""),
    ("mul", [VECTOR, WIDE], ""),
    ("add", [WIDE, VECTOR], ""),
]
TANH: list[Step] = [
    ("mul", [WIDE, NUMBER], ""),
    ("pow", [WIDE, NUMBER], "3"),
    ("mul", [WIDE, NUMBER], ""),
    ("add", [WIDE, WIDE], ""),
    ("mul", [WIDE, NUMBER], ""),
    ("tanh", [WIDE], ""),
    ("add", [WIDE, NUMBER], ""),
    ("mul", [WIDE, WIDE], ""),
]
ERF: list[Step] = [
    ("mul", [WIDE, NUMBER], ""),
    ("div", [WIDE, NUMBER], ""),
    ("erf", [WIDE], ""),
    ("add", [WIDE, NUMBER], ""),
    ("mul", [WIDE, WIDE], ""),
]
RMS_NORM: list[Step] = [
    ("pow", [WIDE, NUMBER], "2"),
    ("mean", [WIDE], "[-1]"),
    ("add", [COLUMN, NUMBER], ""),
    ("rsqrt", [COLUMN], ""),
    ("mul", [WIDE, COLUMN], ""),
    ("mul", [VECTOR, WIDE], ""),
]


def case(folder: Path, steps: Sequence[Step]) -> Evidence:
    """A residual sum, these ops of 40 us at train.py:12, a product, and a sum that is no part of them."""
    events: list[Event] = [op("aten::add", 50, 10, dims=[WIDE, WIDE, []])]
    for number, (name, sizes, second) in enumerate(steps):
        events.append(op(f"aten::{name}", 110 + 42 * number, 40, dims=[*sizes], concrete=["", second]))
    line = program_line(12, 100, 42.0 * len(steps) + 10)
    return two_steps(folder, [line, *events, op("aten::mm", 700, 200, dims=[[64, 64], [64, 64]])])


@pytest.mark.parametrize(
    ("steps", "call", "left"),
    [(TANH, 'F.gelu(x, approximate="tanh")', (0.3, 0.8)), (ERF, "F.gelu at", (0.15, 0.4))],
)
def test_gelu_by_tanh_or_erf_is_one_call(
    tmp_path: Path, steps: list[Step], call: str, left: tuple[float, float]
) -> None:
    evidence = case(tmp_path, steps)
    draft = written_activation(evidence)
    assert draft is not None and draft.gain_us is not None and draft.removes
    assert (
        call in draft.advice and "at train.py:12" in draft.advice and f"{len(steps)} ops in a row" in str(draft.brief)
    )
    least, most = left
    assert draft.gain_us.low == pytest.approx((1 - most) * 40 * len(steps), rel=0.05)
    assert draft.gain_us.high == pytest.approx((1 - least) * 40 * len(steps), rel=0.05)
    assert sum(draft.claims.values()) == pytest.approx(draft.gain_us.high)
    assert written_norm(evidence) is None


def test_a_layer_norm_is_one_call_from_its_mean_to_its_bias(tmp_path: Path) -> None:
    evidence = case(tmp_path, LAYER_NORM)
    draft = written_norm(evidence)
    assert draft is not None and "F.layer_norm at train.py:12" in draft.advice and "10 ops" in (draft.brief or "")
    assert advise(evidence)[0].slug == "written-norm" and written_activation(evidence) is None


def test_rms_norm_on_a_cpu_and_other_uses_of_these_functions_are_left_alone(tmp_path: Path) -> None:
    """On a CPU F.rms_norm runs the same ops; a tanh by itself, and a root of a whole tensor, are no such layer."""
    assert written_norm(case(tmp_path / "rms", RMS_NORM)) is None
    bare: list[Step] = [("mul", [WIDE, NUMBER], ""), ("tanh", [WIDE], ""), ("mul", [WIDE, WIDE], "")]
    assert written_activation(case(tmp_path / "tanh", bare)) is None
    whole: list[Step] = [
        ("pow", [WIDE, NUMBER], "2"),
        ("mean", [WIDE], ""),
        ("sqrt", [WIDE], ""),
        ("div", [WIDE] * 2, ""),
    ]
    assert written_norm(case(tmp_path / "root", whole)) is None
