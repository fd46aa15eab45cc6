"""Rule of iterations in logarithms that exponentiate the same matrix in each round."""

from pathlib import Path

from bottleneck.advice import advise
from bottleneck.advice.log_domain import log_domain_rounds
from bottleneck.schema.evidence import Evidence
from tests.advice.cases import program_line, two_steps
from tests.builders import Event, op

COST = [128, 128]
MODEL = [program_line(50, 900, 80), op("aten::mm", 910, 60, dims=[[64, 64], [64, 64]])]


def rounds(count: int, vector: list[int], size: list[int] = COST, other: list[int] = COST) -> list[Event]:
    """So many rounds at train.py:26 of 50 us each: a difference, a division and a logsumexp."""
    events: list[Event] = [program_line(26, 100, 60.0 * count)]
    for number in range(count):
        at = 102 + 60.0 * number
        events += [
            op("aten::sub", at, 15, dims=[vector, other, []]),
            op("aten::div", at + 16, 10, dims=[size, []]),
            op("aten::logsumexp", at + 27, 25, dims=[size, [], []], concrete=["", "[1]", "True"]),
        ]
    return events


def case(folder: Path, body: list[Event]) -> Evidence:
    return two_steps(folder, [*body, *MODEL])


def test_rounds_that_take_a_vector_from_a_matrix_are_products(tmp_path: Path) -> None:
    evidence = case(tmp_path, rounds(12, [128, 1]))
    draft = log_domain_rounds(evidence)
    assert draft is not None and draft.gain_us is not None and draft.removes
    assert "products of a matrix and a vector at train.py:26: 12 times per step 128x128" in draft.advice
    assert 200 < draft.gain_us.low < draft.gain_us.high < 720
    assert advise(evidence)[0].slug == "log-domain-rounds"
    # A chain: states of a batch, and one matrix of transitions.
    chain = log_domain_rounds(case(tmp_path / "chain", rounds(12, [16, 32, 1], [16, 32, 32], [32, 32])))
    assert chain is not None and "16x32x32" in chain.advice


def test_softmax_after_softmax_along_another_dimension_is_the_same(tmp_path: Path) -> None:
    soft = [
        op("aten::log_softmax", 110 + 60.0 * at, 50, dims=[COST, [], []], concrete=["", str(at % 2), ""])
        for at in range(12)
    ]
    draft = log_domain_rounds(case(tmp_path, [program_line(26, 100, 740), *soft]))
    assert draft is not None and "at train.py:26" in draft.advice
    # Along one dimension, of one layer after the other.
    heads = [
        op("aten::log_softmax", 110 + 60.0 * at, 50, dims=[COST, [], []], concrete=["", "1", ""]) for at in range(12)
    ]
    assert log_domain_rounds(case(tmp_path / "heads", [program_line(26, 100, 740), *heads])) is None


def test_rows_and_columns_that_are_normalised_in_turn_are_rounds(tmp_path: Path) -> None:
    for name, turns in (("turns", True), ("layers", False)):
        body: list[Event] = [program_line(26, 100, 740)]
        for at in range(12):
            dim = str(at % 2 if turns else 1)
            body += [
                op("aten::logsumexp", 110 + 60.0 * at, 30, dims=[COST, [], []], concrete=["", f"[{dim}]", "True"]),
                op("aten::sub", 141 + 60.0 * at, 10, dims=[COST, [128, 1], []]),
                op("aten::mul" if turns else "aten::linear", 152 + 60.0 * at, 10, dims=[COST, COST, []]),
            ]
        assert (log_domain_rounds(case(tmp_path / name, body)) is not None) == turns


def test_few_rounds_small_matrices_and_differences_of_matrices_are_left_alone(tmp_path: Path) -> None:
    assert log_domain_rounds(case(tmp_path / "few", rounds(4, [128, 1]))) is None
    assert log_domain_rounds(case(tmp_path / "small", rounds(12, [8, 1], [8, 8], [8, 8]))) is None
    assert log_domain_rounds(case(tmp_path / "alike", rounds(12, COST))) is None
