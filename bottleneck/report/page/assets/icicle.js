"use strict";
// The icicle: the step's time from the outermost Python frame or module down to ops; as wide as the time inside.

const BAR = 21, MOST_DEPTH = 26, TRUNK_SHARE = 0.97;

/** The nodes with their total, own and inner time, and with those inside them. */
function readTree({ names, nodes }) {
  const all = nodes.map(([parent, name, kind, us, kernels, idle], at) => ({
    at, parent, name: names[name], kind, us, kernels, idle, inner: [], own: sum(Object.values(us)), total: 0, accounts: { ...us },
  }));
  for (const node of [...all].reverse()) {
    node.total += node.own;
    const outer = all[node.parent];
    if (!outer) continue;
    outer.inner.unshift(node);
    outer.total += node.total;
    for (const [account, us] of Object.entries(node.accounts)) outer.accounts[account] = (outer.accounts[account] || 0) + us;
  }
  const top = all.filter((node) => node.parent < 0);
  const root = { at: -1, parent: -2, name: "the step", kind: "rest", inner: top, own: 0, total: sum(top.map((node) => node.total)), kernels: [], idle: [], accounts: {} };
  for (const node of top) for (const [account, us] of Object.entries(node.accounts)) root.accounts[account] = (root.accounts[account] || 0) + us;
  const outerOf = (node) => (node === root ? null : all[node.parent] || root);
  return { all, root, outerOf };
}

const groupOf = (account) => (words.accounts[account] || { group: account.split(".")[0] }).group;
const byTime = (accounts) => Object.entries(accounts).sort((a, b) => b[1] - a[1]);
const WAITING = (account) => account.startsWith("overhead.") && account !== "overhead.launch_floor";

function drawIcicle(host, packed) {
  const { all, root, outerOf } = readTree(packed);
  if (!all.length || !(root.total > 0)) { host.replaceChildren(make("p", { class: "note", text: "This analysis has no rows." })); return; }
  const what = { frames: "Python frame", modules: "module", ops: "op" }[packed.by];
  let zoomed = root, focused = null, hovered = null, wanted = "", boxes = [];
  // What only leads on to one place is left out at first.
  while (zoomed.inner.length && zoomed.inner[0].total > TRUNK_SHARE * root.total && zoomed.inner[0].inner.length) zoomed = zoomed.inner[0];
  const start = zoomed;

  const search = make("input", { type: "search", placeholder: `Search ${what}s`, "aria-label": `Search the icicle`, autocomplete: "off", on: { input: () => { wanted = search.value.trim().toLowerCase(); found(); draw(); } } });
  const count = make("span", { class: "count", role: "status" });
  const whole = make("button", { type: "button", class: "quiet", text: "Whole step", on: { click: () => zoom(root) } });
  const path = make("nav", { class: "crumbs", "aria-label": "Around this part" });
  const canvas = make("canvas", { tabindex: "0", role: "application", "aria-roledescription": "icicle", "aria-label": `Time of the step by ${what} and op, from outside to inside. Arrow keys go to what is inside, around and beside; Enter zooms to a part and marks it in the timeline. The table beneath has the same figures.` });
  const tip = make("div", { class: "tip", hidden: true }), table = make("div");
  host.replaceChildren(
    make("div", { class: "tools-row" }, search, count, whole), path, make("div", { class: "canvas icicle" }, canvas, tip),
    make("ul", { class: "legend" }, [...new Set(byTime(root.accounts).map(([account]) => groupOf(account)))].map((group) => make("li", {}, shape(group), group)), make("li", {}, make("i", { class: "waits", "aria-hidden": "true" }), "waiting")),
    make("p", { class: "note", text: `${packed.by === "frames" ? "Each part is a Python frame or module with the frames and ops that ran inside it" : `No Python frames${packed.by === "ops" ? " and no modules" : ""} are at hand: each part is ${packed.by === "ops" ? "an op with its shapes" : "a module with the modules and ops inside it"}`}; a part is as wide as its time per step, work of the device counts where it was launched. Colour: what takes the most of it; the stripe beneath: all of it. A click zooms and marks its kernels and idle time in the timeline.` }),
    table,
  );

  const colours = {};
  function readColours() {
    const style = getComputedStyle(document.documentElement);
    for (const name of [...GROUPS, ...GROUPS.map((group) => `on-${group}`), "ink", "soft", "raised", "paper", "accent", "hatch"]) colours[name] = style.getPropertyValue(`--${name}`).trim();
  }
  /** The name that the trace has, which that of a kernel shortens. */
  const wholeName = (node) => (node.kernels.length === 1 && words.kernels[node.kernels[0]].name === node.name ? analysis.kernels[node.kernels[0]].name : node.name);
  const matches = (node) => wholeName(node).toLowerCase().includes(wanted);

  /** The outermost parts with the words that are searched. */
  function found() {
    if (!wanted) { count.textContent = ""; return; }
    let us = 0, number = 0;
    (function look(node, isInside) {
      const mine = node !== root && matches(node);
      if (mine) { number++; if (!isInside) us += node.total; }
      for (const inner of node.inner) look(inner, isInside || mine);
    })(root, false);
    count.textContent = `${number} part${number === 1 ? "" : "s"}, ${formatUs(us)}, ${formatShare(us / root.total)}`;
  }

  function rowsOf(node) {
    const kernels = new Set(node.kernels), idle = new Set(node.idle);
    (function add(one) { for (const inner of one.inner) { inner.kernels.forEach((row) => kernels.add(row)); inner.idle.forEach((row) => idle.add(row)); add(inner); } })(node);
    return [...[...kernels].map((kernel) => ({ kernel })), ...[...idle].map((row) => ({ idle: row }))];
  }

  function zoom(node, { marks = false } = {}) {
    zoomed = node;
    focused = node === root ? null : node;
    const around = [];
    for (let outer = node; outer; outer = outerOf(outer)) around.unshift(outer);
    const hidden = around.length > 6 ? around.splice(1, around.length - 6) : [];
    path.replaceChildren(...around.flatMap((outer, at) => [
      at ? make("span", { class: "note", text: at === 1 && hidden.length ? `› … ${hidden.length} … ›` : "›" }) : null,
      outer === node ? make("b", { text: outer.name }) : make("button", { type: "button", class: "link", text: outer.name, on: { click: () => zoom(outer) } }),
    ]).filter(Boolean));
    if (marks) select(node === root ? null : rowsOf(node), node.name);
    drawInner();
    draw();
  }

  /** The parts inside the zoomed one by name, with their own and their whole time. */
  function drawInner() {
    const folds = new Map();
    (function add(node, open) {
      const name = node.kind === "rest" && node !== root ? "parts below a pixel" : node.name;
      const fold = folds.get(name) || { name, kind: node.kind, own: 0, total: 0, accounts: {}, nodes: [] };
      folds.set(name, fold);
      fold.own += node.own;
      fold.nodes.push(node);
      for (const [account, us] of Object.entries(node.us || {})) fold.accounts[account] = (fold.accounts[account] || 0) + us;
      if (!open.has(name)) fold.total += node.total; // what calls itself counts once
      for (const inner of node.inner) add(inner, new Set([...open, name]));
    })(zoomed, new Set());
    const rows = [...folds.values()].filter((fold) => fold.own > 0).sort((a, b) => b.own - a.own);
    const scale = scaleOf(zoomed.total);
    drawTable(table, {
      caption: `Time inside ${zoomed.name} by name`, noun: "part", rows, first: 8, search: (row) => row.name,
      columns: [
        { title: what === "op" ? "op" : `${what} or op`, kind: "place", text: (row) => row.name, whole: (row) => row.kind === "rest" ? row.name : wholeName(row.nodes[0]), shape: (row) => groupOf(byTime(row.accounts)[0][0]), share: (row) => row.own / rows[0].own },
        { title: `self, ${scale.unit}`, csv: "self us", kind: "number", sum: true, scale, value: (row) => row.own, text: () => "", help: "in itself, without what is inside it" },
        { title: "share", kind: "number", sum: true, scale: PERCENT, value: (row) => row.own / wallUs, text: () => "", help: "self time, of the step" },
        { title: `total, ${scale.unit}`, csv: "total us", kind: "number", text: (row) => showRate(scale, row.total), value: (row) => row.total, help: "with what is inside it" },
        { title: "mostly", kind: "words", text: (row) => nameOf(byTime(row.accounts)[0][0]) },
      ],
      details: (row) => facts(byTime(row.accounts).map(([account, us]) => [nameOf(account), formatUs(us)])),
      onPick: (row, name) => select(row && row.nodes.flatMap((node) => [...node.kernels.map((kernel) => ({ kernel })), ...node.idle.map((idle) => ({ idle }))]), name),
    });
  }

  let pending = false;
  function draw() { if (!pending) { pending = true; requestAnimationFrame(() => { pending = false; paint(); }); } }

  /** The boxes of the zoomed part and of all inside it that are as wide as a pixel. */
  function layOut(width) {
    boxes = [];
    let depth = 0;
    (function place(node, x, y) {
      const w = node.total / zoomed.total * width;
      if (w < 0.8 || y >= MOST_DEPTH) return;
      boxes.push({ node, x, y: y * BAR, w });
      depth = Math.max(depth, y + 1);
      let left = x;
      for (const inner of node.inner) { place(inner, left, y + 1); left += inner.total / zoomed.total * width; }
    })(zoomed, 0, 0);
    return depth * BAR;
  }

  function paint() {
    const width = canvas.clientWidth, ratio = devicePixelRatio || 1;
    if (!width) return;
    const height = layOut(width);
    canvas.style.height = `${height}px`;
    canvas.width = Math.round(width * ratio);
    canvas.height = Math.round(height * ratio);
    const pen = canvas.getContext("2d");
    pen.setTransform(ratio, 0, 0, ratio, 0, 0);
    pen.fillStyle = colours.raised;
    pen.fillRect(0, 0, width, height);
    pen.font = `11.5px ${getComputedStyle(document.body).fontFamily}`;
    pen.textBaseline = "middle";
    for (const { node, x, y, w } of boxes) paintBox(pen, node, x, y, w);
    for (const [node, colour] of [[hovered, colours.ink], [focused, colours.accent]]) {
      const box = node && boxes.find((one) => one.node === node);
      if (!box) continue;
      pen.strokeStyle = colour;
      pen.lineWidth = 2;
      pen.strokeRect(box.x + 1, box.y + 1, Math.max(box.w - 3, 1), BAR - 3);
    }
  }

  function paintBox(pen, node, x, y, w) {
    const accounts = byTime(node.accounts), [most] = accounts[0] || ["unknown"], group = groupOf(most), inside = Math.max(w - 1, 0.8);
    const isDim = wanted && (node === root || !matches(node));
    pen.globalAlpha = isDim ? 0.25 : 1;
    pen.fillStyle = colours[group] || colours.unknown;
    pen.fillRect(x, y, inside, BAR - 1);
    if (inside > 3) {
      let left = x;
      for (const [account, us] of accounts) { // the stripe: all accounts, largest first
        const part = us / node.total * inside;
        pen.fillStyle = colours[groupOf(account)] || colours.unknown;
        pen.fillRect(left, y + BAR - 5, part, 4);
        left += part;
      }
      pen.fillStyle = colours.raised;
      pen.fillRect(x, y + BAR - 6, inside, 1);
    }
    if (WAITING(most) && inside > 6) hatch(pen, x, y, inside, BAR - 6);
    if (w > 40) {
      pen.save();
      pen.beginPath();
      pen.rect(x, y, inside - 3, BAR);
      pen.clip();
      pen.fillStyle = isDim ? colours.ink : colours[`on-${group}`] || colours.ink;
      pen.fillText(w > 150 ? `${node.name}  ${formatUs(node.total)}` : node.name, x + 5, y + (BAR - 5) / 2);
      pen.restore();
    }
    pen.globalAlpha = 1;
  }

  /** Lines across time that waits, so that it differs from work without colour too. */
  function hatch(pen, x, y, w, h) {
    pen.save();
    pen.beginPath();
    pen.rect(x, y, w, h);
    pen.clip();
    pen.strokeStyle = colours.hatch;
    pen.lineWidth = 2;
    pen.beginPath();
    for (let at = x - (x % 9) - h; at < x + w; at += 9) { pen.moveTo(at, y + h); pen.lineTo(at + h, y); }
    pen.stroke();
    pen.restore();
  }

  const boxAt = (x, y) => boxes.find((box) => x >= box.x && x < box.x + box.w && y >= box.y && y < box.y + BAR) || null;
  function describe(node) {
    const kinds = { frame: "Python frame", line: "source line", module: "module", op: "op", rest: "" };
    return [
      node.kind === "line" && textOf(node.name) ? `${node.name}: ${textOf(node.name)}` : wholeName(node),
      [kinds[node.kind], `${formatUs(node.total)}, ${formatShare(node.total / wallUs)} of the step`, node.own && node.own < node.total ? `${formatUs(node.own)} in itself` : null].filter(Boolean).join(" · "),
      byTime(node.accounts).slice(0, 4).map(([account, us]) => `${nameOf(account)} ${formatUs(us)}`).join(", "),
    ];
  }
  function showTip(node, x, y) {
    hovered = node;
    tip.hidden = !node;
    if (node) {
      tip.replaceChildren(...describe(node).map((text, at) => make(at ? "span" : "b", { text: clean(text, 300) })));
      tip.style.left = `${Math.max(Math.min(x + 14, canvas.clientWidth - tip.offsetWidth - 8), 4)}px`;
      tip.style.top = `${Math.max(Math.min(y + 18, canvas.clientHeight - tip.offsetHeight - 4), 0)}px`;
    }
    draw();
  }
  canvas.addEventListener("pointermove", (event) => { const box = boxAt(event.offsetX, event.offsetY); showTip(box && box.node, event.offsetX, event.offsetY); });
  canvas.addEventListener("pointerleave", () => showTip(null));
  canvas.addEventListener("click", (event) => {
    const box = boxAt(event.offsetX, event.offsetY);
    showTip(null);
    if (box) zoom(box.node === zoomed ? outerOf(zoomed) || root : box.node, { marks: true });
  });
  canvas.addEventListener("keydown", (event) => {
    const node = focused || zoomed, outer = outerOf(node), beside = outer ? outer.inner : [node];
    const to = {
      ArrowDown: node.inner[0], ArrowUp: node === zoomed ? null : outer,
      ArrowRight: beside[beside.indexOf(node) + 1], ArrowLeft: beside[beside.indexOf(node) - 1],
    };
    if (event.key in to) {
      event.preventDefault();
      if (!to[event.key] || (node === zoomed && event.key !== "ArrowDown")) return;
      focused = to[event.key];
      announce(describe(focused).join(". "));
      draw();
    } else if (event.key === "Enter" && node !== root) { event.preventDefault(); zoom(node === zoomed && outer ? outer : node, { marks: true }); }
    else if (event.key === "Home") { event.preventDefault(); zoom(root); }
  });

  themeListeners.push(() => { readColours(); paint(); });
  new ResizeObserver(draw).observe(canvas);
  readColours();
  zoom(start);
}
