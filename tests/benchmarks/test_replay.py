"""The replays of public traces are within their limits, and the page holds their table."""

from pathlib import Path

import numpy as np
import pytest

from benchmarks.replay import PAGE, Outcome, measure, sentences

SAMPLES = Path(__file__).parents[2] / "sample_traces"


def outcome(error: float, kind: str = "device", reason: str | None = None) -> Outcome:
    return Outcome("trace.json", kind, 1, 10, 0.5, error, 0.0, 0.0, 0.0, reason)


def test_traces_without_a_what_if_count_but_not_into_the_errors() -> None:
    lines = sentences([outcome(0.01), outcome(0.3, reason="off"), outcome(0.0, "host only")])
    assert "1 of 2 replayed, error 1.00% at the median" in lines[0]
    assert "1 of 1 replayed" in lines[-1]


def test_a_step_of_the_host_alone_is_told_apart() -> None:
    measured = measure(SAMPLES / "mlp")
    assert measured is not None
    assert measured.kind == "host only"
    assert measured.on_device == 0.0


def test_the_page_holds_the_table_and_the_counts() -> None:
    page = PAGE.read_text(encoding="utf-8")
    assert page.count("| device |") >= 70
    assert "at the 95th percentile" in page


@pytest.mark.corpus
def test_public_traces_are_reproduced_within_the_limits(traces: Path) -> None:
    found = [measure(path) for path in sorted(traces.iterdir()) if path.suffix != ".csv"]
    device = [each for each in found if each is not None and each.kind == "device"]
    errors = np.abs([each.error for each in device if each.reason is None])
    assert errors.size >= 0.9 * len(device)
    assert np.median(errors) <= 0.02
    assert np.quantile(errors, 0.95) <= 0.05
