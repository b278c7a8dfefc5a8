// Everything that is drawn anew when something changes, but for the viewer and the dialogs.

import { $, button, counted, make } from "./dom.js";
import { editClass, openAccepter, openFinder, openLevels } from "./dialogs.js";
import { fillTile, GAP, layout, makeTile } from "./grid.js";
import { accept, changeDoubted, isDoubted, keep, label, putBack, remove, sameThing } from "./labels.js";
import { answerOf, inView, isSorted, show, VIEWS } from "./lists.js";
import { hue, isLabelled, keyOf, nameOf, NONE, page, UNLABELLED } from "./state.js";
import { chooseFiles, chooseFolder, isFiles, uploading } from "./uploads.js";
import { drawViewer, openViewer } from "./viewer.js";

const tiles = new Map(); // rendered tiles by id

export function drawAll() {
  drawHeader();
  drawLists();
  drawToolbar();
  drawGrid();
  drawSelection();
  if ($("viewer").open) drawViewer();
}

export function drawHeader() {
  const { state } = page, n = state.photos.length;
  const { mean, low, high, missing } = state.estimate, done = state.n_done ?? 0;
  document.title = $("title").textContent = state.title ?? "nearshot";
  $("place").textContent = state.project ?? "";
  $("accuracy").hidden = !n;
  $("accuracy").classList.toggle("missing", mean === undefined);
  $("accuracy-value").textContent = mean === undefined ? "" : `${Math.round(100 * mean)} %`;
  $("accuracy-about").textContent = missing ?? `expected accuracy, ${Math.round(100 * low)} to ${Math.round(100 * high)} %`;
  $("accuracy-notes").textContent = (state.notes ?? []).join(" ");
  if (mean !== undefined) {
    Object.assign($("accuracy-range").style, { left: `${100 * low}%`, width: `${100 * (high - low)}%` });
    $("accuracy-mean").style.left = `${100 * mean}%`;
  }
  for (const name of ["undo", "redo"]) {
    const title = state[name] ? `${name === "undo" ? "Undo" : "Redo"}: ${state[name]}` : `Nothing to ${name}`;
    Object.assign($(name), { disabled: !state[name], title });
    $(name).setAttribute("aria-label", title);
  }
  const { done: sent, waiting } = uploading();
  $("progress").hidden = !waiting && done === n;
  const [now, all, text] = waiting ? [sent, sent + waiting, "Adding photos"] : [done, n, "Looking at photos"];
  $("progress").setAttribute("aria-valuenow", all ? Math.round((100 * now) / all) : 0);
  $("progress").children[0].style.width = `${all ? (100 * now) / all : 0}%`;
  $("progress").children[1].textContent = `${text}: ${now.toLocaleString("en")} of ${all.toLocaleString("en")}`;
  $("open-export").disabled = !state.classes.length;
}

function listItem(name, label, count, extra = []) {
  const opener = make("button", { type: "button", title: label, onclick: () => show(name) }, ...extra, make("span", { className: "name", textContent: label }), count);
  opener.setAttribute("aria-current", String(page.view === name));
  const item = make("li", {}, opener);
  item.dataset.view = name;
  return item;
}

// Let selected photos be dropped on an item, which labels them.
function takesPhotos(item, code) {
  item.ondragover = (event) => { if (!isFiles(event)) { event.preventDefault(); item.classList.add("over"); } };
  item.ondragleave = () => item.classList.remove("over");
  item.ondrop = (event) => {
    if (isFiles(event)) return;
    event.preventDefault();
    item.classList.remove("over");
    label([...page.selected], code);
  };
}

const keyCap = (code) => (keyOf(code) ? [make("kbd", { textContent: keyOf(code) })] : []);

function drawLists() {
  const focused = document.activeElement?.closest("nav li")?.dataset.view;
  const items = Object.keys(VIEWS).map((name) => {
    const n = inView(name).length, isAlert = name === "check" && n > 0;
    const count = make("span", { className: isAlert ? "count alert" : "count", textContent: n.toLocaleString("en") });
    const item = listItem(name, VIEWS[name][0], count, name === "none" ? keyCap(NONE) : []);
    const isAlways = name === "all" || (name === "none" && page.photos.size > 0);
    item.hidden = !n && !isAlways && name !== page.view;
    if (name === "none") takesPhotos(item, NONE);
    return item;
  });
  $("views").replaceChildren(...items);
  const labelled = page.state.classes.map(() => 0), predicted = page.state.classes.map(() => 0);
  for (const photo of page.photos.values()) {
    if (photo.label >= 0) labelled[photo.label] += 1;
    else if (!isLabelled(photo) && photo.guess >= 0) predicted[photo.guess] += 1;
  }
  $("classes").replaceChildren(...page.state.classes.map((name, code) => {
    const count = make("span", { className: "count", title: `${labelled[code]} labelled, ${predicted[code]} predicted` }, make("b", { textContent: labelled[code] }), predicted[code] ? ` + ${predicted[code].toLocaleString("en")}` : "");
    const item = listItem(`class:${name}`, name, count, [make("span", { className: "dot", "--hue": hue(code) }), ...keyCap(code)]);
    item.append(button("⋯", () => editClass(name), { className: "more", "aria-label": `Rename or remove ${name}` }));
    takesPhotos(item, code);
    return item;
  }));
  if (focused) [...document.querySelectorAll("nav li")].find((item) => item.dataset.view === focused)?.firstChild.focus();
}

function drawToolbar() {
  const { state, photos, shown, view } = page;
  const [title, about] = VIEWS[view] ?? [view.slice(6), "Labelled with this class, or predicted to be of it."];
  $("heading").replaceChildren(title, " ", make("small", { textContent: counted(shown.length, "photo") }));
  $("sorting").hidden = !isSorted() || !shown.length;
  $("search").hidden = !photos.size;
  $("refresh").hidden = !page.labelledHere;
  const isOpen = (id) => !isLabelled(photos.get(id)) && photos.get(id).guess >= 0;
  $("open-accepter").hidden = !["all", "unlabelled"].includes(view) && !view.startsWith("class:") || !shown.some(isOpen);
  const groups = new Set([...photos.values()].map((photo) => photo.group).filter(Boolean));
  const isNew = photos.size > 0 && ![...photos.values()].some((photo) => photo.label >= 0);
  let hint = [about];
  if (isNew && !state.classes.length) hint = ["Name your classes on the left. Then drag a few photos to each, or select them and press its key."];
  else if (isNew) hint = ["Now label a few photos of each class: drag them to it, or select them and press its key."];
  if (isNew && groups.size > 1) hint.push(" ", button(`Use the names of the ${groups.size} folders as labels`, openLevels));
  $("hint").replaceChildren(...hint);
  $("empty").hidden = shown.length > 0;
  if (photos.size) $("empty").replaceChildren(make("h3", { textContent: view === "check" && !page.search ? "All labels look right" : "No photos here" }));
  else {
    $("empty").replaceChildren(make("h3", { textContent: "Drop photos or a folder here" }), make("p", { textContent: "They stay on this computer." }),
      button("Choose photos", chooseFiles, { className: "primary" }), button("Choose a folder", chooseFolder));
  }
}

export function drawGrid() {
  const { shown, photos, active } = page, { columns, width, height } = layout(), step = height + GAP;
  $("grid").style.height = `${Math.ceil(shown.length / columns) * step}px`;
  const top = $("scroller").scrollTop - $("grid").offsetTop, tall = $("scroller").clientHeight;
  const first = Math.max(0, Math.floor((top - tall / 2) / step) * columns), last = Math.ceil((top + 1.5 * tall) / step) * columns;
  const wanted = new Set(shown.slice(first, last));
  if (active && photos.has(active)) wanted.add(active); // what has the focus must exist
  for (const [id, tile] of tiles) if (!wanted.has(id)) { tile.remove(); tiles.delete(id); }
  const places = new Map(shown.slice(first, last).map((id, number) => [id, first + number]));
  for (const id of wanted) {
    const place = places.get(id) ?? shown.indexOf(id);
    if (place < 0) { tiles.get(id)?.remove(); tiles.delete(id); continue; }
    if (!tiles.has(id)) tiles.set(id, makeTile(id));
    const tile = tiles.get(id);
    tile.style.transform = `translate(${(place % columns) * (width + GAP)}px, ${Math.floor(place / columns) * step}px)`;
    tile.style.width = `${width}px`;
    tile.style.height = `${height}px`;
    tile.setAttribute("aria-posinset", place + 1);
    tile.setAttribute("aria-setsize", shown.length);
    fillTile(tile, photos.get(id));
    if (!tile.parentNode) $("grid").append(tile);
  }
  if (active && tiles.has(active)) $("grid").setAttribute("aria-activedescendant", `photo-${active}`);
  else $("grid").removeAttribute("aria-activedescendant");
}

// A button for each class and for none of them; that of the photos is pressed.
export function choices(ids, act) {
  const codes = new Set(ids.map((id) => page.photos.get(id)?.label));
  const choice = (code) => make("button", { type: "button", className: code === NONE ? "none" : "", "--hue": code === NONE ? "0" : hue(code), "aria-pressed": String(codes.size === 1 && codes.has(code)), title: nameOf(code), onclick: () => act(code) },
    make("span", { className: "dot" }), make("span", { className: "name", textContent: nameOf(code) }), ...keyCap(code));
  return [...page.state.classes.map((_, code) => choice(code)), choice(NONE)];
}

function actionsOn(ids) {
  const photos = ids.map((id) => page.photos.get(id)), buttons = [];
  if (photos.every((photo) => photo.isRemoved)) return [button("Put back", () => putBack(ids), { className: "primary", title: "Enter" })];
  if (photos.every(isDoubted)) {
    const codes = new Set(photos.map((photo) => photo.wrong[0]));
    buttons.push(button(codes.size === 1 ? `Change to ${nameOf([...codes][0])}` : "Change to what they look like", () => changeDoubted(ids), { id: "change-doubted" }));
  }
  const isKept = (photo) => photo.wrong || photo.isAccepted;
  if (photos.some(isKept)) buttons.push(button(ids.length === 1 ? "Keep the label" : "Keep the labels", () => keep(ids)));
  if (photos.some(isLabelled)) buttons.push(button("Remove the label", () => label(ids, UNLABELLED), { title: "Backspace" }));
  if (photos.some((photo) => !isLabelled(photo) && answerOf(photo) !== UNLABELLED)) buttons.push(button("Accept", () => accept(ids), { title: "Enter" }));
  if (photos.some((photo) => photo.thing)) buttons.push(button("Not the same thing", () => sameThing(ids, false)));
  else if (ids.length > 1) buttons.push(button("These show the same thing", () => sameThing(ids, true)));
  buttons.push(button("Take out", () => remove(ids), { title: "Delete" }));
  return buttons;
}

export function drawSelection() {
  const ids = [...page.selected].filter((id) => page.photos.has(id));
  $("selection").hidden = !ids.length;
  if (!ids.length) return;
  const areRemoved = ids.every((id) => page.photos.get(id).isRemoved);
  const scrolled = $("selection").querySelector(".choices")?.scrollLeft ?? 0;
  const classes = make("div", { className: "choices" });
  if (!areRemoved) classes.append(...choices(ids, (code) => label(ids, code)), button("Other …", () => openFinder(ids), { title: "/" }));
  $("selection").replaceChildren(make("b", { textContent: counted(ids.length, "photo") }), classes,
    make("div", { className: "acts" }, ...actionsOn(ids), button("Look", () => openViewer(page.active), { title: "Space" }),
      button("×", () => { page.selected.clear(); drawAll(); }, { className: "round", "aria-label": "Clear the selection" })));
  classes.scrollLeft = scrolled;
}
