"use strict";
// The page: one step of one program at a time, with the user's lines beside it.

const trace = JSON.parse(document.getElementById("trace").textContent);
const $ = (id) => document.getElementById(id);
const TABS = [["graph", "Graph"], ["passes", "Passes"], ["schedule", "Schedule"], ["tree", "Kernel tree"], ["kernel", "Structure"],
  ["opts", "Opts"], ["uops", "UOps"], ["source", "Source"], ["assembly", "Assembly"], ["timeline", "Timeline"]];
const OF_KERNEL = new Set(["tree", "kernel", "opts", "uops", "source", "assembly"]);
const HINTS = {
  graph: "click selects · double click opens a group or a kernel · wheel zooms · drag moves · f fits · Backspace leaves a group",
  passes: "click a pass to see what it changed · click a row to mark its line · [ and ] go through the steps · drag the separators to resize",
  schedule: "click selects a step · double click opens its kernel · j and k select the next and the previous one",
  kernel: "click a pass or an opt to see what it changed · ← and → go through them · drag the separators to resize",
  opts: "click an opt to see what it does to the kernel",
  timeline: "wheel zooms · drag moves · click selects · double click zooms to a bar, or to everything · Shift and wheel scrolls · ← → pan",
  text: "click a row to mark its UOp, its line, and its rows in the other steps · / searches · j and k go to the next and the previous kernel",
};
// origin: the line that is marked everywhere; uop: the marked row of a kernel's UOps, as "kernel row"; node: the selected box of the graph; pass, kpass: the shown passes
const state = { program: 0, item: 0, tab: "graph", group: null, node: null, origin: -1, pass: 0, kpass: 0, search: "", uop: null };
const LISTED = 60; // steps of a program that are listed on the left at a time
let picture = null, chart = null, shown = [];

const program = () => trace.programs[state.program];
const item = () => program().items[state.item];
const kernel = () => (item() && item().kernel ? trace.kernels[item().kernel] : null);
const lineText = (origin) => {
  if (origin < 0) return "";
  const [method, file, line] = trace.origins[origin];
  return `${method ? `${method} ` : ""}${file.split("/").pop()}:${line}`;
};
const layerOf = (origin) => (origin >= 0 && trace.layers ? trace.layers[origin] : "");
const sameLine = (a, b) => a >= 0 && b >= 0 && trace.origins[a][1] === trace.origins[b][1] && trace.origins[a][2] === trace.origins[b][2];
// The layer that a step belongs to: the trace's own entry, or the layer of the last of its lines that has one.
const itemLayer = (i) => i.layer || i.origins.map(layerOf).filter((l) => l).pop() || "";

function go(changes) {
  Object.assign(state, changes);
  const [tab] = TABS.find(([name]) => name === state.tab) || TABS[0];
  history.replaceState(null, "", `#${state.program}.${state.item}.${tab}`);
  draw();
}

// A line of the user's is marked in whatever is shown.
function mark(origin) {
  state.origin = origin;
  for (const rows of shown) rows.redraw();
  if (picture) picture.mark();
  drawSide();
}

function drawTabs() {
  $("title").textContent = trace.program;
  $("title").title = `Python ${trace.python}`;
  $("tabs").replaceChildren(...TABS.map(([name, text], n) => element("button", { role: "tab", "aria-selected": String(state.tab === name),
    title: `key ${(n + 1) % 10}`, "data-tab": name, onclick: () => go({ tab: name }) }, text)));
}

// Programs with their time, and the steps of the shown one under the names of their layers.
function drawPrograms() {
  const list = [], longest = Math.max(1e-12, ...trace.programs.map((p) => p.times.measured ?? 0)) || 1;
  trace.programs.forEach((p, n) => {
    const kernels = p.items.filter((i) => i.kernel).length, last = p.items.length ? p.items[p.items.length - 1].origins : [];
    const line = p.line >= 0 && trace.origins[p.line][2] ? p.line : last[last.length - 1] ?? -1, { measured, runs, predicted } = p.times;
    list.push(element("button", { class: `program ${n === state.program ? "on" : ""}`, "data-program": n, title: `compiled in ${timeText(p.seconds)}${p.captured ? `, captured by TinyJit from ${p.captured}` : ""}`,
      onclick: () => go({ program: n, item: slowest(n), group: null, node: null, pass: 0, kpass: 0 }) },
    element("span", { class: "line" }, element("span", { class: "name" }, `${n} ${p.captured || lineText(line) || "values"}`), p.captured ? element("span", { class: "chip" }, "TinyJit") : null,
      element("span", { class: "amount" }, measured === null ? `~ ${timeText(predicted)}` : timeText(measured))),
    measured === null ? null : element("span", { class: "track" }, meter("measured", measured, longest)),
    element("small", {}, `${plural(kernels, "kernel")}, ${plural(p.nodes.length, "node")}${runs > 1 ? `, ${runs} runs` : ""}${p.captured ? `, ${lineText(line)}` : ""}`)));
    if (n === state.program) list.push(...listedItems(p));
  });
  $("programs").replaceChildren(...(list.length ? list : [element("p", { class: "none" }, "no program")]));
  const on = $("programs").querySelector(".item.on") || $("programs").querySelector(".program.on");
  if (on) on.scrollIntoView({ block: "nearest" });
}

// A view is drawn for the first time with the selected step in its middle.
function centerSelected() {
  const on = $("programs").querySelector(".item.on");
  if (on) on.scrollIntoView({ block: "center" });
}

function listedItems(p) {
  const from = Math.max(0, Math.min(state.item - LISTED / 2, p.items.length - LISTED)), to = Math.min(p.items.length, from + LISTED);
  const more = (k, text) => element("button", { class: "item", onclick: () => go({ item: k, kpass: 0 }) }, text);
  const timeOf = (k) => p.times.items[k][0] ?? p.times.items[k][2], longest = Math.max(1e-12, ...p.items.map((_, k) => timeOf(k) || 0));
  const list = from > 0 ? [more(Math.max(0, from - LISTED / 2), `… ${from} before`)] : [];
  let layer = "";
  p.items.slice(from, to).forEach((i, place) => {
    const k = from + place, kind = p.times.items[k][0] === null ? "predicted" : "measured";
    const own = itemLayer(i), name = own || lineText(i.origins[i.origins.length - 1] ?? -1) || "no line";
    if (name !== layer) { layer = name; list.push(element("div", { class: `layer ${own ? "" : "line"}`, title: own ? "the layer that the steps below compute" : "the line that the steps below compute" }, name)); }
    list.push(element("button", { class: `item ${k === state.item ? "on" : ""}`, "data-item": k, title: [i.name, layer, i.reason && `stored because: ${i.reason}`, `${kind}: ${timeText(timeOf(k))}`].filter((t) => t).join("\n"),
      onclick: () => go({ item: k, kpass: 0, tab: OF_KERNEL.has(state.tab) || !i.kernel ? state.tab : "tree" }) },
    element("span", { class: "number" }, String(k)), element("span", { class: "name" }, i.name), element("span", { class: "track" }, meter(kind, timeOf(k), longest))));
  });
  if (to < p.items.length) list.push(more(Math.min(p.items.length - 1, to + LISTED / 2), `… ${p.items.length - to} more`));
  return list;
}

// The step of program n that takes longest; a kernel if it has one.
function slowest(n) {
  const { items } = trace.programs[n], times = trace.programs[n].times.items, cost = (k) => (items[k].kernel ? 1e6 : 0) + (times[k][0] ?? times[k][2] ?? 0);
  return items.reduce((best, _, k) => (cost(k) > cost(best) ? k : best), 0);
}

// The row of the UOps that is marked, -1 if it is of another kernel, or none.
function markedUop() {
  const [key, row] = (state.uop || "").split(" ");
  return item() && key === item().kernel && row !== undefined ? Number(row) : -1;
}

function markUop(row) {
  state.uop = `${item().kernel} ${row}`;
  mark(row >= 0 ? kernel().uops[row][1] : -1);
}

const cut = (text) => (text.length > 34 ? `${text.slice(0, 33)}…` : text);

// Where a UOp stands in the steps before and after it.
function uopLinks() {
  const row = markedUop(), k = kernel();
  if (row < 0 || !k) return [];
  const [text, origin] = k.uops[row], at = (name) => (k.lines && k.lines[name] ? k.lines[name].indexOf(row) : -1);
  const nodes = program().nodes, mine = nodes.findIndex((n) => n[5] === origin && n[7].includes(state.item));
  const node = mine >= 0 ? mine : nodes.findIndex((n) => n[6] === "stored" && n[7].includes(state.item)); // what it all leads to
  const to = (title, tab) => element("button", { title, onclick: () => go({ tab }) }, cut(title));
  return [element("b", {}, "UOp"), definition([["row", to(text.replace(/\s+/g, " ").trim(), "uops")], ["line", lineText(origin)], ["layer", layerOf(origin)],
    ["source", at("source") >= 0 ? to(k.source.split("\n")[at("source")].trim(), "source") : ""], ["assembly", at("assembly") >= 0 ? to(`line ${at("assembly") + 1}`, "assembly") : ""],
    ["in the graph", node >= 0 ? element("button", { onclick: () => reveal(node) }, `${node} ${program().nodes[node][0]}`) : ""]])];
}

// *** beside: what is selected, and the user's file ***

function definition(pairs) {
  return element("dl", {}, ...pairs.filter(([, value]) => value !== "" && value !== null && value !== undefined && value !== false).flatMap(([name, value]) => [
    element("dt", {}, name), element("dd", {}, value)]));
}

function itemButton(n) {
  const i = program().items[n];
  return element("button", { onclick: () => go({ item: n, kpass: 0, tab: i.kernel ? "tree" : "schedule" }) }, `${n} ${i.name}`);
}

function drawDetails() {
  const parts = [];
  if (state.tab === "graph" && state.node !== null && state.node >= 0) {
    const [op, dtype, shape, arg, sources, origin, kind, items, reason] = program().nodes[state.node];
    const readers = program().nodes.map((n, k) => (n[4].includes(state.node) ? k : -1)).filter((k) => k >= 0);
    const links = (numbers) => element("span", {}, ...numbers.slice(0, 12).map((n) => element("button", { onclick: () => reveal(n) }, `${n} ${program().nodes[n][0]}`)));
    parts.push(element("b", {}, `${op} `), kind, definition([["number", String(state.node)], ["value", `${dtype} (${shape.join(", ")})`], ["argument", arg], ["line", lineText(origin)], ["layer", layerOf(origin)],
      ["reads", sources.length ? links(sources) : ""], ["read by", readers.length ? links(readers) : ""],
      [kind === "stored" ? "stored by" : "computed in", items.length ? element("span", {}, ...items.slice(0, 8).map(itemButton)) : ""],
      ["UOps", uopButton(items[0], origin)], ["because", reason]]));
  } else if (state.tab === "graph" && state.node !== null) {
    const group = program().groups[-1 - state.node];
    parts.push(element("b", {}, group.label), definition([["nodes", String(foldingOf(program()).size.get(state.node))], ["line", lineText(group.origin)], ["layer", layerOf(group.origin)]]),
      element("button", { onclick: () => open(state.node) }, "open (Enter)"));
  } else if (item()) {
    const i = item();
    parts.push(element("b", {}, i.name), definition([["device", i.device], ["stored because", i.reason], ["writes", i.writes.map(slotText).join(", ")], ["reads", i.reads.map(slotText).join(", ")],
      ["lines", i.origins.length ? element("span", {}, ...i.origins.slice(0, 12).map((o) => element("button", { onclick: () => mark(o) }, lineText(o) || "?"))) : ""],
      ["layer", itemLayer(i)], ["measured", timeIn(program().times.items[state.item])], ["predicted", program().times.items[state.item][2] === null ? "" : timeText(program().times.items[state.item][2])],
      ["graph", element("button", { onclick: () => { const n = program().nodes.findIndex((x) => x[6] === "stored" && x[7].includes(state.item)); if (n >= 0) reveal(n); } }, "its node")]]));
  }
  if (OF_KERNEL.has(state.tab)) parts.unshift(...uopLinks());
  $("details").replaceChildren(...parts);
}

function timeIn([seconds, runs]) { return seconds === null ? "" : `${timeText(seconds)}${runs > 1 ? `, mean of ${runs} runs` : ""}`; }

// From a node to the first UOp that its line became in the kernel that computes it.
function uopButton(n, origin) {
  const key = n === undefined ? null : program().items[n].kernel, k = key && trace.kernels[key];
  const row = k && origin >= 0 ? k.uops.findIndex((r) => r[1] === origin) : -1;
  return row < 0 ? "" : element("button", { onclick: () => { state.item = n; state.uop = `${key} ${row}`; go({ tab: "uops", kpass: 0 }); } }, cut(k.uops[row][0].replace(/\s+/g, " ").trim()));
}

function slotText(n) {
  const [size, dtype, , kind] = program().slots[n];
  return `${n} (${size} ${dtype}, ${kind})`;
}

let codeFile = null, codeRows = null;
function drawSide() {
  drawDetails();
  const lines = item() ? item().origins : [];
  const origin = state.origin >= 0 ? state.origin : lines.length ? lines[lines.length - 1] : program() && program().line;
  const [, file, line] = origin >= 0 && origin !== undefined ? trace.origins[origin] : ["", "", 0];
  const text = trace.files[file];
  if (text === undefined) { $("file").textContent = file ? `${file}:${line} (its text is not in the trace)` : "Select a node, step or event: its line of your program is shown here."; $("code").replaceChildren(); codeFile = null; return; }
  $("file").textContent = `${file}:${line}`;
  const own = new Set(lines.filter((o) => trace.origins[o][1] === file).map((o) => trace.origins[o][2]));
  const rows = text.split("\n").map((t) => [t, 0]);
  if (codeFile !== file) {
    codeRows = showRows(rows, { numbered: true, name: "the user's file", html: coloredLines(text, "python"), classes: (n) => codeRows && codeRows.classOf(n), click: (n) => byLine(file, n + 1) });
    codeRows.classOf = () => "";
    $("code").replaceChildren(codeRows);
    codeFile = file;
  }
  codeRows.classOf = (n) => (n + 1 === line ? "same" : own.has(n + 1) ? "added" : "");
  codeRows.show(line - 1);
  codeRows.redraw();
}

// A line of the user's file was clicked: what computes it is shown.
function byLine(file, line) {
  const origin = trace.origins.findIndex(([, f, l]) => f === file && l === line);
  if (origin < 0) return;
  const has = (i) => i.origins.some((o) => sameLine(o, origin));
  let at = program().items.findIndex(has), number = state.program;
  if (at < 0) {
    number = trace.programs.findIndex((p) => p.items.some(has));
    if (number >= 0) at = trace.programs[number].items.findIndex(has);
  }
  if (at >= 0 && (number !== state.program || at !== state.item)) { state.origin = origin; go({ program: number, item: at, group: number === state.program ? state.group : null, node: null }); }
  else mark(origin);
}

function pickEvent(event) {
  const [kind, row, name, start, seconds, memory, ops, bytes, origins, key] = event;
  const at = key ? trace.programs.findIndex((p) => p.items.some((i) => i.kernel === key)) : -1;
  if (at >= 0) { state.program = at; state.item = trace.programs[at].items.findIndex((i) => i.kernel === key); state.group = state.node = null; drawPrograms(); }
  state.origin = origins.length ? origins[origins.length - 1] : -1;
  drawSide();
  $("details").replaceChildren(element("b", {}, name), definition([["what", `${kind} on ${row}`], ["at", timeText(start)], ["took", timeText(seconds)], ["operations", ops ? `${ops.toLocaleString()}: ${(ops / seconds / 1e9).toPrecision(3)} GFLOPS` : ""],
    ["bytes", bytes ? `${bytesText(bytes)}: ${(bytes / seconds / 1e9).toPrecision(3)} GB/s` : ""], ["memory after", bytesText(memory)], ["lines", origins.map(lineText).join(", ")],
    ["kernel", at >= 0 ? element("button", { onclick: () => go({ tab: "tree" }) }, "its tree") : ""]]));
}

function draw() {
  const start = performance.now();
  drawTabs();
  drawPrograms();
  drawView();
  findHits();
  if (state.search) { for (const rows of shown) rows.redraw(); if (picture) picture.mark(); if (chart) chart.mark(); if (state.tab === "schedule") for (const row of document.querySelectorAll("#view tr[data-item]")) row.classList.toggle("found", hitSet.has(Number(row.dataset.item))); }
  countHits();
  if (picture && state.node !== null) picture.center(state.node);
  if (trace.programs.length) drawSide();
  $("hint").textContent = trace.programs.length ? HINTS[state.tab] || HINTS.text : "? lists the keys";
  document.body.dataset.tab = state.tab;
  document.body.dataset.took = (performance.now() - start).toFixed(1);
}

// *** keys, search, theme ***

const KEYS = [["1 … 9, 0", "the steps in order"], ["[ ]", "step before, step after"], ["j k", "next, previous step of the schedule"], ["n p", "next, previous program"], ["← → ↑ ↓", "select in the graph; before and after of passes"],
  ["Enter", "open the selected group, or the node's kernel"], ["Backspace", "up one level"], ["+ − f", "zoom, fit"],
  ["/", "search the shown step; Enter and Shift+Enter go through the hits, Escape ends"], ["t", "light or dark"], ["?", "this help"]];
const MOUSE = [["click", "select; a row or node marks its line, a line what computes it"], ["double click", "open a group or a kernel; zoom to a bar of the timeline"], ["wheel", "zoom in the graph and the timeline, scroll elsewhere"],
  ["drag", "move the graph and the timeline; a separator sizes the panes beside it"], ["double click a separator", "its first size again"]];

function turnTheme() {
  const now = document.documentElement.dataset.theme === "dark" ? "light" : "dark";
  document.documentElement.dataset.theme = now;
  draw();
}

function move(by) {
  if (state.tab === "graph" && picture) {
    const at = picture.order.indexOf(state.node), to = picture.order[Math.max(0, Math.min(picture.order.length - 1, at + by))];
    state.node = to;
    picture.center(to);
    mark(textsOf(trace, program(), to).origin);
  } else if (state.tab === "passes") go({ pass: Math.max(0, Math.min(program().passes.length - 1, state.pass + by)) });
  else if (state.tab === "kernel" && kernel()) go({ kpass: Math.max(0, Math.min(kernel().passes.length - 1, state.kpass + by)) });
}

document.addEventListener("keydown", (event) => {
  if (event.ctrlKey || event.metaKey || event.altKey) return;
  if (event.target === $("search")) {
    if (event.key === "Escape") $("search").blur();
    if (event.key === "Enter") nextHit(event.shiftKey ? -1 : 1);
    return;
  }
  const at = TABS.findIndex(([name]) => name === state.tab), key = event.key, p = program();
  if (key === "t") turnTheme();
  else if (key === "?") $("keys").showModal();
  else if (!p) return;
  else if (/^[0-9]$/.test(key)) go({ tab: TABS[(Number(key) + 9) % 10][0] });
  else if (key === "[" || key === "]") go({ tab: TABS[Math.max(0, Math.min(TABS.length - 1, at + (key === "]" ? 1 : -1)))][0] });
  else if (key === "j" || key === "k") go({ item: Math.max(0, Math.min(p.items.length - 1, state.item + (key === "j" ? 1 : -1))), kpass: 0, origin: -1 });
  else if (key === "n" || key === "p") { const to = Math.max(0, Math.min(trace.programs.length - 1, state.program + (key === "n" ? 1 : -1))); go({ program: to, item: slowest(to), group: null, node: null, pass: 0, kpass: 0, origin: -1 }); }
  else if (key === "Enter" && state.tab === "graph" && state.node !== null) open(state.node);
  else if (key === "Backspace" && state.tab === "graph") { const up = foldingOf(p).parents.get(state.group ?? foldingOf(p).root); if (up !== undefined) go({ group: up, node: state.group }); }
  else if (key === "ArrowLeft" || key === "ArrowUp") { if (chart) chart.pan(-0.2); else move(-1); }
  else if (key === "ArrowRight" || key === "ArrowDown") { if (chart) chart.pan(0.2); else move(1); }
  else if ((key === "+" || key === "-") && (picture || chart)) (picture || chart).zoom(key === "+" ? 1.25 : 0.8);
  else if (key === "f" && (picture || chart)) (picture || chart).fit();
  else if (key === "/") $("search").focus();
  else return;
  event.preventDefault();
});
$("search").addEventListener("input", () => searchFor($("search").value));
$("theme").addEventListener("click", turnTheme);
$("help").addEventListener("click", () => $("keys").showModal());
const helpTable = (rows, tag) => element("table", {}, ...rows.map(([key, text]) => element("tr", {}, element("td", {}, element(tag, {}, key)), element("td", {}, text))));
$("keys").append(element("h3", {}, "keys"), helpTable(KEYS, "kbd"), element("h3", {}, "mouse"), helpTable(MOUSE, "b"), element("form", { method: "dialog" }, element("button", { class: "act" }, "close")));
$("programs").after(splitter($("programs"), "width", 1, "programs"));
$("side").before(splitter($("side"), "width", -1, "side"));
$("details").after(splitter($("details"), "height", 1, "details"));
if (window.matchMedia("(prefers-color-scheme: dark)").matches) document.documentElement.dataset.theme = "dark";

const [from, step0, tab0] = location.hash.slice(1).split(".");
if (trace.programs[Number(from)] && TABS.some(([name]) => name === tab0)) Object.assign(state, { program: Number(from), item: Math.min(Number(step0) || 0, Math.max(0, trace.programs[Number(from)].items.length - 1)), tab: tab0 });
else if (trace.programs.length) Object.assign(state, { program: trace.costliest, item: slowest(trace.costliest) });
draw();
centerSelected();
document.body.dataset.opened = performance.now().toFixed(0);
// The first look at a large program is prepared while nobody waits.
trace.programs.forEach((p) => requestIdleCallback(() => { if (p.nodes.length) levelOf(p, foldingOf(p).root); }));
