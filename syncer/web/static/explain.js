// Why a document is as it is: the verdict first, then what it rests on.

import { get } from "./ask.js";
import { by, el } from "./dom.js";
import { amount, count, moment } from "./words.js";

const EVENTS_SHOWN = 20;

const DOES = {
  write: "would write it", change: "would change", delete: "would delete it",
  move: "would write it where it belongs", nothing: "would change nothing",
};

let asked = 0;

/** Ask, and show the answer; of two questions, only the answer to the later one. */
export async function lookUp(document, id, values) {
  const number = ++asked;
  const place = by("explained");
  place.replaceChildren(verdict("waiting", `Looking at ${document} ${id} …`, ""));
  try {
    const words = values ? { id, values: "true" } : { id };
    const seen = await get(`/api/explain/${encodeURIComponent(document)}`, words);
    if (number === asked) place.replaceChildren(...explanation(seen));
  } catch (error) {
    if (number === asked) place.replaceChildren(verdict("", `${error.message}.`, error.hint ?? ""));
  }
}

const verdict = (kind, says, hint, where = "") =>
  el("div", { class: `verdict ${kind}` }, where ? el("p", {}, where) : null, el("h3", {}, says), hint ? el("p", {}, hint) : null);

function* explanation(seen) {
  for (const one of seen.indices) {
    const where = seen.indices.length > 1 ? `${one.index} (${one.role})` : "";
    yield verdict(one.verdict, one.says, one.hint, where);
    yield el("dl", { class: "facts" }, ...facts(seen, one));
    if (!Array.isArray(one.refresh.fields)) yield* differences(one.refresh.fields);
  }
  yield* events(seen);
}

function* facts(seen, one) {
  yield* fact("Document", `${seen.document} ${seen.id} in ${one.index}, ${one.role}, generation ${one.generation}`
    + (one.is_filled ? "" : ", not filled yet"));
  yield* fact("Postgres", inPostgres(one.postgres));
  yield* fact("Elasticsearch", one.unreadable ? `cannot say: ${one.unreadable}`
    : one.elasticsearch.map(copy).join("\n") || "nothing under this id");
  yield* fact("A refresh", refresh(one.refresh));
  if (one.jobs.length) yield* fact("Jobs", `${one.jobs.join(", ")} may yet write it`);
  if (one.dead_letter) {
    yield* fact("Dead letter", `${one.dead_letter.error ? `${one.dead_letter.error}\n` : ""}parked ${moment(one.dead_letter.parked_at)}`);
  }
  if (one.postgres.source) {
    yield el("dt", {}, "Its SELECT says");
    yield el("dd", {}, el("code", {}, JSON.stringify(one.postgres.source, null, 1)));
  }
}

const fact = (name, text) => [el("dt", {}, name), el("dd", {}, text)];

function inPostgres(row) {
  if (row.exists === null) return `cannot say${row.failure ? `: ${row.failure}` : ""}`;
  if (!row.exists) return "its SELECT returns no such id";
  return `its SELECT returns it: ${amount(row.bytes, "byte")}${row.routing ? `, _routing ${row.routing}` : ""}`;
}

function copy(one) {
  const when = one.drawn_after && one.drawn_before ? `drawn between ${moment(one.drawn_after)} and ${moment(one.drawn_before)}`
    : one.drawn_before ? `drawn before ${moment(one.drawn_before)}`
      : one.drawn_after ? `drawn after ${moment(one.drawn_after)}` : "when it was drawn was not noted";
  const origin = {
    foreign: `not drawn by syncer: ${one.is_final ? "no write replaces it" : "syncer can replace it"}`,
    lost: "drawn in a life of the database that a restore has taken back",
    earlier: `${when}, in an epoch that a failover or a restore has ended`,
  }[one.origin] ?? when;
  return `version ${one.version}: epoch ${one.epoch}, number ${count(one.number)}`
    + `${one.routing ? `, under routing ${one.routing}` : ""}\n${origin}`;
}

function refresh(one) {
  if (one.does === null) return "cannot be made, or would fail";
  const fields = Array.isArray(one.fields) ? one.fields : Object.keys(one.fields);
  return one.does === "change" ? `${DOES.change} ${fields.join(", ")}` : DOES[one.does] ?? one.does;
}

function* differences(fields) {
  const names = Object.keys(fields);
  if (!names.length) return;
  yield el("h4", {}, "What differs");
  yield el("div", { class: "scroll", tabindex: "0", role: "region", "aria-label": "What differs" }, el("table", {},
    el("thead", {}, el("tr", {}, ["Field", "Postgres", "Elasticsearch"].map((one) => el("th", { scope: "col" }, one)))),
    el("tbody", {}, names.map((name) => el("tr", {}, el("th", { scope: "row" }, name),
      el("td", {}, el("code", {}, value(fields[name].postgres))),
      el("td", {}, el("code", {}, value(fields[name].elasticsearch))))))));
}

const value = (one) => (one === undefined ? "–" : JSON.stringify(one, null, 1));

function* events(seen) {
  const shown = seen.events.slice(-EVENTS_SHOWN);
  yield el("h4", {}, `Its changes: ${count(seen.coming)} on the way, ${count(seen.done)} done and still in the topic`);
  if (seen.kafka) yield el("p", { class: "quiet" }, `Kafka could not be asked: ${seen.kafka}`);
  if (!shown.length) return;
  const where = { outbox: "in the outbox", topic: "in the topic", done: "done" };
  yield el("div", { class: "scroll", tabindex: "0", role: "region", "aria-label": "Its changes" }, el("table", {},
    el("thead", {}, el("tr", {}, ["When", "Table", "What", "Row", "Where it is"].map((one) => el("th", { scope: "col" }, one)))),
    el("tbody", {}, shown.map((one) => el("tr", { class: one.stage === "done" ? "lesser" : null },
      el("td", {}, moment(one.changed_at)), el("td", {}, one.relation), el("td", {}, one.operation.toLowerCase()),
      el("td", {}, Object.entries(one.key).map(([name, said]) => `${name} ${said}`).join(", ")),
      el("td", {}, where[one.stage] ?? one.stage, one.partition === null ? "" : `, partition ${one.partition}, offset ${count(one.offset)}`))))));
}
