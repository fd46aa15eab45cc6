"""Looks at what a sampled line searches with `in`.

No code of the program is run.

Only values of exact built-in types are read, and attributes by the dictionary of their object. Nothing is kept.
"""

import ast
import dis
import re
import sys
from collections import Counter, OrderedDict, defaultdict, deque
from types import CodeType, FrameType, GetSetDescriptorType, ModuleType
from typing import Any

from bottleneck.schema.measurements import SearchedContainer
from bottleneck.schema.source_text import parse_line, searched_in

_SEQUENCES: tuple[type, ...] = (list, tuple, deque)
_TABLES: tuple[type, ...] = (dict, defaultdict, OrderedDict, Counter)
_OTHERS: tuple[type, ...] = (set, frozenset, range, str, bytes)
# Functions that use the dictionary of their local variables, which a look at them would fill.
_USES_LOCALS = frozenset({"locals", "vars", "dir", "eval", "exec"})
_OPTIMIZED = 0x1  # CO_OPTIMIZED: local variables are in no dictionary
_MISSING = object()


def searched_at(frame: FrameType, text: str) -> SearchedContainer | None:
    """Finds the largest container that this line's membership tests look through.

    Null where none is seen.
    """
    statement = parse_line(text)
    wanted = () if statement is None else tuple(searched_in(statement))
    if not wanted:
        return None
    variables = _Variables(frame)
    try:
        containers = [
            SearchedContainer(ast.unparse(expression), type(value).__name__, len(value))
            for expression in wanted
            if type(value := variables.value_of(expression)) in (*_SEQUENCES, *_TABLES, *_OTHERS)
        ]
    finally:
        variables.forget()
    # What is searched one by one says more than what is not.
    return max(containers, key=lambda one: (one.is_scanned, one.items), default=None)


class _Variables:
    """The variables of a frame, read once.

    Those of a function are in a copy, which is emptied again.
    """

    def __init__(self, frame: FrameType) -> None:
        self._frame = frame
        self._locals: Any = None

    def value_of(self, node: ast.expr) -> Any:
        """Gives the value of a plain expression.

        A mark of our own where it cannot be told without running something.
        """
        if isinstance(node, ast.Constant):
            return node.value
        if isinstance(node, ast.Name):
            return self._named(node.id)
        if isinstance(node, ast.Attribute):
            return _attribute(self.value_of(node.value), node.attr)
        assert isinstance(node, ast.Subscript), "no other expression is plain"
        return _item(self.value_of(node.value), self.value_of(node.slice))

    def _named(self, name: str) -> Any:
        code = self._frame.f_code
        if not code.co_flags & _OPTIMIZED or name not in (*code.co_varnames, *code.co_cellvars, *code.co_freevars):
            return dict.get(self._frame.f_globals, name, _MISSING)
        if _USES_LOCALS & {*code.co_names}:
            return _MISSING
        if self._locals is None:
            self._locals = self._frame.f_locals
        return self._locals.get(name, _MISSING)

    def forget(self) -> None:
        """Empties the copy of the local variables, which the frame would keep.

        Python 3.13 and newer make none.
        """
        if type(self._locals) is dict and sys.version_info < (3, 13):
            self._locals.clear()
        self._locals = None


def _attribute(value: Any, name: str) -> Any:
    """The attribute in the object's own dictionary."""
    kind = type(value)
    if kind is ModuleType:
        return dict.get(value.__dict__, name, _MISSING)
    for base in type.__dict__["__mro__"].__get__(kind):
        own = type.__dict__["__dict__"].__get__(base).get("__dict__")
        if own is not None:
            table = own.__get__(value) if type(own) is GetSetDescriptorType else None
            return dict.get(table, name, _MISSING) if type(table) is dict else _MISSING
    return _MISSING


def _item(value: Any, key: Any) -> Any:
    """Gives the item of a built-in container at a key.

    The key has to be of a type whose comparisons run no code.
    """
    whole = getattr(sys.modules.get("numpy"), "integer", int)
    if type(key) not in {int, str, bool} and not issubclass(type(key), whole):
        return _MISSING
    if type(value) in _TABLES:
        return dict.get(value, key, _MISSING)
    if type(value) in _SEQUENCES and issubclass(type(key), (int, whole)) and -len(value) <= int(key) < len(value):
        return value[int(key)]
    return _MISSING


# The interpreter hands over to another thread at these instructions only, or where a call lets it; not at those calls
# that it has made quicker.
_HANDS_OVER = ("CALL", "RESUME", "JUMP_BACKWARD", "JUMP_ABSOLUTE")
_PASSES_OVER = re.compile(r"^(?:PRE)?CALL_(?:NO_KW_)?(?:LIST_APPEND|LEN|ISINSTANCE|TYPE_1)$")
_PASSES_FIRST = re.compile(rf"(?=PRE){_PASSES_OVER.pattern}")
_LARGEST_CODE_BYTES = 50_000


class PrecedingSearches:
    """Finds membership tests just before an instruction.

    It looks back to the last instruction at which a thread may hand over.

    A search takes no turns: what it takes is sampled at the next instruction that does.
    """

    def __init__(self) -> None:
        self._known: dict[tuple[CodeType, int], int | None] = {}

    def before(self, top: FrameType, frame: FrameType) -> int | None:
        """Gives the line of such a test in this frame.

        ``top`` is this frame, or has just been called from it. Null without such a test.
        """
        if top is not frame and (top.f_back is not frame or not _is_at_start(top)):
            return None
        key = (frame.f_code, frame.f_lasti)
        if key not in self._known:
            self._known[key] = _tested_before(*key)
        return self._known[key]


def _is_at_start(frame: FrameType) -> bool:
    at = frame.f_lasti
    return at >= 0 and frame.f_code.co_code[at] == dis.opmap["RESUME"]


def _tested_before(code: CodeType, at: int) -> int | None:
    if len(code.co_code) > _LARGEST_CODE_BYTES:
        return None
    line, before = code.co_firstlineno, list[tuple[str, int]]()
    for instruction in dis.get_instructions(code, adaptive=True):
        if instruction.offset >= at:
            break
        own_line = instruction.positions.lineno if instruction.positions is not None else None
        line = own_line or line
        if instruction.opname.startswith("CALL") and before and _PASSES_FIRST.match(before[-1][0]):
            continue  # the second half of such a call
        before.append((instruction.opname, line))
    for name, tested in reversed(before):
        if name == "CONTAINS_OP":
            return tested
        if name.startswith(_HANDS_OVER) and not _PASSES_OVER.match(name):
            return None
    return None
