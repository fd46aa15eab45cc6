"""Separates the options of ``bottleneck run`` from those of the user's program."""

from collections.abc import Collection, Sequence
from typing import Any

from typer.core import TyperCommand

_MODULE = "-m", "--module"


class ProgramCommand(TyperCommand):
    """A command whose options end at FILE, or at the module that `-m` names, as those of `python` do."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Parses our own options; the rest are arguments."""
        options = [one for one in self.params if not getattr(one, "is_flag", True)]
        return super().parse_args(ctx, end_at_module(args, {name for option in options for name in option.opts}))


def end_at_module(arguments: Sequence[str], with_value: Collection[str]) -> list[str]:
    """The arguments with `--` after `-m MODULE`, unless it stands there. ``with_value`` are options that take one."""
    position = 0
    while position < len(arguments) and arguments[position].startswith("-") and arguments[position] != "--":
        argument = arguments[position]
        position += 2 if argument in with_value else 1
        is_module = argument.startswith("--module=") or (argument.startswith("-m") and not argument.startswith("--"))
        if (argument in _MODULE or is_module) and arguments[position : position + 1] != ["--"]:
            return [*arguments[:position], "--", *arguments[position:]]
    return list(arguments)
