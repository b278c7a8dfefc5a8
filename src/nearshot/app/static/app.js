// The page of `nearshot app`: keys, buttons and dropped files.

import { $ } from "./dom.js";
import { acceptAll, copyPhotos, download, drawAccepter, drawFinder, importLabels, openAccepter, openConfusion, openExport, openFinder, removeClass, renameClass, takeFound } from "./dialogs.js";
import { drawAll, drawGrid } from "./draw.js";
import { layout, move } from "./grid.js";
import { accept, addClass, label, putBack, remove, sameThing, takeStep } from "./labels.js";
import { show } from "./lists.js";
import { codeOfKey, follow, isLabelled, page, UNLABELLED } from "./state.js";
import { addChosen, addDropped, chooseFiles, chooseFolder, isFiles } from "./uploads.js";
import { drawViewer, openViewer } from "./viewer.js";

const areRemoved = (ids) => ids.some((id) => page.photos.get(id)?.isRemoved);

// Commands with Ctrl or ⌘; whether it was one.
function command(key, shiftKey, inViewer) {
  if (key === "y" || (key === "z" && shiftKey)) takeStep("redo");
  else if (key === "z") takeStep("undo");
  else if (key === "a" && !inViewer) { page.selected = new Set(page.shown); drawAll(); }
  else return false;
  return true;
}

function step(key, shiftKey, inViewer) {
  const columns = inViewer ? 1 : layout().columns;
  const steps = { ArrowLeft: -1, ArrowRight: 1, ArrowUp: -columns, ArrowDown: columns, Home: -page.shown.length, End: page.shown.length };
  if (!(key in steps)) return false;
  move(steps[key], shiftKey && !inViewer);
  if (inViewer) drawViewer();
  return true;
}

// What a key does to photos; whether it did something.
function act(key, ids, onButton, inViewer) {
  if (!ids.length) return false;
  const code = codeOfKey(key.toLowerCase()), advance = ids.length === 1 && !inViewer;
  if (areRemoved(ids)) {
    if (key !== "Enter" || onButton) return false;
    putBack(ids);
  } else if (code !== UNLABELLED) label(ids, code, { advance: ids.length === 1 });
  else if (key === "Enter" && !onButton) accept(ids, { advance });
  else if (key === "Backspace") label(ids.filter((id) => isLabelled(page.photos.get(id))), UNLABELLED);
  else if (key === "Delete") remove(ids);
  else if (key === "=" && ids.length > 1) sameThing(ids, true);
  else return false;
  return true;
}

document.addEventListener("keydown", (event) => {
  const { key, target, ctrlKey, metaKey, shiftKey, altKey } = event, inViewer = $("viewer").open;
  if (altKey || target.matches("input, select") || (document.querySelector("dialog[open]") && !inViewer)) return;
  const ids = inViewer ? [page.active] : [...page.selected], inGrid = inViewer || target === $("grid") || target === document.body;
  const onButton = target.matches("button");
  let isOurs = true;
  if (ctrlKey || metaKey) isOurs = command(key.toLowerCase(), shiftKey, inViewer);
  else if (inGrid && step(key, shiftKey, inViewer)) isOurs = true;
  else if (act(key, ids, onButton, inViewer)) isOurs = true;
  else if (key === " " && inGrid && !onButton) inViewer ? $("viewer").close() : openViewer(page.active ?? page.shown[0]);
  else if (key === "/" && !inViewer) openFinder(ids);
  else if (key === "Escape" && !inViewer) { page.selected.clear(); drawAll(); }
  else if (key === "?") $("help").showModal();
  else isOurs = false;
  if (isOurs) event.preventDefault();
});

document.addEventListener("dragover", (event) => { if (isFiles(event)) { event.preventDefault(); $("drop").hidden = false; } });
document.addEventListener("dragleave", (event) => { if (!event.relatedTarget) $("drop").hidden = true; });
document.addEventListener("drop", (event) => {
  if (!isFiles(event)) return;
  event.preventDefault();
  $("drop").hidden = true;
  addDropped(event.dataTransfer.items);
});

const submits = (id, action) => { $(id).onsubmit = (event) => { event.preventDefault(); action(); }; };

for (const name of ["files", "folder"]) $(name).onchange = () => addChosen($(name));
for (const name of ["undo", "redo"]) $(name).onclick = () => takeStep(name);
$("add").onclick = chooseFiles;
$("add-folder").onclick = chooseFolder;
$("accuracy").onclick = openConfusion;
$("open-export").onclick = openExport;
$("open-help").onclick = () => $("help").showModal();
$("open-accepter").onclick = openAccepter;
$("accept-above").oninput = drawAccepter;
$("accept-all").onclick = acceptAll;
$("copy").onclick = copyPhotos;
$("import-labels").onclick = () => $("labels-file").click();
$("labels-file").onchange = () => importLabels($("labels-file"));
for (const button of document.querySelectorAll("[data-file]")) button.onclick = () => download(button);
for (const button of document.querySelectorAll("dialog .close")) button.onclick = () => button.closest("dialog").close();
for (const dialog of document.querySelectorAll("dialog")) dialog.addEventListener("click", (event) => { if (event.target === dialog) dialog.close(); });
$("yes").onclick = () => $("asker").close("yes");
$("viewer").onclose = () => $("grid").focus();
$("previous").onclick = () => { move(-1); drawViewer(); };
$("following").onclick = () => { move(1); drawViewer(); };
submits("new-class", async () => { if (await addClass($("class-name").value)) $("class-name").value = ""; });
submits("rename", renameClass);
submits("find-class", () => takeFound(0));
$("finder-name").oninput = drawFinder;
$("remove-class").onclick = removeClass;
$("sort").onchange = () => { page.sort = $("sort").value; show(page.view); };
$("search").oninput = () => { page.search = $("search").value; show(page.view); };
$("refresh").onclick = () => show(page.view);
$("grid").onfocus = () => { if (!page.active && page.shown.length) { page.active = page.shown[0]; drawGrid(); } };
$("scroller").addEventListener("scroll", () => requestAnimationFrame(drawGrid), { passive: true });
new ResizeObserver(() => drawGrid()).observe($("scroller"));
follow();
