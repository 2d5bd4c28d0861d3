// Jobs: their progress, and the time left.

import { by, el, keep, raw, say, show } from "./dom.js";
import { amount, count, duration, moment, rate } from "./words.js";

export function showJobs(jobs, { hasMore, access }) {
  const unfinished = jobs.filter((one) => one.finished_at === null).length;
  say(by("jobs-count"), unfinished ? `${count(unfinished)} unfinished` : "");
  show(by("jobs-act"), unfinished > 0);
  show(by("jobs-none"), !jobs.length);
  show(by("jobs-more"), hasMore);
  keep(by("jobs"), jobs, (one) => one.id, make, (row, one) => change(row, one, access));
}

function make(one) {
  return el("li", { "aria-label": `Job ${one.id}` },
    el("div", { class: "what" }, el("p", {}, el("b", {}), el("span")), el("p", { class: "quiet" }), raw()),
    el("div", {}, el("div", { class: "bar", role: "progressbar", "aria-label": `Job ${one.id}`, "aria-valuemin": "0",
      "aria-valuemax": "100" }, el("i")), el("p")));
}

function change(row, one, access) {
  const [what, progress] = row.children;
  const isOver = one.finished_at !== null;
  row.className = isOver ? "ended" : one.is_paused ? "paused" : one.is_suspended ? "suspended" : "";
  say(what.querySelector("b"), `${one.id} · ${one.reason}`);
  say(what.querySelector("span"), ` of ${one.index_name}`);
  say(what.children[1], under(one));
  const hasText = access.sees_values && Boolean(one.error?.includes("\n"));
  show(what.lastElementChild, hasText);
  say(what.querySelector("pre"), hasText ? one.error : "");
  const share = one.documents_total ? Math.min(1, one.documents_done / one.documents_total) : 0;
  const bar = progress.firstElementChild;
  bar.setAttribute("aria-valuenow", String(Math.round(share * 100)));
  bar.firstElementChild.style.width = `${(share * 100).toFixed(1)}%`;
  say(progress.lastElementChild, pace(one, share));
}

function under(one) {
  if (one.finished_at !== null && !one.error) return "";
  if (one.error) return one.error.split("\n")[0];
  return one.started_at === null ? `created ${moment(one.created_at)}` : `since ${moment(one.started_at)}`;
}

/** How far it is, how fast it goes, and how long the rest takes; or what it waits for. */
function pace(one, share) {
  if (one.finished_at !== null) {
    return `${one.state} ${moment(one.finished_at)}: ${amount(one.documents_done, "document")}`;
  }
  const total = one.documents_total === null ? "" : ` of ${count(one.documents_total)} (${Math.floor(share * 100)} %)`;
  const done = `${count(one.documents_done)}${total}`;
  if (one.is_paused) return `${done}, paused`;
  if (one.is_suspended) return `${done}, waiting: its document is suspended`;
  if (one.state === "new") return "waiting to begin";
  if (one.documents_left === 0) return `${done}, finishing …`;
  const speed = one.documents_per_second === null ? "" : ` · ${rate(one.documents_per_second)} / s`;
  const left = one.eta_seconds === null ? "" : ` · ${duration(one.eta_seconds)} left`;
  return `${done}${speed}${left}`;
}
