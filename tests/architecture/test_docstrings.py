"""Docstrings begin with a subject: none asks a question."""

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
