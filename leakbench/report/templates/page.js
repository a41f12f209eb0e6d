// Tables that sort (tablesort), filter, and copy as CSV and Markdown. Without it all is there as well.
"use strict";

const cellsOf = (row) => [...row.cells].map((cell) => cell.innerText.replace(/\s+/g, " ").trim());
const shownRows = (table) => [...table.rows].filter((row) => !row.hidden).map(cellsOf);

const inert = (text) => (/^\s*[=+\-@]/.test(text) && text !== "-" && isNaN(text) ? `'${text}` : text);
const quoted = (text) => (/[",\n]/.test(text) ? `"${text.replaceAll('"', '""')}"` : text);
const csv = (rows) => rows.map((row) => row.map(inert).map(quoted).join(",")).join("\n") + "\n";

function markdown([head, ...rows]) {
  const line = (row) => `| ${row.map((text) => text.replaceAll("|", "\\|")).join(" | ")} |`;
  return [line(head), `|${"---|".repeat(head.length)}`, ...rows.map(line)].join("\n") + "\n";
}

function button(words, act) {
  const made = document.createElement("button");
  made.type = "button";
  made.textContent = words;
  made.addEventListener("click", () => act(made));
  return made;
}

function copier(words, table, write) {
  return button(words, async (pressed) => {
    const text = write(shownRows(table));
    try {
      await navigator.clipboard.writeText(text);
      pressed.textContent = "copied";
    } catch {
      pressed.textContent = "the browser refuses";
    }
    setTimeout(() => { pressed.textContent = words; }, 1500);
  });
}

function filter(table) {
  const field = document.createElement("input");
  field.type = "search";
  field.placeholder = "filter rows";
  field.setAttribute("aria-label", "filter rows");
  field.addEventListener("input", () => {
    const wanted = field.value.toLowerCase();
    for (const row of table.tBodies[0].rows) {
      row.hidden = !row.innerText.toLowerCase().includes(wanted);
    }
  });
  return field;
}

for (const table of document.querySelectorAll("table")) {
  if (table.classList.contains("sortable")) new Tablesort(table, { descending: true });
  const bar = document.createElement("div");
  bar.className = "bar";
  bar.append(
    filter(table), copier("copy CSV", table, csv), copier("copy Markdown", table, markdown),
  );
  table.parentElement.before(bar);
}
