// The "Try it" box of a task's page: one prompt, answered by an adapter and by its base side by side, as they generate.
const form = document.getElementById("try-form");
const field = form.elements;
const status = document.getElementById("try-status");
const stop = document.getElementById("try-stop");
const BROKE = "The answer broke off in the middle. Ask again.";
const AGAIN = "asked again"; // why it is aborted, if not to be stopped: its place is then the next one's
let asked = null; // what is under way, to be aborted

class Refused extends Error {}

// Yields the chunks of a stream of server-sent events, until it says [DONE].
async function* chunks(body) {
  const reader = body.pipeThrough(new TextDecoderStream()).getReader();
  let held = "";
  for (;;) {
    const { value, done } = await reader.read();
    if (done) throw new Refused(BROKE);
    const frames = (held + value).split("\n\n");
    held = frames.pop();
    for (const frame of frames) {
      if (!frame.startsWith("data: ")) continue;
      if (frame === "data: [DONE]") return;
      const chunk = JSON.parse(frame.slice(6));
      if (chunk.error) throw new Refused(chunk.error.message);
      yield chunk;
    }
  }
}

async function request(model, more, signal) {
  const plain = field.plain.checked, prompt = field.prompt.value;
  const said = plain ? { prompt } : { messages: [{ role: "user", content: prompt }] };
  const how = { max_tokens: Number(field.max_tokens.value), temperature: Number(field.temperature.value), stream: true, stream_options: { include_usage: true } };
  if (field.seed.value) how.seed = Number(field.seed.value);
  const answer = await fetch(plain ? "/openai/v1/completions" : "/openai/v1/chat/completions", {
    method: "POST",
    headers: { "Content-Type": "application/json", "X-CSRF-Token": document.querySelector("meta[name=csrf]").content },
    body: JSON.stringify({ model, ...said, ...how, ...more }),
    signal,
  });
  if (answer.ok) return answer.body;
  const refusal = await answer.json().catch(() => null);
  throw new Refused(refusal?.error?.message ?? `The service answered ${answer.status}, and not in its own words.`);
}

async function ask(side, model, more, signal) {
  const place = document.getElementById(`try-${side}`), text = place.querySelector(".said"), end = place.querySelector(".end");
  place.hidden = model === "";
  if (!model) return true;
  text.textContent = "";
  text.setAttribute("aria-busy", "true");
  end.className = "quiet end";
  end.removeAttribute("role");
  end.textContent = "waiting for an executor of the base…";
  let cut = false;
  try {
    for await (const { choices: [choice], usage } of chunks(await request(model, more, signal))) {
      text.append(choice?.delta?.content ?? choice?.text ?? "");
      cut ||= choice?.finish_reason === "length";
      end.textContent = usage ? `${usage.completion_tokens.toLocaleString("en")} token${usage.completion_tokens === 1 ? "" : "s"}${cut ? ", cut at the longest" : ""}` : "writing…";
    }
    return true;
  } catch (error) {
    if (signal.reason === AGAIN) return false;
    if (signal.aborted) { end.textContent = "stopped"; return false; }
    end.className = "error end";
    end.setAttribute("role", "alert");
    end.textContent = error instanceof Refused ? error.message : "The service does not answer. Ask again.";
    return false;
  } finally {
    if (signal.reason !== AGAIN) text.removeAttribute("aria-busy");
  }
}

form.addEventListener("submit", async (event) => {
  event.preventDefault();
  asked?.abort(AGAIN);
  const own = asked = new AbortController();
  const model = field.model.value, words = field.model.selectedOptions[0].textContent;
  document.getElementById("try-tuned-title").textContent = words;
  document.getElementById("try-answers").hidden = false;
  stop.disabled = false;
  status.textContent = "Both are asked.";
  const base = ask("base", form.dataset.base, { precision: form.dataset.precision }, own.signal);
  const done = await Promise.all([ask("tuned", model, {}, own.signal), base]);
  if (asked !== own) return;
  stop.disabled = true;
  status.textContent = own.signal.aborted ? "Stopped." : done.every(Boolean) ? "The answers are there." : "Not everybody answered.";
});
stop.addEventListener("click", () => asked?.abort());
form.addEventListener("keydown", (event) => {
  if (event.key === "Enter" && (event.ctrlKey || event.metaKey)) { event.preventDefault(); form.requestSubmit(); }
});

// the page's own updates make the list of adapters anew; what was chosen stays chosen while it is there
let chosen = null;
field.model.addEventListener("change", () => { chosen = field.model.value; });
document.addEventListener("patched", () => {
  if (chosen !== null && [...field.model.options].some((one) => one.value === chosen)) field.model.value = chosen;
});
form.hidden = false;
