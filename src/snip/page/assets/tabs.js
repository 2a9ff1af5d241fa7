"use strict";
// Tabs by the pattern of the ARIA practices: arrow keys move, only the chosen tab is in tab order.
(() => {
  const list = document.querySelector("[role=tablist]");
  const tabs = [...list.querySelectorAll("[role=tab]")];
  const usable = () => tabs.filter((tab) => !tab.hidden);
  const panel = (tab) => snip.id(tab.getAttribute("aria-controls"));

  function choose(chosen) {
    for (const tab of tabs) {
      const on = tab === chosen;
      tab.setAttribute("aria-selected", String(on));
      tab.tabIndex = on ? 0 : -1;
      panel(tab).hidden = !on;
    }
    snip.tabChosen(chosen ? chosen.id : "");
  }

  list.addEventListener("keydown", (event) => {
    const all = usable(), now = all.indexOf(document.activeElement);
    const to = { ArrowRight: now + 1, ArrowLeft: now - 1, Home: 0, End: all.length - 1 }[event.key];
    if (to === undefined || now < 0) return;
    event.preventDefault();
    const next = all[(to + all.length) % all.length];
    choose(next);
    next.focus();
  });
  for (const tab of tabs) tab.addEventListener("click", () => choose(tab));

  snip.tabChosen = () => {};
  // Shows only tabs that have something to show, and keeps the chosen one if it is among them.
  snip.offerTabs = (names) => {
    for (const tab of tabs) tab.hidden = !names.includes(tab.id);
    list.hidden = names.length === 0;
    const now = tabs.find((tab) => tab.getAttribute("aria-selected") === "true" && !tab.hidden);
    choose(now || usable()[0] || null);
  };
})();
