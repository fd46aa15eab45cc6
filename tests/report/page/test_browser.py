"""Pages in a headless Chromium: no error, no request, accounts whose rows add up, search, keyboard, contrast."""

import csv
import json
import math
import os
import re
import shutil
from collections.abc import Callable, Collection, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from bottleneck.analysis.step_tracks import lay_out
from bottleneck.report import analysis_tables as tables
from bottleneck.report.analysis_document import build
from bottleneck.report.document import Document, ListSection
from bottleneck.report.json_text import to_json
from bottleneck.report.markdown import render
from bottleneck.report.page import document_to_html, first_screen, to_html
from bottleneck.report.roofline_points import absences
from bottleneck.report.text import calls_number, clean, scale_of
from bottleneck.schema.accounts import ACCOUNTS
from bottleneck.schema.analysis import Analysis, LedgerEntry
from bottleneck.schema.evidence import Explanation
from bottleneck.schema.records import replace
from bottleneck.schema.step_tracks import OpInputs, StepTimeline, StepTracks
from bottleneck.units import format_share, format_si, format_us
from tests.harness.driver import HANGS_S
from tests.report import comparisons, samples
from tests.report.page.test_page import NASTY
from tests.trace_cache import explained

sync_api = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")

CHROMIUM = os.environ.get("CHROMIUM") or shutil.which("chromium") or shutil.which("google-chrome")
pytestmark = [
    pytest.mark.process,
    pytest.mark.skipif(CHROMIUM is None, reason="no Chromium is installed: apt-get install chromium"),
]
ROOT = Path(__file__).parents[3]
TRACES = ROOT.parent / "shared" / "traces"
PUBLIC = {
    "h100": "AMD-AGI+TraceLens__tests__traces__h100__gaunernst_bert-small-uncased__1016001.json.gz",
    "rocm_graphs": "AMD-AGI+TraceLens__tests__traces__inference__vllm_decode_full__graph_execution.json.gz",
    "collectives": "facebookresearch+HolisticTraceAnalysis__tests__data__nccl_parser_config__nccl_data.json.gz",
}


def _trace(path: Path) -> Explanation:
    if not path.exists():
        pytest.skip(f"{path.name} is not here")
    return explained(path)


def _of_trace(path: Path) -> tuple[str, Analysis]:
    found = _trace(path)
    return to_html(found.analysis, lay_out(found)), found.analysis


def _timeline_of(name: str) -> tuple[Explanation, StepTimeline]:
    found = _trace(TRACES / PUBLIC[name] if name in PUBLIC else ROOT / "sample_traces" / "mlp")
    timeline = lay_out(found)
    assert timeline is not None
    return found, timeline


def _by_hand(analysis: Analysis) -> tuple[str, Analysis]:
    return to_html(analysis), analysis


PAGES: dict[str, Callable[[], tuple[str, Analysis]]] = {
    "cpu": lambda: _of_trace(ROOT / "sample_traces" / "mlp"),
    **{name: lambda file=file: _of_trace(TRACES / file) for name, file in PUBLIC.items()},  # type: ignore[misc]
    "ranks": lambda: _by_hand(samples.multi_rank()),
    "hostile": lambda: _by_hand(samples.hostile()),
    "empty": lambda: _by_hand(samples.empty()),
}


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    with sync_api.sync_playwright() as driver:
        arguments = ["--no-sandbox", "--headless=new"]
        opened = driver.chromium.launch(executable_path=CHROMIUM, args=arguments, timeout=1e3 * HANGS_S)
        yield opened
        opened.close()


class Opened:
    """A page in a browser, with what it complained of and what it asked the network for."""

    def __init__(self, browser: Any, file: Path, **options: Any) -> None:
        self.view = browser.new_page(**{"viewport": {"width": 1280, "height": 900}, **options})
        self.view.set_default_timeout(1e3 * HANGS_S)
        self.has_script = options.get("java_script_enabled", True)
        self.complaints: list[str] = []
        self.requests: list[str] = []
        self.view.on("console", lambda message: self.complaints.append(message.text))
        self.view.on("pageerror", lambda error: self.complaints.append(str(error)))
        self.view.on("dialog", lambda dialog: self.complaints.append(f"dialog: {dialog.message}"))
        self.view.on("request", lambda request: self.requests.append(request.url))
        self.visit(file.as_uri())
        inside = (file.as_uri(), "data:", "blob:")
        self.requests = [url for url in self.requests if not url.startswith(inside)]

    def visit(self, address: str) -> None:
        """Opens an address and waits for the program of the page, which begins after its first paint."""
        self.view.goto(address)
        if self.has_script:
            self.view.wait_for_function("() => !document.querySelector('#program')")

    def texts(self, selector: str) -> list[str]:
        return [text.replace("\u00a0", " ").strip() for text in self.view.locator(selector).all_text_contents()]


@pytest.fixture
def open_page(browser: Any, tmp_path: Path) -> Iterator[Callable[..., Opened]]:
    pages: list[Opened] = []

    def opened(text: str, **options: Any) -> Opened:
        file = tmp_path / f"page{len(pages)}.html"
        file.write_text(text, encoding="utf-8")
        pages.append(Opened(browser, file, **options))
        return pages[-1]

    yield opened
    for page in pages:
        page.view.close()


def test_the_evidence_of_an_account_names_the_share_of_the_table(open_page: Callable[..., Opened]) -> None:
    """40.2 % stood in the table, whose shares add up, and 40.3 % beside it."""
    entries = tuple(LedgerEntry(group, group, 1000 / 3, 1 / 3) for group in ("memory", "compute", "communication"))
    text, _ = _by_hand(replace(samples.cpu(), ledger=entries))
    page = open_page(text)
    assert "33.4 %" in page.texts("#ledger-table tr[data-account] td:last-child")
    for line in page.view.locator("#ledger-table tr[data-account]").all():
        line.locator("button").first.click()
        share = line.locator("td").last.text_content().replace("\u00a0", " ").strip()
        assert f", {share} of it" in page.texts("#evidence .note")[0]


@pytest.mark.parametrize("name", PAGES)
def test_page_opens_without_error_request_or_sideways_scrolling(open_page: Callable[..., Opened], name: str) -> None:
    text, _ = PAGES[name]()
    for width in (1280, 390):
        page = open_page(text, viewport={"width": width, "height": 844})
        page.view.wait_for_selector("#table-view > *")
        assert page.complaints == [] and page.requests == []
        assert page.view.evaluate("document.documentElement.scrollWidth - innerWidth") <= 0


_NOTES_THE_BEGINNING = """
let stood = false;
new MutationObserver(() => {
  const stands = document.getElementById("program") !== null;
  if (stood && !stands) window.began ??= performance.now();
  stood ||= stands;
}).observe(document, { childList: true, subtree: true });
"""
_PAINTED = "() => performance.getEntriesByName('first-contentful-paint')[0].startTime"


def test_the_page_is_painted_before_its_program_begins(browser: Any, tmp_path: Path) -> None:
    file = tmp_path / "page.html"
    file.write_text(PAGES["cpu"]()[0], encoding="utf-8")
    view = browser.new_page()
    view.add_init_script(_NOTES_THE_BEGINNING)
    view.goto(file.as_uri())
    view.wait_for_function("() => window.began !== undefined", timeout=1e3 * HANGS_S)
    assert view.evaluate(_PAINTED) < view.evaluate("() => window.began")
    view.close()


def test_the_probe_sees_errors_and_requests(open_page: Callable[..., Opened]) -> None:
    page = open_page("<img src='http://127.0.0.1:9/x.png'><script>missing()</script>")
    assert any("missing" in complaint for complaint in page.complaints)
    assert page.requests == ["http://127.0.0.1:9/x.png"]


def _number(text: str) -> float:
    return (
        0.0 if text.startswith("<") or text in {"", "-"} else float(text.removesuffix(" %").strip(">").replace(",", ""))
    )


def _hold_that_parts_re_add(page: Opened, lines: str, panel: str, decimals: int) -> int:
    """Opens each line of a table and adds up what it consists of, in every tab; gives the number of lines."""
    held = page.view.locator(lines)
    for at in range(held.count()):
        held.nth(at).locator("button").click()
        shown = held.nth(at).locator("td.k-number").first.inner_text()
        tabs = page.view.locator(f"{panel} [role=tab]")
        for tab in range(tabs.count()):
            tabs.nth(tab).click()
            table = page.view.locator(f"{panel} [role=tabpanel]:not([hidden]) table.live")
            column = table.locator("thead th").all_inner_texts().index("share") - 1
            rows = [[cell.strip() for cell in row.split("\t")] for row in table.locator("tbody tr").all_inner_texts()]
            *parts, total = [row[column] for row in rows]
            assert total == shown, f"{held.nth(at).inner_text()}: the rows say {total}, the table {shown}"
            assert round(sum(map(_number, parts)), decimals) == pytest.approx(_number(shown))
    assert page.complaints == []
    return held.count()


@pytest.mark.parametrize("name", [*PUBLIC, "cpu"])
def test_an_account_opens_to_rows_that_add_up_to_it(open_page: Callable[..., Opened], name: str) -> None:
    text, analysis = PAGES[name]()
    decimals = scale_of(math.fsum(entry.us for entry in analysis.ledger)).decimals
    assert _hold_that_parts_re_add(open_page(text), "#ledger-table tr[data-account]", "#evidence", decimals) >= 2


@pytest.mark.parametrize("name", ["cpu", "collectives"])
def test_a_phase_opens_to_rows_that_add_up_to_it(open_page: Callable[..., Opened], name: str) -> None:
    text, analysis = PAGES[name]()
    decimals = scale_of(math.fsum(entry.us for entry in analysis.ledger)).decimals
    opened = _hold_that_parts_re_add(open_page(text), "tr[data-phase]", "#phase-evidence", decimals)
    assert opened == len(analysis.phases) >= 2


def test_the_roofline_shows_the_kernels_of_a_phase(open_page: Callable[..., Opened]) -> None:
    text, analysis = PAGES["cpu"]()
    page = open_page(text)
    count = page.view.locator("#roofline-view .count")
    drawn = set(page.view.evaluate("words.roofline.points.map(([kernel]) => kernel)"))
    for phase in (each for each in analysis.phases if each.kernels):
        page.view.locator("#roofline-view select[aria-label=phase]").select_option(phase.name)
        us = [us for row, us in phase.kernels if row in drawn]
        share = format_share(math.fsum(us) / analysis.steps.wall_us)
        assert count.inner_text() == f"{len(us)} of {len(drawn)} ops, {share} of the step"
    assert len(analysis.phases) >= 3


_WATCH_WORDS = """() => {
  window.written = [];
  window.circles = [];
  const arc = CanvasRenderingContext2D.prototype.arc;
  CanvasRenderingContext2D.prototype.arc = function (x, y, r, ...rest) {
    if (this.canvas.closest(".roofline")) window.circles.push([x, y, r]);
    return arc.call(this, x, y, r, ...rest);
  };
  const write = CanvasRenderingContext2D.prototype.fillText;
  CanvasRenderingContext2D.prototype.fillText = function (text, x, y, ...rest) {
    const { b: turned, e: right, f: down } = this.getTransform(), width = this.measureText(text).width;
    const left = x + right - { left: 0, center: width / 2, right: width }[this.textAlign] ;
    if (this.canvas.closest(".roofline")) window.written.push([text, turned, left, left + width, y + down]);
    return write.call(this, text, x, y, ...rest);
  };
}"""


def _words_on_the_roofline(page: Opened, act: Callable[[], None]) -> list[tuple[str, float, float, float, float]]:
    """The words of the chart once ``act`` had it drawn again: text, slope, left and right end, middle."""
    page.view.evaluate(_WATCH_WORDS)
    act()
    _wait_until(page, "window.written.length > 0")
    return [tuple(words) for words in page.view.evaluate("window.written")]


def test_a_zoomed_roofline_has_numbers_on_both_axes_and_no_label_of_a_roof_outside(
    open_page: Callable[..., Opened],
) -> None:
    page = open_page(PAGES["h100"]()[0])
    chart = page.view.locator(".roofline .u-over")
    page.view.wait_for_selector("#timeline-view canvas")

    def drag() -> None:
        chart.scroll_into_view_if_needed()
        box = chart.bounding_box()
        page.view.mouse.move(box["x"] + 20, box["y"] + box["height"] - 15)
        page.view.mouse.down()
        page.view.mouse.move(box["x"] + 60, box["y"] + box["height"] - 50, steps=4)
        page.view.evaluate("window.written = []")  # of marks beneath the pointer
        page.view.mouse.up()

    whole = {text for text, *_ in _words_on_the_roofline(page, lambda: page.view.locator("#theme").click())}
    zoomed = {text for text, *_ in _words_on_the_roofline(page, drag)}
    assert any("ridge" in text for text in whole) and not any("ridge" in text for text in zoomed)
    for words in (whole, zoomed):
        assert sum(bool(re.fullmatch(r"[\d.]+ [kMGTP]?FLOP/s", text)) for text in words) >= 3
        assert sum(bool(re.fullmatch(r"[\d.]+(e[+-]\d+)?", text)) for text in words) >= 3
    assert page.complaints == []


_TICKS = """([low, high]) => {
  const ticks = ticksOf(low, high, 9);
  return [ticks, ticks.map((tick) => tickText(tick, ticks, "FLOP/s"))];
}"""


@pytest.mark.parametrize("ends", [(1e-3, 1e4), (0.5, 40.0), (3.0, 7.0), (61.2, 61.9), (1e9, 1.01e9)])
def test_an_axis_of_the_roofline_has_numbers_that_differ_at_every_zoom(
    open_page: Callable[..., Opened], ends: tuple[float, float]
) -> None:
    page = open_page(PAGES["cpu"]()[0])
    ticks, said = page.view.evaluate(_TICKS, list(ends))
    assert 3 <= len(ticks) <= 10 and len(set(said)) == len(said)
    assert ends[0] * (1 - 1e-6) <= min(ticks) and max(ticks) <= ends[1] * (1 + 1e-6)


@pytest.mark.parametrize("width", [1280, 390])
@pytest.mark.parametrize("name", ["cpu", "h100"])
def test_words_on_the_roofline_do_not_overlap(open_page: Callable[..., Opened], name: str, width: int) -> None:
    page = open_page(PAGES[name]()[0], viewport={"width": width, "height": 844})
    written = _words_on_the_roofline(page, lambda: page.view.locator("#theme").click())
    level = [words for words in written if words[1] == 0]
    assert len(level) >= 10
    for at, (text, _, left, right, y) in enumerate(level):
        for other, _, other_left, other_right, other_y in level[at + 1 :]:
            apart = left >= other_right or right <= other_left or abs(y - other_y) >= 9
            assert apart or text == other, (text, other)


def test_no_mark_strikes_words_on_the_roofline_through(open_page: Callable[..., Opened]) -> None:
    """Marks ran through the name of a roof, which now gives way to them."""
    whole = samples.gpu_overhead()
    peak, bandwidth = 66.9e12, whole.device.bandwidth_bytes_per_s
    assert bandwidth
    flops, us = peak / bandwidth * 3e9, 1e6 * peak / bandwidth * 3e9 / peak
    marks = tuple(
        samples.kernel(
            f"k{at}",
            us,
            40 * us,
            op="aten::mm",
            flops=flops * (1 + at / 4),
            bytes_low=3e9,
            bytes_high=3e9,
            bound="compute",
        )
        for at in range(24)
    )
    page = open_page(to_html(replace(whole, kernels=marks)))
    written = _words_on_the_roofline(page, lambda: page.view.locator("#theme").click())
    circles = page.view.evaluate("window.circles")
    assert len(circles) >= 20 and any("FLOP/s" in text for text, *_ in written)
    for text, turned, left, right, y in written:
        if turned == 0 and re.search("ridge|vector|tensor|mm", text):
            assert not any(left < x + r and right > x - r and abs(y - at_y) < r for x, at_y, r in circles), text


def test_rows_behind_a_cut_are_counted_in_one(open_page: Callable[..., Opened]) -> None:
    text, analysis = PAGES["cpu"]()
    page = open_page(text)
    page.view.locator("#table-view").scroll_into_view_if_needed()
    cells = page.texts("#table-view [role=tabpanel]:not([hidden]) tbody td:nth-child(3)")
    assert len(cells) == 20 + 2  # the first rows, the rest, the total
    assert round(sum(map(_number, cells[:-1])), 3) == pytest.approx(_number(cells[-1]))
    page.view.locator("#table-view .more:visible").click()
    assert len(page.texts("#table-view [role=tabpanel]:not([hidden]) tbody tr")) == len(analysis.kernels) + 1


def test_work_and_waiting_of_a_line_re_add_along_its_row(open_page: Callable[..., Opened]) -> None:
    page = open_page(PAGES["cpu"]()[0])
    page.view.locator("#table-view [role=tab]", has_text="Source lines").click()
    rows = page.view.locator("#table-view [role=tabpanel]:not([hidden]) tbody tr").all()
    assert len(rows) >= 3
    for row in rows:
        work, waiting, both = map(_number, row.locator("td.k-number").all_inner_texts()[1:4])
        assert work + waiting == pytest.approx(both)


def test_a_line_that_only_waits_is_marked_overhead_and_opens_to_its_causes(open_page: Callable[..., Opened]) -> None:
    whole = samples.gpu_overhead()
    work, waiting = whole.lines[0], next(idle for idle in whole.idle if idle.source)
    only_waits = replace(
        work, name=str(waiting.source), us=0.0, share=0.0, idle_us=1e4, shares=dict.fromkeys(work.shares, 0.0)
    )
    only_works = replace(work, name="busy.py:1", us=500.0, shares={"compute": 0.2, "memory": 0.8}, idle_us=0.0)
    page = open_page(to_html(replace(whole, lines=(only_waits, only_works))))
    page.view.locator("#table-view [role=tab]", has_text="Source lines").click()
    rows = page.view.locator("#table-view [role=tabpanel]:not([hidden]) tbody tr:has(button.open)")
    marks = {row.locator("button").inner_text(): row.locator(".shape").get_attribute("class") for row in rows.all()}
    assert marks == {waiting.source: "shape g-overhead", "busy.py:1": "shape g-memory"}
    rows.first.locator("button").click()
    said = page.view.locator("#table-view tr.details").inner_text()
    assert waiting.cause in said and format_us(waiting.us) in said


@pytest.mark.parametrize("width", [1440, 390])
def test_the_bar_of_the_ledger_is_to_scale(open_page: Callable[..., Opened], width: int) -> None:
    accounts = {"overhead.python": 0.568, "memory": 0.35, "compute": 0.062, "overhead.sync": 0.008, "transfer": 0.012}
    analysis = samples.analysis({account: 1000 * share for account, share in accounts.items()})
    page = open_page(to_html(analysis), viewport={"width": width, "height": 900})
    parts = page.view.locator("#summary .seg")
    widths = dict(parts.evaluate_all("all => all.map(part => [part.dataset.account, part.offsetWidth])"))
    total = sum(widths.values())
    assert len(widths) == len(accounts)
    for account, share in accounts.items():
        assert abs(widths[account] - share * total) <= 2.5, (account, widths[account])


def test_search_and_sort_and_the_copied_text_hold_the_same_rows(open_page: Callable[..., Opened]) -> None:
    text, analysis = PAGES["cpu"]()
    page = open_page(text)
    panel = page.view.locator("#table-view [role=tabpanel]:not([hidden])")
    panel.locator("input[type=search]").fill("addmm")
    wanted = [row for row in analysis.kernels if "addmm" in f"{row.name} {row.op}".lower()]
    assert wanted and panel.locator(".count").inner_text() == f"{len(wanted)} of {len(analysis.kernels)}"
    assert panel.locator("tbody button.open").count() == len(wanted)
    panel.locator("th button", has_text="calls").click()
    assert panel.locator("th[aria-sort=descending]").inner_text().startswith("calls")
    shown = [_number(text) for text in panel.locator("tbody tr:not(.r-total) td:nth-child(2)").all_inner_texts()]
    assert shown == sorted(shown, reverse=True)
    panel.locator("input[type=search]").fill("no such op")
    assert "No op with these words." in panel.locator("tbody").inner_text()


def test_tree_of_modules_and_critical_path_are_there_with_and_without_javascript(
    open_page: Callable[..., Opened],
) -> None:
    text, analysis = PAGES["h100"]()
    shown = [tables.modules(analysis, 10), tables.critical_path(analysis.critical_path, 5)]
    page = open_page(text)
    plain = open_page(text, java_script_enabled=False)
    for tab, section in zip(("Modules", "Critical path"), shown, strict=True):
        assert section is not None and len(section.rows) >= 3
        page.view.locator("#table-view [role=tab]", has_text=tab).click()
        for opened in (page, plain):
            title = opened.view.locator("#tables h3", has_text=section.title)
            assert title.is_visible()
            rows = title.locator("xpath=..").locator("tbody tr").all_text_contents()
            assert len(rows) >= len(section.rows) and all(section.rows[0].cells[at] in rows[0] for at in range(3))
    assert page.view.locator(".static-table").count() == 2  # the live ones stand for the others


def _copied_csv(page: Opened, within: str) -> list[list[str]]:
    button = page.view.locator(f"{within} button:visible", has_text="Copy as CSV").first
    return list(csv.reader(_copied(page, button).splitlines()))


def _at(page: Opened, part: str) -> None:
    """Goes to an address of the page."""
    page.view.evaluate("part => { location.hash = part; }", part)
    page.view.evaluate("new Promise(requestAnimationFrame)")


def test_a_finding_has_an_address_that_opens_what_is_closed_around_it(open_page: Callable[..., Opened]) -> None:
    text, analysis = PAGES["cpu"]()
    page = open_page(text)
    assert len(analysis.findings) > 3
    for finding in analysis.findings:
        card = page.view.locator(f"[id='finding={finding.slug}']")
        assert card.count() == 1
        _at(page, f"finding={finding.slug}")
        assert card.is_visible() and page.view.evaluate("document.activeElement.id") == f"finding={finding.slug}"
    assert page.complaints == []


@pytest.mark.parametrize("name", ["cpu", "h100"])
def test_tabs_and_rows_have_addresses(open_page: Callable[..., Opened], name: str) -> None:
    text, analysis = PAGES[name]()
    page = open_page(text)
    tabs = page.view.locator("#table-view [role=tab]")
    for tab in tabs.all():
        tab.click()
        address = page.view.evaluate("location.hash")
        tabs.first.click()
        _at(page, address.removeprefix("#"))
        assert tab.get_attribute("aria-selected") == "true"
    last = len(analysis.kernels) - 1
    assert last > 20  # behind the cut
    _at(page, f"row=kernels.{last}")
    panel = page.view.locator("#table-view [role=tabpanel]:not([hidden])")
    assert panel.locator("tr.details").count() == 1
    assert analysis.kernels[last].name[:40] in panel.locator("tr.details").inner_text()
    for wrong in ("row=kernels.99999", "row=nothing.1", "tab=none", "finding=%", "row=", "finding=' onerror=x"):
        _at(page, wrong)
    assert page.complaints == []


def _copied(page: Opened, button: Any) -> str:
    page.view.evaluate("() => { navigator.clipboard.writeText = async (text) => { window.copied = text; }; }")
    button.click()
    return str(page.view.evaluate("window.copied"))


def test_a_link_to_a_row_and_a_finding_can_be_copied_and_followed(open_page: Callable[..., Opened]) -> None:
    text, analysis = PAGES["cpu"]()
    page = open_page(text)
    page.view.locator("#table-view button.open").nth(2).click()
    link = _copied(page, page.view.locator("#table-view tr.details button", has_text="Copy link"))
    assert link == f"{page.view.url.split('#')[0]}#row=kernels.2"
    page.view.goto("about:blank")
    page.visit(link)
    assert analysis.kernels[2].name[:40] in page.view.locator("#table-view tr.details").inner_text()
    slug = page.view.locator("#findings .action").first.get_attribute("id")
    copied = _copied(page, page.view.locator("#findings button", has_text="Copy link").first)
    assert copied.endswith(f"#{slug}")


def test_copied_markdown_is_a_table_and_a_finding_in_which_nothing_acts(open_page: Callable[..., Opened]) -> None:
    whole = samples.gpu_overhead()
    finding = replace(whole.findings[0], title="Bad `x` | [a](b) <img>", code="a = 1\n```\nb = 2")
    kernel = replace(whole.kernels[0], name="k|e`r", op="aten::a|b", shapes=None)
    page = open_page(to_html(replace(whole, findings=(finding,), kernels=(kernel, *whole.kernels[1:]))))
    said = _copied(page, page.view.locator("#findings button", has_text="Copy as markdown"))
    assert said.startswith("### Bad ") and r"\| \[a\](b) \<img\>" in said
    assert "\n````\na = 1\n```\nb = 2\n````" in said
    rows = _copied(page, page.view.locator("#table-view button", has_text="Copy as markdown").first).splitlines()
    widths = {len(re.findall(r"(?<!\\)\|", row)) for row in rows}
    assert len(rows) >= 5 and len(widths) == 1
    assert page.complaints == []


def test_copied_kernels_have_their_name_line_and_module(open_page: Callable[..., Opened]) -> None:
    text, analysis = PAGES["h100"]()
    page = open_page(text)
    page.view.wait_for_selector("#table-view > *")
    head, *rows = _copied_csv(page, "#table-view")
    assert len(rows) == len(analysis.kernels) and any(row.module for row in analysis.kernels)
    for row, kernel in zip(rows, analysis.kernels, strict=True):
        said = dict(zip(head, row, strict=True))
        assert said["kernel"].lstrip("'") == clean(kernel.name, 2000)
        assert (said["line"], said["module"]) == (kernel.source or "", kernel.module or "")


def test_a_long_name_is_short_on_screen_and_whole_in_details_and_copies(open_page: Callable[..., Opened]) -> None:
    long = f"Cijk_Alik_Bljk_BBS_MT128x192x64_MI16x16x1_{'SN_LDSB1_AFC1_' * 40}WGM4"
    whole = samples.gpu_overhead()
    rows = (samples.kernel(long, 100.0, 1000.0, op=None), *whole.kernels)
    page = open_page(to_html(replace(whole, kernels=rows)), viewport={"width": 390, "height": 844})
    line = page.view.locator("#table-view tbody tr").first
    assert line.bounding_box()["height"] < 120 and line.locator("td").first.get_attribute("title") == long
    head, *copied = _copied_csv(page, "#table-view")
    assert {dict(zip(head, row, strict=True))["op and shapes"] for row in copied} >= {long}
    line.locator("button.open").click()
    assert long in page.view.locator("#table-view tr.details").inner_text()


def test_memory_at_the_peak_is_folded_by_line_and_adds_up(open_page: Callable[..., Opened]) -> None:
    text, analysis = PAGES["h100"]()
    assert analysis.memory is not None and analysis.memory.allocations
    page = open_page(text)
    peak = f"{analysis.memory.peak_bytes / 1e6:.2f}"
    titles = page.texts("#memory-view [role=tab]")
    assert titles[0] == "By module" and titles[-1] == "By op"
    for title in titles:
        page.view.locator("#memory-view [role=tab]", has_text=title).click()
        panel = page.view.locator("#memory-view [role=tabpanel]:not([hidden])")
        total = panel.locator("tr.r-total td").all_inner_texts()
        assert total[2] == peak and total[3] == "100.0 %"


def test_source_view_shows_the_lines_that_are_known_in_order(open_page: Callable[..., Opened]) -> None:
    whole = samples.gpu_overhead()
    lines = tuple(replace(whole.lines[0], name=name, us=us) for name, us in (("a.py:9", 300.0), ("a.py:4", 100.0)))
    other = replace(whole.lines[0], name="b.py:1", us=900.0)  # of which no text is known
    texts = {"a.py:9": "loss = model(x)  # <b>", "a.py:4": "x = load()"}
    page = open_page(to_html(replace(whole, lines=(*lines, other), source_texts=texts)))
    page.view.locator("#table-view [role=tab]", has_text="Source").last.click()
    panel = page.view.locator("#table-view [role=tabpanel]:not([hidden])")
    assert panel.locator("h3").all_inner_texts() == ["a.py"]
    assert panel.locator("tbody th").all_inner_texts() == ["4", "9"]
    assert panel.locator("tbody button").all_inner_texts() == ["x = load()", "loss = model(x)  # <b>"]
    bare = open_page(to_html(replace(whole, source_texts={})))
    bare.view.wait_for_selector("#table-view > *")
    assert "Source" in page.texts("#table-view [role=tab]")
    assert "Source" not in bare.texts("#table-view [role=tab]")


def test_opened_rows_show_the_figures_of_the_analysis(open_page: Callable[..., Opened]) -> None:
    text, analysis = PAGES["cpu"]()
    page = open_page(text)
    panel = page.view.locator("#table-view [role=tabpanel]:not([hidden])")
    for place, kernel in enumerate(analysis.kernels[:5]):
        panel.locator("tbody button.open").nth(place).click()
        said = panel.locator("tr.details").inner_text()
        assert kernel.name[:60] in said
        for figure in (kernel.compute_us, kernel.memory_us, kernel.launch_us):
            assert figure is None or format_us(figure) in said
        assert kernel.flops is None or format_si(kernel.flops, "FLOP") in said
        assert kernel.explained is None or format_share(kernel.explained) in said
        panel.locator("tbody button.open").nth(place).click()


_OPEN_ALL = """() => {
  for (const tab of document.querySelectorAll("[role=tab]")) tab.click();
  for (const panel of document.querySelectorAll("[role=tabpanel]")) {
    const more = panel.querySelector("button.more");
    if (more && !more.hidden) more.click();
    for (const button of [...panel.querySelectorAll("button.open")].slice(0, 4)) button.click();
  }
}"""
_CELLS = """() => [...document.querySelectorAll("td[data-path]")].map((cell) => {
  const titles = [...cell.closest("table").querySelectorAll("thead th")].map((head) => head.textContent);
  const unit = titles.find((title) => ["s", "ms", "us"].includes(title));
  return [cell.dataset.path, cell.textContent, titles[cell.cellIndex], unit];
})"""
_PREFIXES = (("G", 1e9), ("T", 1e12))
_SIZES = {"s": 1e6, "ms": 1e3, "us": 1.0, "%": 0.01, **{f"{p}{u}": s for u in ("FLOP/s", "B/s") for p, s in _PREFIXES}}


@pytest.mark.parametrize("name", [*PUBLIC, "cpu", "ranks"])
def test_cells_of_the_tables_show_the_numbers_at_their_place_in_the_analysis(
    open_page: Callable[..., Opened], name: str
) -> None:
    text, analysis = PAGES[name]()
    page, record = open_page(text), json.loads(to_json(analysis))
    page.view.wait_for_selector("#table-view > *")
    page.view.evaluate(_OPEN_ALL)
    cells = page.view.evaluate(_CELLS)
    assert len(cells) >= 4 * min(len(analysis.kernels), 20)
    for path, said, title, time_unit in cells:
        key, row, field = path.split(".")
        value = record[key][int(row)][field]
        if value is None:
            assert said == "-", path
        elif field == "calls":
            assert said == calls_number(value), path
        elif field in {"bytes", "bytes_low", "bus_bytes_per_s"} or title == "rate":
            assert said == format_si(value, "B" if field.startswith("bytes") and title != "rate" else "B/s"), path
        elif field == "explained":
            assert said == format_share(value), path
        elif field == "library":
            assert said == value, path
        else:
            unit = "%" if said.endswith("%") else title if title in _SIZES else time_unit
            number = said.removesuffix(" %").lstrip("<>")
            last = 10.0 ** -len(number.partition(".")[2])  # rows are rounded so that they add up: by one digit at most
            shown = float(number.replace(",", "")) if number == said.removesuffix(" %") else 0.0
            assert abs(shown - value / _SIZES[unit]) <= 1.0001 * last, (path, said, value)


_REST = r"\d+ more, [\d.,]+ \w+"  # the sum of rows that are not listed
_FIGURE = re.compile(r"(?<![\w.,])\d+(?:,\d{3})*(?:\.\d+)? (?:us|ms|s|%|[kMGTP]?(?:B|FLOP)(?:/s)?)(?![\w/])")


def _figures_of(record: object) -> set[str]:
    """Every number with a unit that the analysis says: its numbers in each format, and those in its sentences."""
    if isinstance(record, dict):
        record = list(record.values())
    if isinstance(record, list):
        return set().union(*map(_figures_of, record))
    if isinstance(record, str):
        return set(_FIGURE.findall(record))
    if record is None or isinstance(record, bool):
        return set()
    value = float(record)  # type: ignore[arg-type]
    shown = {
        format_us(value),
        format_share(value),
        *(format_si(value, unit) for unit in ("B", "B/s", "FLOP", "FLOP/s")),
    }
    return {figure for text in shown for figure in _FIGURE.findall(text)}


def _unknown_figures(page: Opened, analysis: Analysis) -> list[str]:
    """Lines of the page with a figure that is none of the analysis, once all tabs and the first rows are open.

    Cells of tables, whose columns re-add, and the figures of the timeline and the icicle, which are no part of the
    analysis, are apart.
    """
    page.view.wait_for_selector("#table-view > *")
    page.view.evaluate(_OPEN_ALL)
    known = _figures_of(json.loads(to_json(analysis)))
    known |= _figures_of([one.describe_speedup() or "" for one in analysis.findings])
    for document in (build(analysis), build(analysis, all_findings=True)):  # the words of the terminal
        known |= _figures_of(render(document))
    known |= _figures_of(absences(analysis) or "") | {"25 %"}  # a guide line of the roofline
    known.add(format_share(math.fsum(analysis.kernels[row].share for row in _drawn(page))))
    said = [line for line in page.view.evaluate(_TEXT) if not re.fullmatch(_REST, line)]
    assert sum(len(_FIGURE.findall(line)) for line in said) >= 15
    return [line for line in said if set(_FIGURE.findall(line)) - known]


@pytest.mark.parametrize("name", [*PUBLIC, "cpu", "ranks"])
def test_every_figure_in_the_text_of_the_page_is_one_of_the_analysis(
    open_page: Callable[..., Opened], name: str
) -> None:
    text, analysis = PAGES[name]()
    assert _unknown_figures(open_page(text), analysis) == []


def test_a_figure_that_is_none_of_the_analysis_is_seen(open_page: Callable[..., Opened]) -> None:
    text, analysis = PAGES["cpu"]()
    page = open_page(text)
    page.view.evaluate("document.querySelector('.tiles b').textContent = '98765 s'")
    assert _unknown_figures(page, analysis) == ["98765 s"]


def _drawn(page: Opened) -> list[int]:
    """The rows of kernels that have a mark in the roofline."""
    return list(page.view.evaluate("words.roofline.points.map(([kernel]) => kernel)"))


_TEXT = """() => {
  const page = document.querySelector("main").cloneNode(true);
  const apart = "#timeline-view, #icicle-view, .roofline, td.k-number, noscript, svg, .heat";
  for (const part of page.querySelectorAll(apart)) part.remove();
  const blocks = "p, li, dd, dt, td, small, h1, h2, h3, span, figcaption, button, b";
  for (const part of page.querySelectorAll(blocks)) part.append("\\n");
  return page.textContent.split("\\n").map((line) => line.trim()).filter(Boolean);
}"""


def test_numbers_are_written_as_python_writes_them(open_page: Callable[..., Opened]) -> None:
    values = [
        0.0,
        1e-9,
        0.004,
        0.05,
        0.5,
        1.005,
        2.5,
        9.994,
        9.995,
        99.95,
        999.4,
        999.6,
        12345.678,
        1e6,
        9.9951e6,
        3e13,
    ]
    page = open_page(PAGES["cpu"]()[0])
    formats = "value => [formatUs(value), formatSi(value, 'B'), formatShare(value)]"
    said = page.view.evaluate(f"{json.dumps(values)}.map({formats})")
    assert said == [[format_us(value), format_si(value, "B"), format_share(value)] for value in values]


def test_everything_is_reached_by_keyboard(open_page: Callable[..., Opened]) -> None:
    page = open_page(PAGES["cpu"]()[0])
    page.view.wait_for_selector("#timeline-view canvas")
    seen: set[str] = set()
    for _ in range(260):
        page.view.keyboard.press("Tab")
        name_of = "element => element.id || element.dataset.account || element.className || element.tagName"
        seen.add(page.view.evaluate(f"({name_of})(document.activeElement)"))
        if page.view.evaluate("getComputedStyle(document.activeElement).outlineStyle") == "none":
            assert page.view.evaluate("document.activeElement.tagName") == "BODY"
    for wanted in ("skip", "theme", "download", "overhead.python", "compute", "open", "canvas roofline", "CANVAS"):
        assert wanted in seen
    page.view.locator('#ledger-table button[data-account="compute"]').focus()
    page.view.keyboard.press("Enter")
    assert page.texts("#evidence h3") == ["compute"]
    page.view.locator("#evidence [role=tab]").first.focus()
    page.view.keyboard.press("ArrowRight")
    assert page.view.locator("#evidence [role=tab]").nth(1).get_attribute("aria-selected") == "true"


def _marked(page: Opened) -> str:
    """The sentence on what is marked in the timeline; empty where nothing is."""
    return str(page.view.locator("#timeline-view .marked [role=status]").inner_text())


def _intervals(tracks: StepTracks, kernels: Collection[int], causes: Collection[int] = ()) -> str:
    """Number and time of the intervals of these rows of kernels and idle time, as the page says them."""
    kind = np.array([lane.kind for lane in tracks.lanes])[tracks.lane]
    mine = (kind == "idle") & np.isin(tracks.row, list(causes))
    mine |= ~np.isin(kind, ("idle", "ranges")) & np.isin(tracks.row, list(kernels))
    us = tracks.event_dur_us.copy()
    ends = tracks.event_start_us + us
    for at in np.flatnonzero((tracks.depth > 0) & (kind != "frames")):
        around = (tracks.lane == tracks.lane[at]) & (tracks.depth == tracks.depth[at] - 1)
        around &= (tracks.event_start_us <= tracks.event_start_us[at]) & (ends >= ends[at])
        us[np.flatnonzero(around)[-1]] -= tracks.event_dur_us[at]
    count = int(np.count_nonzero(mine))
    return f"{count} interval{'' if count == 1 else 's'} of this step, {format_us(float(us[mine].sum()))}"


@pytest.mark.parametrize("name", ["cpu", "h100"])
def test_what_is_chosen_is_marked_in_the_timeline_and_said(open_page: Callable[..., Opened], name: str) -> None:
    explained_, timeline = _timeline_of(name)
    analysis, tracks = explained_.analysis, timeline.steps[0]
    page = open_page(to_html(analysis, timeline))
    page.view.wait_for_selector("#timeline-view canvas")
    assert _marked(page) == ""
    account = max((each for each in analysis.ledger if each.account.startswith("overhead.")), key=lambda each: each.us)
    button = page.view.locator(f'#ledger-table button[data-account="{account.account}"]')
    button.click()
    causes = [at for at, each in enumerate(analysis.idle) if f"overhead.{each.cause}" == account.account]
    rows = [at for at, each in enumerate(analysis.kernels) if each.account == account.account]
    assert _marked(page).endswith(f": {_intervals(tracks, rows, causes)}")
    button.click()
    assert _marked(page) == ""
    for tab, mine in (
        ("Ops and shapes" if name == "cpu" else "Kernels", lambda _: [0]),
        ("Source lines", lambda line: [at for at, each in enumerate(analysis.kernels) if each.source == line]),
    ):
        page.view.locator("#table-view [role=tab]", has_text=tab).first.click()
        row = page.view.locator("#table-view [role=tabpanel]:not([hidden]) button.open").first
        if not row.count():
            continue
        row.focus()
        page.view.keyboard.press("Enter")
        waits = [
            at for at, each in enumerate(analysis.idle) if tab == "Source lines" and each.source == row.inner_text()
        ]
        assert _marked(page).endswith(f": {_intervals(tracks, mine(row.inner_text()), waits)}")
        page.view.keyboard.press("Escape")
        assert _marked(page) == ""
    assert page.complaints == []


def test_the_note_on_what_is_marked_fits_a_phone(open_page: Callable[..., Opened]) -> None:
    page = open_page(PAGES["cpu"]()[0], viewport={"width": 390, "height": 844})
    page.view.wait_for_selector("#timeline-view canvas")
    page.view.locator("button[data-finding]:visible").first.click()
    box = page.view.locator("#timeline-view .marked").bounding_box()
    assert box["x"] >= 0 and box["x"] + box["width"] <= 390 and box["height"] <= 200


def test_a_chosen_module_marks_the_intervals_of_its_own_calls(open_page: Callable[..., Opened]) -> None:
    explained_, timeline = _timeline_of("cpu")
    analysis, tracks = explained_.analysis, timeline.steps[0]
    page = open_page(to_html(analysis, timeline))
    page.view.wait_for_selector("#timeline-view canvas")
    page.view.locator("#table-view [role=tab]", has_text="Modules").click()
    rows = page.view.locator("#table-view [role=tabpanel]:not([hidden]) button.open")
    counts = []
    for at in range(rows.count()):
        rows.nth(at).click()
        counts.append(int((re.search(r": (\d+) interval", _marked(page)) or ["", "0"])[1]))
        rows.nth(at).click()
    idle = np.array([lane.kind == "idle" for lane in tracks.lanes])[tracks.lane]
    waits = [at for at, each in enumerate(analysis.idle) if each.module is not None]
    inside = (~idle & (tracks.module >= 0) & (tracks.row >= 0)) | (idle & np.isin(tracks.row, waits))
    assert len(counts) >= 2 and sum(counts) == np.count_nonzero(inside)


_VIEW = "timeline.view()"


_VIEW = "timeline.view()"


def _icicle(page: Opened) -> Any:
    page.view.wait_for_selector("#icicle-view canvas")
    page.view.wait_for_selector("#timeline-view canvas")
    return page.view.locator("#icicle-view canvas")


@pytest.mark.parametrize("name", ["cpu", "h100", "collectives", "ranks"])
def test_icicle_holds_the_time_of_the_whole_step(open_page: Callable[..., Opened], name: str) -> None:
    text, analysis = PAGES[name]()
    page = open_page(text)
    page.view.wait_for_selector("#icicle-view canvas")
    us = page.view.evaluate("readTree(JSON.parse(byId('tree').textContent)).root.accounts")
    rows = math.fsum(row.us for row in (*analysis.kernels, *analysis.idle))
    assert math.fsum(us.values()) == pytest.approx(rows, rel=1e-4)
    for entry in analysis.ledger if name != "ranks" else ():  # rows of a job made by hand are fewer
        assert us.get(entry.account, 0.0) == pytest.approx(entry.us, rel=1e-3, abs=1e-2), entry.account


def test_a_click_in_the_icicle_zooms_and_marks_and_the_path_leads_back(open_page: Callable[..., Opened]) -> None:
    page = open_page(PAGES["cpu"]()[0])
    canvas = _icicle(page)
    crumbs = page.view.locator("#icicle-view .crumbs b")
    start = crumbs.inner_text()
    canvas.click(position={"x": 40, "y": 30})  # the largest part inside
    inner = crumbs.inner_text()
    assert inner != start and _marked(page).startswith(f"{inner}: ")
    page.view.locator("#icicle-view .crumbs button", has_text=start).last.click()
    assert crumbs.inner_text() == start
    page.view.locator("#icicle-view button", has_text="Whole step").click()
    assert crumbs.inner_text() == "the step"
    total = page.texts("#icicle-view tr.r-total td")
    assert total[2] == "100.0 %"
    assert page.complaints == []


def test_icicle_is_searched_and_walked_by_keyboard(open_page: Callable[..., Opened]) -> None:
    page = open_page(PAGES["cpu"]()[0])
    canvas = _icicle(page)
    page.view.locator("#icicle-view input").first.fill("addmm")
    said = page.view.locator("#icicle-view .count").first.inner_text()
    assert re.fullmatch(r"[1-9]\d* parts?, [\d.]+ \w+, [\d.]+ %", said)
    page.view.locator("#icicle-view input").first.fill("no such frame")
    assert page.view.locator("#icicle-view .count").first.inner_text().startswith("0 parts, 0 us")
    start = page.view.locator("#icicle-view .crumbs b").inner_text()
    canvas.focus()
    page.view.keyboard.press("ArrowDown")
    inside = page.view.locator("body > p[role=status]").inner_text().split(". ")[0]
    page.view.keyboard.press("Enter")
    assert page.view.locator("#icicle-view .crumbs b").inner_text() == inside != start
    assert _marked(page).startswith(f"{inside}: ")
    page.view.keyboard.press("Home")
    assert page.view.locator("#icicle-view .crumbs b").inner_text() == "the step"


@pytest.mark.parametrize("name", ["cpu", "h100"])
def test_a_finding_marks_the_rows_that_its_gain_comes_from_and_zooms_to_them(
    open_page: Callable[..., Opened], name: str
) -> None:
    explained_, timeline = _timeline_of(name)
    analysis, tracks = explained_.analysis, timeline.steps[0]
    page = open_page(to_html(analysis, timeline))
    page.view.wait_for_selector("#timeline-view canvas[aria-label]")
    buttons = page.view.locator("button[data-finding]:visible")
    assert buttons.count() >= 1
    for at in range(buttons.count()):
        slug = buttons.nth(at).get_attribute("data-finding")
        rows = page.view.evaluate("slug => words.findings[slug]", slug)
        buttons.nth(at).focus()
        page.view.keyboard.press("Enter")
        gain = next(finding for finding in analysis.findings if finding.slug == slug).predicted_gain_us
        note = f"; the change gains at most {format_us(gain.high)} per step" if gain is not None else ""
        assert _marked(page).endswith(f": {_intervals(tracks, rows['kernels'], rows['idle'])}{note}")
        assert buttons.nth(at).get_attribute("aria-pressed") == "true"
        kind = np.array([lane.kind for lane in tracks.lanes])[tracks.lane]
        mine = (kind == "idle") & np.isin(tracks.row, rows["idle"])
        mine |= ~np.isin(kind, ("idle", "ranges", "frames")) & np.isin(tracks.row, rows["kernels"])
        low = tracks.event_start_us[mine].min()
        high = (tracks.event_start_us + tracks.event_dur_us)[mine].max()
        view = page.view.evaluate(_VIEW)
        assert view["low"] <= low and view["high"] >= high
        assert view["high"] - view["low"] == pytest.approx(min(1.12 * (high - low), tracks.length_us), rel=0.07)
        buttons.nth(at).click()
        assert _marked(page) == "" and buttons.nth(at).get_attribute("aria-pressed") == "false"


def _open_timeline(open_page: Callable[..., Opened], name: str, **options: Any) -> tuple[Opened, StepTimeline]:
    explained_, timeline = _timeline_of(name)
    page = open_page(to_html(explained_.analysis, timeline), **options)
    page.view.locator("#timeline-view canvas[aria-label]").scroll_into_view_if_needed()
    return page, timeline


_FIRST_LANE, _BELOW_IT = 50, 59  # from the top of the canvas, below the ruler and the title of the lane


def _place(page: Opened, tracks: StepTracks, at: int) -> tuple[float, float]:
    """The middle of an event of the first lane in the window."""
    box = page.view.locator("#timeline-view canvas").bounding_box()
    middle = (tracks.event_start_us[at] + tracks.event_dur_us[at] / 2) / tracks.length_us
    return float(box["x"] + middle * box["width"]), float(box["y"] + _FIRST_LANE)


def _longest(tracks: StepTracks, wanted: Any) -> int:
    """The longest event of the first lane for which this is true."""
    rows = np.flatnonzero(wanted & (tracks.lane == 0))
    return int(rows[np.argmax(tracks.event_dur_us[rows])])


def test_the_wheel_scrolls_the_page_and_zooms_with_ctrl(open_page: Callable[..., Opened]) -> None:
    page, timeline = _open_timeline(open_page, "cpu")
    page.view.evaluate("document.getElementById('timeline').scrollIntoView()")
    page.view.locator("#timeline-view canvas").hover(position={"x": 300, "y": 60})
    before = page.view.evaluate("scrollY")
    page.view.mouse.wheel(0, 200)
    _wait_until(page, f"scrollY >= {before} + 150")
    whole = page.view.evaluate(_VIEW)
    assert (whole["low"], whole["high"]) == (0, pytest.approx(timeline.steps[0].length_us))
    page.view.locator("#timeline-view canvas").hover(position={"x": 300, "y": 60})
    page.view.keyboard.down("Control")
    page.view.mouse.wheel(0, -200)
    page.view.keyboard.up("Control")
    _wait_until(page, f"timeline.view().high - timeline.view().low < {0.9 * timeline.steps[0].length_us}")


def test_search_counts_and_marks_what_it_finds_and_goes_to_it(open_page: Callable[..., Opened]) -> None:
    page, timeline = _open_timeline(open_page, "h100")
    tracks, idle = timeline.steps[0], _timeline_of("h100")[0].analysis.idle
    count = page.view.locator("#timeline-view .count")
    page.view.locator("#timeline-view input[type=search]").fill("cudalaunch")
    kinds = np.array([lane.kind for lane in tracks.lanes])[tracks.lane]
    waits = [at for at, row in enumerate(idle) if "cudaLaunch" in f"{row.detail} {row.source} {row.module}"]
    calls = [at for at, name in enumerate(tracks.name) if "cudaLaunch" in tracks.names[name]]
    waiting = np.flatnonzero((kinds == "idle") & np.isin(tracks.row, waits)).tolist()
    waiting_us, calls_us = (format_us(float(tracks.event_dur_us[rows].sum())) for rows in (waiting, calls))
    mine = [*waiting, *calls]
    assert waiting and calls
    assert count.inner_text() == f"{len(mine)}: {waiting_us} waiting, {calls_us} of ops and calls"
    first = min(mine, key=lambda at: tracks.event_start_us[at])
    page.view.keyboard.press("Enter")
    begins = f"{format_us(float(tracks.event_start_us[first]))} after the step began"
    assert begins in page.texts("#timeline-view .pane dd")
    page.view.locator("#timeline-view input[type=search]").fill("no such op")
    assert count.inner_text() == "nothing with these words"


@pytest.mark.parametrize("name", ["cpu", "h100"])
def test_a_stretch_of_the_timeline_is_summed_up(open_page: Callable[..., Opened], name: str) -> None:
    page, timeline = _open_timeline(open_page, name)
    tracks = timeline.steps[0]
    box = page.view.locator("#timeline-view canvas").bounding_box()
    page.view.mouse.move(box["x"] + box["width"] / 4, box["y"] + 40)
    page.view.mouse.down()
    page.view.mouse.move(box["x"] + box["width"] / 2, box["y"] + 40, steps=4)
    page.view.mouse.up()
    low, high = tracks.length_us / 4, tracks.length_us / 2
    kinds = np.array([lane.kind for lane in tracks.lanes])[tracks.lane]
    ends = tracks.event_start_us + tracks.event_dur_us
    inside = np.clip(np.minimum(ends, high) - np.maximum(tracks.event_start_us, low), 0, None)
    idle_us = float(inside[kinds == "idle"].sum())
    said = page.view.locator("#timeline-view .sums").inner_text()
    busy, waiting = (float(text) for text in re.findall(r"\(([\d.]+) %\)", said))
    assert waiting == pytest.approx(100 * idle_us / (high - low), abs=1.0)  # a pixel is 0.3 % of the stretch
    assert busy + waiting == pytest.approx(100, abs=0.2)  # one stream, or the threads of a CPU
    causes = {row.cause for row in _timeline_of(name)[0].analysis.idle}
    accounts = page.texts("#timeline-view .pane table:first-of-type tbody td:first-child")
    assert accounts and any(cause in account for cause in causes for account in accounts)
    page.view.keyboard.press("Escape")
    assert not page.view.locator("#timeline-view .pane").is_visible()
    page.view.locator("#timeline-view canvas").focus()
    page.view.keyboard.press("r")
    assert page.texts("#timeline-view .pane h3")[0].startswith(f"{format_us(tracks.length_us)}, from 0 us")


def test_details_of_a_kernel_lead_to_its_launch_and_back(open_page: Callable[..., Opened]) -> None:
    page, timeline = _open_timeline(open_page, "h100")
    tracks, analysis = timeline.steps[0], _timeline_of("h100")[0].analysis
    at = _longest(tracks, (tracks.launch >= 0) & (tracks.row >= 0))
    launch, kernel = int(tracks.launch[at]), analysis.kernels[tracks.row[at]]
    page.view.mouse.click(*_place(page, tracks, at))
    told = page.texts("#timeline-view .pane dd")
    assert any(text.startswith(f"{tracks.names[tracks.name[launch]]} ") for text in told)
    assert kernel.dtype in told and format_us(float(tracks.event_dur_us[at])) in told
    assert page.texts("#timeline-view .pane dt")[-2:] == ["waited for", "stack, innermost first"]
    page.view.locator("#timeline-view .pane dd button", has_text=tracks.names[tracks.name[launch]]).first.click()
    assert page.texts("#timeline-view .pane h3") == [tracks.names[tracks.name[launch]]]
    page.view.locator("#timeline-view .pane dl div", has_text="launches").locator("button").first.click()
    assert f"{format_us(float(tracks.event_start_us[at]))} after the step began" in page.texts(
        "#timeline-view .pane dd"
    )


def test_an_arrow_leads_from_a_launch_to_its_kernel(open_page: Callable[..., Opened]) -> None:
    page, timeline = _open_timeline(open_page, "h100")
    tracks = timeline.steps[0]
    x, y = _place(page, tracks, _longest(tracks, tracks.launch >= 0))
    strip = f"""() => {{
      const canvas = document.querySelector("#timeline-view canvas"), pen = canvas.getContext("2d");
      return pen.getImageData(0, {_BELOW_IT}, canvas.width, 3).data.join();
    }}"""
    page.view.mouse.move(2, 2)
    _wait_until(page, "frames > 1")
    before = page.view.evaluate(strip)
    page.view.mouse.click(x, y)
    page.view.mouse.move(2, 2)
    _wait_until(page, "frames > 1")
    assert page.view.evaluate(strip) != before
    page.view.keyboard.press("Escape")
    _wait_until(page, "frames > 1")
    assert page.view.evaluate(strip) == before


def test_the_shown_step_is_chosen_among_those_that_the_file_holds(open_page: Callable[..., Opened]) -> None:
    page, timeline = _open_timeline(open_page, "cpu")
    analysis = _timeline_of("cpu")[0].analysis
    buttons = page.view.locator("#timeline-view [aria-label='Steps that this file holds'] button")
    assert [tracks.role for tracks in timeline.steps] == ["median", "quickest", "slowest"]
    assert page.view.locator(".step-times rect").count() == len(analysis.steps.each) >= 3
    us = {each.name: each.us for each in analysis.steps.each}
    for at, tracks in enumerate(timeline.steps):
        assert buttons.nth(at).inner_text() == f"{tracks.role}: {tracks.step}, {format_us(us[tracks.step])}"
        buttons.nth(at).click()
        _wait_until(page, f"timeline.view().step === {json.dumps(tracks.step)}")
        assert buttons.nth(at).get_attribute("aria-pressed") == "true"
        assert page.view.evaluate(_VIEW)["high"] == pytest.approx(tracks.length_us)
        assert page.view.locator(".step-times rect.shown").text_content().startswith(f"{tracks.step}: ")
    assert page.complaints == []


@pytest.mark.parametrize("times", [2.0, 6.0, 20.0])
def test_bars_of_steps_are_to_scale_or_show_that_they_are_cut(open_page: Callable[..., Opened], times: float) -> None:
    """A step of 3.68 s was drawn 15 % taller than one of 612 ms."""
    found, timeline = _timeline_of("cpu")
    steps = found.analysis.steps
    first, *others = (replace(each, set_aside=None) for each in steps.each)
    long = replace(first, us=times * max(each.us for each in others), set_aside="it warms up")
    analysis = replace(found.analysis, steps=replace(steps, each=(long, *others)))
    page = open_page(to_html(analysis, timeline))
    bars = page.view.locator(".step-times rect:not(.gap)")
    heights = [float(height) for height in bars.evaluate_all("all => all.map(bar => bar.getAttribute('height'))")]
    note = page.texts("#timeline-view .step-times + .tools-row .note")[0]
    assert "dashed: 1 left out" in note and len(heights) == len(steps.each)
    is_cut = page.view.locator(".step-times rect.gap").count() == 1
    assert is_cut == (times > 8) == ("bars with a gap are longer than drawn" in note)
    if not is_cut:
        assert heights == pytest.approx([max(each.us / long.us, 0.03) for each in (long, *others)])
    assert page.complaints == []


def test_the_time_of_a_step_between_its_marks_is_told_from_that_with_the_work_around_them(
    open_page: Callable[..., Opened],
) -> None:
    page, timeline = _open_timeline(open_page, "h100")
    us = {each.name: each.us for each in _timeline_of("h100")[0].analysis.steps.each}
    step = timeline.steps[0]
    whole, between = format_us(step.length_us), format_us(us.get(step.step, step.length_us))
    words = f"under the profiler: {whole}"
    words += "" if whole == between else f" with the work around its marks, {between} between them"
    assert any(words in text for text in page.texts("#timeline-view .note"))


def test_events_of_a_name_are_marked_for_other_parts_of_the_page(open_page: Callable[..., Opened]) -> None:
    page, timeline = _open_timeline(open_page, "cpu")
    tracks = timeline.steps[0]
    frames = [at for at, lane in enumerate(tracks.lane) if tracks.lanes[lane].kind == "frames"]
    name = tracks.names[tracks.name[max(frames, key=lambda at: tracks.depth[at])]]
    count = sum(tracks.names[at] == name for at in tracks.name)
    page.view.evaluate("name => timeline.mark([{ name }], 'a frame')", name)
    assert _marked(page).startswith(f"a frame: {count} interval")


def test_the_rank_is_named_and_chosen_among_those_that_the_page_holds(open_page: Callable[..., Opened]) -> None:
    explained_, timeline = _timeline_of("cpu")
    analysis = replace(explained_.analysis, ranks=samples.multi_rank().ranks)
    other = StepTimeline(timeline.steps[1:2], 5)
    page = open_page(to_html(analysis, replace(timeline, rank=2, others=(other,))))
    page.view.wait_for_selector("#timeline-view canvas[aria-label]")
    count = len(analysis.ranks)
    shown = " This page shows 2 of them." if count > 2 else ""
    assert page.texts("#timeline-view .lede") == [f"Rank 2, which sets the pace of {count} ranks.{shown}"]
    page.view.locator("#timeline-view select").select_option("rank 5")
    _wait_until(page, f"timeline.view().step === {json.dumps(other.steps[0].step)}")
    assert page.texts("#timeline-view .lede") == [f"Rank 5, one of {count} ranks.{shown}"]
    assert page.view.evaluate(_VIEW)["high"] == pytest.approx(other.steps[0].length_us)
    assert not page.view.locator(".step-times").is_visible()  # the times are those of the other rank
    page.view.locator("#timeline-view select").select_option("rank 2 (sets the pace)")
    _wait_until(page, f"timeline.view().step === {json.dumps(timeline.steps[0].step)}")
    assert page.view.locator(".step-times").is_visible() and page.complaints == []


def test_the_keys_of_the_timeline_are_written_on_the_page(open_page: Callable[..., Opened]) -> None:
    page, timeline = _open_timeline(open_page, "cpu")
    assert {"R", "Z", "/", "N P", "Home", "Esc"} <= set(page.texts("#timeline-view kbd"))
    tracks, canvas = timeline.steps[0], page.view.locator("#timeline-view canvas")
    canvas.focus()
    page.view.keyboard.press("n")
    rows = np.flatnonzero(tracks.row >= 0)
    first = int(rows[np.argmin(tracks.event_start_us[rows])])
    shown_us = re.match(r"[\d.]+(?= us)", page.texts("#timeline-view .pane dd")[0])
    assert shown_us is not None and float(shown_us[0]) == pytest.approx(tracks.event_dur_us[first], rel=0.01)
    page.view.keyboard.press("z")
    view = page.view.evaluate(_VIEW)
    assert view["high"] - view["low"] < tracks.length_us / 2
    page.view.keyboard.press("Home")
    assert page.view.evaluate(_VIEW)["high"] == pytest.approx(tracks.length_us)
    page.view.keyboard.press("/")
    assert page.view.evaluate("document.activeElement.type") == "search"


def test_names_of_a_trace_stay_text_in_the_timeline(open_page: Callable[..., Opened]) -> None:
    explained_, timeline = _timeline_of("cpu")
    tracks = timeline.steps[0]
    names = tuple(f"{NASTY[at % len(NASTY)]}{at}" for at in range(len(tracks.names)))
    lanes = tuple(replace(lane, title=NASTY[at % len(NASTY)]) for at, lane in enumerate(tracks.lanes))
    calls = tuple(OpInputs(text, text) for text in NASTY[: len(tracks.calls)]) + tracks.calls[len(NASTY) :]
    nasty = replace(tracks, names=names, lanes=lanes, calls=calls, step=NASTY[0])
    page = open_page(to_html(explained_.analysis, replace(timeline, steps=(nasty,))))
    page.view.wait_for_selector("#timeline-view canvas[aria-label]")
    page.view.locator("#timeline-view input[type=search]").fill("alert")
    for key in ("n", "n", "p", "r"):
        page.view.locator("#timeline-view canvas").focus()
        page.view.keyboard.press(key)
        assert page.view.locator("#timeline-view .pane :is(script, img, iframe, svg)").count() == 0
    assert page.complaints == [] and page.requests == []


def test_the_pane_of_the_timeline_fits_a_phone(open_page: Callable[..., Opened]) -> None:
    page, timeline = _open_timeline(open_page, "cpu", viewport={"width": 390, "height": 844})
    tracks = timeline.steps[0]
    page.view.mouse.click(*_place(page, tracks, _longest(tracks, tracks.row >= 0)))
    box = page.view.locator("#timeline-view .pane").bounding_box()
    assert box["x"] >= 0 and box["x"] + box["width"] <= 390 and box["height"] <= 400
    assert page.view.evaluate("document.documentElement.scrollWidth - innerWidth") <= 0
    assert page.view.locator("#timeline-view input[type=search]").is_visible()


def test_analysis_json_can_be_downloaded(open_page: Callable[..., Opened], tmp_path: Path) -> None:
    from bottleneck.report.json_text import from_json, to_json

    text, analysis = PAGES["cpu"]()
    page = open_page(text)
    with page.view.expect_download() as waiting:
        page.view.locator("#download").click()
    waiting.value.save_as(tmp_path / "analysis.json")
    assert from_json((tmp_path / "analysis.json").read_text()) == from_json(to_json(analysis))


@pytest.mark.parametrize(("name", "title"), [("cpu", "clock of the processors"), ("collectives", "queue depth")])
def test_curves_beneath_the_timeline_share_its_zoom(open_page: Callable[..., Opened], name: str, title: str) -> None:
    page = open_page(PAGES[name]()[0])
    canvas = page.view.locator("#timeline-view canvas")
    canvas.wait_for()
    assert title in str(canvas.get_attribute("aria-label"))
    canvas.scroll_into_view_if_needed()
    box = canvas.bounding_box()

    def read() -> str:
        tip = page.view.locator("#timeline-view .tip")
        canvas.hover(position={"x": box["width"] * 0.9, "y": box["height"] - 20})
        assert tip.locator("b").inner_text().startswith(title)
        return str(tip.locator("span").inner_text())

    whole = read()
    assert re.search(r"^[\d.]+( MHz)?, (read )?[\d.]+ \w+ (before|after) the step began$", whole)
    page.view.locator("button[aria-label='Zoom in']").click(click_count=3)
    assert name == "cpu" or read() != whole  # the host's sensors are read more seldom than a step is long
    assert page.complaints == []


_BREAKS_IN_WORDS = """(selector) => {
  const breaks = [], range = document.createRange();
  for (const element of document.querySelectorAll(selector)) {
    const walker = document.createTreeWalker(element, NodeFilter.SHOW_TEXT);
    let before = "", line = null;
    for (let text = walker.nextNode(); text; text = walker.nextNode()) for (let at = 0; at < text.data.length; at++) {
      range.setStart(text, at); range.setEnd(text, at + 1);
      const box = range.getBoundingClientRect(), pair = before + text.data[at];
      if (line !== null && box.height && box.top > line + 4 && pair[1] && !/\\s/.test(pair)) breaks.push(pair);
      if (box.height) line = box.top;
      before = text.data[at];
    }
  }
  return breaks;
}"""


def test_names_on_a_phone_break_between_their_parts(open_page: Callable[..., Opened]) -> None:
    """Names and paths broke anywhere: 'slow_loader.p' 'y:27', '--' 'reason'."""
    page = open_page(PAGES["cpu"]()[0], viewport={"width": 390, "height": 844})
    page.view.wait_for_selector("#table-view > *")
    names = "#table-view button.open > span, #table-view small, .lines dd, .command code"
    breaks = page.view.evaluate(_BREAKS_IN_WORDS, names)
    joints = [pair for pair in breaks if re.fullmatch(r"[./_:(,<=][^.\d]|[a-z][A-Z]", pair)]
    assert joints and joints == breaks


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("name", ["cpu", "h100", "ranks", "hostile"])
def test_accessibility_checker_finds_nothing_serious(open_page: Callable[..., Opened], name: str, scheme: str) -> None:
    axe = pytest.importorskip("axe_playwright_python.sync_playwright", reason="axe-playwright-python is not installed")
    page = open_page(PAGES[name]()[0], color_scheme=scheme)
    page.view.wait_for_selector("#table-view > *")
    assert _serious(axe.Axe(), page) == []


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_accessibility_checker_finds_nothing_serious_in_the_panes_of_the_timeline(
    open_page: Callable[..., Opened], scheme: str
) -> None:
    axe = pytest.importorskip("axe_playwright_python.sync_playwright", reason="axe-playwright-python is not installed")
    page, _ = _open_timeline(open_page, "cpu", color_scheme=scheme)
    for key, words in (("n", "stack, innermost first"), ("r", "account")):
        page.view.locator("#timeline-view canvas").focus()
        page.view.keyboard.press(key)
        assert words in page.view.locator("#timeline-view .pane").inner_text()
        assert _serious(axe.Axe(), page) == []


def _serious(axe: Any, page: Opened) -> list[tuple[str, str]]:
    """Rules that the page breaks badly, each with the first element that does."""
    found = axe.run(page.view).response["violations"]
    return [(each["id"], each["nodes"][0]["html"][:200]) for each in found if each["impact"] in {"serious", "critical"}]


def _other_pages() -> dict[str, str]:
    """Pages of reports that are not of one analysis."""
    from bottleneck.report.checkup import render as checked
    from bottleneck.report.ci.outputs import GATE_FORMATS
    from bottleneck.report.comparison import build
    from bottleneck.report.sweep import render as swept
    from bottleneck.report.verification import render as verified
    from tests.report.gates import GATES
    from tests.report.sweeps import chain
    from tests.report.test_checkup import CHECKUP
    from tests.report.test_verification import DONE

    gates = {f"gate {name}": GATE_FORMATS["html"].render(GATES[name]) for name in ("several", "hostile")}
    compared = {"comparison": comparisons.slower(), "hostile comparison": comparisons.hostile()}
    return {
        "verify": verified(DONE, "html"),
        "sweep": swept(chain("eager", "compiled"), "html"),
        "doctor": checked([CHECKUP, CHECKUP], "html"),
        **gates,
        **{name: document_to_html(build(each)) for name, each in compared.items()},
    }


@pytest.mark.parametrize("width", [1280, 390])
def test_pages_of_other_reports_open_without_error_or_sideways_scrolling(
    open_page: Callable[..., Opened], width: int
) -> None:
    for name, text in _other_pages().items():
        page = open_page(text, viewport={"width": width, "height": 844})
        assert page.complaints == [] and page.requests == [], name
        assert page.view.evaluate("document.documentElement.scrollWidth - innerWidth") <= 0, name


@pytest.mark.parametrize("width", [1280, 390])
def test_the_intervals_of_changes_are_on_the_screen_with_their_names_whole(
    open_page: Callable[..., Opened], width: int
) -> None:
    page = open_page(_other_pages()["verify"], viewport={"width": width, "height": 844})
    boxes = page.view.locator(".intervals rect").evaluate_all("all => all.map(e => e.getBoundingClientRect().toJSON())")
    assert len(boxes) == 5
    assert all(box["width"] > 0 and box["left"] >= 0 and box["right"] <= width and box["top"] < 844 for box in boxes)
    names = page.view.locator(".intervals .name").evaluate_all(_LINES_OF_TEXT)
    assert [text for _, text in names] == ["compile", "gc-freeze", "bf16-autocast"]
    assert all(lines == 1 for lines, _ in names)


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_accessibility_checker_finds_nothing_serious_in_pages_of_other_reports(
    open_page: Callable[..., Opened], scheme: str
) -> None:
    axe = pytest.importorskip("axe_playwright_python.sync_playwright", reason="axe-playwright-python is not installed")
    for name, text in _other_pages().items():
        assert _serious(axe.Axe(), open_page(text, color_scheme=scheme)) == [], name


def test_words_of_a_table_are_not_broken_letter_by_letter_on_a_phone(open_page: Callable[..., Opened]) -> None:
    page = open_page(_other_pages()["gate several"], viewport={"width": 390, "height": 844})
    widths = page.view.evaluate("[...document.querySelectorAll('td:first-child, td.k-words')].map(e => e.clientWidth)")
    assert widths and min(widths) >= 70


_BROKEN_WORDS = """all => all.flatMap(cell => {
  const texts = document.createTreeWalker(cell, NodeFilter.SHOW_TEXT), broken = [];
  while (texts.nextNode()) for (const found of texts.currentNode.data.matchAll(/[A-Za-z]{4,20}/g)) {
    const range = document.createRange();
    range.setStart(texts.currentNode, found.index);
    range.setEnd(texts.currentNode, found.index + found[0].length);
    const lines = new Set([...range.getClientRects()].filter(box => box.width > 0).map(box => Math.round(box.top)));
    if (lines.size > 1) broken.push(found[0]);
  }
  return broken;
})"""


def test_no_word_of_a_table_is_broken_and_no_row_is_made_tall_by_what_is_out_of_view(
    open_page: Callable[..., Opened],
) -> None:
    """'communi cation' stood in the table of ranks, and rows of the icicle's table were as tall as three lines."""
    for text in (PAGES["ranks"]()[0], PAGES["cpu"]()[0], _other_pages()["comparison"]):
        page = open_page(text, viewport={"width": 390, "height": 844})
        cells = page.view.locator("table.static:not(.cards) td:visible")
        assert cells.count() >= 4 and cells.evaluate_all(_BROKEN_WORDS) == []
    page = open_page(PAGES["cpu"]()[0], viewport={"width": 390, "height": 844})
    rows = page.view.locator("#icicle-view table.live tbody tr")
    heights = "all => all.map(row => [row.clientHeight, row.cells[0].querySelector('button')?.offsetHeight])"
    assert rows.count() >= 5
    assert all(height <= name + 26 for height, name in rows.evaluate_all(heights) if name)


def test_a_verdict_keeps_its_distance_from_its_mark_and_code_one_base_line(open_page: Callable[..., Opened]) -> None:
    """The mark of a gate touched its first word, and a long word of a command stood higher than the others."""
    items = (("run `bottleneck verify --device a,bbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbb examples/transformer.py` there",),)
    text = document_to_html(Document("nothing measured", "b", tone="unknown", sections=(ListSection("Notes", items),)))
    page = open_page(text, viewport={"width": 390, "height": 844})
    mark, words = (page.view.locator(f"h1 {part}").first.bounding_box() for part in (".shape", "span"))
    assert words["x"] - mark["x"] - mark["width"] >= 6
    aligned = page.view.locator(".in-line .word").evaluate_all("all => all.map(e => getComputedStyle(e).verticalAlign)")
    assert aligned and set(aligned) == {"baseline"}


_LINES_OF_TEXT = """all => all.map(element => {
  const range = document.createRange();
  range.selectNodeContents(element);
  const tops = [...range.getClientRects()].filter(box => box.width > 0).map(box => Math.round(box.top));
  return [new Set(tops).size, element.innerText.trim()];
})"""


def test_the_numbers_that_matter_are_on_a_phones_screen(open_page: Callable[..., Opened]) -> None:
    right = "all => Math.max(...all.map(element => element.getBoundingClientRect().right))"
    pages = _other_pages()
    for name in ("verify", "comparison"):
        page = open_page(pages[name], viewport={"width": 390, "height": 844})
        assert (
            page.view.locator("tr.r-plain td.k-words, .waterfall .k-number, .waterfall rect").evaluate_all(right) <= 390
        )
        assert page.view.locator("td:last-child, .cards td").evaluate_all(right) <= 390, name
        numbers = page.view.locator("td.k-number:visible").evaluate_all(_LINES_OF_TEXT)
        assert all(lines < 2 for lines, text in numbers if " " not in text), name


def test_a_table_that_is_wider_than_the_screen_says_so_until_its_end_is_in_view(
    open_page: Callable[..., Opened],
) -> None:
    """The columns that the headline spoke of lay outside, and nothing showed that there were any."""
    page = open_page(PAGES["cpu"]()[0], viewport={"width": 390, "height": 844})
    table = page.view.locator("#table-view .scroll:visible").first
    hint = "element => getComputedStyle(element, '::after').content"
    assert "scroll sideways" in table.evaluate(hint) and "cut" in table.get_attribute("class").split()
    table.evaluate("element => { element.scrollLeft = element.scrollWidth; }")
    _wait_until(page, "!document.querySelector('#table-view .scroll').classList.contains('cut')")
    for width in (1440, 1024, 390):
        page = open_page(PAGES["cpu"]()[0], viewport={"width": width, "height": 844})
        phases = page.view.locator(".scroll:has(> .phases)")
        assert phases.evaluate("element => element.scrollWidth <= element.clientWidth")
        assert phases.evaluate(hint) == "none"


def test_how_late_a_rank_is_stands_on_a_phones_screen(open_page: Callable[..., Opened]) -> None:
    page = open_page(PAGES["ranks"]()[0], viewport={"width": 390, "height": 844})
    for table in ("#rank-view table", "#ranks > .scroll:last-of-type table"):
        heads = page.view.locator(f"{table} thead th")
        titles = [text.split(",")[0] for text in heads.all_inner_texts()]
        assert {"wall", "late"} <= set(titles)
        for title in ("wall", "late"):
            box = heads.nth(titles.index(title)).bounding_box()
            assert box["x"] + box["width"] <= 390, (table, title)


@pytest.mark.parametrize("name", ["cpu", "h100"])
def test_the_first_change_is_on_a_phones_first_screen(open_page: Callable[..., Opened], name: str) -> None:
    phone = open_page(PAGES[name]()[0], viewport={"width": 390, "height": 844})
    assert phone.view.locator("#findings .action h3").first.bounding_box()["y"] < 844
    assert phone.view.locator(".largest").is_visible()
    assert phone.view.locator(".top nav").bounding_box()["height"] < 40
    wide = open_page(PAGES[name]()[0], viewport={"width": 1440, "height": 900})
    assert not wide.view.locator(".largest").is_visible()


_UNSEEN = """selector => [...document.querySelectorAll(selector)].filter(element => {
  const box = element.getBoundingClientRect();
  const isEmpty = !element.textContent.trim() && !element.matches("canvas, rect");
  const isSeen = box.width > 0 && box.height > 0 && box.right <= innerWidth + 1;
  return !isSeen && !isEmpty && !element.closest("[hidden], .hidden");
}).map(element => element.outerHTML.slice(0, 120))"""
_ESSENTIAL = "h1, h2, h3, td, th, p, li, dd, pre, figure, canvas, .seg, .waterfall rect, .command code, footer"


@pytest.mark.parametrize("name", ["cpu", "h100", "ranks", "comparison", "gate several"])
def test_print_hides_and_cuts_nothing_and_is_light_whatever_the_theme(
    open_page: Callable[..., Opened], name: str
) -> None:
    text = PAGES[name]()[0] if name in PAGES else _other_pages()[name]
    page = open_page(text, viewport={"width": 720, "height": 1000}, color_scheme="dark")
    page.view.locator("footer").scroll_into_view_if_needed()
    page.view.emulate_media(media="print", color_scheme="dark")
    assert page.view.evaluate(_UNSEEN, _ESSENTIAL) == []
    assert page.view.evaluate("getComputedStyle(document.body).backgroundColor") == "rgb(255, 255, 255)"
    assert page.view.locator(".copy, .tools, button.more, .skip").evaluate_all("all => all.every(e => !e.offsetWidth)")


def _printed(open_page: Callable[..., Opened], text: str) -> Opened:
    """The page as wide as A4, as a printer gets it."""
    page = open_page(text, viewport={"width": 720, "height": 1000})
    page.view.wait_for_selector("#table-view > *")
    page.view.emulate_media(media="print")
    page.view.evaluate("dispatchEvent(new Event('beforeprint'))")
    return page


def test_print_of_many_accounts_of_ranks_is_no_wider_than_the_paper(open_page: Callable[..., Opened]) -> None:
    job, accounts = samples.multi_rank(), [key for key in ACCOUNTS if key not in {"overhead", "unknown"}]
    entries = samples.ledger(dict.fromkeys(accounts, 1234.5))
    wide = replace(job, ranks=tuple(replace(rank, ledger=entries) for rank in job.ranks))
    page = _printed(open_page, to_html(wide))
    # The map has the largest, and the others as one: the ledger of each rank has them all.
    heads = page.texts(".heat thead th")
    assert heads[1:3] == ["wall", "late, mean"] and heads[-1] == f"{len(accounts) - 6} more"
    assert page.view.evaluate("document.documentElement.scrollWidth") <= 720


def test_print_has_every_table_beneath_its_title(open_page: Callable[..., Opened]) -> None:
    page = _printed(open_page, PAGES["cpu"]()[0])
    titles = page.texts("#table-view [role=tab]")
    panels = page.view.locator("#table-view > [role=tabpanel]")
    shown = panels.evaluate_all(
        "all => all.filter(e => e.offsetHeight && e.querySelector('td')).map(e => e.dataset.title)"
    )
    assert len(titles) >= 4 and shown == titles


def test_details_of_a_row_lie_on_a_phones_screen(open_page: Callable[..., Opened]) -> None:
    page = open_page(PAGES["h100"]()[0], viewport={"width": 390, "height": 844})
    page.view.wait_for_selector("#table-view > *")
    page.view.locator("#table-view button.open").first.click()
    assert page.view.locator("#table-view .scroll").first.evaluate("e => e.scrollWidth > e.clientWidth")
    details = page.view.locator("#table-view tr.details dd > *, #table-view tr.details dd")
    edges = details.evaluate_all("all => all.map(e => e.getBoundingClientRect()).map(box => [box.left, box.right])")
    assert len(edges) >= 10 and min(left for left, _ in edges) >= 0 and max(right for _, right in edges) <= 390


@pytest.mark.parametrize("width", [1280, 390])
def test_commands_are_shown_whole(open_page: Callable[..., Opened], width: int) -> None:
    finding = replace(samples.gpu_overhead().findings[0], verify=f"bottleneck verify train.py --try {'sdpa,' * 40}tf32")
    page = open_page(
        to_html(replace(samples.gpu_overhead(), findings=(finding,))), viewport={"width": width, "height": 900}
    )
    cut = page.view.locator(".command code").evaluate_all("all => all.map(e => e.scrollWidth - e.clientWidth)")
    assert cut and max(cut) <= 0
    assert any("tf32" in text for text in page.texts(".command code"))


@pytest.mark.parametrize("name", ["cpu", "hostile"])
def test_frame_of_a_notebook_is_as_high_as_its_content_at_every_width(
    open_page: Callable[..., Opened], name: str
) -> None:
    fragment = first_screen(PAGES[name]()[1])
    page = open_page("<!doctype html><title>notebook</title><div id=cell></div>")
    page.view.evaluate("html => { document.getElementById('cell').innerHTML = html; }", fragment)
    inside = "document.querySelector('iframe').contentDocument.documentElement"
    missing = f"(document.querySelector('iframe').clientHeight - {inside}.offsetHeight)"
    for width in (1100, 700, 390):
        page.view.set_viewport_size({"width": width, "height": 700})
        _wait_until(page, f"{inside}.offsetHeight > 200 && {missing} >= 0 && {missing} <= 4")
        assert page.view.evaluate(f"{inside}.scrollHeight - {inside}.clientHeight") <= 0
        assert page.view.evaluate(f"{inside}.scrollWidth - {inside}.clientWidth") <= 0
    assert page.complaints == [] and page.requests == []


def _wait_until(page: Opened, condition: str) -> None:
    """Waits frame by frame; Playwright's own way evaluates text inside of the page, which the page's policy forbids."""
    look = f"if ({condition}) done(true); else if (++frames > 1200) done(false); else requestAnimationFrame(look);"
    assert page.view.evaluate(f"new Promise(done => {{ let frames = 0; const look = () => {{ {look} }}; look(); }})")


def test_charts_are_drawn_in_light_colours_for_print(open_page: Callable[..., Opened]) -> None:
    page = open_page(PAGES["cpu"]()[0], color_scheme="dark")
    page.view.wait_for_selector("#timeline-view canvas")
    first = "[...document.querySelector('#timeline-view canvas').getContext('2d').getImageData(2, 2, 1, 1).data]"
    _wait_until(page, f"{first}[3] === 255")
    assert max(page.view.evaluate(first)[:3]) < 80
    assert min(page.view.evaluate(f"(dispatchEvent(new Event('beforeprint')), {first})")[:3]) > 200
    assert max(page.view.evaluate(f"(dispatchEvent(new Event('afterprint')), {first})")[:3]) < 80


def test_theme_follows_the_button(open_page: Callable[..., Opened]) -> None:
    page = open_page(to_html(replace(samples.cpu(), findings=())))
    paper = "getComputedStyle(document.body).backgroundColor"
    before = page.view.evaluate(paper)
    page.view.locator("#theme").click()
    assert page.view.evaluate(paper) == before  # light on a light system
    page.view.locator("#theme").click()
    assert page.view.evaluate(paper) != before
