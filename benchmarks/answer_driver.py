"""Answers command lines with the code of one checkout: the process that ``benchmarks.same_answers`` starts per side.

python -P benchmarks/answer_driver.py ORDERS       with PYTHONPATH set to the checkout

ORDERS is a JSON file: ``checkout``, ``answers`` (the JSON Lines file to append to), ``jobs``, ``timeout_s``,
``input_mtime``, ``warm`` (command lines that are run first, for their imports only) and ``calls``. The driver knows one
thing about the package: the console script that its ``pyproject.toml`` names, so it works with any layout. It imports
the modules that the warm command lines import, then forks once per call: a call inherits the imports but no state of
the calls before it. Calls marked ``fresh`` run in a new interpreter instead, so that imports in the order of a user's
command line are covered too.
"""

import gc
import hashlib
import importlib
import json
import os
import re
import signal
import sys
import time
import tomllib
import traceback
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

_POLL_S = 0.005
_CRASH_FILE = re.compile(r"\S+bottleneck-crash-\w+\.txt")


@dataclass
class Running:
    """A forked call that has not ended yet."""

    call: Mapping[str, Any]
    streams: tuple[Path, Path]
    started: float
    is_late: bool = False


def main() -> None:
    """Answers all calls of the orders file; every answer is one line of the answers file."""
    orders = json.loads(Path(sys.argv[1]).read_text(encoding="utf-8"))
    entry = entry_point(Path(orders["checkout"]))
    import_as_warm_calls_do(entry, orders["warm"])
    gc.freeze()  # the collector of a forked child leaves the parent's pages shared
    waiting, running = list(orders["calls"]), dict[int, Running]()
    with Path(orders["answers"]).open("a", encoding="utf-8") as answers:
        while waiting or running:
            while waiting and len(running) < orders["jobs"]:
                pid, begun = _start(entry, waiting.pop(0))
                running[pid] = begun
            for pid, status in _ended(running, orders["timeout_s"]):
                answer = _answer(running.pop(pid), status, orders)
                answers.write(json.dumps(answer) + "\n")
                answers.flush()


def entry_point(checkout: Path) -> str:
    """The console script as 'module:function'; the module must come from the checkout.

    Raises:
        SystemExit: The package that Python finds is another one.
    """
    project = tomllib.loads((checkout / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    entry: str = project["scripts"]["bottleneck"]
    found = importlib.import_module(re.split(r"[.:]", entry, maxsplit=1)[0]).__file__
    if found is None or not Path(found).resolve().is_relative_to(checkout.resolve()):
        raise SystemExit(f"error: the package of {checkout} was to answer, but Python imports {found}")
    return entry


def import_as_warm_calls_do(entry: str, warm: Sequence[Sequence[str]]) -> None:
    """Imports here, in the same order, the modules that the warm command lines import in a child."""
    for arguments in warm:
        reader, writer = os.pipe()
        pid = os.fork()
        if pid == 0:
            os.close(reader)
            null = os.open(os.devnull, os.O_RDWR)
            for stream in (0, 1, 2):
                os.dup2(null, stream)
            _exit_code_of(entry, arguments)
            with os.fdopen(writer, "w") as pipe:
                pipe.write("\n".join(sys.modules))
            os._exit(0)
        os.close(writer)
        with os.fdopen(reader) as pipe:
            names = pipe.read().split("\n")
        os.waitpid(pid, 0)
        for name in names:
            if name and name not in sys.modules:
                with suppress(Exception):  # some names are made up by their packages and cannot be imported
                    importlib.import_module(name)


def _start(entry: str, call: Mapping[str, Any]) -> tuple[int, Running]:
    folder = Path(os.environ["TMPDIR"])
    streams = (folder / f"stdout.{time.monotonic_ns()}", folder / f"stderr.{time.monotonic_ns()}")
    started = time.monotonic()
    sys.stdout.flush()
    sys.stderr.flush()
    pid = os.fork()
    if pid == 0:
        _become(entry, call, streams)
    return pid, Running(call, streams, started)


def _become(entry: str, call: Mapping[str, Any], streams: tuple[Path, Path]) -> None:
    """Turns this forked process into the call; does not return."""
    os.setsid()  # a late call is killed with its children
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    for number, path in enumerate(streams, start=1):
        os.dup2(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), number)
    arguments = call["arguments"]
    if call["fresh"]:
        module, function = entry.split(":")
        code = f"import sys; from {module} import {function}; sys.exit({function}())"
        os.execv(sys.executable, [sys.executable, "-P", "-c", code, *arguments])
    os._exit(_exit_code_of(entry, arguments))


def _exit_code_of(entry: str, arguments: Sequence[str]) -> int:
    """Runs the console script as the interpreter would, and returns the code that it would exit with."""
    sys.argv = ["bottleneck", *arguments]
    code: object = 1
    try:
        module, function = entry.split(":")
        script: Callable[[], object] = getattr(importlib.import_module(module), function)
        code = script()
    except SystemExit as leave:
        code = leave.code
    except BaseException:
        traceback.print_exc()
    if code is not None and not isinstance(code, int):
        print(code, file=sys.stderr)
        code = 1
    with suppress(OSError):
        sys.stdout.flush()
        sys.stderr.flush()
    return (code or 0) & 0xFF


def _ended(running: Mapping[int, Running], timeout_s: float) -> list[tuple[int, int]]:
    """The process ids and wait statuses of calls that have ended; kills those that are over their time."""
    while True:
        found = []
        for pid, each in running.items():
            done, status = os.waitpid(pid, os.WNOHANG)
            if done:
                found.append((pid, status))
            elif time.monotonic() - each.started > timeout_s and not each.is_late:
                each.is_late = True
                with suppress(ProcessLookupError):  # it has not called setsid yet, or has just ended
                    os.killpg(pid, signal.SIGKILL)
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
        if found:
            return found
        time.sleep(_POLL_S)


def _answer(ended: Running, status: int, orders: Mapping[str, Any]) -> dict[str, Any]:
    stdout, stderr = (path.read_bytes().decode(errors="backslashreplace") for path in ended.streams)
    for path in ended.streams:
        path.unlink()
    code = os.waitstatus_to_exitcode(status)
    end = f"exit {code}" if code >= 0 else f"signal {-code}"
    if ended.is_late:
        end = f"over {orders['timeout_s']:g} s"
    crash = _CRASH_FILE.search(stderr)
    return {
        "key": ended.call["key"],
        "end": end,
        "stdout": stdout,
        "stderr": stderr,
        "files": files_touched(ended.call["inputs"], ended.call["outputs"], orders["input_mtime"]),
        "crash": Path(crash[0]).read_text(encoding="utf-8") if crash and Path(crash[0]).exists() else None,
        "seconds": round(time.monotonic() - ended.started, 3),
    }


def files_touched(inputs: Sequence[str], outputs: Sequence[str], input_mtime: float) -> dict[str, str]:
    """The input files that no longer have their time of change, and the SHA-256 of each output file."""
    touched = {}
    for each in inputs:
        path = Path(each)
        for file in sorted(path.rglob("*")) if path.is_dir() else [path]:
            if file.is_file() and file.stat().st_mtime != input_mtime:
                touched[str(file)] = "input changed"
    for output in outputs:
        path = Path(output)
        touched[output] = hashlib.sha256(path.read_bytes()).hexdigest() if path.exists() else "not written"
    return touched


if __name__ == "__main__":
    main()
