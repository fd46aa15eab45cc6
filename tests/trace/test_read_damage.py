"""Damaged files: readable events are read, and each repair or loss is reported."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from bottleneck.schema.linked_trace import Trace
from bottleneck.trace import inflate
from bottleneck.trace.read import read_trace
from tests.builders import frame, kernel, op
from tests.trace.read_files import assert_same, chain, gzipped, names, read_bytes, read_list, refusal, slugs

pytestmark = pytest.mark.usefixtures("read_with_workers_too")

KINETO = """{{
  "schemaVersion": 1,
  "traceEvents": [
  {{
    "ph": "X", "cat": "python_function", "name": "{name}", "pid": 1, "tid": 1,
    "ts": 1673466237799245, "dur": 5698,
    "args": {{
      "Python id": 2, "Python parent id": 1, "Python thread": 0
    }}
  }},
  {{
    "ph": "X", "cat": "cpu_op", "name": "aten::mm", "pid": 1, "tid": 1,
    "ts": 1673466237799250, "dur": 10, "args": {{ "External id": 4 }}
  }}
  ],
  "traceName": "x"
}}"""

COMPLETE = json.dumps({"schemaVersion": 1, "traceEvents": chain(50), "traceName": "x"})


def message_of(trace: Trace, slug: str) -> str:
    return next(caveat.message for caveat in trace.caveats if caveat.slug == slug)


@pytest.mark.parametrize(
    ("raw", "shown"),
    [
        (r"torch\profiler\profiler.py(500): step", r"torch\profiler\profiler.py(500): step"),
        (r"torch\nn\modules\module.py(1): __getattr__", r"torch\nn\modules\module.py(1): __getattr__"),
        (r"C:\Users\u1234\x.py(1): f", r"C:\Users\u1234\x.py(1): f"),
        ('torch/fx.py(3): <eval "x">', 'torch/fx.py(3): <eval "x">'),
        (r"torch\\already\\escaped \"quoted\"", r'torch\already\escaped "quoted"'),
    ],
)
def test_names_that_kineto_did_not_escape_are_read_as_meant(tmp_path: Path, raw: str, shown: str) -> None:
    trace = read_bytes(tmp_path, KINETO.format(name=raw))
    assert names(trace) == [shown, "aten::mm"]
    assert trace.events["dur_us"].tolist() == [5698.0, 10.0]


def test_a_repaired_file_says_how_many_events_it_repaired(tmp_path: Path) -> None:
    trace = read_bytes(tmp_path, KINETO.format(name=r"torch\profiler.py(5): step"))
    assert slugs(trace) == ["repaired-json"]
    assert "1 event(s) held unescaped backslashes" in message_of(trace, "repaired-json")


def test_paths_that_read_as_legal_escapes_are_restored_once_the_file_is_known_for_it(tmp_path: Path) -> None:
    silent = frame("@", 1673466237799246, 1)
    text = KINETO.format(name=r"torch\profiler.py(5): step").replace(
        "[\n", "[\n" + json.dumps(silent).replace("@", r"torch\nn\functional.py") + ",\n", 1
    )
    assert r"torch\nn\functional.py" in names(read_bytes(tmp_path, text))


def test_a_newline_in_a_name_of_a_sound_file_is_kept(tmp_path: Path) -> None:
    assert names(read_list(tmp_path, [frame("a\nb", 1, 1), op("aten::mm", 2, 1)])) == ["a\nb", "aten::mm"]


def test_unescaped_quotes_say_nothing_of_escapes_elsewhere(tmp_path: Path) -> None:
    sound = json.dumps(frame("a\nb", 1673466237799246, 1))
    trace = read_bytes(tmp_path, KINETO.format(name='<eval "x">').replace("[\n", "[\n" + sound + ",\n", 1))
    assert "a\nb" in names(trace)
    assert message_of(trace, "repaired-json").startswith("1 event(s) held unescaped quotes")


def test_raw_control_characters_pass_and_are_counted(tmp_path: Path) -> None:
    trace = read_bytes(tmp_path, KINETO.format(name="a\nb\x01c"))
    assert names(trace)[0] == "a\nb\x01c"
    assert slugs(trace) == ["repaired-json"]


def test_bytes_that_are_not_utf8_become_replacement_characters(tmp_path: Path) -> None:
    trace = read_bytes(tmp_path, KINETO.format(name="a?b").encode().replace(b"a?b", b"a\xffb"))
    assert names(trace)[0] == "a�b"
    assert "not UTF-8" in message_of(trace, "repaired-json")


@pytest.mark.parametrize("value", ["NaN", "Infinity", "-Infinity", "nan", "-nan", "inf", "N/A", "1e999"])
def test_a_value_that_is_no_number_is_missing_and_its_event_stays(tmp_path: Path, value: str) -> None:
    text = json.dumps([op("aten::mm", 1, 5), kernel(7, 2, 3)]).replace('"stream": 7', f'"stream": {value}')
    trace = read_bytes(tmp_path, text)
    assert names(trace) == ["aten::mm", "some_kernel"]
    assert trace.device_args["correlation"].tolist() == [7]


@pytest.mark.parametrize("key", ["ts", "dur"])
@pytest.mark.parametrize("value", ["NaN", "Infinity", "null", '"soon"', "1e999", "9" * 30, "{}"])
def test_an_event_without_a_usable_time_is_left_out_and_counted(tmp_path: Path, key: str, value: str) -> None:
    bad = {"ph": "X", "cat": "cpu_op", "name": "bad", "pid": 1, "tid": 1, "ts": 2, "dur": 1, key: "@"}
    trace = read_bytes(tmp_path, json.dumps([*chain(3), bad]).replace('"@"', value))
    assert names(trace) == ["aten::op0", "aten::op1", "aten::op2"]
    assert "skipped-events" in slugs(trace)


@pytest.mark.parametrize("key", ["ts", "dur", "name"])
def test_an_event_that_lacks_a_key_is_left_out_and_counted(tmp_path: Path, key: str) -> None:
    bad = {name: value for name, value in chain(1)[0].items() if name != key}
    trace = read_list(tmp_path, [*chain(3), bad])
    assert len(trace.events) == len(trace.op_args) == 3
    assert slugs(trace) == ["skipped-events"]
    assert message_of(trace, "skipped-events").startswith("1 event(s)")


@pytest.mark.parametrize("args", [None, [], "text", 3, {"External id": "x"}, {"External id": None}])
def test_arguments_of_any_type_cost_no_event(tmp_path: Path, args: object) -> None:
    trace = read_list(tmp_path, [{**chain(1)[0], "args": args}, *chain(2, 5000.0)])
    assert trace.op_args["external_id"].isna().tolist() == [True, False, False]


@pytest.mark.parametrize("track", [None, 1.5, True, [], {"a": 1}, 2**70, "stream 7", -1029147072])
def test_a_process_or_thread_of_any_type_costs_no_event(tmp_path: Path, track: object) -> None:
    trace = read_list(tmp_path, [*chain(2), {**chain(1, 2000.0)[0], "pid": track, "tid": track}])
    assert len(trace.events) == 3


def test_numbers_in_strings_count_as_numbers(tmp_path: Path) -> None:
    event = {**chain(1)[0], "ts": "1000.25", "dur": "3.5", "args": {"External id": "12"}}
    trace = read_list(tmp_path, [event, *chain(1, 1001.0)])
    assert trace.events["ts_us"].tolist() == [0.0, 0.75]
    assert trace.events["dur_us"].tolist() == [3.5, 0.5]
    assert trace.op_args["external_id"].tolist() == [12, 0]


@pytest.mark.parametrize("number", [2**63, 10159970886766084423, 2**64, 10**25])
def test_an_id_beyond_64_bits_is_null_and_reported(tmp_path: Path, number: int) -> None:
    trace = read_list(tmp_path, [op("aten::mm", 1, 9, external_id=number), kernel(3, 2, 3), kernel(number, 6, 1)])
    assert trace.op_args["external_id"].isna().all()
    assert trace.device_args["correlation"].isna().tolist() == [False, True]
    assert slugs(trace) == ["large-ids"]


def test_a_negative_duration_is_taken_as_zero_and_reported(tmp_path: Path) -> None:
    trace = read_list(tmp_path, [op("aten::mm", 1, -1), op("aten::add", 5, 2)])
    assert trace.events["dur_us"].tolist() == [0.0, 2.0]
    assert slugs(trace) == ["clamped-durations"]


def test_a_kernel_at_time_zero_in_an_epoch_trace_does_not_stretch_it(tmp_path: Path) -> None:
    trace = read_list(tmp_path, [kernel(9, 0, 0), *chain(3, 1673466237799245)])
    assert names(trace) == ["aten::op0", "aten::op1", "aten::op2"]
    assert trace.events["ts_us"].tolist() == [0.0, 1.0, 2.0]
    assert "far away in time" in message_of(trace, "skipped-events")


def _document(rank: int | None, events: int = 3) -> str:
    info = {} if rank is None else {"distributedInfo": {"backend": "nccl", "rank": rank, "world_size": 2}}
    return json.dumps({"schemaVersion": 1, **info, "traceEvents": chain(events), "traceName": "t.json"})


@pytest.mark.parametrize("between", ["", "\n", " \n\n"])
@pytest.mark.parametrize("pack", [str.encode, lambda text: gzipped(text.encode())])
def test_two_traces_in_one_file_are_told_and_the_first_is_read(
    tmp_path: Path, between: str, pack: Callable[[str], bytes]
) -> None:
    trace = read_bytes(tmp_path, pack(_document(0) + between) + pack(_document(1, 5)))
    assert len(trace.events) == 3 and trace.rank == 0 and slugs(trace) == ["several-traces"]
    assert message_of(trace, "several-traces").startswith("two traces in one file: ranks 0 and 1; only the first")
    three = read_bytes(tmp_path, pack(_document(0) + between + _document(0) + between + _document(1)))
    assert message_of(three, "several-traces").startswith("3 traces in one file; only the first")


def test_many_events_behind_the_first_trace_are_told(tmp_path: Path) -> None:
    trace = read_bytes(tmp_path, (_document(0, 20_000) + _document(1, 20_000)).encode())
    assert len(trace.events) == 20_000 and slugs(trace) == ["several-traces"]


DAY_US = 86_400e6


@pytest.mark.parametrize("apart_us", [-7 * DAY_US, 7 * DAY_US, 120e6])
def test_an_event_that_stands_apart_from_all_others_is_left_out(tmp_path: Path, apart_us: float) -> None:
    trace = read_list(tmp_path, [*chain(5, 1673466237799245), op("stray", 1673466237799245 + apart_us, 1)])
    assert "stray" not in names(trace) and trace.events["ts_us"].tolist()[0] == 0.0
    assert message_of(trace, "skipped-events").startswith("1 event(s) lie far away in time")


def test_an_event_after_a_pause_that_is_spanned_or_short_stays(tmp_path: Path) -> None:
    wait = op("wait", 1, 120e6)
    assert "late" in names(read_list(tmp_path, [*chain(5), wait, op("late", 121e6, 1)]))
    assert "late" in names(read_list(tmp_path, [*chain(5), op("late", 50e6, 1)]))
    long = [op("long", 0, 10e6), *chain(5)]
    assert "late" in names(read_list(tmp_path, [*long, op("late", 120e6, 1)]))


def test_two_stretches_of_many_events_stay_however_far_they_are_apart(tmp_path: Path) -> None:
    events = [*chain(6), *chain(5, int(2 * DAY_US))]
    assert len(read_list(tmp_path, events).events) == 11


def test_an_allocation_at_time_zero_in_an_epoch_trace_is_left_out(tmp_path: Path) -> None:
    memory = {"ph": "i", "name": "[memory]", "pid": 1, "tid": 1, "args": {"Bytes": 8, "Device Type": 0}}
    events = [{**memory, "ts": 0}, {**memory, "ts": 1673466237799246}, {**memory, "args": {}, "ts": 1673466237799246}]
    assert read_list(tmp_path, [*events, *chain(2, 1673466237799245)]).memory["ts_us"].tolist() == [1.0]


def test_a_duration_of_centuries_is_left_out(tmp_path: Path) -> None:
    trace = read_list(tmp_path, [*chain(3), op("overflow", 1001, 2**63 / 1000)])
    assert "overflow" not in names(trace)
    assert slugs(trace) == ["skipped-events"]


def test_entries_that_are_no_events_are_skipped(tmp_path: Path) -> None:
    trace = read_list(tmp_path, [*chain(2), {}, 3, None, "x", [1], *chain(2, 5000.0)])
    assert len(trace.events) == 4


@pytest.mark.parametrize("insert", [", ", ",,", ",\n,\n"])
def test_stray_commas_lose_no_event(tmp_path: Path, insert: str) -> None:
    one, two, three = map(json.dumps, chain(3))
    trace = read_bytes(tmp_path, f'{{"traceEvents": [{one}, {two}{insert}{three}, ]}}')
    assert len(trace.events) == 3
    assert slugs(trace) == ["repaired-json"]


def test_a_broken_event_does_not_cost_its_neighbours(tmp_path: Path) -> None:
    events = [json.dumps(event) for event in chain(400)]
    events[100] = events[100].replace('"tid": 1', 'tid": 1').replace('"cat"', '"c{at')
    events[200] = events[200].replace('"ts": ', '"ts": abc')
    trace = read_bytes(tmp_path, "[" + ",".join(events) + "]")
    assert sorted(set(range(400)) - {int(name[8:]) for name in names(trace)}) == [100, 200]
    assert message_of(trace, "skipped-events").startswith("2 event(s)")


def test_a_broken_event_among_events_that_begin_with_another_key_costs_only_itself(tmp_path: Path) -> None:
    other_first = [dict(reversed(event.items())) for event in chain(40)]
    events = [json.dumps(event) for event in (*chain(2, 500.0), *other_first)]
    events[20] = events[20].replace('"tid"', '"ti"d')
    assert len(read_bytes(tmp_path, "[" + ",".join(events) + "]").events) == 41
    assert len(read_bytes(tmp_path, "[" + ",".join(events)[:-30]).events) == 40


def test_a_nested_list_of_objects_that_look_like_events_is_no_cut(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("bottleneck.trace.inflate.BLOCK_BYTES", 700)
    nested = [{"ph": "X", "name": "inner"}] * 3
    events = [{**event, "args": {"list": nested, "External id": 1}} for event in chain(60)]
    trace = read_list(tmp_path, events)
    assert len(trace.events) == 60
    assert slugs(trace) == []


@pytest.mark.parametrize("block_bytes", [64, 100, 333, 4096])
def test_the_size_of_blocks_changes_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, block_bytes: int) -> None:
    whole = read_bytes(tmp_path, COMPLETE)
    monkeypatch.setattr("bottleneck.trace.inflate.BLOCK_BYTES", block_bytes)
    assert_same(read_bytes(tmp_path, COMPLETE), whole)


@pytest.mark.parametrize("position", range(60, len(COMPLETE), 97))
def test_a_file_cut_anywhere_gives_every_complete_event(tmp_path: Path, position: int) -> None:
    text = COMPLETE[:position]
    complete = text.count("}}")
    if not complete:
        refusal(tmp_path, text)
        return
    trace = read_bytes(tmp_path, text)
    assert len(trace.events) == complete
    if position < COMPLETE.index("]"):
        assert slugs(trace) == ["truncated"]
        assert f"{complete} " in message_of(trace, "truncated")


def test_a_compressed_file_cut_in_the_middle_gives_its_first_half(tmp_path: Path) -> None:
    data = gzipped(json.dumps(chain(20_000)).encode())
    trace = read_bytes(tmp_path, data[: len(data) // 2])
    assert len(trace.events) > 8000
    assert "truncated" in slugs(trace)


@pytest.mark.parametrize("cut", range(1, 9))
def test_a_compressed_file_without_its_last_bytes_is_whole(tmp_path: Path, cut: int) -> None:
    trace = read_bytes(tmp_path, gzipped(COMPLETE.encode())[:-cut])
    assert len(trace.events) == 50
    assert slugs(trace) == ["truncated"]


def test_a_wrong_checksum_is_reported_and_loses_nothing(tmp_path: Path) -> None:
    data = bytearray(gzipped(COMPLETE.encode()))
    data[-6] ^= 1
    trace = read_bytes(tmp_path, bytes(data))
    assert len(trace.events) == 50
    assert slugs(trace) == ["damaged-gzip"]


def test_compressed_data_that_turns_to_rubbish_gives_what_came_before(tmp_path: Path) -> None:
    data = bytearray(gzipped(json.dumps(chain(20_000)).encode()))
    middle = len(data) // 2
    data[middle : middle + 2000] = b"\xff" * 2000
    trace = read_bytes(tmp_path, bytes(data))
    assert len(trace.events) > 8000
    assert "truncated" in slugs(trace)


def test_members_of_a_compressed_file_are_joined(tmp_path: Path) -> None:
    data = b"".join(gzipped(part.encode()) for part in (COMPLETE[:1000], COMPLETE[1000:1003], "", COMPLETE[1003:]))
    assert_same(read_bytes(tmp_path, data), read_bytes(tmp_path, COMPLETE))


def test_a_compressed_file_may_carry_a_name_a_comment_and_more(tmp_path: Path) -> None:
    plain = gzipped(COMPLETE.encode())
    header = plain[:3] + bytes([2 + 4 + 8 + 16]) + plain[4:10] + b"\x03\x00abc" + b"name\0" + b"comment\0" + b"\x12\x34"
    assert_same(read_bytes(tmp_path, header + plain[10:]), read_bytes(tmp_path, COMPLETE))


@pytest.mark.parametrize(("junk", "expected"), [(b"\0" * 512, []), (b"junk after the end", ["trailing-garbage"])])
def test_bytes_after_the_compressed_data_are_reported_unless_it_is_padding(
    tmp_path: Path, junk: bytes, expected: list[str]
) -> None:
    trace = read_bytes(tmp_path, gzipped(COMPLETE.encode()) + junk)
    assert len(trace.events) == 50
    assert slugs(trace) == expected


@pytest.mark.parametrize("text", [COMPLETE, json.dumps(chain(50))])
@pytest.mark.parametrize("junk", ["garbage", '{"traceEvents": []}', "]]}"])
def test_garbage_after_the_end_is_reported(tmp_path: Path, text: str, junk: str) -> None:
    trace = read_bytes(tmp_path, text + junk)
    assert len(trace.events) == 50
    assert slugs(trace) == ["trailing-garbage"]


def test_of_two_documents_glued_together_the_first_counts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("bottleneck.trace.inflate.BLOCK_BYTES", 900)
    trace = read_bytes(tmp_path, COMPLETE + COMPLETE.replace("aten::op", "aten::second"))
    assert_same(trace, read_bytes(tmp_path, COMPLETE), "caveats")
    assert slugs(trace) == ["several-traces"]


def test_zeros_of_a_preallocated_file_are_no_garbage(tmp_path: Path) -> None:
    assert slugs(read_bytes(tmp_path, COMPLETE.encode() + b"\0" * 4096)) == []


def test_a_byte_order_mark_is_no_damage(tmp_path: Path) -> None:
    assert_same(read_bytes(tmp_path, b"\xef\xbb\xbf" + COMPLETE.encode()), read_bytes(tmp_path, COMPLETE))


def test_a_list_without_its_closing_bracket_is_accepted_and_reported(tmp_path: Path) -> None:
    trace = read_bytes(tmp_path, json.dumps(chain(5))[:-1])
    assert len(trace.events) == 5
    assert slugs(trace) == ["truncated"]


@pytest.mark.parametrize(
    "heading",
    [
        '"deviceProperties": "none"',
        '"distributedInfo": [1]',
        '"distributedInfo": {"pg_config": {"pg_name": "0"}}',
        '"baseTimeNanoseconds": {}',
        '"bottleneckModules": ["Linear_0"]',
        '"deviceProperties": [3, null]',
    ],
)
def test_metadata_of_the_wrong_type_is_ignored(tmp_path: Path, heading: str) -> None:
    trace = read_bytes(tmp_path, f'{{{heading}, "traceEvents": {json.dumps(chain(3))}}}')
    assert len(trace.events) == 3
    assert trace.devices == ()
    assert trace.module_paths == {}


def test_a_device_whose_name_is_no_text_has_none(tmp_path: Path) -> None:
    heading = '"deviceProperties": [{"id": 0, "name": {"": null}}]'
    trace = read_bytes(tmp_path, f'{{{heading}, "traceEvents": {json.dumps(chain(3))}}}')
    assert [device.name for device in trace.devices] == [""]


def test_a_broken_heading_costs_the_metadata_and_no_event(tmp_path: Path) -> None:
    trace = read_bytes(tmp_path, f'{{"trace_path": "C:\\Users", "traceEvents": {json.dumps(chain(3))}}}')
    assert len(trace.events) == 3
    assert slugs(trace) == ["metadata-unreadable"]


def test_a_lone_surrogate_does_not_reach_the_tables(tmp_path: Path) -> None:
    trace = read_bytes(tmp_path, '[{"ph": "X", "cat": "cpu_op", "name": "a\\ud800b", "ts": 1, "dur": 1}]')
    assert names(trace)[0].encode()


def test_a_very_long_name_is_kept_whole(tmp_path: Path) -> None:
    name = "x" * 3_000_000
    assert names(read_list(tmp_path, [op(name, 1, 1), op("y", 2, 1)])) == [name, "y"]


def test_one_event_nested_beyond_reason_is_left_out(tmp_path: Path) -> None:
    deep = (
        '{"ph": "X", "cat": "cpu_op", "name": "deep", "ts": 1, "dur": 1, "args": {"a": ' + "[" * 100_000 + "]" * 100_000
    )
    trace = read_bytes(
        tmp_path, "[" + json.dumps(chain(1)[0]) + ", " + deep + "}}, " + json.dumps(chain(1, 9.0)[0]) + "]"
    )
    assert len(trace.events) == 2
    assert slugs(trace) == ["skipped-events"]


def test_a_bomb_is_not_inflated(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(inflate, "_RATIO_FREE_BYTES", 2_000_000)
    error = refusal(tmp_path, gzipped(b"[" + b" " * 50_000_000))
    assert error.what.startswith("refusing to inflate")
    monkeypatch.setattr(inflate, "MAX_INFLATED_BYTES", 1_000_000)
    assert "GiB" in refusal(tmp_path, gzipped(json.dumps(chain(20_000)).encode())).why


def test_a_name_decides_nothing(tmp_path: Path) -> None:
    plain, packed = tmp_path / "plain.json.gz", tmp_path / "packed.json"
    plain.write_text(COMPLETE)
    packed.write_bytes(gzipped(COMPLETE.encode()))
    assert_same(read_trace(plain), read_trace(packed))
