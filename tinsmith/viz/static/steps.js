"use strict";
// The steps of a program, one view each.

// Rows of [text, origin] that mark their line; options: those of showRows, and the language of the text.
function linked(rows, options = {}) {
  const made = showRows(rows, { ...options, html: coloredRows(rows, options.language),
    classes: (n) => `${options.classes ? options.classes(n) : ""} ${sameLine(rows[n][1], state.origin) ? "same" : ""} ${found(rows[n][0]) ? "found" : ""}`,
    click: options.click || ((n) => { if (rows[n][1] >= 0) mark(rows[n][1]); }) });
  made.rows = rows;
  made.language = options.language;
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

// A view that has nothing to show: what is missing, why, and what to do.
function emptyState(title, why, todo, ...actions) {
  return element("div", { class: "empty" }, element("h2", {}, title), why ? element("p", {}, why) : null, todo ? element("p", {}, todo) : null, ...actions);
}

// Two views beside each other with a separator; `name` is that of the size that is kept.
function pair(name, left, right) {
  const panes = [left, right].map((pane) => element("div", {}, ...pane));
  return element("div", { class: "pair" }, panes[0], splitter(panes[0], "width", 1, name), panes[1]);
}

function drawGraph(view) {
  const p = program(), folding = foldingOf(p), group = state.group ?? folding.root, path = [];
  for (let g = group; g !== undefined; g = folding.parents.get(g)) path.unshift(g);
  if (!p.nodes.length) {
    view.append(emptyState("Nothing is computed by this program", "Every value that it returns is in memory already.", "Choose another program on the left; the Schedule step shows what this one copies."));
    return;
  }
  const present = new Set([...levelOf(p, group).boxes.keys()].map((at) => textsOf(trace, p, at).state));
  view.append(element("div", { class: "bar", id: "path" }, ...path.flatMap((g, n) => [n ? "›" : "", element("button", { onclick: () => go({ group: g, node: null }) }, g === folding.root ? "all" : p.groups[-1 - g].label)]),
    element("span", { class: "legend" }, ...Object.entries(STATES).filter(([name]) => present.has(name)).map(([name, css]) => element("span", { title: MEANING[name], style: `background:var(--${css});border-color:var(--${css === "constant" ? "seen" : css}-line)` }, name)))));
  picture = showGraph(trace, p, group, { wide: view.clientWidth, high: view.clientHeight - 40, selected: () => state.node, same: (origin) => sameLine(origin, state.origin), hit: (at) => hitSet.has(at),
    pick: (at) => { state.node = at; const o = textsOf(trace, p, at).origin; if (at >= 0 && p.nodes[at][7].length) state.item = p.nodes[at][7][0]; mark(o); drawPrograms(); }, open });
  view.append(picture);
  picture.fit();
}

const MEANING = { realized: "data in memory", stored: "gets memory of its own: a kernel or copy writes it", fused: "computed inside a kernel", view: "costs nothing: another shape of the same data",
  constant: "part of the kernels' code", group: "a layer, function or line: double click opens it" };

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
  if (!passes.length) { view.append(emptyState("No pass was recorded", "This kernel was compiled before the trace began.", "Run the whole script with VIZ=1 instead of a block, so that each kernel is compiled while it is recorded.")); return; }
  const pass = passes[Math.min(at, passes.length - 1)], number = passes.indexOf(pass);
  view.append(element("div", { class: "bar", id: "passes" }, ...passes.map((p, n) => element("button", { class: n === number ? "on" : "", "data-pass": n, onclick: () => choose(n),
    title: p.rewrites.length ? plural(p.rewrites.length, "rewrite") : p.rows || n === 0 ? "" : "changed nothing" }, p.rows || n === 0 ? p.name : element("span", { class: "faint" }, p.name), p.rewrites.length ? ` ·${p.rewrites.length}` : ""))));
  const before = number ? rowsOf(passes, number - 1) : [], after = rowsOf(passes, number), same = !pass.rows && number > 0;
  const texts = (rows) => new Set(rows.map((r) => withoutNumber(r[0]))), [old, made] = [texts(before), texts(after)];
  if (same) view.append(step("nothing changes here", pass.rewrites.length ? "what was rewritten belongs to parts that are printed alike" : "the program is that of the pass before"));
  const result = [element("h3", {}, `after: ${pass.name}`), linked(after, { name: "after", language: "uops", classes: (n) => (number && !same && !old.has(withoutNumber(after[n][0])) ? "added" : "") })];
  view.append(number && !same ? pair("before and after", [element("h3", {}, `before: ${passes[number - 1].name}`), linked(before, { name: "before", language: "uops", classes: (n) => (made.has(withoutNumber(before[n][0])) ? "" : "removed") })], result)
    : element("div", { class: "pair" }, element("div", {}, ...result)));
  if (!pass.rewrites.length) return;
  const rules = element("div", { class: "rewrites" }, element("table", { class: "wide" }, element("tr", {}, ...["rule", "before", "after", "times"].map((t) => element("th", {}, t))),
    ...pass.rewrites.slice(0, 400).map(([rule, law, from, to, count]) => element("tr", {}, element("td", { title: law }, rule, element("br"), element("small", {}, law)), element("td", { class: "mono" }, from), element("td", { class: "mono" }, to), element("td", { class: "number" }, String(count))))),
  pass.left_out ? element("p", { class: "bar" }, `${pass.left_out} more rewrites are counted only`) : null);
  view.append(splitter(rules, "height", -1, "rewrites"), rules);
}

// *** schedule ***

const MOST_LISTED = 40; // steps and buffers that the schedule shows at a time

function timeKey(runs) {
  return element("span", { class: "key" }, element("i", { class: "swatch measured" }), runs > 1 ? ` measured, mean of ${runs} runs` : " measured", element("i", { class: "swatch predicted" }), " predicted by the cost model");
}

// The measured and the predicted time of step n, each with its bar.
function timeCell(n, longest) {
  const [measured, runs, predicted] = program().times.items[n];
  const row = (kind, seconds, title) => (seconds === null ? null : element("div", { class: `time ${kind}`, title }, element("span", { class: "track" }, meter(kind, seconds, longest)), element("span", {}, timeText(seconds))));
  return element("td", {}, row("measured", measured, runs > 1 ? `measured: mean of ${runs} runs` : "measured"), row("predicted", predicted, "predicted by the cost model"));
}

function drawSchedule(view) {
  const p = program(), { measured, runs, predicted, items } = p.times, longest = Math.max(1e-12, ...items.map(([a, , b]) => Math.max(a || 0, b || 0)));
  if (!p.items.length) { view.append(emptyState("This program has no step", "Every value that it returns is in memory already.", "Choose another program on the left.")); return; }
  const ran = measured === null ? "not measured" : `measured ${timeText(runs ? measured / runs : measured)}${runs > 1 ? ` a run (${runs} runs)` : ""}`;
  view.append(element("div", { class: "bar" }, element("b", {}, plural(p.items.length, "step")), `${ran}, predicted ${timeText(predicted)}`, timeKey(runs)));
  if (measured === null) view.append(element("div", { class: "bar" }, "To measure, run the script with VIZ=1, or call tensor.viz(), which runs each kernel on memory of its own."));
  const from = Math.max(0, Math.min(state.item - MOST_LISTED / 2, p.items.length - MOST_LISTED)), to = Math.min(p.items.length, from + MOST_LISTED);
  const devices = new Set(p.items.map((i) => i.device));
  const rows = p.items.slice(from, to).map((i, place) => scheduleRow(i, from + place, devices.size > 1, longest));
  const columns = [["#", "5%", ""], ["step", "31%", "kernel or copy; below it the layer or the line that it computes"], ["stored because", "25%", "the reason why the result gets memory of its own"],
    ["memory", "13%", "buffers: written ← read"], ["time", "26%", "measured above, predicted below"]];
  const body = element("div", { class: "scroll" }, element("table", { class: "schedule" }, element("colgroup", {}, ...columns.map(([, width]) => element("col", { style: `width:${width}` }))),
    element("tr", {}, ...columns.map(([name, , title]) => element("th", { title, class: "stick" }, name))), ...rows), ...bufferTable(p));
  if (to - from < p.items.length) body.prepend(step(`steps ${from} to ${to - 1} of ${p.items.length}`, "j and k, or the list on the left, lead to the others"));
  view.append(body);
  const on = body.querySelector("tr.on");
  if (on) body.scrollTop = Math.max(0, on.offsetTop - body.clientHeight / 2);
}

function scheduleRow(i, n, withDevice, longest) {
  const layer = itemLayer(i), lines = [...new Set(i.origins.map(lineText))].filter((t) => t), where = layer || lines[lines.length - 1] || "";
  return element("tr", { class: `linked ${n === state.item ? "on" : ""} ${hitSet.has(n) ? "found" : ""}`, "data-item": n, title: i.kernel ? "double click opens the kernel" : "",
    onclick: () => { state.origin = i.origins[i.origins.length - 1] ?? -1; go({ item: n, kpass: 0 }); }, ondblclick: () => i.kernel && go({ item: n, tab: "tree" }) },
  element("td", { class: "number" }, String(n)),
  element("td", {}, element("span", { class: "mono name" }, i.name), element("small", { title: lines.join("\n") }, [withDevice ? i.device : "", where].filter((t) => t).join(", "))),
  element("td", { title: i.reason }, element("div", { class: "clamp" }, i.reason)), element("td", { class: "mono" }, `${i.writes.join(", ")}${i.reads.length ? ` ← ${i.reads.join(", ")}` : ""}`), timeCell(n, longest));
}

function bufferTable(p) {
  return [element("h3", {}, `buffers${p.slots.length > MOST_LISTED ? `, the first ${MOST_LISTED} of ${p.slots.length}` : ""}`), element("table", {}, element("tr", {}, ...["#", "elements", "dtype", "device", "kind"].map((t) => element("th", {}, t))),
    ...p.slots.slice(0, MOST_LISTED).map(([size, dtype, device, kind], n) => element("tr", {}, ...[n, size.toLocaleString("en"), dtype, device, kind].map((t, k) => element("td", { class: k === 1 ? "mono number" : "mono" }, String(t))))))];
}

// *** kernels ***

function drawOpts(view, k) {
  const e = k.estimate, machine = trace.machines[k.device] || {}, [mean, runs] = program().times.items[state.item];
  const ran = trace.events.filter((event) => event[9] === item().kernel && event[0] === "kernel").map((event) => event[4]), best = ran.length ? ran.reduce((a, b) => Math.min(a, b)) : mean;
  const longest = Math.max(e.memory, e.arithmetic, e.launch, e.seconds, best || 0, 1e-12);
  const row = (kind, name, seconds, most, attributes = {}) => element("tr", attributes, element("td", { class: attributes.class ? "mono" : "" }, name), element("td", { class: "number" }, timeText(seconds)), element("td", { class: "track" }, meter(kind, seconds, most)));
  const opts = ["none", ...k.passes.filter((p) => p.name.startsWith("opt ")).map((p) => p.name)], worst = Math.max(...k.expected);
  const facts = [["operations", e.operations.toLocaleString("en")], ["bytes read", bytesText(e.read)], ["bytes written", bytesText(e.written)], ["operations per byte", round3(e.operations / Math.max(1, e.read + e.written))],
    ...(best ? [["reached", `${round3(e.operations / best / 1e9)} GFLOPS, ${round3((e.read + e.written) / best / 1e9)} GB/s, ${round3((100 * e.roofline) / best)} % of the roofline`]] : [])];
  const modest = machine.measured ? "" : ", with the numbers of a modest machine: python -m tinsmith machine measures this one";
  view.append(element("div", { class: "scroll" },
    step("structure", "ranges by size and kind, before and after the opts"),
    element("table", {}, ...[["before", k.before], ["after", k.after]].map(([name, ranges]) => element("tr", {}, element("th", {}, name), element("td", { class: "mono" }, ranges.join(", ") || "none")))),
    step("opts", "in order, with the predicted time after each; a click shows what it does"),
    element("table", { class: "meters" }, ...opts.map((name, n) => row("predicted", name.replace(/^opt /, ""), k.expected[n], worst, n ? { class: "linked", onclick: () => go({ tab: "kernel", kpass: k.passes.findIndex((p) => p.name === name) }) } : { class: "plain" }))),
    element("div", { class: "bar" }, element("b", {}, "time"), timeKey(1)),
    element("table", { class: "meters" }, best ? row("measured", `measured${ran.length > 1 ? `, best of ${ran.length} runs` : ""}`, best, longest) : null, best && runs > 1 ? row("measured", `measured, mean of ${runs} runs`, mean, Math.max(longest, mean)) : null,
      row("predicted", "predicted", e.seconds, longest), row("predicted", `… by memory (${e.level})`, e.memory, longest), row("predicted", "… by arithmetic", e.arithmetic, longest), row("predicted", "… by launch", e.launch, longest), row("predicted", "roofline", e.roofline, longest)),
    best ? null : element("p", { class: "bar" }, "Not measured: run the script with VIZ=1, or call tensor.viz()."),
    element("p", { class: "bar" }, `Predicted for ${machine.name || k.device}${modest}.`),
    element("table", {}, ...facts.map(([a, b]) => element("tr", {}, element("th", {}, a), element("td", { class: "mono" }, b))))));
}

function drawSource(view, k) {
  const text = (rows, name, lines, language) => linkedToUops(rows, linesOf(lines), { name, numbered: true, language });
  view.append(pair("source", [element("h3", {}, "as C, to be read"), text(textRows(k.source, k.lines && k.lines.source), "source", "source", "c")],
    [element("h3", {}, `as ${k.device} compiles it`), text(textRows(k.native, k.lines && k.lines.native), "native source", "native", languageOf(k.native))]));
}

function drawAssembly(view, k) {
  if (!k.assembly) {
    view.append(emptyState(`${k.device} shows no assembly`, `The compiler of ${k.device} does not disassemble its kernels.`, "The Source step shows the text that it compiles.", element("button", { class: "act", onclick: () => go({ tab: "source" }) }, "Source")));
    return;
  }
  const rows = textRows(k.assembly, k.lines && k.lines.assembly);
  const made = linkedToUops(rows, linesOf("assembly"), { name: "assembly", numbered: true, language: "assembly" });
  view.append(made);
  const code = rows.findIndex((r) => /^\s*\.text/.test(r[0]));
  if (markedUop() < 0 && code > 0) made.scrollTop = code * ROW; // past the constants
}

// A step of kernels, while none is chosen.
function drawNoKernel(view) {
  const first = program().items.findIndex((i) => i.kernel && trace.kernels[i.kernel]), i = item(), step = TABS.find(([name]) => name === state.tab)[1];
  const why = !i ? "This program has no step: every value that it returns is in memory already." : i.kernel ? "This kernel was compiled before the trace began." : "A copy moves memory and has no source.";
  view.append(emptyState(i && !i.kernel ? `${i.name} is a copy` : `No kernel for ${step}`, why, first >= 0 ? "Choose a kernel on the left." : "This program has no kernel: choose another program on the left.",
    first >= 0 ? element("button", { class: "act", onclick: () => go({ item: first, kpass: 0 }) }, `show ${program().items[first].name}`) : null));
}

function drawView() {
  const view = $("view");
  picture = chart = null;
  shown = [];
  view.replaceChildren();
  if (state.tab === "timeline") { chart = showTimeline(trace, view, { pick: pickEvent, hit: (event) => hitSet.has(event) }); return; }
  if (!trace.programs.length) {
    view.append(emptyState("The trace holds no program", "Nothing was computed while it was recorded. Tensors are lazy: arithmetic alone computes nothing.",
      "Ask for a result in the script, with .numpy(), .item(), .tolist() or .realize(), and run VIZ=1 python script.py again. tensor.viz() shows one tensor's program without computing it."));
    return;
  }
  const k = kernel(), p = program();
  if (state.tab === "graph") drawGraph(view);
  else if (state.tab === "passes") drawPasses(view, p.passes, state.pass, (n) => go({ pass: n }));
  else if (state.tab === "schedule") drawSchedule(view);
  else if (!k) drawNoKernel(view);
  else if (state.tab === "tree") view.append(step(k.name, "what it computes: movement ops are in the ShapeTrackers of the leaves"), linked(k.tree, { name: "kernel tree", language: "uops" }));
  else if (state.tab === "kernel") drawPasses(view, k.passes, state.kpass, (n) => go({ kpass: n }));
  else if (state.tab === "opts") drawOpts(view, k);
  else if (state.tab === "uops") view.append(step(k.name, `${plural(k.uops.length, "line")} of the linear program, in order of execution`), linkedToUops(k.uops, (n) => n, { name: "UOps", language: "uops" }));
  else if (state.tab === "source") drawSource(view, k);
  else if (state.tab === "assembly") drawAssembly(view, k);
}
