"""Samples how much of a program's inputs is padding.

These are the ids of embeddings, and frames that the model gets.

Padding is an id that is repeated at an end of the rows: that of the embedding's ``padding_idx`` where it has one. Of
numbers it is zeros at the end of rows, where the longest row of the batch has none. Inputs on a device are sampled only
where the user asks.
"""

from typing import Any, Literal

from bottleneck.harness.torch_private import may_trace_hooks
from bottleneck.schema.measurements import Padding

# A table with fewer entries is of segments or kinds of tokens, which rows repeat to their end.
_LEAST_ENTRIES = 16
# Rows of numbers: dimensions with the batch, and frames along one of them. Of a batch, the rows that end in zeros:
# pictures have black borders here and there.
_LEAST_DIMENSIONS, _LEAST_FRAMES, _LEAST_PADDED_ROWS = 3, 16, 0.25


class PaddingSampler:
    """Looks at the inputs of the model and its embeddings from ``start`` to ``stop``.

    The model is the module that is called first. The step in between is not measured.
    """

    def __init__(self) -> None:
        self._removal: Any = None
        self._torch: Any = None
        self._on_devices = False
        self._model: Any = None
        self._ids, self._frames = _Count("id"), _Count("frame")

    def start(self, torch: Any, *, on_devices: bool = False) -> None:
        """Starts the look.

        Does nothing where torch.compile is in use, which would trace the hook.

        With ``on_devices`` it also takes ids on a device, and waits for them.
        """
        if torch is None or may_trace_hooks() or self._removal is not None:
            return
        self._torch, self._on_devices = torch, on_devices
        self._removal = torch.nn.modules.module.register_module_forward_pre_hook(self._before_call)

    def stop(self) -> Padding | None:
        """Ends the look and gives the padding that was seen.

        Null where no embedding was called with rows of ids, and no frames are padding.
        """
        removal, self._removal, self._model = self._removal, None, None
        if removal is None:
            return None
        removal.remove()
        ids, frames = self._ids.padding(), self._frames.padding()
        if frames is None or not frames.share or (ids is not None and ids.share >= frames.share):
            return ids
        return frames

    @property
    def is_on(self) -> bool:
        """True while it looks."""
        return self._removal is not None

    def _before_call(self, module: Any, arguments: Any) -> None:
        torch, is_model = self._torch, self._model is None or module is self._model
        self._model = module if self._model is None else self._model
        is_embedding = type(module) is torch.nn.Embedding
        if not (is_model or is_embedding) or not arguments or type(arguments[0]) is not torch.Tensor:
            return
        try:
            if arguments[0].is_floating_point():
                self._look_at_frames(arguments[0].detach())
                return
            if not is_embedding:
                return
            ids, padding = arguments[0].detach(), module.padding_idx
            if padding is None and module.num_embeddings < _LEAST_ENTRIES:
                return
            if self._is_hidden(ids):
                return
            if ids.dim() >= 2 and ids.size(-1) > 1 and ids.numel():
                with torch.no_grad():
                    rows = ids.reshape(-1, ids.size(-1))
                    # At the side that has more of it.
                    self._ids.add(max(_repeated(rows, padding), _repeated(rows.flip(-1), padding)), *rows.shape)
        except Exception:  # ours, in the middle of the program's own call
            return

    def _is_hidden(self, values: Any) -> bool:
        return values.device.type != "cpu" and not self._on_devices

    def _look_at_frames(self, values: Any) -> None:
        """Adds a batch of rows of numbers.

        Frames lie along the last dimension or the second one.
        """
        if self._is_hidden(values) or values.dim() < _LEAST_DIMENSIONS or values.size(0) < 2 or not values.numel():
            return
        with self._torch.no_grad():
            filled = values != 0
            runs = [(_empty_at_end(filled, axis), filled.size(axis)) for axis in (1, filled.dim() - 1)]
            padded, frames = max(runs, key=lambda pair: pair[0] / max(pair[1], 1))
        self._frames.add(padded, values.size(0), frames)


class _Count:
    """Ids or frames that were looked at, and how many of them are padding."""

    def __init__(self, unit: Literal["id", "frame"]) -> None:
        self._unit: Literal["id", "frame"] = unit
        self._padded = self._all = self._rows = self._columns = 0

    def add(self, padded: int, rows: int, columns: int) -> None:
        """Adds so many rows of so many columns."""
        self._padded, self._all = self._padded + padded, self._all + rows * columns
        self._rows, self._columns = self._rows + rows, max(self._columns, columns)

    def padding(self) -> Padding | None:
        """The padding of what was added; null without any."""
        return Padding(self._padded / self._all, self._rows, self._columns, self._unit) if self._all else None


def _empty_at_end(filled: Any, axis: int) -> int:
    """Counts the empty frames along an axis at ends of rows.

    0 where the longest row has some as well, where few rows have any, and where there are too few frames.
    """
    if filled.size(axis) < _LEAST_FRAMES:
        return 0
    others = [other for other in range(1, filled.dim()) if other != axis]
    frames = filled.any(dim=others)
    run = (~frames).flip(-1).long().cumprod(-1).sum(-1)
    padded_rows = int((run > 0).sum().item())
    if int(run.min().item()) or padded_rows < _LEAST_PADDED_ROWS * run.numel():
        return 0
    return int(run.sum().item())


def _repeated(ids: Any, padding: int | None) -> int:
    """Counts the padding ids at the ends of rows.

    Where it is not known which id that is, only runs of two and more count, of the one id that ends most rows so.
    """
    last = ids[:, -1]
    run = (ids == last.unsqueeze(-1)).flip(-1).long().cumprod(-1).sum(-1)
    if padding is not None:
        return int(run[last == padding].sum().item())
    ends = last[run > 1]
    if not ends.numel():
        return 0
    values, counts = ends.unique(return_counts=True)
    usual = values[counts.argmax()]
    return int(run[(run > 1) & (last == usual)].sum().item())
