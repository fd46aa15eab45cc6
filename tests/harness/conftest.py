"""Fixtures of the tests of the harness, which run inside the process that it records."""

import pytest

from bottleneck.harness.window import GUARD


@pytest.fixture(autouse=True)
def guard_without_history(monkeypatch: pytest.MonkeyPatch) -> None:
    """A guard that knows of no profiler and no scope of other tests in this process, which would keep windows shut."""
    monkeypatch.setattr(GUARD, "yielded", False)
    monkeypatch.setattr(GUARD, "_scopes", [])
