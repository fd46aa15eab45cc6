"""The smallest inputs at which a command once failed with a bug of ours; `python -m benchmarks.fuzz` finds them."""

import gzip
import json
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from bottleneck.cli import _run
from tests.builders import Event, complete, frame, kernel, launch, op, step, write_trace

SYNC = complete("cudaStreamSynchronize", "cuda_runtime", 2400.0, 200.0)
SAMPLE = Path(__file__).parents[1] / "sample_traces" / "matmul"
WEEK_US = 7 * 86_400e6

# A wait alone, without op or kernel, which `whatif` indexed an empty table by.
NO_OPS: Sequence[Event] = (SYNC,)
# Frames and waits, as of a program whose work is in a library of its own.
FRAMES_AND_WAITS: Sequence[Event] = (step(0, 2000, 900), frame("serve.py(20): wait", 2010, 800), SYNC)
# Shapes that are no list.
NUMBER_AS_SHAPES: Sequence[Event] = (
    op("aten::mm", 10, 100, dims=[[8, 8], [8, 8]]) | {"args": {"External id": 1, "Input Dims": 0}},
    launch(1, 20, 5),
    kernel(1, 40, 50, "ampere_sgemm_128x64_tn"),
)
# A kernel whose launch is a week before it.
WEEK_APART: Sequence[Event] = tuple(
    event
    for number in range(5)
    for at in (number * 1000.0, number * 1000.0 + WEEK_US - 1e6)
    for event in (op("aten::mm", at, 333.3), launch(number, at + 10.1, 5.7), kernel(number, at + 20.3, 300.7))
)
# A type that is a list, on which no text can be looked up.
LIST_AS_TYPE: Sequence[Event] = (op("aten::linear", 10, 400, dims=[[8, 16], [16, 16], []], types=["float", [-1], [0]]),)
# A size that is null, in tables and comparisons.
NULL_AS_SIZE: Sequence[Event] = (op("aten::mm", 10, 400, dims=[[8, None], [None, 8]]),)
INPUTS: dict[str, Sequence[Event]] = {
    "no ops": NO_OPS,
    "frames and waits": FRAMES_AND_WAITS,
    "a number as shapes": NUMBER_AS_SHAPES,
    "a week apart": WEEK_APART,
    "a list as type": LIST_AS_TYPE,
    "null as size": NULL_AS_SIZE,
}


def _commands(trace: Path, sound: Path, page: Path) -> list[list[str]]:
    forms = ([], ["--full"], ["-f", "json"], ["-f", "markdown", "--all-findings"], ["-o", str(page)])
    return [
        *(["report", str(trace), *form] for form in forms),
        *(["doctor", str(trace)], ["whatif", str(trace)], ["whatif", str(trace), "--remove", "sync"]),
        ["predict", str(trace), "--device", "A100"],
        *(["compare", str(trace), str(sound)], ["compare", str(sound), str(trace)]),
    ]


@pytest.mark.parametrize("name", INPUTS)
def test_no_command_fails_at_an_input_at_which_one_did(
    name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    trace = write_trace(tmp_path / "trace.json", INPUTS[name])
    _check_all(trace, tmp_path, capsys)


def _check_all(trace: Path, folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    sound = write_trace(folder / "sound.json", [step(0, 0, 500), op("aten::mm", 10, 400, dims=[[8, 8], [8, 8]])])
    for words in _commands(trace, sound, folder / "page.html"):
        status = _run(words)
        said = capsys.readouterr()
        assert status in {0, 1, 2, 3, 5}, (words, said.err)
        assert "Traceback" not in said.err
        assert "None" not in said.out, words


def test_a_recording_whose_only_event_has_no_length_is_reported(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    recording = Path(shutil.copytree(SAMPLE, tmp_path / "recording"))
    with gzip.open(recording / "trace.rank0.json.gz", "wt") as file:
        json.dump([op("aten::mm", 0, 0)], file)
    _check_all(recording, tmp_path, capsys)


# Whole files, at which the reader or what follows it failed.
DOCUMENTS: dict[str, Any] = {}


@pytest.mark.parametrize("name", DOCUMENTS)
def test_no_command_fails_at_a_document_at_which_one_did(
    name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    trace = tmp_path / "trace.json"
    trace.write_text(json.dumps(DOCUMENTS[name]))
    _check_all(trace, tmp_path, capsys)
