"use strict";
// data: figures (pairs of a name and its label), notes (figure -> a remark), runs in the order of the rows, each {name, facts, color,
// dash, values (for sorting), curves: {epoch, minutes, FIGURE: numbers or nulls}}, first (the runs that are drawn at first).
const data = JSON.parse(document.getElementById("data").textContent);
const chart = document.getElementById("chart");
const hint = document.getElementById("hint");
const figure = document.getElementById("figure");
const over = document.getElementById("over");
const body = document.querySelector("tbody");
const rows = [...body.rows];
const boxes = rows.map((row) => row.querySelector("input"));
const MARGIN = { left: 52, right: 12, top: 10, bottom: 38 };
let here = null; // {run, point} under the mouse or chosen by keys
let drawn = []; // {run, path, points: [[x, y, epoch, value, pixel x, pixel y]]}

const labels = Object.fromEntries(data.figures);
for (const [name, label] of data.figures) figure.add(new Option(label, name));
boxes.forEach((box, i) => { box.checked = data.first.includes(i); });

function svg(name, attributes, parent) {
  const made = document.createElementNS("http://www.w3.org/2000/svg", name);
  for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
  return parent.appendChild(made);
}

// ---- the chart ---------------------------------------------------------------------------------------------
function ticks(low, high, most) {
  const raw = (high - low) / most;
  const power = 10 ** Math.floor(Math.log10(raw));
  const step = [1, 2, 5, 10].map((n) => n * power).find((n) => n >= raw);
  const found = [];
  for (let i = Math.ceil(low / step - 1e-9); i * step <= high + step * 1e-9; i += 1) found.push(Number((i * step).toPrecision(12)));
  return found;
}

function draw() {
  const { width, height } = chart.getBoundingClientRect();
  chart.setAttribute("viewBox", `0 0 ${width} ${height}`);
  chart.replaceChildren();
  drawn = rows.flatMap((row, i) => {
    const { curves } = data.runs[i];
    const values = curves[figure.value];
    if (!boxes[i].checked || row.hidden || !values) return [];
    const points = values.flatMap((value, k) => (value === null || curves[over.value][k] === null ? [] : [[curves[over.value][k], value, curves.epoch[k]]]));
    return points.length ? [{ run: i, points }] : [];
  });
  const all = drawn.flatMap((one) => one.points);
  const about = [data.notes[figure.value] || "", data.thinned].filter(Boolean).join(" ");
  document.getElementById("about").textContent = about;
  document.getElementById("drawn").value = `${drawn.length} curve${drawn.length === 1 ? "" : "s"}`;
  if (!all.length) {
    svg("text", { x: width / 2, y: height / 2, "text-anchor": "middle" }, chart).textContent = "no selected run has this curve";
    return;
  }
  const range = (k) => [Math.min(...all.map((p) => p[k])), Math.max(...all.map((p) => p[k]))];
  let [left, right] = range(0);
  let [low, high] = range(1);
  left = Math.min(left, 0);
  if (right === left) right = left + 1;
  const room = (high - low || Math.abs(high) || 1) * 0.04;
  [low, high] = [low - room, high + room];
  const x = (v) => MARGIN.left + ((v - left) / (right - left)) * (width - MARGIN.left - MARGIN.right);
  const y = (v) => height - MARGIN.bottom - ((v - low) / (high - low)) * (height - MARGIN.top - MARGIN.bottom);
  const axes = svg("g", {}, chart);
  for (const tick of ticks(low, high, Math.max(3, height / 60))) {
    svg("line", { class: "grid", x1: MARGIN.left, x2: width - MARGIN.right, y1: y(tick), y2: y(tick) }, axes);
    svg("text", { x: MARGIN.left - 7, y: y(tick) + 4, "text-anchor": "end" }, axes).textContent = tick.toLocaleString("en");
  }
  for (const tick of ticks(left, right, Math.max(3, width / 110))) {
    svg("text", { x: x(tick), y: height - MARGIN.bottom + 17, "text-anchor": "middle" }, axes).textContent = tick.toLocaleString("en");
  }
  const below = over.value === "epoch" ? "epoch" : "minutes of training";
  svg("text", { x: (MARGIN.left + width - MARGIN.right) / 2, y: height - 4, "text-anchor": "middle" }, axes).textContent = below;
  for (const one of drawn) {
    const { color, dash, name } = data.runs[one.run];
    for (const point of one.points) point.push(x(point[0]), y(point[1]));
    const line = one.points.map((p) => `${p[3].toFixed(1)},${p[4].toFixed(1)}`).join("L");
    one.path = svg("path", { d: `M${line}`, stroke: color, "stroke-dasharray": dash }, chart);
    one.path.dataset.run = name;
    if (one.points.length === 1) svg("circle", { cx: one.points[0][3], cy: one.points[0][4], r: 4, fill: color }, chart);
  }
  show(here && drawn.some((one) => one.run === here.run) ? here : null);
}

// ---- the run under the mouse, or chosen by keys --------------------------------------------------------------
function show(next) {
  here = next;
  chart.querySelector(".mark")?.remove();
  chart.classList.toggle("focused", Boolean(here));
  rows.forEach((row, i) => row.classList.toggle("here", here?.run === i));
  for (const one of drawn) one.path.classList.toggle("here", one.run === here?.run);
  const one = drawn.find((other) => other.run === here?.run);
  hint.hidden = !one;
  if (!one) return;
  chart.insertBefore(one.path, null);
  here.point = Math.max(0, Math.min(here.point, one.points.length - 1));
  const [, value, epoch, px, py] = one.points[here.point];
  const run = data.runs[here.run];
  svg("circle", { class: "mark", cx: px, cy: py, r: 5, fill: run.color }, chart);
  const title = document.createElement("b");
  title.textContent = run.name;
  hint.replaceChildren(title, document.createElement("br"), `epoch ${epoch}: ${labels[figure.value]} ${Number(value.toPrecision(4))}`, document.createElement("br"), run.facts);
  const box = hint.parentElement.getBoundingClientRect();
  const place = chart.getBoundingClientRect();
  const [left, top] = [place.left - box.left + px, place.top - box.top + py];
  const beside = left + 16 + hint.offsetWidth < box.width ? left + 16 : left - 16 - hint.offsetWidth;
  hint.style.left = `${Math.max(4, Math.min(beside, box.width - hint.offsetWidth - 4))}px`;
  const above = py > hint.offsetHeight + 12 ? top - hint.offsetHeight - 12 : top + 16;
  hint.style.top = `${Math.min(above, box.height - hint.offsetHeight)}px`;
}

function nearest(px, py, reach) {
  let best = null;
  let least = reach ** 2;
  for (const one of drawn) {
    one.points.forEach((point, k) => {
      const between = one.points[k + 1] || point; // the line from each point to the next counts
      const [dx, dy] = [between[3] - point[3], between[4] - point[4]];
      const along = Math.max(0, Math.min(1, ((px - point[3]) * dx + (py - point[4]) * dy) / (dx * dx + dy * dy || 1)));
      const far = (point[3] + along * dx - px) ** 2 + (point[4] + along * dy - py) ** 2;
      if (far < least) [least, best] = [far, { run: one.run, point: along < 0.5 ? k : k + 1 }];
    });
  }
  return best;
}

function point(event) {
  const place = chart.getBoundingClientRect();
  show(nearest(event.clientX - place.left, event.clientY - place.top, event.pointerType === "touch" ? 40 : 24));
}
chart.addEventListener("pointermove", point);
chart.addEventListener("pointerdown", point);
chart.addEventListener("pointerleave", (event) => { if (event.pointerType === "mouse") show(null); });
chart.addEventListener("keydown", (event) => {
  const across = { ArrowLeft: -1, ArrowRight: 1 }[event.key];
  const along = { ArrowUp: 1, ArrowDown: -1 }[event.key];
  if (event.key === "Escape") show(null);
  if (!drawn.length || (!across && !along)) return;
  event.preventDefault();
  if (!here) return show({ run: drawn[0].run, point: drawn[0].points.length - 1 });
  if (across) return show({ run: here.run, point: here.point + across });
  // Up chooses the run whose value at this place is the next higher one, down the next lower one.
  const own = drawn.find((one) => one.run === here.run);
  const at = own.points[here.point][0];
  const level = (one) => one.points.reduce((a, b) => (Math.abs(b[0] - at) < Math.abs(a[0] - at) ? b : a));
  const order = [...drawn].sort((a, b) => level(a)[1] - level(b)[1]);
  const next = order[order.indexOf(own) + along];
  if (next) show({ run: next.run, point: next.points.indexOf(level(next)) });
});

// ---- the legend: switch runs on and off, filter, sort ----------------------------------------------------------
function switched() {
  rows.forEach((row, i) => row.classList.toggle("off", !boxes[i].checked));
  draw();
}
boxes.forEach((box, i) => {
  box.addEventListener("change", switched);
  rows[i].addEventListener("pointerenter", () => show({ run: i, point: Infinity }));
  rows[i].addEventListener("pointerleave", () => show(null));
  box.addEventListener("focus", () => show({ run: i, point: Infinity }));
  box.addEventListener("blur", () => show(null));
});
function filtered() {
  const words = document.getElementById("filter").value.toLowerCase().split(/\s+/).filter(Boolean);
  for (const row of rows) row.hidden = !words.every((word) => row.textContent.toLowerCase().includes(word));
  const left = rows.filter((row) => !row.hidden).length;
  document.getElementById("count").value = left === rows.length ? `${left} runs` : `${left} of ${rows.length} runs`;
  switched();
}
document.getElementById("filter").addEventListener("input", filtered);
for (const [id, checked] of [["all", true], ["none", false]]) {
  document.getElementById(id).addEventListener("click", () => {
    rows.forEach((row, i) => { if (!row.hidden) boxes[i].checked = checked; });
    switched();
  });
}
const heads = [...document.querySelectorAll("thead th")];
heads.forEach((head, column) => head.querySelector("button").addEventListener("click", () => {
  const isText = head.classList.contains("words");
  const before = head.getAttribute("aria-sort");
  const order = before ? (before === "ascending" ? "descending" : "ascending") : isText ? "ascending" : "descending";
  heads.forEach((other) => other.removeAttribute("aria-sort"));
  head.setAttribute("aria-sort", order);
  const value = (row) => data.runs[rows.indexOf(row)].values[column];
  const compare = (a, b) => {
    const [x, y] = [value(a), value(b)];
    if (x === null || y === null) return (x === null) - (y === null); // runs without a value stay last
    return (order === "ascending" ? 1 : -1) * (isText ? x.localeCompare(y, "en", { numeric: true }) : x - y);
  };
  body.append(...[...rows].sort(compare));
}));

for (const form of document.forms) form.addEventListener("submit", (event) => event.preventDefault());
for (const menu of [figure, over]) menu.addEventListener("change", draw);
new ResizeObserver(draw).observe(chart);
filtered();
