// The page: asks the daemon every two seconds, shows what it says, and says so when it does not answer.

import { Unreachable, get, hasToken, tryToken, useToken } from "./ask.js";
import { showDocuments } from "./documents.js";
import { by, el, fill, say, show } from "./dom.js";
import { lookUp } from "./explain.js";
import { showBanner, showFlow, showRunning } from "./flow.js";
import { showJobs } from "./jobs.js";
import { showLetters } from "./letters.js";
import { Plot, roundedUpTime } from "./plot.js";
import { about, brief, duration, rate, timeOf } from "./words.js";

const EVERY_MS = 2000;
const RETRY_MS = [1000, 2000, 4000, 8000];
const SPAN_SECONDS = 660;
const OLD_SECONDS = 20;

const state = { status: null, answeredAt: null, failures: 0, samples: [], timer: null, isAsking: false, isAgain: false };

const plots = [
  new Plot(by("lag-plot"), {
    title: "Lag in the last ten minutes", least: 1, tick: about, round: roundedUpTime,
    lines: [{ name: "Lag", of: (sample) => sample.lag_seconds, tell: duration }],
  }),
  new Plot(by("rate-plot"), {
    title: "Throughput in the last ten minutes", least: 10, tick: brief,
    lines: [
      { name: "Documents written", of: (sample) => sample.written_per_second, tell: rate },
      { name: "Changes captured", of: (sample) => sample.captured_per_second, tell: rate },
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
  const since = state.samples.at(-1)?.at ?? 0;
  const access = status.access;
  const [history, letters, jobs] = await Promise.all([
    get("/api/history", { since }),
    access.sees_rows ? get("/api/dead-letters") : { letters: parked(status), kinds: [], records: status.unreadable_records },
    get("/api/jobs"),
  ]);
  Object.assign(state, { status, answeredAt: Date.now() });
  const samples = [...state.samples, ...history.samples];
  state.samples = samples.filter((one) => one.at > samples.at(-1).at - SPAN_SECONDS);
  document.body.classList.remove("waits", "lost");
  showBanner(status);
  showFlow(status);
  showRunning(status);
  showDocuments(status.documents);
  showJobs(jobs.jobs, { hasMore: jobs.has_more, canAct: access.can_act, refresh: turn });
  showLetters(letters, { canAct: access.can_act, refresh: turn, explain });
  if (!access.sees_rows && letters.letters) say(by("letters-none"), "With the token it is shown which these are, and why.");
  plots.forEach((plot) => plot.update(state.samples));
  showAccess(access);
  showLook(status.documents, access);
  showFreshness();
  document.title = `${status.concerns.length ? "● " : ""}syncer${status.lag_seconds >= 1 ? ` · ${duration(status.lag_seconds)}` : ""}`;
}

const parked = (status) => status.documents.reduce((sum, one) => sum + one.dead_letters, 0);

function showTrouble(error, wait) {
  const isLost = error instanceof Unreachable;
  if (error.status === 401) { useToken(null); unlockForm(true, `${error.message}. ${error.hint}`); }
  document.body.classList.add(state.status ? "lost" : "waits");
  const since = state.answeredAt === null ? "" : ` since ${timeOf(state.answeredAt / 1000)}`;
  say(by("headline"), isLost ? `No connection to the daemon${since}: ${error.message}.` : `${error.message}.`);
  say(by("told"), by("headline").textContent);
  show(by("concerns"), true);
  fill(by("concerns"), [isLost, error.hint], () => [el("li", {}, el("p", { class: "does" }, isLost
    ? `${state.status ? "What is shown below was true then. " : ""}Is it still running? This page goes on by itself as soon as it answers.`
    : error.hint || "This page tries again by itself."))]);
  say(by("freshness"), `trying again every ${duration(wait / 1000)}`);
}

function showFreshness() {
  if (!state.status || document.body.matches(".lost, .waits")) return;
  const age = state.status.age_seconds + (Date.now() - state.answeredAt) / 1000;
  say(by("freshness"), age < OLD_SECONDS ? "live" : `as of ${duration(age)} ago`);
}

// The token

function showAccess(access) {
  const { daemon } = state.status;
  say(by("daemon"), `${daemon.host}, process ${daemon.process}, version ${daemon.version}`);
  const button = by("unlock");
  show(button, access.takes_token);
  say(button, access.can_act ? "Lock" : "Unlock");
  button.title = access.can_act ? "Forget the token" : "Enter the token, to pause jobs and retry dead letters";
}

function unlockForm(isShown, message = "") {
  show(by("token-form"), isShown);
  show(by("unlock"), true);
  by("unlock").setAttribute("aria-expanded", String(isShown));
  say(by("token-said"), message);
  by("token-said").classList.toggle("bad", message !== "");
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

// To look a document up

function showLook(documents, access) {
  const choice = by("look-document");
  const chosen = choice.value;
  fill(choice, documents.map((one) => one.name), () => documents.map((one) => el("option", { value: one.name }, one.name)));
  if (chosen && documents.some((one) => one.name === chosen)) choice.value = chosen;
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
