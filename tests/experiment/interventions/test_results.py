from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from bottleneck.experiment.interventions import CHANGES
from bottleneck.experiment.interventions import results as differences
from bottleneck.experiment.interventions.results import compare, distance_of, observe, refer
from bottleneck.experiment.interventions.subject import Change, Precision, Subject, make_subject, subject_of
from bottleneck.schema.measurements import Difference

torch: Any = pytest.importorskip("torch")
nn = torch.nn

EXAMPLES = Path(__file__).parents[3] / "examples"
SETTINGS: dict[str, dict[str, object]] = {
    "mlp": {},
    "transformer": {"batch_size": 2, "length": 16, "width": 32},
    "pointwise": {"elements": 4096},
    "slow_loader": {"batch_size": 16},
    "matmul": {"n": 64},
}

Step = Callable[[], Any]


def example(name: str) -> Callable[[], Subject]:
    return lambda: make_subject(str(EXAMPLES / f"{name}.py"), settings=SETTINGS[name])


def network(*layers: Any, optimizer: str = "SGD", **options: Any) -> Callable[[], Subject]:
    """A small network with these layers in its middle, trained on the spot; the step returns its loss."""

    def make() -> Subject:
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(8, 16), *(layer() for layer in layers), nn.ReLU(), nn.Linear(16, 4))
        updates = getattr(torch.optim, optimizer)(model.parameters(), **{"lr": 0.05, **options})
        data, wanted = torch.randn(32, 8), torch.randint(0, 4, (32,))

        def step() -> Any:
            updates.zero_grad()
            loss = nn.functional.cross_entropy(model(data), wanted)
            loss.backward()
            updates.step()
            return loss

        return subject_of(step)

    return make


def inference(model: Any, data: Any) -> Callable[[], Subject]:
    return lambda: subject_of(torch.no_grad()(lambda: model(data)))


def change(apply: Callable[[Subject], Step], precision: Precision = "reordered") -> Change:
    return Change("test", "a test", precision, apply)


def no_change(subject: Subject) -> Step:
    return subject.step


def verdicts(differences: tuple[Difference, ...]) -> dict[str, bool | None]:
    return {each.what: each.is_within for each in differences}


@pytest.mark.parametrize("name", SETTINGS)
def test_the_original_has_the_same_bits_as_itself(name: str) -> None:
    found = compare(example(name), change(no_change, "same"))
    assert found and all(each.absolute == 0 and each.is_within for each in found)


def test_training_shows_its_loss_gradients_and_parameters() -> None:
    found = compare(example("mlp"), change(no_change, "same"))
    assert verdicts(found) == {"loss": True, "gradients": True, "parameters": True}


@pytest.mark.parametrize("name", ["mlp", "transformer", "slow_loader", "matmul"])
def test_bf16_differs_and_stays_within_what_bf16_implies(name: str) -> None:
    found = compare(example(name), CHANGES["bf16-autocast"])
    assert all(each.is_within for each in found)
    assert all(each.relative and each.allowed and 1e-5 < each.relative < each.allowed < 1 for each in found[:1])


@pytest.mark.parametrize("optimizer", ["SGD", "Adam", "AdamW"])
def test_bf16_of_a_small_network_stays_within(optimizer: str) -> None:
    assert all(verdicts(compare(network(optimizer=optimizer), CHANGES["bf16-autocast"])).values())


@pytest.mark.parametrize("optimizer", ["SGD", "Adam", "AdamW", "Adagrad"])
@pytest.mark.parametrize("name", ["fused-optimizer", "foreach-optimizer"])
def test_a_batched_update_stays_within_the_last_bits(optimizer: str, name: str) -> None:
    found = compare(network(optimizer=optimizer, weight_decay=0.01), CHANGES[name])
    assert all(verdicts(found).values())
    assert all(each.allowed is not None and each.allowed < 1e-2 for each in found)


def test_a_convolution_stays_within_the_last_bits_channels_last() -> None:
    torch.manual_seed(0)
    model, images = nn.Sequential(nn.Conv2d(3, 8, 3), nn.ReLU(), nn.Conv2d(8, 8, 3)), torch.randn(2, 3, 16, 16)
    (difference,) = compare(inference(model, images), CHANGES["channels-last"])
    assert difference.what == "outputs" and difference.is_within


def test_adam_makes_much_of_roundings_deep_in_a_network_and_is_not_called_wrong() -> None:
    def block() -> Any:
        return nn.Sequential(nn.ReLU(), nn.Linear(16, 16))

    make = network(*[block] * 15, optimizer="AdamW", lr=1e-3)
    assert all(verdicts(compare(make, CHANGES["bf16-autocast"])).values())


def test_a_network_that_learns_its_shapes_from_the_first_batch_is_compared() -> None:
    make = network(lambda: nn.LazyLinear(16))
    assert all(verdicts(compare(make, CHANGES["foreach-optimizer"])).values())


def test_bf16_that_claims_to_be_no_change_is_caught() -> None:
    same = replace(CHANGES["bf16-autocast"], precision="reordered")
    assert not any(verdicts(compare(network(), same)).values())


def wrong_result(subject: Subject) -> Step:
    return lambda: subject.step() * 1.01


def wrong_gradient(subject: Subject) -> Step:
    for parameter in subject.trained():
        parameter.register_hook(lambda gradient: -gradient)
    return subject.step


def wrong_rate(subject: Subject) -> Step:
    for group in subject.optimizers[0].param_groups:
        group["lr"] *= 1.1
    return subject.step


def stale_result(subject: Subject) -> Step:
    first = subject.step().detach().clone()
    return lambda: first


def no_update(subject: Subject) -> Step:
    subject.optimizers[0].step = lambda: None
    return subject.step


def no_dropout(subject: Subject) -> Step:
    subject.modules[0].eval()
    return subject.step


def half_the_batch(subject: Subject) -> Step:
    (data,) = [tensor for tensor in subject.tensors if tensor.is_floating_point()]
    (wanted,) = [tensor for tensor in subject.tensors if not tensor.is_floating_point()]
    subject.replace(data, data[:16])
    subject.replace(wanted, wanted[:16])
    return subject.step


@pytest.mark.parametrize(
    ("apply", "caught"),
    [
        (wrong_result, "loss"),
        (wrong_gradient, "gradients"),
        (wrong_rate, "parameters"),
        (stale_result, "loss"),
        (no_update, "parameters"),
        (half_the_batch, "loss"),
    ],
)
def test_a_wrong_change_is_caught(apply: Callable[[Subject], Step], caught: str) -> None:
    assert verdicts(compare(network(), change(apply)))[caught] is False


@pytest.mark.parametrize("apply", [wrong_gradient, stale_result, no_update, half_the_batch])
def test_a_wrong_change_hides_behind_neither_bf16_nor_adam(apply: Callable[[Subject], Step]) -> None:
    assert False in verdicts(compare(network(optimizer="Adam"), change(apply, "bf16"))).values()


def other_numbers(subject: Subject) -> Step:
    torch.rand(3)

    def step() -> Any:
        torch.rand(3)
        return subject.step()

    return step


def test_dropout_that_draws_other_numbers_is_not_called_wrong() -> None:
    found = compare(network(nn.Dropout), change(other_numbers))
    assert all(verdicts(found).values())
    assert any(each.reason and "other random numbers alone change it" in each.reason for each in found)


def test_a_step_that_draws_nothing_gets_no_such_leave() -> None:
    reference = refer(network(), "reordered")
    assert not any(reference.drawn.values())
    assert any(refer(network(nn.Dropout), "reordered").drawn.values())


def test_a_wrong_change_does_not_hide_behind_dropout() -> None:
    def far_off(subject: Subject) -> Step:
        return lambda: subject.step() + 10.0

    assert verdicts(compare(network(nn.Dropout), change(far_off)))["loss"] is False


def test_a_shuffling_loader_gives_the_same_batches_to_both() -> None:
    def make() -> Subject:
        torch.manual_seed(0)
        loader = torch.utils.data.DataLoader(torch.arange(64.0), batch_size=4, shuffle=True)
        batches = iter(loader)
        return subject_of(lambda: next(batches))

    (difference,) = compare(make, change(no_change, "same"))
    assert difference.absolute == 0


def constant(*values: float) -> Callable[[], Subject]:
    held = torch.tensor(values)
    return lambda: subject_of(held.clone)


def giving(*values: float) -> Change:
    return change(lambda subject: lambda: torch.tensor(values))


NAN, INF = float("nan"), float("inf")


def test_numbers_that_are_none_at_the_same_place_are_equal() -> None:
    (difference,) = compare(constant(1.0, NAN, INF, -INF), giving(1.0, NAN, INF, -INF))
    assert difference.is_within and difference.absolute == 0


@pytest.mark.parametrize("values", [(1.0, 2.0, INF), (NAN, NAN, INF), (1.0, NAN, -INF), (1.0, INF, NAN)])
def test_a_number_that_is_none_in_one_of_both_is_wrong(values: tuple[float, ...]) -> None:
    (difference,) = compare(constant(1.0, NAN, INF), giving(*values))
    assert difference.is_within is False and difference.reason is not None
    assert "infinite, or not a number, in one of both only" in difference.reason
    assert difference.absolute is None


def test_another_shape_is_wrong() -> None:
    (difference,) = compare(constant(1.0, 2.0), giving(1.0, 2.0, 3.0))
    assert difference.is_within is False and difference.reason == "the shape [2] became [3]"


def test_differences_are_reported_absolute_and_relative_to_the_largest() -> None:
    (difference,) = compare(constant(1.0, -4.0), giving(1.5, -4.0))
    assert (difference.absolute, difference.relative, difference.is_within) == (0.5, 0.125, False)


def test_tiny_numbers_may_become_zero_unless_all_has_to_stay_the_same() -> None:
    make = constant(1e-39, 1e-40)
    assert verdicts(compare(make, giving(0.0, 0.0))) == {"outputs": True}
    assert verdicts(compare(make, change(lambda subject: lambda: torch.zeros(2), "same"))) == {"outputs": False}


def test_little_time_leaves_one_perturbation_and_one_draw(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(differences, "_SECONDS", -1.0)
    made = []
    make = network(nn.Dropout)
    refer(lambda: made.append(1) or make(), "reordered")  # type: ignore[func-returns-value]
    assert len(made) == 3


def test_zeros_that_stay_zeros_are_the_same() -> None:
    (difference,) = compare(constant(0.0, 0.0), giving(0.0, 0.0))
    assert (difference.absolute, difference.relative, difference.is_within) == (0.0, 0.0, True)


def test_an_index_may_differ_where_numbers_are_rounded() -> None:
    zero, one = torch.tensor([0]), torch.tensor([1])
    assert distance_of([zero], [one], is_floating=False).absolute == 1
    assert distance_of([zero], [one], is_floating=True).absolute == 0


def test_a_gradient_that_was_dropped_is_one_of_zeros() -> None:
    zeros, ones = torch.zeros(2), torch.ones(2)
    assert distance_of([None], [zeros], is_floating=False).absolute == 0
    assert distance_of([None], [ones], is_floating=False).absolute == 1
    assert distance_of([ones], [None], is_floating=False).absolute == 1
    assert distance_of([None], [None], is_floating=False).absolute == 0


def test_numbers_too_large_for_single_precision_are_compared_in_double() -> None:
    first, second = torch.tensor([2**53 - 1]), torch.tensor([2**53 - 2])
    assert distance_of([first], [second], is_floating=False).absolute == 1


def test_other_work_is_not_compared() -> None:
    (difference,) = compare(network(), CHANGES["batch-x2"])
    assert difference.is_within is None and difference.reason == "the changed step does other work"


def test_a_step_that_shows_nothing_is_not_compared() -> None:
    (difference,) = compare(lambda: subject_of(lambda: None), change(no_change))
    assert difference.is_within is None and difference.reason is not None and "returns nothing" in difference.reason


def test_a_changed_step_that_shows_nothing_is_not_compared() -> None:
    (difference,) = compare(constant(1.0, 2.0), change(lambda subject: lambda: None))
    assert difference.is_within is None and difference.reason == "the changed step shows no outputs"


def test_a_loss_that_only_backward_shows_may_stay_unseen() -> None:
    def replay(subject: Subject) -> Step:
        backward = torch.autograd.backward
        return lambda: unwatched(backward, subject.step)

    def unwatched(backward: Any, step: Step) -> None:
        watched, torch.autograd.backward = torch.autograd.backward, backward
        step()
        torch.autograd.backward = watched

    found = compare(example("mlp"), change(replay, "same"))
    assert verdicts(found) == {"loss": None, "gradients": True, "parameters": True}
    assert found[0].reason == "the changed step shows no loss"


def test_results_are_found_in_any_nesting() -> None:
    ones = torch.ones(2)
    results = observe(subject_of(lambda: {"a": [ones, (0.5, "text")], "b": torch.ones(2, dtype=torch.cfloat)}), steps=1)
    assert [tuple(each.shape) for each in results.outputs] == [(2,), (2, 2)]
    assert [float(each) for each in results.loss] == [0.5]


def test_results_are_copies() -> None:
    held = torch.zeros(2)
    results = observe(subject_of(lambda: held.add_(1.0)), steps=3)
    assert [float(each[0]) for each in results.outputs] == [1.0, 2.0, 3.0]


def test_observing_leaves_backward_as_it_was() -> None:
    backward = torch.autograd.backward
    observe(network()())
    assert torch.autograd.backward is backward
