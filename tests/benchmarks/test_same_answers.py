import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from benchmarks.answer_calls import Call, pairs, plan
from benchmarks.same_answers import (
    Answer,
    Difference,
    Expectation,
    compare_answers,
    json_differences,
    read_answers,
    read_expectations,
    set_apart,
    summary,
    text_differences,
)
from tests.harness.driver import HANGS_S

CALL = Call("report json", "a.json", ("report", "--format", "json", "a.json"))
DOCUMENT = {"verdict": {"bound": "memory", "share": 0.41}, "ledger": [{"us": 1}, {"us": 2.0}]}
ANSWER = Answer("exit 0", json.dumps(DOCUMENT), "one\ntwo\n", {"a.png": "11"})
DRIVER = Path(__file__).resolve().parents[2] / "benchmarks" / "answer_driver.py"
# A package that obeys three words, and says how many calls its process has had.
CLI = """
import os, sys, time
calls = []
def main():
    word = sys.argv[1]
    calls.append(word)
    if word == "crash":
        raise ValueError("no such word")
    if word == "wait":
        time.sleep(3600)
    if word == "write":
        open("out.txt", "w").write("x"); open("in.txt", "a").write("x")
    os.write(1, b"from the descriptor "); print(len(calls)); sys.exit(3)
"""


def differences(**changed: object) -> list[str]:
    return [str(each) for each in compare_answers(CALL, ANSWER, replace(ANSWER, **changed))]


def test_equal_answers_have_no_differences() -> None:
    assert differences() == [] == differences(seconds=9.0)


def test_a_changed_number_is_one_difference_with_its_path() -> None:
    changed = {**DOCUMENT, "verdict": {"bound": "memory", "share": 0.42}}
    assert differences(stdout=json.dumps(changed)) == ["verdict.share: 0.41 -> 0.42"]


@pytest.mark.parametrize(
    ("changed", "told"),
    [
        ({"end": "exit 3"}, "end: exit 0 -> exit 3"),
        ({"stderr": "one\nthree\n"}, "stderr.2: two -> three"),
        ({"files": {"a.png": "22"}}, 'files.a.png: "11" -> "22"'),
        ({"stdout": json.dumps(DOCUMENT, indent=1)}, "stdout: equal JSON values -> in another order or notation"),
    ],
)
def test_every_field_of_an_answer_is_compared(changed: dict[str, object], told: str) -> None:
    assert differences(**changed) == [told]


def test_a_report_that_fails_on_one_side_is_compared_as_text() -> None:
    assert differences(stdout="") == [f"stdout.1: {json.dumps(DOCUMENT)} -> (absent)"]


@pytest.mark.parametrize(("before", "after"), [(1, 1.0), (1, True), (0.1, 0.1000001), (None, 0), ("1", 1)])
def test_values_of_different_type_or_notation_differ(before: object, after: object) -> None:
    assert json_differences([before], [after]) == [("0", json.dumps(before), json.dumps(after))]


def test_a_value_that_is_no_number_equals_itself() -> None:
    assert json_differences([float("nan")], [float("nan")]) == []


def test_absent_keys_and_lengths_of_lists_are_differences() -> None:
    found = json_differences({"a": [1, 2], "b": 1}, {"a": [1], "c": 1})
    assert found == [("a.length", "2", "1"), ("a.1", "2", "(absent)"), ("b", "1", "(absent)"), ("c", "(absent)", "1")]


def test_a_long_line_is_shown_around_the_place_where_it_changes() -> None:
    shown = str(Difference("report text", "a.json", "report a.json", "stdout.1", 200 * "x" + "1", 200 * "x" + "2"))
    assert shown.count("x1 -> ...x") == 1 and shown.endswith("x2") and len(shown) < 250


def test_an_inserted_line_is_one_difference() -> None:
    assert text_differences("a\nb\n", "a\nnew\nb\n", "stdout") == [("stdout.2", "(absent)", "new")]
    assert text_differences("a\n", "a", "stdout") == [("stdout.1", "'a\\n'", "'a'")]


def test_expected_differences_are_set_apart_with_their_reason(tmp_path: Path) -> None:
    share = Difference("report json", "a.json", "report a.json", "verdict.share", "0.41", "0.42")
    row = replace(share, path="ledger.3.us")
    file = tmp_path / "meant.toml"
    file.write_text('[[expected]]\nanswer = "report *"\npath = "ledger.*.us"\nreason = "truer"\n', encoding="utf-8")
    unexpected, expected = set_apart([share, row], read_expectations(file))
    assert (unexpected, expected) == ([share], [replace(row, reason="truer")])
    assert set_apart([row], [Expectation("other", answer="compare *")]) == ([row], [])
    other = replace(CALL, arguments=("report", "a.json"))
    assert summary([CALL, other], unexpected, []).splitlines()[-1].split() == ["all", "2", "1", "0"]


def test_an_expectation_without_a_reason_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "meant.toml"
    file.write_text('[[expected]]\npath = "ledger.*.us"\n', encoding="utf-8")
    with pytest.raises(TypeError, match="reason"):
        read_expectations(file)


def test_pairs_are_neighbours_of_one_repository_and_one_model_on_two_devices() -> None:
    traces = ["traces/a+b__h100__m.gz", "traces/a+b__h100__n.gz", "traces/a+b__mi300__m.gz", "traces/c+d__x.gz"]
    found = pairs(["sample_traces/mlp", "sample_traces/other"], traces)
    assert (traces[0], traces[2]) in found and (traces[0], traces[1]) in found
    assert not any(traces[3] in pair for pair in found)


def test_the_plan_has_each_command_line_once_and_stands_without_public_traces() -> None:
    calls = plan(["sample_traces/mlp", "sample_traces/other"], [], ["locks/examples-mlp.lock.toml"], [])
    assert len({call.name for call in calls}) == len(calls)
    assert {"report json", "doctor json", "compare text", "compare json"} <= {call.kind for call in calls}
    assert ("compare", "locks/examples-mlp.lock.toml", "sample_traces/mlp") in {call.arguments for call in calls}


def test_the_driver_keeps_each_call_apart_and_records_crashes_and_written_files(tmp_path: Path) -> None:
    words = {"plain": "a", "again": "a", "fresh": "a", "write": "write", "crash": "crash"}
    answers = drive(tmp_path, tmp_path, words, timeout_s=HANGS_S)
    assert [answers[key].end for key in words] == ["exit 3", "exit 3", "exit 3", "exit 3", "exit 1"]
    assert {answers[key].stdout for key in ("plain", "again", "fresh")} == {"from the descriptor 1\n"}
    assert "ValueError: no such word" in answers["crash"].stderr
    assert answers["write"].files["in.txt"] == "input changed" and len(answers["write"].files["out.txt"]) == 64
    assert answers["plain"].files == {"out.txt": "not written"}


def test_the_driver_ends_a_call_that_takes_too_long(tmp_path: Path) -> None:
    assert drive(tmp_path, tmp_path, {"wait": "wait"}, timeout_s=0.2)["wait"].end == "over 0.2 s"


def test_the_driver_refuses_a_package_of_another_checkout(tmp_path: Path) -> None:
    mine, other = tmp_path / "mine", tmp_path / "other"
    with pytest.raises(subprocess.CalledProcessError, match="exit status 1"):
        drive(mine, other, {"plain": "a"}, timeout_s=HANGS_S)
    assert drive(mine, mine, {"plain": "a"}, timeout_s=HANGS_S)["plain"].end == "exit 3"


def drive(folder: Path, imported: Path, words: dict[str, str], *, timeout_s: float) -> dict[str, Answer]:
    """The driver's answers, by the keys of ``words``, for a small checkout; ``imported`` is on Python's path."""
    for place in {folder, imported}:
        (place / "bottleneck").mkdir(exist_ok=True, parents=True)
        (place / "bottleneck" / "__init__.py").touch()
        (place / "bottleneck" / "cli.py").write_text(CLI, encoding="utf-8")
    (folder / "pyproject.toml").write_text('[project]\nscripts.bottleneck = "bottleneck.cli:main"\n', encoding="utf-8")
    (folder / "in.txt").touch()
    orders = {
        "checkout": str(folder),
        "answers": str(folder / "answers.jsonl"),
        "jobs": 1,
        "timeout_s": timeout_s,
        "input_mtime": (folder / "in.txt").stat().st_mtime,
        "warm": [["a"]],
        "calls": [
            {
                "key": key,
                "arguments": [word],
                "inputs": ["in.txt"] if key == "write" else [],
                "outputs": ["out.txt"] if key in {"plain", "write"} else [],
                "fresh": key == "fresh",
            }
            for key, word in words.items()
        ],
    }
    (folder / "orders.json").write_text(json.dumps(orders), encoding="utf-8")
    command = [sys.executable, "-P", str(DRIVER), str(folder / "orders.json")]
    environment = {"PYTHONPATH": str(imported), "TMPDIR": str(folder)}
    subprocess.run(command, cwd=folder, env=environment, check=True, capture_output=True)
    return read_answers(folder / "answers.jsonl")
