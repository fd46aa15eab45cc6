"""The host within one process: batches that loaders make ready, what results are kept, and the loosest precision."""

import json
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest

from bottleneck.experiment.interventions.results import Results
from bottleneck.experiment.interventions.subject import subject_of
from bottleneck.experiment.side import environment_of
from bottleneck.experiment.variants import VariantHost, answer, load, loosest, prefetched, save
from bottleneck.harness.messages import Program
from bottleneck.harness.program import describe_error
from tests.experiment.own_changes import CHANGES, PROGRAM

torch = pytest.importorskip("torch")


def _step_over(loader: Any) -> Callable[[], Any]:
    odd = [object(), (1).__add__, {"a": 1}]

    def step() -> Any:
        return next(iter(loader)), odd

    return step


@pytest.mark.parametrize(("workers", "ready"), [(0, 0), (1, 4)])
def test_workers_of_a_loader_make_batches_ready(workers: int, ready: int) -> None:
    options = {"num_workers": workers, "prefetch_factor": 4} if workers else {}
    loader = torch.utils.data.DataLoader(list(range(8)), **options)
    assert prefetched(subject_of(_step_over(loader))) == ready


def test_a_loader_that_a_change_put_in_place_counts() -> None:
    loader = torch.utils.data.DataLoader(list(range(8)))
    subject = subject_of(_step_over(loader))
    subject.replace(loader, torch.utils.data.DataLoader(list(range(8)), num_workers=1))
    assert prefetched(subject) == 2


def test_kept_results_are_read_again_with_their_gaps(tmp_path: Path) -> None:
    results = Results(outputs=(torch.ones(2),), gradients=(None, torch.zeros(1)))
    save(results, tmp_path / "kept.pt", torch)
    again = load(tmp_path / "kept.pt", torch)
    assert torch.equal(again.outputs[0], torch.ones(2)) and again.loss == ()
    assert again.gradients[0] is None and torch.equal(again.gradients[1], torch.zeros(1))


def test_several_changes_imply_the_loosest_precision_of_all() -> None:
    assert loosest(["same", "bf16", "reordered"]) == "bf16"
    assert loosest([]) == "same"


def test_an_error_is_one_line_whatever_its_message_holds() -> None:
    assert describe_error(ValueError("first\nsecond")) == "ValueError: first"
    assert describe_error(ValueError("raised:\n\n  no such op\nmore")) == "ValueError: raised: no such op"
    assert describe_error(ValueError("nothing follows:")) == "ValueError: nothing follows:"
    assert describe_error(KeyError()) == "KeyError"
    assert len(describe_error(ValueError("long" * 1000))) == 300


def test_the_environment_of_changes_is_that_of_all() -> None:
    assert environment_of([CHANGES["apart"], CHANGES["nothing"]]) == {"OWN": "1"}


def test_a_program_names_itself_on_the_command_line_and_travels_whole() -> None:
    program = Program("model.py", ("a",), settings=(("batch_size", "4"),), train=True, seed=3)
    assert program.words == ("--set", "batch_size=4", "--train", "model.py", "a")
    assert Program.from_values(json.loads(json.dumps(asdict(program)))) == program


def test_requests_are_answered_with_a_value_or_a_reason(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "program.py").write_text(PROGRAM)
    host = VariantHost(Program(str(tmp_path / "program.py")), CHANGES)
    built = answer(host, {"do": "build", "name": "a", "changes": ["less-work"], "keep": None})
    assert built["value"]["samples"] == 1
    assert len(answer(host, {"do": "turn", "name": "a", "steps": 4, "lead": 1})["value"]) == 4
    assert answer(host, {"do": "build", "name": "b", "changes": ["needs-more"], "keep": None}) == {
        "verdict": "not applicable",
        "reason": "needs a loader",
        "is_for_memory": False,
    }
    assert answer(host, {"do": "turn", "name": "nobody", "steps": 1, "lead": 0})["verdict"] == "failed"
    assert "KeyError" in capsys.readouterr().err


def test_what_the_original_gives_is_computed_once_for_several_variants(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "program.py").write_text(PROGRAM)
    host = VariantHost(Program(str(tmp_path / "program.py")), CHANGES)
    kept = str(tmp_path / "kept.pt")
    host.build("a", ["less-work"], kept)
    first = host.compare(["less-work"], kept)
    assert first[0]["is_within"] is True
    monkeypatch.setattr(host, "_make", None)
    assert host.compare(["less-work"], kept) == first
