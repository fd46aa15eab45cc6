"""The front door: exit codes, the three-line error, and the report command on small files."""

import json
import os
import re
import shlex
import signal
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import typer

from bottleneck import __version__, cli, report
from bottleneck.cli import COMMANDS, _run, build_app
from bottleneck.commands.analysis_options import usual_jobs
from bottleneck.commands.report_options import completion_of, typed_devices
from bottleneck.commands.verify import CHANGE_NAMES
from bottleneck.devices.match import device_by_name
from bottleneck.errors import BottleneckError, TraceError, UndecidedError, UsageError, WorkloadError
from bottleneck.experiment.interventions import CHANGES
from bottleneck.schema.linked_trace import Trace
from bottleneck.system.interrupts import answered
from bottleneck.trace.read import read_trace
from tests.builders import kernel, launch, op, step, write_trace


@pytest.fixture
def trace(tmp_path: Path) -> Path:
    """Two steps of one op that launches one kernel."""
    events = [step(1, 0, 100), step(2, 100, 100)]
    for index, start in enumerate((10, 110)):
        events += [op("aten::relu", start, 20, dims=[[4096, 4096]]), launch(index + 1, start + 5, 5)]
        events.append(kernel(index + 1, start + 20, 50, "vectorized_elementwise_kernel<4, relu>"))
    return write_trace(tmp_path / "trace.json", events)


def test_a_missing_file_is_exit_3_with_what_and_fix(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    assert _run(["report", str(tmp_path / "none.json")]) == 3
    error = capsys.readouterr().err
    assert error.startswith("error: ")
    assert "none.json" in error


def test_a_file_that_is_no_trace_is_exit_3_without_a_python_traceback(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    (tmp_path / "no.json").write_text('{"a": 1}')
    assert _run(["report", str(tmp_path / "no.json")]) == 3
    assert "Traceback" not in capsys.readouterr().err


def test_an_unknown_option_is_exit_2(capsys: pytest.CaptureFixture[str]) -> None:
    assert _run(["report", "--nonsense"]) == 2
    assert "--nonsense" in capsys.readouterr().err


def test_an_unknown_device_is_exit_2_and_names_near_ones(capsys: pytest.CaptureFixture[str], trace: Path) -> None:
    assert _run(["report", str(trace), "--device", "NVIDIA H100 80GB HBM4"]) == 2
    assert "NVIDIA H100 80GB HBM3" in capsys.readouterr().err


@pytest.mark.parametrize("word", ["--version", "-V", "version"])
def test_the_version_is_printed(capsys: pytest.CaptureFixture[str], word: str) -> None:
    assert _run([word]) == 0
    assert __version__ in capsys.readouterr().out


def test_the_package_runs_as_a_module(trace: Path) -> None:
    command = [sys.executable, "-m", "bottleneck", "report", str(trace), "--format", "json"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    assert json.loads(done.stdout)["version"] == __version__


def test_json_goes_to_stdout_and_nothing_else_does(capsys: pytest.CaptureFixture[str], trace: Path) -> None:
    assert _run(["report", str(trace), "--format", "json"]) == 0
    analysis = json.loads(capsys.readouterr().out)
    assert analysis["schema"] == "bottleneck/analysis/2"
    assert analysis["version"] == __version__
    assert analysis["steps"]["count"] == 2


def test_all_counts_the_whole_trace_as_one_step(capsys: pytest.CaptureFixture[str], trace: Path) -> None:
    assert _run(["report", str(trace), "--format", "json", "--all"]) == 0
    assert json.loads(capsys.readouterr().out)["steps"]["count"] == 1


def test_a_device_on_the_command_line_overrules_the_trace(capsys: pytest.CaptureFixture[str], trace: Path) -> None:
    assert _run(["report", str(trace), "--format", "json", "--device", "NVIDIA A30"]) == 0
    assert json.loads(capsys.readouterr().out)["device"]["name"] == "NVIDIA A30"


def test_a_saved_analysis_is_rendered_again_to_the_same_json(
    capsys: pytest.CaptureFixture[str], trace: Path, tmp_path: Path
) -> None:
    saved = tmp_path / "analysis.json"
    assert _run(["report", str(trace), "--format", "json", "-o", str(saved)]) == 0
    assert capsys.readouterr().out == ""
    assert _run(["report", str(saved), "--format", "json"]) == 0
    assert capsys.readouterr().out == saved.read_text()


@pytest.mark.parametrize("suffix", [".png", ".svg", ".pdf"])
def test_the_roofline_is_drawn_where_asked(trace: Path, tmp_path: Path, suffix: str) -> None:
    picture = tmp_path / f"roofline{suffix}"
    assert _run(["report", str(trace), "--plot", f"roofline={picture}", "-o", str(tmp_path / "out.txt")]) == 0
    head = picture.read_bytes()[:200]
    assert {".png": b"\x89PNG", ".svg": b"<?xml", ".pdf": b"%PDF"}[suffix] == head[: 5 if suffix == ".svg" else 4]


def test_a_roofline_of_another_kind_is_refused(capsys: pytest.CaptureFixture[str], trace: Path, tmp_path: Path) -> None:
    assert _run(["report", str(trace), "--plot", f"roofline={tmp_path / 'roofline.bmp'}"]) == 2
    assert ".pdf" in capsys.readouterr().err


@pytest.mark.parametrize("text", ["queue=q.png", "roofline", "roofline=", "=r.png"])
def test_a_plot_that_names_no_picture_is_refused_with_the_kinds(
    capsys: pytest.CaptureFixture[str], trace: Path, text: str
) -> None:
    assert _run(["report", str(trace), "--plot", text]) == 2
    assert "kinds: roofline, ledger, timeline, ranks" in capsys.readouterr().err


@pytest.mark.parametrize("kind", ["roofline", "ledger", "timeline"])
def test_a_picture_that_cannot_be_written_costs_no_report(
    capsys: pytest.CaptureFixture[str], trace: Path, tmp_path: Path, kind: str
) -> None:
    assert _run(["report", str(trace), "--plot", f"{kind}={tmp_path / 'absent' / 'p.png'}"]) == 0
    out, err = capsys.readouterr()
    assert "MEMORY-BOUND" in out
    assert err.startswith("warning: ") and " is left out: " in err and "No such file or directory" in err


@pytest.mark.parametrize("failure", [ValueError, MemoryError, ImportError])
def test_a_picture_that_cannot_be_drawn_costs_no_report(
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    trace: Path,
    tmp_path: Path,
    failure: type[Exception],
) -> None:
    def draw(*_: object) -> None:
        raise failure("no ink")

    monkeypatch.setattr(report, "PICTURES", {"roofline": draw})
    assert _run(["report", str(trace), "--plot", f"roofline={tmp_path / 'p.png'}"]) == 0
    out, err = capsys.readouterr()
    assert "MEMORY-BOUND" in out and f"{failure.__name__}: no ink" in err


@pytest.mark.parametrize(
    ("name", "start"), [("r.md", "#"), ("r.json", "{"), ("R.JSON", "{"), ("r.txt", "MEMORY"), ("r", "MEMORY")]
)
def test_the_suffix_of_the_output_chooses_the_format(trace: Path, tmp_path: Path, name: str, start: str) -> None:
    assert _run(["report", str(trace), "-o", str(tmp_path / name)]) == 0
    assert (tmp_path / name).read_text().startswith(start)


def test_open_writes_the_page_and_shows_it(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, trace: Path, tmp_path: Path
) -> None:
    import webbrowser

    seen: list[str] = []
    monkeypatch.setattr(webbrowser, "open", lambda address: bool(seen.append(address)) or len(seen) == 1)
    for said in ("opened file:", "found no browser; open this yourself: file:"):
        assert _run(["report", str(trace), "--open", "-o", str(tmp_path / "page.html")]) == 0
        assert said in capsys.readouterr().err
    assert seen == 2 * [(tmp_path / "page.html").as_uri()]
    assert (tmp_path / "page.html").read_text().startswith("<!doctype html>")
    assert _run(["report", str(trace), "--open", "--format", "json"]) == 2


def test_an_explicit_format_goes_before_the_suffix(trace: Path, tmp_path: Path) -> None:
    assert _run(["report", str(trace), "-o", str(tmp_path / "r.md"), "--format", "json"]) == 0
    assert json.loads((tmp_path / "r.md").read_text())["version"] == __version__


def test_a_command_without_markdown_writes_json_and_text_by_suffix(tmp_path: Path, trace: Path) -> None:
    for name in ("d.json", "d.txt"):
        assert _run(["doctor", str(trace), "-o", str(tmp_path / name)]) == 0
    assert json.loads((tmp_path / "d.json").read_text())
    assert not (tmp_path / "d.txt").read_text().startswith(("{", "#"))
    assert _run(["doctor", str(trace), "-o", str(tmp_path / "d.md")]) == 2


def test_a_reader_that_goes_away_causes_no_traceback(trace: Path) -> None:
    read, write = os.pipe()
    os.close(read)
    command = [sys.executable, "-m", "bottleneck.cli", "report", str(trace)]
    done = subprocess.run(command, stdout=write, stderr=subprocess.PIPE, text=True, check=False)
    os.close(write)
    assert done.returncode in {0, 141}
    assert "Traceback" not in done.stderr


def test_every_command_has_help_and_stands_in_the_reference(capsys: pytest.CaptureFixture[str]) -> None:
    page = (Path(__file__).parents[1] / "docs" / "reference" / "cli.md").read_text()
    for name, _ in COMMANDS:
        assert _run([name, "--help"]) == 0
        assert len(capsys.readouterr().out) > 200
        assert f"`bottleneck {name}" in page


@pytest.mark.parametrize("name", [name for name, _ in COMMANDS])
def test_help_of_every_command_ends_with_examples_that_parse(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    assert _run(["help", name]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line for line in lines if len(line) > 80 or "<int" in line] == []
    assert "Examples:" in lines, "the docstring needs a paragraph that begins with \\b and holds an example a line"
    examples = lines[lines.index("Examples:") + 1 :]
    assert any(line.startswith(f"  bottleneck {name}") for line in examples)
    for line in examples:
        command, _, _ = line.strip().partition("   ")
        parse(*shlex.split(command)[1:])


def parse(name: str, *arguments: str) -> None:
    """Parses the arguments of a command without running it; an exception for one that there is not."""
    group: Any = typer.main.get_command(build_app())
    group.commands[name].make_context(name, list(arguments))


def test_an_example_with_an_option_that_there_is_not_would_be_found() -> None:
    with pytest.raises(Exception, match="--colour"):
        parse("report", "--colour", "red")


def test_the_list_of_commands_cuts_no_first_line(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    assert _run(["help"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line for line in lines if len(line) > 80] == []
    rows = lines[lines.index("Commands:") + 1 :]
    assert [(row.split()[0], row[-3:] == "...") for row in rows] == [(name, False) for name, _ in COMMANDS]


@pytest.mark.parametrize(
    ("typed", "meant"),
    [
        (["train.py", "--lr", "3"], "bottleneck run train.py --lr 3?"),
        (["my trace.json.gz"], "bottleneck report 'my trace.json.gz'?"),
        (["reprot", "a.json"], "bottleneck report a.json?"),
        (["xyzzy"], "bottleneck --help?"),
    ],
)
def test_what_is_no_command_is_exit_2_with_the_line_that_was_meant(
    capsys: pytest.CaptureFixture[str], typed: list[str], meant: str
) -> None:
    assert _run(typed) == 2
    assert f"did you mean: {meant}" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("asked", "names"), [("1:2", ["ProfilerStep#2"]), ("-2:", ["ProfilerStep#1", "ProfilerStep#2"])]
)
def test_steps_are_chosen_by_position(
    capsys: pytest.CaptureFixture[str], trace: Path, asked: str, names: list[str]
) -> None:
    assert _run(["report", str(trace), "--format", "json", "--steps", asked]) == 0
    each = json.loads(capsys.readouterr().out)["steps"]["each"]
    assert [step["name"] for step in each if step["set_aside"] is None] == names
    assert {step["set_aside"] for step in each} <= {None, f"not in --steps {asked}"}


@pytest.mark.parametrize(
    ("asked", "words"),
    [
        (["--steps", "1"], "1 is no range of steps"),
        (["--steps", "0:2:1"], "no range of steps"),
        (["--steps", "0:3"], "has 2 steps, numbered from 0"),
        (["--steps", "-3:"], "out of range"),
        (["--steps", "1:1"], "out of range"),
        (["--steps", "0:1", "--all"], "exclude each other"),
        (["--steps", "0:1", "--window", ":1ms"], "exclude each other"),
        (["--window", "1:2"], "1:2 is no stretch of time"),
        (["--window", "2ms"], "2ms is no stretch of time"),
        (["--window", "3us:2us"], "out of range"),
        (["--window", "99s:"], "out of range"),
    ],
)
def test_steps_that_there_are_not_are_exit_2(
    capsys: pytest.CaptureFixture[str], trace: Path, asked: list[str], words: str
) -> None:
    assert _run(["report", str(trace), *asked]) == 2
    assert words in capsys.readouterr().err


def test_steps_of_a_trace_without_any_are_exit_2(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    bare = write_trace(tmp_path / "bare.json", [op("aten::relu", 10, 20)])
    assert _run(["report", str(bare), "--steps", "0:1"]) == 2
    assert "none were found" in capsys.readouterr().err


def test_steps_of_a_saved_analysis_are_exit_2(capsys: pytest.CaptureFixture[str], trace: Path, tmp_path: Path) -> None:
    saved = tmp_path / "analysis.json"
    assert _run(["report", str(trace), "--format", "json", "-o", str(saved)]) == 0
    for option in (("--steps", "0:1"), ("--window", "1us:")):
        assert _run(["report", str(saved), *option]) == 2
        assert "chosen when it was made" in capsys.readouterr().err


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_command_that_a_signal_ends_says_which(
    number: signal.Signals, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def interrupted() -> None:
        with answered():
            signal.raise_signal(number)

    # One that our caller ignores would stay ignored.
    usual = signal.signal(number, signal.SIG_DFL)
    monkeypatch.setitem(sys.modules, "bottleneck.commands.wait", SimpleNamespace(wait_command=interrupted))
    monkeypatch.setattr(cli, "COMMANDS", (("wait", {}), *cli.COMMANDS))
    try:
        with pytest.raises(SystemExit) as left:
            cli.main(["wait"])
    finally:
        signal.signal(number, usual)
    assert left.value.code == 128 + number
    assert capsys.readouterr().err == "bottleneck: interrupted\n"


@pytest.mark.parametrize(
    ("kind", "code"), [(BottleneckError, 70), (UsageError, 2), (TraceError, 3), (WorkloadError, 4), (UndecidedError, 5)]
)
def test_a_command_ends_with_the_code_of_its_error(
    kind: type[BottleneckError], code: int, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def fail() -> None:
        raise kind("it went wrong", fix="do it right")

    monkeypatch.setitem(sys.modules, "bottleneck.commands.fail", SimpleNamespace(fail_command=fail))
    monkeypatch.setattr(cli, "COMMANDS", (("fail", {}), *cli.COMMANDS))
    assert _run(["fail"]) == code
    assert capsys.readouterr() == ("", "error: it went wrong\n  fix: do it right\n")


def completed(shell: str, words: str) -> str:
    """What the shell is offered for the last of the words; its own protocol asks for it."""
    asked = {
        "_BOTTLENECK_COMPLETE": f"complete_{shell}",
        "COMP_WORDS": words,
        "COMP_CWORD": str(len(words.split(" ")) - 1),
        "_TYPER_COMPLETE_ARGS": words,
        "_TYPER_COMPLETE_FISH_ACTION": "get-args",
    }
    command = [sys.executable, "-c", "from bottleneck.cli import main; main()"]
    done = subprocess.run(command, env={**os.environ, **asked}, capture_output=True, text=True, check=True)
    return done.stdout


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_a_shell_completes_commands_and_their_options(shell: str) -> None:
    assert "calibrate" in completed(shell, "bottleneck ca") and "report" not in completed(shell, "bottleneck ca")
    assert "--strict" in completed(shell, "bottleneck run --str")
    assert {"--install-completion", "--show-completion"} <= set(completed("bash", "bottleneck --").split())


OFFERED = {
    "bottleneck explain input-w": {"input-wait"},
    "bottleneck explain unmodelled": {"unmodelled-work"},
    "bottleneck explain overhead.py": {"overhead.python"},
    "bottleneck verify --try compile-r": {"compile-reduce-overhead"},
    "bottleneck verify --try tf32,torchs": {"tf32,torchscript"},
    "bottleneck verify --try al": {"all"},
    "bottleneck verify --device h20": {"h200", "h20", "h20-3e", "h200-NVL"},
    "bottleneck predict --device A100,H100-S": {"A100,H100-SXM"},
    "bottleneck report --device c": {"cpu"},
    "bottleneck whatif --device RTX-3090-": {"RTX-3090-Ti"},
}


@pytest.mark.parametrize("words", OFFERED)
def test_a_shell_completes_the_names_that_a_command_takes(words: str) -> None:
    assert set(completed("bash", words).split("\n")) - {""} == OFFERED[words]


def test_a_name_that_the_list_has_is_not_offered_again() -> None:
    assert completion_of(lambda: ("A100", "H100"))("h100,") == ["h100,A100"]
    assert completion_of(lambda: ("A100", "H100"))("") == ["A100", "H100"]


def test_every_device_that_is_offered_is_one_and_needs_no_quotes() -> None:
    assert {"T4", "A100", "H100-SXM", "RTX-4090", "MI300X"} <= {
        name.removeprefix("Instinct-") for name in typed_devices()
    }
    for name in typed_devices():
        assert device_by_name(name).name, name
        assert re.fullmatch(r"[\w-]+", name), name


def test_every_change_that_can_be_tried_is_offered_and_no_other() -> None:
    assert tuple(CHANGES) == CHANGE_NAMES


def test_completing_a_name_loads_neither_torch_nor_the_changes() -> None:
    code = (
        "import sys\n"
        "from bottleneck.commands import explain, report_options, verify\n"
        "explain._names(); report_options.typed_devices()\n"
        "print([name for name in ('torch', 'numpy', 'pandas', 'rich', 'bottleneck.experiment') if name in sys.modules])"
    )
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout == "[]\n"


# Arguments -> exit code, what happened, what to do next.
MISUSE: dict[str, tuple[list[str], int, str, str]] = {
    "an option that there is not": (
        ["report", "--nonsense"], 2, "bottleneck report has no option --nonsense", "bottleneck report --help"),
    "a misspelt option": (["gate", "--updat"], 2, "bottleneck gate has no option --updat", "did you mean --update?"),
    "an option before the command": (["-x"], 2, "bottleneck has no option -x", "bottleneck --help"),
    "no argument": (["compare"], 2, "bottleneck compare: missing argument 'A'", "bottleneck compare [OPTIONS] {A} {B}"),
    "an argument too many": (["runs", "x"], 2, "got unexpected extra argument(s) (x)", "bottleneck runs --help"),
    "a word for a number": (["run", "--steps", "x", "a.py"], 2, "'x' is not a whole number", "bottleneck run --help"),
    "a value that there is not": (["gate", "--only", "x"], 2, "'x' is not one of 'counters', 'time'", "gate --help"),
    "a trace to run": (["run", "trace.json"], 2, "trace.json is no program", "bottleneck report trace.json"),
    "a recording to run": (["run", "recording"], 2, "recording is a recording", "bottleneck report recording"),
    "a program to report on": (["report", "wl.py"], 3, "wl.py is a program, not a trace", "bottleneck run wl.py"),
    "a program to compare": (["compare", "wl.py", "wl.py"], 3, "wl.py is a program", "bottleneck run wl.py"),
    "no file to sweep": (["sweep", "gone.py"], 2, "there is no file gone.py", "check the path"),
    "a folder to sweep": (["sweep", "recording", "-p", "a=1,2"], 2, "recording is a folder", "name the file"),
    "no Python to sweep": (["sweep", "bad.py", "-p", "a=1,2"], 2, "bad.py is not Python", "python bad.py"),
    "no Python to verify": (["verify", "bad.py"], 2, "bad.py is not Python", "python bad.py"),
    "no text to verify": (["verify", "zeros.py"], 2, "zeros.py is not Python", "python zeros.py"),
    "a script to sweep": (["sweep", "script.py", "-p", "a=1,2"], 2, "script.py has none", "define workload()"),
    "no counts to accept": (["accept", "wl.py", "--reason", "x"], 3, "wl.py has no lock-file", "gate --update wl.py"),
}  # fmt: skip


@pytest.mark.parametrize("case", MISUSE.values(), ids=MISUSE)
def test_each_misuse_is_one_error_with_what_to_do_next(
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    case: tuple[list[str], int, str, str],
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("CI", raising=False)
    for name, text in {
        "wl.py": "def workload(a: int = 1): return print",
        "bad.py": "print(1",
        "zeros.py": "\0",
        "script.py": "print()",
        "trace.json": "{}",
        "recording/recording.json": "{}",
    }.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text)
    arguments, code, what, fix = case
    assert _run(arguments) == code
    out, err = capsys.readouterr()
    first, *rest = err.splitlines()
    assert out == "" and first.startswith("error: ") and what in first
    assert [line.partition(": ")[0].strip() for line in rest] in (["fix"], ["why", "fix"])
    assert fix in rest[-1]


def test_the_number_of_processes_that_decode_changes_no_report(
    capsys: pytest.CaptureFixture[str], trace: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[int] = []

    def read(path: Path, jobs: int, *more: Any) -> Trace:
        asked.append(jobs)
        return read_trace(path, jobs, *more)

    monkeypatch.setattr("bottleneck.pipeline.read_trace", read)
    said = set()
    for options in ([], ["-j", "1"], ["--jobs", "3"]):
        assert _run(["report", str(trace), *options]) == 0
        said.add(capsys.readouterr().out)
    assert asked[1:] == [1, 3] and len(said) == 1


@pytest.mark.parametrize(
    ("processors", "quota", "jobs"), [(4, None, 4), (4, 2.5, 2), (4, 0.5, 1), (1, 8.0, 1), (64, None, 8)]
)
def test_as_many_processes_as_this_one_may_use_processors_decode(
    monkeypatch: pytest.MonkeyPatch, processors: int, quota: float | None, jobs: int
) -> None:
    monkeypatch.setattr("bottleneck.harness.machine.usable_processors", lambda: processors)
    monkeypatch.setattr("bottleneck.harness.machine.processor_quota", lambda: quota)
    assert usual_jobs() == jobs
