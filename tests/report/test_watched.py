"""The report of a watched run: its numbers agree with one another, and its page shows all of it."""

import re
from itertools import pairwise

from bottleneck.report.terminal import ASCII, UNICODE
from bottleneck.report.watched import build, charts, render
from bottleneck.schema.analysis import GROUPS
from bottleneck.schema.compile_health import CompileHealth, GraphHealth, Recompile
from bottleneck.schema.records import replace
from bottleneck.schema.watch_log import PHASES, DevicePhases
from bottleneck.schema.watched import LateRank, WatchedCause, WatchedRun, WatchedRunRank

SLOW = WatchedCause(
    "line:train.py:18",
    "the time goes to train.py:18: 300 steps took 2.00 s more",
    "take it out",
    steps=(7, 9),
    beyond_us=2e6,
)


def run(*causes: WatchedCause, steps: int = 1_200, total_us: float = 1.5e6) -> WatchedRun:
    blocks = tuple((float(step), 1_000.0, 900.0, 90_000.0) for step in range(4, steps, steps // 200))
    # The median over all steps, slow ones too, is not what the phases of usual steps add up to.
    rank = WatchedRunRank(0, steps, total_us, 5_000.0, (100.0, 500.0, 300.0, 200.0, 100.0), causes, blocks)
    return WatchedRun("train-1", "2026-11-28", (rank,), "optimizer")


def test_the_usual_step_of_the_headline_is_the_sum_of_its_phases() -> None:
    document = build(run())
    assert document.lines[0].text.startswith("A usual step takes 1.20 ms, most of it forward")
    assert "the usual step                       1.20 ms" in render(run(), "terminal")


def test_slow_steps_are_the_headline_where_they_take_much_of_the_run() -> None:
    first = "Slow steps hold your run up: 2.06 of 3.50 s (58.9 %) beyond usual steps of 1.20 ms"
    assert build(run(SLOW, total_us=3.5e6)).lines[0].text == first
    # Most of that time is of steps of which nothing is known.
    first = build(run(SLOW, total_us=34e6)).lines[0].text
    assert first.endswith("(95.8 %) beyond usual steps of 1.20 ms; 2.00 s of it has a known cause")
    assert build(run(total_us=3.5e6)).lines[0].text.endswith("; none of it has a known cause")
    assert build(run(SLOW, steps=30_000, total_us=40e6)).lines[0].text.startswith("A usual step takes")


def test_sentences_begin_with_a_capital() -> None:
    assert all(line.text[0].isupper() for line in build(run(SLOW)).lines[1:])


def test_the_page_has_the_phases_with_their_bar() -> None:
    page = render(run(SLOW), "html")
    assert page.count('<rect class="g-') == len(PHASES) and "waiting for data" in page


def test_phases_have_marks_of_their_own() -> None:
    """They had those of accounts, so that the forward pass looked like compute."""
    page = render(run(), "html")
    assert {f"g-{phase}" for phase in PHASES} <= set(re.findall(r'<rect class="([^"]+)"', page))
    for glyphs in (UNICODE, ASCII):
        assert len(set(glyphs.bars.values())) == len(glyphs.bars)
    assert not any(glyph in render(run(), "terminal") for glyph in map(UNICODE.bars.get, GROUPS) if glyph != "·")


def test_a_chart_without_stretches_says_so() -> None:
    (stretches,), rank = charts(run()), run().ranks[0]
    (steps,) = charts(replace(run(), ranks=(replace(rank, blocks=((1.0, 9.0, 9.0, 9.0), (2.0, 8.0, 8.0, 8.0))),)))
    assert stretches.title.startswith("Step time: the median of each stretch")
    assert steps.title == "Time of each step"


def test_the_words_along_the_axes_stand_apart() -> None:
    (chart,) = charts(run())
    places = [x for x, _ in chart.x_ticks]
    widest = max(len(words) for _, words in chart.x_ticks)
    assert len(places) >= 3 and min(right - left for left, right in pairwise(places)) > 11 * widest
    assert chart.is_dense and not re.search("M-4.5 0a4.5", render(run(), "html"))


def test_the_phases_on_the_device_are_shown_where_they_are_known() -> None:
    watched = run()
    device = DevicePhases(40, (0.0, 600.0, 300.0, 100.0, 0.0), 250.0)
    on_gpu = replace(watched, ranks=(replace(watched.ranks[0], device_phases=device),))
    for form in ("terminal", "html"):
        assert "The phases on the device" in render(on_gpu, form)
        assert "The phases on the device" not in render(watched, form)
    copies = [line.text for line in build(on_gpu).lines if line.label == "Copies"]
    assert copies == ["Copies of the batch to the device take 250 us of 1.00 ms of a step on the device"]
    few = replace(watched, ranks=(replace(watched.ranks[0], device_phases=replace(device, copies_us=9.0)),))
    assert not [line for line in build(few).lines if line.label == "Copies"]


def test_what_torch_compile_made_of_the_program_is_shown_where_it_compiled() -> None:
    watched = run()
    again = Recompile("0/1", "forward", "net.py:3", "size", "g", "16", "24", subject="x", index=0, seconds=2.5)
    health = CompileHealth((GraphHealth("0/0", "forward", "net.py:3", 5, seconds=4.0),), recompiles=(again,))
    compiled = replace(watched, ranks=(replace(watched.ranks[0], compile_health=health),))
    for form in ("terminal", "html"):
        assert "size 0 of x: 16, then 24" in render(compiled, form)
        assert "torch.compile made of it" not in render(watched, form)


def test_phases_that_no_loader_parts_are_unknown_and_not_zero() -> None:
    """They read "waiting for data 0 us", and the late rank was told to look at its logging alone."""
    phases_us = (0.0, 0.0, 300.0, 200.0, 500.0)
    ranks = tuple(WatchedRunRank(number, 1_200, 1.5e6, 1_000.0, phases_us) for number in (0, 1))
    late = LateRank(1, 100, 1_200, 700.0, 500.0, "rest", is_from_start=False, is_to_end=True)
    document = build(WatchedRun("job", "2026-12-01", ranks, "optimizer", late))
    lines = {line.label: line.text for line in document.lines}
    assert lines[""] == "A usual step takes 1.00 ms, most of it forward, data and the rest (50.0 %)"
    assert lines["First"].endswith(
        "rank 1 alone does outside of its backward pass: its data, its forward pass, logging"
    )
    text = render(WatchedRun("job", "2026-12-01", ranks, "optimizer", late), "terminal")
    assert re.search(r"waiting for data +- +-\n", text) and "no DataLoader gave batches" in text
    assert "forward pass are" not in render(run(), "terminal")


def test_the_late_ranks_own_cause_is_the_worst_before_what_others_wait() -> None:
    waits = WatchedCause("level", "from step 99 on steps take longer in the backward pass", "look", beyond_us=6e5)
    works = replace(waits, headline="from step 99 on steps take longer in the forward pass", rank=1, beyond_us=5e5)
    phases_us = (100.0, 500.0, 300.0, 200.0, 100.0)
    ranks = tuple(WatchedRunRank(cause.rank, 1_200, 1.5e6, 1_000.0, phases_us, (cause,)) for cause in (waits, works))
    late = LateRank(1, 100, 1_200, 700.0, 500.0, "forward", is_from_start=False, is_to_end=True)
    job = WatchedRun("job", "2026-12-01", ranks, "optimizer", late)
    assert next(line.text for line in build(job).lines if line.label == "Worst").startswith("rank 1: ")
    alone = next(line.text for line in build(replace(job, late=None)).lines if line.label == "Worst")
    assert alone.startswith("rank 0: ")
