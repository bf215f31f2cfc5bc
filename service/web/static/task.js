// A task's page: its plot, parallel coordinates and table, linked with each other, and kept up to date by its stream of events.
import { away, connected, over, refresh } from "./live.js";
import { Parallel } from "./parallel.js";
import { Plot } from "./plot.js";
import { brushByKeys, wholeRange, zoomByKeys } from "./plot_keys.js";

const head = document.getElementById("task");
const id = head.dataset.task;
const rows = document.getElementById("job-rows");
const open = () => document.querySelector("#task-state[data-open]") !== null;
const labels = new Map();
const rowOf = new Map(); // by job
let width = 1;

const plot = new Plot(document.getElementById("plot"), {
  label: (job) => `job ${job}: ${labels.get(job) ?? ""}`,
  chosen: (job) => light(job),
});
const figure = document.getElementById("parallel");
zoomByKeys(plot);
const parallel = figure ? new Parallel(figure, { kept: (jobs) => keep(jobs), chosen: () => {} }) : null;

if (parallel) brushByKeys(parallel);

function light(job) {
  rows.querySelector(".lit")?.classList.remove("lit");
  rowOf.get(job)?.classList.add("lit");
  plot.light(job);
  parallel?.light(job);
}

function keep(jobs) {
  plot.kept = jobs;
  for (const [job, row] of rowOf) row.classList.toggle("out", jobs !== null && !jobs.has(job));
  plot.redraw();
}

for (const happening of ["pointerover", "focusin"]) {
  rows.addEventListener(happening, (event) => {
    const row = event.target.closest("tr");
    if (row) light(JSON.parse(row.dataset.facts).job);
  });
}
rows.addEventListener("pointerleave", () => light(null));

function readTable() {
  const all = [...rows.children].map((row) => JSON.parse(row.dataset.facts));
  rowOf.clear();
  all.forEach((job, at) => rowOf.set(job.job, rows.children[at]));
  plot.jobs = new Map(all.map((job) => [job.job, job]));
  for (const job of all) labels.set(job.job, job.label);
  plot.best = all.find((job) => job.leads)?.job ?? null;
  plot.ended = !open();
  parallel?.show(all);
  plot.redraw();
}

const key = (kind, job) => `${kind} ${job}`;
const lines = new Map();

function take(pack, from = 0) {
  width = pack.width;
  for (const [job, first, means] of pack.train) put("train", job, means.map((_, at) => (first + at) * pack.width), means, from);
  for (const [job, steps, losses] of pack.val) put("val", job, steps, losses, from);
  plot.loaded = true;
  plot.lines = [...lines.values()];
  plot.redraw();
}

function put(kind, job, xs, ys, from) {
  const old = lines.get(key(kind, job));
  if (!old || from === 0) { lines.set(key(kind, job), { kind, job, xs, ys }); return; }
  const kept = old.xs.findIndex((x) => x >= from);
  const at = kept === -1 ? old.xs.length : kept;
  old.xs = [...old.xs.slice(0, at), ...xs];
  old.ys = [...old.ys.slice(0, at), ...ys];
}

async function load(query = "", from = 0) {
  const answer = await fetch(`/tasks/${id}/curves${query}`, { cache: "no-store" });
  if (away(answer)) throw new Error(`the curves are answered by ${answer.status}`);
  if (answer.ok && !answer.redirected) { take(await answer.json(), from); connected(true); }
}

// new points: asked for together, at most once a second, from where they begin
let due = null;
const fresh = new Map(); // job -> first new step
let whole = false, page = false;
const POINTS = 60000;

function later() { due ??= setTimeout(work, 1000); }

async function work() {
  try {
    if (page) { page = false; await refresh(); readTable(); }
    await begun; // new points that come before the whole curves do would be overwritten by them
    let points = 0;
    for (const line of lines.values()) points += line.xs.length;
    if (whole || points > POINTS) { whole = false; fresh.clear(); await load(); }
    else if (fresh.size) {
      const from = Math.min(...fresh.values());
      const query = new URLSearchParams([["from_step", from], ...[...fresh.keys()].map((job) => ["job", job])]);
      fresh.clear();
      await load(`?${query}`, from);
    }
  } catch { connected(false); whole = true; }
  due = null;
  if ((page || whole || fresh.size) && !over()) later();
}

function follow(last) {
  const events = new EventSource(`/v1/tasks/${id}/events?after=${last}`);
  let heard = last;
  const on = (kind, act) => events.addEventListener(kind, (event) => { heard = Number(event.lastEventId) || heard; connected(true); act(JSON.parse(event.data).data); later(); });
  on("curves", (data) => { for (const one of data.curves) fresh.set(one.job, Math.min(fresh.get(one.job) ?? Infinity, one.from_step)); page = true; });
  on("rewind", () => { whole = true; page = true; });
  for (const kind of ["status", "job", "adapter", "base", "activations"]) on(kind, () => { page = true; });
  events.onopen = () => connected(true);
  events.onerror = async () => {
    // 204 ends a finished task's stream; a refusal ends it too. Everything else reconnects by itself with Last-Event-ID.
    if (events.readyState === EventSource.CONNECTING) { connected(false); return; }
    await refresh();
    readTable();
    if (!over() && open()) setTimeout(() => follow(heard), 3000);
  };
}

for (const [box, name] of [["show-train", "train"], ["show-val", "val"], ["log-axis", "log"]]) {
  const input = document.getElementById(box);
  input.addEventListener("change", () => { plot.shows[name] = input.checked; plot.redraw(); });
}
wholeRange(plot, document.getElementById("zoom-out"));

readTable();
const begun = load().then(() => requestAnimationFrame(() => { performance.mark("drawn"); document.documentElement.dataset.drawn = "1"; }), () => { whole = true; later(); });
if (open()) {
  follow(Number(head.dataset.lastEvent));
  setInterval(() => { if (!document.hidden && !over() && document.getElementById("waits").textContent.trim()) { page = true; later(); } }, 5000);
}
