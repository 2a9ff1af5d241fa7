"use strict";
// Which run is looked at, and, on a page that is served, what is new.
(() => {
  const choice = snip.id("run"), panels = [...document.querySelectorAll("[data-run]")];
  const EVERY = 2000; // milliseconds between two looks

  const inert = document.createElement("template");
  function normal(html) { // as the browser writes it, to compare with what it shows
    inert.innerHTML = html;
    return inert.innerHTML.trim();
  }
  // The parts of a live page as the server last wrote them: read here before anything is moved or hidden.
  const places = [...document.querySelectorAll("[data-live]")];
  const seen = new Map(places.map((place) => [place.dataset.live, place.innerHTML.trim()]));

  function choose(key) {
    for (const panel of panels) panel.hidden = panel.dataset.run !== key;
    snip.explore(key);
  }
  // If the run that is looked at is not among these, the first of them is.
  snip.chooseAmong = (keys) => {
    if (!choice || !keys.length || keys.includes(choice.value)) return;
    choice.value = keys[0];
    choose(choice.value);
  };
  if (choice) {
    const before = [...choice.options].find((option) => option.text === snip.remembered("run"));
    if (before) choice.value = before.value;
    choice.addEventListener("change", () => {
      snip.remember("run", choice.selectedOptions[0].text);
      choose(choice.value);
    });
  }
  choose(choice ? choice.value : panels[0].dataset.run);
  snip.arrange();

  // What pictures, tables of layers and choices are made from, once, when the page is made.
  const made = (curves) => JSON.stringify(curves.map((run) => [run.name, run.masks]));

  const key = (fold) => fold.dataset.of ?? fold.dataset.note; // by which a fold is found again

  function replace(parts) {
    for (const [name, html] of Object.entries(parts)) {
      const place = document.querySelector(`[data-live="${name}"]`);
      const news = normal(html);
      if (seen.get(name) === news) continue; // a selection or the focus in it stays
      seen.set(name, news);
      const open = new Map([...place.querySelectorAll("details")].map((fold) => [key(fold), fold.open]));
      place.innerHTML = html; // made by the same template, which escapes every name
      for (const fold of place.querySelectorAll("details")) fold.open = open.get(key(fold)) ?? fold.open;
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
      snip.write(status, " Live.");
    } catch {
      snip.write(status, ` No longer live: ${told}`);
    }
    setTimeout(look, EVERY);
  }
  if (snip.data.live) look();
})();
