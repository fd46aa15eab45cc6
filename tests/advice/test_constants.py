"""The rule of constants: tensors made from numbers alone, computed anew in every step."""

from pathlib import Path

import pytest

from bottleneck.advice import advise
from bottleneck.advice.constants import constant_in_step
from bottleneck.schema.evidence import Evidence
from tests.advice.cases import case_of
from tests.builders import Event, complete, frame, op, step

LENGTH = 1000.0
ROWS, WIDTH = 5000, 64


def line(number: int, ts: float, dur: float) -> Event:
    return complete(f"train.py({number}): forward", "python_line", ts, dur)


def case(folder: Path, *bodies: list[Event]) -> Evidence:
    """Steps of 1 ms with these events each; twice the same where only one is given."""
    bodies = bodies * 2 if len(bodies) == 1 else bodies
    events = [frame("train.py(1): forward", 0, LENGTH * len(bodies))]
    for number, body in enumerate(bodies):
        events.append(step(number, LENGTH * number, LENGTH - 1))
        events += [event | {"ts": event["ts"] + LENGTH * number} for event in body]
    return case_of(folder, events, unprofiled_us=LENGTH)


def made(name: str, ts: float, dur: float, *numbers: object) -> Event:
    """An op that makes a tensor from numbers; dtype, layout, device and pinning follow them."""
    given = [str(number) for number in numbers]
    return op(name, ts, dur, dims=[[]] * (len(given) + 4), concrete=[*given, "", "", "", "False"])


def table(rows: int = ROWS) -> list[Event]:
    """A table of positions: its ops take 600 us, and a slice of it is added to data."""
    full, half = [rows, 2 * WIDTH], [rows, WIDTH]
    every_other = ["", "1", "0", "9223372036854775807", "2"]
    return [
        line(12, 5, 130),
        made("aten::arange", 10, 20, rows),
        op("aten::unsqueeze", 40, 2, dims=[[rows], []], concrete=["", "1"]),
        made("aten::arange", 50, 10, 0, 2 * WIDTH, 2),
        op("aten::exp", 70, 10, dims=[[WIDTH]]),
        line(13, 140, 160),
        made("aten::zeros", 150, 100, full),
        line(14, 300, 600),
        op("aten::mul", 310, 100, dims=[[rows, 1], [WIDTH]]),
        op("aten::sin", 420, 200, dims=[half]),
        op("aten::slice", 630, 2, dims=[full, [], [], [], []], concrete=every_other),
        op("aten::copy_", 640, 158, dims=[half, half, []]),
        line(15, 900, 60),
        op("aten::slice", 905, 2, dims=[full, [], [], [], []], concrete=["", "0", "0", "48", "1"]),
        op("aten::add", 910, 40, dims=[[8, 48, 2 * WIDTH], [48, 2 * WIDTH], []]),
    ]


def test_a_table_made_from_numbers_in_each_step_belongs_into_a_buffer(tmp_path: Path) -> None:
    evidence = case(tmp_path, table())
    draft = constant_in_step(evidence)
    assert draft is not None and draft.gain_us is not None and draft.removes
    assert "at train.py:14" in draft.advice and "train.py:14, train.py:13, train.py:12" in draft.evidence[0]
    # The ops, and Python at lines 12 to 14; line 15 also adds the table to data.
    python = [row.us for row in evidence.analysis.idle if row.source in {f"train.py:{at}" for at in (12, 13, 14)}]
    assert python and draft.gain_us.high == pytest.approx(602 + sum(python), rel=0.02)
    assert draft.gain_us.low == pytest.approx(0.9 * draft.gain_us.high)
    assert advise(evidence)[0].slug == "constant-in-step"


def test_a_mask_made_from_numbers_in_each_step_is_a_constant(tmp_path: Path) -> None:
    size = [1024, 1024]
    mask = [made("aten::full", 10, 300, size, "-inf"), op("aten::triu", 320, 300, dims=[size, []], concrete=["", "1"])]
    draft = constant_in_step(case(tmp_path / "mask", [line(12, 1, 650), *mask]))
    assert draft is not None and draft.gain_us is not None and draft.gain_us.high == pytest.approx(650, rel=0.02)
    # Tensors that are only filled are states and targets as well.
    assert constant_in_step(case(tmp_path / "filled", [line(12, 1, 900), mask[0]])) is None


def test_ops_on_data_of_the_same_sizes_are_not_taken_for_constants(tmp_path: Path) -> None:
    size = [1024, 1024]
    zeros = made("aten::zeros", 10, 20, size)
    work = op("aten::sin", 100, 600, dims=[size])
    assert constant_in_step(case(tmp_path / "constant", [line(12, 1, 900), zeros, work])) is not None
    # A tensor that data is written to, or that no constant is made of, is not counted with the others.
    state = [made("aten::zeros", 720, 100, [300]), op("aten::scatter_", 850, 20, dims=[[300], [], [8], [8]])]
    beside = constant_in_step(case(tmp_path / "state", [line(12, 1, 900), zeros, work, *state]))
    assert beside is not None and beside.gain_us is not None and beside.gain_us.high < 650
    seen = op("aten::exp", 4, 3, dims=[size])
    assert constant_in_step(case(tmp_path / "data", [line(12, 1, 900), seen, zeros, work])) is None
    random = op("aten::rand", 4, 3, dims=[[], [], [], [], []], concrete=[str(size), "", "", "", ""])
    assert constant_in_step(case(tmp_path / "random", [line(12, 1, 900), random, zeros, work])) is None
    padded = op("aten::copy_", 100, 600, dims=[size, size, []])
    assert constant_in_step(case(tmp_path / "padded", [line(12, 1, 900), zeros, padded])) is None


def test_tables_that_grow_or_that_autograd_records_are_no_constants(tmp_path: Path) -> None:
    assert constant_in_step(case(tmp_path / "grows", table(), table(2 * ROWS))) is None
    size = [1024, 1024]

    def learned(number: int) -> list[Event]:
        ops = (op("aten::sin", 100, 600, dims=[size]), op("aten::exp", 720, 20, dims=[size]))
        marked = [each | {"args": each["args"] | {"Sequence number": 7 + at * number}} for at, each in enumerate(ops)]
        return [line(12, 1, 900), made("aten::zeros", 10, 20, size), *marked]

    assert constant_in_step(case(tmp_path / "constant", learned(0))) is not None
    assert constant_in_step(case(tmp_path / "learned", learned(1))) is None
