"""Renders a report as one HTML file that loads nothing.

The report is an analysis, or the document of any other one. Sentences and short tables are those of the terminal's
``Document``. Long tables and charts are drawn by ``assets/*.js`` from ``analysis.json``, which the file holds. Every
text of a trace is cleaned and escaped, and a content security policy lets nothing but the page's own script run.
"""

import base64
import functools
import gzip
import hashlib
import json
import math
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from importlib.resources import files
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup, escape

from bottleneck import __version__
from bottleneck.report import analysis_tables as tables
from bottleneck.report.analysis_document import HOPS, PEAK_SOURCES, batch_test, build, caveats, coverage, reached, trust
from bottleneck.report.compile_health import compile_sections
from bottleneck.report.document import Document, Section, TableSection, Waterfall, WaterfallBar
from bottleneck.report.findings import findings, first_findings
from bottleneck.report.inference import serving_sections
from bottleneck.report.job_section import job_sections, shown_ranks
from bottleneck.report.json_text import to_json
from bottleneck.report.kernel_names import short_names
from bottleneck.report.line_chart import FROM_END, HEIGHT, WIDTH, ChartSection, LineChart
from bottleneck.report.no_gain import no_gain
from bottleneck.report.roofline_points import (
    ACROSS,
    CACHE_NOTE,
    GUIDES_NOTE,
    HOLLOW_WORDS,
    OWN_ROOF_WORDS,
    UP,
    absences,
    plane_of,
    points,
    roofs,
    whole_step,
)
from bottleneck.report.rows_tree import account_of, tree_of_rows
from bottleneck.report.start_up import start_up_table
from bottleneck.report.text import (
    account_name,
    as_sentence,
    bound_word,
    clean,
    describe_shapes,
    join_units,
    with_attribute_paths,
)
from bottleneck.schema.accounts import ACCOUNTS, UNMODELLED, label_of, meaning_of, phrase_of
from bottleneck.schema.analysis import GROUPS, REGIMES, Analysis, Finding, LedgerEntry, Phase
from bottleneck.schema.op_names import BUILT_IN_CALL, MODULE_PREFIX, PYTHON_FRAME, function_source, line_source
from bottleneck.schema.step_tracks import OpInputs, StepTimeline, StepTracks
from bottleneck.units import format_share, format_us

_PARTS = (
    "numbers",
    "tables",
    "ledger",
    "icicle",
    "step_events",
    "timeline",
    "step_view",
    "roofline",
    "memory",
    "page",
    "addresses",
)
_SCRIPTS = tuple(f"assets/{name}.js" for name in _PARTS)
_LONGEST_TEXT = 2000
_LONGEST_NAME = 60
_LONGEST_LABEL = 200
_LONGEST_BAR = 48
_ROWS = 10  # of a table that only readers without JavaScript see
_MOST_RANKS = 64
_FIRST_FINDINGS, _FIRST_CAVEATS, _FIRST_TEXT, _FIRST_CODE = 3, 3, 360, 8
_NO_TIMELINE = (
    "No timeline: this page was made from a finished analysis, which holds sums only. "
    "Make it from the trace or the recording: bottleneck report TRACE -o report.html"
)


def to_html(analysis: Analysis, timeline: StepTimeline | None = None, *, all_findings: bool = False) -> str:
    """Renders the page of an analysis.

    ``timeline`` is that of its steps, where its trace is at hand.
    """
    analysis = with_attribute_paths(analysis)
    document = build(analysis, all_findings=all_findings)
    segments, phases = _segments(analysis), analysis.phases
    doubts = (coverage(analysis), caveats(analysis))
    start_up = start_up_table(analysis.start_up, analysis.source_texts)
    is_asked_for = analysis.start_up is not None and analysis.start_up.is_sampled
    serving = serving_sections(analysis.serving)
    proofs = (
        tables.measured_pieces(analysis.pieces),
        batch_test(analysis.batch_test),
        None if is_asked_for else start_up,
        *compile_sections(analysis.compile_health, analysis.steps.wall_us),
        *serving,
    )
    ranges = (tables.user_ranges(analysis, _ROWS),)
    # The sentences of the caveats on ranks say who waits for whom.
    on_ranks = [caveat.message for caveat in analysis.caveats if "rank" in caveat.slug]
    parts = {
        "findings": analysis.findings,
        "start-up": is_asked_for,
        "memory": analysis.memory,
        "ranks": analysis.ranks,
        "server": serving,
    }
    named = {
        "kernels": tables.kernels(analysis, _ROWS),
        "lines": tables.lines(analysis, _ROWS),
        "modules": tables.modules(analysis, _ROWS),
        "idle": tables.idle(analysis, _ROWS),
        "critical_path": tables.critical_path(analysis.critical_path, HOPS),
        "collectives": tables.collectives(analysis, _ROWS),
    }
    return _render(
        "analysis.html",
        layout="frame.html",
        style=_widths("w", [segment.share for segment in segments]) + _widths("p", [phase.share for phase in phases]),
        data={
            "analysis": _json_block(_with_packed_idle(json.loads(to_json(analysis)))),
            "words": _json_block(_words(analysis)),
            "steps": _json_block(None if timeline is None else _packed(timeline)),
            "tree": _json_block(_time_tree(analysis, timeline)),
        },
        title=f"{document.headline}: {document.subject}",
        closing=document.closing,
        **_summary(analysis, document, segments, "below"),
        phase_bars=[_phase_segment(phase) for phase in phases],
        phases=tables.phases(analysis),
        ranges=_present(ranges),
        advice=findings(analysis, all_findings=all_findings),
        most_cards=_FIRST_FINDINGS,
        start_up=start_up if is_asked_for else None,
        no_gain=_present((no_gain(analysis.no_gain),)),
        proofs=_present(proofs),
        server=serving[0] if serving else None,
        doubts=_present(doubts),
        queue=_present((tables.queue_sparkline(analysis),)),
        has_timeline=timeline is not None,
        no_timeline=_NO_TIMELINE,
        tables=[(key, section) for key, section in named.items() if section is not None],
        held=_present((tables.memory(analysis),)),
        job=job_sections(analysis),
        ranks=tables.ranks(analysis, _MOST_RANKS),
        straggler=" ".join(f"{as_sentence(text).rstrip('.')}." for text in on_ranks),
        has_memory=analysis.memory is not None,
        sections=[section for section in _SECTIONS if parts.get(section[0], True)],
    )


def first_screen(analysis: Analysis) -> str:
    """Renders the first screen of the page in its own frame.

    Notebooks show it: nothing in it runs or is loaded.
    """
    document, segments = build(analysis), _segments(analysis)
    page = _render(
        "analysis.html",
        layout="first_screen.html",
        style=_widths("w", [segment.share for segment in segments]) + _FRAMED,
        data={},
        title=document.headline,
        **_summary(analysis, document, segments, "in the whole report"),
    )
    # A style sheet of a notebook would change the page, and that of the page the notebook.
    name = escape(clean(document.headline, _LONGEST_TEXT))
    given = f'sandbox="allow-same-origin" title="{name}" style="{_FRAME_STYLE}" onload="{_FIT_HEIGHT}"'
    return f'<iframe {given} srcdoc="{escape(str(page))}"></iframe>'


# The notebook makes the frame as high as its content, at every width; the frame itself runs nothing. Where a notebook
# that is not trusted leaves the handler out, the frame keeps the height of its style and scrolls.
_FIT_HEIGHT = (
    "const frame = this, content = frame.contentDocument.documentElement, "
    "fit = () => { frame.style.height = content.offsetHeight + 2 + 'px'; }; "
    "fit(); new ResizeObserver(fit).observe(frame)"
)
_FRAME_STYLE = "width:100%;height:44em;border:1px solid #8884;border-radius:6px"
# Links to the rest of the page lead nowhere here, and a bar without a script opens nothing.
_FRAMED = ".trust-short .note,.copy{display:none}.stack button{cursor:default}"


def _summary(analysis: Analysis, document: Document, segments: "list[_Segment]", others: str) -> dict[str, Any]:
    """The values that the first screen shows; ``others`` says where the other findings are."""
    ledger = tables.ledger(analysis)
    return {
        "document": document,
        "tiles": _tiles(analysis),
        "step": f"{format_us(analysis.steps.wall_us)} per step{_whose_step(analysis)}",
        "segments": segments,
        "largest": _largest_accounts(analysis, ledger),
        "unnamed": _unnamed(segments, ledger),
        "ledger": ledger,
        "first": first_findings(analysis, _FIRST_FINDINGS, _FIRST_TEXT, _FIRST_CODE, others),
        "trust": trust(analysis, _FIRST_CAVEATS, " below"),
    }


def document_to_html(
    document: Document, charts: Sequence[LineChart] = (), chart_section: ChartSection | None = None
) -> str:
    """Renders the page of any other report.

    It is a comparison, a trial, a sweep with its charts, a gate, a check-up or a prediction. ``charts`` stand above the
    tables, ``chart_section`` below them.
    """
    names: dict[str, str] = {}
    for at, section in enumerate(document.sections, 1):
        if name := getattr(section, "menu", "") or section.title:
            names.setdefault(name, f"section-{at}")
    anchors = [(anchor, name) for name, anchor in names.items()]
    return _render(
        "document.html",
        style="",
        data={},
        title=f"{document.headline} {document.subject}".strip(),
        closing=document.closing,
        document=document,
        charts=charts,
        chart_section=chart_section,
        sections=[*anchors, *([("charts", chart_section.title)] if chart_section else [])],
    )


@dataclass(frozen=True)
class _Segment:
    """A part of a bar.

    It has what it stands for, its group, its words in short and in full, and its share of the step.
    """

    key: str
    group: str
    label: str
    words: str
    share: float


# A part of the bar so wide has the words of the headline, where they are no longer; others the name of the account.
_LEAST_PHRASE, _LONGEST_PHRASE = 0.4, 20
_LEAST_SHARE = 0.004  # a narrower part of the bar could not be pointed at


def _segments(analysis: Analysis) -> list[_Segment]:
    """Gives the accounts in the order of the ledger's table.

    The smallest of a group are one segment, that of the group.
    """
    segments = []
    us = {group: math.fsum(entry.us for entry in analysis.ledger if entry.group == group) for group in GROUPS}
    for group in sorted(GROUPS, key=lambda group: -us[group]):
        entries = sorted((one for one in analysis.ledger if one.group == group and one.us > 0), key=lambda one: -one.us)
        small = [entry for entry in entries if entry.share < _LEAST_SHARE]
        segments += [_account_segment(entry) for entry in entries if entry.share >= _LEAST_SHARE]
        if len(small) == 1:
            segments += [_account_segment(small[0])]
        elif small:
            share = math.fsum(entry.share for entry in small)
            words = f"{group}: {len(small)} small accounts, {format_share(share)}"
            segments.append(_Segment(f"{tables.WHOLE_GROUP}{group}", group, "", words, share))
    return segments


def _account_segment(entry: LedgerEntry) -> _Segment:
    name = account_name(entry.account, entry.group)
    words = f"{name}, {format_us(entry.us)}, {format_share(entry.share)}"
    label, phrase = label_of(entry.account), phrase_of(entry.account)
    is_wide = entry.share >= _LEAST_PHRASE and len(phrase) <= _LONGEST_PHRASE
    return _Segment(entry.account, entry.group, phrase if is_wide else label, words, entry.share)


_MOST_NAMED = 3


def _largest_accounts(analysis: Analysis, ledger: TableSection) -> str:
    """Names the largest accounts with their shares, for a bar without room."""
    shares = {row.key: row.cells[-1] for row in ledger.rows}
    accounts = [entry.account for entry in sorted(analysis.ledger, key=lambda entry: -entry.us) if entry.us > 0]
    named = [account for account in accounts if account in shares][:_MOST_NAMED]
    return ", ".join(f"{phrase_of(account)} {shares[account]}" for account in named)


# Of the widest page: what the bar takes, and a letter of a label and the room around it.
_BAR_PIXELS, _LETTER_PIXELS, _AROUND_PIXELS = 1208, 7.5, 18


def _unnamed(segments: Sequence[_Segment], ledger: TableSection) -> str:
    """Names the parts of the bar that are too narrow for their label.

    From the left, with the shares of the table.
    """
    shares = {row.key: row.cells[-1] for row in ledger.rows}
    narrow = [
        segment
        for segment in segments
        if segment.share * _BAR_PIXELS < _LETTER_PIXELS * len(segment.label) + _AROUND_PIXELS or not segment.label
    ]
    return ", ".join(
        f"{segment.label} {shares.get(segment.key, format_share(segment.share))}" if segment.label else segment.words
        for segment in narrow
    )


def _phase_segment(phase: Phase) -> _Segment:
    words = f"{phase.name}: {format_us(phase.us)}, {format_share(phase.share)}"
    return _Segment(phase.name, "", phase.name, words, phase.share)


def _whose_step(analysis: Analysis) -> str:
    """Says which of several ranks bar and tiles are of.

    It is the one that the others wait for.
    """
    rank = next((one.rank for one in analysis.ranks if one.ledger == analysis.ledger), None)
    return "" if rank is None else f" of rank {rank}, which sets the pace"


def _tiles(analysis: Analysis) -> list[tuple[str, str, str]]:
    """Title, number and remark of the figures beside the verdict."""
    steps, totals = analysis.steps, analysis.totals
    timing = steps.unprofiled_us or steps.profiled_us
    how = "without the profiler" if steps.unprofiled_us else "while profiled"
    how += ", beside other programs" if analysis.has_load_taken_off else ""
    spread = f"{format_us(timing.low)} to {format_us(timing.high)}, {how}" if timing and timing.n > 1 else how
    noun = "step's threads" if analysis.device.kind == "cpu" else "device"
    tiles = [(steps.step_word, format_us(steps.wall_us), spread)]
    if steps.wall_us > 0:
        busy = format_share(totals.busy_us / steps.wall_us)
        tiles.append((f"{noun} at work", busy, f"idle {format_us(totals.idle_us)}"))
    tiles += [(f"of the {peak}", f"{least}{share}", "over the whole step") for least, share, peak in reached(analysis)]
    if analysis.start_up is not None and analysis.start_up.is_sampled:  # it was asked for
        tiles.append(("start-up", f"{analysis.start_up.total_s:.3g} s", analysis.start_up.end_words))
    return tiles


def _present(sections: Iterable[Section | None]) -> list[Section]:
    return [section for section in sections if section is not None]


def _with_packed_idle(record: dict[str, Any]) -> dict[str, Any]:
    """Packs the rows of idle time by column.

    Thousands of them name the same few modules and lines.
    """
    rows = record["idle"]
    columns = {name: _packed_column([row[name] for row in rows]) for name in (rows[0] if rows else ())}
    return {**record, "idle": {"count": len(rows), "columns": columns}}


def _packed_column(values: Sequence[object]) -> dict[str, Any]:
    """Packs a column, in which values that repeat stand once.

    Each row has the place of its value among them.
    """
    texts = [json.dumps(value) for value in values]
    places = {text: at for at, text in enumerate(dict.fromkeys(texts))}
    if len(places) > len(values) / 2:
        return {"values": values}
    return {"values": [json.loads(text) for text in places], "at": [places[text] for text in texts]}


def _words(analysis: Analysis) -> dict[str, Any]:
    """Gives the words that the script shows beside the numbers.

    The numbers are those of the analysis; rows of kernels are in its order.
    """
    names = _short_kernels(analysis)
    return {
        "noun": "op" if analysis.device.kind == "cpu" else "kernel",
        "groups": GROUPS,
        "whole_group": tables.WHOLE_GROUP,
        "accounts": {
            one.account: {"group": one.group, "label": label_of(one.account), "meaning": meaning_of(one.account)}
            for one in analysis.ledger
        },
        "ranks": shown_ranks(analysis),
        "roofline": _roofline(analysis),
        "regimes": {key: {"words": band.words, "meaning": band.meaning} for key, band in REGIMES.items()},
        "kernels": [
            {
                "call": name if (call := tables.call_words(row)) == row.name else clean(call, _LONGEST_TEXT),
                "name": name,
                "bound": bound_word(row),
                "group": tables.kernel_group(row),
                "account": account_of(row),
            }
            for row, name in ((row, names[row.name]) for row in analysis.kernels)
        ],
        "findings": {one.slug: _rows_behind(analysis, one) for one in analysis.findings},
    }


def _short_kernels(analysis: Analysis) -> dict[str, str]:
    """Gives the short name of each kernel."""
    names = list(dict.fromkeys(row.name for row in analysis.kernels))
    return dict(zip(names, short_names([clean(name, _LONGEST_TEXT) for name in names], _LONGEST_NAME), strict=True))


def _rows_behind(analysis: Analysis, finding: Finding) -> dict[str, list[int]]:
    """Gives the rows of kernels and idle time behind a finding's gain.

    Rows that the rule names count as they are; those of an account that it claims only where its lines and phase are.
    """
    lines = set(finding.lines)
    in_phase = {row for phase in analysis.phases if phase.name == finding.phase for row, _ in phase.kernels}
    kernels = [
        at
        for at, row in enumerate(analysis.kernels)
        if f"kernel:{at}" in finding.claims
        or (
            ((row.account or account_of(row)) in finding.claims)
            and (not lines or row.source in lines)
            and (not in_phase or at in in_phase)
        )
    ]
    idle = [
        at
        for at, row in enumerate(analysis.idle)
        if f"overhead.{row.cause}" in finding.claims and (not lines or row.source in lines)
    ]
    return {"kernels": kernels, "idle": list(finding.waits or idle)}


def _roofline(analysis: Analysis) -> dict[str, Any]:
    """Gives points, lines and step as the roofline's picture has them."""
    plane = plane_of(analysis.device, roofs(analysis))
    return {
        "points": [
            [
                point.kernel,
                point.intensity,
                point.intensity_low,
                point.intensity_high,
                point.flops_per_s,
                point.own_roof_flops_per_s,
            ]
            for point in points(analysis)
        ],
        "flats": [[flat.label, flat.short_label, flat.flops_per_s, flat.ridge] for flat in plane.flats],
        "slopes": [[slope.label, slope.bytes_per_s, slope.is_cache] for slope in plane.slopes],
        "guides": plane.guides,
        "notes": [
            *([GUIDES_NOTE] if plane.guides else []),
            *([CACHE_NOTE] if any(slope.is_cache for slope in plane.slopes) else []),
        ],
        "hollow": HOLLOW_WORDS,
        "own_roof": OWN_ROOF_WORDS,
        "axes": [ACROSS, UP],
        "source": PEAK_SOURCES.get(analysis.device.source or "", "of unknown origin"),
        "step": whole_step(analysis),
        "absent": absences(analysis),
    }


def _packed(timeline: StepTimeline) -> dict[str, Any]:
    ranks = [
        {"rank": one.rank, "shown": [_packed_step(tracks) for tracks in one.steps]}
        for one in (timeline, *timeline.others)
    ]
    return {"accounts": list(ACCOUNTS), "ranks": ranks}


def _packed_step(tracks: StepTracks) -> dict[str, Any]:
    """Packs a step into few bytes.

    Its arrays stand one after the other in little-endian order, deflated; so are its texts.
    """
    arrays = (
        (tracks.event_start_us, "<f4"),
        (tracks.event_dur_us, "<f4"),
        (tracks.name, "<u4"),
        (tracks.row, "<i4"),
        (tracks.module, "<i4"),
        (tracks.launch, "<i4"),
        (tracks.call, "<i4"),
        (tracks.lane, "<u2"),
        (tracks.depth, "<u2"),
        (tracks.group, "<i2"),
        (tracks.account, "<i2"),
    )
    names = [clean(name, _LONGEST_TEXT) for name in tracks.names]
    bars = short_names([*map(_without_path, names)], _LONGEST_BAR)
    texts = {
        "names": [clean(name, _LONGEST_LABEL) for name in names],
        "bars": bars,
        "calls": [_call_words(call) for call in tracks.calls],
    }
    return {
        "step": clean(tracks.step, _LONGEST_NAME),
        "role": tracks.role,
        "start_us": tracks.start_us,
        "length_us": tracks.length_us,
        "lanes": [
            {"title": clean(lane.title, _LONGEST_NAME), "kind": lane.kind, "thread": lane.thread}
            for lane in tracks.lanes
        ],
        "count": len(tracks.lane),
        "left_out": tracks.left_out,
        "curves": [
            {"title": curve.title, "unit": curve.unit, "is_share": curve.is_share, "points": curve.points}
            for curve in tracks.curves
        ],
        "texts": _deflated(json.dumps(texts).encode()),
        "events": _deflated(b"".join(values.astype(kind).tobytes() for values, kind in arrays)),
    }


def _deflated(content: bytes) -> str:
    return base64.b64encode(gzip.compress(content, mtime=0)).decode()


def _without_path(name: str) -> str:
    """Shortens a Python frame to its function and line, a module to its name."""
    frame, call = PYTHON_FRAME.match(name), BUILT_IN_CALL.match(name)
    if frame is not None:
        return function_source(name[frame.end() :], line_source(frame["path"], frame["line"]))
    return call["name"] if call is not None else name.removeprefix(MODULE_PREFIX)


def _call_words(call: OpInputs) -> str:
    shapes = describe_shapes(call.shapes) if call.shapes else ""
    return clean(", ".join(filter(None, (shapes, call.dtype))), _LONGEST_LABEL)


def _time_tree(analysis: Analysis, timeline: StepTimeline | None) -> dict[str, Any]:
    """Gives the tree of the step's time, with its names once."""
    tree = tree_of_rows(analysis) if timeline is None or timeline.tree is None else timeline.tree
    kernels = _short_kernels(analysis)
    node_names = [clean(kernels.get(node.name, node.name), _LONGEST_LABEL) for node in tree.nodes]
    names = list(dict.fromkeys(node_names))
    places = {name: at for at, name in enumerate(names)}
    return {
        "by": tree.by,
        "names": names,
        "nodes": [
            [
                node.parent,
                places[name],
                node.kind,
                {account: round(us, 3) for account, us in node.us.items()},
                node.kernels,
                node.idle,
            ]
            for node, name in zip(tree.nodes, node_names, strict=True)
        ],
    }


def _widths(prefix: str, shares: Sequence[float]) -> str:
    """Gives rules that set the width of each part of a bar.

    Style attributes are against the content security policy.
    """
    return "".join(f".{prefix}{at}{{flex-grow:{share * 1000:.3f}}}" for at, share in enumerate(shares))


_OUTSIDE_SCRIPTS = {ord(character): f"\\u{ord(character):04x}" for character in "<>&"}


def _json_block(record: object) -> Markup:
    """Gives JSON for a script element, which no text can end.

    ASCII, since ``to_json`` gives nothing else.
    """
    return Markup(json.dumps(record, separators=(",", ":")).translate(_OUTSIDE_SCRIPTS))  # noqa: S704 - escaped


def _render(template: str, *, style: str, data: Mapping[str, Markup], **context: Any) -> str:
    """Renders the page with its style sheet and scripts inside.

    Its policy lets only these be used. The program of a page with data begins after the first paint.
    """
    style, script, program = _asset("assets/page.css") + style, _asset("assets/elements.js"), ""
    if data:
        style = _asset("vendor/uPlot.min.css") + style
        script += _asset("assets/start.js")
        program = "".join(map(_asset, ("vendor/uPlot.iife.min.js", *_SCRIPTS)))
    scripts = " ".join(f"'{_digest(text)}'" for text in (script, program) if text)
    return (
        _environment()
        .get_template(template)
        .render(
            {"sections": _SECTIONS, **context},
            style=Markup(style),  # noqa: S704 - our own files and numbers
            script=Markup(script),  # noqa: S704 - our own files
            program=Markup(program),  # noqa: S704 - our own files
            # Nothing is loaded; of what stands in the file, only this style sheet and these scripts count.
            policy=f"default-src 'none'; script-src {scripts}; style-src '{_digest(style)}'; "
            "img-src data:; base-uri 'none'; form-action 'none'",
            data=data,
            version=__version__,
        )
        + "\n"
    )


def _digest(text: str) -> str:
    return f"sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}"


@functools.cache
def _asset(name: str) -> str:
    return files("bottleneck.report.page").joinpath(name).read_text(encoding="utf-8")


_SECTIONS = (
    ("summary", "Summary"),
    ("findings", "Findings"),
    ("trust", "Trust"),
    ("start-up", "Start-up"),
    ("ranks", "Ranks"),
    ("ledger", "Ledger"),
    ("server", "Server"),
    ("icicle", "Icicle"),
    ("timeline", "Timeline"),
    ("roofline", "Roofline"),
    ("tables", "Tables"),
    ("memory", "Memory"),
)


@functools.cache
def _environment() -> Environment:
    environment = Environment(
        loader=PackageLoader("bottleneck.report.page"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.globals.update(chart_size=(WIDTH, HEIGHT), from_end=FROM_END, groups=GROUPS, most_beside=_MOST_BESIDE)
    environment.filters.update(
        shown=lambda text: clean(str(text), _LONGEST_TEXT),
        unbroken=_unbroken,
        prose=_with_code,
        label=lambda text: clean(text, _LONGEST_NAME),
        short_cells=_short_cells,
        zip=zip,
        share=format_share,
        kind=lambda section: type(section).__name__,
        # As the end of a class name: only plain words of ours.
        group=lambda text: text if re.fullmatch("[a-z-]+", text or "") else UNMODELLED,
        area=_area,
        extent=_extent,
    )
    return environment


def _short_cells(section: TableSection) -> list[list[str]]:
    """Gives the cells of a table row by row.

    The names of each column are shortened so that they stay different.
    """
    by_column = [
        short_names([clean(cell, _LONGEST_TEXT) for cell in cells], _LONGEST_NAME) if column.kind == "name" else cells
        for column, cells in zip(section.columns, zip(*(row.cells for row in section.rows), strict=True), strict=True)
    ]
    return [list(cells) for cells in zip(*by_column, strict=True)]


# Characters of a label and its value on a card that stand beside another pair on a phone.
_MOST_BESIDE = 18

_COMMAND = Markup(
    '<span class="in-line"><code>{}</code><button type="button" class="copy" hidden aria-label="Copy the command">Copy'
    "</button></span>"
)
# Names of a trace may hold backticks too: what a shell would take for a second command or a file gets no button.
_OUR_COMMAND = re.compile(r"`(bottleneck [^`;|&$<>()\\\n]+)`")


_NO_BREAK_SPACE = "\u00a0"
_PART_OF_WHOLE = re.compile(r"(?<=\d) of (?=[\d.]+\u00a0)")
# What a sentence sets between backticks. It may be a line of the user's file, so that it becomes no element.
_QUOTED = re.compile(r"(?<!\S)(\(?)`([^`]+)`(?=[.,;:)]*(?!\S))")


def _unbroken(text: str) -> str:
    """Cleans a text to read, and joins its numbers to their units.

    '217 of 383 ms' is one word too. Not for code to copy, which needs plain spaces.
    """
    joined = join_units(clean(str(text), _LONGEST_TEXT), _NO_BREAK_SPACE)
    return _PART_OF_WHOLE.sub(f"{_NO_BREAK_SPACE}of{_NO_BREAK_SPACE}", joined)


def _with_code(text: str) -> Markup:
    """Escapes a text; a command of ours between backticks becomes code to copy.

    What else stands between backticks is put into quotes.
    """
    parts = _OUR_COMMAND.split(clean(text, _LONGEST_TEXT))
    pieces = (
        _COMMAND.format(part) if at % 2 else escape(_QUOTED.sub(r"\1“\2”", _unbroken(part)))
        for at, part in enumerate(parts)
    )
    return Markup("").join(pieces)


def _area(values: Sequence[float]) -> str:
    """Gives the path of an area under these values.

    It is one unit of width per value, and 40 units high.
    """
    most = max(values, default=0.0) or 1.0
    heights = [f"{40 - 40 * value / most:.2f}" for value in values]
    points = " ".join(f"L{at} {height} L{at + 1} {height}" for at, height in enumerate(heights))
    return f"M0 40 {points} L{len(values)} 40 Z"


def _extent(bar: WaterfallBar, figure: Waterfall) -> Markup:
    """Position and width of a bar, in hundredths of the largest change."""
    width = max(abs(bar.change_us) / (figure.most_us or 1.0) * 100, 0.6)
    return Markup(f'x="{-width if bar.change_us < 0 else 0:.3f}" width="{width:.3f}"')  # noqa: S704 - numbers
