"use strict";
// Memory over the step with what lives at its peak, and the heat map of ranks by account.

if (analysis.memory) drawMemory(byId("memory-view"), analysis.memory);
if (analysis.ranks.length) drawRanks(byId("rank-view"), analysis.ranks);

function drawMemory(host, memory) {
  const frame = make("div", { class: "canvas", role: "img", "aria-label": `Memory over the step: at most ${formatSi(memory.peak_bytes, "B")} allocated, after ${formatUs(memory.peak_at_us)}.` });
  const kinds = make("div"), live = make("div");
  const known = memory.reserved_bytes === null ? "" : `, ${formatSi(memory.reserved_bytes, "B")} reserved at most`;
  host.replaceChildren(
    make("p", { class: "note", text: `Most at once: ${formatSi(memory.peak_bytes, "B")} allocated ${memory.device === null ? "by the host" : `on device ${memory.device}`}, ${formatUs(memory.peak_at_us)} after the host began the first step${known}.${memory.reason ? ` ${memory.reason[0].toUpperCase()}${memory.reason.slice(1)}.` : ""}` }),
    frame, make("h3", { text: "At the peak, by kind" }), kinds, make("h3", { text: "Allocations that live at the peak" }), live,
  );
  const css = (name) => getComputedStyle(document.documentElement).getPropertyValue(`--${name}`).trim();
  const hasReserved = memory.curve.some(([, , reserved]) => reserved !== null);
  let chart = null;
  function build() {
    if (chart) chart.destroy();
    const axis = { stroke: css("soft"), grid: { stroke: css("line"), width: 1 }, ticks: { stroke: css("line") }, font: "11px sans-serif" };
    const stepped = uPlot.paths.stepped({ align: 1 });
    chart = new uPlot({
      width: frame.clientWidth, height: 240, legend: { show: false }, scales: { x: { time: false }, y: { range: (_, low, high) => [0, high * 1.05] } }, cursor: { y: false },
      axes: [{ ...axis, values: (_, splits) => splits.map(formatUs) }, { ...axis, size: 76, values: (_, splits) => splits.map((value) => formatSi(value, "B")) }],
      series: [{}, { stroke: css("memory"), fill: css("chosen"), width: 1.5, paths: stepped, points: { show: false } }, ...(hasReserved ? [{ stroke: css("ink"), dash: [5, 4], width: 1, paths: stepped, points: { show: false } }] : [])],
      hooks: { draw: [(self) => {
        const x = self.valToPos(memory.peak_at_us, "x", true);
        self.ctx.strokeStyle = css("overhead");
        self.ctx.lineWidth = 2;
        self.ctx.beginPath();
        self.ctx.moveTo(x, self.bbox.top);
        self.ctx.lineTo(x, self.bbox.top + self.bbox.height);
        self.ctx.stroke();
      }] },
    }, [memory.curve.map(([us]) => us), memory.curve.map(([, used]) => used), ...(hasReserved ? [memory.curve.map(([, , reserved]) => reserved)] : [])], frame);
  }
  themeListeners.push(build);
  let width = 0;
  new ResizeObserver(() => { if (frame.clientWidth !== width) { width = frame.clientWidth; build(); } }).observe(frame);
  const [prefix, size] = memory.peak_bytes >= 1e9 ? ["G", 1e9] : memory.peak_bytes >= 1e6 ? ["M", 1e6] : ["k", 1e3];
  const scale = { unit: `${prefix}B`, size, decimals: 2 };
  const columns = (title, text, below) => [
    { title, kind: "name", text, below, share: (row) => row.bytes / memory.peak_bytes },
    { title: "allocations", kind: "number", text: (row) => (row.count === null ? UNKNOWN : String(row.count)), value: (row) => row.count },
    { title: scale.unit, csv: "B", kind: "number", sum: true, scale, value: (row) => row.bytes, text: () => "" },
    { title: "share", kind: "number", sum: true, scale: PERCENT, value: (row) => row.bytes / memory.peak_bytes, text: () => "", help: "of the peak" },
  ];
  if (memory.kinds.length) drawTable(kinds, { caption: "Memory at the peak by kind", noun: "kind", rows: memory.kinds, columns: columns("kind", (row) => row.kind, (row) => row.reason) });
  const others = [[memory.earlier_bytes, "allocated before recording began"], [memory.other_bytes, "too small to be listed"]].filter(([bytes]) => bytes > 0);
  const rows = [...memory.allocations, ...others.map(([bytes, op]) => ({ bytes, op, kind: "unknown", count: null, module: null, source: null, longest_us: null }))];
  const fold = (key, none) => {
    const folds = new Map();
    for (const row of rows) {
      const name = row[key] || (row.op && row.count === null ? row.op : none), one = folds.get(name) || { name, bytes: 0, count: 0, kinds: new Set() };
      one.bytes += row.bytes;
      one.count = row.count === null || one.count === null ? null : one.count + row.count;
      one.kinds.add(row.kind);
      folds.set(name, one);
    }
    return [...folds.values()].sort((a, b) => b.bytes - a.bytes);
  };
  const folded = (noun, key, none) => ({ title: `By ${noun}`, has: rows.some((row) => row[key]), draw: (host_) => drawTable(host_, {
    caption: `Memory at the peak by ${noun}`, noun, rows: fold(key, none), search: (row) => row.name,
    columns: columns(noun, (row) => row.name, (row) => [[...row.kinds].join(", "), noun === "line" && textOf(row.name)].filter(Boolean).join(" · ")),
  }) });
  drawTabs(live, "Allocations that live at the peak", [folded("module", "module", "in no module"), folded("line", "source", "line not known"), { title: "By op", has: true, draw: drawAllocations }].filter((tab) => tab.has), { isPrinted: true });
  function drawAllocations(host_) {
    drawTable(host_, { caption: "Allocations that live at the peak", noun: "allocation", rows, extra: [["kind", (row) => row.kind], ["line", (row) => row.source], ["module", (row) => row.module]], search: (row) => [row.op, row.module, row.source, row.kind].filter(Boolean).join(" "),
    columns: columns("op", (row) => row.op || "outside ops", (row) => [row.kind, row.source, row.module, row.longest_us === null ? null : `lives ${formatUs(row.longest_us)}`].filter(Boolean).join(" · ")) });
  }
}

/** Ranks by account: each cell holds the time and is the darker, the larger its share of the slowest step. */
function drawRanks(host, all) {
  const ranks = words.ranks.map((at) => all[at]), hidden = all.length - ranks.length;
  const most = Math.max(...ranks.map((rank) => rank.wall_us), 1e-9), scale = scaleOf(most);
  const accounts = [...new Set(ranks.flatMap((rank) => rank.ledger.filter((entry) => entry.us > 0).map((entry) => entry.account)))];
  const usOf = (rank, account) => sum(rank.ledger.filter((entry) => entry.account === account).map((entry) => entry.us));
  const total = (account) => sum(ranks.map((rank) => usOf(rank, account)));
  accounts.sort((a, b) => total(b) - total(a));
  // What is small in every rank is one column: the table of ranks below has all of them.
  const worth = accounts.filter((account) => ranks.some((rank) => usOf(rank, account) >= 0.01 * most));
  // The accounts in which ranks differ most come first: one of them makes a rank late, and may be small in all others.
  const spread = (account) => { const us = ranks.map((rank) => usOf(rank, account)); return Math.max(...us) - Math.min(...us); };
  const differing = [...worth].sort((a, b) => spread(b) - spread(a)).slice(0, 3);
  const large = [...new Set([...differing, ...worth])].slice(0, 6).sort((a, b) => total(b) - total(a));
  const small = accounts.filter((account) => !large.includes(account));
  const shownAccounts = small.length === 1 ? [...large, ...small] : large, rest = small.length > 1 ? small : [];
  const title = (account) => { const known = words.accounts[account]; return known && known.label !== known.group ? `${known.group}: ${known.label}` : account; };
  host.replaceChildren(watchWidth(make("div", { class: "scroll", tabindex: "0", role: "region", "aria-label": "Heat map of ranks by account" }, make("table", { class: "heat" },
    make("caption", { class: "hidden", text: `Ranks by account, in ${scale.unit} per step` }),
    make("thead", {}, make("tr", {}, make("th", { scope: "col", text: `rank, ${scale.unit}` }), make("th", { scope: "col", class: "k-number", text: "wall" }), make("th", { scope: "col", class: "k-number", text: "late, mean", title: "how much later than the first rank it reaches collectives, on average" }), shownAccounts.map((account) => make("th", { scope: "col", class: "k-number", text: title(account) })), rest.length ? make("th", { scope: "col", class: "k-number", text: `${rest.length} more` }) : "")),
    make("tbody", {}, ranks.map((rank) => {
      const us = [...shownAccounts.map((account) => usOf(rank, account)), ...(rest.length ? [sum(rest.map((account) => usOf(rank, account)))] : [])];
      const shown = columnOf(scale, us);
      return make("tr", {}, make("th", { scope: "row", text: String(rank.rank) }),
        make("td", { class: "k-number wall", text: shown.at(-1) }), make("td", { class: "k-number wall", text: showRate(scale, rank.skew_us) }),
        us.map((value, at) => make("td", { class: "k-number", style: { "--heat": `${Math.round(value / most * 100)}%`, "--tone": `var(--${words.accounts[shownAccounts[at]]?.group ?? "unknown"})` } }, make("span", { text: shown[at] }))));
    }))))), hidden ? make("p", { class: "note", text: `The slow ranks first, then the latest, then others at equal distances; ${hidden} of ${all.length} are not shown.` }) : "");
}
