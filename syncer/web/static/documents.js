// The documents in force: what state they are in, and the indices that they are written to.

import { by, el, fill, show } from "./dom.js";
import { count } from "./words.js";

export function showDocuments(documents) {
  const table = by("documents");
  show(by("documents-none"), !documents.length);
  show(table, documents.length > 0);
  fill(table, documents, () => [
    table.caption, table.tHead, ...documents.map((one) => el("tbody", {}, ...rows(one))),
  ]);
}

function* rows(one) {
  const indices = Object.entries(one.targets);
  for (const [place, [name, number]] of indices.entries()) {
    const isFirst = place === 0;
    yield el("tr", { class: isFirst ? null : "more" },
      isFirst ? el("th", { scope: "row" }, one.name) : el("td"),
      isFirst ? el("td", { "data-label": "State" }, state(one)) : el("td"),
      el("td", { class: "index", "data-label": "Index" }, el("code", {}, name)),
      el("td", { class: one.roles[name] === "serving" ? null : "lesser", "data-label": "Role" }, one.roles[name]),
      el("td", { class: number === null ? "number alarm" : "number", "data-label": "Documents" }, number === null ? "gone, closed or in trouble" : count(number)),
      isFirst ? el("td", { class: "number", "data-label": "Generation" }, String(one.generation)) : el("td"),
      isFirst ? el("td", { class: one.dead_letters ? "number alarm" : "number", "data-label": "Dead letters" }, count(one.dead_letters)) : el("td"));
  }
  if (one.halted !== null) yield why(`${one.name} is halted: `, one.halted);
  for (const [name, said] of Object.entries(one.unwell)) yield why(`${name} is left until it is well: `, said);
  for (const [name, said] of Object.entries(one.troubles)) yield why(`${name} (${one.roles[name]}) is halted: `, said);
}

function state(one) {
  if (one.halted !== null) return el("span", { class: "state bad" }, "halted");
  if (Object.keys(one.unwell).length > 0) return el("span", { class: "state bad" }, "waits");
  return one.is_filled ? el("span", { class: "state" }, "followed") : el("span", { class: "state busy" }, "not filled");
}

function why(what, said) {
  return el("tr", { class: "more" }, el("td", { colspan: "7" }, el("p", { class: "why" }, el("b", {}, what), said)));
}
