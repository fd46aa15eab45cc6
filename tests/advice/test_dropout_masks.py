"""Masks of dropout that one thread draws, and the module that is proposed in its place."""

from functools import partial
from pathlib import Path
from typing import Any

import pytest

from bottleneck.advice.dropout_masks import MODULE, dropout_masks
from bottleneck.experiment.interventions import CHANGES
from bottleneck.experiment.interventions.dropout import drop_by_bits
from bottleneck.experiment.interventions.results import compare
from bottleneck.experiment.interventions.subject import NotApplicable, Subject, subject_of
from bottleneck.schema.evidence import Evidence
from tests.advice.cases import case_of
from tests.builders import Event, op, step


def case(
    folder: Path, draw_us: float, *, outer: str = "aten::dropout", trains: bool = True, sized: bool = True
) -> Evidence:
    """Two steps of 1 ms with a mask of 100,000 numbers and a product."""
    events: list[Event] = []
    dims = [[100, 1000], []] if sized else None
    for number in range(2):
        at = 1000.0 * number
        events += [
            step(number, at, 999),
            op(outer, at + 10, draw_us + 20, dims=dims),
            op("aten::bernoulli_", at + 12, draw_us, dims=dims),
            op("aten::mm", at + 500, 300, dims=[[100, 1000], [1000, 100]]),
        ]
        events += [op("autograd::engine::evaluate_function: MulBackward0", at + 900, 10)] if trains else []
    return case_of(folder, events, unprofiled_us=1000.0)


def test_masks_that_one_thread_draws_can_be_made_of_random_bits(tmp_path: Path) -> None:
    """An FT-Transformer drew masks for 11 % of its step, which was counted as arithmetic."""
    draft = dropout_masks(case(tmp_path, 400))
    assert draft is not None and draft.gain_us is not None and draft.cannot_lose
    assert draft.gain_us.low == pytest.approx(0.5 * 400, rel=0.03)
    assert draft.gain_us.high == pytest.approx(0.85 * 400, rel=0.03)
    bare = dropout_masks(case(tmp_path / "bare", 400, sized=False))
    assert bare is not None and bare.gain_us is not None and bare.gain_us.low == 0
    assert bare.confidence == "low" and "unless the CPU is Intel's" in bare.title and not bare.cannot_lose


@pytest.mark.parametrize(
    ("draw_us", "more"),
    [(20, {}), (150, {}), (400, {"trains": False}), (400, {"outer": "aten::copy_"})],
    ids=["little", "as fast as MKL", "in inference", "of the program"],
)
def test_cheap_masks_and_others_are_left_alone(tmp_path: Path, draw_us: float, more: dict[str, Any]) -> None:
    assert dropout_masks(case(tmp_path, draw_us, **more)) is None


def test_the_proposed_module_drops_as_many_and_keeps_the_mean() -> None:
    torch: Any = pytest.importorskip("torch")
    made: dict[str, Any] = {}
    exec(MODULE, {"torch": torch}, made)
    module, given = made["Dropout"](0.3), torch.ones(1001, 999, requires_grad=True)
    torch.manual_seed(0)
    result = module(given)
    kept = (result != 0).double().mean().item()
    # Five standard deviations of a million draws.
    assert kept == pytest.approx(0.7, abs=5 * (0.21 / 1e6) ** 0.5)
    assert result.max().item() == pytest.approx(1 / 0.7)
    result.sum().backward()
    assert torch.equal(given.grad, result.detach())
    neighbours = (result[:, 1:] != 0) & (result[:, :-1] != 0)
    assert neighbours.double().mean().item() == pytest.approx(0.49, abs=5e-3)
    assert module.eval()(given) is given
    assert not torch.equal(module.train()(given), result)


def test_verify_tries_what_is_proposed() -> None:
    torch: Any = pytest.importorskip("torch")
    made: dict[str, Any] = {}
    exec(MODULE, {"torch": torch}, made)
    given, results = torch.rand(7, 33), []
    for drop in (made["Dropout"](0.2), partial(drop_by_bits, torch, torch.nn.Dropout(0.2))):
        torch.manual_seed(1)
        results.append(drop(given))
    assert made["Dropout"](0.2)(given.bfloat16()).dtype == torch.bfloat16
    assert torch.equal(*results) and not torch.equal(results[0], given)


@pytest.mark.parametrize("trains", [True, False])
def test_a_step_with_dropout_keeps_its_results_but_for_the_draw(trains: bool) -> None:
    torch: Any = pytest.importorskip("torch")
    given = torch.rand(64, 16)

    def make() -> Subject:
        torch.manual_seed(0)
        model = torch.nn.Sequential(torch.nn.Linear(16, 16), torch.nn.Dropout(0.5), torch.nn.Linear(16, 4)).train(
            trains
        )
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

        def step() -> Any:
            loss = model(given).square().mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            return loss

        return subject_of(step)

    if not trains:
        with pytest.raises(NotApplicable, match="in training"):
            CHANGES["dropout-bits"].apply(make())
        return
    assert all(difference.is_within is not False for difference in compare(make, CHANGES["dropout-bits"]))
