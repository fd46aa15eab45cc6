"""Names of trace events that several stages recognise.

They are step marks, modules, Python frames and in-place ops.
"""

import re
from typing import NamedTuple

# Annotations that PyTorch itself adds: the profiler's steps, optimizers and data loaders; frames of nn.Modules.
PROFILER_STEP = re.compile(r"^ProfilerStep#")
OPTIMIZER_STEP = re.compile(r"^Optimizer\.step#")
OPTIMIZER_MARK = re.compile(r"^Optimizer\.(step|zero_grad)#")
LOADER_FETCH = re.compile(r"^enumerate\(DataLoader\)#")
MARK_PREFIXES = ("ProfilerStep#", "enumerate(DataLoader)#", "Optimizer.step#", "Optimizer.zero_grad#")
MODULE_PREFIX = "nn.Module: "
# Our own traces tell at their top the attribute path of each module: {"Linear_3": "encoder.layer.0.output"}.
MODULE_PATHS = "bottleneckModules"
MOST_MODULE_PATHS, LONGEST_MODULE_PATH = 20_000, 300
# Stretches in which our own hook at the end of a step ran, in our own traces; and the frames of such hooks.
OWN_STRETCH = "bottleneck: hook at the end of a step"
OWN_FRAME = (
    r"(^|/)bottleneck/harness/(boundaries\.py\(\d+\): (call|read)|marks\.py\(\d+\): step"
    r"|stopwatch\.py\(\d+\): mark|main_thread\.py\(\d+\): pending)$"
)

# Work of the autograd engine, whose threads run the backward pass.
AUTOGRAD_PREFIX = "autograd::engine::"
BACKWARD_NODE = "autograd::engine::evaluate_function"
# The end of the detail of idle time inside the call that runs all nodes of a backward pass.
RUNS_BACKWARD = re.compile(r"(?:^|> )run_backward$")
# Ops that only a training step has: nodes of the backward pass, and the optimizer.
TRAINING = re.compile(rf"^{BACKWARD_NODE}|^Optimizer\.step#")

# 'path/file.py(57): function', as Kineto writes a Python frame. The longest real one is far below the limit.
PYTHON_FRAME = re.compile(r"^(?P<path>[^\n]{1,1000}?)\((?P<line>\d{1,9})\): ")
# A source is 'model.py:57', a line, or 'step() (model.py:4)', a function by the line of its definition, where the trace
# marks no lines. That of a backward op is the one of its forward op: 'backward of model.py:57'. A line of a notebook is
# 'cell 3, line 5'.
_BACKWARD_OF = "backward of "
_IN_CELL = ", line "
# The file of a cell: as IPython named it before version 8, which our recordings still do, with the number of the cell;
# and as ipykernel does, with a hash of its code.
_CELL_FILE = re.compile(r"^(?:<ipython-input-(?P<number>\d{1,9})-\w{1,40}>|.*\bipykernel_\d+/(?P<hash>\d{1,20})\.py)$")


def numbered_cell(path: str, number: int) -> str | None:
    """Names the file of a notebook's cell by the cell's number.

    Null where the path is not that of a cell.
    """
    cell = _CELL_FILE.match(path.replace("\\", "/"))
    return None if cell is None else f"<ipython-input-{number}-{cell['hash'] or 0}>"


def file_of(path: str) -> str:
    """Returns the last part of a path, or a notebook cell's name.

    That is 'cell 3', or 'cell #2708535517' where only its hash is known.
    """
    path = path.replace("\\", "/")
    cell = _CELL_FILE.match(path)
    if cell is None:
        return path.rpartition("/")[2]
    return f"cell {cell['number']}" if cell["number"] else f"cell #{cell['hash']}"


def line_source(path: str, line: int | str) -> str:
    """'model.py:57'; 'cell 3, line 5' in a notebook."""
    file = file_of(path)
    return f"{file}{_IN_CELL}{line}" if _CELL.fullmatch(file) else f"{file}:{line}"


_CELL = re.compile(r"cell #?\d{1,20}")


def backward_of(source: str) -> str:
    """Gives the source of the backward ops of a forward op's source."""
    return f"{_BACKWARD_OF}{source}"


def is_backward(source: str) -> bool:
    """True for the source of a backward op."""
    return source.startswith(_BACKWARD_OF)


def forward_of(source: str) -> str:
    """Gives the source of a backward op's forward op.

    That of a forward op is its own.
    """
    return source.removeprefix(_BACKWARD_OF)


class Place(NamedTuple):
    """File, without its folders, and line of a source.

    ``is_function`` is true where the line is that of a definition.
    """

    file: str
    line: int
    is_function: bool


def place_of(source: str) -> Place | None:
    """The file and line of a source; null where it has none."""
    text = forward_of(source)
    is_function = text.endswith(")") and " (" in text
    text = text[text.rindex(" (") + 2 : -1] if is_function else text
    cell, _, line = text.rpartition(_IN_CELL)
    file, _, line = (cell, _, line) if _CELL.fullmatch(cell) else text.rpartition(":")
    return Place(file, int(line), is_function) if file and line.isdecimal() and len(line) < 10 else None


def is_line(source: str) -> bool:
    """True for a line; false for a function, and without a place."""
    place = place_of(source)
    return place is not None and not place.is_function


def function_source(function: str, line: str) -> str:
    """'step() (model.py:4)'; '<module> (model.py:1)'. A lambda or a comprehension is its line."""
    if function.startswith("<") and function != "<module>":
        return line
    return f"{function}{'' if function == '<module>' else '()'} ({line})"


def at_source(source: str | None) -> str:
    """'at model.py:57', 'in step() (model.py:4)', 'in the backward of model.py:57', 'at no known line'."""
    if source is None:
        return "at no known line"
    if is_backward(source):
        return f"in the {backward_of(named_source(forward_of(source)))}"
    if (named := named_source(source)) != source:
        return f"at {named}"
    return f"{'at' if source.endswith(tuple('0123456789')) else 'in'} {source}"


def named_source(source: str) -> str:
    """The source as words name it.

    The lines of a script outside of its functions, which the profiler calls '<module>', are its top level.
    """
    place = place_of(source) if source.startswith("<module> (") else None
    return source if place is None else f"the top level of {place.file}"


def at_known(source: str | None) -> str:
    """' at model.py:57', with a space ahead; nothing where the source is not known."""
    return "" if source is None else f" {at_source(source)}"


# '<built-in method poll of select.epoll object at 0x…>'; '<method 'poll' of 'select.epoll' objects>'.
BUILT_IN_CALL = re.compile(r"^<(?:built-in (?:function|method)|method) '?(?P<name>[^\s>']{1,200})")

# 'aten::add_', and 'aten::add_.Tensor' with an overload: the op writes to its operand.
IN_PLACE = re.compile(r"[a-z0-9]_(?:\.|$)")

COMPILED_REGION = "Torch-Compiled Region"

# Ops that multiply matrices by a library's product: on a CPU by MKL, or by oneDNN where the program lets it.
MULTIPLIES = re.compile(r"^aten::(?:mm|addmm_?|bmm|baddbmm_?|addbmm_?)$")
