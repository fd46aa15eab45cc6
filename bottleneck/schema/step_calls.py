"""Op calls of one step of a program, without times.

A prediction for another device starts from this record.

The harness makes it from a step under fake tensors, the command from the ops of a trace; ``predict`` prices it.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Annotated, Literal

from bottleneck.schema.records import Doc
from bottleneck.units import ITEM_BYTES

Phase = Literal["forward", "backward", "optimizer", "other"]

# What a piece of memory holds. What is made in the step is an activation, a gradient or optimizer state.
StorageKind = Literal["parameter", "buffer", "gradient", "optimizer state", "input", "activation"]

# The call before the first one of a step: what is there when the step begins.
BEFORE_THE_STEP = -1


@dataclass(frozen=True)
class TensorUse:
    """Tensor that a call reads or writes.

    ``type`` is spelled as in a trace.

    ``storage`` numbers the memory that it lies in (``StepCalls.storages``), which views of one tensor share; null where
    that is not known, as in a trace.
    """

    dims: tuple[int, ...]
    strides: tuple[int, ...]
    type: str
    storage: int | None = None

    @property
    def bytes(self) -> float:
        """Its bytes in memory; dims of stride 0 count once."""
        sizes = [size for size, stride in zip(self.dims, self.strides, strict=False) if stride != 0 or size == 0]
        return math.prod(sizes if len(self.strides) == len(self.dims) else self.dims) * ITEM_BYTES.get(self.type, 4.0)


@dataclass(frozen=True)
class StepCall:
    """One call of an op that works on tensors.

    Views and ops that only call others are left out.

    ``dims``, ``types``, ``strides`` and ``concrete`` are JSON as the columns of SIGNATURES, so that ``parse_call``
    takes them unchanged; the type of a list of tensors names their item size ('TensorList[2]').
    ``inputs`` are its tensor arguments in order, those in lists included; ``outputs`` its results, which for an op in
    place are inputs too. Both are empty where they are not known, as in a trace. ``host_ops`` counts the ops that the
    host dispatched since the call before, this one included. With ``waits`` the host waits for its result. One
    ``on_host`` works on tensors in the host's memory, and launches nothing.
    """

    name: str
    dims: str
    types: str
    strides: str
    concrete: str
    inputs: tuple[TensorUse, ...] = ()
    outputs: tuple[TensorUse, ...] = ()
    phase: Phase = "other"
    module: str | None = None
    source: str | None = None
    host_ops: int = 1
    waits: bool = False
    calls: float = 1.0
    on_host: bool = False

    @property
    def result(self) -> str | None:
        """Sizes of the first result as JSON, for ``parse_call``.

        Null where they are not known.
        """
        return str(list(self.outputs[0].dims)) if self.outputs else None


@dataclass(frozen=True)
class Storage:
    """Piece of device memory of the step, from making to freeing.

    One call makes it, and it is freed before another.

    ``created`` is the position of the call that made it, BEFORE_THE_STEP for what was there; ``freed`` the position of
    the first call before which it is free again, null where it outlives the step.
    """

    bytes: int
    kind: StorageKind
    created: int = BEFORE_THE_STEP
    freed: int | None = None


@dataclass(frozen=True)
class EngineSettings:
    """Settings that decide which GPU engine the arithmetic runs on.

    They are the program's.

    ``origins`` tells for a setting, by the name of its field, where it was read. ``autocast`` holds the types of the
    autocast regions of the program ('bfloat16'); empty where there were none. ``training`` tells whether the step
    takes gradients. Null is unknown.
    """

    matmul_allow_tf32: Annotated[bool | None, Doc("TF32 allowed for products")] = None
    cudnn_allow_tf32: Annotated[bool | None, Doc("TF32 allowed for cuDNN")] = None
    float32_matmul_precision: Annotated[str | None, Doc("highest, high or medium")] = None
    cudnn_benchmark: Annotated[bool | None, Doc("cuDNN chooses kernels by timing")] = None
    autocast: Annotated[tuple[str, ...] | None, Doc("types of the program's autocast regions")] = None
    channels_last: Annotated[bool | None, Doc("convolutions read channels_last")] = None
    training: Annotated[bool | None, Doc("the step has a backward pass")] = None
    compiled: Annotated[bool | None, Doc("the program calls torch.compile")] = None
    origins: Annotated[Mapping[str, str], Doc("where each setting was read, by its name")] = field(default_factory=dict)


@dataclass(frozen=True)
class StepCalls:
    """One step of a program as op calls in the order of the host.

    ``program`` names the file or trace, ``origin`` says how the calls were found. ``storages`` are numbered as the
    calls refer to them; empty where memory is not known. ``batch_size`` is null where the program does not tell.
    ``host_ops`` counts all ops that the host dispatches in the step. ``measured_us`` is the time of the step where it
    was measured, on ``measured_on``, ``measured_device_us`` that of its kernels, and ``unpriced_share`` the part of it
    whose calls or sizes were not recorded well enough to have a cost. ``copied_bytes`` are what the step copies from
    the host to the device, null where none was seen, ``returned_bytes`` what it copies back, for which the host waits.
    ``left_out`` names the other work of the program that is not among the calls, ``notes`` say what else is not known,
    and what was assumed.
    """

    program: str
    origin: Literal["fake step", "trace"]
    calls: Sequence[StepCall]
    settings: EngineSettings
    storages: Sequence[Storage] = ()
    batch_size: int | None = None
    host_ops: int = 0
    measured_us: float | None = None
    measured_on: str | None = None
    measured_device_us: float | None = None
    unpriced_share: float = 0.0
    copied_bytes: float | None = None
    returned_bytes: float = 0.0
    left_out: str = ""
    notes: tuple[str, ...] = ()

    def bytes_of(self, kind: StorageKind) -> int:
        """Bytes of the memory that holds this when the step ends."""
        return sum(storage.bytes for storage in self.storages if storage.kind == kind and storage.freed is None)
