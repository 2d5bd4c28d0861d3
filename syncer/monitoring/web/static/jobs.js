// Jobs: their progress, and the time left.

import { by, el, keep, raw, say, show } from "./dom.js";
import { amount, count, duration, moment, rate } from "./words.js";

export function showJobs(jobs, { hasMore, access }) {
  const unfinished = jobs.filter((job) => job.finished_at === null).length;
  say(by("jobs-count"), unfinished ? `${count(unfinished)} unfinished` : "");
  show(by("jobs-act"), unfinished > 0);
  show(by("jobs-none"), !jobs.length);
  show(by("jobs-more"), hasMore);
  keep(by("jobs"), jobs, (job) => job.id, make, (row, job) => change(row, job, access));
}

function make(job) {
  return el("li", { "aria-label": `Job ${job.id}` },
    el("div", { class: "what" }, el("p", {}, el("b", {}), el("span")), el("p", { class: "quiet" }), raw()),
    el("div", {}, el("div", { class: "bar", role: "progressbar", "aria-label": `Job ${job.id}`, "aria-valuemin": "0",
      "aria-valuemax": "100" }, el("i")), el("p")));
}

function change(row, job, access) {
  const [what, progress] = row.children;
  const isOver = job.finished_at !== null;
  row.className = isOver ? "ended" : job.is_paused ? "paused" : job.is_suspended ? "suspended" : "";
  say(what.querySelector("b"), `${job.id} · ${job.reason}`);
  say(what.querySelector("span"), ` of ${job.index_name}`);
  say(what.children[1], under(job));
  const hasText = access.sees_values && Boolean(job.error?.includes("\n"));
  show(what.lastElementChild, hasText);
  say(what.querySelector("pre"), hasText ? job.error : "");
  const share = job.documents_total ? Math.min(1, job.documents_done / job.documents_total) : 0;
  const bar = progress.firstElementChild;
  bar.setAttribute("aria-valuenow", String(Math.round(share * 100)));
  bar.firstElementChild.style.width = `${(share * 100).toFixed(1)}%`;
  say(progress.lastElementChild, pace(job, share));
}

function under(job) {
  if (job.finished_at !== null && !job.error) return "";
  if (job.error) return job.error.split("\n")[0];
  return job.started_at === null ? `created ${moment(job.created_at)}` : `since ${moment(job.started_at)}`;
}

/** How far it is, how fast it goes, and how long the rest takes; or what it waits for. */
function pace(job, share) {
  if (job.finished_at !== null) {
    return `${job.state} ${moment(job.finished_at)}: ${amount(job.documents_done, "document")}`;
  }
  const total = job.documents_total === null ? "" : ` of ${count(job.documents_total)} (${Math.floor(share * 100)} %)`;
  const done = `${count(job.documents_done)}${total}`;
  if (job.is_paused) return `${done}, paused`;
  if (job.is_suspended) return `${done}, waiting: its document is suspended`;
  if (job.state === "new") return "waiting to begin";
  if (job.documents_left === 0) return `${done}, finishing …`;
  const speed = job.documents_per_second === null ? "" : ` · ${rate(job.documents_per_second)} / s`;
  const left = job.eta_seconds === null ? "" : ` · ${duration(job.eta_seconds)} left`;
  return `${done}${speed}${left}`;
}
