// Requests to the server. Addresses are relative to that of the page.

import { tell } from "./dom.js";
import { refresh } from "./state.js";

export async function ask(path, options = {}) {
  const answer = await fetch(path, options);
  if (!answer.ok) {
    const { error } = await answer.json().catch(() => ({}));
    throw new Error(error || `The request failed (${answer.status}).`);
  }
  return answer;
}

let posting = Promise.resolve();
let nPosting = 0;
export const isPosting = () => nPosting > 0;
export const posted = () => posting; // when all requests so far are answered

// Change the project. If the server refuses, say so and show what is true; then the answer is null.
export async function post(name, content = {}) {
  nPosting += 1;
  const request = ask(`api/${name}`, { method: "POST", body: JSON.stringify(content) });
  posting = Promise.allSettled([posting, request]);
  let answer = null;
  try {
    answer = await (await request).json();
  } catch (error) {
    tell(`Not done: ${error.message}`);
  }
  nPosting -= 1;
  if (!answer) await refresh().catch(() => {}); // where the server has stopped, the page says so
  return answer;
}
