// Uploads a file to /v1/files with its progress; a refusal names the lines.

const MOST = 20; // mistakes that are listed

// "line 7 is not JSON: …", "line 4, prompt: must be …", "file holds no rows"
function lineOf({ line, field, message }) {
  if (line && field) return `line ${line}, ${field}: ${message}`;
  return [line ? `line ${line}` : field, message].filter(Boolean).join(" ");
}

export function uploader(place, done) {
  const input = Object.assign(document.createElement("input"), { type: "file", accept: ".jsonl,.json,.ndjson", id: "upload-file" });
  const label = Object.assign(document.createElement("label"), { htmlFor: "upload-file", textContent: "Upload a JSONL file: choose it, or drop it here. One example a line: {\"prompt\": \"…\", \"completion\": \"…\"} or {\"messages\": [{\"role\": \"user\", \"content\": \"…\"}, …]} " });
  const progress = Object.assign(document.createElement("progress"), { max: 1, value: 0, hidden: true });
  progress.setAttribute("aria-label", "upload");
  const said = document.createElement("div");
  said.setAttribute("role", "status");
  place.replaceChildren(label, input, progress, said);
  place.classList.add("drop");
  const send = (file) => {
    const form = new FormData();
    form.append("name", file.name);
    form.append("file", file);
    const request = new XMLHttpRequest();
    progress.hidden = false;
    said.replaceChildren(`uploading ${file.name}`);
    request.upload.onprogress = (event) => { progress.value = event.total ? event.loaded / event.total : 0; };
    request.onerror = () => { progress.hidden = true; said.replaceChildren("The upload broke off. Choose the file again."); };
    request.onload = () => {
      progress.hidden = true;
      let answer = {};
      try { answer = JSON.parse(request.responseText); } catch { answer = { detail: "The service did not answer as expected." }; }
      if (request.status === 201) { said.replaceChildren(`${answer.name}: ${answer.rows.toLocaleString("en")} rows`); done(answer); return; }
      const words = Object.assign(document.createElement("p"), { className: "error", textContent: `${file.name} was not uploaded: nothing was kept.` });
      const list = document.createElement("ul");
      const errors = (answer.errors ?? []).slice(0, MOST), rest = (answer.error_count ?? errors.length) - errors.length;
      const lines = errors.map(lineOf);
      if (!lines.length) lines.push(answer.detail ?? "The file was refused.");
      if (rest > 0) lines.push(`and ${rest.toLocaleString("en")} more`);
      for (const line of lines) list.append(Object.assign(document.createElement("li"), { textContent: line }));
      said.replaceChildren(words, list);
    };
    request.open("POST", "/v1/files");
    request.setRequestHeader("X-CSRF-Token", document.querySelector("meta[name=csrf]").content);
    request.send(form);
  };
  input.addEventListener("change", () => {
    const file = input.files[0];
    if (file) send(file);
    input.value = ""; // else no change is told of when the same file, mended, is chosen again
  });
  place.addEventListener("dragover", (event) => { event.preventDefault(); place.classList.add("over"); });
  place.addEventListener("dragleave", () => place.classList.remove("over"));
  place.addEventListener("drop", (event) => { event.preventDefault(); place.classList.remove("over"); if (event.dataTransfer.files[0]) send(event.dataTransfer.files[0]); });
}
