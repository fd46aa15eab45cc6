"""Programs with a planted holder of memory, recorded on a CPU: the report names the holder with its line."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.harness.driver import HANGS_S, record

pytest.importorskip("torch")
pytestmark = pytest.mark.process

# A model of few operations, so that what is planted is most of the memory.
_TRAINING = """
import torch

torch.manual_seed(0)
cache, losses, total = {{}}, [], torch.zeros(())
model = torch.nn.Sequential(torch.nn.Linear(128, 512), torch.nn.ReLU(), torch.nn.Linear(512, {width}))
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)

def batch(index):
    if index not in cache:
        {keep}
    return torch.randn(1024, 128)

for index in range(60):
    x = batch(index)
    y = model(x)
    loss = y.square().mean()
    optimizer.zero_grad()
    loss.backward({backward})
    optimizer.step()
    {after}
"""


def program(*, keep: str = "pass", backward: str = "", after: str = "pass", width: int = 128) -> str:
    """A training loop with one thing planted."""
    return _TRAINING.format(keep=keep, backward=backward, after=after, width=width)


def line_of(text: str, words: str) -> str:
    """The line of the program that holds these words, as reports write it."""
    (number,) = (at for at, line in enumerate(text.strip().splitlines(), 1) if words in line)
    return f"program.py:{number}"


def growing(folder: Path, text: str) -> dict[str, tuple[str | None, bool]]:
    """The variables that a recording of this program says grow: line, and whether they keep graphs."""
    growth = record(folder, text.strip()).recording.memory_growth
    assert growth is not None and growth.host_bytes is not None and growth.host_bytes > 100e3
    return {keeper.name: (keeper.source, keeper.has_graph) for keeper in growth.keepers}


def test_a_list_of_losses_is_named(tmp_path: Path) -> None:
    text = program(after="losses.append(model(x).square().mean())")
    assert growing(tmp_path, text) == {"losses": (line_of(text, "losses.append"), True)}


def test_a_sum_that_retains_each_graph_is_named(tmp_path: Path) -> None:
    text = program(backward="retain_graph=True", after="total = total + loss")
    assert growing(tmp_path, text) == {"total": (line_of(text, "total + loss"), True)}


def test_inputs_that_a_cache_keeps_are_named_without_a_graph(tmp_path: Path) -> None:
    text = program(keep="cache[index] = torch.randn(1024, 128)")
    assert growing(tmp_path, text) == {"cache": (line_of(text, "cache[index] ="), False)}


def test_large_logits_are_the_largest_holder_at_the_peak(tmp_path: Path) -> None:
    text = program(width=8192)
    folder = record(tmp_path, text.strip(), "--memory").folder
    command = [sys.executable, "-m", "bottleneck", "report", str(folder), "--format", "json"]
    printed = subprocess.run(command, capture_output=True, text=True, check=True, timeout=HANGS_S)
    holders = json.loads(printed.stdout)["memory"]["allocations"]
    assert {(one["op"], one["source"]) for one in holders if one["bytes"] >= 1024 * 8192 * 4} >= {
        ("aten::addmm", line_of(text, "y = model(x)"))
    }


def test_states_of_an_optimizer_are_told_though_they_were_made_before_the_recording(tmp_path: Path) -> None:
    text = program(width=1024).replace("SGD(model.parameters(), lr=0.01)", "Adam(model.parameters())")
    folder = record(tmp_path, text.strip(), "--memory").folder
    command = [sys.executable, "-m", "bottleneck", "report", str(folder), "--format", "json"]
    printed = subprocess.run(command, capture_output=True, text=True, check=True, timeout=HANGS_S)
    use = json.loads(printed.stdout)["memory"]
    sizes = {part["kind"]: part["bytes"] for part in use["kinds"]}
    parameters = 4 * (128 * 512 + 512 + 512 * 1024 + 1024)
    assert sizes["parameters"] == parameters
    # Two moments per parameter, and a number of steps for each of the four.
    assert sizes["optimizer state"] == 2 * parameters + 4 * 4
    assert sum(sizes.values()) == use["peak_bytes"]
    assert use["earlier_bytes"] >= sizes["parameters"] + sizes["optimizer state"]
