"use strict";
const data = JSON.parse(document.getElementById("data").textContent);

// ---- sort: ascending, descending, original order --------------------------------------------------------------
for (const table of document.querySelectorAll("main table")) {
  const body = table.tBodies[0];
  const printed = [...body.rows];
  const heads = [...table.tHead.rows[0].cells];
  heads.forEach((head, index) => head.querySelector("button").addEventListener("click", () => {
    const next = { ascending: "descending", descending: null }[head.getAttribute("aria-sort")];
    const order = next === undefined ? "ascending" : next;
    heads.forEach((other) => other.removeAttribute("aria-sort"));
    if (order) head.setAttribute("aria-sort", order);
    table.toggleAttribute("data-sorted", Boolean(order));
    body.append(...(order ? sorted(printed, index, head.dataset.kind === "text", order) : printed));
  }));
}

function sorted(rows, index, isText, order) {
  const sign = order === "ascending" ? 1 : -1;
  const value = (row) => row.cells[index].dataset.value;
  const compare = (a, b) => {
    const [x, y] = [value(a), value(b)];
    if (x === "" || y === "") return (x === "") - (y === ""); // missing cells stay last
    return sign * (isText ? x.localeCompare(y, "en", { numeric: true }) : x - y);
  };
  return [...rows].sort(compare);
}

// ---- filter ----------------------------------------------------------------------------------------------------
const filter = document.getElementById("filter");
const status = document.getElementById("status");
const strong = << strong >>;

function wanted(row) {
  const cells = [...row.querySelectorAll("td[data-status]")];
  const states = cells.map((cell) => cell.dataset.status);
  if (status.value === "measured" && !states.some((s) => s === "measured" || s === "partly")) return false;
  if (status.value === "open" && !states.some((s) => s !== "measured")) return false;
  if (status.value === "differs" && !cells.some((cell) => Math.abs(cell.dataset.units || 0) > strong)) return false;
  const section = row.closest("section");
  const text = `${row.textContent} ${section.querySelector("h2").textContent} ${section.id}`.toLowerCase();
  const words = filter.value.toLowerCase().match(/[a-zλα]\s*=\s*[\d.]+|\S+/g) || [];
  return words.every((word) => text.replace(/\s+/g, " ").includes(word.replace(/\s*=\s*/, " = ")));
}

function apply() {
  let shown = 0;
  let all = 0;
  for (const section of document.querySelectorAll("main section:not(#failed, #claims, #time)")) {
    let here = 0;
    for (const row of section.querySelectorAll("tbody tr")) {
      row.hidden = !wanted(row);
      here += !row.hidden;
      all += 1;
    }
    section.hidden = here === 0;
    shown += here;
  }
  document.getElementById("count").value = shown === all ? `${all} rows` : `${shown} of ${all} rows`;
}

filter.addEventListener("input", apply);
status.addEventListener("change", apply);
document.querySelector(".tools").addEventListener("submit", (event) => event.preventDefault());
document.getElementById("jump").addEventListener("change", (event) => {
  const section = document.getElementById(event.target.value);
  if (section) section.scrollIntoView();
  event.target.value = "";
});

// ---- the runs behind a cell --------------------------------------------------------------------------------------
const dialog = document.getElementById("runs");

function element(name, text, parent) {
  const made = document.createElement(name);
  if (text !== undefined) made.textContent = text; // never as HTML
  if (parent) parent.append(made);
  return made;
}

function showRun([seed, name, value], body) {
  const run = data.runs[name];
  const box = element("div", undefined, body);
  box.className = "run";
  const figure = value === null ? run.status : value.toFixed(2);
  element("h3", `seed ${seed}: ${figure}`, box);
  element("p", name, box).className = "name";
  if (run.error) element("pre", run.error, box);
  if (run.departures.length) element("p", "Not the paper's setting: " + run.departures.join("; "), box);
  if (run.choices.length) element("p", "Choices that the paper leaves open: " + run.choices.join("; "), box);
  element("pre", run.command, box);
  if (run.protocol) {
    const details = element("details", undefined, box);
    element("summary", "protocol and times", details);
    element("pre", JSON.stringify({ time_s: run.time_s, ...run.protocol }, null, 1), details);
  }
}

document.querySelector("main").addEventListener("click", (event) => {
  const button = event.target.closest("button.cell");
  if (!button) return;
  const cell = button.closest("td");
  const row = cell.closest("tr");
  const head = cell.closest("table").tHead.rows[0].cells[cell.cellIndex];
  const names = [...row.cells].slice(0, row.querySelector("th.first").cellIndex + 1).map((c) => c.dataset.value);
  document.getElementById("runs-title").textContent = [...names, head.textContent.trim()].join(" · ");
  const body = document.getElementById("runs-body");
  body.replaceChildren();
  data.cells[button.dataset.cell].forEach((run) => showRun(run, body));
  dialog.showModal();
});
dialog.addEventListener("click", (event) => { if (event.target === dialog) dialog.close(); });

apply();
