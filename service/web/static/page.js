// What every page has: keys, relative times, copying, and lists that follow the service.
import { forget } from "./draft.js";
import { over, refresh } from "./live.js";

const MINUTE = 60, HOUR = 3600, DAY = 86400;

// As contract.wording.duration_words.py says it.
function duration(seconds) {
  const whole = Math.round(seconds), hours = Math.round(whole / HOUR);
  if (whole < 10 * MINUTE) return said(whole, MINUTE, "min", 1, "s");
  if (Math.round(whole / MINUTE) < 600) return said(Math.round(whole / MINUTE) * MINUTE, HOUR, "h", MINUTE, "min");
  if (hours < 24) return `${hours} h`;
  if (hours < 240) return said(hours * HOUR, DAY, "d", HOUR, "h");
  return `${Math.round(whole / DAY)} d`;
}

function said(seconds, unit, name, smaller, smallerName) {
  const big = Math.floor(seconds / unit), small = Math.floor((seconds % unit) / smaller);
  return [big ? `${big} ${name}` : "", small || !big ? `${small} ${smallerName}` : ""].filter(Boolean).join(" ");
}

function tellTimes() {
  const now = Date.now();
  for (const time of document.querySelectorAll("time[datetime]")) {
    const seconds = (Date.parse(time.dateTime) - now) / 1000;
    const words = Math.abs(seconds) < 1 ? "now" : seconds > 0 ? `in ${duration(seconds)}` : `${duration(-seconds)} ${"expected" in time.dataset ? "overdue" : "ago"}`;
    if (time.textContent !== words) time.textContent = words;
  }
}
setInterval(tellTimes, 1000);
document.addEventListener("patched", tellTimes);

document.addEventListener("click", async (event) => {
  const button = event.target.closest("[data-copy]");
  if (!button) return;
  const words = button.dataset.words ??= button.textContent;
  button.textContent = await copy(document.getElementById(button.dataset.copy)) ? "Copied" : "Selected; press Ctrl+C";
  setTimeout(() => { button.textContent = words; }, 1500);
});

// Browsers give the clipboard to pages by https alone, and not to all of them: else the text is selected and copied as by keys.
async function copy(source) {
  try {
    await navigator.clipboard.writeText(source.textContent);
    return true;
  } catch {
    getSelection().selectAllChildren(source);
    return document.execCommand("copy");
  }
}

if (location.pathname !== "/tasks/new") forget();

// keys
let waitsForPlace = false;
const rows = () => [...document.querySelectorAll("#rows > tr, #job-rows > tr")];

function move(by) {
  const all = rows();
  if (!all.length) return;
  const at = all.findIndex((row) => row.classList.contains("here"));
  const next = all[Math.max(0, Math.min(all.length - 1, at + by))];
  all[at]?.classList.remove("here");
  next.classList.add("here");
  rove();
  (next.querySelector("a.row") ?? next).focus();
}

// of a table's rows that take the focus themselves, Tab stops at one: j and k, or the arrows, lead to the others
function rove() {
  const own = [...document.querySelectorAll("#job-rows > tr")];
  const stop = own.find((row) => row.classList.contains("here")) ?? own[0];
  for (const row of own) row.tabIndex = row === stop ? 0 : -1;
}
rove();
document.addEventListener("patched", rove);
document.getElementById("job-rows")?.addEventListener("focusin", (event) => {
  const row = event.target.closest("tr");
  for (const old of document.querySelectorAll("tr.here")) old.classList.remove("here");
  row.classList.add("here");
  rove();
});

document.addEventListener("keydown", (event) => {
  if (event.ctrlKey || event.metaKey || event.altKey || event.target.closest("input:not([type=checkbox]), textarea, select, dialog[open]")) return;
  const here = document.querySelector("tr.here");
  if (waitsForPlace) {
    waitsForPlace = false;
    const place = { t: "/tasks", c: "/cluster", f: "/files", u: "/usage", a: "/adapters", k: "/keys", w: "/webhooks", d: "/docs" }[event.key];
    if (place) location.assign(place);
    return;
  }
  const key = event.target.matches("#job-rows > tr") ? { ArrowDown: "j", ArrowUp: "k" }[event.key] ?? event.key : event.key;
  switch (key) {
    case "/": document.getElementById("search")?.focus(); break;
    case "n": location.assign("/tasks/new"); break;
    case "j": move(1); break;
    case "k": move(-1); break;
    case "x": { const box = here?.querySelector("input[type=checkbox]"); if (box) box.checked = !box.checked; break; }
    case "g": waitsForPlace = true; return;
    case "?": document.getElementById("shortcuts").showModal(); break;
    default: return;
  }
  event.preventDefault();
});

// a timeline that is wider than its place begins where it is now
const lanes = document.getElementById("lanes");
if (lanes) lanes.scrollLeft = lanes.scrollWidth * Number(lanes.dataset.now) - lanes.clientWidth * 0.7;

// the lanes' names stay at its left edge: in the drawing's own units
function holdNames() {
  const units = lanes.querySelector("svg").viewBox.baseVal.width / lanes.scrollWidth;
  document.documentElement.style.setProperty("--scrolled", `${lanes.scrollLeft * units}px`);
}
lanes?.addEventListener("scroll", holdNames, { passive: true });

// what a bar says stands below the timeline, too: keys and fingers are never shown a title
for (const happening of ["pointerover", "focusin"]) {
  lanes?.addEventListener(happening, (event) => {
    const title = event.target.closest("a, rect, .torn")?.querySelector("title");
    if (title) document.getElementById("told").textContent = title.textContent.replaceAll("\n", " · ");
  });
}

// lists follow the service; a task's page has its own stream of events, and the form asks when it is changed
const SECONDS = 4;
const follows = document.querySelector("[data-live], [data-live-rows]") && !document.querySelector("[data-task], #new-task");
async function follow() {
  if (!document.hidden) await refresh();
  if (!over()) setTimeout(follow, SECONDS * 1000);
}
if (follows) setTimeout(follow, SECONDS * 1000);
