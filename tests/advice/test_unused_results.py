"""Rule of ops whose result is far larger than what the program takes from it."""

from pathlib import Path

import pytest

from bottleneck.advice import advise
from bottleneck.advice.unused_results import unused_result
from bottleneck.schema.evidence import Evidence
from tests.advice.cases import case_of, program_line, two_steps
from tests.builders import Event, op, step

MODEL = [program_line(14, 700, 250), op("aten::mm", 710, 200, dims=[[64, 64], [64, 64]])]
DATA = [8000, 3, 32, 32]


def sliced(size: list[int], start: int, end: int, ts: float = 520, axis: int = 0) -> Event:
    return op("aten::slice", ts, 5, dims=[size, [], [], [], []], concrete=["", str(axis), str(start), str(end), "1"])


def picked(size: list[int], axis: int = 1, ts: float = 520) -> Event:
    return op("aten::select", ts, 5, dims=[size, [], []], concrete=["", str(axis), "-1"])


def test_an_index_of_all_rows_that_is_sliced_is_to_be_sliced_first(tmp_path: Path) -> None:
    index = op("aten::index", 110, 400, dims=[DATA, []])
    evidence = two_steps(tmp_path, [program_line(34, 100, 430), index, sliced(DATA, 64, 128), *MODEL])
    draft = unused_result(evidence)
    assert draft is not None and draft.gain_us is not None and draft.removes and draft.confidence == "high"
    assert "Slice the index first at train.py:34" in draft.advice and "0.8 %" in draft.evidence[0]
    assert 0.85 * 400 < draft.gain_us.low < draft.gain_us.high <= 400
    assert advise(evidence)[0].slug == "unused-result"


def test_logits_of_which_the_last_are_used_are_computed_for_all(tmp_path: Path) -> None:
    linear = op("aten::linear", 110, 400, dims=[[4, 100, 64], [5000, 64], [5000]])
    logits = [4, 100, 5000]
    body = [program_line(34, 100, 415), linear, program_line(35, 516, 50)]
    draft = unused_result(
        two_steps(tmp_path / "last", [*body, sliced(logits, 0, 4, 518), picked(logits, 1, 530), *MODEL])
    )
    assert draft is not None and "Take the part that is used at train.py:35 ahead of aten::linear" in draft.advice
    # The loss reads all of them.
    loss = op("aten::log_softmax", 540, 20, dims=[logits, [], []])
    assert unused_result(two_steps(tmp_path / "loss", [*body, picked(logits, 1, 520), loss, *MODEL])) is None
    # One position after the other is all of them.
    each = [picked([4, 2, 5000], 1, 520), picked([4, 2, 5000], 1, 530)]
    two = op("aten::linear", 110, 400, dims=[[4, 2, 64], [5000, 64], [5000]])
    assert (
        unused_result(
            two_steps(tmp_path / "each", [program_line(34, 100, 415), two, program_line(35, 516, 50), *each, *MODEL])
        )
        is None
    )


def test_the_diagonal_of_a_product_is_a_sum(tmp_path: Path) -> None:
    product = op("aten::matmul", 110, 400, dims=[[500, 64], [64, 500]])
    diagonal = op("aten::diagonal", 520, 5, dims=[[500, 500], [], [], []], concrete=["", "0", "0", "1"])
    draft = unused_result(two_steps(tmp_path, [program_line(34, 100, 430), product, diagonal, *MODEL]))
    assert draft is not None and draft.code is not None and "(a * b).sum(-1)" in draft.code
    assert "Multiply row by row at train.py:34" in draft.advice
    # Its trace too, but not some of its rows.
    trace = op("aten::trace", 520, 5, dims=[[500, 500]])
    draft = unused_result(two_steps(tmp_path / "trace", [program_line(34, 100, 430), product, trace, *MODEL]))
    assert draft is not None and "(a * b).sum()" in draft.advice
    first = sliced([500, 500], 0, 10)
    draft = unused_result(two_steps(tmp_path / "rows", [program_line(34, 100, 430), product, first, *MODEL]))
    assert draft is not None and "slice or select its input" in draft.advice


def test_a_sort_of_which_few_values_are_taken_is_a_selection(tmp_path: Path) -> None:
    sort = op("aten::sort", 110, 400, dims=[[64, 10000], [], []], concrete=["", "1", "True"])
    draft = unused_result(
        two_steps(tmp_path, [program_line(34, 100, 430), sort, sliced([64, 10000], 0, 10, axis=1), *MODEL])
    )
    assert draft is not None and draft.gain_us is not None and "torch.topk" in draft.advice
    # Ten of 10,000 leave at least 2 % and at most 18 % of the sort.
    assert draft.gain_us.low == pytest.approx(0.9 * (1 - 0.15 - 0.001**0.5) * 400, rel=0.02)
    assert draft.gain_us.high == pytest.approx(0.98 * 400, rel=0.02)


def test_what_is_sorted_is_computed_for_a_selection_too(tmp_path: Path) -> None:
    product = op("aten::matmul", 110, 300, dims=[[64, 32], [32, 10000]])
    sort = op("aten::argsort", 410, 100, dims=[[64, 10000], [], []], concrete=["", "1", "True"])
    few = sliced([64, 10000], 0, 10, axis=1)
    draft = unused_result(two_steps(tmp_path, [program_line(34, 100, 430), product, sort, few, *MODEL]))
    assert draft is not None and draft.gain_us is not None and draft.gain_us.high <= 100


@pytest.mark.parametrize("name", ["sort", "argsort"])
def test_scores_that_are_gathered_at_the_first_places_do_not_need_the_sort(tmp_path: Path, name: str) -> None:
    size = [64, 10000]
    order = op(f"aten::{name}", 110, 400, dims=[size, [], []], concrete=["", "1", "True"])
    few = sliced(size, 0, 10, axis=1) | {"ts": 516}
    few["args"]["Input type"] = ["long int", *["Scalar"] * 4]

    def reader(of: str, dims: list[list[int]], kind: str = "float") -> Event:
        return op(of, 522, 8, dims=dims, types=[kind, "Scalar", "long int", "Scalar"][: len(dims)])

    def draft(folder: str, read: Event) -> object:
        return unused_result(two_steps(tmp_path / folder, [program_line(34, 100, 432), order, few, read, *MODEL]))

    assert draft("scores", reader("aten::gather", [size, [], [64, 10], []])) is not None
    # The whole order is used as well; or as many values as there are.
    assert draft("order", reader("aten::mul", [size, []], "long int")) is None
    whole = draft("all", reader("aten::gather", [size, [], size, []]))
    assert whole is None
    # Of a sort the values may be read whole, of an argsort there are none.
    assert (draft("values", reader("aten::mul", [size, []])) is None) == (name == "sort")


def test_a_sort_is_found_by_the_slice_of_its_sizes_where_lines_are_not_known(tmp_path: Path) -> None:
    sort = op("aten::argsort", 110, 400, dims=[[64, 10000], [], []], concrete=["", "1", "True"])
    few, many = (sliced([64, 10000], 0, number, axis=1) for number in (10, 6000))
    draft = unused_result(_without_lines(tmp_path / "few", [sort, few]))
    assert draft is not None and draft.gain_us is not None and draft.confidence == "medium"
    assert draft.advice.startswith("Take the few values that are used with torch.topk") and draft.places == (None, None)
    assert unused_result(_without_lines(tmp_path / "many", [sort, many])) is None
    index = op("aten::index", 110, 400, dims=[DATA, []])
    assert unused_result(_without_lines(tmp_path / "index", [index, sliced(DATA, 64, 128)])) is None


def _without_lines(folder: Path, body: list[Event]) -> Evidence:
    """Two steps of a trace without Python calls."""
    events = [op("aten::mm", 710, 200, dims=[[64, 64], [64, 64]]), *body]
    steps = [step(number, 1000 * number, 999) for number in range(2)]
    return case_of(folder, [*steps, *(one | {"ts": one["ts"] + at} for at in (0, 1000) for one in events)])


def test_a_chain_over_all_rows_before_a_slice_goes_with_it(tmp_path: Path) -> None:
    chain = [op("aten::sub", 110, 200, dims=[DATA, DATA, []]), op("aten::div", 310, 200, dims=[DATA, []])]
    draft = unused_result(
        two_steps(tmp_path / "chain", [program_line(34, 100, 430), *chain, sliced(DATA, 0, 64), *MODEL])
    )
    assert draft is not None and draft.gain_us is not None and draft.gain_us.high > 350
    # A mean of all rows is used as well.
    mean = op("aten::mean", 530, 20, dims=[DATA, []])
    assert (
        unused_result(
            two_steps(tmp_path / "mean", [program_line(34, 100, 460), *chain, sliced(DATA, 0, 64), mean, *MODEL])
        )
        is None
    )


@pytest.mark.parametrize("axis", [0, 1])
def test_a_softmax_is_cut_only_beside_its_axis(tmp_path: Path, axis: int) -> None:
    softmax = op("aten::softmax", 110, 400, dims=[[64, 10000], [], []], concrete=["", "1", ""])
    size = [64, 10000]
    draft = unused_result(
        two_steps(tmp_path, [program_line(34, 100, 430), softmax, sliced(size, 0, 4, axis=axis), *MODEL])
    )
    assert (draft is None) == (axis == 1)


def test_what_is_nearly_all_taken_or_little_of_the_step_is_left_alone(tmp_path: Path) -> None:
    most = [op("aten::index", 110, 400, dims=[DATA, []]), sliced(DATA, 0, 6000)]
    assert unused_result(two_steps(tmp_path / "most", [program_line(34, 100, 430), *most, *MODEL])) is None
    short = [op("aten::index", 110, 10, dims=[DATA, []]), sliced(DATA, 0, 64)]
    assert unused_result(two_steps(tmp_path / "short", [program_line(34, 100, 430), *short, *MODEL])) is None
