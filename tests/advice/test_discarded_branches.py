"""Branches that all run on all rows, where each row keeps the result of one of them."""

from pathlib import Path

import pytest

from bottleneck.advice import advise
from bottleneck.advice.discarded_branches import discarded_branches
from tests.advice.cases import program_line, two_steps
from tests.builders import Event, frame, op

ROWS, WIDTH = 384, 256
DATA, MASK = [ROWS, WIDTH], [ROWS, 1]
EXPERTS = 4


def expert(number: int, at: float, rows: int = ROWS) -> list[Event]:
    """A module that runs 150 us from 10 us after this time."""
    dims = [[rows, WIDTH], [WIDTH, WIDTH], [WIDTH]]
    return [frame(f"nn.Module: Expert_{number}", at + 10, 150), op("aten::linear", at + 12, 145, dims=dims)]


def layer(select: list[Event], rows: int = ROWS, numbers: tuple[int, ...] = (0, 1, 2, 3)) -> list[Event]:
    """A module whose four experts run one after the other, each between a comparison and what selects."""
    events = [program_line(31, 90, 820), frame("nn.Module: Switch_0", 95, 810)]
    for at, number in enumerate(numbers):
        start = 100 + 200.0 * at
        events.append(op("aten::eq", start, 5, dims=[[ROWS], []], concrete=["", str(number)]))
        events += expert(at, start, rows)
        events += [event | {"ts": start + 165} for event in select]
    return events


def masked_off(select: list[Event]) -> list[Event]:
    """The layer without its comparisons."""
    return [event for event in layer(select) if event["name"] != "aten::eq"]


WHERE = [op("aten::where", 0, 20, dims=[MASK, DATA, []])]


@pytest.mark.parametrize(
    "select",
    [
        WHERE,
        [op("aten::mul", 0, 20, dims=[MASK, DATA])],
        [op("aten::index", 0, 20, dims=[DATA, [ROWS]])],
    ],
)
def test_experts_that_run_on_all_rows_are_to_run_on_theirs(tmp_path: Path, select: list[Event]) -> None:
    evidence = two_steps(tmp_path, layer(select))
    draft = discarded_branches(evidence)
    assert draft is not None and draft.gain_us is not None and draft.removes
    assert "selected at train.py:31 only on the rows that are routed to it" in draft.advice
    assert draft.evidence[0].startswith("4 modules of the kind Expert run on the same 384 rows 1 time per step")
    assert 400 < draft.gain_us.high < 0.75 * 4 * 160 and draft.gain_us.low < 0.5 * draft.gain_us.high
    assert advise(evidence)[0].slug == "discarded-branches"


def test_experts_of_two_per_row_gain_what_the_others_take(tmp_path: Path) -> None:
    routes = op("aten::topk", 97, 2, dims=[[ROWS, EXPERTS], [], [], [], []], concrete=["", "2", "-1", "True", "True"])
    one, two = layer(WHERE), [*layer(WHERE), routes]
    gains = [discarded_branches(two_steps(tmp_path / str(at), each)) for at, each in enumerate((one, two))]
    highs = [draft.gain_us.high for draft in gains if draft is not None and draft.gain_us is not None]
    assert highs[1] == pytest.approx(highs[0] * 0.5 / 0.75, rel=0.05)


def test_stacked_heads_of_which_one_is_taken(tmp_path: Path) -> None:
    stack = [
        op("aten::stack", 880, 5, dims=[[DATA] * EXPERTS, []]),
        op("aten::index", 890, 5, dims=[[ROWS, EXPERTS, WIDTH], [ROWS], [ROWS]]),
    ]
    heads = [event for event in layer([]) if event["name"] != "aten::eq"]
    assert discarded_branches(two_steps(tmp_path / "taken", [*heads, *stack])) is not None
    # All of them go on.
    summed = [stack[0], op("aten::sum", 890, 5, dims=[[ROWS, EXPERTS, WIDTH], [], [], []])]
    assert discarded_branches(two_steps(tmp_path / "summed", [*heads, *summed])) is None


def test_work_on_the_results_of_all_branches_is_spared_with_them(tmp_path: Path) -> None:
    heads = [event for event in layer([]) if event["name"] != "aten::eq"]
    joined = {
        us: [
            op("aten::stack", 915, us, dims=[[DATA] * EXPERTS, []]),
            op("aten::index", 916 + us, us, dims=[[ROWS, EXPERTS, WIDTH], [ROWS], [ROWS]]),
        ]
        for us in (5, 35)
    }
    highs = []
    for us, events in joined.items():
        frames = [frame("nn.Module: Switch_0", 95, 900) if "Switch" in one["name"] else one for one in heads]
        draft = discarded_branches(two_steps(tmp_path / str(us), [*frames, *events]))
        assert draft is not None and draft.gain_us is not None
        highs.append(draft.gain_us.high)
    # Of both ops three of four results are not used, as of the branches.
    assert highs[1] - highs[0] == pytest.approx(0.75 * 60, abs=1.0)


def test_both_branches_of_a_where(tmp_path: Path) -> None:
    events = [program_line(31, 90, 820), frame("nn.Module: Net_0", 95, 810), *expert(0, 100), *expert(1, 300)]
    where = op("aten::where", 480, 20, dims=[MASK, DATA, DATA])
    draft = discarded_branches(two_steps(tmp_path / "two", [*events, where]))
    assert draft is not None and draft.title.startswith("Both branches")
    # One of them is kept where the mask holds, and nothing else is chosen.
    padded = op("aten::where", 480, 20, dims=[MASK, DATA, []])
    assert discarded_branches(two_steps(tmp_path / "padded", [*events, padded])) is None


def test_layers_with_one_mask_mixtures_and_routed_rows_are_left_alone(tmp_path: Path) -> None:
    # Layers one after the other whose padding is masked, with no comparison of their own.
    masked = masked_off(WHERE)
    assert discarded_branches(two_steps(tmp_path / "masked", masked)) is None
    assert discarded_branches(two_steps(tmp_path / "same", layer(WHERE, numbers=(0, 0, 0, 0)))) is None
    # Layers, and then a mean over the rows of each of many graphs.
    graphs = [
        event
        for number in range(12)
        for event in (
            op("aten::eq", 880 + number, 0.4, dims=[[ROWS], []], concrete=["", str(number)]),
            op("aten::index", 880.5 + number, 0.4, dims=[DATA, [ROWS]]),
        )
    ]
    assert discarded_branches(two_steps(tmp_path / "graphs", [*masked_off(WHERE), *graphs])) is None
    # A mixture of all of them.
    assert discarded_branches(two_steps(tmp_path / "mixed", layer([op("aten::add", 0, 9, dims=[DATA, DATA])]))) is None
    # Each expert reads a part of the rows already.
    assert discarded_branches(two_steps(tmp_path / "routed", layer(WHERE, rows=96))) is None
