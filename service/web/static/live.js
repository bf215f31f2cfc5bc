// Patches the page in place from the server's own HTML: elements marked data-live, and rows of a data-live-rows body by their ids.
// What is around such a body is marked data-live-list, and replaced where it gets its first rows or loses its last.

const banner = document.getElementById("connection");
let lost = false;

export function say(words) {
  banner.hidden = words === "";
  if (banner.textContent !== words) banner.textContent = words;
}

export function connected(yes) {
  if (yes === !lost) return;
  lost = !yes;
  say(lost ? "The service does not answer. This page shows what was last known, and goes on by itself." : "");
}

// Whether this answer says that the service cannot answer now.
export const away = (answer) => answer.status >= 500 || answer.status === 429;

// Fetches this page anew and patches it. Returns whether the service answered.
export async function refresh(address = location.href) {
  let answer, html;
  try {
    answer = await fetch(address, { headers: { Accept: "text/html" }, cache: "no-store" });
    html = await answer.text(); // which may break off
  } catch {
    connected(false);
    return false;
  }
  if (signedOut(answer)) return false;
  connected(!away(answer));
  if (!answer.ok) return false;
  patch(new DOMParser().parseFromString(html, "text/html"));
  return true;
}

// Whether this answer is the sign-in page instead, which the banner then says and links to.
export function signedOut(answer, kept = "") {
  if (!answer.redirected || new URL(answer.url).pathname !== "/sign-in") return false;
  say(`The session has ended. Sign in again to go on${kept}.`);
  banner.append(Object.assign(document.createElement("a"), { href: answer.url, textContent: " Sign in" }));
  ended = true;
  return true;
}

let ended = false;
export const over = () => ended;

export function patch(fresh, without = []) {
  let changed = false;
  const listed = (block) => block.querySelector("[data-live-rows]") !== null;
  for (const old of document.querySelectorAll("[data-live], [data-live-list]")) {
    const next = without.includes(old.id) ? null : fresh.getElementById(old.id);
    if (next && "liveList" in old.dataset && listed(old) && listed(next)) continue;
    if (next) keepOpen(old, next);
    if (next && !old.contains(document.activeElement) && old.innerHTML !== next.innerHTML) {
      old.replaceChildren(...next.childNodes);
      changed = true;
    }
  }
  for (const old of document.querySelectorAll("[data-live-rows]")) {
    const next = fresh.getElementById(old.id);
    if (next) changed = patchRows(old, next) || changed;
  }
  if (changed) document.dispatchEvent(new CustomEvent("patched"));
}

function patchRows(old, next) {
  let changed = false;
  const wanted = new Set([...next.children].map((row) => row.id));
  for (const row of [...old.children]) {
    if (!wanted.has(row.id)) { row.remove(); changed = true; }
  }
  let place = old.firstElementChild;
  for (const row of [...next.children]) {
    const own = document.getElementById(row.id);
    if (!own) {
      old.insertBefore(row, place);
      changed = true;
      continue;
    }
    if (own === place) place = place.nextElementSibling;
    else { old.insertBefore(own, place); changed = true; }
    keepOpen(own, row);
    if (own.dataset.facts !== row.dataset.facts || !(same(own, row) || text(own) === text(row))) {
      const ticked = own.querySelector("input[type=checkbox]")?.checked;
      const focused = own.contains(document.activeElement) && own !== document.activeElement;
      if (focused) continue;
      own.replaceChildren(...row.childNodes);
      for (const name of ["data-facts"]) if (row.hasAttribute(name)) own.setAttribute(name, row.getAttribute(name));
      own.classList.toggle("best", row.classList.contains("best"));
      const box = own.querySelector("input[type=checkbox]");
      if (box && ticked) box.checked = true;
      changed = true;
    }
  }
  return changed;
}

// Leaves each <details> of the new content open or closed as the reader left it.
function keepOpen(old, next) {
  const before = disclosures(old);
  for (const [name, details] of disclosures(next)) if (before.has(name)) details.open = before.get(name).open;
}

// <details> by their ids or by what their summaries say; where several say the same, nobody knows which is which.
function disclosures(block) {
  const found = new Map(), several = new Set();
  for (const details of block.querySelectorAll("details")) {
    const name = details.id || details.querySelector("summary").textContent.trim();
    if (found.has(name)) several.add(name);
    found.set(name, details);
  }
  for (const name of several) found.delete(name);
  return found;
}

// Whether two rows hold the same, letter for letter, as most do: that is found without a copy of either.
const same = (own, row) => own.childNodes.length === row.childNodes.length && [...own.childNodes].every((node, at) => node.isEqualNode(row.childNodes[at]));

// what a row says, but for relative times, which a script keeps right
function text(row) {
  const copy = row.cloneNode(true);
  for (const time of copy.querySelectorAll("time")) time.textContent = "";
  return copy.innerHTML;
}
