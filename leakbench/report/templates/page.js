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

for (const table of document.querySelectorAll(".scroll > table")) {
  if (table.classList.contains("sortable")) new Tablesort(table, { descending: true });
  const bar = document.createElement("div");
  bar.className = "bar";
  bar.append(
    filter(table), copier("copy CSV", table, csv), copier("copy Markdown", table, markdown),
  );
  table.parentElement.before(bar);
}

// Victims: a slider shows the pictures of a step, a picture opens its victim.
const pictures = JSON.parse(document.getElementById("pictures")?.textContent ?? "[]");

function showStep(part) {
  const slider = part.querySelector("input[type=range]");
  const said = slider.dataset.words.split("|")[slider.value];
  part.querySelector("output").value = said;
  slider.setAttribute("aria-valuetext", said);
  for (const image of part.querySelectorAll("img[data-frames]")) {
    const frames = image.dataset.frames.split(" ");
    const frame = frames[Math.min(slider.value, frames.length - 1)];
    image.src = `data:image/webp;base64,${pictures[frame]}`;
  }
}

function openVictim(victim) {
  victim.querySelector("input[type=range]").value =
    document.getElementById(victim.dataset.steps).value;
  showStep(victim);
  victim.showModal();
}

for (const part of document.querySelectorAll(".of-steps, dialog")) {
  part.querySelector("input[type=range]").addEventListener("input", () => showStep(part));
  if (part.tagName !== "DIALOG") showStep(part);
}
for (const opener of document.querySelectorAll("[data-opens]")) {
  opener.addEventListener("click", () => openVictim(document.getElementById(opener.dataset.opens)));
}
