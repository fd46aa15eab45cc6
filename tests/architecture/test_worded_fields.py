"""What is worded is read by people alone: no module takes a sentence of ours apart, or asks what is in it."""

import ast
from pathlib import Path

import pytest

import bottleneck

PACKAGE = Path(bottleneck.__file__).parent
# Fields, and variables of their name, that hold words of ours. Whoever needs to know what they say asks for the code,
# the numbers or the clause that the words were made of.
WORDED = frozenset(
    {
        "advice",
        "by_formula",
        "caption",
        "closing",
        "explanation",
        "fix",
        "gain_reason",
        "headline",
        "lead",
        "message",
        "note",
        "phrase",
        "reason",
        "remedy",
        "sentence",
        "set_aside",
        "spread",
        "title",
        "warning",
        "why",
    }
)
# Functions whose names begin so give words too.
WORDERS = ("counted", "describe_", "format_")
# Words that are not ours.
OTHERS = {
    "cli.py": "what typer says of a command line, in plainer words",
}
_TAKES_APART = frozenset(
    {
        "count",
        "endswith",
        "find",
        "index",
        "partition",
        "removeprefix",
        "removesuffix",
        "replace",
        "rfind",
        "rindex",
        "rpartition",
        "rsplit",
        "split",
        "startswith",
    }
)
_SEARCHES = frozenset({"findall", "finditer", "fullmatch", "match", "search", "split", "sub"})
_NEUTRAL = frozenset({"casefold", "lower", "lstrip", "rstrip", "strip"})


def readings(source: str) -> list[int]:
    """Lines on which words of ours are read."""
    return sorted({node.lineno for node in ast.walk(ast.parse(source)) if isinstance(node, ast.expr) and _reads(node)})


def _reads(node: ast.expr) -> bool:
    match node:
        case ast.Call(func=ast.Attribute(attr="split"), args=[]):
            return False  # only blanks
        case ast.Call(func=ast.Attribute(value=value, attr=attr), args=arguments):
            return (attr in _TAKES_APART and _is_worded(value)) or (
                attr in _SEARCHES and any(map(_is_worded, arguments))
            )
        case ast.Compare(left=left, ops=operators, comparators=others):
            return any(_compares(*pair) for pair in zip([left, *others], operators, others, strict=False))
    return False


def _compares(left: ast.expr, operator: ast.cmpop, right: ast.expr) -> bool:
    """True if words are searched for something, or are held against other words."""
    if isinstance(operator, ast.In | ast.NotIn):
        return _is_worded(right)
    sides = (left, right)
    return isinstance(operator, ast.Eq | ast.NotEq) and any(map(_is_worded, sides)) and any(map(_is_text, sides))


def _is_text(node: ast.expr) -> bool:
    return isinstance(node, ast.JoinedStr) or (isinstance(node, ast.Constant) and isinstance(node.value, str))


def _is_worded(node: ast.expr) -> bool:
    match node:
        case ast.Attribute(attr=name) | ast.Name(id=name):
            return name in WORDED
        case ast.Call(func=ast.Attribute(attr=name) | ast.Name(id=name)) if name.startswith(WORDERS):
            return True
        case ast.BoolOp(values=values):
            return any(map(_is_worded, values))
        case ast.Call(func=ast.Attribute(value=value, attr=attr)) if attr in _NEUTRAL:
            return _is_worded(value)
        case ast.Call(func=ast.Name(id="str"), args=[value]):
            return _is_worded(value)
    return False


def test_no_module_reads_what_is_worded() -> None:
    sources = {str(path.relative_to(PACKAGE)): path.read_text() for path in PACKAGE.rglob("*.py")}
    found = {f"{name}:{line}" for name, source in sources.items() for line in readings(source) if name not in OTHERS}
    assert len(sources) > 300 and not found
    assert all(readings(sources[name]) for name in OTHERS)


@pytest.mark.parametrize(
    "source",
    [
        'kernel.reason.startswith("small product")',
        '(kernel.reason or "").startswith("small product")',
        '"graph" in reason',
        'row.reason == "unexplained"',
        'sentence.removesuffix(" First: do it.")',
        'verdict.sentence.strip().partition(". ")',
        "pattern.search(str(finding.title))",
        're.search("fills (.*) %", why)',
        'error.fix.replace("--force", "force=True")',
        'units.format_us(us).partition(" ")',
        'describe_culprit(culprit).startswith("+")',
    ],
)
def test_a_reading_is_found(source: str) -> None:
    assert readings(f"first = 1\n{source}") == [2]


@pytest.mark.parametrize(
    "source",
    [
        'kernel.reason_code == "small_product"',
        "code in REASONS and reason in known",
        'f"{finding.title}: {reason}"',
        'advice.rstrip(".")',
        'reason is None or reason.code == "unexplained"',
        '" ".join(reason.split())',
    ],
)
def test_a_code_may_be_read_and_words_may_be_shown(source: str) -> None:
    assert readings(source) == []
