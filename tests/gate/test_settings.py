from pathlib import Path

import pytest

from bottleneck.errors import UsageError
from bottleneck.gate.settings import find_pyproject, lock_path, read_settings, workload_name
from bottleneck.schema.counters import COUNTERS
from bottleneck.schema.gate_result import GateSettings, Limit

WHOLE = """
[tool.bottleneck.gate]
workloads = ["bench/train_step.py", "bench/decode.py --tokens 64"]
against = "origin/main"
lock = "perf/{workload}.toml"
alpha = 0.02
on_undecided = "fail"
on_new = "pass"
time_limit = "90s"
setup = "pip install -e . --no-deps"
seed = 3
env = { OMP_NUM_THREADS = "1" }

[tool.bottleneck.gate.budget]
step_ms = { max = "+5%", floor = "0.2ms" }
launches = "+2"
peak_bytes = "+10MB"
flops = "+1.5GFLOP"
"module:decoder.*.launches" = "+2"

[tool.bottleneck.gate.creep]
launches = "+10%"
"""


def settings(text: str, tmp_path: Path) -> GateSettings:
    file = tmp_path / "pyproject.toml"
    file.write_text(text)
    return read_settings(file)


def gate(line: str) -> str:
    return f"[tool.bottleneck.gate]\n{line}\n"


def budget(line: str) -> str:
    return f"[tool.bottleneck.gate.budget]\n{line}\n"


def limit(line: str, tmp_path: Path) -> Limit:
    named = settings(budget(line), tmp_path).budgets
    usual = read_settings(None).budgets
    return next(each for name, each in named.items() if each != usual.get(name))


def test_every_key_is_read(tmp_path: Path) -> None:
    read = settings(WHOLE, tmp_path)
    assert read.workloads == ("bench/train_step.py", "bench/decode.py --tokens 64")
    assert (read.against, read.lock, read.alpha) == ("origin/main", "perf/{workload}.toml", 0.02)
    assert (read.on_undecided, read.on_new, read.time_limit_s) == ("fail", "pass", 90.0)
    assert (read.setup, read.seed, read.environment) == ("pip install -e . --no-deps", 3, {"OMP_NUM_THREADS": "1"})
    assert read.budgets["step_us"] == Limit("step_us", relative=0.05, floor=200.0, text="+5%")
    assert read.budgets["launches"] == Limit("launches", absolute=2.0, text="+2")
    assert read.budgets["peak_bytes"].absolute == 10_000_000
    assert read.budgets["flops"].absolute == 1.5e9
    assert read.budgets["module:decoder.*.launches"].absolute == 2
    assert read.creep == {"launches": Limit("launches", relative=0.1, text="+10%")}


def test_without_a_table_every_counter_has_a_budget_and_so_has_the_step(tmp_path: Path) -> None:
    for read in (read_settings(None), settings("[project]\nname = 'x'\n", tmp_path)):
        assert set(read.budgets) == {*COUNTERS, "step_us"}
        assert read == GateSettings(budgets=read.budgets)
        exact = {name for name, limit in read.budgets.items() if not limit.allows(10_000, 10_001)}
        assert set(COUNTERS) - exact == {"peak_bytes", "allocated_bytes"}


def test_memory_may_grow_by_one_percent_and_no_more(tmp_path: Path) -> None:
    peak = read_settings(None).budgets["peak_bytes"]
    assert peak.allows(1_000_000, 1_010_000)
    assert not peak.allows(1_000_000, 1_010_001)


@pytest.mark.parametrize(
    ("line", "before", "allowed", "refused"),
    [
        ('launches = "+2"', 100, 102, 103),
        ('launches = "+3%"', 100, 103, 104),
        ('launches = "+3 %"', 100, 103, 104),
        ('launches = { max = "+3%", floor = "10" }', 100, 110, 111),
        ('launches = { max = "+3%" }', 100, 103, 104),
        ('h2d_bytes = "+1KiB"', 0, 1024, 1025),
        ('h2d_bytes = "+1.5kB"', 0, 1500, 1501),
        ('step_ms = "+0.5ms"', 1000, 1500, 1501),
        ('step_us = "+0.5ms"', 1000, 1500, 1501),
        ('step_ms = { max = "+10%", floor = "20us" }', 100, 120, 121),
    ],
)
def test_a_limit_allows_just_what_it_says(line: str, before: int, allowed: int, refused: int, tmp_path: Path) -> None:
    found = limit(line, tmp_path)
    assert found.allows(before, allowed)
    assert not found.allows(before, refused)
    assert found.text in line


BAD = {
    'launches = "3%"': "begins with +",
    'launches = "-3%"': "no limit",
    "launches = 3": "text in quotes",
    'launches = "+3MB"': "no unit but %",
    'launches = "+1.5"': "whole numbers",
    'launches = "+1e9"': "no limit",
    'launches = "+nan%"': "no limit",
    'launches = "+99999999999999999999"': "no limit",
    'launches = { max = "+3%", flor = "2" }': "floor",
    'launches = { max = "+3%", floor = "2%" }': "a floor is an amount",
    'launches = { floor = "2" }': "missing",
    'step_ms = "+3"': "has a unit",
    'peak_bytes = "+3ms"': "the units B",
    'lanches = "+0"': "launches",
    'step = "+3%"': "step_",
    '"module:decoder.*.flops" = "+0"': "module:PATTERN.COUNTER",
    '"module:launches" = "+0"': "module:PATTERN.COUNTER",
    'step_ms = "+3%"\nstep_us = "+2%"': "two limits",
}


@pytest.mark.parametrize("line", BAD)
def test_a_malformed_limit_is_told_by_its_name_with_what_is_wrong(line: str, tmp_path: Path) -> None:
    with pytest.raises(UsageError) as caught:
        settings(budget(line), tmp_path)
    assert line.replace('"', "")[:4] in caught.value.what.replace('"', "")
    assert "tool.bottleneck.gate.budget" in caught.value.what
    assert BAD[line] in caught.value.why
    assert caught.value.fix


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ('workload = ["a.py"]', "workloads"),
        ('workloads = "a.py"', "a list of texts"),
        ('workloads = [""]', "empty"),
        ('workloads = ["a.py \'b"]', "no command line"),
        ('workloads = ["a.py", "./a.py"]', "the same lock-file"),
        ('against = "--upload-pack=evil"', "a git ref"),
        ('against = ""', "a git ref"),
        ('lock = "perf.toml"', "{workload}"),
        ('lock = "../{workload}.toml"', "inside the repository"),
        ('lock = "/{workload}.toml"', "inside the repository"),
        ("alpha = 0", "a false alarm"),
        ("alpha = true", "a false alarm"),
        ("alpha = nan", "a false alarm"),
        ('on_undecided = "ignore"', "pass, warn or fail"),
        ('on_new = "Fail"', "pass, warn or fail"),
        ('time_limit = "soon"', "a duration"),
        ('time_limit = "0s"', "a duration"),
        ("time_limit = 300", "a text in quotes"),
        ("seed = -1", "whole number"),
        ("env = { A = 1 }", "a text in quotes"),
        ('env = { "A=B" = "1" }', "environment variable"),
        ("budget = []", "a table"),
        ("budgets = {}", "budget"),
    ],
)
def test_a_wrong_key_or_value_is_reported(line: str, said: str, tmp_path: Path) -> None:
    with pytest.raises(UsageError) as caught:
        settings(gate(line), tmp_path)
    assert "pyproject.toml" in caught.value.what
    assert said in caught.value.why
    assert caught.value.fix


@pytest.mark.parametrize(("key", "said"), [("step_ms", "no times"), ('"module:a.ops"', "no modules")])
def test_creep_of_what_no_anchor_holds_is_refused(key: str, said: str, tmp_path: Path) -> None:
    with pytest.raises(UsageError) as caught:
        settings(f'[tool.bottleneck.gate.creep]\n{key} = "+10%"\n', tmp_path)
    assert said in caught.value.why


@pytest.mark.parametrize("text", ["[tool", "tool = 3", "[tool]\nbottleneck = []", "x = " + "[" * 50_000])
def test_a_file_that_is_no_such_toml_is_wrong_usage(text: str, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"pyproject\.toml"):
        settings(text, tmp_path)


@pytest.mark.parametrize(
    ("words", "name"),
    [
        (("mlp.py",), "mlp"),
        (("examples/mlp.py",), "examples-mlp"),
        (("./examples/mlp.py",), "examples-mlp"),
        (("bench/decode.py", "--tokens", "64"), "bench-decode-tokens-64"),
        (("--set", "hidden=64", "--train", "mlp.py"), "mlp-hidden=64-train"),
        (("-m", "package.train"), "package.train"),
        (("../../etc/passwd",), "etc-passwd"),
        (("a b/ü.py", "$(rm -rf)"), "a-b-rm-rf"),
        (("???",), "workload"),
        ((), "workload"),
    ],
)
def test_a_workload_has_a_name_that_is_fit_for_a_file(words: tuple[str, ...], name: str) -> None:
    assert workload_name(words) == name


def test_long_names_stay_apart() -> None:
    long = [workload_name(("a.py", "--name", "x" * 300 + end)) for end in "yz"]
    assert len(set(long)) == 2
    assert max(map(len, long)) < 120


def test_the_lock_file_lies_where_the_settings_say(tmp_path: Path) -> None:
    assert lock_path(GateSettings(), tmp_path, "mlp") == tmp_path / ".bottleneck" / "mlp.lock.toml"


def test_the_nearest_pyproject_is_found_but_none_beyond_the_repository(tmp_path: Path) -> None:
    (tmp_path / "pyproject.toml").write_text("")
    inner = tmp_path / "repository" / "package"
    inner.mkdir(parents=True)
    assert find_pyproject(inner) == tmp_path.resolve() / "pyproject.toml"
    (tmp_path / "repository" / ".git").mkdir()
    assert find_pyproject(inner) is None
    (tmp_path / "repository" / "pyproject.toml").write_text("")
    assert find_pyproject(inner) == tmp_path.resolve() / "repository" / "pyproject.toml"
