"""Skips the tests of CI files on machines without the tools that the services have."""

import shutil

import pytest

NEEDED = ("bash", "git", "jq", "unzip", "iconv")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    missing = [name for name in NEEDED if shutil.which(name) is None]
    for item in items:
        if missing and "tests/ci/" in item.nodeid:
            item.add_marker(pytest.mark.skip(reason=f"needs {', '.join(missing)}"))
