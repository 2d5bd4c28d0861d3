// What happened in the last day, newest first.

import { by, el, keep, say, show } from "./dom.js";
import { moment } from "./words.js";

export function showEvents(events) {
  show(by("events"), events.length > 0);
  show(by("events-none"), !events.length);
  keep(by("events").tBodies[0], [...events].reverse(), (event) => event.id,
    (event) => el("tr", {}, el("td", { class: "index", "data-label": "Time" }),
      el("td", { "data-label": "Event" }, el("span", { class: `level ${event.level}`, title: event.event }, event.message)),
      el("td", { class: "lesser index", "data-label": "Noted by" }, `${event.host}, process ${event.process}`)),
    (row, event) => say(row.cells[0], moment(event.at)));
}
