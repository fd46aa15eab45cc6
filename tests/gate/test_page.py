"""The reference page on the gate is current, and names every setting, format, exit code and input that there is."""

import re
import tomllib

import pytest

from bottleneck.gate.settings import _KEYS, read_settings
from bottleneck.report.ci.outputs import GATE_FORMATS
from bottleneck.schema.gate_result import EXIT_CODES
from scripts.write_counters import PAGE_FILE, page, table
from tests.ci.steps import ROOT, load

TEXT = PAGE_FILE.read_text(encoding="utf-8")


def rows(heading: str) -> list[str]:
    """The first word of each row of the first table under a heading, without the headings of the table."""
    section = TEXT.split(f"\n## {heading}\n")[1].split("\n## ")[0]
    lines = re.search(r"(?:^\|.*\n)+", section, re.MULTILINE)
    assert lines
    return [re.split(r"(?<!\\)\|", line)[1].strip("` ").split()[0] for line in lines[0].splitlines()[2:]]


def test_the_table_of_counters_is_current() -> None:
    assert page(TEXT) == TEXT, "python -m scripts.write_counters renews it"


def test_a_change_of_the_table_would_show() -> None:
    assert page(TEXT.replace("`syncs` | portable", "`syncs` | backend")) == TEXT
    assert "`syncs` | portable" in table()


def test_every_setting_has_a_row_and_no_other_has() -> None:
    assert rows("Settings") == list(_KEYS)


def test_every_format_is_named() -> None:
    section = TEXT.split("\n## Formats\n")[1].split("\n## ")[0]
    assert re.findall(r"`(\w+)`", section) == list(GATE_FORMATS)


def test_every_option_of_the_command_has_a_row() -> None:
    import typer

    from bottleneck.cli import build_app

    command = typer.main.get_command(build_app()).commands["gate"]  # type: ignore[attr-defined]
    options = {option for each in command.params for option in each.opts if option.startswith("--")}
    assert options - {"--help"} == set(rows("Command"))


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


PAGES = (
    "docs/reference/gate.md",
    "docs/explanation/gate.md",
    "docs/howto/gate-in-ci.md",
)


@pytest.mark.parametrize("name", PAGES)
def test_every_link_of_the_pages_leads_to_a_file(name: str) -> None:
    page_file = ROOT / name
    links = re.findall(r"\]\(([^)#:]+)", page_file.read_text(encoding="utf-8"))
    assert [link for link in links if not (page_file.parent / link).exists()] == []
    assert links
