// Numbers and times, as a person says them.

const whole = new Intl.NumberFormat("en-US", { maximumFractionDigits: 0 });
const tenth = new Intl.NumberFormat("en-US", { maximumFractionDigits: 1 });

export const count = (number) => whole.format(number);

/** A number in little room: 1,234 and 12,345 as they are, then 123k, 1.2M. */
export function brief(number) {
  if (Math.abs(number) < 100_000) return whole.format(number);
  if (Math.abs(number) < 999_500) return `${whole.format(number / 1e3)}k`;
  if (Math.abs(number) < 999_500_000) return `${tenth.format(number / 1e6)}M`;
  return `${tenth.format(number / 1e9)}G`;
}

export function rate(number) {
  if (number === null || number === undefined) return "–";
  return number > 0 && number < 10 ? tenth.format(Math.max(number, 0.1)) : brief(number);
}

export const amount = (number, noun) => `${count(number)} ${noun}${number === 1 ? "" : "s"}`;

/** Seconds: 0.4 s, 12 s, 3 min 20 s, 2 h 5 min, 3 days. */
export function duration(seconds) {
  if (seconds < 10) return `${tenth.format(seconds)} s`;
  if (seconds < 60) return `${whole.format(seconds)} s`;
  const rounded = Math.round(seconds);
  if (rounded < 3600) return `${Math.floor(rounded / 60)} min${rounded % 60 ? ` ${rounded % 60} s` : ""}`;
  if (rounded < 172_800) {
    const minutes = Math.floor((rounded % 3600) / 60);
    return `${Math.floor(rounded / 3600)} h${minutes ? ` ${minutes} min` : ""}`;
  }
  return `${whole.format(rounded / 86_400)} days`;
}

/** The same in little room: only the greatest unit. */
export function about(seconds) {
  if (seconds < 60) return duration(seconds < 10 ? seconds : Math.round(seconds));
  if (seconds < 3600) return `${tenth.format(Math.round(seconds / 6) / 10)} min`;
  return seconds < 172_800 ? `${tenth.format(seconds / 3600)} h` : `${whole.format(seconds / 86_400)} days`;
}

const clock = new Intl.DateTimeFormat("en-GB", { hour: "2-digit", minute: "2-digit", second: "2-digit" });
const day = new Intl.DateTimeFormat("sv-SE", { year: "numeric", month: "2-digit", day: "2-digit" });

/** A moment: only the time, if it is of today. */
export function moment(when) {
  const date = new Date(when);
  const isToday = date.toDateString() === new Date().toDateString();
  return isToday ? clock.format(date) : `${day.format(date)} ${clock.format(date)}`;
}

export const timeOf = (seconds) => clock.format(new Date(seconds * 1000));
