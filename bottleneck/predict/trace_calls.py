"""Reads the op calls of one step from a trace.

They are in the form that predictions take.
"""

from collections.abc import Mapping

import numpy as np
import pandas as pd

from bottleneck.predict.step_kernels import split
from bottleneck.schema.evidence import Evidence
from bottleneck.schema.intervals import Flags, Integers, union
from bottleneck.schema.op_names import BACKWARD_NODE, OPTIMIZER_STEP
from bottleneck.schema.reasons import Reason
from bottleneck.schema.step_calls import EngineSettings, Phase, StepCall, StepCalls
from bottleneck.schema.tables import text_matches
from bottleneck.units import counted, format_share, format_us

_ENGINE_ROWS = "backward", BACKWARD_NODE
_OPTIMIZER = "_foreach_", "_fused_"
_TF32, _FP32 = ("tf32", "matrix"), ("fp32", "vector")
_INDUCTOR = "triton_"
_PRODUCTS = ("matmul", "convolution")


def calls_of_trace(evidence: Evidence) -> StepCalls:
    """Returns the calls whose kernels ran in one step, in host order.

    It is the step of the window with the usual number of kernels. Kernels without an op call of known shapes are left
    out; a note says how much of the device's time that is. How long tensors are held is not known, and neither is the
    batch size.
    """
    linked, attribution = evidence.linked, evidence.attribution
    rows = _rows_of_a_step(evidence)
    work = pd.DataFrame(
        {
            "op": attribution["op"].to_numpy()[rows],
            "signature": attribution["signature"].to_numpy()[rows],
            "us": linked.kernels["dur_us"].to_numpy()[rows],
        }
    )
    in_call = work["op"].notna() & work["signature"].notna()
    firsts = work[in_call].drop_duplicates("op")
    firsts = firsts.sort_values("op", key=lambda op: linked.ops["ts_us"].to_numpy()[op.to_numpy(dtype=np.int64)])
    ops = firsts["op"].to_numpy(dtype=np.int64)
    signatures = linked.trace.signatures.iloc[firsts["signature"].to_numpy(dtype=np.int64)]
    host_ops = _host_ops(evidence, ops)
    texts = zip(*(signatures[name] for name in ("name", "dims", "types", "strides", "concrete")), strict=True)
    places = zip(linked.ops["module"].iloc[ops], linked.ops["source"].iloc[ops], strict=True)
    calls = [
        StepCall(
            name=name,
            dims=_text(dims),
            types=_text(types),
            strides=_text(strides),
            concrete=_text(concrete),
            phase="optimizer" if is_update else _phase(evidence, op, name),
            module=_name(module),
            source=_name(source),
            host_ops=count,
        )
        for (name, dims, types, strides, concrete), (module, source), op, count, is_update in zip(
            texts, places, ops.tolist(), host_ops.tolist(), _in_updates(evidence, ops).tolist(), strict=True
        )
    ]
    device = evidence.analysis.device
    return StepCalls(
        program=evidence.linked.trace.path,
        origin="trace",
        calls=calls,
        settings=_settings(evidence, calls),
        host_ops=int(host_ops.sum()),
        measured_us=evidence.step_us,
        measured_on=device.name or None,
        measured_device_us=None if evidence.is_host_only else float(work["us"].sum()),
        unpriced_share=_unpriced_share(work, ops, calls),
        copied_bytes=evidence.analysis.totals.h2d_bytes or None,
        left_out=", ".join(_left_out(evidence)),
        notes=tuple(_notes(evidence, work["us"].to_numpy(), in_call.to_numpy())),
    )


def _rows_of_a_step(evidence: Evidence) -> "np.ndarray[tuple[int], np.dtype[np.int64]]":
    """Returns rows of the device work of one step.

    Computation and fills, no copies over a link and no collectives.
    """
    kernels = evidence.linked.kernels
    takes_part = evidence.kernels_in_window & kernels["kind"].isin(("compute", "fill")).to_numpy()
    takes_part &= ~evidence.attribution["dispatches"].to_numpy()
    steps = kernels["step"].to_numpy(dtype=float, na_value=-1.0)
    if evidence.linked.window.steps:
        numbers, counts = np.unique(steps[takes_part], return_counts=True)
        if numbers.size:
            middle = numbers[np.argsort(counts, kind="stable")[numbers.size // 2]]
            takes_part &= steps == middle
    return np.flatnonzero(takes_part)


def _unpriced_share(
    work: pd.DataFrame, ops: "np.ndarray[tuple[int], np.dtype[np.int64]]", calls: list[StepCall]
) -> float:
    """Returns the part of the device's time without a price.

    It has no call of known sizes, or one that has no cost.
    """
    priced = [
        op
        for position, (op, call) in enumerate(zip(ops.tolist(), calls, strict=True))
        if not isinstance(split(call, position), Reason)
    ]
    is_priced = work["op"].isin(priced) & work["signature"].notna()
    total = float(work["us"].sum())
    return float(work["us"][~is_priced].sum()) / total if total else 0.0


def _host_ops(evidence: Evidence, ops: "np.ndarray[tuple[int], np.dtype[np.int64]]") -> pd.Series:
    """Ops that the host dispatched up to each of these since the one before."""
    if not ops.size:
        return pd.Series([], dtype=int)
    starts = np.sort(evidence.linked.ops["ts_us"].to_numpy())
    at_us = evidence.linked.ops["ts_us"].to_numpy()[ops]
    place = np.searchsorted(starts, at_us, side="right")
    return pd.Series(np.maximum(np.diff(place, prepend=place[0] - 1), 1))


def _in_updates(evidence: Evidence, ops: Integers) -> Flags:
    """Marks ops in a step of an optimizer.

    Those of single tensors have no names of their own.
    """
    events = evidence.linked.trace.events
    rows = np.flatnonzero(text_matches(events["name"], OPTIMIZER_STEP.search))
    start = events["ts_us"].to_numpy()[rows]
    spans = union(start, start + events["dur_us"].to_numpy()[rows])
    return spans.hold(evidence.linked.ops["ts_us"].to_numpy()[ops])


def _phase(evidence: Evidence, op: int, name: str) -> Phase:
    if any(part in name for part in _OPTIMIZER):
        return "optimizer"
    names, parents = evidence.linked.ops["name"], evidence.linked.ops["parent"]
    seen = 0
    while op >= 0 and seen < 100:
        if any(str(names.iloc[op]).endswith(end) or str(names.iloc[op]).startswith(end) for end in _ENGINE_ROWS):
            return "backward"
        parent = parents.iloc[op]
        op, seen = -1 if pd.isna(parent) else int(parent), seen + 1
    return "forward"


def _settings(evidence: Evidence, calls: list[StepCall]) -> EngineSettings:
    """The settings that the engines of the recorded products show."""
    rows = evidence.analysis.kernels
    allowed: dict[str, bool | None] = {}
    for family in _PRODUCTS:
        us = {
            (dtype, engine): sum(
                row.us for row in rows if (row.family, row.dtype, row.engine) == (family, dtype, engine)
            )
            for dtype, engine in (_TF32, _FP32)
        }
        # Code of its own may use TF32 where the setting is off: what took more time tells the setting.
        allowed[family] = us[_TF32] > us[_FP32] if any(us.values()) else None
    origins: Mapping[str, str] = dict.fromkeys(
        ("matmul_allow_tf32", "cudnn_allow_tf32"), "the kernels that the trace's products ran as"
    )
    return EngineSettings(
        matmul_allow_tf32=allowed["matmul"],
        cudnn_allow_tf32=allowed["convolution"],
        training=any(call.phase == "backward" for call in calls),
        compiled=True if _is_compiled(evidence) else None,
        origins={**origins, "training": "the backward ops of the trace", "compiled": "kernels that Inductor made"},
    )


def _is_compiled(evidence: Evidence) -> bool:
    return bool(evidence.linked.kernels["name"].astype(str).str.startswith(_INDUCTOR).any())


def _left_out(evidence: Evidence) -> list[str]:
    """Returns the work of the step that is no kernel of its own calls.

    With its time in the trace.
    """
    spent = {
        "collectives": evidence.group_us("communication"),
        "copies over a link": evidence.group_us("transfer"),
        "waiting for data": evidence.account_us("overhead.input"),
    }
    return [f"{work} ({format_us(us)} per step in the trace)" for work, us in spent.items() if us > 0]


def _notes(
    evidence: Evidence,
    us: "np.ndarray[tuple[int], np.dtype[np.float64]]",
    known: "np.ndarray[tuple[int], np.dtype[np.bool_]]",
) -> list[str]:
    notes = []
    lost = us[~known].sum()
    if lost:
        share, kernels = format_share(lost / us.sum()), counted(int((~known).sum()), "kernel")
        notes.append(f"{kernels} without an op call of known shapes, {share} of the device's time, are left out")
    if _is_compiled(evidence):
        notes.append("the program was compiled: these are the ops that were left, and their eager time is not its own")
    if evidence.is_host_only:
        notes.append("the trace is of a CPU: a GPU may run other ops")
    return notes


def _text(value: object) -> str:
    return value if isinstance(value, str) else ""


def _name(value: object) -> str | None:
    return value if isinstance(value, str) else None
