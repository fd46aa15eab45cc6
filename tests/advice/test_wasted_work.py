"""Rules on work that need not be done."""

from pathlib import Path

import pytest

from bottleneck.advice import advise
from bottleneck.advice.wasted_work import no_kv_cache, padded_inputs, padding_not_known
from bottleneck.schema.measurements import Padding
from bottleneck.schema.records import replace
from tests.advice.cases import case_of
from tests.analysis.frames import CPU
from tests.builders import Event, frame, op, step

# Weights are read in no time.
FAST = replace(CPU, bandwidth_bytes_per_s=1e13)


def calls(lengths: list[int], *, batch: int = 2, per_step: int = 1, layers: int = 2) -> list[Event]:
    """Steps of so many calls of a model of two layers each, over sequences of these lengths: 80 us + 40 us a layer."""
    events: list[Event] = []
    length_us = 130.0 * layers
    for number, tokens in enumerate(lengths):
        at = length_us * number
        for layer in range(layers):
            begin, rows = at + 130 * layer, batch * tokens
            events += [
                op("aten::addmm", begin + 1, 80, dims=[[256], [rows, 256], [256, 256], [], []]),
                op("aten::gelu", begin + 85, 40, dims=[[batch, tokens, 256], []]),
            ]
    whole_us = length_us * per_step
    steps = [step(index, whole_us * index, whole_us - 1) for index in range(len(lengths) // per_step)]
    return [frame("gen.py(12): generate", 0, length_us * len(lengths)), *steps, *events]


@pytest.mark.parametrize("per_step", [1, 4], ids=["a call is a step", "a step makes four tokens"])
def test_a_sequence_that_grows_by_a_token_per_call_is_computed_in_vain(tmp_path: Path, per_step: int) -> None:
    case = case_of(tmp_path, calls(list(range(96, 104)), per_step=per_step), device=FAST)
    draft = no_kv_cache(case)
    assert draft is not None and draft.gain_us is not None and draft.comes_first
    assert draft.gain_us.high == pytest.approx(240 * per_step * (1 - 1 / 100), rel=0.03)
    assert draft.gain_us.low == pytest.approx(0.8 * draft.gain_us.high, rel=0.01)
    assert draft.evidence[0].startswith("the rows of products grow by 2 rows from call to call: sequences of 96 to 103")
    assert advise(case)[0].slug == "no-kv-cache"


@pytest.mark.parametrize(
    "lengths",
    [[96] * 8, [96, 120, 33, 77, 96, 45, 60, 99], [1, 2, 3, 4, 5, 6, 7, 8], [96, 97, 98] * 2],
    ids=["fixed", "of the data", "short prefixes", "three lengths again and again"],
)
def test_lengths_that_do_not_grow_by_one_are_left_alone(tmp_path: Path, lengths: list[int]) -> None:
    assert no_kv_cache(case_of(tmp_path, calls(lengths), device=FAST)) is None


def test_a_step_that_trains_on_longer_and_longer_sequences_is_left_alone(tmp_path: Path) -> None:
    node = op("autograd::engine::evaluate_function: MulBackward0", 126, 3)
    assert no_kv_cache(case_of(tmp_path, [*calls(list(range(96, 104))), node], device=FAST)) is None


def test_weights_that_take_as_long_to_read_leave_nothing_to_gain(tmp_path: Path) -> None:
    slow = replace(CPU, bandwidth_bytes_per_s=1e9)
    assert no_kv_cache(case_of(tmp_path, calls(list(range(96, 104))), device=slow)) is None


def test_a_new_prompt_begins_anew(tmp_path: Path) -> None:
    lengths = [*range(90, 96), *range(40, 46)]
    assert no_kv_cache(case_of(tmp_path, calls(lengths), device=FAST)) is not None


def embedded(rows: int, columns: int) -> list[Event]:
    """Two steps that look up ids and multiply for most of their time."""
    events: list[Event] = []
    for number in range(2):
        at = 1000.0 * number
        events += [
            step(number, at, 999),
            op("aten::embedding", at + 1, 20, dims=[[1000, 64], [rows, columns], [], [], []]),
            op("aten::mm", at + 30, 900, dims=[[rows * columns, 64], [64, 64]]),
        ]
    return events


def test_padding_that_was_sampled_is_worth_its_share_of_the_work(tmp_path: Path) -> None:
    case = case_of(tmp_path, embedded(8, 64), padding=Padding(0.5, 8, 64), device=FAST)
    draft = padded_inputs(case)
    assert draft is not None and draft.gain_us is not None and draft.changes_results
    work_us = case.group_us("compute") + case.group_us("memory")
    assert work_us > 0
    assert (draft.gain_us.low, draft.gain_us.high) == pytest.approx((0.3 * work_us, 0.55 * work_us))
    assert draft.evidence[0] == "50.0 % of the ids in 8 rows of up to 64 ids are one id repeated at an end"
    assert padding_not_known(case) is None


def test_a_little_padding_and_none_that_was_looked_for_are_left_alone(tmp_path: Path) -> None:
    assert padded_inputs(case_of(tmp_path / "a", embedded(8, 64), padding=Padding(0.05, 8, 64))) is None
    assert padded_inputs(case_of(tmp_path / "b", embedded(8, 64), command=("train.py",))) is None


def test_rows_of_ids_may_hold_padding_that_a_trace_does_not_show(tmp_path: Path) -> None:
    draft = padding_not_known(case_of(tmp_path / "a", embedded(8, 64), device=FAST))
    assert draft is not None and draft.gain_us is None and "--inspect-padding" in draft.advice
    assert draft.evidence == ("embeddings of 8 x 64 ids; a trace has no values",)
    assert padding_not_known(case_of(tmp_path / "b", embedded(1, 64), device=FAST)) is None
    assert padding_not_known(case_of(tmp_path / "c", calls([64] * 4), device=FAST)) is None
