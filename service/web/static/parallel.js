// Parallel coordinates on a canvas: an axis a hyperparameter and one for the best loss; a drag along an axis keeps what passes there.

import { palette, short } from "./plot.js";

export class Parallel {
  constructor(figure, { kept, chosen }) {
    this.figure = figure;
    this.canvas = document.createElement("canvas");
    this.canvas.setAttribute("role", "img");
    this.canvas.setAttribute("aria-label", figure.getAttribute("aria-label"));
    figure.replaceChildren(this.canvas);
    this.heardKept = kept;
    this.heardChosen = chosen;
    this.jobs = [];
    this.brushes = new Map(); // axis -> [top, bottom], 0 to 1 from the top
    this.lit = null;
    new ResizeObserver(() => this.redraw()).observe(figure);
    this.listen();
  }

  // jobs: [{job, best, leads, config: {name: number | string | null}, shown: {name: string}}]
  show(jobs) {
    this.jobs = jobs.filter((job) => job.best !== null);
    const names = jobs.length ? Object.keys(jobs[0].config) : [];
    this.axes = [...names.map((name) => axis(name, this.jobs.map((job) => job.config[name]), new Map(this.jobs.map((job) => [job.config[name], job.shown[name]])))), axis("best loss", this.jobs.map((job) => job.best))];
    this.redraw();
  }

  redraw() {
    if (this.asked) return;
    this.asked = true;
    requestAnimationFrame(() => { this.asked = false; this.draw(); });
  }

  place(job, at) {
    const value = at === this.axes.length - 1 ? job.best : job.config[this.axes[at].name];
    return this.axes[at].place(value);
  }

  keeps(job) {
    return [...this.brushes].every(([at, [top, bottom]]) => { const y = this.place(job, at); return y >= top && y <= bottom; });
  }

  draw() {
    const ratio = devicePixelRatio || 1, width = this.figure.clientWidth, height = this.figure.clientHeight;
    if (!width || !this.axes) return;
    const css = palette();
    this.canvas.width = Math.round(width * ratio);
    this.canvas.height = Math.round(height * ratio);
    const g = this.canvas.getContext("2d");
    g.setTransform(ratio, 0, 0, ratio, 0, 0);
    const top = 30, bottom = height - 16, left = 60, right = width - 70;
    this.frame = { top, bottom };
    this.xs = this.axes.map((_, at) => left + ((right - left) * at) / Math.max(1, this.axes.length - 1));
    const y = (part) => top + (bottom - top) * part;
    for (const job of [...this.jobs].sort((a, b) => (a.job === this.lit ? 1 : b.job === this.lit ? -1 : b.best - a.best))) {
      const keeps = this.keeps(job), first = job.leads, lit = job.job === this.lit;
      g.strokeStyle = lit || first ? css("--b-work") : css("--quiet");
      g.globalAlpha = keeps ? (lit || first ? 1 : 0.55) : 0.08;
      g.lineWidth = lit || first ? 2.6 : 1;
      g.beginPath();
      this.axes.forEach((_, at) => { const px = this.xs[at], py = y(this.place(job, at)); at ? g.lineTo(px, py) : g.moveTo(px, py); });
      g.stroke();
    }
    g.globalAlpha = 1;
    g.font = "12px system-ui, sans-serif";
    g.lineJoin = "round";
    this.axes.forEach((one, at) => {
      const x = Math.round(this.xs[at]) + 0.5;
      g.strokeStyle = css("--quiet");
      g.lineWidth = 1;
      g.beginPath(); g.moveTo(x, top); g.lineTo(x, bottom); g.stroke();
      g.fillStyle = at === this.axis && document.activeElement === this.canvas ? css("--accent") : css("--text");
      g.textAlign = "center";
      g.fillText(one.title, x, 16);
      g.fillStyle = css("--quiet");
      g.textAlign = at === this.axes.length - 1 ? "left" : "right";
      g.strokeStyle = css("--page"); // around the words, which jobs' lines cross
      g.lineWidth = 4;
      for (const [words, part] of one.marks) {
        const px = x + (at === this.axes.length - 1 ? 8 : -8), py = y(part) + 4;
        g.strokeText(words, px, py);
        g.fillText(words, px, py);
      }
      const brush = this.brushes.get(at);
      if (brush) { g.fillStyle = css("--accent"); g.globalAlpha = 0.3; g.fillRect(x - 7, y(brush[0]), 14, (bottom - top) * (brush[1] - brush[0])); g.globalAlpha = 1; }
    });
  }

  listen() {
    let begun = null;
    const where = (event) => {
      const box = this.canvas.getBoundingClientRect(), px = event.clientX - box.left;
      const at = this.xs?.reduce((near, x, index) => (Math.abs(x - px) < Math.abs(this.xs[near] - px) ? index : near), 0) ?? 0;
      const part = (event.clientY - box.top - this.frame.top) / (this.frame.bottom - this.frame.top);
      return { at, far: Math.abs(this.xs[at] - px), part: Math.max(0, Math.min(1, part)) };
    };
    this.canvas.addEventListener("pointerdown", (event) => {
      if (!this.xs) return;
      const spot = where(event);
      if (spot.far < 24) { begun = spot; this.canvas.setPointerCapture(event.pointerId); }
    });
    this.canvas.addEventListener("pointermove", (event) => {
      if (!this.xs || !begun) return;
      const spot = where(event);
      this.brushes.set(begun.at, [Math.min(begun.part, spot.part), Math.max(begun.part, spot.part)]);
      this.tell();
    });
    this.canvas.addEventListener("pointerup", (event) => {
      if (!begun) return;
      const spot = where(event);
      if (Math.abs(spot.part - begun.part) < 0.02) this.brushes.delete(begun.at);
      begun = null;
      this.tell();
    });
  }

  tell() {
    this.heardKept(this.brushes.size ? new Set(this.jobs.filter((job) => this.keeps(job)).map((job) => job.job)) : null);
    this.redraw();
  }

  light(job) { if (job !== this.lit) { this.lit = job; this.redraw(); } }
}

// an axis from 0 (its top) to 1: numbers by their logarithm where they span more than a factor of 20, words one below the other
function axis(name, values, texts = new Map()) {
  const title = name.replaceAll("_", " ");
  const known = values.filter((value) => value !== null);
  if (known.every((value) => typeof value === "number")) {
    const least = Math.min(...known), most = Math.max(...known);
    const log = least > 0 && most / least > 20, up = log ? Math.log : (value) => value;
    const span = up(most) - up(least) || 1;
    const place = (value) => (value === null ? 1 : 1 - (up(value) - up(least)) / span);
    const distinct = [...new Set(known)].sort((a, b) => a - b);
    const marks = (distinct.length <= 6 && name !== "best loss" ? distinct : [least, most]).map((value) => [texts.get(value) ?? short(value), place(value)]);
    return { name, title, place, marks };
  }
  const words = [...new Set(known.map(String))].sort();
  const place = (value) => (words.indexOf(String(value)) + 0.5) / words.length;
  return { name, title, place, marks: words.map((word) => [word.slice(0, 14), place(word)]) };
}
