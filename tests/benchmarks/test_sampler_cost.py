import os
import re
import signal
from pathlib import Path

import pytest

pytest.importorskip("torch")

from benchmarks.sampler_cost import reader, row

pytestmark = pytest.mark.process


def state(process: int) -> str:
    return Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0]


def test_a_row_tells_the_step_and_what_the_reader_adds_with_its_interval() -> None:
    seen: list[str] = []
    with reader() as process:
        text = row(lambda: seen.append(state(process)), process, 3, 0.001)
    assert re.fullmatch(r"\d+ us \| [+-][\d.]+% \([+-][\d.]+% to [+-][\d.]+%\) \| 3 \|", text)
    # It was stopped in one half of the turns, and ran or slept in the other.
    stopped = seen.count("T")
    assert 0 < stopped < len(seen)


def test_the_reader_ends_with_its_block_though_it_is_stopped() -> None:
    with reader() as process:
        os.kill(process, signal.SIGSTOP)
    with pytest.raises(ProcessLookupError):
        os.kill(process, 0)
