"""A report depends on its input alone: nothing that a user's cache holds changes a number of it."""

import json
import shutil
from pathlib import Path

import pytest

from bottleneck.calibrate.cache import write_calibration
from bottleneck.calibrate.calibration import Calibration
from bottleneck.cli import _run
from bottleneck.harness.machine import allowance, cache_folder, cpu_facts
from bottleneck.schema.device import Device
from bottleneck.schema.recording import read_recording, write_recording
from bottleneck.schema.records import replace
from tests.samples import SAMPLES

_OF_A_GPU = "AMD-AGI+TraceLens__tests__traces__h100__gaunernst_bert-small-uncased__1016001.json.gz"
_OF_A_CPU = "pytorch+ao__tutorials__quantize_vit__bfloat16_at_05a20b2.json.gz"


def fill(device_names: tuple[str, ...]) -> None:
    """Puts ceilings of this CPU into the cache that are like no other, and trials as ``verify`` once kept them."""
    device = Device("this CPU", "AMD", "cpu", 1, {"fp32_tensor": 1e15}, 1e15, 0.001, "measured", {"fp32_tensor": 1.0})
    for threads in (1, 2, 3):
        made = Calibration(device, cpu_facts().identity, threads=threads, is_default=True, allowance=allowance())
        write_calibration(made)
    trial = {"created": "", "finding": "host-overhead", "change": "compile", "verdict": "slower"}
    lines = [
        trial | {"stated": [1.1, 1.2], "predicted": [1.1, 1.2], "measured": [0.2, 0.1, 0.3], "device": name}
        for name in device_names
    ]
    board = cache_folder() / "scoreboard.jsonl"
    board.write_text("".join(json.dumps(line | {"format": "bottleneck/score/1"}) + "\n" for line in 20 * lines))


def report(path: Path, output: Path, *options: str) -> bytes:
    """The report of a trace as JSON."""
    assert _run(["report", str(path), "--format", "json", "-o", str(output), *options]) == 0
    return output.read_bytes()


def same_in_both_caches(path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> bytes:
    """The report with an empty cache, which is also that with a full one."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "empty"))
    before = report(path, tmp_path / "before.json")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "full"))
    fill((json.loads(before)["device"]["name"],))
    assert report(path, tmp_path / "after.json") == before
    return before


@pytest.mark.parametrize("name", ["mlp", "transformer", "train_script"])
def test_a_recording_has_the_same_report_with_an_empty_and_a_full_cache(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    same_in_both_caches(SAMPLES / name, tmp_path, monkeypatch)


@pytest.mark.parametrize("name", [_OF_A_GPU, _OF_A_CPU])
def test_a_public_trace_has_the_same_report_with_an_empty_and_a_full_cache(
    name: str, traces: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    same_in_both_caches(traces / name, tmp_path, monkeypatch)


def test_kept_ceilings_of_this_cpu_judge_a_recording_without_any_only_where_they_are_asked_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "recording"
    shutil.copytree(SAMPLES / "mlp", folder)
    recording = read_recording(folder)
    versions = {**recording.versions, "cpu": cpu_facts().identity}
    write_recording(folder, replace(recording, device=None, versions=versions))
    before = same_in_both_caches(folder, tmp_path, monkeypatch)
    assert json.loads(before)["device"]["bandwidth_bytes_per_s"] is None
    assert json.loads(report(folder, tmp_path / "asked.json", "--device", "cpu"))["device"]["name"] == "this CPU"
    assert _run(["report", str(folder), "--repair", "-o", str(tmp_path / "repaired.json")]) == 0
    repaired = json.loads((tmp_path / "repaired.json").read_text())
    assert repaired["device"]["bandwidth_bytes_per_s"] == 1e15
