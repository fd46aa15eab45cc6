"""Docstrings begin with a subject: none asks a question."""

import ast
from pathlib import Path

import bottleneck
from scripts.count_code import count_file

PACKAGE = Path(bottleneck.__file__).parent


def test_no_docstring_opens_with_a_question_word() -> None:
    asking = {
        str(path): file.oblique for path in PACKAGE.rglob("*.py") if (file := count_file(path, frozenset())).oblique
    }
    assert asking == {}


def test_a_docstring_that_asks_would_be_found_in_a_nested_function_too(tmp_path: Path) -> None:
    file = tmp_path / "asks.py"
    file.write_text('def _outer():\n    """Sums."""\n    def inner():\n        """How many there are."""\n')
    assert count_file(file, frozenset()).oblique == ("How many there are.",)


# Shown as help: a command's docstring is its text, and `pytest --fixtures` shows that of the fixture.
SHOWN = ("commands/", "pytest_plugin.py")
MOST_WORDS = 14
VAGUE = {"each", "found", "known", "told", "kept"}
Definition = ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef | ast.Module


def long_first_lines(source: str) -> list[str]:
    """First lines of docstrings with too many words, or that run on in the next line."""
    nodes = (node for node in ast.walk(ast.parse(source)) if isinstance(node, Definition))
    lines = ((ast.get_docstring(node) or "").splitlines() for node in nodes)
    return [rows[0] for rows in lines if rows and (len(rows[0].split()) > MOST_WORDS or any(rows[1:2]))]


def vague_names(source: str) -> set[str]:
    """Locals whose names do not tell what they hold; a field of a record is none."""
    nodes = list(ast.walk(ast.parse(source)))
    rows = [row for node in nodes if isinstance(node, ast.ClassDef) for row in node.body]
    fields = {id(row.target) for row in rows if isinstance(row, ast.AnnAssign)}
    names = (node for node in nodes if isinstance(node, ast.Name) and id(node) not in fields)
    return {name.id for name in names if isinstance(name.ctx, ast.Store) and name.id in VAGUE}


def sources() -> dict[str, str]:
    """The text of each module of the package by its path there."""
    return {path.relative_to(PACKAGE).as_posix(): path.read_text(encoding="utf-8") for path in PACKAGE.rglob("*.py")}


def test_first_lines_of_docstrings_are_short() -> None:
    long = {path: long_first_lines(text) for path, text in sources().items() if not path.startswith(SHOWN)}
    assert {path: lines for path, lines in long.items() if lines} == {}


def test_a_long_first_line_would_be_found() -> None:
    assert long_first_lines('def f():\n    """Sums."""\n') == []
    assert long_first_lines(f'def f():\n    """Sums {"a " * 14}."""\n') != []
    assert long_first_lines('def f():\n    """Sums what\n    there is."""\n') == ["Sums what"]


def test_locals_say_what_they_hold() -> None:
    assert {path: names for path, text in sources().items() if (names := vague_names(text))} == {}


def test_a_vague_local_would_be_found() -> None:
    assert vague_names("for each in rows:\n    kernel = each\n") == {"each"}
    assert vague_names("class Curve:\n    each: float\n") == set()
