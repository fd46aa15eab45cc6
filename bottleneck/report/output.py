"""Writes a report and its pictures, whole or not at all.

Status lines go to standard error.
"""

import os
import re
import shutil
import sys
import tempfile
import textwrap
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

from bottleneck.errors import ERROR_MARK, BottleneckError, UsageError


def write_text(text: str, output: Path | None) -> None:
    """Writes text to a file, or to standard output without one.

    What the encoding of standard output lacks becomes an escape. Raises BrokenPipeError where the reader of standard
    output has gone, UsageError where it cannot be written otherwise.
    """
    if output is not None:
        write_bytes(text.encode("utf-8", "backslashreplace"), output)
        return
    if getattr(sys.stdout, "name", None) == os.devnull:  # the command line opened it in place of a closed stream
        raise UsageError("standard output is closed", fix="write the result to a file: -o FILE")
    encoding = sys.stdout.encoding or "utf-8"
    try:
        sys.stdout.write(text.encode(encoding, "backslashreplace").decode(encoding))
        sys.stdout.flush()
    except BrokenPipeError:
        discard_output()
        raise
    except OSError as exc:
        discard_output()
        why = exc.strerror or str(exc)
        raise UsageError("cannot write to standard output", why=why, fix="write the result to a file: -o FILE") from exc


def discard_output() -> None:
    """Sends what standard output still holds to the null device.

    Python would fail on it once more when it ends.
    """
    null = os.open(os.devnull, os.O_WRONLY)
    os.dup2(null, sys.stdout.fileno())
    os.close(null)


_OURS = "bottleneck: "
# Beginnings of lines that are sentences of ours; what "fix:" names is to be copied, and stays on one line.
_SENTENCES = (_OURS, ERROR_MARK, "  why: ")
_NARROWEST = 30
# What no line may break: a number and its unit, and a command that ends a line, which is there to be copied.
_WHOLE = re.compile(r"(?<=: )bottleneck [^:]+$|\d (?:%|[mu]?s)(?!\w)")
_GLUE = "\ue000"


def marked(text: str) -> str:
    """The lines of a text, each marked as ours."""
    return "\n".join(f"{_OURS}{line}" for line in text.split("\n"))


def write_note(text: str) -> None:
    """Writes lines of ours to standard error, marked as such."""
    write_status(marked(text))


def write_status(text: str) -> None:
    """Writes status lines to standard error.

    They are wrapped at words on a terminal. A reader that has gone is no error.
    """
    width = shutil.get_terminal_size().columns if sys.stderr.isatty() else None
    try:
        print(text if width is None else wrap_status(text, width), file=sys.stderr, flush=True)
    except OSError:
        return


def wrap_status(text: str, width: int) -> str:
    """Wraps the long sentences of ours among the lines.

    They go on indented below. Everything else is left as it is.
    """
    lines = []
    for line in text.split("\n"):
        is_long = len(line) > width >= _NARROWEST and line.startswith(_SENTENCES)
        indent = " " * (len(line) - len(line.lstrip()) + 2)
        lines += (
            textwrap.wrap(
                _WHOLE.sub(lambda match: match[0].replace(" ", _GLUE), line),
                width,
                subsequent_indent=indent,
                break_long_words=False,
                break_on_hyphens=False,
            )
            if is_long
            else [line]
        )
    return "\n".join(lines).replace(_GLUE, " ")


def make_folder(folder: Path) -> None:
    """Makes a folder and those around it, unless they are there.

    Raises UsageError where that cannot be done.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as exc:
        raise UsageError(
            f"cannot make the folder {folder}", why=exc.strerror or str(exc), fix="name a folder that can be written"
        ) from exc


def write_bytes(content: bytes, output: Path) -> None:
    """Writes a file whole or not at all.

    It is written under a temporary name and renamed when whole. Raises UsageError when the place takes no file.
    """
    write_blocks([content], output)


def write_blocks(blocks: Iterable[bytes], output: Path) -> None:
    """The same, with the content in blocks; nothing is left where making them fails."""
    if output.exists() and not output.is_file():
        _write_in_place(blocks, output)
        return
    try:
        handle, partial = tempfile.mkstemp(prefix=f".{output.name}.", dir=output.parent)
    except OSError as exc:
        raise _cannot_write(output, exc) from exc
    try:
        with os.fdopen(handle, "wb") as file:
            file.writelines(blocks)
        mask = os.umask(0o077)  # of new files, which mkstemp does not follow
        os.umask(mask)
        Path(partial).chmod(0o666 & ~mask)
        Path(partial).replace(output)
    except OSError as exc:
        raise _cannot_write(output, exc) from exc
    finally:
        Path(partial).unlink(missing_ok=True)


def _write_in_place(blocks: Iterable[bytes], output: Path) -> None:
    """Writes to a pipe or device, which a renamed file would replace."""
    try:
        with output.open("wb") as file:
            file.writelines(blocks)
    except OSError as exc:
        raise _cannot_write(output, exc) from exc


def _cannot_write(output: Path, exc: OSError) -> UsageError:
    return UsageError(
        f"cannot write {output}", why=exc.strerror or str(exc), fix="name a file in a folder where you may write"
    )


def compressed(blocks: Iterable[bytes]) -> Iterator[bytes]:
    """The blocks as one gzip file."""
    from isal import isal_zlib  # noqa: PLC0415 - loaded only where it is used

    compressor = isal_zlib.compressobj(level=1, wbits=31)
    for block in blocks:
        yield compressor.compress(block)
    yield compressor.flush()


def draw_picture(name: str, path: Path | None, *subjects: Any, warn: Callable[[str], None] | None = None) -> None:
    """Draws a picture beside a report where a file is named.

    One that cannot be drawn is a warning.
    """

    def draw(path: Path) -> None:
        from bottleneck.report import PICTURES  # noqa: PLC0415 - plots take matplotlib
        from bottleneck.report.plots import save_figure  # noqa: PLC0415

        save_figure(PICTURES[name], path, *subjects)

    if path is not None:
        draw_or_warn(partial(draw, path), path, warn)


def draw_or_warn(draw: Callable[[], None], path: Path, warn: Callable[[str], None] | None = None) -> bool:
    """Returns True if a picture or a page could be made.

    Else there is a warning, and report and exit code stay. ``warn`` takes the warning, which goes to stderr without it.
    """
    try:
        draw()
    except BottleneckError as error:
        reason = f"{error.what}: {error.why}" if error.why else error.what
    except (ArithmeticError, ImportError, MemoryError, OSError, RuntimeError, ValueError) as exc:  # of matplotlib
        reason = f"{type(exc).__name__}: {exc}"
    else:
        return True
    (warn or partial(print, file=sys.stderr, flush=True))(f"warning: {path} is left out: {reason}")
    return False
