"use strict";
// The data are text alone: nothing of them is ever taken for markup.
const page = JSON.parse(document.getElementById("data").textContent);
const at = (id) => document.getElementById(id);
const SVG = "http://www.w3.org/2000/svg";

const state = { pair: 0, way: 0, hovered: null, pinned: null, brightness: 0 };
let shown = null; // of the pair that is shown: its decoded ways and the elements that are painted

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
const clamp = (value) => Math.min(1, Math.max(0, value));
const largest = (values) => values.reduce((best, value, place) => (value > values[best] ? place : best), 0);
const mean = (values) => values.reduce((sum, value) => sum + value, 0) / values.length;
const label = (token) => token.replace(/^<(start|end)>$/, "‹$1›");
const special = (token) => /^[<[].*[>\]]$/.test(token) || token === "";

// Brightness and shades mean the same on the whole page, for each way of looking.
function light(way, value) {
  const scale = page.scales[way.name], full = scale.full * 2 ** -state.brightness;
  return clamp((value - scale.dark) / (full - scale.dark)) ** (1 / page.gamma);
}
// A word is not shaded up to the mean of what it stands among, so that uniform weights shade none.
function shade(value, middle, of) {
  const { mean: usual, full } = page.scales[of];
  return clamp((value - middle) / Math.max(1e-9, full * 2 ** -state.brightness - usual));
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
  at("kicker").replaceChildren(...kicker(pair));
  at("way").replaceChildren(...shown.ways.map((way, place) => make("option", { value: place, textContent: way.title })));
  at("way").value = state.way;
  at("way-label").hidden = shown.ways.length < 2;
  for (const control of document.querySelectorAll(".controls label:not(#way-label)")) control.hidden = !shown.ways.length;
  showDocument(pair);
  showWay();
  showShares(pair);
  showFound(pair);
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
    if (pair.picture !== null) tokens.replaceChildren(make("img", { src: page.pictures[pair.picture].src, alt: "the picture", style: "max-width:100%" }));
    tokens.hidden = pair.picture === null;
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
  shown.regions = placed.map((place, number) => watch(draw("rect", { ...place, class: "region", role: "button", "aria-label": `region ${number + 1}` }), "region", number));
  cells.append(...shown.cells);
  // Small regions lie on large ones, so that each can be reached.
  const area = (number) => placed[number].width * placed[number].height;
  const order = placed.map((_, number) => number).sort((a, b) => area(b) - area(a));
  group.append(...order.map((number) => shown.regions[number]));
  if (pair.numbered) {
    const size = Math.min(width, height) / 20;
    group.append(...placed.map((place, number) => draw("text", { x: place.x + place.width / 2, y: place.y + place.height / 2 + size / 3, "font-size": size, "text-anchor": "middle" }, String(number + 1))));
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
  shown.words = pair.words.map((word, place) => chip(word, heads ? "word" : "query", place, way === undefined));
  at("queries").replaceChildren(...shown.queries);
  at("queries").hidden = !heads;
  at("words").replaceChildren(...shown.words);
  if (way !== undefined) {
    roving(shown.queries);
    roving(shown.words);
    // What chooses most is shown first: a picture says more than an instruction.
    const peak = way.weights.map((row, place) => (heads || !special(pair.words[place]) ? Math.max(...row) : -Infinity));
    state.pinned = { kind: "query", place: largest(peak) };
    at("scale").replaceChildren(...scaleBar(way));
  } else {
    at("scale").replaceChildren();
  }
  paint();
}

function scaleBar(way) {
  const scale = page.scales[way.name], bar = make("span", { className: `bar ${shown.pair.tokens === undefined ? "light" : "shaded"}`, role: "img", "aria-label": "brightness" });
  return [make("span", { textContent: `${way.unit} ${figure(scale.dark)}` }), bar,
    make("span", { textContent: `${figure(scale.full)} · mean ${figure(scale.mean)} · one scale for all pairs` })];
}

function chip(text, kind, place, plain = false) {
  const made = make("button", { type: "button", className: `chip${special(text) ? " special" : ""}${plain ? " plain" : ""}`, textContent: label(text), disabled: plain });
  if (!plain) made.setAttribute("aria-pressed", "false");
  return plain ? made : watch(made, kind, place);
}

function watch(element, kind, place) {
  const enter = () => { state.hovered = { kind, place }; paint(); };
  const leave = () => { state.hovered = null; paint(); };
  element.addEventListener("pointerenter", enter);
  element.addEventListener("pointerleave", leave);
  element.addEventListener("focus", enter);
  element.addEventListener("blur", leave);
  element.addEventListener("click", () => { state.pinned = { kind, place }; paint(); });
  element.addEventListener("keydown", (event) => {
    if (event.key === "Enter" || event.key === " ") { event.preventDefault(); state.pinned = { kind, place }; paint(); }
  });
  return element;
}

// One stop of the Tab key for all words, one for all regions; arrows go from one to the next.
function roving(elements) {
  elements.forEach((element, place) => {
    element.setAttribute("tabindex", place === 0 ? "0" : "-1");
    element.addEventListener("keydown", (event) => {
      const step = { ArrowRight: 1, ArrowDown: 1, ArrowLeft: -1, ArrowUp: -1 }[event.key];
      const to = event.key === "Home" ? 0 : event.key === "End" ? elements.length - 1 : step === undefined ? -1 : place + step;
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
  for (const list of [shown.words, shown.queries, shown.regions]) {
    for (const element of list) {
      element.classList.remove("strongest", "active");
      element.style.removeProperty("--lit");
      if (element.hasAttribute("aria-pressed")) element.setAttribute("aria-pressed", "false");
    }
  }
  for (const { element, kind, place, name: called } of shown.shares) {
    const own = chosenBy(kind, place, called);
    element.classList.toggle("active", active !== null && own !== null && active.kind === own.kind && active.place === own.place);
  }
  if (way === undefined) { at("status").textContent = page.unseen; return; }
  const words = way.queries === undefined ? shown.words : shown.queries;
  let lights = null, told = [];
  if (active === null) {
    told = ["Nothing is chosen: hover a word or a region."];
  } else if (active.kind === "query") {
    const row = way.weights[active.place], best = largest(row);
    lights = row.map((value) => light(way, value));
    words[active.place].setAttribute("aria-pressed", "true");
    shown.regions[best]?.classList.add("strongest");
    told = [`${name(way, active.place)}: most on ${item(best)}, ${way.unit} ${figure(row[best])}`];
    if (way.cosines) told.push(` · cosine ${figure(way.cosines[active.place])}`);
    if (uniform(way, row)) told.push(make("span", { className: "uniform", textContent: " · nearly uniform" }));
    if (way.words) {
      const read = way.words[active.place], middle = mean(read);
      read.forEach((value, place) => lit(shown.words[place], shade(value, middle, `${way.name} words`)));
      if (uniform(way, read)) told.push(make("span", { className: "uniform", textContent: " · words nearly uniform" }));
    }
  } else if (active.kind === "region") {
    const column = way.weights.map((row) => row[active.place]), best = largest(column);
    const middle = mean(way.weights.map(mean));
    column.forEach((value, place) => lit(words[place], shade(value, middle, way.name)));
    words[best].classList.add("strongest");
    shown.regions[active.place].classList.add("active");
    lights = shown.regions.map((_, place) => (place === active.place ? 1 : 0));
    told = [`${item(active.place)}: most from ${name(way, best)}, ${way.unit} ${figure(column[best])}`];
  } else {
    const column = way.words.map((row) => row[active.place]), best = largest(column);
    const middle = mean(way.words.map(mean));
    column.forEach((value, place) => lit(words[place], shade(value, middle, `${way.name} words`)));
    shown.words[active.place].setAttribute("aria-pressed", "true");
    words[best].classList.add("strongest");
    told = [`“${label(shown.pair.words[active.place])}”: most from ${name(way, best)}, weight ${figure(column[best])}`];
  }
  at("status").replaceChildren(...told);
  paintRegions(way, lights);
  paintObjects(active);
}

const lit = (element, value) => element.style.setProperty("--lit", String(value));
const item = (place) => (shown.pair.tokens === undefined ? `region ${place + 1}` : `“${shown.pair.tokens[place]}”`);
const name = (way, place) => (way.queries === undefined ? `“${label(shown.pair.words[place])}”` : way.queries[place]);

function paintRegions(way, lights) {
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

// ---- what the score is made of -------------------------------------------------------------------------------------

function showShares(pair) {
  const place = at("shares");
  shown.shares = [];
  place.hidden = false;
  if (pair.shares === undefined) {
    place.replaceChildren(make("p", { className: "sum" }, "score ", make("strong", { textContent: signed(pair.score, 4) })), ...(page.unshared ? [make("p", { className: "note", textContent: page.unshared })] : []));
    return;
  }
  const totals = pair.shares.map((share) => share.values.reduce((sum, value) => sum + value, 0));
  // One scale and one zero for all parts: what is taken from the score goes left.
  const all = pair.shares.flatMap((share) => share.values), low = Math.min(0, ...all), range = Math.max(0, ...all) - low || 1;
  const terms = pair.shares.length > 1 ? ` = ${totals.map((total, number) => `${signed(total, 4)} (${pair.shares[number].title})`).join(" + ")}` : "";
  const sum = make("p", { className: "sum" }, "score ", make("strong", { textContent: signed(pair.score, 4) }), terms);
  place.replaceChildren(make("h3", { textContent: "What the score is made of" }), sum, ...pair.shares.flatMap((share, number) => chart(pair, share, totals[number], low, range)));
}

function chart(pair, share, total, low, range) {
  const kind = { words: "word", regions: "region" }[share.over] ?? "part";
  const names = share.labels ?? (kind === "word" ? pair.words : share.values.map((_, place) => item(place)));
  const many = share.values.length > 30;
  const list = make("ul", { className: many ? "columns" : "rows", "aria-label": `${share.title}: shares that add up to ${signed(total, 4)}` });
  share.values.forEach((value, place) => {
    const text = `${label(names[place])}: ${signed(value, 4)}`;
    const from = (100 * (Math.min(0, value) - low)) / range, length = (100 * Math.abs(value)) / range;
    const bar = make("i", { className: value < 0 ? "less" : "" });
    const element = make("li", { title: text });
    if (many) {
      bar.style.cssText = `bottom:${from}%;height:${length}%`;
      element.setAttribute("aria-label", text);
      element.append(bar);
    } else {
      bar.style.cssText = `left:${from}%;width:${length}%`;
      element.append(make("span", { className: special(names[place]) ? "special" : "", textContent: label(names[place]) }), make("span", { className: "track", "aria-hidden": "true" }, bar), make("span", { textContent: signed(value, 4) }));
    }
    element.addEventListener("pointerenter", () => { state.hovered = chosenBy(kind, place, names[place]); paint(); });
    element.addEventListener("pointerleave", () => { state.hovered = null; paint(); });
    shown.shares.push({ element, kind, place, name: names[place] });
    list.append(element);
  });
  return [make("h3", { textContent: `${share.title}: ${signed(total, 4)}` }), list];
}

// What a share's item is in the way of looking that is chosen: a word asks there, or a head of this name, or none does.
function chosenBy(kind, place, name) {
  const way = shown.ways[state.way];
  if (way === undefined) return null;
  if (kind === "region") return { kind, place };
  if (kind === "word" && way.queries === undefined) return { kind: "query", place };
  if (kind === "word") return way.words ? { kind, place } : null;
  const asked = (way.queries ?? []).indexOf(name);
  return asked < 0 ? null : { kind: "query", place: asked };
}

// ---- what was found ------------------------------------------------------------------------------------------------

function showFound(pair) {
  at("found").replaceChildren(...(pair.found ?? []).map((panel) => {
    const entries = panel.results.map((result) => (result.text === undefined ? foundPicture(result) : foundCaption(result)));
    const list = make("ol", { className: panel.results.some((result) => result.text !== undefined) ? "captions" : "strip" }, ...entries);
    return make("section", {}, make("h3", { textContent: panel.title }), list);
  }));
}

const verdict = (result) => (result.right === undefined ? `${result.rank}` : [`${result.rank} `, mark(result.right, result.right ? "right" : "wrong")]);

function foundPicture(result) {
  const entry = make("li", { className: result.right === undefined ? "" : result.right ? "right" : "wrong" });
  if (page.pictures.length) entry.append(thumbnail(result.picture, `result ${result.rank}`));
  entry.append(...[verdict(result)].flat(), ` ${signed(result.score, 3)}`, make("span", { className: "name", textContent: result.name, title: result.name }));
  if (result.pair !== undefined && result.pair !== state.pair) entry.append(make("button", { type: "button", className: "go", textContent: "explain", onclick: () => open(result.pair) }));
  return entry;
}

function foundCaption(result) {
  const text = result.pair === undefined || result.pair === state.pair ? make("span", { textContent: result.text }) : make("button", { type: "button", className: "go", textContent: result.text, onclick: () => open(result.pair) });
  return make("li", {}, make("span", {}, ...[verdict(result)].flat()), text, make("span", { textContent: signed(result.score, 3) }));
}

function thumbnail(picture, alt) {
  return picture === null ? make("span", { className: "blank" }) : make("img", { src: page.pictures[picture].src, alt, loading: "lazy", decoding: "async" });
}

// ---- the list of pairs ---------------------------------------------------------------------------------------------

function showList() {
  at("list").replaceChildren(...page.pairs.map((pair, number) => {
    const told = make("span", {}, make("span", { className: "text", textContent: pair.caption }), pair.mark === undefined ? make("span", { className: "name", textContent: pair.about }) : mark(pair.right, pair.mark));
    const button = make("button", { type: "button", className: pair.other ? "other" : "" }, ...(page.pictures.length ? [thumbnail(pair.picture, "")] : []), told);
    button.dataset.pair = number;
    button.addEventListener("click", () => open(number));
    return make("li", {}, button);
  }));
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
at("brightness").addEventListener("input", () => { state.brightness = Number(at("brightness").value); paint(); });
at("outlines").addEventListener("change", () => at("picture").classList.toggle("outlined", at("outlines").checked));
document.addEventListener("keydown", (event) => {
  if (event.key === "Escape") { state.hovered = state.pinned = null; paint(); }
});

showList();
open(0);
