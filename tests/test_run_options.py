from pathlib import Path
from typing import Any

import pytest

from bottleneck.commands.run import RunOptions, make_plan
from bottleneck.errors import UsageError
from bottleneck.harness.folder import RecordingFolder
from bottleneck.harness.forms import parse_value
from bottleneck.harness.messages import Plan


@pytest.fixture(autouse=True)
def program(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    path = tmp_path / "my program.py"
    path.write_text("def workload(size=1): ...")
    return path


def plan_of(options: RunOptions) -> Plan:
    return make_plan(options, lambda: Path("/out"))


def test_the_folder_is_in_the_plan() -> None:
    assert plan_of(RunOptions("my program.py")).folder == "/out"


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (RunOptions(""), "nothing to run"),
        (RunOptions("my program.py", settings=("size",)), "not NAME=VALUE"),
        (RunOptions("my program.py", settings=("1x=3",)), "not NAME=VALUE"),
        (RunOptions("my program.py", settings=("sise=3",)), "no parameter 'sise'"),
        (RunOptions("my program.py", train=True), "is a workload"),
        (RunOptions("my program.py", arguments=("--set", "size=3")), "--set stands after my program.py"),
        (RunOptions("package.module", module=True, settings=("size=3",)), "needs a workload"),
    ],
)
def test_options_that_make_no_sense_are_usage_errors(options: RunOptions, message: str, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=message):
        make_plan(options, RecordingFolder(options.output, options.program_name).make)
    assert [path.name for path in tmp_path.iterdir()] == ["my program.py"]


@pytest.mark.parametrize("text", ["def workload(size=1): ...", "model, inputs = 1, 2"])
def test_an_option_after_a_file_without_arguments_is_told_to_stand_before_it(text: str) -> None:
    Path("wl.py").write_text(text)
    with pytest.raises(UsageError) as caught:
        plan_of(RunOptions("wl.py", arguments=("--set", "size=64")))
    assert caught.value.exit_code == 2
    assert "put it before the file: --set size=64 wl.py" in "\n".join(caught.value.lines())


def test_a_script_has_arguments_of_its_own() -> None:
    Path("train.py").write_text("import sys\nprint(sys.argv)")
    assert plan_of(RunOptions("train.py", arguments=("--set", "size=64"))).form == "script"


def test_a_plan_survives_the_command_line() -> None:
    plan = plan_of(RunOptions("my program.py", settings=("size=3",), steps=7))
    assert Plan.from_json(plan.to_json()) == plan


@pytest.mark.parametrize(
    ("text", "value"),
    [("3", 3), ("1e-3", 1e-3), ("True", True), ("None", None), ("(1, 2)", (1, 2)), ("bf16", "bf16"), ("", "")],
)
def test_a_setting_is_a_literal_or_else_text(text: str, value: Any) -> None:
    assert parse_value(text) == value
