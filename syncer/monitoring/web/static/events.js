// What happened in the last day, newest first.

import { by, el, keep, say, show } from "./dom.js";
import { moment } from "./words.js";

export function showEvents(events) {
  show(by("events"), events.length > 0);
  show(by("events-none"), !events.length);
  keep(by("events").tBodies[0], [...events].reverse(), (one) => one.id,
    (one) => el("tr", {}, el("td", { class: "index", "data-label": "Time" }),
      el("td", { "data-label": "Event" }, el("span", { class: `level ${one.level}`, title: one.event }, one.message)),
      el("td", { class: "lesser index", "data-label": "Noted by" }, `${one.host}, process ${one.process}`)),
    (row, one) => say(row.cells[0], moment(one.at)));
}
