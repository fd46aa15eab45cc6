from pathlib import Path
from typing import Any

import pytest

from bottleneck.experiment.interventions.loaders import BATCH_CHANGES as CHANGES
from bottleneck.experiment.interventions.loaders import double_batch
from bottleneck.experiment.interventions.subject import NotApplicable, make_subject

MLP = Path(__file__).parents[3] / "examples" / "mlp.py"


def test_the_step_works_on_twice_as_many_samples() -> None:
    torch: Any = pytest.importorskip("torch")
    parameters = make_subject(str(MLP), settings={"batch_size": 3, "hidden": 8}).parameters
    subject = make_subject(str(MLP), settings={**parameters, **double_batch(parameters)})
    assert {len(tensor) for tensor in subject.tensors} == {6}
    assert isinstance(subject.trained()[0], torch.nn.Parameter)
    assert CHANGES[0].samples == 2.0


def test_a_workload_without_a_batch_size_has_nothing_to_double() -> None:
    with pytest.raises(NotApplicable, match="needs a workload with a parameter batch_size"):
        double_batch({"n": 2})


@pytest.mark.parametrize("size", ["many", True, 2.5, 0, None])
def test_a_batch_size_that_is_no_count_is_not_doubled(size: object) -> None:
    with pytest.raises(NotApplicable, match="can be doubled"):
        double_batch({"batch_size": size})
