"""Finds the commit that a change is held against: where its branch left the one that it is to be merged into."""

import re
import shlex
from collections.abc import Mapping
from dataclasses import dataclass

from bottleneck.experiment.git import Git, find_commit, is_dirty, is_shallow

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
# GitLab says the commit itself: where it tests the merge of both branches the tip of the target, else the merge-base.
COMMITS = ("CI_MERGE_REQUEST_TARGET_BRANCH_SHA", "CI_MERGE_REQUEST_DIFF_BASE_SHA")
_MAIN = ("origin/HEAD", "origin/main", "origin/master", "main", "master")
# GitLab says which branch is the main one, whatever it is called.
_DEFAULT = "CI_DEFAULT_BRANCH"
_GITHUB_MERGE = re.compile(r"refs/pull/\d+/merge")


@dataclass(frozen=True)
class Found:
    """The commit (null with a reason), and what to call it; ``warning`` where it is not the one that was meant."""

    commit: str | None
    label: str
    reason: str | None = None
    warning: str | None = None


def find_base(git: Git, against: str, environment: Mapping[str, str]) -> Found:
    """The commit that ``against`` means: "merge-base", "merge-base:BRANCH", or a name that git knows."""
    if find_commit(git, "HEAD") is None:
        return Found(None, against, "this clone has no commit yet: there is nothing to hold the change against")
    if not is_merge_base(against):
        commit = find_commit(git, against)
        if commit is None:
            return Found(None, against, _unknown(git, against))
        return Found(commit, _named(against, commit))
    branch = against.removeprefix(MERGE_BASE).removeprefix(":")
    told = None if branch else _told_commit(git, environment)
    if told is not None:
        return Found(told, _named(MERGE_BASE, told))
    target, reason = _named_target(git, branch, "--against") if branch else _target(git, environment)
    if target is None:
        return _without_target(git, reason, environment)
    return _where_it_left(git, target)


def is_merge_base(against: str) -> bool:
    """Whether this asks for a merge-base; no name that git takes has a colon in it."""
    return against == MERGE_BASE or against.startswith(f"{MERGE_BASE}:")


def _told_commit(git: Git, environment: Mapping[str, str]) -> str | None:
    return next((commit for name in COMMITS if (commit := find_commit(git, environment.get(name, "")))), None)


def _target(git: Git, environment: Mapping[str, str]) -> tuple[str | None, str]:
    """The ref of the branch to merge into, as far as it is here; else why not."""
    asked = next((name for name in TARGETS if environment.get(name, "").strip()), None)
    if asked is not None:
        return _named_target(git, environment[asked].strip().removeprefix("refs/heads/"), asked)
    usual = [f"origin/{environment[_DEFAULT]}"] if environment.get(_DEFAULT) else []
    known = next((ref for ref in (*usual, *_MAIN) if find_commit(git, ref)), None)
    why = "no branch to compare with: there is no origin/HEAD, origin/main, main or master"
    return known, f"{why}; name one with --against {MERGE_BASE}:BRANCH"


def _named_target(git: Git, branch: str, by: str) -> tuple[str | None, str]:
    """The ref of a branch that something names; else how to fetch it."""
    refs = (f"refs/remotes/origin/{branch}", f"refs/remotes/{branch}", f"refs/heads/{branch}")
    known = next((ref for ref in refs if find_commit(git, ref)), None)
    fetch = _fetch(git, branch.removeprefix("origin/"))
    return known, f"the branch {branch} that {by} names is not in this clone: {fetch}"


def _without_target(git: Git, reason: str, environment: Mapping[str, str]) -> Found:
    """GitHub checks out a merge of the request into its target, whose first parent is all that is needed."""
    first = find_commit(git, "HEAD^1")
    if first and find_commit(git, "HEAD^2") and _GITHUB_MERGE.fullmatch(environment.get("GITHUB_REF", "")):
        return Found(first, _named("the target of the pull request", first))
    return Found(None, MERGE_BASE, reason)


def _where_it_left(git: Git, target: str) -> Found:
    """The merge-base of HEAD with the target; on the target itself the last commit that is not in what was changed."""
    name = target.removeprefix("refs/remotes/").removeprefix("refs/heads/")
    answer = git("merge-base", "HEAD", target)
    if not answer.is_good:
        return Found(None, MERGE_BASE, _unrelated(git, name))
    head, commit = find_commit(git, "HEAD"), answer.text
    if commit != head:
        return Found(commit, _named(f"merge-base with {name}", commit))
    if is_dirty(git):
        return Found(commit, _named("HEAD", commit))
    return _last_commit(git, name)


def _last_commit(git: Git, name: str) -> Found:
    before = find_commit(git, "HEAD~1")
    if before is None:
        why = f"nothing here differs from {name}, and the commit before HEAD is not in this clone"
        return Found(None, MERGE_BASE, f"{why}: {_fetch(git)}" if is_shallow(git) else f"{why}: HEAD is the first one")
    warning = f"nothing here differs from {name}: the last commit is held against the one before it"
    return Found(before, _named("HEAD~1", before), warning=warning)


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
    """What fetches a branch and, where the clone is shallow, the history of HEAD as well: it would stay cut off."""
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
