"""analysis.json: what is written can be read, and nothing else is taken for it."""

import json
import math

import numpy as np
import pytest

from bottleneck.errors import TraceError
from bottleneck.report.analysis_document import to_terminal
from bottleneck.report.json_text import KEYS, from_json, to_json
from bottleneck.schema.analysis import Analysis
from bottleneck.schema.records import replace
from tests.report.samples import SAMPLES, gpu_overhead, hostile

ALL = pytest.mark.parametrize("analysis", SAMPLES.values(), ids=SAMPLES)


@ALL
def test_an_analysis_comes_back_as_it_was_written(analysis: Analysis) -> None:
    again = from_json(to_json(analysis))
    assert to_json(again) == to_json(analysis)
    assert analysis is SAMPLES["hostile"] or again == analysis


def test_only_lone_surrogates_are_not_kept_literally() -> None:
    names = [row.name for row in hostile().kernels]
    again = [row.name for row in from_json(to_json(hostile())).kernels]
    assert [old for old, new in zip(names, again, strict=True) if old != new] == ["lone \ud800 surrogate \udfff"]


@ALL
def test_the_file_is_strict_json_with_the_keys_in_the_documented_order(analysis: Analysis) -> None:
    def refuse(text: str) -> None:
        raise AssertionError(text)

    tree = json.loads(to_json(analysis), parse_constant=refuse)
    assert list(tree) == list(KEYS)
    assert KEYS[:2] == ("schema", "version") and set(KEYS) == set(Analysis.__struct_fields__)


@pytest.mark.parametrize("number", [math.nan, math.inf, -math.inf])
def test_a_number_that_is_not_finite_is_written_as_unknown(number: float) -> None:
    row = replace(gpu_overhead().kernels[0], flops=number)
    tree = json.loads(to_json(replace(gpu_overhead(), kernels=(row,))))
    assert tree["kernels"][0]["flops"] is None


def test_a_number_that_must_be_known_and_is_not_is_our_bug() -> None:
    row = replace(gpu_overhead().kernels[0], us=math.nan)
    with pytest.raises(AssertionError, match="kernels"):
        to_json(replace(gpu_overhead(), kernels=(row,)))


def test_numbers_of_numpy_are_numbers() -> None:
    row = replace(gpu_overhead().kernels[0], us=np.float64(2.5), flops=np.float32(0.5), calls=np.int64(3))
    assert from_json(to_json(replace(gpu_overhead(), kernels=(row,)))).kernels[0].calls == 3.0


def test_a_truth_value_of_numpy_is_one() -> None:
    analysis = gpu_overhead()
    marked = replace(analysis.findings[0], comes_first=np.bool_(True))
    read = from_json(to_json(replace(analysis, findings=(marked, *analysis.findings[1:]))))
    assert read.findings[0].comes_first is True


def test_an_unknown_key_is_ignored() -> None:
    tree = json.loads(to_json(gpu_overhead())) | {"later": 1}
    assert from_json(json.dumps(tree)) == gpu_overhead()


def test_an_analysis_of_before_copies_over_a_link_had_a_group_is_read_and_shown() -> None:
    old = from_json(to_json(gpu_overhead()))
    assert "transfer" not in old.verdict.shares and "memory.copy" in {entry.account for entry in old.ledger}
    assert "bandwidth" in to_terminal(old)


def change(**changes: object) -> str:
    """A sample file with some top-level keys replaced; those set to ... are removed."""
    tree = json.loads(to_json(gpu_overhead())) | changes
    return json.dumps({key: value for key, value in tree.items() if value is not ...})


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "no JSON"),
        ("{", "no JSON"),
        ("[" * 100_000, "no JSON"),
        ('{"schema": NaN}', "no JSON"),
        ("\ud800", "no JSON"),
        ("[]", "no analysis.json"),
        ("{}", "no analysis.json"),
        ('{"traceEvents": []}', "no analysis.json"),
        (change(schema="bottleneck/analysis/9"), "schema 'bottleneck/analysis/9'"),
        (change(schema=["x"] * 1000), "schema"),
        (change(kernels=...), "breaks its schema"),
        (change(ledger=[]), "breaks its schema"),
        (change(verdict={"bound": "gravity"}), "breaks its schema"),
        (change(kernels=[{"name": 3}]), "breaks its schema"),
    ],
)
def test_any_other_text_is_refused_with_a_reason_and_a_way_on(text: str, message: str) -> None:
    with pytest.raises(TraceError, match=message) as caught:
        from_json(text)
    assert caught.value.why and caught.value.fix
    assert len(caught.value.what) < 200


def test_a_ledger_that_does_not_add_up_is_refused() -> None:
    tree = json.loads(to_json(gpu_overhead()))
    tree["ledger"][0]["us"] += 1.0
    with pytest.raises(TraceError) as caught:
        from_json(json.dumps(tree))
    assert "ledger holds" in caught.value.why
