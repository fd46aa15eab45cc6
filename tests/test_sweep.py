"""`bottleneck sweep` from the command line to the table, with real processes."""

import json
import os
import signal
import subprocess
import sys
import textwrap
from pathlib import Path
from typing import Any

import pytest

from bottleneck.cli import _run

from .harness.driver import driven

EXAMPLES = Path(__file__).parents[1] / "examples"
# A workload that never imports torch: timed but not profiled, and its process starts at once.
PLAIN = """
    def workload(n=1, m=1, batch_size=1):
        if n > 2:
            raise ValueError(f"{n} is too many")
        print("a word of the program's own")
        return lambda: sum(range(100 * n * m))
"""
QUICK = ("--steps", "1", "--warmup", "0")
# What fills the points of a backend curve without a compiler.
RELU = """
    import torch

    def workload(batch_size=1):
        model, inputs = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.ReLU()), torch.ones(batch_size, 4)

        def step():
            with torch.no_grad():
                return model(inputs)

        return step
"""


def swept(folder: Path, program: str, *options: str) -> subprocess.CompletedProcess[str]:
    """The finished `bottleneck sweep` of a program text, without the ceilings of this machine."""
    (folder / "program.py").write_text(textwrap.dedent(program))
    command = driven("sweep", "program.py", *QUICK, *options)
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False, env=environment)


def data_of(done: subprocess.CompletedProcess[str]) -> dict[str, Any]:
    data: dict[str, Any] = json.loads(done.stdout)
    return data


@pytest.mark.process
def test_two_batch_sizes_of_an_example_are_measured_modelled_and_judged(tmp_path: Path) -> None:
    pytest.importorskip("torch")
    program = (EXAMPLES / "mlp.py").read_text()
    done = swept(
        tmp_path, program, "--param", "batch_size=2,4", "--set", "hidden=8", "-f", "json", "--plot", "sweep.png",
        "--keep", "kept",
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    data = data_of(done)
    assert data["settings"] == {"hidden": "8"} and data["parameters"] == ["batch_size"]
    for point, size in zip(data["points"], (2, 4), strict=True):
        assert point["values"] == {"batch_size": size}
        assert point["reason"] is None and point["bound"] in {"overhead", "mixed", "memory", "compute", "inconclusive"}
        assert point["step_us"]["low"] <= point["step_us"]["median"] <= point["step_us"]["high"]
        assert point["flops_per_s"] == pytest.approx(point["flops"] / point["step_us"]["median"] * 1e6)
        assert point["samples_per_s"] == pytest.approx(size / point["step_us"]["median"] * 1e6)
        assert point["peak_memory_bytes"] > 2**20
    assert data["points"][1]["flops"] > data["points"][0]["flops"] > 0
    assert done.stderr.count("bottleneck: ") == 2
    assert (tmp_path / "sweep.png").read_bytes().startswith(b"\x89PNG")
    assert json.loads((tmp_path / "kept" / "sweep.json").read_text()) == data
    assert sorted(path.name for path in (tmp_path / "kept").iterdir()) == [
        "000-batch_size=2-eager",
        "001-batch_size=4-eager",
        "sweep.json",
    ]
    assert (tmp_path / "kept" / "001-batch_size=4-eager" / "recording.json").exists()


@pytest.mark.process
def test_two_parameters_make_every_pair_and_a_point_that_fails_leaves_the_rest(tmp_path: Path) -> None:
    done = swept(tmp_path, PLAIN, "--param", "n=1:3", "-p", "m=1,2", "-f", "json")
    assert done.returncode == 0, done.stderr
    points = data_of(done)["points"]
    assert [tuple(point["values"].values()) for point in points] == [(n, m) for n in (1, 2, 3) for m in (1, 2)]
    assert [point["reason"] for point in points] == [None] * 4 + ["ValueError: 3 is too many"] * 2
    assert [point["step_us"] is None for point in points] == [False] * 4 + [True] * 2


def test_the_table_is_all_that_goes_to_stdout_and_progress_goes_to_stderr(tmp_path: Path) -> None:
    done = swept(tmp_path, PLAIN, "--param", "n=1,3", "--repeats", "2")
    assert done.stdout.startswith("SWEEP · n, 1 of 2 points\n")
    assert "word of the program" not in done.stdout + done.stderr
    assert "ValueError: 3 is too many" in done.stdout
    assert len(done.stderr.splitlines()) == 4 and "bottleneck: 4 of 4: " in done.stderr


@pytest.mark.process
def test_points_that_take_turns_are_timed_once_a_round(tmp_path: Path) -> None:
    pytest.importorskip("torch")
    done = swept(tmp_path, RELU, "--param", "batch_size=1,2", "--turns", "4", "-f", "json")
    data = data_of(done)
    assert data["how"] == "4 rounds of turns"
    assert [point["step_us"]["n"] for point in data["points"]] == [4, 4]
    assert done.stderr.endswith("bottleneck: round 4 of 4\n")


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (("--param", "n=1,2", "--device", "cpu"), "--turns and --device do not go together"),
        (("--param", "n=1:65"), "a process of each of the 65 points alive, and 64 is the most"),
    ],
)
def test_turns_that_cannot_be_taken_are_refused_before_anything_is_measured(
    options: tuple[str, ...], words: str, tmp_path: Path
) -> None:
    done = swept(tmp_path, PLAIN, *options, "--turns", "4")
    assert (done.returncode, done.stdout) == (2, "")
    assert words in done.stderr


def test_a_sweep_of_which_nothing_was_measured_is_exit_4(tmp_path: Path) -> None:
    done = swept(tmp_path, PLAIN, "--param", "n=3,4", "--quiet")
    assert (done.returncode, done.stderr) == (4, "")
    assert "Nothing was measured" in done.stdout


@pytest.mark.process
def test_each_backend_is_a_curve_and_one_that_cannot_be_had_says_why(tmp_path: Path) -> None:
    pytest.importorskip("torch")
    options = ("--param", "batch_size=2", "--backends", "eager,torchscript,cuda-graph", "-f", "json")
    done = swept(tmp_path, RELU, *options)
    assert done.returncode == 0, done.stderr
    eager, script, graph = data_of(done)["points"]
    assert (eager["series"], script["series"], graph["series"]) == ("eager", "torchscript", "cuda-graph")
    assert eager["reason"] is None and script["reason"] is None
    assert script["flops"] == eager["flops"] > 0
    assert script["setup_s"] > 0
    assert graph["step_us"] is None and graph["reason"].startswith("not applicable: ")


@pytest.mark.process
def test_devices_and_threads_hold_before_the_program_is_loaded(tmp_path: Path) -> None:
    torch = pytest.importorskip("torch")
    if torch.cuda.is_available():
        pytest.skip("this machine has the device that is to be missing")
    program = """
        import os
        import torch

        values = torch.ones(4)
        assert values.device.type == "cpu" and torch.get_num_threads() == 1 and os.environ["OMP_NUM_THREADS"] == "1"

        def workload():
            return lambda: values + 1
    """
    done = swept(tmp_path, program, "--device", "cpu,cuda", "--threads", "1", "-f", "json")
    assert done.returncode == 0, done.stderr
    data = data_of(done)
    there, missing = data["points"]
    assert data["how"] == "1 thread"
    assert (there["series"], there["reason"]) == ("cpu", None)
    assert missing["step_us"] is None and "no device cuda" in missing["reason"]


@pytest.mark.process
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupted_sweep_shows_what_it_has_and_leaves_no_process(number: int, tmp_path: Path) -> None:
    fifo, there = tmp_path / "fifo", tmp_path / "there"
    os.mkfifo(fifo)
    # The point whose turn comes second waits for ever, once it has said who it is.
    (tmp_path / "program.py").write_text(
        textwrap.dedent(f"""
        import os, pathlib

        def workload(n=1):
            marker = pathlib.Path({str(there)!r})
            if marker.exists():
                with open({str(fifo)!r}, "w") as channel:
                    channel.write(str(os.getpid()))
                os.read(os.pipe()[0], 1)
            marker.touch()
            return lambda: sum(range(100))
        """)
    )
    command = driven("sweep", "program.py", *QUICK, "--param", "n=1,2", "--keep", "kept")
    sweep = subprocess.Popen(
        command, cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, process_group=0
    )
    child = int(fifo.read_text())
    sweep.send_signal(number)
    said, told = sweep.communicate()
    assert sweep.returncode == 130, told
    assert "1 of 2 points" in said and "not measured: the sweep was interrupted" in " ".join(said.split())
    assert "interrupted; 1 of 2 points measured, which follow" in told
    with pytest.raises(ProcessLookupError):
        os.kill(child, 0)
    points = json.loads((tmp_path / "kept" / "sweep.json").read_text())["points"]
    assert sorted(point["step_us"] is None for point in points) == [False, True]


def refused(capsys: pytest.CaptureFixture[str], *options: str) -> str:
    assert _run(["sweep", *options]) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    return " ".join(captured.err.split())


MLP = str(EXAMPLES / "mlp.py")


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ((MLP,), "there is nothing to compare"),
        ((MLP, "--param", "batch_size=1"), "there is nothing to compare"),
        ((MLP, "--param", "batch_sise=1,2"), "no parameter 'batch_sise'"),
        ((MLP, "--param", "batch_size=1,2", "--set", "batch_size=4"), "a value by --set and several by --param"),
        ((MLP, "--param", "batch_size=1,2", "--plot", "sweep.bmp"), ".svg or .pdf"),
        ((MLP, "--param", "batch_size=1,2", "--plot", "a.png", "-o", "b.png"), "both name a picture"),
        ((MLP, "--param", "batch_size=1,2", "--backends", "eager,egaer"), "no such backend"),
        ((MLP, "--param", "batch_size=1,2", "--keep", str(EXAMPLES)), "is not empty"),
        ((str(EXAMPLES / "train_script.py"), "--threads", "1,2"), "is a script"),
        (("--param", "n=1,2", "nowhere.py"), "nowhere.py"),
    ],
)
def test_what_cannot_be_swept_is_refused_before_anything_runs(
    options: tuple[str, ...], words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert words in refused(capsys, *options)


def test_an_error_about_a_parameter_speaks_of_the_option_that_named_it(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "train.py").write_text("print('trains')")
    told = refused(capsys, "--param", "size=1,2", str(tmp_path / "train.py"))
    assert "--param size=" in told and "--set" not in told


def test_the_command_line_loads_nothing_heavy_to_refuse() -> None:
    code = f"import sys; from bottleneck.cli import _run; _run(['sweep', {MLP!r}]); print('torch' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.stdout.split()[-1] == "False"
