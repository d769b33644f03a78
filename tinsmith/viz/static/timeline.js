"use strict";
// The timeline: a lane per device with what ran when, and the memory in use above it, on a canvas.

const KINDS = { kernel: ["#3f7d2b", "#7cc25e"], copy: ["#b07512", "#e5ab47"], sync: ["#6f7782", "#98a1ae"], compile: ["#6c48b0", "#b196ef"],
  program: ["#3569b5", "#7fb0ff"] }; // colors in the light and in the dark theme
const LANE = { ruler: 24, head: 20, bar: 19, memory: 64, gap: 8, levels: 8 }; // pixels; levels: most bars above each other
const TICKS = 80; // smallest distance of labelled ticks in pixels

// The largest distance of ticks that is 1, 2 or 5 times a power of ten and at least `least`.
function roundStep(least) {
  const power = 10 ** Math.floor(Math.log10(least));
  return [1, 2, 5, 10].map((n) => n * power).find((step) => step >= least * (1 - 1e-9));
}

// A time on the ruler in the unit of its step: 1.2 s, 350 ms, 20 µs.
function tickText(seconds, step) {
  const [size, unit] = [[1, "s"], [1e-3, "ms"], [1e-6, "µs"], [1e-9, "ns"]].find(([size]) => step >= size * 0.0999) || [1e-9, "ns"];
  const digits = Math.max(0, -Math.floor(Math.log10(step / size) + 1e-9)), text = (seconds / size).toFixed(digits);
  return `${Number(text) === 0 ? "0" : text} ${unit}`;
}

// Events as bars by lane, each on the first level that is free; steps of memory by device.
function lanesOf(trace) {
  const lanes = new Map(), memory = new Map();
  const lineOf = (p) => (p.line >= 0 && trace.origins[p.line][2] ? `, ${trace.origins[p.line][1].split("/").pop()}:${trace.origins[p.line][2]}` : "");
  // Older traces have the memory in use at kernels and copies only.
  const samples = trace.events.some(([kind]) => kind === "memory") ? ["memory"] : ["kernel", "copy"];
  for (const event of [...trace.events].sort((a, b) => a[3] - b[3])) {
    const [kind, row, , start, seconds, bytes] = event;
    if (samples.includes(kind)) {
      if (!memory.has(row)) memory.set(row, []);
      memory.get(row).push([start, bytes]);
    }
    if (kind === "memory") continue;
    const made = kind === "program" ? trace.programs.find((p) => p.start >= start && p.start <= start + seconds) : null;
    const layer = event[8].map((o) => layerOf(o)).filter((l) => l).pop();
    if (!lanes.has(row)) lanes.set(row, { bars: [], ends: [], total: 0 });
    const lane = lanes.get(row);
    let level = lane.ends.findIndex((end) => end <= start + 1e-9);
    if (level < 0) level = Math.min(lane.ends.length, LANE.levels - 1);
    lane.ends[level] = start + seconds;
    lane.total += seconds;
    lane.bars.push({ name: made ? `program ${made.number}${lineOf(made)}` : layer ? `${layer}: ${event[2]}` : event[2], start, end: start + seconds, level, kind, event });
  }
  return { lanes, memory };
}

function showTimeline(trace, view, options) {
  const { lanes, memory } = lanesOf(trace), totals = new Map();
  if (!lanes.size) {
    view.append(emptyState("Nothing ran while this trace was recorded", "tensor.viz() compiles a program and measures its kernels one by one.",
      "For a timeline, run the script with VIZ=1: VIZ=1 python script.py"));
    return null;
  }
  const bars = [...lanes.values()].flatMap((l) => l.bars), begin = reduced(bars, "start", Math.min), end = Math.max(begin + 1e-6, reduced(bars, "end", Math.max));
  for (const bar of bars) totals.set(bar.kind, (totals.get(bar.kind) || 0) + bar.end - bar.start);
  const dark = document.documentElement.dataset.theme === "dark", color = (kind) => (KINDS[kind] || KINDS.sync)[dark ? 1 : 0];
  const range = (title, text, from, to) => element("button", { title, onclick: () => show(from, to) }, text);
  const kernels = bars.filter((b) => b.kind === "kernel"), ran = kernels.length ? [reduced(kernels, "start", Math.min), reduced(kernels, "end", Math.max)] : null;
  view.append(element("div", { class: "bar" }, ...Object.keys(KINDS).filter((kind) => totals.has(kind)).map((kind) =>
    element("span", {}, element("i", { class: "swatch", style: `background:${color(kind)}` }), ` ${kind} ${timeText(totals.get(kind))}`)),
  trace.events_left_out ? `without the last ${trace.events_left_out} events` : null,
  element("span", { class: "right" }, range("zoom to everything (f)", "all", begin, end), ran ? range("zoom to the kernels", "kernels", ...ran) : null)));
  const canvas = element("canvas", { id: "chart", tabindex: 0, "aria-label": "timeline" }), tip = element("div", { id: "tip", hidden: "" });
  const holder = element("div", { class: "holder" }, canvas, tip);
  view.append(holder);

  const largest = new Map([...memory].map(([row, points]) => [row, points.reduce((most, [, b]) => Math.max(most, b), 1)]));
  const tracks = []; // [kind, row, top, height]
  let high = LANE.ruler;
  const add = (kind, row, height) => { tracks.push([kind, row, high, height]); high += height + LANE.gap; };
  const order = (row) => (row === "Python" ? 0 : row.endsWith(" compiler") ? 1 : 2);
  for (const row of [...new Set([...lanes.keys(), ...memory.keys()])].sort((a, b) => order(a) - order(b))) {
    if (lanes.has(row)) add("lane", row, LANE.head + lanes.get(row).ends.length * LANE.bar);
    if (memory.has(row)) add("memory", row, LANE.head + LANE.memory);
  }

  const style = getComputedStyle(document.documentElement), css = (name) => style.getPropertyValue(`--${name}`).trim();
  const ink = { back: css("back"), panel: css("panel"), text: css("text"), dim: css("dim"), line: css("line"), accent: css("accent"), onBar: dark ? "#10131a" : "#ffffff" };
  let from = begin, to = end, wide = 0, hovered = null, selected = null, pending = false;
  const x = (time) => ((time - from) / (to - from)) * wide, time = (px) => from + (px / wide) * (to - from);
  const request = () => { if (!pending) { pending = true; requestAnimationFrame(() => { pending = false; paint(); }); } };

  // Shows a range of time, within the recording and a little beyond.
  function show(a, b) {
    const span = Math.max(2e-8, Math.min(b - a, (end - begin) * 1.1)), slack = (end - begin) * 0.05;
    from = Math.max(begin - slack, Math.min(a, end + slack - span));
    to = from + span;
    request();
  }

  function paint() {
    const ratio = devicePixelRatio || 1, c = canvas.getContext("2d");
    wide = holder.clientWidth;
    const height = Math.max(high, holder.clientHeight);
    if (canvas.width !== Math.round(wide * ratio) || canvas.height !== Math.round(height * ratio)) {
      canvas.width = Math.round(wide * ratio);
      canvas.height = Math.round(height * ratio);
      canvas.style.height = `${height}px`;
    }
    c.setTransform(ratio, 0, 0, ratio, 0, 0);
    c.fillStyle = ink.back;
    c.fillRect(0, 0, wide, height);
    c.font = "12px system-ui, sans-serif";
    c.textBaseline = "middle";
    paintRuler(c, height);
    for (const [kind, row, top, size] of tracks) {
      c.fillStyle = ink.panel;
      c.fillRect(0, top, wide, LANE.head);
      if (kind === "lane") paintLane(c, lanes.get(row), top + LANE.head); else paintMemory(c, memory.get(row), largest.get(row), top + LANE.head, size - LANE.head);
      c.fillStyle = ink.text;
      c.fillText(kind === "lane" ? `${row}: ${timeText(lanes.get(row).total)}` : `memory in use on ${row}, at most ${bytesText(largest.get(row))}`, 12, top + LANE.head / 2);
    }
  }

  function paintRuler(c, height) {
    const step = roundStep(((to - from) * TICKS) / wide);
    for (let k = Math.ceil(from / step); k * step <= to; k++) {
      const at = Math.round(x(k * step)) + 0.5;
      c.strokeStyle = ink.line;
      c.beginPath();
      c.moveTo(at, 0);
      c.lineTo(at, height);
      c.stroke();
      c.fillStyle = ink.text;
      c.fillText(tickText(k * step, step), at + 4, LANE.ruler / 2);
    }
    canvas.dataset.step = step;
  }

  function paintLane(c, lane, top) {
    const painted = [];
    for (const bar of lane.bars) {
      if (bar.end < from || bar.start > to) continue;
      const left = Math.max(-1, x(bar.start)), right = Math.min(wide + 1, Math.max(left + 1, x(bar.end))), y = top + bar.level * LANE.bar + 1;
      const chosen = bar === selected || bar === hovered;
      if (right <= (painted[bar.level] ?? -1) && !chosen) continue; // a neighbor covers this pixel
      painted[bar.level] = Math.floor(right);
      c.fillStyle = color(bar.kind);
      c.fillRect(left, y, right - left > 3 ? right - left - 0.5 : right - left, LANE.bar - 2);
      if (chosen || options.hit(bar.event)) { c.strokeStyle = bar === hovered ? ink.text : ink.accent; c.lineWidth = 2; c.strokeRect(left + 0.5, y, Math.max(2, right - left - 1), LANE.bar - 2); c.lineWidth = 1; }
      if (right - left > 26) {
        c.fillStyle = ink.onBar;
        c.fillText(clipped(c, bar.name, right - left - 8), Math.max(left, 0) + 4, y + LANE.bar / 2 - 0.5);
      }
    }
  }

  function paintMemory(c, points, most, top, size) {
    const y = (bytes) => top + size - 2 - (bytes / most) * (size - 6);
    const seen = points.filter(([at]) => at > from && at < to), before = points.filter(([at]) => at <= from).pop();
    let level = y(before ? before[1] : 0);
    c.beginPath();
    c.moveTo(0, top + size);
    c.lineTo(0, level);
    for (const [at, bytes] of seen) {
      c.lineTo(x(at), level);
      level = y(bytes);
      c.lineTo(x(at), level);
    }
    c.lineTo(wide, level);
    c.lineTo(wide, top + size);
    c.closePath();
    c.globalAlpha = 0.25;
    c.fillStyle = ink.accent;
    c.fill();
    c.globalAlpha = 1;
    c.strokeStyle = ink.accent;
    c.stroke();
  }

  function barAt(px, py) {
    const track = tracks.find(([kind, , top, size]) => kind === "lane" && py >= top + LANE.head && py < top + size);
    if (!track) return null;
    const level = Math.floor((py - track[2] - LANE.head) / LANE.bar), near = (3 / wide) * (to - from), at = time(px);
    let best = null, distance = near;
    for (const bar of lanes.get(track[1]).bars) {
      if (bar.level !== level) continue;
      const away = at < bar.start ? bar.start - at : at > bar.end ? at - bar.end : 0;
      if (away < distance || (away === 0 && distance === 0 && bar.start > best.start)) { best = bar; distance = away; }
    }
    return best;
  }

  // The middle of a bar on the canvas.
  function placeOf(bar) {
    const [, , top] = tracks.find(([kind, row]) => kind === "lane" && lanes.get(row).bars.includes(bar));
    return { x: x((bar.start + bar.end) / 2), y: top + LANE.head + (bar.level + 0.5) * LANE.bar };
  }

  function pointAt(event) {
    const box = canvas.getBoundingClientRect(), px = event.clientX - box.left, py = event.clientY - box.top, found = barAt(px, py);
    if (found !== hovered) { hovered = found; canvas.style.cursor = found ? "pointer" : "grab"; request(); }
    tip.hidden = !found;
    if (!found) return;
    tip.replaceChildren(element("b", {}, found.name), element("br"), `${found.kind}, ${timeText(found.end - found.start)}, at ${timeText(found.start)}`);
    tip.style.left = `${Math.min(px + 14, wide - tip.offsetWidth - 4)}px`;
    tip.style.top = `${py + 18}px`;
  }

  function select(bar) {
    selected = bar;
    if (bar.end < from || bar.start > to) { const span = to - from, middle = (bar.start + bar.end) / 2; show(middle - span / 2, middle + span / 2); }
    options.pick(bar.event);
    request();
  }

  let drag = null;
  canvas.addEventListener("pointerdown", (event) => { drag = { at: event.clientX, from, to, moved: false }; canvas.setPointerCapture(event.pointerId); });
  canvas.addEventListener("pointermove", (event) => {
    if (!drag) { pointAt(event); return; }
    drag.moved ||= Math.abs(event.clientX - drag.at) > 3;
    const by = ((drag.at - event.clientX) / wide) * (drag.to - drag.from);
    if (drag.moved) { tip.hidden = true; show(drag.from + by, drag.to + by); }
  });
  canvas.addEventListener("pointerup", () => { if (drag && !drag.moved && hovered) select(hovered); drag = null; });
  canvas.addEventListener("pointerleave", () => { hovered = null; tip.hidden = true; request(); });
  canvas.addEventListener("dblclick", () => { if (hovered) { const pad = (hovered.end - hovered.start) * 0.1; show(hovered.start - pad, hovered.end + pad); } else show(begin, end); });
  const zoom = (factor, px = wide / 2) => { const middle = time(px); show(middle - (middle - from) / factor, middle + (to - middle) / factor); };
  canvas.addEventListener("wheel", (event) => {
    event.preventDefault();
    if (Math.abs(event.deltaX) > Math.abs(event.deltaY) || event.shiftKey) { const by = ((event.deltaX || event.deltaY) / wide) * (to - from); show(from + by, to + by); }
    else zoom(Math.exp(-event.deltaY / 300), event.clientX - canvas.getBoundingClientRect().left);
  }, { passive: false });
  new ResizeObserver(request).observe(holder);
  paint();
  return { zoom, fit: () => show(begin, end), pan: (by) => { const span = (to - from) * by; show(from + span, to + span); }, mark: request, repaint: paint,
    bars, select, range: () => [from, to], placeOf };
}

function reduced(bars, name, choose) { return bars.reduce((found, bar) => choose(found, bar[name]), bars[0][name]); }

// As much of a text as fits a width, with an ellipsis.
function clipped(c, text, wide) {
  if (c.measureText(text).width <= wide) return text;
  let least = 0, most = text.length;
  while (least < most) {
    const middle = (least + most + 1) >> 1;
    if (c.measureText(`${text.slice(0, middle)}…`).width <= wide) least = middle; else most = middle - 1;
  }
  return least > 1 ? `${text.slice(0, least)}…` : "";
}
