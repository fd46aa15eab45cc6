"""A class name has one meaning in the whole package."""

import ast
from collections import defaultdict
from pathlib import Path

import bottleneck

PACKAGE = Path(bottleneck.__file__).parent


def repeated_class_names(root: Path) -> dict[str, list[str]]:
    """The files of each class name that more than one class has; leading underscores do not count."""
    files = defaultdict(list)
    for path in sorted(root.rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.ClassDef):
                files[node.name.lstrip("_")].append(str(path.relative_to(root)))
    return {name: paths for name, paths in files.items() if len(paths) > 1}


def test_no_two_classes_have_the_same_name() -> None:
    assert repeated_class_names(PACKAGE) == {}


def test_a_private_class_with_the_name_of_a_public_one_would_be_found(tmp_path: Path) -> None:
    (tmp_path / "a.py").write_text("class Window: ...\nclass Step: ...\n")
    (tmp_path / "b.py").write_text("def make():\n    class _Window: ...\n")
    assert repeated_class_names(tmp_path) == {"Window": ["a.py", "b.py"]}
