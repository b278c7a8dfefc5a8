// The page of `nearshot app`. Names of files and classes reach the page as text only, never as markup.

const $ = (id) => document.getElementById(id);
const KEYS = "123456789abcdefghijklmnopqrstuvwxyz";
const GAP = 8, CAPTION = 46, WIDEST_TILE = 168, UPLOADS = 3, NONE = -2;
const VIEWS = {
  next: ["Label next", "The photos that teach most: doubtful, new, and unlike each other."],
  all: ["All photos", ""],
  unlabelled: ["Not labelled", "Each shows its predicted class. Press Enter to accept it, or a class's key to correct it."],
  none: ["None of these", "Photos unlike all classes. They may belong to a class that is missing."],
  check: ["Check labels", "Judged by the other photos, these labels look wrong. Press Enter to change them, or keep them."],
  errors: ["Cannot be read", "These files are damaged, or not images. Point at one to see why."],
};

let state = { version: 0, classes: [], photos: [], next: [], suspicious: {}, errors: [], estimate: {}, confusion: { classes: [], counts: [] } };
let photos = new Map(); // by id, in order
let view = "all", sort = "doubt";
let shown = []; // the ids of the list, kept in place while the user labels
let labelledHere = 0; // labels since the list was made
let selected = new Set(), active = null, anchor = null;
const undone = []; // what Ctrl-Z restores; classes by name, since their numbers change
const tiles = new Map(); // rendered tiles by id
const upload = { queue: [], running: 0, done: 0, failed: [] };

// Building blocks

function make(tag, properties = {}, ...children) {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(properties)) {
    if (name.startsWith("--")) element.style.setProperty(name, value);
    else if (name in element) element[name] = value;
    else element.setAttribute(name, value);
  }
  element.append(...children);
  return element;
}

const percent = (share) => `${Math.min(99, Math.round(100 * share))} %`;
const counted = (n, one, many = `${one}s`) => `${n.toLocaleString("en")} ${n === 1 ? one : many}`;
const nameOf = (code) => (code < 0 ? null : state.classes[code]);
const hue = (code) => `${(155 + 137.5 * code) % 360}`;

async function ask(path, options = {}) {
  const answer = await fetch(path, options);
  if (!answer.ok) {
    const { error } = await answer.json().catch(() => ({}));
    throw new Error(error || `The request failed (${answer.status}).`);
  }
  return answer;
}

async function post(name, content = {}) {
  try {
    return await (await ask(`/api/${name}`, { method: "POST", body: JSON.stringify(content) })).json();
  } catch (error) {
    tell(error.message);
    return null;
  }
}

let toastTimer;
function tell(text) {
  $("toast").textContent = text;
  $("toast").classList.add("shown");
  clearTimeout(toastTimer);
  toastTimer = setTimeout(() => $("toast").classList.remove("shown"), 6000);
}

// The state, from the server

async function follow() {
  for (;;) {
    try {
      apply(await (await ask(`/api/state?after=${state.version}`)).json());
    } catch {
      trouble("nearshot has stopped. Start it again in the terminal, and open its new address.");
      await new Promise((done) => setTimeout(done, 2000));
    }
  }
}

function trouble(text) {
  $("trouble").hidden = !text;
  $("trouble").textContent = text;
}

function apply(fresh) {
  state = fresh;
  const known = photos;
  const errors = new Map(state.errors), next = new Set(state.next);
  photos = new Map(state.photos.map(([id, name, group, label, guess, confidence, doubt]) =>
    [id, { id, name, group, label, guess, confidence, doubt, error: errors.get(id), isNext: next.has(id), wrong: state.suspicious[id] }]));
  trouble(state.failure && `Something went wrong: ${state.failure} Restart nearshot; your labels are saved.`);
  if (!known.size && state.can_export) view = "next"; // a project that was opened again
  if (view.startsWith("class:") && !state.classes.includes(view.slice(6))) view = "all";
  if (!labelledHere || !shown.some((id) => photos.get(id)?.label === -1) || shown.every((id) => !photos.has(id))) list();
  else shown = [...shown, ...inView(view).map((photo) => photo.id).filter((id) => !known.has(id))].filter((id) => photos.has(id));
  selected = new Set([...selected].filter((id) => photos.has(id)));
  drawAll();
}

function inView(name) {
  const all = [...photos.values()];
  if (name === "next") return state.next.map((id) => photos.get(id)).filter(Boolean);
  if (name === "unlabelled") return all.filter((photo) => photo.label === -1);
  if (name === "none") return all.filter((photo) => photo.label === -1 && photo.guess === NONE);
  if (name === "check") return Object.keys(state.suspicious).map((id) => photos.get(id)).filter(Boolean);
  if (name === "errors") return all.filter((photo) => photo.error);
  const code = name.startsWith("class:") ? state.classes.indexOf(name.slice(6)) : -1;
  return code < 0 ? all : all.filter((photo) => (photo.label === -1 ? photo.guess : photo.label) === code);
}

function list() {
  const found = inView(view);
  const byName = (a, b) => a.name.localeCompare(b.name, undefined, { numeric: true });
  const answer = (photo) => (photo.label === -1 ? photo.guess : photo.label);
  const orders = {
    doubt: (a, b) => b.doubt - a.doubt, sure: (a, b) => a.doubt - b.doubt,
    class: (a, b) => answer(a) - answer(b) || b.confidence - a.confidence, name: byName,
  };
  if (view !== "next" && view !== "check") found.sort((a, b) => orders[sort](a, b) || byName(a, b));
  shown = found.map((photo) => photo.id);
  labelledHere = 0;
}

function show(name) {
  view = name;
  selected.clear();
  list();
  active = anchor = shown[0] ?? null;
  $("scroller").scrollTop = 0;
  drawAll();
}

// Drawing

function drawAll() {
  drawHeader();
  drawLists();
  drawToolbar();
  drawGrid();
  drawSelection();
  if ($("viewer").open) drawViewer();
}

function drawHeader() {
  const { mean, low, high, missing } = state.estimate, done = state.n_done ?? 0, left = state.photos.length - done;
  document.title = $("title").textContent = state.title ?? "nearshot";
  $("place").textContent = state.project ?? "";
  $("accuracy").hidden = !state.photos.length;
  $("accuracy").classList.toggle("missing", mean === undefined);
  $("accuracy-value").textContent = mean === undefined ? "" : `${Math.round(100 * mean)} %`;
  $("accuracy-about").textContent = missing ?? `expected accuracy, ${Math.round(100 * low)} to ${Math.round(100 * high)} %`;
  $("accuracy-notes").textContent = (state.notes ?? []).join(" ");
  if (mean !== undefined) {
    Object.assign($("accuracy-range").style, { left: `${100 * low}%`, width: `${100 * (high - low)}%` });
    $("accuracy-mean").style.left = `${100 * mean}%`;
  }
  const waiting = upload.queue.length + upload.running, total = upload.done + waiting;
  $("progress").hidden = !waiting && !left;
  const [now, all, text] = waiting ? [upload.done, total, "Adding photos"] : [done, state.photos.length, "Looking at photos"];
  $("progress").setAttribute("aria-valuenow", all ? Math.round((100 * now) / all) : 0);
  $("progress").children[0].style.width = `${all ? (100 * now) / all : 0}%`;
  $("progress").children[1].textContent = `${text}: ${now.toLocaleString("en")} of ${all.toLocaleString("en")}`;
  $("open-export").disabled = !state.classes.length;
}

function listItem(name, label, count, extra = []) {
  const button = make("button", { type: "button", onclick: () => show(name) }, ...extra, make("span", { className: "name", textContent: label }), count);
  button.setAttribute("aria-current", String(view === name));
  return make("li", {}, button);
}

function drawLists() {
  const focused = document.activeElement?.closest("nav li")?.dataset.view;
  const items = Object.keys(VIEWS).map((name) => {
    const n = inView(name).length, isAlert = name === "check" && n > 0;
    const item = listItem(name, VIEWS[name][0], make("span", { className: isAlert ? "count alert" : "count", textContent: n.toLocaleString("en") }));
    item.dataset.view = name;
    item.hidden = !n && name !== "all" && name !== view;
    return item;
  });
  $("views").replaceChildren(...items);
  const labelled = state.classes.map(() => 0), predicted = state.classes.map(() => 0);
  for (const photo of photos.values()) {
    if (photo.label >= 0) labelled[photo.label] += 1;
    else if (photo.guess >= 0) predicted[photo.guess] += 1;
  }
  $("classes").replaceChildren(...state.classes.map((name, code) => {
    const count = make("span", { className: "count", title: `${labelled[code]} labelled, ${predicted[code]} predicted` }, make("b", { textContent: labelled[code] }), predicted[code] ? ` + ${predicted[code].toLocaleString("en")}` : "");
    const mark = [make("span", { className: "dot", "--hue": hue(code) }), ...(KEYS[code] ? [make("kbd", { textContent: KEYS[code] })] : [])];
    const item = listItem(`class:${name}`, name, count, mark);
    item.dataset.view = `class:${name}`;
    item.append(make("button", { className: "more", type: "button", textContent: "⋯", "aria-label": `Rename or remove ${name}`, onclick: () => editClass(name) }));
    item.ondragover = (event) => { if (!isFiles(event)) { event.preventDefault(); item.classList.add("over"); } };
    item.ondragleave = () => item.classList.remove("over");
    item.ondrop = (event) => { if (!isFiles(event)) { event.preventDefault(); item.classList.remove("over"); label([...selected], code); } };
    return item;
  }));
  if (focused) [...document.querySelectorAll("nav li")].find((item) => item.dataset.view === focused)?.firstChild.focus();
}

function drawToolbar() {
  const [title, about] = VIEWS[view] ?? [view.slice(6), "Labelled with this class, or predicted to be of it."];
  $("heading").replaceChildren(title, " ", make("small", { textContent: counted(shown.length, "photo") }));
  $("sorting").hidden = view === "next" || view === "check" || !shown.length;
  $("refresh").hidden = !labelledHere;
  const groups = new Set([...photos.values()].map((photo) => photo.group).filter(Boolean));
  const isNew = photos.size > 0 && ![...photos.values()].some((photo) => photo.label >= 0);
  let hint = [about];
  if (isNew && !state.classes.length) hint = ["Name your classes on the left. Then drag a few photos to each, or select them and press its key."];
  else if (isNew) hint = ["Now label a few photos of each class: drag them to it, or select them and press its key."];
  if (isNew && groups.size > 1) hint.push(" ", make("button", { type: "button", textContent: `Use the names of the ${groups.size} folders as labels`, onclick: () => post("label-by-folders") }));
  $("hint").replaceChildren(...hint);
  $("empty").hidden = shown.length > 0;
  if (photos.size) $("empty").replaceChildren(make("h3", { textContent: view === "check" ? "All labels look right" : "No photos here" }));
  else {
    $("empty").replaceChildren(make("h3", { textContent: "Drop photos or a folder here" }), make("p", { textContent: "They stay on this computer." }),
      make("button", { type: "button", className: "primary", textContent: "Choose photos", onclick: () => $("files").click() }),
      make("button", { type: "button", textContent: "Choose a folder", onclick: () => $("folder").click() }));
  }
}

function layout() {
  const wide = $("grid").clientWidth, columns = Math.max(2, Math.ceil((wide + GAP) / (WIDEST_TILE + GAP)));
  const width = (wide - GAP * (columns - 1)) / columns;
  return { columns, width, height: width + CAPTION };
}

function drawGrid() {
  const { columns, width, height } = layout(), step = height + GAP;
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

function makeTile(id) {
  const tile = make("div", { id: `photo-${id}`, className: "tile", role: "option", draggable: true });
  tile.append(make("img", { alt: "", draggable: false, decoding: "async", src: `/thumbnails/${id}.jpg` }), make("div", { className: "caption" }), make("div", { className: "below" }));
  tile.onclick = (event) => choose(id, event);
  tile.ondblclick = () => openViewer(id);
  tile.ondragstart = (event) => {
    if (!selected.has(id)) choose(id, {});
    event.dataTransfer.setData("application/x-nearshot", "photos");
    event.dataTransfer.effectAllowed = "move";
  };
  return tile;
}

function chip(code, isSure = false) {
  if (code === NONE) return make("span", { className: "chip none", textContent: "none of these" });
  return make("span", { className: isSure ? "chip sure" : "chip", "--hue": hue(code), textContent: state.classes[code] });
}

function sentence(photo) {
  if (photo.error) return `cannot be read: ${photo.error}`;
  if (photo.label >= 0) {
    const wrong = photo.wrong ? `, but looks like ${state.classes[photo.wrong[0]]}, ${percent(photo.wrong[1])}` : "";
    return `labelled ${state.classes[photo.label]}${wrong}`;
  }
  if (photo.guess === NONE) return "none of these";
  return photo.guess >= 0 ? `predicted ${state.classes[photo.guess]}, ${percent(photo.confidence)}` : "not labelled";
}

function fillTile(tile, photo) {
  const content = JSON.stringify([photo, state.classes, view]);
  tile.setAttribute("aria-selected", String(selected.has(photo.id)));
  tile.classList.toggle("active", photo.id === active);
  if (tile.content === content) return;
  tile.content = content;
  const [image, caption, below] = tile.children;
  if (photo.error && image.tagName === "IMG") image.replaceWith(make("div", { className: "gone", textContent: "cannot be read" }));
  tile.setAttribute("aria-label", `${photo.name}, ${sentence(photo)}`);
  tile.classList.toggle("doubtful", photo.label === -1 && photo.doubt > 0.6);
  tile.title = photo.error ?? photo.name;
  const parts = photo.label >= 0 ? [chip(photo.label, true)] : photo.guess === -1 ? [] : [chip(photo.guess)];
  if (photo.label === -1 && photo.guess >= 0) parts.push(make("span", { className: "percent", textContent: percent(photo.confidence) }));
  caption.replaceChildren(...parts);
  below.className = photo.wrong ? "below warn" : "below";
  below.textContent = photo.wrong ? `looks like ${state.classes[photo.wrong[0]]}, ${percent(photo.wrong[1])}`
    : view === "next" && photo.label === -1 ? why(photo) : photo.name;
}

function why(photo) {
  if (photo.guess === NONE) return "new: unlike all classes";
  return photo.guess >= 0 ? (photo.doubt > 0.4 ? "the classifier hesitates" : "unlike the others") : "a good start";
}

function choices(ids, act) {
  const codes = new Set(ids.map((id) => photos.get(id)?.label));
  return state.classes.map((name, code) => make("button", { type: "button", "--hue": hue(code), "aria-pressed": String(codes.size === 1 && codes.has(code)), onclick: () => act(code) },
    make("span", { className: "dot" }), make("span", { className: "name", textContent: name }), ...(KEYS[code] ? [make("kbd", { textContent: KEYS[code] })] : [])));
}

function drawSelection() {
  const ids = [...selected];
  $("selection").hidden = !ids.length;
  if (!ids.length) return;
  const hasLabel = ids.some((id) => photos.get(id).label >= 0), isWrong = ids.some((id) => photos.get(id).wrong);
  const scrolled = $("selection").querySelector(".choices")?.scrollLeft ?? 0;
  const buttons = [];
  if (isWrong) buttons.push(make("button", { type: "button", textContent: "Keep the label", onclick: () => keep(ids) }));
  if (hasLabel) buttons.push(make("button", { type: "button", textContent: "Remove the label", onclick: () => label(ids, -1) }));
  else if (ids.some((id) => photos.get(id).guess >= 0)) buttons.push(make("button", { type: "button", textContent: "Accept", title: "Enter", onclick: () => accept(ids) }));
  $("selection").replaceChildren(make("b", { textContent: counted(ids.length, "photo") }),
    make("div", { className: "choices" }, ...choices(ids, (code) => label(ids, code))), ...buttons,
    make("button", { type: "button", textContent: "Look", onclick: () => openViewer(active) }),
    make("button", { type: "button", className: "round", textContent: "×", "aria-label": "Clear the selection", onclick: () => { selected.clear(); drawAll(); } }));
  $("selection").querySelector(".choices").scrollLeft = scrolled;
}

// Selecting and labelling

function choose(id, { shiftKey, ctrlKey, metaKey }) {
  if (shiftKey && anchor && shown.includes(anchor)) {
    const [from, to] = [shown.indexOf(anchor), shown.indexOf(id)].sort((a, b) => a - b);
    selected = new Set(shown.slice(from, to + 1));
  } else if (ctrlKey || metaKey) {
    selected.has(id) ? selected.delete(id) : selected.add(id);
    anchor = id;
  } else {
    selected = new Set([id]);
    anchor = id;
  }
  active = id;
  drawSelection(); // which hides what lies under it
  reveal(id);
  drawGrid();
}

function move(by, shiftKey = false) {
  const place = shown.indexOf(active);
  const target = place < 0 ? 0 : Math.min(shown.length - 1, Math.max(0, place + by));
  if (shown.length) choose(shown[target], { shiftKey });
}

function reveal(id) {
  const { columns, height } = layout(), scroller = $("scroller"), y = Math.floor(shown.indexOf(id) / columns) * (height + GAP);
  const room = $("selection").offsetHeight + 24;
  if (y < scroller.scrollTop) scroller.scrollTop = y;
  else if (y + height > scroller.scrollTop + scroller.clientHeight - room) scroller.scrollTop = y + height - scroller.clientHeight + room;
}

const labelsOf = (ids) => ids.map((id) => [id, nameOf(photos.get(id).label)]);

async function label(ids, code, { advance = ids.length === 1, remember = true } = {}) {
  if (!ids.length) return;
  if (remember) undone.push({ labels: labelsOf(ids) });
  const place = shown.indexOf(ids[0]);
  for (const id of ids) Object.assign(photos.get(id), { label: code, wrong: undefined }); // at once; the server follows
  labelledHere += 1;
  if (advance && code >= 0 && place >= 0 && place < shown.length - 1) {
    selected = new Set([shown[place + 1]]);
    active = anchor = shown[place + 1];
    drawSelection();
    reveal(active);
  } else if (code >= 0 && ids.length > 1) selected.clear();
  drawAll();
  await post("label", { ids, label: nameOf(code) });
}

async function accept(ids) {
  const byCode = new Map();
  for (const id of ids) {
    const photo = photos.get(id), code = photo.wrong ? photo.wrong[0] : photo.label === -1 ? photo.guess : -1;
    if (code >= 0) byCode.set(code, [...(byCode.get(code) ?? []), id]);
  }
  if (!byCode.size) tell("These photos have no predicted class.");
  undone.push({ labels: labelsOf([...byCode.values()].flat()) });
  for (const [code, some] of byCode) await label(some, code, { advance: ids.length === 1, remember: false });
}

async function keep(ids) {
  for (const id of ids) photos.get(id).wrong = undefined;
  labelledHere += 1;
  drawAll();
  await post("confirm", { ids });
}

async function remove(ids) {
  if (!ids.length) return;
  undone.push({ removed: ids });
  selected.clear();
  tell(`${counted(ids.length, "photo")} taken out. The files stay; Ctrl+Z brings them back.`);
  await post("remove", { ids, removed: true });
}

async function undo() {
  const last = undone.pop();
  if (!last) return tell("There is nothing to undo.");
  if (last.removed) return post("remove", { ids: last.removed, removed: false });
  if (last.gone) await post("add-class", { name: last.gone });
  for (const name of new Set(last.labels.map(([, name]) => name)))
    await post("label", { ids: last.labels.filter((one) => one[1] === name).map(([id]) => id), label: name });
  selected = new Set(last.labels.map(([id]) => id).filter((id) => photos.has(id)));
  active = anchor = last.labels[0]?.[0] ?? active;
  drawAll();
}

async function addClass(name) {
  const made = await post("add-class", { name });
  if (made) $("class-name").value = "";
}

function editClass(name) {
  $("rename-name").value = name;
  $("class-editor").name = name;
  $("class-editor").showModal();
}

// One photo, large

function openViewer(id) {
  if (!photos.has(id)) return;
  choose(id, {});
  if (!$("viewer").open) $("viewer").showModal();
  drawViewer();
}

async function drawViewer() {
  const photo = photos.get(active);
  if (!photo) return $("viewer").close();
  const address = `/large/${photo.id}.jpg`;
  if ($("viewer-image").getAttribute("src") !== address) $("viewer-image").src = address;
  $("viewer-image").alt = $("viewer-name").textContent = photo.name;
  $("viewer-state").textContent = `${sentence(photo)[0].toUpperCase()}${sentence(photo).slice(1)}`;
  $("viewer-classes").replaceChildren(...choices([photo.id], (code) => label([photo.id], code, { advance: false })));
  $("viewer-judge").textContent = photo.label >= 0 ? "Judged by the other photos" : "Probabilities";
  $("previous").disabled = shown[0] === photo.id;
  $("following").disabled = shown.at(-1) === photo.id;
  const about = await (await ask(`/api/photos/${photo.id}`)).json();
  if (photo.id !== active) return;
  $("viewer-bars").replaceChildren(...about.probabilities.map(([name, share]) => make("div", { className: "bar", "--hue": hue(state.classes.indexOf(name)), "--share": `${100 * share}%` },
    make("span", { textContent: name }), make("i"), make("span", { textContent: `${(100 * share).toFixed(1)} %` }))));
  $("viewer-near").replaceChildren(...about.nearest.filter((id) => photos.has(id)).map((id) => make("div", { title: photos.get(id).name },
    make("img", { src: `/thumbnails/${id}.jpg`, alt: photos.get(id).name }), state.classes[photos.get(id).label] ?? "")));
}

// Confusion table and export

function drawConfusion() {
  const { classes, counts } = state.confusion, { mean, low, high, missing } = state.estimate;
  const n = counts.flat().reduce((sum, one) => sum + one, 0);
  $("confusion-notes").textContent = (state.notes ?? []).join(" ");
  $("confusion-about").textContent = missing ?? `Of new photos like these, about ${Math.round(100 * mean)} % will get the right class; ${Math.round(100 * low)} to ${Math.round(100 * high)} % with 95 % confidence. This is how often ${counted(n, "labelled photo")} got their own label from the others. Rows are labels, columns are answers.${state.advice ? ` ${state.advice} Stop nearshot first; your labels are kept.` : ""}`;
  const head = make("tr", {}, make("th"), ...classes.map((name) => make("th", { scope: "col", title: name, textContent: name })));
  const rows = counts.map((row, code) => {
    const total = row.reduce((sum, one) => sum + one, 0);
    return make("tr", {}, make("th", { scope: "row", title: classes[code], textContent: classes[code] }), ...row.map((count, answer) =>
      make("td", { textContent: count, className: count ? (code === answer ? "" : "wrong") : "zero", "--share": `${count ? 15 + (75 * count) / total : 0}%`, title: `${classes[code]} answered as ${classes[answer]}: ${count} of ${total}` })));
  });
  $("confusion-table").replaceChildren(...(missing ? [] : [make("table", {}, make("thead", {}, head), make("tbody", {}, ...rows))]));
}

async function download(button) {
  const name = button.dataset.file;
  button.disabled = true;
  $("export-state").textContent = `Preparing ${name} …`;
  try {
    const link = make("a", { href: URL.createObjectURL(await (await ask(`/export/${name}`)).blob()), download: name });
    link.click();
    URL.revokeObjectURL(link.href);
    $("export-state").textContent = `${name} is in your downloads.`;
  } catch (error) {
    $("export-state").textContent = error.message;
  }
  button.disabled = false;
}

async function copyPhotos() {
  $("copy").disabled = true;
  $("export-state").textContent = "Copying …";
  const done = await post("copy", { predicted: $("with-predicted").checked });
  $("copy").disabled = false;
  if (!done) return;
  const failed = done.failures.length ? ` ${counted(done.failures.length, "photo")} could not be copied: ${done.failures[0]}` : "";
  $("export-state").textContent = `${counted(done.new, "photo")} copied to ${done.folder}${done.same ? `; ${counted(done.same, "photo")} there already` : ""}.${failed} ${done.earlier}`;
}

// Adding photos

const isFiles = (event) => [...(event.dataTransfer?.types ?? [])].includes("Files");

async function filesIn(entry, group = "") {
  if (entry.isFile) return new Promise((done) => entry.file((file) => done([{ file, group }]), () => done([])));
  const reader = entry.createReader(), found = [];
  for (;;) {
    const some = await new Promise((done) => reader.readEntries(done, () => done([])));
    if (!some.length) return found;
    for (const one of some) found.push(...await filesIn(one, one.isDirectory && !group ? one.name : group));
  }
}

function add(entries) {
  upload.queue.push(...entries.filter(({ file }) => !file.name.startsWith(".")));
  while (upload.running < UPLOADS && upload.queue.length) send();
  drawHeader();
}

async function send() {
  upload.running += 1;
  while (upload.queue.length) {
    const { file, group } = upload.queue.shift();
    try {
      await ask(`/api/photos?${new URLSearchParams({ name: file.name, group })}`, { method: "PUT", body: file });
    } catch (error) {
      upload.failed.push(error.message);
    }
    upload.done += 1;
    drawHeader();
  }
  upload.running -= 1;
  if (upload.running) return;
  if (upload.failed.length) tell(`${counted(upload.failed.length, "file")} not added: ${upload.failed[0]}`);
  Object.assign(upload, { done: 0, failed: [] });
  drawHeader();
}

const chosen = (input) => [...input.files].map((file) => ({ file, group: file.webkitRelativePath.split("/").slice(1, -1)[0] ?? "" }));

// Events

document.addEventListener("keydown", (event) => {
  const { key, target, ctrlKey, metaKey, shiftKey, altKey } = event, inViewer = $("viewer").open;
  if (altKey || target.matches("input, select") || (document.querySelector("dialog[open]") && !inViewer)) return;
  const ids = inViewer ? [active] : [...selected], inGrid = inViewer || target === $("grid") || target === document.body;
  const onButton = target.matches("button");
  const code = KEYS.indexOf(key.toLowerCase());
  const columns = inViewer ? 1 : layout().columns;
  const steps = { ArrowLeft: -1, ArrowRight: 1, ArrowUp: -columns, ArrowDown: columns, Home: -shown.length, End: shown.length };
  const isCommand = ctrlKey || metaKey;
  let isOurs = true;
  if (isCommand && key === "z") undo();
  else if (isCommand && key === "a" && !inViewer) { selected = new Set(shown); drawAll(); }
  else if (isCommand) isOurs = false;
  else if (inGrid && key in steps) { move(steps[key], shiftKey && !inViewer); if (inViewer) drawViewer(); }
  else if (ids.length && code >= 0 && code < state.classes.length) label(ids, code, { advance: ids.length === 1 });
  else if (key === "Enter" && ids.length && !onButton) accept(ids);
  else if (key === " " && inGrid && !onButton) inViewer ? $("viewer").close() : openViewer(active ?? shown[0]);
  else if (key === "Backspace" && ids.length) label(ids.filter((id) => photos.get(id).label >= 0), -1);
  else if (key === "Delete" && ids.length) remove(ids);
  else if (key === "Escape" && !inViewer) { selected.clear(); drawAll(); }
  else if (key === "?") $("help").showModal();
  else isOurs = false;
  if (isOurs) event.preventDefault();
});

document.addEventListener("dragover", (event) => { if (isFiles(event)) { event.preventDefault(); $("drop").hidden = false; } });
document.addEventListener("dragleave", (event) => { if (!event.relatedTarget) $("drop").hidden = true; });
document.addEventListener("drop", async (event) => {
  if (!isFiles(event)) return;
  event.preventDefault();
  $("drop").hidden = true;
  const entries = [...event.dataTransfer.items].map((item) => item.webkitGetAsEntry()).filter(Boolean);
  for (const entry of entries) add(await filesIn(entry, entries.length > 1 && entry.isDirectory ? entry.name : ""));
});
for (const name of ["files", "folder"]) $(name).onchange = () => { add(chosen($(name))); $(name).value = ""; };
$("add").onclick = () => $("files").click();
$("add-folder").onclick = () => $("folder").click();
$("accuracy").onclick = () => { drawConfusion(); $("confusions").showModal(); };
$("open-export").onclick = () => { $("export-state").textContent = ""; $("exporter").showModal(); };
$("open-help").onclick = () => $("help").showModal();
$("copy").onclick = copyPhotos;
for (const button of document.querySelectorAll("[data-file]")) button.onclick = () => download(button);
for (const button of document.querySelectorAll("dialog .close")) button.onclick = () => button.closest("dialog").close();
for (const dialog of document.querySelectorAll("dialog")) dialog.addEventListener("click", (event) => { if (event.target === dialog) dialog.close(); });
$("viewer").onclose = () => $("grid").focus();
$("previous").onclick = () => { move(-1); drawViewer(); };
$("following").onclick = () => { move(1); drawViewer(); };
$("new-class").onsubmit = (event) => { event.preventDefault(); addClass($("class-name").value); };
$("rename").onsubmit = async (event) => {
  event.preventDefault();
  const name = $("class-editor").name, made = await post("rename-class", { name, new_name: $("rename-name").value });
  if (!made) return;
  for (const one of undone.flatMap(({ labels = [] }) => labels)) if (one[1] === name) one[1] = made.result;
  for (const one of undone) if (one.gone === name) one.gone = made.result;
  $("class-editor").close();
};
$("remove-class").onclick = async () => {
  const gone = $("class-editor").name, labels = labelsOf([...photos.keys()]).filter((one) => one[1] === gone);
  if (!await post("remove-class", { name: gone })) return;
  undone.push({ gone, labels });
  tell(`The class ${gone} was removed, with its ${counted(labels.length, "label")}. Ctrl+Z brings it back.`);
  $("class-editor").close();
};
$("sort").onchange = () => { sort = $("sort").value; show(view); };
$("refresh").onclick = () => show(view);
$("grid").onfocus = () => { if (!active && shown.length) { active = shown[0]; drawGrid(); } };
$("scroller").addEventListener("scroll", () => requestAnimationFrame(drawGrid), { passive: true });
new ResizeObserver(() => drawGrid()).observe($("scroller"));
history.replaceState(null, "", "/"); // the token is in a cookie now
follow();
