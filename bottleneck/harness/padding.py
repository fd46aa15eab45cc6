"""Samples how much of the integer inputs of embeddings is padding.

Padding is an id that is repeated at an end of the rows: that of the embedding's ``padding_idx`` where it has one.
Inputs on a device are sampled only where the user asks.
"""

from typing import Any

from bottleneck.harness.torch_private import may_trace_hooks
from bottleneck.schema.measurements import Padding

# A table with fewer entries is of segments or kinds of tokens, which rows repeat to their end.
_LEAST_ENTRIES = 16


class PaddingSampler:
    """Looks at the inputs of the program's embeddings from ``start`` to ``stop``.

    The step in between is not measured.
    """

    def __init__(self) -> None:
        self._removal: Any = None
        self._torch: Any = None
        self._on_devices = False
        self._padded = self._ids = self._rows = self._columns = 0

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

        Null where no embedding was called with rows of ids.
        """
        removal, self._removal = self._removal, None
        if removal is None:
            return None
        removal.remove()
        if not self._ids:
            return None
        return Padding(share=self._padded / self._ids, rows=self._rows, columns=self._columns)

    @property
    def is_on(self) -> bool:
        """True while it looks."""
        return self._removal is not None

    def _before_call(self, module: Any, arguments: Any) -> None:
        torch = self._torch
        if type(module) is not torch.nn.Embedding or not arguments or type(arguments[0]) is not torch.Tensor:
            return
        try:
            ids, padding = arguments[0].detach(), module.padding_idx
            if padding is None and module.num_embeddings < _LEAST_ENTRIES:
                return
            if ids.device.type != "cpu" and not self._on_devices:
                return
            if ids.dim() >= 2 and ids.size(-1) > 1 and ids.numel() and not ids.is_floating_point():
                with torch.no_grad():
                    self._count(ids.reshape(-1, ids.size(-1)), padding)
        except Exception:  # ours, in the middle of the program's own call
            return

    def _count(self, ids: Any, padding: int | None) -> None:
        """Adds the ids of some rows, and how many are padding.

        Padding is counted at the side that has more of it.
        """
        rows, columns = ids.shape
        self._padded += max(_repeated(ids, padding), _repeated(ids.flip(-1), padding))
        self._ids += rows * columns
        self._rows, self._columns = self._rows + rows, max(self._columns, columns)


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
