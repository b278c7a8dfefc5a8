"use strict";
// A table is sorted and filtered by its bodies: each holds what belongs together, such as a run and its details.
document.documentElement.classList.add("scripted");
const inWords = new Intl.Collator("en", { numeric: true });

function keyOf(body, column) {
  const cell = body.rows[0].cells[column];
  return "value" in cell.dataset ? Number(cell.dataset.value) : cell.textContent.trim();
}

// Numbers before words, and what is missing last, whichever way is up.
function compare(one, other, direction) {
  const missing = (key) => key === "" || key === "–" || Number.isNaN(key);
  if (missing(one) || missing(other)) return missing(one) - missing(other);
  if (typeof one !== typeof other) return typeof one === "number" ? -1 : 1;
  return direction * (typeof one === "number" ? one - other : inWords.compare(one, other));
}

function sortBy(heading) {
  const table = heading.closest("table");
  const descending = heading.ariaSort === "ascending";
  const column = heading.cellIndex;
  for (const other of heading.parentElement.cells) other.removeAttribute("aria-sort");
  heading.setAttribute("aria-sort", descending ? "descending" : "ascending");
  const keyed = [...table.tBodies].map((body) => ({ body, key: keyOf(body, column) }));
  keyed.sort((a, b) => compare(a.key, b.key, descending ? -1 : 1));
  table.append(...keyed.map((one) => one.body));
}

function filterBy(box) {
  const words = box.value.toLowerCase().split(/\s+/).filter(Boolean).map((word) => word.split("|").filter(Boolean));
  const bodies = [...document.getElementById(box.dataset.filter).tBodies];
  let shown = 0;
  for (const body of bodies) {
    const text = body.rows[0].textContent.toLowerCase();
    body.hidden = !words.every((choices) => choices.some((choice) => text.includes(choice)));
    shown += !body.hidden;
  }
  box.parentElement.querySelector("output").textContent = words.length ? `${shown} of ${bodies.length}` : "";
}

function showRuns(link) {
  const box = document.querySelector('[data-filter="runs-table"]');
  box.value = link.dataset.runs;
  filterBy(box);
}

// What a link leads to must not be folded or filtered away.
function reveal(target) {
  for (let one = target; one; one = one.parentElement) if (one.tagName === "DETAILS") one.open = true;
  if (target?.hidden) {
    const box = document.querySelector('[data-filter="runs-table"]');
    box.value = "";
    filterBy(box);
  }
  target?.scrollIntoView();
}

document.addEventListener("click", (event) => {
  const heading = event.target.closest(".sortable thead th");
  if (heading) sortBy(heading);
  const link = event.target.closest("[data-runs]");
  if (link) showRuns(link);
});
document.addEventListener("input", (event) => {
  if (event.target.dataset.filter) filterBy(event.target);
});
const followHash = () => reveal(document.getElementById(decodeURIComponent(location.hash.slice(1))));
addEventListener("hashchange", followHash);
followHash();
