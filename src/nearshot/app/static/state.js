// What the page knows: the state from the server, and what the user looks at and has selected.

import { $ } from "./dom.js";
import { drawAll } from "./draw.js";
import { inView, list } from "./lists.js";
import { ask, isPosting, posted } from "./server.js";

export const UNLABELLED = -1, NONE = -2; // of labels and guesses; others are the numbers of classes
export const NONE_NAME = "none of these";
export const KEYS = "123456789abcdefghijklmnopqrstuvwxyz";
export const NONE_KEY = "0";

export const page = {
  state: { version: 0, classes: [], slots: [], photos: [], removed: [], next: [], suspicious: {}, errors: [], accepted: [], things: {}, estimate: {}, confusion: { classes: [], counts: [] }, undo: "", redo: "" },
  photos: new Map(), // by id, in order; also the removed ones
  repeated: new Set(), // names that several photos have
  view: "all",
  sort: "doubt",
  search: "",
  shown: [], // the ids of the list, kept in place while the user labels
  labelledHere: 0, // labels since the list was made
  selected: new Set(),
  active: null,
  anchor: null,
};

export const nameOf = (code) => (code === NONE ? NONE_NAME : page.state.classes[code] ?? null);
export const isLabelled = (photo) => photo.label !== UNLABELLED;
// A class keeps its slot, and so its key and colour, when others are removed.
export const hue = (code) => `${(155 + 137.5 * page.state.slots[code]) % 360}`;
export const keyOf = (code) => (code === NONE ? NONE_KEY : KEYS[page.state.slots[code]] ?? "");
export const codeOfKey = (key) => (key === NONE_KEY ? NONE : KEYS.includes(key) ? page.state.slots.indexOf(KEYS.indexOf(key)) : UNLABELLED);
export const fullName = (photo) => (photo.group && page.repeated.has(photo.name) ? `${photo.group}/${photo.name}` : photo.name);

export async function follow() {
  for (;;) {
    try {
      const state = await (await ask(`api/state?after=${page.state.version}`)).json();
      if (isPosting()) await posted(); // the state may be older than what is shown: ask again
      else apply(state);
    } catch {
      trouble("nearshot has stopped. Start it again in the terminal, and open its new address.");
      await new Promise((done) => setTimeout(done, 2000));
    }
  }
}

// Show the project as it is now, with some photos selected.
export async function refresh(ids = null) {
  apply(await (await ask("api/state")).json(), ids);
}

function trouble(text) {
  $("trouble").hidden = !text;
  $("trouble").textContent = text;
}

function photoOf(state) {
  const errors = new Map(state.errors), next = new Set(state.next), accepted = new Set(state.accepted);
  return ([id, name, group, label, guess, confidence, doubt]) => ({
    id, name, group, label, guess, confidence, doubt, error: errors.get(id), isNext: next.has(id),
    wrong: state.suspicious[id], isAccepted: accepted.has(id), thing: state.things[id], isRemoved: false,
  });
}

function apply(state, ids = null) {
  if (state.version < page.state.version) return; // an answer that was overtaken
  const known = page.photos;
  page.state = state;
  const present = state.photos.map(photoOf(state));
  const removed = state.removed.map(([id, name, group]) => ({ id, name, group, label: UNLABELLED, guess: UNLABELLED, confidence: 0, doubt: 0, isRemoved: true }));
  page.photos = new Map([...present, ...removed].map((photo) => [photo.id, photo]));
  const names = new Set();
  page.repeated = new Set();
  for (const { name } of page.photos.values()) names.has(name) ? page.repeated.add(name) : names.add(name);
  trouble(state.failure && `Something went wrong: ${state.failure} Restart nearshot; your labels are saved.`);
  if (!known.size && state.can_export) page.view = "next"; // a project that was opened again
  if (page.view.startsWith("class:") && !state.classes.includes(page.view.slice(6))) page.view = "all";
  keepList(known);
  const visible = new Set(page.shown);
  if (ids) page.selected = new Set(ids);
  page.selected = new Set([...page.selected].filter((id) => visible.has(id)));
  if (ids) page.active = page.anchor = [...page.selected][0] ?? page.active;
  if (page.active && !visible.has(page.active)) page.active = page.anchor = null;
  drawAll();
}

// Keep the list in place while the user labels: new photos come last, and what is gone goes.
function keepList(known) {
  const isSettled = !page.shown.some((id) => page.photos.get(id)?.label === UNLABELLED);
  const isOfThisView = ({ isRemoved }) => isRemoved === (page.view === "removed");
  const kept = page.shown.filter((id) => page.photos.has(id) && isOfThisView(page.photos.get(id)));
  if (!page.labelledHere || isSettled || !kept.length) return list();
  const isNew = (id) => !known.has(id) || known.get(id).isRemoved !== page.photos.get(id).isRemoved;
  const added = inView(page.view).map((photo) => photo.id).filter(isNew);
  page.shown = [...new Set([...kept, ...added])];
}
