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
  fill(table, documents.map((one) => one.name), () => [table.caption, table.tHead, ...documents.map(() => el("tbody"))]);
  documents.forEach((one, place) => {
    const body = table.tBodies[place];
    const verification = verifications.find((each) => each.document === one.name) ?? null;
    // The lag changes all the time: the rest of the row stays.
    fill(body, [{ ...one, lag_seconds: null }, verification], () => [...rows(one, verification)]);
    say(body.querySelector(".lag"), about(one.lag_seconds));
  });
}

function* rows(one, verification) {
  const indices = Object.entries(one.targets);
  for (const [place, [name, number]] of indices.entries()) {
    yield el("tr", { class: place === 0 ? null : "more" },
      ...(place === 0 ? ofDefinition(one, verification) : Array.from({ length: 6 }, () => el("td"))),
      el("td", { class: "index", "data-label": "Index" }, el("code", {}, name)),
      el("td", { class: one.roles[name] === "current" ? null : "lesser", "data-label": "Role" }, one.roles[name]),
      el("td", { class: number === null ? "number alarm" : "number", "data-label": "Documents" },
        number === null ? one.faults[name] ?? "unknown" : count(number)));
  }
  if (one.suspended !== null) yield why(`${one.name} is suspended: `, one.suspended);
  for (const [name, notice] of Object.entries(one.troubles)) yield why(`${name} (${one.roles[name]}) is suspended: `, notice);
}

const ofDefinition = (one, verification) => [
  el("th", { scope: "row" }, one.name),
  el("td", { "data-label": "State" }, state(one)),
  el("td", { class: "number lag", "data-label": "Lag" }),
  el("td", { class: verification?.drifted ? "alarm" : null, "data-label": "Last verify" }, verified(verification)),
  el("td", { class: one.dead_letters ? "number alarm" : "number", "data-label": "Dead letters" }, count(one.dead_letters)),
  el("td", { class: "number", "data-label": "Revision" }, String(one.revision)),
];

function verified(one) {
  if (one === null) return "never";
  return `${moment(one.finished_at)}${one.drifted ? `, ${count(one.drifted)} drifted` : ""}`;
}

function state(one) {
  if (one.suspended !== null) return el("span", { class: "state bad" }, "suspended");
  return one.is_loaded ? el("span", { class: "state" }, "active") : el("span", { class: "state busy" }, "not loaded");
}

function why(what, notice) {
  return el("tr", { class: "more" }, el("td", { colspan: String(COLUMNS) }, el("p", { class: "why" }, el("b", {}, what), notice)));
}
