"use strict";
// One step over time on a canvas: lanes of the device and of host threads, idle gaps by cause; queue and sensors beneath.

const ROW = 17, HEAD = 20, GAP = 7, RULER = 22, CURVE = 40;

/** The events of the step as arrays, inflated; null where the browser cannot. */
async function readStep(packed) {
  if (typeof DecompressionStream === "undefined") return null;
  const bytes = Uint8Array.from(atob(packed.events), (character) => character.charCodeAt(0));
  const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("gzip"));
  const buffer = await new Response(stream).arrayBuffer();
  const count = packed.count;
  let at = 0;
  const next = (Kind) => { const part = new Kind(buffer.slice(at, at + count * Kind.BYTES_PER_ELEMENT)); at += count * Kind.BYTES_PER_ELEMENT; return part; };
  return { start: next(Float32Array), dur: next(Float32Array), name: next(Uint32Array), row: next(Int32Array), module: next(Int32Array), lane: next(Uint16Array), depth: next(Uint16Array), group: next(Int16Array) };
}

function drawTimeline(host, packed, events) {
  const colours = {};
  function readColours() {
    const style = getComputedStyle(document.documentElement);
    for (const name of [...GROUPS, "ink", "soft", "line", "sunk", "raised", "paper", "strong-line", "accent", ...GROUPS.map((group) => `on-${group}`)]) {
      colours[name] = style.getPropertyValue(`--${name}`).trim();
    }
  }
  const curves = packed.curves.map((curve) => ({ ...curve, shown: (value) => (curve.is_share ? formatShare(value) : `${threeDigits(value)} ${curve.unit}`.trim()) }));
  if (analysis.queue && analysis.queue.curve.length > 1) {
    const points = analysis.queue.curve.map(([us, depth]) => [us - packed.start_us, depth]);
    curves.unshift({ title: "queue depth: launches issued, kernels not yet done", points, isStepped: true, shown: (value) => value.toFixed(0) });
  }
  // A step may be shorter than the beat of the sensors: what is drawn then joins readings from outside of it.
  for (const curve of packed.curves.length ? curves : []) {
    const inside = curve.points.filter(([us]) => us >= 0 && us <= packed.length_us).length, [first, last] = [curve.points[0][0], curve.points.at(-1)[0]];
    const around = [first < 0 ? `${formatUs(-first)} before` : null, last > packed.length_us ? `${formatUs(last - packed.length_us)} after` : null].filter(Boolean);
    if (!curve.isStepped && !inside) curve.seldom = `no reading in this step, the nearest ${around.join(" and ")} it`;
  }
  for (const curve of curves) curve.most = Math.max(...curve.points.map(([, value]) => value), curve.is_share || curve.isStepped ? 1 : 0) || 1;

  // A line of the chart for each level of each lane, with its events in order of time.
  const lines = [];
  for (let at = 0; at < packed.count; at++) {
    const last = lines[lines.length - 1];
    if (last && last.lane === events.lane[at] && last.depth === events.depth[at]) last.end = at + 1;
    else lines.push({ lane: events.lane[at], depth: events.depth[at], begin: at, end: at + 1 });
  }
  const hidden = new Set();
  let view = { low: 0, high: packed.length_us }, chosen = null, hovered = -1, focused = -1, height = 0;

  const canvas = make("canvas", { tabindex: "0", role: "application", "aria-roledescription": "timeline", "aria-label": `Timeline of ${packed.step}: ${[...packed.lanes, ...curves].map((each) => each.title).join(", ")}. Arrow keys move, plus and minus zoom, N and P step through the events that are chosen.` });
  const tip = make("div", { class: "tip", hidden: true });
  const told = make("span", { role: "status" }), show = make("button", { type: "button", class: "quiet", text: "Show", on: { click: () => byId("timeline").scrollIntoView({ block: "start" }) } });
  const clear = make("button", { type: "button", class: "quiet", text: "Clear (Esc)", on: { click: () => select(null) } });
  const marked = make("div", { class: "marked none", role: "group", "aria-label": "Marked in the timeline" }, told, show, clear);
  const zoomed = (factor) => { const middle = (view.low + view.high) / 2, half = (view.high - view.low) / 2 * factor; setView(middle - half, middle + half); };
  const button = (text, label, act) => make("button", { type: "button", class: "quiet", text, "aria-label": label, on: { click: act } });
  const toggles = packed.lanes.length > 3 ? make("details", { class: "lanes" }, make("summary", { text: "Lanes" }), packed.lanes.map((lane, at) => make("label", {}, make("input", { type: "checkbox", checked: true, on: { change: (event) => { if (event.target.checked) hidden.delete(at); else hidden.add(at); layOut(); } } }), lane.title))) : null;
  host.replaceChildren(
    make("div", { class: "tools-row" }, button("+", "Zoom in", () => zoomed(0.5)), button("−", "Zoom out", () => zoomed(2)), button("Whole step", "Show the whole step", () => setView(0, packed.length_us)), toggles),
    make("div", { class: "canvas" }, canvas, tip),
    make("p", { class: "note", text: `${packed.step}${analysis.steps.count > 1 ? ", the step of median length" : ""}, as it was recorded: ${formatUs(packed.length_us)} under the profiler, ${packed.count} events${packed.left_out ? `, and ${packed.left_out} shorter ones left out` : ""}. Device work and idle time are coloured by the account of the ledger. Drag to move, scroll to zoom, double click for the whole step; a click on a row of a table or on a finding marks its intervals here.${curves.some((curve) => curve.seldom) ? " No reading of some sensors falls into this step: their lines join the readings before and after it." : ""}` }),
    marked,
  );

  function layOut() {
    let y = RULER;
    let lane = -1;
    for (const line of lines) {
      line.hidden = hidden.has(line.lane);
      if (line.hidden) continue;
      if (line.lane !== lane) { y += lane < 0 ? HEAD : HEAD + GAP; lane = line.lane; }
      line.y = y;
      y += ROW;
    }
    for (const curve of curves) { curve.top = y + HEAD + GAP; y = curve.top + CURVE; }
    height = y + 4;
    canvas.style.height = `${height}px`;
    draw();
  }

  const toX = (us, width) => (us - view.low) / (view.high - view.low) * width;
  function firstAfter(line, us) {
    let low = line.begin, high = line.end;
    while (low < high) { const middle = (low + high) >> 1; if (events.start[middle] + events.dur[middle] < us) low = middle + 1; else high = middle; }
    return low;
  }

  function isChosen(at) {
    if (!chosen || events.row[at] < 0) return false;
    const kind = packed.lanes[events.lane[at]].kind;
    if (kind === "idle") return chosen.idle.has(events.row[at]);
    return kind !== "ranges" && chosen.kernels.has(events.row[at]) && (!chosen.modules || chosen.modules.has(events.module[at]));
  }

  let pending = false;
  function draw() { if (!pending) { pending = true; requestAnimationFrame(() => { pending = false; paint(); }); } }

  function paint() {
    const width = canvas.clientWidth, ratio = devicePixelRatio || 1;
    if (!width) return;
    if (canvas.width !== Math.round(width * ratio) || canvas.height !== Math.round(height * ratio)) { canvas.width = Math.round(width * ratio); canvas.height = Math.round(height * ratio); }
    const pen = canvas.getContext("2d");
    pen.setTransform(ratio, 0, 0, ratio, 0, 0);
    pen.fillStyle = colours.raised;
    pen.fillRect(0, 0, width, height);
    pen.font = `11px ${getComputedStyle(document.body).fontFamily}`;
    pen.textBaseline = "middle";
    drawRuler(pen, width);
    let lane = -1;
    for (const line of lines) {
      if (line.hidden) continue;
      if (line.lane !== lane) {
        lane = line.lane;
        pen.fillStyle = colours.soft;
        pen.fillText(packed.lanes[lane].title, 4, line.y - HEAD / 2 + 1);
      }
      pen.fillStyle = colours.sunk;
      pen.fillRect(0, line.y, width, ROW - 2);
      drawLine(pen, line, width, chosen ? 0.22 : 1, null);
      if (chosen) drawLine(pen, line, width, 1, isChosen);
    }
    for (const curve of curves) drawCurve(pen, curve, width);
    for (const [at, colour] of [[hovered, colours.ink], [focused, colours.accent]]) if (at >= 0) outline(pen, at, width, colour);
  }

  /** The events of a line; those below a pixel are drawn once per pixel, so that the cost is the width of the chart. */
  function drawLine(pen, line, width, alpha, only) {
    const kind = packed.lanes[line.lane].kind;
    let edge = -1;
    for (let at = firstAfter(line, view.low); at < line.end; at++) {
      const x = toX(events.start[at], width);
      if (x > width) break;
      const w = events.dur[at] / (view.high - view.low) * width;
      if (only && !only(at)) continue;
      if (x + w < edge + 0.7) { if (!only && w < 0.3) { const to = firstAfter(line, view.low + (edge + 0.7) / width * (view.high - view.low)); if (to > at + 1) at = to - 1; } continue; }
      const group = events.group[at] >= 0 ? GROUPS[events.group[at]] : null;
      pen.globalAlpha = alpha * (group || kind === "ranges" ? 1 : 0.55);
      pen.fillStyle = group ? colours[group] : kind === "ranges" ? colours["strong-line"] : colours["strong-line"];
      pen.fillRect(Math.max(x, 0), line.y, Math.max(Math.min(x + w, width) - Math.max(x, 0) - (w > 3 ? 1 : 0), 0.8), ROW - 2);
      if (kind === "idle" && w > 6) hatch(pen, Math.max(x, 0), line.y, Math.min(x + w, width) - Math.max(x, 0) - 1);
      edge = x + Math.max(w, 0.8);
      if (w > 34 && alpha > 0.5) {
        pen.globalAlpha = 1;
        pen.save();
        pen.beginPath();
        pen.rect(Math.max(x, 0), line.y, Math.min(x + w, width) - Math.max(x, 0) - 3, ROW);
        pen.clip();
        pen.fillStyle = group ? colours[`on-${group}`] : kind === "ranges" ? colours.paper : colours.ink;
        pen.fillText(packed.names[events.name[at]], Math.max(x, 0) + 4, line.y + (ROW - 2) / 2 + 0.5);
        pen.restore();
      }
    }
    pen.globalAlpha = 1;
  }

  /** Lines across idle time, so that it differs from work without colour too. */
  function hatch(pen, x, y, w) {
    pen.save();
    pen.beginPath();
    pen.rect(x, y, w, ROW - 2);
    pen.clip();
    pen.strokeStyle = colours.raised;
    pen.globalAlpha *= 0.35;
    pen.lineWidth = 1;
    pen.beginPath();
    for (let at = x - (x % 6) - ROW; at < x + w; at += 6) { pen.moveTo(at, y + ROW); pen.lineTo(at + ROW, y); }
    pen.stroke();
    pen.restore();
  }

  function outline(pen, at, width, colour) {
    const line = lines.find((each) => at >= each.begin && at < each.end);
    if (!line || line.hidden) return;
    pen.strokeStyle = colour;
    pen.lineWidth = 2;
    pen.strokeRect(toX(events.start[at], width), line.y, Math.max(events.dur[at] / (view.high - view.low) * width, 2), ROW - 2);
  }

  function drawRuler(pen, width) {
    const span = view.high - view.low, rough = span / Math.max(width / 110, 2), power = 10 ** Math.floor(Math.log10(rough));
    const step = [1, 2, 5, 10].map((factor) => factor * power).find((each) => each >= rough);
    const scale = scaleOf(view.high), decimals = Math.max(0, -Math.floor(Math.log10(step / scale.size) + 1e-9));
    pen.strokeStyle = colours.line;
    pen.fillStyle = colours.soft;
    pen.lineWidth = 1;
    for (let us = Math.ceil(view.low / step) * step; us <= view.high; us += step) {
      const x = Math.round(toX(us, width)) + 0.5;
      pen.beginPath();
      pen.moveTo(x, RULER);
      pen.lineTo(x, height);
      pen.stroke();
      pen.fillText(`${(us / scale.size).toFixed(decimals)} ${scale.unit}`, x + 3, RULER / 2);
    }
  }

  /** An area from zero: steps of the queue; of a sensor the readings, joined by lines. */
  function drawCurve(pen, curve, width) {
    const { top, points, most } = curve, bottom = top + CURVE, toY = (value) => bottom - value / most * CURVE;
    pen.fillStyle = colours.soft;
    const title = `${curve.title} (0 to ${curve.shown(most)})`, whole = curve.seldom ? `${title}; ${curve.seldom}` : title;
    pen.fillText(pen.measureText(whole).width < width - 8 ? whole : title, 4, top - HEAD / 2);
    pen.fillStyle = colours.sunk;
    pen.fillRect(0, top, width, CURVE);
    pen.save();
    pen.beginPath();
    pen.rect(0, top, width, CURVE);
    pen.clip();
    pen.fillStyle = colours[curve.isStepped ? "memory" : "transfer"];
    pen.beginPath();
    pen.moveTo(toX(points[0][0], width), bottom);
    points.forEach(([us, value], at) => {
      const x = toX(us, width), y = toY(value);
      pen.lineTo(x, y);
      if (curve.isStepped) pen.lineTo(at + 1 < points.length ? toX(points[at + 1][0], width) : width, y);
    });
    pen.lineTo(curve.isStepped ? width : toX(points.at(-1)[0], width), bottom);
    pen.globalAlpha = curve.isStepped ? 1 : 0.2;
    pen.fill();
    pen.globalAlpha = 1;
    if (!curve.isStepped) {
      pen.strokeStyle = colours.ink;
      pen.lineWidth = 1.2;
      pen.beginPath();
      for (const [us, value] of points) pen.lineTo(toX(us, width), toY(value));
      pen.stroke();
      pen.fillStyle = colours.ink;
      for (const [us, value] of points) pen.fillRect(toX(us, width) - 2, toY(value) - 2, 4, 4);
    }
    pen.restore();
  }

  /** Two lines on the curve at this place: its title, and its value then (of a sensor the nearest reading). */
  function describeCurve(x, y) {
    const curve = curves.find((each) => y >= each.top - HEAD && y < each.top + CURVE);
    if (!curve) return null;
    const us = view.low + x / canvas.clientWidth * (view.high - view.low), { points } = curve;
    let at = points.findIndex(([each]) => each > us);
    at = at < 0 ? points.length - 1 : Math.max(at - 1, 0);
    if (!curve.isStepped && at + 1 < points.length && points[at + 1][0] - us < us - points[at][0]) at++;
    const [when, value] = points[at];
    return [curve.title, curve.isStepped ? `${curve.shown(value)}, ${formatUs(us)} after the step began` : `${curve.shown(value)}, read ${formatUs(Math.abs(when))} ${when < 0 ? "before" : "after"} the step began`];
  }

  function setView(low, high) {
    const span = Math.min(Math.max(high - low, packed.length_us * 1e-6, 0.01), packed.length_us);
    low = Math.min(Math.max(low, 0), packed.length_us - span);
    view = { low, high: low + span };
    draw();
  }

  function eventAt(x, y) {
    const line = lines.find((each) => !each.hidden && y >= each.y && y < each.y + ROW);
    if (!line) return -1;
    const width = canvas.clientWidth, us = view.low + x / width * (view.high - view.low), slack = 2 / width * (view.high - view.low);
    let best = -1;
    for (let at = firstAfter(line, us - slack); at < line.end && events.start[at] <= us + slack; at++) if (best < 0 || events.dur[at] > events.dur[best]) best = at;
    return best;
  }

  function describe(at) {
    const lane = packed.lanes[events.lane[at]], row = events.row[at], lined = [packed.names[events.name[at]], `${formatUs(events.dur[at])}, ${formatUs(events.start[at])} after the step began · ${lane.title}`];
    if (lane.kind === "idle" && row >= 0) {
      const cause = analysis.idle[row];
      lined.push([(words.accounts[`overhead.${cause.cause}`] || {}).meaning, cause.detail, cause.source, cause.module].filter(Boolean).join(" · "));
    } else if (lane.kind !== "ranges" && row >= 0) {
      const kernel = analysis.kernels[row];
      lined.push([words.kernels[row].call, `bound: ${words.kernels[row].bound}`, kernel.reason, kernel.source || kernel.module].filter(Boolean).join(" · "));
    }
    return lined.filter(Boolean);
  }

  function showTip(at, x, y) {
    const lined = at >= 0 ? describe(at) : x === undefined ? null : describeCurve(x, y);
    hovered = at;
    tip.hidden = !lined;
    if (lined) {
      tip.replaceChildren(...lined.map((text, place) => make(place ? "span" : "b", { text: clean(text, 300) })));
      const room = canvas.clientWidth - tip.offsetWidth - 8;
      tip.style.left = `${Math.max(Math.min(x + 14, room), 4)}px`;
      tip.style.top = `${y + 18}px`;
    }
    draw();
  }

  let dragged = null;
  canvas.addEventListener("pointerdown", (event) => { dragged = { x: event.clientX, low: view.low, high: view.high, moved: false }; canvas.setPointerCapture(event.pointerId); });
  canvas.addEventListener("pointermove", (event) => {
    if (dragged) {
      const by = (event.clientX - dragged.x) / canvas.clientWidth * (dragged.high - dragged.low);
      if (Math.abs(event.clientX - dragged.x) > 3) dragged.moved = true;
      if (dragged.moved) { showTip(-1); setView(dragged.low - by, dragged.high - by); }
      return;
    }
    showTip(eventAt(event.offsetX, event.offsetY), event.offsetX, event.offsetY);
  });
  canvas.addEventListener("pointerup", (event) => {
    const click = dragged && !dragged.moved;
    dragged = null;
    if (!click) return;
    const at = eventAt(event.offsetX, event.offsetY);
    if (at < 0 || events.row[at] < 0 || isChosen(at)) { select(null); return; }
    const kind = packed.lanes[events.lane[at]].kind;
    if (kind !== "ranges") select([kind === "idle" ? { idle: events.row[at] } : { kernel: events.row[at] }], packed.names[events.name[at]]);
  });
  canvas.addEventListener("pointerleave", () => showTip(-1));
  canvas.addEventListener("dblclick", () => setView(0, packed.length_us));
  canvas.addEventListener("wheel", (event) => {
    event.preventDefault();
    const span = view.high - view.low;
    if (Math.abs(event.deltaX) > Math.abs(event.deltaY)) { setView(view.low + event.deltaX / canvas.clientWidth * span, view.high + event.deltaX / canvas.clientWidth * span); return; }
    const factor = 1.0015 ** event.deltaY, us = view.low + event.offsetX / canvas.clientWidth * span;
    setView(us - (us - view.low) * factor, us + (view.high - us) * factor);
  }, { passive: false });
  canvas.addEventListener("keydown", (event) => {
    const span = view.high - view.low, key = event.key.toLowerCase();
    const act = { arrowleft: () => setView(view.low - span / 8, view.high - span / 8), arrowright: () => setView(view.low + span / 8, view.high + span / 8), "+": () => zoomed(0.6), "=": () => zoomed(0.6), "-": () => zoomed(1 / 0.6), home: () => setView(0, packed.length_us), n: () => step(1), p: () => step(-1) }[key];
    if (act) { event.preventDefault(); act(); }
  });

  // Time of an event without those inside it, which are other rows: the sums are those of rows.
  const selfUs = Float64Array.from(events.dur);
  for (let at = 1, line = 1; line < lines.length; line++) {
    if (lines[line].lane !== lines[line - 1].lane) continue;
    let around = lines[line - 1].begin;
    for (at = lines[line].begin; at < lines[line].end; at++) {
      while (around + 1 < lines[line - 1].end && events.start[around + 1] <= events.start[at]) around++;
      selfUs[around] -= events.dur[at];
    }
  }

  /** The next event among those that are chosen (or all that have a row), shown and said. */
  function step(by) {
    const wanted = [];
    for (let at = 0; at < packed.count; at++) if (chosen ? isChosen(at) : events.row[at] >= 0) wanted.push(at);
    if (!wanted.length) return;
    wanted.sort((a, b) => events.start[a] - events.start[b]);
    focused = wanted[(wanted.indexOf(focused) + by + wanted.length) % wanted.length];
    const middle = events.start[focused] + events.dur[focused] / 2, half = (view.high - view.low) / 2;
    if (middle < view.low || middle > view.high) setView(middle - half, middle + half);
    announce(describe(focused).join(". "));
    draw();
  }

  selectionListeners.push((selection) => {
    chosen = selection;
    focused = -1;
    let count = 0, us = 0;
    if (chosen) for (let at = 0; at < packed.count; at++) if (isChosen(at)) { count++; us += Math.max(selfUs[at], 0); }
    const found = count ? `${count} interval${count === 1 ? "" : "s"} of this step, ${formatUs(us)}` : "no interval of this step";
    told.textContent = chosen ? `${clean(chosen.name, 120)}: ${found}` : "";
    marked.classList.toggle("none", !chosen);
    draw();
  });
  themeListeners.push(() => { readColours(); paint(); }); // at once: a printer does not wait for the next frame
  new ResizeObserver(draw).observe(canvas);
  readColours();
  layOut();
}

const packedStep = JSON.parse(byId("step").textContent);
if (packedStep) {
  readStep(packedStep).then((events) => {
    if (events) drawTimeline(byId("timeline-view"), packedStep, events);
    else byId("timeline-view").replaceChildren(make("p", { class: "note", text: "This browser cannot unpack the timeline (it has no DecompressionStream)." }));
  });
}
