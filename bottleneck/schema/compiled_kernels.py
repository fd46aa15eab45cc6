"""Records of what each generated kernel of a compiled program does.

The file lies beside the trace and lists what each kernel reads, writes and computes.

A trace shows the C++ kernels of torch.compile by name only. The harness notes the rest while they are generated.
"""

import json
from dataclasses import asdict, dataclass
from pathlib import Path

from bottleneck.errors import TraceError
from bottleneck.system.files import read_file

COMPILED_SCHEMA = "bottleneck/compiled/1"

_PREFIX = "compiled.rank"
_LARGEST_FILE_BYTES = 2**28
_SIZE_LIMIT = 2**63  # torch keeps sizes in 64-bit integers


@dataclass(frozen=True)
class CompiledBuffer:
    """One buffer of a kernel.

    ``type`` is spelled as in a trace, and ``dims`` and ``strides`` count elements.

    ``read`` and ``written`` are the fewest and the most elements that the kernel touches, null where it does not. They
    differ where the place in memory depends on data.
    """

    dims: tuple[int, ...]
    strides: tuple[int, ...]
    type: str
    read: tuple[int, int] | None = None
    written: tuple[int, int] | None = None


@dataclass(frozen=True)
class CompiledOp:
    """Op of the captured graph that a kernel fuses.

    Its arguments are JSON, spelled as a trace spells those of an op.

    The kernel does it ``calls`` times, and each time for the part ``share`` of the op's elements.
    """

    name: str
    dims: str
    types: str
    strides: str
    concrete: str
    share: float = 1.0
    calls: int = 1


@dataclass(frozen=True)
class CompiledKernel:
    """One kernel by the name that the trace has for it.

    ``reason`` says why nothing else is known of it. ``is_template`` tells a matrix product with what was fused to it
    from plain loops.
    """

    name: str
    buffers: tuple[CompiledBuffer, ...] = ()
    ops: tuple[CompiledOp, ...] = ()
    is_template: bool = False
    reason: str | None = None


@dataclass(frozen=True)
class Compiled:
    """The kernels of one process.

    Every C++ kernel that it ran is named in its trace. Kernels of other makes are not. ``problem`` says what kept the
    harness from noting them.
    """

    kernels: tuple[CompiledKernel, ...] = ()
    problem: str | None = None
    schema: str = COMPILED_SCHEMA


def compiled_file(rank: int) -> str:
    """Name of the file inside a recording."""
    return f"{_PREFIX}{rank}.json"


def is_compiled_file(path: Path) -> bool:
    """True if the name is that of such a file."""
    return path.name.startswith(_PREFIX)


def as_text(compiled: Compiled) -> str:
    """The content of the file."""
    return json.dumps(asdict(compiled))


def read_compiled(path: Path) -> Compiled | None:
    """Reads the kernels in a file.

    Null when there is no file. Raises TraceError when it holds something else.
    """
    import msgspec  # noqa: PLC0415 - the user's program shares a process with this module, not with msgspec

    try:
        data = read_file(path, _LARGEST_FILE_BYTES)
    except FileNotFoundError:
        return None
    except OSError as exc:
        raise TraceError(f"cannot read {path}: {exc.strerror}", fix="make it readable, or remove it") from exc
    try:
        compiled = msgspec.json.decode(data, type=Compiled)
        _check(compiled)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError, ValueError) as exc:
        raise TraceError(
            f"{path} does not describe compiled kernels", why=str(exc), fix="remove it, or record again"
        ) from exc
    return compiled


def _check(compiled: Compiled) -> None:
    if compiled.schema != COMPILED_SCHEMA:
        raise ValueError(f"format {compiled.schema!r}; this version reads {COMPILED_SCHEMA!r}")
    for kernel in compiled.kernels:
        if not all(map(_is_possible, kernel.buffers)):
            raise ValueError(f"sizes of {kernel.name!r} that cannot be")
        if any(op.calls < 0 or not 0 <= op.share <= 1 for op in kernel.ops):
            raise ValueError(f"ops of {kernel.name!r} that cannot be")


def _is_possible(buffer: CompiledBuffer) -> bool:
    pairs = [pair for pair in (buffer.read, buffer.written) if pair is not None]
    ordered = all(0 <= low <= high < _SIZE_LIMIT for low, high in pairs)
    return ordered and all(0 <= size < _SIZE_LIMIT for size in buffer.dims)
