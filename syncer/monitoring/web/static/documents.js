// The active definitions: their state, lag and last verify, and the indices that they are written to.

import { by, el, fill, say, show } from "./dom.js";
import { asOf } from "./flow.js";
import { about, count, moment } from "./words.js";

const COLUMNS = 9;

export function showDocuments(documents, verifications, silent) {
  const table = by("documents");
  show(by("documents-none"), !documents.length);
  show(table, documents.length > 0);
  asOf("documents-old", silent, "postgres", "elasticsearch");
  fill(table, documents.map((shown) => shown.name), () => [table.caption, table.tHead, ...documents.map(() => el("tbody"))]);
  documents.forEach((shown, place) => {
    const body = table.tBodies[place];
    const verification = verifications.find((each) => each.document === shown.name) ?? null;
    // The lag changes all the time: the rest of the row stays.
    fill(body, [{ ...shown, lag_seconds: null }, verification], () => [...rows(shown, verification)]);
    say(body.querySelector(".lag"), about(shown.lag_seconds));
  });
}

function* rows(shown, verification) {
  const indices = Object.entries(shown.targets);
  for (const [place, [name, number]] of indices.entries()) {
    yield el("tr", { class: place === 0 ? null : "more" },
      ...(place === 0 ? ofDefinition(shown, verification) : Array.from({ length: 6 }, () => el("td"))),
      el("td", { class: "index", "data-label": "Index" }, el("code", {}, name)),
      el("td", { class: shown.roles[name] === "current" ? null : "lesser", "data-label": "Role" }, shown.roles[name]),
      el("td", { class: number === null ? "number alarm" : "number", "data-label": "Documents" },
        number === null ? shown.faults[name] ?? "unknown" : count(number)));
  }
  if (shown.suspended !== null) yield why(`${shown.name} is suspended: `, shown.suspended);
  for (const [name, notice] of Object.entries(shown.troubles)) yield why(`${name} (${shown.roles[name]}) is suspended: `, notice);
}

const ofDefinition = (shown, verification) => [
  el("th", { scope: "row" }, shown.name),
  el("td", { "data-label": "State" }, state(shown)),
  el("td", { class: "number lag", "data-label": "Lag" }),
  el("td", { class: verification?.drifted ? "alarm" : null, "data-label": "Last verify" }, verified(verification)),
  el("td", { class: shown.dead_letters ? "number alarm" : "number", "data-label": "Dead letters" }, count(shown.dead_letters)),
  el("td", { class: "number", "data-label": "Revision" }, String(shown.revision)),
];

function verified(result) {
  if (result === null) return "never";
  return `${moment(result.finished_at)}${result.drifted ? `, ${count(result.drifted)} drifted` : ""}`;
}

function state(shown) {
  if (shown.suspended !== null) return el("span", { class: "state bad" }, "suspended");
  return shown.is_loaded ? el("span", { class: "state" }, "active") : el("span", { class: "state busy" }, "not loaded");
}

function why(what, notice) {
  return el("tr", { class: "more" }, el("td", { colspan: String(COLUMNS) }, el("p", { class: "why" }, el("b", {}, what), notice)));
}
