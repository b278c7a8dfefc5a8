// What a person does to photos and classes. One action is one request, and one step to undo.

import { counted, tell } from "./dom.js";
import { drawAll, drawSelection } from "./draw.js";
import { reveal } from "./grid.js";
import { post } from "./server.js";
import { isLabelled, nameOf, page, refresh, UNLABELLED } from "./state.js";

const photosOf = (ids) => ids.map((id) => page.photos.get(id)).filter((photo) => photo && !photo.isRemoved);

export const isDoubted = (photo) => Boolean(photo.wrong);

// Show new labels at once; the server follows. After one photo, the next one is selected.
function showLabels(codes, { advance, isAccepted = false }) {
  const ids = [...codes.keys()], place = page.shown.indexOf(ids[0]);
  for (const [id, label] of codes) Object.assign(page.photos.get(id), { label, isAccepted, wrong: undefined });
  page.labelledHere += 1;
  if (advance && place >= 0 && place < page.shown.length - 1) {
    page.active = page.anchor = page.shown[place + 1];
    page.selected = new Set([page.active]);
    drawSelection();
    reveal(page.active);
  } else if (ids.length > 1 && [...codes.values()].every((code) => code !== UNLABELLED)) page.selected.clear();
  drawAll();
}

const names = (codes) => Object.fromEntries([...codes].map(([id, code]) => [id, nameOf(code)]));

export async function label(ids, code, { advance = ids.length === 1 && code !== UNLABELLED } = {}) {
  const codes = new Map(photosOf(ids).map((photo) => [photo.id, code]));
  if (!codes.size) return;
  showLabels(codes, { advance });
  await post("label", { labels: names(codes) });
}

// Take the answers for photos without a label. Labels stay as they are; one that was accepted in bulk is confirmed.
export async function accept(ids, { advance = ids.length === 1 } = {}) {
  const photos = photosOf(ids), open = photos.filter((photo) => !isLabelled(photo) && photo.guess !== UNLABELLED);
  if (!open.length && photos.length === 1 && photos[0].isAccepted) return keep(ids, { advance });
  if (!open.length) {
    if (!photos.length || !photos.every(isLabelled)) return tell("There is no answer to accept yet.");
    return tell(`Nothing was changed: labels stay as they are.${photos.some(isDoubted) ? " Use the buttons below to change or keep them." : ""}`);
  }
  const codes = new Map(open.map((photo) => [photo.id, photo.guess])), isSeen = ids.length === 1;
  showLabels(codes, { advance, isAccepted: !isSeen });
  await post("accept", { labels: names(codes), is_seen: isSeen });
}

// Give doubted labels the class that the photos look like.
export async function changeDoubted(ids) {
  const codes = new Map(photosOf(ids).map((photo) => [photo.id, photo.wrong[0]]));
  showLabels(codes, { advance: ids.length === 1 });
  await post("label", { labels: names(codes) });
}

export async function keep(ids, { advance = false } = {}) {
  const codes = new Map(photosOf(ids).filter(isLabelled).map((photo) => [photo.id, photo.label]));
  showLabels(codes, { advance });
  await post("confirm", { ids: [...codes.keys()] });
}

export async function remove(ids) {
  const some = photosOf(ids).map((photo) => photo.id);
  if (!some.length) return;
  page.selected.clear();
  if (await post("remove", { ids: some, removed: true })) tell(`${counted(some.length, "photo")} taken out. The files stay; Ctrl+Z or the list Removed brings them back.`);
}

export async function putBack(ids) {
  page.selected.clear();
  await post("remove", { ids, removed: false });
}

export async function sameThing(ids, same) {
  if (await post("same-thing", { ids, same })) tell(same ? `${counted(ids.length, "photo")} show the same thing: together they count once in the expected accuracy.` : "These photos count on their own.");
}

export async function takeStep(name) {
  if (!page.state[name]) return tell(`There is nothing to ${name}.`);
  const answer = await post(name);
  if (!answer) return;
  page.labelledHere ||= 1; // the list stays in place
  await refresh(answer.result.ids);
  if (page.active && page.selected.has(page.active)) reveal(page.active);
  tell(`${name === "undo" ? "Undone" : "Done again"}: ${answer.result.title}.`);
}

export const addClass = (name, ids = []) => post("add-class", { name, ids });
