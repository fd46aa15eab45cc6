"""Records small CPU programs, each slow for one reason, as the traces of an expert's blind judgements.

    python -m tests.judged.makers.recorded FOLDER [NAME …]

Each program is recorded by ``torch.profiler`` alone, as its owner would do it: one or three marked steps after
two of warm-up. Of several recordings the shortest is kept, so that other work on the machine shows as little as
possible. Those in ``tests/judged/cases`` were recorded with MALLOC_MMAP_THRESHOLD_, MALLOC_TRIM_THRESHOLD_ and
MALLOC_TOP_PAD_ so large that no pages were given back.
"""

import gzip
import math
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import torch
from torch import nn
from torch.nn import functional as fn
from torch.profiler import ProfilerActivity, profile, schedule
from torch.utils.data import DataLoader, Dataset

Step = Callable[[], object]
TRIES = 25
# Recorded steps of the programs whose step lasts milliseconds; the others have three.
STEPS = {"written_attention": 1, "nearest_centres": 1, "edge_messages": 1, "simulated_paths": 1}


def recurrent_loop() -> Step:
    """A recurrent cell called for each of 40 instants of a batch of 8."""
    inputs, state, weight, recurrent = (torch.randn(*size) for size in ((40, 8, 24), (8, 32), (24, 32), (32, 32)))

    def step() -> torch.Tensor:
        hidden = state
        for instant in inputs:
            hidden = torch.tanh(instant @ weight + hidden @ recurrent)
        return hidden

    return torch.no_grad()(step)


def written_attention() -> Step:
    """Causal attention by two products and a softmax, with its mask built in each step."""
    query, key, value = (torch.randn(1, 8, 256, 16) for _ in range(3))

    def step() -> torch.Tensor:
        mask = torch.triu(torch.full((256, 256), float("-inf")), diagonal=1)
        scores = query @ key.transpose(-2, -1) / 16**0.5 + mask
        return scores.softmax(-1) @ value

    return step


def watched_convolutions() -> Step:
    """Training of a small convolutional network with anomaly detection left on."""
    layers = [
        nn.Conv2d(3, 16, 3),
        nn.ReLU(),
        nn.Conv2d(16, 16, 3),
        nn.ReLU(),
        nn.Flatten(),
        nn.Linear(16 * 28 * 28, 10),
    ]
    model = nn.Sequential(*layers)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    images, labels = torch.randn(4, 3, 32, 32), torch.randint(10, (4,))

    def step() -> None:
        with torch.autograd.set_detect_anomaly(True):
            optimizer.zero_grad()
            fn.cross_entropy(model(images), labels).backward()
            optimizer.step()

    return step


class Crops(Dataset[tuple[torch.Tensor, int]]):
    """Images whose brightness and place are changed sample by sample in numpy."""

    def __init__(self, count: int) -> None:
        self.images = np.random.default_rng(0).integers(0, 255, (count, 96, 96, 3), dtype=np.uint8)

    def __len__(self) -> int:
        return len(self.images)

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        image = self.images[index].astype(np.float64)
        for _ in range(6):
            image = np.clip(image * np.random.uniform(0.9, 1.1) + np.random.normal(0, 1, image.shape), 0, 255)
        return torch.from_numpy(image[16:80, 16:80].transpose(2, 0, 1).astype(np.float32) / 255), index % 10


def unaided_loader() -> Step:
    """Training on images that the loader changes one by one in the process of the training."""
    model = nn.Sequential(nn.Conv2d(3, 8, 3, 2), nn.ReLU(), nn.Conv2d(8, 16, 3, 2), nn.ReLU(), nn.Flatten())
    head = nn.Linear(16 * 15 * 15, 10)
    optimizer = torch.optim.SGD([*model.parameters(), *head.parameters()], lr=0.01)
    batches: Iterator[list[torch.Tensor]] = iter(DataLoader(Crops(12 * 8), batch_size=12))

    def step() -> None:
        images, labels = next(batches)
        optimizer.zero_grad()
        fn.cross_entropy(head(model(images)), labels).backward()
        optimizer.step()

    return step


def ragged_means() -> Step:
    """Mean over the valid part of each of 32 sequences, one sequence after the other."""
    tokens, lengths, head = torch.randn(32, 128, 64), torch.randint(8, 128, (32,)), nn.Linear(64, 10)

    def step() -> torch.Tensor:
        rows = [tokens[row, : lengths[row]].mean(0) for row in range(len(tokens))]
        scores: torch.Tensor = head(torch.stack(rows))
        return scores

    return torch.no_grad()(step)


def nearest_centres() -> Step:
    """A round of k-means: distances of 2,000 points to 256 centres, the nearest, and new centres."""
    points, centres = torch.randn(2_000, 64), torch.randn(256, 64)

    def step() -> torch.Tensor:
        nearest = torch.cdist(points, centres).argmin(1)
        sums = torch.zeros_like(centres).index_add_(0, nearest, points)
        counts = torch.bincount(nearest, minlength=len(centres)).clamp(min=1)
        return sums / counts[:, None]

    return step


def edge_messages() -> Step:
    """Two rounds of message passing over 12,000 edges in no order, between 4,000 nodes of 32 numbers."""
    nodes, mix = torch.randn(4_000, 32), nn.Linear(32, 32)
    sources, targets = torch.randint(4_000, (2, 12_000))

    def step() -> torch.Tensor:
        state = nodes
        for _ in range(2):
            state = torch.relu(mix(torch.zeros_like(state).index_add_(0, targets, state[sources])))
        return state

    return torch.no_grad()(step)


def simulated_paths() -> Step:
    """The price of an option over 200,000 random paths, op by op."""

    def step() -> torch.Tensor:
        draws = torch.randn(200_000)
        prices = 100.0 * torch.exp((0.05 - 0.5 * 0.2**2) * 1.0 + 0.2 * draws)
        return (torch.clamp(prices - 105.0, min=0.0) * 0.951229).mean()

    return step


def distilled_teacher() -> Step:
    """Distillation whose teacher is run without no_grad: its backward pass is computed for nobody."""
    teacher, student = (
        nn.Sequential(nn.Linear(256, width), nn.ReLU(), nn.Linear(width, width), nn.ReLU(), nn.Linear(width, 10))
        for width in (1024, 128)
    )
    optimizer = torch.optim.AdamW(student.parameters(), 1e-3, fused=True)
    inputs = torch.randn(128, 256)

    def step() -> None:
        optimizer.zero_grad()
        target = teacher(inputs).softmax(-1)
        fn.kl_div(student(inputs).log_softmax(-1), target, reduction="batchmean").backward()
        optimizer.step()

    return step


def sorted_gallery() -> Step:
    """The ten nearest of 20,000 vectors for 16 queries, by a sort of all."""
    gallery, queries = torch.randn(20_000, 32), torch.randn(16, 32)

    def step() -> torch.Tensor:
        return torch.argsort(queries @ gallery.T, dim=1, descending=True)[:, :10]

    return torch.no_grad()(step)


def factorised_twice() -> Step:
    """The marginal likelihood of a Gaussian process, by an inverse and a determinant."""
    scale = torch.zeros((), dtype=torch.float64, requires_grad=True)
    distance, values = torch.rand(300, 300, dtype=torch.float64), torch.randn(300, dtype=torch.float64)

    def step() -> None:
        kernel = torch.exp(-(distance + distance.T) * scale.exp()) + 300 * torch.eye(300, dtype=torch.float64)
        loss = values @ torch.inverse(kernel) @ values + torch.logdet(kernel)
        loss.backward()  # type: ignore[no-untyped-call]
        scale.grad = None

    return step


PROGRAMS = (
    recurrent_loop,
    written_attention,
    watched_convolutions,
    unaided_loader,
    ragged_means,
    nearest_centres,
    edge_messages,
    simulated_paths,
    distilled_teacher,
    sorted_gallery,
    factorised_twice,
)


def record(make: Callable[[], Step], folder: Path) -> Path:
    """The shortest of several traces of a program."""
    path = folder / f"recorded_{make.__name__}.json.gz"
    written = folder / "written.json"
    active = STEPS.get(make.__name__, 3)
    plan = schedule(wait=1, warmup=1, active=active)
    shortest = math.inf
    for _ in range(TRIES):
        torch.manual_seed(0)
        step = make()
        with profile(activities=[ProfilerActivity.CPU], record_shapes=True, schedule=plan) as profiler:
            for _ in range(2 + active):
                step()
                profiler.step()
        marks = [event for event in profiler.events() if "ProfilerStep" in event.name]
        length: float = sum(mark.time_range.elapsed_us() for mark in marks)
        if length < shortest:
            shortest = length
            profiler.export_chrome_trace(str(written))
            text = written.read_text().replace(str(written), "trace.json")
            path.write_bytes(gzip.compress(text.encode(), 9, mtime=0))
    written.unlink()
    return path


def main() -> None:
    """Records the programs that are named, or all."""
    torch.set_num_threads(1)
    for make in PROGRAMS:
        if len(sys.argv) == 2 or make.__name__ in sys.argv[2:]:
            print(record(make, Path(sys.argv[1])))


if __name__ == "__main__":
    main()
