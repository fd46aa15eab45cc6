import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from bottleneck.harness.folder import CLAIM_FILE, RunState, claim, is_claimed, read_run_state
from bottleneck.harness.messages import Plan

PLAN = Plan(
    folder="out",
    form="script",
    target="train.py",
    module=False,
    settings=(("a", "1"),),
    train=False,
    steps=None,
    warmup=3,
)


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
    state = RunState(replace(PLAN, folder=str(tmp_path)), ("train.py", "--x"), {"OMP_NUM_THREADS": "1"}, 0.25, 77)
    code = f"""
import os, pathlib
from bottleneck.harness.folder import *
from bottleneck.harness.messages import Plan
folder, plan = pathlib.Path({str(tmp_path)!r}), Plan.from_json({state.plan.to_json()!r})
ours = claim(folder)
ours.note(RunState(plan, {state.command}, {state.environment}, 0.25, 77))
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
    ours.note(RunState(plan, ("a" * 100,), {}, 0.0))
    ours.note(RunState(plan, ("a",), {}, 0.0))
    assert read_run_state(tmp_path) == RunState(plan, ("a",), {}, 0.0)
    ours.release()


def test_a_note_speaks_only_of_the_folder_that_it_lies_in(tmp_path: Path) -> None:
    (tmp_path / "old").mkdir()
    ours = claim(tmp_path / "old")
    assert ours is not None
    ours.note(RunState(replace(PLAN, folder="/elsewhere"), (), {}, 0.0))
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
