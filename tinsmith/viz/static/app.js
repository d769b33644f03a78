"use strict";
// The page: one step of one program at a time, with the user's lines beside it.

const trace = JSON.parse(document.getElementById("trace").textContent);
const $ = (id) => document.getElementById(id);
const TABS = [["graph", "Graph"], ["passes", "Passes"], ["schedule", "Schedule"], ["tree", "Kernel tree"], ["kernel", "Structure"],
  ["opts", "Opts"], ["uops", "UOps"], ["source", "Source"], ["assembly", "Assembly"], ["timeline", "Timeline"]];
const OF_KERNEL = new Set(["tree", "kernel", "opts", "uops", "source", "assembly"]);
// origin: the line that is marked everywhere; uop: the marked row of a kernel's UOps, as "kernel row"; node: the selected box of the graph; pass, kpass: the shown passes
const state = { program: 0, item: 0, tab: "graph", group: null, node: null, origin: -1, pass: 0, kpass: 0, search: "", uop: null };
const LISTED = 60; // steps of a program that are listed on the left at a time
let picture = null, shown = [];

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
const found = (text) => state.search !== "" && text.toLowerCase().includes(state.search);

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

function drawPrograms() {
  const list = [];
  trace.programs.forEach((p, n) => {
    const kernels = p.items.filter((i) => i.kernel).length, first = p.items.length ? p.items[p.items.length - 1].origins : [];
    const line = p.line >= 0 && trace.origins[p.line][2] ? p.line : first[first.length - 1] ?? -1;
    list.push(element("button", { class: `program ${n === state.program ? "on" : ""}`, "data-program": n,
      onclick: () => go({ program: n, item: Math.max(0, p.items.findIndex((i) => i.kernel)), group: null, node: null, pass: 0, kpass: 0 }) },
    p.captured ? `⟳ ${p.captured} ` : "", `program ${n}: ${lineText(line) || "values"}`, element("br"),
    element("small", {}, `${kernels} kernel${kernels === 1 ? "" : "s"}, ${p.nodes.length} nodes, made in ${timeText(p.seconds)}`)));
    if (n !== state.program) return;
    const from = Math.max(0, Math.min(state.item - LISTED / 2, p.items.length - LISTED)), to = Math.min(p.items.length, from + LISTED);
    const more = (k, text) => element("button", { class: "item", onclick: () => go({ item: k, kpass: 0 }) }, text);
    if (from > 0) list.push(more(Math.max(0, from - LISTED / 2), `… ${from} before`));
    p.items.slice(from, to).forEach((i, place) => { const k = from + place; list.push(element("button", { class: `item ${k === state.item ? "on" : ""}`, "data-item": k, title: i.reason,
      onclick: () => go({ item: k, kpass: 0, tab: OF_KERNEL.has(state.tab) || !i.kernel ? state.tab : "tree" }) }, `${k} ${i.name}`)); });
    if (to < p.items.length) list.push(more(Math.min(p.items.length - 1, to + LISTED / 2), `… ${p.items.length - to} more`));
  });
  $("programs").replaceChildren(...(list.length ? list : [element("p", {}, "no program was made")]));
  const on = $("programs").querySelector(".item.on, .program.on");
  if (on) on.scrollIntoView({ block: "nearest" });
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
    const [op, dtype, shape, arg, sources, origin, kind, items] = program().nodes[state.node];
    const readers = program().nodes.map((n, k) => (n[4].includes(state.node) ? k : -1)).filter((k) => k >= 0);
    const links = (numbers) => element("span", {}, ...numbers.slice(0, 12).map((n) => element("button", { onclick: () => reveal(n) }, `${n} ${program().nodes[n][0]}`)));
    parts.push(element("b", {}, `${op} `), kind, definition([["number", String(state.node)], ["value", `${dtype} (${shape.join(", ")})`], ["argument", arg], ["line", lineText(origin)], ["layer", layerOf(origin)],
      ["reads", sources.length ? links(sources) : ""], ["read by", readers.length ? links(readers) : ""],
      [kind === "stored" ? "stored by" : "computed in", items.length ? element("span", {}, ...items.slice(0, 8).map(itemButton)) : ""],
      ["UOps", uopButton(items[0], origin)], ["because", kind === "stored" && items.length ? program().items[items[0]].reason : ""]]));
  } else if (state.tab === "graph" && state.node !== null) {
    const group = program().groups[-1 - state.node];
    parts.push(element("b", {}, group.label), definition([["nodes", String(foldingOf(program()).size.get(state.node))], ["line", lineText(group.origin)], ["layer", layerOf(group.origin)]]),
      element("button", { onclick: () => open(state.node) }, "open (Enter)"));
  } else if (item()) {
    const i = item();
    parts.push(element("b", {}, i.name), definition([["device", i.device], ["stored because", i.reason], ["writes", i.writes.map(slotText).join(", ")], ["reads", i.reads.map(slotText).join(", ")],
      ["lines", i.origins.length ? element("span", {}, ...i.origins.slice(0, 12).map((o) => element("button", { onclick: () => mark(o) }, lineText(o) || "?"))) : ""],
      ["measured", i.seconds === null ? "" : timeText(i.seconds)],
      ["graph", element("button", { onclick: () => { const n = program().nodes.findIndex((x) => x[6] === "stored" && x[7].includes(state.item)); if (n >= 0) reveal(n); } }, "its node")]]));
  }
  if (OF_KERNEL.has(state.tab)) parts.unshift(...uopLinks());
  $("details").replaceChildren(...parts);
}

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
  if (text === undefined) { $("file").textContent = file ? `${file}:${line} (its text is not in the trace)` : ""; $("code").replaceChildren(); codeFile = null; return; }
  $("file").textContent = `${file}:${line}`;
  const own = new Set(lines.filter((o) => trace.origins[o][1] === file).map((o) => trace.origins[o][2]));
  const rows = text.split("\n").map((t) => [t, 0]);
  if (codeFile !== file) {
    codeRows = showRows(rows, { numbered: true, name: "the user's file", classes: (n) => codeRows && codeRows.classOf(n), click: (n) => byLine(file, n + 1) });
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

// *** steps ***

function linked(rows, options = {}) {
  const made = showRows(rows, { ...options,
    classes: (n) => `${options.classes ? options.classes(n) : ""} ${sameLine(rows[n][1], state.origin) ? "same" : ""} ${found(rows[n][0]) ? "found" : ""}`,
    click: options.click || ((n) => { if (rows[n][1] >= 0) mark(rows[n][1]); }) });
  made.rows = rows;
  shown.push(made);
  return made;
}

// Lines of a text, each with the origin of the UOp that it is written for.
function textRows(text, lines) {
  return text.split("\n").map((t, n) => [t, lines && lines[n] >= 0 ? kernel().uops[lines[n]][1] : -1]);
}

// Rows that are linked to the UOps of the kernel: row n is UOp `uops(n)`.
function linkedToUops(rows, uops, options) {
  const made = linked(rows, { ...options, classes: (n) => (uops(n) >= 0 && uops(n) === markedUop() ? "on" : ""), click: (n) => uops(n) >= 0 && markUop(uops(n)), has: (n) => uops(n) >= 0 });
  const at = rows.findIndex((_, n) => uops(n) >= 0 && uops(n) === markedUop());
  if (at >= 0) requestAnimationFrame(() => made.show(at));
  return made;
}

const linesOf = (name) => { const lines = kernel().lines && kernel().lines[name]; return (n) => (lines && lines[n] !== undefined ? lines[n] : -1); };

function step(title, note) { return element("div", { class: "bar" }, element("b", {}, title), note || ""); }

function drawGraph(view) {
  const p = program(), folding = foldingOf(p), group = state.group ?? folding.root, path = [];
  for (let g = group; g !== undefined; g = folding.parents.get(g)) path.unshift(g);
  const bar = element("div", { class: "bar", id: "path" }, ...path.flatMap((g, n) => [n ? "›" : "", element("button", { onclick: () => go({ group: g, node: null }) }, g === folding.root ? "all" : p.groups[-1 - g].label)]),
    element("span", { class: "legend" }, ...Object.entries(STATES).map(([name, css]) => element("span", { style: `background:var(--${css});border-color:var(--${css === "constant" ? "seen" : css}-line)` }, name))));
  view.append(bar);
  if (!p.nodes.length) { view.append(step("nothing is computed", "the values were there")); return; }
  picture = showGraph(trace, p, group, { selected: () => state.node, same: (origin, at) => sameLine(origin, state.origin) || (state.search !== "" && found(textsOf(trace, p, at).lines.join(" "))),
    pick: (at) => { state.node = at; const o = textsOf(trace, p, at).origin; if (at >= 0 && p.nodes[at][7].length) state.item = p.nodes[at][7][0]; mark(o); drawPrograms(); }, open });
  view.append(picture);
  picture.fit();
  if (state.node !== null) picture.center(state.node);
}

function open(at) {
  if (at < 0) go({ group: at, node: null });
  else if (program().nodes[at][7].length) go({ item: program().nodes[at][7][0], tab: "tree", kpass: 0 });
}

// Shows node n in the graph, at the level where it is a box of its own.
function reveal(n) {
  state.origin = program().nodes[n][5];
  go({ tab: "graph", group: foldingOf(program()).parents.get(n), node: n });
}

// rows of pass n: those of the last pass before it that changed something
function rowsOf(passes, n) {
  for (let k = n; k >= 0; k--) if (passes[k].rows) return passes[k].rows;
  return [];
}

function withoutNumber(text) { return text.replace(/^\s*\d+ /, "").trim(); }

function drawPasses(view, passes, at, choose) {
  if (!passes.length) { view.append(step("no pass was recorded", "this kernel was made before the trace began")); return; }
  const pass = passes[Math.min(at, passes.length - 1)], number = passes.indexOf(pass);
  view.append(element("div", { class: "bar", id: "passes" }, ...passes.map((p, n) => element("button", { class: n === number ? "on" : "", "data-pass": n, onclick: () => choose(n),
    title: p.rewrites.length ? `${p.rewrites.length} rewrites` : "" }, p.rows || n === 0 ? p.name : element("span", { style: "opacity:.55" }, p.name), p.rewrites.length ? ` ·${p.rewrites.length}` : ""))));
  const before = number ? rowsOf(passes, number - 1) : [], after = rowsOf(passes, number), same = !pass.rows && number > 0;
  const texts = (rows) => new Set(rows.map((r) => withoutNumber(r[0]))), [old, made] = [texts(before), texts(after)];
  if (same) view.append(step("nothing changes here", pass.rewrites.length ? "; what was rewritten belongs to parts that are printed alike" : ""));
  view.append(element("div", { class: "pair" },
    number && !same ? element("div", {}, element("h3", {}, `before: ${passes[number - 1].name}`), linked(before, { name: "before", classes: (n) => (made.has(withoutNumber(before[n][0])) ? "" : "removed") })) : null,
    element("div", {}, element("h3", {}, `after: ${pass.name}`), linked(after, { name: "after", classes: (n) => (number && !same && !old.has(withoutNumber(after[n][0])) ? "added" : "") }))));
  if (pass.rewrites.length) view.append(element("div", { class: "rewrites" }, element("table", {}, element("tr", {}, ...["rule", "before", "after", "times"].map((t) => element("th", {}, t))),
    ...pass.rewrites.slice(0, 400).map(([rule, law, from, to, count]) => element("tr", {}, element("td", { title: law }, rule, element("br"), element("small", { style: "color:var(--dim)" }, law)), element("td", { class: "mono" }, from), element("td", { class: "mono" }, to), element("td", { class: "number" }, String(count))))),
  pass.left_out ? element("p", { class: "bar" }, `${pass.left_out} more rewrites are counted only`) : null));
}

function drawSchedule(view) {
  const p = program(), longest = Math.max(1e-12, ...p.items.map((i) => i.seconds || expected(i)));
  view.append(step(`${p.items.length} steps`, "what gets memory of its own, and why; the bar is the expected or measured time"));
  const from = Math.max(0, Math.min(state.item - 20, p.items.length - 40)), to = Math.min(p.items.length, from + 40);
  const rows = p.items.slice(from, to).map((i, place) => [i, from + place]).map(([i, n]) => element("tr", { class: `linked ${n === state.item ? "on" : ""}`, "data-item": n, onclick: () => { state.origin = i.origins[i.origins.length - 1] ?? -1; go({ item: n, kpass: 0 }); }, ondblclick: () => i.kernel && go({ item: n, tab: "tree" }) },
    element("td", { class: "number" }, String(n)), element("td", {}, i.device), element("td", { class: "mono", style: "white-space:nowrap" }, i.name), element("td", { style: "min-width:14em" }, i.reason),
    element("td", { class: "mono" }, i.writes.join(", ")), element("td", { class: "mono" }, i.reads.join(", ")), element("td", {}, [...new Set(i.origins.map(lineText))].join(", ").slice(0, 160)),
    element("td", { class: "number" }, timeText(i.seconds || expected(i) || null), element("br"), element("i", { class: "meter", style: `width:${(80 * (i.seconds || expected(i))) / longest}px` }))));
  const body = element("div", { style: "overflow:auto;flex:1" }, element("table", {}, element("tr", {}, ...["#", "device", "step", "stored because", "writes", "reads", "computes", "time"].map((t) => element("th", {}, t))), ...rows),
    element("h3", {}, `buffers${p.slots.length > 40 ? `, the first 40 of ${p.slots.length}` : ""}`), element("table", {}, element("tr", {}, ...["#", "elements", "dtype", "device", "what"].map((t) => element("th", {}, t))),
      ...p.slots.slice(0, 40).map(([size, dtype, device, kind], n) => element("tr", {}, ...[n, size.toLocaleString(), dtype, device, kind].map((t) => element("td", { class: "mono" }, String(t)))))));
  if (to - from < p.items.length) body.prepend(step(`steps ${from} to ${to - 1}`, "j and k, or the list on the left, lead to the others"));
  view.append(body);
  const on = body.querySelector("tr.on");
  if (on) on.scrollIntoView({ block: "nearest" });
}

function expected(i) { return i.kernel && trace.kernels[i.kernel] ? trace.kernels[i.kernel].estimate.seconds : 0; }

function drawOpts(view, k) {
  const e = k.estimate, machine = trace.machines[k.device] || { peaks: [], memory: [] }, ran = trace.events.filter((event) => event[9] === item().kernel && event[0] === "kernel").map((event) => event[4]);
  const best = ran.length ? Math.min(...ran) : item().seconds, most = Math.max(e.memory, e.arithmetic, e.launch, e.seconds, best || 0, 1e-12);
  const meter = (name, seconds) => element("tr", {}, element("th", {}, name), element("td", { class: "number" }, timeText(seconds)), element("td", {}, element("i", { class: "meter", style: `width:${(220 * seconds) / most}px` })));
  view.append(element("div", { style: "overflow:auto;flex:1" }, step("structure", "ranges by size and role, before and after the opts"),
    element("table", {}, element("tr", {}, element("th", {}, "before"), element("td", { class: "mono" }, k.before.join(", ") || "none")), element("tr", {}, element("th", {}, "after"), element("td", { class: "mono" }, k.after.join(", ") || "none"))),
    step("opts", "in order; the Structure step shows what each one does"),
    element("table", {}, element("tr", {}, element("th", {}, "opt"), element("th", {}, "expected then"), element("th", {})),
      ...["none", ...k.passes.filter((p) => p.name.startsWith("opt ")).map((p) => p.name)].map((name, n) => element("tr", n ? { class: "linked", onclick: () => go({ tab: "kernel", kpass: k.passes.findIndex((p) => p.name === name) }) } : {},
        element("td", { class: "mono" }, name.replace(/^opt /, "")), element("td", { class: "number" }, timeText(k.expected[n])), element("td", {}, element("i", { class: "meter", style: `width:${(220 * k.expected[n]) / Math.max(...k.expected)}px` }))))),
    step("estimate", `of ${machine.name || k.device}${machine.measured ? "" : ", with the numbers of a modest machine (python -m tinsmith machine measures this one)"}`),
    element("table", {}, meter(`memory (${e.level})`, e.memory), meter("arithmetic", e.arithmetic), meter("launch", e.launch), meter("expected", e.seconds), meter("roofline", e.roofline), best ? meter(ran.length ? `best of ${ran.length} runs` : "measured", best) : null),
    element("table", {}, ...[["operations", e.operations.toLocaleString()], ["reads", bytesText(e.read)], ["writes", bytesText(e.written)],
      ["operations per byte", (e.operations / Math.max(1, e.read + e.written)).toPrecision(3)],
      ...(best ? [["reached", `${(e.operations / best / 1e9).toPrecision(3)} GFLOPS, ${((e.read + e.written) / best / 1e9).toPrecision(3)} GB/s, ${((100 * e.roofline) / best).toFixed(0)} % of the roofline`]] : [])].map(([a, b]) => element("tr", {}, element("th", {}, a), element("td", { class: "mono" }, b))))));
}

function drawView() {
  const view = $("view");
  picture = null;
  shown = [];
  view.replaceChildren();
  if (!trace.programs.length) { view.append(step("the trace holds no program", "nothing was computed while it was recorded")); return; }
  const k = kernel();
  if (state.tab === "graph") drawGraph(view);
  else if (state.tab === "passes") drawPasses(view, program().passes, state.pass, (n) => go({ pass: n }));
  else if (state.tab === "schedule") drawSchedule(view);
  else if (state.tab === "timeline") showTimeline(trace, view, { pick: pickEvent });
  else if (!k) view.append(step(item() ? item().name : "no step", "is a copy, or was made before the trace began: it has no source. Choose a kernel on the left."));
  else if (state.tab === "tree") view.append(step(k.name, "what it computes: movement ops are in the ShapeTrackers of the leaves"), linked(k.tree, { name: "kernel tree" }));
  else if (state.tab === "kernel") drawPasses(view, k.passes, state.kpass, (n) => go({ kpass: n }));
  else if (state.tab === "opts") drawOpts(view, k);
  else if (state.tab === "uops") view.append(step(k.name, `${k.uops.length} lines of the linear program, in the order in which they happen`), linkedToUops(k.uops, (n) => n, { name: "UOps" }));
  else if (state.tab === "source") view.append(element("div", { class: "pair", style: "border:0" }, element("div", {}, element("h3", {}, "as people read it"), linkedToUops(textRows(k.source, k.lines && k.lines.source), linesOf("source"), { name: "source", numbered: true })),
    element("div", {}, element("h3", {}, `as ${k.device} gets it`), linkedToUops(textRows(k.native, k.lines && k.lines.native), linesOf("native"), { name: "native source", numbered: true }))));
  else if (state.tab === "assembly") view.append(k.assembly ? linkedToUops(textRows(k.assembly, k.lines && k.lines.assembly), linesOf("assembly"), { name: "assembly", numbered: true }) : step("no assembly", `the compiler of ${k.device} does not show any`));
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
  if (trace.programs.length) drawSide();
  document.body.dataset.tab = state.tab;
  document.body.dataset.took = (performance.now() - start).toFixed(1);
}

// *** keys, search, theme ***

const KEYS = [["1 … 9, 0", "the steps in order"], ["[ ]", "step before, step after"], ["j k", "next, previous step of the schedule"], ["n p", "next, previous program"], ["← → ↑ ↓", "select in the graph; before and after of passes"],
  ["Enter", "open the selected group, or the node's kernel"], ["Backspace", "up one level"], ["+ − f", "zoom, fit"], ["/", "search; Enter goes to the next hit"], ["t", "light or dark"], ["?", "these keys"]];

function turnTheme() {
  const now = document.documentElement.dataset.theme === "dark" ? "light" : "dark";
  document.documentElement.dataset.theme = now;
  draw();
}

function nextHit() {
  if (!state.search) return;
  if (state.tab === "graph") {
    const p = program(), n = p.nodes.length, start = state.node !== null && state.node >= 0 ? state.node + 1 : 0;
    for (let k = 0; k < n; k++) {
      const at = (start + k) % n, [op, dtype, , arg, , origin] = p.nodes[at];
      if (found(`${op} ${dtype} ${arg} ${lineText(origin)} ${layerOf(origin)} ${textsOf(trace, p, at).lines.join(" ")}`)) return reveal(at);
    }
    return;
  }
  for (const rows of shown) {
    const start = (rows.hit ?? -1) + 1, n = rows.rows.length;
    for (let k = 0; k < n; k++) {
      const at = (start + k) % n;
      if (found(rows.rows[at][0])) { rows.hit = at; rows.show(at); break; }
    }
  }
  if (state.tab === "schedule") {
    const start = state.item + 1, n = program().items.length;
    for (let k = 0; k < n; k++) {
      const at = (start + k) % n, i = program().items[at];
      if (found(`${i.name} ${i.reason} ${i.origins.map(lineText).join(" ")}`)) return go({ item: at });
    }
  }
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
    if (event.key === "Enter") nextHit();
    return;
  }
  const at = TABS.findIndex(([name]) => name === state.tab), key = event.key, p = program();
  if (!p) return;
  if (/^[0-9]$/.test(key)) go({ tab: TABS[(Number(key) + 9) % 10][0] });
  else if (key === "[" || key === "]") go({ tab: TABS[Math.max(0, Math.min(TABS.length - 1, at + (key === "]" ? 1 : -1)))][0] });
  else if (key === "j" || key === "k") go({ item: Math.max(0, Math.min(p.items.length - 1, state.item + (key === "j" ? 1 : -1))), kpass: 0, origin: -1 });
  else if (key === "n" || key === "p") go({ program: Math.max(0, Math.min(trace.programs.length - 1, state.program + (key === "n" ? 1 : -1))), item: 0, group: null, node: null, pass: 0, kpass: 0, origin: -1 });
  else if (key === "Enter" && state.tab === "graph" && state.node !== null) open(state.node);
  else if (key === "Backspace" && state.tab === "graph") { const up = foldingOf(p).parents.get(state.group ?? foldingOf(p).root); if (up !== undefined) go({ group: up, node: state.group }); }
  else if (key === "ArrowLeft" || key === "ArrowUp") { if (state.tab === "timeline") return; move(-1); }
  else if (key === "ArrowRight" || key === "ArrowDown") { if (state.tab === "timeline") return; move(1); }
  else if ((key === "+" || key === "-") && picture) picture.zoom(key === "+" ? 1.25 : 0.8);
  else if (key === "f" && picture) picture.fit();
  else if (key === "/") $("search").focus();
  else if (key === "t") turnTheme();
  else if (key === "?") $("keys").showModal();
  else return;
  event.preventDefault();
});
$("search").addEventListener("input", () => {
  state.search = $("search").value.trim().toLowerCase();
  for (const rows of shown) { rows.hit = -1; rows.redraw(); }
  if (picture) picture.mark();
  if (state.tab !== "graph") nextHit();
});
$("theme").addEventListener("click", turnTheme);
$("help").addEventListener("click", () => $("keys").showModal());
$("keys").append(element("h3", {}, "keys"), element("table", {}, ...KEYS.map(([key, what]) => element("tr", {}, element("td", {}, element("kbd", {}, key)), element("td", {}, what)))), element("form", { method: "dialog" }, element("button", {}, "close")));
if (window.matchMedia("(prefers-color-scheme: dark)").matches) document.documentElement.dataset.theme = "dark";

const [from, step0, tab0] = location.hash.slice(1).split(".");
if (trace.programs[Number(from)] && TABS.some(([name]) => name === tab0)) Object.assign(state, { program: Number(from), item: Math.min(Number(step0) || 0, Math.max(0, trace.programs[Number(from)].items.length - 1)), tab: tab0 });
else if (trace.programs.length) state.item = Math.max(0, program().items.findIndex((i) => i.kernel));
draw();
document.body.dataset.opened = performance.now().toFixed(0);
// The first look at a large program is prepared while nobody waits.
trace.programs.forEach((p) => requestIdleCallback(() => { if (p.nodes.length) levelOf(p, foldingOf(p).root); }));
