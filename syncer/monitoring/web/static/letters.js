// Dead letters by error, field and type of value: to retry or discard.

import { act, get } from "./ask.js";
import { by, confirmed, el, fill, keep, raw, say, show } from "./dom.js";
import { amount, count, moment } from "./words.js";

export function showLetters(letters, { access, refresh, explain }) {
  const { kinds } = letters;
  const canAct = access.can_act;
  show(by("letters-locked"), letters.letters > 0 && !canAct && access.takes_token);
  say(by("letters-count"), letters.letters ? count(letters.letters) : "");
  show(by("letters-none"), !letters.letters);
  show(by("letters"), kinds.length > 0);
  keep(by("letters").tBodies[0], kinds, (one) => JSON.stringify([one.index_name, one.kind, one.field, one.value_type]),
    () => el("tr", {}, cell("Documents", "number alarm"), cell("Index", "index", el("code")), cell("Error"), cell("Field"),
      cell("Value"), cell("Since"), cell("Examples", null, el("span"), raw()), el("td", {}, el("div", { class: "buttons" }))),
    (row, one) => change(row, one, access, refresh, explain));
}

const cell = (label, kind = null, ...children) => el("td", { class: kind, "data-label": label }, ...children);

function change(row, one, access, refresh, explain) {
  const canAct = access.can_act;
  const [documents, index, kind, field, type, since, examples, doing] = row.cells;
  say(documents, count(one.letters));
  say(index.firstElementChild, one.index_name);
  say(kind, one.kind);
  fill(field, one.field, () => (one.field === null ? ["–"] : [el("code", {}, one.field)]));
  say(type, one.value_type ?? "–");
  say(since, moment(one.first_at));
  fill(examples.firstElementChild, one.examples, () => one.examples.flatMap((id, place) => [
    place ? ", " : null,
    el("a", { href: "#look", onclick: (event) => { event.preventDefault(); explain(one.document, id); } }, id),
  ]).filter((each) => each !== null));
  const text = examples.lastElementChild;
  show(text, access.sees_values);
  text.ontoggle = () => { if (text.open) showText(text.querySelector("pre"), one); };
  fill(doing.firstElementChild, [canAct], () => (canAct ? choices(one, refresh) : []));
}

const selection = (one) => ({
  document: one.document, index_name: one.index_name, kind: one.kind, field: one.field ?? "", value_type: one.value_type ?? "",
});

/** The error of one of them; it quotes values, so it is asked for only when it is folded out. */
async function showText(place, one) {
  try {
    const { shown } = await get("/api/dead-letters", { ...selection(one), limit: 1 });
    say(place, shown.length ? `${shown[0].id}: ${shown[0].error}` : "It is gone.");
  } catch (error) {
    say(place, `${error.message}.`);
  }
}

function choices(one, refresh) {
  const said = by("letters-said");
  const these = selection(one);
  const go = async (doing, path, done) => { await act(said, doing, path, these, done); refresh(); };
  return [
    el("button", { type: "button", onclick: () => go("Retrying …", "/api/dead-letters/retry",
      (done) => done.jobs.length ? `Job ${done.jobs.join(", ")} retries ${amount(done.letters, "document")}.` : "There is nothing to retry.") }, "Retry"),
    confirmed("Discard", "Discard for good", () => go("Discarding …", "/api/dead-letters/discard",
      (done) => `${amount(done.letters, "dead letter")} discarded. The documents stay as they are until they change.`)),
  ];
}
