// The form's estimate follows every change; a preview and an upload stay on the page. Without scripts its buttons do the same.
import { keep, restore } from "./draft.js";
import { away, connected, patch, say, signedOut } from "./live.js";
import { uploader } from "./upload.js";

const form = document.getElementById("new-task");
const running = {}; // by action: a new estimate replaces the one before, and leaves a preview alone
let timer = null;
const AGAIN_MS = 4000; // until the service is asked again that did not answer

// an answer's mistakes replace those of the page: their fields are marked, and what is typed stays
function mark() {
  for (const wrong of form.querySelectorAll(".wrong[id^='e-']")) {
    const field = document.getElementById(`f-${wrong.id.slice(2)}`);
    if (!field) continue; // a group of boxes has no one field
    if (wrong.textContent) field.setAttribute("aria-invalid", "true"); else field.removeAttribute("aria-invalid");
  }
}
document.addEventListener("patched", mark);

async function ask(action) {
  running[action]?.abort();
  const own = running[action] = new AbortController();
  try {
    const answer = await fetch(action, { method: "POST", body: new URLSearchParams(new FormData(form)), signal: own.signal });
    if (signedOut(answer, "; what is typed here is kept")) { keep(form); return; }
    if (away(answer)) throw new Error(`${action} is answered by ${answer.status}`);
    const page = new DOMParser().parseFromString(await answer.text(), "text/html");
    connected(true);
    if (answer.ok || answer.status === 422) { say(""); patch(page, [action.endsWith("preview") ? "outcome" : "preview"]); return; }
    keep(form);
    say(`${page.querySelector("main .error")?.textContent ?? `The service answered ${answer.status}.`} What is typed here is kept.`);
  } catch (error) {
    if (error.name === "AbortError") return;
    connected(false);
    setTimeout(() => { if (running[action] === own) ask(action); }, AGAIN_MS);
  }
}

form.addEventListener("input", () => { clearTimeout(timer); timer = setTimeout(() => ask("/tasks/new/estimate"), 400); });
document.getElementById("preview-button").addEventListener("click", (event) => { event.preventDefault(); ask("/tasks/new/preview"); });
for (const id of ["enter-button", "estimate-button"]) document.getElementById(id).addEventListener("click", (event) => { event.preventDefault(); ask("/tasks/new/estimate"); });
form.addEventListener("submit", () => keep(form)); // the session may have ended: signing in leads back here

uploader(document.getElementById("upload"), (file) => {
  for (const name of ["dataset.file_id", "dataset.validation_file_id"]) {
    const option = Object.assign(document.createElement("option"), { value: file.id, textContent: `${file.name} (${file.rows} rows)` });
    document.getElementById(`f-${name}`).append(option);
  }
  document.getElementById("f-dataset.file_id").value = file.id;
  form.dispatchEvent(new Event("input"));
});
restore(form);
if (document.getElementById("f-dataset.file_id").value) ask("/tasks/new/estimate");
