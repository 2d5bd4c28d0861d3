// Dead letters by error.

import { get } from "./ask.js";
import { by, el, fill, keep, raw, say, show } from "./dom.js";
import { count, moment } from "./words.js";

export function showLetters(letters, { access, explain }) {
  const { kinds } = letters;
  say(by("letters-count"), letters.letters ? count(letters.letters) : "");
  show(by("letters-act"), letters.letters > 0);
  show(by("letters-none"), !letters.letters);
  show(by("letters"), kinds.length > 0);
  keep(by("letters").tBodies[0], kinds, (group) => JSON.stringify([group.index_name, group.kind]),
    () => el("tr", {}, cell("Documents", "number alarm"), cell("Index", "index", el("code")), cell("Error"),
      cell("Since"), cell("Example", null, el("span"), raw())),
    (row, group) => change(row, group, access, explain));
}

const cell = (label, kind = null, ...children) => el("td", { class: kind, "data-label": label }, ...children);

function change(row, group, access, explain) {
  const [documents, index, kind, since, example] = row.cells;
  say(documents, count(group.letters));
  say(index.firstElementChild, group.index_name);
  say(kind, group.kind);
  say(since, moment(group.first_at));
  fill(example.firstElementChild, group.example, () => [
    el("a", { href: "#look", onclick: (event) => { event.preventDefault(); explain(group.document, group.example); } }, group.example),
  ]);
  const text = example.lastElementChild;
  show(text, access.sees_values);
  text.ontoggle = () => { if (text.open) showText(text.querySelector("pre"), group); };
}

/** The error of one of them; it quotes values, so it is asked for only when it is folded out. */
async function showText(place, group) {
  try {
    const { indices } = await get(`/api/explain/${encodeURIComponent(group.document)}`, { id: group.example });
    const letter = indices.find((each) => each.index === group.index_name)?.dead_letter;
    say(place, letter ? `${group.example}: ${letter.error}` : `Run: syncer dead-letters list ${group.document}`);
  } catch (error) {
    say(place, `${error.message}.`);
  }
}
