"""What is said of the changes that make a step fit: a line, and tables whose figures add up."""

import pytest

from bottleneck.devices.match import device_by_name
from bottleneck.predict.answer import answer, with_fits
from bottleneck.report.memory_fit import fit_line, fit_sections, remedy_words
from bottleneck.report.predict import render
from bottleneck.schema.memory_fit import MemoryFit
from bottleneck.schema.prediction import Prediction
from bottleneck.schema.records import replace
from tests.predict.test_memory_fit import MATRIX, PEAK, fit, program_step

L4 = device_by_name("L4")


def predicted(made: MemoryFit) -> Prediction:
    return with_fits(answer([program_step()], [L4], ["eager"], {}), [made])


def line(made: MemoryFit) -> str:
    return fit_line(predicted(made).devices[0])


def test_room_is_named_where_the_step_fits() -> None:
    assert line(fit(PEAK + 16)) == "as it is on L4, with 256 MiB to spare"
    prediction = replace(predicted(fit(PEAK + 16)).devices[0], largest_batch=37)
    assert fit_line(prediction).endswith("; the largest batch that fits is 37")


def test_a_set_is_named_with_what_it_saves_costs_and_how_it_is_known() -> None:
    words = line(fit(PEAK - 2))
    assert words.startswith("32 MiB too much on L4; recompute 2 of 4 blocks: -32 MiB, +")
    assert words.endswith("step; 176 MiB at the peak, run under fake tensors")


def test_what_is_known_by_formula_is_not_said_to_have_run() -> None:
    assert "formula" in line(fit(PEAK - 5))


def test_where_nothing_fits_the_nearest_set_and_what_it_lacks_are_named() -> None:
    made = fit(1.2)
    assert made.best is not None
    words = line(made)
    assert "nothing tried fits" in words
    assert all(remedy_words(one) in words for one in made.best.remedies)


def test_without_the_option_nothing_is_said() -> None:
    prediction = answer([program_step()], [L4], ["eager"], {})
    assert fit_line(prediction.devices[0]) == ""
    assert not [*fit_sections(prediction.devices)]


@pytest.mark.parametrize("matrices", [PEAK - 2, PEAK - 5, 1.2])
def test_every_format_shows_it_and_the_terminal_keeps_to_80_columns(matrices: float) -> None:
    found = predicted(fit(matrices))
    for form in ("terminal", "markdown", "json", "html"):
        text = render(found, form)
        assert ("bf16-states" if form == "json" else "optimizer states in bf16") in text
    assert max(map(len, render(found, "terminal").splitlines())) <= 80


def test_a_step_that_fits_has_its_line_and_no_tables() -> None:
    prediction = predicted(fit(PEAK + 16))
    text = render(prediction, "terminal")
    assert "with 256 MiB to spare" in " ".join(text.split()) and "Each change of memory" not in text
    assert "bf16-states" in render(prediction, "json")


def test_a_set_says_how_each_of_its_changes_is_made() -> None:
    text = " ".join(render(predicted(fit(PEAK - 2)), "terminal").split())
    assert "torch.utils.checkpoint.checkpoint(block, x, use_reentrant=False), for blocks blocks.0 to blocks.1" in text
    assert MATRIX == 2**24
