"use strict";
// The ledger and its evidence: the rows of kernels and idle time behind an account, grouped, with sums that are the account's.

const analysis = JSON.parse(byId("analysis").textContent);
const words = JSON.parse(byId("words").textContent);
const wallUs = analysis.steps.wall_us;

/** Everything that the step's time went to: the rows of kernels and of idle time, each with its account. */
const evidenceRows = [
  ...analysis.kernels.map((kernel, at) => ({
    account: words.kernels[at].account, us: kernel.us, calls: kernel.calls, kernel: at,
    cause: [kernel.regime && words.regimes[kernel.regime].words, kernel.reason].filter(Boolean).join(": ") || "no more is known",
    work: words.kernels[at].call, kernelName: kernel.name, op: kernel.op, module: kernel.module, source: kernel.source,
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

const CUTS = [
  { title: "Causes", noun: "cause", of: (row) => row.cause, none: "" },
  { title: words.noun === "op" ? "Ops and shapes" : "Ops and shapes", noun: "row", of: (row) => row.work, none: "idle time" },
  { title: "Kernels", noun: "kernel", of: (row) => row.kernelName, none: "idle time", only: words.noun === "kernel" },
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

/** The time of an account as the table of the ledger shows it, in steps of its last decimal. */
function shownQuanta(key) {
  const line = [...document.querySelectorAll("#ledger-table tr[data-account]")].find((row) => row.dataset.account === key);
  const text = line ? line.querySelector("td.k-number").textContent : "";
  return text.startsWith("<") || text === "" ? null : Math.round(Number(text) * 10 ** ledgerScale.decimals);
}

const selectionListeners = [];
let selected = null;
/** Tells charts which rows of kernels and idle time are chosen, of which modules; null for none. */
function select(rows, name = "", modules = null) {
  const kernels = new Set(), idle = new Set();
  for (const row of rows || []) (row.kernel !== undefined ? kernels.add(row.kernel) : idle.add(row.idle));
  selected = rows && { kernels, idle, modules, name };
  for (const act of selectionListeners) act(selected);
}
document.addEventListener("keydown", (event) => { if (event.key === "Escape" && selected) select(null); });

/** The rows of kernels and idle time of which this is true. */
const rowsWhere = (holds) => [
  ...analysis.kernels.flatMap((row, kernel) => (holds(row, words.kernels[kernel].account) ? [{ kernel }] : [])),
  ...analysis.idle.flatMap((row, idle) => (holds(row, `overhead.${row.cause}`) ? [{ idle }] : [])),
];

/** The rows that a finding's gain would come from; all of the step where it names none. */
function rowsOfFinding(finding) {
  const claims = Object.keys(finding.claims), accounts = new Set(claims.filter((claim) => !claim.startsWith("kernel:")));
  const kernels = new Set(claims.filter((claim) => claim.startsWith("kernel:")).map((claim) => analysis.kernels[Number(claim.slice(7))]));
  return rowsWhere((row, account) => kernels.has(row) || accounts.has(account));
}

for (const button of document.querySelectorAll("button[data-finding]")) {
  const finding = analysis.findings.find((each) => each.slug === button.dataset.finding), rows = finding ? rowsOfFinding(finding) : [];
  button.hidden = !rows.length || !byId("step") || byId("step").textContent === "null";
  const name = finding ? finding.title : "";
  button.addEventListener("click", () => {
    if (selected && selected.name === name) { select(null); return; }
    select(rows, name);
    byId("timeline").scrollIntoView({ block: "start" });
  });
  selectionListeners.push((selection) => button.setAttribute("aria-pressed", String(selection !== null && selection.name === name)));
}

function showAccount(key, { scroll = true } = {}) {
  const entries = accountsOf(key);
  if (!entries.length) return;
  const name = key.startsWith(words.whole_group) ? key.slice(words.whole_group.length) : `${words.accounts[key].group}: ${words.accounts[key].label}`;
  if (scroll && selected && selected.name === name) { select(null); return; }
  for (const element of document.querySelectorAll("[data-account]")) {
    const mine = element.dataset.account === key;
    element.classList.toggle("chosen", mine);
    if (element.tagName === "BUTTON") element.setAttribute("aria-pressed", String(mine));
  }
  const accounts = new Set(entries.map((entry) => entry.account));
  const rows = evidenceRows.filter((row) => accounts.has(row.account) && row.us > 0);
  const us = sum(entries.map((entry) => entry.us)), missing = us - sum(rows.map((row) => row.us));
  // Analyses made by hand or by other versions may hold less: the rest is a row too, so that the sum stays the account's.
  if (missing > 1e-6 * wallUs) rows.push({ account: key, us: missing, calls: 0, cause: "in no row of this analysis", work: null, kernelName: null });
  const meaning = entries.length === 1 ? words.accounts[entries[0].account].meaning : entries.map((entry) => words.accounts[entry.account].label).join(", ");
  const quanta = shownQuanta(key);
  const panel = byId("evidence"), tabs = make("div");
  panel.replaceChildren(
    make("h3", {}, shape(entries[0].group), make("span", { text: name })),
    make("p", { class: "note", text: `${meaning ? `${meaning}. ` : ""}${formatUs(us)} per step, ${formatShare(us / wallUs)} of it.` }),
    tabs,
  );
  const cuts = CUTS.filter((cut) => foldRows(rows, cut).some((fold) => fold.name !== cut.none));
  drawTabs(tabs, `What ${name} consists of`, cuts.map((cut) => ({
    title: cut.title,
    draw: (host) => drawTable(host, {
      caption: `${name}, by ${cut.title.toLowerCase()}`, noun: cut.noun, rows: foldRows(rows, cut),
      search: (fold) => fold.name,
      totals: quanta === null ? {} : { us: quanta },
      columns: [
        { title: cut.title, kind: "name", text: (fold) => fold.name, share: (fold) => fold.us / us },
        { title: "calls", kind: "number", text: (fold) => fold.calls ? formatCalls(fold.calls) : "", value: (fold) => fold.calls, help: "per step; of idle time, gaps" },
        { title: ledgerScale.unit, key: "us", csv: "us", kind: "number", sum: true, scale: ledgerScale, value: (fold) => fold.us, text: () => "" },
        { title: "share", csv: "share", kind: "number", sum: true, scale: PERCENT, value: (fold) => fold.us / wallUs, text: () => "", help: "of the step" },
      ],
      details: (fold) => evidenceDetails(fold),
      onPick: (fold, text) => select(fold && fold.rows, text),
    }),
  })));
  select(rows, name);
  if (scroll) panel.scrollIntoView({ behavior: matchMedia("(prefers-reduced-motion: reduce)").matches ? "auto" : "smooth", block: "nearest" });
}

/** The largest rows of a fold, each with what is known of it. */
function evidenceDetails(fold) {
  const largest = [...fold.rows].sort((a, b) => b.us - a.us).slice(0, 8);
  const left = fold.rows.length - largest.length;
  return make("ul", { class: "told" }, largest.map((row) => make("li", {
    text: [formatUs(row.us), row.work, row.cause, row.module, row.source].filter(Boolean).join(" · "),
  })), left > 0 ? make("li", { text: `${left} more, ${formatUs(fold.us - sum(largest.map((row) => row.us)))}` }) : null);
}

for (const button of document.querySelectorAll("button[data-account]")) {
  button.setAttribute("aria-pressed", "false");
  button.addEventListener("click", () => {
    showAccount(button.dataset.account, { scroll: true });
    if (button.classList.contains("seg")) byId("ledger").scrollIntoView({ block: "start" });
  });
}
