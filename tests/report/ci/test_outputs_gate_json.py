"""gate.json holds the whole gate: converted to the records again, it is the gate that was written."""

import json
import math
from dataclasses import replace

import msgspec
import pytest

from bottleneck.report.ci.outputs import to_json
from bottleneck.schema.gate_result import Gate
from bottleneck.schema.measurements import Ratio
from tests.report.gates import FINE, GATES, PASSED, gate

EACH = pytest.mark.parametrize("gate", GATES.values(), ids=GATES)


def read_gate(text: str) -> Gate:
    return msgspec.convert(json.loads(text), Gate)


@EACH
def test_what_is_read_is_written_again_the_same(gate: Gate) -> None:
    assert to_json(read_gate(to_json(gate))) == to_json(gate)


@pytest.mark.parametrize("name", sorted(set(GATES) - {"hostile"}))
def test_a_gate_is_read_back_as_it_was(name: str) -> None:
    assert read_gate(to_json(GATES[name])) == GATES[name]


def test_hostile_names_are_read_back_as_they_were_but_for_lone_surrogates() -> None:
    read = read_gate(to_json(GATES["hostile"]))
    assert "\\udc80" in repr(GATES["hostile"].results[0].counters)
    counters = repr(GATES["hostile"].results[0].counters)
    assert repr(read.results[0].counters) == counters.replace("\\udc80", "\\\\udc80")


@EACH
def test_the_file_is_ascii(gate: Gate) -> None:
    assert to_json(gate).isascii()


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
def test_a_ratio_that_is_not_finite_is_unknown(bad: float) -> None:
    time = replace(FINE, ratio=Ratio(1.0, 0.9, bad, 3), smallest_visible=bad)
    text = to_json(gate(replace(PASSED, time=time), exit_code=0, sentence="."))
    read = read_gate(text).results[0].time
    assert read is not None and read.ratio is None and read.smallest_visible is None
