"""Rule of modules of one kind that a loop calls one after the other."""

from pathlib import Path

import pytest

from bottleneck.advice.parallel_modules import parallel_modules
from bottleneck.schema.evidence import Evidence
from tests.advice.cases import case_of, program_line, two_steps
from tests.builders import Event, frame, op, step


def called(folder: Path, text: str, modules: int = 12) -> Evidence:
    """So many modules that are called at train.py:11, each with a small product in 10 of 60 us."""
    events: list[Event] = [program_line(11, 50, 60 * modules)]
    for number in range(modules):
        at = 55.0 + 60 * number
        events += [
            frame(f"nn.Module: Linear_{number}", at, 50),
            op("aten::linear", at + 20, 10, dims=[[8, 16], [4, 16], [4]]),
        ]
    return two_steps(folder, events, source_texts={"train.py:11": text})


@pytest.mark.parametrize(
    "text", ["out = torch.stack([m(x) for m in models])", "outs.append(head(x))", "y = f(x); outs.append(y)"]
)
def test_modules_that_a_loop_calls_each_for_itself_may_be_one(tmp_path: Path, text: str) -> None:
    draft = parallel_modules(called(tmp_path, text))
    assert draft is not None and draft.gain_us is not None and draft.removes
    assert "at train.py:11" in draft.advice and "12 modules" in draft.evidence[0]
    assert 0 < draft.gain_us.low < draft.gain_us.high <= 720


def test_layers_one_after_the_other_and_few_modules_are_left_alone(tmp_path: Path) -> None:
    assert parallel_modules(called(tmp_path / "stack", "x = layers(x)")) is None
    assert parallel_modules(called(tmp_path / "few", "outs.append(head(x))", 3)) is None


def joined(folder: Path, width: int, heads: int = 8, outer: str = "Heads_0") -> Evidence:
    """So many heads of 16 numbers to ``width``, each in 10 of 60 us, whose results are joined; without any texts."""
    events: list[Event] = [program_line(20, 50, 60 * heads + 40)]
    events += [frame(f"nn.Module: {outer}", 52, 60 * heads + 30)] if outer else []
    events.append(frame("train.py(11): forward", 53, 60 * heads + 28))
    for number in range(heads):
        at = 55.0 + 60 * number
        events += [
            frame(f"nn.Module: Head_{number}", at, 50),
            frame("train.py(7): forward", at + 1, 48),
            frame(f"nn.Module: Linear_{number}", at + 2, 46),
            op("aten::linear", at + 20, 10, dims=[[8, 16], [width, 16], [width]]),
        ]
    pieces, at = [[8, width]] * heads, 60.0 + 60 * heads
    events.append(op("aten::cat", at, 10, dims=[pieces, []], types=["TensorList", "Scalar"]))
    return two_steps(folder, events)


def test_heads_whose_results_are_joined_are_told_without_the_text_of_the_loop(tmp_path: Path) -> None:
    draft = parallel_modules(joined(tmp_path, 4))
    assert draft is not None and draft.gain_us is not None and draft.gain_us.low > 0
    assert "joins the results of 8 modules (Head)" in draft.evidence[0] and "train.py:11" in draft.advice


def test_heads_that_a_script_joins_outside_of_any_module_are_told_too(tmp_path: Path) -> None:
    draft = parallel_modules(joined(tmp_path / "heads", 4, outer=""))
    assert draft is not None and "joins the results of 8 modules (Head)" in draft.evidence[0]
    assert parallel_modules(joined(tmp_path / "chain", 16, outer="")) is None


def test_layers_that_may_take_the_result_of_another_are_no_loop_of_heads(tmp_path: Path) -> None:
    assert parallel_modules(joined(tmp_path / "chain", 16)) is None
    assert parallel_modules(joined(tmp_path / "few", 4, 3)) is None


def test_a_module_that_joins_pieces_and_holds_no_layers_has_no_children(tmp_path: Path) -> None:
    pieces = [[8, 4]] * 8
    events: list[Event] = [program_line(20, 50, 100), frame("nn.Module: Cache_0", 52, 90)]
    events.append(op("aten::cat", 60, 10, dims=[pieces, []], types=["TensorList", "Scalar"]))
    events += [frame("nn.Module: Linear_0", 160, 50), op("aten::linear", 170, 10, dims=[[8, 16], [4, 16], [4]])]
    assert parallel_modules(two_steps(tmp_path, events)) is None


def bare(folder: Path, names: tuple[str, ...], width: int = 4, heads: int = 8) -> Evidence:
    """So many rounds of these ops, 10 us in 20 us each, on inputs of 16 numbers; their results are joined."""
    events: list[Event] = []
    for number in range(heads * len(names)):
        dims = [[8, 16], [width, 16], [width]]
        events.append(op(names[number % len(names)], 50.0 + 20 * number, 10, dims=dims))
    events.append(op("aten::cat", 60.0 + 20 * len(events), 10, dims=[[[8, width]] * heads, []]))
    return case_of(folder, [event for number in range(2) for event in one_step(events, number)])


def one_step(events: list[Event], number: int) -> list[Event]:
    """A step of 800 us with these events."""
    return [step(number, 800.0 * number, 799), *(event | {"ts": event["ts"] + 800.0 * number} for event in events)]


def test_rounds_whose_results_are_joined_are_told_in_a_trace_without_lines(tmp_path: Path) -> None:
    draft = parallel_modules(bare(tmp_path, ("aten::linear", "aten::relu")))
    assert draft is not None and draft.gain_us is not None and draft.removes
    assert "8 times in a row the same 2 ops" in draft.evidence[0]
    # 16 ops of 10 us in 310 us: 150 us between them, of which one round in eight stays.
    assert draft.gain_us.high == pytest.approx(150 * 7 / 8)
    assert draft.gain_us.low == pytest.approx(0.6 * 150 * 7 / 8)
    assert "Modules of one size" in draft.title and "heads" not in str(draft.brief)


def test_rounds_with_a_softmax_are_heads_of_an_attention(tmp_path: Path) -> None:
    draft = parallel_modules(bare(tmp_path, ("aten::linear", "aten::softmax")))
    assert draft is not None and draft.gain_us is not None
    assert "heads" in draft.title and draft.gain_us.high == pytest.approx(0.75 * 310)


def test_layers_in_a_row_rounds_without_a_layer_and_few_rounds_are_none(tmp_path: Path) -> None:
    assert parallel_modules(bare(tmp_path / "row", ("aten::linear", "aten::relu"), width=16)) is None
    assert parallel_modules(bare(tmp_path / "none", ("aten::mul", "aten::relu"))) is None
    assert parallel_modules(bare(tmp_path / "few", ("aten::linear", "aten::relu"), heads=3)) is None
