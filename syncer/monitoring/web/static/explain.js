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
  for (const one of seen.indices) {
    const where = seen.indices.length > 1 ? `${one.index} (${one.role})` : "";
    yield verdict(one.state, one.says, one.hint, where);
    yield el("dl", { class: "facts" }, ...facts(seen, one));
    if (one.differences.some((part) => part.postgres !== null || part.elasticsearch !== null)) yield differences(one.differences);
  }
}

function* facts(seen, one) {
  yield* fact("Document", `${seen.document} ${seen.id} in ${one.index}, ${one.role}, revision ${one.revision}`
    + (one.is_loaded ? "" : ", not loaded yet"));
  yield* fact("Postgres", inPostgres(one.postgres));
  yield* fact("Elasticsearch", inElasticsearch(one.elasticsearch));
  if (one.differences.length) yield* fact("Differs in", one.differences.map((part) => part.path).join(", "));
  if (one.jobs.length) yield* fact("Jobs", `${one.jobs.join(", ")} may write it`);
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
  if (row.exists === null) return "unknown";
  if (!row.exists) return "its SELECT returns no such id";
  return `its SELECT returns it: ${amount(row.bytes, "byte")}${row.routing ? `, _routing ${row.routing}` : ""}`;
}

const inElasticsearch = (copies) => (copies ? copies.map(copy).join("\n") || "nothing under this id" : "unknown");

const copy = (one) => `version ${one.version}`
  + (one.routing ? `, under routing ${one.routing}` : "");

const differences = (parts) => el("div", { class: "scroll", tabindex: "0", role: "region", "aria-label": "What differs" }, el("table", {},
  el("thead", {}, el("tr", {}, ["Field", "Postgres", "Elasticsearch"].map((one) => el("th", { scope: "col" }, one)))),
  el("tbody", {}, parts.map((part) => el("tr", {}, el("th", { scope: "row" }, part.path),
    el("td", {}, el("code", {}, part.postgres ?? "–")), el("td", {}, el("code", {}, part.elasticsearch ?? "–")))))));
