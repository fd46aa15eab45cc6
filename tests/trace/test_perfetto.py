"""Perfetto traces of each known writer read as the JSON trace of the same events; hostile ones end with a reason."""

import contextlib
import gzip
import json
import zipfile
import zlib
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from bottleneck.errors import TraceError
from bottleneck.schema.linked_trace import Trace
from bottleneck.schema.sources import find_traces
from bottleneck.system import perfetto as wire
from bottleneck.trace import inflate, perfetto
from bottleneck.trace.extend import extend_trace
from bottleneck.trace.read import read_trace
from tests.builders import H100, Event, complete, kernel, launch, memcpy, op, step, write_trace
from tests.trace.perfetto_files import (
    Packet,
    built,
    compressed,
    converted,
    interned,
    packet,
    pb,
    trace_of,
)
from tests.trace.read_files import assert_same, slugs

_WHOLE = [
    step(1, 0, 1000),
    op("aten::linear", 10, 90, dims=[[8, 16], [4, 16], [4]], external_id=5, strides=[[16, 1], [16, 1], [1]]),
    op("aten::addmm", 20, 60.125, dims=[[4], [8, 16], [16, 4]], external_id=6),
    launch(7, 30, 5.5),
    kernel(7, 60, 200, "ampere_sgemm_32x32", args={"External id": 6, "graph id": 0}),
    kernel(8, 100, 200, "other", stream=9),
    kernel(8, 150, 200, "overlapping", stream=9),
    memcpy(9, 400, 20, 4096),
    launch(9, 390, 4, "cudaMemcpyAsync"),
    complete("autograd::engine", "cpu_op", 500, 100, tid=200, args={"External id": 9, "Sequence number": 3}),
]
# Nanoseconds show that times are no whole microseconds.
EVENTS = [event | {"ts": event["ts"] + 0.001} for event in _WHOLE]
# What each writer leaves out of a trace.
UNWRITTEN = ("devices", "start_unix_ns", "facts", "counts", "caveats")


def written(folder: Path, packets: Sequence[Packet], name: str = "trace.pftrace") -> Path:
    path = folder / name
    path.write_bytes(trace_of(packets))
    return path


def read(folder: Path, packets: Sequence[Packet]) -> Trace:
    return read_trace(written(folder, packets))


def refusal(folder: Path, data: bytes, name: str = "trace.pftrace") -> TraceError:
    (folder / name).write_bytes(data)
    with pytest.raises(TraceError) as caught:
        read_trace(folder / name)
    assert caught.value.what and caught.value.fix
    assert str(folder) in caught.value.what
    return caught.value


@pytest.mark.parametrize("writer", [converted, interned], ids=["converter", "library"])
def test_a_perfetto_trace_reads_as_the_json_trace_of_the_same_events(
    tmp_path: Path, writer: Callable[[Sequence[Event]], list[Packet]]
) -> None:
    expected = read_trace(write_trace(tmp_path / "trace.json", EVENTS))
    trace = read(tmp_path, writer(EVENTS))
    assert_same(trace, expected, *UNWRITTEN)
    assert trace.caveats == ()


def test_a_trace_of_kinetos_builder_has_categories_by_its_arguments(tmp_path: Path) -> None:
    events = [event for event in EVENTS if event["cat"] != "user_annotation"]
    facts = {"properties": json.dumps([H100]), "baseTimeNanoseconds": "1700000000000000000", "host": "a"}
    expected = read_trace(write_trace(tmp_path / "trace.json", events))
    trace = read(tmp_path, built([_as_kineto(event) for event in events], facts))
    assert_same(trace, expected, "facts", "counts")


def _as_kineto(event: Event) -> Event:
    more = {"Ev Idx": 1} if event["cat"] == "cpu_op" else {}
    return event | {"args": {**event["args"], **more}}


def test_compressed_packets_are_read_in_their_place(tmp_path: Path) -> None:
    packets = interned(EVENTS)
    middle = len(packets) // 2
    expected = read(tmp_path, packets)
    trace = read(
        tmp_path, [compressed(packets[:middle]), *packets[middle : middle + 3], compressed(packets[middle + 3 :])]
    )
    assert_same(trace, expected)


def test_a_large_compressed_packet_is_read_in_pieces(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    expected = read(tmp_path, converted(EVENTS))
    monkeypatch.setattr(perfetto, "_LARGEST_PACKET_BYTES", 64)
    monkeypatch.setattr(inflate, "BLOCK_BYTES", 16)
    small = converted(EVENTS)[:1]
    trace = read(tmp_path, [*small, compressed(converted(EVENTS)), *small])
    assert_same(trace, expected)


def test_a_slower_clock_of_a_sequence_counts_in_its_own_unit(tmp_path: Path) -> None:
    events = [op("aten::relu", 10, 20), op("aten::add", 40, 5)]
    trace = read(tmp_path, interned(events, unit_ns=1000))
    assert trace.events["ts_us"].tolist() == [0.0, 30.0]
    assert trace.events["dur_us"].tolist() == [20.0, 5.0]


def test_epoch_times_keep_their_nanoseconds_and_give_the_wall_clock(tmp_path: Path) -> None:
    start_us = 1_783_000_000_000_000
    packets = converted([op("aten::relu", 10.001, 0.003), op("aten::add", 11.25, 5)])
    for each in packets:
        if each.HasField("track_event"):
            each.timestamp += start_us * 1000
    trace = read(tmp_path, packets)
    assert trace.start_unix_ns == start_us * 1000 + 10_001
    assert trace.events["ts_us"].tolist() == [0.0, 1.249]
    assert trace.events["dur_us"].tolist() == [0.003, 5.0]


def test_names_that_a_cleared_sequence_had_are_not_used_again(tmp_path: Path) -> None:
    packets = interned([op("aten::relu", 10, 20), op("aten::relu", 40, 5)])
    packets[4].sequence_flags = 1
    trace = read(tmp_path, packets)
    assert "skipped-events" in slugs(trace)


def test_a_descriptor_may_follow_the_events_of_its_track(tmp_path: Path) -> None:
    expected = read(tmp_path, converted(EVENTS))
    trace = read(tmp_path, sorted(converted(EVENTS), key=lambda each: each.HasField("track_descriptor")))
    assert_same(trace, expected)


def test_counters_become_counters_of_chrome(tmp_path: Path) -> None:
    packets = [
        *converted(EVENTS),
        packet(track_descriptor={"uuid": 5, "name": "GPU 0 Counters"}),
        packet(track_descriptor={"uuid": 6, "parent_uuid": 5, "name": "SM Active (%)", "counter": {}}),
        packet(timestamp=20_000, track_event={"type": 4, "track_uuid": 6, "double_counter_value": 78.5}),
    ]
    text = json.loads(b"".join(extend_trace(written(tmp_path, packets), [])))
    (counter,) = [event for event in text["traceEvents"] if event["ph"] == "C"]
    assert (counter["name"], counter["ts"], counter["pid"]) == ("SM Active (%)", 20.0, "GPU 0 Counters")
    assert counter["args"] == {"SM Active (%)": 78.5}


def test_gzip_and_zip_hold_perfetto_traces_too(tmp_path: Path) -> None:
    data = trace_of(converted(EVENTS))
    expected = read(tmp_path, converted(EVENTS))
    (tmp_path / "trace.bin.gz").write_bytes(gzip.compress(data))
    with zipfile.ZipFile(tmp_path / "trace.zip", "w") as archive:
        archive.writestr("inner", data)
    for name in ("trace.bin.gz", "trace.zip"):
        assert_same(read_trace(tmp_path / name), expected)


def test_ranks_in_a_folder_are_found_by_content(tmp_path: Path) -> None:
    for rank in range(2):
        written(tmp_path, converted(EVENTS), f"worker_rank{rank}")
    written(tmp_path, converted(EVENTS), "rank2.pftrace")
    (tmp_path / "rank3.gz").write_bytes(gzip.compress(trace_of(converted(EVENTS))))
    (tmp_path / "notes.txt").write_text("\n{ no trace }\n")
    assert [source.rank for source in find_traces(tmp_path)] == [2, 3, 0, 1]


@pytest.mark.parametrize(
    "text",
    [b'\n{"traceEvents": []}', b"\n", b"\n\n\n\n", b"\n{" + b" " * 5000, b"", b"\n\0\0\0", b"\n\x04abcd"],
    ids=["json", "line", "lines", "blank", "empty", "zeros", "text"],
)
def test_text_after_a_line_feed_is_no_perfetto_trace(text: bytes) -> None:
    assert not wire.is_perfetto(text)


def test_a_perfetto_trace_is_known_by_its_first_bytes() -> None:
    data = trace_of(converted(EVENTS))
    assert wire.is_perfetto(data)
    assert wire.is_perfetto(data[:20])


def test_an_android_trace_is_named_as_one_of_another_program(tmp_path: Path) -> None:
    error = refusal(tmp_path, trace_of([packet(timestamp=5, trusted_uid=1), packet(timestamp=9, trusted_uid=1)]))
    assert "Perfetto trace that another tool wrote" in error.what


def test_slices_of_another_program_are_no_pytorch_trace(tmp_path: Path) -> None:
    error = refusal(tmp_path, trace_of(converted([complete("draw", "toplevel", 0, 5)])))
    assert "not a PyTorch profiler trace" in error.what


def test_without_the_package_the_error_names_the_extra(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "perfetto.protos.perfetto.trace", None)
    error = refusal(tmp_path, trace_of(converted(EVENTS)))
    assert "the extra perfetto: pip install perfetto" in error.fix


def test_a_file_that_is_cut_is_read_up_to_the_cut(tmp_path: Path) -> None:
    data = trace_of(converted(EVENTS))
    (tmp_path / "cut.pftrace").write_bytes(data[:-3])
    trace = read_trace(tmp_path / "cut.pftrace")
    assert {"truncated", "skipped-events"} <= set(slugs(trace))
    assert len(trace.events) == len(EVENTS) - 1


@pytest.mark.parametrize("share", [0.1, 0.3, 0.5, 0.9])
def test_every_cut_ends_in_a_trace_or_a_reason(tmp_path: Path, share: float) -> None:
    data = trace_of([compressed(converted(EVENTS[:4])), *converted(EVENTS)])
    path = tmp_path / "cut.pftrace"
    path.write_bytes(data[: int(len(data) * share)])
    found = None
    with contextlib.suppress(TraceError):
        found = read_trace(path)
    assert found is None or "truncated" in slugs(found)


def _varint(number: int) -> bytes:
    rest = b""
    while number > 127:
        rest += bytes([number & 127 | 128])
        number >>= 7
    return rest + bytes([number])


def _deep(levels: int) -> bytes:
    inner = pb.DebugAnnotation(name="x", int_value=1).SerializeToString()
    for _ in range(levels):
        inner = b"\x62" + _varint(len(inner)) + inner
    event = b"\x48\x01\x22" + _varint(len(inner)) + inner
    body = b"\x40\x05\x5a" + _varint(len(event)) + event
    return b"\x0a" + _varint(len(body)) + body


HOSTILE: dict[str, Callable[[bytes], bytes]] = {
    "huge length": lambda sound: sound + b"\x0a" + _varint(2**62) + b"\x40\x05",
    "endless number": lambda sound: sound + b"\x0a" + b"\xff" * 50,
    "no field": lambda sound: sound + b"\x07\x07\x07",
    "deep": lambda sound: sound + _deep(20_000),
    "not deflate": lambda sound: sound + trace_of([packet(compressed_packets=b"\x01\x02\x03")]),
    "cut deflate": lambda sound: sound + trace_of([packet(compressed_packets=zlib.compress(sound)[:-9])]),
    "compressed twice": lambda sound: sound + trace_of([compressed([compressed(converted(EVENTS))])]),
    "bad text": lambda sound: sound.replace(b"cuda", b"\xff\xfe\x00\x80"),
}


@pytest.mark.parametrize("change", HOSTILE.values(), ids=HOSTILE)
def test_damage_costs_only_what_it_touches(tmp_path: Path, change: Callable[[bytes], bytes]) -> None:
    path = tmp_path / "trace.pftrace"
    path.write_bytes(change(trace_of(converted(EVENTS))))
    trace = read_trace(path)
    assert len(trace.events) >= len(EVENTS)
    assert trace.caveats or len(trace.events) == len(EVENTS)


def test_a_deep_argument_within_the_limits_is_no_reason_to_fail(tmp_path: Path) -> None:
    path = tmp_path / "trace.pftrace"
    path.write_bytes(trace_of(converted(EVENTS)) + _deep(80))
    assert len(read_trace(path).events) == len(EVENTS)


def test_a_bomb_of_compressed_packets_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(inflate, "_RATIO_FREE_BYTES", 1024**2)
    bomb = packet(compressed_packets=zlib.compress(trace_of([packet(for_testing={"str": "x" * 3_000_000})])))
    error = refusal(tmp_path, trace_of([*converted(EVENTS), bomb]))
    assert "refusing to inflate" in error.what


@pytest.mark.parametrize(
    ("limit", "value", "reason"),
    [("_MOST_STRINGS_BYTES", 50, "names"), ("_MOST_TRACKS", 1, "tracks"), ("_MOST_OPEN", 1, "begun and not ended")],
)
def test_what_would_not_fit_in_memory_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, limit: str, value: int, reason: str
) -> None:
    monkeypatch.setattr(perfetto, limit, value)
    assert reason in refusal(tmp_path, trace_of(interned(EVENTS))).why


def test_a_packet_too_large_for_memory_is_left_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(perfetto, "_LARGEST_PACKET_BYTES", 2000)
    monkeypatch.setattr(inflate, "BLOCK_BYTES", 1000)
    large = packet(timestamp=5, for_testing={"str": "x" * 5000})
    trace = read(tmp_path, [*converted(EVENTS), large, *converted([op("aten::relu", 700, 5)])[-2:]])
    assert slugs(trace) == ["skipped-events"]
    assert len(trace.events) == len(EVENTS) + 1


def test_blocks_of_any_size_give_the_same_trace(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    packets = [compressed(converted(EVENTS)), *interned(EVENTS)]
    expected = read(tmp_path, packets)
    for size in (1, 7, 100):
        monkeypatch.setattr(inflate, "BLOCK_BYTES", size)
        assert_same(read(tmp_path, packets), expected)


def test_millions_of_packets_without_events_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(perfetto, "_MOST_UNUSED", 50)
    idle = trace_of([packet()] * 2000)
    error = refusal(tmp_path, trace_of([*converted(EVENTS), packet(compressed_packets=zlib.compress(idle))]))
    assert "belong to events" in error.why
    few = trace_of([*converted(EVENTS), *[packet()] * 100])
    (tmp_path / "few.pftrace").write_bytes(few)
    assert len(read_trace(tmp_path / "few.pftrace").events) == len(EVENTS)


def test_of_a_million_arguments_the_first_are_read(tmp_path: Path) -> None:
    packets = converted([op("aten::relu", 10.001, 5, external_id=3)])
    begun = next(each for each in packets if each.track_event.name)
    for number in range(5000):
        begun.track_event.debug_annotations.add(name=f"more {number}", int_value=number)
    assert read(tmp_path, packets).op_args["external_id"].tolist() == [3]
