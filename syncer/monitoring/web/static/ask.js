// To ask the daemon. The token stays in this tab, and is sent in a header that no other site can send.

const PATIENCE_MS = 15_000;
const KEPT_AS = "syncer-token";

let token = null;
try { token = sessionStorage.getItem(KEPT_AS); } catch { /* a browser that keeps nothing: until the page is left */ }

export const hasToken = () => token !== null;

export function useToken(value) {
  token = value;
  try {
    if (value === null) sessionStorage.removeItem(KEPT_AS);
    else sessionStorage.setItem(KEPT_AS, value);
  } catch { /* likewise */ }
}

/** Why the daemon refuses. */
export class Refused extends Error {
  constructor(status, answer) {
    super(answer.message);
    this.status = status;
    this.hint = answer.hint ?? "";
  }
}

/** Thrown when the daemon does not answer. */
export class Unreachable extends Error {}

async function send(path, sent = token) {
  const headers = {};
  if (sent !== null) headers.Authorization = `Bearer ${sent}`;
  let response, answer;
  try {
    response = await fetch(path, {
      headers, cache: "no-store", redirect: "error", signal: AbortSignal.timeout(PATIENCE_MS),
    });
    answer = await response.json();
  } catch (error) {
    throw new Unreachable(error.name === "TimeoutError" ? "no answer" : "unreachable");
  }
  if (!response.ok) throw new Refused(response.status, answer);
  return answer;
}

export const get = (path, words = {}) => {
  const query = new URLSearchParams(words).toString();
  return send(query ? `${path}?${query}` : path);
};
/** Whether a token is taken: it is sent with this question alone, and not with those that are asked meanwhile. */
export const tryToken = (value) => send("/api/status", value);
