"""What is told of a whole run: stretches and slow steps with causes, and of a busy machine."""

import dataclasses
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from bottleneck.report.watched import build, render
from bottleneck.schema.telemetry import HOST, Sample, write_samples
from bottleneck.schema.watch_log import SlowStep, WatchHeader
from bottleneck.watched.read_log import _DTYPE
from bottleneck.watched.summary import summarise

ZERO_NS = 10**18
COMMAND = ("train.py", "--name", "a run")
SLOW = SlowStep(
    *(150, 0.0, 400_000.0, 1_100.0),
    phases_us=(100.0, 399_900.0, 0.0, 0.0, 0.0),
    usual_phases_us=(100.0, 1_000.0, 0.0, 0.0, 0.0),
    gc_us=0.0,
    cpu_us=390_000.0,
    usual_cpu_us=500.0,
    switches=0,
    usual_switches=0.0,
    faults=0,
    batches=1,
    usual_batches=1.0,
)


def log_of(folder: Path, is_slow: Any, *noted: SlowStep, busy: float = 2.0, others: float = 1.5) -> Path:
    """A run whose slow steps have a processor for a quarter of 180 ms."""
    records = np.zeros(is_slow.size, dtype=_DTYPE)
    records["count"], records["first"] = 1, np.arange(1, is_slow.size + 1)
    records["us"] = records["longest_us"] = np.where(is_slow, 180_100.0, 1_100.0)
    records["data_us"], records["optimizer_us"] = 100.0, records["us"] - 100.0
    records["cpu_us"], records["switches"] = np.where(is_slow, 45_000.0, 500.0), np.where(is_slow, 16, 0)
    records["end_s"] = records["us"].cumsum() / 1e6
    (folder / "steps.rank0.bin").write_bytes(records.tobytes())
    header = WatchHeader(
        0, 1, ZERO_NS, "optimizer", "optimizer.step of SGD", is_complete=True, status=0, command=COMMAND
    )
    (folder / "watch.rank0.json").write_bytes(msgspec.json.encode(header))
    (folder / "slow.rank0.jsonl").write_bytes(b"".join(msgspec.json.encode(one) + b"\n" for one in noted))
    rates = {"busy_cpu_s": busy, "process_cpu_s": busy - others, "total_cpu_s": 2.0}
    seconds = range(int(records["end_s"][-1]) + 2)
    readings = [(at, {name: at * rate for name, rate in rates.items()}) for at in seconds]
    write_samples(folder, [Sample(ZERO_NS + 10**9 * at, float(at), HOST, values) for at, values in readings])
    return folder


STEPS = np.arange(1, 192)


def test_most_of_a_run_without_processors_is_its_headline(tmp_path: Path) -> None:
    is_slow = (STEPS <= 81) | ((STEPS >= 92) & (STEPS <= 109)) | (STEPS >= 121)
    run = summarise(log_of(tmp_path, is_slow))
    lines = {line.label: line.text for line in build(run).lines}
    # 170 steps lost 179 ms each.
    assert lines[""] == "Slow steps hold your run up: 30.4 of 30.6 s (99.3 %) beyond its quick steps"
    assert lines["Worst"] == (
        "Other programs or threads had the processor: steps 1 to 81, 92 to 109 and 121 to 191 take 180 ms in the "
        "median, the other 21 take 1.10 ms; their thread had a processor for 25.0 % of that time "
        "(others kept 1.5 processors busy meanwhile)"
    )
    assert lines["First"].startswith("Leave it processors of its own") and "Note" not in lines
    assert run.warnings == (
        "other programs kept 1.5 of 2 processors busy while the steps ran, and the program got 0.50: "
        "step times may be too long",
    )


def test_a_run_that_is_slow_at_its_start_names_that_first(tmp_path: Path) -> None:
    run = summarise(log_of(tmp_path, STEPS <= 77, SLOW))
    stretch, step = build(run).sections[1].items
    assert "steps 1 to 77 take 180 ms in the median" in stretch.title and stretch.key == "no-processor"
    assert step.key == "phase" and [line.text for line in step.lines] == [
        "150",
        "Record some steps of it: bottleneck run train.py --name 'a run'",
    ]
    assert run.ranks[0].named_us >= 0.95 * run.ranks[0].beyond_us


def test_own_threads_are_blamed_where_no_other_program_had_work(tmp_path: Path) -> None:
    run = summarise(log_of(tmp_path, STEPS <= 77, busy=2.0, others=0.0))
    assert run.ranks[0].causes[0].headline.startswith("its own threads had too few processors: steps 1 to 77 take")
    assert not run.warnings


def test_a_steady_run_still_says_that_nothing_stands_out(tmp_path: Path) -> None:
    text = render(summarise(log_of(tmp_path, STEPS < 0, busy=1.0, others=0.2)), "terminal")
    assert "No step stands out, and nothing drifts" in " ".join(text.split())


def test_every_cause_has_its_own_advice(tmp_path: Path) -> None:
    """The same one was "As for 2"."""
    backward = dataclasses.replace(SLOW, step=160, phases_us=(100.0, 0.0, 399_900.0, 0.0, 0.0))
    run = summarise(log_of(tmp_path, STEPS <= 77, SLOW, backward))
    (_, *phases) = build(run).sections[1].items
    assert len({action.title for action in phases}) == 2
    assert {action.lines[-1].text for action in phases} == {
        "Record some steps of it: bottleneck run train.py --name 'a run'"
    }
