"""Finds the call that made a loader, and writes it with another setting."""

import ast
from dataclasses import dataclass
from pathlib import Path
from types import FrameType

from bottleneck.schema.measurements import LoaderSetting

# Where DataLoader takes them without a name.
_POSITIONS = {"batch_size": 1, "num_workers": 5, "pin_memory": 7}
_OF_WORKERS = ("timeout", "multiprocessing_context")
# The call where the source cannot be read: the program's own arguments, whatever they are.
_UNKNOWN = "DataLoader(...)"


_Values = dict[str, int | bool | None]


@dataclass(frozen=True)
class SourceCall:
    """A call in a source file: where it is, and its text."""

    path: str
    line: int
    text: str


def call_under_way(frame: FrameType) -> SourceCall | None:
    """Finds the call of a DataLoader that a frame is in the middle of.

    Null where its source cannot be read, or the call is of another name.
    """
    path = frame.f_code.co_filename
    line, end_line, column, end_column = list(frame.f_code.co_positions())[frame.f_lasti // 2]
    try:
        source = Path(path).read_text(encoding="utf-8")
        tree = ast.parse(source)
    except (OSError, ValueError, SyntaxError):
        return None
    for node in ast.walk(tree):
        place = getattr(node, "lineno", 0), getattr(node, "end_lineno", 0)
        columns = getattr(node, "col_offset", 0), getattr(node, "end_col_offset", 0)
        if isinstance(node, ast.Call) and place == (line, end_line) and columns == (column, end_column):
            return SourceCall(path, node.lineno, ast.unparse(node)) if _names_loader(node.func) else None
    return None


def _names_loader(function: ast.expr) -> bool:
    name = function.attr if isinstance(function, ast.Attribute) else getattr(function, "id", "")
    return name == "DataLoader"


def write_constructor(text: str | None, setting: LoaderSetting) -> str:
    """Writes the call with this setting; its other arguments stay."""
    call = ast.parse(text or _UNKNOWN, mode="eval").body
    assert isinstance(call, ast.Call)
    if any(isinstance(argument, ast.Starred) for argument in call.args):
        return write_constructor(None, setting)
    values: _Values = {
        "num_workers": setting.num_workers,
        "pin_memory": setting.pin_memory,
        "prefetch_factor": setting.prefetch_factor,
        "persistent_workers": setting.persistent_workers,
    }
    if setting.batch_size is not None:
        values["batch_size"] = setting.batch_size
    for name, place in _POSITIONS.items():
        if name in values and place < len(call.args):
            call.args[place] = ast.Constant(values.pop(name))
    unneeded = () if setting.num_workers else _OF_WORKERS
    call.keywords = [
        _with_value(keyword, values)
        for keyword in call.keywords
        if keyword.arg not in unneeded and _stays(keyword, values)
    ]
    named = {keyword.arg for keyword in call.keywords}
    rest = {name: value for name, value in values.items() if name not in named}
    spread = next((keyword for keyword in call.keywords if keyword.arg is None), None)
    if spread is None:
        call.keywords += [ast.keyword(name, ast.Constant(value)) for name, value in rest.items() if value]
    elif rest:
        keys: list[ast.expr | None] = [None, *(ast.Constant(name) for name in rest)]
        spread.value = ast.Dict(keys, [spread.value, *(ast.Constant(value) for value in rest.values())])
    return ast.unparse(ast.fix_missing_locations(call))


def _stays(keyword: ast.keyword, values: _Values) -> bool:
    """Returns whether the argument still says something."""
    return keyword.arg not in values or bool(values[keyword.arg])


def _with_value(keyword: ast.keyword, values: _Values) -> ast.keyword:
    if keyword.arg not in values:
        return keyword
    return ast.keyword(keyword.arg, ast.Constant(values[keyword.arg]))
