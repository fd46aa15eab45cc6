"""Fixtures of the tests of the harness, which run inside the process that it records."""

import sys
from collections import Counter

import pytest

from bottleneck.harness import torch_private
from bottleneck.harness.window import GUARD


@pytest.fixture(autouse=True)
def guard_without_history(monkeypatch: pytest.MonkeyPatch) -> None:
    """A guard that knows of no profiler and no scope of other tests in this process, which would keep windows shut."""
    monkeypatch.setattr(GUARD, "yielded", False)
    monkeypatch.setattr(GUARD, "_scopes", [])


@pytest.fixture(autouse=True)
def nothing_compiled_yet(monkeypatch: pytest.MonkeyPatch) -> None:
    """A process in which no other test has compiled anything: looks at values keep out of a program that compiles."""
    if (compiler := sys.modules.get("torch._dynamo.convert_frame")) is not None:
        monkeypatch.setattr(compiler, "FRAME_COMPILE_COUNTER", Counter())


@pytest.fixture(autouse=True)
def nothing_lost_yet(monkeypatch: pytest.MonkeyPatch) -> None:
    """A process in which no other test has looked for a private name of torch in vain."""
    monkeypatch.setattr(torch_private, "_lost", {})
