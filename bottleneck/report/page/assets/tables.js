"use strict";
// Tables with search, sorting, copying and rows that open. What is on screen adds up: rows below the cut are one row.

const FIRST_ROWS = 20, MORE_ROWS = 200;
let tableNumber = 0;
const rowFinders = []; // of each table with paths: shows the row at a place and gives its line

/**
 * A column: its title, kind, text and value of a row, and the `whole` text where that is shortened; of a `sum` the rows, the rest and the total add up as printed.
 * `extra` are columns that only the copied text has: title, and text of a row. `path` is the place of a row in analysis.json; the cells of a column with a `field` name their own place in it.
 */
function drawTable(host, { rows, columns, noun, details = null, onPick = null, search = null, caption, totals = {}, path = null, first = FIRST_ROWS, extra = [] }) {
  const number = ++tableNumber;
  const state = { sort: null, descending: true, words: "", limit: first };
  const sums = columns.filter((column) => column.sum);
  const label = (row) => columns[0].text(row);
  const texts = search && new Map(rows.map((row) => [row, search(row).toLowerCase()]));

  const count = make("span", { class: "count", role: "status" });
  const input = search && make("input", {
    type: "search", id: `search-${number}`, placeholder: `Search ${noun}s`, "aria-label": `Search ${noun}s`, autocomplete: "off",
    on: { input: () => { state.words = input.value.trim().toLowerCase(); state.limit = first; draw(); } },
  });
  const copy = make("button", { type: "button", class: "quiet", text: "Copy as CSV", on: { click: async () => {
    await copyText(asCsv());
    confirmOn(copy, "Copied");
  } } });
  const copyMarkdown = make("button", { type: "button", class: "quiet", text: "Copy as markdown", on: { click: async () => {
    await copyText(asMarkdown());
    confirmOn(copyMarkdown, "Copied");
  } } });
  const head = make("tr", {}, columns.map((column, at) => {
    const button = make("button", { type: "button", title: column.help, text: column.title, on: { click: () => {
      state.descending = state.sort === at ? !state.descending : column.kind === "number";
      state.sort = at;
      draw();
    } } });
    return make("th", { scope: "col", class: `k-${column.kind}` }, button);
  }));
  const body = make("tbody");
  const more = make("button", { type: "button", class: "quiet more", on: { click: () => { state.limit += MORE_ROWS; draw(); } } });
  host.replaceChildren(
    make("div", { class: "tools-row" }, input, count, copy, copyMarkdown),
    watchWidth(make("div", { class: "scroll", tabindex: "0", role: "region", "aria-label": caption },
      make("table", { class: "live" }, make("caption", { class: "hidden", text: caption }), make("thead", {}, head), body))),
    more,
  );

  const valueOf = (column, row) => (column.value || column.whole || column.text)(row);
  function chosen() {
    const words = state.words.split(/\s+/).filter(Boolean);
    const found = words.length ? rows.filter((row) => words.every((word) => texts.get(row).includes(word))) : [...rows];
    if (state.sort === null) return found;
    const column = columns[state.sort], sign = state.descending ? -1 : 1;
    return found.sort((a, b) => {
      const [one, other] = [valueOf(column, a), valueOf(column, b)];
      if (one === null || other === null) return (one === null) - (other === null);
      return sign * (typeof one === "string" ? one.localeCompare(other) : one - other);
    });
  }

  function draw() {
    const found = chosen();
    const cut = found.length > state.limit + 1 ? state.limit : found.length;
    const shown = found.slice(0, cut), rest = found.slice(cut);
    const cells = new Map(sums.map((column) => {
      const values = shown.map((row) => column.value(row));
      if (rest.length) values.push(sum(rest.map((row) => column.value(row))));
      const given = found.length === rows.length ? totals[column.key] : undefined;
      return [column, columnOf(column.scale, values, given === undefined ? null : given)];
    }));
    // Columns that split another are rounded within its rows, so that they re-add along the row too.
    const whole = columns.find((column) => column.isWhole), split = columns.filter((column) => column.isPart);
    if (whole && split.length) {
      const numbers = cells.get(whole).slice(0, -1).map((text) => (text.startsWith("<") ? 0 : Math.round(numberIn(text) * 10 ** whole.scale.decimals)));
      const amounts = (column) => [...shown.map((row) => column.value(row)), ...(rest.length ? [sum(rest.map((row) => column.value(row)))] : [])];
      const values = split.map(amounts);
      const parts = numbers.map((number, at) => apportion(values.map((column) => quantaOf(whole.scale, column[at])), number));
      split.forEach((column, of) => cells.set(column, [...parts.map((part, at) => showQuanta(whole.scale, part[of], values[of][at])), showQuanta(whole.scale, sum(parts.map((part) => part[of])), sum(values[of]))]));
    }
    const unitOf = (column, text) => column.scale.unit === "%" ? `${text} %` : text;
    body.replaceChildren(...shown.map((row, at) => drawRow(row, (column) => unitOf(column, cells.get(column)[at]))));
    const summary = (words, place, role) => make("tr", { class: `r-${role}` }, columns.map((column, at) => make("td", {
      class: `k-${column.kind}`, text: at === 0 ? words : cells.has(column) ? unitOf(column, cells.get(column).at(place)) : "",
    })));
    if (rest.length) body.append(summary(`${rest.length} more`, -2, "rest"));
    if (sums.length && found.length) {
      body.append(summary(found.length === rows.length ? `all ${noun}s` : `${found.length} found`, -1, "total"));
    }
    if (!found.length) body.append(make("tr", {}, make("td", { colspan: columns.length, class: "none", text: `No ${noun} with these words.` })));
    count.textContent = found.length === rows.length ? `${rows.length} ${noun}${rows.length === 1 ? "" : "s"}` : `${found.length} of ${rows.length}`;
    more.hidden = rest.length === 0;
    more.textContent = rest.length > MORE_ROWS ? `Show ${MORE_ROWS} more of ${rest.length}` : `Show all ${found.length}`;
    [...head.children].forEach((cell, at) => cell.setAttribute("aria-sort", state.sort !== at ? "none" : state.descending ? "descending" : "ascending"));
  }

  function drawRow(row, sumText) {
    const line = make("tr", { class: row.role ? `r-${row.role}` : null });
    columns.forEach((column, at) => {
      const text = column.sum ? sumText(column) : column.text(row);
      const cell = make("td", { class: `k-${column.kind}`, "data-path": path && column.field ? `${path(row)}.${column.field}` : null, title: column.whole && column.whole(row) !== text ? column.whole(row) : null });
      const content = [column.shape ? shape(column.shape(row)) : null, setBreaks(make("span", { text: text || (at === 0 ? "(no name)" : "") }))];
      if (at === 0 && details) {
        const button = make("button", { type: "button", class: "open", "aria-expanded": "false", on: { click: () => toggle(row, line, button) } }, content);
        cell.append(button);
      } else cell.append(...content.filter(Boolean));
      if (column.below && column.below(row)) cell.append(setBreaks(make("small", { text: column.below(row) })));
      if (column.share) {
        const share = column.share(row);
        if (share !== null) cell.append(make("span", { class: "meter", "aria-hidden": "true" }, make("i", { style: { width: `${Math.min(share, 1) * 100}%` } })));
      }
      line.append(cell);
    });
    return line;
  }

  function toggle(row, line, button) {
    const open = button.getAttribute("aria-expanded") === "true";
    button.setAttribute("aria-expanded", String(!open));
    if (open) line.nextElementSibling.remove();
    else line.after(make("tr", { class: "details" }, make("td", { colspan: columns.length }, details(row), path && make("div", { class: "acts" }, linkButton(`row=${path(row)}`)))));
    if (!open && path) setAddress(`row=${path(row)}`);
    if (onPick) onPick(open ? null : row, label(row));
  }

  /** The rows on screen, with their sums, as a table of markdown. */
  function asMarkdown() {
    const line = (cells) => `| ${cells.join(" | ")} |`;
    const rows_ = [...body.querySelectorAll(":scope > tr:not(.details)")].map((row) => line([...row.cells].map((cell) => inMarkdown([...cell.childNodes].map((part) => part.textContent).join(" ")))));
    return [line(columns.map((column) => inMarkdown(column.title))), line(columns.map((column) => (column.kind === "number" ? "--:" : "---"))), ...rows_].join("\n") + "\n";
  }

  function asCsv() {
    const quoted = (text) => /[",\n]/.test(text) ? `"${text.replaceAll('"', '""')}"` : text;
    // A spreadsheet takes a cell that begins with one of these for a formula.
    const harmless = (text) => /^[=+\-@\t]/.test(text) && Number.isNaN(Number(text)) ? `'${text}` : text;
    const line = (cells) => cells.map((cell) => quoted(typeof cell === "number" ? String(cell) : harmless(clean(cell ?? "")))).join(",");
    const titles = [...columns.map((column) => column.csv || column.title), ...extra.map(([title]) => title)];
    return [line(titles), ...chosen().map((row) => line([...columns.map((column) => valueOf(column, row)), ...extra.map(([, of]) => of(row))]))].join("\n") + "\n";
  }

  /** Opens the row at a place of the analysis, however far down it is. */
  function showRow(place) {
    const row = rows.find((one) => path(one) === place);
    if (!row || !host.isConnected) return null;
    Object.assign(state, { sort: null, words: "" });
    if (input) input.value = "";
    state.limit = Math.max(state.limit, chosen().indexOf(row) + 1);
    draw();
    const line = body.children[chosen().indexOf(row)], button = line.querySelector("button.open");
    if (button) button.click();
    return line;
  }

  draw();
  if (path) rowFinders.push(showRow);
  return { find(words) { if (input) { input.value = words; state.words = words.toLowerCase(); draw(); } } };
}

/**
 * Tabs of which one panel is shown; arrow keys move between them. A panel is drawn when it is first chosen.
 * With `isPrinted` all of them are on paper, each beneath its title.
 */
function drawTabs(host, label, tabs, { isPrinted = false } = {}) {
  const prefix = `tab-${++tableNumber}`;
  const panels = tabs.map((tab, at) => make("div", { role: "tabpanel", id: `${prefix}-panel-${at}`, "aria-labelledby": `${prefix}-${at}`, "data-title": tab.title, hidden: true }));
  const buttons = tabs.map((tab, at) => make("button", {
    type: "button", role: "tab", id: `${prefix}-${at}`, "aria-controls": `${prefix}-panel-${at}`, "aria-selected": "false", tabindex: "-1", text: tab.title,
    on: {
      click: () => { choose(at); if (isPrinted) setAddress(`tab=${slugOf(tab.title)}`); },
      keydown: (event) => {
        const step = { ArrowRight: 1, ArrowLeft: -1 }[event.key];
        const to = step ? (at + step + tabs.length) % tabs.length : { Home: 0, End: tabs.length - 1 }[event.key];
        if (to === undefined) return;
        event.preventDefault();
        choose(to);
        buttons[to].focus();
      },
    },
  }));
  const drawn = new Set();
  function choose(at) {
    buttons.forEach((button, other) => {
      button.setAttribute("aria-selected", String(other === at));
      button.tabIndex = other === at ? 0 : -1;
      panels[other].hidden = other !== at;
    });
    drawOnce(at);
  }
  const drawOnce = (at) => { if (!drawn.has(at)) { drawn.add(at); tabs[at].draw(panels[at]); } };
  host.classList.toggle("print-all", isPrinted);
  if (isPrinted) addEventListener("beforeprint", () => tabs.forEach((_, at) => drawOnce(at)));
  host.replaceChildren(make("div", { class: "tabs", role: "tablist", "aria-label": label }, buttons), ...panels);
  choose(0);
  /** Chooses a tab by the slug of its title; false where there is none. */
  return { choose(slug) { const at = tabs.findIndex((tab) => slugOf(tab.title) === slug); if (at >= 0) choose(at); return at >= 0; } };
}
