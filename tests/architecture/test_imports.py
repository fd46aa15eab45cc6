"""Promises about imports: one way through the house, light at the front door, no quarrel with pandas over a name."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest

import bottleneck

PACKAGE = Path(bottleneck.__file__).parent
SYSTEM = {"errors", "units", "system"}
BASE = SYSTEM | {"schema", "_version"}
STAGES = {"trace", "devices", "cost", "analysis", "advice", "report"}
MACHINE = STAGES | {"mapping", "simulate", "predict", "pipeline", "harness"}
TASKS = {"calibrate", "doctor", "experiment", "compare", "gate", "judge", "watched"}
MAY_IMPORT = {
    "_version": set(),
    "errors": set(),
    "units": set(),
    "system": SYSTEM,
    "schema": BASE,
    **{stage: BASE | {stage} for stage in STAGES},
    "mapping": BASE | {"mapping"},
    "simulate": BASE | {"analysis", "simulate"},
    "pipeline": BASE | STAGES | {"mapping", "simulate", "predict"},
    "harness": BASE | STAGES | {"harness"},
    "predict": BASE | {"cost", "devices", "analysis", "predict"},
    **{task: BASE | MACHINE | {task} for task in TASKS},
    "doctor": BASE | MACHINE | {"doctor", "calibrate"},
    "gate": BASE | MACHINE | {"gate", "experiment", "compare"},
    "judge": BASE | MACHINE | {"judge", "gate", "experiment", "compare"},
    "recorder": BASE | MACHINE | {"calibrate", "experiment", "watched", "recorder"},
    "integrations": BASE | {"report", "harness", "recorder", "integrations"},
    "agent": BASE | MACHINE | {"experiment", "gate", "agent"},
    "commands": BASE | MACHINE | TASKS | {"recorder", "agent", "commands"},
    "cli": BASE | {"report", "commands"},
    "__init__": {"recorder", "harness", "integrations", "_version"},
    "__main__": {"cli"},
    "pytest_plugin": set(),
}
MAY_NAME_TORCH = {"harness", "calibrate", "doctor", "experiment"}


def _part(path: Path) -> str:
    return path.relative_to(PACKAGE).with_suffix("").parts[0]


def _imports(path: Path) -> set[str]:
    """Parts of the package that a file imports, at its top or inside a function."""
    found = set()
    for node in ast.walk(ast.parse(path.read_text())):
        names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
        if isinstance(node, ast.ImportFrom) and node.module:
            names = [node.module] if node.module != "bottleneck" else [f"bottleneck.{a.name}" for a in node.names]
        names += [text for text in _named_late(node) if text.startswith("bottleneck.")]
        found |= {name.split(".")[1] for name in names if name.startswith("bottleneck.")}
    return found - {"__version__"}


def _named_late(node: ast.AST) -> list[str]:
    """The module that a call of ``import_module`` names, or the beginning of its name where the rest is a value."""
    is_call = isinstance(node, ast.Call) and ast.unparse(node.func).rpartition(".")[2] in {
        "import_module",
        "__import__",
    }
    if not is_call or not node.args:
        return []
    argument = node.args[0]
    first = argument.values[0] if isinstance(argument, ast.JoinedStr) and argument.values else argument
    return [first.value] if isinstance(first, ast.Constant) and isinstance(first.value, str) else []


def _foreign(path: Path) -> set[str]:
    """Top-level packages of others that a file imports."""
    tree = ast.parse(path.read_text())
    names = {
        alias.name.split(".")[0] for node in ast.walk(tree) if isinstance(node, ast.Import) for alias in node.names
    }
    return names | {(node.module or "").split(".")[0] for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)}


def test_modules_import_only_from_the_layers_below_them() -> None:
    against = {}
    for path in PACKAGE.rglob("*.py"):
        found = _imports(path) - MAY_IMPORT[_part(path)]
        against |= {str(path): found} if found else {}
    assert against == {}


def test_only_packages_that_run_programs_name_torch_or_nvml() -> None:
    naming = {_part(path) for path in PACKAGE.rglob("*.py") if _foreign(path) & {"torch", "pynvml"}}
    assert naming <= MAY_NAME_TORCH
    assert "harness" in naming  # the probe sees what does import torch


def test_the_import_rule_would_catch_a_stage_that_imports_another(tmp_path: Path) -> None:
    file = tmp_path / "bad.py"
    late = 'import_module("bottleneck.report.page")\nimportlib.import_module(f"bottleneck.gate.{name}")\n'
    file.write_text(f"from bottleneck.cost.call import OpCall\nfrom bottleneck import trace\n{late}")
    assert _imports(file) == {"cost", "trace", "report", "gate"}
    assert not _imports(file) <= MAY_IMPORT["analysis"]


def run_fresh(code: str, *flags: str) -> subprocess.CompletedProcess[str]:
    """The result of running code in a new interpreter."""
    return subprocess.run([sys.executable, *flags, "-c", code], capture_output=True, text=True, check=False)


MEDIAN = "assert pandas.Series([3.0, 1.0, 2.0, float('nan')]).median() == 2.0"


@pytest.mark.parametrize(
    "order",
    ["import pandas, bottleneck", "import bottleneck, pandas", "import pandas"],
    ids=["after", "before", "alone"],
)
def test_pandas_works_beside_our_name_without_a_warning(order: str) -> None:
    done = run_fresh(f"{order}; {MEDIAN}; {MEDIAN.replace('median', 'mean')}", "-W", "error")
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""


STRICT = "import warnings\nwith warnings.catch_warnings():\n    warnings.simplefilter('error')\n    {}"


def test_pandas_imports_where_a_test_runner_has_made_warnings_errors_anew() -> None:
    done = run_fresh("import bottleneck\n" + STRICT.format("import pandas"))
    assert done.returncode == 0, done.stderr


def test_without_our_filter_that_import_would_fail() -> None:
    module = "import sys, types\nsys.modules['bottleneck'] = types.SimpleNamespace(__version__='0.1', __name__='x')\n"
    done = run_fresh(module + STRICT.format("import pandas"))
    assert "Pandas requires version" in done.stderr


def test_pandas_does_not_call_us_for_reductions() -> None:
    done = run_fresh("import pandas; from pandas.core import nanops; assert not nanops._USE_BOTTLENECK")
    assert done.returncode == 0, done.stderr


def test_other_warnings_of_pandas_still_reach_the_user() -> None:
    code = (
        "import bottleneck, warnings; warnings.warn(\"Pandas requires version '9' or newer of 'numexpr'\", UserWarning)"
    )
    assert run_fresh(code, "-W", "error").returncode == 1


def modules_after(code: str) -> set[str]:
    """Top-level modules in memory after running code in a new interpreter."""
    done = run_fresh(f"import sys\n{code}\nprint('MODULES', *sorted({{m.split('.')[0] for m in sys.modules}}))")
    line = next(line for line in done.stdout.splitlines() if line.startswith("MODULES"))
    return set(line.split()[1:])


HEAVY = {"torch", "pandas", "numpy", "scipy", "matplotlib", "msgspec", "jinja2", "pydantic"}
HELP = "from bottleneck.cli import _run\nassert _run({}) == 0"


@pytest.mark.parametrize(
    "arguments",
    [
        ["--help"],
        ["run", "--help"],
        ["report", "--help"],
        ["verify", "--help"],
        ["whatif", "--help"],
        ["mcp", "--help"],
        ["--version"],
        ["explain", "sync"],
    ],
    ids=str,
)
def test_help_imports_nothing_heavy(arguments: list[str]) -> None:
    assert not modules_after(HELP.format(arguments)) & HEAVY


def test_a_finished_analysis_is_shown_without_the_simulator(tmp_path: Path) -> None:
    saved = tmp_path / "analysis.json"
    saved.write_text((PACKAGE.parents[0] / "tests/golden/report/gpu_overhead.json").read_text(encoding="utf-8"))
    code = (
        HELP.format(["report", str(saved)])
        + "\nassert not any(m.startswith('bottleneck.simulate') for m in sys.modules)"
    )
    assert "bottleneck" in modules_after(code)


def test_a_trace_is_explained_with_it(traces: Path) -> None:
    file = traces / "AMD-AGI+TraceLens__tests__traces__h100__gaunernst_bert-small-uncased__1016001.json.gz"
    code = HELP.format(["report", str(file)]) + "\nassert 'bottleneck.simulate.whatif' in sys.modules"
    assert "bottleneck" in modules_after(code)


def test_rendering_imports_no_numerics_and_no_plots() -> None:
    seen = modules_after(
        "import bottleneck.report.analysis_document, bottleneck.report.comparison, bottleneck.report.checkup"
    )
    assert "rich" in seen  # the probe sees what a renderer does import
    assert not seen & (HEAVY - {"msgspec"})


def test_a_server_for_agents_starts_without_numerics() -> None:
    pytest.importorskip("mcp", reason="the SDK is not installed: pip install mcp")
    seen = modules_after("import bottleneck.agent.server")
    assert "pydantic" in seen  # the probe sees what the server does import
    assert not seen & (HEAVY - {"msgspec", "pydantic"})


def test_importing_the_package_costs_nothing_heavy() -> None:
    assert not modules_after("import bottleneck") & (HEAVY | {"typer", "rich"})


@pytest.mark.parametrize("use", ["bottleneck.step()", "from bottleneck import step; step()"], ids=["by name", "from"])
def test_ending_a_step_costs_nothing_heavy(use: str) -> None:
    seen = modules_after(f"import bottleneck\n{use}")
    assert "collections" in seen  # the probe sees what a first use does import
    assert not seen & (HEAVY | {"typer", "rich", "typing"})


def test_the_code_in_the_users_process_imports_nothing_heavy() -> None:
    entries = "harness.run_child", "harness.watch_child", "harness.script", "harness.workload", "experiment.child_entry"
    seen = modules_after("; ".join(f"import bottleneck.{entry}" for entry in entries))
    assert "dataclasses" in seen  # the probe sees what the records do import
    assert not seen & (HEAVY | {"typer", "rich", "psutil"})


RECORD = "from bottleneck import record"
EMPTY_BLOCK = "import bottleneck, tempfile\nwith bottleneck.record(tempfile.mkdtemp(), quiet=True): {}"


def test_naming_a_block_costs_nothing_heavy() -> None:
    assert not modules_after(RECORD) & (HEAVY | {"typer", "rich"})


def test_the_extension_of_notebooks_loads_without_ipython() -> None:
    seen = modules_after("import bottleneck\nassert hasattr(bottleneck, 'load_ipython_extension')")
    assert "shlex" in seen  # the probe sees what the module does import
    assert not seen & (HEAVY | {"IPython", "typer", "rich"})


def test_a_block_imports_neither_torch_nor_what_only_reports_need() -> None:
    seen = modules_after(EMPTY_BLOCK.format("pass"))
    assert "msgspec" in seen  # the probe sees what finishing the recording does import
    assert not seen & (HEAVY - {"msgspec"} | {"pynvml", "typer", "rich"})


def test_the_probe_would_see_what_a_block_imports() -> None:
    assert "numpy" in modules_after(EMPTY_BLOCK.format("import numpy"))


PROBE = "import bottleneck\nassert not hasattr(bottleneck, {!r})"


@pytest.mark.parametrize("name", ["nansum", "move_mean", "median", "stepp"])
def test_a_probe_for_functions_of_the_array_library_finds_none(name: str) -> None:
    done = run_fresh(f"import bottleneck\nbottleneck.step()\n{PROBE.format(name)}")
    assert done.returncode == 0, done.stderr


def test_the_probe_would_find_a_name_that_we_have() -> None:
    assert run_fresh(PROBE.format("step")).returncode == 1


def test_names_that_are_looked_up_late_are_listed() -> None:
    done = run_fresh("import bottleneck\nassert 'step' in dir(bottleneck)")
    assert done.returncode == 0, done.stderr


def test_report_never_imports_torch(traces: Path) -> None:
    file = traces / "AMD-AGI+TraceLens__tests__traces__h100__gaunernst_bert-small-uncased__1016001.json.gz"
    seen = modules_after(HELP.format(["report", str(file), "--format", "json"]))
    assert "pandas" in seen  # the probe sees what report does import
    assert not seen & {"torch", "pynvml"}
