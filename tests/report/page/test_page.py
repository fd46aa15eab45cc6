"""The page for a browser: what it says, that its numbers are those of the analysis, and that no text can act in it."""

import base64
import hashlib
import html
import json
import math
import re
from importlib.resources import files
from typing import Any, get_args, get_type_hints

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bottleneck.report import analysis_tables as tables
from bottleneck.report.analysis_document import build, facts
from bottleneck.report.document import (
    Document,
    IntervalBar,
    LabelledLine,
    ListSection,
    Section,
    TableRow,
    TableSection,
    columns,
)
from bottleneck.report.json_text import from_json, to_json
from bottleneck.report.page import document_to_html, to_html
from bottleneck.report.text import clean
from bottleneck.schema.analysis import Analysis
from bottleneck.schema.inference import InferenceServing
from bottleneck.schema.records import is_record, replace
from bottleneck.units import format_share
from tests.report import samples
from tests.report.page.parsed_page import ParsedPage
from tests.report.samples import SAMPLES

NASTY = (
    "</script><script>alert(1)</script>",
    '"><img src=x onerror=alert(1)>',
    "'; alert(1); //",
    "{{ 7 * 7 }}{% raw %}${1}<%= 1 %>",
    "<!--<script>",
    "]]>&lt;&#60;",
    "\u202egnp.exe\u2066",
    "\ud800 lone",
    "\x00\x1b[31m\x07",
    "line\u2028break\u2029\r\n",
    "javascript:alert(1)",
    "https://example.org/x.js",
    "w" * 10_000,
)


def skeleton(page: str) -> list[str]:
    """The names of the elements and of their attributes: what no text may change."""
    return [f"{tag} {' '.join(attrs)}" for tag, attrs in ParsedPage(page).tags]


# Words of our own, of which there is a closed list; and code, whose lines are counted: a short one is shown.
_FIXED = {
    "code",
    "schema",
    "group",
    "account",
    "bound",
    "kind",
    "regime",
    "confidence",
    "slug",
    "growth",
    "option",
    "per",
    "cause",
    "role",
    "joiner",
}


def with_texts(value: Any, text: str) -> Any:
    """The same record with ``text`` in place of each text that may come from a trace."""
    if is_record(type(value)):
        given = {name: getattr(value, name) for name in get_type_hints(type(value))}
        fixed = _FIXED | {"Device": {"source"}, "Phase": {"name"}, "PathPart": {"what"}}.get(
            type(value).__name__, set()
        )
        return type(value)(**{name: each if name in fixed else with_texts(each, text) for name, each in given.items()})
    if isinstance(value, str):
        return text
    return tuple(with_texts(each, text) for each in value) if isinstance(value, tuple) else value


@pytest.mark.parametrize("analysis", SAMPLES.values(), ids=SAMPLES)
def test_page_says_what_the_terminal_says(analysis: Analysis) -> None:
    words, document = ParsedPage(to_html(analysis)).words, build(analysis)
    said = [document.headline, *(line.text for line in document.lines), *(text for _, text in document.facts)]
    said += [caveat.message[1:] for caveat in analysis.caveats]
    for text in said:
        assert " ".join(clean(text, 2000)[:1500].split()) in words


@pytest.mark.parametrize("analysis", SAMPLES.values(), ids=SAMPLES)
def test_page_holds_the_analysis_whole(analysis: Analysis) -> None:
    embedded = json.loads(ParsedPage(to_html(analysis)).embedded("analysis"))
    columns, count = embedded["idle"]["columns"], embedded["idle"]["count"]
    values = {name: [column["values"][at] for at in column.get("at", range(count))] for name, column in columns.items()}
    embedded["idle"] = [{name: column[row] for name, column in values.items()} for row in range(count)]
    assert from_json(json.dumps(embedded)) == from_json(to_json(analysis))


def test_idle_rows_of_few_places_take_little_of_the_page() -> None:
    one = samples.gpu_overhead()
    rows = tuple(replace(one.idle[0], us=float(at), module=f"model.layers.{at % 8}.mlp") for at in range(2000))
    growth = len(to_html(replace(one, idle=rows))) - len(to_html(replace(one, idle=rows[:8])))
    assert growth < 60 * len(rows)  # a row alone has 250 characters and more


@pytest.mark.parametrize("analysis", SAMPLES.values(), ids=SAMPLES)
def test_rows_of_the_ledger_and_the_legend_of_its_bar_re_add_as_shown(analysis: Analysis) -> None:
    page = to_html(analysis).replace("\u00a0", " ")
    legend = re.findall(r"<b>([^<]+) %</b>", page[page.index('class="legend"') : page.index("</figure>")])
    table = ParsedPage(page[page.index('id="ledger-table"') : page.index('id="evidence"')])
    *rows, total = [row.cells for row in tables.ledger(analysis).rows if row.group or row.role == "total"]
    shown = [html.escape(row[-1].removesuffix(" %")) for row in rows]
    assert legend == shown and all(" ".join(filter(None, row)) in table.words for row in (*rows, total))
    if all(re.fullmatch(r"[\d.]+ %", row[-1]) for row in rows):  # none is below what one digit shows
        assert f"{math.fsum(float(row[-1][:-2]) for row in rows):.1f} %" == total[-1] == "100.0 %"


@pytest.mark.parametrize("analysis", [samples.gpu_overhead(), samples.hostile()], ids=["plain", "hostile"])
def test_policy_lets_only_the_pages_own_script_and_style_act(analysis: Analysis) -> None:
    page = ParsedPage(to_html(analysis))
    policy = next(attrs["content"] for tag, attrs in page.tags if attrs.get("http-equiv") == "Content-Security-Policy")
    assert policy is not None and policy.startswith("default-src 'none'; ") and "unsafe" not in policy

    def digest(text: str) -> str:
        return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"

    scripts = [attrs for tag, attrs in page.tags if tag == "script"]
    run = [text for attrs, text in zip(scripts, page.inside["script"], strict=True) if "type" not in attrs]
    (program,) = [
        text for attrs, text in zip(scripts, page.inside["script"], strict=True) if attrs.get("id") == "program"
    ]
    assert len(run) == 1 and f"script-src {digest(run[0])} {digest(program)};" in policy
    assert len(page.inside["style"]) == 1 and f"style-src {digest(page.inside['style'][0])};" in policy


def test_page_names_no_address_to_load_from() -> None:
    for tag, attrs in ParsedPage(to_html(samples.hostile())).tags:
        assert tag not in {"iframe", "object", "embed", "base", "form", "img"}
        assert not any(name.startswith("on") or name == "style" for name in attrs)
        for name in ("src", "href", "action", "data"):
            assert (attrs.get(name) or "#").startswith(("#", "data:,"))


@settings(max_examples=settings.default.max_examples // 3, deadline=None)
@given(text=st.sampled_from(NASTY) | st.text(max_size=50))
def test_no_text_of_a_trace_changes_the_page(text: str) -> None:
    plain, nasty = (to_html(with_texts(samples.gpu_overhead(), each)) for each in ("plain", text or "-"))
    assert skeleton(nasty) == skeleton(plain)
    nasty.encode("utf-8")  # no lone surrogate is left
    # The page itself joins numbers to their units by no-break spaces.
    assert all(character in "\n\u00a0" or character.isprintable() for character in nasty)


def test_text_that_is_marked_up_shows_as_it_is() -> None:
    whole = samples.gpu_overhead()
    analysis = replace(whole, verdict=replace(whole.verdict, sentence=NASTY[0], clauses=()))
    found = replace(analysis.findings[0], code=NASTY[1])
    page = to_html(replace(analysis, findings=(found,)))
    for text in NASTY[:2]:
        assert text in ParsedPage(page).words and text not in page


def test_documents_of_other_reports_are_pages_too() -> None:
    from bottleneck.report.comparison import build as build_comparison
    from tests.report import comparisons

    for make in (comparisons.slower, comparisons.hostile):
        document = build_comparison(make())
        page = ParsedPage(document_to_html(document))
        assert " ".join(clean(document.sentence, 2000).split()) in page.words
        assert [tag for tag, _ in page.tags].count("script") == 1


def test_what_was_run_stands_beneath_the_first_picture() -> None:
    """Before and after stood between the answer and its bars, which lay below the first screen of a phone."""
    from bottleneck.report.comparison import build as build_comparison
    from tests.report import comparisons

    document = build_comparison(comparisons.slower())
    page = document_to_html(document)
    assert document.facts
    assert page.index('id="section-1"') < page.index('class="facts"') < page.index('id="section-2"')
    assert 'class="facts"' in document_to_html(replace(document, sections=()))


def tiles(analysis: Analysis) -> dict[str, str]:
    """The number of each tile beside the verdict, by its title."""
    page = to_html(analysis)
    shown = page[page.index('class="tiles"') :].replace("\u00a0", " ")
    return dict(re.findall(r"<dt>([^<]*)</dt><dd><b>([^<]*)</b>", shown))


def test_no_line_of_a_page_breaks_between_a_number_and_its_unit() -> None:
    page = to_html(samples.gpu_overhead())
    shown = re.sub(r"<(code|script|style|title|pre)\b.*?</\1>|<[^>]*>", " ", page, flags=re.DOTALL)
    assert "\u00a0ms" in shown and not re.findall(r"\d (?:ms|us|%|GB)\b", shown)


def test_commands_to_copy_hold_plain_spaces_only() -> None:
    items = (("run `bottleneck sweep --seconds 5 s` there",),)
    page = document_to_html(Document("a", "b", sections=(ListSection("Took 5 s", items),)))
    assert "<code>bottleneck sweep --seconds 5 s</code>" in page


@pytest.mark.parametrize("kind", get_args(Section), ids=lambda kind: kind.__name__)
def test_a_section_of_every_kind_shows_on_a_page(kind: type) -> None:
    """The phases of a watched run were a title with nothing beneath it."""
    template = (files("bottleneck.report.page") / "templates" / "parts.html").read_text()
    assert f'kind == "{kind.__name__}"' in template


def test_tiles_call_a_lower_bound_what_the_terminal_calls_one() -> None:
    whole = samples.gpu_overhead()
    flops, traffic = whole.totals.model_flops_utilization, whole.totals.bandwidth_utilization
    assert flops and traffic
    assert format_share(flops) in tiles(whole).values() and format_share(traffic) in tiles(whole).values()
    partly = replace(whole, coverage=replace(whole.coverage, modelled_share=0.5))
    shown = tiles(partly)
    said = dict(facts(partly))["reached"]
    assert said.startswith("at least ") and f"{format_share(traffic)} of the memory bandwidth" in said
    assert shown["of the memory bandwidth"] == f"at least {format_share(traffic)}"
    unknown = replace(partly, totals=replace(whole.totals, model_flops_utilization=1e-4, bandwidth_utilization=1e-4))
    assert not any(title.startswith("of the ") for title in tiles(unknown)) and "reached" not in dict(facts(unknown))


def test_rows_of_kernels_name_their_account() -> None:
    analysis = samples.gpu_overhead()
    stated = replace(analysis, kernels=tuple(replace(row, account="overhead.allocator") for row in analysis.kernels))
    words = [json.loads(ParsedPage(to_html(each)).embedded("words"))["kernels"] for each in (analysis, stated)]
    assert [row["account"] for row in words[0]][:4] == ["compute", "memory", "memory", "overhead.launch_floor"]
    assert {row["account"] for row in words[1]} == {"overhead.allocator"}


def _rows_behind(analysis: Analysis, **fields: object) -> dict[str, list[int]]:
    finding = replace(analysis.findings[0], **fields)
    words = json.loads(ParsedPage(to_html(replace(analysis, findings=(finding,)))).embedded("words"))
    rows: dict[str, list[int]] = words["findings"][finding.slug]
    return rows


def test_a_finding_names_the_waits_that_its_rule_added_up() -> None:
    """Python in three lines was marked as all 15,301 idle intervals of its account."""
    analysis = samples.gpu_overhead()
    claims = {f"overhead.{row.cause}": row.us for row in analysis.idle}
    everything = list(range(len(analysis.idle)))
    assert len(everything) >= 2
    assert _rows_behind(analysis, claims=claims)["idle"] == everything
    assert _rows_behind(analysis, claims=claims, waits=(1,))["idle"] == [1]


def test_a_finding_of_some_lines_claims_the_rows_there_and_those_that_it_names() -> None:
    analysis = samples.gpu_overhead()
    kernels = tuple(replace(row, account="compute", source=f"a.py:{at}") for at, row in enumerate(analysis.kernels))
    analysis = replace(analysis, kernels=kernels)
    assert _rows_behind(analysis, claims={"compute": 1.0})["kernels"] == list(range(len(kernels)))
    assert _rows_behind(analysis, claims={"compute": 1.0}, lines=("a.py:1",))["kernels"] == [1]
    assert _rows_behind(analysis, claims={"kernel:2": 1.0}, lines=("a.py:1",))["kernels"] == [2]
    assert _rows_behind(analysis, claims={}, lines=("a.py:1",)) == {"kernels": [], "idle": []}


def test_each_finding_stands_once_on_the_page() -> None:
    found = tuple(replace(samples.gpu_overhead().findings[0], slug=f"rule-{at}") for at in range(5))
    page = ParsedPage(to_html(replace(samples.gpu_overhead(), findings=found)))
    addresses = [attrs["id"] for tag, attrs in page.tags if tag == "article"]
    assert sorted(map(str, addresses)) == [f"finding=rule-{at}" for at in range(5)]
    assert page.words.count(found[0].title) == 5 and "--full" not in page.words


def test_the_ranks_of_a_job_come_right_behind_the_first_screen() -> None:
    def sections(analysis: Analysis) -> tuple[list[str], list[str]]:
        page = to_html(analysis)
        nav = page.partition("<nav")[2].partition("</nav>")[0]
        return re.findall(r'<section id="(\w+)"', page), re.findall(r'href="#(\w+)"', nav)

    (first, second, *_), anchors = sections(samples.multi_rank())
    assert (first, second) == ("summary", "ranks") and anchors.index("ranks") < anchors.index("ledger")
    assert "ranks" not in sections(samples.gpu_overhead())[0]


def test_the_heat_map_of_ranks_stands_on_the_first_screen_before_what_to_change() -> None:
    page = to_html(samples.multi_rank())
    first, _, ranks = page.partition('<section id="ranks"')
    assert -1 < first.index("</h1>") < first.index('id="rank-view"') < first.index("What to change")
    assert -1 < ranks.index("Slow ranks, hosts and links") < ranks.index("Process groups")


def test_a_command_of_ours_in_a_list_is_code_and_markup_in_it_is_none() -> None:
    items = (("run `bottleneck calibrate` there",), ("<b>x</b> `bottleneck <i>`",), ("`bottleneck runs; rm -r x`",))
    page = document_to_html(Document("a", "b", sections=(ListSection("Notes", items),)))
    assert 'run <span class="in-line"><code>bottleneck calibrate</code><button type="button" class="copy"' in page
    assert "&lt;b&gt;x&lt;/b&gt; “bottleneck &lt;i&gt;”" in page and "“bottleneck runs; rm -r x”" in page


def test_a_page_names_its_largest_accounts_with_the_shares_of_the_table() -> None:
    page = to_html(samples.gpu_overhead()).replace("\u00a0", " ")
    largest = page[page.index("Largest: ") :].partition("<")[0]
    assert largest == "Largest: waiting for data 42.1 %, dispatching ops 20.4 %, memory bandwidth 13.4 %"
    shares = {row.cells[-1] for row in tables.ledger(samples.gpu_overhead()).rows}
    assert {"42.1 %", "20.4 %", "13.4 %"} <= shares


def test_a_row_of_cards_leaves_out_empty_cells() -> None:
    head = columns("name", "device") + columns("number", "step", "times as fast")
    section = TableSection("Devices", head, (TableRow(("now", "2.1 ms", "")),), is_cards=True)
    page = document_to_html(Document("predicted", "One step.", sections=(section,)))
    cells = re.findall(r'<td class="([^"]*)" data-label="([^"]*)"', page)
    assert [label for classes, label in cells if "empty" in classes.split()] == ["times as fast"]


def test_code_in_a_sentence_is_quoted_and_becomes_no_element() -> None:
    """Backticks stood on the page as they are in the terminal."""
    items = (("a.py:3 (`x = y[0]`) is slow; `in` compares", "a `lone one", "`rm` x"),)
    page = ParsedPage(document_to_html(Document("a", "b", sections=(ListSection("Notes", items),))))
    assert "a.py:3 (“x = y[0]”) is slow; “in” compares" in page.words and "a `lone one" in page.words
    assert "code" not in [tag for tag, _ in page.tags]


def test_a_part_and_its_whole_stand_on_one_line() -> None:
    """The headline broke between '173 of' and '311 us'."""
    document = Document("a", "b", lines=(LabelledLine("", "Python takes 173 of 311 us per step, 1 of 5 changes"),))
    assert "173\u00a0of\u00a0311\u00a0us per step, 1 of 5 changes" in document_to_html(document)


def test_a_long_name_of_a_kernel_is_shortened_in_tables_and_whole_in_its_title() -> None:
    """One name of 818 characters took 11 lines of a wide page and 45 of a phone's."""
    long = f"Cijk_Alik_Bljk_BBS_BH_Bias_HA_MT128x192x64_MI16x16x1_{'SN_LDSB1_AFC1_' * 40}WGM4"
    other = long.replace("MT128x192x64", "MT64x96x128")
    rows = tuple(samples.kernel(name, 100.0, 1000.0, op=None) for name in (long, other))
    text = to_html(replace(samples.gpu_overhead(), kernels=rows))
    page = ParsedPage(text)
    assert long not in page.words and "Cijk_Alik_Bljk_BBS_MT128x192x64" in page.words
    assert {long, other} <= {attrs.get("title") for tag, attrs in page.tags if tag == "td"}
    words = json.loads(page.embedded("words"))["kernels"]
    assert [row["call"] for row in words] == ["Cijk_Alik_Bljk_BBS_MT128x192x64", "Cijk_Alik_Bljk_BBS_MT64x96x128"]
    names = json.loads(page.embedded("tree"))["names"]
    assert "Cijk_Alik_Bljk_BBS_MT128x192x64" in names and not any("WGM4" in name for name in names)


def test_parts_of_the_bar_without_room_for_a_name_are_named_beneath_it() -> None:
    """Four orange parts of a bar had no name; the legend has the sums of groups alone."""
    page = to_html(samples.gpu_overhead()).replace("\u00a0", " ")
    unnamed = page[page.index("Too narrow for a name, from the left: ") :].partition("<")[0]
    rows = {row.key: row.cells[-1] for row in tables.ledger(samples.gpu_overhead()).rows}
    narrow = [row for row in samples.gpu_overhead().ledger if 0.004 <= row.share < 0.02]
    assert narrow and all(rows[row.account] in unnamed for row in narrow)
    assert "waiting for data" not in unnamed


def test_a_card_headed_by_a_number_says_what_it_counts() -> None:
    """Cards of a sweep were headed '1' and '4'."""
    section = TableSection("Points", columns("number", "batch_size", "step"), (TableRow(("4", "2 ms")),), is_cards=True)
    page = document_to_html(Document("sweep", "One.", sections=(section,)))
    assert re.search(r'data-label="batch_size"[^>]*>4</td>', page)


def test_a_predicted_bar_that_nothing_was_measured_of_has_a_key() -> None:
    """A grey bar of a change that was not tried had no legend."""
    from bottleneck.report.speedup_intervals import TITLE, speedup_intervals, speedup_scale

    bars = [IntervalBar("fused-optimizer", "skipped", predicted=(0.9, 1.07))]
    sections = tuple(speedup_intervals(TITLE, bars, speedup_scale(bars)))
    page = document_to_html(Document("changes tried", "None.", sections=sections))
    key = page[page.index('"legend intervals-key"') :].partition("</ul>")[0]
    assert "predicted</li>" in key and "measured" not in key


def test_the_section_on_a_server_is_in_the_menu() -> None:
    serving = InferenceServing("vLLM", (), 0.9, 0.5, None, None, None, None, None, ())
    page = ParsedPage(to_html(replace(samples.gpu_overhead(), serving=serving)))
    links = [attrs.get("href") for tag, attrs in page.tags if tag == "a"]
    assert "#server" in links and [attrs.get("id") for _, attrs in page.tags].count("server") == 1
    assert "#server" not in [attrs.get("href") for _, attrs in ParsedPage(to_html(samples.gpu_overhead())).tags]
