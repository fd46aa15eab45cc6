"use strict";
// The ledger and its evidence: the rows of kernels and idle time behind an account, grouped, with sums that are the account's.

/** The rows that the file holds by column. */
function unpackRows({ count, columns }) {
  const valueAt = ({ values, at }, row) => values[at ? at[row] : row];
  return Array.from({ length: count }, (_, row) => Object.fromEntries(Object.entries(columns).map(([name, column]) => [name, valueAt(column, row)])));
}

/** A kernel's op and shapes, or its whole name where that is what its row leads with. */
const wholeCall = (at) => (words.kernels[at].call === words.kernels[at].name ? analysis.kernels[at].name : words.kernels[at].call);

const analysis = JSON.parse(byId("analysis").textContent);
analysis.idle = unpackRows(analysis.idle);
const words = JSON.parse(byId("words").textContent);
const wallUs = analysis.steps.wall_us;

/** Everything that the step's time went to: the rows of kernels and of idle time, each with its account. */
const evidenceRows = [
  ...analysis.kernels.map((kernel, at) => ({
    account: words.kernels[at].account, us: kernel.us, calls: kernel.calls, kernel: at,
    cause: [kernel.regime && words.regimes[kernel.regime].words, kernel.reason].filter(Boolean).join(": ") || "no more is known",
    work: words.kernels[at].call, kernelName: words.kernels[at].name, op: kernel.op, module: kernel.module, source: kernel.source,
  })),
  ...analysis.idle.map((idle, at) => ({
    account: `overhead.${idle.cause}`, us: idle.us, calls: idle.calls, idle: at,
    cause: idle.detail || "in no call or op that is recorded",
    work: null, kernelName: null, op: null, module: idle.module, source: idle.source,
  })),
];

/** The accounts that a key of the ledger stands for: itself, or all of a group. */
function accountsOf(key) {
  const group = key.startsWith(words.whole_group) ? key.slice(words.whole_group.length) : null;
  return analysis.ledger.filter((entry) => entry.us > 0 && (group ? entry.group === group : entry.account === key));
}

const CAUSES = { title: "Causes", noun: "cause", of: (row) => row.cause, none: "" };
const ACCOUNTS = { title: "Accounts", noun: "account", of: (row) => row.account && nameOf(row.account), none: "in no row of this analysis" };
const CUTS = [
  { title: "Ops and shapes", noun: "row", of: (row) => row.work, whole: (row) => row.work && wholeCall(row.kernel), none: "idle time" },
  { title: "Kernels", noun: "kernel", of: (row) => row.kernelName, whole: (row) => row.kernelName && analysis.kernels[row.kernel].name, none: "idle time", only: words.noun === "kernel" },
  { title: "Modules", noun: "module", of: (row) => row.module, none: "in no module" },
  { title: "Source lines", noun: "line", of: (row) => row.source, none: "line not known" },
].filter((cut) => cut.only !== false);

/** Rows of one name as one row, most time first. */
function foldRows(rows, cut) {
  const folds = new Map();
  for (const row of rows) {
    const name = cut.of(row) || cut.none;
    const fold = folds.get(name) || { name, us: 0, calls: 0, rows: [] };
    fold.us += row.us;
    fold.calls += row.calls;
    fold.rows.push(row);
    folds.set(name, fold);
  }
  return [...folds.values()].sort((a, b) => b.us - a.us);
}

const ledgerScale = scaleOf(sum(analysis.ledger.map((entry) => entry.us)));

/** The time in a line of a table of the report, in steps of its last decimal; null where that is below what it shows. */
function shownQuanta(line) {
  const text = line ? line.querySelector("td.k-number").textContent : "";
  return text.startsWith("<") || text === "" ? null : Math.round(numberIn(text) * 10 ** ledgerScale.decimals);
}

/** Account, or all of a group, as people read it. */
function nameOf(key) {
  if (key.startsWith(words.whole_group)) return key.slice(words.whole_group.length);
  const { group, label } = words.accounts[key] || { group: key, label: key };
  return label === group ? group : `${group}: ${label}`;
}

const selectionListeners = [];
let selected = null;
/** Tells charts which rows of kernels and idle time and which names are chosen, of which modules; null for none. */
function select(rows, name = "", modules = null, note = "") {
  const kernels = new Set(), idle = new Set(), names = new Set();
  for (const row of rows || []) {
    if (row.kernel !== undefined) kernels.add(row.kernel);
    else if (row.idle !== undefined) idle.add(row.idle);
    else names.add(clean(row.name, 200));
  }
  selected = rows && { kernels, idle, names, modules, name, note };
  for (const act of selectionListeners) act(selected);
}
document.addEventListener("keydown", (event) => { if (event.key === "Escape" && selected) select(null); });

/** The rows of kernels and idle time of which this is true. */
const rowsWhere = (holds) => [
  ...analysis.kernels.flatMap((row, kernel) => (holds(row, words.kernels[kernel].account) ? [{ kernel }] : [])),
  ...analysis.idle.flatMap((row, idle) => (holds(row, `overhead.${row.cause}`) ? [{ idle }] : [])),
];

/** The rows that a finding's gain would come from, as the rules name them; none where it names no time. */
function rowsOfFinding(slug) {
  const { kernels, idle } = words.findings[slug] || { kernels: [], idle: [] };
  return [...kernels.map((kernel) => ({ kernel })), ...idle.map((row) => ({ idle: row }))];
}

for (const button of document.querySelectorAll("button[data-finding]")) {
  const finding = analysis.findings.find((each) => each.slug === button.dataset.finding), rows = rowsOfFinding(button.dataset.finding);
  button.hidden = !rows.length || byId("steps").textContent === "null";
  const name = finding ? finding.title : "";
  button.addEventListener("click", () => {
    if (selected && selected.name === name) { select(null); return; }
    const gain = finding.predicted_gain_us;
    timeline.mark(rows, name, null, gain && gain.high > 0 ? `; the change gains at most ${formatUs(gain.high)} per step` : "");
  });
  selectionListeners.push((selection) => button.setAttribute("aria-pressed", String(selection !== null && selection.name === name)));
}

/** Marks the line and the buttons of what is open, among all that have this attribute. */
function markOpen(attribute, key) {
  for (const element of document.querySelectorAll(`[data-${attribute}]`)) {
    const mine = element.dataset[attribute] === key;
    element.classList.toggle("chosen", mine);
    if (element.tagName === "BUTTON") element.setAttribute("aria-pressed", String(mine));
  }
}

function showAccount(key, { scroll = true } = {}) {
  const entries = accountsOf(key);
  if (!entries.length) return;
  const name = nameOf(key);
  if (scroll && selected && selected.name === name) { select(null); return; }
  markOpen("account", key);
  const accounts = new Set(entries.map((entry) => entry.account));
  const rows = evidenceRows.filter((row) => accounts.has(row.account) && row.us > 0);
  const meaning = entries.length === 1 ? words.accounts[entries[0].account].meaning : entries.map((entry) => words.accounts[entry.account].label).join(", ");
  const line = [...document.querySelectorAll("#ledger-table tr[data-account]")].find((each) => each.dataset.account === key);
  showEvidence(byId("evidence"), { name, group: entries[0].group, meaning, rows, us: sum(entries.map((entry) => entry.us)), line, cuts: [CAUSES, ...CUTS], hasCalls: true });
  select(rows, name);
  if (scroll) bringIntoView(byId("evidence"));
}

const bringIntoView = (element) => element.scrollIntoView({ behavior: matchMedia("(prefers-reduced-motion: reduce)").matches ? "auto" : "smooth", block: "nearest" });

/** A phase and what its time consists of. A row of kernels may run in several phases: here it has this one's time. */
function showPhase(phase, { scroll = true } = {}) {
  markOpen("phase", phase.name);
  const ofKernels = new Map(evidenceRows.filter((row) => row.kernel !== undefined).map((row) => [row.kernel, row]));
  const rows = phase.kernels.map(([kernel, us]) => ({ ...ofKernels.get(kernel), us, calls: 0 }));
  for (const [account, us] of Object.entries(phase.other_us)) rows.push({ account, us, calls: 0, cause: (words.accounts[account] || {}).label || account, work: null, kernelName: null, op: null, module: null, source: null });
  const line = [...document.querySelectorAll("tr[data-phase]")].find((each) => each.dataset.phase === phase.name);
  showEvidence(byId("phase-evidence"), { name: phase.name, group: null, meaning: "", rows, us: phase.us, line, cuts: [ACCOUNTS, ...CUTS], hasCalls: false });
  if (scroll) bringIntoView(byId("phase-evidence"));
}

/** Rows of kernels and idle time in a panel, folded in several ways; each adds up to the time in the line of the table. */
function showEvidence(panel, { name, group, meaning, rows, us, line, cuts, hasCalls }) {
  const missing = us - sum(rows.map((row) => row.us)), quanta = shownQuanta(line), tabs = make("div");
  // As in the table, whose shares are rounded so that they add up.
  const share = line && line.dataset.account ? line.cells[line.cells.length - 1].textContent.trim() : formatShare(us / wallUs);
  // Analyses made by hand or by other versions may hold less: the rest is a row too, so that the sum stays the same.
  const all = missing > 1e-6 * wallUs ? [...rows, { account: null, us: missing, calls: 0, cause: "in no row of this analysis", work: null, kernelName: null }] : rows;
  panel.replaceChildren(
    make("h3", {}, group && shape(group), make("span", { text: name })),
    make("p", { class: "note", text: `${formatUs(us)} per step, ${share} of it${meaning ? `: ${meaning}` : ""}.` }),
    tabs,
  );
  const useful = cuts.filter((cut) => foldRows(all, cut).some((fold) => fold.name !== cut.none));
  if (!useful.length) tabs.replaceChildren(make("p", { class: "note", text: "This analysis has no rows of it." }));
  else drawTabs(tabs, `What ${name} consists of`, useful.map((cut) => ({
    title: cut.title,
    draw: (host) => drawTable(host, {
      caption: `${name}, by ${cut.title.toLowerCase()}`, noun: cut.noun, rows: foldRows(all, cut),
      search: (fold) => fold.name,
      totals: quanta === null ? {} : { us: quanta },
      columns: [
        { title: cut.title, kind: "name", text: (fold) => fold.name, whole: cut.whole && ((fold) => cut.whole(fold.rows[0]) || fold.name), share: (fold) => fold.us / us },
        ...(hasCalls ? [{ title: "calls", kind: "number", text: (fold) => fold.calls ? formatCalls(fold.calls) : "", value: (fold) => fold.calls, help: "per step; of idle time, gaps" }] : []),
        { title: ledgerScale.unit, key: "us", csv: "us", kind: "number", sum: true, scale: ledgerScale, value: (fold) => fold.us, text: () => "" },
        { title: "share", csv: "share", kind: "number", sum: true, scale: PERCENT, value: (fold) => fold.us / wallUs, text: () => "", help: "of the step" },
      ],
      details: (fold) => evidenceDetails(fold),
      onPick: (fold, text) => select(fold && (hasCalls ? fold.rows : fold.rows.flatMap(rowsOfPart)), text),
    }),
  })));
}

/** The rows of the analysis behind a part of a phase: its row of kernels, or all idle time of its account. */
const rowsOfPart = (row) => (row.kernel !== undefined ? [{ kernel: row.kernel }] : rowsWhere((_, account) => account === row.account));

/** The largest rows of a fold, each with what is known of it. */
function evidenceDetails(fold) {
  const largest = [...fold.rows].sort((a, b) => b.us - a.us).slice(0, 8);
  const left = fold.rows.length - largest.length;
  return make("ul", { class: "told" }, largest.map((row) => make("li", {
    text: [formatUs(row.us), row.work, row.cause, row.module, row.source].filter(Boolean).join(" · "),
  })), left > 0 ? make("li", { text: `${left} more, ${formatUs(fold.us - sum(largest.map((row) => row.us)))}` }) : null);
}

for (const button of document.querySelectorAll("button[data-phase]")) {
  button.addEventListener("click", () => showPhase(analysis.phases.find((phase) => phase.name === button.dataset.phase)));
}
if (analysis.phases.length) showPhase(analysis.phases.reduce((most, phase) => (phase.us > most.us ? phase : most)), { scroll: false });

for (const button of document.querySelectorAll("button[data-account]")) {
  button.setAttribute("aria-pressed", "false");
  button.addEventListener("click", () => {
    showAccount(button.dataset.account, { scroll: true });
    if (button.classList.contains("seg")) byId("ledger").scrollIntoView({ block: "start" });
  });
}
