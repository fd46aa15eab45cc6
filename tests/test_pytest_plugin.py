"""The fixture of the pytest plugin: the gate's verdict is the test's, and who does not use it does not notice it."""

import os
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from tests.ci.steps import ROOT

# Stands in for the gate: keeps its arguments, says something, ends with the code that the workload names.
STUB = """
import sys
from pathlib import Path
with Path("kept").open("a") as file:
    print(*sys.argv[1:], file=file)
print("said on", Path.cwd().name)
sys.exit(int(sys.argv[-1].split()[1]))
"""
CONFTEST = "import sys\nfrom bottleneck import pytest_plugin\npytest_plugin.COMMAND = (sys.executable, {stub!r})\n"


def run_pytest(folder: Path, code: str, *options: str, stub: str | None = STUB) -> "subprocess.CompletedProcess[str]":
    (folder / "test_it.py").write_text(code)
    (folder / "pytest.ini").write_text("[pytest]\n")
    if stub is not None:
        (folder / "stub.py").write_text(stub)
        (folder / "conftest.py").write_text(CONFTEST.format(stub=str(folder / "stub.py")))
    words = ["-m", "pytest", "-q", "-p", "no:cacheprovider", "-p", "bottleneck.pytest_plugin", "--color=no", *options]
    environment = {**os.environ, "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1", "OMP_NUM_THREADS": "1"}
    for name in ("CI", "PYTEST_ADDOPTS"):  # whoever runs these tests may have set them for their own run
        environment.pop(name, None)
    return subprocess.run(
        [sys.executable, *words], cwd=folder, env=environment, capture_output=True, text=True, check=False
    )


def gating(*workloads: str) -> str:
    calls = "\n".join(f"    bottleneck_gate({workload!r})" for workload in workloads)
    return f"def test_step(bottleneck_gate):\n{calls}\n"


def test_a_workload_within_its_lock_passes_and_the_gate_is_asked_for_counters_alone(tmp_path: Path) -> None:
    done = run_pytest(tmp_path, gating("step.py 0", "other.py 0 --set n=3"))
    assert done.returncode == 0, done.stdout
    assert (tmp_path / "kept").read_text().splitlines() == [
        "--only=counters --quiet --strict -- step.py 0",
        "--only=counters --quiet --strict -- other.py 0 --set n=3",
    ]


def test_a_regression_fails_the_test_with_what_the_gate_said_and_no_traceback(tmp_path: Path) -> None:
    done = run_pytest(tmp_path, gating("step.py 1"))
    assert done.returncode == 1
    assert f"said on {tmp_path.name}" in done.stdout
    assert "Traceback" not in done.stdout and "subprocess" not in done.stdout
    assert "--bottleneck-update" not in done.stdout


def test_without_a_lock_file_the_test_fails_and_says_how_to_make_it(tmp_path: Path) -> None:
    done = run_pytest(tmp_path, gating("step.py 5"))
    assert done.returncode == 1
    assert "pytest --bottleneck-update makes it" in done.stdout


def test_the_option_makes_lock_files_instead(tmp_path: Path) -> None:
    assert run_pytest(tmp_path, gating("step.py 0"), "--bottleneck-update").returncode == 0
    assert (tmp_path / "kept").read_text() == "--only=counters --quiet --update -- step.py 0\n"


def test_workloads_are_named_from_the_root_of_the_tests_wherever_a_test_stands(tmp_path: Path) -> None:
    code = "def test_step(bottleneck_gate, monkeypatch, tmp_path):\n    monkeypatch.chdir(tmp_path)\n"
    assert run_pytest(tmp_path, code + "    bottleneck_gate('step.py 0')\n").returncode == 0
    assert (tmp_path / "kept").exists()


def test_a_workload_that_begins_with_a_dash_is_no_option(tmp_path: Path) -> None:
    run_pytest(tmp_path, gating("--update 0"))
    assert (tmp_path / "kept").read_text() == "--only=counters --quiet --strict -- --update 0\n"


HEAVY = "{'torch', 'numpy', 'pandas', 'typer', 'rich', 'msgspec', 'matplotlib', 'scipy'}"


@pytest.mark.parametrize(("code", "is_light"), [("", True), ("import numpy;", False)], ids=["ours", "would be seen"])
def test_the_plugin_imports_nothing_heavy(code: str, is_light: bool) -> None:
    check = f"import sys, pytest; {code} import bottleneck.pytest_plugin; assert not {HEAVY} & set(sys.modules)"
    done = subprocess.run([sys.executable, "-c", check], capture_output=True, check=False)
    assert (done.returncode == 0) is is_light


def test_tests_that_do_not_ask_for_the_fixture_run_nothing(tmp_path: Path) -> None:
    done = run_pytest(tmp_path, "def test_other():\n    pass\n", "-W", "error")
    assert done.stdout.splitlines()[-1].startswith("1 passed")
    assert not (tmp_path / "kept").exists()


def test_the_package_declares_the_plugin() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    assert project["entry-points"]["pytest11"] == {"bottleneck": "bottleneck.pytest_plugin"}
