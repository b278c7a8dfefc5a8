// Which photos a view lists, and in which order.

import { $, byText } from "./dom.js";
import { drawAll } from "./draw.js";
import { isLabelled, NONE, page } from "./state.js";

export const VIEWS = {
  next: ["Label next", "The photos that teach most: doubtful, new, and unlike each other."],
  all: ["All photos", ""],
  unlabelled: ["Not labelled", "Each shows its predicted class. Press Enter to accept it, or a class's key to correct it."],
  none: ["None of these", "Photos unlike all classes. Press Enter or 0 to label them so, or drag photos here. They may belong to a class that is missing."],
  check: ["Check labels", "Judged by the other photos, these labels look wrong. Change them, or keep them."],
  accepted: ["Accepted", "Labels that you took over in bulk. They train, but do not count in the expected accuracy until you look at one and press Enter."],
  errors: ["Cannot be read", "These files are damaged, or not images. Point at one to see why."],
  removed: ["Removed", "Photos that you took out. Their files and labels stay. Press Enter to put them back."],
};
const KEEPS_ITS_ORDER = ["next", "check"];

export const answerOf = (photo) => (isLabelled(photo) ? photo.label : photo.guess);
export const isSorted = () => !KEEPS_ITS_ORDER.includes(page.view);

export function inView(name) {
  const { state, photos } = page;
  const everything = [...photos.values()], all = everything.filter((photo) => !photo.isRemoved);
  const byId = (ids) => ids.map((id) => photos.get(id)).filter((photo) => photo && !photo.isRemoved);
  if (name === "next") return byId(state.next);
  if (name === "check") return byId(Object.keys(state.suspicious));
  if (name === "removed") return everything.filter((photo) => photo.isRemoved);
  if (name === "unlabelled") return all.filter((photo) => !isLabelled(photo));
  if (name === "none") return all.filter((photo) => answerOf(photo) === NONE);
  if (name === "accepted") return all.filter((photo) => photo.isAccepted);
  if (name === "errors") return all.filter((photo) => photo.error);
  if (!name.startsWith("class:")) return all;
  const code = state.classes.indexOf(name.slice(6));
  return all.filter((photo) => answerOf(photo) === code);
}

export function list() {
  const words = page.search.toLowerCase().split(/\s+/).filter(Boolean);
  const matches = (photo) => words.every((word) => `${photo.group}/${photo.name}`.toLowerCase().includes(word));
  const found = inView(page.view).filter(matches);
  const byName = (a, b) => byText(`${a.group}/${a.name}`, `${b.group}/${b.name}`);
  const orders = {
    doubt: (a, b) => b.doubt - a.doubt, sure: (a, b) => a.doubt - b.doubt,
    class: (a, b) => answerOf(a) - answerOf(b) || b.confidence - a.confidence, name: byName,
  };
  if (isSorted()) found.sort((a, b) => orders[page.sort](a, b) || byName(a, b));
  page.shown = found.map((photo) => photo.id);
  page.labelledHere = 0;
}

export function show(name) {
  page.view = name;
  page.selected.clear();
  list();
  page.active = page.anchor = page.shown[0] ?? null;
  $("scroller").scrollTop = 0;
  drawAll();
}
