"""The scoreboard: what is kept of a trial, what is read back, and how rules are scored."""

from dataclasses import replace
from pathlib import Path

import pytest

from bottleneck.experiment.verify import ScoreEntry, append_entries, entries_of, read_entries, scores
from bottleneck.schema.analysis import Interval
from bottleneck.schema.measurements import Ratio
from bottleneck.schema.trials import Trial, Verification
from tests.experiment.test_verify import finding

ENTRY = ScoreEntry("2026-01-01T00:00:00+00:00", "launches", "compile", "faster", (1.5, 2.0), (1.6, 1.55, 1.65))


def test_each_finding_gets_an_entry_for_each_change_tried_for_it() -> None:
    findings = (
        finding("launches", ("compile", "cuda-graph"), Interval(1.5, 2.0)),
        finding("unfused", ("compile",), None),
        finding("other", ("tf32",), None),
    )
    trial = Trial("compile", "", "faster", speedup=Ratio(1.6, 1.5, 1.7, 14))
    done = Verification(("--set", "a=1", "/somewhere/model.py"), None, (trial, Trial("gc-freeze", "", "no effect")))
    entries = entries_of(done, findings, "now")
    assert [(entry.finding, entry.change) for entry in entries] == [("launches", "compile"), ("unfused", "compile")]
    assert entries[0].predicted == (1.5, 2.0) and entries[1].predicted is None
    assert entries[0].measured == (1.6, 1.5, 1.7)
    assert entries[0].program == "model.py"


def test_a_part_of_the_step_says_nothing_of_a_prediction_for_all_of_it() -> None:
    part = Trial("pad", "", "faster", speedup=Ratio(9.0, 8.0, 10.0, 14), is_part=True)
    done = Verification(("model.py",), None, (part,))
    assert entries_of(done, (finding("misaligned", ("pad",), Interval(1.0, 1.1)),), "now") == []


def test_entries_are_added_and_read_again_and_foreign_lines_are_passed_over(tmp_path: Path) -> None:
    path = tmp_path / "deep" / "scores.jsonl"
    assert read_entries(path) == []
    append_entries(path, [ENTRY])
    with path.open("a") as file:
        file.write('not json\n{"format": "bottleneck/score/9"}\n[1]\n' + "[" * 100_000 + "\n")
    append_entries(path, [replace(ENTRY, change="cuda-graph")])
    assert read_entries(path) == [ENTRY, replace(ENTRY, change="cuda-graph")]


def test_no_entries_make_no_file(tmp_path: Path) -> None:
    append_entries(tmp_path / "scores.jsonl", [])
    assert not (tmp_path / "scores.jsonl").exists()


def test_a_rule_is_scored_by_what_was_predicted_and_judged() -> None:
    entries = [
        ENTRY,  # inside
        replace(ENTRY, measured=(1.4, 1.3, 1.55)),  # beside it, but the intervals meet
        replace(ENTRY, measured=(1.0, 0.99, 1.01), verdict="no effect"),
        replace(ENTRY, verdict="inconclusive"),
        replace(ENTRY, verdict="failed", measured=None),
        replace(ENTRY, predicted=None),
        replace(ENTRY, finding="another", predicted=None),
    ]
    another, launches = scores(entries)
    assert (another.finding, another.applied, another.count, another.inside) == ("another", 1, 0, None)
    assert (launches.applied, launches.count) == (6, 3)
    assert launches.inside == pytest.approx(1 / 3)
    assert launches.near == pytest.approx(2 / 3)
    predicted = (1 / 3 + 1 / 2) / 2
    assert launches.ratio == pytest.approx((1 - 1 / 1.4) / predicted)
