"""The programs of the how-to page, which the tests run as they stand."""

import importlib.util
import re
from pathlib import Path

import pytest

PAGE = Path(__file__).parents[2] / "docs" / "howto" / "notebooks-and-trainers.md"


def programs(heading: str) -> list[str]:
    """The code under a heading of the page."""
    (section,) = re.findall(rf"^## {re.escape(heading)}\n(.*?)(?=^## |\Z)", PAGE.read_text(), re.MULTILINE | re.DOTALL)
    return re.findall(r"^```python\n(.*?)^```$", section, re.MULTILINE | re.DOTALL)


def needs(*packages: str) -> pytest.MarkDecorator:
    """Skips a test where a package is missing; it is not imported, which could warn."""
    missing = [package for package in packages if importlib.util.find_spec(package) is None]
    return pytest.mark.skipif(bool(missing), reason=f"not installed: {', '.join(missing)}")
