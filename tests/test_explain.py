"""``bottleneck explain`` tells of every finding and account, within 80 columns, and names near ones for the rest."""

import ast
import tomllib
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path

import pytest

import bottleneck
from bottleneck.cli import _run
from bottleneck.commands import explain
from bottleneck.commands.explain import explanation, page_sections
from bottleneck.errors import UsageError
from bottleneck.schema.accounts import ACCOUNTS
from bottleneck.trace.damage import KINDS

ROOT = Path(__file__).parents[1]


def test_a_finding_is_told_with_its_code(capsys: pytest.CaptureFixture[str]) -> None:
    assert _run(["explain", "[input-wait]"]) == 0
    out = capsys.readouterr().out
    assert out.startswith("input-wait\n\nThe step waits for its data.\n\nSeen: ")
    assert "\n    loader = DataLoader(" in out and "Proof: `bottleneck verify" in out
    assert "```" not in out and "**" not in out


@pytest.mark.parametrize("name", ["overhead.sync", "sync"])
def test_an_account_is_told_by_its_key_and_by_its_cause(name: str) -> None:
    text = explanation(name)
    assert text.startswith("overhead.sync: an account of the ledger\n")
    assert "First thing to try: " in text and "{at}" not in text


def test_a_caveat_is_told() -> None:
    assert explanation("unmodelled-work").startswith("unmodelled-work\n\nwork without a cost formula")
    assert "Record again" in explanation("disturbed-profile")


def test_every_caveat_of_the_page_is_one_that_an_analysis_gives() -> None:
    source = "".join(path.read_text() for path in Path(bottleneck.__file__).parent.rglob("*.py"))
    caveats = page_sections()[1]
    assert len(caveats) > 20
    assert [slug for slug in caveats if f'"{slug}"' not in source] == []


def test_every_caveat_and_finding_that_the_code_gives_has_a_section() -> None:
    findings, caveats = page_sections()
    given = {call: _slugs(call) for call in ("Caveat", "Draft")}
    assert given["Caveat"] | set(CAVEATS_OF_DAMAGE) | LINKING_CAVEATS <= {*findings, *caveats}
    assert given["Draft"] <= set(findings) and len(given["Draft"]) > 50


def test_every_account_and_cause_has_a_text() -> None:
    for key, account in ACCOUNTS.items():
        for name in (key, account.cause or key):
            assert account.meaning in " ".join(explanation(name).split())


# The slugs of tables, which the code gives by a variable.
CAVEATS_OF_DAMAGE = {slug for slug, _ in KINDS.values()}
LINKING_CAVEATS = {"orphans", "launched-outside-ops", "graph-replay", "clock-skew"}
BY_VARIABLE = {"analysis/faults.py", "trace/damage.py", "devices/match.py"}


def test_no_other_caveat_is_given_by_a_variable() -> None:
    folder = Path(bottleneck.__file__).parent
    variables = {path for path, slug in _given("Caveat") if slug is None}
    assert {path.relative_to(folder).as_posix() for path in variables} == BY_VARIABLE


def _slugs(call: str) -> set[str]:
    return {slug for _, slug in _given(call) if slug is not None}


def _given(call: str) -> Iterator[tuple[Path, str | None]]:
    """File and slug of each record of this class that the code makes; null where a variable of a loop holds it."""
    for path in Path(bottleneck.__file__).parent.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == call:
                given = [*node.args[:1], *(word.value for word in node.keywords if word.arg == "slug")]
                for each in given[:1]:
                    choices = [each.body, each.orelse] if isinstance(each, ast.IfExp) else [each]
                    yield from ((path, _text(path, choice)) for choice in choices)


def _text(path: Path, node: ast.expr) -> str | None:
    """The text of a literal or of a constant of the module."""
    if isinstance(node, ast.Constant):
        return str(node.value)
    folder = Path(bottleneck.__file__).parents[1]
    module = import_module(".".join(path.relative_to(folder).with_suffix("").parts))
    return getattr(module, node.id, None) if isinstance(node, ast.Name) else None


def test_every_finding_and_account_is_told_within_80_columns_apart_from_code() -> None:
    names = [*page_sections()[0], *page_sections()[1], *ACCOUNTS]
    assert len(names) > 80
    lines = [line for name in names for line in explanation(name).splitlines() if not line.startswith("    ")]
    assert [line for line in lines if len(line) > 80] == []


def test_an_unknown_name_is_exit_2_and_names_near_ones(capsys: pytest.CaptureFixture[str]) -> None:
    assert _run(["explain", "input-weight"]) == 2
    assert "input-wait" in capsys.readouterr().err


def test_without_a_name_all_are_listed(capsys: pytest.CaptureFixture[str]) -> None:
    assert _run(["explain"]) == 0
    out = capsys.readouterr().out
    assert all(name in out for name in (*page_sections()[0], *page_sections()[1], *ACCOUNTS))
    assert max(map(len, out.splitlines())) <= 80


def test_the_list_says_of_each_finding_in_a_line_of_its_group_what_it_is(capsys: pytest.CaptureFixture[str]) -> None:
    assert _run(["explain"]) == 0
    blocks = dict(block.split("\n", 1) for block in capsys.readouterr().out.strip().split("\n\n"))
    assert list(blocks)[:2] == ["Host and overhead", "Input"]
    assert "  input-wait                   The step waits for its data" in blocks["Input"].splitlines()
    lines = [line for title in list(blocks)[:-2] for line in blocks[title].splitlines()]
    assert [line.split()[0] for line in lines if line[2] != " " and line[31:].strip()] == [
        line.split()[0] for line in lines
    ]
    assert {line.split()[0] for line in lines} == set(page_sections()[0])
    assert max(len(line) for line in lines) <= 80


def test_the_page_is_part_of_the_installed_package() -> None:
    wheel = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["hatch"]["build"]["targets"]["wheel"]
    packaged = explain.PACKAGED.relative_to(Path(bottleneck.__file__).parents[1])
    assert wheel["force-include"]["docs/reference/findings.md"] == str(packaged)


def test_an_installed_package_reads_its_own_page(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(explain, "_PAGES", (tmp_path / "findings.md",))
    with pytest.raises(UsageError, match="missing"):
        explanation("input-wait")
    (tmp_path / "findings.md").write_text("# A page\n\n### one\n\n**Seen** Once.\n\n## Else\n")
    assert explanation("one") == "one\n\nSeen: Once.\n"
