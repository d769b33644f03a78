"use strict";
// Separators between panes: dragged with the mouse, moved with the arrow keys, reset by a double click.

const SMALLEST = 120; // pixels of a pane

// Pages in a notebook's frame have no storage.
function stored(name) { try { return localStorage.getItem(`tinsmith ${name}`); } catch { return null; } }
function store(name, value) { try { localStorage.setItem(`tinsmith ${name}`, value); } catch { /* the size lasts as long as the page */ } }

// A separator that sizes `pane`, which lies before it (sign 1) or after it (sign -1), along "width" or "height".
function splitter(pane, side, sign, name) {
  const wide = side === "width", kept = Number(stored(name));
  const bar = element("div", { class: `splitter ${side}`, role: "separator", tabindex: 0, "aria-label": `size of ${name}`,
    "aria-orientation": wide ? "vertical" : "horizontal", "data-pane": name,
    title: "drag to resize, double click to reset" });
  const set = (size) => {
    const most = (wide ? innerWidth : innerHeight) * 0.7, value = Math.round(Math.max(SMALLEST, Math.min(most, size)));
    pane.style.flex = `0 0 ${value}px`;
    pane.style[wide ? "maxWidth" : "maxHeight"] = "none";
    bar.setAttribute("aria-valuenow", value);
    return value;
  };
  const now = () => pane.getBoundingClientRect()[side], point = (event) => (wide ? event.clientX : event.clientY);
  const reset = () => { pane.style.flex = ""; pane.style[wide ? "maxWidth" : "maxHeight"] = ""; bar.removeAttribute("aria-valuenow"); store(name, ""); };
  bar.addEventListener("pointerdown", (event) => {
    const from = point(event), size = now();
    bar.setPointerCapture(event.pointerId);
    bar.classList.add("on");
    const move = (e) => set(size + sign * (point(e) - from));
    const end = () => { bar.removeEventListener("pointermove", move); bar.classList.remove("on"); store(name, now()); };
    bar.addEventListener("pointermove", move);
    bar.addEventListener("lostpointercapture", end, { once: true });
    event.preventDefault();
  });
  bar.addEventListener("keydown", (event) => {
    const by = { ArrowLeft: -1, ArrowUp: -1, ArrowRight: 1, ArrowDown: 1 }[event.key];
    if (!by) return;
    store(name, set(now() + sign * by * 20));
    event.stopPropagation();
    event.preventDefault();
  });
  bar.addEventListener("dblclick", reset);
  if (kept) set(kept);
  return bar;
}
