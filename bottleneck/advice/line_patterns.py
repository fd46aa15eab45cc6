"""Recognises patterns in the text of a hot line.

They are calls by name, buffers that move, and text that is put together. The text alone does not tell types: what a
pattern means for a program is said with that reserve.
"""

import ast
import re
from collections.abc import Callable, Iterator

from bottleneck.advice.hot_lines import HotLine
from bottleneck.schema.source_text import is_plain, parse_line

Recognise = Callable[[HotLine], bool]

_JOINS = re.compile(r"(?:^|\.)(?:append|concatenate|vstack|hstack|insert|delete|concat|cat)$")
# Cells that the smallest or largest is taken of, where a table is filled cell by cell.
_LEAST_CELLS = 2


def called(names: str) -> Recognise:
    """Recognises a call by the end of its dotted name: 'np.percentile', 'self.items.index'."""
    ending, in_text = re.compile(rf"(?:^|\.)(?:{names})$"), re.compile(rf"(?<!\w)(?:{names})\(")

    def recognise(line: HotLine) -> bool:
        statement = parse_line(line.text)
        if statement is None:  # a part of a statement, or cut
            return in_text.search(line.text) is not None
        return any(ending.search(dotted(call.func)) for call in calls_in(line))

    return recognise


def called_plainly(names: str) -> Recognise:
    """Recognises a call of a plain name: 'sum', but not 'tensor.sum' or 'torch.sum'."""
    whole, in_text = re.compile(rf"^(?:{names})$"), re.compile(rf"(?<![\w.])(?:{names})\(")

    def recognise(line: HotLine) -> bool:
        if parse_line(line.text) is None:
            return in_text.search(line.text) is not None
        return any(whole.search(dotted(call.func)) for call in calls_in(line))

    return recognise


def any_of(*recognise: Recognise) -> Recognise:
    """Recognises what one of these recognises."""
    return lambda line: any(test(line) for test in recognise)


def calls_in(line: HotLine) -> tuple[ast.Call, ...]:
    """Gives the calls in a line's text.

    None where it is a part of a statement.
    """
    statement = parse_line(line.text)
    return () if statement is None else tuple(node for node in ast.walk(statement) if isinstance(node, ast.Call))


def dotted(node: ast.expr) -> str:
    """Gives the name of what is called, such as 'np.random.choice'.

    It is '.sum' for a method of anything else.
    """
    if isinstance(node, ast.Attribute):
        return f"{dotted(node.value)}.{node.attr}"
    return node.id if isinstance(node, ast.Name) else ""


def joins_onto_itself(line: HotLine) -> bool:
    """True for ``kept = np.concatenate([kept[1:], part])[-size:]`` and its like."""
    statement = parse_line(line.text)
    if not isinstance(statement, ast.Assign):
        return False
    target = ast.unparse(statement.targets[0])
    return any(
        any(ast.unparse(node) == target for node in _expressions(*call.args))
        for call in calls_in(line)
        if _JOINS.search(dotted(call.func))
    )


def _expressions(*roots: ast.expr) -> Iterator[ast.expr]:
    return (node for root in roots for node in ast.walk(root) if isinstance(node, ast.expr))


def shifts_itself(line: HotLine) -> bool:
    """True for ``kept[:-1] = kept[1:]``, with or without a copy of the right side."""
    statement = parse_line(line.text)
    if not isinstance(statement, ast.Assign) or not isinstance(statement.targets[0], ast.Subscript):
        return False
    target = statement.targets[0]
    return _is_sliced(target) and any(
        isinstance(node, ast.Subscript) and _is_sliced(node) and ast.unparse(node.value) == ast.unparse(target.value)
        for node in _expressions(statement.value)
    )


def _is_sliced(node: ast.Subscript) -> bool:
    first = node.slice.elts[0] if isinstance(node.slice, ast.Tuple) and node.slice.elts else node.slice
    return isinstance(first, ast.Slice) and (first.lower is not None or first.upper is not None)


def grows(line: HotLine) -> bool:
    """True for ``kept += part`` and ``kept = kept + part``.

    Both are plain names or text. It is a copy, where kept is no number.
    """
    statement = parse_line(line.text)
    if isinstance(statement, ast.AugAssign):
        return isinstance(statement.op, ast.Add) and (
            isinstance(statement.value, ast.Name | ast.List | ast.Attribute) or _has_text(statement.value)
        )
    if not isinstance(statement, ast.Assign) or not isinstance(statement.value, ast.BinOp):
        return False
    value = statement.value
    same = ast.unparse(statement.targets[0]) == ast.unparse(value.left)
    return same and isinstance(value.op, ast.Add) and (
        isinstance(value.right, ast.Name | ast.List) or _has_text(value.right)
    )  # fmt: skip


def _has_text(node: ast.expr) -> bool:
    if isinstance(node, ast.BinOp):
        return _has_text(node.left) or _has_text(node.right)
    return isinstance(node, ast.JoinedStr) or (isinstance(node, ast.Constant) and isinstance(node.value, str | bytes))


def puts_text_together(line: HotLine) -> bool:
    """True where a line makes text of values.

    That is an f-string, str(), repr(), format() or the % of a text.
    """
    statement = parse_line(line.text)
    if statement is None:
        return False
    return called_plainly("str|repr|format|ascii|hex")(line) or any(
        (isinstance(node, ast.JoinedStr) and any(isinstance(part, ast.FormattedValue) for part in node.values))
        or (isinstance(node, ast.BinOp) and isinstance(node.op, ast.Mod) and _has_text(node.left))
        or (isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == "format")
        for node in ast.walk(statement)
    )


def converts_plainly(line: HotLine) -> bool:
    """True for ``values[i].astype(np.float32)``: what is converted is there already, and made by no call."""
    for call in calls_in(line):
        name = dotted(call.func)
        if name.endswith(".astype") and isinstance(call.func, ast.Attribute) and is_plain(call.func.value):
            return True
        if re.search(r"(?:^|\.)(?:asfarray|ascontiguousarray|asfortranarray)$", name) and call.args:
            return is_plain(call.args[0])
    return False


_OVER_ITEMS = re.compile(r"(?:^|\.)(?:zip|enumerate|reversed|tolist|items|values|product|range)$")
_OF_STEPS = re.compile(r"(?i)step|epoch|iter|batch|round|^_$")
_TRAINS = re.compile(r"\.backward\(")


def loops_over_items(line: HotLine) -> bool:
    """True for a loop over zip(), enumerate(), tolist() and their like.

    The loop over the steps of a program does not count, nor one with a backward pass in each round.
    """
    statement = parse_line(line.text)
    if not isinstance(statement, ast.For) or not isinstance(statement.iter, ast.Call):
        return False
    if any(_TRAINS.search(text) for text in line.following):
        return False
    names = (node.id for node in ast.walk(statement.target) if isinstance(node, ast.Name))
    return _OVER_ITEMS.search(dotted(statement.iter.func)) is not None and not any(
        _OF_STEPS.search(name) for name in names
    )


def fills_table(line: HotLine) -> bool:
    """True for a cell made of the smallest or largest of neighbours.

    It is an edit distance or an alignment.
    """
    statement = parse_line(line.text)
    if not isinstance(statement, ast.Assign) or not isinstance(statement.targets[0], ast.Subscript):
        return False
    table = _table_of(statement.targets[0])
    return any(
        re.search(r"(?:^|\.)(?:min|max|minimum|maximum)$", dotted(call.func)) is not None
        and sum(_table_of(node) == table for node in _outer_items(call)) >= _LEAST_CELLS
        for call in calls_in(line)
    )


def adds_to_item(line: HotLine) -> bool:
    """True for ``counts[key] += value`` on one item at a time.

    It is an item of an array or a dict.
    """
    statement = parse_line(line.text)
    return (
        isinstance(statement, ast.AugAssign)
        and isinstance(statement.op, ast.Add)
        and isinstance(statement.target, ast.Subscript)
        and not any(isinstance(node, ast.Slice) for node in ast.walk(statement.target))
    )


def writes_item(line: HotLine) -> bool:
    """True for ``table[row, column] = value`` and ``table[row][column] = value``.

    It takes two indices, and no slice.
    """
    statement = parse_line(line.text)
    if not isinstance(statement, ast.Assign) or not isinstance(statement.targets[0], ast.Subscript):
        return False
    target = statement.targets[0]
    twice = isinstance(target.value, ast.Subscript) or (
        isinstance(target.slice, ast.Tuple) and len(target.slice.elts) > 1
    )
    return twice and not any(isinstance(node, ast.Slice) for node in ast.walk(target))


def _outer_items(call: ast.Call) -> Iterator[ast.Subscript]:
    items = [node for node in _expressions(*call.args) if isinstance(node, ast.Subscript)]
    inner = {id(item.value) for item in items}
    return (item for item in items if id(item) not in inner)


def _table_of(node: ast.expr) -> str:
    while isinstance(node, ast.Subscript):
        node = node.value
    return ast.unparse(node)


def calls_by_row(line: HotLine) -> bool:
    """True for ``frame.apply(function, axis=1)``, ``applymap`` and ``.apply(lambda …)`` of a data frame."""
    return (
        any(
            dotted(call.func).endswith(".applymap")
            or (
                dotted(call.func).endswith(".apply")
                and (_is_by_row(call) or any(isinstance(argument, ast.Lambda) for argument in call.args))
            )
            for call in calls_in(line)
        )
        or re.search(r"\.apply\(.*axis\s*=\s*(?:1|[\"']columns)", line.text) is not None
    )


def _is_by_row(call: ast.Call) -> bool:
    return any(
        keyword.arg == "axis" and isinstance(keyword.value, ast.Constant) and keyword.value.value in (1, "columns")
        for keyword in call.keywords
    )


def given_function(line: HotLine) -> str:
    """Names the function that apply, vectorize or map is given by name.

    It is 'row_features()', or 'the function' where the line names none.
    """
    for call in calls_in(line):
        if re.search(r"(?:^|\.)(?:apply|applymap|map|vectorize|frompyfunc|apply_along_axis)$", dotted(call.func)):
            name = next(
                (dotted(argument) for argument in call.args if isinstance(argument, ast.Name | ast.Attribute)), ""
            )
            if name:
                return f"{name}()"
    return "the function"


def starts_over(line: HotLine) -> bool:
    """True for ``next(iter(loader))``: an iterator that is made for one item."""
    return any(
        dotted(call.func) == "next"
        and any(isinstance(argument, ast.Call) and dotted(argument.func) == "iter" for argument in call.args)
        for call in calls_in(line)
    )


def cuts_windows(text: str) -> bool:
    """True for ``[x[i:i + width] for i in …]`` and ``windows.append(x[i:i + width])``."""
    statement = parse_line(text)
    if statement is None:
        return False
    cut: list[ast.expr] = []
    for node in ast.walk(statement):
        if isinstance(node, ast.ListComp | ast.GeneratorExp):
            cut += node.elt.elts if isinstance(node.elt, ast.Tuple) else [node.elt]
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == "append":
            cut += node.args
    return any(isinstance(element, ast.Subscript) and any(map(_is_window, _slices_in(element))) for element in cut)


def _slices_in(node: ast.Subscript) -> list[ast.Slice]:
    parts = node.slice.elts if isinstance(node.slice, ast.Tuple) else [node.slice]
    return [part for part in parts if isinstance(part, ast.Slice)]


def _is_window(part: ast.Slice) -> bool:
    """True for ``i:i + width``: both ends move together."""
    if part.lower is None or part.upper is None:
        return False
    low, high = ({node.id for node in ast.walk(end) if isinstance(node, ast.Name)} for end in (part.lower, part.upper))
    return bool(low & high)


def gathers_columns(line: HotLine) -> bool:
    """True for ``table[:, rows]`` that is read, and for ``np.take(table, rows, axis=-1)``."""
    statement = parse_line(line.text)
    if statement is None:
        return False
    return any(
        isinstance(node, ast.Subscript) and isinstance(node.ctx, ast.Load) and _is_of_last_axis(node.slice)
        for node in ast.walk(statement)
    ) or any(
        re.search(r"(?:^|\.)take$", dotted(call.func)) is not None
        and any(keyword.arg == "axis" and ast.unparse(keyword.value) in {"1", "-1", "2"} for keyword in call.keywords)
        for call in calls_in(line)
    )


def _is_of_last_axis(index: ast.expr) -> bool:
    """True for ``:, rows``, an index of the last dimension.

    It takes all of the first dimensions, and a name, or what a call gives, for the last one.
    """
    if not isinstance(index, ast.Tuple) or len(index.elts) < 2:
        return False
    *first, last = index.elts
    return isinstance(last, ast.Name | ast.Attribute | ast.Call | ast.Subscript) and all(map(_is_whole, first))


def _is_whole(part: ast.expr) -> bool:
    if isinstance(part, ast.Slice):
        return part.lower is None and part.upper is None
    return isinstance(part, ast.Constant) and part.value is Ellipsis
