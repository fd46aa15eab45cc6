"""Asks helper processes, so that what is broken in them cannot take the check-up down."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from bottleneck.harness.checkup.facts import Answer

_PATIENCE_S = 180.0
_MARK = "bottleneck-fact "
_LONGEST_WORDS = 300


def ask(names: Sequence[str], environment: Mapping[str, str], patience_s: float = _PATIENCE_S) -> list[Answer]:
    """The answers of the helpers of these names, which run at the same time; all are ended when we are."""
    asked = [_start(name, environment) for name in names]
    try:
        return [_hear(each, patience_s) for each in asked]
    finally:
        for each in asked:
            if each.poll() is None:
                os.killpg(each.pid, signal.SIGKILL)


def _start(name: str, environment: Mapping[str, str]) -> subprocess.Popen[str]:
    """A helper; the folder that we are in is not searched for modules (-P), so that no file there is run."""
    script = Path(__file__).with_name(f"{name}_helper.py")
    return subprocess.Popen(  # noqa: S603 - our own interpreter and our own script
        [sys.executable, "-P", str(script)],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        errors="replace",
        env=dict(environment),
        start_new_session=True,
    )


def _hear(process: subprocess.Popen[str], patience_s: float) -> Answer:
    try:
        out, err = process.communicate(timeout=patience_s)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        out, err = process.communicate()
        return Answer(read_facts(out), None, last_words(err))
    return Answer(read_facts(out), process.returncode, last_words(err))


def read_facts(text: str) -> dict[str, Any]:
    """What was told by stage; lines that are no facts are passed over."""
    found: dict[str, Any] = {}
    for line in text.splitlines():
        if line.startswith(_MARK):
            try:
                stage, facts = json.loads(line.removeprefix(_MARK))
            except (ValueError, TypeError):
                continue
            found[str(stage)] = facts
    return found


def last_words(text: str) -> str:
    """The last line that holds something: of a Python traceback that is the error."""
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return lines[-1][:_LONGEST_WORDS] if lines else ""
