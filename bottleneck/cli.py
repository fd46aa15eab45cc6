"""Builds the commands and turns errors into exit codes.

It is the entry point of every run.
"""

import errno
import functools
import gc
import inspect
import os
import shlex
import signal
import sys
import tempfile
import traceback
from collections.abc import Callable, Mapping, Sequence
from importlib import import_module
from pathlib import Path
from typing import Annotated, Any

import typer

from bottleneck import __version__
from bottleneck.commands.report_options import ExampleCommand
from bottleneck.errors import BottleneckError, UsageError

# Options end at the first argument of `run`: everything after the file belongs to the user's program.
_PROGRAM: Mapping[str, Any] = {"context_settings": {"allow_interspersed_args": False}}

# Commands whose options end at the program or a module.
_OF_PROGRAMS = frozenset({"run", "watch"})

# The command NAME is the function `NAME_command` of bottleneck/commands/NAME.py, imported when it is needed. The list
# of commands has room for 64 characters of each `short_help`.
COMMANDS: tuple[tuple[str, Mapping[str, Any]], ...] = (
    ("run", {"short_help": "Record a program while it runs, then report.", **_PROGRAM}),
    ("watch", {"short_help": "Time every step of a whole run, and say why some are slow.", **_PROGRAM}),
    ("attach", {"short_help": "Record a window of a program that runs already."}),
    ("report", {"short_help": "Explain where the time of a recorded program went."}),
    ("runs", {"short_help": "List the recordings of the working folder."}),
    ("explain", {"short_help": "Explain a finding, a caveat or an account of the ledger."}),
    ("compare", {"short_help": "Say what changed between two recordings, and where."}),
    ("predict", {"short_help": "Predict a step on GPUs that are not here: time, bound, memory."}),
    ("whatif", {"short_help": "Predict what a change would be worth, from a trace alone."}),
    ("gate", {"short_help": "Fail a build when a step does more, or takes longer."}),
    ("judge", {"short_help": "Judge a patch: time, results, counts, and why."}),
    ("accept", {"short_help": "Accept what the gate found, with a reason."}),
    ("sweep", {"short_help": "Measure a step over values of its parameters."}),
    ("verify", {"short_help": "Try what the findings advise, and measure what it is worth."}),
    ("calibrate", {"short_help": "Measure what a device of this machine can do."}),
    ("mcp", {"short_help": "Answer coding agents by the Model Context Protocol."}),
    ("doctor", {"short_help": "Say what can be measured here, or whether a trace is whole."}),
)

# Commands that look for settings, or write, in the working folder; a program may run without one.
_NEEDS_FOLDER = frozenset({"runs", "gate", "accept", "sweep", "verify", "doctor"})

# Collections of the youngest objects begin after this many, as in mypy: imports and tables make hundreds of thousands
# that stay, and looking through them again and again takes a tenth of the time of a report.
_GC_THRESHOLD = 200_000


def _show_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"bottleneck {__version__} (Python {sys.version.split()[0]})")
        raise typer.Exit


def build_app(only: str | None = None) -> typer.Typer:
    """Builds the application with every row of COMMANDS.

    Or with one of them, which takes less time.
    """
    app = typer.Typer(
        name="bottleneck",
        no_args_is_help=True,
        pretty_exceptions_enable=False,
        rich_markup_mode=None,
        context_settings={"help_option_names": ["-h", "--help"]},
    )

    @app.callback()
    def bottleneck(
        version: Annotated[
            bool,
            typer.Option("--version", "-V", callback=_show_version, is_eager=True, help="Show the version and leave."),
        ] = False,
    ) -> None:
        """Says which of compute, memory bandwidth or overhead holds a PyTorch program back.

        \b
        bottleneck run model.py         record the program, then report
        bottleneck report trace.json    explain a trace that you already have
        bottleneck compare A B          what changed between two runs, and where
        bottleneck gate                 fail a build when a step gets worse
        bottleneck doctor               what can be measured here, and what would help
        """  # noqa: D301 - backspace is how click is told to keep the lines of an example

    for name, settings in COMMANDS:
        if only in {None, name}:
            _add_command(app, name, settings)
    return app


def _add_command(app: typer.Typer, name: str, settings: Mapping[str, Any]) -> None:
    function = getattr(import_module(f"bottleneck.commands.{name}"), f"{name}_command")
    kind: type[ExampleCommand] = ExampleCommand
    if name in _OF_PROGRAMS:
        from bottleneck.commands.run import ProgramCommand  # noqa: PLC0415 - no other command needs it

        kind = ProgramCommand
    before, mark, after = (inspect.getdoc(function) or "").partition("\b\n")
    examples, _, after = after.partition("\n\n")
    command = app.command(name, cls=kind, help=f"{before}{after}", epilog=f"{mark}{examples}", **settings)
    command(_ended_by_its_signal(function))


def _ended_by_its_signal(function: Callable[..., None]) -> Callable[..., None]:
    """Wraps a command so that a signal ends it with that signal's status.

    Typer takes every one for Ctrl-C.
    """

    @functools.wraps(function)
    def command(*arguments: Any, **options: Any) -> None:
        try:
            function(*arguments, **options)
        except KeyboardInterrupt as stopped:
            from bottleneck.report.output import write_note  # noqa: PLC0415 - loaded only where it is used

            write_note("; ".join(("interrupted", *getattr(stopped, "__notes__", ()))))
            raise typer.Exit(128 + int(getattr(stopped, "number", signal.SIGINT))) from stopped

    return command


def _print_error(error: BottleneckError) -> None:
    from bottleneck.report.output import write_status  # noqa: PLC0415 - loaded only where it is used

    write_status("\n".join(error.lines()))


def _open_closed_streams() -> None:
    """Opens the null device in place of each standard stream that is closed.

    Else the next file that is opened takes its number, and what a program prints goes into that file.
    """
    for number, name, mode in ((0, "stdin", "r"), (1, "stdout", "w"), (2, "stderr", "w")):
        try:
            os.fstat(number)
        except OSError:
            null = os.open(os.devnull, os.O_RDWR)
            if null == number:
                os.set_inheritable(number, True)  # as standard streams are
            else:
                os.dup2(null, number)
                os.close(null)
        if getattr(sys, name) is None:
            # A standard stream stays open; its name tells the writer of reports that there is none.
            setattr(sys, name, Path(os.devnull).open(mode, encoding="utf-8"))  # noqa: SIM115


def main(arguments: Sequence[str] | None = None) -> None:
    """Runs one command and leaves the process with its exit code (design section 8)."""
    _open_closed_streams()
    status = _run(list(sys.argv[1:] if arguments is None else arguments))
    gc.freeze()  # the interpreter would look through all objects before it ends, for longer than a report renders
    sys.exit(status)


def _check_folder() -> None:
    try:
        Path.cwd()
    except FileNotFoundError as exc:
        raise UsageError("the working folder no longer exists", fix="change to a folder that does") from exc


def _command_line(arguments: list[str]) -> list[str]:
    """Returns the arguments with the words `version` and `help` as options.

    Raises UsageError for an unknown command.
    """
    first, rest = arguments[:1], arguments[1:]
    names = [name for name, _ in COMMANDS]
    if first == ["version"]:
        return ["--version"]
    if first == ["help"]:
        return [*rest[:1], "--help"]
    if not first or first[0].startswith("-") or first[0] in names:
        return arguments
    if Path(first[0]).suffix == ".py":
        meant = ["run", *arguments]
    elif Path(first[0]).exists() or first[0].endswith((".json", ".json.gz", ".pftrace")):
        meant = ["report", *arguments]
    else:
        from difflib import get_close_matches  # noqa: PLC0415 - for a misspelt command only

        near = get_close_matches(first[0], names, n=1)
        meant = [*near, *rest] if near else ["--help"]
    raise UsageError(
        f"{shlex.quote(first[0])} is not a command",
        why=f"the commands are {', '.join(names)}",
        fix=f"did you mean: bottleneck {shlex.join(meant)}?",
    )


def _command_to_complete() -> str | None:
    """Gives the command of the line that a shell asks to complete.

    Loading the others too would double the time of a TAB.
    """
    line = os.environ.get("COMP_WORDS") or os.environ.get("_TYPER_COMPLETE_ARGS") or ""
    words = line.split(" ", 2)
    return words[1] if "_BOTTLENECK_COMPLETE" in os.environ and len(words) > 2 else None


def _run(arguments: list[str]) -> int:
    gc.set_threshold(_GC_THRESHOLD)
    try:
        arguments = _command_line(arguments)
        first = arguments[0] if arguments else _command_to_complete()
        if first in _NEEDS_FOLDER:
            _check_folder()
        group: Any = typer.main.get_command(build_app(only=first if first in dict(COMMANDS) else None))
        status: int | None = group.main(arguments, prog_name="bottleneck", standalone_mode=False)
    except _Misuse as misuse:
        return _report_misuse(misuse, has_arguments=bool(arguments))
    except SystemExit as leave:
        return leave.code if isinstance(leave.code, int) else 1
    except BottleneckError as error:
        _print_error(error)
        return error.exit_code
    except KeyboardInterrupt:
        return 128 + signal.SIGINT
    except Exception as failure:
        return _report_failure(failure)
    return status or 0


# What the parser raises for a command line that it cannot take.
_Misuse: Any = typer.BadParameter.__base__


def _report_misuse(misuse: Any, *, has_arguments: bool) -> int:
    """Says what is wrong with the command line.

    It shows the help where the line is empty.
    """
    if has_arguments:
        _print_error(_in_our_words(misuse))
    else:
        misuse.show()
    return UsageError.exit_code


def _in_our_words(misuse: Any) -> UsageError:
    """An error of the parser in the form of all our errors."""
    context = misuse.ctx
    command = "bottleneck" if context is None else context.command_path
    see = f"{command} --help shows all options"
    option = getattr(misuse, "option_name", None)
    if option is not None and hasattr(misuse, "possibilities"):
        from difflib import get_close_matches  # noqa: PLC0415 - for a misspelt option only

        near = get_close_matches(option, misuse.possibilities or (), n=1, cutoff=0.7)
        return UsageError(f"{command} has no option {option}", fix=f"did you mean {near[0]}? {see}" if near else see)
    message = misuse.format_message().rstrip(".")
    for kind, plain in _KINDS.items():
        message = message.replace(kind, plain)
    usage = "" if context is None else " ".join(context.get_usage().removeprefix("Usage: ").split())
    return UsageError(f"{command}: {message[:1].lower()}{message[1:]}", fix=f"write {usage}; {see}" if usage else see)


_KINDS = {
    "is not a valid int range": "is not a whole number",
    "is not a valid int": "is not a whole number",
    "is not a valid float range": "is not a number",
    "is not a valid float": "is not a number",
}


def _report_failure(failure: Exception) -> int:
    """Tells of a bug of ours.

    Or of a name that no file can have, at which any look at the disk fails.
    """
    if isinstance(failure, OSError) and failure.errno == errno.ENAMETOOLONG:
        _print_error(UsageError("a name is too long", why="no file can have it", fix="check the command line"))
        return UsageError.exit_code
    with tempfile.NamedTemporaryFile(
        "w", encoding="utf-8", prefix="bottleneck-crash-", suffix=".txt", delete=False
    ) as file:
        traceback.print_exc(file=file)
    _print_error(
        BottleneckError(
            f"bottleneck itself failed ({type(failure).__name__})",
            why="this is a bug of ours, not of your program",
            fix=f"please report it with the file {file.name}",
        )
    )
    return BottleneckError.exit_code


if __name__ == "__main__":
    main()
