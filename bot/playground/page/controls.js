// Buttons, selects and menus of messages, and the fields of modals.
import { anchor, h } from "./dom.js";
import { plain, text } from "./mrkdwn.js";
import { ask } from "./dialogs.js";

const options = (element) => [...(element.options ?? []), ...(element.option_groups ?? []).flatMap((group) => group.options)];
const focusName = (block, element) => `${block.block_id}/${element.action_id}`;

// What stands in a message or in a section; `use` sends it at once.
export function control(block, element, world, use) {
  const go = async (value) => {
    if (element.confirm && !(await ask(element.confirm, world))) return false;
    use(block, element, value);
    return true;
  };
  const draw = CONTROLS[element.type];
  return draw ? draw(block, element, world, go) : h("span", { class: "unknown" }, `(a ${element.type})`);
}

const CONTROLS = {
  button(block, element, world, go) {
    const button = h("button", {
      type: "button", class: `button ${element.style ?? ""}`, "aria-label": element.accessibility_label,
      data: { focus: focusName(block, element), action: element.action_id },
      onclick: () => { if (element.url) window.open(element.url, "_blank", "noopener"); go(null); },
    }, plain(element.text));
    return button;
  },
  image: (_, element) => h("img", { class: "accessory-image", src: element.image_url, alt: element.alt_text }),
  overflow: (block, element, world, go) => menu(block, element, go),
  static_select: (block, element, world, go) => select(block, element, go),
  external_select: (block, element, world, go) => finder(block, element, world, go),
  users_select(block, element, world, go) {
    const people = world.people().map((person) => ({ value: person.id, text: { type: "plain_text", text: person.name, emoji: false } }));
    return select(block, { ...element, options: people }, go, element.initial_user);
  },
  radio_buttons: (block, element, world, go) => choices(block, element, world, "radio", go),
  checkboxes: (block, element, world, go) => choices(block, element, world, "checkbox", go),
  datepicker: (block, element, world, go) => h("input", { type: "date", value: element.initial_date, "aria-label": "Date", onchange: (event) => go(event.target.value) }),
  timepicker: (block, element, world, go) => h("input", { type: "time", value: element.initial_time, "aria-label": "Time", onchange: (event) => go(event.target.value) }),
  datetimepicker: (block, element, world, go) => moment(element, go),
};

function select(block, element, go, initial = element.initial_option?.value) {
  const entry = (option) => h("option", { value: option.value, selected: option.value === initial }, plain(option.text));
  const box = h("select", {
    class: "select", "aria-label": plain(element.placeholder) || "Choose", data: { focus: focusName(block, element), action: element.action_id },
    onchange: async (event) => { if (event.target.value && !(await go(event.target.value))) event.target.value = initial ?? ""; },
  },
    h("option", { value: "", disabled: !element.clearable, selected: initial === undefined }, plain(element.placeholder) || "Choose an option"),
    element.option_groups
      ? element.option_groups.map((group) => h("optgroup", { label: plain(group.label) }, group.options.map(entry)))
      : (element.options ?? []).map(entry));
  return box;
}

function menu(block, element, go) {
  const list = h("div", { class: "menu", role: "menu", hidden: true });
  const opener = h("button", {
    type: "button", class: "button icon", "aria-label": "More actions", "aria-haspopup": "menu", "aria-expanded": "false",
    data: { focus: focusName(block, element), action: element.action_id }, onclick: () => show(list.hidden),
  }, "⋯");
  const show = (open) => {
    list.hidden = !open;
    opener.setAttribute("aria-expanded", String(open));
    if (open) list.firstElementChild?.focus();
  };
  list.append(...options(element).map((option) => h("button", {
    type: "button", role: "menuitem", data: { value: option.value },
    onclick: () => { show(false); opener.focus(); if (option.url) window.open(option.url, "_blank", "noopener"); go(option.value); },
  }, plain(option.text), option.description && h("small", {}, plain(option.description)))));
  list.addEventListener("keydown", (event) => {
    const items = [...list.children];
    const step = { ArrowDown: 1, ArrowUp: -1 }[event.key];
    if (step) { items[(items.indexOf(document.activeElement) + step + items.length) % items.length].focus(); event.preventDefault(); }
    if (event.key === "Escape") { show(false); opener.focus(); event.stopPropagation(); }
  });
  list.addEventListener("focusout", (event) => { if (!list.contains(event.relatedTarget) && event.relatedTarget !== opener) show(false); });
  return h("span", { class: "menu-place" }, opener, list);
}

function finder(block, element, world, go) {
  const found = h("div", { class: "found", role: "listbox", "aria-label": "Results" });
  const search = async (query) => {
    const offered = await world.suggest(element.action_id, query);
    found.replaceChildren(...(offered.length ? offered.map((option) => h("button", {
      type: "button", role: "option", onclick: () => { box.value = plain(option.text); found.replaceChildren(); go(option); },
    }, plain(option.text))) : [h("p", { class: "quiet" }, "No result")]));
  };
  const box = h("input", {
    type: "search", value: element.initial_option ? plain(element.initial_option.text) : "", placeholder: plain(element.placeholder),
    "aria-label": plain(element.placeholder) || "Search", data: { focus: focusName(block, element), action: element.action_id },
    oninput: (event) => search(event.target.value), onfocus: (event) => search(event.target.value),
  });
  return h("span", { class: "finder" }, box, found);
}

function choices(block, element, world, type, go, name = `${block.block_id}-${element.action_id}`) {
  const initial = new Set([element.initial_option?.value, ...(element.initial_options ?? []).map((option) => option.value)]);
  const box = h("div", { class: "choices", role: type === "radio" ? "radiogroup" : "group" });
  const chosen = () => {
    const values = [...box.querySelectorAll("input:checked")].map((input) => input.value);
    return type === "radio" ? values[0] ?? null : values;
  };
  box.append(...element.options.map((option) => h("label", { class: "choice" },
    h("input", { type, name, value: option.value, checked: initial.has(option.value), onchange: () => go(chosen()) }),
    h("span", {}, ...text(option.text, world), option.description && h("small", {}, ...text(option.description, world))))));
  return box;
}

function moment(element, go) {
  const local = (epoch) => new Date(epoch * 1000 - new Date(epoch * 1000).getTimezoneOffset() * 60000).toISOString().slice(0, 16);
  return h("input", {
    type: "datetime-local", value: element.initial_date_time ? local(element.initial_date_time) : "", "aria-label": "Date and time",
    onchange: (event) => go(event.target.value ? Math.floor(new Date(event.target.value) / 1000) : null),
  });
}

// One field of a modal. `change(value)` tells what is typed; `typed` is what stands there already.
export function field(block, element, typed, world, change) {
  const shared = { data: { action: element.action_id }, "aria-required": block.optional ? null : "true" };
  const hint = plain(element.placeholder);
  switch (element.type) {
    case "plain_text_input":
      return element.multiline
        ? h("textarea", { ...shared, rows: 6, placeholder: hint, value: typed ?? "", maxlength: String(element.max_length ?? 3000), oninput: (event) => change(event.target.value) })
        : h("input", { ...shared, type: "text", placeholder: hint, value: typed ?? "", maxlength: String(element.max_length ?? 3000), oninput: (event) => change(event.target.value) });
    case "email_text_input": case "url_text_input":
      return h("input", { ...shared, type: "text", inputmode: element.type === "url_text_input" ? "url" : "email", placeholder: hint, value: typed ?? "", oninput: (event) => change(event.target.value) });
    case "number_input":
      return h("input", { ...shared, type: "text", inputmode: element.is_decimal_allowed ? "decimal" : "numeric", placeholder: hint, value: typed ?? "", oninput: (event) => change(event.target.value) });
    case "static_select": case "users_select": {
      const made = CONTROLS[element.type](block, { ...element, clearable: block.optional, initial_option: undefined, initial_user: typed ?? undefined }, world, async (value) => { change(value); return true; });
      made.value = typed ?? "";
      made.setAttribute("aria-required", String(!block.optional));
      made.removeAttribute("aria-label");
      if (block.optional) made.addEventListener("change", () => change(made.value || null));
      return made;
    }
    case "multi_static_select":
      return choices(block, { ...element, options: options(element), initial_options: options(element).filter((option) => typed?.includes(option.value)) }, world, "checkbox", change);
    case "radio_buttons":
      return choices(block, { ...element, initial_option: options(element).find((option) => option.value === typed) }, world, "radio", change);
    case "checkboxes":
      return choices(block, { ...element, initial_options: options(element).filter((option) => typed?.includes(option.value)) }, world, "checkbox", change);
    case "external_select":
      return finder(block, element, world, (option) => change(option));
    case "datetimepicker":
      return moment({ ...element, initial_date_time: typed }, change);
    case "datepicker": case "timepicker":
      return CONTROLS[element.type](block, { ...element, initial_date: typed, initial_time: typed }, world, change);
    case "file_input":
      return files(element, typed, world, change);
    default:
      return anchor("", `(a ${element.type} cannot be used here)`);
  }
}

function files(element, typed, world, change) {
  const list = h("ul", { class: "files" }, (typed ?? []).map((file) => h("li", {}, file.name)));
  const accept = (element.filetypes ?? []).map((kind) => `.${kind}`).join(",");
  return h("div", {}, h("input", {
    type: "file", accept, multiple: (element.max_files ?? 10) > 1, data: { action: element.action_id },
    onchange: async (event) => {
      const kept = await Promise.all([...event.target.files].map(async (file) => world.upload(file.name, await file.text())));
      list.replaceChildren(...kept.map((file) => h("li", {}, file.name)));
      change(kept);
    },
  }), list);
}
