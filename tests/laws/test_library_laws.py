"""Laws of libraries: their times, with the unknown, add up to the time of the kernels, and so do the shares shown."""

import math
import re
from decimal import Decimal

from hypothesis import given
from hypothesis import strategies as st

from bottleneck.analysis.libraries import name_libraries
from bottleneck.report.analysis_document import libraries
from bottleneck.schema.analysis import library_times
from tests.report.samples import kernel

_KERNELS = st.lists(
    st.builds(
        lambda us, library, bound, dtype, shapes: kernel(
            "k", us, 1e6, library=library, bound=bound, dtype=dtype, shapes=shapes, op="aten::bmm"
        ),
        st.floats(0.015625, 1e5, width=32),
        st.sampled_from(
            [None, "BLAS", "LAPACK", "FFT", "ATen or other", "ATen", "cuDNN", "MIOpen", "NCCL/RCCL", "CUB"]
        ),
        st.sampled_from(["compute", "memory", "unknown", "dispatch"]),
        st.sampled_from(["fp32", "bf16", None]),
        st.none() | st.text(max_size=20) | st.just("[[2, 3, 4], [2, 4, 5]]"),
    ),
    max_size=12,
)
_BUILDS = st.dictionaries(
    st.sampled_from(["blas", "lapack", "mkl", "onednn", "isa", "float32"]),
    st.booleans() | st.sampled_from(["mkl", "open", "AVX2", "highest", ""]) | st.integers(),
)


@given(_KERNELS, _BUILDS, st.sampled_from(["cpu", "cuda", "rocm"]))
def test_libraries_and_the_unknown_add_up_to_the_time_of_the_kernels(kernels, built, kind) -> None:  # type: ignore[no-untyped-def]
    named = name_libraries(kernels, built, kind)
    computing = [one for one in named if one.bound != "dispatch"]
    assert [one.us for one in named] == [one.us for one in kernels]
    assert all((one.library is None) == (one.library_reason is not None) for one in computing)
    times = library_times(named)
    assert math.isclose(math.fsum(times.values()), math.fsum(one.us for one in computing), rel_tol=1e-12)
    text = libraries(named)
    assert bool(text) == any(one.library is not None for one in computing)
    if text and ">" not in text and "<" not in text:
        assert sum(map(Decimal, re.findall(r"([\d.]+) %", text))) == 100
