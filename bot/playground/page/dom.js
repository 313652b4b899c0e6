// Builds elements; text is always text, never markup, so nothing that anyone writes can become part of the page.

export function h(name, attributes = {}, ...children) {
  const element = document.createElement(name);
  for (const [key, value] of Object.entries(attributes)) {
    if (value === undefined || value === null || value === false) continue;
    if (key.startsWith("on")) element.addEventListener(key.slice(2), value);
    else if (key === "data") Object.assign(element.dataset, value);
    else if (key in element && typeof value !== "string") element[key] = value;
    else element.setAttribute(key, value === true ? "" : value);
  }
  element.append(...children.flat(Infinity).filter((child) => child !== null && child !== undefined && child !== false));
  return element;
}

export const $ = (id) => document.getElementById(id);

// Links open only what a browser may safely open.
export function anchor(url, ...children) {
  const safe = /^(https?:|mailto:)/i.test(url) ? url : null;
  if (!safe) return h("span", {}, ...children);
  return h("a", { href: safe, target: "_blank", rel: "noopener noreferrer" }, ...children);
}

// Puts fresh nodes in the place of old ones, but keeps those whose content did not change, and the focus.
export function reconcile(parent, entries) {
  const old = new Map([...parent.children].map((node) => [node.dataset.key, node]));
  const focus = focusPath(parent);
  const nodes = entries.map(({ key, print, make }) => {
    const kept = old.get(key);
    if (kept && kept.dataset.print === print) return kept;
    const node = make();
    node.dataset.key = key;
    node.dataset.print = print;
    return node;
  });
  nodes.forEach((node, index) => {
    if (parent.children[index] !== node) parent.insertBefore(node, parent.children[index] ?? null);
  });
  while (parent.children.length > nodes.length) parent.lastElementChild.remove();
  if (focus && !parent.contains(document.activeElement)) {
    const place = parent.querySelector(`[data-key="${CSS.escape(focus.key)}"]`);
    // An edited message has new block ids; what a button does stays the same.
    const same = (attribute, value) => value && place?.querySelector(`[data-${attribute}="${CSS.escape(value)}"]`);
    (same("focus", focus.name) ?? same("action", focus.action))?.focus();
  }
}

function focusPath(parent) {
  const active = document.activeElement;
  if (!active || !parent.contains(active)) return null;
  const key = active.closest("[data-key]")?.dataset.key;
  const name = active.dataset.focus;
  return key && name ? { key, name, action: active.dataset.action } : null;
}
