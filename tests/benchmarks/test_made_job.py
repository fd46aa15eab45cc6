"""The made job of many ranks: real events with times that a simulation of its faults gives them."""

import json
from pathlib import Path

import numpy as np
import pytest

from benchmarks.made_job import (
    HOST_RANKS,
    RANK_TRACES,
    TRACES,
    Faults,
    Template,
    make_template,
    planted,
    rank_text,
    simulate,
    write_job,
)
from bottleneck.pipeline import analyse
from tests.harness.driver import record

RANKS = 4 * HOST_RANKS


@pytest.fixture(scope="module")
def template() -> Template:
    found = sorted(TRACES.glob(RANK_TRACES))
    if not found:
        pytest.skip(f"no rank traces of torchrec in {TRACES}")
    return make_template(found[0], 0.1)


def test_ranks_leave_a_collective_together_and_enter_it_one_by_one(template: Template) -> None:
    at_us = simulate(template, RANKS, planted(RANKS), 0)
    for knot, kind in enumerate(template.kinds[:-1]):
        ends = at_us[:, knot + 1]
        if kind == "world":
            assert np.unique(ends).size == 1 and np.unique(at_us[:, knot]).size > 1
        if kind == "host":
            assert np.unique(ends).size <= RANKS // HOST_RANKS
    assert {"world", "host", "loader"} < set(template.kinds)


def test_a_healthy_job_is_faster_by_what_was_planted(template: Template) -> None:
    sick, healthy = (simulate(template, RANKS, faults, 0) for faults in (planted(RANKS), Faults(None, None, None)))
    loaders = template.kinds.count("loader")
    assert sick[:, -1].min() - healthy[:, -1].max() > 20_000 * loaders


def test_times_of_a_rank_keep_the_order_and_the_nesting_of_the_real_ones(template: Template) -> None:
    text = rank_text(template, simulate(template, RANKS, planted(RANKS), 0)[3], 3, RANKS, 0.0)
    events = [event for event in json.loads(text)["traceEvents"] if "ts" in event]
    start = np.array([float(event["ts"]) for event in events])
    end = start + np.array([float(event.get("dur", 0)) for event in events])
    assert start.size == template.starts.size and (end >= start).all()
    for real, made in ((template.starts, start), (template.ends, end)):
        assert (np.diff(made[np.argsort(real, kind="stable")]) >= 0).all()


def test_only_the_file_itself_tells_the_rank(template: Template, tmp_path: Path) -> None:
    write_job(tmp_path, template, RANKS)
    stated = {}
    for path in sorted(tmp_path.glob("*/*.json")):
        info = json.loads(path.read_bytes())["distributedInfo"]
        stated[info["rank"]] = path.parent.name
        assert info["world_size"] == RANKS
    assert stated == {rank: f"node-{rank // HOST_RANKS:04d}" for rank in range(RANKS)}


def test_nothing_is_queued_while_the_slow_loader_is_waited_for(template: Template) -> None:
    faults = planted(RANKS)
    assert faults.slow_loader is not None
    at_us = simulate(template, RANKS, faults, 0)[faults.slow_loader]
    text = rank_text(template, at_us, faults.slow_loader, RANKS, 0.0)
    events = [event for event in json.loads(text)["traceEvents"] if event.get("ph") == "X"]
    waits = [event for event in events if "DataLoader" in event["name"]]
    kernels = [event for event in events if event["cat"] == "kernel"]
    launched = {event["args"].get("correlation"): event for event in events if event["cat"] == "cuda_runtime"}
    assert waits and kernels and all(event["dur"] > 19_000 for event in waits)
    for wait in waits:
        for kernel in kernels:
            launch = launched.get(kernel["args"]["correlation"], kernel)
            is_over = kernel["ts"] + kernel["dur"] <= wait["ts"] + 1
            assert is_over or launch["ts"] >= wait["ts"] + wait["dur"] - 1


def test_no_collective_grows_with_the_slow_loader(tmp_path: Path) -> None:
    file = tmp_path / "trace.json"
    ours = {"ph": "X", "pid": 1}
    events = [
        {**ours, "cat": "user_annotation", "name": "gloo:all_reduce", "tid": 2, "ts": 0, "dur": 40},
        {**ours, "cat": "user_annotation", "name": "gloo:all_reduce", "tid": 3, "ts": 30, "dur": 80},
        {**ours, "cat": "python_function", "name": "<built-in function sleep>", "tid": 1, "ts": 50, "dur": 2000},
        {**ours, "cat": "cpu_op", "name": "aten::mm", "tid": 1, "ts": 2100, "dur": 10},
    ]
    file.write_text(json.dumps({"distributedInfo": {"backend": "gloo"}, "traceEvents": events}))
    template, faults = make_template(file, 1.0), Faults(None, 1, None)
    made = json.loads(rank_text(template, simulate(template, 2, faults, 0)[1], 1, 2, 0.0))["traceEvents"]
    (wait,) = [event for event in made if "DataLoader" in event["name"]]
    collectives = [event for event in made if event["name"] == "gloo:all_reduce"]
    assert wait["dur"] > 19_000 and all(event["ts"] + event["dur"] <= wait["ts"] for event in collectives)


def test_the_cause_of_the_slow_loader_is_told(template: Template, tmp_path: Path) -> None:
    faults = write_job(tmp_path, template, RANKS)
    job = analyse([tmp_path]).job
    assert job is not None
    (loader,) = [slow for slow in job.slow if slow.name == f"rank {faults.slow_loader}"]
    assert loader.cause.startswith("waiting for data ")


@pytest.mark.process
def test_a_job_of_our_own_gloo_traces_has_its_faults_named_and_nothing_else(tmp_path: Path) -> None:
    pytest.importorskip("torch")
    example = (Path(__file__).parents[2] / "examples" / "ddp.py").read_text()
    arguments = ("--steps", "60", "--slow-rank", "0", "--slow-ms", "2")
    run = record(tmp_path, example, "--nproc-per-node", "2", arguments=arguments)
    assert run.status == 0
    template = make_template(run.folder / "trace.rank0.json.gz", 1.0)
    faults = write_job(tmp_path / "job", template, RANKS)
    job = analyse([tmp_path / "job"]).job
    assert job is not None and job.slow_links == () and faults.late_link is None
    loader, host = sorted(job.slow, key=lambda one: len(one.ranks))
    assert (loader.name, host.name) == (f"rank {faults.slow_loader}", f"host node-{faults.slow_host:04d}")
    assert loader.cause.startswith("waiting for data ")
