// The grid of photos. It is virtual: photos out of sight have no elements.

import { $, make, percent } from "./dom.js";
import { drawGrid, drawSelection } from "./draw.js";
import { answerOf } from "./lists.js";
import { fullName, hue, isLabelled, nameOf, NONE, NONE_NAME, page, UNLABELLED } from "./state.js";
import { openViewer } from "./viewer.js";

export const GAP = 8;
const CAPTION = 74, WIDEST_TILE = 168;

export function layout() {
  const wide = $("grid").clientWidth, columns = Math.max(2, Math.ceil((wide + GAP) / (WIDEST_TILE + GAP)));
  const width = (wide - GAP * (columns - 1)) / columns;
  return { columns, width, height: width + CAPTION };
}

export function makeTile(id) {
  const tile = make("div", { id: `photo-${id}`, className: "tile", role: "option", draggable: true });
  tile.append(make("img", { alt: "", draggable: false, decoding: "async", src: `thumbnails/${id}.jpg` }), make("div", { className: "caption" }), make("div", { className: "below" }));
  tile.onclick = (event) => choose(id, event);
  tile.ondblclick = () => openViewer(id);
  tile.ondragstart = (event) => {
    if (!page.selected.has(id)) choose(id, {});
    event.dataTransfer.setData("application/x-nearshot", "photos");
    event.dataTransfer.effectAllowed = "move";
  };
  return tile;
}

function chip(code, properties = {}) {
  const { className = "chip", ...others } = properties;
  if (code === NONE) return make("span", { className: `${className} none`, textContent: NONE_NAME, ...others });
  return make("span", { className, "--hue": hue(code), textContent: nameOf(code), title: nameOf(code), ...others });
}

// What is known of a photo, in words.
export function sentence(photo) {
  if (photo.isRemoved) return "removed";
  if (photo.error) return `cannot be read: ${photo.error}`;
  if (isLabelled(photo)) {
    const wrong = photo.wrong ? `, but looks like ${nameOf(photo.wrong[0])}, ${percent(photo.wrong[1])}` : "";
    return `labelled ${nameOf(photo.label)}${photo.isAccepted ? ", accepted with others" : ""}${wrong}`;
  }
  if (photo.guess === NONE) return NONE_NAME;
  return photo.guess >= 0 ? `predicted ${nameOf(photo.guess)}, ${percent(photo.confidence)}` : "not labelled";
}

function why(photo) {
  if (photo.guess === NONE) return "new: unlike all classes";
  return photo.guess >= 0 ? (photo.doubt > 0.4 ? "the classifier hesitates" : "unlike the others") : "a good start";
}

// Words that only a screen reader says.
const spoken = (text) => make("span", { className: "spoken", textContent: text });

function stateOf(photo) {
  if (photo.isRemoved) return "removed";
  if (photo.error) return "";
  if (isLabelled(photo)) return photo.isAccepted ? "accepted with others as " : "labelled ";
  return answerOf(photo) === UNLABELLED ? "not labelled" : "predicted ";
}

function captionOf(photo) {
  const parts = [spoken(stateOf(photo))];
  if (isLabelled(photo)) parts.push(chip(photo.label, { className: photo.isAccepted ? "chip sure accepted" : "chip sure" }));
  else if (answerOf(photo) !== UNLABELLED) parts.push(chip(photo.guess));
  if (!isLabelled(photo) && photo.guess >= 0) parts.push(" ", make("span", { className: "percent", textContent: percent(photo.confidence) }));
  if (photo.thing) {
    const n = Object.values(page.state.things).filter((thing) => thing === photo.thing).length;
    parts.push(" ", make("span", { className: "thing", textContent: `×${n}`, title: `${n} photos show the same thing` }));
  }
  return parts;
}

export function fillTile(tile, photo) {
  const { state, view } = page;
  const content = JSON.stringify([photo, state.classes, state.slots, view, fullName(photo), photo.thing && state.things]);
  tile.setAttribute("aria-selected", String(page.selected.has(photo.id)));
  tile.classList.toggle("active", photo.id === page.active);
  if (tile.content === content) return;
  tile.content = content;
  const [image, caption, below] = tile.children;
  if (photo.error && image.tagName === "IMG") image.replaceWith(make("div", { className: "gone", textContent: "cannot be read" }));
  tile.dataset.name = fullName(photo);
  tile.classList.toggle("doubtful", !isLabelled(photo) && photo.doubt > 0.6);
  tile.title = photo.error ?? (photo.group ? `${photo.group}/${photo.name}` : photo.name);
  caption.replaceChildren(...captionOf(photo));
  below.className = photo.wrong ? "below warn" : "below";
  const remark = photo.wrong ? `looks like ${nameOf(photo.wrong[0])}, ${percent(photo.wrong[1])}` : view === "next" && !isLabelled(photo) ? why(photo) : "";
  below.replaceChildren(...(remark ? [remark, spoken(` ${fullName(photo)}`)] : [fullName(photo)]));
}

// Selecting

export function choose(id, { shiftKey, ctrlKey, metaKey }) {
  const { shown, selected, anchor } = page;
  if (shiftKey && anchor && shown.includes(anchor)) {
    const [from, to] = [shown.indexOf(anchor), shown.indexOf(id)].sort((a, b) => a - b);
    page.selected = new Set(shown.slice(from, to + 1));
  } else if (ctrlKey || metaKey) {
    selected.has(id) ? selected.delete(id) : selected.add(id);
    page.anchor = id;
  } else {
    page.selected = new Set([id]);
    page.anchor = id;
  }
  page.active = id;
  drawSelection(); // which hides what lies under it
  reveal(id);
  drawGrid();
}

export function move(by, shiftKey = false) {
  const { shown, active } = page, place = shown.indexOf(active);
  const target = place < 0 ? 0 : Math.min(shown.length - 1, Math.max(0, place + by));
  if (shown.length) choose(shown[target], { shiftKey });
}

export function reveal(id) {
  const { columns, height } = layout(), scroller = $("scroller"), y = Math.floor(page.shown.indexOf(id) / columns) * (height + GAP);
  const room = $("selection").offsetHeight + 24;
  if (y < scroller.scrollTop) scroller.scrollTop = y;
  else if (y + height > scroller.scrollTop + scroller.clientHeight - room) scroller.scrollTop = y + height - scroller.clientHeight + room;
}
