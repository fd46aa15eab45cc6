"""Linking figures of the public traces against their catalogue, which another program counted."""

import csv
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from bottleneck.analysis.faults import find_faults
from bottleneck.errors import TraceError
from bottleneck.schema.linked_trace import Linked
from tests import trace_cache

pytestmark = pytest.mark.corpus

# The larger files teach nothing that the others do not, and take longer to read than all of them.
_LARGEST_BYTES = 20e6

_PRODUCTS = {"aten::mm", "aten::addmm", "aten::bmm", "aten::baddbmm", "aten::_grouped_mm"}
_CONVOLUTIONS = {
    "aten::cudnn_convolution",
    "aten::cudnn_convolution_transpose",
    "aten::miopen_convolution",
    "aten::convolution_backward",
    "aten::cudnn_convolution_backward_input",
    "aten::cudnn_convolution_backward_weight",
}
_FUSED_ATTENTION = {"aten::_flash_attention_forward", "aten::_efficient_attention_forward"}

# Made by hand, with kernels such as 'gemm_kernel' whose engine is unknown.
_SYNTHETIC = "intel+torch-xpu-ops"


def linked(path: Path) -> Linked | None:
    """A linked trace; null where the file is none."""
    try:
        return trace_cache.linked(path)
    except TraceError:
        return None


def device_traces(traces: Path) -> Iterator[tuple[dict[str, str], Linked]]:
    """Rows of the catalogue whose files hold kernels, with the linked trace."""
    with (traces / "catalog.csv").open() as file:
        rows = [row for row in csv.DictReader(file) if row["kernel_corr_linked_frac"]]
    for row in rows:
        result = linked(traces / row["file"]) if float(row["bytes_uncompressed"]) < _LARGEST_BYTES else None
        if result is not None:
            yield row, result


# The catalogue counts links by correlation only; this file calls it 'External id'.
_CORRELATED_BY_ID = "gemm_01_compute_few_tiles"


def test_launches_orphans_and_early_kernels_are_counted_as_the_catalogue_does(traces: Path) -> None:
    wrong = []
    for row, result in device_traces(traces):
        kernels = result.kernels
        computing = kernels[~kernels["kind"].isin(["copy", "fill"])]
        early = (kernels["launch_ts_us"] > kernels["ts_us"]).sum()
        found = (
            len(computing),
            round(float(computing["launch"].notna().mean()), 3),
            kernels["launch"].isna().sum(),
            early,
        )
        recorded = (
            int(row["n_kernels"]),
            float(row["kernel_corr_linked_frac"]),
            int(row["gpu_orphan_no_launch"]),
            int(row["n_launch_after_kernel"]),
        )
        if _CORRELATED_BY_ID in row["file"]:
            assert found == (20, 1.0, 0, 0)
        elif not np.allclose(found, recorded, rtol=0, atol=6e-4):
            wrong.append((row["file"], found, recorded))
    assert wrong == []


def test_links_agree_with_the_external_ids_of_files_that_have_good_ones(traces: Path) -> None:
    checked = 0
    for row, result in device_traces(traces):
        kernels, trace = result.kernels, result.trace
        recorded = trace.device_args.set_index("event")["external_id"].reindex(kernels["event"])
        of_op = (
            trace.op_args.set_index("event")["external_id"].reindex(result.ops["event"]).to_numpy(float, na_value=-1)
        )
        both = (recorded.notna().to_numpy()) & (kernels["op"].notna() & kernels["launch"].notna()).to_numpy()
        mine = of_op[kernels.loc[both, "op"].to_numpy(int)]
        assert (mine == recorded[both].to_numpy(float)).all(), row["file"]
        checked += both.sum()
    assert checked > 10_000


def test_kernels_of_small_bert_on_an_h100_are_all_linked(traces: Path) -> None:
    result = linked(traces / "AMD-AGI+TraceLens__tests__traces__h100__gaunernst_bert-small-uncased__1016001.json.gz")
    assert result is not None
    assert (result.kernels["kind"] == "compute").sum() == 60
    assert result.linked_share == 1.0
    assert find_faults(result) == ()
    assert len(result.window.steps) == 1
    assert result.kernels["module"].notna().all() and result.kernels["source"].notna().all()


def test_kernels_of_timesformer_on_an_h100_are_all_linked(traces: Path) -> None:
    result = linked(
        traces / "AMD-AGI+TraceLens__tests__traces__h100__facebook_timesformer-base-finetuned-k400__1016002.json.gz"
    )
    assert result is not None
    assert (result.kernels["kind"] == "compute").sum() == 446
    assert result.linked_share == 1.0


def test_no_op_of_a_real_trace_is_cut_by_more_than_a_rounding(traces: Path) -> None:
    for row, result in device_traces(traces):
        raw_us = result.trace.events["dur_us"].to_numpy()[result.ops["event"].to_numpy()]
        assert (raw_us - result.ops["dur_us"].to_numpy()).max(initial=0) <= 1, row["file"]


def test_kernels_of_matrix_ops_have_an_engine(traces: Path) -> None:
    for row, result in device_traces(traces):
        if row["file"].startswith(_SYNTHETIC):
            continue
        kernels = result.kernels[result.kernels["op"].notna() & ~result.kernels["replayed"]]
        op = result.ops["name"].astype(object).to_numpy()[kernels["op"].to_numpy(int)]
        computing = (kernels["kind"] == "compute").to_numpy() & ~kernels["auxiliary"].to_numpy()
        matrix_op = np.isin(op, list(_PRODUCTS | _CONVOLUTIONS | _FUSED_ATTENTION)) & computing
        assert kernels.loc[matrix_op, "engine"].notna().all(), row["file"]
        families = set(kernels.loc[matrix_op, "family"])
        # A product copies the bias into its output first, where the library cannot add it itself.
        assert families <= {"matmul", "convolution", "attention", "copy", "elementwise"}, row["file"]
        on_matrix_units = (kernels["engine"] == "matrix").to_numpy()
        assert set(op[on_matrix_units]) <= _PRODUCTS | _CONVOLUTIONS | _FUSED_ATTENTION, row["file"]
