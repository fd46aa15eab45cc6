"""Clones made for a test: small, with nobody's settings, and each shape of history that a base is looked for in."""

import os
import subprocess
from pathlib import Path

import pytest

from bottleneck.experiment.git_clone import COMMITS, TARGETS
from bottleneck.experiment.worktree import Base, base_side

SETTINGS = {
    "GIT_CONFIG_GLOBAL": os.devnull,
    "GIT_CONFIG_SYSTEM": os.devnull,
    "GIT_AUTHOR_NAME": "A",
    "GIT_AUTHOR_EMAIL": "a@example.org",
    "GIT_COMMITTER_NAME": "A",
    "GIT_COMMITTER_EMAIL": "a@example.org",
}


def git(folder: Path, *words: str) -> str:
    """The answer of git in this folder."""
    done = subprocess.run(
        ["git", *words], cwd=folder, env={**os.environ, **SETTINGS}, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def commit(folder: Path, subject: str, **files: str) -> str:
    """The commit that now holds these files (`train_py` is `train.py`, `sub__train_py` is `sub/train.py`)."""
    for name, text in files.items():
        path = folder / name.replace("__", "/").replace("_py", ".py")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    git(folder, "add", "--all")
    git(folder, "commit", "--quiet", "--allow-empty", "--message", subject)
    return git(folder, "rev-parse", "HEAD")


def make_clone(folder: Path, text: str = "one = 1\n") -> Path:
    """A clone with one commit on main, which holds `train.py`."""
    folder.mkdir(parents=True, exist_ok=True)
    git(folder, "init", "--quiet", "--initial-branch=main")
    commit(folder, "first", train_py=text)
    return folder


def make_branched(folder: Path) -> Path:
    """A clone on a branch that left main one commit ago, main having gone on since."""
    make_clone(folder)
    git(folder, "checkout", "--quiet", "-b", "change")
    commit(folder, "change", train_py="two = 2\n")
    git(folder, "checkout", "--quiet", "main")
    commit(folder, "meanwhile", other_py="")
    git(folder, "checkout", "--quiet", "change")
    return folder


def look(clone: Path | None, against: str, scratch: Path, setup: str = "", **told: str) -> tuple[Base, str]:
    """The base, and what its `train.py` holds while it is there."""
    with base_side(clone, against, setup, scratch, environment=told) as base:
        text = (base.side.folder / "train.py").read_text() if base.side else ""
    return base, text


def own_settings(monkeypatch: pytest.MonkeyPatch) -> None:
    """Keeps this machine's settings of git, and what a service says of its own request, out of a test."""
    for name, value in SETTINGS.items():
        monkeypatch.setenv(name, value)
    for name in (*TARGETS, *COMMITS, "GITHUB_REF", "PYTHONPATH", "GIT_DIR", "GIT_INDEX_FILE"):
        monkeypatch.delenv(name, raising=False)
