// Whether all is well, the flow with its numbers, and who runs where.

import { by, el, fill, keep, say, show } from "./dom.js";
import { about, amount, brief, count, moment, rate } from "./words.js";

export function showBanner(status) {
  say(by("headline"), status.headline);
  say(by("told"), told(status));
  by("banner").className = `banner ${status.mood}`;
  const list = by("concerns");
  show(list, status.concerns.length > 0);
  const isAlone = status.concerns.length === 1;
  fill(list, status.concerns, () => status.concerns.map((one) =>
    el("li", {}, isAlone ? null : el("b", {}, one.says), el("p", { class: "does" }, one.do))));
}

/** What is read aloud when it changes: not how much waits, which changes all the time. */
function told(status) {
  const lasting = status.concerns.filter((one) => !one.is_passing);
  if (lasting.length) return lasting.length === 1 ? lasting[0].says : `${lasting.length} things are not well.`;
  return status.mood === "well" ? "All is well." : "Behind, and at work.";
}

export function showFlow(status) {
  const { rates, leader } = status;
  station("at-outbox", brief(status.outbox_waiting), waits(status.outbox_waiting, status.outbox_lag_seconds));
  const connected = leader && leader.seconds !== null ? `connected ${about(leader.seconds)}` : "";
  station("at-relay", leader ? "leads" : "none", leader ? connected : "leads", !leader);
  station("at-topic", brief(status.topic_waiting), waits(status.topic_waiting, status.topic_lag_seconds));
  station("at-workers", count(status.workers), "at work", !status.workers);
  const served = status.documents.map((one) => Object.entries(one.targets)
    .filter(([name]) => one.roles[name] === "serving").map(([, number]) => number)).flat();
  const held = served.reduce((sum, number) => sum + (number ?? 0), 0);
  station("at-index", brief(held), held === 1 ? "document" : "documents", served.includes(null));
  pipe("to-relay", rates?.captured, "changes written to the outbox each second");
  pipe("to-topic", rates?.published, "changes published each second");
  pipe("to-workers", rates?.handled, "changes handled each second");
  pipe("to-index", rates?.written, "documents written each second, by live changes and by jobs");
}

const waits = (number, seconds) => {
  if (number && seconds >= 1) return `wait${number === 1 ? "s" : ""} up to ${about(seconds)}`;
  return number === 1 ? "change waits" : "changes wait";
};

function station(id, big, sub, isBad = false) {
  const place = by(id);
  say(place.querySelector(".big"), big);
  say(place.querySelector(".sub"), sub);
  place.classList.toggle("bad", isBad);
}

function pipe(id, number, title) {
  const place = by(id);
  say(place.querySelector(".rate"), rate(number));
  place.title = title;
  const moves = number > 0;
  place.classList.toggle("moves", moves);
  // The more, the faster: ten times as many take half the time.
  if (moves) place.style.setProperty("--pace", `${Math.max(0.15, 1.2 / 2 ** Math.log10(Math.max(1, number))).toFixed(2)}s`);
}

export function showRunning(status) {
  show(by("running-none"), !status.running.length);
  show(by("running"), status.running.length > 0);
  keep(by("running").tBodies[0], status.running, (one) => one.address ?? "local",
    () => el("tr", {}, el("th", { scope: "row" }), cell("Daemons", "number"), cell("Stages"), cell("Since")),
    (row, one) => {
      say(row.cells[0], one.address ?? "beside Postgres");
      say(row.cells[1], count(one.daemons));
      say(row.cells[2], stages(one));
      say(row.cells[3], one.since ? moment(one.since) : "");
    });
}

const cell = (label, kind = null) => el("td", { class: kind, "data-label": label });

function stages(one) {
  const standingBy = one.relays - (one.leads ? 1 : 0);
  return [
    one.leads ? "the relay that leads" : null,
    standingBy ? `${amount(standingBy, "relay")} standing by` : null,
    one.works ? "workers" : null,
  ].filter(Boolean).join(", ");
}
