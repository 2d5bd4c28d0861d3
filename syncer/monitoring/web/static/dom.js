// To build and change what is shown. Text is always text: nothing here reads markup.

export const by = (id) => document.getElementById(id);

/** An element: el("p", {class: "quiet"}, "text", otherElement). What is null or false is left out. */
export function el(name, attributes = {}, ...children) {
  const made = document.createElement(name);
  for (const [key, value] of Object.entries(attributes)) {
    if (value === null || value === undefined || value === false) continue;
    if (key.startsWith("on")) made.addEventListener(key.slice(2), value);
    else made.setAttribute(key, value === true ? "" : value);
  }
  made.append(...children.flat(Infinity).filter((child) => child !== null && child !== undefined && child !== false));
  return made;
}

/** Change a text only if it differs, so that a reader's selection and a screen reader's place stay. */
export function say(element, text) {
  if (element.textContent !== text) element.textContent = text;
}

export function show(element, isShown) {
  if (element.hidden === isShown) element.hidden = !isShown;
}

/** Replace what is in an element, if what it was made from has changed: what has the focus keeps it otherwise. */
export function fill(element, source, make) {
  const known = JSON.stringify(source);
  if (element.dataset.made === known) return;
  element.dataset.made = known;
  element.replaceChildren(...make());
}

/** Keep one child for each item, by its key, in order; those that stay are the same elements. */
export function keep(container, items, key, make, change) {
  const old = new Map([...container.children].map((child) => [child.dataset.key, child]));
  let place = container.firstElementChild;
  for (const item of items) {
    const name = String(key(item));
    let child = old.get(name);
    old.delete(name);
    if (!child) {
      child = make(item);
      child.dataset.key = name;
    }
    if (child === place) place = place.nextElementSibling;
    else container.insertBefore(child, place);
    change(child, item);
  }
  for (const gone of old.values()) gone.remove();
}

/** A fold-out for the text of an error, as the server or its client library words it. */
export const raw = () => el("details", { class: "raw", hidden: true }, el("summary", {}, "Error text"), el("pre"));
