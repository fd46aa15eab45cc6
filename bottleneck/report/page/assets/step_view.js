"use strict";
// The timeline of the page: the choice of a step, search, what is known of an event or a stretch of time, and its keys.

const MOST_BARS = 240, MOST_NAMES = 6, MOST_STACK = 14;
const packedSteps = JSON.parse(byId("steps").textContent);

/** What other parts of the page ask of the timeline. */
const timeline = {
  show: null, // both are set once a step is drawn
  view: null,

  /**
   * Marks the intervals of these rows, zooms to them and brings them into view; rows as for `select`:
   * { kernel: N } and { idle: N } of the analysis, and { name } of events (a Python frame, a module, an op).
   */
  mark(rows, name = "", modules = null, note = "") {
    select(rows, name, modules, note);
    if (timeline.show) timeline.show();
    byId("timeline").scrollIntoView({ block: "start" });
  },
};

/** A link to an event, with its short name. */
const eventLink = (step, at, go, text = step.bars[step.events.name[at]]) => make("button", { type: "button", class: "link", text, title: nameOfEvent(step, at), on: { click: () => go(at) } });

function drawEvent(panel, step, at, { go, close, zoomTo }) {
  const group = step.events.group[at] >= 0 ? GROUPS[step.events.group[at]] : null;
  const facts = factsOfEvent(step, at).map(([title, value]) => {
    if (title === "stack") return ["stack, innermost first", make("ol", { class: "calls" }, value.slice(0, MOST_STACK).map((event) => make("li", {}, eventLink(step, event, go))), value.length > MOST_STACK ? make("li", { text: `${value.length - MOST_STACK} more` }) : null)];
    return [title, value.event === undefined ? value : [eventLink(step, value.event, go), ` ${value.words}`]];
  });
  panel.replaceChildren(
    make("div", { class: "pane-head" }, make("h3", {}, group && shape(group), make("span", { text: step.bars[step.events.name[at]] })),
      make("button", { type: "button", class: "quiet", text: "Zoom to it", on: { click: () => zoomTo(step.events.start[at], endOf(step, at)) } }), close),
    make("dl", { class: "facts" }, facts.map(([title, value]) => make("div", {}, make("dt", { text: title }), typeof value === "string" ? make("dd", { text: value }) : make("dd", {}, value)))),
  );
}

function drawSums(panel, step, range, { go, close, zoomTo }) {
  const sums = sumsOf(step, range.low, range.high), noun = sums.isHostOnly ? "threads of the step" : "device";
  const line = (name, entry) => make("tr", {}, make("td", { class: "k-words" }, name), make("td", { class: "k-number", text: formatUs(entry.us) }), make("td", { class: "k-number", text: formatShare(sums.us > 0 ? entry.us / sums.us : 0) }), make("td", { class: "k-number", text: String(entry.calls) }));
  const table = (title, rows) => make("table", { class: "static" }, make("thead", {}, make("tr", {}, [[title, "words"], ["time", "number"], ["share", "number"], ["times", "number"]].map(([text, kind]) => make("th", { scope: "col", class: `k-${kind}`, text })))), make("tbody", {}, rows));
  const left = sums.names.length - MOST_NAMES;
  panel.replaceChildren(
    make("div", { class: "pane-head" }, make("h3", { text: `${formatUs(sums.us)}, from ${formatUs(range.low)} to ${formatUs(range.high)} of the step` }),
      make("button", { type: "button", class: "quiet", text: "Zoom to it", on: { click: () => zoomTo(range.low, range.high) } }), close),
    make("p", { class: "sums" }, make("b", { text: formatUs(sums.busyUs) }), ` the ${noun} at work (${formatShare(sums.us > 0 ? sums.busyUs / sums.us : 0)}), `, make("b", { text: formatUs(sums.waitingUs) }), ` waiting (${formatShare(sums.us > 0 ? sums.waitingUs / sums.us : 0)})`),
    make("div", { class: "split even" },
      table("account", sums.accounts.map((entry) => line([shape((words.accounts[entry.key] || {}).group), nameOf(entry.key)], entry))),
      table("name", [...sums.names.slice(0, MOST_NAMES).map((entry) => line([eventLink(step, entry.at, go)], entry)), left > 0 ? line([`${left} more`], { us: sum(sums.names.slice(MOST_NAMES).map((entry) => entry.us)), calls: sum(sums.names.slice(MOST_NAMES).map((entry) => entry.calls)) }) : null].filter(Boolean))),
  );
  if (sums.hasOverlap) panel.append(make("p", { class: "note", text: "Work that runs at the same time counts for entry of its kernels." }));
  announce(`${formatUs(sums.us)}: ${noun} at work ${formatUs(sums.busyUs)}, waiting ${formatUs(sums.waitingUs)}; most of it ${sums.accounts.length ? nameOf(sums.accounts[0].key) : "nothing"}`);
}

/** The time of a step between its marks, as its bar has it; as recorded it may be longer by the work that it launched. */
const usBetweenMarks = (step) => (analysis.steps.each.find((entry) => clean(entry.name, 60) === step.step) || { us: step.length_us }).us;

const MOST_AT_SCALE = 8, CUT_AT = [0.1, 0.16];
/** Bars of the times of all steps; those that the file holds can be chosen. */
function drawStepTimes(host, steps, choose) {
  const times = analysis.steps.each, longest = (list) => list.reduce((most, entry) => Math.max(most, entry.us), 0), most = longest(times);
  const counted = longest(times.filter((entry) => !entry.set_aside)) || most;
  // Bars are to scale; of steps left out that are many times as long, a gap in the bar shows that it is longer.
  const top = most <= MOST_AT_SCALE * counted ? most : counted * 1.5;
  // Of many steps a bar is the slowest of some, so that none is thinner than can be seen.
  const perBar = Math.ceil(times.length / MOST_BARS), bars = [];
  for (let at = 0; at < times.length; at += perBar) bars.push(times.slice(at, at + perBar).reduce((slowest, entry) => (entry.us > slowest.us ? entry : slowest)));
  const svg = document.createElementNS("http://www.w3.org/2000/svg", "svg"), rects = [];
  svg.setAttribute("viewBox", `0 0 ${bars.length} 1`);
  svg.setAttribute("preserveAspectRatio", "none");
  svg.setAttribute("role", "img");
  svg.setAttribute("aria-label", `Times of ${withThousands(times.length, 0)} steps, in order, up to ${formatUs(most)}`);
  bars.forEach((bar, at) => {
    const rect = document.createElementNS("http://www.w3.org/2000/svg", "rect"), title = document.createElementNS("http://www.w3.org/2000/svg", "title"), height = top > 0 ? Math.min(Math.max(bar.us / top, 0.03), 1) : 1;
    for (const [name, value] of [["x", at + 0.08], ["width", 0.84], ["y", 1 - height], ["height", height]]) rect.setAttribute(name, value);
    title.textContent = clean(`${bar.name}: ${formatUs(bar.us)}${bar.set_aside ? `, left out: ${bar.set_aside}` : ""}`);
    rect.append(title);
    if (bar.set_aside) rect.setAttribute("class", "aside");
    const gap = bar.us > top ? document.createElementNS("http://www.w3.org/2000/svg", "rect") : null;
    if (gap) for (const [name, value] of [["class", "gap"], ["x", at], ["width", 1], ["y", CUT_AT[0]], ["height", CUT_AT[1] - CUT_AT[0]]]) gap.setAttribute(name, value);
    const place = steps.findIndex((step) => step.step === clean(bar.name, 60));
    if (place >= 0) rect.addEventListener("click", () => choose(place));
    rects.push([rect, place]);
    svg.append(rect, ...(gap ? [gap] : []));
  });
  const buttons = steps.map((step, at) => make("button", { type: "button", class: "quiet", "aria-pressed": "false", text: `${step.role}: ${step.step}, ${formatUs(usBetweenMarks(step))}`, on: { click: () => choose(at) } }));
  const asides = times.filter((entry) => entry.set_aside).length;
  host.replaceChildren(
    make("div", { class: "step-times", style: { "max-width": `${bars.length * 3.2}rem` } }, svg),
    make("div", { class: "tools-row", role: "group", "aria-label": "Steps that this file holds" }, buttons, make("span", { class: "note", text: `${withThousands(times.length, 0)} steps, up to ${formatUs(most)}${asides ? `; dashed: ${withThousands(asides, 0)} left out of the analysis` : ""}${most > top ? "; bars with a gap are longer than drawn" : ""}${perBar > 1 ? `; a bar is the slowest of ${perBar}` : ""}` })),
  );
  return (chosen) => {
    buttons.forEach((button, at) => button.setAttribute("aria-pressed", String(at === chosen)));
    for (const [rect, place] of rects) { rect.classList.toggle("held", place >= 0); rect.classList.toggle("shown", place === chosen && place >= 0); }
  };
}

const KEYS = [["drag", "sum of a stretch"], ["click", "details"], ["Ctrl or ⌘ + wheel, + −", "zoom"], ["Shift + drag, ← →", "move"], ["Z", "zoom to what is chosen"], ["R", "sum of the view"], ["N P", "next, previous"], ["/", "search"], ["Home", "whole step"], ["Esc", "clear"]];

const KINDS = [["device", "of kernels"], ["idle", "waiting"], ["ranges", "of marked ranges"], ["frames", "of Python"], ["host", "of ops and calls"]];

function drawTimeline(host, packed) {
  let step = null, chart = null, place = null, searched = "";
  const canvas = make("canvas", { tabindex: "0", role: "application", "aria-roledescription": "timeline" }), tip = make("div", { class: "tip", hidden: true });
  const panel = make("section", { class: "pane", "aria-label": "What is chosen in the timeline", hidden: true });
  const close = make("button", { type: "button", class: "quiet", text: "Close", on: { click: () => { clear(); canvas.focus({ preventScroll: true }); } } });
  const status = make("span", { role: "status" }), show = make("button", { type: "button", class: "quiet", text: "Show", on: { click: () => { zoomToMarks(); byId("timeline").scrollIntoView({ block: "start" }); } } });
  const marked = make("div", { class: "marked none", role: "group", "aria-label": "Marked in the timeline" }, status, show, make("button", { type: "button", class: "quiet", text: "Clear (Esc)", on: { click: () => select(null) } }));
  const button = (text, label, act) => make("button", { type: "button", class: "quiet", text, "aria-label": label, on: { click: act } });
  const lanes = make("details", { class: "lanes" }), note = make("p", { class: "note" }), whose = make("p", { class: "lede" }), times = make("div");
  const count = make("span", { class: "count", role: "status" });
  const search = make("input", { type: "search", class: "step-search", placeholder: "Search ops, kernels, frames", "aria-label": "Search the timeline", autocomplete: "off", on: {
    input: () => { searched = search.value; if (selected) select(null); else markWanted(); },
    keydown: (event) => {
      if (event.key === "Enter" && chart) { event.preventDefault(); canvas.dispatchEvent(new KeyboardEvent("keydown", { key: event.shiftKey ? "p" : "n" })); }
      if (event.key === "Escape") { search.value = searched = ""; markWanted(); }
    },
  } });
  const rankName = ({ rank }, at) => `rank ${rank}${at === 0 ? " (sets the pace)" : ""}`;
  const ranks = packed.ranks.length > 1 ? make("select", { "aria-label": "Rank in the timeline", on: { change: () => open(0, Number(ranks.value)) } }, packed.ranks.map((one, at) => make("option", { value: at, text: rankName(one, at) }))) : null;
  // The times are those of the rank that sets the pace; of another the file holds one step.
  const markStep = analysis.steps.each.length > 1 ? drawStepTimes(times, packed.ranks[0].shown, (at) => open(at)) : () => {};
  const act = (what) => () => { if (chart) what(); };
  host.replaceChildren(
    whose, times,
    make("div", { class: "tools-row" }, ranks, search, count,
      make("div", { class: "joined", role: "group", "aria-label": "Zoom and move" }, button("+", "Zoom in", act(() => chart.zoom(0.5))), button("−", "Zoom out", act(() => chart.zoom(2))), button("‹", "Move to earlier", act(() => chart.move(-0.4))), button("›", "Move to later", act(() => chart.move(0.4)))),
      button("Whole step", "Show the whole step", act(() => chart.setView(0, step.length_us))), button("Sum of view", "Sum up what is in view", act(() => chart.setRange(chart.view().low, chart.view().high))), lanes),
    make("div", { class: "canvas" }, canvas, tip), panel,
    make("div", { class: "keys" }, KEYS.map(([key, does]) => make("span", {}, make("kbd", { text: key }), ` ${does}`))),
    note, marked,
  );

  function zoomToMarks() {
    const marks = chart && chart.marks(), total = marks && sumOfMarks(step, marks);
    if (total && total.count) chart.showStretch(total.low, total.high);
  }
  timeline.show = zoomToMarks;
  timeline.view = () => ({ step: step.step, ...chart.view() });

  function zoomTo(low, high) { chart.showStretch(low, high); }
  function closePanel() { panel.hidden = true; panel.replaceChildren(); host.classList.remove("has-pane"); }
  function openPanel(draw) { draw({ go: (at) => chart.focus(at, { isSaid: true }), close, zoomTo }); panel.hidden = false; host.classList.add("has-pane"); panel.scrollTop = 0; }
  function clear() {
    if (chart) { chart.setRange(null); chart.focus(-1); }
    if (selected) select(null);
  }

  /** Marks what is chosen elsewhere, else what is searched for, and says how much that is. */
  function markWanted() {
    if (!chart) return;
    const marks = selected ? marksOfSelection(step, selected) : marksOfSearch(step, searched);
    const total = marks && sumOfMarks(step, marks), sumWords = !total ? "" : total.count ? `${total.count} interval${total.count === 1 ? "" : "s"} of this step, ${formatUs(total.us)}` : "no interval of this step";
    chart.setMarks(marks);
    status.textContent = selected ? `${clean(selected.name, 120)}: ${sumWords}${selected.note}` : "";
    count.textContent = selected || !total ? "" : total.count ? `${total.count}: ${KINDS.filter(([kind]) => total.of[kind]).map(([kind, does]) => `${formatUs(total.of[kind])} ${does}`).join(", ")}` : "nothing with these words";
    marked.classList.toggle("none", !selected);
  }

  /** Scrolls the page where the panel or the head of the page covers what is chosen. */
  function reveal(at) {
    const top = canvas.getBoundingClientRect().top + chart.top(at), highest = 90, lowest = innerHeight - panel.offsetHeight - 40;
    if (top < highest || top > lowest) scrollBy(0, top - (top < highest ? highest : Math.max(lowest, highest)));
  }

  const on = {
    focus(at) {
      if (at < 0) { closePanel(); return; }
      openPanel((actions) => drawEvent(panel, step, at, actions));
      reveal(at);
    },
    range(range) {
      if (range && range.high > range.low) openPanel((actions) => drawSums(panel, step, range, actions));
      else if (chart && chart.focused() < 0) closePanel();
    },
    search: () => search.focus(),
    /** An event and all of its row; a second click, and one beside all events, clears. */
    click(at) {
      const row = at >= 0 ? rowOfEvent(step, at) : null;
      select(row && [row], row ? step.bars[step.events.name[at]] : "");
      chart.focus(at);
    },
  };

  async function open(at, rank = 0) {
    const wanted = place = { at, rank };
    const opened = await readStep(packed.ranks[rank].shown[at]);
    if (place !== wanted) return; // another was chosen meanwhile
    if (chart) chart.remove();
    step = { ...opened, queue: rank === 0 ? analysis.queue : null };
    closePanel();
    chart = drawStep(canvas, tip, step, on);
    markStep(at);
    times.hidden = rank > 0;
    if (ranks) ranks.value = rank;
    lanes.replaceChildren(make("summary", { text: "Lanes" }), ...step.lanes.map((lane, number) => make("label", {}, make("input", { type: "checkbox", checked: true, on: { change: (event) => chart.setLane(number, event.target.checked) } }), lane.title)));
    lanes.hidden = step.lanes.length < 4;
    const one = packed.ranks[rank], all = analysis.ranks.length;
    whose.textContent = one.rank === null || all < 2 ? "" : `Rank ${one.rank}, ${rank === 0 ? `which sets the pace of ${all} ranks` : `one of ${all} ranks`}.${packed.ranks.length < all && packed.ranks.length > 1 ? ` This page shows ${packed.ranks.length} of them.` : ""}`;
    note.textContent = clean(`${step.step}${analysis.steps.count > 1 && at === 0 && rank === 0 ? ", the step of median length" : ""}, as it was recorded under the profiler: ${formatUs(step.length_us)}${formatUs(step.length_us) === formatUs(usBetweenMarks(step)) ? "" : ` with the work around its marks, ${formatUs(usBetweenMarks(step))} between them`}, ${withThousands(step.count, 0)} events${step.left_out ? `, and ${withThousands(step.left_out, 0)} left out, the shortest and those around the whole step` : ""}. Device work and idle time are coloured by the account of the ledger. A click on a row of a table or on a finding marks its intervals here.${chart.curves.some((curve) => curve.seldom) ? " No reading of some sensors falls into this step: their lines join the readings before and after it." : ""}`);
    markWanted();
  }

  selectionListeners.push((selection) => {
    if (selection && search.value) search.value = searched = "";
    if (chart && chart.focused() >= 0) chart.focus(-1);
    markWanted();
  });
  themeListeners.push(() => { if (chart) chart.repaint(); });
  document.addEventListener("keydown", (event) => { if (event.key === "Escape" && chart) clear(); });
  open(0);
}

if (packedSteps) {
  if (typeof DecompressionStream === "undefined") byId("timeline-view").replaceChildren(make("p", { class: "note", text: "This browser cannot unpack the timeline (it has no DecompressionStream)." }));
  else drawTimeline(byId("timeline-view"), packedSteps);
}
