"use strict";
// How training went: one curve per run, drawn by uPlot, with a list of runs to show and hide.
(() => {
  const place = snip.id("curves"), list = snip.id("curve-runs");
  const hidden = new Set();
  let chart = null, shownValues = [], chosen = null; // null: all runs

  const measure = () => snip.id("measure").value;
  const logarithmic = () => document.querySelector("input[name=scale]:checked").value === "log";
  // A logarithm has no place for zero.
  const usable = (value) => (value === null || (logarithmic() && value <= 0) ? null : value);
  const visible = (run) => !hidden.has(run.key) && (!chosen || chosen.has(run.key));
  const number = (value) => (value == null ? "" : Number(value.toPrecision(3)).toString());

  function points() {
    const tables = snip.data.curves.map((run) => [
      run.iterations, run.series[measure()].map(usable),
    ]);
    return tables.length > 1 ? uPlot.join(tables) : tables[0];
  }

  function options() {
    return {
      ...snip.size(place),
      legend: { show: false },
      cursor: { points: { size: 7 }, drag: { x: true, y: false } },
      scales: { x: { time: false }, y: logarithmic() ? { distr: 3, log: 10 } : {} },
      axes: [
        snip.axis((_, ticks) => ticks.map((tick) => tick.toLocaleString("en")),
          { label: "training steps", labelSize: 24 }),
        snip.axis((_, ticks) => ticks.map(number), { size: 58 }),
      ],
      series: [{}, ...snip.data.curves.map((run, index) => ({
        label: run.label, stroke: snip.series(index), dash: snip.dash(index), width: 2,
        spanGaps: true, show: visible(run), points: { show: run.iterations.length < 3, size: 6 },
      }))],
      hooks: { setCursor: [(u) => showValues(u.cursor.idx)] },
    };
  }

  // The value below the pointer, or else the last one.
  function showValues(index) {
    snip.data.curves.forEach((run, position) => {
      const values = chart ? chart.data[position + 1] : [];
      const known = index == null ? values.filter((value) => value != null).at(-1) : values[index];
      snip.write(shownValues[position], number(known));
    });
  }

  function draw() {
    if (chart) chart.destroy();
    chart = null;
    const any = snip.data.curves.some((run) => run.iterations.length);
    snip.id("no-curves").hidden = any;
    place.hidden = list.hidden = snip.id("curve-controls").hidden = !any;
    if (!any) return;
    chart = new uPlot(options(), points(), place);
    showValues(null);
  }

  function entry(run, index) {
    const item = document.createElement("li"), label = document.createElement("label");
    const box = document.createElement("input"), name = document.createElement("span");
    const value = document.createElement("span"); // no output: it changes with every move of a pointer
    value.className = "value";
    box.type = "checkbox";
    box.checked = !hidden.has(run.key);
    box.addEventListener("change", () => {
      box.checked ? hidden.delete(run.key) : hidden.add(run.key);
      chart.setSeries(index + 1, { show: box.checked });
    });
    name.textContent = run.label;
    label.append(box, snip.mark(index), name, value);
    item.dataset.of = run.key;
    item.hidden = Boolean(chosen && !chosen.has(run.key));
    item.append(label);
    shownValues[index] = value;
    return item;
  }

  function drawAll() {
    shownValues = [];
    list.replaceChildren(...snip.data.curves.map(entry));
    draw();
  }

  snip.showCurves = (keys) => {
    chosen = keys;
    snip.data.curves.forEach((run, index) => {
      if (chart && chart.series[index + 1].show !== visible(run))
        chart.setSeries(index + 1, { show: visible(run) });
    });
  };
  snip.updateCurves = (curves) => {
    const labels = (runs) => JSON.stringify(runs.map((run) => run.label));
    const same = labels(curves) === labels(snip.data.curves); // else a run is in another phase
    snip.data.curves = curves;
    if (!chart || !same) return drawAll();
    // Who looks at a part of the curves goes on looking at it.
    const { min, max } = chart.scales.x, known = chart.data[0];
    const part = min > known[0] || max < known.at(-1);
    chart.setData(points(), !part);
    if (part) chart.setScale("x", { min, max });
    showValues(null);
  };
  snip.id("measure").addEventListener("change", draw);
  for (const radio of document.querySelectorAll("input[name=scale]"))
    radio.addEventListener("change", draw);
  new ResizeObserver(() => chart && chart.setSize(snip.size(place))).observe(place);
  snip.onTheme(drawAll);
  drawAll();
})();
