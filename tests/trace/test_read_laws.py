"""Laws of reading: order, ids and spelling of a file change nothing, and no file crashes the reader."""

import gzip
import json
import random
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from bottleneck.errors import TraceError
from bottleneck.schema.linked_trace import Trace
from bottleneck.trace.read import read_trace
from tests.builders import Event, complete, kernel, launch, memcpy, op
from tests.trace.read_files import assert_same, check_promises, gzipped, read_bytes, read_list

pytestmark = pytest.mark.statistics

RELAXED = settings(
    max_examples=settings.default.max_examples * 6 // 10,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
    derandomize=True,
)

DIMS = st.sampled_from([None, [[2, 3]], [[2, 3], []], [[], [4]]])
TIMES = st.integers(0, 40)


KINDS = st.sampled_from(["op", "launch", "kernel", "memcpy", "step", "frame", "memory", "other"])


@st.composite
def scenes(draw: st.DrawFn) -> list[Event]:
    """Events of every kind with many equal times, ids of their own and some shapes."""
    return [op("a", 1, 1, external_id=1), *(_event(draw, number) for number in range(draw(st.integers(1, 25))))]


def _event(draw: st.DrawFn, number: int) -> Event:
    ts, dur, kind = draw(TIMES) / 8, draw(TIMES) / 8, draw(KINDS)
    if kind == "op":
        return op(draw(st.sampled_from("abc")), ts, dur, dims=draw(DIMS), external_id=100 + number)
    if kind == "launch":
        return launch(100 + number, ts, dur)
    if kind == "kernel":
        return kernel(100 + number, ts, dur, draw(st.sampled_from("kl")))
    if kind == "memcpy":
        return memcpy(100 + number, ts, dur, number)
    if kind == "memory":
        return {**complete("[memory]", "cpu_instant_event", ts, 0, args={"Bytes": number}), "ph": "i"}
    category = {"step": "user_annotation", "frame": "python_function"}.get(kind, draw(st.sampled_from(["x", "Y", ""])))
    return complete(f"{kind}{number}", category, ts, dur)


@pytest.mark.sample
@RELAXED
@given(scenes(), st.randoms(use_true_random=False))
def test_the_order_of_events_does_not_matter(tmp_path: Path, events: list[Event], order: random.Random) -> None:
    shuffled = list(events)
    order.shuffle(shuffled)
    assert_same(read_list(tmp_path, shuffled), read_list(tmp_path, events))


@RELAXED
@given(scenes(), st.sampled_from([10**6, 4 * 10**12, 10**15]))
def test_a_shift_of_all_times_moves_only_the_wall_clock(tmp_path: Path, events: list[Event], shift_us: int) -> None:
    text = json.dumps({"baseTimeNanoseconds": 5, "traceEvents": events})
    # Written as text, because a float would round the shifted time before the reader sees it.
    shifted = json.loads(text, parse_float=str, parse_int=str)
    for event in shifted["traceEvents"]:
        whole, _, fraction = event["ts"].partition(".")
        event["ts"] = f"{int(whole) + shift_us}.{fraction}" if fraction else str(int(whole) + shift_us)
    moved, still = read_bytes(tmp_path, _unquoted(json.dumps(shifted))), read_bytes(tmp_path, text)
    assert_same(moved, still, "start_unix_ns", "integer_timestamps", "origin_ns")
    assert moved.origin_ns - still.origin_ns == 1_000 * shift_us


def _unquoted(text: str) -> str:
    """JSON in which every text that is a number has become one."""

    def numbers(value: object) -> object:
        if isinstance(value, dict):
            return {key: numbers(inner) for key, inner in value.items()}
        if isinstance(value, list):
            return [numbers(inner) for inner in value]
        return f"@{value}@" if isinstance(value, str) and value.replace(".", "").replace("-", "").isdigit() else value

    return json.dumps(numbers(json.loads(text))).replace('"@', "").replace('@"', "")


@RELAXED
@given(scenes(), st.sampled_from([None, 0, 2]))
def test_layout_and_compression_do_not_matter(tmp_path: Path, events: list[Event], indent: int | None) -> None:
    plain = read_list(tmp_path, events, '{{"traceEvents": {}}}')
    laid_out = json.dumps({"traceEvents": events}, indent=indent).encode()
    assert_same(read_bytes(tmp_path, laid_out), plain)
    assert_same(read_bytes(tmp_path, gzipped(laid_out)), plain)


@RELAXED
@given(scenes())
def test_unknown_keys_do_not_matter(tmp_path: Path, events: list[Event]) -> None:
    more = [{"new": [{"ph": 1}], **event, "args": {**event["args"], "new": {"ts": 3}}, "z": None} for event in events]
    assert_same(read_list(tmp_path, more), read_list(tmp_path, events))


@RELAXED
@given(scenes())
def test_rows_are_sorted_longer_first_and_references_hold(tmp_path: Path, events: list[Event]) -> None:
    check_promises(read_list(tmp_path, events))


ODD = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**70), 2**70)
    | st.floats()
    | st.text(max_size=8)
    | st.sampled_from(["12", "1.5", "cpu_op", "kernel", "X", "[memory]"]),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=5,
)
KEYS = st.sampled_from(["ph", "cat", "name", "pid", "tid", "ts", "dur", "args"])
ARG_KEYS = st.sampled_from(
    ["External id", "correlation", "grid", "stream", "Input Dims", "Input type", "Bytes", "Collective name", "device"]
)


@settings(RELAXED, max_examples=settings.default.max_examples * 2)
@given(scenes(), st.lists(st.tuples(st.integers(0, 30), KEYS | ARG_KEYS, ODD), max_size=8))
def test_values_of_any_type_keep_the_promises(
    tmp_path: Path, events: list[Event], changes: list[tuple[int, str, object]]
) -> None:
    sound = op("sound", 1, 1, external_id=1)
    for index, key, value in changes:
        event = events[index % len(events)]
        target = event["args"] if key[0].isupper() or key in {"correlation", "grid", "stream", "device"} else event
        if isinstance(target, dict):
            target[key] = value
    check_promises(read_list(tmp_path, [*events, sound]))


SEED = json.dumps(
    {
        "schemaVersion": 1,
        "deviceProperties": [{"id": 0, "name": "H100"}],
        "traceEvents": [op(f"aten::{n}", n, 5, dims=[[n, 2]]) for n in range(12)]
        + [launch(n, n, 1) for n in range(6)]
        + [kernel(n, n + 2, 3) for n in range(6)],
        "traceName": "x",
    },
    indent=1,
).encode()


@settings(RELAXED, max_examples=settings.default.max_examples * 4)
@given(st.data())
def test_no_mutation_of_the_bytes_crashes_the_reader(tmp_path: Path, data: st.DataObject) -> None:
    text = bytearray(SEED)
    for _ in range(data.draw(st.integers(1, 6))):
        position = data.draw(st.integers(0, len(text) - 1))
        length = data.draw(st.integers(0, 40))
        piece = data.draw(st.binary(max_size=6) | st.sampled_from([b"{", b"}", b"[", b"]", b",", b'"', b"\\", b"NaN"]))
        text[position : position + length] = piece
    packed = gzipped(bytes(text)) if data.draw(st.booleans()) else bytes(text)
    check_outcome(tmp_path, packed)


def check_outcome(folder: Path, content: bytes) -> None:
    """Fails unless the file becomes a sound trace or one clear refusal."""
    try:
        outcome: Trace | TraceError = read_bytes(folder, content)
    except TraceError as error:
        outcome = error
    if isinstance(outcome, Trace):
        check_promises(outcome)
    else:
        assert outcome.what and "\n" not in outcome.what + outcome.why + outcome.fix


@settings(RELAXED, max_examples=settings.default.max_examples * 3 // 2)
@given(st.integers(0, 2**32))
def test_no_flip_in_compressed_bytes_crashes_the_reader(tmp_path: Path, seed: int) -> None:
    rng = random.Random(seed)
    data = bytearray(gzipped(SEED))
    for _ in range(rng.randint(1, 3)):
        data[rng.randrange(len(data))] = rng.randrange(256)
    check_outcome(tmp_path, bytes(data[: rng.randint(len(data) // 2, len(data))]))


@pytest.mark.parametrize("seed", range(3))
def test_a_real_trace_shuffled_reads_the_same(traces: Path, tmp_path: Path, seed: int) -> None:
    path = traces / "AMD-AGI+TraceLens__tests__traces__h100__gaunernst_bert-small-uncased__1016001.json.gz"
    original = read_trace(path)
    document = json.loads(gzip.decompress(path.read_bytes()))
    random.Random(seed).shuffle(document["traceEvents"])
    assert_same(read_bytes(tmp_path, json.dumps(document)), original)
