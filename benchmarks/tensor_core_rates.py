"""Holds predicted times of matrix products on tensor cores against public traces and published benchmarks of products.

python -m benchmarks.tensor_core_rates FOLDER            prints measured over predicted time, also with sources held out
python -m benchmarks.tensor_core_rates FOLDER --write    and puts the tables into benchmarks/results/accuracy.md
python -m benchmarks.tensor_core_rates FOLDER --ship     learns anew what the package holds

FOLDER holds public traces. matmul_timings.csv holds published rates of single products, in TFLOP/s:

xla     a table that XLA's cost model interpolates (matmul_interpolator_data.h), measured on an H100 and a B200; every
        third of its shapes or so, as they came
mamf    the best shapes that mamf-finder met (Bekman, Machine Learning Engineering), of many that were tried
cublas  products of large squares with cuBLAS (two public repositories of kernels)

A row is a shape with one kernel; its time is the median over its calls, with that of kernels that add partial sums.
Kernels on a device that another program shared, or that is a slice of one, tell nothing of the device.
"""

import argparse
import csv
import re
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import pandas as pd
from scipy.optimize import least_squares

from benchmarks.pages import write_between_markers
from bottleneck.devices.match import device_by_name
from bottleneck.errors import BottleneckError
from bottleneck.pipeline import Options, explain
from bottleneck.predict.rates import (
    KernelCeilings,
    KernelColumns,
    as_columns,
    ceilings_of,
    floors,
    read_rates,
    times,
)
from bottleneck.predict.step_kernels import Kernel, load_bytes, split
from bottleneck.predict.tensor_products import ALIGNED_BYTES, OTHERS, TABLE, of_generation, product_rates, width_of
from bottleneck.schema.evidence import Evidence
from bottleneck.schema.intervals import Floats, joined
from bottleneck.schema.reasons import Reason
from bottleneck.schema.records import replace
from bottleneck.schema.step_calls import EngineSettings, StepCall

TIMINGS = Path(__file__).with_name("matmul_timings.csv")
PAGE = Path(__file__).parents[1] / "benchmarks/results/accuracy.md"
_TF32 = EngineSettings(matmul_allow_tf32=True)
_DTYPES = ("tf32", "bf16", "fp16")
# In the traces of this device copies and softmax reach half of its bandwidth too.
_SLICES = ("NVIDIA A100-PCIE-40GB",)
# Prior values, and how far off they may be as logarithms: 0.8 of the peak, as vendors' benchmarks of large products;
# tiles and loads of a kernel that overlaps both; two microseconds to fill and drain a pipeline.
_SHARE = (0.8, 0.1)
_PRIORS: Mapping[str, tuple[float, float]] = {
    "inner": (64.0, 0.7),
    "intensity": (40.0, 1.0),
    "split": (2.0, 0.7),
    "start": (2.0, 0.7),
    "loads of 4 bytes": (400.0, 0.7),
    "loads of 2 bytes": (300.0, 0.7),
}
_NOISE = 0.2
# Rows of one source weigh no more than so many together, per generation and width.
_ROWS_THAT_COUNT = 30
# A row of this time counts half as much as a long one: steps consist of long ones, and launches decide the short ones.
_SMALL_US = 20.0
_MOST = 0.95
_TURNS = 25
_THIN = 64
_HELD_OUT = {"device": "device", "source": "source", "size": "device"}


def main() -> None:
    """Collects, learns, prints and writes."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--write", action="store_true")
    parser.add_argument("--ship", action="store_true")
    wanted = parser.parse_args()
    rows = pd.concat([rows_of_timings(), rows_of_traces(wanted.folder)], ignore_index=True)
    rates = ship(rows) if wanted.ship else product_rates()
    ratio, without_device = measured_over_predicted(rows, rates), held_out(rows, "device")
    parts = {
        "tensor-devices": tabulate(rows, "device", ratio, without_device),
        "tensor-sources": tabulate(rows, "source", ratio, held_out(rows, "source")),
        "tensor-sizes": tabulate(rows.assign(size=sizes(rows)), "size", ratio, without_device),
    }
    for name, text in parts.items():
        print(f"\n{text}")
        if wanted.write:
            write_between_markers(PAGE, name, text)
    common, own = mean_errors(rows, without_device)
    print(
        f"\nmean error with the device held out: {common:.2f} common to a device, {own:.2f} of each product beside it"
    )


def mean_errors(rows: pd.DataFrame, ratio: Floats) -> tuple[float, float]:
    """Returns the mean size of the logarithms of these ratios that a device's products share, and of what is left.

    Of whole devices, and of products above 20 us.
    """
    is_long = (rows["us"] > _SMALL_US) & ~rows["device"].isin(_SLICES)
    off = pd.Series(np.log(ratio), index=rows.index)[is_long]
    devices = off.groupby([rows["device"][is_long], _widths(rows[is_long])])
    return float(devices.mean().abs().mean()), float((off - devices.transform("mean")).abs().mean())


def rows_of_timings() -> pd.DataFrame:
    """Returns the published rates of products as rows with times."""
    rows = []
    with TIMINGS.open(encoding="utf-8", newline="") as lines:
        for row in csv.DictReader(lines):
            sizes = {name: float(row[name]) for name in ("batch", "rows", "columns", "inner")}
            flops = 2.0 * float(np.prod(list(sizes.values())))
            for dtype, element in (("bf16", 2.0), ("tf32", 4.0)):
                if rate := row[f"{dtype}_tflops"]:
                    names = {"device": row["device"], "source": row["source"], "dtype": dtype}
                    rows.append({**names, **sizes, "load_bytes": 16.0, "us": flops / float(rate) / 1e6})
                    rows[-1]["bytes"] = element * _elements(**sizes)
    return pd.DataFrame(rows)


def _elements(batch: float, rows: float, columns: float, inner: float) -> float:
    return batch * (rows * inner + inner * columns + rows * columns)


def rows_of_traces(folder: Path) -> pd.DataFrame:
    """Returns the products on tensor cores of all traces in a folder, a row for each shape and kernel."""
    rows: list[dict[str, object]] = []
    for trace in sorted(folder.glob("*.json*")):
        try:
            explained = explain([trace], Options(critical_path=False))
        except BottleneckError:
            continue
        rows += _rows_of_trace(explained, trace.name.partition("__")[0])
    return pd.DataFrame(rows)


def _rows_of_trace(explained: Evidence, source: str) -> list[dict[str, object]]:
    if explained.analysis.device.kind != "cuda" or not explained.analysis.device.peaks_flops_per_s:
        return []
    rows = []
    for (signature, name), calls in _product_calls(explained).groupby(["signature", "name"], observed=True):
        kernel = _kernel_of(explained, int(signature), str(calls["dtype"].iloc[0]))
        if kernel is None or min(kernel.rows, kernel.columns) == 1:
            continue
        alignment = re.search(r"_align(\d)", str(name))
        element = 4.0 if calls["dtype"].iloc[0] == "tf32" else 2.0
        loads = load_bytes([float(alignment[1])], element) if alignment else kernel.load_bytes
        rows.append(
            {
                "device": explained.analysis.device.name,
                "source": source,
                "dtype": calls["dtype"].iloc[0],
                **{size: getattr(kernel, size) for size in ("batch", "rows", "columns", "inner", "bytes")},
                "load_bytes": loads,
                "us": calls["us"].median(),
            }
        )
    return rows


def _product_calls(evidence: Evidence) -> pd.DataFrame:
    """Returns a row for each product on tensor cores: signature, main kernel, dtype, its kernels' time."""
    kernels, attribution = evidence.linked.kernels, evidence.attribution
    table = pd.DataFrame(
        {
            "name": kernels["name"].astype(str),
            "dtype": kernels["math_dtype"].astype(str),
            "us": kernels["dur_us"],
            "is_main": (kernels["family"] == "matmul") & ~kernels["auxiliary"] & (kernels["engine"] == "matrix"),
            "is_product": (kernels["family"] == "matmul") | kernels["auxiliary"],
            "group": attribution["group"],
            "signature": attribution["signature"],
        }
    )
    table = table[table["signature"].notna()]
    main = table[table["is_main"] & table["dtype"].isin(_DTYPES)].sort_values("us").groupby("group").last()
    return main.assign(us=table[table["is_product"]].groupby("group")["us"].sum().reindex(main.index))


def _kernel_of(evidence: Evidence, signature: int, dtype: str) -> Kernel | None:
    """Returns the kernel that a call has in predictions; null where it is no single product of known sizes."""
    row = evidence.linked.trace.signatures.iloc[signature]
    columns = ("dims", "types", "strides", "concrete")
    texts = {name: text if isinstance(text := row[name], str) else "" for name in columns}
    kernels = split(StepCall(name=row["name"], phase="forward", **texts))
    if isinstance(kernels, Reason) or len(kernels) != 1 or kernels[0].kind != "product":
        return None
    is_of_dtype = kernels[0].dtype == ("fp32" if dtype == "tf32" else dtype)
    return kernels[0] if is_of_dtype and "grouped" not in row["name"] else None


def work_of(rows: pd.DataFrame) -> tuple[KernelColumns, KernelCeilings, Floats]:
    """Returns the rows as kernels with their ceilings and floors."""
    kernels, parts, least = [], [], []
    for row in rows.itertuples():
        flops = 2.0 * row.batch * row.rows * row.columns * row.inner
        sizes = {name: getattr(row, name) for name in ("batch", "rows", "columns", "inner", "bytes", "load_bytes")}
        kernel = Kernel(
            "product",
            flops=flops,
            least_flops=flops,
            least_bytes=row.bytes,
            dtype="fp32" if row.dtype == "tf32" else row.dtype,
            element_bytes=4.0 if row.dtype == "tf32" else 2.0,
            **sizes,
        )
        device = device_by_name(row.device)
        ceilings, _ = ceilings_of([kernel], _TF32, device)
        kernels.append(kernel)
        parts.append(ceilings)
        least.append(floors(as_columns([kernel]), ceilings, device)[2])
    return as_columns(kernels), joined(parts), np.concatenate(least)


def measured_over_predicted(rows: pd.DataFrame, rates: Mapping[str, float]) -> Floats:
    """Returns measured over predicted time of each row."""
    work, ceilings, floor = work_of(rows)
    predicted = times(work, _with_shares(ceilings, rows, rates), read_rates(), rates).us
    return rows["us"].to_numpy() / np.maximum(predicted, floor)


def _generations(rows: pd.DataFrame) -> list[str]:
    return [str(device_by_name(name).architecture) for name in rows["device"]]


def _widths(rows: pd.DataFrame) -> list[str]:
    return [width_of(dtype) for dtype in rows["dtype"]]


def _with_shares(ceilings: KernelCeilings, rows: pd.DataFrame, rates: Mapping[str, float]) -> KernelCeilings:
    names = zip(_generations(rows), _widths(rows), strict=True)
    return replace(ceilings, product_share=np.array([of_generation(rates, *name) for name in names]))


def learn(rows: pd.DataFrame) -> dict[str, float]:
    """Learns rates from rows by least squares on logarithms.

    Every generation and width that the rows have gets a share; the others get the mean.
    """
    generations, widths = _generations(rows), _widths(rows)
    shares = sorted({f"{one}:{width}" for one, width in zip(generations, widths, strict=True)})
    priors = {**dict.fromkeys(shares, _SHARE), **_PRIORS}
    names, middle = list(priors), np.log([value for value, _ in priors.values()])
    spread = np.array([width for _, width in priors.values()])
    measured, (work, ceilings, floor) = rows["us"].to_numpy(), work_of(rows)
    together = rows.groupby([generations, widths, rows["source"]])["us"].transform("size").to_numpy()
    weight = np.sqrt(np.minimum(1.0, _ROWS_THAT_COUNT / together) * measured / (measured + _SMALL_US))

    def unpacked(at: Floats) -> dict[str, float]:
        return _with_others(dict(zip(names, map(float, np.exp(at)), strict=True)))

    def residuals(at: Floats) -> Floats:
        rates = unpacked(at)
        predicted = times(work, _with_shares(ceilings, rows, rates), read_rates(), rates).us
        off = weight * np.log(np.maximum(predicted, floor) / measured) / _NOISE
        return np.concatenate([off, (at - middle) / spread])

    highest = np.where([name in shares for name in names], np.log(_MOST), np.inf)
    best = least_squares(
        residuals,
        middle,
        loss="soft_l1",
        diff_step=1e-3,
        bounds=(-np.inf, highest),
        x_scale=spread,
        max_nfev=_TURNS,
        ftol=1e-3,
    )
    return unpacked(best.x)


def _with_others(rates: Mapping[str, float]) -> dict[str, float]:
    """The rates with the geometric mean over generations, for those that were not timed."""
    means = {}
    for width in ("half", "tf32"):
        shares = [value for name, value in rates.items() if name.endswith(f":{width}")]
        means[f"{OTHERS}:{width}"] = float(np.exp(np.mean(np.log(shares or _SHARE[:1]))))
    return {**rates, **means}


def of_whole_devices(rows: pd.DataFrame) -> pd.DataFrame:
    """Returns the rows that tell of a device, which those of a part of one do not."""
    return rows[~rows["device"].isin(_SLICES)]


def held_out(rows: pd.DataFrame, column: str) -> Floats:
    """Returns measured over predicted time of each row, from rates that were learned without its device or source."""
    ratio = np.full(len(rows), np.nan)
    for value in rows[column].unique():
        is_out = (rows[column] == value).to_numpy()
        rates = learn(of_whole_devices(rows[~is_out]))
        ratio[is_out] = measured_over_predicted(rows[is_out], rates)
    return ratio


def sizes(rows: pd.DataFrame) -> Floats:
    """Returns which of some kinds of sizes each product has."""
    slots = np.array([device_by_name(name).sm_count or np.nan for name in rows["device"]])
    tiles = rows["rows"] * rows["columns"] * rows["batch"] / 128**2
    kinds = (
        (rows["load_bytes"] < ALIGNED_BYTES, "rows not aligned"),
        (rows["batch"] > 1, "batched"),
        (rows[["rows", "columns"]].min(axis=1) < _THIN, "thin"),
        (tiles < slots, "less than a wave"),
    )
    return np.select([is_one.to_numpy() for is_one, _ in kinds], [words for _, words in kinds], "one wave and more")


def tabulate(rows: pd.DataFrame, column: str, ratio: Floats, ratio_held_out: Floats) -> str:
    """Tabulates measured over predicted times by dtype and a column: medians, and between what eight of ten lie."""
    held = _HELD_OUT[column]
    lines = [
        f"| {column} | dtype | products | measured / predicted | 10 to 90 % | {held} held out | 10 to 90 % |",
        "| --- | --- | --- | --- | --- | --- | --- |",
    ]
    for (value, dtype), group in rows.groupby([column, "dtype"]):
        cells = [value, dtype, str(len(group))]
        for ratios in (ratio, ratio_held_out):
            low, middle, high = np.quantile(ratios[rows.index.isin(group.index)], (0.1, 0.5, 0.9))
            cells += [f"{middle:.2f}", f"{low:.2f} to {high:.2f}"]
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def ship(rows: pd.DataFrame) -> dict[str, float]:
    """Writes what the package holds, each rate with its number of rows and their spread; returns it."""
    rows = of_whole_devices(rows)
    rates = learn(rows)
    off = pd.Series(np.abs(np.log(measured_over_predicted(rows, rates))), index=rows.index)
    generations, widths = np.array(_generations(rows)), np.array(_widths(rows))
    with TABLE.open("w", encoding="utf-8", newline="") as lines:
        writer = csv.writer(lines, lineterminator="\n")
        writer.writerow(("name", "value", "timings", "spread"))
        for name, value in sorted(rates.items()):
            generation, _, part = name.rpartition(":")
            is_own = np.full(len(rows), True) if generation in ("", OTHERS) else generations == generation
            is_own &= widths == part if part in ("half", "tf32") else True
            if name.startswith("loads"):
                is_own &= (rows["load_bytes"] == float(name.split()[2])).to_numpy()
            writer.writerow((name, f"{value:.4g}", int(is_own.sum()), f"{np.exp(off[is_own].median()):.2f}"))
    return rates


if __name__ == "__main__":
    main()
