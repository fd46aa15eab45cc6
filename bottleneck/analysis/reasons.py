"""Why a group has no bound: texts by rule, first match wins."""

import numpy as np
import pandas as pd

from bottleneck.analysis.groups import Labelled, Work, rows

NO_PEAKS = "no peaks known for this device"
NO_PEAK = "no peak known for its dtype"
NO_BANDWIDTH = "no bandwidth known for this device"
FROM_CACHE = "served from cache"
TOO_FAST = "faster than its floor: price or peak is wrong"

_NO_PRICE = (
    "replayed by a graph launch, which has no op of its own",
    "no op issued it",
    "shapes were not recorded",
    "no priced op among those that issued it",
    "compiled region, whose kernels record no shapes",
)
_COMPILED_REGION = "Torch-Compiled Region"


def why_unpriced(work: Work) -> Labelled:
    """The reason per group for having no price, as far as the trace and the cost stage tell."""
    main = work.groups.main
    op = rows(work.kernels["op"])[main]
    signature = np.append(rows(work.ops["signature"]), -1)[op]
    by_cost, cost_reasons = pd.factorize(work.costs["reason"])
    unlinked = work.kernels["unlinked"].cat
    told = unlinked.codes.to_numpy(dtype=np.int64)[main]
    first_cost = len(_NO_PRICE) + len(unlinked.categories)
    cost = np.append(by_cost.astype(np.int64), -1)[signature]
    names = work.ops["name"].cat
    regions = np.array([str(name).startswith(_COMPILED_REGION) for name in names.categories], dtype=bool)
    compiled = np.append(regions[names.codes.to_numpy()], False)[op]
    # A twin that has no price says more than that the kernel has no op.
    twin = np.append(by_cost.astype(np.int64), -1)[np.where(work.groups.priced, -1, work.groups.signature)]
    code = np.select(
        [twin >= 0, told >= 0, work.kernels["replayed"].to_numpy()[main], op < 0, compiled, signature < 0, cost >= 0],
        [first_cost + twin, len(_NO_PRICE) + told, 0, 1, 4, 2, first_cost + cost],
        default=3,
    )
    return Labelled(code, (*_NO_PRICE, *unlinked.categories, *cost_reasons))
