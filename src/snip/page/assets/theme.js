"use strict";
// What all parts of the page share: the data, colours of the current theme, small helpers.
const snip = {
  data: JSON.parse(document.getElementById("data").textContent),
  id: (name) => document.getElementById(name),
  colour: (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim(),
  series: (index) => snip.colour(`--c${index % 8}`),
  dash: (index) => [[], [7, 4], [2, 3], [9, 3, 2, 3]][Math.floor(index / 8) % 4],
  redraws: [],
  onTheme: (redraw) => snip.redraws.push(redraw),
  // A text that is written again is read out again: only a new one is written.
  write: (place, text) => { if (place.textContent !== text) place.textContent = text; },
  // A live page is loaded anew when a run begins: what was chosen stays chosen.
  remember: (name, value) => { if (snip.data.live) sessionStorage.setItem(`snip ${name}`, value); },
  remembered: (name) => (snip.data.live && sessionStorage.getItem(`snip ${name}`)) || "",
  percent: (value, digits = 2) => `${(100 * value).toFixed(digits)}%`,
  bytes: (text) => Uint8Array.from(atob(text), (letter) => letter.charCodeAt(0)),
  // Charts are as wide as their place and lower on a phone.
  size: (place, tall = 0.5) => {
    const width = Math.max(place.clientWidth, 120);
    return { width, height: Math.round(Math.min(Math.max(width * tall, 230), 400)) };
  },
  drawing: (kind, attributes) => {
    const made = document.createElementNS("http://www.w3.org/2000/svg", kind);
    for (const [name, value] of Object.entries(attributes)) made.setAttribute(name, value);
    return made;
  },
  // A piece of the line that a series has in a chart.
  mark: (index) => {
    const svg = snip.drawing("svg", { class: "mark", viewBox: "0 0 26 12", "aria-hidden": "true" });
    svg.append(snip.drawing("line", {
      x1: 0, x2: 26, y1: 6, y2: 6, "stroke-width": 3, stroke: snip.series(index),
      "stroke-dasharray": snip.dash(index).join(" ") || "none",
    }));
    return svg;
  },
  axis: (values, more = {}) => ({
    stroke: snip.colour("--soft"),
    font: "13px system-ui, sans-serif",
    grid: { stroke: snip.colour("--line"), width: 1 },
    ticks: { stroke: snip.colour("--line"), width: 1, size: 5 },
    values,
    ...more,
  }),
};
for (const query of ["(prefers-color-scheme: dark)", "print"])
  matchMedia(query).addEventListener("change", () => snip.redraws.forEach((redraw) => redraw()));
// Paper cannot be clicked: what is folded is printed open.
addEventListener("beforeprint", () => {
  for (const fold of document.querySelectorAll("details")) fold.open = true;
});
