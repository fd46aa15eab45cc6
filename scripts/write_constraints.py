"""Writes constraints.txt: the version of every package in a fresh environment for the package, its tests and its docs.

    python -m scripts.write_constraints                            install the newest versions and write them
    python -m scripts.write_constraints --environment .venv        write those of an environment that the tests ran in

Run all tests with the new versions before committing the file.
"""

import argparse
import re
import subprocess
import sys
import tempfile
import venv
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
TARGET = ROOT / "constraints.txt"
HEADER = """\
# Every package that the tests ran with; `pip install -c constraints.txt …` gives the same versions.
# Written by `python -m scripts.write_constraints`.
"""
# The package itself, and those that an environment is made with.
_LEFT_OUT = {"torch-bottleneck", "pip", "setuptools", "wheel"}


def constraints(freeze: str) -> str:
    """The file for the lines that `pip freeze` prints, without our own package.

    A local version is that of a build for one kind of machine (`2.13.0+cpu`) and is left out: each machine has its own.
    """
    pins = dict(re.findall(r"^([\w.-]+)==([^+\s]+)", freeze, re.MULTILINE))
    rows = [f"{name}=={version}" for name, version in pins.items() if name.lower() not in _LEFT_OUT]
    return HEADER + "\n".join(sorted(rows, key=str.lower)) + "\n"


def freeze(environment: Path) -> str:
    """The packages of an environment, a line each."""
    command = [environment / "bin" / "python", "-m", "pip", "list", "--format=freeze", "--disable-pip-version-check"]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout  # noqa: S603 - our own text


def freeze_fresh() -> str:
    """The packages of an environment into which the newest versions are installed now."""
    with tempfile.TemporaryDirectory() as folder:
        venv.create(folder, with_pip=True)
        install = [Path(folder) / "bin" / "python", "-m", "pip", "install", "--quiet", f"{ROOT}[run,dev,docs]"]
        subprocess.run(install, check=True)  # noqa: S603 - our own text
        return freeze(Path(folder))


def main() -> int:
    """Writes the file."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--environment", type=Path, help="take the versions of this virtual environment")
    environment = parser.parse_args().environment
    TARGET.write_text(constraints(freeze_fresh() if environment is None else freeze(environment)), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
