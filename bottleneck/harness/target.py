"""Finds the form of a program and checks its settings.

The form (script, workload or model) comes from the syntax tree.
"""

import ast
import shlex
from collections.abc import Sequence, Set
from dataclasses import replace
from pathlib import Path

from bottleneck.errors import UsageError
from bottleneck.harness.messages import Program
from bottleneck.schema.recording import Form


def find_form(path: Path) -> Form:
    """Finds the form of a program: 'workload', 'model' or 'script'.

    'workload' if the file defines that function, 'model' if all it does is to make `model` and `inputs`.

    Else 'script': many a training script has variables of these names, and would not be itself if it were imported. A
    file that cannot be read or parsed is one too: running it shows Python's own message.
    """
    tree = _parse(path)
    if tree is None:
        return "script"
    if _find_workload(tree) is not None:
        return "workload"
    return "model" if {"model", "inputs"} <= _assigned_names(tree) and not _works(tree) else "script"


def make_program(
    target: str,
    arguments: Sequence[str] = (),
    settings: Sequence[str] = (),
    *,
    train: bool = False,
    seed: int | None = 0,
    module: bool = False,
) -> Program:
    """Makes the program of a file or a module.

    Finds its form. UsageError where its parts do not go together.

    ``settings`` are the NAME=VALUE texts of ``--set``, ``arguments`` stand after the target: only a script has any.
    """
    if not target:
        raise UsageError(
            "nothing to run", fix="name a file: bottleneck run FILE, or a module: bottleneck run -m MODULE"
        )
    pairs = tuple(_split_setting(text) for text in settings)
    form = "script" if module else find_form(Path(target))
    if form != "script":
        refuse_arguments(target, f"a {form}", arguments)
    check_settings(Path(target), form, pairs)
    if train and form != "model":
        raise UsageError(
            f"--train needs a file with `model` and `inputs`; {target} is a {form}",
            fix="leave --train out: a script or workload says itself what its step is",
        )
    return Program(target, tuple(arguments), form, pairs, train, seed, module)


_TRUTHS = {"true": True, "false": False}


def refuse_arguments(target: str, noun: str, arguments: Sequence[str]) -> None:
    """Raises UsageError for words behind a target that is no script."""
    if arguments:
        raise UsageError(
            f"{arguments[0]} stands after {target}, which is {noun} and has no arguments of its own",
            why="options of bottleneck end at FILE",
            fix=f"put it before the file: {shlex.join((*arguments, target))}",
        )


def with_assumptions(made: Program, texts: Sequence[str]) -> Program:
    """Returns the program with what conditions are taken to be.

    ``texts`` are those of ``--assume``. Raises UsageError for one that names no line and truth.
    """
    return replace(made, assumed=tuple(_split_assumption(text) for text in texts))


def _split_assumption(text: str) -> tuple[str, bool]:
    """Splits 'train.py:12=true' into its line and what the condition there is taken to be."""
    line, _, word = text.rpartition("=")
    file, _, number = line.rpartition(":")
    if not file or not number.isdecimal() or word.casefold() not in _TRUTHS:
        raise UsageError(
            f"--assume {text} is no line with true or false",
            fix="name the line that the refusal names: --assume train.py:12=true",
        )
    return f"{Path(file).name}:{int(number)}", _TRUTHS[word.casefold()]


def check_source(path: Path) -> None:
    """Raises UsageError unless this is a file of Python.

    Only the step of such a file can be made anew.
    """
    if path.is_dir():
        raise UsageError(f"{path} is a folder", fix="name the file in it that defines workload()")
    if not path.exists():
        raise UsageError(f"there is no file {path}", fix="check the path: it is looked for from the working folder")
    try:
        ast.parse(path.read_bytes() if path.is_file() else b"")
    except (SyntaxError, ValueError, RecursionError, MemoryError, OSError) as exc:
        raise UsageError(f"{path} is not Python", why=str(exc), fix=f"see what Python says: python {path}") from exc


def _split_setting(text: str) -> tuple[str, str]:
    name, equals, value = text.partition("=")
    if not equals or not name.isidentifier():
        raise UsageError(f"--set {text} is not NAME=VALUE", fix="write for example --set batch_size=64")
    return name, value


def check_settings(path: Path, form: Form, settings: Sequence[tuple[str, str]]) -> None:
    """Raises UsageError unless the settings fit the workload's parameters.

    Each setting has to name a parameter, and each parameter to get a value.
    """
    if form != "workload":
        if settings:
            raise UsageError(
                f"--set {settings[0][0]}=… needs a workload, and {path} has none",
                why="only the parameters of a function `workload(**parameters)` can be set",
                fix=f"define workload() in {path.name}, or pass the program's own arguments after the file",
            )
        return
    tree = _parse(path)
    function = _find_workload(tree) if tree is not None else None
    if function is None:
        return
    required, parameters, takes_any = _parameters(function)
    for name, _ in settings:
        if name not in parameters and not takes_any:
            raise UsageError(
                f"workload() in {path} has no parameter {name!r}",
                why=f"its parameters are: {', '.join(parameters) or 'none'}",
                fix="name one of these",
            )
    missing = [name for name in required if name not in dict(settings)]
    if missing:
        raise UsageError(
            f"workload() in {path} needs a value for {missing[0]!r}",
            why="it has no default",
            fix=f"pass --set {missing[0]}=VALUE",
        )


def _parse(path: Path) -> ast.Module | None:
    # Reading a pipe would take the program away from Python.
    if not path.is_file():
        return None
    try:
        return ast.parse(path.read_bytes())
    except (OSError, SyntaxError, ValueError, RecursionError, MemoryError):
        return None


def _find_workload(tree: ast.Module) -> ast.FunctionDef | None:
    functions = (node for node in tree.body if isinstance(node, ast.FunctionDef))
    return next((function for function in functions if function.name == "workload"), None)


def _works(tree: ast.Module) -> bool:
    """Tells whether running the file does more than prepare a model.

    It does where it trains, calls the model, or has a main part.
    """
    defined = {node.name: node for node in tree.body if isinstance(node, ast.FunctionDef)}
    busy = {name for name, function in defined.items() if any(_is_training(node) for node in ast.walk(function))}
    return any(_is_main_part(node, set(defined)) or _does(node, busy) for node in tree.body)


def _is_main_part(node: ast.stmt, defined: Set[str]) -> bool:
    match node:
        case ast.If(test=ast.Compare(left=ast.Name(id="__name__"))):
            return True
        case ast.Expr(value=ast.Call(func=ast.Name(id=name))):
            return name in defined
    return False


def _does(node: ast.stmt, busy: Set[str]) -> bool:
    """Tells whether a statement does more than prepare a model.

    It does where it trains, calls the model, or hands one of the busy functions to something, a thread perhaps. What it
    only defines does not count.
    """
    waiting: list[ast.AST] = [node]
    while waiting:
        current = waiting.pop()
        if isinstance(current, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            continue
        if _is_training(current) or (isinstance(current, ast.Name) and current.id in busy):
            return True
        if isinstance(current, ast.Call) and getattr(current.func, "id", None) == "model":
            return True
        waiting += ast.iter_child_nodes(current)
    return False


def _is_training(node: ast.AST) -> bool:
    return isinstance(node, ast.Call) and getattr(node.func, "attr", None) in {"backward", "step"}


def _assigned_names(tree: ast.Module) -> set[str]:
    names: set[str] = set()
    for node in tree.body:
        targets: list[ast.expr] = []
        if isinstance(node, ast.Assign):
            targets = node.targets
        elif isinstance(node, ast.AnnAssign) and node.value is not None:
            targets = [node.target]
        for target in targets:
            names |= {part.id for part in ast.walk(target) if isinstance(part, ast.Name)}
    return names


def _parameters(function: ast.FunctionDef) -> tuple[list[str], list[str], bool]:
    """Names without default, all names, and whether any name is taken."""
    arguments = function.args
    positional = [*arguments.posonlyargs, *arguments.args]
    required = [argument.arg for argument in positional[: len(positional) - len(arguments.defaults)]]
    required += [
        argument.arg
        for argument, default in zip(arguments.kwonlyargs, arguments.kw_defaults, strict=True)
        if default is None
    ]
    return required, [argument.arg for argument in (*positional, *arguments.kwonlyargs)], arguments.kwarg is not None
