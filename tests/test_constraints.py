"""constraints.txt pins every package that the package, its tests and its documentation need."""

import re
import tomllib
from pathlib import Path

from scripts.write_constraints import constraints

ROOT = Path(__file__).resolve().parents[1]
FREEZE = "numpy==2.4.6\npip==23.2.1\nPyYAML==6.0.3\ntorch==2.13.0+cpu\ntorch-bottleneck==0.1.0\n"


def key(name: str) -> str:
    """The name as package indexes compare it."""
    return re.sub(r"[-_.]+", "-", name).lower()


def pins() -> dict[str, str]:
    text = (ROOT / "constraints.txt").read_text(encoding="utf-8")
    return {key(name): version for name, version in re.findall(r"^([\w.-]+)==(\S+)$", text, re.MULTILINE)}


def test_every_requirement_of_the_package_its_tests_and_its_documentation_is_pinned() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    extras = project["optional-dependencies"]
    needed = [*project["dependencies"], *extras["run"], *extras["dev"], *extras["docs"]]
    missing = {re.match(r"[\w.-]+", row)[0] for row in needed if key(re.match(r"[\w.-]+", row)[0]) not in pins()}
    assert not missing, "refresh the file: python -m scripts.write_constraints"


def test_packages_that_only_requirements_need_are_pinned_too() -> None:
    assert {"sympy", "pluggy", "pillow"} <= set(pins())


def test_torch_is_pinned_without_the_build_of_one_machine() -> None:
    assert pins()["torch"] == "2.13.0"
    assert constraints(FREEZE).splitlines()[2:] == ["numpy==2.4.6", "PyYAML==6.0.3", "torch==2.13.0"]
