"""Chooses where a command's report goes: file, pipe or terminal, with width and colours."""

import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, TextIO

if TYPE_CHECKING:
    from bottleneck.report.terminal import TerminalStyle
    from bottleneck.schema.analysis import Analysis

# As the shell shows the death by SIGPIPE of a program that writes to a reader that has gone.
_READER_GONE = 141


def present(analysis: "Analysis", form: str, output: Path | None, *, all_findings: bool = False) -> None:
    """Renders to standard output, or to the file ``output``; '-' is standard output too."""
    from bottleneck.report import FORMATS
    from bottleneck.report.output import write_text

    if output is not None and str(output) != "-":
        write_text(FORMATS[form](analysis, all_findings=all_findings), output)
    elif form == "terminal":
        send(terminal_text(analysis, sys.stdout, all_findings=all_findings))
    else:
        send(FORMATS[form](analysis, all_findings=all_findings))


def send(text: str) -> None:
    """Writes to standard output; a reader that has gone ends the process quietly."""
    from bottleneck.report.output import write_text

    try:
        write_text(text, None)
    except BrokenPipeError:
        # Python would complain once more when it flushes at shutdown.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        raise SystemExit(_READER_GONE) from None


def terminal_text(analysis: "Analysis", stream: TextIO, *, all_findings: bool = False) -> str:
    """The terminal report in the width, colours and character set of a stream."""
    from bottleneck.report.analysis_document import to_terminal

    return to_terminal(analysis, stream_style(stream), all_findings=all_findings)


def stream_style(stream: TextIO) -> "TerminalStyle":
    """The style of text on a stream: as wide as its terminal, and in colour only where it shows some."""
    from rich.console import Console

    from bottleneck.report.terminal import TerminalStyle

    console = Console(file=stream)
    color = console.is_terminal and not console.no_color and console.color_system is not None
    return TerminalStyle(console.width, console.encoding, color)
