from pathlib import Path
from typing import Any

import pytest

from bottleneck.calibrate import cache
from bottleneck.commands import run as run_module
from bottleneck.commands.run import _announce
from bottleneck.errors import UsageError
from bottleneck.harness.forms import parse_value
from bottleneck.harness.messages import Plan, Program, RecordOptions
from bottleneck.harness.target import make_program


@pytest.fixture(autouse=True)
def program(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    path = tmp_path / "my program.py"
    path.write_text("def workload(size=1): ...")
    return path


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ({"target": ""}, "nothing to run"),
        ({"settings": ("size",)}, "not NAME=VALUE"),
        ({"settings": ("1x=3",)}, "not NAME=VALUE"),
        ({"settings": ("sise=3",)}, "no parameter 'sise'"),
        ({"train": True}, "is a workload"),
        ({"arguments": ("--set", "size=3")}, "--set stands after my program.py"),
        ({"target": "package.module", "module": True, "settings": ("size=3",)}, "needs a workload"),
    ],
)
def test_options_that_make_no_sense_are_usage_errors(words: dict[str, Any], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        make_program(**{"target": "my program.py", **words})


@pytest.mark.parametrize("text", ["def workload(size=1): ...", "model, inputs = 1, 2"])
def test_an_option_after_a_file_without_arguments_is_told_to_stand_before_it(text: str) -> None:
    Path("wl.py").write_text(text)
    with pytest.raises(UsageError) as caught:
        make_program("wl.py", ("--set", "size=64"))
    assert caught.value.exit_code == 2
    assert "put it before the file: --set size=64 wl.py" in "\n".join(caught.value.lines())


def test_a_script_has_arguments_of_its_own() -> None:
    Path("train.py").write_text("import sys\nprint(sys.argv)")
    program = make_program("train.py", ("--set", "size=64"))
    assert (program.form, program.command) == ("script", ("train.py", "--set", "size=64"))


def test_a_plan_survives_the_command_line() -> None:
    program = make_program("my program.py", settings=("size=3",))
    plan = Plan("/out", program, RecordOptions(steps=7, changes=("compile",)))
    assert Plan.from_json(plan.to_json()) == plan == Plan.from_words(*plan.words)


def test_the_arguments_of_a_program_are_words_of_their_own() -> None:
    plan = Plan("/out", Program("-m", ("a b", "\udcff"), "script", module=True), RecordOptions())
    assert plan.words[1:] == ("a b", "\udcff")
    assert Plan.from_words(*plan.words) == plan == Plan.from_json(plan.to_json())


@pytest.mark.parametrize(
    ("text", "value"),
    [("3", 3), ("1e-3", 1e-3), ("True", True), ("None", None), ("(1, 2)", (1, 2)), ("bf16", "bf16"), ("", "")],
)
def test_a_setting_is_a_literal_or_else_text(text: str, value: Any) -> None:
    assert parse_value(text) == value


@pytest.mark.parametrize(
    ("target", "steps", "reason", "words"),
    [
        ("train.py", None, None, ["train.py; records up to 20 steps", "adds about 4 s"]),
        ("my program.py", 1, None, ["records 1 step after", "takes about 5 s, longer where a step does"]),
        ("train.py", None, "once per machine", ["adds about 9 s, 5 s of them", "(once per machine)"]),
        ("package.train", None, None, ["running package.train;"]),
    ],
)
def test_a_run_says_what_it_will_do_and_how_much_longer_it_takes(
    target: str,
    steps: int | None,
    reason: str | None,
    words: list[str],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(cache, "reason_to_measure", lambda threads: reason)
    monkeypatch.setattr(run_module, "_GPU_DRIVERS", ())
    Path("train.py").write_text("pass")
    program = make_program(target, module=target == "package.train")
    _announce(Plan("/out", program, RecordOptions(steps=steps)))
    told = capsys.readouterr().err
    assert told.count("\n") == 1 and all(each in told for each in words)
    assert ("CPU" in told) == (reason is not None)
    assert "pieces" not in told


def test_a_run_announces_the_seconds_for_pieces(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(cache, "reason_to_measure", lambda threads: None)
    Path("train.py").write_text("pass")
    _announce(Plan("/out", make_program("train.py"), RecordOptions()), 12.0)
    words = "adds about 16 s, up to 12 s of them to time pieces of the step alone\n"
    assert capsys.readouterr().err.endswith(words)


@pytest.mark.parametrize(
    ("settings", "threads"),
    [
        ({"OMP_NUM_THREADS": "3"}, 3),
        ({"OMP_NUM_THREADS": "2,1"}, 2),
        ({"OMP_NUM_THREADS": " 4 "}, 4),
        ({"OMP_NUM_THREADS": "3", "MKL_NUM_THREADS": "2"}, 2),
        ({"OMP_NUM_THREADS": "3", "MKL_NUM_THREADS": "all"}, 3),
        ({"OMP_NUM_THREADS": "0"}, None),
        ({"OMP_NUM_THREADS": ""}, None),
        ({}, None),
    ],
)
def test_a_run_asks_for_the_ceilings_of_the_threads_that_the_environment_sets(
    settings: dict[str, str], threads: int | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = []
    monkeypatch.setattr(cache, "reason_to_measure", asked.append)
    monkeypatch.setattr(run_module, "_GPU_DRIVERS", ())
    for name in ("OMP_NUM_THREADS", "MKL_NUM_THREADS"):
        monkeypatch.delenv(name, raising=False)
    for name, value in settings.items():
        monkeypatch.setenv(name, value)
    Path("train.py").write_text("pass")
    _announce(Plan("/out", make_program("train.py"), RecordOptions()))
    assert asked == [threads]
