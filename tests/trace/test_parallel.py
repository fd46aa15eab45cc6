"""The law of workers: a file reads the same in any number of processes; and nothing of them stays behind."""

import json
import os
import random
import select
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from bottleneck.trace import parallel
from bottleneck.trace.read import read_trace
from tests.builders import Event, frame, kernel, launch, op
from tests.trace.read_files import assert_same, chain, gzipped, read_bytes, slugs

SAMPLES = sorted((Path(__file__).parents[2] / "sample_traces").glob("*/*.json.gz"))
RELAXED = settings(
    max_examples=settings.default.max_examples,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
    derandomize=True,
)
Check = Callable[[Path], None]


@pytest.fixture
def blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Blocks of 700 bytes."""
    monkeypatch.setattr("bottleneck.trace.inflate.BLOCK_BYTES", 700)
    monkeypatch.setattr("bottleneck.trace.inflate._TEXT_BYTES", 700)


@pytest.fixture
def taken(monkeypatch: pytest.MonkeyPatch) -> list[bool]:
    """For each task that is taken back, whether its columns were those of a worker."""
    kept: list[bool] = []
    take, append = parallel.DecoderProcesses._take_oldest, parallel.Columns.append

    def counted_take(self: parallel.DecoderProcesses) -> None:
        kept.append(False)
        take(self)

    def counted_append(*arguments: object) -> None:
        kept[-1] = True
        append(*arguments)  # type: ignore[arg-type]

    monkeypatch.setattr(parallel.DecoderProcesses, "_take_oldest", counted_take)
    monkeypatch.setattr(parallel.Columns, "append", counted_append)
    return kept


def written(folder: Path, data: bytes | str) -> Path:
    path = folder / "written.json"
    path.write_bytes(data if isinstance(data, bytes) else data.encode())
    return path


def dumped(events: list[Event]) -> str:
    return json.dumps({"schemaVersion": 1, "traceEvents": events})


@pytest.mark.parametrize("path", SAMPLES, ids=lambda path: path.parent.name)
def test_each_sample_reads_the_same(path: Path, assert_workers_agree: Check, taken: list[bool]) -> None:
    assert_workers_agree(path)
    assert taken.count(True) > 10


@pytest.mark.corpus
def test_each_public_trace_reads_the_same(traces: Path, assert_workers_agree: Check, taken: list[bool]) -> None:
    paths = sorted(traces.glob("*.gz"))
    assert len(paths) > 90
    for path in paths:
        assert_workers_agree(path)
    assert taken.count(True) > 10 * len(paths)


@pytest.mark.process
@pytest.mark.parametrize("jobs", [2, 3])
def test_processes_read_what_one_reads(at_once: None, blocks: None, taken: list[bool], jobs: int) -> None:
    assert_same(read_trace(SAMPLES[0], jobs), read_trace(SAMPLES[0]))
    assert taken.count(True) > 10


SEED = dumped(
    [op(f"aten::{n % 4}", n, 5, dims=[[n % 5, 2]], external_id=n) for n in range(40)]
    + [launch(n, n, 1) for n in range(20)]
    + [frame("a", 1, 2)]
    + [kernel(n, n + 2, 3, f"kernel{n % 3}") for n in range(20)]
).encode()


@pytest.mark.statistics
@RELAXED
@given(st.data())
def test_no_damage_makes_workers_differ(
    tmp_path: Path, in_threads: None, assert_workers_agree: Check, data: st.DataObject
) -> None:
    text = bytearray(SEED)
    for _ in range(data.draw(st.integers(1, 4))):
        position = data.draw(st.integers(0, len(text) - 1))
        pieces = [b"{", b"}", b"[", b"]", b"]}", b",", b'"', b"\\", b"NaN", b'}, {"ph": ', b"0.5", b"8" * 16]
        piece = data.draw(st.binary(max_size=6) | st.sampled_from(pieces))
        text[position : position + data.draw(st.integers(0, 40))] = piece
    assert_workers_agree(written(tmp_path, gzipped(bytes(text)) if data.draw(st.booleans()) else bytes(text)))


@pytest.mark.parametrize(
    ("before", "after"), [(1, 1.5), (1.5, 1), (1.5, 1673466237799245.125), (1673466237799245.125, 1)]
)
def test_times_that_are_written_otherwise_in_the_middle_of_a_file(
    tmp_path: Path, assert_workers_agree: Check, before: float, after: float
) -> None:
    events = [op("aten::mm", before + n, 1, external_id=n) for n in range(40)]
    events += [frame("f", after + n, 1, args={"Python id": n}) for n in range(40)]
    random.Random(0).shuffle(events)
    assert_workers_agree(written(tmp_path, dumped(sorted(events, key=lambda event: event["cat"]))))
    assert_workers_agree(written(tmp_path, dumped(events)))


def test_what_does_not_fit_into_the_shared_memory_is_decoded_by_the_reader(
    tmp_path: Path, assert_workers_agree: Check, taken: list[bool], monkeypatch: pytest.MonkeyPatch
) -> None:
    path = written(tmp_path, dumped(chain(200)))
    monkeypatch.setattr(parallel, "_COLUMN_BYTES", 100)
    assert_workers_agree(path)
    assert taken and not any(taken)
    taken.clear()
    monkeypatch.setattr(parallel, "_TEXT_BYTES", 900)
    assert_workers_agree(path)
    assert not taken


def test_damaged_events_are_repaired_by_workers(
    tmp_path: Path, in_threads: None, blocks: None, taken: list[bool]
) -> None:
    trace = read_bytes(tmp_path, dumped(chain(100)))
    text = dumped(chain(100)).replace("op5", r"op\p5")
    repaired = read_trace(written(tmp_path, text), 2)
    assert len(repaired.events) == len(trace.events)
    assert slugs(repaired) == ["repaired-json"]
    assert all(taken[6:]), "the first six are decoded before any time is known"


def test_a_list_in_an_event_that_looks_like_a_cut(
    tmp_path: Path, assert_workers_agree: Check, taken: list[bool]
) -> None:
    events = [
        {**event, "args": {"External id": n, "list": [{"ph": 1, "x": "y" * 90}] * 9}}
        for n, event in enumerate(chain(30))
    ]
    assert_workers_agree(written(tmp_path, dumped(events)))
    assert taken


def test_thousands_of_categories(tmp_path: Path, assert_workers_agree: Check) -> None:
    events = [{**event, "cat": f"c{n}"} for n, event in enumerate(chain(3000))]
    assert_workers_agree(written(tmp_path, dumped([op("aten::mm", 1, 1), *events])))


@pytest.mark.process
def test_the_reader_goes_on_without_a_worker_that_was_killed(
    at_once: None, blocks: None, taken: list[bool], monkeypatch: pytest.MonkeyPatch
) -> None:
    alone, give = read_trace(SAMPLES[0]), parallel.DecoderProcesses.give

    def give_and_kill(self: parallel.DecoderProcesses, *arguments: object) -> bool:
        given = give(self, *arguments)  # type: ignore[arg-type]
        if len(taken) > 5:
            os.kill(self._workers[0].process, signal.SIGKILL)
            os.waitid(os.P_PID, self._workers[0].process, os.WEXITED | os.WNOWAIT)
        return given

    monkeypatch.setattr(parallel.DecoderProcesses, "give", give_and_kill)
    assert_same(read_trace(SAMPLES[0], 2), alone)
    assert any(taken) and not taken[-1]


@pytest.mark.process
def test_the_reader_goes_on_where_no_worker_can_be_started(
    at_once: None, blocks: None, taken: list[bool], monkeypatch: pytest.MonkeyPatch
) -> None:
    alone = read_trace(SAMPLES[0])
    monkeypatch.setattr(sys, "executable", "/bin/true")
    assert_same(read_trace(SAMPLES[0], 2), alone)
    assert not taken


def test_a_pipe_is_read_by_one_process(in_threads: None, taken: list[bool]) -> None:
    read_end, write_end = os.pipe()
    os.write(write_end, dumped(chain(20)).encode())
    os.close(write_end)
    assert len(read_trace(Path(f"/proc/self/fd/{read_end}"), 2).events) == 20
    os.close(read_end)
    assert not taken


WAITING = """
import signal, sys
from bottleneck.trace import inflate, parallel
from bottleneck.trace.read import read_trace

def wait(self):
    print(*[worker.process for worker in self._workers], flush=True)
    signal.pause()

parallel.LOOK_AFTER_BYTES, parallel.WORTH_WORKERS_BYTES = 0, -1
parallel.PATIENCE_MS, inflate.BLOCK_BYTES = None, 700
parallel.DecoderProcesses.finish = wait
read_trace(sys.argv[1], 2)
"""


def shared_memories(process: int) -> set[Path]:
    """Files in memory that a process holds, and that would stay if nobody removed them."""
    mapped = [Path(line.split()[-1]) for line in Path(f"/proc/{process}/maps").read_text().splitlines()]
    opened = [each.readlink() for each in Path(f"/proc/{process}/fd").iterdir() if each.is_symlink()]
    return {file for file in (*mapped, *opened) if file.is_relative_to("/dev/shm")}


@pytest.mark.process
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
def test_no_worker_and_no_memory_stays_after_a_signal(number: int) -> None:
    command = [sys.executable, "-c", WAITING, str(SAMPLES[0])]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as reader:
        assert reader.stdout is not None
        numbers = [int(number) for number in reader.stdout.readline().split()]
        workers = [os.pidfd_open(number) for number in numbers]
        memories = set[Path]().union(*map(shared_memories, [reader.pid, *numbers]))
        assert len(workers) == 2 and not select.select(workers, [], [], 0)[0]
        reader.send_signal(number)
        reader.communicate()
    for worker in workers:
        select.select([worker], [], [])
        os.close(worker)
    assert not any(memory.exists() for memory in memories)


def test_that_memory_would_be_seen(tmp_path: Path) -> None:
    with tempfile.NamedTemporaryFile(dir="/dev/shm") as file:
        assert Path(file.name) in shared_memories(os.getpid())


@pytest.mark.parametrize("packed", [False, True])
def test_workers_are_started_for_files_with_much_left_to_read(
    tmp_path: Path, in_threads: None, blocks: None, taken: list[bool], monkeypatch: pytest.MonkeyPatch, packed: bool
) -> None:
    text = dumped(chain(200)).encode()
    path = written(tmp_path, gzipped(text) if packed else text)
    monkeypatch.setattr("bottleneck.trace.inflate.BLOCK_BYTES", path.stat().st_size // 20)
    for worth, are_started in ((len(text) // 2, True), (len(text), False)):
        monkeypatch.setattr(parallel, "WORTH_WORKERS_BYTES", worth)
        taken.clear()
        assert len(read_trace(path, 2).events) == 200
        assert bool(taken) is are_started
