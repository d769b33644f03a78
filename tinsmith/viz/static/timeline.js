"use strict";
// What happened when: a band per device, drawn by flame-chart-js (MIT), and the memory in use above it.

const KINDS = { kernel: "#4f8a36", copy: "#c98a1b", sync: "#8a8a8a", compile: "#6c48b0", program: "#9a7bd6" };

function showTimeline(trace, view, options) {
  const dark = document.documentElement.dataset.theme === "dark";
  const rows = new Map(), memory = new Map();
  const lineOf = (p) => (p.line >= 0 ? `, ${trace.origins[p.line][1].split("/").pop()}:${trace.origins[p.line][2]}` : "");
  // Memory as it was taken and given back; traces of before have it at kernels and copies only.
  const samples = trace.events.some(([kind]) => kind === "memory") ? ["memory"] : ["kernel", "copy"];
  for (const event of trace.events) {
    const [kind, row, , start, seconds, bytes] = event;
    if (samples.includes(kind)) {
      if (!memory.has(row)) memory.set(row, []);
      const points = memory.get(row), before = points.length ? points[points.length - 1][1] : 0;
      points.push([start * 1e3, before], [start * 1e3, bytes]); // memory is taken before a step runs
    }
    if (kind === "memory") continue;
    const made = kind === "program" ? trace.programs.find((p) => p.start >= start && p.start <= start + seconds) : null;
    const name = made ? `program ${made.number}${lineOf(made)}` : event[2];
    if (!rows.has(row)) rows.set(row, []);
    rows.get(row).push({ name, start: start * 1e3, duration: Math.max(seconds * 1e3, 1e-5), type: kind, event });
  }
  if (!rows.size) {
    view.append(element("p", { class: "bar" }, "Nothing ran while this trace was recorded: tensor.viz() measures kernels one by one; VIZ=1 python script.py has a timeline."));
    return null;
  }
  const ends = trace.events.map((e) => (e[3] + e[4]) * 1e3), starts = trace.events.map((e) => e[3] * 1e3);
  const end = ends.reduce((a, b) => Math.max(a, b), 0), begin = starts.reduce((a, b) => Math.min(a, b), end);
  const totals = new Map();
  for (const [kind, , , , seconds] of trace.events) totals.set(kind, (totals.get(kind) || 0) + seconds);
  view.append(element("div", { class: "bar" }, ...Object.entries(KINDS).filter(([kind]) => totals.has(kind)).map(([kind, color]) =>
    element("span", {}, element("i", { class: "meter", style: `width:10px;background:${color}` }), ` ${kind} ${timeText(totals.get(kind))}`)),
  trace.events_left_out ? `without the last ${trace.events_left_out} events` : null, "wheel zooms, drag moves, click selects"));
  const canvas = element("canvas", { id: "chart", tabindex: 0 }), holder = element("div", { style: "flex:1;min-height:0" }, canvas);
  view.append(holder);
  const colors = dark ? { back: "#15181d", text: "#e2e6ec", line: "#363c46" } : { back: "#ffffff", text: "#1c2128", line: "#d5d9e0" };
  const font = "11px sans-serif", styles = { main: { backgroundColor: colors.back, fontColor: colors.text, font, tooltipBackgroundColor: colors.back,
      tooltipHeaderFontColor: colors.text, tooltipBodyFontColor: colors.text },
    timeGrid: { color: colors.line }, timeGridPlugin: { fontColor: colors.text, font }, togglePlugin: { color: dark ? "#1d2128" : "#f5f6f8", fontColor: colors.text, strokeColor: colors.line, font },
    timeframeSelectorPlugin: { backgroundColor: colors.back, overlayColor: dark ? "rgba(40,46,56,.5)" : "rgba(200,206,216,.4)", fontColor: colors.text, font },
    timeseriesPlugin: { backgroundColor: colors.back } };
  const { FlameChartContainer, FlameChartPlugin, TimeGridPlugin, TimeframeSelectorPlugin, TogglePlugin, TimeseriesPlugin } = flameChartJs;
  const plugins = [new TimeGridPlugin(), new TimeframeSelectorPlugin({ waterfall: { items: [], intervals: {} },
    flameChartNodes: [...rows.values()].flat() })];
  const largest = Math.max(1, ...[...memory.values()].flat().map(([, bytes]) => bytes));
  if (memory.size) {
    plugins.push(new TogglePlugin(`memory in use, at most ${bytesText(largest)}`), new TimeseriesPlugin({ name: "memory", data: [...memory].map(([row, points], k) => ({
      name: row, group: "memory", units: "B", min: 0, max: largest * 1.05, points: [[begin, 0], ...points], dynamicMinMax: false,
      style: { lineColor: ["#3569b5", "#b56a00", "#4f8a36", "#6c48b0"][k % 4], fillColor: "rgba(80,130,200,.2)", lineWidth: 1 } })) }));
  }
  const last = [...rows.keys()].pop();
  for (const [row, data] of rows) {
    const chart = new FlameChartPlugin({ data, colors: KINDS, name: row });
    chart.height = row === last ? "flexible" : 62;
    plugins.push(new TogglePlugin(row), chart);
    chart.on("select", (found) => {
      const node = found && (found.node || found);
      const event = node && (node.event || (node.source && node.source.event));
      const kept = event || (node && data.find((d) => d.name === node.name && Math.abs(d.start - node.start) < 1e-9) || {}).event;
      if (kept) options.pick(kept);
    });
  }
  const place = holder.getBoundingClientRect();
  canvas.width = place.width;
  canvas.height = Math.max(place.height, 300);
  const chart = new FlameChartContainer({ canvas, plugins, settings: { styles, options: { timeUnits: "ms" } } });
  chart.setZoom(begin, Math.max(end, begin + 1e-3));
  chart.render();
  new ResizeObserver(() => {
    const now = holder.getBoundingClientRect();
    if (now.width > 0 && now.height > 0) chart.resize(now.width, now.height);
  }).observe(holder);
  return chart;
}
