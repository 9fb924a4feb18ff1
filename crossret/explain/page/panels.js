// ---- what the score is made of -------------------------------------------------------------------------------------

function showShares(pair) {
  const place = at("shares");
  shown.shares = [];
  place.hidden = false;
  if (pair.shares === undefined) {
    place.replaceChildren(make("p", { className: "sum" }, "score ", make("strong", { textContent: signed(pair.score, 4) })), ...(page.unshared ? [make("p", { className: "note", textContent: page.unshared })] : []));
    return;
  }
  const exact = pair.shares.map((share) => share.values.reduce((sum, value) => sum + value, 0)), totals = rounded(exact, pair.score);
  // One scale and one zero for all parts: what is taken from the score goes left, or down.
  const all = pair.shares.flatMap((share) => share.values), low = Math.min(0, ...all), range = Math.max(0, ...all) - low || 1;
  const terms = totals.map((total, number) => `${number === 0 ? signed(total, 4) : ` ${total < 0 ? "−" : "+"} ${Math.abs(total).toFixed(4)}`} (${pair.shares[number].title})`);
  const sum = make("p", { className: "sum" }, "score ", make("strong", { textContent: signed(pair.score, 4) }), terms.length > 1 ? ` = ${terms.join("")}` : "");
  place.replaceChildren(make("h3", { textContent: "What the score is made of" }), sum, ...pair.shares.flatMap((share, number) => chart(pair, share, totals[number], low, range)));
}

function chart(pair, share, total, low, range) {
  const kind = { words: "word", regions: "region" }[share.over] ?? "part";
  const names = share.labels ?? (kind === "word" ? pair.words : share.values.map((_, place) => item(place)));
  const many = share.values.length > 30, figures = rounded(share.values, total);
  const list = make("ul", { className: many ? "columns" : "rows", "aria-label": `${share.title}: shares that add up to ${signed(total, 4)}` });
  list.style.setProperty("--zero", `${(-100 * low) / range}%`);
  share.values.forEach((value, place) => {
    const told = signed(figures[place], 4), text = `${label(names[place])}: ${told}`;
    const from = (100 * (Math.min(0, value) - low)) / range, length = (100 * Math.abs(value)) / range;
    const bar = make("i", { className: value < 0 ? "less" : "" }), element = make("li", { title: text });
    if (many) {
      bar.style.cssText = `bottom:${from}%;height:${length}%`;
      element.append(bar, make("span", { className: "unseen", textContent: text }));
    } else {
      bar.style.cssText = `left:${from}%;width:${length}%`;
      element.append(make("span", { className: special(names[place]) ? "special" : "", textContent: label(names[place]) }), make("span", { className: "track", "aria-hidden": "true" }, bar), make("span", { textContent: told }));
    }
    element.addEventListener("pointerover", () => { state.hovered = chosenBy(kind, place, names[place]); paint(); });
    element.addEventListener("pointerout", () => { state.hovered = null; paint(); });
    element.addEventListener("click", () => {
      const chosen = chosenBy(kind, place, names[place]);
      if (chosen !== null) keep(chosen.kind, chosen.place);
    });
    shown.shares.push({ element, kind, place, name: names[place], told });
    list.append(element);
  });
  return [make("h3", { textContent: `${share.title}: ${signed(total, 4)}` }), list];
}

// Region or query that a share's item is in the chosen way of looking: a word asks there, or a head of this name; or null.
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
  if (page.pictures.length) entry.append(thumbnail(result.picture, result.name));
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
