"""Reports, comparisons, gates of saved files and pages on a system that is not POSIX, as far as it can be told here."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

# Python on Windows has none of these; see the pages of the standard library for "Availability: Unix".
_WITHOUT = """
import importlib.abc, os, select, signal, sys
# Other packages know the systems that they were built for.
import numpy, pandas, platformdirs.unix, psutil, rich, scipy, typer

class Hidden(importlib.abc.MetaPathFinder):
    def find_spec(self, name, path=None, target=None):
        if name in {"fcntl", "grp", "pty", "pwd", "resource", "syslog", "termios", "tty"}:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)

sys.meta_path.insert(0, Hidden())
for name in ("fork", "setsid", "killpg", "getuid", "memfd_create", "register_at_fork", "sched_getaffinity", "sysconf"):
    if hasattr(os, name):
        delattr(os, name)
for name in ("poll", "epoll"):
    if hasattr(select, name):
        delattr(select, name)
for name in [each for each in vars(signal) if each.startswith("SIG") and each[3:4] != "_"]:
    if name not in {"SIGABRT", "SIGFPE", "SIGILL", "SIGINT", "SIGSEGV", "SIGTERM", "SIG_DFL", "SIG_IGN"}:
        delattr(signal, name)
for name in ("pthread_sigmask", "sigwait", "setitimer", "alarm", "sigtimedwait"):
    if hasattr(signal, name):
        delattr(signal, name)
from bottleneck.cli import main
main(sys.argv[1:])
"""
_SAMPLES = Path(__file__).parents[1] / "sample_traces"


def _without_posix(folder: Path, *words: str) -> "subprocess.CompletedProcess[str]":
    environment = {**os.environ, "COLUMNS": "80", "PYTHONWARNDEFAULTENCODING": "1"}
    return subprocess.run(
        [sys.executable, "-W", "error::EncodingWarning:bottleneck", "-c", _WITHOUT, *words],
        cwd=folder,
        capture_output=True,
        text=True,
        check=False,
        env=environment,
    )


@pytest.mark.parametrize(
    "words",
    [
        ("report", "{sample}"),
        ("report", "{sample}", "--format", "html", "--output", "page.html"),
        ("report", "{sample}", "--format", "markdown"),
        ("report", "{sample}", "--format", "json"),
        ("compare", "{sample}", "{other}"),
        ("gate", "{sample}", "--against", "{sample}", "--only", "counters"),
        ("whatif", "{sample}"),
        ("explain", "looped-op"),
        ("--version",),
    ],
    ids=" ".join,
)
def test_saved_files_are_read_where_nothing_of_posix_is_there(words: tuple[str, ...], tmp_path: Path) -> None:
    samples = {"sample": str(_SAMPLES / "mlp"), "other": str(_SAMPLES / "transformer")}
    done = _without_posix(tmp_path, *(word.format(**samples) for word in words))
    assert done.returncode in {0, 1}, done.stderr
    assert "Traceback" not in done.stderr
