"""A pytest fixture that compares a workload's counters with its lock-file: ``def test_step(bottleneck_gate): …``.

Counters only, never time: a unit test has no base to take turns with. pytest loads this in every environment that has
the package, so it imports nothing of ours and nothing heavy; the gate itself is the command, in a process of its own.
"""

import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

# Without the working folder on sys.path (-P): a module there must not shadow one of ours.
COMMAND: Sequence[str] = (sys.executable, "-P", "-m", "bottleneck.cli", "gate")


def pytest_addoption(parser: pytest.Parser) -> None:
    """The option that makes lock-files."""
    parser.getgroup("bottleneck").addoption(
        "--bottleneck-update",
        action="store_true",
        help="Write the lock-files of the workloads that tests gate, instead of checking their steps.",
    )


@pytest.fixture
def bottleneck_gate(pytestconfig: pytest.Config) -> Callable[[str], None]:
    """A function that fails the test where a step counts more than the lock-file of its workload allows.

    It takes a command line as `bottleneck gate` does, relative to pytest's root folder: "examples/mlp.py", or
    "bench/step.py --set batch_size=8". A workload without a lock-file fails too: `pytest --bottleneck-update` makes it.
    """
    wish = "--update" if pytestconfig.getoption("--bottleneck-update") else "--strict"

    def gate(workload: str) -> None:
        __tracebackhide__ = True
        _gate(workload, wish, pytestconfig.rootpath)

    return gate


def _gate(workload: str, wish: str, root: Path) -> None:
    __tracebackhide__ = True
    command = [*COMMAND, "--only=counters", "--quiet", wish, "--", workload]
    done = subprocess.run(command, cwd=root, capture_output=True, text=True, check=False)  # noqa: S603 - our own command
    if done.returncode:
        pytest.fail(_failure_text(done, wish), pytrace=False)


def _failure_text(done: "subprocess.CompletedProcess[str]", wish: str) -> str:
    """Gives the gate's output, with a hint where it may help.

    The hint is on making the first lock-file where it may be missing.
    """
    is_undecided = done.returncode == 5 and wish == "--strict"
    hint = "\nno lock-file yet? pytest --bottleneck-update makes it; commit it" if is_undecided else ""
    return f"{done.stdout}{done.stderr}".strip() + hint
