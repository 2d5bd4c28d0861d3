// A plot: lines over time, read with a pointer or with the arrow keys.

import { el, say } from "./dom.js";
import { timeOf } from "./words.js";

// By range in seconds: its name, and the ticks in a unit of so many seconds; the last list is for a narrow plot.
const RANGES = {
  120: ["two minutes", 1, "s", [120, 90, 60, 30, 0], [120, 60, 0]],
  600: ["ten minutes", 60, "min", [10, 8, 6, 4, 2, 0], [10, 5, 0]],
  3600: ["an hour", 60, "min", [60, 45, 30, 15, 0], [60, 30, 0]],
};
const GAP_SECONDS = 30;
const HEIGHT = 168;
const TOP = 8, BOTTOM = 22, LEFT = 46, RIGHT = 6;
const TABLE_ROWS = 60;

const svg = (name, attributes = {}, text) => {
  const made = document.createElementNS("http://www.w3.org/2000/svg", name);
  for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
  if (text !== undefined) made.textContent = text;
  return made;
};

/** The least round number that is not below this one: 1, 2, 2.5, 5 and ten times that. */
function roundedUp(number) {
  const power = 10 ** Math.floor(Math.log10(number));
  return [1, 2, 2.5, 5, 10].map((step) => step * power).find((step) => step >= number * 0.9999);
}

/** The least time that one would say, and that is not below this one. */
export const roundedUpTime = (seconds) =>
  seconds <= 10 ? roundedUp(seconds)
    : [20, 30, 60, 120, 240, 600, 1200, 3600, 7200, 14_400, 28_800, 86_400].find((period) => period >= seconds)
      ?? 86_400 * roundedUp(seconds / 86_400);

/** The usual time between two samples. */
function usual(samples) {
  const between = samples.slice(1).map((sample, place) => sample.at - samples[place].at).sort((a, b) => a - b);
  return between[Math.floor(between.length / 2)] ?? 0;
}

export class Plot {
  /**
   * figure: where; title: for who cannot see it; least: the least that the axis goes up to;
   * lines: [{name, of: (sample) => number or null, format: (number) => text}], the first one with an area;
   * tick: (number) => text; round: the least end of the axis for this number.
   */
  constructor(figure, { title, least, lines, tick, round = roundedUp }) {
    Object.assign(this, { title, least, lines, tick, round, samples: [], range: 120, gap: GAP_SECONDS, chosen: null });
    this.drawing = svg("svg", { role: "img", tabindex: "0", preserveAspectRatio: "none" });
    this.reading = el("figcaption");
    this.rows = el("tbody");
    const heads = ["Time", ...lines.map((line) => line.name)].map((head) => el("th", { scope: "col" }, head));
    const table = el("table", {}, el("caption", { class: "unseen" }, title),
      el("thead", {}, el("tr", {}, heads)), this.rows);
    this.table = el("details", { ontoggle: () => this.tabulate() }, el("summary", {}, "As a table"),
      el("div", { class: "scroll", tabindex: "0", role: "region", "aria-label": title }, table));
    figure.append(this.drawing, this.reading, this.table);
    this.drawing.addEventListener("pointermove", (event) => this.point(event));
    this.drawing.addEventListener("pointerleave", () => this.choose(null));
    this.drawing.addEventListener("blur", () => this.choose(null));
    this.drawing.addEventListener("keydown", (event) => this.step(event));
    new ResizeObserver(() => this.draw()).observe(figure);
  }

  update(samples, range) {
    this.samples = samples;
    this.range = range;
    this.gap = Math.max(GAP_SECONDS, 2.5 * usual(samples));
    this.draw();
    this.tabulate();
  }

  get until() { return this.samples.length ? this.samples.at(-1).at : Date.now() / 1000; }

  draw() {
    const width = Math.max(200, this.drawing.clientWidth || this.drawing.parentElement.clientWidth);
    this.width = width;
    const values = this.samples.flatMap((sample) => this.lines.map((line) => line.of(sample) ?? 0));
    const greatest = this.round(Math.max(this.least, ...values));
    this.x = (at) => LEFT + (width - LEFT - RIGHT) * (1 - (this.until - at) / this.range);
    this.y = (number) => TOP + (HEIGHT - TOP - BOTTOM) * (1 - number / greatest);
    this.drawing.setAttribute("viewBox", `0 0 ${width} ${HEIGHT}`);
    this.drawing.setAttribute("aria-label", `${this.title}. ${this.summary()} Arrow keys read it moment by moment.`);
    this.marks = svg("g");
    this.drawing.replaceChildren(...this.axes(width, greatest), ...this.curves(), this.marks);
    this.mark();
  }

  *axes(width, greatest) {
    for (const share of [0, 0.5, 1]) {
      const y = this.y(greatest * share);
      yield svg("line", { class: "grid", x1: LEFT, x2: width - RIGHT, y1: y, y2: y });
      yield svg("text", { class: "axis", x: LEFT - 8, y: y + 4, "text-anchor": "end" }, this.tick(greatest * share));
    }
    const [, unit, name, many, few] = RANGES[this.range];
    const ticks = width < 420 ? few : many;
    for (const ago of ticks) {
      const anchor = ago === ticks[0] ? "start" : ago === 0 ? "end" : "middle";
      const x = this.x(this.until - ago * unit);
      yield svg("text", { class: "axis", x, y: HEIGHT - 5, "text-anchor": anchor }, ago ? `−${ago} ${name}` : "now");
    }
  }

  *curves() {
    for (const [number, line] of this.lines.entries()) {
      for (const part of this.parts(line)) {
        // A line of one point is a dot.
        const path = part.map(([x, y]) => `${x.toFixed(1)},${y.toFixed(1)}`).join("L") + (part.length === 1 ? "h0" : "");
        const ends = `L${part.at(-1)[0].toFixed(1)},${this.y(0)}L${part[0][0].toFixed(1)},${this.y(0)}Z`;
        if (number === 0) yield svg("path", { class: "area", d: `M${path}${ends}` });
        yield svg("path", { class: `line${number ? " second" : ""}${part.length === 1 ? " point" : ""}`, d: `M${path}` });
      }
    }
  }

  /** The points of a line, in parts: no line is drawn across a gap. */
  parts(line) {
    const parts = [];
    let last = null;
    for (const sample of this.samples) {
      const value = line.of(sample);
      if (value === null || value === undefined || this.until - sample.at > this.range) { last = null; continue; }
      if (last === null || sample.at - last > this.gap) parts.push([]);
      parts.at(-1).push([this.x(sample.at), this.y(value)]);
      last = sample.at;
    }
    return parts.filter((part) => part.length);
  }

  // Reading it

  point(event) {
    const box = this.drawing.getBoundingClientRect();
    const at = this.until - this.range * (1 - (event.clientX - box.left - LEFT) / (box.width - LEFT - RIGHT));
    let best = null;
    for (const sample of this.samples) {
      if (best === null || Math.abs(sample.at - at) < Math.abs(best.at - at)) best = sample;
    }
    this.choose(best && best.at);
  }

  step(event) {
    const by = { ArrowLeft: -1, ArrowRight: 1, PageUp: -12, PageDown: 12, Home: -Infinity, End: Infinity }[event.key];
    if (by === undefined || !this.samples.length) return;
    event.preventDefault();
    const last = this.samples.length - 1;
    const now = this.chosen === null ? last + 1 : this.samples.findIndex((sample) => sample.at === this.chosen);
    const next = Math.min(last, Math.max(0, (by === Infinity ? last : by === -Infinity ? 0 : now + by)));
    this.choose(this.samples[next].at, true);
  }

  choose(at, isRead = false) {
    this.chosen = at;
    this.reading.setAttribute("aria-live", isRead ? "polite" : "off");
    this.mark();
  }

  mark() {
    const sample = this.samples.find((known) => known.at === this.chosen) ?? null;
    const shown = sample ?? this.samples.at(-1);
    this.read(shown, sample === null ? "now" : timeOf(shown.at));
    if (sample === null || !this.marks) { this.marks?.replaceChildren(); return; }
    const x = this.x(sample.at);
    const dots = this.lines.map((line, number) => [line.of(sample), number]).filter(([value]) => value !== null && value !== undefined);
    this.marks.replaceChildren(
      svg("line", { class: "cross", x1: x, x2: x, y1: TOP, y2: this.y(0) }),
      ...dots.map(([value, number]) =>
        svg("circle", { class: number ? "dot second" : "dot", cx: x, cy: this.y(value), r: 4 })),
    );
  }

  read(sample, when) {
    const parts = this.lines.map((line, number) => {
      const value = sample ? line.of(sample) : null;
      return [number ? "key second" : "key", line.name, value === null || value === undefined ? "–" : line.format(value)];
    });
    if (this.reading.children.length !== parts.length + 1) {
      this.reading.replaceChildren(...parts.map(([kind, name]) =>
        el("span", { class: kind }, `${name} `, el("b"))), el("span", { class: "quiet" }));
    }
    parts.forEach(([, , value], place) => say(this.reading.children[place].querySelector("b"), value));
    say(this.reading.lastElementChild, when);
  }

  summary() {
    const known = this.samples.filter((sample) => this.until - sample.at <= this.range);
    if (!known.length) return "Nothing is known yet.";
    return this.lines.map((line) => {
      const values = known.map(line.of).filter((value) => value !== null && value !== undefined);
      if (!values.length) return `${line.name}: not known.`;
      return `${line.name}: ${line.format(values.at(-1))} now, at most ${line.format(Math.max(...values))} in ${RANGES[this.range][0]}.`;
    }).join(" ");
  }

  tabulate() {
    if (!this.table.open) return;
    const every = Math.ceil(this.samples.length / TABLE_ROWS) || 1;
    const rows = this.samples.filter((_, place) => (this.samples.length - 1 - place) % every === 0).reverse();
    this.rows.replaceChildren(...rows.map((sample) => el("tr", {}, el("td", {}, timeOf(sample.at)),
      this.lines.map((line) => { const value = line.of(sample); return el("td", {}, value === null ? "–" : line.format(value)); }))));
  }
}
