"""Reports of compare: numbers re-add from the screen, lines keep to the width, and nothing of a trace acts."""

import json
import re
from pathlib import Path

import jsonschema
import pytest

from bottleneck.commands.report_options import RESULT_FORMATS
from bottleneck.report.comparison import build, fold_alike, render
from bottleneck.report.document import TableSection, Waterfall
from bottleneck.report.plots import save_figure
from bottleneck.report.plots.ledger_plots import waterfall_figure
from bottleneck.report.terminal import TerminalStyle
from bottleneck.schema.comparison import Bar, CompareSide, Comparison, CounterStep
from bottleneck.schema.records import replace
from scripts.write_schema import COMPARE
from tests.report.comparisons import COMPARISONS, devices, hostile, lock, row, slower, unchanged
from tests.report.golden_comparison import FOLDER, GOLDEN, PAGE, page

VALIDATOR = jsonschema.Draft202012Validator(json.loads(COMPARE.file.read_text(encoding="utf-8")))


def number(cell: str) -> float:
    """A cell as a person adds it up: what rounds to nothing counts nothing."""
    return 0.0 if cell[:1] in {"<", ">", ""} else float(cell.replace(",", ""))


def waterfall_of(comparison: Comparison) -> Waterfall | None:
    return next((part for part in build(comparison).sections if isinstance(part, Waterfall)), None)


def table(comparison: Comparison, title: str) -> TableSection:
    """The table whose title begins so."""
    return next(
        part for part in build(comparison).sections if isinstance(part, TableSection) and part.title.startswith(title)
    )


def at_odds(values: list[float], total: float) -> bool:
    return abs(sum(values) - total) > 1e-9 * max(1.0, abs(total)) + 1e-9


@pytest.mark.parametrize("name", GOLDEN)
def test_a_comparison_reads_as_the_golden_one_does(name: str) -> None:
    golden = (FOLDER / name).read_text(encoding="utf-8")
    assert GOLDEN[name]() == golden, "look at the difference; python -m tests.report.golden_comparison accepts it"


def test_every_golden_comparison_has_its_maker() -> None:
    assert {path.name for path in FOLDER.iterdir()} == set(GOLDEN)


def test_the_example_of_the_how_to_page_is_what_the_command_prints() -> None:
    text = PAGE.read_text(encoding="utf-8")
    assert page() == text, "python -m tests.report.golden_comparison renews it"
    # It opened with two runs of which nothing could be said.
    assert "\nSlower, 12.2 times as long" in text.partition("No difference")[0]


@pytest.mark.parametrize("comparison", COMPARISONS.values(), ids=COMPARISONS)
@pytest.mark.parametrize("form", RESULT_FORMATS)
def test_every_format_tells_every_comparison(form: str, comparison: Comparison) -> None:
    text = render(comparison, form)
    assert text.endswith("\n") and "\x1b" not in text and "\u202e" not in text
    assert text == render(comparison, form)


@pytest.mark.parametrize("width", [24, 40, 60, 80, 120])
@pytest.mark.parametrize("comparison", COMPARISONS.values(), ids=COMPARISONS)
def test_no_line_is_wider_than_the_terminal(comparison: Comparison, width: int) -> None:
    assert max(map(len, render(comparison, "terminal", TerminalStyle(width)).splitlines())) <= width


@pytest.mark.parametrize("scale", [1.0, 1e-3, 0.017, 1e4])
@pytest.mark.parametrize("name", ["slower", "devices", "unchanged"])
def test_the_waterfall_adds_up_as_printed(name: str, scale: float) -> None:
    drawn = waterfall_of(stretched(COMPARISONS[name], scale))
    assert drawn is not None
    first, *falls, last = drawn.bars
    assert not at_odds([number(first.before), *(number(fall.change) for fall in falls)], number(last.after))
    assert not at_odds([number(fall.change) for fall in falls], number(last.change))
    assert not at_odds([number(fall.before) for fall in falls], number(first.before))
    assert not at_odds([number(fall.after) for fall in falls], number(last.after))
    assert all(not at_odds([number(f.before), number(f.change)], number(f.after)) for f in falls)
    assert [fall.start_us for fall in falls[1:]] == [fall.end_us for fall in falls[:-1]]


@pytest.mark.parametrize("scale", [1.0, 1e-3, 0.017, 1e4])
@pytest.mark.parametrize("name", ["slower", "devices", "unchanged"])
def test_the_rows_add_up_to_the_change_of_the_step_as_printed(name: str, scale: float) -> None:
    comparison = stretched(COMPARISONS[name], scale)
    *rows, total = table(comparison, "What changed").rows
    assert not at_odds([number(row.cells[4]) for row in rows], number(total.cells[4]))
    ops = [row for row in rows if row.cells[2]]
    assert all(not at_odds([number(row.cells[2]), number(row.cells[3])], number(row.cells[4])) for row in ops)
    drawn = waterfall_of(comparison)
    assert drawn is not None and total.cells[4] == drawn.bars[-1].change


@pytest.mark.parametrize("scale", [1.0, 1e-3, 0.017, 1e4])
def test_the_modules_add_up_to_the_ops(scale: float) -> None:
    comparison = stretched(slower(), scale)
    *modules, total = table(comparison, "By module").rows
    for column in (1, 2, 3):
        assert not at_odds([number(row.cells[column]) for row in modules], number(total.cells[column]))
    ops = [row for row in table(comparison, "What changed").rows if row.cells[2]]
    assert not at_odds([number(row.cells[4]) for row in ops], number(total.cells[3]))


def stretched(comparison: Comparison, scale: float) -> Comparison:
    """The same comparison with all times multiplied, so that they round otherwise."""

    def stretch(part: object) -> object:
        us = {name: getattr(part, name) * scale for name in vars(part) if name.endswith("_us") and getattr(part, name)}
        return replace(part, **us)  # type: ignore[type-var]  # records, each with its fields in microseconds

    many = {name: tuple(map(stretch, getattr(comparison, name))) for name in ("bars", "rows", "modules", "idle")}
    return replace(comparison, before=stretch(comparison.before), after=stretch(comparison.after), **many)  # type: ignore[arg-type]


def test_what_differs_besides_the_code_is_said_before_the_sentence_and_what_breaks_first() -> None:
    for text in (render(devices(), "terminal"), render(devices(), "markdown")):
        order = [text.index(words) for words in ("do not compare the code", "AMD Instinct", "torch", "takes 2.01 ms")]
        assert order == sorted(order)
    assert "Not only the code differs" not in render(unchanged(), "terminal")


def test_both_ledgers_have_their_groups_in_one_order() -> None:
    before, after = waterfall_of(slower()).steps  # type: ignore[union-attr]  # it has times
    assert [group for group, _ in before.parts] == [group for group, _ in after.parts]


def test_long_names_are_short_above_and_whole_in_the_notes() -> None:
    names = [f"pytorch+samples__resnet50_num_workers_{count}__worker0.1623143566756.json.gz" for count in (0, 4)]
    before, after = replace(slower().before, label=names[0]), replace(slower().after, label=names[1])
    text = render(replace(slower(), before=before, after=after), "terminal", TerminalStyle(100))
    assert text.splitlines()[0] == "COMPARE …workers_0__worker0.162314356675… → …workers_4__worker0.162314356675…"
    assert [name in text for name in names] == [True, True]


def test_a_line_that_the_diff_touches_is_marked_and_no_other() -> None:
    lines = render(slower(), "terminal", TerminalStyle(100)).splitlines()
    assert [line for line in lines if "changed here" in line] == [line for line in lines if "rope.py:88" in line]


def test_a_row_says_how_often_it_was_called_and_what_it_became() -> None:
    cells = {row.cells[0]: row for row in table(slower(), "What changed").rows}
    assert cells["aten::copy_"].cells[1] == "0 → 24" and cells["aten::copy_"].details[0] == "only after"
    assert cells["aten::gelu"].cells[1] == "1 → 0" and cells["aten::gelu"].details[0] == "only before"
    assert cells["aten::addmm"].cells[1] == "48"
    assert "matched by its name alone" in cells["aten::softmax"].details


def test_rows_alike_but_for_the_number_of_their_module_are_one() -> None:
    rows = {row.cells[0]: row for row in table(slower(), "What changed").rows}
    assert rows["aten::dropout"].cells[1] == "2" and rows["aten::dropout"].cells[4] == "+0.02"
    assert rows["aten::dropout"].details[1:3] == ("in 2 modules", "decoder.*.drop")
    assert "decoder.*.drop (2 of them)" in [row.cells[0] for row in table(slower(), "By module").rows]


def test_modules_of_one_path_that_changed_unlike_each_other_say_how() -> None:
    """Two rows of one name: half of the attentions were faster, half slower."""
    comparison = slower()
    first, second, *_ = comparison.modules
    rows = [replace(first, module=f"layer.{at}.attention", kind=kind) for at, kind in enumerate(("faster", "slower"))]
    names = [row.cells[0] for row in table(replace(comparison, modules=(*rows, second)), "By module").rows]
    assert {"layer.0.attention", "layer.1.attention"} <= set(names)
    several = [replace(row, module=f"layer.{at}.attention") for row in rows for at in range(2)]
    names = [row.cells[0] for row in table(replace(comparison, modules=(*several, second)), "By module").rows]
    assert {"layer.*.attention (2 of them, faster)", "layer.*.attention (2 of them, slower)"} <= set(names)


def test_rows_of_one_module_or_of_other_ops_stay_apart() -> None:
    rows = [
        row("aten::mm", (1, 1), (1.0, 2.0), module="a.0", shapes="[[2]]"),
        row("aten::mm", (1, 1), (1.0, 2.0), module="a.0", shapes="[[3]]"),
        row("aten::mm", (1, 0), (1.0, 0.0), module="a.1", shapes="[[2]]", kind="gone"),
        row("aten::mm", (1, 1), (1.0, 2.0), module="b.0", shapes="[[2]]"),
        row("aten::mm", (1, 1), (2.0, 2.5), module="a.7", shapes="[[2]]"),
    ]
    folded = fold_alike(rows)
    assert sorted((alike.row.module, alike.modules) for alike in folded) == [
        ("a.*", 2),
        ("a.0", 1),
        ("a.1", 1),
        ("b.0", 1),
    ]
    assert sum(alike.row.change_us for alike in folded) == sum(row.change_us for row in rows)


def test_changes_too_small_to_show_have_no_line_of_their_own() -> None:
    names = [row.cells[0] for row in table(slower(), "What changed").rows]
    assert "13 more" in names and not any(name.startswith("aten::op") for name in names)


def test_a_change_that_rounds_to_nothing_is_not_shown_as_nothing() -> None:
    bars = (Bar("compute", "compute", 9000.0, 9400.0), Bar("overhead.gc", "overhead", 50.0, 50.001))
    made = Comparison(
        CompareSide("a", "a", "cpu", 9050.0),
        CompareSide("b", "b", "cpu", 9450.001),
        bars=bars,
        rows=(row("aten::mm", (1, 1), (9000.0, 9400.0)),),
        idle=bars[1:],
    )
    text = render(made, "terminal")
    assert "<+1" in text
    assert "<+1" not in render(unchanged(), "terminal")


def test_the_change_on_screen_is_the_one_that_the_sentence_rounds() -> None:
    bars = (Bar("compute", "compute", 1_405_700.0, 509_300.0),)
    sides = CompareSide("a", "a", "cpu", 1_405_700.0), CompareSide("b", "b", "cpu", 509_300.0)
    drawn = waterfall_of(Comparison(*sides, bars=bars, rows=(row("aten::mm", (1, 1), (1_405_700.0, 509_300.0)),)))
    assert drawn is not None
    assert (drawn.bars[0].before, drawn.bars[-1].after, drawn.bars[-1].change) == ("1,405.7", "509.3", "-896.4")


def _drawn(text: str, label: str) -> str:
    """The bar of an account with the line at zero, as a terminal shows it."""
    line = next(line for line in text.splitlines() if line[2:].startswith(label))
    return re.sub(r"^.*\d  ", "", line, count=1).strip()


def test_an_account_that_fell_goes_left_of_the_line_and_one_that_rose_goes_right() -> None:
    text = render(slower(), "terminal")
    assert _drawn(text, "compute ") == "███│"
    for label in ("memory: copy", "overhead: python", "overhead: sync"):
        assert re.fullmatch("│[▓░]+", _drawn(text, label)), label
    assert _drawn(text, "the step") == "│"


def test_the_steps_before_and_after_are_drawn_to_one_scale() -> None:
    before, after = (
        len(re.sub("[^█▓░]", "", line))
        for line in render(devices(), "terminal").splitlines()
        if line.startswith(("before", "after")) and "█" in line
    )
    assert before / after == pytest.approx(5010 / 2012, rel=0.05)


def test_a_lock_file_has_counters_and_neither_waterfall_nor_rows() -> None:
    text = render(lock(), "terminal")
    assert "Only counters can be compared, for a side has no times: 1 of 2 differs." in text
    assert "What changed" not in text and "Where the change" not in text
    assert "ops         100    101      +1" in text and "syncs 0" in text


def test_a_counter_that_a_side_does_not_know_has_its_reason() -> None:
    text = render(slower(), "terminal")
    assert "Not compared: FLOPs; not known after: the trace has no shapes." in text
    assert "FLOPs" not in [row.cells[0] for row in table(slower(), "Counters").rows]


def test_top_limits_the_rows_and_the_rest_is_summed() -> None:
    text = render(slower(), "terminal", top=2)
    assert "16 more" in text and "aten::softmax" not in text


def test_colour_is_there_only_where_it_is_asked_for() -> None:
    assert "\x1b[" in render(slower(), "terminal", TerminalStyle(color=True))
    assert "\x1b[" not in render(slower(), "terminal")


def test_json_is_the_comparison_and_plain_ascii() -> None:
    text = render(hostile(), "json")
    assert text.isascii()
    document = json.loads(text, parse_constant=pytest.fail)
    assert document["schema"] == "bottleneck/compare/2"
    assert document["rows"][0]["calls_after"] == 2
    assert len(document["bars"]) == 2


def test_text_that_no_encoding_holds_is_shown_by_every_format(tmp_path: Path) -> None:
    odd = replace(slower(), sentence="half \ud800", rows=(replace(slower().rows[0], name="\ud800"), *slower().rows[1:]))
    for text in (render(odd, form) for form in RESULT_FORMATS):
        assert "\\ud800" in text and text.encode()
    save_figure(waterfall_figure, tmp_path / "odd.svg", odd)


def test_markdown_has_no_markup_of_a_trace() -> None:
    text = render(hostile(), "markdown")
    outside = re.sub(r"```.*?```|(`+)(?!`).*?(?<!`)\1(?!`)", "", text, flags=re.DOTALL)
    assert not any(words in outside for words in ("</pre>", "@user", "](http", "# h1"))
    assert all(line.count("```") <= 1 for line in text.splitlines() if line.startswith("```"))


@pytest.mark.parametrize("comparison", COMPARISONS.values(), ids=COMPARISONS)
def test_what_is_written_is_valid_by_the_published_schema(comparison: Comparison) -> None:
    VALIDATOR.validate(json.loads(render(comparison, "json")))


@pytest.mark.parametrize(
    ("key", "value"), [("schema", "bottleneck/compare/9"), ("before", None), ("rows", [{"name": "x"}]), ("bars", {})]
)
def test_the_schema_refuses_what_is_no_comparison(key: str, value: object) -> None:
    assert not VALIDATOR.is_valid({**json.loads(render(slower(), "json")), key: value})


@pytest.mark.parametrize("name", ["slower", "devices", "unchanged", "hostile"])
def test_the_picture_has_a_bar_for_every_line_and_ends_where_the_step_does(name: str) -> None:
    comparison = COMPARISONS[name]
    (axes,) = waterfall_figure(comparison).axes
    bars = [bar for container in axes.containers for bar in container]
    shown = waterfall_of(comparison)
    assert shown is not None and len(bars) == len(shown.bars)
    scale = {"ms": 1e3}.get(shown.unit, 1.0)
    ends = [(bar.get_x() + bar.get_width()) * scale for bar in (bars[0], bars[-1])]
    assert ends == pytest.approx([comparison.before.step_us, comparison.after.step_us])
    labels = [label.get_text() for label in axes.get_yticklabels()]
    assert not any("\x1b" in label for label in labels)


def test_a_picture_is_the_same_twice_and_says_what_differs(tmp_path: Path) -> None:
    for name in ("a.svg", "b.svg"):
        save_figure(waterfall_figure, tmp_path / name, devices())
    assert (tmp_path / "a.svg").read_bytes() == (tmp_path / "b.svg").read_bytes()
    words = [text.get_text() for text in waterfall_figure(devices()).texts]
    assert any("besides the code: device" in text for text in words)
    save_figure(waterfall_figure, tmp_path / "c.png", slower())
    assert (tmp_path / "c.png").read_bytes().startswith(b"\x89PNG")


def test_a_wait_has_its_line() -> None:
    bars = (
        Bar("compute", "compute", 5.0, 5.0),
        Bar("overhead.sync", "overhead", 0.0, 9.0, source="train.py:9", is_touched=True),
    )
    made = Comparison(
        CompareSide("a", "a", "cpu", 5.0),
        CompareSide("b", "b", "cpu", 14.0),
        bars=bars,
        rows=(row("aten::mm", (1, 1), (5.0, 5.0), kind="same"),),
        idle=bars[1:],
    )
    assert "train.py:9 (changed here)" in render(made, "terminal")


def test_without_a_counter_in_common_none_is_said_to_be_the_same() -> None:
    alone = replace(lock(), counters=(CounterStep("ops", None, 5),))
    assert "Counters: none that both sides know ─" in render(alone, "terminal")
    assert "not known before: it has no counters" in " ".join(render(alone, "terminal").split())
    assert "Counters: none that both sides know differs" in render(
        replace(lock(), counters=lock().counters[1:]), "terminal"
    )
