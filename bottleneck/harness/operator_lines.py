"""Finds the lines of ops that operators called.

`x + y` and `x[i]` are no calls, and the profiler tells calls only. Such an op lies between two calls of its function,
whose lines are known: the text of the program says which operators stand between these lines, and of what kind they
are.
"""

import ast
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache

# Names of ops by the kind of operator: of its class in `ast`.
_OPS = {
    ast.MatMult: r"matmul|mm|bmm",
    ast.Add: r"add_?",
    ast.Sub: r"sub_?|rsub",
    ast.Mult: r"mul_?",
    ast.Div: r"div_?|true_divide|reciprocal",
    ast.FloorDiv: r"floor_divide_?|div",
    ast.Mod: r"remainder_?|fmod_?",
    ast.Pow: r"pow_?|square",
    ast.BitAnd: r"__i?and__|bitwise_and_?|logical_and_?",
    ast.BitOr: r"__i?or__|bitwise_or_?|logical_or_?",
    ast.BitXor: r"__i?xor__|bitwise_xor_?|logical_xor_?",
    ast.LShift: r"__i?lshift__|bitwise_left_shift_?",
    ast.RShift: r"__i?rshift__|bitwise_right_shift_?",
    ast.USub: r"neg",
    ast.Invert: r"bitwise_not|logical_not",
    ast.Lt: r"lt",
    ast.LtE: r"le",
    ast.Gt: r"gt",
    ast.GtE: r"ge",
    ast.Eq: r"eq",
    ast.NotEq: r"ne",
}
_SLICE, _NUMBER, _NEW_AXIS, _OTHER = r"slice", r"select", r"unsqueeze", r"index|select|slice"
_STORED = r"index_put_|copy_|fill_|masked_fill_"
_OWN_SCOPES = (
    ast.FunctionDef,
    ast.AsyncFunctionDef,
    ast.ClassDef,
    ast.Lambda,
    ast.ListComp,
    ast.SetComp,
    ast.DictComp,
    ast.GeneratorExp,
)
_LOOPS = (ast.For, ast.AsyncFor, ast.While)


@dataclass(frozen=True)
class _Operator:
    """An operator of the text: its line, and the ops that it may call."""

    line: int
    ops: "re.Pattern[str]"


@dataclass(frozen=True)
class _Scope:
    """Function, or module, with its operators and loops.

    Operators are in the order in which they are evaluated, and loops by first line.
    """

    first: int
    last: int
    operators: tuple[_Operator, ...]
    loops: tuple[tuple[int, int], ...]


class OperatorLines:
    """Operators of the program's files.

    ``read`` gives the lines of a file, none where they are not at hand.
    """

    def __init__(self, read: Callable[[str], Sequence[str]]) -> None:
        self._read = read
        self._scopes = cache(self._parse)

    def lines_of(
        self, file: str, function: str, before: int | None, after: int | None, ops: Sequence[str]
    ) -> list[int | None]:
        """Returns the line of each of these ops.

        They ran one after the other between calls at two lines of a function. Null where no operator between these
        lines calls such an op. ``before`` is null at the beginning of the function, ``after`` at its end.
        """
        ends = [line for line in (before, after) if line is not None]
        scope = next((one for one in self._scopes(file).get(function, ()) if _has(one, ends)), None)
        if scope is None or not ends:
            return [None] * len(ops)
        operators, at, lines = _between(scope, before, after), 0, list[int | None]()
        for op in ops:
            name = op.removeprefix("aten::")
            match = next((one for one in range(at, len(operators)) if operators[one].ops.fullmatch(name)), None)
            lines.append(None if match is None else operators[match].line)
            at = at if match is None else match + 1
        return lines

    def _parse(self, file: str) -> dict[str, tuple[_Scope, ...]]:
        try:
            tree = ast.parse("\n".join(self._read(file)))
            scopes: dict[str, tuple[_Scope, ...]] = {}
            for node in ast.walk(tree):
                if isinstance(node, ast.Module | ast.FunctionDef | ast.AsyncFunctionDef):
                    name = "<module>" if isinstance(node, ast.Module) else node.name
                    scopes[name] = (*scopes.get(name, ()), _scope_of(node))
        except (SyntaxError, ValueError, RecursionError, MemoryError):
            return {}
        return scopes


def _has(scope: _Scope, lines: Sequence[int]) -> bool:
    return all(scope.first <= line <= scope.last for line in lines)


def _between(scope: _Scope, before: int | None, after: int | None) -> list[_Operator]:
    """Returns the operators that can be evaluated between two lines.

    That is after a call at one line and before one at another, first to last. A loop goes on from its end to its
    beginning.
    """
    loop = None
    if before is not None:
        inside = [one for one in scope.loops if one[0] <= before <= one[1]]
        inside = [one for one in inside if after is None or one[0] <= after <= one[1]]
        loop = max(inside, default=None)
    first = scope.first if before is None else before
    if after is not None and first < after:
        return [one for one in scope.operators if first <= one.line <= after]
    last = scope.last if after is None else first if loop is None else loop[1]
    ahead = [one for one in scope.operators if first <= one.line <= last]
    if loop is None or after is None:
        return ahead if after is None or after == first else []
    return ahead + [one for one in scope.operators if loop[0] <= one.line <= after]


def _scope_of(node: ast.Module | ast.FunctionDef | ast.AsyncFunctionDef) -> _Scope:
    operators = tuple(one for statement in node.body for one in _operators(statement))
    loops = tuple(_loops(node.body))
    last = max((one.end_lineno or one.lineno for one in node.body), default=0)
    return _Scope(1 if isinstance(node, ast.Module) else node.lineno, last, operators, loops)


def _loops(body: Sequence[ast.AST]) -> Iterator[tuple[int, int]]:
    for node in body:
        if isinstance(node, _LOOPS):
            yield node.lineno, node.end_lineno or node.lineno
        if not isinstance(node, _OWN_SCOPES):
            yield from _loops(list(ast.iter_child_nodes(node)))


def _operators(node: ast.AST) -> Iterator[_Operator]:
    """Yields the operators in a statement or expression.

    They come in the order in which they are evaluated.
    """
    if isinstance(node, _OWN_SCOPES):
        return
    children = list(ast.iter_child_nodes(node))
    if isinstance(node, ast.Assign | ast.AnnAssign) and node.value is not None:
        children = [node.value, *(child for child in children if child is not node.value)]
    for child in children:
        yield from _operators(child)
    for ops in _ops_of(node):
        yield _Operator(getattr(node, "lineno", 0), re.compile(ops))


def _ops_of(node: ast.AST) -> list[str]:
    """The ops that a node may call itself, in order."""
    if isinstance(node, ast.BinOp | ast.AugAssign | ast.UnaryOp):
        return [_OPS[type(node.op)]] if type(node.op) in _OPS else []
    if isinstance(node, ast.Compare):
        return [_OPS[type(op)] for op in node.ops if type(op) in _OPS]
    if isinstance(node, ast.Subscript):
        parts = node.slice.elts if isinstance(node.slice, ast.Tuple) else [node.slice]
        taken = [name for part in parts if (name := _taken_by(part)) is not None]
        return [*taken, *([_STORED] * isinstance(node.ctx, ast.Store))]
    return []


def _taken_by(part: ast.expr) -> str | None:
    """The op for one part of a subscript."""
    if isinstance(part, ast.Slice):
        return _SLICE
    if isinstance(part, ast.Constant):
        return _NEW_AXIS if part.value is None else _NUMBER if type(part.value) is int else None
    return _OTHER
