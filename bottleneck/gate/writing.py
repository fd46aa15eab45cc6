"""Files that two jobs may write at once: whole or not at all."""

import os
import secrets
from pathlib import Path

from bottleneck.errors import UsageError


def write_whole(path: Path, text: str) -> None:
    """Writes a file under a temporary name and renames it when whole; UsageError where none can be written."""
    partial = path.with_name(f".{path.name}.{os.getpid()}.{secrets.token_hex(4)}")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        try:
            with partial.open("x", encoding="utf-8", newline="\n") as file:
                file.write(text)
            partial.replace(path)
        finally:
            partial.unlink(missing_ok=True)
    except OSError as exc:
        raise UsageError(
            f"cannot write {path}", why=exc.strerror or str(exc), fix="name a folder where you may write"
        ) from exc
