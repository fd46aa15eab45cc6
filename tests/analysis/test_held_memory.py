"""What a snapshot of the allocator says: the replay against a small allocator, and planted faults by their names."""

import gzip
import json
import pickle
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bottleneck.analysis.held_memory import explain_snapshot
from bottleneck.errors import TraceError
from bottleneck.report.held_memory import held_text
from bottleneck.schema.allocator import HeldMemory
from bottleneck.schema.records import replace
from bottleneck.trace.allocator_snapshot import is_allocator_snapshot, read_allocator_snapshot
from tests.allocators import MIB, CachingAllocator, OutOfMemoryError

TORCH = "/venv/lib/python3.11/site-packages/torch/"
Call = tuple[str, int, str]


def forward(line: int) -> list[Call]:
    """The calls of a layer in the user's model, the innermost first."""
    inner = [(f"{TORCH}nn/functional.py", 10, "linear"), (f"{TORCH}nn/modules/module.py", 1, "_call_impl")]
    return [*inner, ("/home/me/model.py", line, "forward"), ("/home/me/train.py", 90, "main")]


PARAMETERS = [(f"{TORCH}nn/modules/linear.py", 99, "__init__"), ("/home/me/model.py", 20, "__init__")]
STATES = [(f"{TORCH}optim/adamw.py", 100, "_init_group"), ("/home/me/train.py", 95, "main")]
LOSSES = [("/home/me/train.py", 96, "main")]


def explained(path: Path, snapshot: Any) -> HeldMemory:
    """What is said of a snapshot with one device, through a file."""
    path.mkdir(parents=True, exist_ok=True)
    (path / "snapshot.pickle").write_bytes(pickle.dumps(snapshot))
    assert is_allocator_snapshot(path / "snapshot.pickle")
    (held,) = explain_snapshot(read_allocator_snapshot(path / "snapshot.pickle"))
    return held


def adds_up(held: HeldMemory) -> None:
    """Holders are what is allocated, and with what is free no more than what is reserved."""
    assert sum(one.held_bytes for one in held.holders) == held.allocated_bytes
    assert held.allocated_bytes + held.free.free_bytes <= held.reserved_bytes
    assert held.free.largest_bytes <= held.free.free_bytes


@given(st.lists(st.tuples(st.booleans(), st.integers(1, 30 * MIB), st.integers(0, 5)), max_size=60))
def test_the_replay_of_the_history_finds_the_memory_of_the_peak(
    tmp_path_factory: pytest.TempPathFactory, requests: list[tuple[bool, int, int]]
) -> None:
    device, held_now, totals = CachingAllocator(10_000 * MIB), dict[int, tuple[int, int]](), [(0, dict[int, int]())]
    for is_free, size, line in requests:
        if is_free and held_now:
            del held_now[(address := list(held_now)[size % len(held_now)])]
            device.free(address)
        else:
            held_now[device.allocate(size, ("/home/me/train.py", line + 1, "main"))] = (size, line + 1)
        by_line: dict[int, int] = {}
        for one, at in held_now.values():
            by_line[at] = by_line.get(at, 0) + one
        totals.append((sum(by_line.values()), by_line))
    if not requests:
        return
    held = explained(tmp_path_factory.mktemp("replay"), device.dump())
    adds_up(held)
    peak, by_line = max(totals, key=lambda one: one[0])
    assert held.moment == "peak" and held.allocated_bytes == peak
    found = {one.place: one.held_bytes for one in held.holders}
    if [total for total, _ in totals].count(peak) == 1:
        assert found == {f"train.py:{line} main()": size for line, size in by_line.items()}


def test_tensors_that_a_list_keeps_are_named_with_their_line(tmp_path: Path) -> None:
    device = CachingAllocator(10_000 * MIB)
    for _ in range(5):
        device.allocate(20 * MIB, *PARAMETERS)
    for step in range(100):
        steps = [device.allocate(30 * MIB, *forward(31 + at)) for at in range(4)]
        device.allocate(5 * MIB, *LOSSES)
        if step == 0:
            device.allocate(40 * MIB, *STATES)
        for address in steps:
            device.free(address)
    held = explained(tmp_path, device.dump())
    adds_up(held)
    (growing,) = held.growing
    # The least of the last fifth is that of its beginning, and the first fifth begins with none.
    assert (growing.place, growing.blocks, growing.grown_bytes) == ("train.py:96 main()", 100, 400 * MIB)
    kinds = {one.place: one.kind for one in held.holders}
    assert kinds["model.py:20 __init__()"] == "parameters" and kinds["train.py:95 main()"] == "optimizer state"
    assert kinds["model.py:31 forward()"] == "forward pass"
    assert held.remedies[0].change.startswith("Let go of the tensors made at train.py:96 main()")


def test_a_loop_that_frees_all_grows_nothing(tmp_path: Path) -> None:
    device = CachingAllocator(10_000 * MIB)
    for _ in range(100):
        for address in [device.allocate(30 * MIB, *forward(31)) for _ in range(4)]:
            device.free(address)
    held = explained(tmp_path, device.dump())
    assert held.growing == () and held.allocated_bytes == 120 * MIB
    assert not any("Let go" in one.change for one in held.remedies)


def test_the_first_forward_pass_and_a_model_that_is_loaded_grow_nothing(tmp_path: Path) -> None:
    device = CachingAllocator(10_000 * MIB)
    for layer in range(50):
        device.allocate(20 * MIB, *PARAMETERS)
        device.free(device.allocate(30 * MIB, *forward(30)))
        device.allocate((10 + layer % 3) * MIB, *forward(31))
    assert explained(tmp_path / "first", device.dump()).growing == ()
    # The same with backward passes between: they are steps, and their graphs are kept.
    for layer in range(50):
        device.allocate((10 + layer % 3) * MIB, *forward(31))
        device.free(device.allocate(20 * MIB))
    for layer in range(100):
        device.allocate((10 + layer % 3) * MIB, *forward(31))
        device.free(device.allocate(20 * MIB))
    assert [one.place for one in explained(tmp_path / "steps", device.dump()).growing] == ["model.py:31 forward()"]


def test_memory_in_pieces_is_told_with_the_setting_that_joins_them(tmp_path: Path) -> None:
    device = CachingAllocator(120 * MIB)
    # Two blocks of 9 MiB share each segment of 20 MiB; one of them goes, the other stays.
    blocks = [device.allocate(9 * MIB, *forward(31)) for _ in range(12)]
    for address in blocks[::2]:
        device.free(address)
    with pytest.raises(OutOfMemoryError):
        device.allocate(30 * MIB, *forward(33))
    held = explained(tmp_path, device.dump())
    adds_up(held)
    assert held.moment == "out of memory" and held.failed is not None
    assert (held.failed.cause, held.failed.place) == ("fragmented", "model.py:33 forward()")
    assert held.failed.requested_bytes == 30 * MIB and held.free.largest_bytes < 30 * MIB <= held.free.free_bytes
    assert any("expandable_segments:True" in one.code for one in held.remedies)
    # In segments that grow the same requests fit: 12 x 9 MiB, and 30 MiB in the place of six of them.
    assert 6 * 9 + 30 <= 120


def test_memory_that_is_full_tells_the_part_of_the_batch_that_had_fitted(tmp_path: Path) -> None:
    device = CachingAllocator(200 * MIB)
    device.allocate(40 * MIB, *PARAMETERS)
    for line in range(3):
        device.allocate(40 * MIB, *forward(31 + line))
    with pytest.raises(OutOfMemoryError):
        device.allocate(60 * MIB, *forward(35))
    held = explained(tmp_path, device.dump())
    assert held.failed is not None and held.failed.cause == "full"
    # 40 MiB are left of the device, so that 20 are missing; 120 and the request grow with the batch.
    assert (held.failed.device_free_bytes, held.failed.lacking_bytes) == (40 * MIB, 20 * MIB)
    remedies = held.remedies
    assert remedies[0].change.startswith("Take at most 84 % of the batch")
    assert not any("expandable" in one.code for one in remedies)
    # With that part of the batch it fits.
    part = 0.95 * (1 - 20 / 180)
    again = CachingAllocator(200 * MIB)
    again.allocate(40 * MIB)
    for size in (40, 40, 40, 60):
        again.allocate(int(part * size * MIB))


def test_a_snapshot_without_a_history_says_so(tmp_path: Path) -> None:
    device = CachingAllocator(1000 * MIB)
    device.allocate(40 * MIB, *PARAMETERS)
    device.allocate(10 * MIB)
    held = explained(tmp_path, device.dump(history=False))
    assert held.moment == "snapshot" and held.history_reason is not None and "no history" in held.history_reason
    assert [(one.place, one.kind) for one in held.holders] == [
        ("model.py:20 __init__()", "parameters"),
        (None, "no Python frame"),
    ]


def test_json_and_compressed_files_say_the_same(tmp_path: Path) -> None:
    device = CachingAllocator(1000 * MIB)
    device.allocate(40 * MIB, *PARAMETERS)
    device.free(device.allocate(10 * MIB, *forward(31)))
    plain = explained(tmp_path, device.dump())
    for name, content in (
        ("a.json", json.dumps(device.dump()).encode()),
        ("b.pickle.gz", gzip.compress(pickle.dumps(device.dump()))),
        ("c.json.gz", gzip.compress(json.dumps(device.dump()).encode())),
    ):
        (tmp_path / name).write_bytes(content)
        assert is_allocator_snapshot(tmp_path / name)
        assert explain_snapshot(read_allocator_snapshot(tmp_path / name)) == (plain,)
    (tmp_path / "trace.json").write_text('{"traceEvents": [], "segments": []}')
    assert not is_allocator_snapshot(tmp_path / "trace.json")


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (pickle.dumps({"segments": []})[:-3], "cut off"),
        (pickle.dumps({"segments": {1, 2}}), "EMPTY_SET"),
        (pickle.dumps({"blocks": []}), "no list of segments"),
        (b'{"segments": [', "Expecting value"),
        (gzip.compress(pickle.dumps({"segments": []}), mtime=0)[:-9], "compression is broken"),
    ],
)
def test_a_file_that_cannot_be_read_is_refused_with_the_reason(tmp_path: Path, content: bytes, words: str) -> None:
    (tmp_path / "x.pickle").write_bytes(content)
    with pytest.raises(TraceError) as caught:
        read_allocator_snapshot(tmp_path / "x.pickle")
    assert words in " ".join(caught.value.lines())


def test_entries_that_are_no_records_are_counted_and_left_out(tmp_path: Path) -> None:
    device = CachingAllocator(1000 * MIB)
    device.allocate(40 * MIB, *PARAMETERS)
    snapshot = device.dump()
    snapshot["segments"] += [None, {"address": -1, "total_size": 5}, {"address": "x", "total_size": 1}]
    snapshot["device_traces"][0] += [7, {"action": "boom", "size": 1}, {"action": "alloc", "addr": 1, "size": 1.5}]
    (tmp_path / "x.pickle").write_bytes(pickle.dumps(snapshot))
    read = read_allocator_snapshot(tmp_path / "x.pickle")
    assert read.left_out == 6
    (held,) = explain_snapshot(read)
    assert held.allocated_bytes == 40 * MIB
    assert "6 entries of the file could not be read" in held_text([held], "x.pickle", "terminal", left_out=6)


def test_names_of_a_snapshot_are_text_and_no_code(tmp_path: Path) -> None:
    device = CachingAllocator(1000 * MIB)
    device.allocate(40 * MIB, ("/home/<script>alert(1)</script>.py", 3, "f\x1b[31m`|"))
    held = explained(tmp_path, device.dump())
    page, screen = (held_text([held], "x<b>.pickle", form) for form in ("html", "terminal"))
    assert "<script>alert" not in page and "x<b>" not in page and "\x1b[31m" not in screen
    # The page draws the memory over time, and does not show it twice.
    assert "Memory of device 0 over time" in page and "Memory over time" not in page
    assert "Memory over time" in screen
    content = json.loads(held_text([held], "x.pickle", "json"))
    assert content["schema"] == "bottleneck/held-memory/1"
    assert content["devices"][0]["holders"][0]["held_bytes"] == 40 * MIB


def test_the_first_screen_says_what_failed_what_holds_most_and_what_to_do(tmp_path: Path) -> None:
    device = CachingAllocator(200 * MIB)
    for _ in range(4):
        device.allocate(40 * MIB, *STATES)
    with pytest.raises(OutOfMemoryError):
        device.allocate(60 * MIB, *forward(35))
    text = held_text([explained(tmp_path, device.dump())], "s.pickle", "terminal")
    assert max(map(len, text.splitlines())) <= 80
    words = " ".join(text.split())
    assert words.startswith("OUT OF MEMORY · s.pickle · device 0")
    assert "A request of 60 MiB at model.py:35 forward() failed: it lacked 20 MiB." in words
    assert "Largest train.py:95 main(), optimizer state: 160 MiB (100.0 % of what is allocated) in 4 blocks" in words
    assert "First" in words and "gives back" in words
    assert -1 < words.find("What to change") < words.find("Memory by kind") < words.find("Memory by line")
    # The same memory is another share of what is reserved than of what is allocated.
    assert "what it is for memory of reserved blocks" in words and "line memory of allocated blocks largest" in words


def test_a_small_file_whose_lists_occur_many_times_is_refused(tmp_path: Path) -> None:
    block = {"address": MIB, "size": 512, "requested_size": 512, "state": "active_allocated", "frames": []}
    blocks = [block] * 1000
    segments = [{"address": at * MIB, "total_size": MIB, "device": 0, "blocks": blocks} for at in range(1, 1001)]
    path = tmp_path / "snapshot.pickle"
    path.write_bytes(pickle.dumps({"segments": segments, "device_traces": []}))
    with pytest.raises(TraceError, match="too many entries"):
        read_allocator_snapshot(path)
    apart = [{**segment, "blocks": [dict(block) for _ in range(10)]} for segment in segments]
    path.write_bytes(pickle.dumps({"segments": apart, "device_traces": []}))
    assert sum(len(segment.blocks) for segment in read_allocator_snapshot(path).segments) == 10_000


def test_of_many_devices_the_fullest_are_shown_and_all_are_in_the_json(tmp_path: Path) -> None:
    device = CachingAllocator(1000 * MIB)
    device.allocate(40 * MIB, *PARAMETERS)
    held = explained(tmp_path, device.dump())
    many = [replace(held, device=number, allocated_bytes=held.allocated_bytes + number) for number in range(30)]
    text = held_text(many, "x.pickle", "terminal")
    assert text.count("Memory by line of device") == 8 and "device 29" in text and "device 3 " not in text
    assert "22 more devices in --format json" in text
    assert len(json.loads(held_text(many, "x.pickle", "json"))["devices"]) == 30
