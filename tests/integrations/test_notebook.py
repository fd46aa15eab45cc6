"""Cells of a notebook that a kernel executes, as a user would write them."""

import json
import os
import re
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from bottleneck.pipeline import analyse
from bottleneck.schema.recording import read_recording

from .page import needs, programs

pytestmark = [pytest.mark.process, needs("torch", "nbclient", "ipykernel")]

EXECUTE = """
import sys, nbclient, nbformat
notebook = nbformat.read(sys.argv[1], as_version=4)
nbclient.NotebookClient(notebook, timeout=300, kernel_name="python3", allow_errors=True).execute()
nbformat.write(notebook, sys.argv[1])
"""
SETUP = """
import torch, warnings
warnings.simplefilter("error")
torch.set_num_threads(1)
model = torch.nn.Linear(8, 8)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

def train(steps):
    for _ in range(steps):
        optimizer.zero_grad()
        model(torch.ones(4, 8)).sum().backward()
        optimizer.step()
"""
LOOP = """
for _ in range(60):
    optimizer.zero_grad()
    model(torch.ones(4, 8)).sum().backward()
    optimizer.step()
"""
ABANDONED = """
from bottleneck.integrations.training_recording import TrainingRecording
TrainingRecording("abandoned", warmup=3).begin(0, 1)
train(40)
raise ValueError("theirs")
"""
AROUND = """%%bottleneck around --warmup 3
inner = TrainingRecording("inner")
inner.begin(0, 1)
for _ in range(40):
    train(2)
    inner.step()
inner.end()
inner.block
"""
CELLS = {
    "load": "%load_ext bottleneck",
    "page": programs("A cell of a notebook")[1],
    "setup": SETUP,
    "value": "%%bottleneck\ntrain(100)\n'value'",
    "lines": "%%bottleneck lines --steps 3 --warmup 3\n" + LOOP,
    "same folder": "%%bottleneck lines\ntrain(60)",
    "error": "%%bottleneck error --warmup 3\ntrain(60)\nraise ValueError('theirs')",
    "interrupt": "%%bottleneck interrupted --warmup 3\ntrain(60)\nraise KeyboardInterrupt",
    "empty": "%%bottleneck empty\nprint('said')",
    "syntax": "%%bottleneck syntax\n1 +",
    "option": "%%bottleneck option --steps many\nprint('not reached')",
    "await": "%%bottleneck\nimport asyncio\nawait asyncio.sleep(0)\ntrain(60)\n'awaited'",
    "inside": "%%bottleneck inside --warmup 3\n_ = get_ipython().run_cell('1')\ntrain(60)",
    "below": "%%time\n%%bottleneck below --warmup 3\ntrain(60)",
    "called": "get_ipython().run_cell_magic('bottleneck', 'called --warmup 3', 'train(60)')",
    "abandoned": ABANDONED,
    "after": "%%bottleneck after --warmup 3\ntrain(60)",
    "around": AROUND,
    "unload": "%unload_ext bottleneck",
    "unknown": "%%bottleneck unknown\n1",
    "again": "%reload_ext bottleneck",
    "known": "%%bottleneck known --warmup 3\ntrain(60)",
}


@dataclass(frozen=True)
class Executed:
    """A notebook that was executed: its folder, and the outputs of each cell by the name of the cell."""

    folder: Path
    outputs: Mapping[str, list[dict[str, Any]]]

    def text(self, name: str, stream: str = "stderr") -> str:
        return "".join("".join(row["text"]) for row in self.outputs[name] if row.get("name") == stream)

    def shown(self, name: str, kind: str = "display_data") -> list[dict[str, str]]:
        rows = [row["data"] for row in self.outputs[name] if row["output_type"] == kind]
        return [{form: "".join(lines) for form, lines in row.items()} for row in rows]

    def error(self, name: str) -> str:
        rows = (row for row in self.outputs[name] if row["output_type"] == "error")
        return re.sub("\x1b\\[[0-9;]*m", "", "\n".join(line for row in rows for line in row["traceback"]))

    def steps(self, name: str) -> int:
        return len(read_recording(self.folder / name).traces[0].step_marks_ns) - 1


@pytest.fixture(scope="module")
def notebook(tmp_path_factory: pytest.TempPathFactory) -> Executed:
    folder = tmp_path_factory.mktemp("notebook")
    cells = [
        {"cell_type": "code", "execution_count": None, "id": f"c{at}", "metadata": {}, "outputs": [], "source": cell}
        for at, cell in enumerate(CELLS.values())
    ]
    file = folder / "cells.ipynb"
    file.write_text(json.dumps({"cells": cells, "metadata": {}, "nbformat": 4, "nbformat_minor": 5}))
    done = subprocess.run(
        [sys.executable, "-c", EXECUTE, file.name],
        cwd=folder,
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "IPYTHONDIR": str(folder / "ipython"), "OMP_NUM_THREADS": "1"},
    )
    assert done.returncode == 0, done.stderr
    executed = json.loads(file.read_text())["cells"]
    return Executed(folder, dict(zip(CELLS, (cell["outputs"] for cell in executed), strict=True)))


def test_the_code_of_the_page_shows_its_page(notebook: Executed) -> None:
    assert re.search(r"recorded [3-5] steps in bottleneck-runs/cell;", notebook.text("page"))
    (page,) = notebook.shown("page")
    assert "<iframe" in page["text/html"] and "id=&#34;summary&#34;" in page["text/html"]
    # Which bound it is depends on what else the machine does.
    assert re.search(r"^(MIXED|INCONCLUSIVE|[A-Z]+-BOUND(, [A-Z ]+)?) · cell", page["text/plain"], re.MULTILINE)


def test_the_value_of_a_cell_is_shown_as_usual_and_the_page_below_it(notebook: Executed) -> None:
    kinds = [row["output_type"] for row in notebook.outputs["value"] if row["output_type"] != "stream"]
    assert kinds == ["execute_result", "display_data"]
    assert notebook.shown("value", "execute_result") == [{"text/plain": "'value'"}]
    assert "bottleneck-runs/cell-2;" in notebook.text("value")
    assert "was not empty" not in notebook.text("value")


def test_lines_are_counted_as_in_the_cell_with_its_magic(notebook: Executed) -> None:
    assert notebook.steps("lines") == 3
    number = list(CELLS).index("lines") + 1
    lines = {line.name for line in analyse([notebook.folder / "lines"]).lines}
    assert f"cell {number}, line 5" in lines
    assert lines <= {f"cell {number}, line {line}" for line in (3, 4, 5, 6)} | {f"backward of cell {number}, line 5"}


def test_a_second_recording_into_a_folder_has_one_of_its_own(notebook: Executed) -> None:
    assert "lines was not empty" in notebook.text("same folder")
    assert notebook.steps("lines-2") == 5


@pytest.mark.parametrize(
    ("name", "folder", "error"), [("error", "error", "ValueError"), ("interrupt", "interrupted", "KeyboardInterrupt")]
)
def test_an_error_is_shown_as_usual_and_what_was_recorded_too(
    name: str, folder: str, error: str, notebook: Executed
) -> None:
    traceback = notebook.error(name)
    assert "----> 3 raise" in traceback and traceback.count(f"Cell In[{list(CELLS).index(name) + 1}]") == 1
    assert "integrations" not in traceback and "run_cell_magic" not in traceback
    assert f"the block was left by an exception: {error}" in notebook.text(name)
    assert notebook.steps(folder) == 5
    assert len(notebook.shown(name)) == 1


def test_a_cell_without_ops_says_so_and_shows_no_page(notebook: Executed) -> None:
    assert notebook.text("empty", "stdout") == "said\n"
    assert "recorded nothing that can be explained" in notebook.text("empty")
    assert notebook.shown("empty") == []


@pytest.mark.parametrize("name", ["syntax", "option"])
def test_a_cell_that_does_not_begin_records_nothing(name: str, notebook: Executed) -> None:
    said = notebook.error(name) + notebook.text(name)
    assert "SyntaxError" in said or "UsageError: argument --steps: invalid int value" in said
    assert notebook.text(name, "stdout") == "" and not (notebook.folder / name).exists()


def test_a_cell_may_wait(notebook: Executed) -> None:
    assert notebook.shown("await", "execute_result") == [{"text/plain": "'awaited'"}]
    assert len(notebook.shown("await")) == 1


@pytest.mark.parametrize("name", ["inside", "below", "called", "after", "known"])
def test_a_cell_is_recorded_to_its_end(name: str, notebook: Executed) -> None:
    assert notebook.steps(name) == 5
    assert len(notebook.shown(name)) == 1


def test_the_loop_that_an_error_left_open_is_finished_before_the_next_recording(notebook: Executed) -> None:
    assert "ValueError: theirs" in notebook.error("abandoned")
    assert notebook.steps("abandoned") == 5
    assert notebook.error("after") == ""


def test_a_training_in_a_recorded_cell_only_marks_its_steps(notebook: Executed) -> None:
    recording = read_recording(notebook.folder / "around")
    assert (recording.step_source, notebook.steps("around")) == ("mark", 5)
    assert not (notebook.folder / "inner").exists()
    assert notebook.shown("around", "execute_result") == []


def test_an_extension_that_was_unloaded_is_gone(notebook: Executed) -> None:
    assert "Cell magic `%%bottleneck` not found" in notebook.text("unknown")
    assert not (notebook.folder / "unknown").exists()
