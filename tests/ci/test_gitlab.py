"""The GitLab job's script, run by bash in a temporary clone, and the reports that it hands to the service."""

import subprocess
from pathlib import Path

import pytest

from bottleneck.report.ci.outputs import GATE_FORMATS
from tests.ci.steps import Job, executable, git, load

JOB = load("ci/bottleneck.gitlab-ci.yml")["perf"]
STUB = '#!/bin/sh\nprintf "%s\\n" "$@" > "$KEPT"\nexit "$CODE"\n'


def run(tmp_path: Path, code: int, base: str | None = None) -> "subprocess.CompletedProcess[str]":
    """The script as the runner runs it: all lines in one shell that ends at the first that fails."""
    origin = tmp_path / "origin"
    origin.mkdir()
    git(origin, "init")
    git(origin, "commit", "--allow-empty", "-m", "base")
    git(origin, "checkout", "-b", "change")
    git(origin, "commit", "--allow-empty", "-m", "change")
    git(tmp_path, "clone", "--depth=1", "--branch=change", origin.as_uri(), "clone")
    executable(tmp_path / "bin" / "bottleneck", STUB)
    work = Job(tmp_path / "clone", {}, tmp_path)
    work.path = f"{tmp_path / 'bin'}:{work.path}"
    work.extra = {"KEPT": str(tmp_path / "kept"), "CODE": str(code), **JOB["variables"]}
    work.extra["CI_MERGE_REQUEST_DIFF_BASE_SHA"] = git(origin, "rev-parse", "main") if base is None else base
    [done] = work.run([{"run": "\n".join(JOB["script"])}])
    return done


@pytest.mark.parametrize("code", [0, 1, 5])
def test_the_job_ends_with_the_gates_code_and_has_the_base(tmp_path: Path, code: int) -> None:
    assert run(tmp_path, code).returncode == code
    assert (tmp_path / "kept").read_text().splitlines()[0] == "gate"
    assert git(tmp_path / "clone", "cat-file", "-t", git(tmp_path / "origin", "rev-parse", "main")) == "commit"


@pytest.mark.parametrize("base", ["", "0" * 40, "$(touch pwned)", "--upload-pack=touch pwned"])
def test_without_the_base_the_gate_runs_all_the_same(tmp_path: Path, base: str) -> None:
    assert run(tmp_path, 0, base).returncode == 0
    assert (tmp_path / "kept").exists()
    assert not list(tmp_path.rglob("pwned"))


def test_undecided_is_amber_and_a_regression_red() -> None:
    assert JOB["allow_failure"] == {"exit_codes": [5]}


def test_the_reports_are_files_that_the_asked_formats_write(tmp_path: Path) -> None:
    run(tmp_path, 0)
    [formats] = [
        line.removeprefix("--format=") for line in (tmp_path / "kept").read_text().splitlines() if "--format" in line
    ]
    written = {f"gate/{GATE_FORMATS[name].file}" for name in formats.split(",")}
    assert set(JOB["artifacts"]["reports"].values()) <= written
    assert JOB["artifacts"]["when"] == "always"
