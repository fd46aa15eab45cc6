"""Asks git of the user's clone: through no shell, without hooks, prompts or locks on what is theirs."""

import os
import subprocess
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

# What a hook of git that calls us has set would turn our commands to another clone or index (githooks(5)).
_THEIRS = ("GIT_DIR", "GIT_WORK_TREE", "GIT_INDEX_FILE", "GIT_PREFIX", "GIT_COMMON_DIR", "GIT_NAMESPACE")
_OURS = {"GIT_TERMINAL_PROMPT": "0", "GIT_OPTIONAL_LOCKS": "0", "GIT_LFS_SKIP_SMUDGE": "1", "LC_ALL": "C"}

_SETTINGS = (
    "core.hooksPath=/dev/null",
    "core.fsmonitor=false",
    "core.quotePath=false",
    "submodule.recurse=false",
    "gc.auto=0",
    "maintenance.auto=false",
)

NO_GIT = 127
_REASON = 300


@dataclass(frozen=True)
class Answer:
    """What git said, and the status that it ended with: 127 where there is no git."""

    status: int
    output: bytes = b""
    errors: str = ""

    @property
    def is_good(self) -> bool:
        """Whether it did what was asked."""
        return self.status == 0

    @property
    def text(self) -> str:
        """Its output as a name: without the end of the line, undecodable bytes kept as they are."""
        return os.fsdecode(self.output).rstrip("\n")

    @property
    def complaint(self) -> str:
        """The first thing that it complained of, in one line."""
        lines = [line.strip() for line in self.errors.splitlines() if line.strip()]
        fatal = [line for line in lines if line.startswith(("fatal:", "error:"))]
        return (fatal or lines or [f"git ended with status {self.status}"])[0][:_REASON]


# Asks git, in the folder that was given when it was made.
Git = Callable[..., Answer]


def git_in(folder: Path) -> Git:
    """What asks git in this folder."""

    def ask(*words: str, settings: tuple[str, ...] = ()) -> Answer:
        return _ask(folder, words, settings)

    return ask


def find_root(folder: Path) -> Path | None:
    """The root of the clone or worktree that holds a folder; null outside of any. No git is needed to see it."""
    start = folder.resolve()
    return next((each for each in (start, *start.parents) if (each / ".git").exists()), None)


@dataclass(frozen=True)
class Identity:
    """What a working tree is called: its commit (short), branch (null when detached), and whether it was changed.

    Files that git does not know do not count as a change: jobs leave their outputs about.
    """

    commit: str
    branch: str | None
    is_dirty: bool

    @property
    def label(self) -> str:
        """What a person calls it."""
        name = f"{self.branch} {self.commit}" if self.branch else self.commit
        return f"{name} with uncommitted changes" if self.is_dirty else name


def identify(root: Path) -> Identity | None:
    """The working tree's identity; null without git, outside of a clone, and before the first commit."""
    git = git_in(root)
    commit = git("rev-parse", "--verify", "--quiet", "--short", "HEAD")
    if not commit.is_good:
        return None
    branch = git("symbolic-ref", "--quiet", "--short", "HEAD")
    return Identity(commit.text, branch.text if branch.is_good else None, is_dirty(git))


def is_dirty(git: Git) -> bool:
    """Whether a file that git knows differs from HEAD, in the index or in the working tree."""
    return bool(git("status", "--porcelain", "-z", "--untracked-files=no", "--ignore-submodules=dirty").output)


def find_commit(git: Git, ref: str) -> str | None:
    """The commit that a name stands for; null for none. What begins with a dash is an option to git, never a name."""
    if not ref or ref.startswith("-") or "\0" in ref:
        return None
    answer = git("rev-parse", "--verify", "--quiet", "--end-of-options", f"{ref}^{{commit}}")
    return answer.text if answer.is_good else None


def is_shallow(git: Git) -> bool:
    """Whether the clone holds the latest commits only."""
    return git("rev-parse", "--is-shallow-repository").text == "true"


def _ask(folder: Path, words: tuple[str, ...], settings: tuple[str, ...]) -> Answer:
    options = [word for setting in (*_SETTINGS, *settings) for word in ("-c", setting)]
    try:
        done = subprocess.run(  # noqa: S603 - no shell, and names of the user's are never options
            ["git", *options, *words],  # noqa: S607 - the git that the user has on the path is the one to ask
            cwd=folder,
            env=_environment(os.environ),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            check=False,
            # Ctrl-C reaches us alone, who then tidy up; and nothing that git starts can wait at a terminal.
            start_new_session=True,
        )
    except FileNotFoundError:
        return Answer(NO_GIT, errors="git is not installed, or the folder is gone")
    except OSError as error:
        return Answer(NO_GIT, errors=f"git cannot be started: {error.strerror or error}")
    return Answer(done.returncode, done.stdout, os.fsdecode(done.stderr))


def _environment(ours: Mapping[str, str]) -> dict[str, str]:
    return {**{name: value for name, value in ours.items() if name not in _THEIRS}, **_OURS}
