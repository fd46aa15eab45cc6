"""Other programs that hold the processors make the time of ops chance."""

from dataclasses import replace

import numpy as np
import pandas as pd
import pytest

from bottleneck.analysis.ledger import LedgerResult, Overlap
from bottleneck.analysis.telemetry import find_contention
from bottleneck.schema.accounts import ACCOUNTS
from bottleneck.schema.analysis import CONTENDED, Ledger, LedgerEntry, TelemetrySummary

FULL = replace(TelemetrySummary(9, None, None, None, None, None, ()), host_utilization=0.99, process_processors=1.3)


def result(accounts: tuple[str, ...], us: tuple[float, ...], *, host_only: bool = True) -> LedgerResult:
    codes = np.array([tuple(ACCOUNTS).index(name) for name in accounts])
    ledger = Ledger(1.0, (LedgerEntry("compute", "compute", 1.0, 1.0),))
    overlap = Overlap(*[0.0] * len(Overlap.__dataclass_fields__))
    return LedgerResult(ledger, np.array(us), codes, pd.DataFrame(), overlap, (), host_only, None, 0)


UNEXPLAINED = result(("compute", "memory"), (60.0, 40.0)), np.array([0.1, np.nan])


def test_ops_that_no_floor_explains_on_full_processors_are_not_judged() -> None:
    (caveat,) = find_contention(FULL, 2, *UNEXPLAINED)
    assert (caveat.slug, caveat.share) == (CONTENDED, pytest.approx(0.94))
    assert "got 1.30 for its 2 threads" in caveat.message
    assert "explain 6.0 % of their time" in caveat.message


@pytest.mark.parametrize(
    "telemetry",
    [
        None,
        replace(FULL, host_utilization=0.7),  # a processor was free
        replace(FULL, process_processors=1.95),  # the program had them all
        replace(FULL, process_processors=None),
    ],
)
def test_a_program_that_had_its_processors_is_judged(telemetry: TelemetrySummary | None) -> None:
    assert find_contention(telemetry, 2, *UNEXPLAINED) == ()


def test_work_that_its_floors_explain_is_judged() -> None:
    explained = result(("compute", "overhead.launch_floor"), (60.0, 40.0)), np.array([0.5, 0.1])
    assert find_contention(FULL, 2, *explained) == ()


def test_time_that_is_no_work_does_not_count() -> None:
    waits = result(("compute", "overhead.dispatch", "overhead.input"), (10.0, 500.0, 500.0)), np.array([0.9, 0.0, 0.0])
    assert find_contention(FULL, 2, *waits) == ()
    assert find_contention(FULL, 2, result(("overhead.dispatch",), (1.0,)), np.zeros(1)) == ()


def test_a_device_of_its_own_does_not_wait_for_processors() -> None:
    on_gpu = result(("compute", "memory"), (60.0, 40.0), host_only=False), np.zeros(2)
    assert find_contention(FULL, 2, *on_gpu) == ()
