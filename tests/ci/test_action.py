"""The action's steps, run by bash in a temporary repository."""

import re
import subprocess
from pathlib import Path

import pytest

from bottleneck.report.ci.outputs import GATE_FORMATS
from tests.ci.steps import Job, executable, git, load

STEPS = load("action.yml")["runs"]["steps"]

# Stands in for the interpreter: keeps what it was given, writes a summary, ends as it was told to.
STUB = """#!/usr/bin/env bash
if [ "$3" != bottleneck.cli ]; then exit 0; fi
printf '%s\\0' "$@" > "$KEPT"
for word in "$@"; do case $word in --out=*) folder=${word#--out=} ;; esac; done
printf '<!-- bottleneck-gate -->\\nsaid\\n' > "$folder/gate.md"
printf '::error file=mlp.py,line=25::3 more ops\\n' > "$folder/annotations.txt"
exit "$CODE"
"""


@pytest.fixture
def clone(tmp_path: Path) -> Path:
    """A shallow clone of one commit, as the services make it, of a branch that left main five commits ago."""
    origin = tmp_path / "origin"
    origin.mkdir()
    git(origin, "init")
    for number in range(3):
        git(origin, "commit", "--allow-empty", "-m", f"main {number}")
    git(origin, "checkout", "-b", "change", "HEAD~1")
    for number in range(5):
        git(origin, "commit", "--allow-empty", "-m", f"change {number}")
    git(tmp_path, "clone", "--depth=1", "--branch=change", origin.as_uri(), "clone")
    return tmp_path / "clone"


def job(clone: Path, tmp_path: Path, code: int = 0, **inputs: str) -> Job:
    defaults = {name: row["default"] for name, row in load("action.yml")["inputs"].items()}
    stub = executable(tmp_path / "bin" / "stub", STUB)
    given = {**defaults, "python": str(stub), **{name.replace("_", "-"): text for name, text in inputs.items()}}
    contexts = {f"inputs.{name}": text for name, text in given.items()} | {
        "github.action_path": str(tmp_path),
        "github.base_ref": "main",
        "github.event.repository.default_branch": "main",
        "github.sha": git(clone, "rev-parse", "HEAD"),
    }
    return Job(clone, contexts, tmp_path, extra={"KEPT": str(tmp_path / "kept"), "CODE": str(code)})


def kept(tmp_path: Path) -> list[str]:
    return (tmp_path / "kept").read_text().split("\0")[:-1]


@pytest.mark.parametrize(
    ("code", "verdict"), [(0, "pass"), (1, "fail"), (2, "usage"), (4, "failed"), (5, "undecided"), (70, "error")]
)
def test_the_job_ends_with_the_gates_code_after_all_was_written(
    clone: Path, tmp_path: Path, code: int, verdict: str
) -> None:
    work = job(clone, tmp_path, code)
    done = work.run(STEPS)
    assert [step.returncode for step in done] == [0, 0, 0, code]
    assert work.summary == "<!-- bottleneck-gate -->\nsaid\n"
    assert "::error file=mlp.py,line=25::3 more ops\n" in done[2].stdout
    assert work.contexts["steps.gate.outputs.verdict"] == verdict
    assert work.contexts["steps.gate.outputs.exit-code"] == str(code)
    assert work.contexts["steps.gate.outputs.folder"] == "gate"


def test_the_artifact_is_kept_whatever_the_verdict() -> None:
    [upload] = [step for step in STEPS if "uses" in step]
    assert upload["if"].startswith("always()")
    assert STEPS.index(upload) == len(STEPS) - 2


def test_inputs_reach_the_gate_word_by_word(clone: Path, tmp_path: Path) -> None:
    lines = "a.py --set n=3\n\n  b c.py\n"
    job(clone, tmp_path, workloads=lines, against="v1", only="counters", arguments="--strict  --seed 3").run(STEPS)
    out = f"--out={clone / 'gate'}"
    formats = "--format=markdown,json,html,junit,sarif,github"
    assert kept(tmp_path)[3:] == [
        *("gate", out, formats, "--against=v1", "--only=counters", "--strict", "--seed", "3", "--"),
        *("a.py --set n=3", "  b c.py"),
    ]


def test_without_inputs_the_settings_of_the_project_decide(clone: Path, tmp_path: Path) -> None:
    job(clone, tmp_path).run(STEPS)
    assert kept(tmp_path)[3:] == [
        *("gate", f"--out={clone / 'gate'}", "--format=markdown,json,html,junit,sarif,github", "--")
    ]


@pytest.mark.parametrize("hostile", ['"; touch pwned; "', "$(touch pwned)", "`touch pwned`", "a\nb; touch pwned", "*"])
def test_a_hostile_input_is_a_word_and_never_a_command(clone: Path, tmp_path: Path, hostile: str) -> None:
    names = ("workloads", "against", "only", "arguments", "folder", "depth")
    work = job(clone, tmp_path, **dict.fromkeys(names, hostile))
    assert work.run(STEPS)[-1].returncode == 0
    assert f"--against={hostile}" in kept(tmp_path)
    assert not list(tmp_path.rglob("pwned"))


def test_that_test_would_see_an_input_pasted_into_a_script(clone: Path, tmp_path: Path) -> None:
    work = job(clone, tmp_path)
    work.run([{"run": 'echo "' + '"; touch pwned; "' + '"'}])
    assert (clone / "pwned").exists()


@pytest.mark.parametrize("has_base", [False, True], ids=["of the change alone", "of the tip of main too"])
def test_a_shallow_clone_gets_enough_history_for_the_merge_base(clone: Path, tmp_path: Path, has_base: bool) -> None:
    if has_base:
        git(clone, "fetch", "--depth=1", "origin", "+refs/heads/main:refs/remotes/origin/main")
    with pytest.raises(subprocess.CalledProcessError):
        git(clone, "merge-base", "HEAD", "origin/main")
    job(clone, tmp_path).run(STEPS)
    assert git(clone, "merge-base", "HEAD", "origin/main") == git(clone, "rev-parse", "origin/main~1")


def test_a_whole_clone_is_not_made_shallow(clone: Path, tmp_path: Path) -> None:
    git(clone, "fetch", "--unshallow", "origin", "+refs/heads/*:refs/remotes/origin/*")
    job(clone, tmp_path, depth="1").run(STEPS)
    assert git(clone, "rev-parse", "--is-shallow-repository") == "false"


def test_without_a_remote_the_gate_runs_all_the_same(clone: Path, tmp_path: Path) -> None:
    git(clone, "remote", "remove", "origin")
    done = job(clone, tmp_path).run(STEPS)
    assert [step.returncode for step in done] == [0, 0, 0, 0]
    assert "Not fetched: +refs/heads/main" in done[1].stdout


def test_bottleneck_is_installed_from_the_action_where_it_is_missing(clone: Path, tmp_path: Path) -> None:
    executable(tmp_path / "bin" / "bare", '#!/bin/sh\n[ "$1" = -P ] && exit 1\necho "$@" > "$KEPT"\n')
    job(clone, tmp_path, python=str(tmp_path / "bin" / "bare")).run(STEPS[:1])
    assert (tmp_path / "kept").read_text() == f"-m pip install --quiet {tmp_path}\n"


def test_outputs_cannot_be_forged_through_the_folder(clone: Path, tmp_path: Path) -> None:
    work = job(clone, tmp_path, 1, folder="gate\nverdict=pass")
    work.run(STEPS)
    assert work.contexts["steps.gate.outputs.verdict"] == "fail"


def test_what_the_action_reads_is_written_by_the_formats_that_it_asks_for() -> None:
    [script] = [step["run"] for step in STEPS if step.get("id") == "gate"]
    [words] = re.findall(r"--format=([a-z,]+)", script)
    written = {GATE_FORMATS[name].file for name in words.split(",")}
    assert set(re.findall(r"\$folder/([\w.]+)", script)) <= written
    assert "gate.md" in load("ci/perf-comment.yml")["jobs"]["comment"]["steps"][0]["run"]
