// The best job of each task on the same axes.
import { Plot } from "./plot.js";
import { zoomByKeys } from "./plot_keys.js";
import { say } from "./live.js";

const COLOURS = ["#0072b2", "#e69f00", "#009e73", "#cc79a7", "#56b4e9", "#d55e00", "#f0e442"];
const figure = document.getElementById("plot");
if (figure) {
  const wanted = JSON.parse(figure.dataset.lines);
  const plot = new Plot(figure, { label: (at) => wanted[at].name, chosen: () => {} });
  zoomByKeys(plot);
  Promise.all(wanted.map(async (one, at) => {
    const answer = await fetch(`/tasks/${one.task}/curves?job=${one.job}`, { cache: "no-store" });
    const pack = await answer.json();
    const colour = COLOURS[one.colour % COLOURS.length];
    for (const [, steps, losses] of pack.val) plot.lines.push({ job: at, kind: "val", xs: steps, ys: losses, colour });
    for (const [, first, means] of pack.train) plot.lines.push({ job: at, kind: "train", xs: means.map((_, place) => (first + place) * pack.width), ys: means, colour });
  })).then(() => { plot.loaded = true; plot.redraw(); document.documentElement.dataset.drawn = "1"; }, () => say("The curves could not be read; reload the page."));
}
