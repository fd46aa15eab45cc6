"""Kernels that share one price, folded to one row each: what the roofline judges."""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pandas as pd

from bottleneck.analysis.clocks import UNTOLD, Conditions
from bottleneck.analysis.thresholds import Thresholds, thresholds_for
from bottleneck.records import Device

Floats = npt.NDArray[np.float64]
Rows = npt.NDArray[np.int64]
Flags = npt.NDArray[np.bool_]

# Kernels of these families do matrix FLOPs; any other kernel of the same op, however long, does not pick their peak.
PRODUCT_FAMILIES = ("matmul", "convolution", "attention")
_NAME_LIMIT = 1000


@dataclass(frozen=True)
class Groups:
    """Arrays with one element per group, and ``of_kernel``, the group of each row of KERNELS.

    ``main`` is the longest kernel that is not auxiliary, products first (row in KERNELS): its name picks the peak.
    ``priced`` marks groups that carry a price; ``signature`` is a row in COSTS, -1 for none. ``blocks``, ``threads``
    per block and ``registers`` per thread are the main kernel's, NaN where the trace does not tell. ``resolution_us``
    is how far the time may be off because the trace counts whole microseconds.
    """

    of_kernel: Rows
    main: Rows
    priced: Flags
    signature: Rows
    kernels: Floats
    time_us: Floats
    auxiliary_us: Floats
    blocks: Floats
    threads: Floats
    registers: Floats
    resolution_us: Floats


@dataclass(frozen=True)
class Work:
    """The tables of one trace, their groups, and the device and thresholds that they are held against.

    ``conditions`` are what its sensors said while the steps ran.
    """

    kernels: pd.DataFrame
    ops: pd.DataFrame
    costs: pd.DataFrame
    charges: pd.DataFrame
    device: Device
    groups: Groups
    conditions: Conditions = UNTOLD

    @property
    def limits(self) -> Thresholds:
        """The thresholds for this device."""
        return thresholds_for(self.device)

    def cost(self, column: str) -> Floats:
        """One amount of COSTS per group, NaN without a price."""
        return np.append(self.costs[column].to_numpy(), np.nan)[self.groups.signature]

    def per_name(self, value: Callable[[str], object]) -> Floats:
        """One number per group from the name of its main kernel, worked out once per distinct name."""
        return by_name(self.kernels, value)[self.groups.main]


@dataclass(frozen=True)
class Labelled:
    """Texts as codes into a list of labels; code -1 is null."""

    codes: Rows
    labels: tuple[str, ...]


def fold(kernels: pd.DataFrame, charges: pd.DataFrame) -> Groups:
    """The groups of CHARGES; neither the order of rows nor a shift in time changes them."""
    _, of_kernel = np.unique(charges["group"].to_numpy(), return_inverse=True)
    count = int(of_kernel.max()) + 1 if len(of_kernel) else 0
    duration = kernels["dur_us"].to_numpy()
    auxiliary = kernels["auxiliary"].to_numpy()
    main = _main_rows(kernels, of_kernel, count)
    size = np.bincount(of_kernel, minlength=count).astype(np.float64)
    whole = bool(len(duration)) and bool((duration == np.floor(duration)).all())
    return Groups(
        of_kernel=of_kernel,
        main=main,
        priced=charges["share"].notna().to_numpy()[main],
        signature=rows(charges["signature"])[main],
        kernels=size,
        time_us=_sums(of_kernel, duration, count),
        auxiliary_us=_sums(of_kernel, np.where(auxiliary, duration, 0.0), count),
        **{
            name: kernels[name].to_numpy(dtype=np.float64, na_value=np.nan)[main]
            for name in ("blocks", "threads", "registers")
        },
        resolution_us=size * (0.5 if whole else 0.0),
    )


def _sums(of_kernel: Rows, values: Floats, count: int) -> Floats:
    return np.bincount(of_kernel, weights=values, minlength=count).astype(np.float64)


def _main_rows(kernels: pd.DataFrame, of_kernel: Rows, count: int) -> Rows:
    """The last row per group by: not auxiliary, product, duration, then name, so that ties do not hang on the order."""
    order = np.lexsort(
        (
            kernels["name"].cat.codes.to_numpy(),
            kernels["dur_us"].to_numpy(),
            kernels["family"].isin(PRODUCT_FAMILIES).to_numpy(),
            ~kernels["auxiliary"].to_numpy(),
            of_kernel,
        )
    )
    last = np.cumsum(np.bincount(of_kernel, minlength=count)) - 1
    return order[last].astype(np.int64)


def rows(column: "pd.Series[int]") -> Rows:
    """A nullable row reference as plain integers, -1 for null."""
    return column.to_numpy(dtype=np.int64, na_value=-1).astype(np.int64)


def by_name(kernels: pd.DataFrame, value: Callable[[str], object]) -> Floats:
    """One number per row of KERNELS from its name, worked out once per distinct name; a match counts as 1.

    Only the beginning of a name is looked at: C++ template arguments can be megabytes long.
    """
    names = kernels["name"].cat
    found = [value(str(name)[:_NAME_LIMIT]) for name in names.categories]
    numbers = [float(item) if isinstance(item, int | float) else float(bool(item)) for item in found]
    return np.array(numbers, dtype=np.float64)[names.codes.to_numpy()]
