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

// Change the project. If the server refuses, say so and show what is true; then the answer is null.
export async function post(name, content = {}) {
  try {
    return await (await ask(`api/${name}`, { method: "POST", body: JSON.stringify(content) })).json();
  } catch (error) {
    tell(`Not done: ${error.message}`);
    await refresh().catch(() => {}); // where the server has stopped, the page says so
    return null;
  }
}
