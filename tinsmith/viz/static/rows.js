"use strict";
// Long texts: only the rows that can be seen are in the document.

const ROW = 18;

// element("p", {class: "x", onclick: f}, "text", child)
function element(tag, attributes = {}, ...children) {
  const made = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (name.startsWith("on")) made.addEventListener(name.slice(2), value);
    else if (value !== undefined && value !== null && value !== false) made.setAttribute(name, value);
  }
  made.append(...children.filter((c) => c !== null && c !== undefined));
  return made;
}

// rows: [text, origin]; options: classes(n), click(n), has(n), open(n), numbered, name, html: the colored text of each row
function showRows(rows, options = {}) {
  const inner = element("div", { style: `height:${rows.length * ROW}px` });
  const box = element("div", { class: "rows", tabindex: 0, "data-rows": rows.length, "aria-label": options.name || "" }, inner);
  const longest = rows.reduce((most, r) => Math.max(most, r[0].length), 0) + (options.numbered ? 6 : 0);
  inner.style.width = `calc(${longest}ch + 24px)`;
  let first = -1, last = -1, current = -1; // current: the hit of the search
  function draw(again) {
    const from = Math.max(0, Math.floor(box.scrollTop / ROW) - 20);
    const to = Math.min(rows.length, from + Math.ceil((box.clientHeight || 600) / ROW) + 40);
    if (!again && from === first && to === last) return;
    [first, last] = [from, to];
    const made = [];
    for (let n = from; n < to; n++) {
      const [text, origin] = rows[n];
      const row = element("div", { class: `row ${options.click && (options.has ? options.has(n) : origin >= 0) ? "linked" : ""} ${options.classes ? options.classes(n) : ""} ${n === current ? "current" : ""}`,
        style: `top:${n * ROW}px`, "data-row": n });
      if (options.numbered) row.append(element("span", { class: "number" }, String(n + 1)));
      if (options.html) row.insertAdjacentHTML("beforeend", options.html[n] ?? "");
      else row.append(text);
      made.push(row);
    }
    inner.replaceChildren(...made);
  }
  box.addEventListener("scroll", () => draw(false));
  inner.addEventListener("click", (event) => {
    const row = event.target.closest(".row");
    if (row && options.click) options.click(Number(row.dataset.row));
  });
  box.redraw = () => draw(true);
  box.show = (n, isHit = false) => {
    if (n < 0) return;
    current = isHit ? n : -1;
    const middle = n * ROW - (box.clientHeight || 400) / 2;
    if (n * ROW < box.scrollTop || n * ROW > box.scrollTop + (box.clientHeight || 400) - ROW) box.scrollTop = Math.max(0, middle);
    draw(true);
  };
  new ResizeObserver(() => requestAnimationFrame(() => draw(true))).observe(box);
  draw(true);
  return box;
}

function bytesText(n) {
  for (const [size, unit] of [[1e9, "GB"], [1e6, "MB"], [1e3, "KB"]]) if (n >= size) return `${(n / size).toFixed(1)} ${unit}`;
  return `${n} B`;
}

function timeText(seconds) {
  if (seconds === null || seconds === undefined) return "–";
  if (seconds === 0) return "0 s";
  for (const [size, unit] of [[1, "s"], [1e-3, "ms"], [1e-6, "µs"]]) if (seconds >= size) return `${round3(seconds / size)} ${unit}`;
  return `${round3(seconds * 1e9)} ns`;
}

// Three digits, and never 1e+3.
function round3(value) { return value >= 100 ? String(Math.round(value)) : value.toPrecision(3); }

function plural(count, word) { return `${count.toLocaleString("en")} ${word}${count === 1 ? "" : "s"}`; }

// A bar of a length in percent of its cell; kind: measured (filled) or predicted (hatched).
function meter(kind, seconds, longest) {
  const share = seconds && longest ? Math.max(0.6, (100 * seconds) / longest) : 0;
  return element("i", { class: `meter ${kind}`, style: `width:${share.toFixed(2)}%`, title: `${kind}: ${timeText(seconds)}` });
}
