"""The learned rates that advice takes from the table of the predictions."""

import re
from pathlib import Path

import pytest

from bottleneck.schema.learned_rates import fused_share, host_units


@pytest.mark.parametrize("kind", ["pointwise", "reduction"])
def test_fused_kernel_reaches_a_part_of_the_bandwidth(kind: str) -> None:
    share, spread = fused_share(kind)
    assert 0.4 < share < 1
    assert 1 < spread < 2


def test_compiled_graph_costs_several_ops_to_call() -> None:
    assert host_units("compiled step") > 2 * host_units("op")
    assert host_units("generated kernel") > host_units("op")


@pytest.mark.parametrize("page", ["docs/reference/findings.md", "docs/explanation/advice_rules.md"])
def test_the_pages_give_the_shares_of_the_table(page: str) -> None:
    text = (Path(__file__).parents[2] / page).read_text(encoding="utf-8")
    pointwise, reduction = (f"{fused_share(kind)[0]:.0%}".replace("%", " %") for kind in ("pointwise", "reduction"))
    assert re.search(rf"{pointwise} of the bandwidth[^|]*?{reduction}", text)
