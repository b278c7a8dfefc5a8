// The dialogs: expected accuracy, export, classes, accepting many answers, folders as labels, and tables of labels.

import { $, button, byText, confirmed, counted, make, tell } from "./dom.js";
import { addClass, label } from "./labels.js";
import { show } from "./lists.js";
import { ask, post } from "./server.js";
import { hue, isLabelled, nameOf, NONE, NONE_NAME, page } from "./state.js";

// Expected accuracy

export function openConfusion() {
  const { classes, counts } = page.state.confusion, { mean, low, high, missing } = page.state.estimate;
  const n = counts.flat().reduce((sum, one) => sum + one, 0), { advice } = page.state;
  $("confusion-notes").textContent = (page.state.notes ?? []).join(" ");
  $("confusion-about").textContent = missing ?? `Of new photos like these, about ${Math.round(100 * mean)} % will get the right class; ${Math.round(100 * low)} to ${Math.round(100 * high)} % with 95 % confidence. This is how often ${counted(n, "labelled photo")} got their own label from the others. Rows are labels, columns are answers.${advice ? ` ${advice} Stop nearshot first; your labels are kept.` : ""}`;
  const head = make("tr", {}, make("td"), ...classes.map((name) => make("th", { scope: "col", title: name, textContent: name })));
  const rows = counts.map((row, code) => {
    const total = row.reduce((sum, one) => sum + one, 0);
    return make("tr", {}, make("th", { scope: "row", title: classes[code], textContent: classes[code] }), ...row.map((count, answer) =>
      make("td", { textContent: count, className: count ? (code === answer ? "" : "wrong") : "zero", "--share": `${count ? 15 + (75 * count) / total : 0}%`, title: `${classes[code]} answered as ${classes[answer]}: ${count} of ${total}` })));
  });
  $("confusion-table").replaceChildren(...(missing ? [] : [make("table", {}, make("thead", {}, head), make("tbody", {}, ...rows))]));
  const measure = button("Try a more accurate network on my labelled photos", measureOffer);
  $("offer").replaceChildren(...(missing ? [] : [measure]));
  $("confusions").showModal();
}

// Two networks are more accurate than one, and slower: both are measured on the labelled photos.
async function measureOffer() {
  $("offer").textContent = "Measuring …";
  try {
    const offer = await (await ask("api/offer")).json();
    if (!offer) { $("offer").textContent = "The most accurate installed network is in use."; return; }
    const { present, offered } = offer, percent = (choice) => `${Math.round(100 * choice.accuracy)} %`;
    const speed = (choice) => choice.speed.toPrecision(2);
    $("offer").replaceChildren(
      `Two networks together: ${percent(offered)} instead of ${percent(present)} of new photos right, ${speed(offered)} instead of ${speed(present)} photos a second. `,
      button("Use both", async () => { if (await post("offer")) $("confusions").close(); }));
  } catch (error) { $("offer").textContent = error.message; }
}

// Export

export function openExport() {
  $("export-state").textContent = "";
  $("exporter").showModal();
}

export async function download(source) {
  const name = source.dataset.file;
  source.disabled = true;
  $("export-state").textContent = `Preparing ${name} …`;
  try {
    const link = make("a", { href: URL.createObjectURL(await (await ask(`export/${name}`)).blob()), download: name });
    link.click();
    URL.revokeObjectURL(link.href);
    $("export-state").textContent = `${name} is in your downloads.`;
  } catch (error) {
    $("export-state").textContent = error.message;
  }
  source.disabled = false;
}

export async function copyPhotos() {
  $("copy").disabled = true;
  $("export-state").textContent = "Copying …";
  const done = await post("copy", { predicted: $("with-predicted").checked });
  $("copy").disabled = false;
  if (!done) return ($("export-state").textContent = "Nothing was copied.");
  const failed = done.failures.length ? ` ${counted(done.failures.length, "photo")} could not be copied: ${done.failures[0]}` : "";
  $("export-state").textContent = `${counted(done.new, "photo")} copied to ${done.folder}${done.same ? `; ${counted(done.same, "photo")} there already` : ""}.${failed} ${done.earlier}`;
}

export async function importLabels(input) {
  const [file] = input.files;
  if (!file) return;
  try {
    const { labelled, kept, missing } = await (await ask("api/labels", { method: "PUT", body: file })).json();
    const others = [kept && `${counted(kept, "photo")} kept another label`, missing.length && `${counted(missing.length, "row")} named no photo, or several: ${missing.slice(0, 3).join(", ")}`];
    $("export-state").textContent = [`${counted(labelled, "photo")} labelled from ${file.name}`, ...others.filter(Boolean)].join("; ") + ". Ctrl+Z takes it back.";
  } catch (error) {
    $("export-state").textContent = `${file.name}: ${error.message}`;
  }
  input.value = "";
}

// Classes

export function editClass(name) {
  $("rename-name").value = name;
  $("class-editor").name = name;
  $("class-editor").showModal();
}

export async function renameClass() {
  const { name } = $("class-editor"), typed = $("rename-name").value.trim().replace(/\s+/g, " ").normalize("NFC");
  const merge = typed !== name && page.state.classes.includes(typed);
  if (merge) {
    const n = [...page.photos.values()].filter((photo) => nameOf(photo.label) === name).length;
    const yes = await confirmed(`There is a class ${typed} already. Merge ${name} into it? ${counted(n, "labelled photo")} of ${name} would become ${typed}. Undo takes it back.`, "Merge");
    if (!yes) return;
  }
  if (await post("rename-class", { name, new_name: typed, merge })) $("class-editor").close();
}

export async function removeClass() {
  const { name } = $("class-editor");
  if (!await post("remove-class", { name })) return;
  tell(`The class ${name} was removed, with its labels. Ctrl+Z brings it back.`);
  $("class-editor").close();
}

// Find a class by typing, and label photos with it; or make a new one of them.

let found = [];

export function openFinder(ids) {
  Object.assign($("finder"), { ids });
  $("finder-about").textContent = ids.length ? `For ${counted(ids.length, "selected photo")}.` : "Shows its photos.";
  $("finder-name").value = "";
  drawFinder();
  $("finder").showModal();
}

export function drawFinder() {
  const { ids } = $("finder"), typed = $("finder-name").value.trim(), wanted = typed.toLowerCase();
  const starts = (name) => name.toLowerCase().startsWith(wanted) || name.toLowerCase().includes(` ${wanted}`);
  const codes = [...page.state.classes.keys(), NONE].filter((code) => nameOf(code).toLowerCase().includes(wanted));
  codes.sort((a, b) => starts(nameOf(b)) - starts(nameOf(a)) || (wanted ? byText(nameOf(a), nameOf(b)) : 0));
  found = codes.map((code) => [nameOf(code), () => (ids.length ? label(ids, code) : show(code === NONE ? "none" : `class:${nameOf(code)}`)), code]);
  const isKnown = [...page.state.classes, NONE_NAME].some((name) => name.toLowerCase() === wanted);
  if (typed && !isKnown) found.push([ids.length ? `New class “${typed}” of ${counted(ids.length, "photo")}` : `New class “${typed}”`, () => addClass(typed, ids)]);
  $("finder-classes").replaceChildren(...found.map(([text, , code], place) =>
    make("li", {}, make("button", { type: "button", className: place ? "" : "first", onclick: () => takeFound(place) }, ...(code >= 0 ? [make("span", { className: "dot", "--hue": hue(code) })] : []), make("span", { className: "name", textContent: text })))));
}

export function takeFound(place) {
  if (!found[place]) return;
  $("finder").close();
  found[place][1]();
}

// Accept all answers above a probability.

const openAnswers = () => page.shown.map((id) => page.photos.get(id)).filter((photo) => !isLabelled(photo) && photo.guess >= 0);
const answersAbove = () => openAnswers().filter((photo) => 100 * photo.confidence >= $("accept-above").valueAsNumber);

export function openAccepter() {
  drawAccepter();
  $("accepter").showModal();
}

export function drawAccepter() {
  const photos = answersAbove(), errors = photos.reduce((sum, { confidence }) => sum + 1 - confidence, 0);
  const about = errors < 0.5 ? "fewer than one" : `about ${Math.round(errors)}`;
  $("accept-percent").textContent = `${$("accept-above").value} %`;
  $("accept-count").textContent = photos.length
    ? `${counted(photos.length, "photo")} of ${openAnswers().length.toLocaleString("en")}. Expect ${about} of these labels to be wrong.`
    : "No answer is that sure.";
  $("accept-all").disabled = !photos.length;
}

export async function acceptAll() {
  const photos = answersAbove();
  $("accepter").close();
  const labels = Object.fromEntries(photos.map((photo) => [photo.id, nameOf(photo.guess)]));
  if (await post("accept", { labels, is_seen: false })) tell(`${counted(photos.length, "answer")} accepted. Ctrl+Z takes them back.`);
}

// Take the names of folders as labels; of nested ones, ask which level is the class.

export function openLevels() {
  const groups = [...page.photos.values()].filter((photo) => photo.group && !photo.isRemoved).map((photo) => photo.group.split("/"));
  const deepest = Math.max(...groups.map((parts) => parts.length));
  if (deepest === 1) return post("label-by-folders", { level: 0 });
  const levels = [...Array(deepest).keys()].map((level) => {
    const names = [...new Set(groups.map((parts) => parts[level]).filter(Boolean))].sort(byText);
    const examples = `${names.slice(0, 4).join(", ")}${names.length > 4 ? ", …" : ""}`;
    return make("li", {}, button(`${counted(names.length, "class", "classes")}: ${examples}`, () => { $("levels").close(); post("label-by-folders", { level }); }));
  });
  $("level-list").replaceChildren(...levels);
  $("levels").showModal();
}
