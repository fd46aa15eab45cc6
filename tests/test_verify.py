"""`bottleneck verify` from the command line: real changes on small programs, recordings, refusals and exit codes."""

import json
import math
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from bottleneck.cli import _run
from bottleneck.commands.verify import _Timer, _with_pieces, _with_what_is_left_out
from bottleneck.experiment.pieces.measure import PieceBudget
from bottleneck.experiment.worker import NO_TIME
from bottleneck.pipeline import explain
from bottleneck.schema.evidence import Explanation
from bottleneck.schema.measurements import MeasuredPieces, Ratio
from bottleneck.schema.trials import Trial, Verification
from tests.advice.programs import Call, on_cpu

pytest.importorskip("torch")

EXAMPLES = Path(__file__).parents[1] / "examples"

# Gradients zeroed by hand, as code from before torch 2 does it; without an optimizer's own default.
ZEROING = """
import torch
from torch import nn

def workload(batch_size=4):
    model = nn.Sequential(*[nn.Linear(8, 8) for _ in range(4)])
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    inputs = torch.randn(batch_size, 8)

    def step():
        optimizer.zero_grad(set_to_none=False)
        loss = model(inputs).square().mean()
        loss.backward()
        optimizer.step()
        return loss

    return step
"""


def verify(*arguments: str, folder: Path, **environment: str) -> "subprocess.CompletedProcess[str]":
    """The command, run in a folder with one thread."""
    return subprocess.run(
        [sys.executable, "-m", "bottleneck.cli", "verify", "--probe-budget", "0", *arguments],
        cwd=folder,
        capture_output=True,
        text=True,
        check=False,
        stdin=subprocess.DEVNULL,
        env={**os.environ, "OMP_NUM_THREADS": "1", **environment},
    )


@pytest.mark.process
def test_a_workload_is_recorded_and_a_change_tried_on_it(tmp_path: Path) -> None:
    (tmp_path / "zeroing.py").write_text(ZEROING)
    done = verify("--try", "set-to-none", "--budget", "2", "--format", "json", "zeroing.py", folder=tmp_path)
    assert done.returncode == 0, done.stderr
    document = json.loads(done.stdout)
    (trial,) = document["trials"]
    assert document["program"] == ["zeroing.py"]
    assert trial["change"] == "set-to-none"
    assert trial["verdict"] in {"faster", "slower", "no effect", "inconclusive"}
    assert trial["speedup"]["n"] >= 7
    assert {each["what"] for each in trial["differences"]} >= {"loss", "gradients"}
    assert all(each["is_within"] for each in trial["differences"])
    assert trial["peak_before_bytes"] and trial["peak_after_bytes"]
    assert "bottleneck: trying set-to-none (1 of 1)" in done.stderr
    assert {path.name for path in tmp_path.iterdir()} <= {"zeroing.py", "scores.jsonl", "__pycache__"}


def test_the_time_left_is_that_of_the_limit_or_what_the_trials_so_far_suggest(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("time.monotonic", lambda: 130.0)
    assert _Timer(100.0, 90.0).left(0.0) == "at most 60 s left"
    assert _Timer(100.0, 90.0).left(0.75) == "about 10 s left"
    assert _Timer(100.0, None).left(0.5) == "about 30 s left"
    assert _Timer(100.0, None).left(0.0) == ""


def test_trials_end_in_time_and_get_a_third_of_it_after_a_long_recording(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("time.monotonic", lambda: 130.0)
    assert _Timer(100.0, 90.0).until() == pytest.approx(186.0)
    assert _Timer(10.0, 90.0).until() == pytest.approx(156.0)
    assert _Timer(100.0, None).until() == math.inf


def test_what_finds_no_time_is_named_with_the_command_that_tries_it() -> None:
    skipped = Trial("compile", "compiles", "skipped", NO_TIME, stopped_by="time")
    done = Verification(("--set", "width=2", "model.py"), 1.0, (skipped,))
    (warning,) = _with_what_is_left_out(done, 90.0).warnings
    assert warning == (
        "left out, to be done within 90 s: compile; to try them: bottleneck verify --try compile --set width=2 model.py"
    )
    assert _with_what_is_left_out(done, None) is done
    assert _with_what_is_left_out(Verification(("model.py",), 1.0, ()), 90.0).warnings == ()


def test_memory_that_was_not_measured_is_named() -> None:
    measured = Trial("compile", "compiles", "no effect", speedup=Ratio(1.0, 0.99, 1.01, 20))
    (warning,) = _with_what_is_left_out(Verification(("model.py",), 1.0, (measured,)), 60.0).warnings
    assert warning == "left out, to be done within 60 s: the peak memory of changes without a proven effect"


@pytest.mark.process
def test_the_default_findings_are_tried_in_the_time_that_is_given(tmp_path: Path) -> None:
    (tmp_path / "zeroing.py").write_text(ZEROING)
    done = verify("--within", "10", "--format", "json", "zeroing.py", folder=tmp_path)
    assert done.returncode == 0, done.stderr
    document = json.loads(done.stdout)
    skipped = [trial["change"] for trial in document["trials"] if trial["verdict"] == "skipped"]
    assert len(document["trials"]) < 2 or all(name in " ".join(document["warnings"]) for name in skipped)
    assert "s left" in done.stderr


def test_pieces_are_timed_before_changes_are_tried_for_a_part_of_the_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[tuple[float, Path | None, tuple[str, ...]]] = []

    def note(
        explained: Explanation,
        folder: Path | None,
        budget: PieceBudget,
        _say: object,
        changes: tuple[str, ...],
    ) -> Explanation:
        asked.append((budget.budget_s, folder, changes))
        return explained

    monkeypatch.setattr("bottleneck.experiment.pieces.measure.measure_pieces", note)
    on_cpu(tmp_path, [Call("aten::add", 100.0, [[8, 8], [8, 8], []])])
    explained = explain([tmp_path])
    monkeypatch.setattr("time.monotonic", lambda: 100.0)
    _with_pieces(explained, 10.0, _Timer(100.0, None), ("compile",), lambda *_: None)
    _with_pieces(explained, 10.0, _Timer(100.0, 40.0), (), lambda *_: None)
    assert asked == [(10.0, None, ("compile",)), (pytest.approx(6.0), None, ())]


def test_pieces_of_a_recording_are_not_timed_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("bottleneck.experiment.pieces.measure.measure_pieces", None)
    pieces = MeasuredPieces(10.0, 1.0, "a CPU", 1, "2.13.0")
    on_cpu(tmp_path, [Call("aten::add", 100.0, [[8, 8], [8, 8], []])], pieces=pieces)
    explained = explain([tmp_path])
    assert _with_pieces(explained, 10.0, _Timer(0.0, None), (), lambda *_: None) is explained


@pytest.mark.process
def test_a_recording_gives_findings_and_settings(tmp_path: Path) -> None:
    (tmp_path / "zeroing.py").write_text(ZEROING)
    subprocess.run(
        [
            sys.executable,
            "-m",
            "bottleneck.cli",
            "run",
            "--probe-budget",
            "0",
            "-o",
            "recorded",
            "--set",
            "batch_size=8",
            "zeroing.py",
        ],
        cwd=tmp_path,
        capture_output=True,
        check=True,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    )
    done = verify("--try", "set-to-none,inference-mode", "--budget", "1", "recorded", folder=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "CHANGES TRIED · --set batch_size=8 zeroing.py" in done.stdout
    assert "not applicable" in done.stdout
    assert "recording" not in done.stderr
    refused = verify("--set", "batch_size=2", "recorded", folder=tmp_path)
    assert refused.returncode == 2
    assert "has its own settings" in refused.stderr


@pytest.mark.process
def test_a_program_that_fails_is_exit_4_with_its_own_traceback(tmp_path: Path) -> None:
    (tmp_path / "broken.py").write_text("import torch\ndef workload():\n    raise RuntimeError('no data')\n")
    done = verify("--try", "gc-freeze", "broken.py", folder=tmp_path)
    assert done.returncode == 4
    assert "RuntimeError: no data" in done.stderr
    assert "error: broken.py could not be recorded" in done.stderr
    assert done.stdout == ""


@pytest.mark.process
def test_ctrl_c_shows_what_was_tried_and_leaves_no_process(tmp_path: Path) -> None:
    (tmp_path / "zeroing.py").write_text(ZEROING)
    command = [
        sys.executable,
        "-m",
        "bottleneck.cli",
        "verify",
        "--try",
        "gc-freeze,tf32",
        str(tmp_path / "zeroing.py"),
    ]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    with subprocess.Popen(
        command, cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment
    ) as process:
        assert process.stderr is not None and process.stdout is not None
        assert any("trying gc-freeze" in line for line in process.stderr)
        process.send_signal(signal.SIGINT)
        shown = process.stdout.read()
    assert process.returncode == 130
    assert shown.count("skipped") == 2
    assert not [path for path in Path("/proc").glob("[0-9]*/cmdline") if str(tmp_path) in _text(path)]


def _text(path: Path) -> str:
    try:
        return path.read_text(errors="replace")
    except OSError:
        return ""


def test_a_script_is_told_what_to_write(capsys: pytest.CaptureFixture[str]) -> None:
    assert _run(["verify", str(EXAMPLES / "train_script.py")]) == 2
    error = capsys.readouterr().err
    assert "is a script" in error and "def workload(" in error


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ([], "nothing to verify"),
        (["nowhere.py"], "neither a file nor a recording"),
        (["--try", "set-to-nome", str(EXAMPLES / "mlp.py")], "near it: set-to-none"),
        (["--set", "nonsense=1", str(EXAMPLES / "mlp.py")], "no parameter 'nonsense'"),
        (["--budget", "0", str(EXAMPLES / "mlp.py")], "--budget"),
    ],
)
def test_what_cannot_be_asked_is_exit_2_and_says_why(
    capsys: pytest.CaptureFixture[str], arguments: list[str], words: str
) -> None:
    assert _run(["verify", *arguments]) == 2
    assert words in capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--best"], "--best does not go with --device"),
        (["--budget", "5"], "--budget does not go with --device"),
        (["--try", "pad"], "pad cannot be predicted for a device that is not here"),
        (["--try", "no-such-change"], "there is no change called no-such-change"),
    ],
)
def test_what_is_measured_does_not_go_with_a_device_that_is_not_here(
    words: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert _run(["verify", "--device", "A100", *words, str(EXAMPLES / "mlp.py")]) == 2
    assert message in capsys.readouterr().err


def test_the_pace_of_a_host_goes_with_a_device_that_is_not_here(capsys: pytest.CaptureFixture[str]) -> None:
    assert _run(["verify", "--host-pace", "4.1", str(EXAMPLES / "mlp.py")]) == 2
    assert "--host-pace goes with --device only" in capsys.readouterr().err


def test_a_device_that_nobody_knows_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert _run(["verify", "--device", "toaster", str(EXAMPLES / "mlp.py")]) == 2
    assert "toaster" in capsys.readouterr().err


def test_changes_are_priced_on_devices_that_are_not_here(tmp_path: Path) -> None:
    answer, page = tmp_path / "changes.json", tmp_path / "changes.md"
    words = [
        "verify",
        "-q",
        "--device",
        "A100,T4",
        "--try",
        "tf32,fused-optimizer,channels-last",
        str(EXAMPLES / "mlp.py"),
    ]
    assert _run([*words, "-o", str(answer)]) == 0
    found = json.loads(answer.read_text())
    assert found["schema"] == "bottleneck/predicted-changes/1" and len(found["devices"]) == 2
    first, second = found["devices"]
    assert {change["change"] for change in first["alone"]} == {"tf32", "fused-optimizer"}
    assert [change["change"] for change in second["refused"]] == ["tf32"]
    assert [change["change"] for change in found["refused"]] == ["channels-last"]
    assert _run([*words, "-o", str(page)]) == 0
    text = page.read_text()
    assert "Each change alone on A100" in text and "channels-last: needs a module with convolutions" in text


def test_a_change_at_which_the_process_dies_is_priced_in_a_process_of_its_own(tmp_path: Path) -> None:
    """Folds batch norms after a change of layout, at which torch 2.13 crashes."""
    file, answer = tmp_path / "images.py", tmp_path / "changes.json"
    file.write_text(
        "import torch\nfrom torch import nn\n\n"
        "model = nn.Sequential(nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.Conv2d(8, 8, 3), nn.BatchNorm2d(8))\n"
        "inputs = (torch.randn(2, 3, 32, 32),)\n"
    )
    words = ["verify", "-q", "--device", "A100", "--try", "channels-last,fold-batchnorm,inference-mode"]
    assert _run([*words, str(file), "-o", str(answer)]) == 0
    found = json.loads(answer.read_text())
    assert {change["change"] for change in found["devices"][0]["alone"]} >= {"channels-last", "fold-batchnorm"}
    assert not any(change["has_failed"] for change in found["refused"])


def test_a_program_that_depends_on_its_data_has_no_price(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "choosing.py"
    file.write_text(
        "import torch\n\n\ndef workload():\n    x = torch.randn(4)\n    return lambda: 1 if x.sum() > 0 else 2\n"
    )
    assert _run(["verify", "-q", "--device", "A100", str(file)]) == 4
    told = capsys.readouterr().err
    assert "choosing.py:6" in told and "cannot be predicted" in told
    assert "say which way it goes: --assume choosing.py:6=true" in " ".join(told.split())
    assert _run(["verify", "-q", "--device", "A100", "--assume", "choosing.py:6=true", str(file)]) == 0


def test_changes_are_listed_with_their_titles(capsys: pytest.CaptureFixture[str]) -> None:
    assert _run(["verify", "--list"]) == 0
    listed = capsys.readouterr().out
    assert "set-to-none" in listed and "zero_grad(set_to_none=True)" in listed
    assert _run(["verify", "--list", "--format", "json"]) == 0
    assert {"compile", "bf16-autocast"} <= {row["name"] for row in json.loads(capsys.readouterr().out)["changes"]}


@pytest.mark.parametrize("other", [["--try", "compile"], ["--best"]])
def test_what_would_bring_nothing_is_tried_alone(other: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert _run(["verify", "--no-gain", *other, str(EXAMPLES / "mlp.py")]) == 2
    assert "--no-gain tries what would bring nothing" in capsys.readouterr().err


@pytest.mark.process
def test_what_would_bring_nothing_is_tried_and_what_cannot_be_is_told(tmp_path: Path) -> None:
    """Compares with the recording's own lines, which a busy machine may have fewer of."""
    program = Path(__file__).parents[1] / "benchmarks" / "no_gain" / "projections.py"
    small = ("--set", "batch_size=256", "--set", "width=512")
    recording = tmp_path / "recording"
    assert _run(["run", "--quiet", *small, "--output", str(recording), str(program)]) == 0
    lines = explain([recording]).analysis.no_gain
    done = verify("--no-gain", "--budget", "2", "--format", "json", str(recording), folder=tmp_path)
    assert done.returncode == 0, done.stderr
    document = json.loads(done.stdout)
    assert document["tried"] == "no-gain"
    trials = {trial["change"]: trial for trial in document["trials"]}
    assert set(trials) == {name for line in lines for name in line.tries or (line.code,)}
    untried = {line.code: line.most_share for line in lines if not line.tries}
    assert {name for name, trial in trials.items() if trial["verdict"] == "not applicable"} >= set(untried)
    assert {name: trials[name]["predicted_most"] for name in untried} == pytest.approx(
        {name: 1.0 / (1.0 - share) for name, share in untried.items()}
    )
