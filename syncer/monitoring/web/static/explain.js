// Why a document is as it is: the verdict first, then what it rests on.

import { get } from "./ask.js";
import { by, el } from "./dom.js";
import { amount, count, moment } from "./words.js";

const DOES = {
  write: "would write it", change: "would change", delete: "would delete it",
  move: "would write it to the right shard", nothing: "would change nothing",
};

let asked = 0;

/** Ask, and show the answer; of two questions, only the answer to the later one. */
export async function lookUp(document, id, values) {
  const number = ++asked;
  const place = by("explained");
  place.replaceChildren(verdict("waiting", `Explaining ${document} ${id} …`, ""));
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
}

function* facts(seen, one) {
  yield* fact("Document", `${seen.document} ${seen.id} in ${one.index}, ${one.role}, revision ${one.revision}`
    + (one.is_loaded ? "" : ", not loaded yet"));
  yield* fact("Postgres", inPostgres(one.postgres));
  yield* fact("Elasticsearch", one.unreadable ? `cannot say: ${one.unreadable}`
    : one.elasticsearch.map(copy).join("\n") || "nothing under this id");
  yield* fact("A refresh", refresh(one.refresh));
  if (one.jobs.length) yield* fact("Jobs", `${one.jobs.join(", ")} may write it`);
  if (seen.in_flight) yield* fact("In flight", seen.in_flight);
  yield* fact("Reads", one.reads.join(", "));
  if (one.dead_letter) {
    yield* fact("Dead letter", `${one.dead_letter.error ? `${one.dead_letter.error}\n` : ""}dead-lettered ${moment(one.dead_letter.failed_at)}`);
  }
  if (one.postgres.source) {
    yield el("dt", {}, "Its SELECT returns");
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
  const when = one.drawn_after && one.drawn_before ? `assigned between ${moment(one.drawn_after)} and ${moment(one.drawn_before)}`
    : one.drawn_before ? `assigned before ${moment(one.drawn_before)}`
      : one.drawn_after ? `assigned after ${moment(one.drawn_after)}` : "assigned at an unknown time";
  const origin = {
    foreign: `not assigned by syncer: ${one.is_final ? "no write replaces it" : "syncer can replace it"}`,
    lost: "assigned before a restore that has lost it",
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
