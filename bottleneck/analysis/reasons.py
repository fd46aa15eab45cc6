"""Why a group has no bound, and why one falls short of its floor: texts by rule, first match wins."""

import re

import numpy as np
import pandas as pd

from bottleneck.analysis.floors import Floors
from bottleneck.analysis.groups import Flags, Labelled, Work, rows

NO_PEAKS = "no peaks known for this device"
NO_PEAK = "no peak known for its dtype"
NO_BANDWIDTH = "no bandwidth known for this device"
FROM_CACHE = "served from cache"
TOO_FAST = "faster than its floor: price or peak is wrong"
UNEXPLAINED = "unexplained"
PAGEABLE = "pageable host memory"

AUXILIARY = "auxiliary layout kernels"
FEW_BLOCKS = "fewer blocks than SMs"
WAVES = "wave quantisation"
LEGACY = "legacy matrix instructions"
STRIDED = "strided access"
REPEATED = "repeated passes over its data"

# cutlass and nvjet write the tile as 128x256, cuBLASLt as tilesize128x128x64, hipBLASLt as MT320x224x64.
_TILE = re.compile(r"(?:tilesize|_MT|_)(\d{2,3})x(\d{2,3})(?=[x_])")
_LARGE_TILE = 128 * 128  # one such block fills a multiprocessor
_ALIGN = re.compile(r"align([12])(?!\d)")
_LEGACY = re.compile(r"cutlass_(?:70|75|80)_|_s?16816|s1688|s161616|sm(?:75|80|86)_|ampere_|pytorch_flash::")
_HOPPER_OR_NEWER = re.compile(r"\b(?:H20|H100|H200|H800|GH200|B100|B200|B300|GB200|GB300)\b")
_STRIDED = re.compile(r"(?<![A-Za-z0-9_])elementwise_kernel<")

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
    code = np.select(
        [told >= 0, work.kernels["replayed"].to_numpy()[main], op < 0, compiled, signature < 0, cost >= 0],
        [len(_NO_PRICE) + told, 0, 1, 4, 2, first_cost + cost],
        default=3,
    )
    return Labelled(code, (*_NO_PRICE, *unlinked.categories, *cost_reasons))


def why_underutilised(work: Work, floors: Floors) -> Labelled:
    """The first reason per group, in fixed order, why it may fall far short of its largest floor."""
    align = work.per_name(lambda name: float(match[1]) if (match := _ALIGN.search(name)) else 0.0)
    arithmetic = ~(floors.compute_us < floors.cold_us)
    on_hopper = bool(_HOPPER_OR_NEWER.search(work.device.name))
    share = work.groups.time_us
    cases = {
        AUXILIARY: work.groups.auxiliary_us > work.limits.auxiliary_share * share,
        FEW_BLOCKS: work.groups.blocks < (work.device.sm_count or 0),
        WAVES: _quantised(work),
        "misaligned (align1)": align == 1,
        "misaligned (align2)": align == 2,
        LEGACY: (work.per_name(_LEGACY.search) > 0) & on_hopper & arithmetic,
        STRIDED: work.per_name(_STRIDED.search) > 0,
        REPEATED: ~arithmetic & (floors.eager_cold_us >= work.limits.memory_share * share),
    }
    code = np.select(list(cases.values()), list(range(len(cases))), default=len(cases))
    return Labelled(code, (*cases, UNEXPLAINED))


def _quantised(work: Work) -> Flags:
    """Whether the last wave of large tiles leaves many multiprocessors idle.

    Grids up to the number of multiprocessors are left out: persistent and stream-K kernels look like that by design.
    """
    waves = work.groups.blocks / float(work.device.sm_count or np.nan)
    full = waves / np.maximum(np.ceil(waves), 1.0)
    return (work.per_name(_tile_area) >= _LARGE_TILE) & (waves > 1) & (full < work.limits.wave_efficiency)


def _tile_area(name: str) -> float:
    match = _TILE.search(name)
    return float(match[1]) * float(match[2]) if match else 0.0
