"use strict";
// data: count, atlas (one image of all pictures), the side of its pictures and its columns, places (x, y), the number of neighbours, near and
// cosines of each image, names or null, numbers (in the data set) or null, label and prediction: {title, names, of} or null. Lists hold 16-bit
// numbers in base64.
const data = JSON.parse(document.getElementById("data").textContent);
const element = (id) => document.getElementById(id);
const unpack = (text) => new Uint16Array(Uint8Array.from(atob(text), (letter) => letter.charCodeAt(0)).buffer);
const places = Float32Array.from(unpack(data.places), (v) => v / 65535);
const near = unpack(data.near);
const cosines = unpack(data.cosines);
for (const labels of [data.label, data.prediction]) if (labels) labels.of = unpack(labels.of);
const atlas = new Image();
const plane = element("plane");
const context = plane.getContext("2d", { alpha: false });
const hint = element("hint");
const LEAST_PICTURE = 11; // pixels: below that, images are drawn as dots
const LARGEST_PICTURE = 128;
const SHARE = 0.85; // of the space per picture, if all were spread evenly, that a picture fills
const PALETTE = {{ palette|tojson }};
const view = { x: 0.5, y: 0.5, scale: 1 }; // the place in the middle of the canvas, and pixels per unit
const state = { width: 0, height: 0, hover: null, selected: null, only: new Set(), waiting: false };
const title = (i) => (data.names ? data.names[i] : `no. ${data.numbers ? data.numbers[i] : i}`);

// ---- colours ---------------------------------------------------------------------------------------------------
const colorings = [data.label, data.prediction].filter(Boolean);
const same = data.label && data.prediction && String(data.label.names) === String(data.prediction.names);
if (same) {
  const of = Uint16Array.from(data.label.of, (label, i) => Number(label !== data.prediction.of[i]));
  colorings.push({ title: "right or wrong", names: ["right", "wrong"], of, colors: ["--right", "--wrong"] });
}
let coloring = colorings[0] || { title: "", names: [""], of: new Uint16Array(data.count) };
let colors = [];
const style = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();

function paint() {
  const n = coloring.names.length;
  colors = coloring.names.map((_, k) => {
    if (coloring.colors) return style(coloring.colors[k]);
    if (n <= PALETTE.length) return PALETTE[k];
    return `oklch(${[0.62, 0.74, 0.52][k % 3]} 0.15 ${(k * 360) / n})`; // hues around the circle, adjacent ones differ in lightness
  });
  state.only.clear();
  const counts = new Array(n).fill(0);
  for (const k of coloring.of) counts[k] += 1;
  element("classes").hidden = n < 2;
  element("legend-title").textContent = coloring.title.replace(/^./, (letter) => letter.toUpperCase());
  element("legend").replaceChildren(...coloring.names.flatMap((name, k) => {
    if (!counts[k]) return [];
    const item = document.createElement("li");
    const button = make("button", "", item);
    button.type = "button";
    button.setAttribute("aria-pressed", "false");
    make("i", "", button).style.background = colors[k];
    button.append(name);
    make("small", counts[k].toLocaleString("en"), button);
    button.addEventListener("click", () => {
      if (!state.only.delete(k)) state.only.add(k);
      button.setAttribute("aria-pressed", String(state.only.has(k)));
      changed();
    });
    return [item];
  }));
  changed();
}

function make(name, text, parent) {
  const made = document.createElement(name);
  made.textContent = text; // never as HTML
  return parent.appendChild(made);
}

// ---- drawing ---------------------------------------------------------------------------------------------------
// All images are painted on a layer that is larger than the canvas. Panning and zooming shift and stretch this layer, while the next one is
// painted for a few milliseconds per frame, so that frames stay short without a graphics card.
const MARGIN = 0.3; // of the canvas's width and height, on each side
const BUDGET = 7; // milliseconds per frame for painting the next layer
let layer = null;
let coming = null; // {layer, work: a generator that paints it}
let version = 0; // raised by every selection and change of colours, which make older layers stale

const screenX = (i) => (places[2 * i] - view.x) * view.scale + state.width / 2;
const screenY = (i) => (places[2 * i + 1] - view.y) * view.scale + state.height / 2;
const pictureSize = (scale = view.scale) => Math.max(3, Math.min(LARGEST_PICTURE, (SHARE * scale) / Math.sqrt(data.count)));

function redraw() {
  if (state.waiting) return;
  state.waiting = true;
  requestAnimationFrame(() => { state.waiting = false; draw(); });
}

function changed() {
  version += 1;
  redraw();
}

function newLayer() {
  const made = document.createElement("canvas");
  const [width, height] = [state.width * (1 + 2 * MARGIN), state.height * (1 + 2 * MARGIN)];
  const ratio = plane.width / state.width;
  Object.assign(made, { width: Math.round(width * ratio), height: Math.round(height * ratio) });
  const target = made.getContext("2d", { alpha: false });
  target.setTransform(ratio, 0, 0, ratio, 0, 0);
  return { canvas: made, target, width, height, ratio, ...view, version };
}

function* paintLayer({ target, width, height, ratio, x: middleX, y: middleY, scale }) {
  const size = pictureSize(scale);
  const { selected, only } = state;
  const bright = selected === null ? null : new Set([selected, ...neighbours(selected)]);
  const fades = (i) => (bright ? !bright.has(i) : only.size > 0 && !only.has(coloring.of[i]));
  const dots = size < LEAST_PICTURE ? colors.map((color) => dot(color, size * 0.8, ratio)) : null;
  target.fillStyle = style("--card");
  target.fillRect(0, 0, width, height);
  for (const front of [false, true]) { // faded images first, then the others on top
    target.globalAlpha = front ? 1 : 0.16;
    for (let i = 0; i < data.count; i += 1) {
      if (i % 200 === 199) yield;
      const x = (places[2 * i] - middleX) * scale + width / 2;
      const y = (places[2 * i + 1] - middleY) * scale + height / 2;
      if (x < -size || y < -size || x > width + size || y > height + size || fades(i) === front) continue;
      if (dots) {
        const across = dots[0].width / ratio;
        target.drawImage(dots[coloring.of[i]], x - across / 2, y - across / 2, across, across);
      } else drawPicture(target, i, x, y, size);
    }
  }
}

function dot(color, size, ratio) {
  const made = document.createElement("canvas");
  made.width = made.height = Math.ceil(size * ratio) + 2;
  const target = made.getContext("2d");
  target.fillStyle = color;
  target.arc(made.width / 2, made.width / 2, (size * ratio) / 2, 0, 2 * Math.PI);
  target.fill();
  return made;
}

function draw() {
  const { width, height, selected } = state;
  const end = layer ? performance.now() + BUDGET : Infinity; // the first layer is painted at once
  const off = (one) => Math.max(Math.abs(one.x - view.x) / width, Math.abs(one.y - view.y) / height) * view.scale;
  const stale = (one) => !one || one.version !== version || one.scale !== view.scale || off(one) > MARGIN / 2;
  if (!coming && stale(layer)) {
    const next = newLayer();
    coming = { layer: next, work: paintLayer(next) };
  }
  while (coming && performance.now() < end) {
    if (coming.work.next().done) [layer, coming] = [coming.layer, null];
  }
  if (coming || stale(layer)) redraw();
  context.fillStyle = style("--card");
  context.fillRect(0, 0, width, height);
  if (layer) {
    const stretch = view.scale / layer.scale;
    const left = (layer.x - view.x) * view.scale + (width - layer.width * stretch) / 2;
    const top = (layer.y - view.y) * view.scale + (height - layer.height * stretch) / 2;
    context.drawImage(layer.canvas, left, top, layer.width * stretch, layer.height * stretch);
  }
  const size = pictureSize();
  if (selected !== null) {
    context.strokeStyle = style("--ink");
    context.lineWidth = 1.5;
    context.beginPath();
    for (const i of neighbours(selected)) {
      context.moveTo(screenX(selected), screenY(selected));
      context.lineTo(screenX(i), screenY(i));
    }
    context.stroke();
    for (const i of neighbours(selected)) drawPicture(context, i, screenX(i), screenY(i), Math.max(size, 22));
    drawPicture(context, selected, screenX(selected), screenY(selected), Math.max(size, 30), style("--ink"));
  }
  const { hover: found } = state;
  if (found !== null && found !== selected) drawPicture(context, found, screenX(found), screenY(found), Math.max(size, 22), style("--ink"));
  if (plane.matches(":focus-visible")) {
    context.strokeStyle = style("--ink");
    context.lineWidth = 1;
    context.beginPath();
    for (const [dx, dy] of [[1, 0], [-1, 0], [0, 1], [0, -1]]) {
      context.moveTo(width / 2 + 5 * dx, height / 2 + 5 * dy);
      context.lineTo(width / 2 + 14 * dx, height / 2 + 14 * dy);
    }
    context.stroke();
  }
}

function drawPicture(target, i, x, y, size, mark = "") {
  const frame = mark ? 3 : Math.max(1, Math.min(3, size / 14));
  target.fillStyle = mark || colors[coloring.of[i]];
  target.fillRect(x - size / 2 - frame, y - size / 2 - frame, size + 2 * frame, size + 2 * frame);
  target.imageSmoothingEnabled = size < 2 * data.side;
  cut(target, i, x - size / 2, y - size / 2, size);
}

function cut(target, i, x, y, size) {
  const { columns } = data;
  const [sheet, side] = sheets.find((one) => one[1] >= size) || sheets[sheets.length - 1];
  target.drawImage(sheet, (i % columns) * side, Math.floor(i / columns) * side, side, side, x, y, size, size);
}

// The atlas at full size and repeatedly halved, smallest first: drawing thousands of small pictures is faster from a small sheet.
const sheets = [];
function shrinkAtlas() {
  for (let [source, side] = [atlas, data.side]; ; side = Math.ceil(side / 2)) {
    const sheet = document.createElement("canvas");
    sheet.width = side * data.columns;
    sheet.height = side * Math.ceil(data.count / data.columns);
    const target = sheet.getContext("2d", { alpha: false });
    target.imageSmoothingQuality = "high";
    target.drawImage(source, 0, 0, sheet.width, sheet.height);
    sheets.unshift([sheet, side]);
    source = sheet;
    if (side < 2 * LEAST_PICTURE) return;
  }
}

function portrait(canvas, i) {
  canvas.width = canvas.height = Math.max(data.side, 160);
  const target = canvas.getContext("2d");
  target.imageSmoothingEnabled = data.side >= 64;
  cut(target, i, 0, 0, canvas.width);
}

function neighbours(i) {
  return near.subarray(i * data.neighbours, (i + 1) * data.neighbours);
}

// ---- moving ----------------------------------------------------------------------------------------------------
function zoom(factor, px = state.width / 2, py = state.height / 2) {
  const least = 0.4 * Math.min(state.width, state.height);
  const most = (LARGEST_PICTURE * 2 * Math.sqrt(data.count)) / SHARE;
  const scale = Math.max(least, Math.min(Math.max(most, least), view.scale * factor));
  view.x += (px - state.width / 2) * (1 / view.scale - 1 / scale);
  view.y += (py - state.height / 2) * (1 / view.scale - 1 / scale);
  view.scale = scale;
  redraw();
}

function move(dx, dy) {
  view.x = Math.max(0, Math.min(1, view.x - dx / view.scale));
  view.y = Math.max(0, Math.min(1, view.y - dy / view.scale));
  redraw();
}

function fit() {
  Object.assign(view, { x: 0.5, y: 0.5, scale: 0.92 * Math.min(state.width, state.height) });
  redraw();
}

function hit(px, py, reach) {
  let best = null;
  let least = Math.max(reach, pictureSize() * 0.6) ** 2;
  for (let i = 0; i < data.count; i += 1) {
    const far = (screenX(i) - px) ** 2 + (screenY(i) - py) ** 2;
    if (far <= least) [least, best] = [far, i];
  }
  return best;
}

// ---- facts about an image --------------------------------------------------------------------------------------
function facts(i) {
  const found = [];
  if (data.label) found.push(["class", data.label.names[data.label.of[i]], ""]);
  if (data.prediction) {
    const mark = same ? (data.label.of[i] === data.prediction.of[i] ? "right" : "wrong") : "";
    found.push(["prediction", data.prediction.names[data.prediction.of[i]], mark]);
  }
  return found;
}
const spoken = (i) => [title(i), ...facts(i).map(([name, value]) => `${name} ${value}`)].join(", ");

function hover(i) {
  plane.classList.toggle("over", i !== null);
  if (i === null) hint.hidden = true;
  if (i === state.hover) return;
  state.hover = i;
  redraw();
  if (i === null) return;
  hint.hidden = false;
  portrait(hint.querySelector("canvas"), i);
  const text = hint.querySelector("div");
  text.replaceChildren();
  make("b", title(i), text);
  for (const [name, value, mark] of facts(i)) {
    const line = make("div", `${name}: `, text);
    make("span", value, line).className = mark;
  }
}

function placeHint(i) {
  if (i === null) return;
  const [x, y] = [screenX(i), screenY(i)];
  const left = x + 20 + hint.offsetWidth < state.width ? x + 20 : x - 20 - hint.offsetWidth;
  hint.style.left = `${Math.max(4, Math.min(left, state.width - hint.offsetWidth - 4))}px`;
  hint.style.top = `${Math.max(4, Math.min(y - hint.offsetHeight / 2, state.height - hint.offsetHeight - 4))}px`;
}

function select(i) {
  state.selected = i;
  for (const id of ["picked", "nearest"]) element(id).hidden = i === null || (id === "nearest" && !data.neighbours);
  changed();
  if (i === null) return;
  element("status").textContent = `selected ${spoken(i)}`;
  portrait(element("picked").querySelector("canvas"), i);
  const list = element("picked").querySelector("dl");
  list.replaceChildren();
  for (const [name, value, mark] of [["image", title(i), ""], ...facts(i)]) {
    make("dt", name, list);
    make("dd", value, list).className = mark;
  }
  element("near").replaceChildren(...Array.from(neighbours(i), (other, k) => {
    const item = document.createElement("li");
    const button = make("button", "", item);
    const cosine = (cosines[i * data.neighbours + k] / 65535).toFixed(2);
    button.type = "button";
    button.style.setProperty("--own", colors[coloring.of[other]]);
    button.setAttribute("aria-label", `neighbour ${k + 1}: ${spoken(other)}, cosine ${cosine}`);
    button.title = spoken(other);
    const picture = make("canvas", "", button);
    picture.className = "picture";
    portrait(picture, other);
    const [first] = facts(other);
    button.append(first ? first[1] : title(other));
    make("span", cosine, button);
    button.addEventListener("click", () => {
      select(other);
      show(other);
      element("near").querySelector("button").focus();
    });
    return item;
  }));
}

function show(i, scale = view.scale) {
  const outside = screenX(i) < 20 || screenY(i) < 20 || screenX(i) > state.width - 20 || screenY(i) > state.height - 20;
  if (outside || scale !== view.scale) Object.assign(view, { x: places[2 * i], y: places[2 * i + 1], scale });
  redraw();
}

// ---- mouse, wheel, touch ------------------------------------------------------------------------------------------
const fingers = new Map(); // pointer id -> its last position
let travelled = 0;
const at = (event) => [event.offsetX, event.offsetY];

plane.addEventListener("pointerdown", (event) => {
  plane.setPointerCapture(event.pointerId);
  fingers.set(event.pointerId, at(event));
  if (fingers.size === 1) travelled = 0;
});
plane.addEventListener("pointermove", (event) => {
  const [x, y] = at(event);
  const before = fingers.get(event.pointerId);
  if (!before) {
    const found = hit(x, y, 8);
    hover(found);
    placeHint(found);
    return;
  }
  travelled += Math.hypot(x - before[0], y - before[1]);
  if (travelled > 4) { plane.classList.add("moving"); hover(null); }
  if (fingers.size === 1) move(x - before[0], y - before[1]);
  if (fingers.size === 2) {
    const [other] = [...fingers].filter(([id]) => id !== event.pointerId).map(([, place]) => place);
    const factor = Math.hypot(x - other[0], y - other[1]) / (Math.hypot(before[0] - other[0], before[1] - other[1]) || 1);
    move((x - before[0]) / 2, (y - before[1]) / 2);
    zoom(factor, (x + other[0]) / 2, (y + other[1]) / 2);
  }
  fingers.set(event.pointerId, [x, y]);
});
function lift(event) {
  const single = fingers.size === 1;
  fingers.delete(event.pointerId);
  plane.classList.remove("moving");
  if (event.type === "pointerup" && single && travelled <= 4) select(hit(...at(event), event.pointerType === "touch" ? 22 : 8));
}
plane.addEventListener("pointerup", lift);
plane.addEventListener("pointercancel", lift);
plane.addEventListener("pointerleave", () => { if (!fingers.size) hover(null); });
plane.addEventListener("wheel", (event) => {
  event.preventDefault();
  hover(null);
  zoom(Math.exp(-event.deltaY * (event.deltaMode ? 0.05 : 0.0018)), ...at(event));
}, { passive: false });

// ---- keyboard and controls ------------------------------------------------------------------------------------------
const KEYS = {
  ArrowLeft: () => move(60, 0), ArrowRight: () => move(-60, 0), ArrowUp: () => move(0, 60), ArrowDown: () => move(0, -60),
  "+": () => zoom(1.4), "=": () => zoom(1.4), "-": () => zoom(1 / 1.4), 0: fit,
  Enter: () => select(middle()), " ": () => select(middle()), Escape: () => select(null),
};
const middle = () => hit(state.width / 2, state.height / 2, 60);
plane.addEventListener("keydown", (event) => {
  if (!KEYS[event.key] || event.ctrlKey || event.metaKey || event.altKey) return;
  event.preventDefault();
  KEYS[event.key]();
  if (event.key.length > 1 && !event.key.startsWith("Arrow")) return hover(null);
  const found = middle();
  hover(found);
  placeHint(found);
});
for (const name of ["focus", "blur"]) plane.addEventListener(name, redraw);
element("in").addEventListener("click", () => zoom(1.6));
element("out").addEventListener("click", () => zoom(1 / 1.6));
element("fit").addEventListener("click", fit);
element("by").append(...colorings.map((one, k) => new Option(one.title, k)));
element("colors").hidden = colorings.length < 2;
element("by").addEventListener("change", (event) => { coloring = colorings[event.target.value]; paint(); if (state.selected !== null) select(state.selected); });
document.forms[0].addEventListener("submit", (event) => event.preventDefault());
element("find").addEventListener("keydown", (event) => {
  const text = event.target.value.toLowerCase();
  if (event.key !== "Enter" || !text) return;
  const start = state.selected === null ? 0 : state.selected + 1;
  for (let k = 0; k < data.count; k += 1) {
    const i = (start + k) % data.count;
    if (!spoken(i).toLowerCase().includes(text)) continue;
    select(i);
    return show(i, Math.max(view.scale, (32 * Math.sqrt(data.count)) / SHARE));
  }
  element("status").textContent = `no image matches ${text}`;
});

// ---- start -----------------------------------------------------------------------------------------------------
function resize() {
  const { width, height } = plane.getBoundingClientRect();
  const ratio = Math.min(devicePixelRatio || 1, 2);
  const first = !state.width;
  Object.assign(state, { width, height });
  Object.assign(plane, { width: Math.round(width * ratio), height: Math.round(height * ratio) });
  context.setTransform(ratio, 0, 0, ratio, 0, 0);
  [layer, coming] = [null, null];
  if (first) fit();
  else draw();
}
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", paint);
atlas.src = data.atlas;
const ready = atlas.decode().then(() => {
  shrinkAtlas();
  new ResizeObserver(resize).observe(plane);
  resize();
  paint();
});
