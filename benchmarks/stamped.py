"""A training script that stamps its own steps: what a program sees of itself, alone or under `bottleneck run`.

python benchmarks/stamped.py MODEL STEPS OUT    leaves clocks after each step, and the memory at the end, as JSON in OUT
"""

import itertools
import json
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path

import torch
from torch import nn

Step = Callable[[], object]


def optimizer_alone() -> Step:
    """Nothing but an optimizer's step over one number: what a hook adds to a step shows in microseconds."""
    parameter = nn.Parameter(torch.zeros(1))
    parameter.grad = torch.ones(1)
    return torch.optim.SGD([parameter], lr=0.1).step


def train(model: nn.Module, inputs: torch.Tensor, classes: int) -> Step:
    """A full training step with SGD on inputs that stay the same."""
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    labels = torch.randint(0, classes, (inputs.shape[0],))

    def step() -> None:
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(inputs), labels).backward()
        optimizer.step()

    return step


def mlp() -> Step:
    """The tiny network of examples/mlp.py: 3 layers of 64 on 32 samples."""
    return train(_mlp(), torch.randn(32, 64), 10)


def mlp_inference() -> Step:
    """The same network without training: its steps are found by its module calls."""
    model, inputs = _mlp().eval(), torch.randn(32, 64)

    def step() -> torch.Tensor:
        with torch.no_grad():
            return model(inputs)

    return step


def _mlp() -> nn.Module:
    body = [module for _ in range(3) for module in (nn.Linear(64, 64), nn.ReLU())]
    return nn.Sequential(*body, nn.Linear(64, 10))


def transformer() -> Step:
    """Two encoder layers of width 128 over 4 sequences of 32."""
    layer = nn.TransformerEncoderLayer(128, nhead=4, dim_feedforward=512, batch_first=True)
    model = nn.Sequential(nn.TransformerEncoder(layer, 2), nn.Flatten(), nn.Linear(32 * 128, 10))
    return train(model, torch.randn(4, 32, 128), 10)


def resnet() -> Step:
    """Seventeen convolutions with batch norm on 8 images of 32 x 32."""
    widths = [3, *([16] * 6), *([32] * 6), *([64] * 5)]
    layers: list[nn.Module] = []
    for inner, outer in itertools.pairwise(widths):
        stride = 2 if inner not in {3, outer} else 1
        layers += [nn.Conv2d(inner, outer, 3, stride, 1, bias=False), nn.BatchNorm2d(outer), nn.ReLU()]
    model = nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(64, 10))
    return train(model, torch.randn(8, 3, 32, 32), 10)


MODELS: Mapping[str, Callable[[], Step]] = {
    "optimizer": optimizer_alone,
    "mlp": mlp,
    "mlp-inference": mlp_inference,
    "transformer": transformer,
    "resnet": resnet,
}


def main() -> None:
    """Runs the steps and leaves the stamps."""
    name, count, out = sys.argv[1], int(sys.argv[2]), Path(sys.argv[3])
    torch.set_num_threads(1)
    torch.manual_seed(0)
    step = MODELS[name]()
    wall_ns, cpu_ns = [time.perf_counter_ns()], [time.process_time_ns()]
    unix_ns = time.time_ns()
    for _ in range(count):
        step()
        wall_ns.append(time.perf_counter_ns())
        cpu_ns.append(time.process_time_ns())
    out.write_text(json.dumps({"wall_ns": wall_ns, "cpu_ns": cpu_ns, "unix_ns": unix_ns, **_memory()}))


def _memory() -> dict[str, int]:
    status = Path("/proc/self/status").read_text(encoding="ascii").splitlines()
    kilobytes = {line.split(":")[0]: int(line.split()[1]) for line in status if line.startswith(("VmRSS", "VmHWM"))}
    return {"resident_bytes": 1024 * kilobytes["VmRSS"], "peak_bytes": 1024 * kilobytes["VmHWM"]}


if __name__ == "__main__":
    main()
