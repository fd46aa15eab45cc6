"""Cost stage: computes FLOPs and bytes of every op call (COSTS) from its recorded shapes (SIGNATURES or CALLS)."""

import math
from collections.abc import Mapping, Sequence

import numpy as np
import pandas as pd

from bottleneck.cost import (
    attention,
    convolution,
    creation,
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
    vision,
)
from bottleneck.cost.call import Cost, Formula, Formulas, Unmodelled, parse_call
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
    "convolution": convolution.FORMULAS,
    "attention": attention.FORMULAS,
    "recurrent": recurrent.FORMULAS,
    "normalization": normalization.FORMULAS,
    "loss": losses.FORMULAS,
    "pointwise": pointwise.FORMULAS,
    "reduction": reduction.FORMULAS,
    "pooling": pooling.FORMULAS,
    "passes": multipass.FORMULAS,
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
    *(each.COMPOSITES for each in (matmul, convolution, attention, normalization, losses, pooling, movement))
)


_FAMILY_OF = {name: family for family, formulas in OP_FAMILIES.items() for name in formulas}


def op_family(name: str) -> str | None:
    """The family of an op by its name, 'free' for views and ops that only call others; null for unknown ops."""
    if name in movement.VIEWS or name in COMPOSITES or movement.dispatch(name):
        return "free"
    return _FAMILY_OF.get(name) or inductor_triton.family(name) or attention.family(name)


def compute_costs(signatures: pd.DataFrame) -> pd.DataFrame:
    """COSTS, row for row as SIGNATURES or CALLS; an unmodelled call has nulls and the reason."""
    unknown = [None] * len(signatures)
    columns = [signatures.get(name, unknown) for name in ("name", "dims", "types", "strides", "concrete", "result")]
    results = [compute_cost(*map(_text, row)) for row in zip(*columns, strict=True)]
    return cost_table(results, list(signatures.get("evidence", unknown)))


def cost_table(results: Sequence[Cost | str], evidence: Sequence[str | None]) -> pd.DataFrame:
    """COSTS from one cost, or the reason for having none, and its evidence per row."""
    costs = [result if isinstance(result, Cost) else None for result in results]
    reasons = [None if isinstance(result, Cost) else result for result in results]
    frame = pd.DataFrame(
        {
            name: pd.Series([np.nan if cost is None else getattr(cost, name) for cost in costs], dtype="float64")
            for name, column in COSTS.columns.items()
            if column.dtype == "float64"
        }
    )
    frame["family"] = pd.Categorical([cost and cost.family for cost in costs])
    frame["math_dtype"] = pd.Categorical([cost and cost.math_dtype for cost in costs])
    frame["reason"] = pd.Series(reasons, dtype="object")
    grounds = [
        None if cost is None else "; ".join(filter(None, (_text(text), cost.note))) or None
        for cost, text in zip(costs, evidence, strict=True)
    ]
    frame["evidence"] = pd.Series(grounds, dtype="object")
    return COSTS.check(frame[list(COSTS.columns)])


def _text(value: object) -> str | None:
    return value if isinstance(value, str) else None


def compute_cost(name: str | None, *texts: str | None) -> Cost | str:
    """The cost of one call from its texts as ``parse_call`` takes them, or the reason why there is none."""
    formula = FORMULAS.get(name or "") or inductor_triton.formula(name or "") or attention.formula(name or "")
    if name is None or formula is None:
        why = f"{name} only calls other ops" if name in COMPOSITES else f"no formula for {name}"
        return movement.dispatch(name or "") or why
    try:
        cost = formula(parse_call(name, *texts))
    except Unmodelled as reason:
        return str(reason)
    except (ArithmeticError, LookupError, TypeError, ValueError):
        # Recorded shapes are foreign data: a formula met sizes that no call of this op can have.
        return f"the recorded shapes do not fit {name}"
    amounts = (cost.matrix_flops, cost.vector_flops, cost.special_ops, cost.bytes_low, cost.bytes_high)
    if not (all(map(math.isfinite, amounts)) and min(amounts) >= 0) or cost.bytes_low > cost.bytes_high:
        return f"the recorded shapes do not fit {name}"
    return cost
