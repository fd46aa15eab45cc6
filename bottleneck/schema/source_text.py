"""Parses a line of a program's text, for those that look for patterns in it; nothing of the program is run."""

import ast
import re
from collections.abc import Iterator
from functools import lru_cache

# A line that opens a block is parsed with an empty one; one that goes on with an if or a try as one of its own.
_OPENS = re.compile(r"^(?:async\s+)?(?:if|for|while|with|def|class|else|try|except|finally)\b")
_LONGEST = 2000


@lru_cache(maxsize=4096)
def parse_line(text: str) -> ast.stmt | None:
    """The statement of a line, of a compound one its head with an empty block; null where it is a part of one."""
    text = text.strip().removeprefix("el") if text.lstrip().startswith("elif") else text.strip()
    if not text or len(text) > _LONGEST or "\n" in text:
        return None
    if _OPENS.match(text) and text.endswith(":"):
        text += " pass"
    try:
        body = ast.parse(text).body
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return None
    return body[0] if body else None


def searched_in(statement: ast.AST) -> Iterator[ast.expr]:
    """The right sides of `in` and `not in` that are a plain name, an attribute of one or an item of one."""
    for node in ast.walk(statement):
        if not isinstance(node, ast.Compare):
            continue
        for operator, right in zip(node.ops, node.comparators, strict=True):
            if isinstance(operator, ast.In | ast.NotIn) and is_plain(right):
                yield right


def is_plain(node: ast.expr) -> bool:
    """True for a name, and for attributes and items of one whose keys are such too, or constants."""
    if isinstance(node, ast.Attribute):
        return is_plain(node.value)
    if isinstance(node, ast.Subscript):
        return is_plain(node.value) and (isinstance(node.slice, ast.Constant) or is_plain(node.slice))
    return isinstance(node, ast.Name)
