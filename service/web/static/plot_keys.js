// The plots by keyboard: what dragging does with a pointer. Focus a plot with Tab. And the button that undoes either.

// + and - zoom about the middle, left and right move, Escape shows the whole range
export function zoomByKeys(plot) {
  const act = (event) => {
    if (!plot.x) return;
    const [from, to] = [plot.from, plot.to], width = to - from;
    const ranges = {
      "+": [from + width / 4, to - width / 4],
      "-": [from - width / 2, to + width / 2],
      ArrowLeft: [from - width / 4, to - width / 4],
      ArrowRight: [from + width / 4, to + width / 4],
      Escape: null,
    };
    const key = event.key === "=" ? "+" : event.key;
    if (!(key in ranges)) return;
    event.preventDefault();
    const range = ranges[key], shift = range ? Math.max(0, -range[0]) : 0;
    if (range && key === "ArrowLeft") plot.range = [range[0] + shift, range[1] + shift];
    else plot.range = range && [Math.max(0, range[0]), range[1]];
    plot.figure.dispatchEvent(new CustomEvent("zoomed"));
    plot.redraw();
  };
  focusable(plot.canvas, "plus and minus zoom, left and right move, Escape shows all", act);
}

export function wholeRange(plot, button) {
  plot.figure.addEventListener("zoomed", () => { button.disabled = plot.range === null; });
  button.addEventListener("click", () => { plot.range = null; button.disabled = true; plot.redraw(); });
}

// left and right choose an axis; down cuts from above, up cuts from below, with Shift they give back; Escape keeps all again
export function brushByKeys(parallel) {
  const STEP = 0.05;
  const act = (event) => {
    if (!parallel.axes) return;
    const last = parallel.axes.length - 1, back = event.shiftKey ? -STEP : STEP;
    let [top, bottom] = parallel.brushes.get(parallel.axis) ?? [0, 1];
    switch (event.key) {
      case "ArrowLeft": parallel.axis = Math.max(0, parallel.axis - 1); break;
      case "ArrowRight": parallel.axis = Math.min(last, parallel.axis + 1); break;
      case "ArrowDown": top = Math.min(bottom, Math.max(0, top + back)); break;
      case "ArrowUp": bottom = Math.max(top, Math.min(1, bottom - back)); break;
      case "Escape": parallel.brushes.clear(); [top, bottom] = [0, 1]; break;
      default: return;
    }
    event.preventDefault();
    if (event.key === "ArrowDown" || event.key === "ArrowUp") {
      if (top <= 0 && bottom >= 1) parallel.brushes.delete(parallel.axis);
      else parallel.brushes.set(parallel.axis, [top, bottom]);
    }
    parallel.tell();
  };
  parallel.axis = 0;
  focusable(parallel.canvas, "left and right choose an axis, down and up cut from above and below, Escape keeps all", act);
  for (const happening of ["focus", "blur"]) parallel.canvas.addEventListener(happening, () => parallel.redraw());
}

function focusable(canvas, how, act) {
  canvas.tabIndex = 0;
  canvas.setAttribute("role", "application");
  canvas.setAttribute("aria-label", `${canvas.getAttribute("aria-label")}; ${how}`);
  canvas.addEventListener("keydown", act);
}
