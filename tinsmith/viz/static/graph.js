"use strict";
// The Tensor graph of a program, level by level; dagre (MIT) lays a level out.

const STATES = { realized: "realized", stored: "stored", fused: "fused", view: "seen", constant: "constant", group: "group" };
const SVG = "http://www.w3.org/2000/svg";
const MARGIN = 14; // pixels around a drawing that is fitted to its pane
const OUTSIDE = 16; // boxes of what lies outside of a level, each way

function svg(tag, attributes = {}, ...children) {
  const made = document.createElementNS(SVG, tag);
  for (const [name, value] of Object.entries(attributes)) made.setAttribute(name, value);
  made.append(...children);
  return made;
}

// Groups are numbered -1 - n, nodes n, as in the trace. parents: the group of each.
function foldingOf(program) {
  if (program.folding) return program.folding;
  const parents = new Map(), size = new Map(), first = new Map(); // first: the first node of a group
  program.groups.forEach((group, n) => group.kids.forEach((kid) => parents.set(kid, -1 - n)));
  const root = -program.groups.length;
  program.nodes.forEach((_, n) => {
    for (let g = parents.get(n); g !== undefined; g = parents.get(g)) {
      size.set(g, (size.get(g) || 0) + 1);
      if (!first.has(g)) first.set(g, n);
    }
  });
  const constant = []; // constants and views of them: between groups they say nothing
  program.nodes.forEach((node, n) => { constant[n] = node[6] === "constant" || (node[6] === "view" && node[4].every((s) => constant[s])); });
  program.folding = { parents, root, size, first, constant, levels: new Map() };
  return program.folding;
}

// What stands for node n at a level: the kid of `group` that holds it, or the largest group without the level.
function standIn(folding, chain, group, n) {
  let at = n;
  for (;;) {
    const above = folding.parents.get(at);
    if (above === group) return [at, true];
    if (above === undefined) return [n, false];
    if (chain.has(above)) return [at, false];
    at = above;
  }
}

function levelOf(program, group) {
  const folding = foldingOf(program), chain = new Set(), known = folding.levels.get(group);
  if (known) return known;
  for (let g = group; g !== undefined; g = folding.parents.get(g)) chain.add(g);
  const boxes = new Map(), edges = new Map(), stands = program.nodes.map((_, n) => standIn(folding, chain, group, n));
  stands.forEach(([at, inside]) => { if (inside) boxes.set(at, true); });
  let before = 0, after = 0;
  program.nodes.forEach((node, n) => {
    const [b, inB] = stands[n];
    for (const s of node[4]) {
      const [a, inA] = stands[s];
      if (a === b || (!inA && !inB) || (folding.constant[s] && (!inA || a < 0 || b < 0))) continue;
      if (!inA && !boxes.has(a)) { if (++before > OUTSIDE) continue; boxes.set(a, false); }
      if (!inB && !boxes.has(b)) { if (++after > OUTSIDE) continue; boxes.set(b, false); }
      if (boxes.has(a) && boxes.has(b)) edges.set(`${a},${b}`, [a, b]);
    }
  });
  folding.levels.set(group, { boxes, edges: [...edges.values()] });
  return folding.levels.get(group);
}

const shortened = (text) => (text.length > 34 ? `${text.slice(0, 33)}…` : text);

function textsOf(trace, program, at) {
  if (at < 0) {
    const group = program.groups[-1 - at];
    return { lines: [shortened(group.label), plural(foldingOf(program).size.get(at), "node")], state: "group", origin: group.origin };
  }
  const [op, dtype, shape, arg, , origin, state, items] = program.nodes[at];
  const lines = [state === "constant" || state === "realized" || op === "REDUCE" || op === "COPY" ? `${op} ${arg}`: op,
    `${dtype} (${shape.join(", ")})`].map(shortened);
  if (state === "stored" && items.length) lines.push(shortened(program.items[items[0]].name));
  return { lines, state, origin };
}

// The layout of a level in a direction: TB (down) or LR (to the right).
function laidOut(level, texts, rankdir) {
  const layout = new dagre.graphlib.Graph();
  layout.setGraph({ rankdir, nodesep: 16, ranksep: 30, marginx: 12, marginy: 12, ranker: level.edges.length > 60 ? "longest-path" : "network-simplex" });
  layout.setDefaultEdgeLabel(() => ({}));
  for (const [at, found] of texts)
    layout.setNode(String(at), { width: Math.max(...found.lines.map((l) => l.length)) * 7.4 + 18, height: found.lines.length * 15 + 9 });
  for (const [a, b] of level.edges) layout.setEdge(String(a), String(b));
  dagre.layout(layout);
  return layout;
}

const LEGIBLE = 0.55; // scale below which texts are hard to read

// A long chain fits a wide screen better from left to right.
function bestLayout(level, texts, wide, high) {
  const down = laidOut(level, texts, "TB"), scale = (layout) => Math.min(wide / layout.graph().width, high / layout.graph().height);
  if (scale(down) >= LEGIBLE) return down;
  const right = laidOut(level, texts, "LR");
  return scale(right) > 1.2 * scale(down) ? right : down;
}

// Draws a level. options: selected, same(origin, at), hit(at), pick(at), open(at), wide, high
function showGraph(trace, program, group, options) {
  const level = levelOf(program, group), texts = new Map();
  const early = (at) => (at < 0 ? foldingOf(program).first.get(at) : at); // where groups form a cycle, the earliest one is on top
  for (const at of [...level.boxes.keys()].sort((a, b) => early(a) - early(b))) texts.set(at, textsOf(trace, program, at));
  const layout = bestLayout(level, texts, options.wide, options.high);
  const drawn = svg("g"), picture = svg("svg", { class: "graph" }, svg("defs", {},
    svg("marker", { id: "arrow", viewBox: "0 0 8 8", refX: 7, refY: 4, markerWidth: 9, markerHeight: 9, markerUnits: "userSpaceOnUse", orient: "auto" },
      svg("path", { d: "M0 0 8 4 0 8z", fill: "#888" }))), drawn);
  for (const { v, w } of layout.edges()) {
    const { points } = layout.edge({ v, w });
    const path = svg("path", { class: "edge", "marker-end": "url(#arrow)", "data-from": v, "data-to": w,
      d: curve(points) });
    drawn.append(path);
  }
  for (const [at, found] of texts) {
    const place = layout.node(String(at)), name = STATES[found.state];
    const rect = svg("rect", { x: -place.width / 2, y: -place.height / 2, width: place.width, height: place.height, rx: 4,
      style: `fill:var(--${name});stroke:var(--${name === "constant" ? "seen" : name}-line)`,
      ...(found.state === "view" ? { "stroke-dasharray": "4 3" } : {}) });
    const box = svg("g", { class: `box ${level.boxes.get(at) ? "" : "outside"}`, transform: `translate(${place.x},${place.y})`,
      "data-at": at, tabindex: -1 }, rect, ...found.lines.map((line, k) => {
      const text = svg("text", { y: -place.height / 2 + 16 + k * 15, class: k ? "dim" : "" });
      text.textContent = line;
      return text;
    }), svgTitle(at < 0 ? "double click opens the group" : found.state === "realized" || found.state === "constant" ? "" : "double click opens its kernel"));
    box.addEventListener("click", () => options.pick(at));
    box.addEventListener("dblclick", () => options.open(at));
    drawn.append(box);
  }
  picture.mark = () => {
    for (const box of drawn.querySelectorAll(".box")) {
      const at = Number(box.dataset.at);
      box.classList.toggle("on", at === options.selected());
      box.classList.toggle("same", options.same(texts.get(at).origin, at));
      box.classList.toggle("found", options.hit(at));
    }
    for (const edge of drawn.querySelectorAll(".edge"))
      edge.classList.toggle("on", [edge.dataset.from, edge.dataset.to].includes(String(options.selected())));
  };
  picture.order = [...texts.keys()].filter((at) => level.boxes.get(at))
    .sort((a, b) => layout.node(String(a)).y - layout.node(String(b)).y || layout.node(String(a)).x - layout.node(String(b)).x);
  panAndZoom(picture, drawn);
  picture.center = (at) => { const p = layout.node(String(at)); if (p) picture.toward(p.x, p.y); };
  picture.mark();
  return picture;
}

function svgTitle(text) {
  const title = svg("title");
  title.textContent = text;
  return title;
}

function curve(points) {
  const [first, ...rest] = points;
  let path = `M${first.x} ${first.y}`;
  for (let k = 0; k < rest.length - 1; k++) {
    const a = rest[k], b = rest[k + 1], end = k === rest.length - 2 ? b : { x: (a.x + b.x) / 2, y: (a.y + b.y) / 2 };
    path += `Q${a.x} ${a.y} ${end.x} ${end.y}`;
  }
  return rest.length === 1 ? `${path}L${rest[0].x} ${rest[0].y}` : path;
}

// Shows all of a drawing, also when its pane is resized, until someone zooms or moves it.
function panAndZoom(picture, drawn) {
  const at = { x: 0, y: 0, k: 1 };
  let fitted = true;
  const apply = () => drawn.setAttribute("transform", `translate(${at.x},${at.y}) scale(${at.k})`);
  picture.zoom = (factor, x = picture.clientWidth / 2, y = picture.clientHeight / 2) => {
    const k = Math.min(4, Math.max(0.02, at.k * factor));
    fitted = false;
    at.x = x - ((x - at.x) * k) / at.k;
    at.y = y - ((y - at.y) * k) / at.k;
    at.k = k;
    apply();
  };
  picture.fit = () => {
    const wide = picture.clientWidth, high = picture.clientHeight, size = drawn.getBBox(); // edges reach beyond the boxes
    if (!wide || !high || !size.width) return;
    fitted = true;
    at.k = Math.min(1.25, (wide - 2 * MARGIN) / size.width, (high - 2 * MARGIN) / size.height);
    at.x = (wide - size.width * at.k) / 2 - size.x * at.k;
    at.y = (high - size.height * at.k) / 2 - size.y * at.k;
    apply();
  };
  new ResizeObserver(() => requestAnimationFrame(() => { if (fitted) picture.fit(); })).observe(picture);
  picture.toward = (x, y) => {
    const wide = picture.clientWidth || 800, high = picture.clientHeight || 600, px = x * at.k + at.x, py = y * at.k + at.y;
    if (px > 40 && px < wide - 40 && py > 20 && py < high - 20) return;
    fitted = false;
    at.x += wide / 2 - px;
    at.y += high / 2 - py;
    apply();
  };
  picture.addEventListener("wheel", (event) => {
    event.preventDefault();
    const box = picture.getBoundingClientRect();
    picture.zoom(Math.exp(-event.deltaY / 500), event.clientX - box.left, event.clientY - box.top);
  }, { passive: false });
  let from = null;
  picture.addEventListener("pointerdown", (event) => { if (!event.target.closest(".box")) from = [event.clientX - at.x, event.clientY - at.y]; });
  window.addEventListener("pointermove", (event) => { if (from) { fitted = false; at.x = event.clientX - from[0]; at.y = event.clientY - from[1]; apply(); } });
  window.addEventListener("pointerup", () => { from = null; });
}
