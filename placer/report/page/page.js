(() => {
  "use strict";
  const dark = matchMedia("(prefers-color-scheme: dark)");
  const models = () => Bokeh.documents.flatMap((found) => [...found._all_models.values()]);
  const paint = () => {
    const ink = dark.matches ? "#d8dae0" : "#33363c";
    for (const model of models()) {
      const has = (name) => name in model.properties;
      if (has("axis_label_text_color")) model.setv({ axis_label_text_color: ink, major_label_text_color: ink, axis_line_color: ink, major_tick_line_color: ink, minor_tick_line_color: ink });
      if (has("label_text_color")) model.setv({ label_text_color: ink });
      if (has("outline_line_color")) model.setv({ outline_line_color: dark.matches ? "#3a3f47" : "#d5d8dd" });
      if (model.type === "LabelSet") model.setv({ text_color: ink });
    }
  };
  const ready = (left) => {
    if (Bokeh.documents.length) { paint(); dark.addEventListener("change", paint); document.body.dataset.drawn = "yes"; }
    else if (left) setTimeout(() => ready(left - 1), 50);
  };
  ready(200);
  // Keys and buttons for charts that a mouse can zoom: the first chart after the buttons.
  for (const bar of document.querySelectorAll(".zoom")) {
    bar.addEventListener("click", (event) => {
      const what = event.target.dataset.zoom;
      const figure = models().find((model) => model.type === "Figure" && String(model.tags[0]) === bar.dataset.chart);
      if (!what || !figure) return;
      const range = figure.x_range, full = Number(bar.dataset.full);
      let start = range.start, end = range.end, width = end - start;
      if (what === "in") { start += width / 4; end -= width / 4; }
      if (what === "out") { start -= width / 2; end += width / 2; }
      if (what === "left") { start -= width / 4; end -= width / 4; }
      if (what === "right") { start += width / 4; end += width / 4; }
      if (what === "all") { start = 0; end = full; }
      range.setv({ start, end });
    });
  }
  // The ops of a block are written once for all blocks alike, and shown where one is unfolded.
  document.addEventListener("toggle", (event) => {
    const found = event.target, key = found.dataset && found.dataset.ops;
    if (!key || !found.open || found.dataset.filled) return;
    const kept = document.getElementById(key);
    if (kept) found.append(kept.content.cloneNode(true));
    found.dataset.filled = "yes";
  }, true);
})();
