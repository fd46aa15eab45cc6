"""Rule of matrix decompositions that cost far more than what the program takes from them."""

from pathlib import Path

import pytest

from bottleneck.advice import advise
from bottleneck.advice.decompositions import matrix_decomposition
from bottleneck.schema.evidence import Evidence
from tests.advice.cases import case_of
from tests.builders import Event, complete, frame, in_graph, op, step

LENGTH = 1000.0


def line(number: int, ts: float, dur: float) -> Event:
    return complete(f"train.py({number}): <module>", "python_line", ts, dur)


def case(folder: Path, body: list[Event]) -> Evidence:
    """Two steps of 1 ms with these events each."""
    events = [frame("train.py(1): <module>", 0, 2 * LENGTH)]
    for number in range(2):
        events.append(step(number, LENGTH * number, LENGTH - 1))
        events += [later(event, number) for event in body]
    return case_of(folder, events, unprofiled_us=LENGTH)


def later(event: Event, number: int) -> Event:
    """The event in a later step, with a later sequence number."""
    args = event["args"]
    at = {"Sequence number": args["Sequence number"] + 100 * number} if "Sequence number" in args else {}
    return event | {"ts": event["ts"] + LENGTH * number, "args": args | at}


def called(
    name: str, work: str, size: list[int], dur: float = 500, concrete: tuple[str, ...] = ("", "")
) -> list[Event]:
    """A decomposition at train.py:22 of matrices of this size, with the op that does the work."""
    dims = [size, *([] for _ in concrete[1:])]
    return [
        line(22, 100, dur + 20),
        op(name, 110, dur, dims=dims, concrete=list(concrete)),
        op(work, 111, dur - 2, dims=dims, concrete=list(concrete)),
    ]


def stepping(ts: float = 105, dur: float = 700) -> Event:
    return complete("Optimizer.step#LowRank.step", "user_annotation", ts, dur)


SVD, WORK = "aten::linalg_svd", "aten::_linalg_svd"
# Work of the model before and after.
MODEL = [line(14, 700, 250), op("aten::mm", 710, 200, dims=[[64, 64], [64, 64]])]


def test_an_svd_in_the_step_of_an_optimizer_is_to_be_renewed_less_often(tmp_path: Path) -> None:
    evidence = case(tmp_path, [*called(SVD, WORK, [300, 200], concrete=("", "False", "")), stepping(), *MODEL])
    draft = matrix_decomposition(evidence)
    assert draft is not None and draft.gain_us is not None and draft.removes and draft.changes_results
    assert "SVD at train.py:22 only every 50 steps" in draft.advice and "svd_lowrank" in draft.advice
    assert draft.evidence[0] == "1 decomposition per step at train.py:22: 1 of 300x200"
    assert 200 < draft.gain_us.low < draft.gain_us.high < 510
    assert advise(evidence)[0].slug == "matrix-decomposition"


def test_a_full_svd_of_an_oblong_matrix_is_to_be_reduced(tmp_path: Path) -> None:
    whole = called(SVD, WORK, [2000, 64], concrete=("", "True", ""))
    draft = matrix_decomposition(case(tmp_path / "full", [*whole, stepping(), *MODEL]))
    assert draft is not None and draft.gain_us is not None and not draft.changes_results
    assert "full_matrices=False at train.py:22" in draft.advice and "2000x2000" in draft.advice
    assert draft.gain_us.high == pytest.approx(0.95 * 500, rel=0.05)
    # Nothing is to be left out of a square one, or of one that is reduced.
    for name, size, flag in (("square", [64, 64], "True"), ("reduced", [2000, 64], "False")):
        other = matrix_decomposition(case(tmp_path / name, [*called(SVD, WORK, size, concrete=("", flag, "")), *MODEL]))
        assert other is not None and "full_matrices=False at" not in other.advice


def test_a_matrix_that_no_weight_changes_is_decomposed_once(tmp_path: Path) -> None:
    draft = matrix_decomposition(
        case(tmp_path, [*called("aten::linalg_inv", "aten::linalg_inv_ex", [200, 200]), *MODEL])
    )
    assert draft is not None and "inverse at train.py:22 once, ahead of the loop" in draft.advice


def test_an_inverse_that_depends_on_weights_is_replaced_by_a_solution(tmp_path: Path) -> None:
    start, *ops = called("aten::linalg_inv", "aten::linalg_inv_ex", [200, 200], 300)
    model = [MODEL[0], in_graph(MODEL[1], 8)]
    node = in_graph(op("autograd::engine::evaluate_function: LinalgInvExBackward0", 420, 100), 7, 1)
    inside = op("aten::mm", 421, 98, dims=[[200, 200], [200, 200]])
    draft = matrix_decomposition(case(tmp_path, [start, *(in_graph(each, 7) for each in ops), node, inside, *model]))
    assert draft is not None and draft.gain_us is not None
    assert "torch.linalg.solve" in draft.advice and "at train.py:22" in draft.advice
    # The backward node counts, and a third of the time is left.
    assert draft.gain_us.high == pytest.approx(2 / 3 * 400, rel=0.05)


@pytest.mark.parametrize("name", ["cholesky", "solve"])
def test_a_factor_that_the_loss_needs_is_left_alone(tmp_path: Path, name: str) -> None:
    work = {"cholesky": "aten::linalg_cholesky_ex", "solve": "aten::_linalg_solve_ex"}[name]
    start, *ops = called(f"aten::linalg_{name}", work, [200, 200])
    model = [MODEL[0], in_graph(MODEL[1], 8)]
    assert matrix_decomposition(case(tmp_path, [start, *(in_graph(each, 7) for each in ops), *model])) is None


def gaussian(*between: Event, size: int = 200) -> list[Event]:
    """An inverse of 300 us and a determinant of 100 us of matrices that weights make, each with a backward node."""
    start, *inverse = called("aten::inverse", "aten::linalg_inv_ex", [200, 200], 300)
    _, *logdet = called("aten::logdet", "aten::_linalg_slogdet", [size, size], 100)
    determinant = [event | {"ts": event["ts"] + 330} for event in logdet]
    nodes = [
        in_graph(op("autograd::engine::evaluate_function: Backward0", at, 80), number, 1)
        for at, number in ((560, 8), (650, 7))
    ]
    work = [op("aten::mm", at + 1, 78, dims=[[200, 200], [200, 200]]) for at in (560, 650)]
    ops = [*(in_graph(event, 7) for event in inverse), *(in_graph(event, 8) for event in determinant)]
    after = in_graph(op("aten::sum", 545, 5, dims=[[8]]), 9)
    return [start | {"dur": 450}, *ops, *(event | {"ts": 415.0} for event in between), after, *nodes, *work]


def test_one_matrix_that_two_functions_factorise_is_to_be_factorised_once(tmp_path: Path) -> None:
    product = op("aten::matmul", 0, 5, dims=[[200], [200, 200]])
    draft = matrix_decomposition(case(tmp_path, gaussian(product)))
    assert draft is not None and draft.gain_us is not None and not draft.changes_results
    assert "torch.inverse and torch.logdet give" in draft.advice and "once at train.py:22" in draft.advice
    assert draft.gain_us.low == pytest.approx(0.5 * 180, rel=0.05)
    assert draft.gain_us.high == pytest.approx(2 / 3 * 560, rel=0.05)


@pytest.mark.parametrize(
    "events",
    [gaussian(op("aten::add", 0, 5, dims=[[200, 200], [200, 200], []])), gaussian(size=300)],
    ids=["another matrix", "another size"],
)
def test_two_matrices_are_not_taken_for_one(tmp_path: Path, events: list[Event]) -> None:
    draft = matrix_decomposition(case(tmp_path, events))
    assert draft is not None and "several times" not in draft.title


SLOGDET, DETERMINANT = "aten::linalg_slogdet", "aten::_linalg_slogdet"


def test_a_matrix_that_fills_a_batch_is_decomposed_once(tmp_path: Path) -> None:
    start, *ops = called(SLOGDET, DETERMINANT, [64, 32, 32], concrete=("",))
    expanded = [event | {"args": event["args"] | {"Input Strides": [[0, 32, 1]]}} for event in ops]
    model = [MODEL[0], in_graph(MODEL[1], 8)]
    evidence = case(tmp_path / "expanded", [start, *(in_graph(each, 7) for each in expanded), *model])
    draft = matrix_decomposition(evidence)
    assert draft is not None and draft.gain_us is not None and not draft.changes_results
    assert "torch.linalg.slogdet at train.py:22 with the matrix itself" in draft.advice
    assert "64x32x32 holds one matrix 64 times" in draft.advice and draft.gain_us.high > 450
    assert advise(evidence)[0].slug == "matrix-decomposition"
    # Repeated before it, and a batch of its own.
    repeat = op("aten::repeat", 101, 5, dims=[[32, 32], []], concrete=["", "[64, 1, 1]"])
    again = matrix_decomposition(
        case(tmp_path / "repeated", [start, repeat, *(in_graph(each, 7) for each in ops), *model])
    )
    assert again is not None and "holds one matrix 64 times" in again.advice
    own = [event | {"args": event["args"] | {"Input Strides": [[1024, 32, 1]]}} for event in ops]
    assert matrix_decomposition(case(tmp_path / "own", [start, *(in_graph(each, 7) for each in own), *model])) is None


def test_decompositions_that_are_little_of_the_step_are_left_alone(tmp_path: Path) -> None:
    assert matrix_decomposition(case(tmp_path, [*called(SVD, WORK, [200, 200], 60, ("", "False", "")), *MODEL])) is None
    assert matrix_decomposition(case(tmp_path / "none", MODEL)) is None
