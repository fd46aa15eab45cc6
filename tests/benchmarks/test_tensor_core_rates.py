"""The benchmark of products on tensor cores: published timings as rows, and rates that are learned from rows."""

import numpy as np
import pytest

from benchmarks.tensor_core_rates import learn, measured_over_predicted, rows_of_timings, sizes, tabulate
from bottleneck.predict.tensor_products import product_rates

ROWS = rows_of_timings()


def test_published_products_take_about_their_predicted_time() -> None:
    ratio = measured_over_predicted(ROWS, product_rates())
    for (device, dtype), group in ROWS.groupby(["device", "dtype"]):
        assert 0.85 < np.median(ratio[group.index]) < 1.15, (device, dtype)


def test_rates_that_made_the_times_of_rows_are_learned_from_them() -> None:
    rates = {**product_rates(), "9.0:half": 0.6}
    few = ROWS[ROWS["device"].str.contains("H100") & (ROWS["dtype"] == "bf16")].reset_index(drop=True)
    made = few.assign(us=few["us"] / measured_over_predicted(few, rates))
    assert measured_over_predicted(made, rates) == pytest.approx(1.0)
    assert learn(made)["9.0:half"] == pytest.approx(0.6, rel=0.1)


def test_a_table_has_a_row_for_each_kind_of_size_and_dtype() -> None:
    ratio = measured_over_predicted(ROWS, product_rates())
    table = tabulate(ROWS.assign(size=sizes(ROWS)), "size", ratio, ratio)
    assert "| batched | bf16 | " in table and "| one wave and more | tf32 | " in table
