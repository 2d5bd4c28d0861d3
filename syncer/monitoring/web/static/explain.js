// Why a document is as it is: the verdict first, then what it rests on.

import { get } from "./ask.js";
import { by, el } from "./dom.js";
import { amount, moment } from "./words.js";

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
  for (const index of seen.indices) {
    const where = seen.indices.length > 1 ? `${index.index} (${index.role})` : "";
    yield verdict(index.state, index.says, index.hint, where);
    yield el("dl", { class: "facts" }, ...facts(seen, index));
    if (index.differences.some((part) => part.postgres !== null || part.elasticsearch !== null)) yield differences(index.differences);
  }
}

function* facts(seen, index) {
  yield* fact("Document", `${seen.document} ${seen.id} in ${index.index}, ${index.role}, revision ${index.revision}`
    + (index.is_loaded ? "" : ", to be written completely"));
  yield* fact("Postgres", inPostgres(index.postgres));
  yield* fact("Elasticsearch", inElasticsearch(index.elasticsearch));
  if (index.differences.length) yield* fact("Differs in", index.differences.map((part) => part.path).join(", "));
  if (index.jobs.length) yield* fact("Jobs", `${index.jobs.join(", ")} may write it`);
  if (index.dead_letter) {
    yield* fact("Dead letter", `${index.dead_letter.error ? `${index.dead_letter.error}\n` : ""}dead-lettered ${moment(index.dead_letter.failed_at)}`);
  }
  if (index.postgres.source) {
    yield el("dt", {}, "Its SELECT returns");
    yield el("dd", {}, el("code", {}, JSON.stringify(index.postgres.source, null, 1)));
  }
}

const fact = (name, text) => [el("dt", {}, name), el("dd", {}, text)];

function inPostgres(row) {
  if (row.exists === null) return "unknown";
  if (!row.exists) return "its SELECT returns no such id";
  return `its SELECT returns it: ${amount(row.bytes, "byte")}${row.routing ? `, _routing ${row.routing}` : ""}`;
}

const inElasticsearch = (copies) => (copies ? copies.map(copy).join("\n") || "nothing under this id" : "unknown");

const copy = (held) => `version ${held.version}`
  + (held.routing ? `, under routing ${held.routing}` : "");

const differences = (parts) => el("div", { class: "scroll", tabindex: "0", role: "region", "aria-label": "What differs" }, el("table", {},
  el("thead", {}, el("tr", {}, ["Field", "Postgres", "Elasticsearch"].map((title) => el("th", { scope: "col" }, title)))),
  el("tbody", {}, parts.map((part) => el("tr", {}, el("th", { scope: "row" }, part.path),
    el("td", {}, el("code", {}, part.postgres ?? "–")), el("td", {}, el("code", {}, part.elasticsearch ?? "–")))))));
