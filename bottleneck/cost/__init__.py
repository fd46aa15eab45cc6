"""Computes FLOPs and bytes of every op call (COSTS) from its shapes.

This is the cost stage. The recorded shapes are those of SIGNATURES or CALLS.
"""

import math
from collections.abc import Mapping, Sequence
from itertools import repeat

import numpy as np
import pandas as pd
from msgspec.structs import astuple

from bottleneck.cost import (
    attention,
    convolution,
    creation,
    functions,
    indexing,
    inductor_triton,
    linalg,
    losses,
    matmul,
    movement,
    multipass,
    normalization,
    optimizer,
    pointwise,
    pooling,
    quantized,
    recommendation,
    recurrent,
    reduction,
    serving,
    user_kernels,
    vision,
)
from bottleneck.cost.call import Cost, Formula, Formulas, Unmodelled, parse_call
from bottleneck.schema.reasons import Reason
from bottleneck.schema.tables import COSTS


def merge_formulas(tables: Sequence[Formulas]) -> dict[str, Formula]:
    """All formulas by op name; AssertionError when two tables have the same op."""
    merged: dict[str, Formula] = {}
    for table in tables:
        twice = merged.keys() & table.keys()
        assert not twice, f"ops have two formulas: {sorted(twice)}"
        merged.update(table)
    return merged


# Formulas by op family: the family follows from an op's name alone, its cost only with its shapes.
OP_FAMILIES: Mapping[str, Formulas] = {
    "matmul": merge_formulas([matmul.FORMULAS, quantized.FORMULAS]),
    "convolution": merge_formulas([convolution.FORMULAS, quantized.CONVOLUTIONS, functions.FORMULAS["convolution"]]),
    "attention": attention.FORMULAS,
    "recurrent": recurrent.FORMULAS,
    "normalization": merge_formulas([normalization.FORMULAS, functions.FORMULAS["normalization"]]),
    "loss": merge_formulas([losses.FORMULAS, functions.FORMULAS["loss"]]),
    "pointwise": merge_formulas([pointwise.FORMULAS, functions.FORMULAS["pointwise"]]),
    "reduction": reduction.FORMULAS,
    "pooling": pooling.FORMULAS,
    "sort": multipass.SORTS,
    "passes": merge_formulas([multipass.SCANS, functions.FORMULAS["passes"]]),
    "copy": movement.FORMULAS,
    "indexing": indexing.FORMULAS,
    "recommendation": recommendation.FORMULAS,
    "linear algebra": linalg.FORMULAS,
    "serving": serving.FORMULAS,
    "vision": vision.FORMULAS,
    "fill": creation.FORMULAS,
    "optimizer": optimizer.FORMULAS,
    "primitive": inductor_triton.FORMULAS,
}
FORMULAS = merge_formulas([*OP_FAMILIES.values(), movement.VIEWS])

# Ops that only call others, which have costs of their own.
COMPOSITES = frozenset[str]().union(
    *(ops.COMPOSITES for ops in (matmul, convolution, attention, normalization, losses, pooling, movement))
)


# Modules that know kernels and ops by patterns of their names: generated ones first, then those that users wrote.
_BY_PATTERN = (inductor_triton, attention, user_kernels, serving)

_FAMILY_OF = {name: family for family, formulas in OP_FAMILIES.items() for name in formulas}


def op_family(name: str) -> str | None:
    """Gives the family of an op by its name.

    It is 'free' for views and ops that only call others, null for unknown ops.
    """
    if name in movement.VIEWS or name in COMPOSITES or movement.dispatch(name):
        return "free"
    return _FAMILY_OF.get(name) or inductor_triton.family(name) or attention.family(name)


def compute_costs(signatures: pd.DataFrame) -> pd.DataFrame:
    """Gives COSTS, row for row as SIGNATURES or CALLS.

    An unmodelled call has nulls and the reason.
    """
    columns = [_texts(signatures, name) for name in ("name", "dims", "types", "strides", "concrete", "result")]
    # Nearly all calls of views differ in their numbers alone, which no view's cost depends on.
    columns[4] = [
        None if name in movement.VIEWS and concrete is not None and concrete.startswith("[") else concrete
        for name, concrete in zip(columns[0], columns[4], strict=True)
    ]
    results_by_call: dict[tuple[str | None, ...], Cost | Reason] = {}
    results = [
        results_by_call[call] if call in results_by_call else results_by_call.setdefault(call, compute_cost(*call))
        for call in zip(*columns, strict=True)
    ]
    evidence = signatures["evidence"].to_list() if "evidence" in signatures else [None] * len(signatures)
    return cost_table(results, [facts if isinstance(facts, tuple) else () for facts in evidence])


def _texts(calls: pd.DataFrame, column: str) -> list[str | None]:
    """Gives the texts of a column.

    Null for what is no text, and where there is no such column.
    """
    if column not in calls:
        return [None] * len(calls)
    return [text if isinstance(text, str) else None for text in calls[column].to_list()]


_AMOUNTS = [name for name, column in COSTS.columns.items() if column.dtype == "float64"]
_NO_COST = (None,) * len(Cost.__struct_fields__)


def cost_table(results: Sequence[Cost | Reason], evidence: Sequence[tuple[str, ...]]) -> pd.DataFrame:
    """Builds COSTS from one result per row and its evidence.

    A result is a cost, or the reason for having none.
    """
    rows = [astuple(result) if isinstance(result, Cost) else _NO_COST for result in results]
    values = dict(zip(Cost.__struct_fields__, zip(*rows, strict=True) if rows else repeat(()), strict=False))
    reasons = [None if isinstance(result, Cost) else result for result in results]
    grounds = [
        None if reason is not None else (*facts, *([note] if note else [])) or None
        for reason, facts, note in zip(reasons, evidence, values["note"], strict=True)
    ]
    frame = pd.DataFrame(
        {
            **{name: np.array(values[name], dtype=np.float64) for name in _AMOUNTS},
            "family": pd.Categorical(values["family"]),
            "math_dtype": pd.Categorical(values["math_dtype"]),
            "reason": pd.Series(reasons, dtype="object"),
            "evidence": pd.Series(grounds, dtype="object"),
        }
    )
    return COSTS.check(frame[list(COSTS.columns)])


def compute_cost(name: str | None, *texts: str | None) -> Cost | Reason:
    """Gives the cost of one call, or the reason for having none.

    The texts are as ``parse_call`` takes them.
    """
    patterns = (module.formula(name or "") for module in _BY_PATTERN)
    formula = FORMULAS.get(name or "") or next(filter(None, patterns), None)
    if name is None or formula is None:
        why = "composite" if name in COMPOSITES else "no_formula"
        return movement.dispatch(name or "") or Reason(why, (str(name),))
    try:
        cost = formula(parse_call(name, *texts))
    except Unmodelled as unmodelled:
        return unmodelled.reason
    except (ArithmeticError, LookupError, TypeError, ValueError):
        # Recorded shapes are foreign data: a formula met sizes that no call of this op can have.
        return Reason("unfit_shapes", (name,))
    amounts = (cost.matrix_flops, cost.vector_flops, cost.special_ops, cost.bytes_low, cost.bytes_high)
    if not (all(map(math.isfinite, amounts)) and min(amounts) >= 0) or cost.bytes_low > cost.bytes_high:
        return Reason("unfit_shapes", (name,))
    return cost
