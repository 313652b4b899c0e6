// The modal of the app, and the question before what cannot be undone.
import { $, h } from "./dom.js";
import { blocks } from "./blocks.js";
import { field } from "./controls.js";
import { plain, text } from "./mrkdwn.js";

export function ask(confirm, world) {
  const dialog = $("confirm");
  const answer = h("form", { method: "dialog" },
    h("h2", { id: "confirm-title" }, plain(confirm.title)),
    h("p", {}, ...text(confirm.text, world)),
    h("footer", {},
      h("button", { class: "button", value: "no", autofocus: true }, plain(confirm.deny)),
      h("button", { class: `button ${confirm.style === "danger" ? "danger filled" : "primary"}`, value: "yes" }, plain(confirm.confirm))));
  dialog.replaceChildren(answer);
  dialog.returnValue = "no";
  dialog.showModal();
  return new Promise((resolve) => dialog.addEventListener("close", () => resolve(dialog.returnValue === "yes"), { once: true }));
}

// What a payload's value is to a person's field.
function typedValue(value) {
  if (!value) return null;
  if (value.selected_option) return value.type === "external_select" ? value.selected_option : value.selected_option.value;
  if (value.selected_options) return value.selected_options.map((option) => option.value);
  return value.value ?? value.files ?? value.selected_user ?? value.selected_date_time ?? value.selected_date ?? value.selected_time ?? null;
}

let shown = null; // id and hash of the view on the screen
let typed = {};
let viewId = null;

export function showModal(view, depth, world, act) {
  const dialog = $("modal");
  if (!view) {
    if (dialog.open) dialog.close();
    shown = viewId = null;
    return;
  }
  const print = `${view.id} ${view.hash}`;
  if (print === shown) return;
  if (view.id !== viewId) typed = {};
  [shown, viewId] = [print, view.id];
  draw(dialog, view, depth, world, act);
  if (!dialog.open) dialog.showModal();
  (dialog.querySelector("[autofocus]") ?? dialog.querySelector("main :is(input, textarea, select)") ?? dialog.querySelector("footer button:last-child"))?.focus();
}

function draw(dialog, view, depth, world, act) {
  const kept = {};
  const parts = view.blocks.map((block) => {
    if (block.type !== "input") return blocks([block], world, (where, element, value) => act.click(where, element, value, typed))[0];
    const { element } = block;
    const before = typed[block.block_id]?.[element.action_id];
    const value = before !== undefined ? before : typedValue(view.state.values[block.block_id]?.[element.action_id]);
    (kept[block.block_id] ??= {})[element.action_id] = value;
    return inputBlock(block, value, world, (now) => {
      typed[block.block_id][element.action_id] = now;
      if (block.dispatch_action && element.type !== "plain_text_input") act.click(block, element, now, typed);
    });
  });
  typed = kept;
  const form = h("form", { novalidate: true, onsubmit: (event) => { event.preventDefault(); send(form, act); } },
    h("header", {}, h("h2", { id: "modal-title" }, plain(view.title)),
      h("button", { type: "button", class: "icon", "aria-label": "Close", onclick: act.close }, "✕")),
    h("main", {}, parts),
    h("p", { class: "trouble", role: "alert" }),
    h("footer", {},
      h("button", { type: "button", class: "button", onclick: act.close }, plain(view.close) || (depth > 1 ? "Back" : "Cancel")),
      view.submit && h("button", { type: "submit", class: "button primary" }, plain(view.submit))));
  dialog.replaceChildren(form);
  dialog.oncancel = (event) => { event.preventDefault(); act.close(); };
}

function inputBlock(block, value, world, change) {
  const id = `field-${block.block_id}-${block.element.action_id}`;
  const made = field(block, block.element, value, world, change);
  const grouped = made.matches(".choices");
  const target = made.matches("input, textarea, select") ? made : made.querySelector("input");
  if (target && !grouped) target.id = id;
  made.setAttribute("aria-describedby", `${id}-hint ${id}-error`);
  if (grouped) made.setAttribute("aria-labelledby", `${id}-label`);
  return h("div", { class: "block input", data: { block: block.block_id } },
    h(grouped ? "span" : "label", { id: `${id}-label`, class: "label", for: grouped ? null : id }, plain(block.label), block.optional && h("span", { class: "quiet" }, " (optional)")),
    made,
    block.hint && h("p", { id: `${id}-hint`, class: "quiet" }, plain(block.hint)),
    h("p", { id: `${id}-error`, class: "error", role: "alert" }));
}

async function send(form, act) {
  const button = form.querySelector("[type=submit]");
  if (!button || button.disabled) return;
  button.disabled = true;
  form.setAttribute("aria-busy", "true");
  const result = await act.submit(typed);
  button.disabled = false;
  form.removeAttribute("aria-busy");
  form.querySelector(".trouble").textContent = result.error ?? "";
  let first = null;
  for (const part of form.querySelectorAll("[data-block]")) {
    const sentence = result.errors?.[part.dataset.block] ?? "";
    part.querySelector(".error").textContent = sentence;
    const target = part.querySelector("input, textarea, select");
    target?.setAttribute("aria-invalid", String(Boolean(sentence)));
    if (sentence) first ??= target;
  }
  first?.focus();
}
