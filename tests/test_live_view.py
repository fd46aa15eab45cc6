"""A watched run is followed while it goes on, and no longer."""

from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from bottleneck.cli import _run
from bottleneck.commands.live_view import follow
from bottleneck.harness.step_log import StepLog
from bottleneck.schema.watch_log import STEP_FIELDS, WatchHeader
from bottleneck.watched.summary import is_running, summarise

if TYPE_CHECKING:
    from bottleneck.schema.watched import WatchedRun

WHOLE = {"first", "count", "batches", "passes", "switches", "faults"}


def write(folder: Path, steps: int, *, is_complete: bool = False, ranks: int = 1) -> None:
    log = StepLog(folder, 0)
    log.start_over()
    values = {name: 1 if name in WHOLE else 10.0 for name, _ in STEP_FIELDS}
    log.add([tuple((values | {"first": step}).values()) for step in range(1, steps + 1)])
    log.flush()
    log.write_header(WatchHeader(0, ranks, 10**18, "optimizer", "optimizer.step of SGD", is_complete=is_complete))


def test_a_run_is_drawn_as_it_grows_until_it_ends(tmp_path: Path) -> None:
    drawn: list[WatchedRun | None] = []
    waits: list[float] = []

    def wait(seconds: float) -> None:
        waits.append(seconds)
        write(tmp_path, 100 * len(waits))

    follow(tmp_path, drawn.append, lambda _: len(waits) < 3, wait)
    assert [run and run.ranks[0].steps for run in drawn] == [None, 100, 200]
    assert set(waits) == {1.0}


def test_only_what_is_written_to_goes_on(tmp_path: Path) -> None:
    assert not is_running(tmp_path)
    write(tmp_path, 10)
    assert not is_running(tmp_path)  # nobody holds the folder
    assert summarise(tmp_path).warnings == ("the program was cut off after step 10",)
    write(tmp_path, 10, ranks=2)
    assert is_running(tmp_path)  # written a moment ago
    assert summarise(tmp_path).warnings == ("the program still runs; this is step 10",)
    write(tmp_path, 10, is_complete=True, ranks=2)
    assert not is_running(tmp_path)


@pytest.mark.parametrize(
    ("name", "words"), [("log", "the output is none"), ("train.py", "train.py is no folder of one")], ids=str
)
def test_what_cannot_be_followed_is_refused(
    name: str, words: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "log").mkdir()
    write(tmp_path / "log", 10)
    (tmp_path / "train.py").write_text("")
    assert _run(["watch", "--live", str(tmp_path / name)]) == 2
    assert words in " ".join(capsys.readouterr().err.split())
