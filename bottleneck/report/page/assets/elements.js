"use strict";
// Elements, the choice of light or dark, and buttons that copy. Text reaches the page as textContent only.

const UNPRINTABLE = /[\p{C}\p{Zl}\p{Zp}]|(?! )\p{Zs}/gu;

/** The text with everything unprintable as a visible escape, as `clean` of report/text.py gives it. */
function clean(text, limit = 2000) {
  const shown = String(text).slice(0, limit + 1).replace(/[\u00a0\u2007\u202f]/g, " ").replace(UNPRINTABLE, (found) => {
    const code = found.codePointAt(0);
    if (code < 0x100) return `\\x${code.toString(16).padStart(2, "0")}`;
    return code < 0x10000 ? `\\u${code.toString(16).padStart(4, "0")}` : `\\U${code.toString(16).padStart(8, "0")}`;
  });
  return shown.length > limit ? `${shown.slice(0, limit - 1)}…` : shown;
}

/** An element with attributes (text, on: listeners, style: properties among them) and children. */
function make(tag, given = {}, ...children) {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(given)) {
    if (value === null || value === undefined || value === false) continue;
    if (name === "text") element.textContent = clean(value);
    else if (name === "on") for (const [event, act] of Object.entries(value)) element.addEventListener(event, act);
    else if (name === "style") for (const [property, set] of Object.entries(value)) element.style.setProperty(property, set);
    else element.setAttribute(name, value === true ? "" : clean(value));
  }
  element.append(...children.flat().filter((child) => child !== null && child !== undefined));
  return element;
}

const GROUPS = ["compute", "memory", "overhead", "communication", "transfer", "unknown"];
const shape = (group) => make("i", { class: `shape g-${GROUPS.includes(group) ? group : "unknown"}`, "aria-hidden": "true" });
const byId = (id) => document.getElementById(id);

const LONGEST_WHOLE = 20, JOINT = /(?<=[^./_:(,<=-][./_:(,<=]+)(?=[^./_:(,<=\d-].{5})|(?<=[a-z])(?=[A-Z][a-z])/;
/** Sets where lines may break: short names with hyphens and the like nowhere, long ones behind a dot, a slash or a part of a word. */
function setBreaks(host) {
  const walker = document.createTreeWalker(host, NodeFilter.SHOW_TEXT), texts = [];
  while (walker.nextNode()) texts.push(walker.currentNode);
  for (const text of texts) {
    const parts = text.data.split(/(\s+)/).map((word) => {
      if (word.length <= LONGEST_WHOLE && !/\S[-._:/]\S/.test(word)) return word;
      return make("span", { class: word.length > LONGEST_WHOLE ? "word" : "whole" }, word.split(JOINT).flatMap((part, at) => at ? [make("wbr"), part] : [part]));
    });
    if (parts.some((part) => typeof part !== "string")) text.replaceWith(...parts);
  }
  return host;
}

let announcer = null;
/** Says a sentence to screen readers. */
function announce(text) {
  if (!announcer) {
    announcer = make("p", { class: "hidden", role: "status" });
    document.body.append(announcer);
  }
  announcer.textContent = clean(text);
}

/** Copies text; a page of a file or an e-mail has no clipboard of its own everywhere. */
async function copyText(text) {
  try {
    await navigator.clipboard.writeText(text);
  } catch {
    const area = make("textarea", { class: "hidden" });
    area.value = text;
    document.body.append(area);
    area.select();
    document.execCommand("copy");
    area.remove();
  }
}

/** Says on a button for a moment that it has done its work. */
function confirmOn(button, word) {
  const before = button.textContent;
  button.textContent = word;
  announce(word);
  setTimeout(() => { button.textContent = before; }, 1500);
}

/** Marks a table that is wider than its room, and whether more of it lies to the right, for a visible sign of it. */
function watchWidth(scroll) {
  const mark = () => {
    scroll.classList.toggle("wider", scroll.scrollWidth > scroll.clientWidth + 1);
    scroll.classList.toggle("cut", scroll.scrollLeft + scroll.clientWidth < scroll.scrollWidth - 1);
  };
  const sizes = new ResizeObserver(mark);
  sizes.observe(scroll);
  for (const inner of scroll.children) sizes.observe(inner);
  scroll.addEventListener("scroll", mark, { passive: true });
  return scroll;
}
document.querySelectorAll(".scroll").forEach(watchWidth);

const NAMES = ".eyebrow, h1 span, h2, h3, .lines dd, .facts dd, .told li, pre code, .command code, .in-line code, td.k-name, td.k-place, td.k-words";
for (const element of document.querySelectorAll(NAMES)) if (!element.parentElement.closest(NAMES)) setBreaks(element);

for (const button of document.querySelectorAll("button.copy")) {
  button.hidden = false;
  button.addEventListener("click", async () => {
    await copyText(button.parentElement.querySelector("code").textContent);
    confirmOn(button, "Copied");
  });
}

const THEMES = ["auto", "light", "dark"];
const themeListeners = [];
function setTheme(theme) {
  document.documentElement.dataset.theme = theme;
  byId("theme").textContent = `Theme: ${theme}`;
  try { localStorage.setItem("bottleneck-theme", theme); } catch { /* a file may have no storage */ }
  for (const act of themeListeners) act();
}
{
  let kept = null;
  try { kept = localStorage.getItem("bottleneck-theme"); } catch { /* as above */ }
  const button = byId("theme");
  button.hidden = false;
  if (THEMES.includes(kept)) setTheme(kept);
  button.addEventListener("click", () => {
    setTheme(THEMES[(THEMES.indexOf(document.documentElement.dataset.theme) + 1) % THEMES.length]);
  });
  const redraw = () => { for (const act of themeListeners) act(); };
  for (const query of ["(prefers-color-scheme: dark)", "print"]) matchMedia(query).addEventListener("change", redraw);
  // Charts are pictures, which the style sheet of print cannot change: they are drawn anew in its light colours.
  let theme = null;
  addEventListener("beforeprint", () => { theme = document.documentElement.dataset.theme; document.documentElement.dataset.theme = "light"; redraw(); });
  addEventListener("afterprint", () => { document.documentElement.dataset.theme = theme; redraw(); });
}
