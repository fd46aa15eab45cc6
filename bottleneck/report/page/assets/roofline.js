"use strict";
// The roofline: kernels by arithmetic intensity and speed under the roofs of the device, with filters and hover.

{
  const host = byId("roofline-view"), data = words.roofline;
  if (!data.points.length) host.replaceChildren(make("p", { class: "note", text: data.absent ? `No kernel has a place on a roofline; ${data.absent}.` : "No kernel has both FLOPs and bytes." }));
  else drawRoofline(host, data);
}

function drawRoofline(host, data) {
  const all = data.points.map(([kernel, x, low, high, y]) => ({ kernel, x, low, high, y, row: analysis.kernels[kernel], words: words.kernels[kernel] }));
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
    make("ul", { class: "legend" }, [...new Set(all.map((point) => point.words.group))].map((group) => make("li", {}, shape(group), `${group}-bound`)), data.step ? make("li", {}, make("span", { class: "star", "aria-hidden": "true", text: "★" }), "the whole step") : null),
    make("p", { class: "note", text: `Roofs: ${sources.length ? sources.join(", ") : "not known"}; ${data.source}.${data.guides_note ? ` ${data.guides_note[0].toUpperCase()}${data.guides_note.slice(1)}.` : ""} The area of a mark is its time; kernels that repeat are one mark, at the middle of what its traffic allows (the line beneath the pointer).${data.absent ? ` ${data.absent[0].toUpperCase()}${data.absent.slice(1)}.` : ""}` }),
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
    const isDecade = (value) => value !== null && Math.abs(Math.log10(value) - Math.round(Math.log10(value))) < 1e-6;
    const decades = (_, splits) => splits.map((value) => (isDecade(value) ? value : null));
    const axis = (label, unit) => ({ stroke: css("soft"), grid: { stroke: css("line"), width: 1, filter: decades }, ticks: { stroke: css("line"), filter: decades }, label, labelSize: 22, font: "11px sans-serif", labelFont: "12px sans-serif",
      values: (_, splits) => splits.map((value) => !isDecade(value) ? "" : unit ? formatSi(value, unit).replace(/\.0+ /, " ") : value >= 0.01 && value < 1e5 ? String(+value.toPrecision(3)) : value.toExponential(0)) });
    const scale = (range) => ({ time: false, distr: 3, log: 10, range: (self, low, high) => zoomed ? [low, high] : range });
    let zoomed = false;
    chart = new uPlot({
      width: frame.clientWidth, height: Math.max(320, Math.min(520, frame.clientWidth * 0.6)),
      legend: { show: false }, scales: { x: scale(xs), y: scale(ys) }, series: [{}, { stroke: "transparent", points: { show: false } }],
      axes: [{ ...axis(data.axes[0]), size: 34 }, { ...axis(data.axes[1], "FLOP/s"), size: 84 }],
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
        make("b", { text: clean(point.words.call, 200) }),
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
    if (peak) for (const share of data.guides) path(guide(share), css("strong-line"), [4, 5], 1);
    const taken = [];
    for (const [words_, short, flops, ridge] of data.flats) {
      const right = left + width - 6 * ratio, bottom = py(flops) - 3 * ratio, start = Math.max(px(ridge || low), left);
      const name = [words_, short].find((label_) => pen.measureText(label_).width < right - start) || short;
      path([[ridge || low, flops], [Math.max(high, ridge || low), flops]], css("ink"), []);
      pen.fillStyle = css("ink");
      pen.textAlign = "right";
      pen.fillText(name, right, bottom);
      taken.push([right - pen.measureText(name).width, bottom - 14 * ratio, right, bottom + 3 * ratio]);
    }
    for (const [words_, rate, isCache] of peak ? data.slopes : []) {
      const end = peak / rate, at = Math.sqrt(low * Math.max(end, low * 10));
      path([[Math.min(low, end), Math.min(low, end) * rate], [end, peak]], css(isCache ? "soft" : "ink"), isCache ? [2, 3] : [], isCache ? 1 : 1.6);
      pen.save();
      pen.translate(px(at), py(at * rate));
      pen.rotate(Math.atan2(py(at * 10 * rate) - py(at * rate), px(at * 10) - px(at)));
      pen.textAlign = "center";
      pen.fillStyle = css(isCache ? "soft" : "ink");
      pen.fillText(words_, 0, -4 * ratio);
      pen.restore();
    }
    for (const point of [...shown].sort((a, b) => b.row.us - a.row.us)) {
      const dim = chosen && !chosen.kernels.has(point.kernel);
      mark(pen, point.words.group, px(point.x), py(point.y), radius(point) * ratio, dim ? 0.15 : 0.78, point === hovered || (chosen && !dim), ratio);
    }
    if (hovered) path([[hovered.low, hovered.y], [hovered.high, hovered.y]], css("ink"), [], 2);
    if (data.step) star(pen, px(data.step[0]), py(data.step[1]), 10 * ratio, ratio);
    label(pen, px, py, ratio, { left, top, width, height }, taken);
    pen.restore();
  }

  function mark(pen, group, x, y, r, alpha, strong, ratio) {
    pen.globalAlpha = alpha;
    pen.fillStyle = css(GROUPS.includes(group) ? group : "unknown");
    pen.strokeStyle = strong ? css("ink") : css("raised");
    pen.lineWidth = (strong ? 2 : 1) * ratio;
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

  /** Op and shapes of the marks with most time, where no label stands yet, with a line to the mark from further away. */
  function label(pen, px, py, ratio, box, taken) {
    pen.textAlign = "left";
    pen.textBaseline = "middle";
    for (const point of shown.slice(0, 8)) {
      const words_ = clean(point.words.call, 34), w = pen.measureText(words_).width, h = 14 * ratio, r = radius(point) * ratio;
      const at = [px(point.x), py(point.y)], place = freePlace(at, [w, h], r, ratio, box, taken);
      if (!place) continue;
      const [x, y, fromX, fromY, isFar] = place;
      taken.push([x, y - h / 2, x + w, y + h / 2]);
      if (isFar) {
        const away = Math.hypot(fromX - at[0], fromY - at[1]);
        pen.strokeStyle = css("soft");
        pen.lineWidth = 0.8 * ratio;
        pen.beginPath();
        pen.moveTo(at[0] + (fromX - at[0]) * r / away, at[1] + (fromY - at[1]) * r / away);
        pen.lineTo(fromX, fromY);
        pen.stroke();
      }
      pen.lineWidth = 3 * ratio;
      pen.strokeStyle = css("raised");
      pen.strokeText(words_, x, y);
      pen.fillStyle = css("ink");
      pen.fillText(words_, x, y);
    }
  }

  /** The nearest free place around a mark, at its right first: left edge and middle of the words, and the end of their line. */
  function freePlace([atX, atY], [w, h], r, ratio, box, taken) {
    for (const away of [5, 16, 32, 52, 76]) {
      for (const turn of [0, 8, 1, 15, 7, 9, 2, 14, 6, 10, 3, 13, 5, 11, 4, 12]) {
        const angle = turn * Math.PI / 8, fromX = atX + Math.cos(angle) * (r + away * ratio), fromY = atY + Math.sin(angle) * (r + away * ratio);
        const x = Math.cos(angle) >= 0 ? fromX : fromX - w;
        const isInside = x >= box.left && x + w <= box.left + box.width && fromY >= box.top + h && fromY <= box.top + box.height - h;
        if (isInside && !taken.some(([a, b, c, d]) => x < c && x + w > a && fromY - h / 2 < d && fromY + h / 2 > b)) return [x, fromY, fromX, fromY, away > 5];
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
