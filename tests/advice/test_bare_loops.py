"""Loops that a trace without lines shows by the order of its ops alone."""

from collections.abc import Sequence
from pathlib import Path

import pytest

from bottleneck.advice import advise
from bottleneck.advice.bare_loops import bare_loop, bare_update
from bottleneck.advice.class_loops import class_by_class
from bottleneck.advice.parameter_loops import tensor_by_tensor
from bottleneck.advice.python_loops import looped_op
from bottleneck.schema.evidence import Evidence
from tests.advice.cases import case_of
from tests.builders import Event, complete, op, step

ROUND = ("aten::index", "aten::sub", "aten::to", "aten::detach", "aten::resolve_neg")


def looped(
    folder: Path, names: Sequence[str] = ROUND, rounds: int = 100, *, sized: bool = False, inside: str | None = None
) -> Evidence:
    """Two steps of a model and a loop of these ops, 3 us each with 2 us between them."""
    events: list[Event] = []
    for number in range(2):
        at_us = 10_000.0 * number
        events += [
            step(number, at_us, 9999),
            op("aten::convolution", at_us + 1, 2000),
            op("aten::relu", at_us + 2010, 500),
        ]
        at_us += 3000
        if inside is not None:
            events.append(complete(inside, "user_annotation", at_us - 1, 5.0 * len(names) * rounds + 2))
        for _ in range(rounds):
            for name in names:
                events.append(op(name, at_us, 3, **({"dims": [[4, 4]]} if sized else {})))
                at_us += 5
    return case_of(folder, events)


def test_the_same_ops_in_a_row_again_and_again_are_a_loop(tmp_path: Path) -> None:
    loop = bare_loop(looped(tmp_path))
    assert loop is not None
    assert sorted(loop.names) == sorted(ROUND) and loop.works == ("aten::index", "aten::sub")
    assert loop.rounds == pytest.approx(100) and loop.us == pytest.approx(5 * 5 * 100 - 2)


def test_a_loop_over_rows_is_to_be_done_at_once_and_compiling_the_model_does_not_reach_it(tmp_path: Path) -> None:
    evidence = looped(tmp_path)
    draft = looped_op(evidence)
    assert draft is not None and draft.gain_us is not None
    assert (draft.gain_us.low, draft.gain_us.high) == pytest.approx((0.5 * 2498, 0.99 * 2498))
    assert draft.brief == "Do for all rows at once what a Python loop does row by row (index and sub)"
    assert draft.evidence[0].startswith("the same 5 ops in a row, 100 times per step: ")
    found = [finding.slug for finding in advise(evidence)]
    assert found[0] == "looped-op" and "host-overhead" not in found


@pytest.mark.parametrize(
    ("names", "rounds", "options"),
    [
        (ROUND, 50, {}),
        (
            ("aten::mul_", "aten::add_"),
            300,
            {},
        ),  # nothing is picked: tensor after tensor, such as an average of weights
        (("aten::select", "aten::addmm", "aten::tanh"), 100, {}),  # a layer that is called for each row
        (("aten::to", "aten::item", "aten::detach"), 100, {}),  # numbers are read, and nothing is worked out
        (ROUND, 100, {"inside": "Optimizer.step#Adam.step"}),
        (ROUND, 100, {"inside": "enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__"}),
    ],
    ids=["few rounds", "nothing picked", "a layer", "only read", "of an optimizer", "of a loader"],
)
def test_what_is_no_loop_over_rows(
    tmp_path: Path, names: Sequence[str], rounds: int, options: dict[str, bool | str]
) -> None:
    assert bare_loop(looped(tmp_path, names, rounds, **options)) is None  # type: ignore[arg-type]


def nested(folder: Path, outer: int, inner: int) -> Evidence:
    """Two steps of a loop over words, each with a loop over tags and a join of what these gave."""
    names = [*(ROUND * inner), "aten::stack", "aten::view", "aten::exp"] * outer
    events: list[Event] = []
    for number in range(2):
        at_us = 10_000.0 * number
        events.append(step(number, at_us, 9999))
        events += [op(name, at_us + 5 * at, 3) for at, name in enumerate(names)]
    return case_of(folder, events)


def test_an_inner_loop_that_begins_anew_in_each_round_of_an_outer_one_is_found(tmp_path: Path) -> None:
    loop = bare_loop(nested(tmp_path / "many", 10, 11))
    assert loop is not None and sorted(loop.names) == sorted(ROUND)
    # A round of the outer loop may begin or end with ops of the inner one.
    assert loop.rounds == pytest.approx(110, abs=10)
    assert bare_loop(nested(tmp_path / "few", 5, 11)) is None
    assert bare_loop(nested(tmp_path / "short", 20, 5)) is None


def test_a_loop_with_recorded_sizes_is_found_where_lines_are_not_known(tmp_path: Path) -> None:
    loop = bare_loop(looped(tmp_path, sized=True))
    assert loop is not None and loop.rounds == pytest.approx(100)


def test_a_little_loop_is_left_alone(tmp_path: Path) -> None:
    evidence = looped(tmp_path, ("aten::index", "aten::sub"), 70)
    assert bare_loop(evidence) is not None and looped_op(evidence) is None


def averaged(folder: Path, names: Sequence[str] = ("detach", "mul", "copy_"), sizes: int = 4, **more: str) -> Evidence:
    """Two steps of a model, and 40 tensors that are changed one by one, 3 us for each op with 2 us between them."""
    events: list[Event] = []
    for number in range(2):
        at_us = 10_000.0 * number
        events += [step(number, at_us, 9999), op("aten::convolution", at_us + 1, 2000)]
        at_us += 3000
        if "inside" in more:
            events.append(complete(more["inside"], "user_annotation", at_us - 1, 5.0 * len(names) * 40 + 2))
        for tensor in range(40):
            for name in names:
                events.append(op(f"aten::{name}", at_us, 3, dims=[[8 + tensor % sizes, 4], []]))
                at_us += 5
    return case_of(folder, events)


def test_tensors_of_several_sizes_that_are_changed_one_by_one_ask_for_one_call(tmp_path: Path) -> None:
    """A moving average by state_dict took 42 % of a traced step; without it a run was 1.64 times as fast."""
    evidence = averaged(tmp_path / "average")
    update = bare_update(evidence)
    assert update is not None
    assert update.changes == 40 and update.us == pytest.approx(5 * 3 * 40 - 2)
    draft = tensor_by_tensor(evidence)
    assert draft is not None and draft.gain_us is not None and "_foreach_lerp_" in draft.advice
    assert (draft.gain_us.low, draft.gain_us.high) == pytest.approx((0.5 * 598, 0.95 * 598))
    for name, other in {
        "one size": averaged(tmp_path / "one", sizes=1),
        "nothing changed": averaged(tmp_path / "made", ("detach", "mul")),
        "other work between": averaged(tmp_path / "work", ("mm", "copy_", "relu")),
        "the optimizer's": averaged(tmp_path / "optimizer", inside="Optimizer.step#Own.step"),
    }.items():
        assert bare_update(other) is None, name


def test_a_tensor_compared_with_many_numbers_is_a_loop_over_classes(tmp_path: Path) -> None:
    """Forty classes of a segmentation took 54 % of a traced step; without the loop a run was 2.0 times as fast."""

    def compared(folder: Path, numbers: int) -> Evidence:
        events: list[Event] = []
        for number in range(2):
            at_us = 10_000.0 * number
            events += [step(number, at_us, 9999), op("aten::convolution", at_us + 1, 2000, dims=[[4, 3, 64, 64]])]
            at_us += 2500
            for _ in range(numbers):
                for name, dims in (("eq", [[4, 64, 64], []]), ("sum", [[4, 64, 64]]), ("item", [[]])):
                    call = op(f"aten::{name}", at_us, 40, dims=dims)
                    events.append(call | {"args": call["args"] | {"Sequence number": 5, "Fwd thread id": 0}})
                    at_us += 42
        return case_of(folder, events)

    draft = class_by_class(compared(tmp_path / "many", 40))
    assert draft is not None and draft.gain_us is not None
    assert draft.evidence[0] == "a tensor of 4x64x64 is compared with a number 40 times per step"
    assert draft.brief == "Compute all classes at once, with torch.bincount, in place of the loop"
    assert 2500 < draft.gain_us.high < 40 * 126 and draft.gain_us.low == pytest.approx(0.6 * draft.gain_us.high)
    assert class_by_class(compared(tmp_path / "few", 8)) is None
