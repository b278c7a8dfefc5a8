// One photo, large, with what its answer is based on.

import { $, make } from "./dom.js";
import { choices } from "./draw.js";
import { choose, sentence } from "./grid.js";
import { label } from "./labels.js";
import { ask } from "./server.js";
import { fullName, hue, isLabelled, nameOf, page } from "./state.js";

export function openViewer(id) {
  if (!page.photos.has(id)) return;
  choose(id, {});
  if (!$("viewer").open) $("viewer").showModal();
  drawViewer();
}

export async function drawViewer() {
  const photo = page.photos.get(page.active);
  if (!photo) return $("viewer").close();
  const address = `large/${photo.id}.jpg`, words = sentence(photo);
  if ($("viewer-image").getAttribute("src") !== address) $("viewer-image").src = address;
  $("viewer-image").alt = $("viewer-name").textContent = fullName(photo);
  $("viewer-state").textContent = `${words[0].toUpperCase()}${words.slice(1)}`;
  $("viewer-classes").replaceChildren(...(photo.isRemoved ? [] : choices([photo.id], (code) => label([photo.id], code, { advance: false }))));
  $("viewer-judge").textContent = isLabelled(photo) ? "Judged by the other photos" : "Probabilities";
  $("previous").disabled = page.shown[0] === photo.id;
  $("following").disabled = page.shown.at(-1) === photo.id;
  let about;
  try {
    about = await (await ask(`api/photos/${photo.id}`)).json();
  } catch {
    about = { probabilities: [], nearest: [] };
  }
  if (photo.id !== page.active) return;
  $("viewer-bars").replaceChildren(...about.probabilities.map(bar));
  $("viewer-near").replaceChildren(...about.nearest.filter((id) => page.photos.has(id)).map(neighbour));
}

function bar([name, share]) {
  const code = page.state.classes.indexOf(name);
  return make("div", { className: "bar", "--hue": code < 0 ? "0" : hue(code), "--share": `${100 * share}%` },
    make("span", { textContent: name }), make("i"), make("span", { textContent: `${(100 * share).toFixed(1)} %` }));
}

function neighbour(id) {
  const photo = page.photos.get(id);
  return make("div", { title: fullName(photo) }, make("img", { src: `thumbnails/${id}.jpg`, alt: fullName(photo) }), nameOf(photo.label) ?? "");
}
