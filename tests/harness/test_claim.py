import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from bottleneck.harness.claim import CLAIM_FILE, Course, claim, is_claimed, read_course
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
    course = Course(replace(PLAN, folder=str(tmp_path)), ("train.py", "--x"), {"OMP_NUM_THREADS": "1"}, 0.25, 77)
    code = f"""
import os, pathlib
from bottleneck.harness.claim import *
from bottleneck.harness.messages import Plan
folder, plan = pathlib.Path({str(tmp_path)!r}), Plan.from_json({course.plan.to_json()!r})
claim(folder).note(Course(plan, {course.command}, {course.environment}, 0.25, 77))
print(is_claimed(folder), flush=True)
os.kill(os.getpid(), 9)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert (done.stdout, done.returncode) == ("True\n", -9)
    assert not is_claimed(tmp_path)
    assert read_course(tmp_path) == course


def test_a_shorter_note_leaves_nothing_of_a_longer_one(tmp_path: Path) -> None:
    ours = claim(tmp_path)
    assert ours is not None
    plan = replace(PLAN, folder=str(tmp_path))
    ours.note(Course(plan, ("a" * 100,), {}, 0.0))
    ours.note(Course(plan, ("a",), {}, 0.0))
    assert read_course(tmp_path) == Course(plan, ("a",), {}, 0.0)
    ours.release()


def test_a_note_speaks_only_of_the_folder_that_it_lies_in(tmp_path: Path) -> None:
    (tmp_path / "old").mkdir()
    ours = claim(tmp_path / "old")
    assert ours is not None
    ours.note(Course(replace(PLAN, folder="/elsewhere"), (), {}, 0.0))
    (tmp_path / "old").rename(tmp_path / "moved")
    found = read_course(tmp_path / "moved")
    assert found is not None and found.plan.folder == str(tmp_path / "moved")
    ours.release()


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"plan": 3}', "[" * 100_000, "\x00\xff"])
def test_a_mark_that_cannot_be_read_tells_nothing(text: str, tmp_path: Path) -> None:
    (tmp_path / CLAIM_FILE).write_text(text)
    assert read_course(tmp_path) is None
    assert not is_claimed(tmp_path)


def test_a_claim_is_not_taken_through_a_link(tmp_path: Path) -> None:
    (tmp_path / CLAIM_FILE).symlink_to(tmp_path / "target")
    with pytest.raises(OSError, match="symbolic"):
        claim(tmp_path)
    assert not (tmp_path / "target").exists()
