"""The reference page on the gate is current, and names every setting, format, exit code and input that there is."""

import re
import tomllib

import pytest

from bottleneck.gate.settings import _KEYS, read_settings
from bottleneck.gated import EXIT_CODES
from bottleneck.report.gate import GATE_FORMATS
from scripts.write_counters import PAGE_FILE, page, table
from tests.ci.steps import ROOT, load

TEXT = PAGE_FILE.read_text(encoding="utf-8")


def rows(heading: str) -> dict[str, str]:
    """The first cell of each row of the first table under a heading, without marks, and the rest of the row."""
    section = TEXT.split(f"\n## {heading}\n")[1].split("\n## ")[0]
    found = re.findall(r"^\| `?([^`|]+?)`? \| (.*) \|$", section, re.MULTILINE)
    return {name.split()[0]: rest for name, rest in found[1:]}


def test_the_table_of_counters_is_current() -> None:
    assert page(TEXT) == TEXT, "python -m scripts.write_counters renews it"


def test_a_change_of_the_table_would_show() -> None:
    assert page(TEXT.replace("`syncs` | portable", "`syncs` | backend")) == TEXT
    assert "`syncs` | portable" in table()


def test_every_setting_has_a_row_and_no_other_has() -> None:
    assert [name for name in rows("Settings") if name != "key"] == list(_KEYS)


def test_every_format_has_a_row_with_its_file() -> None:
    found = {name: rest.split("`")[1] for name, rest in rows("Formats").items() if name != "name"}
    assert found == {name: form.file for name, form in GATE_FORMATS.items()}


def test_every_exit_code_of_a_verdict_has_a_row() -> None:
    assert {str(code) for code in EXIT_CODES.values()} <= set(rows("Exit codes"))


def test_every_input_and_output_of_the_action_is_named() -> None:
    action = load("action.yml")
    section = TEXT.split("## GitHub action")[1]
    assert [name for name in (*action["inputs"], *action["outputs"]) if f"`{name}`" not in section] == []


def test_the_example_of_settings_can_be_read(tmp_path) -> None:
    [example] = re.findall(r"```toml\n(.*?)```", TEXT, re.DOTALL)
    (tmp_path / "pyproject.toml").write_text(example)
    settings = read_settings(tmp_path / "pyproject.toml")
    assert settings.budgets["step_us"].floor == pytest.approx(200)
    assert settings.creep["ops"].relative == pytest.approx(0.1)


def test_this_project_gates_itself() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    assert project["tool"]["bottleneck"]["gate"]["workloads"]
