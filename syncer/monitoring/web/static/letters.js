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
  keep(by("letters").tBodies[0], kinds, (one) => JSON.stringify([one.index_name, one.kind]),
    () => el("tr", {}, cell("Documents", "number alarm"), cell("Index", "index", el("code")), cell("Error"),
      cell("Since"), cell("Example", null, el("span"), raw())),
    (row, one) => change(row, one, access, explain));
}

const cell = (label, kind = null, ...children) => el("td", { class: kind, "data-label": label }, ...children);

function change(row, one, access, explain) {
  const [documents, index, kind, since, example] = row.cells;
  say(documents, count(one.letters));
  say(index.firstElementChild, one.index_name);
  say(kind, one.kind);
  say(since, moment(one.first_at));
  fill(example.firstElementChild, one.example, () => [
    el("a", { href: "#look", onclick: (event) => { event.preventDefault(); explain(one.document, one.example); } }, one.example),
  ]);
  const text = example.lastElementChild;
  show(text, access.sees_values);
  text.ontoggle = () => { if (text.open) showText(text.querySelector("pre"), one); };
}

/** The error of one of them; it quotes values, so it is asked for only when it is folded out. */
async function showText(place, one) {
  try {
    const { indices } = await get(`/api/explain/${encodeURIComponent(one.document)}`, { id: one.example });
    const letter = indices.find((each) => each.index === one.index_name)?.dead_letter;
    say(place, letter ? `${one.example}: ${letter.error}` : `Run: syncer dead-letters list ${one.document}`);
  } catch (error) {
    say(place, `${error.message}.`);
  }
}
