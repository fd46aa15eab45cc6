"""Issue 4, must be seen 5: a two-rank gloo run gives one report with both ranks, exposed communication and skew."""

import math
from pathlib import Path

import pytest

from bottleneck.pipeline import analyse
from bottleneck.report import render_report
from tests.harness.driver import record

pytestmark = pytest.mark.process

pytest.importorskip("torch")

EXAMPLE = Path(__file__).parents[1] / "examples" / "ddp.py"
SLOW_MS = 50.0
# A recording that other programs disturbed says so, and nothing else.
_ATTEMPTS = 3
GRADIENT_BYTES = 4 * (64 * 128 + 128 + 128 * 32 + 32 + 32 * 4 + 4)


def test_the_report_of_two_ranks_names_the_slow_one_and_what_the_other_waits(tmp_path: Path) -> None:
    arguments = ("--steps", "120", "--slow-rank", "1", "--slow-ms", str(SLOW_MS))
    for attempt in range(_ATTEMPTS):
        folder = tmp_path / str(attempt)
        folder.mkdir()
        run = record(folder, EXAMPLE.read_text(), "--nproc-per-node", "2", arguments=arguments)
        assert run.status == 0
        analysis = analyse([run.folder])
        if analysis.verdict.bound != "inconclusive":
            break
    assert [rank.rank for rank in analysis.ranks] == [0, 1]
    quick, slow = analysis.ranks
    assert quick.skew_us == 0 and slow.skew_us is not None
    # What the slow rank sleeps the other waits: no less, but for steps that a busy machine makes longer by itself.
    assert slow.skew_us > 0.5e3 * SLOW_MS
    waited_us = math.fsum(entry.us for entry in quick.ledger if entry.group == "communication")
    assert waited_us > 0.5e3 * SLOW_MS
    for rank in analysis.ranks:
        assert math.fsum(entry.us for entry in rank.ledger) == pytest.approx(rank.wall_us)
    assert analysis.verdict.sentence.startswith("Rank 1 is late: rank 0 waits ")
    # Beside other programs no account of the slow rank may be longer by as much: then its own largest part is named.
    reasons = (" per step in collectives for it. Why: it spends ", " for it. Why: the largest part of its own step is ")
    assert any(reason in analysis.verdict.sentence for reason in reasons)
    assert analysis.job is not None
    line = (analysis.job.slow[0].line or "").rpartition(":")[2]
    assert "time.sleep(" in EXAMPLE.read_text().splitlines()[int(line) - 1]
    [collective] = analysis.collectives
    assert (collective.name, collective.dtype) == ("all_reduce", "fp32")
    assert collective.bytes is not None and collective.bytes / collective.calls == pytest.approx(GRADIENT_BYTES)
    assert 0 < collective.exposed_us <= collective.us
    report = render_report(analysis, "markdown")
    assert "Rank 1 is late: rank 0 waits" in report and "all_reduce" in report
    assert analysis.recording.world_size == 2
