"use strict";
// The data are text alone: nothing of them is ever taken for markup.
const page = JSON.parse(document.getElementById("data").textContent);
const at = (id) => document.getElementById(id);
const SVG = "http://www.w3.org/2000/svg";

const state = { pair: 0, way: 0, hovered: null, pinned: null, brightness: 0 };
let shown = null; // the decoded ways of the pair that is shown, and its painted elements

function make(tag, properties = {}, ...children) {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(properties)) {
    if (name in element && name !== "role") element[name] = value;
    else element.setAttribute(name, value);
  }
  element.append(...children);
  return element;
}

function draw(tag, attributes, ...children) {
  const element = document.createElementNS(SVG, tag);
  for (const [name, value] of Object.entries(attributes)) element.setAttribute(name, value);
  element.append(...children);
  return element;
}

function numbers(text, low, high) {
  const bytes = Uint8Array.from(atob(text), (character) => character.charCodeAt(0));
  return Array.from(new Uint16Array(bytes.buffer), (whole) => low + (whole / 65535) * (high - low));
}

function table(text, rows, low, high) {
  const flat = numbers(text, low, high), across = flat.length / rows;
  return Array.from({ length: rows }, (_, row) => flat.slice(row * across, (row + 1) * across));
}

const figure = (value) => value.toFixed(Math.abs(value) >= 0.1 || value === 0 ? 2 : 3);
const signed = (value, digits) => (value < 0 ? "−" : "") + Math.abs(value).toFixed(digits);
// Numbers with four digits that add up to the total with four digits: what rounding leaves goes to the largest rests.
function rounded(values, total) {
  const units = values.map((value) => Math.floor(value * 1e4));
  const missing = Math.round(total * 1e4) - units.reduce((sum, unit) => sum + unit, 0);
  const rests = values.map((value, place) => place).sort((a, b) => (values[b] * 1e4 - units[b]) - (values[a] * 1e4 - units[a]));
  rests.slice(0, Math.max(0, missing)).forEach((place) => { units[place] += 1; });
  return units.map((unit) => unit / 1e4);
}
const clamp = (value) => Math.min(1, Math.max(0, value));
const largest = (values) => values.reduce((best, value, place) => (value > values[best] ? place : best), 0);
const mean = (values) => values.reduce((sum, value) => sum + value, 0) / values.length;
const label = (token) => token.replace(/^<(start|end)>$/, "‹$1›").trim() || "␣";
const quoted = (token) => `“\u2068${label(token)}\u2069”`; // isolated: a caption may run from right to left
const special = (token) => /^[<[].*[>\]]$/.test(token) || token === "";

// Brightness and shades mean the same on the whole page, for each way of looking; the slider moves what is full.
const fullOf = (scale, from) => from + (scale.full - from) * 2 ** -state.brightness;
function light(way, value) {
  const scale = page.scales[way.name];
  return clamp((value - scale.dark) / (fullOf(scale, scale.dark) - scale.dark)) ** (1 / page.gamma);
}
function shade(value, of) {
  const scale = page.scales[of];
  return clamp((value - scale.mean) / (fullOf(scale, scale.mean) - scale.mean));
}
const uniform = (way, values) => way.unit === "weight" && values.length > 1 && Math.max(...values) < page.nearly_uniform * mean(values);

// ---- one pair ------------------------------------------------------------------------------------------------------

function decode(way) {
  const scale = page.scales[way.name], words = page.scales[`${way.name} words`];
  return {
    ...way,
    weights: table(way.weights, way.rows, scale.low, scale.high),
    words: way.words === undefined ? null : table(way.words, way.rows, words.low, words.high),
  };
}

function open(number) {
  state.pair = number;
  state.hovered = state.pinned = null;
  const pair = page.pairs[number];
  shown = { pair, ways: pair.ways.map(decode), regions: [], cells: [], words: [], queries: [], shares: [] };
  state.way = Math.min(state.way, Math.max(0, shown.ways.length - 1));
  at("caption").textContent = pair.caption;
  at("photo").hidden = true;
  at("kicker").replaceChildren(...kicker(pair));
  at("way").replaceChildren(...shown.ways.map((way, place) => make("option", { value: place, textContent: way.title })));
  at("way").value = state.way;
  at("way-label").hidden = shown.ways.length < 2;
  for (const control of document.querySelectorAll(".controls label:not(#way-label)")) control.hidden = !shown.ways.length;
  showDocument(pair);
  showShares(pair);
  showFound(pair);
  showWay();
  for (const entry of at("list").querySelectorAll("button")) entry.setAttribute("aria-current", String(Number(entry.dataset.pair) === number));
}

function kicker(pair) {
  const parts = [];
  if (pair.mark !== undefined) parts.push(mark(pair.right, pair.mark), " · ");
  parts.push(pair.about);
  return parts;
}

const mark = (right, text) => make("span", { className: `mark ${right ? "right" : "wrong"}`, textContent: `${right ? "✓" : "✗"} ${text}` });

function showDocument(pair) {
  const picture = at("picture"), tokens = at("document");
  const drawn = pair.tokens === undefined && pair.boxes !== undefined;
  picture.toggleAttribute("hidden", !drawn); // an SVG has no such property
  at("outlines").parentNode.hidden = !drawn;
  tokens.hidden = pair.tokens === undefined;
  picture.replaceChildren();
  tokens.replaceChildren();
  if (pair.tokens !== undefined) {
    shown.regions = pair.tokens.map((token, place) => chip(token, "region", place));
    tokens.append(...shown.regions);
    roving(shown.regions);
    return;
  }
  if (!drawn) {
    at("photo").hidden = pair.picture === null;
    if (pair.picture !== null) Object.assign(at("photo"), { src: page.pictures[pair.picture].src, alt: pair.about || "the picture" });
    return;
  }
  const [width, height] = pair.size, boxes = table(pair.boxes, pair.regions, 0, 1);
  picture.setAttribute("viewBox", `0 0 ${width} ${height}`);
  const cells = draw("g", { "shape-rendering": "crispEdges" });
  const all = { x: 0, y: 0, width, height };
  const layer = (more) => pair.picture === null
    ? draw("rect", { ...all, fill: "#c9c9c4", ...more })
    : draw("image", { ...all, href: page.pictures[pair.picture].src, preserveAspectRatio: "none", ...more });
  picture.append(
    draw("defs", {}, draw("mask", { id: "light", maskUnits: "userSpaceOnUse", ...all }, cells)),
    layer({ opacity: page.darkest }), layer({ mask: "url(#light)" }),
  );
  const group = draw("g", { role: "toolbar", "aria-label": "Regions of the picture" });
  const placed = boxes.map(([x0, y0, x1, y1]) => ({ x: x0 * width, y: y0 * height, width: Math.max(0, x1 - x0) * width, height: Math.max(0, y1 - y0) * height }));
  shown.cells = placed.map((place) => draw("rect", place));
  shown.regions = placed.map((place, number) => watch(draw("rect", { ...place, class: "region", role: "button", "aria-label": `region ${number + 1}`, "aria-pressed": "false", "data-place": number }), "region", number));
  shown.areas = placed.map((place) => place.width * place.height);
  cells.append(...shown.cells);
  group.append(...shown.regions);
  if (pair.numbered) {
    group.append(...placed.map((place, number) => {
      const size = 0.35 * Math.min(place.width, place.height);
      return draw("text", { x: place.x + place.width / 2, y: place.y + place.height / 2 + size / 3, "font-size": size, "text-anchor": "middle" }, String(number + 1));
    }));
  }
  shown.objects = draw("g", {});
  picture.append(group, shown.objects);
  roving(shown.regions);
  picture.classList.toggle("outlined", at("outlines").checked);
}

function showWay() {
  const { pair } = shown, way = shown.ways[state.way];
  state.hovered = state.pinned = null;
  const heads = way !== undefined && way.queries !== undefined;
  shown.queries = heads ? way.queries.map((name, place) => chip(name, "query", place)) : [];
  const mute = way === undefined || (heads && way.words === null);
  shown.words = pair.words.map((word, place) => chip(word, heads ? "word" : "query", place, mute));
  at("queries").replaceChildren(...shown.queries);
  at("queries").hidden = !heads;
  at("words").replaceChildren(...shown.words);
  if (way !== undefined) {
    roving(shown.queries);
    if (!mute) roving(shown.words);
    // The query that chooses most is shown first: a picture says more than an instruction.
    const peak = way.weights.map((row, place) => (heads || !special(pair.words[place]) ? Math.max(...row) : -Infinity));
    state.pinned = { kind: "query", place: largest(peak) };
  }
  showScale();
  paint();
}

function showScale() {
  const way = shown.ways[state.way];
  if (way === undefined) { at("scale").replaceChildren(); return; }
  const scale = page.scales[way.name], kind = shown.pair.tokens === undefined ? "light" : "shaded";
  at("scale").replaceChildren(
    make("span", { textContent: `${way.unit} ${figure(scale.dark)}` }),
    make("span", { className: `bar ${kind}`, role: "img", "aria-label": "to" }),
    make("span", { textContent: `${figure(fullOf(scale, scale.dark))} · mean ${figure(scale.mean)} · one scale for all pairs` }),
  );
}

function chip(text, kind, place, mute = false) {
  const made = make("button", { type: "button", className: `chip${special(text) ? " special" : ""}${mute ? " plain" : ""}`, textContent: label(text), disabled: mute });
  if (mute) return made;
  made.setAttribute("aria-pressed", "false");
  const enter = () => { state.hovered = { kind, place }; paint(); };
  made.addEventListener("pointerenter", enter);
  made.addEventListener("pointerleave", () => { state.hovered = null; paint(); });
  made.addEventListener("click", () => keep(kind, place));
  return watch(made, kind, place);
}

const same = (one, other) => one !== null && other !== null && one.kind === other.kind && one.place === other.place;

function keep(kind, place) {
  state.pinned = same(state.pinned, { kind, place }) ? null : { kind, place };
  paint();
  say();
}

// Elements that the keyboard reaches; a screen reader is told of these, and not of all that a mouse passes.
function watch(element, kind, place) {
  element.addEventListener("focus", () => { state.hovered = { kind, place }; paint(); say(); });
  element.addEventListener("blur", () => { state.hovered = null; paint(); });
  element.addEventListener("keydown", (event) => {
    if (event.key === "Enter" || event.key === " ") { event.preventDefault(); keep(kind, place); }
  });
  return element;
}

function say(text = at("status").textContent) {
  if (at("said").textContent !== text) at("said").textContent = text;
}

// The smallest region under the mouse, so that each can be reached.
function regionAt(event) {
  const found = document.elementsFromPoint(event.clientX, event.clientY).filter((element) => element.classList.contains("region"));
  const places = found.map((element) => Number(element.dataset.place)).sort((a, b) => shown.areas[a] - shown.areas[b]);
  return places.length && shown.ways.length ? { kind: "region", place: places[0] } : null;
}

at("picture").addEventListener("pointermove", (event) => {
  const found = regionAt(event);
  if (found === state.hovered || same(found, state.hovered)) return;
  state.hovered = found;
  paint();
});
at("picture").addEventListener("pointerleave", () => { state.hovered = null; paint(); });
at("picture").addEventListener("mousedown", (event) => event.preventDefault()); // focus would go to the topmost
at("picture").addEventListener("click", (event) => {
  const found = regionAt(event);
  if (found !== null) keep(found.kind, found.place);
});

// One stop of the Tab key for all of them; arrows go from one to the next.
function roving(elements) {
  const hidden = (element) => element.closest("[hidden]") !== null;
  elements.forEach((element, place) => {
    element.setAttribute("tabindex", place === 0 ? "0" : "-1");
    element.addEventListener("keydown", (event) => {
      const step = { ArrowRight: 1, ArrowDown: 1, Home: 1, ArrowLeft: -1, ArrowUp: -1, End: -1 }[event.key];
      if (step === undefined) return;
      let to = event.key === "Home" ? 0 : event.key === "End" ? elements.length - 1 : place + step;
      while (to >= 0 && to < elements.length && hidden(elements[to])) to += step;
      if (to < 0 || to >= elements.length) return;
      event.preventDefault();
      element.setAttribute("tabindex", "-1");
      elements[to].setAttribute("tabindex", "0");
      elements[to].focus();
    });
  });
}

function paint() {
  const way = shown.ways[state.way], active = state.hovered ?? state.pinned;
  for (const [kind, list] of [["word", shown.words], ["query", shown.queries], ["region", shown.regions]]) {
    list.forEach((element, place) => {
      element.classList.remove("strongest", "active", "lit");
      element.style.removeProperty("--lit");
      const own = { kind: kind === "word" && way !== undefined && way.queries === undefined ? "query" : kind, place };
      if (same(active, own)) element.classList.add("active");
      if (element.hasAttribute("aria-pressed")) element.setAttribute("aria-pressed", String(same(state.pinned, own)));
    });
  }
  for (const { element, kind, place, name: called } of shown.shares) {
    element.classList.toggle("active", same(active, chosenBy(kind, place, called)));
  }
  if (way === undefined) { at("status").textContent = page.unseen; return; }
  const told = active === null ? ["Nothing is chosen: hover a word or a region."] : [...explained(way, active), ...sharesOf(active)];
  at("status").replaceChildren(...told);
  paintRegions(active === null ? null : lights(way, active));
  paintObjects(active);
}

const lights = (way, active) =>
  active.kind === "query" ? way.weights[active.place].map((value) => light(way, value))
    : active.kind === "region" ? shown.regions.map((_, place) => (place === active.place ? 1 : 0))
      : null;

// Marks what the chosen one looks at, or is looked at by, and says it.
function explained(way, active) {
  const asking = way.queries === undefined ? shown.words : shown.queries, note = (text) => make("span", { className: "uniform", textContent: ` · ${text}` });
  const looks = way.unit === "similarity" ? "is most like" : "looks most at";
  if (active.kind === "query") {
    const row = way.weights[active.place], best = largest(row), own = name(way, active.place), backwards = way.over === "words";
    const told = [];
    if (row[best] === 0) {
      told.push(backwards ? `${own}: no region looks at it` : `${own}: looks at nothing`);
    } else {
      shown.regions[best]?.classList.add("strongest");
      told.push(`${backwards ? `${own}: ${item(best)} ${looks} it` : `${own} ${looks} ${item(best)}`}, ${way.unit} ${figure(row[best])}`);
      if (way.cosines) told.push(` · cosine ${figure(way.cosines[active.place])}`);
      if (!backwards && uniform(way, row)) told.push(note("nearly uniform"));
    }
    if (way.words) {
      const read = way.words[active.place];
      read.forEach((value, place) => lit(shown.words[place], shade(value, `${way.name} words`)));
      if (uniform(way, read)) told.push(note("words nearly uniform"));
    }
    return told;
  }
  const [table, of, own] = active.kind === "region" ? [way.weights, way.name, item(active.place)] : [way.words, `${way.name} words`, quoted(shown.pair.words[active.place])];
  const column = table.map((row) => row[active.place]), best = largest(column);
  column.forEach((value, place) => lit(asking[place], shade(value, of)));
  if (column[best] === 0) return [`${own}: nothing looks at it`];
  asking[best].classList.add("strongest");
  const forwards = active.kind === "region" && way.over === "words";
  const told = [`${forwards ? `${own} ${looks} ${name(way, best)}` : `${own}: ${name(way, best)} ${looks} it`}, ${way.unit} ${figure(column[best])}`];
  if (forwards && uniform(way, column)) told.push(note("nearly uniform"));
  return told;
}

function sharesOf(active) {
  const own = shown.shares.filter(({ kind, place, name: called }) => same(active, chosenBy(kind, place, called)));
  return own.map(({ told }) => ` · share ${told}`);
}

function lit(element, value) {
  element.style.setProperty("--lit", String(value));
  element.classList.toggle("lit", value > 0.25);
}
const item = (place) => (shown.pair.tokens === undefined ? `region ${place + 1}` : quoted(shown.pair.tokens[place]));
const name = (way, place) => (way.queries === undefined ? quoted(shown.pair.words[place]) : way.queries[place]);

function paintRegions(lights) {
  if (shown.pair.tokens !== undefined) {
    shown.regions.forEach((element, place) => lit(element, lights === null ? 0 : lights[place]));
    return;
  }
  const order = shown.cells.map((_, place) => place);
  if (lights !== null) order.sort((a, b) => lights[a] - lights[b]); // where regions overlap the brighter one is seen
  const group = shown.cells[0]?.parentNode;
  for (const place of order) {
    const grey = lights === null ? 255 : Math.round(255 * (lights[place] ?? 0));
    shown.cells[place].setAttribute("fill", `rgb(${grey},${grey},${grey})`);
    group.append(shown.cells[place]);
  }
}

function paintObjects(active) {
  if (!shown.objects || !shown.pair.objects) return;
  const wanted = active !== null && active.kind === "query" && shown.queries.length === 0 ? [String(active.place)] : Object.keys(shown.pair.objects);
  shown.objects.replaceChildren(...wanted.filter((place) => place in shown.pair.objects).map((place) => {
    const [x0, y0, x1, y1] = shown.pair.objects[place];
    return draw("rect", { class: "object", x: x0, y: y0, width: x1 - x0, height: y1 - y0 });
  }));
}

// ---- the list of pairs ---------------------------------------------------------------------------------------------

function showList() {
  at("list").replaceChildren(...page.pairs.map((pair, number) => {
    const told = make("span", {}, make("span", { className: "text", dir: "auto", textContent: pair.caption }), pair.mark === undefined ? make("span", { className: "name", textContent: pair.about }) : mark(pair.right, pair.mark));
    const button = make("button", { type: "button", className: pair.other ? "other" : "" }, ...(page.pictures.length ? [thumbnail(pair.picture, "")] : []), told);
    button.dataset.pair = number;
    button.addEventListener("click", () => { open(number); say(`${pair.caption}. ${at("kicker").textContent}`); });
    return make("li", {}, button);
  }));
  roving([...at("list").querySelectorAll("button")]);
  at("wrong-only-label").hidden = !page.pairs.some((pair) => pair.right === false);
  document.querySelector(".viewer").classList.toggle("alone", page.pairs.length === 1);
}

function filter() {
  const wanted = at("filter").value.toLowerCase(), wrong = at("wrong-only").checked;
  let left = 0;
  at("list").querySelectorAll("li").forEach((entry, number) => {
    const pair = page.pairs[number];
    entry.hidden = !pair.caption.toLowerCase().includes(wanted) || (wrong && pair.right !== false);
    left += !entry.hidden;
  });
  at("none").hidden = left > 0;
}

at("filter").addEventListener("input", filter);
at("wrong-only").addEventListener("change", filter);
at("way").addEventListener("change", () => { state.way = Number(at("way").value); showWay(); });
at("brightness").addEventListener("input", () => { state.brightness = Number(at("brightness").value); showScale(); paint(); });
at("outlines").addEventListener("change", () => at("picture").classList.toggle("outlined", at("outlines").checked));
document.addEventListener("keydown", (event) => {
  if (event.key === "Escape") { state.hovered = state.pinned = null; paint(); }
});

showList();
open(0);
