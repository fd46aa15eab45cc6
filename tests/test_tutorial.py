"""The tutorial's step can be made, and every command on the page has its output."""

import re
from pathlib import Path

import pytest

from bottleneck.experiment.interventions.subject import make_subject
from scripts import write_tutorial as tutorial

PAGE = tutorial.PAGE.read_text("utf-8")


def test_the_step_of_the_tutorial_can_be_made(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("torch")
    tutorial.prepare(tmp_path, PAGE)
    monkeypatch.chdir(tmp_path)
    step = make_subject("step.py").step
    assert step().item() > 0.0


def test_every_command_of_the_tutorial_has_its_output() -> None:
    outputs = re.findall(r"^```console\n\$ (.*)\n((?:.*\n)*?)```$", PAGE, re.MULTILINE)
    assert [command for command, output in outputs if not output.strip()] == []
    assert [command for command, _ in outputs] == tutorial.commands(PAGE)


def test_outputs_are_written_beneath_their_commands_and_nothing_else_changes() -> None:
    page = "a\n```console\n$ one --two\nold\n\nold\n```\nb\n```\n$ kept\n```\n```console\n$ three\n```\n"
    renewed = tutorial.with_outputs(page, lambda command: f"<{command}>\n")
    assert renewed == (
        "a\n```console\n$ one --two\n<one --two>\n```\nb\n```\n$ kept\n```\n```console\n$ three\n<three>\n```\n"
    )
    assert tutorial.commands(renewed) == ["one --two", "three"]
