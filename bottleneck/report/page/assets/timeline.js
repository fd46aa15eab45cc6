"use strict";
// One step over time on a canvas: lanes of the device and of host threads, idle gaps by cause; queue and sensors beneath.

const ROW = 17, HEAD = 20, GAP = 7, RULER = 22, CURVE = 40, MOST_ARROWS = 60;

/** The curves beneath a step: the queue of launches and the sensors, each with its largest value. */
function curvesOf(step) {
  const curves = step.curves.map((curve) => ({ ...curve, shown: (value) => (curve.is_share ? formatShare(value) : `${threeDigits(value)} ${curve.unit}`.trim()) }));
  // A step may be shorter than the beat of the sensors: what is drawn then joins readings from outside of it.
  for (const curve of curves) {
    const inside = curve.points.filter(([us]) => us >= 0 && us <= step.length_us).length, [first, last] = [curve.points[0][0], curve.points.at(-1)[0]];
    const around = [first < 0 ? `${formatUs(-first)} before` : null, last > step.length_us ? `${formatUs(last - step.length_us)} after` : null].filter(Boolean);
    if (!inside) curve.seldom = `no reading in this step, the nearest ${around.join(" and ")} it`;
  }
  if (step.queue && step.queue.curve.length > 1) {
    const points = step.queue.curve.map(([us, depth]) => [us - step.start_us, depth]);
    curves.unshift({ title: "queue depth: launches issued, kernels not yet done", points, isStepped: true, shown: (value) => value.toFixed(0) });
  }
  for (const curve of curves) curve.most = Math.max(...curve.points.map(([, value]) => value), curve.is_share || curve.isStepped ? 1 : 0) || 1;
  return curves;
}

/** The chart of a step; what is pointed at, clicked or dragged over is told to `on`: focus(event), range(low, high). */
function drawStep(canvas, tip, step, on) {
  const { events, lines } = step, colours = {}, curves = curvesOf(step), hidden = new Set();
  let view = { low: 0, high: step.length_us }, marks = null, hovered = -1, focused = -1, height = 0, range = null, dragged = null, arrows = [];
  canvas.setAttribute("aria-label", `Timeline of ${step.step}: ${[...step.lanes, ...curves].map((part) => part.title).join(", ")}. Arrow keys move, plus and minus zoom, N and P step through the events that are marked, R sums up what is in view.`);

  function readColours() {
    const style = getComputedStyle(document.documentElement);
    for (const name of [...GROUPS, "ink", "soft", "line", "sunk", "raised", "paper", "strong-line", "accent", ...GROUPS.map((group) => `on-${group}`)]) {
      colours[name] = style.getPropertyValue(`--${name}`).trim();
    }
  }

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
  const toUs = (x) => view.low + x / canvas.clientWidth * (view.high - view.low);

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
        pen.fillText(step.lanes[lane].title, 4, line.y - HEAD / 2 + 1);
      }
      pen.fillStyle = colours.sunk;
      pen.fillRect(0, line.y, width, ROW - 2);
      drawLine(pen, line, width, marks ? 0.22 : 1, false);
      if (marks) drawLine(pen, line, width, 1, true);
    }
    for (const curve of curves) drawCurve(pen, curve, width);
    if (range) drawRange(pen, width);
    drawArrows(pen, width);
    for (const [at, colour] of [[hovered, colours.ink], [focused, colours.accent]]) if (at >= 0) outline(pen, at, width, colour);
  }

  /** The events of a line; those below a pixel are drawn once per pixel, so that the cost is the width of the chart. */
  function drawLine(pen, line, width, alpha, onlyMarked) {
    const usOfPixel = (view.high - view.low) / width;
    let edge = -1;
    for (let at = firstAfter(step, line, view.low); at < line.end; at++) {
      const x = toX(events.start[at], width);
      if (x > width) break;
      const w = events.dur[at] / usOfPixel;
      if (onlyMarked && !marks[at]) continue;
      if (x + w < edge + 0.7) { if (!onlyMarked && w < 0.3) { const to = firstAfter(step, line, view.low + (edge + 0.7) * usOfPixel); if (to > at + 1) at = to - 1; } continue; }
      const group = events.group[at] >= 0 ? GROUPS[events.group[at]] : null, isRange = line.kind === "ranges";
      pen.globalAlpha = alpha * (group || isRange ? 1 : line.kind === "frames" ? 0.32 : 0.55);
      pen.fillStyle = colours[group || "strong-line"];
      pen.fillRect(Math.max(x, 0), line.y, Math.max(Math.min(x + w, width) - Math.max(x, 0) - (w > 3 ? 1 : 0), 0.8), ROW - 2);
      if (line.kind === "idle" && w > 6) hatch(pen, Math.max(x, 0), line.y, Math.min(x + w, width) - Math.max(x, 0) - 1);
      edge = x + Math.max(w, 0.8);
      if (Math.min(x + w, width) - Math.max(x, 0) > 34) {
        pen.globalAlpha = alpha < 1 ? 0.6 : 1;
        pen.save();
        pen.beginPath();
        pen.rect(Math.max(x, 0), line.y, Math.min(x + w, width) - Math.max(x, 0) - 3, ROW);
        pen.clip();
        pen.fillStyle = alpha < 1 ? colours.ink : group ? colours[`on-${group}`] : isRange ? colours.paper : colours.ink;
        pen.fillText(step.bars[events.name[at]], Math.max(x, 0) + 4, line.y + (ROW - 2) / 2 + 0.5);
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

  const lineOf = (at) => lines.find((line) => at >= line.begin && at < line.end && !line.hidden);

  function outline(pen, at, width, colour) {
    const line = lineOf(at);
    if (!line) return;
    pen.strokeStyle = colour;
    pen.lineWidth = 2;
    pen.strokeRect(toX(events.start[at], width), line.y, Math.max(events.dur[at] / (view.high - view.low) * width, 2), ROW - 2);
  }

  function drawRange(pen, width) {
    const left = toX(range.low, width), right = toX(range.high, width);
    pen.fillStyle = colours.accent;
    pen.globalAlpha = 0.14;
    pen.fillRect(left, RULER, right - left, height - RULER);
    pen.globalAlpha = 1;
    pen.fillRect(left, 0, 1.5, height);
    pen.fillRect(right - 1.5, 0, 1.5, height);
    const words = formatUs(range.high - range.low), wide = pen.measureText(words).width + 10, x = Math.min(Math.max((left + right - wide) / 2, 0), width - wide);
    pen.fillStyle = colours.accent;
    pen.fillRect(x, 3, wide, RULER - 6);
    pen.fillStyle = colours.paper;
    pen.fillText(words, x + 5, RULER / 2);
  }

  /** Curves from each launch to the work that it issued, with a head. */
  function drawArrows(pen, width) {
    pen.strokeStyle = pen.fillStyle = colours.ink;
    pen.lineWidth = 1.3;
    for (const [launch, work] of arrows) {
      const from = lineOf(launch), to = lineOf(work);
      if (!from || !to) continue;
      const x0 = toX(events.start[launch], width), x1 = toX(events.start[work], width), isUp = to.y < from.y;
      const y0 = from.y + (isUp ? 0 : ROW - 2), y1 = to.y + (isUp ? ROW - 2 : 0), bend = (y1 - y0) / 2, head = isUp ? 6 : -6;
      pen.beginPath();
      pen.moveTo(x0, y0);
      pen.bezierCurveTo(x0, y0 + bend, x1, y1 - bend, x1, y1);
      pen.stroke();
      pen.beginPath();
      pen.moveTo(x1, y1);
      pen.lineTo(x1 - 3.5, y1 + head);
      pen.lineTo(x1 + 3.5, y1 + head);
      pen.fill();
    }
  }

  function arrowsOf(at) {
    if (at < 0) return [];
    if (events.launch[at] >= 0) return [[events.launch[at], at]];
    return step.lanes[events.lane[at]].kind === "host" ? launchedIn(step, at).slice(0, MOST_ARROWS).map((work) => [events.launch[work], work]) : [];
  }

  function drawRuler(pen, width) {
    const span = view.high - view.low, rough = span / Math.max(width / 110, 2), power = 10 ** Math.floor(Math.log10(rough));
    const step = [1, 2, 5, 10].map((factor) => factor * power).find((size) => size >= rough);
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
      const words_ = `${(us / scale.size).toFixed(decimals)} ${scale.unit}`;
      if (x + 3 + pen.measureText(words_).width <= width) pen.fillText(words_, x + 3, RULER / 2);
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
    const curve = curves.find(({ top }) => y >= top - HEAD && y < top + CURVE);
    if (!curve) return null;
    const us = view.low + x / canvas.clientWidth * (view.high - view.low), { points } = curve;
    let at = points.findIndex(([when]) => when > us);
    at = at < 0 ? points.length - 1 : Math.max(at - 1, 0);
    if (!curve.isStepped && at + 1 < points.length && points[at + 1][0] - us < us - points[at][0]) at++;
    const [when, value] = points[at];
    return [curve.title, curve.isStepped ? `${curve.shown(value)}, ${formatUs(us)} after the step began` : `${curve.shown(value)}, read ${formatUs(Math.abs(when))} ${when < 0 ? "before" : "after"} the step began`];
  }

  function setView(low, high) {
    const span = Math.min(Math.max(high - low, step.length_us * 1e-6, 0.01), step.length_us);
    low = Math.min(Math.max(low, 0), step.length_us - span);
    view = { low, high: low + span };
    draw();
  }
  /** Shows a stretch of time with some room around it. */
  const showStretch = (low, high) => { const room = Math.max((high - low) * 0.06, 2); setView(low - room, high + room); };
  const zoom = (factor, us = (view.low + view.high) / 2) => setView(us - (us - view.low) * factor, us + (view.high - us) * factor);
  const move = (share) => { const by = share * (view.high - view.low); setView(view.low + by, view.high + by); };

  function eventAt(x, y) {
    const line = lines.find(({ hidden: isHidden, y: top }) => !isHidden && y >= top && y < top + ROW);
    if (!line) return -1;
    const us = toUs(x), slack = 2 / canvas.clientWidth * (view.high - view.low);
    let best = -1;
    for (let at = firstAfter(step, line, us - slack); at < line.end && events.start[at] <= us + slack; at++) if (best < 0 || events.dur[at] > events.dur[best]) best = at;
    return best;
  }

  function showTip(at, x, y) {
    const lined = at >= 0 ? describeEvent(step, at) : x === undefined ? null : describeCurve(x, y);
    hovered = at;
    arrows = arrowsOf(focused >= 0 ? focused : hovered);
    tip.hidden = !lined;
    if (lined) {
      tip.replaceChildren(...lined.map((text, place) => make(place ? "span" : "b", { text: clean(text, 300) })));
      const room = canvas.clientWidth - tip.offsetWidth - 8;
      tip.style.left = `${Math.max(Math.min(x + 14, room), 4)}px`;
      tip.style.top = `${y + 18}px`;
    }
    draw();
  }

  function focus(at, { isSaid = false } = {}) {
    focused = at;
    arrows = arrowsOf(at);
    if (at >= 0) {
      const begin = events.start[at], end = endOf(step, at), half = (view.high - view.low) / 2, middle = (begin + end) / 2;
      if (end < view.low || begin > view.high) setView(middle - half, middle + half);
      if (isSaid) announce(describeEvent(step, at).join(". "));
    }
    draw();
    on.focus(at);
  }

  /** The next event among those that are marked (or all that have a row), shown and said. */
  function goOn(by) {
    const wanted = [];
    for (let at = 0; at < step.count; at++) if (marks ? marks[at] : rowOfEvent(step, at)) wanted.push(at);
    if (!wanted.length) return;
    wanted.sort((a, b) => events.start[a] - events.start[b]);
    const place = wanted.indexOf(focused);
    focus(wanted[place < 0 ? (by > 0 ? 0 : wanted.length - 1) : (place + by + wanted.length) % wanted.length], { isSaid: true });
  }

  function setRange(low, high) {
    range = low === null ? null : { low: Math.max(Math.min(low, high), 0), high: Math.min(Math.max(low, high), step.length_us) };
    draw();
    on.range(range);
  }

  const removal = new AbortController(), listen = (name, act, options = {}) => canvas.addEventListener(name, act, { ...options, signal: removal.signal });
  // A drag selects; with Shift, and of a finger, it moves.
  listen("pointerdown", (event) => {
    dragged = { x: event.clientX, us: toUs(event.offsetX), low: view.low, high: view.high, moved: false, moves: event.shiftKey || event.pointerType === "touch" };
    canvas.setPointerCapture(event.pointerId);
  });
  listen("pointermove", (event) => {
    if (!dragged) { showTip(eventAt(event.offsetX, event.offsetY), event.offsetX, event.offsetY); return; }
    const by = (event.clientX - dragged.x) / canvas.clientWidth * (dragged.high - dragged.low);
    if (Math.abs(event.clientX - dragged.x) > 3) dragged.moved = true;
    if (!dragged.moved) return;
    showTip(-1);
    if (dragged.moves) setView(dragged.low - by, dragged.high - by);
    else { range = { low: Math.max(Math.min(dragged.us, dragged.us + by), 0), high: Math.min(Math.max(dragged.us, dragged.us + by), step.length_us) }; draw(); }
  });
  listen("pointerup", (event) => {
    const { moved, moves } = dragged || { moved: true, moves: true };
    dragged = null;
    if (moved) { if (!moves && range) setRange(range.low, range.high); return; }
    const at = eventAt(event.offsetX, event.offsetY);
    if (range) setRange(null);
    showTip(-1);
    on.click(at === focused ? -1 : at);
  });
  listen("pointercancel", () => { dragged = null; });
  listen("pointerleave", () => showTip(-1));
  listen("dblclick", () => setView(0, step.length_us));
  listen("wheel", (event) => {
    if (Math.abs(event.deltaX) > Math.abs(event.deltaY)) { event.preventDefault(); move(event.deltaX / canvas.clientWidth); return; }
    if (!event.ctrlKey && !event.metaKey) return; // the page scrolls
    event.preventDefault();
    zoom(1.0015 ** event.deltaY, toUs(event.offsetX));
  }, { passive: false });
  listen("keydown", (event) => {
    if (event.ctrlKey || event.metaKey || event.altKey) return;
    const act = {
      arrowleft: () => move(-1 / 8), arrowright: () => move(1 / 8), "+": () => zoom(0.6), "=": () => zoom(0.6), "-": () => zoom(1 / 0.6), home: () => setView(0, step.length_us),
      n: () => goOn(1), p: () => goOn(-1), r: () => setRange(view.low, view.high), "/": on.search,
      z: () => { if (range) showStretch(range.low, range.high); else if (focused >= 0) showStretch(events.start[focused], endOf(step, focused)); },
    }[event.key.toLowerCase()];
    if (act) { event.preventDefault(); act(); }
  });
  const watcher = new ResizeObserver(draw);
  watcher.observe(canvas);
  readColours();
  layOut();
  return {
    setView, showStretch, zoom, move, focus, setRange, layOut, curves,
    top: (at) => (lineOf(at) || { y: 0 }).y,
    view: () => view, focused: () => focused, marks: () => marks,
    setMarks(wanted) { marks = wanted; draw(); },
    setLane(lane, isShown) { if (isShown) hidden.delete(lane); else hidden.add(lane); layOut(); },
    repaint() { readColours(); paint(); }, // at once: a printer does not wait for the next frame
    remove() { removal.abort(); watcher.disconnect(); },
  };
}
