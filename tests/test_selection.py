"""The tests that `make test` and `make test-slow` select."""

import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
FAMILIES = ("process", "compiler", "corpus", "statistics")

SUITE = """
import pytest

def test_quick(): ...

@pytest.mark.sample
def test_quick_in_a_sample(): ...

""" + "\n".join(
    f"""
@pytest.mark.{family}
class Test{family.title()}:
    def test_many(self): ...

    @pytest.mark.sample
    @pytest.mark.parametrize("case", [1, 2])
    def test_few(self, case): ...
"""
    for family in FAMILIES
)


def collected(folder: Path, *selection: str) -> list[str]:
    command = [sys.executable, "-m", "pytest", "--collect-only", "-q", "-p", "no:cacheprovider", *selection]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=True)
    return [line for line in done.stdout.splitlines() if "::" in line]


def selection_of(target: str) -> list[str]:
    """The `-m` expression of a target of the Makefile."""
    recipe = re.search(rf"^{target}:.*\n\t(.*)", (ROOT / "Makefile").read_text(encoding="utf-8"), re.MULTILINE)
    expression = re.search(r'-m ("[^"]+"|\w+)(?!.* -m )', recipe[1])
    return ["-m", expression[1].strip('"')]


def test_the_two_targets_run_every_test_exactly_once_and_a_sample_of_each_family_early(tmp_path: Path) -> None:
    (tmp_path / "conftest.py").write_text((ROOT / "tests" / "conftest.py").read_text(encoding="utf-8"))
    (tmp_path / "pytest.ini").write_text(
        "[pytest]\nmarkers =" + "".join(f"\n  {name}" for name in (*FAMILIES, "sample", "slow"))
    )
    (tmp_path / "test_suite.py").write_text(SUITE)
    quick, slow = (collected(tmp_path, *selection_of(target)) for target in ("test", "test-slow"))
    assert sorted(quick + slow) == sorted(collected(tmp_path))
    assert {name.rpartition("::")[2] for name in slow} == {"test_many"}
    assert {name.split("::")[1] for name in quick if name.endswith("[1]")} == {
        f"Test{name.title()}" for name in FAMILIES
    }


def test_each_slow_family_has_a_sample() -> None:
    texts = [path.read_text(encoding="utf-8") for path in (ROOT / "tests").rglob("test_*.py") if path != Path(__file__)]
    for family in FAMILIES:
        assert any(f"mark.{family}" in text and "mark.sample" in text for text in texts), family
