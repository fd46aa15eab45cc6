"""The sentence of a comparison: what it must say of each kind of change."""

from bottleneck.compare.build import compare
from bottleneck.compare.sides import ComparedSide
from bottleneck.schema.analysis import IdleCause
from bottleneck.schema.counters import Counts, Fingerprint
from bottleneck.schema.records import replace
from tests.compare.sides import side, stepped, work
from tests.report.samples import H100

_LAYERS = [
    work("aten::addmm", 10000.0, 8, module=f"Net_0.Layer_{at}.Linear_{at}", source="net.py:9") for at in range(4)
]
_COPIES = work(
    "aten::copy_", 5200.0, 24, module="Net_0.Rotary_0", source="rope.py:88", shapes="[[7]]", family="copy", bound="copy"
)


def _tell(before: ComparedSide, after: ComparedSide, half_width: float = 0.001, **touched: frozenset[int]) -> str:
    lines = {file.replace("__", "."): numbers for file, numbers in touched.items()} or None
    return compare(stepped(before, half_width), stepped(after, half_width), lines).sentence


def test_new_work_is_reported_with_its_count_module_and_line() -> None:
    said = _tell(
        side(_LAYERS, {"python": 1000.0}), side([*_LAYERS, _COPIES], {"python": 1600.0}), rope__py=frozenset({88})
    )
    assert said == (
        "The step takes 5.80 ms (14.1 %) more, where two recordings of the same code differ by up to about 10 %: "
        "5.20 ms of it in 24 new aten::copy_ of Net_0.Rotary_0 (rope.py:88, changed here), "
        "600 us in Python between ops."
    )


def test_gone_work_is_reported_the_other_way() -> None:
    said = _tell(side([*_LAYERS, _COPIES]), side(_LAYERS))
    assert said.startswith("The step takes 5.20 ms (11.5 %) less, where ")
    assert ": 5.20 ms of it in 24 aten::copy_ of Net_0.Rotary_0" in said
    assert "that are gone" in said


def _answer(before: ComparedSide, after: ComparedSide) -> dict[str, str]:
    return {line.label: line.text for line in compare(stepped(before, 0.001), stepped(after, 0.001)).answer}


def test_a_slowdown_near_the_noise_decides_nothing_and_names_its_line() -> None:
    answer = _answer(side(_LAYERS), side([*_LAYERS, _COPIES]))
    assert answer["First"] == (
        "Nothing is decided, as 13.0 % is near the noise of 10 %: record both again; most grew in 24 new aten::copy_ "
        "of Net_0.Rotary_0 (rope.py:88), 5.20 ms"
    )
    assert answer["Where"] == "5.20 ms more in 24 new aten::copy_ of Net_0.Rotary_0 (rope.py:88)"
    assert answer["Noise"].startswith("Two recordings of the same code differ by up to")


def test_a_step_far_slower_is_to_be_reverted_or_mended_at_its_line() -> None:
    slow = side([*_LAYERS, replace(_COPIES, us=12_000.0)])
    assert _answer(side(_LAYERS), slow)["First"] == (
        "Mend rope.py:88 (12.0 ms more, at most 1.30 times as fast without), or revert the change"
    )


def test_what_a_slower_change_saves_elsewhere_is_to_be_kept() -> None:
    copies = replace(_COPIES, us=24_000.0)
    answer = _answer(side(_LAYERS, {"input": 12_000.0}), side([*_LAYERS, copies]))
    assert answer["First"] == (
        "Mend rope.py:88 (24.0 ms more, at most 1.60 times as fast without), and keep the rest: it saves 12.0 ms, most "
        "in waiting for data"
    )


def test_devices_that_may_differ_decide_nothing() -> None:
    slow = side([*_LAYERS, replace(_COPIES, us=12_000.0)], device=replace(H100, name="unknown device"))
    assert _answer(side(_LAYERS), slow)["First"].startswith("Nothing is decided, as the devices may differ: ")


def test_the_headline_has_direction_size_and_noise() -> None:
    longer = stepped(side([*_LAYERS, _COPIES]), 0.001)
    base = stepped(side(_LAYERS), 0.001)
    assert compare(base, longer).headline == "Slower by 13.0 %, noise 10 %: 40.0 ms before, 45.2 ms after"
    assert compare(longer, base).headline == "Faster by 11.5 %, noise 10 %: 45.2 ms before, 40.0 ms after"
    more = stepped(side([*_LAYERS, replace(_COPIES, us=400.0)]), 0.001)
    assert compare(base, more).headline == "No difference beyond the noise of 10 %: 40.0 ms before, 40.4 ms after"
    many = stepped(side([*_LAYERS, replace(_COPIES, us=3_960_000.0)]), 0.001)
    assert compare(base, many).headline == "Slower, 100 times as long, noise 10 %: 40.0 ms before, 4.00 s after"


def test_a_wait_that_grew_is_met_with_the_advice_of_its_account() -> None:
    answer = _answer(side(_LAYERS), side(_LAYERS, {"dispatch": 40_000.0}))
    assert answer["First"] == (
        "Dispatch less per step: torch.compile, CUDA graphs, or a larger batch (40.0 ms more, at most 2.00 times as "
        "fast without), or revert the change"
    )


def test_a_faster_step_is_to_be_kept() -> None:
    answer = _answer(side([*_LAYERS, replace(_COPIES, us=12_000.0)]), side(_LAYERS))
    assert answer["First"] == "Keep the change"
    assert answer["Where"].startswith("12.0 ms less in 24 aten::copy_ of Net_0.Rotary_0 (rope.py:88) that are gone")


def test_a_step_of_the_same_length_decides_nothing() -> None:
    assert _answer(side(_LAYERS), side(_LAYERS))["First"].startswith("Nothing is decided: the difference is within")


def test_steps_on_two_devices_judge_the_devices() -> None:
    other = side(_LAYERS, device=replace(H100, name="AMD Instinct MI300X"))
    assert _answer(side(_LAYERS), other)["First"].startswith("Judge the devices by these times, not the code")


def test_other_arithmetic_is_to_be_checked_before_times() -> None:
    def counting(flops: int) -> ComparedSide:
        return replace(
            side([replace(row, flops=flops / 4) for row in _LAYERS]), counts=Counts({"flops": flops}, Fingerprint())
        )

    assert "a step after does 8.00 times the arithmetic" in _answer(counting(134), counting(1072))["First"]
    assert _answer(counting(134), counting(135))["First"].startswith("Nothing is decided: the difference is within")


def test_layers_of_one_kind_are_reported_together() -> None:
    slower = [replace(row, us=12000.0) for row in _LAYERS]
    said = _tell(side(_LAYERS), side(slower))
    assert "8.00 ms of it in slower aten::addmm of ….Layer_*.Linear_* (net.py:9)" in said


def test_what_moved_inside_a_step_of_the_same_length_is_reported() -> None:
    said = _tell(side(_LAYERS), side([work("CompiledFunction", 40000.0, family="triton")]), half_width=0.05)
    assert said.startswith("The step takes 40.0 ms on both sides. Inside it: 40.0 ms more in 1 new CompiledFunction")


def test_parts_that_go_the_other_way_are_reported_where_they_count() -> None:
    copies = replace(_COPIES, us=8200.0)
    said = _tell(side(_LAYERS, {"input": 3000.0}), side([*_LAYERS, copies], {"input": 500.0}))
    assert said.startswith("The step takes 5.70 ms (13.3 %) more, where ")
    assert "against that 2.50 ms less elsewhere, 2.50 ms of it in waiting for data" in said


def test_another_device_is_reported_as_a_ratio_and_not_as_a_change_of_code() -> None:
    other = side([replace(row, us=14000.0) for row in _LAYERS], device=replace(H100, name="AMD Instinct MI300X"))
    said = _tell(side(_LAYERS), other)
    assert said.startswith(
        "On AMD Instinct MI300X the step takes 1.40 times as long as on NVIDIA H100 80GB HBM3, 56.0 ms against "
        "40.0 ms: "
    )


def test_a_wait_is_reported_with_the_line_that_it_comes_from() -> None:
    idle = (IdleCause("sync", 9000.0, 0.1, "train.py:141", 2.0), IdleCause("sync", 1000.0, 0.1, "train.py:7", 1.0))
    said = _tell(side(_LAYERS), side(_LAYERS, {"sync": 10_000.0}, idle=idle))
    assert "10.0 ms of it in waiting in synchronisations (train.py:141)" in said


def test_names_are_shortened_and_hold_no_control_characters() -> None:
    hostile = work("aten::" + "x" * 5000 + "\x1b[31m\n", 9000.0, shapes="[[5]]", family="copy")
    said = _tell(side(_LAYERS), side([*_LAYERS, replace(hostile, op="\x1b[2J\n\u202eevil")]))
    assert "\x1b" not in said and "\n" not in said and "\u202e" not in said
    assert len(_tell(side(_LAYERS), side([*_LAYERS, hostile]))) < 400


def test_another_number_of_ranks_or_a_profiled_step_is_said_with_the_change() -> None:
    plain = side(_LAYERS)
    assert plain.analysis is not None
    ranks = replace(plain.analysis.recording, world_size=8)
    said = _tell(plain, side([*_LAYERS, _COPIES], recording=ranks))
    assert said.endswith("The code need not be the cause, as these differ: ranks, 1 against 8.")
    other = side([*_LAYERS, _COPIES], recording=ranks, device=replace(H100, name="AMD Instinct MI300X"))
    assert _tell(plain, other).endswith("These differ too: ranks, 1 against 8.")


def test_endless_numbers_and_names_are_reported_in_time() -> None:
    path = "Net_0." + "1" * 200_000 + "x"
    name = "CompiledFunction" + " " * 200_000
    rows = [work(name, 9000.0, module=path), work("aten::_" + "attention" * 20_000, 5.0, shapes="[[" + "1" * 100_000)]
    assert compare(side(rows), side(rows)).change_us == 0
    assert "in 1 new Compiled" in _tell(side(_LAYERS), side([*_LAYERS, *rows]))
