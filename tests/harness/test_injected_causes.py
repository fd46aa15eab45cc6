"""Causes injected into programs that `bottleneck run` records here: each has its name, its line and its time.

The programs time what they inject themselves, so that a busy machine changes both sides alike. What is compared is the
profiled step as it was: the report scales it to the unprofiled one, and takes off what other programs held up.
"""

import json
from dataclasses import dataclass
from pathlib import Path

import pytest

from bottleneck.pipeline import analyse
from bottleneck.schema.analysis import Analysis
from tests.harness.driver import record

pytestmark = pytest.mark.process

_NOTES = """
import json, time
injected = open("injected.jsonl", "w")
class timed:
    def __init__(self, name):
        self.name = name
    def __enter__(self):
        self.begin = time.time_ns()
    def __exit__(self, *_):
        injected.write(json.dumps([self.name, self.begin, time.time_ns()]) + "\\n")
        injected.flush()
"""

_LOOP = f"""
import gc, time
import torch
from torch.utils.data import DataLoader, Dataset
{_NOTES}
class Data(Dataset):
    def __len__(self):
        return 1000
    def __getitem__(self, index):
        with timed("input"):
            time.sleep(0.06)  # LOAD
        return torch.ones(64)

model = torch.nn.Linear(64, 64)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
kept = [[number] for number in range(1_000_000)]
for number, batch in enumerate(DataLoader(Data(), batch_size=1)):
    loss = model(batch).sum()
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    with timed("wait"):
        time.sleep(0.08)  # SLEEP
    with timed("gc"):
        gc.collect()  # COLLECT
    with timed("item"):
        loss.item()  # ITEM
    if number == 24:
        break
"""

_RECOMPILING = f"""
import torch
{_NOTES}
torch._dynamo.config.recompile_limit = torch._dynamo.config.cache_size_limit = 1000
model = torch.nn.Linear(8, 8)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

@torch.compile(backend="eager", dynamic=False)
def grow(x):
    for _ in range(5):
        x = torch.relu(x) + 1.0
    return x

for number in range(85):
    loss = model(torch.ones(4, 8)).sum()
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    x = torch.ones(number + 2)
    with timed("compile"):
        grow(x)  # COMPILE
"""


@dataclass(frozen=True)
class _Seen:
    """The analysis of the profiled steps, the program's text, and the time per step that it injected, by name."""

    analysis: Analysis
    program: list[str]
    injected_us: dict[str, float]

    def line(self, mark: str) -> str:
        """The line that bears a mark, as the report names it."""
        number = next(number for number, text in enumerate(self.program, 1) if text.endswith(f"# {mark}"))
        return f"program.py:{number}"

    def idle_us(self, cause: str, mark: str) -> float:
        """Time of a cause at the line that bears a mark."""
        line = self.line(mark)
        return sum(row.us for row in self.analysis.idle if (row.cause, row.source) == (cause, line))


def _see(folder: Path, program: str) -> _Seen:
    run = record(folder, program, "--steps", "4")
    assert run.status == 0, run.stderr
    file = run.folder / "recording.json"
    told = json.loads(file.read_text())
    told["traces"] = [{**trace, "unprofiled": None} for trace in told["traces"]]
    file.write_text(json.dumps({**told, "unprofiled": None, "threads": None}))
    analysis = analyse([run.folder])
    marks = run.recording.traces[0].step_marks_ns
    kept = [number for number, step in enumerate(analysis.steps.each) if step.set_aside is None]
    first_ns, last_ns = marks[kept[0]], marks[kept[-1] + 1]
    injected: dict[str, float] = {}
    for text in (folder / "injected.jsonl").read_text().splitlines():
        name, begin, end = json.loads(text)
        inside = max(min(end, last_ns) - max(begin, first_ns), 0)
        injected[name] = injected.get(name, 0.0) + inside / 1e3 / analysis.steps.count
    return _Seen(analysis, (folder / "program.py").read_text().splitlines(), injected)


@pytest.fixture(scope="module")
def loop(tmp_path_factory: pytest.TempPathFactory) -> _Seen:
    return _see(tmp_path_factory.mktemp("loop"), _LOOP)


@pytest.mark.parametrize(("cause", "mark"), [("wait", "SLEEP"), ("input", "LOAD"), ("gc", "COLLECT")])
def test_injected_cause_has_its_line_and_its_time(loop: _Seen, cause: str, mark: str) -> None:
    assert loop.injected_us[cause] > 20_000
    assert loop.idle_us(cause, mark) == pytest.approx(loop.injected_us[cause], rel=0.1)


def test_injected_causes_are_accounts_of_the_ledger(loop: _Seen) -> None:
    accounts = {entry.account: entry.us for entry in loop.analysis.ledger}
    for cause in ("wait", "input", "gc"):
        assert accounts[f"overhead.{cause}"] == pytest.approx(loop.injected_us[cause], rel=0.1)


def test_item_on_a_cpu_is_dispatch_at_its_line_and_waits_for_nothing(loop: _Seen) -> None:
    rows = [row for row in loop.analysis.kernels if row.name in {"aten::item", "aten::_local_scalar_dense"}]
    assert {row.source for row in rows} == {loop.line("ITEM")}
    assert sum(row.us for row in rows) <= loop.injected_us["item"]
    assert "sync" not in {row.cause for row in loop.analysis.idle}


def test_recompilation_has_its_line_and_its_time(tmp_path: Path) -> None:
    seen = _see(tmp_path, _RECOMPILING)
    assert seen.injected_us["compile"] > 5_000
    assert seen.idle_us("compile", "COMPILE") == pytest.approx(seen.injected_us["compile"], rel=0.1)
