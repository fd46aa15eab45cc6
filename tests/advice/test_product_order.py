"""Rule of chains of products that are multiplied in an order that costs more than another."""

from pathlib import Path

import pytest

from bottleneck.advice import advise
from bottleneck.advice.product_order import diagonal_product, product_order
from bottleneck.schema.evidence import Evidence
from tests.advice.cases import case_of, program_line, two_steps, with_recording
from tests.builders import Event, op, step

Q, KT, V, SCORES = [4, 1024, 32], [4, 32, 1024], [4, 1024, 32], [4, 1024, 1024]
MODEL = [program_line(14, 700, 250), op("aten::mm", 710, 200, dims=[[64, 64], [64, 64]])]
ONE_LINE = "out = q @ k.transpose(-2, -1) @ v / norm"


def product(name: str, ts: float, *dims: list[int], dur: float = 250) -> list[Event]:
    """A product, as matmul calls it."""
    return [op("aten::matmul", ts, dur, dims=dims), op(f"aten::{name}", ts + 1, dur - 2, dims=dims)]


def chained(folder: Path, *between: Event, text: str | None = ONE_LINE, second: int = 22) -> Evidence:
    """Products of 1024 x 32 numbers by way of 1024 x 1024, at train.py:22."""
    body = [
        program_line(22, 100, 570 if second == 22 else 265),
        *product("bmm", 110, Q, KT),
        *between,
        *([] if second == 22 else [program_line(second, 390, 280)]),
        *product("bmm", 400, SCORES, V),
        *MODEL,
    ]
    made = two_steps(folder, body)
    return (
        made if text is None else with_recording(made, source_texts={"train.py:22": text, "train.py:23": "o = a @ v"})
    )


def test_the_order_with_less_arithmetic_is_told(tmp_path: Path) -> None:
    evidence = chained(tmp_path)
    draft = product_order(evidence)
    assert draft is not None and draft.gain_us is not None and draft.removes
    assert "at train.py:22" in draft.advice and "A (B C)" in draft.advice and "32 times fewer" in draft.advice
    assert 400 < draft.gain_us.low < draft.gain_us.high < 500
    assert advise(evidence)[0].slug == "product-order"


@pytest.mark.parametrize("square", [False, True])
def test_without_lines_sizes_tell_where_no_other_tensor_has_them(tmp_path: Path, square: bool) -> None:
    """A linear attention of a public trace's kind: 640 x 24, 24 x 640, 640 x 24."""
    left, right = ([[4, 256, 256]] * 2 if square else [Q, KT]), ([[4, 256, 256]] * 2 if square else [SCORES, V])
    events: list[Event] = []
    for number in range(2):
        at = 1000.0 * number
        events += [step(number, at, 999), *product("bmm", at + 110, *left), *product("bmm", at + 400, *right)]
    draft = product_order(case_of(tmp_path, events, unprofiled_us=1000.0))
    assert (draft is None) == square
    if draft is not None:
        assert draft.advice.startswith("Multiply in the order in which the small product comes first")
        assert draft.places == (None,) and "per step, with nothing between" in draft.evidence[0]


def test_views_copies_and_numbers_may_stand_between(tmp_path: Path) -> None:
    for name, dims in (("mul", [SCORES, []]), ("div", [SCORES, []]), ("clone", [SCORES, []])):
        assert product_order(chained(tmp_path / name, op(f"aten::{name}", 365, 20, dims=dims))) is not None


@pytest.mark.parametrize("name", ["_softmax", "relu", "mul", "masked_fill"])
def test_other_ops_between_break_a_chain(tmp_path: Path, name: str) -> None:
    between = op(f"aten::{name}", 365, 20, dims=[SCORES, SCORES] if name == "mul" else [SCORES, []])
    assert product_order(chained(tmp_path, between)) is None


def test_products_at_two_lines_hang_together_by_a_name(tmp_path: Path) -> None:
    linked = chained(tmp_path / "linked", text="a = q @ k.mT", second=23)
    assert product_order(linked) is not None
    assert product_order(chained(tmp_path / "other", text="b = q @ k.mT", second=23)) is None
    assert product_order(chained(tmp_path / "unknown", text=None, second=23)) is None


def test_two_products_at_one_line_are_no_chain(tmp_path: Path) -> None:
    assert product_order(chained(tmp_path / "sum", text="out = (q @ k.mT).sum() + (a @ v).sum()")) is None
    # Without a text the sizes have to tell.
    assert product_order(chained(tmp_path / "sizes", text=None)) is not None


def test_a_matrix_times_a_matrix_times_a_vector(tmp_path: Path) -> None:
    body = [
        program_line(22, 100, 570),
        *product("mm", 110, [600, 600], [600, 600]),
        *product("mv", 400, [600, 600], [600], dur=50),
        *MODEL,
    ]
    draft = product_order(with_recording(two_steps(tmp_path, body), source_texts={"train.py:22": "y = A @ B @ x"}))
    assert draft is not None and "C 600x1 multiply A (B C)" in draft.advice


def test_the_best_order_is_left_alone(tmp_path: Path) -> None:
    body = [
        program_line(22, 100, 570),
        *product("bmm", 110, KT, V),
        *product("bmm", 400, Q, [4, 32, 32]),
        *MODEL,
    ]
    text = {"train.py:22": "out = q @ (k.mT @ v)"}
    assert product_order(with_recording(two_steps(tmp_path, body), source_texts=text)) is None


def scaled(folder: Path, before: str, after: str, maker: str = "diag") -> Evidence:
    """A vector of 512 numbers made into a matrix at train.py:21, and a product with it at train.py:22."""
    body = [
        program_line(21, 90, 15),
        op(f"aten::{maker}", 95, 8, dims=[[512], []]),
        program_line(22, 108, 550),
        *product("mm", 110, [512, 512], [512, 64], dur=500),
        *MODEL,
    ]
    return with_recording(two_steps(folder, body), source_texts={"train.py:21": before, "train.py:22": after})


def test_a_diagonal_matrix_is_not_multiplied(tmp_path: Path) -> None:
    evidence = scaled(tmp_path, "d = torch.diag(scale)", "y = d @ x")
    draft = diagonal_product(evidence)
    assert draft is not None and draft.gain_us is not None and draft.removes
    assert "by the vector at train.py:22" in draft.advice and 250 < draft.gain_us.low < draft.gain_us.high < 520
    assert advise(evidence)[0].slug == "diagonal-product"


def test_other_products_of_these_sizes_are_left_alone(tmp_path: Path) -> None:
    assert diagonal_product(scaled(tmp_path / "other", "d = torch.diag(scale)", "y = w @ x")) is None
    assert diagonal_product(scaled(tmp_path / "eye", "d = f(scale)", "y = d @ x", "relu")) is None


def adapted(folder: Path, rows: int = 64, rank: int = 16, between: str = "add") -> Evidence:
    """A layer whose weight of 2048 x 512 numbers is made of two factors at train.py:22, for so many rows."""
    weight = [2048, 512]
    return two_steps(
        folder,
        [
            program_line(22, 100, 420),
            *product("mm", 110, [2048, rank], [rank, 512], dur=150),
            op("aten::mul", 270, 80, dims=[weight, []]),
            op(f"aten::{between}", 360, 150, dims=[weight, weight, []]),
            program_line(23, 530, 120),
            op("aten::linear", 540, 100, dims=[[rows, 512], weight, [2048]]),
            op("aten::addmm", 541, 98, dims=[[2048], [rows, 512], [512, 2048]]),
        ],
    )


def test_a_weight_made_of_two_factors_for_few_rows_is_not_made(tmp_path: Path) -> None:
    evidence = adapted(tmp_path)
    draft = product_order(evidence)
    assert draft is not None and draft.gain_us is not None and draft.removes
    assert "at train.py:22" in draft.advice and "2048x512 of 16 columns, for 64 rows" in draft.evidence[0]
    assert 200 < draft.gain_us.low < draft.gain_us.high < 380
    assert advise(evidence)[0].slug == "product-order"


def test_a_weight_that_many_rows_share_or_of_wide_factors_is_left_alone(tmp_path: Path) -> None:
    assert product_order(adapted(tmp_path / "rows", rows=512)) is None
    assert product_order(adapted(tmp_path / "wide", rank=256)) is None
    assert product_order(adapted(tmp_path / "other", between="maximum")) is None
