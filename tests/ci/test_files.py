"""Our CI files keep strangers' texts out of shells, pin what they use, and ask for no more than they need."""

import re

import pytest

from tests.ci.steps import EXPRESSION, load, scripts, used

FILES = ("action.yml", "ci/perf.yml", "ci/perf-comment.yml", "ci/bottleneck.gitlab-ci.yml")
PINNED = re.compile(r"[\w.-]+/[\w.-]+@[0-9a-f]{40}")
OURS = "OWNER/bottleneck@COMMIT"


@pytest.mark.parametrize("name", FILES)
def test_no_script_holds_an_expression_that_the_service_would_paste_into_it(name: str) -> None:
    found = list(scripts(load(name)))
    assert found
    assert not [text for text in found if EXPRESSION.search(text)]


@pytest.mark.parametrize("name", FILES[:3])
def test_every_action_is_pinned_to_a_whole_commit(name: str) -> None:
    assert all(PINNED.fullmatch(text) or text == OURS for text in used(load(name)))


def test_the_gate_may_only_read_and_the_comment_may_only_comment() -> None:
    gate, comment = load("ci/perf.yml"), load("ci/perf-comment.yml")
    assert gate["permissions"] == {"contents": "read"}
    assert gate["on"] == "pull_request"
    assert comment["permissions"] == {}
    assert comment["jobs"]["comment"]["permissions"] == {"actions": "read", "pull-requests": "write"}


def test_the_comment_flow_uses_no_action_and_checks_out_nothing() -> None:
    comment = load("ci/perf-comment.yml")
    assert list(used(comment)) == []
    assert not [text for text in scripts(comment) if re.search(r"\b(git|checkout|python3?|pip|eval|source)\b", text)]


def test_the_comment_waits_for_the_workflow_and_the_artifact_that_the_gate_makes() -> None:
    gate, comment = load("ci/perf.yml"), load("ci/perf-comment.yml")
    assert comment["on"]["workflow_run"]["workflows"] == [gate["name"]]
    [step] = comment["jobs"]["comment"]["steps"]
    assert step["env"]["ARTIFACT"] == load("action.yml")["inputs"]["artifact"]["default"]


def test_every_input_of_the_action_is_reported_and_has_a_default() -> None:
    for settings in load("action.yml")["inputs"].values():
        assert settings["description"]
        assert isinstance(settings["default"], str)
