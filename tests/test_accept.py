"""`bottleneck accept` from the command line: on lock-files, counts of a last run, and a real program."""

import os
import shutil
import subprocess
import time
from dataclasses import replace
from pathlib import Path

import pytest

from bottleneck.cli import _run
from bottleneck.gate import acceptance
from bottleneck.gate.acceptance import last_path, read_last, write_last
from bottleneck.gate.lockfile import read_lock, write_lock
from bottleneck.schema.counters import Counts, Fingerprint, Lock, Site

COUNTS = Counts(
    values={"ops": 200, "syncs": 0, "launches": 303},
    fingerprint=Fingerprint({"torch": "2.13"}),
    sites=(Site("net.py", 1, "step()", {"ops": 200}),),
    input_sha="aaaa",
)
NOW = replace(
    COUNTS,
    values={"ops": 202, "syncs": 1, "launches": 311},
    sites=(*COUNTS.sites, Site("net.py", 2, "loss.item()", {"ops": 2, "syncs": 1})),
)


@pytest.fixture(autouse=True)
def _outside_of_ci(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in acceptance._CI_VARIABLES:
        monkeypatch.delenv(name, raising=False)


@pytest.fixture
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A project with the workload net.py, its lock-file and the counts of a later run."""
    (tmp_path / "pyproject.toml").write_text('[tool.bottleneck.gate]\nworkloads = ["net.py"]\n')
    (tmp_path / "net.py").write_text("step()\nloss.item()\n")
    write_lock(lock_of(tmp_path), Lock("net", ("net.py",), COUNTS))
    keep(tmp_path)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def lock_of(root: Path, name: str = "net") -> Path:
    return root / ".bottleneck" / f"{name}.lock.toml"


def keep(root: Path, counts: Counts = NOW, name: str = "net") -> None:
    """Keeps counts as those of a run after all that was written until now."""
    path = last_path(root, name)
    write_last(path, counts)
    later = time.time_ns() + 10**9
    os.utime(path, ns=(later, later))


def test_all_that_is_broken_is_accepted_and_told(root: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert _run(["accept", "--reason", "logs the loss"]) == 0
    said = capsys.readouterr().out
    assert "launches 303 to 311 per step (+8, +2.6 %)" in said
    assert "syncs 0 to 1 per step (+1)" in said
    assert "git add .bottleneck/net.lock.toml" in said
    lock = read_lock(lock_of(root))
    assert lock.counts.values == NOW.values
    assert {(row.metric, row.before, row.after, row.reason) for row in lock.accepted} == {
        ("ops", 200, 202, "logs the loss"),
        ("syncs", 0, 1, "logs the loss"),
        ("launches", 303, 311, "logs the loss"),
    }


def test_only_the_metrics_that_are_named_change(root: Path) -> None:
    assert _run(["accept", "net.py", "--metric", "syncs,ops", "--reason", "logs"]) == 0
    assert read_lock(lock_of(root)).counts.values == {"ops": 202, "syncs": 1, "launches": 303}


def test_a_second_acceptance_finds_nothing_and_writes_nothing(root: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert _run(["accept", "--reason", "logs"]) == 0
    before = lock_of(root).read_bytes()
    capsys.readouterr()
    assert _run(["accept", "net", "--reason", "again"]) == 0
    assert "nothing to accept" in capsys.readouterr().out
    assert lock_of(root).read_bytes() == before


@pytest.mark.parametrize("name", ["CI", "GITHUB_ACTIONS", "GITLAB_CI", "BUILDKITE", "JENKINS_URL"])
def test_nothing_is_accepted_in_ci(
    name: str, root: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv(name, "true")
    before = lock_of(root).read_bytes()
    assert _run(["accept", "--reason", "logs"]) == 2
    assert f"in CI ({name} is set)" in capsys.readouterr().err
    assert lock_of(root).read_bytes() == before


@pytest.mark.parametrize("value", ["", "0", "false"])
def test_a_variable_that_says_no_is_no_ci(value: str, root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CI", value)
    assert _run(["accept", "--reason", "logs"]) == 0


REFUSED = {
    "no reason": (["accept"], "has a reason"),
    "an empty reason": (["accept", "--reason", "  "], "has a reason"),
    "a time": (["accept", "--metric", "step_ms", "--reason", "slower"], "is a time"),
    "no counter": (["accept", "--metric", "lanches", "--reason", "x"], "no counter"),
    "no command line": (["accept", "a 'b", "--reason", "x"], "no command line"),
    "an anchor outside of git": (["accept", "--anchor", "v1"], "there is no commit v1"),
    "a wider budget": (["accept", "--budget", "ops=+5", "--reason", "x"], "has no option --budget"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_cannot_be_is_wrong_usage(name: str, root: Path, capsys: pytest.CaptureFixture[str]) -> None:
    arguments, said = REFUSED[name]
    before = lock_of(root).read_bytes()
    assert _run(arguments) == 2
    assert said in capsys.readouterr().err
    assert lock_of(root).read_bytes() == before


def test_the_user_of_a_workload_without_a_lock_file_is_told_how_to_make_one(
    root: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert _run(["accept", "other.py", "--reason", "x"]) == 3
    assert "gate --update" in capsys.readouterr().err


def test_where_there_is_no_lock_file_at_all_it_is_wrong_usage(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / ".git").mkdir()
    monkeypatch.chdir(tmp_path)
    assert _run(["accept", "--reason", "x"]) == 2
    assert "there is no lock-file" in capsys.readouterr().err


def test_without_settings_all_lock_files_are_taken(root: Path) -> None:
    (root / "pyproject.toml").write_text("")
    write_lock(lock_of(root, "a"), Lock("a", ("a.py",), COUNTS))
    for name in ("a", "net"):
        keep(root, name=name)
    assert _run(["accept", "--reason", "logs"]) == 0
    assert [len(read_lock(lock_of(root, name)).accepted) for name in ("a", "net")] == [3, 3]


def test_counts_of_another_torch_are_refused_with_the_way_out(root: Path, capsys: pytest.CaptureFixture[str]) -> None:
    keep(root, replace(NOW, fingerprint=Fingerprint({"torch": "2.14"})))
    assert _run(["accept", "--reason", "x"]) == 2
    said = capsys.readouterr().err
    assert "of torch 2.13, this is torch 2.14" in said
    assert "gate --update" in said


def test_where_one_workload_cannot_be_none_is_changed(root: Path) -> None:
    (root / "pyproject.toml").write_text('[tool.bottleneck.gate]\nworkloads = ["net.py", "a.py"]\n')
    write_lock(lock_of(root, "a"), Lock("a", ("a.py",), COUNTS))
    keep(root, replace(NOW, input_sha="bbbb"), "a")
    keep(root)
    before = lock_of(root).read_bytes()
    assert _run(["accept", "--reason", "x"]) == 2
    assert lock_of(root).read_bytes() == before


@pytest.mark.parametrize("file", ["net.py", "pyproject.toml"])
def test_a_source_that_changed_since_is_counted_again(file: str, root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    again = replace(NOW, values={**NOW.values, "syncs": 2})
    monkeypatch.setattr("bottleneck.commands.accept._count", lambda *_: again)
    later = time.time_ns() + 5 * 10**9
    os.utime(root / file, ns=(later, later))
    assert _run(["accept", "--quiet", "--metric", "syncs", "--reason", "x"]) == 0
    assert read_lock(lock_of(root)).counts.values["syncs"] == 2
    assert read_last(last_path(root, "net")) == again


@pytest.mark.parametrize("data", [None, b"no counts"])
def test_without_counts_of_a_last_run_they_are_counted(
    data: bytes | None, root: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("bottleneck.commands.accept._count", lambda *_: NOW)
    last_path(root, "net").unlink()
    if data is not None:
        last_path(root, "net").write_bytes(data)
    assert _run(["accept", "--reason", "x"]) == 0
    assert "counting net" in capsys.readouterr().err
    assert read_lock(lock_of(root)).counts.values == NOW.values


def git(root: Path, *words: str) -> None:
    subprocess.run(
        ["git", "-c", "user.name=a", "-c", "user.email=a@example.org", *words],
        cwd=root,
        check=True,
        capture_output=True,
    )


@pytest.mark.skipif(shutil.which("git") is None, reason="git is not installed")
def test_an_anchor_is_the_lock_file_of_its_commit_and_an_acceptance_names_where_it_was_made(
    root: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    git(root, "init", "-q")
    git(root, "add", ".")
    git(root, "commit", "-qm", "first")
    git(root, "tag", "v1")
    assert _run(["accept", "--reason", "logs"]) == 0
    assert read_lock(lock_of(root)).accepted[0].commit
    assert _run(["accept", "--anchor", "v1"]) == 0
    assert "launches 303 to 311 per step (+8, +2.6 %) since" in capsys.readouterr().out
    anchor = read_lock(lock_of(root)).anchor
    assert anchor is not None
    assert (anchor.commit, anchor.values) == ("v1", COUNTS.values)
    assert _run(["accept", "--anchor", "HEAD"]) == 0
    again = read_lock(lock_of(root)).anchor
    assert again is not None
    assert len(again.commit) == 10
    assert not [line for line in status(root) if "last" in line]


@pytest.mark.skipif(shutil.which("git") is None, reason="git is not installed")
def test_a_workload_that_the_release_did_not_have_keeps_no_anchor(
    root: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    git(root, "init", "-q")
    git(root, "commit", "-qm", "first", "--allow-empty")
    assert _run(["accept", "--anchor", "HEAD"]) == 0
    assert "as it was, for HEAD has no" in capsys.readouterr().out
    assert read_lock(lock_of(root)).anchor is None
    assert _run(["accept", "net", "--anchor", "HEAD"]) == 2


def test_a_name_in_the_lock_file_leads_nowhere(root: Path) -> None:
    write_lock(lock_of(root), Lock("../../led-outside", ("net.py",), COUNTS))
    assert _run(["accept", "--reason", "x"]) == 0
    assert not list(root.parent.rglob("*led-outside*"))
    assert read_lock(lock_of(root)).counts.values == NOW.values


def status(root: Path) -> list[str]:
    done = subprocess.run(
        ["git", "status", "--porcelain", "-uall"], cwd=root, check=True, capture_output=True, text=True
    )
    return done.stdout.splitlines()


PROGRAM = """\
import torch
from torch import nn


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(8, 8)

    def forward(self, x):
        x = self.linear(x)
        return torch.relu(x)


def workload(batch_size=4):
    model = nn.Sequential(Block(), Block())
    inputs = torch.randn(batch_size, 8)
    seen = []

    def step():
        loss = model(inputs).sum()
        loss.backward()
        return loss

    return step
"""
# One of each in one program, so that it is counted once: every line has to answer for its own counter.
INJECTED = {
    "syncs": ("        return loss\n", "        seen.append(loss.item())\n"),
    "copies": ("        loss = model", "        kept = inputs.clone()\n"),
    "float64_ops": ("        return torch.relu(x)", "        x = torch.sqrt(x.double()).float()\n"),
    "ops": ("        return torch.relu(x)", "        x = -x\n"),
}


def test_lines_put_into_a_real_program_answer_for_their_counters_and_are_accepted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("torch")
    from bottleneck.experiment.side import Side
    from bottleneck.gate.count_program import count_program
    from bottleneck.gate.judge import judge_counts
    from bottleneck.gate.settings import read_settings
    from bottleneck.harness.messages import Program

    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    monkeypatch.chdir(tmp_path)
    (tmp_path / "pyproject.toml").write_text('[tool.bottleneck.gate]\nworkloads = ["net.py"]\n')
    (tmp_path / "net.py").write_text(PROGRAM)
    side = Side("this", tmp_path)
    before = count_program(Program("net.py"), tmp_path / "scratch", side).counts
    write_lock(lock_of(tmp_path), Lock("net", ("net.py",), before))

    changed = PROGRAM
    for place, line in INJECTED.values():
        changed = changed.replace(place, line + place)
    (tmp_path / "net.py").write_text(changed)
    assert _run(["accept", "--quiet", "--metric", "syncs", "--reason", "logs the loss"]) == 0
    after = read_last(last_path(tmp_path, "net"))
    assert read_lock(lock_of(tmp_path)).counts.values == {**before.values, "syncs": 1}

    lines = changed.splitlines()
    touched = {"net.py": frozenset(lines.index(line.rstrip()) + 1 for _, line in INJECTED.values())}
    lock = Lock("net", ("net.py",), before)
    changes = judge_counts(lock, after, read_settings(None), touched, lambda _: changed)
    broken = {change.metric: change for change in changes if change.verdict == "broken"}
    named = {metric: [culprit.site.text for culprit in broken[metric].culprits if culprit.site] for metric in INJECTED}
    for metric, (_, line) in INJECTED.items():
        assert line.strip() in named[metric], metric
    # These two are of one line each; a copy is made by the upcast as well, and ops by all of them.
    assert named["syncs"] == [INJECTED["syncs"][1].strip()]
    assert named["float64_ops"] == [INJECTED["float64_ops"][1].strip()]
