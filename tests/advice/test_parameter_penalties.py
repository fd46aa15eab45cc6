"""Penalties on parameters that autograd goes through."""

from pathlib import Path

import pytest

from bottleneck.advice import advise
from bottleneck.advice.parameter_penalties import parameter_penalty
from bottleneck.schema.evidence import Evidence
from tests.advice.cases import case_of, program_line, two_steps
from tests.builders import Event, complete, op

WEIGHTS = ([512, 256], [256, 256], [64, 256])
STEP = [
    complete("Optimizer.step#SGD.step", "user_annotation", 800, 100),
    *(op("aten::add_", 810 + 20.0 * at, 15, dims=[size, size, []]) for at, size in enumerate(WEIGHTS)),
]


def numbered(event: Event, number: int) -> Event:
    return event | {"args": event["args"] | {"Sequence number": number, "Fwd thread id": 0}}


def penalty(names: tuple[str, ...] = ("pow", "sum"), sizes: tuple[list[int], ...] = WEIGHTS) -> list[Event]:
    """A line that makes a number of each tensor, with ops of 40 us that autograd records."""
    events, ts, number = [program_line(11, 100, 400)], 105.0, 10
    for size in sizes:
        for name in names:
            events.append(numbered(op(f"aten::{name}", ts, 40, dims=[size, []]), number))
            ts, number = ts + 42, number + 1
    return [*events, program_line(12, 600, 100), numbered(op("aten::mul", 610, 5, dims=[[], []]), number)]


def case(folder: Path, body: list[Event], text: str = "reg = sum(f(p) for p in tensors)") -> Evidence:
    return two_steps(folder, [*body, *STEP], source_texts={"train.py:11": text})


@pytest.mark.parametrize(
    ("names", "words"),
    [(("pow", "sum"), "weight_decay of SGD"), (("abs", "sum"), "sign(parameter)"), (("norm",), "weight_decay of SGD"),
     (("sub", "pow", "sum"), "anchor")],
)  # fmt: skip
def test_a_penalty_on_parameters_is_a_decay_of_the_optimizer(
    tmp_path: Path, names: tuple[str, ...], words: str
) -> None:
    evidence = case(tmp_path, penalty(names))
    draft = parameter_penalty(evidence)
    assert draft is not None and draft.gain_us is not None and draft.removes and draft.confidence == "high"
    assert "at train.py:11" in draft.advice and words in draft.advice
    assert 0 < draft.gain_us.low < draft.gain_us.high <= 50 * 3 * len(names)
    assert advise(evidence)[0].slug == "parameter-penalty"


def test_data_sums_along_a_dimension_and_what_is_only_logged_are_no_penalty(tmp_path: Path) -> None:
    # Sizes that no parameter has.
    assert parameter_penalty(case(tmp_path / "data", penalty(sizes=([128, 64],) * 3))) is None
    # A single tensor of a parameter's size, which may be data, unless the line says otherwise.
    assert parameter_penalty(case(tmp_path / "one", penalty(sizes=WEIGHTS[:1]))) is None
    assert parameter_penalty(case(tmp_path / "named", penalty(sizes=WEIGHTS[:1]), "r = net.weight.pow(2).sum()"))
    # Pairs of rows of one size, as a loss in a loop takes them.
    assert parameter_penalty(case(tmp_path / "pairs", penalty(sizes=(WEIGHTS[1],) * 4))) is None
    # Ops that autograd does not record.
    logged = [event | {"args": event["args"] | {"Sequence number": 10}} for event in penalty()]
    assert parameter_penalty(case(tmp_path / "logged", logged)) is None
    # Statistics of each row, which the model uses.
    rows = [
        event | {"args": event["args"] | {"Concrete Inputs": ["", "[1]"]}} if "sum" in event["name"] else event
        for event in penalty()
    ]
    assert parameter_penalty(case(tmp_path / "rows", rows)) is None


def test_without_an_optimizer_no_size_is_that_of_a_parameter(tmp_path: Path) -> None:
    assert parameter_penalty(case_of(tmp_path, [*penalty(), program_line(14, 800, 10)])) is None
