"""The command ``bottleneck predict``, from the command line to its exit code."""

import json
from pathlib import Path

import pytest

from bottleneck.cli import main

SAMPLES = Path(__file__).parents[1] / "sample_traces"
MODEL = "import torch\nmodel = torch.nn.Linear(4096, 4096)\ninputs = (torch.randn(32, 4096),)\n"


def _run(arguments: list[str]) -> int:
    with pytest.raises(SystemExit) as exit_info:
        main(arguments)
    return int(exit_info.value.code or 0)


def test_trace_is_predicted_on_every_device_asked_for(capsys: pytest.CaptureFixture[str]) -> None:
    assert _run(["predict", str(SAMPLES / "transformer"), "--device", "H100 SXM,A100,T4"]) == 0
    text = capsys.readouterr().out
    assert max(map(len, text.splitlines())) <= 80
    for name in ("H100 80GB HBM3", "A100-SXM4-80GB", "T4"):
        assert name in text
    assert "the trace is of a CPU: a GPU may run other ops" in " ".join(text.split())


def test_prediction_is_a_page_that_escapes_the_name_of_the_trace(tmp_path: Path) -> None:
    trace = next((SAMPLES / "mlp").glob("*.json.gz"))
    named = tmp_path / "<img src=x>.json.gz"
    named.write_bytes(trace.read_bytes())
    assert _run(["predict", str(named), "--device", "T4", "-o", str(tmp_path / "page.html")]) == 0
    page = (tmp_path / "page.html").read_text()
    assert "&lt;img src=x&gt;" in page
    assert "<img src=x" not in page
    assert "The step on each device" in page


def test_rooflines_are_drawn_beside_the_report(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    picture = tmp_path / "roofline.svg"
    assert _run(["predict", str(SAMPLES / "mlp"), "--device", "T4,A100", "--roofline", str(picture)]) == 0
    assert "The step on each device" in capsys.readouterr().out
    assert picture.read_text().count("memory 320 GB/s") == 1


def test_device_of_another_maker_gets_the_least_time_of_the_step(capsys: pytest.CaptureFixture[str]) -> None:
    assert _run(["predict", str(SAMPLES / "transformer"), "--device", "MI300X", "-f", "json"]) == 0
    (device,) = json.loads(capsys.readouterr().out)["devices"]
    assert device["step"]["us"] is None
    assert device["step"]["floor_us"] > 0


def test_pace_of_a_host_counts_for_the_device_that_it_is_given_for(capsys: pytest.CaptureFixture[str]) -> None:
    steps = []
    for pace in ([], ["--host-pace", "9"], ["--host-pace", "T4=9"]):
        assert _run(["predict", str(SAMPLES / "pointwise"), "--device", "A100,T4", *pace, "-f", "json"]) == 0
        steps.append([device["step"]["host_us"] for device in json.loads(capsys.readouterr().out)["devices"]])
    (a100, t4), both, (named_a100, named_t4) = steps
    assert both[0] == both[1] == named_t4 != t4
    assert named_a100 == a100 != both[0]


@pytest.mark.process
def test_model_is_predicted_without_its_weights(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "model.py").write_text(MODEL)
    arguments = ["predict", str(tmp_path / "model.py"), "--device", "T4", "--price", "T4=0.4/h", "-f", "json"]
    assert _run(arguments) == 0
    answer = json.loads(capsys.readouterr().out)
    assert answer["batch_size"] == 32
    device = answer["devices"][0]
    assert [point["batch_size"] for point in device["batches"]] == [8, 16, 32, 64, 128, 256, 512]
    assert device["fits"]
    assert device["largest_batch"] > 100_000
    assert device["cost_per_million_samples"]["low"] > 0
    assert [gain["name"] for gain in device["gains"]] == ["compile", "captured", "max-autotune"]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ([], "no device is named"),
        (["--device", "H1000"], "no device is called 'H1000'"),
        (["--device", "H100 SMX"], "did you mean 'H100 SXM'?"),
        (["--device", "T4", "--backend", "jit"], "--backend jit names none"),
        (["--device", "T4", "--price", "T4"], "--price T4 is no price of an hour"),
        (["--device", "T4", "--price", "T4=-1"], "is no price of an hour"),
        (["--device", "T4", "--price", "A100=1/h"], "is for no device of --device"),
        (["--device", "T4", "--host-pace", "fast"], "--host-pace fast is no time of a host for an op"),
        (["--device", "T4", "--host-pace", "4100"], "it is in microseconds, from 0.3 to 300"),
        (["--device", "T4", "--host-pace", "A100=4"], "is for no device of --device"),
        (["--device", "T4", "--train"], "--train does not go with a trace"),
        (["--device", "T4", "--roofline", "roof.gif"], "cannot draw to roof.gif"),
    ],
)
def test_wrong_words_are_refused(capsys: pytest.CaptureFixture[str], words: list[str], message: str) -> None:
    assert _run(["predict", str(SAMPLES / "mlp"), *words]) == 2
    told = capsys.readouterr().err
    assert message in told
    assert "--peaks" not in told, "no option of this command"


def test_program_that_is_not_there_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert _run(["predict", "nowhere.py", "--device", "T4"]) == 2
    assert "there is no file nowhere.py" in capsys.readouterr().err


TRAINED = """\
import torch
from torch import nn


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.up, self.down = nn.Linear(1024, 4096), nn.Linear(4096, 1024)

    def forward(self, x):
        return x + self.down(nn.functional.gelu(self.up(x)))


def workload(batch_size=8192):
    model = nn.Sequential(*(Block() for _ in range(6)))
    optimizer = torch.optim.SGD(model.parameters())
    x = torch.randn(batch_size, 1024)

    def step():
        optimizer.zero_grad()
        model(x).sum().backward()
        optimizer.step()

    return step
"""


@pytest.mark.process
def test_fit_chooses_a_set_whose_program_then_runs_within_the_memory(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "model.py").write_text(TRAINED)
    command = ["predict", str(tmp_path / "model.py"), "--device", "L4", "--fit", "-f", "json"]
    assert _run(command) == 0
    roomy = json.loads(capsys.readouterr().out)["devices"][0]["fit"]
    assert roomy["fits"] and roomy["best"] is None
    memory = 2**30 + int(0.8 * roomy["peak_bytes"])
    assert _run([*command, "--memory", str(memory)]) == 0
    device = json.loads(capsys.readouterr().out)["devices"][0]
    assert not device["fits"] and device["device"]["memory_bytes"] == memory
    best = device["fit"]["best"]
    assert best["fits"] and best["is_confirmed"]
    assert best["peak_bytes"] <= device["fit"]["usable_bytes"] < device["fit"]["peak_bytes"]
    assert {one["basis"] for one in best["remedies"]} == {"run"}


@pytest.mark.parametrize("size", ["lots", "-1GiB", "8", "900MiB", "1e300", "20 PiB", ""])
def test_memory_that_is_no_size_is_refused(size: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert _run(["predict", "model.py", "--device", "L4", f"--memory={size}"]) == 2
    assert "is no size of a device's memory" in " ".join(capsys.readouterr().err.split())


def test_fit_of_a_trace_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert _run(["predict", str(SAMPLES / "mlp"), "--device", "L4", "--fit"]) == 2
    assert "how long each tensor is held" in " ".join(capsys.readouterr().err.split())
