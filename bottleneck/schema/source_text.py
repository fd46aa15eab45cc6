"""Parses a line of a program's text, without running anything.

It serves those that look for patterns in the line.
"""

import ast
import re
from collections.abc import Iterator
from functools import lru_cache

# A line that opens a block is parsed with an empty one; one that goes on with an if or a try as one of its own.
_OPENS = re.compile(r"^(?:async\s+)?(?:if|for|while|with|def|class|else|try|except|finally)\b")
_LONGEST = 2000


LIBRARY_FOLDER = r"(?:^|[/\\])(?:torch|site-packages|dist-packages|[Ll]ib[/\\]python[\d.]+t?)[/\\]"
"""Pattern of the files of torch, of installed packages and of Python itself."""

GENERATED = r"/torchinductor_|(?:^|/)c[a-z2-7]{51}[.]py"
"""Pattern of the files that Inductor generates, which it names by a hash."""


@lru_cache(maxsize=4096)
def parse_line(text: str) -> ast.stmt | None:
    """Returns the statement of a line.

    Of a compound statement it is the head with an empty block. Null where the line is only a part of a statement.
    """
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
    """Yields the right sides of `in` and `not in` that are plain.

    A plain one is a name, or an attribute or item of one.
    """
    for node in ast.walk(statement):
        if not isinstance(node, ast.Compare):
            continue
        for operator, right in zip(node.ops, node.comparators, strict=True):
            if isinstance(operator, ast.In | ast.NotIn) and is_plain(right):
                yield right


def is_plain(node: ast.expr) -> bool:
    """Returns whether an expression is a name, or its attribute or item.

    Keys of items must be such too, or constants.
    """
    if isinstance(node, ast.Attribute):
        return is_plain(node.value)
    if isinstance(node, ast.Subscript):
        return is_plain(node.value) and (isinstance(node.slice, ast.Constant) or is_plain(node.slice))
    return isinstance(node, ast.Name)
