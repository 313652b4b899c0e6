// Block Kit as nodes. `use(block, element, value)` is what a click or a choice does.
import { anchor, h } from "./dom.js";
import { decode, emojis, formatted, markdown, mention, mrkdwn, plain, text } from "./mrkdwn.js";
import { control } from "./controls.js";

export function blocks(list, world, use) {
  return list.map((block) => {
    const draw = DRAW[block.type];
    return draw ? draw(block, world, use) : h("p", { class: "block unknown" }, `(a ${block.type} block)`);
  });
}

const DRAW = {
  section(block, world, use) {
    return h("div", { class: "block section" },
      h("div", { class: "body" },
        block.text && h("div", { class: "text" }, ...text(block.text, world)),
        block.fields && h("div", { class: "fields" }, block.fields.map((field) => h("div", {}, ...text(field, world))))),
      block.accessory && h("div", { class: "accessory" }, control(block, block.accessory, world, use)));
  },
  header: (block) => h("h3", { class: "block header" }, plain(block.text)),
  divider: () => h("hr", { class: "block" }),
  context(block, world) {
    return h("div", { class: "block context" }, block.elements.map((element) =>
      element.type === "image"
        ? h("img", { src: element.image_url, alt: element.alt_text, title: element.alt_text })
        : h("span", {}, ...text(element, world))));
  },
  actions(block, world, use) {
    return h("div", { class: "block actions" }, block.elements.map((element) => control(block, element, world, use)));
  },
  image(block) {
    return h("figure", { class: "block image" },
      block.title && h("figcaption", {}, plain(block.title)),
      h("img", { src: block.image_url, alt: block.alt_text }),
      h("figcaption", { class: "twin" }, block.alt_text));
  },
  rich_text: (block, world) => h("div", { class: "block rich" }, block.elements.map((element) => rich(element, world))),
  markdown: (block, world) => h("div", { class: "block markdown" }, ...markdown(block.text, world)),
  table: (block, world) => table(block.rows, block.column_settings, null, world),
  data_table: (block, world) => table(block.rows, null, block.caption, world),
  data_visualization: (block) => chart(block),
  plan: (block) => h("div", { class: "block plan" }, h("strong", {}, block.title), h("ul", {}, (block.tasks ?? []).map(task))),
  task_card: (block) => h("div", { class: "block plan" }, h("ul", {}, task(block))),
  alert: (block, world) => h("div", { class: `block alert ${block.level ?? "default"}`, role: "note" }, ...text(block.text, world)),
  card(block, world, use) {
    return h("div", { class: "block card" },
      block.title && h("strong", {}, ...text(block.title, world)),
      block.subtitle && h("div", { class: "quiet" }, ...text(block.subtitle, world)),
      block.body && h("div", {}, ...text(block.body, world)),
      block.actions && h("div", { class: "actions" }, block.actions.map((element) => control(block, element, world, use))));
  },
  carousel: (block, world, use) => h("div", { class: "block carousel" }, blocks(block.elements, world, use)),
  container(block, world, use) {
    return h("details", { class: "block container", open: !block.default_collapsed },
      h("summary", {}, ...text(block.title, world)), ...blocks(block.child_blocks, world, use));
  },
};

const SIGNS = { pending: "○", in_progress: "◐", complete: "●", error: "✕" };

function task(item) {
  const state = item.status ?? "pending";
  return h("li", { class: state }, h("span", { "aria-hidden": "true" }, SIGNS[state]), ` ${item.title}`, h("span", { class: "hidden" }, ` (${state.replace("_", " ")})`));
}

function rich(element, world) {
  const pieces = (list) => list.map((piece) => richPiece(piece, world));
  switch (element.type) {
    case "rich_text_preformatted": return h("pre", {}, h("code", {}, ...pieces(element.elements)));
    case "rich_text_quote": return h("blockquote", {}, ...pieces(element.elements));
    case "rich_text_list": {
      const items = element.elements.map((item) => h("li", {}, ...pieces(item.elements)));
      return h(element.style === "ordered" ? "ol" : "ul", { class: `indent-${element.indent ?? 0}` }, items);
    }
    default: return h("div", { class: "text" }, ...pieces(element.elements));
  }
}

function richPiece(piece, world) {
  return styledBy(piece.style, richContent(piece, world));
}

function richContent(piece, world) {
  switch (piece.type) {
    case "text": return h("span", { class: "pre" }, piece.text);
    case "link": return anchor(piece.url, piece.text ?? piece.url);
    case "emoji": return emojis(`:${piece.name}:`);
    case "user": return mention(piece.user_id, world);
    case "channel": return h("span", { class: "mention" }, `#${world.channelName(piece.channel_id) ?? piece.channel_id}`);
    case "usergroup": return h("span", { class: "mention" }, `@${world.groupHandle(piece.usergroup_id) ?? "group"}`);
    case "broadcast": return h("span", { class: "mention loud" }, `@${piece.range}`);
    case "date": {
      const when = new Date(piece.timestamp * 1000);
      return h("time", { datetime: when.toISOString() }, piece.format.replace(/\{(\w+)\}/g, (whole, name) => formatted(when, name, world) ?? whole));
    }
    default: return "";
  }
}

function styledBy(style, node) {
  const names = { bold: "strong", italic: "em", strike: "s", code: "code", underline: "u", highlight: "mark" };
  return Object.entries(style ?? {}).reduce((inner, [name, on]) => (on && names[name] ? h(names[name], {}, inner) : inner), node);
}

function table(rows, settings, caption, world) {
  const cell = (name, content, column) => h(name, { scope: name === "th" ? "col" : null, class: settings?.[column]?.align ?? "" },
    content.type === "rich_text" ? content.elements.map((element) => rich(element, world)) : decode(String(content.text ?? content.value ?? "")));
  const [head, ...body] = rows;
  return h("div", { class: "block table", tabindex: "0", role: "region", "aria-label": caption ?? "Table" }, h("table", {},
    caption && h("caption", {}, caption),
    h("thead", {}, h("tr", {}, head.map((content, column) => cell("th", content, column)))),
    h("tbody", {}, body.map((row) => h("tr", {}, row.map((content, column) => cell("td", content, column)))))));
}

// A chart and its twin in words: the same numbers as a table.
function chart(block) {
  const { type, segments, series } = block.chart;
  const bars = type === "pie" ? segments : series.flatMap((line) => line.data.map((point) => ({ label: series.length > 1 ? `${line.name}, ${point.label}` : point.label, value: point.value })));
  const most = Math.max(1e-9, ...bars.map((bar) => Math.abs(bar.value)));
  return h("figure", { class: "block chart" }, h("figcaption", {}, block.title),
    h("table", {}, h("caption", { class: "hidden" }, block.title), h("tbody", {}, bars.map((bar) => h("tr", {},
      h("th", { scope: "row" }, bar.label),
      h("td", {}, h("span", { class: "bar", "aria-hidden": "true", style: `width:${(100 * Math.abs(bar.value)) / most}%` })),
      h("td", { class: "right" }, String(bar.value)))))));
}

export { mrkdwn };
