"""Programs with a planted fault: the table goes with them, and a first screen is graded by it."""

from pathlib import Path

import pytest

from benchmarks.trials.__main__ import (
    HERE,
    Said,
    Trial,
    grade,
    places_in,
    read_trials,
    replaced,
    said_by,
    times_as_many,
)

PROGRAMS, REPORTED, BLIND = HERE / "planted", HERE / "reported", HERE / "blind"


@pytest.mark.parametrize("folder", [PROGRAMS, BLIND], ids=lambda folder: folder.name)
def test_every_program_has_its_row_and_every_row_its_program(folder: Path) -> None:
    trials = read_trials(folder)
    assert {trial.program for trial in trials} == {path.stem for path in folder.glob("*.py")}
    assert len(trials) >= 10
    assert all(trial.slugs for trial in trials)


@pytest.mark.parametrize(
    ("folder", "trial"),
    [(folder, trial) for folder in (PROGRAMS, BLIND) for trial in read_trials(folder)],
    ids=lambda each: each.name if isinstance(each, Path) else each.program,
)
def test_the_lines_and_the_remedy_of_a_program_fit_its_text(folder: Path, trial: Trial) -> None:
    text = (folder / f"{trial.program}.py").read_text()
    assert trial.numbers(text) and trial.fix and trial.short
    mended = replaced(text, trial.fix)
    for program in (mended, replaced(text, [trial.short]), replaced(mended, [trial.short])):
        compile(program, trial.program, "exec")
        assert program != text


def test_the_rows_of_the_public_reports_fit_their_programs() -> None:
    trials = read_trials(REPORTED)
    assert {trial.program for trial in trials} == {path.stem for path in REPORTED.glob("*.py")}
    for trial in trials:
        text = (REPORTED / f"{trial.program}.py").read_text()
        assert bool(trial.numbers(text)) is bool(trial.lines)
        pairs = [*(trial.fix or ()), *([trial.short] if trial.short else [])]
        compile(replaced(replaced(text, trial.fix or ()), [trial.short] if trial.short else []), trial.program, "exec")
        assert all(old in text for old, _ in pairs[: len(trial.fix or ())])


TRIAL = Trial("net", "a loop", ("y = slow(x)",), ("overhead",), ("python-call",), "leave it out")
NUMBERS = TRIAL.numbers("x = 1\ny = slow(x)\n")


def said(bound: str = "overhead", line: int = 2, slug: str = "python-call", first: str = "") -> Said:
    return Said(bound, f"Overhead holds it back, most of all at net.py:{line}.", slug, first, (1.5, 2.0))


def test_a_screen_is_right_where_line_and_finding_are() -> None:
    assert sorted(NUMBERS) == [2]
    assert grade(TRIAL, said(), NUMBERS).is_right
    assert grade(TRIAL, said(line=9, first="net.py:2: 3 ms in slow"), NUMBERS).is_right
    assert not grade(TRIAL, said(line=9), NUMBERS).is_right
    assert not grade(TRIAL, said(slug="larger-batch"), NUMBERS).is_right
    assert not grade(TRIAL, said(bound="compute"), NUMBERS).bound


def test_lines_of_other_files_are_not_those_of_the_program() -> None:
    assert places_in("at net.py:3, other.py:7 and my_net.py:9", "net") == {3}


def test_what_is_said_first_is_read_from_an_analysis() -> None:
    finding = {
        "slug": "python-call", "title": "Python", "advice": "Take it out.", "evidence": ["net.py:2: 3 ms"],
        "predicted_speedup": {"low": 1.2, "high": 3.0},
    }  # fmt: skip
    verdict = {"bound": "overhead", "sentence": "Overhead."}
    found = said_by({"verdict": verdict, "findings": [finding]})
    assert (found.slug, found.gain, "net.py:2" in found.first) == ("python-call", (1.2, 3.0), True)
    assert said_by({"verdict": verdict, "findings": []}).slug == "-"


def test_a_text_that_a_program_lacks_is_refused() -> None:
    with pytest.raises(AssertionError, match="no 'gone'"):
        replaced("x = 1", [("gone", "")])
    with pytest.raises(AssertionError, match="has no line"):
        TRIAL.numbers("x = 1\n")


def test_a_program_takes_more_steps_by_the_last_number_of_its_loop() -> None:
    assert times_as_many("for i in range(3, 400):", 5) == "for i in range(3, 2000):"
