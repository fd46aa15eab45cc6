"""Where a command's report goes: a file, a pipe, or the terminal in the width and colours that it has."""

import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, TextIO

if TYPE_CHECKING:
    from bottleneck.records import Analysis

# As the shell shows the death by SIGPIPE of a program that writes to a reader that has gone.
_READER_GONE = 141


def present(analysis: "Analysis", form: str, output: Path | None) -> None:
    """Renders to standard output, or to the file ``output``; '-' is standard output too."""
    from bottleneck.report import FORMATS
    from bottleneck.report.output import write_text

    if output is not None and str(output) != "-":
        write_text(FORMATS[form](analysis), output)
        return
    text = terminal_text(analysis, sys.stdout) if form == "terminal" else FORMATS[form](analysis)
    try:
        write_text(text, None)
    except BrokenPipeError:
        # Python would complain once more when it flushes at shutdown.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        raise SystemExit(_READER_GONE) from None


def terminal_text(analysis: "Analysis", stream: TextIO) -> str:
    """The terminal report in the width, colours and character set of a stream."""
    from rich.console import Console

    from bottleneck.report.terminal import render

    console = Console(file=stream)
    color = console.is_terminal and not console.no_color and console.color_system is not None
    return render(analysis, console.width, color=color, encoding=console.encoding)
