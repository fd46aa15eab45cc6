"use strict";
// Numbers as people read them: the rules of units.py and report/text.py, so that the page and the terminal agree.

/** The nearest whole number; a half goes to the even one, as Python rounds. */
function roundEven(value) {
  const floor = Math.floor(value), rest = value - floor;
  if (rest !== 0.5) return Math.round(value);
  return floor % 2 === 0 ? floor : floor + 1;
}

const sum = (values) => values.reduce((total, value) => total + value, 0);

/** Whole numbers beside the values that add up to their rounded sum, or to a total that was rounded elsewhere. */
function apportion(values, total = null) {
  const floors = values.map(Math.floor);
  const missing = (total === null ? roundEven(sum(values)) : total) - sum(floors);
  const byRemainder = values.map((_, at) => at).sort((a, b) => (floors[a] - values[a]) - (floors[b] - values[b]) || a - b);
  const raised = new Set(missing >= 0 ? byRemainder.slice(0, missing) : byRemainder.slice(0, values.length + missing));
  return floors.map((floor, at) => floor + (raised.has(at) ? 1 : 0));
}

/** The unit of a table and its decimals: four digits in its total. */
function scaleOf(us) {
  const [unit, size] = us >= 1e7 ? ["s", 1e6] : us >= 1e4 ? ["ms", 1e3] : ["us", 1];
  const magnitude = us > 0 ? Math.floor(Math.log10(us / size)) : 0;
  return { unit, size, decimals: Math.min(Math.max(3 - magnitude, 0), 3) };
}
const PERCENT = { unit: "%", size: 0.01, decimals: 1 };

const quantaOf = (scale, value) => value / scale.size * 10 ** scale.decimals;

/** A number with so many decimals, and its thousands apart. */
function withThousands(value, decimals) {
  const [whole, rest] = value.toFixed(decimals).split(".");
  const apart = whole.replace(/(?<=\d)(?=(?:\d{3})+$)/g, ",");
  return rest === undefined ? apart : `${apart}.${rest}`;
}

/** The number in such a text. */
const numberIn = (text) => Number(text.replaceAll(",", ""));

/** The rounded number; what is nonzero but rounds to nothing reads '<0.01'. */
function showQuanta(scale, quanta, value) {
  if (quanta === 0 && value > 0) return `<${(10 ** -scale.decimals).toFixed(scale.decimals)}`;
  return withThousands(quanta / 10 ** scale.decimals, scale.decimals);
}

/** Numbers that belong to one sum, and after them that sum: as printed, they add up exactly. */
function columnOf(scale, values, total = null) {
  const parts = apportion(values.map((value) => quantaOf(scale, value)), total);
  return [...parts.map((part, at) => showQuanta(scale, part, values[at])), showQuanta(scale, sum(parts), sum(values))];
}

function threeDigits(value) {
  const magnitude = Math.abs(value);
  return value.toFixed(magnitude >= 99.95 ? 0 : magnitude >= 9.995 ? 1 : 2);
}

const UNKNOWN = "-";

function formatUs(us) {
  if (us === null) return UNKNOWN;
  for (const [scale, unit] of [[1e6, "s"], [1e3, "ms"], [1, "us"]]) {
    if (Math.abs(us) >= scale * 0.9995) return `${threeDigits(us / scale)} ${unit}`;
  }
  return us ? `${threeDigits(us)} us` : "0 us";
}

function formatSi(value, unit) {
  if (value === null) return UNKNOWN;
  for (const [scale, prefix] of [[1e15, "P"], [1e12, "T"], [1e9, "G"], [1e6, "M"], [1e3, "k"]]) {
    if (Math.abs(value) >= scale * 0.9995) return `${threeDigits(value / scale)} ${prefix}${unit}`;
  }
  return `${threeDigits(value)} ${unit}`;
}

function formatShare(share) {
  if (share === null) return UNKNOWN;
  const percent = share * 100;
  if (percent > 0 && percent < 0.1) return "<0.1 %";
  if (percent >= 99.95 && percent < 100 - 1e-7) return ">99.9 %";
  if (percent < 100.05) return `${percent.toFixed(1)} %`;
  const unit = percent < 999.5 ? 1 : 10 ** (Math.floor(Math.log10(percent)) - 2);
  return `${withThousands(Math.round(percent / unit) * unit, 0)} %`;
}

function formatCalls(calls) {
  if (Math.abs(calls - Math.round(calls)) <= 1e-6 * Math.max(calls, Math.round(calls))) return withThousands(calls, 0);
  return calls >= 0.05 ? withThousands(calls, 1) : "<0.1";
}

/** A number that belongs to no sum. */
const showRate = (scale, value) => value === null || value === undefined ? UNKNOWN : showQuanta(scale, roundEven(quantaOf(scale, value)), value);
