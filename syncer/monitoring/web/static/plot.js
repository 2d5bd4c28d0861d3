// A plot: lines over time, drawn by uPlot; read with a pointer, with the arrow keys, or as a table.

import { el, say } from "./dom.js";
import { timeOf } from "./words.js";

const { uPlot } = window;
const GAP_SECONDS = 30, SHORTEST_SECONDS = 120, HEIGHT = 168, TABLE_ROWS = 60;
const RANGES = { 120: "two minutes", 600: "ten minutes", 3600: "an hour" };

// A canvas has no style sheet: colours are asked for each time that it is drawn, so that both themes have theirs.
const colour = (name) => () => getComputedStyle(document.documentElement).getPropertyValue(name);
const isKnown = (value) => value !== null && value !== undefined;

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

export class Plot {
  /**
   * figure: where; title: for who cannot see it; least: the least that the axis goes up to;
   * lines: [{name, key: of the sample's number, or null, format: (number) => text}], the first one with an area;
   * tick: (number) => text; round: the least end of the axis for this number.
   */
  constructor(figure, { title, least, lines, tick, round = roundedUp }) {
    Object.assign(this, { title, lines, samples: [], range: 3600 });
    this.drawing = el("div", { role: "img", tabindex: "0", class: "drawing" });
    this.values = lines.map(() => el("b"));
    this.when = el("span", { class: "quiet" });
    this.reading = el("figcaption", {}, lines.map((line, number) =>
      el("span", { class: number ? "key second" : "key" }, `${line.name} `, this.values[number])), this.when);
    this.rows = el("tbody");
    const heads = ["Time", ...lines.map((line) => line.name)].map((head) => el("th", { scope: "col" }, head));
    const table = el("table", {}, el("caption", { class: "unseen" }, title), el("thead", {}, el("tr", {}, heads)), this.rows);
    this.table = el("details", { ontoggle: () => this.tabulate() }, el("summary", {}, "As a table"),
      el("div", { class: "scroll", tabindex: "0", role: "region", "aria-label": title }, table));
    figure.append(this.drawing, this.reading, this.table);

    const font = "11px system-ui, sans-serif";
    const axis = { stroke: colour("--quiet"), font, ticks: { show: false }, grid: { stroke: colour("--line"), width: 1 } };
    const styles = [{ stroke: colour("--accent"), width: 1.75, fill: colour("--accent-soft") }, { stroke: colour("--quiet"), width: 1.25, dash: [4, 3] }];
    this.chart = new uPlot({
      width: this.width, height: HEIGHT, padding: [8, 24, 0, 0], legend: { show: false },
      cursor: { y: false, drag: { x: false }, sync: { key: "plots" } },
      scales: { x: { range: () => this.shown }, y: { range: (_, __, most) => [0, round(Math.max(least, most ?? 0))] } },
      axes: [
        { ...axis, grid: { show: false }, size: 24, space: 72, values: (_, times) => times.map(timeOf) },
        { ...axis, size: 52, splits: (_, __, ___, most) => [0, most / 2, most], values: (_, numbers) => numbers.map(tick) },
      ],
      series: [{}, ...lines.map((line, number) => ({ label: line.name, points: { show: false }, ...styles[number] }))],
      hooks: { setCursor: [() => this.read()] },
    }, [[], ...lines.map(() => [])], this.drawing);
    this.drawing.addEventListener("keydown", (event) => this.step(event));
    this.drawing.addEventListener("blur", () => this.point(null));
    new ResizeObserver(() => this.chart.setSize({ width: this.width, height: HEIGHT })).observe(figure);
    matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => this.chart.redraw());
  }

  get width() { return Math.max(200, this.drawing.clientWidth); }

  /** From when to when: no more than the range, and no more than there are samples of. */
  get shown() {
    const until = this.samples.at(-1)?.at ?? Date.now() / 1000;
    return [Math.max(until - this.range, Math.min(this.samples[0]?.at ?? until, until - SHORTEST_SECONDS)), until];
  }

  update(samples, range) {
    Object.assign(this, { samples, range });
    const [since] = this.shown;
    this.samples = samples.filter((sample) => sample.at >= since);
    const columns = [[], ...this.lines.map(() => [])];
    const add = (at, values) => columns.forEach((column, place) => column.push(place ? values[place - 1] : at));
    let last = Infinity;
    for (const sample of this.samples) {
      if (sample.at - last > GAP_SECONDS) add(last + 1, this.lines.map(() => null)); // no line is drawn across it
      add(sample.at, this.lines.map((line) => sample[line.key]));
      last = sample.at;
    }
    this.chart.setData(columns);
    this.drawing.setAttribute("aria-label", `${this.title}. ${this.summary()} Arrow keys read it moment by moment.`);
    this.read();
    this.tabulate();
  }

  /** The number of the sample that the cursor is at; none without a cursor. */
  get chosen() {
    const { left } = this.chart?.cursor ?? {};
    if (!(left >= 0) || !this.samples.length) return -1;
    const at = this.chart.posToVal(left, "x");
    return this.samples.reduce((best, sample, place) =>
      Math.abs(sample.at - at) < Math.abs(this.samples[best].at - at) ? place : best, 0);
  }

  step(event) {
    const last = this.samples.length - 1, now = this.chosen < 0 ? last + 1 : this.chosen;
    const next = { ArrowLeft: now - 1, ArrowRight: now + 1, PageUp: now - 12, PageDown: now + 12, Home: 0, End: last }[event.key];
    if (next === undefined || last < 0) return;
    event.preventDefault();
    this.reading.setAttribute("aria-live", "polite");
    this.point(this.samples[Math.min(last, Math.max(0, next))]);
  }

  point(sample) {
    if (!sample) this.reading.setAttribute("aria-live", "off");
    this.chart.setCursor({ left: sample ? this.chart.valToPos(sample.at, "x") : -10, top: sample ? 0 : -10 });
  }

  read() {
    const { chosen } = this, sample = this.samples.at(chosen); // -1 is the last one
    this.lines.forEach((line, number) => say(this.values[number], text(line, sample)));
    say(this.when, sample && chosen >= 0 ? timeOf(sample.at) : "now");
  }

  summary() {
    if (!this.samples.length) return "Nothing is known yet.";
    return this.lines.map((line) => {
      const values = this.samples.map((sample) => sample[line.key]).filter(isKnown);
      if (!values.length) return `${line.name}: not known.`;
      return `${line.name}: ${line.format(values.at(-1))} now, at most ${line.format(Math.max(...values))} in ${RANGES[this.range]}.`;
    }).join(" ");
  }

  tabulate() {
    if (!this.table.open) return;
    const every = Math.ceil(this.samples.length / TABLE_ROWS) || 1;
    const rows = this.samples.filter((_, place) => (this.samples.length - 1 - place) % every === 0).reverse();
    this.rows.replaceChildren(...rows.map((sample) => el("tr", {}, el("td", {}, timeOf(sample.at)),
      this.lines.map((line) => el("td", {}, text(line, sample))))));
  }
}

const text = (line, sample) => (isKnown(sample?.[line.key]) ? line.format(sample[line.key]) : "–");
