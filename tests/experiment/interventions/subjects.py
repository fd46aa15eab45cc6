"""Small steps to try changes on, made the same for a seed."""

from collections.abc import Callable
from typing import Any

from bottleneck.experiment.interventions.subject import Subject, subject_of


def training(torch: Any, make: Callable[[], Any], inputs: Callable[[], Any]) -> Subject:
    """A step of SGD on the mean of what the network makes of its inputs; returns the loss."""
    torch.manual_seed(0)
    model, given = make(), inputs()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

    def step() -> Any:
        optimizer.zero_grad()
        loss = model(given).mean()
        loss.backward()
        optimizer.step()
        return loss.detach()

    return subject_of(step)


def inference(torch: Any, make: Callable[[], Any], inputs: Callable[[], Any]) -> Subject:
    """A step without gradients, of a network in evaluation mode; returns its output."""
    torch.manual_seed(0)
    model, given = make().eval(), inputs()

    def step() -> Any:
        with torch.no_grad():
            return model(given)

    return subject_of(step)


def perceptron(torch: Any) -> Any:
    """Two layers."""
    return torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.ReLU(), torch.nn.Linear(16, 4))


def convolutions(torch: Any) -> Any:
    """A convolution with batch norm, whose statistics are not those of a fresh one, and a classifier."""
    norm = torch.nn.BatchNorm2d(4)
    with torch.no_grad():
        norm.running_mean.normal_()
        norm.running_var.uniform_(0.5, 2.0)
        norm.weight.normal_()
    layers = (torch.nn.Conv2d(2, 4, 3), norm, torch.nn.ReLU(), torch.nn.Flatten(), torch.nn.Linear(4 * 6 * 6, 3))
    return torch.nn.Sequential(*layers)


def saved_elements(torch: Any, step: Callable[[], Any]) -> int:
    """The number of elements the step keeps from forward for backward."""
    counts = list[int]()

    def pack(tensor: Any) -> Any:
        counts.append(tensor.numel())
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        step()
    return sum(counts)
