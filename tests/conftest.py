"""Fixtures shared by all tests."""

from pathlib import Path

import pytest

_TRACES = Path(__file__).resolve().parents[2] / "shared" / "traces"


@pytest.fixture(scope="session")
def traces() -> Path:
    """The folder of public traces, which lies beside a development checkout and is not part of the repository."""
    if not _TRACES.is_dir():
        pytest.skip("the folder of public traces is not beside this checkout")
    return _TRACES
