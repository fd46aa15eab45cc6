"""The study of the gate's verdicts: what a file of runs comes to, and that the work it adds is what it says."""

import json
import os
from pathlib import Path

import pytest

from bottleneck.schema.records import replace

pytest.importorskip("torch")

from benchmarks.gate import BASE, CANDIDATES, Run, busy, made, read, resampled, share, table, tell, with_layers, work

FINE = Run(0, 1, "fine", (0.001, -0.001, 0.002, -0.002, 0.0, 0.001, -0.001), 0, 40.0, 0.004, 2, "2.13.0", 7)
RED = replace(FINE, slowdown=5, verdict="slower", pairs=tuple(0.05 + each for each in FINE.pairs) * 2, confirming=7)
OPEN = replace(RED, verdict="undecided", pairs=FINE.pairs, confirming=0, reason="7 pairs scatter too much")


@pytest.mark.statistics
def test_the_work_that_is_added_is_about_five_and_ten_percent() -> None:
    ops, flops = work(BASE)
    for slowdown, layers in CANDIDATES.items():
        more_ops, more_flops = work(layers)
        assert more_ops / ops == pytest.approx(1 + slowdown / 100, abs=0.002)
        assert more_flops / flops == pytest.approx(1 + slowdown / 100, abs=0.007)


def test_the_edit_changes_one_number_of_the_example() -> None:
    first, second = with_layers(19).splitlines(), with_layers(20).splitlines()
    assert sum(one != other for one, other in zip(first, second, strict=True)) == 1


def test_runs_of_several_sessions_add_up_and_a_line_cut_short_does_not_spoil_them(tmp_path: Path) -> None:
    file = tmp_path / "runs.jsonl"
    file.write_text("\n".join([json.dumps(FINE.__dict__), json.dumps(RED.__dict__), '{"slowdown": 0, "lo']))
    assert list(read(file)) == [FINE, RED]


@pytest.mark.statistics
def test_a_row_counts_red_green_and_undecided_with_exact_intervals() -> None:
    text = table([FINE, FINE, RED, RED, RED, OPEN])
    unchanged, slower = [line for line in text.splitlines() if line.startswith("| +")]
    assert unchanged.startswith("| +0 % (+0.0%, +0.0%, +0.0%) | 1 busy process | 2 | 0 | 2 | 0 | 0.0% (0.0% to 84.2%)")
    assert "| 4 | 3 | 0 | 1 | 75.0% (19.4% to 99.4%) | 100.0% (29.2% to 100.0%) |" in slower
    assert "2 processors, torch 2.13.0: 6 runs" in text


@pytest.mark.statistics
def test_runs_that_met_other_conditions_have_rows_of_their_own() -> None:
    text = table([FINE, replace(FINE, load=0, beside=1), replace(FINE, load=2, beside=2), replace(FINE, load=0)])
    rows = [line.split(" | ") for line in text.splitlines() if line.startswith("| +0")]
    companies = ["nothing", "1 other run", "1 busy process", "2 busy processes, 2 other runs", "any of these"]
    assert [row[1] for row in rows] == companies
    assert [row[2] for row in rows] == ["1", "1", "1", "1", "4"]


def test_the_interval_of_a_share_is_that_of_clopper_and_pearson() -> None:
    # The rule of three is its limit: none of 200 leaves 1 - 0.025**(1/200) = 1.83 %.
    assert share(0, 200) == "0.0% (0.0% to 1.8%)"
    assert share(0, 0) == "-"


def test_resampled_rows_say_that_they_are() -> None:
    text = resampled([FINE, RED], 50)
    assert text.startswith("**Resampled**, not run")
    assert "| +0 % | 1 busy process | 7 | 0.0% | 100.0% | 0.0% | 7.0 |" in text
    assert "| +5 % | 1 busy process | 14 | 100.0% | 0.0% | 0.0% | 14.0 |" in text


def test_made_samples_are_called_by_how_much_slower_they_are() -> None:
    rows = made([FINE, RED], 40).splitlines()[2:]
    assert len(rows) == 3  # the noise of unchanged runs alone
    assert "| 0 % |" in rows[0] and "| 0.0% | 100.0% | 0.0% |" in rows[0]
    assert "| 8 % |" in rows[2] and "| 100.0% | 0.0% | 0.0% |" in rows[2]


def test_a_run_is_reported_in_a_line() -> None:
    assert tell(RED) == "+5 %: slower    +5.0%, 14 pairs, 7 of them to confirm, 40 s  "
    assert tell(OPEN).endswith("7 pairs, 40 s  7 pairs scatter too much")


def test_busy_processes_stay_on_their_processor_and_end() -> None:
    with busy(1) as processes:
        (number,) = [process.pid for process in processes]
        assert processes[0].poll() is None
        os.kill(number, 0)
    assert processes[0].poll() is not None
