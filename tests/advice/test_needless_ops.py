"""Rules of ops that a step need not run: one-hot products, copies of a model's state, repeated backward passes."""

from pathlib import Path

import pytest

from bottleneck.advice import advise
from bottleneck.advice.needless_ops import one_hot_product, repeated_backward, state_copies
from bottleneck.advice.traffic import needless_copies
from bottleneck.schema.evidence import Evidence
from tests.advice.cases import case_of
from tests.builders import Event, complete, frame, in_graph, op, step

LENGTH = 1000.0


def line(number: int, ts: float, dur: float) -> Event:
    return complete(f"train.py({number}): <module>", "python_line", ts, dur)


def case(folder: Path, *bodies: list[Event]) -> Evidence:
    """Steps of 1 ms with these events each; twice the same where only one is given."""
    bodies = bodies * 2 if len(bodies) == 1 else bodies
    events = [frame("train.py(1): <module>", 0, LENGTH * len(bodies))]
    for number, body in enumerate(bodies):
        events.append(step(number, LENGTH * number, LENGTH - 1))
        events += [event | {"ts": event["ts"] + LENGTH * number} for event in body]
    return case_of(folder, events, unprofiled_us=LENGTH)


# One-hot rows.
ROWS, CLASSES, WIDTH = 64, 4000, 32


def one_hot(classes: int = CLASSES) -> list[Event]:
    """A one-hot matrix that is cast: 100 us to make it, 200 us for the cast."""
    size = [ROWS, classes]
    return [
        line(18, 1, 450),
        op("aten::one_hot", 10, 100, dims=[[ROWS], []], types=["long int", "Scalar"]),
        op("aten::scatter_", 60, 40, dims=[size, [], [ROWS, 1], []]),
        op("aten::to", 120, 200, dims=[size, [], [], [], []]),
        op("aten::copy_", 121, 198, dims=[size, size, []], types=["float", "long int", "Scalar"]),
    ]


def product(classes: int = CLASSES, name: str = "aten::mm") -> Event:
    return op(name, 330, 100, dims=[[ROWS, classes], [classes, WIDTH]])


def test_one_hot_rows_times_a_table_are_a_lookup_and_worth_all_of_their_ops(tmp_path: Path) -> None:
    evidence = case(tmp_path, [*one_hot(), product()])
    draft = one_hot_product(evidence)
    assert draft is not None and draft.gain_us is not None and draft.removes
    assert "at train.py:18" in draft.advice and "64x4000 with a table of 4000x32" in draft.evidence[0]
    assert 0.8 * 400 < draft.gain_us.low < draft.gain_us.high <= 400
    # The cast is no change of dtype to be rid of alone.
    assert needless_copies(evidence) is None
    assert advise(evidence)[0].slug == "one-hot-product"


def test_ones_that_are_scattered_into_zeros_are_one_hot_rows(tmp_path: Path) -> None:
    size = [ROWS, CLASSES]
    made = [
        op("aten::zeros", 10, 50, dims=[[], [], [], [], []], concrete=[str(size), "", "", "", "False"]),
        op("aten::scatter_", 70, 200, dims=[size, [], [ROWS, 1], []]),
    ]
    draft = one_hot_product(case(tmp_path / "scattered", [line(18, 1, 450), *made, product()]))
    assert draft is not None and draft.gain_us is not None and 300 < draft.gain_us.high <= 350
    # What is scattered into is no one-hot matrix where it does not begin with zeros.
    assert one_hot_product(case(tmp_path / "other", [line(18, 1, 450), made[1], product()])) is None


def test_rows_picked_from_a_unit_matrix_are_one_hot_rows(tmp_path: Path) -> None:
    eye = op("aten::eye", 10, 200, dims=[[]] * 5, concrete=[str(CLASSES), "", "", "", "False"])
    pick = op("aten::index", 220, 50, dims=[[CLASSES, CLASSES], []])
    sizes = [[], [[ROWS, CLASSES], [CLASSES, WIDTH]], []]
    summed = op("aten::einsum", 280, 150, dims=sizes, types=["", "TensorList", ""])
    draft = one_hot_product(case(tmp_path / "eye", [line(18, 1, 450), eye, pick, summed]))
    assert draft is not None and draft.gain_us is not None and 350 < draft.gain_us.high <= 400
    assert one_hot_product(case(tmp_path / "table", [line(18, 1, 450), pick, summed])) is None


def test_the_backward_product_with_one_hot_rows_goes_too(tmp_path: Path) -> None:
    forward = in_graph(product(), 7)
    node = "MmBackward0"
    backward = [
        in_graph(op(f"autograd::engine::evaluate_function: {node}", 500, 300), 7, 1),
        in_graph(op(node, 501, 298), 7, 1),
        op("aten::mm", 502, 290, dims=[[CLASSES, ROWS], [ROWS, WIDTH]]),
    ]
    draft = one_hot_product(case(tmp_path, [*one_hot(), forward, *backward]))
    assert draft is not None and draft.gain_us is not None and 550 < draft.gain_us.high <= 700


@pytest.mark.parametrize("name", ["aten::mul", "aten::sub"])
def test_one_hot_rows_that_are_not_multiplied_with_a_table_are_left_alone(tmp_path: Path, name: str) -> None:
    assert one_hot_product(case(tmp_path / "loss", [*one_hot(), product(name=name)])) is None
    assert one_hot_product(case(tmp_path / "few", [*one_hot(8), product(8)])) is None


# Copies of a model's state.
def copies(name: str = "aten::copy_", count: int = 3) -> list[Event]:
    ops = [op(name, 110 + 100.0 * at, 90, dims=[[1 << 16], [1 << 16], []]) for at in range(count)]
    return [line(18, 100, 350), *ops]


DEEP = frame("copy.py(128): deepcopy", 105, 340)
# Work of the model at another line.
MODEL = [line(14, 500, 400), op("aten::mm", 510, 300, dims=[[64, 64], [64, 64]])]


def test_a_deep_copy_in_every_step_is_named_and_no_needless_layout(tmp_path: Path) -> None:
    evidence = case(tmp_path, [*copies(), DEEP, *MODEL])
    draft = state_copies(evidence)
    assert draft is not None and draft.gain_us is not None and draft.removes
    assert draft.evidence[0] == "copy.deepcopy at train.py:18 makes copies of 3 tensors per step"
    assert draft.gain_us.high == pytest.approx(350, rel=0.1) and draft.gain_us.low >= draft.gain_us.high / 2
    assert needless_copies(evidence) is None


def test_clones_of_a_state_dict_in_every_step_are_named(tmp_path: Path) -> None:
    walk = [
        line(17, 50, 40),
        frame("torch/nn/modules/module.py(2194): state_dict", 55, 30),
        op("aten::detach", 60, 5, dims=[[8]]),
    ]
    draft = state_copies(case(tmp_path / "state", [*walk, *copies("aten::clone"), *MODEL]))
    assert draft is not None
    assert draft.evidence[0].startswith("cloning state_dict() at train.py:18 makes copies of 3 tensors")
    assert state_copies(case(tmp_path / "no state", [*copies("aten::clone"), *MODEL])) is None


def test_a_deep_copy_that_is_not_in_every_step_is_left_alone(tmp_path: Path) -> None:
    assert state_copies(case(tmp_path, [*copies(), DEEP, *MODEL], MODEL)) is None


# Backward passes.
NODE, ADDS = "autograd::engine::evaluate_function: MmBackward0", "torch::autograd::AccumulateGrad"


def passes(count: int, *, adds: bool = True, inner: int | None = None, threads: int = 1) -> list[Event]:
    """A product whose backward node runs so often, 100 us each, and 20 us for adding to the gradient."""
    events = [line(16, 1, 90), in_graph(op("aten::mm", 10, 50, dims=[[64, 64], [64, 64]]), 7), line(17, 95, 890)]
    for number in range(count):
        at = 100 + 130.0 * number
        product_in = op("aten::mm", at + 2, 90, dims=[[64, 64], [64, 64]])
        events += [
            in_graph(op(NODE, at, 100), 7, 1 + number % threads),
            in_graph(op("MmBackward0", at + 1, 98), 7, 1),
            product_in if inner is None else in_graph(product_in, inner),
        ]
        if adds:
            events.append(op(f"autograd::engine::evaluate_function: {ADDS}", at + 105, 20))
            events.append(op("aten::add_", at + 106, 18, dims=[[64, 64], [64, 64], []]))
    return events


def test_losses_that_go_through_one_graph_one_by_one_can_be_added_up(tmp_path: Path) -> None:
    draft = repeated_backward(case(tmp_path, passes(4)))
    assert draft is not None and draft.gain_us is not None and draft.removes
    assert draft.evidence[0].endswith("runs 4 times per step, called at train.py:17")
    assert draft.gain_us.high == pytest.approx(3 * 120, rel=0.05)
    assert draft.gain_us.low == pytest.approx(0.9 * draft.gain_us.high)


def test_one_pass_gradients_by_themselves_and_passes_that_make_graphs_are_left_alone(tmp_path: Path) -> None:
    assert repeated_backward(case(tmp_path / "one", passes(1))) is None
    assert repeated_backward(case(tmp_path / "apart", passes(4, adds=False))) is None
    assert repeated_backward(case(tmp_path / "graphs", passes(4, inner=7))) is None
    # Each forward thread counts its ops anew: the replicas of DataParallel.
    assert repeated_backward(case(tmp_path / "threads", passes(4, threads=4))) is None


def test_an_optimizer_step_between_two_passes_makes_them_two_of_their_own(tmp_path: Path) -> None:
    mark = complete("Optimizer.step#SGD.step", "user_annotation", 226, 3)
    assert repeated_backward(case(tmp_path, [*passes(4), mark])) is None
