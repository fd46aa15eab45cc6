"""gate.json is read back as it was written; what is no gate is refused with what is wrong."""

import json
import math
from dataclasses import replace

import pytest

from bottleneck.errors import TraceError
from bottleneck.report.ci.outputs import read_gate, to_json
from bottleneck.schema.gate_result import Gate
from bottleneck.schema.measurements import Ratio
from tests.report.gates import FINE, GATES, PASSED, gate

EACH = pytest.mark.parametrize("gate", GATES.values(), ids=GATES)


@EACH
def test_what_is_read_is_written_again_the_same(gate: Gate) -> None:
    assert to_json(read_gate(to_json(gate))) == to_json(gate)


@pytest.mark.parametrize("name", sorted(set(GATES) - {"hostile"}))
def test_a_gate_is_read_back_as_it_was(name: str) -> None:
    assert read_gate(to_json(GATES[name])) == GATES[name]


def test_hostile_names_are_read_back_as_they_were() -> None:
    read = read_gate(to_json(GATES["hostile"]))
    assert read.results[0].name == GATES["hostile"].results[0].name
    assert read.results[0].counters == GATES["hostile"].results[0].counters


@EACH
def test_the_file_is_ascii(gate: Gate) -> None:
    assert to_json(gate).isascii()


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
def test_a_ratio_that_is_not_finite_is_unknown(bad: float) -> None:
    time = replace(FINE, ratio=Ratio(1.0, 0.9, bad, 3), smallest_visible=bad)
    text = to_json(gate(replace(PASSED, time=time), exit_code=0, sentence="."))
    read = read_gate(text).results[0].time
    assert read is not None and read.ratio is None and read.smallest_visible is None


def tree() -> dict[str, object]:
    read = json.loads(to_json(GATES["slowed"]))
    assert isinstance(read, dict)
    return read


@pytest.mark.parametrize(
    ("text", "what"),
    [
        ("", "no JSON"),
        ("[" * 100_000, "no JSON"),
        ("NaN", "no JSON"),
        ("9" * 5000, "no JSON"),
        ("[]", "no gate.json"),
        ('{"schema": "bottleneck/gate/2"}', "schema 'bottleneck/gate/2'"),
        ('{"schema": "bottleneck/gate/1"}', "breaks its schema"),
        (json.dumps({**tree(), "results": [{}]}), "breaks its schema"),
        (json.dumps({**tree(), "exit_code": "1"}), "breaks its schema"),
    ],
    ids=range(9),
)
def test_what_is_no_gate_is_refused_with_what_is_wrong(text: str, what: str) -> None:
    with pytest.raises(TraceError, match=what):
        read_gate(text)


def test_a_waterfall_that_does_not_add_up_is_refused() -> None:
    text = to_json(GATES["slowed"]).replace('"after_us": 1100.0', '"after_us": 9100.0')
    with pytest.raises(TraceError, match="breaks its schema"):
        read_gate(text)


def test_keys_of_a_later_version_are_ignored() -> None:
    assert read_gate(json.dumps({**tree(), "later": 1})) == GATES["slowed"]
