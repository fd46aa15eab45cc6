"""`bottleneck run` of scripts: what is between their steps, and steps that are calls of exported programs."""

from pathlib import Path

import pytest

from bottleneck.pipeline import analyse

from .driver import record
from .test_run_scripts import train_and

pytestmark = pytest.mark.process

pytest.importorskip("torch")


def test_an_evaluation_between_steps_is_named_first(tmp_path: Path) -> None:
    run = train_and(
        tmp_path,
        """
    def evaluate():
        for _ in range(20_000):
            with torch.no_grad():
                model(torch.ones(4, 8))

    train(80)
    for _ in range(4):
        evaluate()
        train(10)
        """,
    )
    found = run.recording.run
    assert found is not None
    assert found.elsewhere_share > 0.5
    assert found.places[0].function == "evaluate"
    assert found.places[0].source.startswith("program.py:")
    assert "First: do less between steps (program.py:" in analyse([run.folder]).verdict.sentence


@pytest.mark.parametrize("made", ["torch.export.export(net, (x,)).module()", "torch.jit.freeze(torch.jit.script(net))"])
def test_calls_of_exported_and_scripted_modules_are_steps(made: str, tmp_path: Path) -> None:
    program = f"""
        import torch
        net = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.ReLU()).eval()
        x = torch.ones(4, 8)
        made = {made}
        with torch.no_grad():
            for _ in range(60):
                made(x)
    """
    run = record(tmp_path, program, "--warmup", "3")
    assert run.status == 0
    assert run.recording.step_source == "module"
    assert run.recording.steps_seen is not None and run.recording.steps_seen > 20
