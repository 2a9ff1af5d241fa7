"use strict";
// What survived: pictures of the first layer, and layers against sparsity, moved by sliders.
(() => {
  const table = snip.bytes(snip.data.colours);
  let chosen = null, layerChart = null;
  const scored = () => (chosen && chosen.scored ? snip.data.scored[chosen.scored] : {});

  // Bytes from 0 to 254 are shares of `most`; 255 is a gap between two filters.
  function paint(canvas, bytes, width, height, most = 254) {
    canvas.width = width;
    canvas.height = height;
    const image = new ImageData(width, height);
    bytes.forEach((byte, position) => {
      const colour = 3 * Math.min(255, Math.round((255 * byte) / Math.max(most, 1)));
      image.data.set(table.subarray(colour, colour + 3), 4 * position);
      image.data[4 * position + 3] = byte === 255 ? 0 : 255;
    });
    canvas.getContext("2d").putImageData(image, 0, 0);
  }

  function tell(canvas, caption, text) {
    caption.textContent = text;
    canvas.setAttribute("aria-label", text);
  }

  function showOwn() {
    const picture = chosen.picture;
    paint(snip.id("own-picture"), snip.bytes(picture.bytes), picture.width, picture.height);
    tell(snip.id("own-picture"), snip.id("own-caption"),
      `${picture.name}: ${picture.caption}. Dark is 0, bright is ${picture.most} ${picture.unit}.`);
  }

  function classMap(classes, label, sparsity) {
    const size = classes.width * classes.height;
    const start = (label * classes.sparsities.length + sparsity) * size;
    return classes.all.subarray(start, start + size);
  }

  function showClasses() {
    const classes = scored().classes;
    classes.all ??= snip.bytes(classes.bytes);
    const label = Number(snip.id("class").value), at = Number(snip.id("class-sparsity").value);
    const maps = Array.from({ length: classes.classes }, (_, each) => classMap(classes, each, at));
    const most = Math.max(...maps.map((map) => Math.max(...map)));
    const canvas = snip.id("class-picture"), map = maps[label];
    paint(canvas, map, classes.width, classes.height, most);
    const sparsity = snip.percent(classes.sparsities[at], 0);
    const unseen = map.filter((byte) => byte === 0).length;
    tell(canvas, snip.id("class-caption"), `Class ${label}, ${sparsity} sparse, scored on ` +
      `${classes.images[label]} images: ${unseen} of ${map.length} pixels keep (almost) no connection. ` +
      `Dark is none, bright is ${snip.percent(most / 254, 0)} of a pixel's connections.`);
    slider("class", `${label}`);
    slider("class-sparsity", sparsity);
    showStrip(classes, maps, most, label);
  }

  function showStrip(classes, maps, most, label) {
    const strip = snip.id("class-strip");
    if (strip.children.length !== maps.length)
      strip.replaceChildren(...maps.map((_, each) => thumbnail(each)));
    maps.forEach((map, each) => {
      const button = strip.children[each].firstChild;
      button.setAttribute("aria-pressed", String(each === label));
      paint(button.firstChild, map, classes.width, classes.height, most);
    });
  }

  function thumbnail(each) {
    const item = document.createElement("li"), button = document.createElement("button");
    button.type = "button";
    button.setAttribute("aria-label", `Class ${each}`);
    button.append(document.createElement("canvas"), String(each));
    button.addEventListener("click", () => {
      snip.id("class").value = each;
      showClasses();
    });
    item.append(button);
    return item;
  }

  function slider(name, text) {
    snip.id(`${name}-value`).textContent = text;
    snip.id(name).setAttribute("aria-valuetext", text);
  }

  function showLayers() {
    const layers = scored().layers, at = Number(snip.id("layer-sparsity").value);
    const sparsity = layers.sparsities[at];
    slider("layer-sparsity", snip.percent(sparsity, 0));
    snip.id("layer-rows").replaceChildren(...layers.names.map((name, layer) => {
      const kept = layers.kept[at][layer], total = layers.totals[layer];
      return row([name, kept.toLocaleString("en"), total.toLocaleString("en")], kept / total, layer);
    }));
    if (layerChart) layerChart.setCursor({
      left: layerChart.valToPos(100 * sparsity, "x"), top: layerChart.over.clientHeight / 2,
    }, false);
  }

  // A row as the page's tables of layers have it, with a bar.
  function row(cells, share, layer) {
    const line = document.createElement("tr");
    if (!share) line.className = "empty";
    line.append(...cells.map(cell), cell(snip.percent(share)));
    const bar = snip.drawing("svg", {
      class: "bar", viewBox: "0 0 100 8", preserveAspectRatio: "none", "aria-hidden": "true",
    });
    bar.append(snip.drawing("rect", { width: 100 * share, height: 8 }));
    line.lastChild.prepend(bar);
    line.firstChild.prepend(snip.mark(layer));
    return line;
  }

  function cell(text) {
    const made = document.createElement("td");
    made.textContent = text;
    return made;
  }

  function drawLayers() {
    const layers = scored().layers, place = snip.id("layer-chart");
    if (layerChart) layerChart.destroy();
    const percent = (_, ticks) => ticks.map((tick) => (tick === null ? "" : `${tick}%`));
    layerChart = new uPlot({
      ...snip.size(place, 0.42),
      legend: { show: false },
      cursor: { y: false, drag: { x: false, y: false }, bind: Object.fromEntries(
        ["mousemove", "mouseleave", "mouseenter", "mousedown", "mouseup", "click", "dblclick"]
          .map((name) => [name, () => null])) },
      scales: { x: { time: false }, y: { range: [0, 100] } },
      axes: [snip.axis(percent), snip.axis(percent, { size: 58 })],
      series: [{}, ...layers.names.map((name, layer) => ({
        label: name, stroke: snip.series(layer), dash: snip.dash(layer), width: 2,
        points: { show: false },
      }))],
    }, [
      layers.sparsities.map((sparsity) => 100 * sparsity),
      ...layers.totals.map((total, layer) => layers.kept.map((kept) => (100 * kept[layer]) / total)),
    ], place);
    showLayers();
  }

  function nearest(values, wanted) {
    const apart = values.map((value) => Math.abs(value - wanted));
    return apart.indexOf(Math.min(...apart));
  }

  function setSliders() {
    const { classes, layers } = scored();
    if (classes) {
      snip.id("class").max = classes.classes - 1;
      snip.id("class-sparsity").max = classes.sparsities.length - 1;
      snip.id("class-sparsity").value = nearest(classes.sparsities, chosen.sparsity || 0.9);
    }
    if (layers) {
      snip.id("layer-sparsity").max = layers.sparsities.length - 1;
      snip.id("layer-sparsity").value = nearest(layers.sparsities, chosen.sparsity || 0.9);
    }
  }

  function offer() {
    const { classes, layers, reason } = scored();
    const offered = [["tab-own", chosen.picture], ["tab-classes", classes], ["tab-layers", layers]];
    snip.offerTabs(offered.filter(([, there]) => there).map(([name]) => name));
    snip.id("no-sliders").hidden = !reason;
    snip.id("no-sliders").textContent = reason || "";
  }

  // A chart can be drawn only in a panel that is shown: it must know how wide it is.
  snip.tabChosen = (name) => {
    if (name === "tab-own") showOwn();
    if (name === "tab-classes") showClasses();
    if (name === "tab-layers") drawLayers();
  };
  snip.explore = (key) => {
    chosen = snip.data.explored[key];
    setSliders();
    offer();
  };
  snip.id("class").addEventListener("input", showClasses);
  snip.id("class-sparsity").addEventListener("input", showClasses);
  snip.id("layer-sparsity").addEventListener("input", showLayers);
  const shown = () => !snip.id("panel-layers").hidden;
  snip.onTheme(() => shown() && drawLayers());
  new ResizeObserver(() => {
    if (!layerChart || !shown()) return;
    layerChart.setSize(snip.size(snip.id("layer-chart"), 0.42));
    showLayers();
  }).observe(snip.id("layer-chart"));
})();
