"""Stage 1: a trace file of any era to a ``Trace``: EVENTS and the arguments that later stages need."""

import gc
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NoReturn

from bottleneck.errors import TraceError
from bottleneck.trace.assemble import Assembled, assemble
from bottleneck.trace.columns import Columns
from bottleneck.trace.damage import Damage
from bottleneck.trace.document import Document
from bottleneck.trace.flavour import flavour_of, missing_device_work
from bottleneck.trace.foreign import refuse_json
from bottleneck.trace.metadata import Metadata, read_metadata
from bottleneck.trace.repair import restore_backslashes
from bottleneck.trace.stream import read_blocks
from bottleneck.tracing import Trace

_AGAIN = "record it again; the program may have ended, or the disk been full, while it was written"

# Epoch times in microseconds are above this from 2001 on; times since boot or since start are below.
_EPOCH_FROM_NS = 10**18


def read_trace(path: str | Path) -> Trace:
    """The trace in a .json or .json.gz file that torch.profiler wrote, from PyTorch 1.4 to today.

    Damage is repaired or left out, and told in ``caveats``. Raises TraceError for what cannot be read, is no PyTorch
    trace, or holds no events.
    """
    path = Path(path)
    damage = Damage()
    document = Document(path, read_blocks(path, damage), damage)
    columns = Columns(damage)
    with _collector_off():
        for events in document:
            columns.add(events)
    metadata = read_metadata(document.header, document.footer, damage)
    if not columns.has_work():
        _refuse(path, columns, metadata)
    assembled = assemble(columns, _names(columns))
    if assembled.events.empty:
        raise TraceError(f"no event in {path} can be used", why=_told(damage, columns.count), fix=_AGAIN)
    return _trace(path, columns, metadata, assembled)


@contextmanager
def _collector_off() -> Iterator[None]:
    """Keeps the cyclic collector from looking for cycles where there are none; it would add 4 % to the time."""
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()


def _names(columns: Columns) -> list[str]:
    names = list(columns.names)
    if not columns.damage["backslash"]:
        return names
    # In a file with unescaped Windows paths some of them, such as torch\nn, are legal escapes and decode silently.
    restored = [restore_backslashes(name) for name in names]
    columns.damage["restored-name"] += sum(old != new for old, new in zip(names, restored, strict=True))
    return restored


def _refuse(path: Path, columns: Columns, metadata: Metadata) -> NoReturn:
    """Says why a file without any op, launch or device work cannot be analysed."""
    damage = columns.damage
    if not (metadata.is_pytorch() or columns.is_pytorch()):
        if not columns.counts and (damage["broken"] or damage["truncated-json"]):
            raise TraceError(f"no event in {path} can be read", why=_told(damage, 0), fix=_AGAIN)
        refuse_json(path, metadata.keys, columns.counts)
    if damage["broken"] or damage["truncated-json"]:
        raise TraceError(f"{path} holds no readable op or kernel", why=_told(damage, columns.count), fix=_AGAIN)
    if columns.is_pytorch() and columns.count > 1:
        raise TraceError(
            f"{path} is a PyTorch trace without any op or kernel",
            why="it holds only marks and Python frames, so neither ops nor device work were recorded",
            fix="record with activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA]",
        )
    raise TraceError(
        f"{path} is a PyTorch trace without any op or kernel",
        why="the profiler window never became active, or ended at once",
        fix="let the program run more steps than wait + warmup of the schedule, and call prof.step() in each",
    )


def _told(damage: Damage, total: int) -> str:
    return "; ".join(caveat.message for caveat in damage.caveats(total))


def _trace(path: Path, columns: Columns, metadata: Metadata, assembled: Assembled) -> Trace:
    flavour = flavour_of(columns, metadata)
    return Trace(
        path=str(path),
        flavour=flavour,
        events=assembled.events,
        op_args=assembled.op_args,
        signatures=assembled.signatures,
        launch_args=assembled.launch_args,
        device_args=assembled.device_args,
        memory=assembled.memory,
        devices=metadata.devices,
        start_unix_ns=_start_unix_ns(metadata.base_ns, assembled.first_ns),
        integer_timestamps=not columns.any_fraction,
        rank=metadata.rank,
        world_size=metadata.world_size,
        counts=dict(columns.counts),
        facts=metadata.facts,
        caveats=(*columns.damage.caveats(columns.count), *missing_device_work(columns)),
    )


def _start_unix_ns(base_ns: int | None, first_ns: int) -> int | None:
    if first_ns >= _EPOCH_FROM_NS:
        return first_ns
    return None if base_ns is None else base_ns + first_ns
