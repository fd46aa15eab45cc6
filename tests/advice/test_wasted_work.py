"""Rules on work that need not be done."""

import re
from pathlib import Path

import pytest

from bottleneck.advice import advise
from bottleneck.advice.discarded_branches import discarded_branches
from bottleneck.advice.fusion import find_chains
from bottleneck.advice.kernel_work import work_of
from bottleneck.advice.ranking import Draft
from bottleneck.advice.run_steps import growing_steps
from bottleneck.advice.wasted_work import (
    dense_experts,
    no_kv_cache,
    padded_inputs,
    padding_not_known,
    ragged_batch,
)
from bottleneck.schema.measurements import Padding, RunSteps, StepGrowth
from bottleneck.schema.records import replace
from tests.advice.cases import case_of, program_line, two_steps
from tests.analysis.frames import CPU
from tests.builders import Event, complete, frame, op, step

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
    grown = StepGrowth(50.0, 4, 200.0, 8, 250.0, "gen.py:12", "logits = model(ids)")
    run = RunSteps(8, 1e4, 1000.0, 0.0, 0, (), growth=grown)
    longer = case_of(tmp_path / "run", calls(list(range(96, 104)), per_step=per_step), device=FAST, run=run)
    assert growing_steps(longer) is None and advise(longer)[0].slug == "no-kv-cache"


def unsized_calls(lengths: list[list[float]]) -> list[Event]:
    """Steps that call one module for so many microseconds each, without recorded sizes."""
    events, at, whole = [], 0.0, sum(map(sum, lengths)) + 10 * len(lengths)
    events += [frame("generate.py(3): <module>", 0, whole)]
    for number, step_us in enumerate(lengths):
        events.append(step(number, at, sum(step_us) + 9))
        for us in step_us:
            events += [frame("nn.Module: Decoder_0", at + 1, us - 2), op("aten::addmm", at + 2, us - 4)]
            at += us
        at += 10
    return events


GROWING = [20.0 + 5 * number for number in range(16)]


@pytest.mark.parametrize(
    ("lengths", "is_told"),
    [([GROWING] * 3, True), ([GROWING], False), ([GROWING[::-1]] * 3, False), ([[60.0] * 16] * 3, False)],
    ids=["longer and longer", "a single step", "shorter and shorter", "as long"],
)
def test_without_sizes_calls_that_take_longer_and_longer_tell_it(
    tmp_path: Path, lengths: list[list[float]], is_told: bool
) -> None:
    draft = no_kv_cache(case_of(tmp_path, unsized_calls(lengths)))
    assert (draft is not None) is is_told
    if draft is not None:
        assert draft.gain_us is not None and draft.confidence == "low"
        # All 16 calls of a step as quick as the first one, or as the first four, of which half is counted.
        assert draft.gain_us.high == pytest.approx(sum(GROWING) - 16 * 20, rel=0.05)
        assert draft.gain_us.low == pytest.approx((sum(GROWING) - 16 * 27.5) / 2, rel=0.05)


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


def beams(tokens: int) -> list[Event]:
    """A search by five beams: one row first, then their prefixes, through weights that read the source as well."""
    events: list[Event] = []
    for number, rows in enumerate([1, *(5 * length for length in range(2, tokens))]):
        at = 300.0 * number
        sizes = [[rows, 128], [65, 128], [65, 128], [rows, 128]]
        events += [op("aten::mm", at + 30 * i, 25, dims=[size, [128, 128]]) for i, size in enumerate(sizes)]
        events.append(op("aten::mm", at + 130, 100, dims=[[rows, 128], [128, 4000]]))
    whole_us = 300.0 * (tokens - 1)
    return [frame("gen.py(12): generate", 0, whole_us), step(0, 0, whole_us), *events]


@pytest.mark.parametrize(("tokens", "is_told"), [(30, True), (12, False)], ids=["a sentence", "a few words"])
def test_a_search_by_beams_that_begins_with_one_token_is_told(tmp_path: Path, tokens: int, is_told: bool) -> None:
    draft = no_kv_cache(case_of(tmp_path, beams(tokens), device=FAST))
    assert (draft is not None) == is_told
    if draft is not None:
        assert draft.evidence[0].startswith("the rows of products grow by 5 rows from call to call")
        # Of 150 us on prefixes of 2 to 29 tokens all but one token's part; those on the source stay.
        less_us = sum(150 * (1 - 1 / length) for length in range(2, tokens))
        assert draft.gain_us is not None and draft.gain_us.high == pytest.approx(less_us, rel=0.03)


def test_pairs_of_ids_lose_the_padding_of_both_and_quantized_products_count(tmp_path: Path) -> None:
    """A quantized BERT on rows padded to 128 ids: 1.20 to 1.43 was said, and 2.5 to 2.6 measured."""
    events: list[Event] = []
    for number in range(2):
        at = 1000.0 * number
        events += [
            step(number, at, 999),
            op("aten::embedding", at + 1, 20, dims=[[1000, 64], [8, 128], [], [], []]),
            op("quantized::linear_dynamic", at + 30, 500, dims=[[8, 128, 64], [], []]),
            op("aten::bmm", at + 540, 400, dims=[[64, 128, 16], [64, 16, 128]]),
            op("aten::_softmax", at + 945, 50, dims=[[8, 8, 128, 128], [], []]),
        ]
    case = case_of(tmp_path, events, padding=Padding(0.5, 8, 128), device=FAST)
    draft = padded_inputs(case)
    assert draft is not None and draft.gain_us is not None
    # Of 950 us half, and of the scores three quarters; the product of queries and keys has no matrix of pairs itself.
    assert draft.gain_us.low == pytest.approx(0.6 * 0.5 * 970, rel=0.03)
    assert draft.gain_us.high == pytest.approx(1.1 * (0.5 * 920 + 0.75 * 50), rel=0.03)


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


def test_padding_is_told_at_the_line_that_looks_the_ids_up_and_a_loader_only_where_there_is_one(tmp_path: Path) -> None:
    lookup = op("aten::embedding", 12, 20, dims=[[1000, 64], [8, 64], [], [], []])
    labels = op("aten::embedding", 42, 30, dims=[[1000, 64], [8], [], [], []])
    product = op("aten::mm", 80, 850, dims=[[8 * 64, 64], [64, 64]])
    body = [program_line(34, 10, 24), lookup, program_line(35, 40, 35), labels, product]
    draft = padded_inputs(two_steps(tmp_path / "service", body, padding=Padding(0.5, 8, 64), device=FAST))
    assert draft is not None and draft.places == ("train.py:34",) and draft.code is not None
    assert "only before train.py:34" in draft.advice and draft.evidence[0].endswith(
        "; they are looked up at train.py:34"
    )
    assert "loader" not in draft.code and "where the rows become one tensor" in draft.code
    mark = complete("enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__", "user_annotation", 1, 8)
    loaded = padded_inputs(two_steps(tmp_path / "loader", [mark, *body], padding=Padding(0.5, 8, 64), device=FAST))
    assert loaded is not None and loaded.code is not None and "loader's collate_fn" in loaded.code


def test_a_mask_of_the_ids_asks_for_padding_where_sizes_are_not_recorded(tmp_path: Path) -> None:
    def case(name: str, *ops: Event) -> Draft | None:
        events = [step(number, 1000.0 * number, 999) for number in range(2)]
        body = [*ops, op("aten::mm", 40, 900)]
        events += [event | {"ts": event["ts"] + 1000.0 * number} for number in range(2) for event in body]
        return padding_not_known(case_of(tmp_path / name, events, device=FAST))

    mask, lookup = op("aten::eq", 5, 2), op("aten::embedding", 10, 9)
    softmax = op("aten::_masked_softmax", 25, 9)
    draft = case("mask", mask, lookup, softmax)
    assert draft is not None and "a mask is made" in draft.evidence[0] and draft.gain_us is None
    assert "pad each batch to its longest row only" in draft.advice
    assert case("later", lookup, op("aten::ne", 22, 2), softmax) is not None
    assert case("no comparison", lookup, softmax) is None and case("no mask", mask, lookup) is None
    far = [op("aten::relu", 20 + at, 0.5) for at in range(5)]
    assert case("far", lookup, *far, op("aten::eq", 26, 2), op("aten::where", 29, 2)) is None
    # Sizes that are recorded tell by themselves.
    small = op("aten::embedding", 10, 9, dims=[[1000, 64], [1, 8], [], [], []])
    assert case("small", mask, small, softmax) is None


def test_work_on_fewer_rows_than_were_padded_is_not_counted(tmp_path: Path) -> None:
    """A decoder that goes on with the captions that have not ended computes on no padding."""

    def case(name: str, rows: int) -> Draft | None:
        events = [event for number in range(2) for event in looked_up(1000.0 * number, number, rows)]
        return padded_inputs(case_of(tmp_path / name, events, padding=Padding(0.5, 8, 22), device=FAST))

    def looked_up(at: float, number: int, rows: int) -> list[Event]:
        return [
            step(number, at, 999),
            op("aten::embedding", at + 1, 2, dims=[[1000, 64], [8, 22], [], [], []]),
            op("aten::mm", at + 30, 900, dims=[[rows, 64], [64, 64]]),
        ]

    assert case("whole", 8 * 21) is not None
    assert case("ended", 97) is None


def test_batches_that_are_padded_to_their_longest_row_are_to_hold_rows_of_like_length(tmp_path: Path) -> None:
    fixed = padded_inputs(case_of(tmp_path / "fixed", embedded(8, 64), padding=Padding(0.5, 8, 64), device=FAST))
    events = [*embedded(8, 64), op("aten::pad_sequence", 25, 3, dims=[[[64], [12]], [], [], []])]
    longest = padded_inputs(case_of(tmp_path / "longest", events, padding=Padding(0.5, 8, 64), device=FAST))
    assert fixed is not None and fixed.advice.startswith("Pad each batch to its longest row only")
    assert longest is not None and longest.advice.startswith("Batch rows of like length")


def test_frames_of_padding_are_told_as_such_and_batches_are_to_hold_rows_of_like_length(tmp_path: Path) -> None:
    padding = Padding(0.4, 8, 366, "frame")
    draft = padded_inputs(case_of(tmp_path, embedded(8, 64), padding=padding, device=FAST))
    assert draft is not None and draft.advice.startswith("Batch rows of like length")
    assert draft.evidence[0] == "40.0 % of the frames in 8 rows of up to 366 frames are zeros at their end"


def test_a_little_padding_and_none_that_was_looked_for_are_left_alone(tmp_path: Path) -> None:
    assert padded_inputs(case_of(tmp_path / "a", embedded(8, 64), padding=Padding(0.05, 8, 64))) is None
    assert padded_inputs(case_of(tmp_path / "b", embedded(8, 64), command=("train.py",))) is None
    # Beams of a few words that end in one word.
    assert padded_inputs(case_of(tmp_path / "c", embedded(5, 7), padding=Padding(0.57, 5, 7))) is None


def test_rows_of_ids_may_hold_padding_that_a_trace_does_not_show(tmp_path: Path) -> None:
    draft = padding_not_known(case_of(tmp_path / "a", embedded(8, 64), device=FAST))
    assert draft is not None and draft.gain_us is None and "--inspect-padding" in draft.advice
    assert draft.evidence == ("embeddings of 8 x 64 ids; a trace has no values",)
    named = padding_not_known(case_of(tmp_path / "named", embedded(8, 64), device=FAST, command=("a b.py", "--x")))
    assert named is not None and "bottleneck run --inspect-padding 'a b.py' --x." in named.advice
    assert padding_not_known(case_of(tmp_path / "b", embedded(1, 64), device=FAST)) is None
    assert padding_not_known(case_of(tmp_path / "c", calls([64] * 4), device=FAST)) is None


def joins(parts: list[list[list[int]]], name: str = "aten::cat") -> list[Event]:
    """A step of 130 us for each list of sizes, which it joins in 80 us of it; then two ops in a row on the result."""
    events: list[Event] = []
    for number, sizes in enumerate(parts):
        rows = sum(size[0] for size in sizes)
        events += [
            step(number, 130.0 * number, 129),
            op(name, 130.0 * number + 1, 80, dims=[sizes, []], concrete=["", "0"]),
            op("aten::gelu", 130.0 * number + 90, 10, dims=[[rows, 256], []]),
            op("aten::neg", 130.0 * number + 102, 10, dims=[[rows, 256]]),
        ]
    return [frame("index.py(14): build", 0, 130.0 * len(parts)), *events]


def kept(steps: int, rows: int = 64) -> list[list[list[int]]]:
    return [[[rows * (10 + number), 256], [rows, 256]] for number in range(steps)]


def test_a_join_of_all_that_was_kept_before_is_worth_its_time_but_the_new_rows(tmp_path: Path) -> None:
    case = case_of(tmp_path, joins(kept(4)), unprofiled_us=130.0)
    draft = growing_steps(case)
    assert draft is not None and draft.gain_us is not None and draft.comes_first
    assert "index.py" in draft.advice and "moves all rows kept so far in every step" in draft.advice
    assert "write each new part into it" in draft.advice  # the gelu of each step takes all rows
    assert draft.gain_us.high == pytest.approx(80 * (1 - (1 / 11 + 1 / 12 + 1 / 13 + 1 / 14) / 4), rel=1e-3)
    assert draft.gain_us.low == pytest.approx(0.8 * draft.gain_us.high)
    assert not find_chains(case).where(find_chains(case).ops > 0)[work_of(case).op_like(re.compile("cat"))].any()


def test_parts_that_no_step_reads_as_a_whole_are_joined_once_after_the_loop(tmp_path: Path) -> None:
    unread = [event for event in joins(kept(4)) if event["name"] not in {"aten::gelu", "aten::neg"}]
    draft = growing_steps(case_of(tmp_path, unread, unprofiled_us=130.0))
    assert draft is not None and draft.advice.startswith("Join the parts once after the loop")


def test_a_list_that_gets_longer_and_is_joined_anew_in_each_step_grows_too(tmp_path: Path) -> None:
    longer = [[[64, 256]] * (10 + number) for number in range(4)]
    assert growing_steps(case_of(tmp_path, joins(longer), unprofiled_us=130.0)) is not None


@pytest.mark.parametrize(
    "parts",
    [
        kept(2),
        [[[640, 256], [64, 256]]] * 4,
        [[[640 + 64 * number, 256], [640 + 64 * number, 256]] for number in range(4)],
        [[[64 * rows, 256], [64, 256]] for rows in (10, 11, 14, 15)],
    ],
    ids=["two steps", "same sizes", "halves that grow together", "uneven growth"],
)
def test_joins_that_do_not_take_in_the_step_before_are_no_growth(tmp_path: Path, parts: list[list[list[int]]]) -> None:
    assert growing_steps(case_of(tmp_path, joins(parts), unprofiled_us=130.0)) is None


def padded(lengths: list[int], *more: Event) -> list[Event]:
    """Two steps that pad rows of these lengths to the longest, and multiply."""
    events: list[Event] = []
    for number in range(2):
        at = 1000 * number
        events += [
            step(number, at, 999),
            op("aten::pad_sequence", at + 1, 10, dims=[[[length] for length in lengths], [], [], []]),
            op("aten::mm", at + 20, 900, dims=[[512, 512], [512, 512]]),
            *(event | {"ts": event["ts"] + at} for event in more),
        ]
    return events


def test_rows_of_unlike_length_are_to_be_batched_by_length(tmp_path: Path) -> None:
    draft = ragged_batch(case_of(tmp_path, padded([100, 200, 300, 1000]), unprofiled_us=1000.0))
    assert draft is not None and draft.gain_us is not None and draft.changes_results
    assert "4 rows of 100 to 1000 numbers" in draft.evidence[0] and "60.0 %" in draft.evidence[0]
    assert draft.gain_us.low == pytest.approx(0.15 * 0.6 * 910, rel=0.05)
    assert draft.gain_us.high == pytest.approx(0.9 * 0.6 * 910, rel=0.05)
    assert "recurrence" not in draft.advice
    recurrent = padded([100, 1000], op("aten::gru", 930, 60, dims=[[2, 1000, 8]]))
    draft = ragged_batch(case_of(tmp_path / "recurrent", recurrent, unprofiled_us=1000.0))
    assert draft is not None and "A recurrence takes as many steps" in draft.advice


def test_rows_of_like_length_and_a_look_at_the_ids_leave_padding_alone(tmp_path: Path) -> None:
    assert ragged_batch(case_of(tmp_path / "alike", padded([990, 1000, 1000]), unprofiled_us=1000.0)) is None
    seen = case_of(tmp_path / "seen", padded([100, 1000]), unprofiled_us=1000.0, padding=Padding(0.0, 8, 64))
    assert ragged_batch(seen) is None


def experts(rows: int, *, batched: bool = False, best: int = 2) -> list[Event]:
    """A step whose gate chooses among 4 experts for 512 tokens; each widens and narrows so many rows, 100 us each."""
    gate = op("aten::topk", 1, 5, dims=[[512, 4], [], [], [], []], concrete=["", str(best), "-1", "True", "True"])
    wide, narrow = ([256, 1024], [1024, 256])
    if batched:
        pairs = [([4, rows, 256], [4, *wide], "bmm", 400.0), ([4, rows, 1024], [4, *narrow], "bmm", 400.0)]
    else:
        pairs = [([rows, 256], wide, "mm", 100.0), ([rows, 1024], narrow, "mm", 100.0)] * 4
    events, at = [step(0, 0, 999), frame("moe.py(3): forward", 0, 1000), gate], 10.0
    for given, weight, name, us in pairs:
        events.append(op(f"aten::{name}", at, us, dims=[given, weight]))
        at += us + 1
    return events


@pytest.mark.parametrize("batched", [False, True], ids=["one by one", "in a batch"])
def test_experts_that_run_on_all_tokens_could_run_on_those_that_chose_them(tmp_path: Path, batched: bool) -> None:
    draft = dense_experts(case_of(tmp_path, experts(512, batched=batched), device=FAST))
    assert draft is not None and draft.gain_us is not None
    assert draft.gain_us.high == pytest.approx(800 * (1 - 2 / 4), rel=0.01)
    assert draft.evidence[0].startswith("a gate chooses 2 of 4 experts for each token")


def test_experts_that_run_on_their_own_tokens_are_as_they_should_be(tmp_path: Path) -> None:
    assert dense_experts(case_of(tmp_path / "rows", experts(256), device=FAST)) is None
    assert dense_experts(case_of(tmp_path / "all", experts(512, best=4), device=FAST)) is None


def test_experts_that_are_modules_are_left_to_the_rule_that_knows_their_other_ops(tmp_path: Path) -> None:
    modules = [frame("nn.Module: Experts_0", 0.5, 990), op("aten::stack", 830, 5, dims=[[[512, 256]] * 4, []])]
    modules += [frame(f"nn.Module: Expert_{number}", 9.5 + 202 * number, 201.8) for number in range(4)]
    modules.append(op("aten::mul", 840, 5, dims=[[512, 4, 256], [512, 4, 1]]))
    case = case_of(tmp_path, [*experts(512), *modules], device=FAST)
    assert dense_experts(case) is None
    draft = discarded_branches(case)
    assert draft is not None and "4 modules of the kind Expert" in draft.evidence[0]


def test_the_products_of_attention_after_a_gate_are_no_experts(tmp_path: Path) -> None:
    events = experts(512)
    for event in events:
        if event["name"] == "aten::mm":
            event["args"]["Input Dims"] = [[512, 256], [256, 256]]
    assert dense_experts(case_of(tmp_path, events, device=FAST)) is None
