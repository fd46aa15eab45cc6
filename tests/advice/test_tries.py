"""The changes that findings and their page suggest exist in `bottleneck verify`."""

import ast
import re
from collections.abc import Mapping

import pytest

from bottleneck.experiment.interventions import CHANGES
from tests.advice.test_pages import ADVICE, PAGE

_COMMAND = re.compile(r"bottleneck verify --try ([\w,-]+)")


def tries_in(source: str) -> set[str]:
    """The changes that a module's findings ask for: every text in a ``tries``, or in a constant that it names."""
    tree = ast.parse(source)
    constants = {
        target.id: node.value
        for node in tree.body
        if isinstance(node, ast.Assign)
        for target in node.targets
        if isinstance(target, ast.Name)
    }
    given = [node.value for node in ast.walk(tree) if isinstance(node, ast.keyword) and node.arg == "tries"]
    return {name for value in given for name in _texts(value, constants)}


def _texts(value: ast.expr, constants: Mapping[str, ast.expr]) -> set[str]:
    found = {node.value for node in ast.walk(value) if isinstance(node, ast.Constant) and isinstance(node.value, str)}
    named = {node.id for node in ast.walk(value) if isinstance(node, ast.Name)} & set(constants)
    return found.union(*(_texts(constants[name], {}) for name in named))


@pytest.mark.parametrize("module", sorted(path.stem for path in ADVICE.glob("*.py")))
def test_every_change_that_a_finding_asks_for_can_be_tried(module: str) -> None:
    assert tries_in((ADVICE / f"{module}.py").read_text(encoding="utf-8")) <= set(CHANGES)


def test_every_change_that_the_page_names_can_be_tried() -> None:
    named = [names.split(",") for names in _COMMAND.findall(PAGE.read_text(encoding="utf-8"))]
    assert len(named) > 10
    assert {name for names in named for name in names} <= set(CHANGES)


def test_names_are_found_where_rules_write_them() -> None:
    source = 'MORE = ("b", "c")\ndef rule():\n    return Draft("x", tries=("a", *MORE) if on_host else ("d",))'
    assert tries_in(source) == {"a", "b", "c", "d"}
    assert any(tries_in(path.read_text(encoding="utf-8")) for path in ADVICE.glob("*.py"))
