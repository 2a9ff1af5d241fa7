"use strict";
// Which of many runs are shown, and in which order. A page of a few has no such controls.
(() => {
  const filter = snip.id("filter"), order = snip.id("order");
  snip.arrange = () => {};
  if (!filter) return;

  const lowest = (value) => value ?? Infinity; // what is not known comes last

  function ordered() {
    const runs = [...snip.data.curves], by = order.value;
    return by ? runs.sort((one, other) => lowest(one[by]) - lowest(other[by]) || 0) : runs;
  }

  snip.arrange = () => {
    const words = filter.value.toLowerCase().split(/\s+/).filter(Boolean);
    const named = (run) => words.every((word) => run.name.toLowerCase().includes(word));
    const runs = ordered(), shown = new Set(runs.filter(named).map((run) => run.key));
    for (const { key } of runs) {
      for (const part of document.querySelectorAll(`[data-of="${key}"]`)) {
        part.hidden = !shown.has(key);
        part.parentNode.append(part);
      }
    }
    snip.showCurves(shown);
    snip.id("filter-count").textContent = words.length ? `${shown.size} of ${runs.length}` : "";
  };
  filter.addEventListener("input", snip.arrange);
  order.addEventListener("change", snip.arrange);
  snip.onTheme(snip.arrange); // after the curves, whose list is made anew
})();
