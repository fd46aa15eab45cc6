"""The folder of a recording: what is wrong with it is found before the program starts."""

import ctypes
import os
import subprocess
import sys
import threading
from dataclasses import replace
from pathlib import Path

import pytest

from bottleneck.errors import UsageError
from bottleneck.harness.folder import (
    CLAIM_FILE,
    LOCK_FILE,
    RecordingFolder,
    RunState,
    claim,
    is_claimed,
    program_name,
    read_run_state,
)
from bottleneck.harness.messages import Plan, Program, RecordOptions

NAMES = (
    "recording.json",
    "analysis.json",
    "report.html",
    "roofline.png",
    "telemetry.csv",
    "trace.rank0.json.gz",
    "trace.rank7.json.gz",
    "compiled.rank0.json",
    "bottleneck-crash.txt",
    ".run.json",
    ".run.lock",
    ".notes.rank0.json",
    ".partial.trace.rank0.json.gz",
    ".fresh.trace.rank0.json.gz",
    ".recording.json.12",
)


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def refusal(output: str | Path, *, force: bool = False) -> UsageError:
    place = RecordingFolder(Path(output), "train", force=force)
    with pytest.raises(UsageError) as found:
        place.make()
    error = found.value
    assert error.what and error.why and error.fix and error.exit_code == 2
    assert "\n" not in error.what + error.why + error.fix
    return error


@pytest.mark.parametrize(
    ("target", "is_module", "name"),
    [
        ("dir/my program.py", False, "my-program"),
        ("package/train.v2.py", False, "train.v2"),
        ("job/__main__.py", False, "job"),
        ("__main__.py", False, "program"),
        ("package.train", True, "train"),
        ("package.__main__", True, "package"),
        ("train", True, "train"),
        (".hidden.py", False, "hidden"),
        ("a" * 300, False, "a" * 80),
        ("", False, "program"),
    ],
)
def test_a_recording_is_called_by_the_stem_of_a_script_or_the_last_part_of_a_module(
    target: str, is_module: bool, name: str
) -> None:
    assert program_name(Program(target, module=is_module)) == name


def test_folders_of_our_own_lie_in_one_and_are_numbered_by_program(here: Path) -> None:
    places = [RecordingFolder(None, name) for name in ("train", "train", "test", "train")]
    names = [place.make().relative_to(here).as_posix() for place in places]
    assert names == [f"bottleneck-runs/{name}" for name in ("train-1", "train-2", "test-1", "train-3")]
    for place in places:
        place.release()
        assert list(place.folder.iterdir()) == []


@pytest.mark.parametrize("name", ["page.html", "sub/numbers.JSON", "trace.json.gz"])
def test_the_name_of_a_file_is_refused_for_a_recording_which_is_a_folder(here: Path, name: str) -> None:
    with pytest.raises(UsageError, match="is the name of a file") as refused:
        RecordingFolder(Path(name), "train").make()
    assert "/report.html" in str(refused.value.fix) and list(here.iterdir()) == []
    (here / "v2.html").mkdir()  # a folder that is there may have any name
    place = RecordingFolder(Path("v2.html"), "train")
    assert place.make() == here / "v2.html"
    place.release()


def test_a_number_follows_the_highest_that_is_taken(here: Path) -> None:
    (here / "bottleneck-runs" / "train-7").mkdir(parents=True)
    (here / "bottleneck-runs" / "train-8").write_text("a file")
    (here / "bottleneck-runs" / "train-x-30").mkdir()
    place = RecordingFolder(None, "train")
    assert place.make().name == "train-9"
    place.release()


def test_git_ignores_the_folder_of_recordings_unless_the_user_has_made_it(here: Path) -> None:
    place = RecordingFolder(None, "train")
    place.make()
    subprocess.run(["git", "init", "-q", str(here)], check=True)
    status = subprocess.run(["git", "-C", here, "status", "--short"], capture_output=True, text=True, check=True)
    assert status.stdout == ""
    place.release()
    (here / "bottleneck-runs" / ".gitignore").unlink()
    again = RecordingFolder(None, "train")
    again.make()
    again.release()
    assert not (here / "bottleneck-runs" / ".gitignore").exists()


def test_the_folder_of_recordings_goes_with_a_run_that_came_to_nothing_unless_it_holds_another(here: Path) -> None:
    first, second = RecordingFolder(None, "train"), RecordingFolder(None, "train")
    first.make()
    second.make()
    first.discard()
    assert {path.name for path in (here / "bottleneck-runs").iterdir()} == {".gitignore", "train-2"}
    second.discard()
    alone = RecordingFolder(None, "train")
    (here / "bottleneck-runs" / ".gitignore").unlink()
    (here / "bottleneck-runs").rmdir()
    alone.make()
    assert alone.discard()
    assert list(here.iterdir()) == []


def test_a_run_in_a_folder_that_is_gone_is_refused(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (here / "gone").mkdir()
    monkeypatch.chdir(here / "gone")
    (here / "gone").rmdir()
    for output in (None, Path("out")):
        with pytest.raises(UsageError, match="working folder no longer exists"):
            RecordingFolder(output, "train").make()
    place = RecordingFolder(here / "out", "train")
    place.make()
    place.release()


def test_forty_that_start_at_once_get_forty_folders(here: Path) -> None:
    places = [RecordingFolder(None, "train") for _ in range(40)]
    threads = [threading.Thread(target=place.make) for place in places]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len({place.folder for place in places}) == 40 == len(list((here / "bottleneck-runs").glob("train-*")))
    for place in places:
        place.release()


def test_two_runs_in_one_folder_are_one_too_many(here: Path) -> None:
    first = RecordingFolder(Path("out"), "train")
    first.make()
    assert "is not empty" in refusal("out").what
    assert "another run is recording" in refusal("out", force=True).what
    assert {path.name for path in Path("out").iterdir()} == {CLAIM_FILE, LOCK_FILE}
    first.release()
    second = RecordingFolder(Path("out"), "train")
    second.make()
    second.release()


def test_of_many_that_want_the_same_folder_at_once_one_gets_it(here: Path) -> None:
    code = "\n".join(
        [
            "import sys; from pathlib import Path; from bottleneck.harness.folder import RecordingFolder",
            "from bottleneck.errors import UsageError",
            "print('ready', flush=True); sys.stdin.readline()",
            "folder = RecordingFolder(Path('out'), 'x', force=True)",
            "try: folder.make(); print('got it', flush=True); sys.stdin.readline()",
            "except UsageError as error: print(error.what, flush=True); sys.stdin.readline()",
        ]
    )
    runs = [
        subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        for _ in range(6)
    ]
    for run in runs:
        assert run.stdout is not None and run.stdout.readline() == "ready\n"
    for run in runs:
        assert run.stdin is not None
        run.stdin.write("go\n")
        run.stdin.flush()
    told = [run.stdout.readline() for run in runs if run.stdout is not None]
    for run in runs:
        run.communicate("\n")
    assert told.count("got it\n") == 1
    assert sum("another run is recording" in line for line in told) == 5


@pytest.mark.parametrize("name", ["with space", "with 'quotes\"", "line\nbreak", "esc\x1b[31m", "ünï", "a" * 255])
def test_unusual_names_are_taken_and_shown_in_one_line(name: str, here: Path) -> None:
    place = RecordingFolder(Path(name), "train")
    assert place.make() == here / name
    place.release()
    (here / name / "mine").touch()
    assert refusal(name).what.isprintable()


def test_a_name_that_is_no_text_is_taken(here: Path) -> None:
    name = os.fsdecode(b"caf\xe9")
    place = RecordingFolder(Path(name), "train")
    place.make()
    place.release()
    (here / name / "mine").touch()
    refusal(name).what.encode()


@pytest.mark.parametrize("name", ["a" * 256, "new/" + "a" * 256, "nul\0byte"])
def test_a_name_that_cannot_be_is_refused(name: str, here: Path) -> None:
    assert "cannot make the folder" in refusal(name).what
    assert list(here.iterdir()) == []


def test_missing_parents_are_made(here: Path) -> None:
    place = RecordingFolder(Path("runs/today/first"), "train")
    assert place.make() == here / "runs" / "today" / "first"
    assert place.discard()
    assert list(here.iterdir()) == []


def test_what_is_no_folder_is_refused_and_stays_as_it_was(here: Path) -> None:
    (here / "file").write_text("mine")
    os.mkfifo(here / "pipe")
    for name in ("file", "pipe", "file/below", "/dev/null", "/dev/null/below"):
        error = refusal(name)
        assert "is no folder" in error.what or "cannot make" in error.what
    assert (here / "file").read_text() == "mine"
    assert (here / "pipe").is_fifo() and Path("/dev/null").is_char_device()


def test_a_link_is_refused_even_to_an_empty_folder(here: Path) -> None:
    (here / "elsewhere").mkdir()
    (here / "link").symlink_to("elsewhere")
    (here / "nowhere").symlink_to("missing")
    assert "is a symbolic link" in refusal("link").what
    assert str(here / "elsewhere") in refusal("link").fix
    assert "is no folder" in refusal("nowhere").what
    assert sorted(path.name for path in here.iterdir()) == ["elsewhere", "link", "nowhere"]
    assert list((here / "elsewhere").iterdir()) == []


def test_a_folder_behind_a_linked_parent_is_fine(here: Path) -> None:
    (here / "elsewhere").mkdir()
    (here / "link").symlink_to("elsewhere")
    RecordingFolder(Path("link/out"), "train").make()
    assert (here / "elsewhere" / "out").is_dir()


def test_a_folder_with_files_is_refused_and_stays_as_it_was(here: Path) -> None:
    (here / "out").mkdir()
    (here / "out" / "precious.txt").write_text("mine")
    assert "--force" in refusal("out").fix
    assert [path.name for path in (here / "out").iterdir()] == ["precious.txt"]


def test_force_replaces_an_old_recording_and_nothing_else(here: Path) -> None:
    (here / "out").mkdir()
    for name in (*NAMES, "precious.txt"):
        (here / "out" / name).write_text("old")
    place = RecordingFolder(Path("out"), "train", force=True)
    place.make()
    place.release()
    assert [path.name for path in (here / "out").iterdir()] == ["precious.txt"]
    assert not place.discard()


def test_force_removes_links_and_never_what_they_lead_to(here: Path) -> None:
    (here / "out").mkdir()
    (here / "precious.txt").write_text("mine")
    for name in NAMES:
        (here / "out" / name).symlink_to("../precious.txt")
    place = RecordingFolder(Path("out"), "train", force=True)
    place.make()
    assert {path.name for path in (here / "out").iterdir()} == {CLAIM_FILE, LOCK_FILE}
    assert not (here / "out" / CLAIM_FILE).is_symlink()
    place.release()
    assert (here / "precious.txt").read_text() == "mine"


def test_a_folder_in_the_place_of_a_file_is_reported(here: Path) -> None:
    (here / "out" / "recording.json").mkdir(parents=True)
    assert "cannot write to" in refusal("out", force=True).what
    assert (here / "out" / "recording.json").is_dir()
    assert [path.name for path in (here / "out").iterdir()] == ["recording.json"]


@pytest.mark.parametrize("output", ["read-only", "read-only/below"])
def test_a_folder_that_cannot_be_written_to_is_refused(output: str, here: Path) -> None:
    (here / "read-only").mkdir()
    (here / "read-only").chmod(0o500)
    code = f"from bottleneck.cli import main; main(['run', '-o', {output!r}, 'program.py'])"
    (here / "program.py").write_text("print('it ran')")
    done = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        check=False,
        preexec_fn=_obey_permissions,
    )
    assert (done.returncode, done.stdout) == (2, "")
    assert [line.split(":")[0] for line in done.stderr.splitlines()] == ["error", "  why", "  fix"]
    assert "Permission denied" in done.stderr
    (here / "read-only").chmod(0o700)
    assert list((here / "read-only").iterdir()) == []


def _obey_permissions() -> None:
    """Drops what lets root read and write everything: CAP_DAC_OVERRIDE and CAP_DAC_READ_SEARCH of linux/prctl.h."""
    if os.geteuid() == 0:
        for capability in (1, 2):
            ctypes.CDLL(None).prctl(24, capability, 0, 0, 0)


def test_nothing_that_was_there_before_is_discarded(here: Path) -> None:
    (here / "out").mkdir()
    place = RecordingFolder(Path("out"), "train")
    place.make()
    assert not place.discard()
    assert list((here / "out").iterdir()) == []


def test_a_folder_with_something_of_the_users_is_not_discarded(here: Path) -> None:
    place = RecordingFolder(Path("out"), "train")
    place.make()
    (here / "out" / "recording.json").write_text("ours")
    (here / "out" / "result.txt").write_text("the program's")
    assert not place.discard()
    assert [path.name for path in (here / "out").iterdir()] == ["result.txt"]


def test_a_run_that_is_refused_leaves_the_folder_of_another_alone(here: Path) -> None:
    first = RecordingFolder(Path("out"), "train")
    first.make()
    (here / "out" / "recording.json").write_text("ours")
    refusal("out", force=True)
    assert (here / "out" / "recording.json").read_text() == "ours"
    first.release()


PLAN = Plan("out", Program("train.py", ("--x",), "script", (("a", "1"),)), RecordOptions(warmup=3))


def test_a_folder_is_claimed_once_and_free_again_after_its_release(tmp_path: Path) -> None:
    ours = claim(tmp_path)
    assert ours is not None and is_claimed(tmp_path)
    assert claim(tmp_path) is None
    ours.release()
    assert not is_claimed(tmp_path)
    assert list(tmp_path.iterdir()) == []
    again = claim(tmp_path)
    assert again is not None
    again.release()


def test_a_claim_ends_with_its_process_and_tells_what_it_did(tmp_path: Path) -> None:
    state = RunState(replace(PLAN, folder=str(tmp_path)), {"OMP_NUM_THREADS": "1"}, 0.25, 77)
    code = f"""
import os, pathlib
from bottleneck.harness.folder import *
from bottleneck.harness.messages import Plan
folder, plan = pathlib.Path({str(tmp_path)!r}), Plan.from_json({state.plan.to_json()!r})
ours = claim(folder)
ours.note(RunState(plan, {state.environment}, 0.25, 77))
print(is_claimed(folder), flush=True)
os.kill(os.getpid(), 9)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert (done.stdout, done.returncode) == ("True\n", -9)
    assert not is_claimed(tmp_path)
    assert read_run_state(tmp_path) == state


def test_a_shorter_note_leaves_nothing_of_a_longer_one(tmp_path: Path) -> None:
    ours = claim(tmp_path)
    assert ours is not None
    plan = replace(PLAN, folder=str(tmp_path))
    ours.note(RunState(plan, {"a": "b" * 100}, 0.0))
    ours.note(RunState(plan, {}, 0.0))
    assert read_run_state(tmp_path) == RunState(plan, {}, 0.0)
    ours.release()


def test_a_note_speaks_only_of_the_folder_that_it_lies_in(tmp_path: Path) -> None:
    (tmp_path / "old").mkdir()
    ours = claim(tmp_path / "old")
    assert ours is not None
    ours.note(RunState(replace(PLAN, folder="/elsewhere"), {}, 0.0))
    (tmp_path / "old").rename(tmp_path / "moved")
    found = read_run_state(tmp_path / "moved")
    assert found is not None and found.plan.folder == str(tmp_path / "moved")
    ours.release()


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"plan": 3}', "[" * 100_000, "\x00\xff"])
def test_a_mark_that_cannot_be_read_tells_nothing(text: str, tmp_path: Path) -> None:
    (tmp_path / CLAIM_FILE).write_text(text)
    assert read_run_state(tmp_path) is None
    assert not is_claimed(tmp_path)


def test_a_claim_is_not_taken_through_a_link(tmp_path: Path) -> None:
    (tmp_path / CLAIM_FILE).symlink_to(tmp_path / "target")
    with pytest.raises(OSError, match="symbolic"):
        claim(tmp_path)
    assert not (tmp_path / "target").exists()


def test_a_fork_that_forgets_its_claim_leaves_it_to_its_parent(tmp_path: Path) -> None:
    code = f"""
import gc, os, pathlib
from bottleneck.harness.folder import RecordingFolder, is_claimed
folder = RecordingFolder(pathlib.Path({str(tmp_path / "out")!r}), "x")
folder.make()
child = os.fork()
if child == 0:
    folder.abandon()
    del folder
    gc.collect()
    os._exit(0)
print(os.waitpid(child, 0)[1], is_claimed(folder.folder))
folder.release()
print(is_claimed(folder.folder))
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert (done.stdout, done.stderr) == ("0 True\nFalse\n", "")
