// What was typed into the new-task form, kept in the browser's tab while a session that ended is opened again.

const KEY = "draft";
const tenant = () => document.querySelector(".tenant").textContent;

export function keep(form) {
  const fields = [...new FormData(form)].filter(([name]) => name !== "csrf");
  sessionStorage.setItem(KEY, JSON.stringify({ tenant: tenant(), fields }));
}

export function restore(form) {
  const kept = JSON.parse(sessionStorage.getItem(KEY) ?? "null");
  forget();
  if (kept?.tenant !== tenant()) return; // somebody else's
  const of = (name) => kept.fields.filter(([other]) => other === name).map(([, value]) => value);
  for (const field of form.elements) {
    if (!field.name || field.type === "hidden" || field.type === "submit") continue;
    if (field.type === "checkbox") field.checked = of(field.name).includes(field.value);
    else if (field.tagName !== "SELECT") field.value = of(field.name)[0] ?? "";
    else if ([...field.options].some((option) => option.value === of(field.name)[0])) field.value = of(field.name)[0];
  }
}

// Any other page: the draft was sent, or left.
export const forget = () => sessionStorage.removeItem(KEY);
