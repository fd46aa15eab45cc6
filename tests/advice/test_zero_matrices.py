"""Rule of dense products with a matrix that holds next to nothing but zeros."""

from pathlib import Path

from bottleneck.advice.zero_matrices import zero_matrix_product
from bottleneck.schema.measurements import OddTensor, ValuesLook
from tests.advice.cases import program_line, two_steps, with_recording
from tests.builders import op

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
