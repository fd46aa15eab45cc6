"""Kernels, ops, costs and attribution made by hand: each case becomes one op with its kernels."""

from dataclasses import dataclass
from typing import Any

import pandas as pd

from bottleneck.analysis.roofline import classify
from bottleneck.analysis.telemetry import UNKNOWN_CONDITIONS, Conditions
from bottleneck.devices.match import device_by_name
from bottleneck.schema.device import Device
from bottleneck.schema.reasons import Reason
from bottleneck.schema.records import replace
from bottleneck.schema.tables import ATTRIBUTION, COSTS, KERNELS, OPS, Table
from tests.analysis.scenes import copy_of

MIB = 2.0**20
H100 = replace(device_by_name("NVIDIA H100 80GB HBM3"), launch_floor_us=1.5)
A100_40 = replace(device_by_name("NVIDIA A100-SXM4-40GB"), launch_floor_us=1.5)
BARE = Device("stranger", None, "cuda", 1, {}, None, 1.5, None, {}, sm_count=132)
CPU = Device(
    name="a CPU",
    vendor=None,
    kind="cpu",
    count=1,
    peaks_flops_per_s={"fp32_tensor": 1e11, "fp32_vector": 1e11, "bf16_tensor": 4e11},
    bandwidth_bytes_per_s=1e10,
    launch_floor_us=1.0,
    source="measured",
    ridge_flops_per_byte={},
    bandwidth_by_bytes=((1e6, 1e11), (1e7, 1e11), (1e8, 1e10), (1e9, 1e10)),
)


@dataclass(frozen=True)
class Kernel:
    """One device event, or on a CPU the op itself."""

    dur_us: float
    name: str = "some_kernel"
    kind: str = "compute"
    family: str = "other"
    engine: str | None = None
    math_dtype: str | None = None
    auxiliary: bool = False
    blocks: int | None = 1000
    threads: int | None = 256
    registers: int | None = None
    bytes: int | None = None
    replayed: bool = False
    unlinked: str | None = None


@dataclass(frozen=True)
class Modelled:
    """An op with its cost (null amounts: no cost, for the reason) and the kernels that it pays for."""

    kernels: tuple[Kernel, ...]
    matrix_flops: float | None = 0.0
    vector_flops: float | None = 0.0
    special_ops: float | None = 0.0
    bytes_low: float | None = 0.0
    bytes_high: float | None = None
    math_dtype: str | None = "bf16"
    family: str = "pointwise"
    reason: Reason | None = None
    evidence: tuple[str, ...] | None = None
    pays: bool = True
    dispatches: bool = False
    op_name: str | None = None
    children: int = 0
    has_signature: bool = True
    m: float | None = None
    n: float | None = None
    k: float | None = None
    batch: float | None = None


_ODD = Reason("no_formula", ("aten::odd",))


def unmodelled(*kernels: Kernel, reason: Reason | None = _ODD, **more: Any) -> Modelled:
    """An op without a cost."""
    amounts = dict.fromkeys(("matrix_flops", "vector_flops", "special_ops", "bytes_low", "bytes_high", "math_dtype"))
    return Modelled(kernels, **amounts, reason=reason, pays=False, **more)


@dataclass(frozen=True)
class Frames:
    """The four tables that the roofline reads."""

    kernels: pd.DataFrame
    ops: pd.DataFrame
    costs: pd.DataFrame
    attribution: pd.DataFrame


def frames(*cases: Modelled, gap_us: float = 1.0) -> Frames:
    """The tables of ops that run one after the other, kernels of one op back to back."""
    kernels, ops, costs, attribution, now = [], [], [], [], 0.0
    for position, case in enumerate(cases):
        total = sum(kernel.dur_us for kernel in case.kernels if not kernel.auxiliary)
        start = now
        for kernel in case.kernels:
            share = 0.0 if kernel.auxiliary else kernel.dur_us / total if total else 1.0
            kernels.append(_kernel_row(kernel, position, now))
            attribution.append(
                {
                    "op": position if case.pays and kernel.kind == "compute" else None,
                    "signature": position if case.pays and case.has_signature and kernel.kind == "compute" else None,
                    "share": share if case.pays and kernel.kind == "compute" else None,
                    "group": position if case.pays and kernel.kind == "compute" else 10_000 + len(attribution),
                    "dispatches": case.dispatches,
                }
            )
            now += kernel.dur_us
        ops.append(_op_row(case, position, start, now - start))
        costs.append(_cost_row(case))
        now += gap_us
    made = (_table(KERNELS, kernels), _table(OPS, ops), _table(COSTS, costs), _table(ATTRIBUTION, attribution))
    return Frames(*made)


def _kernel_row(kernel: Kernel, op: int, ts_us: float) -> dict[str, Any]:
    row = vars(kernel) | {"event": op, "device": 0, "stream": "0/7", "ts_us": ts_us, "op": op}
    return row | (copy_of(kernel.name) if kernel.kind == "copy" else {})


def _op_row(case: Modelled, position: int, ts_us: float, dur_us: float) -> dict[str, Any]:
    return {
        "event": position,
        "name": case.op_name or f"aten::op{position}",
        "thread": "1/1",
        "ts_us": ts_us,
        "dur_us": dur_us,
        "self_us": dur_us,
        "depth": 0,
        "children": case.children,
        "is_autograd": False,
        "signature": position if case.has_signature else None,
    }


def _cost_row(case: Modelled) -> dict[str, Any]:
    high = case.bytes_low if case.bytes_high is None else case.bytes_high
    return vars(case) | {"bytes_high": high}


def _table(table: Table, rows: list[dict[str, Any]]) -> pd.DataFrame:
    columns = {
        name: pd.Series([row.get(name) for row in rows], dtype=column.dtype) for name, column in table.columns.items()
    }
    return table.check(pd.DataFrame(columns))


def judge(*cases: Modelled, device: Device = H100, conditions: Conditions = UNKNOWN_CONDITIONS) -> pd.DataFrame:
    """ROOFLINE of the cases on a device."""
    made = frames(*cases)
    return worded(classify(made.kernels, made.ops, made.costs, made.attribution, device, conditions))


def worded(roofline: pd.DataFrame) -> pd.DataFrame:
    """The table with its reasons in words."""
    words = [reason.words if isinstance(reason, Reason) else None for reason in roofline["reason"]]
    return roofline.assign(reason=pd.Series(words, dtype="object", index=roofline.index))


def only(*cases: Modelled, device: Device = H100) -> "pd.Series[object]":
    """The first row of it."""
    return judge(*cases, device=device).iloc[0]


def matmul(dur_us: float, flops: float, traffic: float = 1e6, **kernel: object) -> Modelled:
    """A product in bf16 with one kernel on tensor cores."""
    name = {"name": "sm90_xmma_gemm", "family": "matmul", "engine": "matrix", "math_dtype": "bf16"}
    return Modelled((Kernel(dur_us, **name | kernel),), matrix_flops=flops, bytes_low=traffic)


def stream(dur_us: float, traffic: float, **kernel: object) -> Modelled:
    """An op without arithmetic worth naming."""
    return Modelled((Kernel(dur_us, **kernel),), bytes_low=traffic, math_dtype="fp32")


def host(self_us: float, **cost: object) -> Modelled:
    """A modelled op on a CPU."""
    return Modelled((Kernel(self_us, family="host", blocks=None),), **{"math_dtype": "fp32"} | cost)
