// Building blocks: elements, texts and messages. Names of files and classes become text only, never markup.

export const $ = (id) => document.getElementById(id);
export const percent = (share) => `${Math.min(99, Math.round(100 * share))} %`;
export const counted = (n, one, many = `${one}s`) => `${n.toLocaleString("en")} ${n === 1 ? one : many}`;

const order = new Intl.Collator(undefined, { numeric: true });
export const byText = (a, b) => order.compare(a, b);

export function make(tag, properties = {}, ...children) {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(properties)) {
    if (name.startsWith("--")) element.style.setProperty(name, value);
    else if (name in element) element[name] = value;
    else element.setAttribute(name, value);
  }
  element.append(...children);
  return element;
}

export const button = (text, onclick, properties = {}) => make("button", { type: "button", textContent: text, onclick, ...properties });

let toastTimer;
export function tell(text) {
  $("toast").textContent = text;
  $("toast").classList.add("shown");
  clearTimeout(toastTimer);
  toastTimer = setTimeout(() => $("toast").classList.remove("shown"), 6000);
}

// Ask a question; the promise is whether the answer was yes.
export function confirmed(question, yes) {
  $("question").textContent = question;
  $("yes").textContent = yes;
  $("asker").returnValue = "";
  $("asker").showModal();
  // A dialog's event comes after it has closed, and may be that of the question before.
  return new Promise((done) => { $("asker").onclose = () => { if (!$("asker").open) done($("asker").returnValue === "yes"); }; });
}
