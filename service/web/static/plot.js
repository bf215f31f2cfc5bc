// Loss curves on a canvas: many lines, at most one redraw a frame, a log axis, a hovered line, marks of exits, a zoomed range.
// All lines are drawn once, faintly, onto a layer of their own; hovering draws that layer and one line.

export const palette = () => { const style = getComputedStyle(document.documentElement); return (name) => style.getPropertyValue(name).trim(); };

export class Plot {
  // figure: an element with a size; `label(job)` says what hovering shows; `chosen(job | null)` hears of what is hovered
  constructor(figure, { label, chosen }) {
    this.figure = figure;
    this.canvas = document.createElement("canvas");
    this.canvas.setAttribute("role", "img");
    this.canvas.setAttribute("aria-label", figure.getAttribute("aria-label"));
    this.tip = Object.assign(document.createElement("div"), { className: "tip", hidden: true });
    figure.replaceChildren(this.canvas, this.tip);
    this.label = label;
    this.chosen = chosen;
    this.lines = [];   // {job, kind: "train" | "val", xs, ys, colour?}
    this.jobs = new Map(); // job -> {exit, best, best_step, warmup, ...}
    this.best = null;
    this.lit = null;
    this.kept = null;  // a Set of jobs, null: all
    this.shows = { train: true, val: true, log: true };
    this.range = null; // [from, to] in steps
    this.loaded = false;
    this.ended = false; // no more losses will come
    this.asked = false;
    this.layer = document.createElement("canvas");
    this.stale = true; // the layer
    new ResizeObserver(() => this.redraw()).observe(figure);
    matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => this.redraw());
    this.listen();
  }

  // after a change of lines, jobs, size or what is shown
  redraw() {
    this.stale = true;
    this.next();
  }

  next() {
    if (this.asked) return;
    this.asked = true;
    requestAnimationFrame(() => { this.asked = false; this.draw(); });
  }

  draw() {
    const ratio = devicePixelRatio || 1;
    const width = this.figure.clientWidth, height = this.figure.clientHeight;
    if (!width || !height) return;
    this.css = palette();
    if (this.canvas.width !== Math.round(width * ratio) || this.canvas.height !== Math.round(height * ratio)) {
      this.canvas.width = this.layer.width = Math.round(width * ratio);
      this.canvas.height = this.layer.height = Math.round(height * ratio);
      this.stale = true;
    }
    const shown = this.lines.filter((line) => this.shows[line.kind] && (!this.kept || this.kept.has(line.job)));
    if (this.stale) this.drawLayer(this.layer.getContext("2d"), ratio, width, height, shown);
    this.stale = false;
    const g = this.canvas.getContext("2d");
    g.setTransform(1, 0, 0, 1, 0, 0);
    g.clearRect(0, 0, this.canvas.width, this.canvas.height);
    g.drawImage(this.layer, 0, 0);
    if (!this.x) return;
    g.setTransform(ratio, 0, 0, ratio, 0, 0);
    g.save();
    this.clip(g);
    for (const [job, colour] of [[this.best, "--b-work"], [this.lit === this.best ? null : this.lit, "--text"]]) {
      if (job === null) continue;
      for (const line of shown) if (line.job === job) this.line(g, line, line.colour ?? this.css(colour), line.kind === "train" ? 1.4 : 2.8, line.kind === "train" ? 0.75 : 1);
    }
    g.restore();
    if (this.lit !== null && this.shows.val) for (const line of shown) if (line.job === this.lit && line.kind === "val") this.exit(g, line, 3);
  }

  drawLayer(g, ratio, width, height, shown) {
    g.setTransform(ratio, 0, 0, ratio, 0, 0);
    g.clearRect(0, 0, width, height);
    this.box = { left: 58, top: 12, right: width - 14, bottom: height - 30 };
    if (!shown.length) {
      this.x = null;
      g.fillStyle = this.css("--quiet");
      g.textAlign = "center";
      g.font = "14px system-ui, sans-serif";
      const words = this.lines.length ? "Nothing is chosen to be shown" : !this.loaded ? "Reading the curves…" : this.ended ? "No losses came before the end" : "No losses yet; they appear here as they come";
      g.fillText(words, width / 2, height / 2, width - 20);
      return;
    }
    this.scale(shown);
    this.axes(g);
    g.save();
    this.clip(g);
    this.boundary(g);
    const grey = this.css("--quiet"), behind = this.lit !== null || this.best !== null;
    for (const line of shown) { // those with a colour of their own are few, and all of them matter
      const alpha = behind ? 0.42 : line.colour ? 1 : 0.7;
      this.line(g, line, line.colour ?? grey, line.colour ? 2 : 1, line.kind === "train" ? alpha * 0.5 : alpha);
    }
    g.restore();
    if (this.shows.val) for (const line of shown) if (line.kind === "val") this.exit(g, line, 1.8);
  }

  clip(g) {
    g.beginPath();
    g.rect(this.box.left, this.box.top, this.box.right - this.box.left, this.box.bottom - this.box.top);
    g.clip();
  }

  scale(shown) {
    let last = 1, least = Infinity, most = -Infinity;
    for (const line of shown) last = Math.max(last, line.xs.at(-1) ?? 1);
    const [from, to] = this.range ?? [0, last];
    const values = [];
    for (const line of shown) {
      for (let at = 0; at < line.xs.length; at++) {
        const value = line.ys[at], x = line.xs[at];
        if (value === null || x < from || x > to || (this.shows.log && value <= 0)) continue;
        if (line.kind === "val") values.push(value);
        least = Math.min(least, value);
        most = Math.max(most, value);
      }
    }
    if (!(least < most)) { least = least === Infinity ? 0.1 : least * 0.9; most = Math.max(least * 1.1, most); }
    // a diverged job may reach a thousandfold: the axis ends where nine tenths of validation losses lie, with room
    if (values.length > 20) {
      values.sort((a, b) => a - b);
      const high = values[Math.floor(values.length * 0.9)];
      most = Math.min(most, Math.max(high * 1.6, values[0] * 2.5));
    }
    const up = this.shows.log ? Math.log : (value) => value;
    const low = up(least), high = up(most), gap = (high - low) * 0.04 || 0.1;
    this.from = from; this.to = to; this.low = low - gap; this.high = high + gap; this.up = up;
    const { left, right, top, bottom } = this.box;
    this.x = (step) => left + ((right - left) * (step - from)) / (to - from || 1);
    this.y = (value) => top + ((bottom - top) * (this.high - up(value))) / (this.high - this.low);
  }

  axes(g) {
    const { left, right, top, bottom } = this.box;
    g.font = "12px system-ui, sans-serif";
    g.lineWidth = 1;
    g.strokeStyle = this.css("--line");
    g.fillStyle = this.css("--quiet");
    const down = this.shows.log ? Math.exp : (value) => value;
    g.textAlign = "right";
    g.textBaseline = "middle";
    for (const value of ticks(down(this.low), down(this.high), this.shows.log)) {
      const y = Math.round(this.y(value)) + 0.5;
      if (y < top || y > bottom) continue;
      g.beginPath(); g.moveTo(left, y); g.lineTo(right, y); g.stroke();
      g.fillText(short(value), left - 7, y);
    }
    g.textAlign = "center";
    g.textBaseline = "top";
    for (const step of ticks(this.from, this.to, false)) {
      const x = this.x(step);
      if (x < left || x > right) continue;
      g.fillText(short(step), x, bottom + 6);
    }
    g.textAlign = "right";
    g.fillText("step", right, bottom + 18);
  }

  line(g, line, colour, width, alpha) {
    g.globalAlpha = alpha;
    g.strokeStyle = colour;
    g.lineWidth = width;
    if (line.dash) g.setLineDash(line.dash);
    g.beginPath();
    let pen = false;
    for (let at = 0; at < line.xs.length; at++) {
      const value = line.ys[at];
      if (value === null || (this.shows.log && value <= 0)) { pen = false; continue; }
      const x = this.x(line.xs[at]), y = this.y(value);
      pen ? g.lineTo(x, y) : g.moveTo(x, y);
      pen = true;
    }
    g.stroke();
    g.setLineDash([]);
    g.globalAlpha = 1;
  }

  // where a job was stopped early: a cross in the colour of its reason, whole at the plot's edge too
  exit(g, line, width) {
    const job = this.jobs.get(line.job);
    if (!job?.exit) return;
    let at = line.ys.length - 1;
    while (at > 0 && line.ys[at] === null) at--;
    if (line.xs[at] < this.from || line.xs[at] > this.to) return;
    const x = this.x(line.xs[at]), y = Math.min(this.box.bottom - 6, Math.max(this.box.top + 6, this.y(line.ys[at] ?? Math.exp(this.high))));
    const colour = { diverging: "--b-div", overfitting: "--b-over", underperforming: "--b-under" }[job.exit] ?? "--b-cancel";
    g.strokeStyle = this.css(colour);
    g.lineWidth = width;
    g.beginPath();
    g.moveTo(x - 4, y - 4); g.lineTo(x + 4, y + 4); g.moveTo(x + 4, y - 4); g.lineTo(x - 4, y + 4);
    g.stroke();
  }

  // the end of warmup, and the worst loss that passed the selection there, unless scores of texts decided it
  boundary(g) {
    const steps = new Set();
    const scored = [...this.jobs.values()].some((job) => (job.warmup_score ?? null) !== null);
    let cut = null;
    for (const job of this.jobs.values()) {
      if (job.warmup && job.warmup < job.total) steps.add(job.warmup);
      if (!scored && job.promoted && job.warmup_loss !== null) cut = Math.max(cut ?? 0, job.warmup_loss);
    }
    g.strokeStyle = this.css("--quiet");
    g.lineWidth = 1;
    g.setLineDash([5, 4]);
    for (const step of [...steps].slice(0, 4)) {
      const x = Math.round(this.x(step)) + 0.5;
      g.beginPath(); g.moveTo(x, this.box.top); g.lineTo(x, this.box.bottom); g.stroke();
      if (cut !== null) { const y = this.y(cut); g.beginPath(); g.moveTo(x - 26, y); g.lineTo(x + 26, y); g.stroke(); }
    }
    g.setLineDash([]);
  }

  // the line that passes nearest to this place, and its point there
  near(px, py) {
    const step = this.from + ((this.to - this.from) * (px - this.box.left)) / (this.box.right - this.box.left);
    const fits = (value) => value !== null && !(this.shows.log && value <= 0);
    let found = null, least = 16;
    for (const line of this.lines) {
      if (!this.shows[line.kind] || (this.kept && !this.kept.has(line.job)) || !line.xs.length) continue;
      let low = 0, high = line.xs.length - 1;
      while (high - low > 1) { const middle = (low + high) >> 1; line.xs[middle] <= step ? (low = middle) : (high = middle); }
      const at = fits(line.ys[high]) && Math.abs(line.xs[high] - step) < Math.abs(line.xs[low] - step) ? high : low;
      if (!fits(line.ys[at]) || Math.abs(this.x(line.xs[at]) - px) > 60) continue;
      let y = this.y(line.ys[at]);
      if (fits(line.ys[low]) && fits(line.ys[high]) && line.xs[low] < step && step < line.xs[high]) {
        const part = (step - line.xs[low]) / (line.xs[high] - line.xs[low]);
        y = this.y(line.ys[low]) * (1 - part) + this.y(line.ys[high]) * part;
      }
      const far = Math.max(Math.abs(y - py), step > line.xs.at(-1) || step < line.xs[0] ? Math.abs(this.x(line.xs[at]) - px) : 0);
      if (far < least) { least = far; found = { job: line.job, step: line.xs[at], value: line.ys[at], kind: line.kind, x: this.x(line.xs[at]), y: this.y(line.ys[at]) }; }
    }
    return found;
  }

  listen() {
    let begun = null;
    const place = (event) => { const box = this.canvas.getBoundingClientRect(); return [event.clientX - box.left, event.clientY - box.top]; };
    this.canvas.addEventListener("pointermove", (event) => {
      if (!this.x) return;
      const [px, py] = place(event);
      const found = this.near(px, py);
      this.light(found?.job ?? null, true);
      this.tip.hidden = !found;
      if (found) {
        this.tip.textContent = `${this.label(found.job)} · step ${short(found.step)} · ${found.kind === "val" ? "validation" : "training"} ${found.value.toPrecision(5)}`;
        this.tip.style.left = `${Math.min(found.x + 12, this.figure.clientWidth - this.tip.offsetWidth - 4)}px`;
        this.tip.style.top = `${Math.max(4, found.y - 34)}px`;
      }
    });
    this.canvas.addEventListener("pointerleave", () => { this.tip.hidden = true; this.light(null, true); });
    this.canvas.addEventListener("pointerdown", (event) => { begun = place(event)[0]; });
    this.canvas.addEventListener("pointerup", (event) => {
      const ended = place(event)[0];
      if (begun === null || Math.abs(ended - begun) < 12 || !this.x) { begun = null; return; }
      const step = (x) => this.from + ((this.to - this.from) * (x - this.box.left)) / (this.box.right - this.box.left);
      this.range = [Math.max(0, step(Math.min(begun, ended))), step(Math.max(begun, ended))];
      begun = null;
      this.figure.dispatchEvent(new CustomEvent("zoomed"));
      this.redraw();
    });
  }

  light(job, tell = false) {
    if (job === this.lit) return;
    this.stale ||= this.best === null; // without a best line the others fade only while one is hovered
    this.lit = job;
    if (tell) this.chosen(job);
    this.next();
  }
}

export function short(value) {
  if (value === 0) return "0";
  const size = Math.abs(value);
  if (size >= 1e6 || size < 1e-4) return value.toExponential(0);
  if (size >= 1000) return `${+(value / 1000).toPrecision(3)}k`;
  return String(+value.toPrecision(3));
}

function ticks(low, high, log) {
  if (log && high / low > 3) {
    const decades = Math.log10(high / low), apart = Math.ceil(decades / 8); // a label for each of eight decades is what fits
    const digits = decades > 4 ? [1] : high / low > 20 ? [1, 2, 5] : [1, 1.5, 2, 3, 5, 7], found = [];
    for (let power = Math.floor(Math.log10(low)); power <= Math.ceil(Math.log10(high)); power++) if (power % apart === 0) for (const digit of digits) found.push(+(digit * 10 ** power).toPrecision(3));
    return found.filter((value) => value >= low && value <= high);
  }
  const raw = (high - low) / 6 || 1, power = 10 ** Math.floor(Math.log10(raw));
  const gap = power * ([1, 2, 5, 10].find((digit) => digit * power >= raw) ?? 10);
  const found = [];
  for (let value = Math.ceil(low / gap) * gap; value <= high; value += gap) found.push(+value.toPrecision(12));
  return found;
}
