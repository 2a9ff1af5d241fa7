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

  // Moves nothing that is in its place: what is moved loses the focus and a selection.
  function putInOrder(parts, places) {
    const wanted = [...parts].sort((one, other) => places.get(one.dataset.of) - places.get(other.dataset.of));
    if (wanted.every((part, index) => part === parts[index])) return;
    const place = parts[0].parentNode, chosen = place.value;
    place.append(...wanted);
    if (place.tagName === "SELECT") place.value = chosen; // which choices that move would change
  }

  snip.arrange = () => {
    const words = filter.value.toLowerCase().split(/\s+/).filter(Boolean);
    const named = (run) => words.every((word) => run.name.toLowerCase().includes(word));
    const runs = ordered(), shown = new Set(runs.filter(named).map((run) => run.key));
    const places = new Map(runs.map((run, index) => [run.key, index])), groups = new Map();
    for (const part of document.querySelectorAll("[data-of]")) {
      part.hidden = !shown.has(part.dataset.of);
      groups.set(part.parentNode, [...(groups.get(part.parentNode) ?? []), part]);
    }
    for (const parts of groups.values()) putInOrder(parts, places);
    for (const row of document.querySelectorAll("[data-runs]")) // of several seeds
      row.hidden = !row.dataset.runs.split(" ").some((key) => shown.has(key));
    snip.showCurves(shown);
    snip.chooseAmong(runs.map((run) => run.key).filter((key) => shown.has(key)));
    snip.write(snip.id("filter-count"), words.length ? `${shown.size} of ${runs.length}` : "");
    snip.remember("filter", filter.value);
    snip.remember("order", order.value);
  };
  filter.value = snip.remembered("filter");
  order.value = snip.remembered("order");
  filter.addEventListener("input", snip.arrange);
  order.addEventListener("change", snip.arrange);
  snip.onTheme(snip.arrange); // after the curves, whose list is made anew
})();
