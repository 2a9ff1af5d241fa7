"use strict";
// Which run is looked at, and, on a page that is served, what is new.
(() => {
  const choice = snip.id("run"), panels = [...document.querySelectorAll("[data-run]")];
  const EVERY = 2000; // milliseconds between two looks

  function choose(key) {
    for (const panel of panels) panel.hidden = panel.dataset.run !== key;
    snip.explore(key);
  }
  if (choice) choice.addEventListener("change", () => choose(choice.value));
  choose(choice ? choice.value : panels[0].dataset.run);

  // What pictures, tables of layers and choices are made from, once, when the page is made.
  const made = (curves) => JSON.stringify(curves.map((run) => [run.name, run.masks]));

  function replace(parts) {
    for (const [name, html] of Object.entries(parts)) {
      const place = document.querySelector(`[data-live="${name}"]`);
      const open = [...place.querySelectorAll("details")].map((fold) => fold.open);
      if (place.dataset.seen === html) continue; // a selection or the focus in it stays
      place.dataset.seen = html;
      place.innerHTML = html; // made by the same template, which escapes every name
      place.querySelectorAll("details").forEach((fold, index) => { fold.open = open[index] ?? fold.open; });
    }
  }

  async function look() {
    const status = snip.id("live");
    let told = "snip report --watch has ended."; // unless it answers
    try {
      const answer = await fetch("live.json", { cache: "no-store" });
      if (!answer.ok) throw new Error(told = (await answer.text()).trim());
      const news = await answer.json();
      if (made(news.curves) !== made(snip.data.curves)) return location.reload();
      replace(news.parts);
      snip.updateCurves(news.curves);
      snip.arrange();
      status.textContent = " Live.";
    } catch {
      status.textContent = ` No longer live: ${told}`;
    }
    setTimeout(look, EVERY);
  }
  if (snip.data.live) look();
})();
