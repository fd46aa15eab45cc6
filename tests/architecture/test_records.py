"""Stages copy records by ``schema.records.replace``, which takes both kinds.

``dataclasses.replace`` fails on a msgspec Struct when it is called, and mypy takes it for right.
"""

import ast
from pathlib import Path

import pytest

import bottleneck

PACKAGE = Path(bottleneck.__file__).parent
STAGES = ("advice", "analysis", "cost", "predict", "report", "simulate", "trace")


def copies_dataclasses_only(source: str) -> bool:
    """True for a module that uses ``replace`` of ``dataclasses`` or ``msgspec.structs``."""
    nodes = list(ast.walk(ast.parse(source)))
    imported = any(
        isinstance(node, ast.ImportFrom)
        and node.module in {"dataclasses", "msgspec.structs"}
        and any(alias.name == "replace" for alias in node.names)
        for node in nodes
    )
    return imported or any(
        isinstance(node, ast.Attribute) and node.attr == "replace" and ast.unparse(node.value) == "dataclasses"
        for node in nodes
    )


@pytest.mark.parametrize("stage", STAGES)
def test_no_stage_copies_records_of_one_kind_only(stage: str) -> None:
    files = list((PACKAGE / stage).rglob("*.py"))
    assert files
    assert [path.name for path in files if copies_dataclasses_only(path.read_text(encoding="utf-8"))] == []


@pytest.mark.parametrize(
    "source",
    [
        "from dataclasses import dataclass, replace",
        "from msgspec.structs import replace",
        "import dataclasses\ncopied = dataclasses.replace(record, name='a')",
    ],
)
def test_a_module_that_does_would_be_found(source: str) -> None:
    assert copies_dataclasses_only(source)
