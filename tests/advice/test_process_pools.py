"""Waits for processes that are sent their data with each call are told apart from other waits."""

from pathlib import Path

import pytest

from bottleneck.advice import host
from bottleneck.advice.process_pools import EXCHANGES, pool_waits
from bottleneck.schema.analysis import TelemetrySummary
from bottleneck.schema.evidence import Evidence
from bottleneck.schema.measurements import OtherThreads
from tests.advice.cases import case_of, cpu_events, idle_row, with_analysis, with_ledger, with_recording

MAP = "x = np.stack(pool.map(partial(embed, table=vectors), words))"


def waiting(folder: Path, text: str, call: str = "selectors.py: select", **texts: str) -> Evidence:
    """A step of 10 ms that waits 6 ms at train.py:12, which says this, and 1 ms at another line."""
    case = case_of(
        folder,
        cpu_events(10, 3, 8, steps=2),
        source_texts={"train.py:12": text, "train.py:40": "ready.wait()", **texts},
        threads=1,
    )
    rows = [
        idle_row("wait", 6_000.0, "train.py:12", detail=call),
        idle_row("wait", 1_000.0, "train.py:40", detail="threading.py: wait"),
    ]
    return with_ledger(case, {"memory": 3_000.0, "overhead.wait": 7_000.0}, rows)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (MAP, "a partial"),
        ("y = list(executor.map(work, jobs))", "initializer"),
        ("results = Parallel(n_jobs=2)(delayed(f)(x) for x in xs)", "do small work in this process"),
        ("x, y = conn.recv()", "queue or pipe"),
        ("total = manager.total", "object of a manager"),
    ],
)
def test_a_wait_for_a_pool_says_that_data_is_sent_with_each_call(tmp_path: Path, text: str, words: str) -> None:
    case = waiting(tmp_path, text)
    draft = pool_waits(case)
    assert draft is not None and draft.gain_us is not None
    assert "train.py:12" in draft.advice and words in draft.advice
    assert draft.gain_us.high == pytest.approx(6_000.0)
    other = host.waiting(case)
    assert other is not None and "train.py:40" in other.advice and "train.py:12" not in other.advice


def test_a_pool_of_threads_and_other_waits_stay_waits_for_a_thread(tmp_path: Path) -> None:
    call, threads = "threading.py: wait", {"train.py:3": "pool = ThreadPoolExecutor(2)"}
    for name, case in (
        ("threads", waiting(tmp_path / "threads", MAP, call, **threads)),
        ("event", waiting(tmp_path / "event", "done.wait()", call)),
        ("map", waiting(tmp_path / "map", "y = torch.stack(list(map(work, jobs)))", call)),
    ):
        assert pool_waits(case) is None, name
        found = host.waiting(case)
        assert found is not None and "train.py:12" in found.advice, name


def test_threads_of_the_pool_that_compute_in_this_process_are_told(tmp_path: Path) -> None:
    case = with_recording(waiting(tmp_path, MAP), other_threads=OtherThreads(2.0, 0.5, 0.0))
    draft = pool_waits(case)
    assert draft is not None and not any("processors" in each for each in draft.evidence)
    telemetry = TelemetrySummary(9, None, None, None, None, None, (), process_processors=1.2)
    busy = pool_waits(with_analysis(case, telemetry=telemetry))
    assert busy is not None and "kept 0.7 processors busy" in busy.evidence[-1]


def test_every_exchange_says_its_advice_without_gaps() -> None:
    for each in EXCHANGES:
        words = each.advice.format(place="train.py:12")
        assert words.endswith(".") and "{" not in words
