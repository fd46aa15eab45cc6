"""The fuzz harness of saved files: its cases repeat, its checks find what acts, and a sample ends without a crash."""

import random
import subprocess
import sys

import pytest

from benchmarks.fuzz import ROOT
from benchmarks.fuzz_saved import HOSTILE_TEXTS, leaks, leaves, poison

TREE = {"name": "aten::mm", "us": 3.0, "rows": [{"source": "a.py:1", "share": 0.5}] * 3, "kind": "cpu"}


def test_a_sound_tree_is_poisoned_only_where_it_stays_sound() -> None:
    found = poison(TREE, random.Random(1), lambda tree: tree["kind"] == "cpu")
    assert found == poison(TREE, random.Random(1), lambda tree: tree["kind"] == "cpu")
    assert found["kind"] == "cpu" and found != TREE
    assert len(list(leaves(TREE))) == 9


@pytest.mark.parametrize(
    ("form", "text"),
    [
        ("text", "\x1b[31mred"),
        ("text", "a\u202eb"),
        ("html", "<img src=x onerror=pwned()>"),
        ("html", "<a href='javascript:pwned()'>x</a>"),
        ("html", "<script>1</script>" * 50),
        ("markdown", "[x](javascript:pwned())\n\n<a href='https://evil.example/pwned'>"),
        ("markdown", "<script>pwned()</script>"),
        ("svg", "<svg xmlns='http://www.w3.org/2000/svg'><script>pwned()</script></svg>"),
    ],
)
def test_what_acts_is_found(form: str, text: str) -> None:
    assert leaks(form, text)


@pytest.mark.parametrize("form", ["text", "html", "markdown"])
def test_plain_text_is_fine(form: str) -> None:
    assert not leaks(form, "aten::mm takes 3 us\n") and len(set(HOSTILE_TEXTS)) == len(HOSTILE_TEXTS)


@pytest.mark.process
def test_a_sample_of_cases_ends_without_a_crash_or_a_leak() -> None:
    command = [sys.executable, "-m", "benchmarks.fuzz_saved", "--cases", "20", "--seed", "7"]
    done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "20 cases" in done.stdout
