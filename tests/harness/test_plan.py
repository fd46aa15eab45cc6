import re
from pathlib import Path
from typing import Any

import pytest

from bottleneck.commands.plan import RunOptions, make_plan
from bottleneck.errors import UsageError
from bottleneck.harness.forms import parse_value
from bottleneck.harness.notes import Plan


@pytest.fixture(autouse=True)
def program(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    path = tmp_path / "my program.py"
    path.write_text("def workload(size=1): ...")
    return path


def test_the_folder_has_a_new_name_each_time(program: Path) -> None:
    options = RunOptions("my program.py")
    folders = {make_plan(options).folder for _ in range(3)}
    assert len(folders) == 3
    for folder in folders:
        assert re.fullmatch(r"bottleneck-my-program-\d{8}-\d{6}-[0-9a-f]{4}", Path(folder).name)
        assert Path(folder).is_absolute() and not any(Path(folder).iterdir())


def test_a_folder_that_is_not_empty_is_refused(tmp_path: Path) -> None:
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "precious.txt").write_text("mine")
    with pytest.raises(UsageError, match="not empty"):
        make_plan(RunOptions("my program.py", output=Path("out")))
    assert (tmp_path / "out" / "precious.txt").exists()


def test_force_replaces_an_old_recording_and_nothing_else(tmp_path: Path) -> None:
    out = tmp_path / "out"
    out.mkdir()
    for name in ("recording.json", "trace.rank0.json.gz", "trace.rank7.json.gz", "analysis.json", ".notes.rank0.json"):
        (out / name).write_text("old")
    (out / "precious.txt").write_text("mine")
    make_plan(RunOptions("my program.py", output=out, force=True))
    assert [path.name for path in out.iterdir()] == ["precious.txt"]


def test_a_folder_that_cannot_be_made_is_found_before_the_program_starts(program: Path) -> None:
    with pytest.raises(UsageError, match="cannot make"):
        make_plan(RunOptions("my program.py", output=program / "below a file"))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (RunOptions(""), "nothing to run"),
        (RunOptions("my program.py", settings=("size",)), "not NAME=VALUE"),
        (RunOptions("my program.py", settings=("1x=3",)), "not NAME=VALUE"),
        (RunOptions("my program.py", settings=("sise=3",)), "no parameter 'sise'"),
        (RunOptions("my program.py", train=True), "is a workload"),
        (RunOptions("package.module", module=True, settings=("size=3",)), "needs a workload"),
    ],
)
def test_options_that_make_no_sense_are_usage_errors(options: RunOptions, message: str, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=message):
        make_plan(options)
    assert [path.name for path in tmp_path.iterdir()] == ["my program.py"]


def test_a_plan_survives_the_command_line() -> None:
    plan = make_plan(RunOptions("my program.py", settings=("size=3",), steps=7))
    assert Plan.from_json(plan.to_json()) == plan


@pytest.mark.parametrize(
    ("text", "value"),
    [("3", 3), ("1e-3", 1e-3), ("True", True), ("None", None), ("(1, 2)", (1, 2)), ("bf16", "bf16"), ("", "")],
)
def test_a_setting_is_a_literal_or_else_text(text: str, value: Any) -> None:
    assert parse_value(text) == value
