"use strict";
// Search: what the shown step holds, counted, and one hit after the other.

let hits = [], hit = -1, hitSet = new Set();

const found = (text) => state.search !== "" && text.toLowerCase().includes(state.search);

function nodeWords(n) {
  const [op, dtype, shape, arg, , origin, , items] = program().nodes[n];
  return [op, dtype, `(${shape.join(", ")})`, arg, lineText(origin), layerOf(origin), ...items.slice(0, 4).map((k) => program().items[k].name)].join(" ");
}

const itemWords = (i) => `${i.name} ${i.device} ${i.reason} ${itemLayer(i)} ${i.origins.map(lineText).join(" ")}`;

// Every hit of the shown step, as a function that shows it; `hitSet` holds what is marked: nodes, steps, or events.
function findHits() {
  hits = [];
  hit = -1;
  hitSet = new Set();
  if (!state.search || !program()) return;
  const add = (key, show) => { hitSet.add(key); hits.push(show); };
  if (state.tab === "graph") program().nodes.forEach((_, n) => { if (found(nodeWords(n))) add(n, () => reveal(n)); });
  else if (state.tab === "schedule") program().items.forEach((i, n) => { if (found(itemWords(i))) add(n, () => go({ item: n })); });
  else if (state.tab === "timeline") { if (chart) for (const bar of chart.bars) if (found(bar.name)) add(bar.event, () => chart.select(bar)); }
  else for (const rows of shown) rows.rows.forEach(([text], n) => { if (found(text)) add(`${shown.indexOf(rows)} ${n}`, () => rows.show(n, true)); });
  if (state.tab === "graph") for (const n of [...hitSet]) for (let g = foldingOf(program()).parents.get(n); g !== undefined; g = foldingOf(program()).parents.get(g)) hitSet.add(g);
}

function countHits() {
  const step = (TABS.find(([name]) => name === state.tab) || TABS[0])[1];
  $("hits").textContent = !state.search ? "" : !hits.length ? "no hit" : hit < 0 ? plural(hits.length, "hit") : `${hit + 1} of ${hits.length}`;
  $("hits").title = !state.search ? "" : hits.length ? "Enter: next hit, Shift+Enter: the one before" : `${step} holds no such text; other steps may`;
  $("find").classList.toggle("missed", state.search !== "" && !hits.length);
}

function nextHit(by) {
  if (!hits.length) return;
  hit = (hit + by + hits.length) % hits.length;
  const kept = hit;
  hits[hit](); // may draw the page anew
  hit = kept;
  countHits();
}

function searchFor(text) {
  state.search = text.trim().toLowerCase();
  findHits();
  for (const rows of shown) rows.redraw();
  if (picture) picture.mark();
  if (chart) chart.mark();
  countHits();
  if (hits.length && state.tab !== "graph" && state.tab !== "timeline") nextHit(1);
}
