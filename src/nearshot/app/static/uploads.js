// Adding photos: files are sent a few at a time, and undone together.

import { $, byText, counted, make, tell } from "./dom.js";
import { drawHeader } from "./draw.js";
import { ask } from "./server.js";

const AT_ONCE = 3;
const upload = { queue: [], running: 0, done: 0, failed: [], batch: "" };

export const uploading = () => ({ done: upload.done, waiting: upload.queue.length + upload.running });
export const isFiles = (event) => [...(event.dataTransfer?.types ?? [])].includes("Files");
export const chooseFiles = () => $("files").click();
export const chooseFolder = () => $("folder").click();

const inFolder = (group, name) => (group ? `${group}/${name}` : name);

async function filesIn(entry, group) {
  if (entry.isFile) return new Promise((done) => entry.file((file) => done([{ file, group }]), () => done([])));
  const reader = entry.createReader(), found = [];
  for (;;) {
    const some = await new Promise((done) => reader.readEntries(done, () => done([])));
    if (!some.length) return found;
    for (const one of some) found.push(...await filesIn(one, one.isDirectory ? inFolder(group, one.name) : group));
  }
}

// Add what was dropped. The name of a single folder is not that of a class.
export async function addDropped(items) {
  const entries = [...items].map((item) => item.webkitGetAsEntry()).filter(Boolean), found = [];
  for (const entry of entries) found.push(...await filesIn(entry, entries.length > 1 && entry.isDirectory ? entry.name : ""));
  add(found);
}

export function addChosen(input) {
  add([...input.files].map((file) => ({ file, group: file.webkitRelativePath.split("/").slice(1, -1).join("/") })));
  input.value = "";
}

function add(entries) {
  const photos = entries.filter(({ file }) => !file.name.startsWith("."));
  photos.sort((a, b) => byText(inFolder(a.group, a.file.name), inFolder(b.group, b.file.name)));
  upload.batch ||= crypto.randomUUID?.() ?? String(Math.random());
  upload.queue.push(...photos);
  while (upload.running < AT_ONCE && upload.queue.length) send();
  drawHeader();
}

async function send() {
  upload.running += 1;
  while (upload.queue.length) {
    const { file, group } = upload.queue.shift();
    try {
      await ask(`api/photos?${new URLSearchParams({ name: file.name, group, batch: upload.batch })}`, { method: "PUT", body: file });
    } catch (error) {
      upload.failed.push([inFolder(group, file.name), error.message]);
    }
    upload.done += 1;
    drawHeader();
  }
  upload.running -= 1;
  if (upload.running) return;
  report(upload.failed);
  Object.assign(upload, { done: 0, failed: [], batch: "" });
  drawHeader();
}

// Name each file that was not added, and why.
function report(failed) {
  if (!failed.length) return;
  const named = ([name, reason]) => (reason.includes(name) ? reason : `${name}: ${reason}`);
  if (failed.length === 1) return tell(`Not added: ${named(failed[0])}`);
  $("not-added-count").textContent = `${counted(failed.length, "file")} not added. The others were.`;
  $("not-added-files").replaceChildren(...failed.map((one) => make("li", { textContent: named(one) })));
  $("not-added").showModal();
}
