"""Rules of large tensors that are made only to be added up, or to meet others of their size."""

from pathlib import Path

import pytest

from bottleneck.advice import advise
from bottleneck.advice.broadcasts import broadcast_product, expanded_product, repeated_tensor, spread_product
from tests.advice.cases import program_line, two_steps
from tests.builders import Event, op

A, B, ALL = [256, 1, 64], [1, 256, 64], [256, 256, 64]


MODEL = [program_line(14, 700, 250), op("aten::mm", 710, 200, dims=[[64, 64], [64, 64]])]


def spread(name: str, axis: str = "[-1]", operands: tuple[list[int], list[int]] = (A, B)) -> list[Event]:
    """A broadcast at train.py:11 in 200 us, its squares in 200, and their sum in 100."""
    return [
        program_line(11, 100, 520),
        op(f"aten::{name}", 110, 200, dims=[*operands, []]),
        op("aten::pow", 310, 200, dims=[ALL, []]),
        op("aten::sum", 510, 100, dims=[ALL, [], [], []], concrete=["", axis, "False", ""]),
    ]


@pytest.mark.parametrize(("name", "way"), [("mul", "torch.matmul"), ("sub", "torch.cdist")])
def test_a_large_broadcast_that_is_added_up_is_a_product_of_matrices(tmp_path: Path, name: str, way: str) -> None:
    evidence = two_steps(tmp_path, [*spread(name), *MODEL])
    draft = spread_product(evidence)
    assert draft is not None and draft.gain_us is not None and draft.removes
    assert way in draft.advice and "at train.py:11" in draft.advice and "256x256x64" in draft.evidence[0]
    assert 400 < draft.gain_us.high <= 520 and (draft.gain_us.low > 400) == (name == "mul")
    assert advise(evidence)[0].slug == "spread-product"


@pytest.mark.parametrize(
    ("strides", "is_told"),
    [([[64, 0, 1], [0, 64, 1], []], True), ([[64 * 256, 64, 1], [64 * 256, 64, 1], []], False), (None, False)],
    ids=["expanded", "large themselves", "not recorded"],
)
def test_operands_that_were_expanded_are_as_small_as_they_were(
    tmp_path: Path, strides: list[list[int]] | None, is_told: bool
) -> None:
    """Distances by x.unsqueeze(1).expand(n, m, d) were not told to be products, those by broadcasting were."""
    events = spread("sub", operands=(ALL, ALL))
    events[1] = op("aten::sub", 110, 200, dims=[ALL, ALL, []], **({} if strides is None else {"strides": strides}))
    assert (spread_product(two_steps(tmp_path, [*events, *MODEL])) is not None) == is_told


def test_a_comparison_of_broadcast_operands_is_a_product_of_matrices(tmp_path: Path) -> None:
    def compared(operands: list[list[int]]) -> list[Event]:
        return [program_line(11, 100, 520), op("aten::cosine_similarity", 110, 500, dims=[*operands, [], []]), *MODEL]

    draft = spread_product(two_steps(tmp_path / "all", compared([A, B])))
    assert draft is not None and "of normalised rows" in draft.advice and "at train.py:11" in draft.advice
    assert spread_product(two_steps(tmp_path / "pairs", compared([ALL, ALL]))) is None


def test_other_sums_and_broadcasts_are_left_alone(tmp_path: Path) -> None:
    # Over a dimension that one of the operands does not have; of operands as large as the result; of another op.
    assert spread_product(two_steps(tmp_path / "axis", [*spread("mul", "[0]"), *MODEL])) is None
    assert spread_product(two_steps(tmp_path / "full", [*spread("mul", operands=(ALL, B)), *MODEL])) is None
    assert spread_product(two_steps(tmp_path / "add", [*spread("add"), *MODEL])) is None
    # The result is used by itself.
    used = [op("aten::relu", 310, 200, dims=[ALL]), *MODEL]
    assert spread_product(two_steps(tmp_path / "used", [*spread("sub")[:2], *used])) is None


@pytest.mark.parametrize(
    ("first", "last", "is_told"),
    [("unsqueeze", "sum", True), ("view", "sum", False), ("unsqueeze", "mean", True), ("unsqueeze", "relu", False)],
    ids=["a broadcast and a sum", "operands as they are", "a mean", "no sum"],
)
def test_without_sizes_a_dimension_that_is_added_and_summed_tells_it(
    tmp_path: Path, first: str, last: str, is_told: bool
) -> None:
    body = [
        program_line(11, 100, 520),
        op(f"aten::{first}", 102, 3),
        op("aten::sub", 110, 200),
        op("aten::pow", 310, 200),
        op(f"aten::{last}", 510, 100),
    ]
    draft = spread_product(two_steps(tmp_path, [*body, op("aten::mm", 710, 200)]))
    assert (draft is not None) is is_told
    if draft is not None:
        assert draft.confidence == "low" and "sizes were not recorded" in draft.evidence[0]


@pytest.mark.parametrize("name", ["repeat", "repeat_interleave"])
def test_a_tensor_that_is_repeated_is_to_be_broadcast(tmp_path: Path, name: str) -> None:
    repeat = op(f"aten::{name}", 110, 300, dims=[[64, 1024], []], concrete=["", "[1, 16]"])
    copy = op("aten::copy_", 111, 298, dims=[[64, 16384], [64, 16384], []])
    draft = repeated_tensor(two_steps(tmp_path / "long", [program_line(11, 100, 320), repeat, copy, *MODEL]))
    assert (
        draft is not None
        and draft.gain_us is not None
        and "Broadcast in place of repeating at train.py:11" in draft.advice
    )
    assert draft.gain_us.low < 200 < draft.gain_us.high
    short = [event | {"dur": 20} if event["cat"] == "cpu_op" else event for event in (repeat,)]
    assert repeated_tensor(two_steps(tmp_path / "short", [program_line(11, 100, 320), *short, *MODEL])) is None


def thin(rows: int = 1, stride: int = 0, dur: float = 500) -> list[Event]:
    """Rows of 256 places at train.py:11 that meet a matrix of 64 x 64."""
    product = op("aten::bmm", 110, dur, dims=[[256, rows, 64], [256, 64, 64]])
    strides = [[64 * rows, 64, 1], [stride, 64, 1]]
    return [program_line(11, 100, dur + 20), product | {"args": product["args"] | {"Input Strides": strides}}, *MODEL]


def test_a_matrix_that_is_expanded_over_a_batch_is_multiplied_once(tmp_path: Path) -> None:
    evidence = two_steps(tmp_path, thin())
    draft = expanded_product(evidence)
    assert draft is not None and draft.gain_us is not None and draft.removes
    assert "one matrix of 64x64 at train.py:11" in draft.advice and "256 places" in draft.evidence[0]
    assert 0 < draft.gain_us.low < draft.gain_us.high < 520
    assert advise(evidence)[0].slug == "expanded-product"


def test_products_of_many_rows_or_of_matrices_of_their_own_are_left_alone(tmp_path: Path) -> None:
    assert expanded_product(two_steps(tmp_path / "own", thin(stride=4096))) is None
    assert expanded_product(two_steps(tmp_path / "many", thin(rows=64))) is None
    assert expanded_product(two_steps(tmp_path / "short", thin(dur=20))) is None


CAPSULES = ([1, 32, 1152, 1, 8], [10, 1, 1152, 8, 16])


@pytest.mark.parametrize(
    ("operands", "is_told"),
    [
        (CAPSULES, True),
        (([10, 32, 1152, 1, 8], [10, 32, 1152, 8, 16]), False),  # nothing is broadcast
        (([1, 32, 1152, 1, 8], [10, 32, 1152, 8, 16]), False),  # one operand has all dimensions
        (([1, 32, 12, 1, 8], [10, 1, 12, 8, 16]), False),  # 3,840 products
        (([1, 32, 1152, 64, 64], [10, 1, 1152, 64, 64]), False),  # large ones
    ],
)
def test_a_matmul_of_broadcast_stacks_of_tiny_matrices_is_an_einsum(
    tmp_path: Path, operands: tuple[list[int], list[int]], is_told: bool
) -> None:
    events = [
        program_line(12, 90, 620),
        op("aten::matmul", 100, 600, dims=list(operands)),
        op("aten::copy_", 105, 190, dims=[[368640, 8, 16], [368640, 8, 16], []]),
        op("aten::bmm", 300, 390, dims=[[368640, 1, 8], [368640, 8, 16]]),
    ]
    draft = broadcast_product(two_steps(tmp_path, events))
    assert (draft is not None) == is_told
    if draft is not None:
        assert "einsum" in draft.advice and "train.py:12" in draft.advice
        assert "makes 368,640 products of 1x8 and 8x16" in draft.evidence[0]
        assert draft.gain_us is not None and 0.7 * 580 < draft.gain_us.low < draft.gain_us.high
