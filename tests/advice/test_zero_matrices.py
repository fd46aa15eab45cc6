"""Rules of matrices that hold next to nothing but zeros: dense products, and attention that is masked out."""

from pathlib import Path

import pytest

from bottleneck.advice.zero_matrices import masked_attention, zero_matrix_product, zeros_not_known
from bottleneck.schema.measurements import OddTensor, ValuesLook
from tests.advice.cases import program_line, two_steps, with_recording
from tests.builders import Event, in_graph, op

LINKS = OddTensor("variable", "A", sizes=(1500, 1500), source="train.py:5", zero_share=0.997)


def test_a_product_with_a_matrix_of_zeros_is_named_with_both_lines(tmp_path: Path) -> None:
    product = op("aten::mm", 110, 500, dims=[[1500, 1500], [1500, 64]])
    case = two_steps(tmp_path, [program_line(11, 100, 520), product], source_texts={"train.py:11": "h = A @ x"})
    draft = zero_matrix_product(with_recording(case, values=ValuesLook(1000, zeros=(LINKS,))))
    assert draft is not None and draft.gain_us is not None and draft.removes
    assert "at train.py:11" in draft.advice and "A at" not in draft.advice and "sparse" in draft.advice
    assert "made at train.py:5" in draft.evidence[0] and "99.7 %" in draft.evidence[0]
    assert 470 < draft.gain_us.low < draft.gain_us.high <= 510
    other = OddTensor("variable", "B", sizes=(1500, 1400), zero_share=0.997)
    assert zero_matrix_product(with_recording(case, values=ValuesLook(1000, zeros=(other,)))) is None
    assert zero_matrix_product(with_recording(case, values=ValuesLook(1000))) is None


def test_a_sparse_matrix_is_turned_anew_in_each_backward_pass(tmp_path: Path) -> None:
    """22.6 ms of a dense product and its backward pass became 1.24 ms by to_sparse_csr, of which 1.06 ms backward."""
    links = OddTensor("variable", "A", sizes=(2708, 2708), source="train.py:5", zero_share=0.998)
    product = op("aten::mm", 110, 11_300, dims=[[2708, 2708], [2708, 64]])
    node = "autograd::engine::evaluate_function: MmBackward0"
    backward = [
        in_graph(op(node, 12_000, 11_310), 1, 1),
        op("aten::mm", 12_002, 11_300, dims=[[2708, 2708], [2708, 64]]),
    ]
    texts = {"train.py:11": "h = A @ x"}
    gains = []
    for events in ([product], [product, *backward]):
        case = two_steps(
            tmp_path / str(len(events)), [program_line(11, 100, 11_320), *events], 25_000.0, source_texts=texts
        )
        draft = zero_matrix_product(with_recording(case, values=ValuesLook(1000, zeros=(links,))))
        assert draft is not None and draft.gain_us is not None
        gains.append(draft.gain_us)
    forward, both = gains
    assert both.low <= 22_600 - 1240 <= both.high
    turned_us = 2 * forward.low - both.low
    assert 1060 < turned_us < 2000 and both.high == pytest.approx(2 * forward.high, rel=0.01)


@pytest.mark.parametrize(
    ("text", "is_taken"),
    [
        ("h = A @ x", True),
        ("h = A.mm(x)", True),
        ("h = torch.mm(A, x)", True),
        ("h = W @ A_x", False),
        ("h = net.A @ x", False),
    ],
)
def test_a_matrix_that_is_made_anew_is_known_by_the_line_that_multiplies_it(
    tmp_path: Path, text: str, is_taken: bool
) -> None:
    product = op("aten::mm", 110, 500, dims=[[900, 1300], [1300, 64]])
    case = two_steps(tmp_path, [program_line(11, 100, 520), product], source_texts={"train.py:11": text})
    draft = zero_matrix_product(with_recording(case, values=ValuesLook(1000, zeros=(LINKS,))))
    assert (draft is not None) == is_taken


def test_the_making_of_the_matrix_in_the_step_goes_with_its_product(tmp_path: Path) -> None:
    events = [
        program_line(10, 100, 210),
        op("aten::div", 110, 190, dims=[[1500, 1500], [1500, 1]]),
        op("aten::add", 302, 5, dims=[[64, 64], [64, 64]]),
        program_line(11, 320, 420),
        op("aten::mm", 330, 400, dims=[[1500, 1500], [1500, 64]]),
    ]
    texts = {"train.py:10": "A = A / A.sum(1, keepdim=True)", "train.py:11": "h = A @ x"}
    case = two_steps(tmp_path, events, source_texts=texts)
    draft = zero_matrix_product(with_recording(case, values=ValuesLook(1000, zeros=(LINKS,))))
    assert (
        draft is not None and draft.gain_us is not None and draft.evidence[1].endswith("with the making of the matrix")
    )
    assert 0.9 * 590 < draft.gain_us.low < draft.gain_us.high <= 600


@pytest.mark.parametrize("is_new", [True, False])
def test_a_matrix_that_each_step_has_anew_has_to_be_looked_through(tmp_path: Path, is_new: bool) -> None:
    """Bags of words: 98 % zeros, but finding the others in 8 million numbers takes 16 to 40 ms of each step."""
    events = [
        program_line(10, 100, 410),
        *([op("aten::div", 110, 390, dims=[[1000, 8000], [1000, 1]])] if is_new else []),
        program_line(11, 520, 90_020),
        op("aten::mm", 530, 90_000, dims=[[1000, 8000], [8000, 800]]),
    ]
    texts = {"train.py:10": "x = counts / counts.sum(1, keepdim=True)", "train.py:11": "h = words @ w"}
    case = two_steps(tmp_path, events, length_us=100_000.0, source_texts=texts)
    bags = OddTensor("variable", "words", sizes=(1000, 8000), zero_share=0.984, source="train.py:11")
    draft = zero_matrix_product(with_recording(case, values=ValuesLook(1000, zeros=(bags,))))
    assert draft is not None and draft.gain_us is not None
    whole_us = (0.76 * 90_000, 0.952 * 90_000)
    lost_us = (40_000, 16_000) if is_new else (0, 0)
    assert draft.gain_us.low == pytest.approx(whole_us[0] - lost_us[0], rel=0.02)
    assert draft.gain_us.high == pytest.approx(whole_us[1] - lost_us[1], rel=0.02)
    assert any("another such matrix" in words for words in draft.evidence) is is_new


PAIRS = [4, 1500, 1500]


def _attention() -> list[Event]:
    """A step of attention over all pairs, which the line at train.py:10 masks."""
    return [
        program_line(10, 90, 430),
        op("aten::bmm", 100, 100, dims=[[4, 1500, 8], [4, 8, 1500]]),
        op("aten::where", 210, 100, dims=[[1500, 1500], PAIRS, PAIRS]),
        op("aten::_softmax", 320, 100, dims=[PAIRS, [], []]),
        op("aten::mm", 430, 50, dims=[[64, 64], [64, 64]]),
    ]


@pytest.mark.parametrize(
    ("text", "is_left_out"),
    [
        ("e = torch.where(A > 0, e, low)", True),
        ("e = torch.where(self.A.bool(), e, low)", True),
        ("e = torch.where(A == 0, low, e)", False),
        ("e = e.masked_fill(A == 0, -9e15)", True),
        ("e = e.masked_fill(~self.A, float('-inf'))", True),
        ("e = e.masked_fill(A, float('-inf'))", False),
        ("e = torch.where(B > 0, e, low)", False),
    ],
)
def test_attention_of_which_a_mask_keeps_next_to_nothing_is_named(tmp_path: Path, text: str, is_left_out: bool) -> None:
    case = with_recording(
        two_steps(tmp_path, _attention(), source_texts={"train.py:10": text}), values=ValuesLook(1000, zeros=(LINKS,))
    )
    draft = masked_attention(case)
    assert (draft is not None) == is_left_out
    if draft is not None:
        assert draft.gain_us is not None and 280 < draft.gain_us.low <= 320
        # Tensors of all pairs go back to the system between ops: at most all of that time goes with them.
        between_us = sum(row.us for row in case.analysis.idle if row.cause == "python")
        assert 300 < draft.gain_us.high <= 300 + between_us
        assert "train.py:10" in draft.advice and "made at train.py:5" in draft.evidence[0]
        assert zero_matrix_product(case) is None


def test_a_mask_of_links_that_masks_no_scores_is_left_alone(tmp_path: Path) -> None:
    text = "e = torch.where(A > 0, e, low)"
    without_softmax = [event for event in _attention() if event["name"] != "aten::_softmax"]
    case = two_steps(tmp_path, without_softmax, source_texts={"train.py:10": text})
    assert masked_attention(with_recording(case, values=ValuesLook(1000, zeros=(LINKS,)))) is None


SQUARE, FEATURES = [1500, 1500], op("aten::mm", 100, 40, dims=[[1500, 256], [256, 64]])
SPREAD = op("aten::mm", 150, 500, dims=[SQUARE, [1500, 64]])


def test_a_square_matrix_that_no_step_makes_is_asked_about(tmp_path: Path) -> None:
    backward = op("aten::mm", 660, 200, dims=[SQUARE, [1500, 64]], strides=[[1, 1500], [64, 1]])
    evidence = two_steps(tmp_path, [program_line(11, 90, 565), FEATURES, SPREAD, backward])
    draft = zeros_not_known(evidence)
    assert draft is not None and draft.slug == "zero-matrix-product" and draft.gain_us is None and draft.comes_first
    assert draft.advice.startswith("If the matrix of 1500x1500 at train.py:11 is mostly zeros (an adjacency)")
    assert "2 products per step" in draft.evidence[0]
    assert zeros_not_known(with_recording(evidence, values=ValuesLook(1000))) is None


@pytest.mark.parametrize(
    ("other", "why"),
    [
        (op("aten::mm", 660, 200, dims=[[1500, 64], [64, 1500]]), "its gradient is made"),
        (op("aten::div", 660, 200, dims=[SQUARE, [1500, 1]]), "it is made in the step"),
        (op("aten::mm", 660, 200, dims=[[64, 1500], SQUARE]), "it is data in the gradient of a weight"),
    ],
)
def test_a_square_matrix_that_is_no_adjacency_is_left_alone(tmp_path: Path, other: Event, why: str) -> None:
    assert zeros_not_known(two_steps(tmp_path, [FEATURES, SPREAD, other])) is None, why


def test_a_small_or_wide_product_and_one_without_rows_of_data_are_left_alone(tmp_path: Path) -> None:
    assert zeros_not_known(two_steps(tmp_path / "alone", [SPREAD])) is None
    wide = op("aten::mm", 150, 500, dims=[SQUARE, [1500, 1500]])
    assert zeros_not_known(two_steps(tmp_path / "wide", [FEATURES, wide])) is None
    small = [op("aten::mm", 100, 40, dims=[[200, 64], [64, 8]]), op("aten::mm", 150, 500, dims=[[200, 200], [200, 8]])]
    assert zeros_not_known(two_steps(tmp_path / "small", small)) is None
    little = SPREAD | {"dur": 100}
    assert zeros_not_known(two_steps(tmp_path / "little", [FEATURES, little])) is None
