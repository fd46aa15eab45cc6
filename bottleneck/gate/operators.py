"""Finds the line of an operator: `x + y` is no call, so that its ops are told at the head of the function around it."""

import ast
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from pathlib import Path

from bottleneck.counters import Site

_HEADS = (ast.FunctionDef, ast.AsyncFunctionDef)
_SCOPES = (*_HEADS, ast.ClassDef, ast.Lambda)
_OPERATORS = (ast.BinOp, ast.AugAssign, ast.UnaryOp, ast.Compare, ast.Subscript)
_LARGEST_SOURCE = 1_000_000

# The text of a file of the program, by its name; empty where it is not at hand.
Read = Callable[[str], str]


def read_nothing(_file: str) -> str:
    """No file is at hand."""
    return ""


def read_below(root: Path) -> Read:
    """What reads the files of a folder, and nothing that lies, or that a link leads, outside of it."""

    def read(file: str) -> str:
        try:
            path = (root / file).resolve()
            is_ours = path.is_relative_to(root.resolve()) and path.is_file() and path.stat().st_size <= _LARGEST_SOURCE
            return path.read_text(encoding="utf-8", errors="replace") if is_ours else ""
        except (OSError, ValueError, RuntimeError):  # a name that no system takes, a loop of links
            return ""

    return read


def is_head(site: Site) -> bool:
    """Whether a line begins a function, so that it may stand for operators anywhere in it."""
    return site.text.startswith(("def ", "async def ", "@"))


def operator_line(site: Site, source: str, touched: Iterable[int]) -> Site | None:
    """The first line with an operator that the diff touches in the function that begins at a site; null for none."""
    head = _head_at(source, site.line)
    if head is None:
        return None
    lines = {line for node in _inside(head) if isinstance(node, _OPERATORS) for line in _lines_of(node)}
    found = sorted(lines.intersection(touched))
    if not found:
        return None
    return replace(site, line=found[0], text=source.splitlines()[found[0] - 1].strip())


def _head_at(source: str, line: int) -> ast.AST | None:
    """The function that begins at a line, or whose first decorator stands there."""
    if len(source) > _LARGEST_SOURCE:
        return None
    try:
        tree = ast.parse(source)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return None
    heads = (node for node in ast.walk(tree) if isinstance(node, _HEADS))
    return next((node for node in heads if _first_line(node) <= line <= node.lineno), None)


def _first_line(node: ast.FunctionDef | ast.AsyncFunctionDef) -> int:
    return min([node.lineno, *(each.lineno for each in node.decorator_list)])


def _inside(head: ast.AST) -> Iterator[ast.AST]:
    """All that a function does itself; functions that it only defines do their own."""
    left = list(getattr(head, "body", []))
    while left:
        node = left.pop()
        if not isinstance(node, _SCOPES):
            yield node
            left.extend(ast.iter_child_nodes(node))


def _lines_of(node: ast.AST) -> range:
    first = getattr(node, "lineno", 0)
    return range(first, (getattr(node, "end_lineno", None) or first) + 1)
