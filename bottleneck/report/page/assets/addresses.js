"use strict";
// Addresses: #finding=…, #tab=… and #row=… open what they name; buttons copy them, and findings as markdown.

const addressOf = (part) => `${location.href.split("#")[0]}#${part}`;
const slugOf = (title) => title.toLowerCase().replace(/[^a-z0-9]+/g, "-");

/** Puts an address in place of the page's, without a step back to it; a page of an e-mail may have none. */
function setAddress(part) {
  try { history.replaceState(null, "", `#${part}`); } catch { /* as above */ }
}

function linkButton(part) {
  const button = make("button", { type: "button", class: "quiet", text: "Copy link", on: { click: async () => {
    setAddress(part);
    await copyText(addressOf(part));
    confirmOn(button, "Copied");
  } } });
  return button;
}

/** Text of a report in markdown, in which nothing of it acts. */
const inMarkdown = (text) => text.trim().replace(/\s+/g, " ").replace(/[\\`*_[\]<>|#]/g, "\\$&");

/** A finding as a heading, a list of its labelled lines, and its code. */
function findingInMarkdown(card) {
  const title = card.querySelector("h3").cloneNode(true), rank = title.querySelector(".rank");
  if (rank) rank.remove();
  const lines = [...card.querySelectorAll(".lines > div")].map((line) => `- **${inMarkdown(line.querySelector("dt").textContent)}**: ${inMarkdown(line.querySelector("dd").textContent.replace(/Copy$/, ""))}`);
  const fence = (text) => { const ticks = "`".repeat(Math.max(3, ...[...text.matchAll(/`+/g)].map(([run]) => run.length + 1))); return `${ticks}\n${text.trimEnd()}\n${ticks}`; };
  const code = [...card.querySelectorAll(":scope > pre, :scope > .command > code")].map((part) => fence(part.textContent));
  return [`### ${inMarkdown(title.textContent)}`, lines.join("\n"), ...code].filter(Boolean).join("\n\n") + "\n";
}

for (const button of document.querySelectorAll("button[data-link]")) button.replaceWith(linkButton(button.dataset.link));
for (const button of document.querySelectorAll("button[data-markdown]")) {
  button.hidden = false;
  button.addEventListener("click", async () => {
    await copyText(findingInMarkdown(button.closest(".action")));
    confirmOn(button, "Copied");
  });
}

/** Opens what the address names; what is closed around it opens too. */
function followAddress() {
  let part;
  try { part = decodeURIComponent(location.hash.slice(1)); } catch { return; }
  const [kind, name] = [part.slice(0, part.indexOf("=")), part.slice(part.indexOf("=") + 1)];
  let element = byId(part);
  if (kind === "tab") element = mainTabs && mainTabs.choose(name) ? byId("tables") : null;
  if (kind === "row") element = showRow(name);
  if (!element) return;
  for (let around = element.closest("details"); around; around = around.parentElement.closest("details")) around.open = true;
  element.scrollIntoView({ block: "start" });
  if (kind === "finding") { element.tabIndex = -1; element.focus({ preventScroll: true }); }
}

/** The line of a table at a place of the analysis, as 'kernels.3'; null where no table has it. */
function showRow(place) {
  const key = place.split(".")[0], tab = TABLES.find((table) => table.key === key);
  if (!tab || !mainTabs.choose(slugOf(tab.title))) return null;
  return rowFinders.map((find) => find(place)).find(Boolean) || null;
}

// Paper has everything: what is closed opens while it is printed.
let opened = [];
addEventListener("beforeprint", () => { opened = [...document.querySelectorAll("main details:not([open], .lanes)")]; for (const one of opened) one.open = true; });
addEventListener("afterprint", () => { for (const one of opened) one.open = false; });

addEventListener("hashchange", followAddress);
followAddress();
