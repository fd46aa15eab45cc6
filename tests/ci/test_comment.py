"""The workflow that comments, run by bash with a stand-in for `gh`: whom it answers, what it posts, what it refuses."""

import json
import subprocess
import sys
import zipfile
from pathlib import Path
from typing import Any

import pytest

from tests.ci.steps import Job, executable, load

STEPS = load("ci/perf-comment.yml")["jobs"]["comment"]["steps"]
MARK = "<!-- bottleneck-gate -->"
HEAD = "a" * 40

# Answers from a folder, and keeps the body of what is posted.
GH = """#!{python}
import json, pathlib, sys
folder = pathlib.Path({folder!r})
words = sys.argv[1:]
assert words[0] == "api"
[path] = [word for word in words if word.startswith("repos/")]
with (folder / "calls").open("a") as file:
    file.write(json.dumps(words) + "\\n")
body = [word.removeprefix("body=@") for word in words if word.startswith("body=@")]
if body:
    (folder / "posted.md").write_bytes(pathlib.Path(body[0]).read_bytes())
else:
    answer = folder / (path.replace("/", "_") + ".answer")
    sys.stdout.buffer.write(answer.read_bytes())
"""


class Service:
    """The state of GitHub: one pull request of a fork, the artifact of its run, and the comments below it."""

    def __init__(self, folder: Path, files: dict[str, bytes], *, pull_head: str = HEAD) -> None:
        self.folder = folder
        self.answer("pulls", [{"number": 6, "head": {"sha": "b" * 40}}, {"number": 7, "head": {"sha": pull_head}}])
        self.artifacts([{"id": 11, "size_in_bytes": 900}])
        packed = folder / "repos_OWNER_REPO_actions_artifacts_11_zip.answer"
        with zipfile.ZipFile(packed, "w", zipfile.ZIP_DEFLATED) as archive:
            for name, data in files.items():
                archive.writestr(name, data)
        self.comments()
        executable(folder / "bin" / "gh", GH.format(python=sys.executable, folder=str(folder)))

    def answer(self, path: str, *pages: object) -> None:
        text = "\n".join(json.dumps(page) for page in pages)
        (self.folder / f"repos_OWNER_REPO_{path}.answer").write_text(text)

    def artifacts(self, rows: list[dict[str, int]]) -> None:
        self.answer("actions_runs_5_artifacts", {"artifacts": rows})

    def comments(self, *rows: tuple[int, str, str]) -> None:
        pages = [[{"id": number, "user": {"login": by}, "body": body}] for number, by, body in rows]
        self.answer("issues_7_comments", *(pages or [[]]))

    @property
    def posted(self) -> bytes | None:
        path = self.folder / "posted.md"
        return path.read_bytes() if path.exists() else None

    @property
    def last_call(self) -> list[str]:
        words: list[str] = json.loads((self.folder / "calls").read_text().splitlines()[-1])
        return words


def comment(service: Service, branch: str = "change") -> "subprocess.CompletedProcess[str]":
    contexts = {
        "github.token": "none",
        "github.repository": "OWNER/REPO",
        "github.event.workflow_run.id": "5",
        "github.event.workflow_run.head_sha": HEAD,
        "github.event.workflow_run.head_repository.owner.login": "stranger",
        "github.event.workflow_run.head_branch": branch,
    }
    work = Job(service.folder, contexts, service.folder)
    work.path = f"{service.folder / 'bin'}:{work.path}"
    work.extra["TMPDIR"] = str(service.folder)
    [done] = work.run(STEPS)
    return done


def test_what_the_gate_wrote_is_posted_under_the_pull_request_with_that_head(tmp_path: Path) -> None:
    service = Service(tmp_path, {"gate.md": f"{MARK}\n**FAIL** mlp\n".encode(), "gate.json": b"{}"})
    done = comment(service)
    assert done.returncode == 0, done.stderr
    assert service.posted is not None
    text = service.posted.decode()
    assert text.startswith(f"{MARK}\n**FAIL** mlp\n")
    assert f"https://github.com/OWNER/REPO/actions/runs/5) of the pull request on {HEAD}" in text
    assert service.last_call[2:5] == ["--method", "POST", "repos/OWNER/REPO/issues/7/comments"]


def test_the_second_run_edits_our_comment_on_whichever_page_it_stands(tmp_path: Path) -> None:
    service = Service(tmp_path, {"gate.md": f"{MARK}\nnew\n".encode()})
    service.comments(
        (1, "stranger", f"{MARK} mine"),
        (2, "github-actions[bot]", "coverage"),
        (3, "github-actions[bot]", f"{MARK}\nold"),
    )
    assert comment(service).returncode == 0
    assert service.last_call[2:5] == ["--method", "PATCH", "repos/OWNER/REPO/issues/comments/3"]


def test_nobody_is_notified_by_what_a_stranger_wrote(tmp_path: Path) -> None:
    service = Service(tmp_path, {"gate.md": f"{MARK}\n@everyone and @org/team\n".encode()})
    comment(service)
    assert service.posted is not None
    assert "@\u200beveryone and @\u200borg/team" in service.posted.decode()


@pytest.mark.parametrize(
    "files",
    [{}, {"gate.md": b"Buy this\n"}, {"gate.md": b" " + MARK.encode()}, {"../gate.md": MARK.encode()}],
    ids=["no file", "no mark", "mark elsewhere", "outside"],
)
def test_what_is_not_the_gates_is_not_posted(tmp_path: Path, files: dict[str, bytes]) -> None:
    service = Service(tmp_path, files)
    done = comment(service)
    assert done.returncode == 0
    assert "No comment: gate.md does not begin with" in done.stdout
    assert service.posted is None
    assert not (tmp_path / "gate.md").exists()


def test_a_pull_request_that_went_on_gets_no_stale_comment(tmp_path: Path) -> None:
    service = Service(tmp_path, {"gate.md": f"{MARK}\n".encode()}, pull_head="c" * 40)
    done = comment(service)
    assert (done.returncode, service.posted) == (0, None)
    assert "no open pull request" in done.stdout


@pytest.mark.parametrize("rows", [[], [{"id": 11, "size_in_bytes": 20_000_000}]], ids=["none", "too large"])
def test_without_a_small_artifact_nothing_is_fetched(tmp_path: Path, rows: list[dict[str, Any]]) -> None:
    service = Service(tmp_path, {"gate.md": f"{MARK}\n".encode()})
    service.artifacts(rows)
    assert comment(service).returncode == 0
    assert service.last_call[3] == "repos/OWNER/REPO/actions/runs/5/artifacts"
    assert service.posted is None


@pytest.mark.parametrize("letter", ["µ", "@"])
def test_a_file_that_unpacks_to_a_flood_is_cut_to_what_a_comment_may_hold(tmp_path: Path, letter: str) -> None:
    service = Service(tmp_path, {"gate.md": f"{MARK}\n{letter * 5_000_000}".encode()})
    assert comment(service).returncode == 0
    assert service.posted is not None
    assert 59_000 < len(service.posted) < 65_536
    service.posted.decode()


@pytest.mark.parametrize("branch", ['"; touch pwned; "', "$(touch pwned)", "x&state=closed"])
def test_a_branch_with_a_hostile_name_is_a_value_and_never_a_command(tmp_path: Path, branch: str) -> None:
    service = Service(tmp_path, {"gate.md": f"{MARK}\n$(touch pwned) `touch pwned`\n".encode()})
    assert comment(service, branch).returncode == 0
    first = json.loads((tmp_path / "calls").read_text().splitlines()[0])
    assert f"head=stranger:{branch}" in first
    assert not list(tmp_path.rglob("pwned"))
