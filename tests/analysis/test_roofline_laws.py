"""Laws of the roofline over made-up kernels, and its speed."""

import random
from dataclasses import replace

import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bottleneck.analysis.roofline import classify
from tests.analysis.frames import H100, Frames, Kernel, Priced, frames, judge, matmul, only, stream, unpriced

cases = st.lists(
    st.one_of(
        st.builds(
            matmul,
            st.floats(0.5, 1e4),
            st.floats(0, 1e12),
            st.floats(0, 1e10),
            blocks=st.sampled_from([1, 100, 10_000, None]),
            engine=st.sampled_from(["matrix", "vector", None]),
            math_dtype=st.sampled_from(["bf16", "fp32", "tf32", None]),
        ),
        st.builds(stream, st.floats(0.5, 1e4), st.floats(0, 1e10)),
        st.builds(lambda dur: unpriced(Kernel(dur)), st.floats(0.5, 1e4)),
    ),
    min_size=1,
    max_size=6,
)


class TestLaws:
    # A busy machine is slow, not wrong.
    quick = settings(max_examples=settings.default.max_examples // 2, deadline=None)

    @quick
    @given(cases)
    def test_explained_lies_between_nothing_and_everything(self, several: list[Priced]) -> None:
        table = judge(*several)
        known = table.explained.dropna()
        assert ((known >= 0) & (known <= 1)).all()
        assert (table.bound != "unknown").eq(table.explained.notna()).all()

    @quick
    @given(cases)
    def test_what_is_unknown_or_underutilised_has_a_reason(self, several: list[Priced]) -> None:
        table = judge(*several)
        asking = (table.bound == "unknown") | (table.regime == "underutilised")
        assert table.reason[asking].notna().all()

    @pytest.mark.statistics
    @quick
    @given(cases, st.randoms(use_true_random=False))
    def test_the_order_of_rows_changes_nothing(self, several: list[Priced], chance: random.Random) -> None:
        made = frames(*several)
        order = list(range(len(made.kernels)))
        chance.shuffle(order)
        moved = Frames(
            made.kernels.iloc[order].reset_index(drop=True),
            made.ops,
            made.costs,
            made.attribution.iloc[order].reset_index(drop=True),
        )
        plain, shuffled = (classify(f.kernels, f.ops, f.costs, f.attribution, H100) for f in (made, moved))
        for name in plain.columns:
            left, right = plain[name].iloc[order].astype(object).tolist(), shuffled[name].astype(object).tolist()
            assert all(a == b or (pd.isna(a) and pd.isna(b)) for a, b in zip(left, right, strict=True)), name

    @pytest.mark.statistics
    @quick
    @given(cases, st.floats(-1e6, 1e6))
    def test_a_shift_in_time_changes_nothing(self, several: list[Priced], shift_us: float) -> None:
        made = frames(*several)
        moved = made.kernels.assign(ts_us=made.kernels.ts_us + shift_us)
        pd.testing.assert_frame_equal(
            classify(made.kernels, made.ops, made.costs, made.attribution, H100),
            classify(moved, made.ops, made.costs, made.attribution, H100),
        )

    def test_empty_tables_give_an_empty_roofline(self) -> None:
        assert len(judge()) == 0

    def test_a_device_twice_as_fast_halves_every_floor(self) -> None:
        case = matmul(100.0, 1e10, 1e9)
        twice = replace(
            H100,
            peaks_flops_per_s={name: 2 * peak for name, peak in H100.peaks_flops_per_s.items()},
            bandwidth_bytes_per_s=2 * H100.bandwidth_bytes_per_s,
        )
        one, two = only(case), only(case, device=twice)
        assert (two.compute_us, two.memory_us) == pytest.approx((one.compute_us / 2, one.memory_us / 2))

    def test_floors_of_the_kernels_of_an_op_add_up_to_those_of_the_op(self) -> None:
        kernels = tuple(Kernel(dur, name=f"k{dur}") for dur in (10.0, 30.0, 60.0))
        split, whole = judge(Priced(kernels, bytes_low=1e8)), judge(stream(100.0, 1e8))
        assert split.memory_us.sum() == pytest.approx(whole.memory_us.sum())
