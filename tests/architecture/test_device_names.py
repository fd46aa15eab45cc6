"""No module outside ``devices`` names a board or a generation: those are rows of the tables there."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import bottleneck
from bottleneck.devices.catalogue import entries, kernel_names

PACKAGE = Path(bottleneck.__file__).parent
# Words of options and of advice on a wrong command line, which give examples.
EXAMPLES = frozenset({"help", "fix"})
BOARD = re.compile(r"(?<![A-Za-z])[A-Z]{1,2}\d{1,4}[A-Z]{0,2}\b")
ISA = r"sm_?\d{2,3}\w?|gfx\d+\w?|cutlass_\d\d"


def words() -> re.Pattern[str]:
    """Names of boards and generations, as the tables spell them."""
    boards = {word for entry in entries() for name in entry.names + entry.exact_names for word in BOARD.findall(name)}
    boards -= {"M4", "SXM4", "A2"}
    generations = {word for row in kernel_names() for word in re.findall(r"[A-Z]\w{2,}", row.generation)}
    named = "|".join([*sorted(boards, key=len, reverse=True), rf"(?i:{'|'.join(sorted(generations))}|{ISA})"])
    return re.compile(rf"(?:(?<![A-Za-z0-9])|(?<=\\b))(?:{named})(?![A-Za-z0-9])")


def named_in(source: str) -> list[tuple[int, str]]:
    """Lines and words of texts of a module that name a board; docstrings and examples of options are left out."""
    pattern = words()
    tree = ast.parse(source)
    return sorted((node.lineno, match[0]) for node in _texts(tree) if (match := pattern.search(str(node.value))))


def _texts(node: ast.AST) -> Iterator[ast.Constant]:
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.keyword) and child.arg in EXAMPLES:
            continue
        if isinstance(child, ast.Expr) and isinstance(child.value, ast.Constant):
            continue  # a docstring
        if isinstance(child, ast.Constant) and isinstance(child.value, str):
            yield child
        yield from _texts(child)


def test_no_module_names_a_board() -> None:
    modules = [path for path in PACKAGE.rglob("*.py") if path.parent.name != "devices"]
    named = {str(path.relative_to(PACKAGE)): named_in(path.read_text(encoding="utf-8")) for path in modules}
    assert {path: found for path, found in named.items() if found} == {}


def test_a_board_or_a_generation_in_a_module_is_found() -> None:
    for name in ("NVIDIA H100", "MI300X", "Tesla T4", r"\bA100\b", "hopper", "_sm90_", "gfx942", "RDNA"):
        assert named_in(f"_NEEDS = {name!r}"), name
        assert named_in(f"f'{{x}} on {name}'"), name
    assert named_in('"""For an H100."""\nx = f(help="such as H100")  # an H100\n') == []
    assert named_in("x = 'mm_h100x', 'CUDA', 'PCIe4', 'utf8', 'sha256'") == []
