"use strict";
// The roofline: kernels by arithmetic intensity and speed under the roofs of the device, with filters and hover.

{
  const host = byId("roofline-view"), data = words.roofline;
  if (!data.points.length) host.replaceChildren(make("p", { class: "note", text: data.absent ? `No kernel has a place on a roofline; ${data.absent}.` : "No kernel has both FLOPs and bytes." }));
  else drawRoofline(host, data);
}

/** The values on an axis in powers: of ten, with 2 and 5 between them where it is short, and round steps within a decade. */
function ticksOf(low, high, most) {
  const exponents = (first, last) => Array.from({ length: last - first + 1 }, (_, at) => first + at);
  const [first, last] = [Math.floor(Math.log10(low)), Math.ceil(Math.log10(high))];
  const inside = (value) => value >= low * (1 - 1e-9) && value <= high * (1 + 1e-9);
  if (high >= 100 * low) return exponents(first, last).filter((exponent) => exponent % Math.ceil((last - first + 1) / most) === 0).map((exponent) => 10 ** exponent).filter(inside);
  if (high >= 8 * low) return exponents(first, last).flatMap((exponent) => [1, 2, 5].map((digit) => digit * 10 ** exponent)).filter(inside);
  const rough = (high - low) / 5, power = 10 ** Math.floor(Math.log10(rough));
  const step = [1, 2, 5, 10].map((factor) => factor * power).find((size) => size >= rough);
  return exponents(Math.ceil(low / step), Math.floor(high / step)).map((count) => count * step);
}

function tickText(value, ticks, unit) {
  const step = ticks.length > 1 ? Math.abs(ticks[1] - ticks[0]) : value, digits = Math.min(Math.max(3, Math.ceil(Math.log10(Math.max(...ticks) / step)) + 1), 12);
  const short = (number) => String(+number.toPrecision(digits));
  if (!unit) return value >= 0.01 && value < 1e5 ? short(value) : value.toExponential(0);
  const [size, prefix] = [[1e15, "P"], [1e12, "T"], [1e9, "G"], [1e6, "M"], [1e3, "k"], [1, ""]].find(([least]) => value >= least * 0.9995) || [1, ""];
  return `${short(value / size)} ${prefix}${unit}`;
}

function drawRoofline(host, data) {
  const all = data.points.map(([kernel, x, low, high, y, own]) => ({ kernel, x, low, high, y, own, row: analysis.kernels[kernel], words: words.kernels[kernel], isHollow: analysis.kernels[kernel].regime === "far_below_roof" }));
  const peak = Math.max(0, ...data.flats.map(([, , flops]) => flops));
  const [, bandwidth] = data.slopes.find(([, , isCache]) => !isCache) || [];
  let shown = all, chosen = null, hovered = null, chart = null;
  const pick = (label, values) => make("select", { "aria-label": label, on: { change: refilter } }, make("option", { value: "", text: `any ${label}` }), [...new Set(values)].filter(Boolean).sort().map((value) => make("option", { value, text: clean(value, 40) })));
  const bound = pick("bound", all.map((point) => point.row.bound)), dtype = pick("dtype", all.map((point) => point.row.dtype));
  const phase = pick("phase", analysis.phases.filter((each) => each.kernels.length).map((each) => each.name));
  const text = make("input", { type: "search", placeholder: "Op, module or line", "aria-label": "Filter the roofline by op, module or line", on: { input: refilter } });
  const count = make("span", { class: "count", role: "status" });
  const reset = make("button", { type: "button", class: "quiet", text: "Whole plane", on: { click: () => { refilter(); } } });
  const frame = make("div", { class: "canvas roofline", tabindex: "0", role: "application", "aria-roledescription": "roofline chart", "aria-label": "Roofline: arithmetic intensity in FLOP per byte against FLOP per second. Arrow keys go from kernel to kernel, most time first; Enter opens one in the timeline. The table of kernels holds the same figures." });
  const tip = make("div", { class: "tip", hidden: true });
  const sources = [...data.flats.map(([words_]) => words_), ...data.slopes.map(([words_]) => words_)];
  host.replaceChildren(
    make("div", { class: "tools-row" }, bound, dtype, analysis.phases.length ? phase : null, text, count, reset),
    frame,
    make("ul", { class: "legend" }, [...new Set(all.map((point) => point.words.group))].map((group) => make("li", {}, shape(group), `${group}-bound`)), data.step ? make("li", {}, make("span", { class: "star", "aria-hidden": "true", text: "★" }), "the whole step") : null,
      all.some((point) => point.isHollow) ? make("li", {}, make("i", { class: "shape hollow", "aria-hidden": "true" }), data.hollow) : null,
      all.some((point) => point.own) ? make("li", {}, make("span", { class: "star", "aria-hidden": "true", text: "—" }), data.own_roof) : null),
    make("p", { class: "note", text: `Roofs: ${sources.length ? sources.join(", ") : "not known"}; ${data.source}.${data.notes.map((note) => ` ${note[0].toUpperCase()}${note.slice(1)}.`).join("")} The area of a mark is its time; kernels that repeat are one mark, at the middle of what its traffic allows (the line beneath the pointer).${data.absent ? ` ${data.absent[0].toUpperCase()}${data.absent.slice(1)}.` : ""}` }),
  );
  frame.append(tip);

  const css = (name) => getComputedStyle(document.documentElement).getPropertyValue(`--${name}`).trim();
  const radius = (point) => 3.5 + 22 * Math.sqrt(Math.max(point.row.share, 0));

  function refilter() {
    const wanted = text.value.trim().toLowerCase(), chosenPhase = analysis.phases.find((each) => each.name === phase.value);
    const ofPhase = chosenPhase && new Map(chosenPhase.kernels);
    shown = all.filter((point) => (!bound.value || point.row.bound === bound.value) && (!dtype.value || point.row.dtype === dtype.value) && (!ofPhase || ofPhase.has(point.kernel))
      && (!wanted || [point.words.call, point.row.name, point.row.module, point.row.source].filter(Boolean).join(" ").toLowerCase().includes(wanted)));
    count.textContent = `${shown.length} of ${all.length} ${words.noun}s, ${formatShare(sum(shown.map((point) => (ofPhase ? ofPhase.get(point.kernel) / wallUs : point.row.share))))} of the step`;
    hovered = null;
    build();
  }

  /** The corners of the plane: all marks, the step, and the ridge, in whole decades. */
  function extent() {
    const xs = shown.flatMap((point) => [point.low, point.high, point.x]), ys = shown.map((point) => point.y);
    if (data.step) { xs.push(data.step[0]); ys.push(data.step[1]); }
    for (const [, , flops, ridge] of data.flats) { ys.push(flops); if (ridge) xs.push(ridge * 3); }
    return { xs: [10 ** Math.floor(Math.log10(Math.min(...xs))), 10 ** Math.ceil(Math.log10(Math.max(...xs)))], ys: [10 ** Math.floor(Math.log10(Math.min(...ys))), 10 ** Math.ceil(Math.log10(Math.max(...ys) * 1.3))] };
  }

  function build() {
    const { xs, ys } = extent();
    if (chart) chart.destroy();
    const everyTick = (_, splits) => splits;
    const axis = (label, unit) => ({ stroke: css("soft"), grid: { stroke: css("line"), width: 1, filter: everyTick }, ticks: { stroke: css("line"), filter: everyTick }, filter: everyTick, label, labelSize: 22, font: "11px sans-serif", labelFont: "12px sans-serif",
      splits: (self, _, low, high) => ticksOf(low, high, self.width / 70),
      values: (_, splits) => splits.map((value) => tickText(value, splits, unit)) });
    const scale = (range) => ({ time: false, distr: 3, log: 10, range: (self, low, high) => zoomed ? [low, high] : range });
    let zoomed = false;
    chart = new uPlot({
      width: frame.clientWidth, height: Math.max(320, Math.min(520, frame.clientWidth * 0.6)),
      legend: { show: false }, scales: { x: scale(xs), y: scale(ys) }, series: [{}, { stroke: "transparent", points: { show: false } }],
      axes: [{ ...axis(frame.clientWidth < 500 ? data.axes[0].split(" of ")[0] : data.axes[0]), size: 34 }, { ...axis(data.axes[1], "FLOP/s"), size: 84 }],
      cursor: { drag: { x: true, y: true, uni: 20 }, points: { show: false }, x: false, y: false },
      hooks: { setSelect: [() => { zoomed = true; }], drawClear: [(self) => { self.ctx.fillStyle = css("raised"); self.ctx.fillRect(0, 0, self.ctx.canvas.width, self.ctx.canvas.height); }], draw: [paint] },
    }, [xs, ys], frame);
    chart.over.addEventListener("mousedown", () => { zoomed = true; });
    chart.over.addEventListener("dblclick", () => { zoomed = false; refilter(); });
    chart.over.addEventListener("mousemove", (event) => hover(nearest(event.offsetX, event.offsetY)));
    chart.over.addEventListener("mouseleave", () => hover(null));
    chart.over.addEventListener("click", () => { if (hovered) select([{ kernel: hovered.kernel }], hovered.words.call); });
  }

  function nearest(x, y) {
    let best = null, least = 26;
    for (const point of shown) {
      const away = Math.hypot(chart.valToPos(point.x, "x") - x, chart.valToPos(point.y, "y") - y) - radius(point) / 2;
      if (away < least) { least = away; best = point; }
    }
    return best;
  }

  function hover(point) {
    if (hovered === point) return;
    hovered = point;
    tip.hidden = !point;
    if (point) {
      const row = point.row, floors = [["arithmetic", row.compute_us], ["bytes", row.memory_us], ["launches", row.launch_us]];
      tip.replaceChildren(...[
        make("b", { text: clean(wholeCall(point.kernel), 200) }),
        make("span", { text: `${formatUs(row.us)} per step, ${formatShare(row.share)}; ${formatCalls(row.calls)} calls` }),
        make("span", { text: `${formatSi(point.y, "FLOP/s")} at ${threeDigits(point.x)} FLOP/B; ${formatShare(row.explained)} of roof, bound: ${point.words.bound}` }),
        make("span", { text: `floors: ${floors.map(([name, us]) => `${name} ${formatUs(us)}`).join(", ")}` }),
        row.reason ? make("span", { text: clean(row.reason, 200) }) : null,
        make("span", { text: clean([row.dtype, row.source || row.module].filter(Boolean).join(" · "), 200) }),
      ].filter(Boolean));
      const left = chart.over.offsetLeft + chart.valToPos(point.x, "x") + 16, top = chart.over.offsetTop + chart.valToPos(point.y, "y") + 14;
      tip.style.left = `${Math.max(4, Math.min(left, frame.clientWidth - tip.offsetWidth - 8))}px`;
      tip.style.top = `${Math.max(4, Math.min(top, frame.clientHeight - tip.offsetHeight - 8))}px`;
    }
    chart.redraw(false);
  }

  /** Everything inside the axes, in pixels of the canvas. */
  function paint(self) {
    const pen = self.ctx, ratio = devicePixelRatio || 1, { left, top, width, height } = self.bbox;
    const px = (value) => self.valToPos(value, "x", true), py = (value) => self.valToPos(value, "y", true);
    pen.save();
    pen.beginPath();
    pen.rect(left, top, width, height);
    pen.clip();
    pen.font = `${11 * ratio}px sans-serif`;
    pen.textBaseline = "bottom";
    const [low, high] = [self.scales.x.min, self.scales.x.max];
    const path = (points, colour, dash, lined = 1.6) => {
      pen.strokeStyle = colour;
      pen.lineWidth = lined * ratio;
      pen.setLineDash(dash.map((part) => part * ratio));
      pen.beginPath();
      points.forEach(([x, y], at) => (at ? pen.lineTo(px(x), py(y)) : pen.moveTo(px(x), py(y))));
      pen.stroke();
      pen.setLineDash([]);
    };
    const guide = (share) => {
      const ridge = bandwidth ? peak / bandwidth : low, start = Math.min(low, ridge);
      return [[start, share * (bandwidth ? start * bandwidth : peak)], [ridge, share * peak], [Math.max(high, ridge), share * peak]];
    };
    const lines = [], guides = [];
    if (peak) for (const share of data.guides) {
      const points = guide(share).map(([x, y]) => [px(x), py(y)]);
      path(guide(share), css("strong-line"), [4, 5], 1);
      points.slice(1).forEach((end, at) => guides.push([points[at], end]));
    }
    const roof = (points, colour, dash, lined) => { path(points, colour, dash, lined); lines.push(points.map(([x, y]) => [px(x), py(y)])); };
    for (const [, , flops, ridge] of data.flats) roof([[ridge || low, flops], [Math.max(high, ridge || low), flops]], css("ink"), []);
    for (const [, rate, isCache] of peak ? data.slopes : []) {
      const end = peak / rate, start = Math.min(low, end);
      roof([[start, start * rate], [end, peak]], css(isCache ? "soft" : "ink"), isCache ? [2, 3] : [], isCache ? 1 : 1.6);
    }
    for (const point of [...shown].sort((a, b) => b.row.us - a.row.us)) {
      const dim = chosen && !chosen.kernels.has(point.kernel);
      mark(pen, point, px(point.x), py(point.y), ratio, dim ? 0.15 : 0.78, point === hovered || (chosen && !dim));
      if (point.own) path([[point.x / 1.3, point.own], [point.x * 1.3, point.own]], css("ink"), [], 2);
    }
    if (hovered) path([[hovered.low, hovered.y], [hovered.high, hovered.y]], css("ink"), [], 2);
    if (data.step) star(pen, px(data.step[0]), py(data.step[1]), 10 * ratio, ratio);
    const box = { left, top, width, height }, room = 3 * ratio;
    const marks = shown.map((point) => { const r = radius(point) * ratio; return [px(point.x) - r, py(point.y) - r, px(point.x) + r, py(point.y) + r]; });
    if (data.step) marks.push([px(data.step[0]) - 10 * ratio, py(data.step[1]) - 10 * ratio, px(data.step[0]) + 10 * ratio, py(data.step[1]) + 10 * ratio]);
    const labels = labelFlats(pen, px, py, ratio, box, { marks, lines, guides });
    labels.push(...labelSlopes(pen, px, py, ratio, self.scales, box, [...marks, ...labels]));
    label(pen, px, py, ratio, box, { labels, marks, lines: [...lines, ...guides], room });
    pen.restore();
  }

  function mark(pen, point, x, y, ratio, alpha, strong) {
    const { group } = point.words, r = radius(point) * ratio, colour = css(GROUPS.includes(group) ? group : "unknown");
    pen.globalAlpha = alpha;
    pen.fillStyle = point.isHollow ? css("raised") : colour;
    pen.strokeStyle = strong ? css("ink") : point.isHollow ? colour : css("raised");
    pen.lineWidth = (strong || point.isHollow ? 2 : 1) * ratio;
    pen.beginPath();
    if (group === "compute") pen.arc(x, y, r, 0, 2 * Math.PI);
    else if (group === "memory") pen.rect(x - r * 0.88, y - r * 0.88, r * 1.76, r * 1.76);
    else if (group === "overhead") { pen.moveTo(x, y - r * 1.15); pen.lineTo(x + r * 1.1, y + r * 0.85); pen.lineTo(x - r * 1.1, y + r * 0.85); pen.closePath(); }
    else { pen.moveTo(x, y - r * 1.2); pen.lineTo(x + r * 1.2, y); pen.lineTo(x, y + r * 1.2); pen.lineTo(x - r * 1.2, y); pen.closePath(); }
    pen.fill();
    pen.globalAlpha = Math.max(alpha, 0.5);
    pen.stroke();
    pen.globalAlpha = 1;
  }

  function star(pen, x, y, r, ratio) {
    pen.beginPath();
    for (let at = 0; at < 10; at++) { const reach = at % 2 ? r * 0.45 : r, angle = Math.PI * (at / 5 - 0.5); pen.lineTo(x + reach * Math.cos(angle), y + reach * Math.sin(angle)); }
    pen.closePath();
    pen.fillStyle = css("ink");
    pen.strokeStyle = css("raised");
    pen.lineWidth = 1.5 * ratio;
    pen.stroke();
    pen.fill();
  }

  const overlap = ([a, b, c, d], [e, f, g, h]) => a < g && c > e && b < h && d > f;

  /** Whether a line of the roofs runs through a box. */
  function isCrossed([left, top, right, bottom], line) {
    const [[x0, y0], [x1, y1]] = line, dx = x1 - x0, dy = y1 - y0;
    let enter = 0, leave = 1;
    for (const [by, room] of [[-dx, x0 - left], [dx, right - x0], [-dy, y0 - top], [dy, bottom - y0]]) {
      if (by === 0) { if (room < 0) return false; } else if (by < 0) enter = Math.max(enter, room / by); else leave = Math.min(leave, room / by);
    }
    return enter <= leave;
  }

  /** Words with a rim of the paper's colour, so that a grid line does not strike them through. */
  function write(pen, text_, x, y, ratio, colour) {
    pen.lineWidth = 3 * ratio;
    pen.lineJoin = "round";
    pen.strokeStyle = css("raised");
    pen.strokeText(text_, x, y);
    pen.fillStyle = colour;
    pen.fillText(text_, x, y);
  }

  /** Writes at each compute roof inside the view what it is, above or below it, clear of marks and the other roofs; gives the boxes. The note beneath names those without room. */
  function labelFlats(pen, px, py, ratio, { left, top, width, height }, { marks, lines, guides }) {
    const boxes = [], h = 13 * ratio;
    pen.textAlign = "right";
    pen.textBaseline = "middle";
    for (const [long, short, flops, ridge] of data.flats) {
      const y = py(flops), right = left + width - 6 * ratio, start = Math.max(px(ridge || 0) || left, left);
      if (y < top || y > top + height || start > right) continue;
      const ends = Array.from({ length: 12 }, (_, at) => right - at * (right - start) / 12);
      const places = [long, short].flatMap((words_) => ends.flatMap((end) => [y - h / 2 - 2 * ratio, y + h / 2 + 2 * ratio].map((middle) => ({ words_, end, middle, box: [end - pen.measureText(words_).width, middle - h / 2, end, middle + h / 2] }))));
      const clear = places.filter(({ box }) => box[0] > left && box[1] > top && box[3] < top + height && ![...boxes, ...marks].some((other) => overlap(box, other)) && !lines.some((line) => isCrossed(box, line)));
      const free = clear.find(({ box }) => !guides.some((line) => isCrossed(box, line))) || clear[0];
      if (!free) continue;
      write(pen, free.words_, free.end, free.middle, ratio, css("ink"));
      boxes.push(free.box);
    }
    return boxes;
  }

  /** Writes along the part of each bandwidth roof that is in view what it is, clear of what is taken; gives the boxes. */
  function labelSlopes(pen, px, py, ratio, scales, { left, top, width, height }, taken) {
    const boxes = [], h = 13 * ratio;
    pen.textAlign = "center";
    for (const [words_, rate, isCache] of peak ? data.slopes : []) {
      const start = Math.max(scales.x.min, scales.y.min / rate), end = Math.min(scales.x.max, peak / rate, scales.y.max / rate);
      if (!(start < end)) continue;
      const from = [px(start), py(start * rate)], to = [px(end), py(end * rate)], length = Math.hypot(to[0] - from[0], to[1] - from[1]), w = pen.measureText(words_).width;
      if (length < w * 1.1) continue;
      const angle = Math.atan2(to[1] - from[1], to[0] - from[0]), up = -h / 2 - 2 * ratio;
      const places = [0.4, 0.6, 0.25, 0.75, 0.5, 0.15, 0.85].map((part) => {
        const at = [from[0] + (to[0] - from[0]) * part - Math.sin(angle) * up, from[1] + (to[1] - from[1]) * part + Math.cos(angle) * up];
        const half = [(w * Math.cos(angle) + h * Math.abs(Math.sin(angle))) / 2, (w * Math.abs(Math.sin(angle)) + h * Math.cos(angle)) / 2];
        return { at, box: [at[0] - half[0], at[1] - half[1], at[0] + half[0], at[1] + half[1]] };
      });
      const free = places.find(({ box }) => box[0] > left && box[1] > top && box[2] < left + width && box[3] < top + height && ![...boxes, ...taken].some((other) => overlap(box, other)));
      if (!free) continue;
      pen.save();
      pen.translate(...free.at);
      pen.rotate(angle);
      write(pen, words_, 0, 0, ratio, css(isCache ? "soft" : "ink"));
      pen.restore();
      boxes.push(free.box);
    }
    return boxes;
  }

  /** Op and shapes of the marks with most time, clear of labels, roofs and other marks, with a line to the mark from further away. */
  function label(pen, px, py, ratio, box, around) {
    pen.textAlign = "left";
    pen.textBaseline = "middle";
    for (const point of shown.slice(0, 8)) {
      const words_ = clean(point.words.call, 34), w = pen.measureText(words_).width, h = 14 * ratio, r = radius(point) * ratio;
      const at = [px(point.x), py(point.y)];
      if (at[0] < box.left || at[0] > box.left + box.width || at[1] < box.top || at[1] > box.top + box.height) continue;
      const place = freePlace(at, [w, h], r, ratio, box, around);
      if (!place) continue;
      const [x, y, fromX, fromY, isFar] = place;
      around.labels.push([x, y - h / 2, x + w, y + h / 2]);
      if (isFar) {
        const away = Math.hypot(fromX - at[0], fromY - at[1]);
        pen.strokeStyle = css("soft");
        pen.lineWidth = 0.8 * ratio;
        pen.beginPath();
        pen.moveTo(at[0] + (fromX - at[0]) * r / away, at[1] + (fromY - at[1]) * r / away);
        pen.lineTo(fromX, fromY);
        pen.stroke();
      }
      write(pen, words_, x, y, ratio, css("ink"));
    }
  }

  /** The nearest free place around a mark, at its right first: left edge and middle of the words, and the end of their line. */
  function freePlace([atX, atY], [w, h], r, ratio, box, { labels, marks, lines, room }) {
    for (const away of [5, 16, 32, 52, 76, 104]) {
      for (const turn of [0, 8, 1, 15, 7, 9, 2, 14, 6, 10, 3, 13, 5, 11, 4, 12]) {
        const angle = turn * Math.PI / 8, fromX = atX + Math.cos(angle) * (r + away * ratio), fromY = atY + Math.sin(angle) * (r + away * ratio);
        const x = Math.cos(angle) >= 0 ? fromX : fromX - w, words_ = [x, fromY - h / 2, x + w, fromY + h / 2];
        const isInside = x >= box.left + room && x + w <= box.left + box.width - room && fromY >= box.top + h && fromY <= box.top + box.height - h;
        if (isInside && ![...labels, ...marks].some((other) => overlap(words_, other)) && !lines.some((line) => isCrossed(words_, line))) return [x, fromY, fromX, fromY, away > 5];
      }
    }
    return null;
  }

  frame.addEventListener("keydown", (event) => {
    const by = { ArrowRight: 1, ArrowDown: 1, ArrowLeft: -1, ArrowUp: -1 }[event.key];
    if (by) {
      event.preventDefault();
      hover(shown[(shown.indexOf(hovered) + by + shown.length) % shown.length]);
      announce([...tip.children].map((line) => line.textContent).join(". "));
    } else if (event.key === "Enter" && hovered) select([{ kernel: hovered.kernel }], hovered.words.call);
    else if (event.key === "Escape") hover(null);
  });
  selectionListeners.push((selection) => { chosen = selection && selection.kernels.size ? selection : null; if (chart) chart.redraw(false); });
  themeListeners.push(build);
  let width = 0;
  new ResizeObserver(() => { if (frame.clientWidth !== width) { width = frame.clientWidth; build(); } }).observe(frame);
  refilter();
}
