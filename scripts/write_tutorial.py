"""Runs the commands of docs/tutorial/first-speedup.md in a fresh folder and writes their output beneath them.

python -m scripts.write_tutorial     on a machine with nothing else to do, with an installed Chromium for the picture
"""

import os
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
PAGE = ROOT / "docs" / "tutorial" / "first-speedup.md"
PROGRAM = ROOT / "examples" / "train_tabular.py"
_COMMAND = re.compile(r"^```console\n\$ (.*)\n(?:.*\n)*?```$", re.MULTILINE)
_STEP = re.compile(r"^```python\n(.*?)^```$", re.MULTILINE | re.DOTALL)


def commands(page: str) -> list[str]:
    """The command lines of the page, in order."""
    return _COMMAND.findall(page)


def prepare(folder: Path, page: str) -> None:
    """Puts the files of the tutorial into a folder: the script, and the step that the page shows."""
    shutil.copy(PROGRAM, folder)
    (step,) = _STEP.findall(page)
    (folder / "step.py").write_text(step, encoding="utf-8")


def with_outputs(page: str, answer: Callable[[str], str]) -> str:
    """The page with what each command prints."""
    return _COMMAND.sub(lambda match: f"```console\n$ {match[1]}\n{answer(match[1]).rstrip()}\n```", page)


def run(command: str, folder: Path) -> str:
    """What a command of the page prints in the folder, at 80 columns, its two streams together.

    Raises:
        subprocess.CalledProcessError: it fails.
    """
    program, *arguments = shlex.split(command)
    modules = {"python": [], "bottleneck": ["-m", "bottleneck"]}
    return subprocess.run(  # noqa: S603 - commands of our own page
        [sys.executable, *modules[program], *arguments],
        cwd=folder,
        env={**os.environ, "COLUMNS": "80"},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=True,
    ).stdout


def main() -> None:
    """Renews the outputs and the picture of the page."""
    from scripts.write_screenshots import draw  # noqa: PLC0415 - needs playwright

    page = PAGE.read_text("utf-8")
    with tempfile.TemporaryDirectory() as made:
        folder = Path(made)
        prepare(folder, page)

        def answer(command: str) -> str:
            return run(command, folder).replace(f"{folder}/", "")

        PAGE.write_text(with_outputs(page, answer), encoding="utf-8")
        draw(folder / "bottleneck-runs" / "train_tabular-1", {"tutorial": "main > section:first-of-type"})


if __name__ == "__main__":
    main()
