"use strict";
// Puts the page together: the tables of the analysis, the download, and the account that is open at first.

const scaleOfRows = (rows) => scaleOf(sum(rows.map((row) => row.us)));

/** The scale that gives the highest rate of a table three digits. */
function rateScale(rows, field, unit) {
  const most = Math.max(0, ...rows.map((row) => row[field] || 0));
  const [prefix, size] = most >= 1e13 ? ["T", 1e12] : ["G", 1e9];
  const digits = most > 0 ? Math.floor(Math.log10(most / size)) : 0;
  return { unit: prefix + unit, size, decimals: Math.min(Math.max(2 - digits, 0), 3) };
}

function timeColumns(rows) {
  const scale = scaleOfRows(rows);
  return [
    { title: scale.unit, csv: "us", field: rows.some((row) => row.work_us !== undefined) ? null : "us", kind: "number", sum: true, isWhole: true, scale, value: (row) => row.us, text: () => "", help: "time per step" },
    { title: "share", csv: "share", field: rows.some((row) => row.work_us !== undefined) ? null : "share", kind: "number", sum: true, scale: PERCENT, value: (row) => row.us / wallUs, text: () => "", help: "of the step" },
  ];
}

function facts(pairs) {
  return make("dl", { class: "facts" }, pairs.filter(([, text]) => text !== null && text !== undefined && text !== "").map(
    ([label, text]) => make("div", {}, make("dt", { text: label }), make("dd", { text })),
  ));
}

/** The text of the line that a source names; nothing where that is not known. */
function textOf(source) {
  const line = (source || "").replace(/^backward of /, "");
  return Object.hasOwn(analysis.source_texts, line) ? analysis.source_texts[line] : null;
}

/** The three floors of a kernel as bars beside its time. */
function floorBars(kernel) {
  const bars = [["time", kernel.us, "step"], ["arithmetic at the peak", kernel.compute_us, "compute"], ["bytes at the bandwidth", kernel.memory_us, "memory"], ["launches", kernel.launch_us, "overhead"]];
  const most = Math.max(...bars.map(([, us]) => us || 0), 1e-9);
  return make("dl", { class: "floors" }, bars.map(([label, us, group]) => make("div", {},
    make("dt", { text: label }), make("dd", {}, make("span", { class: `floor f-${group}`, style: { width: `${(us || 0) / most * 100}%` } }), make("span", { text: us === null ? "not known" : formatUs(us) })))));
}

function kernelDetails(kernel, at) {
  const regime = kernel.regime && words.regimes[kernel.regime];
  return make("div", { class: "detail" },
    facts([
      ["kernel", kernel.name], ["op", kernel.op], ["shapes", kernel.shapes], ["dtype", [kernel.dtype, kernel.engine && kernel.engine !== "none" ? `${kernel.engine} engine` : null].filter(Boolean).join(", ")],
      ["module", kernel.module], ["line", kernel.source], ["text", textOf(kernel.source)], ["family", kernel.family],
      ["bound", `${words.kernels[at].bound}, ${kernel.confidence} confidence`],
      ["of roof", kernel.explained === null ? null : `${formatShare(kernel.explained)}${regime ? `: ${regime.words}, ${regime.meaning}` : ""}`],
      ["library", kernel.library || (kernel.library_reason ? `not known: ${kernel.library_reason}` : null)],
      ["why", kernel.reason], ["headroom", kernel.headroom_us === null ? null : `${formatUs(kernel.headroom_us)} per step, if it reached its floor`],
      ["work", kernel.flops === null ? null : formatSi(kernel.flops, "FLOP")],
      ["traffic", kernel.bytes_low === null ? null : kernel.bytes_low === kernel.bytes_high ? formatSi(kernel.bytes_low, "B") : `${formatSi(kernel.bytes_low, "B")} to ${formatSi(kernel.bytes_high, "B")}`],
    ]),
    floorBars(kernel));
}

const SOURCE_PLACE = /^(?:.* \()?([^():]+):(\d+)\)?$/, MOST_FILES = 6;

/** What the copied text says of a kernel besides what is on screen. */
const KERNEL_FIELDS = [
  ["kernel", (row) => row.name], ["op", (row) => row.op], ["shapes", (row) => row.shapes], ["dtype", (row) => row.dtype], ["module", (row) => row.module],
  ["line", (row) => row.source], ["text", (row) => textOf(row.source)], ["account", (row) => words.kernels[row.at].account], ["why", (row) => row.reason],
];
const PLACE_FIELDS = [["line", (row) => row.source], ["text", (row) => textOf(row.source)], ["module", (row) => row.module]];

/** Tables that the page holds for readers without JavaScript: those that tabs show as they are, and no others, stay. */
const staticTables = Object.fromEntries([...document.querySelectorAll(".static-table")].map((table) => { table.remove(); return [table.dataset.table, table]; }));

const pickKernels = (kernels) => (row, name) => select(row && kernels(row).map((kernel) => ({ kernel })), name);

const TABLES = [
  { title: words.noun === "op" ? "Ops and shapes" : "Kernels", key: "kernels", rows: analysis.kernels.map((kernel, at) => ({ ...kernel, at })), draw(host, rows) {
    const flops = rateScale(rows, "flops_per_s", "FLOP/s"), bytes = rateScale(rows, "bytes_per_s", "B/s");
    drawTable(host, {
      caption: `${words.noun === "op" ? "Ops" : "Kernels"} by time`, noun: words.noun === "op" ? "op" : "kernel", rows, path: (row) => `kernels.${row.at}`,
      search: (row) => [row.name, words.kernels[row.at].call, row.op, row.module, row.source, row.dtype, row.family, row.library, row.bound, row.reason].filter(Boolean).join(" "),
      columns: [
        { title: "op and shapes", kind: "name", text: (row) => words.kernels[row.at].call, whole: (row) => wholeCall(row.at), shape: (row) => words.kernels[row.at].group,
          below: (row) => [row.op === row.name || words.kernels[row.at].call === words.kernels[row.at].name ? null : words.kernels[row.at].name, row.source || row.module].filter(Boolean).join(" · "), share: (row) => row.us / rows[0].us },
        { title: "calls", field: "calls", kind: "number", text: (row) => formatCalls(row.calls), value: (row) => row.calls, help: "runs per step" },
        ...timeColumns(rows),
        { title: flops.unit, field: "flops_per_s", csv: "FLOP/s", kind: "number", text: (row) => showRate(flops, row.flops_per_s), value: (row) => row.flops_per_s, help: "FLOPs by the time" },
        { title: bytes.unit, field: "bytes_per_s", csv: "B/s", kind: "number", text: (row) => showRate(bytes, row.bytes_per_s), value: (row) => row.bytes_per_s, help: "bytes, each counted once, by the time" },
        { title: "of roof", field: "explained", csv: "explained", kind: "number", text: (row) => formatShare(row.explained), value: (row) => row.explained, help: "largest of three floors / time" },
        { title: "bound", kind: "words", text: (row) => words.kernels[row.at].bound, help: "the largest floor; ?: medium, ??: low confidence" },
        { title: "library", field: "library", kind: "words", text: (row) => row.library || UNKNOWN, help: "what computes it; -: not known, the row tells why" },
      ],
      details: (row) => kernelDetails(row, row.at), onPick: pickKernels((row) => [row.at]), extra: KERNEL_FIELDS,
    });
  } },
  { title: "Ops", key: "ops", rows: analysis.ops, only: words.noun === "kernel", draw: (host) => drawFolds(host, "ops", "op", (row) => [rowsWhere((each) => each.op === row.name)]) },
  { title: "Modules", key: analysis.module_classes.length ? "module_classes" : "modules", rows: analysis.module_classes.length ? analysis.module_classes : analysis.modules, draw(host) {
    const flat = make("div");
    host.replaceChildren(...(staticTables.modules ? [staticTables.modules, make("h3", { text: "All paths" })] : []), flat);
    drawFolds(flat, analysis.module_classes.length ? "module_classes" : "modules", "module", rowsOfModules);
  } },
  { title: "Source lines", key: "lines", rows: analysis.lines, draw: (host) => drawFolds(host, "lines", "line", (row) => [rowsWhere((each) => each.source === row.name)]) },
  { title: "Idle time", key: "idle", rows: analysis.idle.map((idle, at) => ({ ...idle, at })), draw: (host, rows) => drawTable(host, {
    caption: "Idle time by cause", noun: "cause", rows, path: (row) => `idle.${row.at}`, search: (row) => [row.cause, row.detail, row.source, row.module].filter(Boolean).join(" "),
    columns: [
      { title: "cause", kind: "words", text: (row) => row.cause, below: (row) => (words.accounts[`overhead.${row.cause}`] || {}).meaning, share: (row) => row.us / rows[0].us },
      { title: "where", kind: "name", text: (row) => row.detail || UNKNOWN, below: (row) => [row.source, textOf(row.source), row.module].filter(Boolean).join(" · ") },
      { title: "gaps", field: "calls", kind: "number", text: (row) => formatCalls(row.calls), value: (row) => row.calls },
      ...timeColumns(rows),
    ],
    details: (row) => facts([["cause", row.cause], ["in", row.detail], ["line", row.source], ["text", textOf(row.source)], ["module", row.module]]),
    onPick: (row, name) => select(row && [{ idle: row.at }], name), extra: PLACE_FIELDS,
  }) },
  { title: "Collectives", key: "collectives", rows: analysis.collectives, draw(host, rows) {
    const scale = scaleOf(Math.max(...rows.map((row) => row.us)));
    const one = (field, title, help) => ({ title, field, csv: `${title} us`, kind: "number", text: (row) => showRate(scale, row[field]), value: (row) => row[field], help });
    drawTable(host, {
      caption: "Collectives", noun: "collective", rows, path: (row) => `collectives.${rows.indexOf(row)}`, search: (row) => `${row.name} ${row.dtype || ""}`,
      columns: [
        { title: "collective", kind: "name", text: (row) => row.name, shape: () => "communication", below: (row) => [row.dtype, row.group_size && `${row.group_size} ranks`, row.reason].filter(Boolean).join(" · ") },
        { title: "calls", field: "calls", kind: "number", text: (row) => formatCalls(row.calls), value: (row) => row.calls },
        { title: "bytes", field: "bytes", kind: "number", text: (row) => formatSi(row.bytes, "B"), value: (row) => row.bytes, help: "per rank and step" },
        one("us", scale.unit, "time per step"), one("exposed_us", "exposed", "no kernel computed meanwhile"), one("transfer_us", "transfer", "all calls at the rate of the quickest of this size"), one("wait_us", "waiting", "for ranks that come later, or for a share of the device"),
        { title: "bus speed", field: "bus_bytes_per_s", csv: "B/s", kind: "number", text: (row) => formatSi(row.bus_bytes_per_s, "B/s"), value: (row) => row.bus_bytes_per_s, help: "of the quickest call, as nccl-tests defines it" },
      ],
    });
  } },
  { title: "Memory copies", rows: analysis.kernels.map((kernel, at) => ({ ...kernel, at })).filter((row) => ["copy", "transfer"].includes(row.bound)), draw: (host, rows) => drawTable(host, {
    caption: "Memory copies", noun: "copy", plural: "copies", rows, path: (row) => `kernels.${row.at}`, search: (row) => [row.name, row.op, row.source, row.module].filter(Boolean).join(" "),
    columns: [
      { title: "copy", kind: "name", text: (row) => words.kernels[row.at].name, whole: (row) => row.name, shape: (row) => words.kernels[row.at].group, below: (row) => [row.op, row.source || row.module].filter(Boolean).join(" · "), share: (row) => row.us / rows[0].us },
      { title: "calls", field: "calls", kind: "number", text: (row) => formatCalls(row.calls), value: (row) => row.calls },
      ...timeColumns(rows),
      { title: "bytes", field: "bytes_low", kind: "number", text: (row) => formatSi(row.bytes_low, "B"), value: (row) => row.bytes_low },
      { title: "rate", field: "bytes_per_s", csv: "B/s", kind: "number", text: (row) => formatSi(row.bytes_per_s, "B/s"), value: (row) => row.bytes_per_s },
    ],
    details: (row) => kernelDetails(row, row.at), onPick: pickKernels((row) => [row.at]), extra: KERNEL_FIELDS,
  }) },
  { title: "Critical path", rows: staticTables.critical_path ? [staticTables.critical_path] : [], draw: (host, rows) => host.replaceChildren(...rows) },
  { title: "Source", rows: sourceFiles(), draw: drawSource },
].filter((table) => table.rows.length && table.only !== false);

/** The files with most time among those of which lines are known by their text: each with its lines in order. */
function sourceFiles() {
  const files = new Map();
  for (const line of analysis.lines) {
    const place = SOURCE_PLACE.exec(line.name.replace(/^backward of /, "")), us = line.us + line.idle_us;
    if (!place || !(us > 0)) continue;
    const file = files.get(place[1]) || { name: place[1], us: 0, lines: new Map(), hasText: false };
    const row = file.lines.get(place[2]) || { number: Number(place[2]), us: 0, idle_us: 0, names: new Set() };
    row.us += us;
    row.idle_us += line.idle_us;
    row.names.add(line.name);
    row.text = row.text || textOf(line.name);
    file.us += us;
    file.hasText = file.hasText || Boolean(row.text);
    file.lines.set(place[2], row);
    files.set(place[1], file);
  }
  return [...files.values()].filter((file) => file.hasText).sort((a, b) => b.us - a.us).slice(0, MOST_FILES);
}

/** The lines that are known of the worst files, the hotter the more time they take. */
function drawSource(host, files) {
  const most = Math.max(...files.flatMap((file) => [...file.lines.values()].map((row) => row.us)));
  host.replaceChildren(
    make("p", { class: "note", text: "The recording holds the text of the lines that took time, and no others. The darker a line, the more of the step it takes, work and waiting together." }),
    ...files.flatMap((file) => {
      const scale = scaleOf(file.us), rows = [...file.lines.values()].sort((a, b) => a.number - b.number), cells = columnOf(scale, rows.map((row) => row.us));
      return [make("h3", { text: file.name }), watchWidth(make("div", { class: "scroll", tabindex: "0", role: "region", "aria-label": `Lines of ${file.name}` }, make("table", { class: "source" },
        make("caption", { class: "hidden", text: `Lines of ${file.name} by time` }),
        make("thead", {}, make("tr", {}, [["line", "number"], [scale.unit, "number"], ["share", "number"], ["text", "words"]].map(([text, kind]) => make("th", { scope: "col", class: `k-${kind}`, text })))),
        make("tbody", {}, rows.flatMap((row, at) => [
          at && row.number > rows[at - 1].number + 1 ? make("tr", { class: "gap" }, make("td", { class: "k-number", text: "⋮" }), make("td", { colspan: "3" })) : null,
          make("tr", { style: { "--heat": `${Math.round(row.us / most * 100)}%` } },
            make("th", { scope: "row", class: "k-number", text: String(row.number) }), make("td", { class: "k-number", text: cells[at] }), make("td", { class: "k-number", text: formatShare(row.us / wallUs) }),
            make("td", {}, make("button", { type: "button", class: "link", text: row.text || [...row.names][0], on: { click: () => select(rowsWhere((one) => row.names.has(one.source)), `${file.name}:${row.number}`) } }))),
        ].filter(Boolean))))))];
    }),
  );
}

/** A module's path without the numbers of its instances, or its row in the table of classes without its counts. */
const classesOf = (name) => name.split(/\.| > /).map((part) => part.replace(/_\d+$| x \d+$| \(\d+ in all\)$/, "")).join(".");

/** The rows that may belong to a module or a class of modules, and the modules that their intervals must have. */
function rowsOfModules(row) {
  const wanted = classesOf(row.name), isMine = (name) => name !== null && (analysis.module_classes.length ? classesOf(name) === wanted : name === row.name);
  const modules = new Set(analysis.modules.flatMap((module, at) => (isMine(module.name) ? [at] : [])));
  return [[...analysis.kernels.map((_, kernel) => ({ kernel })), ...analysis.idle.flatMap((each, idle) => (isMine(each.module) ? [{ idle }] : []))], modules];
}

const MOST_WAITS = 6;
/** Work and waiting folded by op, module or line; `behind` gives the rows of kernels and idle time of one. */
function drawFolds(host, key, noun, behind) {
  const rows = analysis[key];
  const both = rows.map((row, at) => ({ ...row, at, work_us: row.us, us: row.us + row.idle_us })).filter((row) => row.us > 0).sort((a, b) => b.us - a.us);
  const scale = scaleOfRows(both);
  const part = (field, title, help) => ({ title, field: field === "work_us" ? "us" : field, csv: `${title} us`, kind: "number", sum: true, isPart: true, scale, value: (row) => row[field], text: () => "", help });
  const largestGroup = (row) => {
    const us = Object.fromEntries(Object.entries(row.shares).map(([group, share]) => [group, share * row.work_us]));
    us.overhead = (us.overhead || 0) + row.idle_us; // waiting stands in overhead
    return Object.entries(us).sort((a, b) => b[1] - a[1])[0][0];
  };
  const waits = (row) => behind(row)[0].flatMap(({ idle }) => (idle === undefined ? [] : [analysis.idle[idle]])).sort((a, b) => b.us - a.us).slice(0, MOST_WAITS);
  drawTable(host, {
    caption: `Time by ${noun}`, noun, rows: both, path: (row) => `${key}.${row.at}`, search: (row) => row.name,
    columns: [
      { title: noun, kind: "place", text: (row) => row.name, below: (row) => noun === "line" && textOf(row.name), share: (row) => row.us / both[0].us, shape: largestGroup },
      { title: "calls", field: "calls", kind: "number", text: (row) => formatCalls(row.calls), value: (row) => row.calls },
      ...(both.some((row) => row.idle_us > 0) ? [part("work_us", "work", "time of kernels and ops"), part("idle_us", "waiting", "idle time in which the host was here")] : []),
      ...timeColumns(both),
    ],
    details: (row) => facts([
      ...Object.entries(row.shares).filter(([, share]) => share > 0).sort((a, b) => b[1] - a[1]).map(([group, share]) => [`${group}, of its work`, formatShare(share)]),
      ["waiting", row.idle_us > 0 ? formatUs(row.idle_us) : null],
      ...waits(row).map((idle) => [idle.cause, [formatUs(idle.us), idle.detail, idle.source].filter(Boolean).join(" · ")]),
    ]),
    onPick(row, name) {
      const [chosen, modules] = row ? behind(row) : [null];
      select(chosen, name, modules);
    },
  });
}

drawIcicle(byId("icicle-view"), JSON.parse(byId("tree").textContent));

const mainTabs = TABLES.length ? drawTabs(byId("table-view"), "Tables", TABLES.map((table) => ({ title: table.title, draw: (host) => table.draw(host, table.rows) })), { isPrinted: true }) : null;
if (!mainTabs) byId("table-view").replaceChildren(make("p", { class: "note", text: "This analysis has no rows." }));

{
  const button = byId("download");
  button.hidden = false;
  button.addEventListener("click", () => {
    const link = make("a", { download: "analysis.json" });
    link.href = URL.createObjectURL(new Blob([`${JSON.stringify(analysis, null, 1)}\n`], { type: "application/json" }));
    link.click();
    setTimeout(() => URL.revokeObjectURL(link.href), 10000);
  });
}

const largest = analysis.ledger.reduce((most, entry) => (most === null || entry.us > most.us ? entry : most), null);
if (largest) showAccount(largest.account, { scroll: false });
select(null);
