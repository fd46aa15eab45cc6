"use strict";
// The events of one step as arrays, and what is known of one of them, of a stretch of time, or of a search.

const EVENT_ARRAYS = [["start", Float32Array], ["dur", Float32Array], ["name", Uint32Array], ["row", Int32Array], ["module", Int32Array], ["launch", Int32Array], ["call", Int32Array], ["lane", Uint16Array], ["depth", Uint16Array], ["group", Int16Array], ["account", Int16Array]];

async function inflate(text) {
  const bytes = Uint8Array.from(atob(text), (character) => character.charCodeAt(0));
  return new Response(new Blob([bytes]).stream().pipeThrough(new DecompressionStream("gzip"))).arrayBuffer();
}

/** A step as the file holds it with its texts and events inflated, its lines, and the parent and self time of each event. */
async function readStep(packed) {
  const [texts, buffer] = await Promise.all([inflate(packed.texts), inflate(packed.events)]);
  const events = {}, { count, lanes } = packed;
  let at = 0;
  for (const [key, Kind] of EVENT_ARRAYS) { events[key] = new Kind(buffer.slice(at, at + count * Kind.BYTES_PER_ELEMENT)); at += count * Kind.BYTES_PER_ELEMENT; }
  // A line of the chart for each level of each lane, with its events in order of time.
  const lines = [];
  for (let event = 0; event < count; event++) {
    const last = lines[lines.length - 1];
    if (last && last.lane === events.lane[event] && last.depth === events.depth[event]) last.end = event + 1;
    else lines.push({ lane: events.lane[event], depth: events.depth[event], begin: event, end: event + 1, kind: lanes[events.lane[event]].kind });
  }
  const parent = new Int32Array(count).fill(-1), selfUs = Float64Array.from(events.dur);
  for (let place = 1; place < lines.length; place++) {
    const above = lines[place - 1], line = lines[place];
    if (line.lane !== above.lane) continue;
    let around = above.begin;
    for (let event = line.begin; event < line.end; event++) {
      while (around + 1 < above.end && events.start[around + 1] <= events.start[event]) around++;
      parent[event] = around;
      selfUs[around] -= events.dur[event];
    }
  }
  return { ...packed, ...JSON.parse(new TextDecoder().decode(texts)), events, lines, parent, selfUs };
}

/** The first event of a line that ends at this instant or later. */
function firstAfter(step, line, us) {
  let low = line.begin, high = line.end;
  while (low < high) { const middle = (low + high) >> 1; if (step.events.start[middle] + step.events.dur[middle] < us) low = middle + 1; else high = middle; }
  return low;
}

const kindOf = (step, at) => step.lanes[step.events.lane[at]].kind;
const nameOfEvent = (step, at) => step.names[step.events.name[at]];
const endOf = (step, at) => step.events.start[at] + step.events.dur[at];
/** The row of kernels or of idle time that an event is part of; null for none. */
function rowOfEvent(step, at) {
  const row = step.events.row[at], kind = kindOf(step, at);
  return row < 0 || kind === "ranges" || kind === "frames" ? null : kind === "idle" ? { idle: row } : { kernel: row };
}

/** The events open at an instant in these lines, outermost first. */
function openAt(step, lines, us) {
  return lines.flatMap((line) => {
    const at = firstAfter(step, line, us);
    return at < line.end && step.events.start[at] <= us ? [at] : [];
  });
}

/** The Python frames that a host thread was in; of the first thread that has frames where none is named. */
function framesAt(step, us, thread = null) {
  const lane = step.lanes.findIndex((track) => track.kind === "frames" && (thread === null || track.thread === thread));
  return lane < 0 ? [] : openAt(step, step.lines.filter((line) => line.lane === lane), us);
}

/** The device events that were launched inside a host event, in order. */
function launchedIn(step, at) {
  const { events } = step, low = events.start[at], high = endOf(step, at), launched = [];
  for (let event = 0; event < step.count; event++) {
    const launch = events.launch[event];
    if (launch >= 0 && events.lane[launch] === events.lane[at] && events.start[launch] >= low && endOf(step, launch) <= high + 0.5) launched.push(event);
  }
  return launched.sort((a, b) => events.start[a] - events.start[b]);
}

/** What device work waited for before it began: the work before it on its stream, or the host that launched it late. */
function waitOfKernel(step, at) {
  const { events } = step, launch = events.launch[at], begin = events.start[at];
  const line = step.lines.find(({ begin: first, end }) => at >= first && at < end), before = at > line.begin ? at - 1 : -1;
  const free = before < 0 ? 0 : endOf(step, before);
  if (launch < 0) return before < 0 ? null : `not known, its launch is not here; the stream was free ${formatUs(Math.max(begin - free, 0))} before`;
  if (before >= 0 && free > endOf(step, launch)) return `${step.bars[events.name[before]]}, before it on its stream, which ended ${formatUs(Math.max(begin - free, 0))} before it began`;
  const idle = step.lines.filter(({ kind }) => kind === "idle").flatMap((track) => openAt(step, [track], Math.max(begin - 1, 0)))[0];
  const meanwhile = idle === undefined ? "" : `; the host was in: ${[nameOfEvent(step, idle), events.row[idle] >= 0 ? analysis.idle[events.row[idle]].source : null].filter(Boolean).join(", ")}`;
  return `its launch: the stream was free for ${formatUs(Math.max(begin - free, 0))}${meanwhile}`;
}

/** The device work at whose end a host call returned that waits for the device; -1 for other calls. */
function waitedForBy(step, at) {
  if (!/synchroni[sz]e|::item$|_local_scalar_dense/i.test(nameOfEvent(step, at))) return -1;
  const { events } = step, high = endOf(step, at);
  let last = -1;
  for (const line of step.lines) if (line.kind === "device") for (let event = firstAfter(step, line, events.start[at]); event < line.end && endOf(step, event) <= high; event++) if (last < 0 || endOf(step, event) > endOf(step, last)) last = event;
  return last;
}

/** Two or three lines on an event, for the note at the pointer. */
function describeEvent(step, at) {
  const { events } = step, lane = step.lanes[events.lane[at]], row = rowOfEvent(step, at), when = `${formatUs(events.dur[at])}, ${formatUs(events.start[at])} after the step began · ${lane.title}`;
  let more = events.call[at] >= 0 ? [step.calls[events.call[at]]] : [];
  if (row && row.idle !== undefined) {
    const cause = analysis.idle[row.idle];
    more = [(words.accounts[`overhead.${cause.cause}`] || {}).meaning, cause.detail, cause.source, cause.module];
  } else if (row) {
    const kernel = analysis.kernels[row.kernel], said = words.kernels[row.kernel];
    more = [said.call, `bound: ${said.bound}`, kernel.reason, kernel.source || kernel.module];
  }
  return [step.bars[events.name[at]], when, more.filter(Boolean).join(" · ")].filter(Boolean);
}

/** All that is known of an event: pairs of a title and words, an event to go to, or a list of events (its stack). */
function factsOfEvent(step, at) {
  const { events } = step, lane = step.lanes[events.lane[at]], row = rowOfEvent(step, at), launch = events.launch[at], begin = events.start[at];
  const self = step.selfUs[at] < events.dur[at] * 0.999 ? `, ${formatUs(Math.max(step.selfUs[at], 0))} of it outside the calls inside it` : "";
  const name = nameOfEvent(step, at), facts = [["name", name === step.bars[events.name[at]] ? null : name], ["time", `${formatUs(events.dur[at])}${self}`], ["begins", `${formatUs(begin)} after the step began`], ["in", lane.title]];
  if (row && row.idle !== undefined) {
    const cause = analysis.idle[row.idle];
    facts.push(["why", (words.accounts[`overhead.${cause.cause}`] || {}).meaning], ["host in", cause.detail], ["line", cause.source], ["text", textOf(cause.source)], ["module", cause.module], ["after", cause.before], ["before", cause.after]);
  } else if (row) {
    const kernel = analysis.kernels[row.kernel], said = words.kernels[row.kernel];
    facts.push(["op and shapes", said.call], ["dtype", kernel.dtype], ["bound", [said.bound === UNKNOWN ? "not known" : said.bound, kernel.reason].filter(Boolean).join(": ")], ["module", kernel.module], ["line", kernel.source], ["text", textOf(kernel.source)]);
  }
  if (events.call[at] >= 0 && !(row && row.kernel !== undefined)) facts.push(["shapes, dtype", step.calls[events.call[at]]]);
  if (launch >= 0) facts.push(["launched by", { event: launch, words: `${formatUs(Math.max(begin - events.start[launch], 0))} before it began` }]);
  if (lane.kind === "device") facts.push(["waited for", waitOfKernel(step, at)]);
  if (lane.kind === "host") {
    const launched = launchedIn(step, at), awaited = waitedForBy(step, at);
    if (launched.length) facts.push(["launches", { event: launched[0], words: launched.length > 1 ? `and ${launched.length - 1} more, ${formatUs(sum(launched.map((event) => events.dur[event])))} together` : formatUs(events.dur[launched[0]]) }]);
    if (awaited >= 0) facts.push(["waited for", { event: awaited, words: `which ended ${formatUs(endOf(step, at) - endOf(step, awaited))} before this call returned` }]);
  }
  const around = [];
  for (let outer = step.parent[launch >= 0 ? launch : at]; outer >= 0; outer = step.parent[outer]) around.push(outer);
  if (launch >= 0) around.unshift(launch);
  const thread = launch >= 0 ? step.lanes[events.lane[launch]].thread : lane.thread >= 0 ? lane.thread : null;
  const frames = lane.kind === "frames" || lane.kind === "ranges" ? [] : framesAt(step, launch >= 0 ? events.start[launch] : begin, thread).reverse();
  return [...facts, ["stack", [...around, ...frames]]].filter(([, text]) => text && (text.length === undefined || text.length));
}

/** The account of the ledger that an event's own time went to; null for none. */
const accountOfEvent = (step, at) => (step.events.account[at] >= 0 ? packedSteps.accounts[step.events.account[at]] : null);

/** What a stretch of time consists of: busy and waiting time of the device, sums by account and by name. */
function sumsOf(step, low, high) {
  const { events } = step, isHostOnly = !step.lanes.some((lane) => lane.kind === "device"), idleLanes = step.lanes.filter((lane) => lane.kind === "idle").length || 1;
  const inside = (at) => Math.max(Math.min(endOf(step, at), high) - Math.max(events.start[at], low), 0);
  const accounts = new Map(), names = new Map(), busy = [];
  let idleUs = 0;
  const add = (sums, key, us, calls, at) => { const sum = sums.get(key) || { key, us: 0, calls: 0, at }; sum.us += us; sum.calls += calls; sums.set(key, sum); };
  for (const line of step.lines) {
    if (line.kind === "ranges" || line.kind === "frames" || (line.kind === "host" && !isHostOnly)) continue;
    for (let at = firstAfter(step, line, low); at < line.end && events.start[at] < high; at++) {
      let us = inside(at);
      if (us <= 0) continue;
      if (line.kind === "idle") idleUs += us;
      if (line.kind === "device") busy.push([Math.max(events.start[at], low), Math.min(endOf(step, at), high)]);
      if (line.kind === "host") {
        us -= sum(childrenOf(step, at).map(inside)); // its own time: what is inside it counts for itself
        if (step.events.row[at] < 0) idleUs += us; // an op of a data loader: the ledger counts it as waiting
      }
      const account = accountOfEvent(step, at);
      if (account) add(accounts, account, us, 1, at);
      if (account || line.kind === "device") add(names, events.name[at], us, 1, at);
    }
  }
  busy.sort((a, b) => a[0] - b[0]);
  let busyUs = 0, reached = low;
  for (const [from, to] of busy) { busyUs += Math.max(to - Math.max(from, reached), 0); reached = Math.max(reached, to); }
  const order = (sums) => [...sums.values()].sort((a, b) => b.us - a.us);
  const waitingUs = idleUs / idleLanes;
  return { us: high - low, busyUs: isHostOnly ? high - low - waitingUs : busyUs, waitingUs, accounts: order(accounts), names: order(names), isHostOnly, hasOverlap: sum(busy.map(([from, to]) => to - from)) > busyUs * 1.001 };
}

/** The events directly inside an event. */
function childrenOf(step, at) {
  const place = step.lines.findIndex((line) => at >= line.begin && at < line.end), below = step.lines[place + 1], children = [];
  if (!below || below.lane !== step.events.lane[at]) return children;
  for (let child = firstAfter(step, below, step.events.start[at]); child < below.end && step.events.start[child] < endOf(step, at); child++) if (step.parent[child] === at) children.push(child);
  return children;
}

/** Marks events whose name, op, module or line holds these words; null for no words. */
function marksOfSearch(step, text) {
  const wanted = text.trim().toLowerCase();
  if (!wanted) return null;
  const holds = (texts) => texts.some((held) => held && held.toLowerCase().includes(wanted));
  const names = step.names.map((name, at) => holds([name, step.bars[at]])), kernels = analysis.kernels.map((row, at) => holds([row.op, row.module, row.source, words.kernels[at].call])), idle = analysis.idle.map((row) => holds([row.detail, row.source, row.module]));
  return marksWhere(step, (at, row) => names[step.events.name[at]] || (row !== null && (row.idle !== undefined ? idle[row.idle] : kernels[row.kernel])));
}

/** Marks events that are part of the chosen rows, or have a chosen name; null where nothing is chosen. */
function marksOfSelection(step, selection) {
  if (!selection) return null;
  const { kernels, idle, modules, names } = selection, isNamed = step.names.map((name) => names.has(name));
  return marksWhere(step, (at, row) => isNamed[step.events.name[at]] || (row !== null && (row.idle !== undefined ? idle.has(row.idle) : kernels.has(row.kernel) && (!modules || modules.has(step.events.module[at])))));
}

function marksWhere(step, holds) {
  const marks = new Uint8Array(step.count);
  for (let at = 0; at < step.count; at++) if (holds(at, rowOfEvent(step, at))) marks[at] = 1;
  return marks;
}

/** Number, own time (of all, and by kind of lane) and extent of marked events. */
function sumOfMarks(step, marks) {
  const total = { count: 0, us: 0, of: {}, low: Infinity, high: -Infinity };
  for (let at = 0; at < step.count; at++) {
    if (!marks[at]) continue;
    total.count++;
    const us = Math.max(step.selfUs[at], 0), kind = kindOf(step, at);
    total.us += us;
    total.of[kind] = (total.of[kind] || 0) + us;
    total.low = Math.min(total.low, step.events.start[at]);
    total.high = Math.max(total.high, endOf(step, at));
  }
  return total;
}
