// Dead letters, by what is at fault: to be tried again, or forgotten.

import { act } from "./ask.js";
import { by, confirmed, el, fill, keep, say, show } from "./dom.js";
import { amount, count, moment } from "./words.js";

export function showLetters(letters, { canAct, refresh, explain }) {
  const { kinds, records } = letters;
  say(by("letters-count"), letters.letters || records
    ? [letters.letters ? count(letters.letters) : "", records ? amount(records, "record") + " of the topic" : ""].filter(Boolean).join(", ")
    : "");
  show(by("letters-none"), !kinds.length);
  say(by("letters-none"), records
    ? `${amount(records, "record")} of the topic cannot be read as changes. To see them, and decide: syncer dead-letters list`
    : "Everything could be written.");
  show(by("letters"), kinds.length > 0);
  keep(by("letters").tBodies[0], kinds, (one) => JSON.stringify([one.index_name, one.kind, one.field, one.value_type]),
    () => el("tr", {}, cell("Letters", "number alarm"), cell("Index", "index", el("code")), cell("Error"), cell("Field"),
      cell("Value"), cell("Since"), cell("Such as", null, el("span")), el("td", {}, el("div", { class: "buttons" }))),
    (row, one) => change(row, one, canAct, refresh, explain));
}

const cell = (label, kind = null, ...children) => el("td", { class: kind, "data-label": label }, ...children);

function change(row, one, canAct, refresh, explain) {
  const [letters, index, kind, field, type, since, examples, doing] = row.cells;
  say(letters, count(one.letters));
  say(index.firstElementChild, one.index_name);
  say(kind, one.kind);
  fill(field, one.field, () => (one.field === null ? ["–"] : [el("code", {}, one.field)]));
  say(type, one.value_type ?? "–");
  say(since, moment(one.first_at));
  fill(examples.firstElementChild, one.examples, () => one.examples.flatMap((id, place) => [
    place ? ", " : null,
    el("a", { href: "#look", onclick: (event) => { event.preventDefault(); explain(one.document, id); } }, id),
  ]).filter((each) => each !== null));
  fill(doing.firstElementChild, [canAct], () => (canAct ? choices(one, refresh) : []));
}

function choices(one, refresh) {
  const said = by("letters-said");
  const these = {
    document: one.document, index_name: one.index_name, kind: one.kind, field: one.field ?? "", value_type: one.value_type ?? "",
  };
  const go = async (doing, path, done) => { await act(said, doing, path, these, done); refresh(); };
  return [
    el("button", { type: "button", onclick: () => go("Trying again …", "/api/dead-letters/retry",
      (done) => done.jobs.length ? `Job ${done.jobs.join(", ")} tries ${amount(done.letters, "document")} again.` : "There is nothing to try again.") }, "Retry"),
    confirmed("Discard", "Forget them", () => go("Forgetting …", "/api/dead-letters/discard",
      (done) => `${amount(done.letters, "dead letter")} forgotten. The documents stay as they are until they change.`)),
  ];
}
