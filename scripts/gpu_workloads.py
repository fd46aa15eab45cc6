"""The workloads of ``scripts.gpu_check``: each is bound by one thing, and random data keeps the power honest.

``bottleneck run --set kind=gemm scripts/gpu_workloads.py`` records one of them; with ``--set device=cpu`` and a small
``--set scale=…`` they run anywhere.
"""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

Step = Callable[[], Any]


def workload(kind: str = "gemm", dtype: str = "bfloat16", device: str = "cuda", scale: float = 1.0) -> Step:
    """The step of one kind; ``scale`` multiplies the sizes."""
    torch.manual_seed(0)
    return _KINDS[kind](torch.device(device), getattr(torch, dtype), scale)


def _gemm(device: torch.device, dtype: torch.dtype, scale: float) -> Step:
    """Products of large square matrices: compute."""
    size = max(16, int(8192 * scale))
    left, right = (torch.randn(size, size, device=device).to(dtype) for _ in range(2))
    return lambda: [left @ right for _ in range(4)]


def _elementwise(device: torch.device, dtype: torch.dtype, scale: float) -> Step:
    """Passes over a vector that no cache holds: memory."""
    values = torch.randn(max(64, int(2**28 * scale)), device=device).to(dtype)
    return lambda: [values.mul_(1.0001) for _ in range(8)]


def _normalise(device: torch.device, dtype: torch.dtype, scale: float) -> Step:
    """Layer norm and softmax over long rows: memory."""
    rows = torch.randn(max(4, int(65536 * scale)), 4096, device=device).to(dtype)
    norm = nn.LayerNorm(4096, device=device, dtype=dtype)

    def step() -> Tensor:
        with torch.no_grad():
            return torch.softmax(norm(rows), dim=-1)

    return step


def _tiny(device: torch.device, dtype: torch.dtype, scale: float) -> Step:
    """A training step of a tiny MLP: overhead."""
    width = max(4, int(64 * scale))
    model = nn.Sequential(*(layer for _ in range(4) for layer in (nn.Linear(width, width), nn.ReLU())))
    return _training(model.to(device, dtype), torch.randn(32, width, device=device).to(dtype))


def _asks(device: torch.device, dtype: torch.dtype, scale: float) -> Step:
    """The same, and the host asks for a number in each step: overhead, by waiting for the device."""
    step = _tiny(device, dtype, scale)
    return lambda: step().item()


def _transformer(device: torch.device, dtype: torch.dtype, scale: float) -> Step:
    """A training step of a transformer."""
    model, tokens = _encoder(device, dtype, scale)
    return _training(model, tokens)


def _compiled(device: torch.device, dtype: torch.dtype, scale: float) -> Step:
    """The same under torch.compile."""
    model, tokens = _encoder(device, dtype, scale)
    return _training(torch.compile(model), tokens)


def _replayed(device: torch.device, dtype: torch.dtype, scale: float) -> Step:
    """A forward pass of the same, replayed from a CUDA graph."""
    model, tokens = _encoder(device, dtype, scale)
    graph, stream = torch.cuda.CUDAGraph(), torch.cuda.Stream()
    with torch.no_grad(), torch.cuda.stream(stream):
        for _ in range(3):
            model(tokens)
    torch.cuda.synchronize()
    with torch.no_grad(), torch.cuda.graph(graph):
        model(tokens)
    return graph.replay


def _convolution(device: torch.device, dtype: torch.dtype, scale: float) -> Step:
    """A training step of a small convolutional network."""
    width = max(8, int(128 * scale))
    layers = [nn.Conv2d(3, width, 3, padding=1)]
    for _ in range(4):
        layers += [nn.BatchNorm2d(width), nn.ReLU(), nn.Conv2d(width, width, 3, padding=1)]
    model = nn.Sequential(*layers).to(device, dtype)
    return _training(model, torch.randn(max(2, int(64 * scale)), 3, 56, 56, device=device).to(dtype))


def _encoder(device: torch.device, dtype: torch.dtype, scale: float) -> tuple[nn.Module, Tensor]:
    width = max(16, 16 * int(64 * scale))
    layer = nn.TransformerEncoderLayer(width, 16, 4 * width, dropout=0.0, batch_first=True)
    model = nn.TransformerEncoder(layer, 4, enable_nested_tensor=False).to(device, dtype)
    return model, torch.randn(8, max(16, int(512 * scale)), width, device=device).to(dtype)


def _training(model: Any, inputs: Tensor) -> Step:
    optimizer = torch.optim.AdamW(model.parameters())

    def step() -> Tensor:
        optimizer.zero_grad()
        loss: Tensor = model(inputs).float().square().mean()
        loss.backward()
        optimizer.step()
        return loss

    return step


_KINDS: dict[str, Callable[[torch.device, torch.dtype, float], Step]] = {
    "gemm": _gemm,
    "elementwise": _elementwise,
    "normalise": _normalise,
    "tiny": _tiny,
    "asks": _asks,
    "transformer": _transformer,
    "compiled": _compiled,
    "replayed": _replayed,
    "convolution": _convolution,
}
