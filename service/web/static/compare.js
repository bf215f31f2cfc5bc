// The best job of each task on the same axes.
import { Plot } from "./plot.js";
import { wholeRange, zoomByKeys } from "./plot_keys.js";
import { say } from "./live.js";

const figure = document.getElementById("plot");
if (figure) {
  const wanted = JSON.parse(figure.dataset.lines);
  const plot = new Plot(figure, { label: (at) => wanted[at].name, chosen: () => {} });
  zoomByKeys(plot);
  wholeRange(plot, document.getElementById("zoom-out"));
  Promise.all(wanted.map(async (one, at) => {
    const answer = await fetch(`/tasks/${one.task}/curves?job=${one.job}`, { cache: "no-store" });
    const pack = await answer.json();
    const colour = getComputedStyle(document.querySelector(`#captions .t${one.colour}`)).backgroundColor;
    for (const [, steps, losses] of pack.val) plot.lines.push({ job: at, kind: "val", xs: steps, ys: losses, colour });
    for (const [, first, means] of pack.train) plot.lines.push({ job: at, kind: "train", xs: means.map((_, place) => (first + place) * pack.width), ys: means, colour });
  })).then(() => { plot.loaded = true; plot.redraw(); document.documentElement.dataset.drawn = "1"; }, () => say("The curves could not be read; reload the page."));
}
