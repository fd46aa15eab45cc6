"""Blocks that programs record themselves: each program runs on its own, as a user would run it."""

import dataclasses
import os
import subprocess
import sys
import textwrap
from dataclasses import dataclass
from pathlib import Path

import pytest

from bottleneck.errors import UsageError
from bottleneck.pipeline import analyse
from bottleneck.recorder.recorded_block import record
from bottleneck.schema.device import Device
from bottleneck.schema.recording import Recording, read_recording, write_recording
from bottleneck.system.heap import read_limits

from .driver import HANGS_S
from .driver import record as run_supervised
from .test_run_forms import load_trace

pytestmark = pytest.mark.process

pytest.importorskip("torch")

TRAINING = """
    import functools, os, sys, threading, torch, bottleneck
    record = functools.partial(bottleneck.record, warmup=3)
    torch.set_num_threads(1)
    model = torch.nn.Linear(8, 8)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

    def train(steps, marked=False):
        for _ in range(steps):
            optimizer.zero_grad()
            model(torch.ones(4, 8)).sum().backward()
            optimizer.step()
            if marked:
                bottleneck.step()

"""


@dataclass(frozen=True)
class Ran:
    """A program that has ended: what it wrote, its status, and the folder that it ran in."""

    stdout: str
    stderr: str
    status: int
    folder: Path

    def recording(self, name: str = "out") -> Recording:
        return read_recording(self.folder / name)


def run(folder: Path, program: str, *arguments: str, environment: dict[str, str] | None = None) -> Ran:
    """The program, run by python in the folder; no ceilings are known there."""
    (folder / "program.py").write_text(textwrap.dedent(program).lstrip("\n"))
    done = subprocess.run(
        [sys.executable, "program.py", *arguments],
        cwd=folder,
        capture_output=True,
        text=True,
        check=False,
        timeout=HANGS_S,
        env={**os.environ, "XDG_CACHE_HOME": str(folder / "cache"), **(environment or {})},
    )
    return Ran(done.stdout, done.stderr, done.returncode, folder)


def train_and(folder: Path, body: str, *, status: int = 0) -> Ran:
    """The end of a training program that writes nothing to stderr but what we say."""
    ran = run(folder, TRAINING + body)
    assert (theirs(ran.stderr), ran.status) == ([], status)
    return ran


RANK_0 = {"RANK": "0", "WORLD_SIZE": "2"}  # as a launcher says


def theirs(stderr: str) -> list[str]:
    """The lines that are not ours, nor one that torch writes when a thread is the first in which it profiles."""
    return [
        line for line in stderr.splitlines() if not line.startswith(("bottleneck: ", "ERROR: External init callback"))
    ]


def names(folder: Path) -> set[str]:
    """The files of the recording in this folder."""
    return {path.name for path in (folder / "out").iterdir()}


def light_of(recording: Recording) -> set[str]:
    """The trace of a second window with the fewest options; none follows where other programs disturbed each window."""
    return {trace.light.file for trace in recording.traces if trace.light is not None}


@pytest.mark.parametrize(("marked", "source"), [(True, "mark"), (False, "optimizer")])
def test_a_block_is_measured_in_phases(marked: bool, source: str, tmp_path: Path) -> None:
    ran = train_and(tmp_path, f"    with record('out/'):\n        train(60, marked={marked})")
    recording = ran.recording()
    assert recording.step_source == source
    assert len(recording.traces[0].step_marks_ns) == 6
    assert recording.unprofiled is not None and recording.unprofiled.n >= 3
    assert ran.stderr.startswith("bottleneck: recorded 5 steps in out; see: bottleneck report out\n")
    assert names(ran.folder) == {"recording.json", "trace.rank0.json.gz"} | light_of(recording)


@pytest.mark.parametrize(
    ("steps", "marks", "message"),
    [(0, 2, "nothing marks the steps"), (1, 2, "ended after 1 step"), (3, 2, "one was profiled")],
)
def test_a_short_block_keeps_what_there_is(steps: int, marks: int, message: str, tmp_path: Path) -> None:
    body = f"""
    with record('out') as block:
        model(torch.ones(4, 8))
        train({steps})
    print(*block.warnings, sep='\\n')
"""
    ran = train_and(tmp_path, body)
    assert len(ran.recording().traces[0].step_marks_ns) == marks
    assert message in ran.stdout
    assert "the program ended" not in ran.stdout


@pytest.mark.skipif(read_limits() is None, reason="the C library is not glibc, or has limits of its own")
def test_a_block_leaves_the_limits_of_the_heap_as_they_were(tmp_path: Path) -> None:
    """What the block's windows freed raised them: the tensors of later steps took no new pages any more."""
    body = """
    from bottleneck.system.heap import read_limits
    layers = torch.nn.Sequential(*(torch.nn.Linear(8, 8) for _ in range(100)))

    def repeat(steps):
        for _ in range(steps):
            layers(torch.ones(4, 8)).sum().backward()
            bottleneck.step()

    repeat(5)
    before = read_limits()
    with record('out'):
        repeat(60)
    print(read_limits() == before != None)
"""
    assert train_and(tmp_path, body).stdout == "True\n"


@pytest.mark.sample
def test_the_report_of_a_block_gives_a_verdict(tmp_path: Path) -> None:
    ran = train_and(tmp_path, "    with record('out'):\n        train(40)")
    assert "ceilings of this CPU are not known yet: `bottleneck report --repair" in ran.stderr
    device = Device("CPU", None, "cpu", 1, {"fp32_tensor": 1e11, "fp32_vector": 5e10}, 1e10, 1.0, "measured", {})
    write_recording(ran.folder / "out", dataclasses.replace(ran.recording(), device=device))
    analysis = analyse([ran.folder / "out"])
    assert 1 <= analysis.steps.count <= 5
    assert analysis.verdict.bound == "overhead"
    assert any(line.name.startswith("program.py:") for line in analysis.lines)
    assert record(ran.folder / "out").report().startswith("OVERHEAD-BOUND · ")


def test_ranks_record_into_one_folder(tmp_path: Path) -> None:
    body = """
    import time, torch.distributed
    torch.distributed.init_process_group('gloo')
    model = torch.nn.parallel.DistributedDataParallel(model)
    for force in (False, True):
        with record('out', force=force) as block:
            train(40)
            torch.distributed.barrier()
            if torch.distributed.get_rank() == int(force):
                time.sleep(0.2)
        torch.distributed.barrier()
    torch.distributed.destroy_process_group()
"""
    (tmp_path / "program.py").write_text(textwrap.dedent((TRAINING + body).lstrip("\n")))
    done = subprocess.run(
        [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", "program.py"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
        timeout=HANGS_S,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    )
    assert done.returncode == 0, done.stderr
    assert done.stderr.count("bottleneck: recorded 5 steps of 2 ranks in out;") == 2
    traces = read_recording(tmp_path / "out").traces
    assert [(trace.rank, len(trace.step_marks_ns)) for trace in traces] == [(0, 6), (1, 6)]
    left = sorted(path.name for path in (tmp_path / "out").iterdir())
    assert left == [
        *("light.rank0.json.gz", "light.rank1.json.gz", "recording.json", "trace.rank0.json.gz", "trace.rank1.json.gz")
    ]


def test_of_two_ranks_that_end_at_one_time_the_second_leaves_the_recording_of_the_first_alone(tmp_path: Path) -> None:
    # Once the block has saved its notes it waits for the other rank, which takes them with it as it finishes.
    body = """
    from pathlib import Path
    from bottleneck.harness import finish, folder

    def finish_first(out):
        with folder.exclusive(out):
            (out / 'recording.json').write_text('of the other rank')
            ready.set()
            while not finish.read_notes(folder.RankFiles(out, 1)).is_complete:
                pass
            finish.remove_notes(out)

    ready = threading.Event()
    with record('out', rank=(1, 2)):
        train(3)
        other = threading.Thread(target=finish_first, args=(Path('out').absolute(),))
        other.start(); ready.wait()
    other.join()
    print(Path('out/recording.json').read_text())
"""
    assert train_and(tmp_path, body).stdout == "of the other rank\n"


def test_one_rank_of_a_job_may_record_alone(tmp_path: Path) -> None:
    ran = run(tmp_path, TRAINING + "    with record('out', rank=(0, 1)):\n        train(40)", environment=RANK_0)
    assert ran.stderr.startswith("bottleneck: recorded 5 steps in out;")
    assert [trace.rank for trace in ran.recording().traces] == [0]


def test_without_that_it_waits_for_the_others(tmp_path: Path) -> None:
    ran = run(tmp_path, TRAINING + "    with record('out'):\n        train(40)", environment=RANK_0)
    assert (ran.status, ran.stderr) == (0, "")
    assert not (tmp_path / "out" / "recording.json").exists()


def test_steps_and_warmup_are_those_that_were_asked_for(tmp_path: Path) -> None:
    ran = train_and(tmp_path, "    with record('out', steps=2, warmup=10, quiet=True): train(60)")
    assert len(ran.recording().traces[0].step_marks_ns) == 3
    assert ran.stderr == ""


def test_an_exception_comes_through_unchanged_and_what_was_captured_is_kept(tmp_path: Path) -> None:
    body = """
    error = ValueError("theirs")
    try:
        with record('out'):
            train(40)
            raise error
    except ValueError as caught:
        print(caught is error, caught.__traceback__.tb_next)
"""
    ran = train_and(tmp_path, body)
    assert ran.stdout == "True None\n"
    assert len(ran.recording().traces[0].step_marks_ns) == 6
    assert any("ValueError" in warning for warning in ran.recording().warnings)
    assert not any("theirs" in warning for warning in ran.recording().warnings)


def test_blocks_may_follow_one_another(tmp_path: Path) -> None:
    body = """
    for name in 'abc':
        with record(name):
            train(40)
    train(2)
    print(len(torch.nn.modules.module._global_forward_pre_hooks), torch.autograd._profiler_enabled())
"""
    ran = train_and(tmp_path, body)
    assert ran.stdout == "0 False\n"
    assert [len(ran.recording(name).traces[0].step_marks_ns) for name in "abc"] == [6] * 3


def test_a_finished_block_leaves_no_window_in_memory(tmp_path: Path) -> None:
    body = """
    import gc
    from bottleneck.harness.window import ProfilerWindow
    with record('out'):
        train(40)
        print(any(type(each) is ProfilerWindow for each in gc.get_objects()))
    gc.collect()
    print(any(type(each) is ProfilerWindow for each in gc.get_objects()))
"""
    assert train_and(tmp_path, body).stdout == "True\nFalse\n"


def test_a_block_in_a_block_is_refused_and_the_outer_one_goes_on(tmp_path: Path) -> None:
    body = """
    with record('out'):
        try:
            with record('inner'):
                train(1)
        except Exception as error:
            print(type(error).__name__, error)
        train(40)
    print(os.path.exists('inner'))
"""
    ran = train_and(tmp_path, body)
    assert ran.stdout == "UsageError another block of this program is being recorded\nFalse\n"
    assert len(ran.recording().traces[0].step_marks_ns) == 6


def test_a_block_in_a_thread_is_profiled(tmp_path: Path) -> None:
    body = """
    def work():
        with record('out'):
            train(40)
    thread = threading.Thread(target=work)
    thread.start(); thread.join()
"""
    ran = train_and(tmp_path, body)
    assert len(ran.recording().traces[0].step_marks_ns) == 6


def test_steps_of_other_threads_are_not_those_of_the_block(tmp_path: Path) -> None:
    body = """
    with record('out'):
        thread = threading.Thread(target=train, args=(40, True))
        thread.start(); thread.join()
        train(40, True)
"""
    assert len(train_and(tmp_path, body).recording().traces[0].step_marks_ns) == 6


def test_a_fork_in_a_block_goes_on_unmeasured_and_ends_as_it_would(tmp_path: Path) -> None:
    # Steps that wait for a child never settle: without a fixed number of them to warm up, too few may be left after
    # it for the window. A fork that falls into the window ends it with the whole steps before it.
    body = """
    import atexit
    atexit.register(lambda: print('bye', flush=True))
    with record('out', warmup=3):
        for steps in (1, 1, 20, 12):
            train(steps)
            child = os.fork()
            if child == 0:
                train(3, marked=True)
                sys.exit(steps)
            print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)
        train(20)
"""
    ran = train_and(tmp_path, body)
    assert ran.stdout.split() == ["bye", "1", "bye", "1", "bye", "20", "bye", "12", "bye"]
    assert 2 <= len(ran.recording().traces[0].step_marks_ns) <= 6


def test_a_fork_may_record_a_block_of_its_own(tmp_path: Path) -> None:
    body = """
    with record('out'):
        train(40)
        child = os.fork()
        if child == 0:
            with record('inner', quiet=True):
                train(40)
            sys.exit(3)
        print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
"""
    ran = train_and(tmp_path, body)
    assert ran.stdout == "3\n"
    assert [len(ran.recording(name).traces[0].step_marks_ns) for name in ("out", "inner")] == [6, 6]


@pytest.mark.parametrize("is_around", [True, False], ids=["around", "inside"])
def test_a_profiler_of_the_programs_own_keeps_its_result(is_around: bool, tmp_path: Path) -> None:
    body = f"""
    profiler, block = torch.autograd.profiler.profile(), record('out', quiet=True)
    with {"profiler, block" if is_around else "block, profiler"}:
        train(40)
    print(sum(event.name == 'aten::addmm' for event in profiler.function_events))
    with record('later', quiet=True):
        train(40)
"""
    ran = run(tmp_path, TRAINING + body)
    assert (ran.status, ran.stdout) == (0, "40\n")
    assert any("profiler of its own" in warning for warning in ran.recording().warnings)
    assert len(ran.recording("later").traces[0].step_marks_ns) == 6


def test_torch_is_imported_by_the_program_alone(tmp_path: Path) -> None:
    program = """
        import sys, bottleneck
        with bottleneck.record("out", warmup=3):
            print("torch" in sys.modules)
            import torch
            model = torch.nn.Linear(4, 4)
            for _ in range(40):
                model(torch.ones(2, 4))
                bottleneck.step()
        with bottleneck.record("nothing", quiet=True) as block:
            pass
        print(any(type(each).__name__ == "TorchHook" for each in sys.meta_path))
    """
    ran = run(tmp_path, program)
    assert (ran.status, ran.stdout) == (0, "False\nFalse\n")
    assert len(ran.recording().traces[0].step_marks_ns) == 6


@pytest.mark.sample
def test_a_block_without_torch_says_so(tmp_path: Path) -> None:
    program = (
        "import sys, bottleneck\nwith bottleneck.record('out'):\n    bottleneck.step()\nprint('torch' in sys.modules)"
    )
    ran = run(tmp_path, program)
    assert (ran.status, ran.stdout) == (0, "False\n")
    assert "recorded nothing that can be explained" in ran.stderr
    assert "the block never imported torch" in ran.stderr


def test_under_a_supervisor_the_whole_program_is_measured(tmp_path: Path) -> None:
    body = "    with record('out') as block:\n        train(40, marked=True)\n    print(block.warnings)\n"
    ran = run_supervised(tmp_path, TRAINING + body, "--warmup", "3")
    assert (ran.stdout, theirs(ran.stderr), ran.status) == ("()\n", [], 0)
    assert not (tmp_path / "out").exists()
    assert ran.recording.step_source == "mark"
    assert len(ran.recording.traces[0].step_marks_ns) == 6
    assert "bottleneck.record does nothing" in ran.said


def test_a_mark_overrules_the_optimizer(tmp_path: Path) -> None:
    body = "    for _ in range(40):\n        train(2)\n        bottleneck.step()\n"
    ran = run_supervised(tmp_path, TRAINING + body, "--warmup", "3")
    assert ran.recording.step_source == "mark"
    marks_ns = ran.recording.traces[0].step_marks_ns
    names = [event["name"] for event in load_trace(ran)["traceEvents"]]
    assert names.count("aten::addmm") == 2 * (len(marks_ns) - 1) + 2, "the step that leads in is in the trace too"


@pytest.mark.sample
@pytest.mark.parametrize(
    ("arguments", "message"),
    [({"steps": 0}, "steps=0"), ({"steps": "5"}, "steps='5'"), ({"warmup": -1}, "warmup=-1")],
    ids=str,
)
def test_arguments_that_make_no_sense_are_refused(arguments: dict[str, int], message: str, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=message):
        record(tmp_path / "out", **arguments)
    assert not (tmp_path / "out").exists()


@pytest.mark.sample
def test_a_folder_that_is_taken_is_left_alone_and_the_next_number_recorded_into(tmp_path: Path) -> None:
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "precious.txt").write_text("mine")
    body = """
    for _ in range(2):
        with record('out/') as block:
            train(40)
        print(block.folder)
"""
    ran = train_and(tmp_path, body)
    assert ran.stdout == "out-2\nout-3\n"
    assert [path.name for path in (tmp_path / "out").iterdir()] == ["precious.txt"]
    for name in ("out-2", "out-3"):
        assert ran.recording(name).traces
        assert f"see: bottleneck report {name}\nbottleneck: out was not empty" in ran.stderr


def test_a_block_that_is_entered_again_is_numbered_by_the_name_that_was_asked_for(tmp_path: Path) -> None:
    body = """
    block = record('out')
    for _ in range(3):
        with block:
            train(40)
        print(block.folder)
"""
    assert train_and(tmp_path, body).stdout == "out\nout-2\nout-3\n"


@pytest.mark.sample
def test_a_folder_that_cannot_be_made_is_refused_with_a_remedy_in_code(tmp_path: Path) -> None:
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "link").symlink_to("elsewhere")
    with pytest.raises(UsageError, match="symbolic link") as refused, record(tmp_path / "link"):
        pass
    assert not any(" -o " in note for note in refused.value.__notes__)
    assert any(str(tmp_path / "elsewhere") in note for note in refused.value.__notes__)


def test_force_replaces_an_old_recording_and_nothing_else(tmp_path: Path) -> None:
    (tmp_path / "out").mkdir()
    for name in ("precious.txt", "recording.json", "trace.rank7.json.gz"):
        (tmp_path / "out" / name).write_text("old")
    ran = train_and(tmp_path, "    with record('out', force=True):\n        train(60)")
    assert names(ran.folder) == {"precious.txt", "recording.json", "trace.rank0.json.gz"} | light_of(ran.recording())


def test_a_recording_that_cannot_be_finished_does_not_disturb_the_program(tmp_path: Path) -> None:
    body = """
    import shutil
    with record('out') as block:
        train(40)
        shutil.rmtree('out')
    print(len(block.warnings))
"""
    ran = run(tmp_path, TRAINING + body)
    assert ran.status == 0
    assert int(ran.stdout) >= 1
    assert "could not be finished" in ran.stderr
    assert "Traceback" not in ran.stderr
