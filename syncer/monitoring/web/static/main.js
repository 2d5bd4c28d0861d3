// The page: asks the daemon every two seconds, shows the answer, and says so if there is none.

import { Unreachable, get, hasToken, tryToken, useToken } from "./ask.js";
import { showDocuments } from "./documents.js";
import { by, el, fill, say, show } from "./dom.js";
import { showEvents } from "./events.js";
import { lookUp } from "./explain.js";
import { asOf, showBanner, showDaemons, showFlow, showProblems, silentOf } from "./flow.js";
import { showJobs } from "./jobs.js";
import { showLetters } from "./letters.js";
import { Plot, roundedUpTime } from "./plot.js";
import { about, brief, duration, rate, timeOf } from "./words.js";

const EVERY_MS = 2000;
const RETRY_MS = [1000, 2000, 4000, 8000];
const EVENTS_EVERY_MS = 10_000;
const KEPT_SECONDS = 3600;
const OLD_SECONDS = 5;
const UNAVAILABLE = 503;

const state = {
  status: null, answeredAt: null, failures: 0, timer: null, isAsking: false, isAgain: false,
  letters: { letters: 0, kinds: [] }, jobs: { jobs: [], has_more: false }, events: [], eventsAt: 0,
  range: 3600, samples: [],
};

const plots = [
  new Plot(by("lag-plot"), {
    title: "Lag", least: 1, tick: about, round: roundedUpTime,
    lines: [{ name: "Lag", key: "lag_seconds", format: duration }],
  }),
  new Plot(by("rate-plot"), {
    title: "Throughput", least: 10, tick: brief,
    lines: [
      { name: "Documents written", key: "written_per_second", format: rate },
      { name: "Changes captured", key: "captured_per_second", format: rate },
    ],
  }),
];

async function turn() {
  clearTimeout(state.timer);
  if (state.isAsking) { state.isAgain = true; return; }
  state.isAsking = true;
  let wait = EVERY_MS;
  try {
    await ask();
    state.failures = 0;
  } catch (error) {
    if (!(error instanceof Unreachable) && error.status === undefined) console.error(error);
    wait = RETRY_MS[Math.min(state.failures, RETRY_MS.length - 1)];
    state.failures += 1;
    showTrouble(error, wait);
  }
  state.isAsking = false;
  if (state.isAgain) wait = 0;
  state.isAgain = false;
  if (!document.hidden) state.timer = setTimeout(turn, wait);
}

async function ask() {
  const status = await get("/api/status");
  keepSamples((await get("/api/history", { after: state.samples.at(-1)?.at ?? 0 })).samples);
  const access = status.access;
  const silent = silentOf(status);
  if (!silent.has("postgres")) await askPostgres();
  const rates = silent.has("postgres") ? null : ratesBetween(state.status, status);
  Object.assign(state, { status, answeredAt: Date.now() });
  document.body.classList.remove("waits", "lost");
  showBanner(status);
  showFlow(status, rates);
  showDaemons(status);
  const documents = status.documents ?? [];
  showDocuments(documents, status.verifications ?? [], silent);
  showJobs(state.jobs.jobs, { hasMore: state.jobs.has_more, access });
  showLetters(state.letters, { access, explain });
  showEvents(state.events);
  for (const id of ["jobs-old", "letters-old", "events-old"]) asOf(id, silent, "postgres");
  plots.forEach((plot) => plot.update(state.samples, state.range));
  showAccess(access);
  showLook(documents, access);
  showFreshness();
  document.title = `${status.problems.length ? "● " : ""}syncer${status.lag_seconds >= 1 ? ` · ${duration(status.lag_seconds)}` : ""}`;
}

/** What is asked of Postgres directly, each in a connection of its own; an answer that fails leaves what was known. */
async function askPostgres() {
  const isDue = Date.now() - state.eventsAt >= EVENTS_EVERY_MS;
  const [letters, jobs, events] = await Promise.all([
    unlessAway(get("/api/dead-letters")),
    unlessAway(get("/api/jobs")),
    isDue ? unlessAway(get("/api/events")) : null,
  ]);
  state.letters = letters ?? state.letters;
  state.jobs = jobs ?? state.jobs;
  if (events) Object.assign(state, { events: events.events, eventsAt: Date.now() });
}

const unlessAway = (answer) => answer.catch((error) => {
  if (error.status !== UNAVAILABLE) throw error;
  return null;
});

/** What changed each second between two answers. */
function ratesBetween(before, after) {
  if (!before?.totals || !after.totals || after.at <= before.at) return null;
  return Object.fromEntries(Object.entries(after.totals).map(([name, total]) =>
    [name, Math.max(0, total - before.totals[name]) / (after.at - before.at)]));
}

/** The daemon keeps an hour. What it had when it was started again stays here. */
function keepSamples(samples) {
  state.samples.push(...samples);
  while (state.samples[0]?.at < state.samples.at(-1).at - KEPT_SECONDS) state.samples.shift();
}

by("range").addEventListener("change", () => {
  state.range = Number(by("range").value);
  turn();
});

function showTrouble(error, wait) {
  const isLost = error instanceof Unreachable;
  if (error.status === 401) { useToken(null); unlockForm(true, `${error.message}. ${error.hint}`); }
  document.body.classList.add(state.status ? "lost" : "waits");
  const since = state.answeredAt === null ? "" : ` since ${timeOf(state.answeredAt / 1000)}`;
  say(by("headline"), isLost ? `No connection to the daemon${since}: ${error.message}.` : `${error.message}.`);
  say(by("announced"), by("headline").textContent);
  showProblems([{ message: "", action: isLost
    ? `${state.status ? "The figures below are of that time. " : ""}Check that the daemon is running. This page reconnects by itself.`
    : error.hint || "This page retries by itself." }]);
  say(by("freshness"), `retrying every ${duration(wait / 1000)}`);
}

function showFreshness() {
  if (!state.status || document.body.matches(".lost, .waits")) return;
  const age = (Date.now() - state.answeredAt) / 1000;
  say(by("freshness"), age < OLD_SECONDS ? "live" : `as of ${duration(age)} ago`);
}

// The token

function showAccess(access) {
  const { daemon } = state.status;
  say(by("daemon"), `${daemon.host}, process ${daemon.process}, version ${daemon.version}`);
  const button = by("unlock");
  show(button, access.takes_token);
  say(button, access.sees_values ? "Lock" : "Unlock");
  button.title = access.sees_values ? "Forget the token" : "Enter the token to see values";
}

function unlockForm(isShown, message = "") {
  show(by("token-form"), isShown);
  show(by("unlock"), true);
  by("unlock").setAttribute("aria-expanded", String(isShown));
  say(by("token-notice"), message);
  by("token-notice").classList.toggle("bad", message !== "");
}

by("unlock").addEventListener("click", () => {
  if (hasToken()) { useToken(null); unlockForm(false); turn(); return; }
  const isOpen = by("token-form").hidden;
  unlockForm(isOpen);
  if (isOpen) by("token").focus();
});

by("token-form").addEventListener("submit", async (event) => {
  event.preventDefault();
  const value = by("token").value.trim();
  by("token").value = "";
  try {
    await tryToken(value);
    useToken(value);
    unlockForm(false);
    by("unlock").focus();
    turn();
  } catch (error) {
    unlockForm(true, error.hint ? `${error.message}. ${error.hint}` : `${error.message}.`);
    by("token").focus();
  }
});

// Explaining a document

function showLook(documents, access) {
  const choice = by("look-document");
  const chosen = choice.value;
  fill(choice, documents.map((shown) => shown.name), () => documents.map((shown) => el("option", { value: shown.name }, shown.name)));
  if (chosen && documents.some((shown) => shown.name === chosen)) choice.value = chosen;
  show(by("look-values-choice"), access.sees_values);
}

function explain(name, id) {
  by("look-document").value = name;
  by("look-id").value = id;
  by("look").scrollIntoView({ block: "start" });
  by("look-id").focus({ preventScroll: true });
  lookUp(name, id, state.status.access.sees_values && by("look-values").checked);
}

by("look").addEventListener("submit", (event) => {
  event.preventDefault();
  const values = Boolean(state.status?.access.sees_values) && by("look-values").checked;
  lookUp(by("look-document").value, by("look-id").value, values);
});

document.addEventListener("visibilitychange", () => {
  clearTimeout(state.timer);
  if (!document.hidden) turn();
});
setInterval(showFreshness, 1000);
turn();
