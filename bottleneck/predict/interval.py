"""Gives a predicted time its interval: the errors of the same prices on timed programs that were held out.

The factor of a stratum is split-conformal (Lei et al. 2018, J. Am. Stat. Assoc. 113) on the logarithms of measured over
predicted time, each predicted from rates that were learned without the program. A stratum is the backend, the
kind of work that takes most of the time (or a convolution of an unusual kind that takes a fifth), and whether one
kernel makes the step: errors of several kernels partly cancel. Each program weighs the same in a stratum, as its times
on several devices are wrong together. `python -m benchmarks.kernelbench FOLDER --ship` writes intervals.csv.
"""

import csv
from collections.abc import Mapping
from functools import lru_cache
from pathlib import Path

import numpy as np

from bottleneck.predict.rates import DEPTHWISE, KINDS, LAYOUTS, KernelColumns, PredictedTimes
from bottleneck.schema.predicted_step import Backend

TABLE = Path(__file__).with_name("intervals.csv")
COVERAGE = 0.8
ANY = "*"

_GROUP_OF = {
    **dict.fromkeys(("product", "attention"), "products"),
    **dict.fromkeys(("convolution", "pointwise convolution", "convolution backward", *LAYOUTS), "convolutions"),
    "convolution channels last": "convolutions",
    **dict.fromkeys(("lstm", "gru", "rnn"), "recurrent layers"),
    **dict.fromkeys(
        (
            "convolution 3d",
            "transposed convolution",
            "transposed convolution 3d",
            "grouped convolution",
            *DEPTHWISE,
        ),
        "other convolutions",
    ),
}
_RUNS: Mapping[Backend, str] = {
    "eager": "eager",
    "compile": "compiled",
    "max-autotune-no-cudagraphs": "compiled",
    "cudagraphs": "cudagraphs",
}
_GROUPS = ("products", "convolutions", "recurrent layers", "other convolutions", "memory")
# Which kernel cuDNN takes for an unusual convolution changes its time severalfold: from this
# share of the time on, they decide the error of the step.
_MATTERS = 0.2
# One kernel makes the step if it takes this share of the device's time; a kernel of less than the second share is none.
_ALONE, _COUNTS = 0.8, 0.01


def stratum_of(work: KernelColumns, found: PredictedTimes, is_host_bound: bool, backend: Backend) -> str:
    """The backend, the kind of work that takes most of the time, and whether one kernel makes the step."""
    run = _RUNS.get(backend, "graph")
    kernel_us = found.us * work.count
    busy_us = float(kernel_us.sum())
    if is_host_bound:
        return f"{run}: host, {'alone' if (kernel_us > _COUNTS * busy_us).sum() == 1 else 'several'}"
    spent = dict.fromkeys(_GROUPS, 0.0)
    for code, us in enumerate(np.bincount(work.kind, kernel_us, len(KINDS))):
        spent[_GROUP_OF.get(KINDS[code], "memory")] += float(us)
    is_unusual = spent["other convolutions"] >= _MATTERS * busy_us
    most = "other convolutions" if is_unusual else max(spent, key=spent.__getitem__)
    return f"{run}: {most}, {'alone' if kernel_us.max() > _ALONE * busy_us else 'several'}"


def interval_factor(stratum: str) -> float:
    """The factor by which the interval of a stratum reaches above the prediction, and below."""
    table = read_factors()
    run = stratum.split(":", maxsplit=1)[0]
    return table.get(stratum) or table.get(f"{run}: {ANY}") or table[ANY]


@lru_cache(maxsize=1)
def read_factors(path: Path = TABLE) -> Mapping[str, float]:
    """The factor of each stratum."""
    with path.open(encoding="utf-8", newline="") as lines:
        return {row["stratum"]: float(row["factor"]) for row in csv.DictReader(lines)}
