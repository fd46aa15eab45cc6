"""What held the host, in words: what a reader can act on, and nothing that varies from call to call."""

import pytest

from bottleneck.analysis.idle import copy_words, detail_of, short


@pytest.mark.parametrize(
    ("cause", "event", "op", "call", "words"),
    [
        ("sync", "aten::item", "aten::item", ("cudaStreamSynchronize", None), "aten::item > cudaStreamSynchronize"),
        ("sync", "cudaEventSynchronize", "aten::to", ("cudaEventSynchronize", None), "aten::to > cudaEventSynchronize"),
        ("sync", "cudaDeviceSynchronize", None, ("cudaDeviceSynchronize", None), "cudaDeviceSynchronize"),
        ("sync", "cudaMemcpyAsync", None, ("cudaMemcpyAsync", "pageable, DtoH"), "cudaMemcpyAsync (pageable, DtoH)"),
        ("sync", "aten::item", "aten::item", (None, None), "aten::item"),
        ("sync", "aten::nonzero", "aten::index", (None, None), "aten::index > aten::nonzero"),
        ("launch", "cudaLaunchKernel", "aten::mul", ("cudaLaunchKernel", None), "cudaLaunchKernel"),
        ("launch", "cudaMemcpyAsync", None, ("cudaMemcpyAsync", "pageable, HtoD"), "cudaMemcpyAsync (pageable, HtoD)"),
        ("dispatch", "aten::add", "aten::add", ("aten::add", None), "aten::add"),
        ("dispatch", "cudaEventQuery", None, ("cudaEventQuery", None), "cudaEventQuery"),
        ("allocator", "cudaMalloc", "aten::empty", ("cudaMalloc", None), "cudaMalloc"),
        ("python", None, None, (None, None), "main > sleep"),
        ("unknown", None, None, (None, None), None),
        ("dependency", None, None, (None, None), None),
    ],
)  # fmt: skip
def test_each_cause_says_what_held_the_host(
    cause: str, event: str | None, op: str | None, call: tuple[str | None, str | None], words: str | None
) -> None:
    assert detail_of(cause, event, op, call, "main > sleep" if cause == "python" else None) == words


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("torch/_dynamo/convert_frame.py(1000): _compile", "torch/_dynamo/convert_frame.py: _compile"),
        ("C:\\torch\\_dynamo\\convert_frame.py(9): _compile", "C:/torch/_dynamo/convert_frame.py: _compile"),
        ("<built-in method item of Tensor object at 0x7f00>", "item"),
        ("<built-in function collect>", "collect"),
        ("autograd::engine::evaluate_function: MulBackward0", "MulBackward0"),
        ("cuModuleLoadData", "cuModuleLoadData"),
        (None, None),
    ],
)
def test_names_lose_lines_addresses_and_prefixes(name: str | None, words: str | None) -> None:
    assert short(name) == words


def test_names_of_any_length_stay_short() -> None:
    assert len(short("x" * 10_000) or "") < 200
    assert len(short("a/" * 5_000 + "b.py(3): f") or "") < 200


@pytest.mark.parametrize(
    ("kernel", "words"),
    [
        ("Memcpy DtoH (Device -> Pageable)", "pageable, DtoH"),
        ("Memcpy HtoD (Pinned -> Device)", "pinned, HtoD"),
        ("Memcpy DtoD (Device -> Device)", "DtoD"),
        ("Memset (Device)", None),
        ("my_DtoH_kernel", None),
    ],
)
def test_copies_are_told_by_their_memory_and_direction(kernel: str, words: str | None) -> None:
    assert copy_words(kernel) == words
