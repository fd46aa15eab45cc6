"""Where a command's result goes: the terminal as it is, or a file that is written whole or not at all."""

import os
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, TextIO

from bottleneck.errors import UsageError

if TYPE_CHECKING:
    from bottleneck.records import Analysis


def present(analysis: "Analysis", form: str, output: Path | None) -> None:
    """Renders to stdout, or to the file ``output``; raises UsageError when that cannot be written."""
    from bottleneck.report import FORMATS

    if output is not None and str(output) != "-":
        write_whole(output, FORMATS[form](analysis))
    elif form == "terminal":
        show_terminal(analysis, sys.stdout)
    else:
        sys.stdout.write(FORMATS[form](analysis))


def show_terminal(analysis: "Analysis", stream: TextIO) -> None:
    """The terminal report on a stream, in the width, colours and character set that the stream has."""
    from rich.console import Console

    from bottleneck.report.terminal import show

    show(analysis, Console(file=stream))


def write_whole(path: Path, text: str) -> None:
    """Writes a file under a temporary name beside it, then renames; a device such as /dev/null is written directly."""
    try:
        if path.exists() and not path.is_file():
            path.write_text(text, encoding="utf-8")
            return
        with tempfile.NamedTemporaryFile("w", dir=path.parent, delete=False, encoding="utf-8") as file:
            file.write(text)
        os.chmod(file.name, 0o666 & ~_umask())  # noqa: PTH101 - the file object has only a name
        Path(file.name).replace(path)
    except OSError as error:
        raise UsageError(
            f"cannot write {path}", why=str(error), fix="pass -o a file in a folder that exists"
        ) from error


def _umask() -> int:
    # The only way to read it is to set it.
    mask = os.umask(0)
    os.umask(mask)
    return mask
