// The banner with its problems, the flow with its numbers, and the daemons.

import { by, el, fill, keep, raw, say, show } from "./dom.js";
import { about, brief, moment, rate, timeOf } from "./words.js";

export function showBanner(status) {
  say(by("headline"), status.headline);
  say(by("announced"), announcement(status));
  by("banner").className = `banner ${status.status}`;
  showProblems(status.problems);
}

/** The problems, each with its action; a fold-out that is open stays open. One alone is the headline already. */
export function showProblems(problems) {
  const list = by("problems");
  show(list, problems.length > 0);
  const keyed = problems.map((problem, place) => ({ ...problem, place: `${place} ${problem.runbook} ${problem.about}` }));
  keep(list, keyed, (problem) => problem.place, makeProblem, (item, problem) => {
    const [message, action, more] = item.children;
    show(message, problems.length > 1);
    say(message, problem.message);
    say(action, problem.action);
    show(more, Boolean(problem.runbook));
    show(more.lastElementChild, Boolean(problem.detail));
    say(more.querySelector("pre"), problem.detail ?? "");
  });
}

const makeProblem = (problem) => el("li", {}, el("b"), el("p", { class: "does" }), el("div", { class: "links" },
  el("a", { href: `/operating#:~:text=%23%23%23%20${problem.runbook}`, target: "_blank" }, `What it means: ${problem.runbook}`), raw()));

/** What is read aloud when it changes: not how much waits, which changes all the time. */
function announcement(status) {
  const lasting = status.problems.filter((problem) => !problem.is_passing);
  if (lasting.length) return lasting.length === 1 ? lasting[0].message : `${lasting.length} problems.`;
  return status.status === "well" ? "All is well." : "Behind.";
}

/** The servers that do not answer, each with the time of its last answer: their figures are of then. */
export const silentOf = (status) => new Map(status.servers.filter((server) => server.error !== null).map((server) =>
  [server.server, server.age_seconds === null ? null : Date.now() / 1000 - server.age_seconds]));

/** The rates are those since the status before. Without Kafka there is no topic. */
export function showFlow(status, rates) {
  const { leader } = status;
  const silent = silentOf(status);
  const usesKafka = status.servers.some((server) => server.server === "kafka");
  show(by("to-topic"), usesKafka);
  show(by("at-topic"), usesKafka);
  station("at-outbox", known(status.outbox_waiting), waits(status.outbox_waiting, status.outbox_lag_seconds));
  station("at-relay", leader ? "leads" : "none", leader ? leader.host : "no leader", !leader);
  station("at-topic", known(status.topic_waiting), waits(status.topic_waiting, status.topic_lag_seconds));
  const inHand = !usesKafka && status.topic_waiting ? `${brief(status.topic_waiting)} changes in hand` : "at work";
  station("at-workers", known(status.workers), inHand, status.workers === 0);
  const served = (status.documents ?? []).map((document) => Object.entries(document.targets)
    .filter(([name]) => document.roles[name] === "current").map(([, number]) => number)).flat();
  const held = served.reduce((sum, number) => sum + (number ?? 0), 0);
  const isUnknown = served.length > 0 && served.every((number) => number === null);
  station("at-index", isUnknown ? "–" : brief(held), held === 1 ? "document" : "documents", served.includes(null));
  for (const [id, server] of STATIONS) old(by(id), silent.has(server), silent.get(server));
  pipe("to-relay", rates?.captured, "changes written to the outbox each second");
  pipe("to-topic", rates?.published, "changes published each second");
  pipe("to-workers", rates?.handled, "changes handled each second");
  pipe("to-index", status.written_per_second, "documents written each second, by live changes and by jobs");
}

const STATIONS = [
  ["at-outbox", "postgres"], ["at-relay", "postgres"], ["at-topic", "postgres"], ["at-workers", "postgres"],
  ["at-index", "elasticsearch"],
];

/** Grey, with the time of the oldest of these servers' figures, if one of them is silent. */
export function asOf(id, silent, ...servers) {
  const away = servers.filter((server) => silent.has(server));
  const times = away.map((server) => silent.get(server));
  by(id).closest("section").classList.toggle("away", away.length > 0);
  say(by(id), !away.length ? "" : times.includes(null) ? "unknown" : `as of ${timeOf(Math.min(...times))}`);
}

/** The same for one place of the flow. */
function old(place, isOld, at) {
  place.classList.toggle("old", isOld);
  if (isOld) say(place.querySelector(".sub"), at ? `as of ${timeOf(at)}` : "unknown");
}

const known = (number) => (number === null ? "–" : brief(number));

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

export function showDaemons(status) {
  const daemons = status.daemons ?? [];
  show(by("daemons-none"), status.daemons !== null && !daemons.length);
  show(by("daemons"), daemons.length > 0);
  asOf("daemons-old", silentOf(status), "postgres");
  keep(by("daemons").tBodies[0], daemons, (daemon) => `${daemon.process}@${daemon.host} ${daemon.started_at}`,
    () => el("tr", {}, el("th", { scope: "row" }), cell("Process", "number"), cell("State"), cell("Components"),
      cell("Version"), cell("Started")),
    (row, daemon) => {
      const [text, kind] = state(daemon);
      [daemon.host, String(daemon.process), null, daemon.duties, daemon.version, moment(daemon.started_at)]
        .forEach((each, place) => { if (each !== null) say(row.cells[place], each); });
      fill(row.cells[2], [kind, text], () => [el("span", { class: `state ${kind}` }, text)]);
    });
}

const cell = (label, kind = null) => el("td", { class: kind, "data-label": label });

/** What a daemon does, and how it is shown: one that is silent hangs, or is gone. */
function state(daemon) {
  if (daemon.is_silent) return [`silent for ${about(daemon.silent_seconds)}`, "bad"];
  if (!daemon.components.length) return ["starts", "busy"];
  if (!daemon.troubles.length) return ["works", ""];
  const longest = daemon.troubles.reduce((a, b) => (b.seconds > a.seconds ? b : a));
  return [`${longest.component} retries for ${about(longest.seconds)}`, "bad"];
}
