"""Hostile inputs of a shell, a disk or a stranger: closed streams, pipes as files, odd bytes, impossible numbers."""

import io
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from bottleneck.cli import _run
from bottleneck.errors import TraceError
from bottleneck.harness.folder import CLAIM_FILE, LOCK_FILE, try_lock
from bottleneck.pipeline import analyse
from bottleneck.schema.recording import read_recording, write_recording
from tests.builders import H100, Event, frame, kernel, launch, op, step, write_trace

SAMPLES = Path(__file__).parents[1] / "sample_traces"


def shell(command: str, folder: Path) -> "subprocess.CompletedProcess[bytes]":
    """The command with 'bottleneck' as this interpreter's own, by a shell."""
    ours = command.replace("bottleneck", f"{sys.executable} -m bottleneck", 1)
    return subprocess.run(["/bin/sh", "-c", ours], capture_output=True, cwd=folder, check=False)


@pytest.fixture
def recording(tmp_path: Path) -> Path:
    """A copy of a recording of ours, with the kernels that its program compiled."""
    return Path(shutil.copytree(SAMPLES / "pointwise_fused", tmp_path / "recording"))


@pytest.mark.parametrize(
    ("stream", "status", "error"),
    [
        (">&-", 2, b"standard output is closed"),
        pytest.param(
            ">/dev/full",
            2,
            b"No space left",
            marks=pytest.mark.skipif(not Path("/dev/full").exists(), reason="no /dev/full"),
        ),
        ("2>&-", 0, b""),
        ("<&-", 0, b""),
    ],
)
def test_a_report_to_a_stream_that_takes_nothing_says_so(
    recording: Path, tmp_path: Path, stream: str, status: int, error: bytes
) -> None:
    done = shell(f"bottleneck report {recording} {stream}", tmp_path)
    assert done.returncode == status
    assert error in done.stderr and b"Traceback" not in done.stderr


@pytest.mark.process
def test_a_program_with_a_closed_standard_output_runs(tmp_path: Path) -> None:
    (tmp_path / "program.py").write_text("open('ran', 'w').write('yes')\nprint('hello')\n")
    done = shell("bottleneck run -o out program.py >&-", tmp_path)
    assert (tmp_path / "ran").read_text() == "yes"
    assert done.returncode == 0 and b"hello" not in done.stderr


@pytest.mark.process
def test_arguments_and_folders_that_are_no_utf8_are_recorded(tmp_path: Path) -> None:
    (tmp_path / "program.py").write_text(
        "import torch\nfor _ in range(20):\n    torch.ones(64, 64) @ torch.ones(64, 64)\n"
    )
    command = b"%s -m bottleneck run --no-batch-test -o o\xff program.py \xff" % os.fsencode(sys.executable)
    assert subprocess.run(["/bin/sh", "-c", command], capture_output=True, cwd=tmp_path, check=False).returncode == 0
    folder = Path(os.fsdecode(os.fsencode(tmp_path) + b"/o\xff"))
    assert (folder / "trace.rank0.json.gz").is_file() and (folder / "analysis.json").is_file()
    assert analyse([folder]).verdict.sentence


def test_bytes_that_are_no_utf8_are_escaped_in_a_recording(recording: Path) -> None:
    before = replace(read_recording(recording), command=("program.py", "\udcff"), environment={"TORCH_X": "\udcfe"})
    write_recording(recording, before)
    assert read_recording(recording).command == ("program.py", "\\udcff")
    assert read_recording(recording).environment == {"TORCH_X": "\\udcfe"}


@pytest.mark.parametrize("name", ["telemetry.csv", "compiled.rank0.json", "trace.rank0.json.gz"])
@pytest.mark.parametrize("kind", ["pipe", "device"])
def test_a_pipe_or_a_device_in_a_recording_is_not_waited_for(recording: Path, name: str, kind: str) -> None:
    (recording / name).unlink()
    if kind == "pipe":
        os.mkfifo(recording / name)
    else:
        (recording / name).symlink_to("/dev/zero")
    if name == "telemetry.csv":
        assert "sensors-unreadable" in {caveat.slug for caveat in analyse([recording]).caveats}
    else:
        with pytest.raises(TraceError, match="cannot read") as refused:
            analyse([recording])
        assert "no regular file" in refused.value.what


def _set(*path: Any) -> Callable[[Any], None]:
    """Sets the last of these as the value at the keys before it."""
    *keys, last, value = path

    def change(tree: Any) -> None:
        for key in keys:
            tree = tree[key]
        tree[last] = value

    return change


@pytest.mark.parametrize(
    "change",
    [
        _set("kernels", 0, "explained", 7.5),
        _set("kernels", 0, "share", -0.1),
        _set("kernels", 0, "us", 1e308),
        _set("kernels", 0, "bytes_low", 5e-324),
        _set("steps", "wall_us", -1.0),
        _set("steps", "wall_us", 1e308),
        _set("device", "bandwidth_bytes_per_s", 0.0),
        _set("device", "bandwidth_by_bytes", [[1e6, 0.0]]),
        _set("verdict", "shares", {"compute": 2.0}),
    ],
)
def test_a_saved_analysis_with_impossible_numbers_is_refused(
    recording: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], change: Callable[[Any], None]
) -> None:
    saved = tmp_path / "analysis.json"
    assert _run(["report", str(recording), "--format", "json", "-o", str(saved)]) == 0
    assert _run(["report", str(saved)]) == 0
    tree = json.loads(saved.read_text())
    change(tree)
    saved.write_text(json.dumps(tree))
    assert _run(["report", str(saved)]) == 3
    assert "has to lie between" in capsys.readouterr().err


def test_a_saved_analysis_may_hold_bytes_that_are_no_utf8(recording: Path, tmp_path: Path) -> None:
    saved = tmp_path / "analysis.json"
    assert _run(["report", str(recording), "--format", "json", "-o", str(saved)]) == 0
    saved.write_bytes(saved.read_bytes().replace(b"pointwise", b"point\xffwise", 1))
    assert _run(["report", str(saved)]) == 0


@pytest.mark.parametrize(
    "change",
    [
        _set("traces", 0, "file", "a\0b"),
        _set("device", "bandwidth_bytes_per_s", 0),
        _set("device", "peaks_flops_per_s", {"fp32_vector": -1}),
        _set("perturbation", -3),
        _set("unprofiled", "median", -3),
    ],
)
def test_a_recording_that_breaks_a_promise_is_refused(
    recording: Path, capsys: pytest.CaptureFixture[str], change: Callable[[Any], None]
) -> None:
    file = recording / "recording.json"
    tree = json.loads(file.read_text())
    change(tree)
    file.write_text(json.dumps(tree))
    assert _run(["report", str(recording)]) == 3
    assert "recording.json" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "status"), [("compare {one} {one}", 0), ("report {one}", 0), ("gate", 2), ("doctor", 2)]
)
def test_a_working_folder_that_was_deleted_ends_in_an_error_or_does_not_matter(
    recording: Path, tmp_path: Path, arguments: str, status: int
) -> None:
    (tmp_path / "gone").mkdir()
    command = f"rmdir ../gone && {sys.executable} -m bottleneck {arguments.format(one=recording)}"
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[1])}
    done = subprocess.run(
        ["/bin/sh", "-c", command], capture_output=True, cwd=tmp_path / "gone", env=environment, check=False
    )
    assert done.returncode == status
    assert (b"no longer exists" in done.stderr) == (status == 2)


def test_a_base_that_does_not_exist_is_wrong_usage(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "step.py").write_text("")
    identity = ["-c", "user.name=a", "-c", "user.email=a@b"]
    for words in (["init", "-q"], ["add", "."], [*identity, "commit", "-qm", "one"]):
        subprocess.run(["git", *words], cwd=tmp_path, check=True)
    monkeypatch.chdir(tmp_path)
    assert _run(["gate", "--against", "mian", "step.py"]) == 2
    assert "there is no base 'mian'" in capsys.readouterr().err


# What no command that reads a file may do, whatever the file says; folders of its own for a while lie in TMPDIR.
_GUARD = """
import os, sys, tempfile
SCRATCH = tempfile.gettempdir()
FORBIDDEN = ("os.system", "os.exec", "subprocess.Popen", "socket.connect", "socket.bind",
             "pickle.find_class", "shutil.rmtree", "os.remove", "os.rename", "os.chmod", "os.symlink", "os.mkdir")
WRITES = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC
def guard(event, arguments):
    if arguments and isinstance(arguments[0], str) and arguments[0].startswith(SCRATCH):
        return
    if event == "subprocess.Popen" and arguments[1][:3] == ["git", "-c", "core.hooksPath=/dev/null"]:
        return  # is there a commit of that name? no program of the repository is run for it
    if event in FORBIDDEN:
        print("FORBIDDEN", event, arguments, file=sys.__stdout__)
    if event == "open" and isinstance(arguments[2], int) and arguments[2] & WRITES and arguments[0] != os.devnull:
        print("FORBIDDEN write", arguments[0], file=sys.__stdout__)
    if event in ("compile", "exec") and "HOSTILE" in repr(arguments[0]):
        print("FORBIDDEN", event, file=sys.__stdout__)
from bottleneck.cli import _run
import bottleneck.pipeline
sys.addaudithook(guard)
"""
_PAYLOADS = (
    "__import__('os').system('HOSTILE')",
    "{0.__class__.HOSTILE}",
    "${HOSTILE}",
    "!!python/object:HOSTILE",
    "%n",
)


def _hostile_trace(path: Path) -> Path:
    events: list[Event] = [step(0, 0, 1000)]
    for number, payload in enumerate(_PAYLOADS):
        events += [
            frame(payload, 200.0 * number, 100.0),
            op(payload, 200.0 * number + 10, 80.0, dims=[[8, 8], [8, 8]], types=[payload, "float"]),
            launch(number + 1, 200.0 * number + 20, 5.0),
            kernel(number + 1, 200.0 * number + 30, 50.0, payload),
        ]
    return write_trace(path, events, deviceProperties=[{**H100, "name": _PAYLOADS[0]}])


def _guarded(scratch: Path, *calls: list[str]) -> "subprocess.CompletedProcess[str]":
    code = _GUARD + "".join(f"print('status', _run({words!r}))\n" for words in calls)
    scratch.mkdir()
    ours = {"PYTHONDONTWRITEBYTECODE": "1", "PYTHONPATH": str(Path(__file__).parents[1]), "TMPDIR": str(scratch)}
    environment = {**os.environ, **ours}
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=environment, check=False)


def test_no_command_that_reads_a_trace_runs_connects_or_writes_anything(recording: Path, tmp_path: Path) -> None:
    trace = str(_hostile_trace(tmp_path / "trace.json"))
    calls = [["report", trace, "--full"], ["compare", trace, trace], ["doctor", trace], ["report", str(recording)]]
    done = _guarded(
        tmp_path / "scratch", *calls, ["report", trace, "--format", "json"], ["report", trace, "--format", "markdown"]
    )
    assert [line for line in done.stdout.splitlines() if line.startswith("FORBIDDEN")] == []
    assert "Traceback" not in done.stderr
    statuses = [line for line in done.stdout.splitlines() if line.startswith("status ")]
    assert statuses.count("status 0") + statuses.count("status 1") == len(calls) + 2, statuses


def test_that_guard_sees_a_write(recording: Path, tmp_path: Path) -> None:
    done = _guarded(tmp_path / "scratch", ["report", str(recording), "-o", str(tmp_path / "report.md")])
    assert "FORBIDDEN write" in done.stdout


@pytest.mark.parametrize("encoding", ["utf-8", "ascii", "cp1252", "iso8859-9"])
@pytest.mark.parametrize("width", ["0", "1", "20", "500", "9" * 20])
def test_any_width_and_encoding_gets_every_report(
    recording: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, encoding: str, width: str
) -> None:
    trace = str(_hostile_trace(tmp_path / "tracé.json"))
    for words in (
        ["report", str(recording)],
        ["report", trace, "--full"],
        ["compare", trace, trace],
        ["doctor", trace],
    ):
        with monkeypatch.context() as patched:  # for `pytest -v`, which reads the width too
            patched.setenv("COLUMNS", width)
            out, error = (io.TextIOWrapper(io.BytesIO(), encoding=encoding) for _ in range(2))
            patched.setattr(sys, "stdout", out)
            patched.setattr(sys, "stderr", error)
            status = _run(words)
            out.flush()
            assert status in {0, 1}, (words, error.buffer.getvalue())
            assert len(out.buffer.getvalue()) > 100


def test_a_name_that_no_file_can_have_is_wrong_usage(recording: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for words in (["report", "x" * 5000], ["report", str(recording), "-o", "x" * 5000], ["doctor", "x" * 5000]):
        assert _run(words) in {2, 3}, words
        assert "Traceback" not in capsys.readouterr().err


def test_an_error_keeps_its_exit_code_where_standard_error_takes_nothing(tmp_path: Path) -> None:
    assert shell("bottleneck report nofile 2>/dev/full", tmp_path).returncode == 3


@pytest.mark.parametrize("form", ["json", "markdown", "html"])
def test_the_same_input_gives_the_same_bytes(recording: Path, tmp_path: Path, form: str) -> None:
    files = [tmp_path / f"{number}.{form}" for number in range(2)]
    for file in files:
        assert _run(["report", str(recording), "--format", form, "-o", str(file)]) == 0
    assert files[0].read_bytes() == files[1].read_bytes()


def test_reports_at_once_on_one_recording_are_alike(recording: Path) -> None:
    before = {path.name: path.read_bytes() for path in recording.iterdir()}
    command = [sys.executable, "-m", "bottleneck", "report", str(recording)]
    at_once = [subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) for _ in range(4)]
    said = [process.communicate() for process in at_once]
    assert [process.returncode for process in at_once] == [0] * 4
    assert len(set(said)) == 1 and said[0][0]
    assert {path.name: path.read_bytes() for path in recording.iterdir()} == before


@pytest.mark.parametrize(
    "files",
    [
        (),
        (".fresh.trace.rank0.json.gz",),
        (".partial.trace.rank0.json.gz", ".notes.rank0.json"),
        ("trace.rank0.json.gz",),
        ("trace.rank0.json.gz", ".recording.json.1"),
    ],
    ids=lambda files: files[-1] if files else "nothing yet",
)
@pytest.mark.parametrize("command", ["report", "doctor", "whatif", "compare"])
def test_a_recording_that_is_still_being_written_is_said_to_be(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], command: str, files: tuple[str, ...]
) -> None:
    folder = tmp_path / "recording"
    folder.mkdir()
    whole = (SAMPLES / "mlp" / "trace.rank0.json.gz").read_bytes()
    for name in files:
        (folder / name).write_bytes(whole if "trace" in name and "fresh" not in name else whole[:1000])
    (folder / CLAIM_FILE).write_text("{}")
    lock = try_lock(folder / LOCK_FILE)
    assert lock is not None
    try:
        others = [str(SAMPLES / "mlp")] if command == "compare" else []
        assert _run([command, str(folder), *others]) == 3
        assert "is still being recorded" in capsys.readouterr().err
    finally:
        lock.release()


def test_a_recording_whose_program_goes_on_is_reported(tmp_path: Path, recording: Path) -> None:
    (recording / CLAIM_FILE).write_text("{}")
    lock = try_lock(recording / LOCK_FILE)
    assert lock is not None
    try:
        assert _run(["report", str(recording)]) == 0
    finally:
        lock.release()
