"""Each row of the table of vendors is reachable, and real names have their kinds."""

import numpy as np
import pytest

from bottleneck.schema.tables import CALL_KINDS, CATEGORIES, COPY_WAYS, HOST_MEMORY
from bottleneck.trace.vendors import Word, call_kind, call_kinds, copy_columns, first_word, vendor_marked, words

VALUES = {"call": CALL_KINDS, "copy": COPY_WAYS, "memory": HOST_MEMORY, "category": CATEGORIES, "grid": ("threads",)}
ROWS = [(word, row) for word, several in words().items() for row in several if word in VALUES]


@pytest.mark.parametrize(("word", "row"), ROWS, ids=lambda each: each.example if isinstance(each, Word) else each)
def test_a_row_is_the_first_to_find_its_example(word: str, row: Word) -> None:
    assert row.value in VALUES[word]
    assert first_word(word, row.example) == row


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("cuLaunchKernelEx", "launch"),
        ("cudaLaunchCooperativeKernel", "launch"),
        ("cudaMemcpyAsync", "copy"),
        ("cudaMemcpyBatchAsync", "copy"),
        ("cudaMemcpyToSymbol", "blocking_copy"),
        ("cuMemcpyHtoDAsync_v2", "copy"),
        ("cudaMallocAsync", "memory"),
        ("cudaMallocFromPoolAsync", "memory"),
        ("cudaFreeHost", "memory"),
        ("cuMemCreate", "map"),
        ("cudaStreamWaitEvent", None),
        ("cudaEventRecord", None),
        ("hipModuleLaunchKernel", "launch"),
        ("hipMemcpyAsync", "copy"),
        ("hipHostFree", "memory"),
        ("hipGraphLaunch", "graph_launch"),
        ("piEnqueueKernelLaunch", "launch"),
        ("urQueueFinish", "synchronise"),
        ("musaDeviceSynchronize", "synchronise_device"),
        ("musaMemcpyAsync", "copy"),
    ],
)
def test_a_call_has_its_kind(name: str, kind: str | None) -> None:
    assert call_kind(name) == kind


def test_columns_have_the_values_of_the_names_that_codes_point_to() -> None:
    names = ["cudaMemcpyAsync", "elsewhere", "Memcpy DtoH (Device -> Pageable)"]
    assert call_kinds(np.array([1, 0, 0]), names).tolist() == [np.nan, "copy", "copy"]
    columns = copy_columns(np.array([2, -1, 1]), names)
    assert columns["copy_way"].tolist() == ["to_host", np.nan, np.nan]
    assert columns["host_memory"].tolist() == ["pageable", np.nan, np.nan]


def test_a_trace_is_of_the_vendor_whose_mark_it_holds() -> None:
    kernels = {"category": ["kernel"]}
    assert vendor_marked(kernels) == "cuda"
    assert vendor_marked({**kernels, "name": ["hipLaunchKernel"]}) == "rocm"
    assert vendor_marked({**kernels, "name": ["hiprtc", "hip"]}) == "cuda"
    assert vendor_marked({"category": ["kernel", "xpu_runtime"]}) == "xpu"
