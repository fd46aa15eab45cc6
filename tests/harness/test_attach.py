"""`bottleneck attach`: programs that run while a window of them is recorded, and processes that refuse."""

import contextlib
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from bottleneck.errors import UsageError
from bottleneck.harness.attachable import VARIABLE, number
from bottleneck.harness.messages import EVENT_BUDGET
from bottleneck.harness.running_process import connect, injected_code
from bottleneck.schema.recording import is_recording, read_recording

pytest.importorskip("torch")
pytestmark = [pytest.mark.process, pytest.mark.skipif(sys.platform != "linux", reason="attaches on Linux alone")]

STARTS = "import bottleneck.harness.attachable as attachable\nattachable.answer_from_start()\n"
# Trains until a file says that it is enough, or for a number of steps, and tells what came of it.
TRAINS = """
import os, sys, time, torch
torch.manual_seed(0)
model = torch.nn.Sequential(torch.nn.Linear(16, 32), torch.nn.ReLU(), torch.nn.Linear(32, 4))
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
most = int(sys.argv[1]) if len(sys.argv) > 1 else 10**9
def train(steps=0):
    while steps < most and (len(sys.argv) > 1 or not os.path.exists("stop")):
        optimizer.zero_grad()
        model(torch.randn(32, 16)).square().mean().backward()
        optimizer.step()
        steps += 1
        if steps == 3:
            print("ready", flush=True)
        time.sleep(0.002)
    print(steps, float(sum(p.detach().double().sum() for p in model.parameters())).hex())
"""
ENDS = "\nif __name__ == '__main__':\n    sys.exit(7)\n"


class Program:
    """A program that runs in a folder of its own."""

    def __init__(self, folder: Path, code: str, *words: str) -> None:
        self.folder = folder
        (folder / "train.py").write_text(code)
        self.process = subprocess.Popen(
            [sys.executable, "train.py", *words],
            cwd=folder,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def wait_until_ready(self) -> None:
        assert self.process.stdout is not None
        assert self.process.stdout.readline() == "ready\n", self.process.stderr and self.process.stderr.read()

    def attach(self, *options: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(self.command(*options), cwd=self.folder, capture_output=True, text=True, check=False)

    def command(self, *options: str) -> list[str]:
        return [sys.executable, "-m", "bottleneck", "attach", *options, str(self.process.pid)]

    def end(self) -> tuple[int, str, str]:
        """Tells the program that it is enough, and gives its status, output and errors."""
        (self.folder / "stop").touch()
        output, errors = self.process.communicate(timeout=60)
        return self.process.returncode, output, errors


@contextlib.contextmanager
def started(folder: Path, code: str) -> Iterator[Program]:
    program = Program(folder, code)
    try:
        program.wait_until_ready()
        yield program
    finally:
        program.process.kill()
        program.process.communicate()


def is_as_without(folder: Path, output: str) -> bool:
    """Runs the program again for as many steps, without anybody who attaches, and compares what it computed."""
    steps = output.split(maxsplit=1)[0]
    plain = subprocess.run(
        [sys.executable, "-c", TRAINS + "train()" + ENDS, steps],
        cwd=folder,
        capture_output=True,
        text=True,
        check=False,
    )
    return plain.returncode == 7 and plain.stdout.removeprefix("ready\n") == output


def test_ten_windows_of_a_training_are_recorded_and_it_computes_the_same(tmp_path: Path) -> None:
    with started(tmp_path, STARTS + TRAINS + "train()" + ENDS) as program:
        for number_of_window in range(10):
            folder = tmp_path / f"window-{number_of_window}"
            done = program.attach("--seconds", "10", "--telemetry-ms", "0", "-o", str(folder))
            assert done.returncode == 0 and "error" not in done.stderr, done.stderr
            recording = read_recording(folder)
            assert recording.step_name == "optimizer.step of SGD" and len(recording.traces[0].step_marks_ns) > 1
            assert recording.start_up is None
        status, output, errors = program.end()
    assert (status, errors) == (7, "")
    assert is_as_without(tmp_path, output)


def test_a_killed_attachment_leaves_the_program_as_it_is_and_the_next_one_works(tmp_path: Path) -> None:
    with started(tmp_path, STARTS + TRAINS + "train()" + ENDS) as program:
        for delay_s in (0.0, 0.05, 0.2):
            command = program.command("--warmup", "100000", "-o", f"killed-{delay_s}")
            with subprocess.Popen(command, cwd=tmp_path, stderr=subprocess.PIPE, text=True) as killed:
                assert killed.stderr is not None
                said = killed.stderr.readline()
                time.sleep(delay_s)
                killed.kill()
                assert "attached" in said, said + killed.stderr.read()
            wait_until_free(program.process.pid)
        done = program.attach("--seconds", "10", "-o", "next")
        assert done.returncode == 0, done.stderr
        status, output, errors = program.end()
    assert (status, errors) == (7, "")
    assert is_as_without(tmp_path, output)


def wait_until_free(process: int) -> None:
    """Waits until the window of whoever was killed has ended."""
    for _ in range(200):
        with contextlib.suppress(UsageError):
            connect(process).close()
            return
        time.sleep(0.05)
    raise AssertionError(f"the window of a killed attachment did not end: {refusal(process)}")


def test_signals_that_come_together_leave_nobody_without_an_answer(tmp_path: Path) -> None:
    code = """
import json, os, socket
import bottleneck.harness.attachable as attachable
attachable.attachable()
def caller():
    client = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    client.connect(attachable.address(os.getpid()))
    client.settimeout(30)
    return client
gone, done = caller(), []
gone.close()
waiting = [caller(), caller()]
attachable._work.append(lambda: done.append("worked"))
attachable._answer(0, None)
print(done, [sorted(json.loads(client.recv(1 << 18))) for client in waiting])
"""
    done = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, check=False)
    hello = ["arguments", "environment", "version"]
    assert (done.stdout.strip(), done.stderr) == (str(["worked"]) + " " + str([hello, hello]), "")


def test_ctrl_c_ends_the_window_with_what_there_is(tmp_path: Path) -> None:
    with started(tmp_path, STARTS + TRAINS + "train()" + ENDS) as program:
        attaching = subprocess.Popen(
            program.command("--warmup", "100000", "-o", "window"), cwd=tmp_path, stderr=subprocess.PIPE, text=True
        )
        assert attaching.stderr is not None
        attaching.stderr.readline()
        notes = tmp_path / "window" / ".notes.rank0.json"
        for _ in range(400):
            if notes.exists():
                break
            time.sleep(0.05)
        attaching.send_signal(signal.SIGINT)
        _, errors = attaching.communicate(timeout=60)
        assert attaching.returncode == 130 and "of which one was profiled" in errors, errors
        assert is_recording(tmp_path / "window")
        assert program.end()[0] == 7


def test_a_window_ends_after_its_seconds(tmp_path: Path) -> None:
    with started(tmp_path, STARTS + TRAINS + "train()" + ENDS) as program:
        began_s = time.monotonic()
        done = program.attach("--seconds", "1", "--warmup", "100000", "-o", "window")
        assert done.returncode == 0 and "of which one was profiled" in done.stderr, done.stderr
        assert time.monotonic() - began_s < 60
        assert program.end()[0] == 7


def test_a_measurement_that_fails_at_its_end_leaves_the_program_as_it_is(tmp_path: Path) -> None:
    code = (
        "from bottleneck.harness.block import BlockMeasurement\n"
        "def fail(measurement):\n    open('failed', 'w').close()\n    raise RuntimeError('planted')\n"
        "BlockMeasurement.finish = fail\n"
    )
    with started(tmp_path, STARTS + code + TRAINS + "train()" + ENDS) as program:
        program.attach("--seconds", "1", "-o", "window")
        assert (tmp_path / "failed").exists()
        status, _, errors = program.end()
    assert (status, errors) == (7, "")


def test_steps_of_another_thread_are_recorded(tmp_path: Path) -> None:
    code = "import threading\nthread = threading.Thread(target=train)\nthread.start()\nthread.join()\n"
    with started(tmp_path, STARTS + TRAINS + code + ENDS) as program:
        done = program.attach("--seconds", "10", "-o", "window")
        assert done.returncode == 0, done.stderr
        assert read_recording(tmp_path / "window").traces
        status, output, errors = program.end()
    assert (status, errors) == (7, "")
    assert is_as_without(tmp_path, output)


def test_a_program_that_ends_in_the_window_keeps_its_status(tmp_path: Path) -> None:
    with started(tmp_path, STARTS + TRAINS + "train()" + ENDS) as program:
        ender = threading.Timer(3.0, (tmp_path / "stop").touch)
        ender.start()
        done = program.attach("--warmup", "100000", "-o", "window")
        ender.join()
        assert done.returncode == 0 and "recorded 1 step in" in done.stderr, done.stderr
        status, output, errors = program.end()
    assert (status, errors) == (7, "")
    assert is_as_without(tmp_path, output)


def test_a_program_that_starts_its_loader_in_each_epoch_is_recorded_and_its_workers_end(tmp_path: Path) -> None:
    code = (
        "data = torch.utils.data.TensorDataset(torch.randn(64, 16))\n"
        "epochs = 0\n"
        # From Python 3.14 on, workers of a loader import the program.
        "while __name__ == '__main__' and not os.path.exists('stop'):\n"
        "    for x, in torch.utils.data.DataLoader(data, batch_size=2, num_workers=1):\n"
        "        model(x).mean().backward(); optimizer.step()\n"
        "    epochs += 1\n"
        "    if epochs == 1: print('ready', flush=True)\n"
    )
    with started(tmp_path, STARTS + TRAINS + code + ENDS) as program:
        done = program.attach("--seconds", "10", "-o", "window")
        assert done.returncode == 0, done.stderr
        status, _, errors = program.end()
    assert (status, errors) == (7, "")


def refusal(process: int) -> str:
    with pytest.raises(UsageError) as caught:
        connect(process)
    assert caught.value.fix
    return caught.value.why


WAITS = "import time\nprint('ready', flush=True)\ntime.sleep(60)\n"


def test_processes_that_cannot_be_attached_to_are_refused(tmp_path: Path) -> None:
    sleeping = subprocess.Popen(["/bin/sleep", "60"])
    with started(tmp_path, WAITS) as program:
        assert "not started to be attached to" in refusal(program.process.pid)
        program.process.send_signal(signal.SIGSTOP)
        os.waitpid(program.process.pid, os.WUNTRACED)
        assert "stopped" in refusal(program.process.pid)
        program.process.send_signal(signal.SIGCONT)
        assert program.process.poll() is None
    assert refusal(program.process.pid) == "there is no such process"
    assert refusal(sleeping.pid) == "it is no Python program"
    assert refusal(os.getpid()) == "that is this command itself"
    sleeping.kill()
    time.sleep(0.1)
    assert refusal(sleeping.pid) == "it has ended"
    sleeping.wait()


def test_the_process_of_another_user_is_refused(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    with started(tmp_path, STARTS + WAITS) as program:
        connect(program.process.pid).close()  # of this user it is not
        ours = os.geteuid()
        monkeypatch.setattr(os, "geteuid", lambda: ours + 1)
        assert refusal(program.process.pid) == "it belongs to another user"


def test_a_fork_is_refused_and_its_parent_named(tmp_path: Path) -> None:
    code = "import os\nchild = os.fork()\nif child: open('child', 'w').write(str(child))\n"
    with started(tmp_path, STARTS + "import time\n" + code + "else: time.sleep(60)\n" + WAITS) as program:
        child = int((tmp_path / "child").read_text())
        try:
            assert f"fork of process {program.process.pid}" in refusal(child)
            os.kill(child, number() or 0)  # even the signal itself gets no answer from it
            os.kill(child, 0)
        finally:
            os.kill(child, signal.SIGKILL)


def test_a_handler_that_the_program_took_away_is_not_signalled(tmp_path: Path) -> None:
    code = f"import signal\nsignal.signal({number()}, signal.SIG_DFL)\n"
    with started(tmp_path, STARTS + code + WAITS) as program:
        assert "taken our signal handler away" in refusal(program.process.pid)
        assert program.process.poll() is None


MEASURES = {
    "import torch\nprofile = torch.profiler.profile()\nprofile.start()\n": "a profiler of its own is running",
    "import bottleneck\nbottleneck.record('block').__enter__()\n": "being recorded already",
    "import torch, bottleneck\nbottleneck.watch('log')\n": "follows its steps already",
}


@pytest.mark.parametrize("code", MEASURES, ids=["profiler", "record", "watch"])
def test_a_program_that_is_measured_already_refuses(tmp_path: Path, code: str) -> None:
    with started(tmp_path, STARTS + code + WAITS) as program:
        assert MEASURES[code] in refusal(program.process.pid)


def test_a_program_without_torch_says_so_and_goes_on(tmp_path: Path) -> None:
    with started(tmp_path, STARTS + WAITS) as program:
        done = program.attach("--seconds", "0.5")
        assert done.returncode == 5 and "never imported torch" in done.stderr, done.stderr
        assert not (tmp_path / "bottleneck-runs").exists()
        assert program.process.poll() is None


def test_the_script_for_python_3_14_makes_a_process_attachable(tmp_path: Path) -> None:
    with started(tmp_path, f"exec({injected_code()!r})\n" + WAITS) as program:
        connect(program.process.pid).close()


def test_a_process_that_waits_to_be_attached_to_has_no_thread_and_no_torch() -> None:
    code = STARTS + (
        "import os, sys, threading\n"
        "print(len(os.listdir('/proc/self/task')), threading.active_count(),\n"
        "      *sorted(name for name in sys.modules if name.startswith(('torch', 'bottleneck.'))))\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    ours = "bottleneck._version bottleneck.harness bottleneck.harness.attachable"
    assert done.stdout.strip() == f"1 1 {ours}"


@pytest.mark.parametrize(("value", "is_loaded"), [("1", True), ("", False)], ids=["asked for", "not asked for"])
def test_the_variable_alone_makes_a_program_attachable(tmp_path: Path, value: str, is_loaded: bool) -> None:
    folder = Path(__file__).parents[2] / "bottleneck" / "harness" / "startup"
    code = f"import site, sys; site.addsitedir({str(folder)!r}); print('bottleneck.harness.attachable' in sys.modules)"
    environment = {**os.environ, VARIABLE: value}
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, env=environment)
    assert done.stdout.strip() == str(is_loaded) and done.stderr == ""


def test_the_help_names_the_budget_of_events() -> None:
    words = [sys.executable, "-m", "bottleneck", "attach", "--help"]
    done = subprocess.run(words, capture_output=True, text=True, check=True)
    assert f"{EVENT_BUDGET:,}" in done.stdout
