"""Reads the user's clone with git.

It finds the base commit of a change, and the lines that the change touches.
"""

import os
import re
import shlex
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
class GitOutput:
    """The output of git and its exit status: 127 where there is no git."""

    status: int
    output: bytes = b""
    errors: str = ""

    @property
    def is_good(self) -> bool:
        """True if the command succeeded."""
        return self.status == 0

    @property
    def text(self) -> str:
        """Output of git as a name, without the end of the line.

        Undecodable bytes are kept as they are.
        """
        return os.fsdecode(self.output).rstrip("\n")

    @property
    def error_line(self) -> str:
        """Its first error, in one line."""
        lines = [line.strip() for line in self.errors.splitlines() if line.strip()]
        fatal = [line for line in lines if line.startswith(("fatal:", "error:"))]
        return (fatal or lines or [f"git ended with status {self.status}"])[0][:_REASON]


# Runs git in the folder that was given when it was made.
Git = Callable[..., GitOutput]


def git_in(folder: Path) -> Git:
    """A function that runs git in this folder."""

    def run(*words: str, settings: tuple[str, ...] = ()) -> GitOutput:
        options = [word for setting in (*_SETTINGS, *settings) for word in ("-c", setting)]
        try:
            done = subprocess.run(  # noqa: S603 - no shell, and names of the user's are never options
                ["git", *options, *words],  # noqa: S607 - the git that the user has on the path is the one to run
                cwd=folder,
                env={**{name: value for name, value in os.environ.items() if name not in _THEIRS}, **_OURS},
                stdin=subprocess.DEVNULL,
                capture_output=True,
                check=False,
                # Ctrl-C reaches us alone, who then tidy up; and nothing that git starts can wait at a terminal.
                start_new_session=True,
            )
        except FileNotFoundError:
            return GitOutput(NO_GIT, errors="git is not installed, or the folder is gone")
        except OSError as error:
            return GitOutput(NO_GIT, errors=f"git cannot be started: {error.strerror or error}")
        return GitOutput(done.returncode, done.stdout, os.fsdecode(done.stderr))

    return run


def find_root(folder: Path) -> Path | None:
    """Finds the root of the clone or worktree that holds a folder.

    Null outside of any. No git is needed to see it.
    """
    start = folder.resolve()
    return next((parent for parent in (start, *start.parents) if (parent / ".git").exists()), None)


@dataclass(frozen=True)
class Identity:
    """Short commit of a working tree, its branch and whether it changed.

    The branch is null when detached. Files that git does not know do not count as a change: jobs leave their outputs
    about.
    """

    commit: str
    branch: str | None
    is_dirty: bool

    @property
    def label(self) -> str:
        """Its name for people."""
        name = f"{self.branch} {self.commit}" if self.branch else self.commit
        return f"{name} with uncommitted changes" if self.is_dirty else name


def identify(root: Path) -> Identity | None:
    """Returns the working tree's identity.

    Null without git, outside of a clone, and before the first commit.
    """
    git = git_in(root)
    commit = git("rev-parse", "--verify", "--quiet", "--short", "HEAD")
    if not commit.is_good:
        return None
    branch = git("symbolic-ref", "--quiet", "--short", "HEAD")
    return Identity(commit.text, branch.text if branch.is_good else None, is_dirty(git))


def is_dirty(git: Git) -> bool:
    """Returns whether a file that git knows differs from HEAD.

    It may differ in the index or in the working tree.
    """
    return bool(git("status", "--porcelain", "-z", "--untracked-files=no", "--ignore-submodules=dirty").output)


def find_commit(git: Git, ref: str) -> str | None:
    """Finds the commit that a name stands for.

    Null for none. A text that begins with a dash is an option to git, never a name.
    """
    if not ref or ref.startswith("-") or "\0" in ref:
        return None
    answer = git("rev-parse", "--verify", "--quiet", "--end-of-options", f"{ref}^{{commit}}")
    return answer.text if answer.is_good else None


def is_shallow(git: Git) -> bool:
    """True if the clone holds the latest commits only."""
    return git("rev-parse", "--is-shallow-repository").text == "true"


MERGE_BASE = "merge-base"
_DEPTH = 200

# The variable by which each service names the branch that a request is to be merged into.
TARGETS: Mapping[str, str] = {
    "GITHUB_BASE_REF": "GitHub",
    "CI_MERGE_REQUEST_TARGET_BRANCH_NAME": "GitLab",
    "BUILDKITE_PULL_REQUEST_BASE_BRANCH": "Buildkite",
    "CHANGE_TARGET": "Jenkins",
    "BITBUCKET_PR_DESTINATION_BRANCH": "Bitbucket",
    "SYSTEM_PULLREQUEST_TARGETBRANCH": "Azure",
}
# GitLab names the commit itself: where it tests the merge of both branches the tip of the target, else the merge-base.
COMMITS = ("CI_MERGE_REQUEST_TARGET_BRANCH_SHA", "CI_MERGE_REQUEST_DIFF_BASE_SHA")
_MAIN = ("origin/HEAD", "origin/main", "origin/master", "main", "master")
# GitLab names which branch is the main one, whatever it is called.
_DEFAULT = "CI_DEFAULT_BRANCH"
_GITHUB_MERGE = re.compile(r"refs/pull/\d+/merge")


@dataclass(frozen=True)
class BaseCommit:
    """Commit and its name, or the reason why there is none.

    ``warning`` is set where the commit is not the one that was meant.
    """

    commit: str | None
    label: str
    reason: str | None = None
    warning: str | None = None


def find_base(git: Git, against: str, environment: Mapping[str, str]) -> BaseCommit:
    """The commit that ``against`` means: "merge-base", "merge-base:BRANCH", or a name that git knows."""
    if find_commit(git, "HEAD") is None:
        return BaseCommit(None, against, "this clone has no commit yet: there is nothing to compare the change with")
    if not is_merge_base(against):
        commit = find_commit(git, against)
        if commit is None:
            return BaseCommit(None, against, _unknown(git, against))
        return BaseCommit(commit, _named(against, commit))
    branch = against.removeprefix(MERGE_BASE).removeprefix(":")
    of_service = (commit for name in COMMITS if (commit := find_commit(git, environment.get(name, ""))))
    named = None if branch else next(of_service, None)
    if named is not None:
        return BaseCommit(named, _named(MERGE_BASE, named))
    target, reason = _named_target(git, branch, "--against") if branch else _target(git, environment)
    if target is None:
        return _without_target(git, reason, environment)
    return _where_it_left(git, target)


def is_merge_base(against: str) -> bool:
    """Returns whether this requests a merge-base.

    No name that git takes has a colon in it.
    """
    return against == MERGE_BASE or against.startswith(f"{MERGE_BASE}:")


def _target(git: Git, environment: Mapping[str, str]) -> tuple[str | None, str]:
    """Finds the ref of the branch to merge into.

    Without a ref, the second value says why.
    """
    service = next((name for name in TARGETS if environment.get(name, "").strip()), None)
    if service is not None:
        return _named_target(git, environment[service].strip().removeprefix("refs/heads/"), service)
    usual = [f"origin/{environment[_DEFAULT]}"] if environment.get(_DEFAULT) else []
    present = next((ref for ref in (*usual, *_MAIN) if find_commit(git, ref)), None)
    why = "no branch to compare with: there is no origin/HEAD, origin/main, main or master"
    return present, f"{why}; name one with --against {MERGE_BASE}:BRANCH"


def _named_target(git: Git, branch: str, by: str) -> tuple[str | None, str]:
    """The ref of a branch that something names; else how to fetch it."""
    refs = (f"refs/remotes/origin/{branch}", f"refs/remotes/{branch}", f"refs/heads/{branch}")
    present = next((ref for ref in refs if find_commit(git, ref)), None)
    fetch = _fetch(git, branch.removeprefix("origin/"))
    return present, f"the branch {branch} that {by} names is not in this clone: {fetch}"


def _without_target(git: Git, reason: str, environment: Mapping[str, str]) -> BaseCommit:
    """Finds the target of a pull request without a named branch.

    GitHub checks out a merge of the request into its target. Its first parent is all that is needed.
    """
    first = find_commit(git, "HEAD^1")
    if first and find_commit(git, "HEAD^2") and _GITHUB_MERGE.fullmatch(environment.get("GITHUB_REF", "")):
        return BaseCommit(first, _named("the target of the pull request", first))
    return BaseCommit(None, MERGE_BASE, reason)


def _where_it_left(git: Git, target: str) -> BaseCommit:
    """Finds the merge-base of HEAD with the target.

    On the target itself it is the last commit that is not in what was changed.
    """
    name = target.removeprefix("refs/remotes/").removeprefix("refs/heads/")
    answer = git("merge-base", "HEAD", target)
    if not answer.is_good:
        return BaseCommit(None, MERGE_BASE, _unrelated(git, name))
    head, commit = find_commit(git, "HEAD"), answer.text
    if commit != head:
        return BaseCommit(commit, _named(f"merge-base with {name}", commit))
    if is_dirty(git):
        return BaseCommit(commit, _named("HEAD", commit))
    return _last_commit(git, name)


def _last_commit(git: Git, name: str) -> BaseCommit:
    before = find_commit(git, "HEAD~1")
    if before is None:
        why = f"nothing here differs from {name}, and the commit before HEAD is not in this clone"
        return BaseCommit(
            None, MERGE_BASE, f"{why}: {_fetch(git)}" if is_shallow(git) else f"{why}: HEAD is the first one"
        )
    warning = f"nothing here differs from {name}: the last commit is compared with the one before it"
    return BaseCommit(before, _named("HEAD~1", before), warning=warning)


def _unknown(git: Git, ref: str) -> str:
    if ref.startswith("-"):
        return f"{ref!r} is an option, not the name of a commit"
    shallow = ", and this clone is shallow: git fetch --unshallow --tags origin" if is_shallow(git) else ""
    return f"git knows no commit {ref!r}, and there is no folder of this name{shallow}"


def _unrelated(git: Git, name: str) -> str:
    if is_shallow(git):
        fetch = _fetch(git, name.removeprefix("origin/"))
        return f"this clone is shallow and does not reach back to where HEAD left {name}: {fetch}"
    return f"HEAD and {name} have no commit in common (no merge-base); name a base with --against REF"


def _fetch(git: Git, branch: str = "") -> str:
    """Words the command that fetches a branch.

    Where the clone is shallow, the command also fetches more of the history of HEAD.
    """
    words, theirs = ["git", "fetch", "origin"], f"refs/remotes/origin/{branch}"
    # Named with where it goes, a branch that is here already would not be deepened beside another (git 2.39).
    words += [branch if find_commit(git, theirs) else f"+refs/heads/{branch}:{theirs}"] if branch else []
    if not is_shallow(git):
        return shlex.join(words)
    name = git("symbolic-ref", "--quiet", "--short", "HEAD")
    words.append(name.text if name.is_good else git("rev-parse", "HEAD").text)
    words.insert(2, f"--depth={_DEPTH}")
    return f"{shlex.join(words)} (GitHub: fetch-depth: 0; GitLab: GIT_DEPTH: 0)"


def _named(name: str, commit: str) -> str:
    return f"{name} ({commit[:7]})"


_DIFF = (
    "diff", "--unified=0", "--find-renames", "--no-color", "--no-ext-diff", "--no-textconv", "--relative",
    "--ignore-submodules=all", "--src-prefix=a/", "--dst-prefix=b/", "--diff-filter=ACMRT",
)  # fmt: skip
_HUNK = re.compile(rb"@@ -\d+(?:,(\d+))? \+(\d+)(?:,(\d+))? @@")
_ESCAPE = re.compile(rb"\\([0-7]{3}|.)")
_LETTERS = {b"n": b"\n", b"t": b"\t", b"r": b"\r", b"a": b"\a", b"b": b"\b", b"f": b"\f", b"v": b"\v"}

# A source file is smaller; data that lies about need not be read.
_UNTRACKED_BYTES = 1 << 20


def touched_lines(root: Path, commit: str, until: str = "") -> Mapping[str, frozenset[int]] | None:
    """Finds the changed or new lines of files under ``root``.

    They are counted from 1, by file, and differ from the commit. With ``until`` they are those of that commit, not of
    the working tree.

    Lines that are gone have no number. Files that git does not know and does not ignore are new as a whole. Null where
    git cannot tell.
    """
    git = git_in(root)
    if not commit or commit.startswith("-") or until.startswith("-"):
        return None
    if until:
        between = git(*_DIFF, commit, until, "--")
        return parse_diff(between.output) if between.is_good else None
    difference = git(*_DIFF, commit, "--")
    others = git("ls-files", "--others", "--exclude-standard", "-z")
    if not (difference.is_good and others.is_good):
        return None
    names = [os.fsdecode(name) for name in others.output.split(b"\0") if name]
    return {**parse_diff(difference.output), **{name: whole for name in names if (whole := _all_lines(root / name))}}


def parse_diff(text: bytes) -> dict[str, frozenset[int]]:
    """The lines on the new side of a `git diff -U0`, by file."""
    changed: dict[str, set[int]] = {}
    name: str | None = None
    number = content = 0
    for line in text.split(b"\n"):
        if content and line[:1] in {b"+", b"-"}:  # a line of a file, which may look like anything
            content -= 1
            if line.startswith(b"+"):
                changed.setdefault(name or "", set()).add(number)
                number += 1
        elif (hunk := _HUNK.match(line)) is not None:
            content, number = int(hunk[1] or 1) + int(hunk[3] or 1), int(hunk[2])
        elif line.startswith(b"+++ "):
            name = _name(line[4:])
    return {name: frozenset(lines) for name, lines in changed.items() if name}


def _name(written: bytes) -> str | None:
    """Reads the file name that stands after `+++`.

    It is quoted as in C where it is odd. Null for /dev/null.
    """
    bare = written.removesuffix(b"\t")
    if bare.startswith(b'"') and bare.endswith(b'"'):
        bare = _ESCAPE.sub(_unescaped, bare[1:-1])
    return os.fsdecode(bare[2:]) if bare.startswith(b"b/") else None


def _unescaped(match: "re.Match[bytes]") -> bytes:
    what = match[1]
    return bytes([int(what, 8) & 0xFF]) if len(what) == 3 else _LETTERS.get(what, what)


def _all_lines(path: Path) -> frozenset[int]:
    """Returns the numbers of the lines of a text file.

    Empty for what is no file, too large, or binary.
    """
    try:
        if path.is_symlink() or not path.is_file() or path.stat().st_size > _UNTRACKED_BYTES:
            return frozenset()
        data = path.read_bytes()
    except OSError:
        return frozenset()
    return frozenset() if b"\0" in data else frozenset(range(1, len(data.splitlines()) + 1))
