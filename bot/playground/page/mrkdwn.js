// Slack's mrkdwn as nodes.
import { anchor, h } from "./dom.js";

const EMOJI = {
  white_check_mark: "✅", heavy_check_mark: "✔️", x: "❌", warning: "⚠️", hourglass: "⌛", hourglass_flowing_sand: "⏳",
  rocket: "🚀", no_entry: "⛔", no_entry_sign: "🚫", arrows_counterclockwise: "🔄", moon: "🌙", crescent_moon: "🌙",
  sunny: "☀️", bell: "🔔", information_source: "ℹ️", large_green_circle: "🟢", large_yellow_circle: "🟡", red_circle: "🔴",
  large_blue_circle: "🔵", white_circle: "⚪", black_circle: "⚫", thumbsup: "👍", "+1": "👍", "-1": "👎", eyes: "👀",
  tada: "🎉", pause_button: "⏸️", double_vertical_bar: "⏸️", arrow_forward: "▶️", black_right_pointing_triangle: "▶️",
  stopwatch: "⏱️", clock3: "🕒", calendar: "📅", chart_with_upwards_trend: "📈", bar_chart: "📊", moneybag: "💰",
  floppy_disk: "💾", gear: "⚙️", lock: "🔒", wave: "👋", zap: "⚡", fire: "🔥", bulb: "💡", inbox_tray: "📥", package: "📦",
  computer: "💻", page_facing_up: "📄", link: "🔗", robot_face: "🤖", recycle: "♻️", checkered_flag: "🏁", octagonal_sign: "🛑",
  raised_hand: "✋", hand: "✋", leftwards_arrow_with_hook: "↩️", alarm_clock: "⏰",
};

const INLINE = /`([^`\n]+)`|<([^<>\n]+)>|(?<![\w*])\*(?=\S)([^*\n]*[^\s*])\*(?![\w*])|(?<!\w)_(?=\S)([^_\n]*[^\s_])_(?!\w)|(?<![\w~])~(?=\S)([^~\n]*[^\s~])~(?![\w~])|:([a-z0-9_+-]+):/g;

export const decode = (text) => text.replace(/&lt;/g, "<").replace(/&gt;/g, ">").replace(/&amp;/g, "&");

export const emojis = (text) => text.replace(/:([a-z0-9_+-]+):/g, (whole, name) => EMOJI[name] ?? whole);

export function plain(object) {
  const text = decode(object?.text ?? "");
  return object?.emoji === false ? text : emojis(text);
}

export function text(object, world) {
  return object.type === "mrkdwn" ? mrkdwn(object.text, world) : [plain(object)];
}

export function mrkdwn(source, world) {
  const nodes = [];
  source.split(/```/).forEach((part, index, parts) => {
    if (index % 2 && index < parts.length - 1) nodes.push(h("pre", {}, h("code", {}, decode(part.replace(/^\n|\n$/g, "")))));
    else if (part) nodes.push(...lines(index % 2 ? "```" + part : part, world));
  });
  return nodes;
}

function lines(source, world) {
  const nodes = [];
  let quote = null;
  source.replace(/^\n|\n$/g, "").split("\n").forEach((line, index) => {
    const quoted = line.match(/^&gt;\s?(.*)$/);
    if (quoted) {
      if (!quote) nodes.push((quote = h("blockquote")));
      else quote.append(h("br"));
      quote.append(...inline(quoted[1], world));
      return;
    }
    if (index && !quote) nodes.push(h("br"));
    quote = null;
    nodes.push(...inline(line, world));
  });
  return nodes;
}

function inline(source, world) {
  const nodes = [];
  let end = 0;
  for (const match of source.matchAll(INLINE)) {
    nodes.push(decode(source.slice(end, match.index)), styled(match, world));
    end = match.index + match[0].length;
  }
  nodes.push(decode(source.slice(end)));
  return nodes.filter((node) => node !== "");
}

function styled(match, world) {
  const [whole, code, special, bold, italic, strike, emoji] = match;
  if (code !== undefined) return h("code", {}, decode(code));
  if (special !== undefined) return reference(special, world);
  if (bold !== undefined) return h("strong", {}, ...inline(bold, world));
  if (italic !== undefined) return h("em", {}, ...inline(italic, world));
  if (strike !== undefined) return h("s", {}, ...inline(strike, world));
  return EMOJI[emoji] ?? whole;
}

function reference(body, world) {
  const [target, label] = split(body);
  if (target.startsWith("@")) return mention(target.slice(1), world);
  if (target.startsWith("#")) return h("span", { class: "mention" }, `#${world.channelName(target.slice(1)) ?? decode(label ?? target.slice(1))}`);
  if (target.startsWith("!date^")) return date(target, label, world);
  if (target.startsWith("!subteam^")) return h("span", { class: "mention" }, `@${world.groupHandle(target.slice(9)) ?? label ?? "group"}`);
  if (target.startsWith("!")) return h("span", { class: "mention loud" }, `@${target.slice(1)}`);
  return anchor(decode(target), decode(label ?? target.replace(/^mailto:/, "")));
}

export function mention(id, world) {
  return h("span", { class: id === world.me ? "mention me" : "mention" }, `@${world.personName(id)}`);
}

function split(body) {
  const at = body.indexOf("|");
  return at < 0 ? [body, undefined] : [body.slice(0, at), body.slice(at + 1)];
}

function date(target, fallback, world) {
  const [, epoch, format, link] = target.split("^");
  const when = new Date(Number(epoch) * 1000);
  if (Number.isNaN(when.valueOf())) return decode(fallback ?? "");
  const shown = emojis(decode(format ?? "")).replace(/\{(\w+)\}/g, (whole, name, at) => placed(formatted(when, name, world), at) ?? whole);
  const time = h("time", { datetime: when.toISOString(), title: fallback ? decode(fallback) : null }, shown);
  return link ? anchor(decode(link), time) : time;
}

// As in Slack: "Today" where it begins the format, "today" within it.
const placed = (shown, at) => (at && /^(Today|Yesterday|Tomorrow)$/.test(shown) ? shown.toLowerCase() : shown);

export function formatted(when, name, world) {
  const as = (options) => new Intl.DateTimeFormat("en-US", { timeZone: world.tz, ...options }).format(when);
  const day = (shift) => new Intl.DateTimeFormat("en-CA", { timeZone: world.tz }).format(new Date(Date.now() + shift * 864e5));
  const near = { [day(0)]: "Today", [day(-1)]: "Yesterday", [day(1)]: "Tomorrow" }[new Intl.DateTimeFormat("en-CA", { timeZone: world.tz }).format(when)];
  switch (name) {
    case "time": return as({ hour: "numeric", minute: "2-digit" });
    case "time_secs": return as({ hour: "numeric", minute: "2-digit", second: "2-digit" });
    case "date_num": return new Intl.DateTimeFormat("en-CA", { timeZone: world.tz }).format(when);
    case "date": return as({ month: "long", day: "numeric", year: "numeric" });
    case "date_short": return as({ month: "short", day: "numeric", year: "numeric" });
    case "date_long": return as({ weekday: "long", month: "long", day: "numeric", year: "numeric" });
    case "date_pretty": return near ?? as({ month: "long", day: "numeric", year: "numeric" });
    case "date_short_pretty": return near ?? as({ month: "short", day: "numeric", year: "numeric" });
    case "date_long_pretty": case "day_divider_pretty": return near ?? as({ weekday: "long", month: "long", day: "numeric" });
    case "ago": return ago((Date.now() - when) / 1000);
    default: return null;
  }
}

function ago(seconds) {
  const words = new Intl.RelativeTimeFormat("en", { numeric: "auto" });
  const [size, unit] = [[86400, "day"], [3600, "hour"], [60, "minute"]].find(([size]) => Math.abs(seconds) >= size) ?? [1, "second"];
  return words.format(-Math.round(seconds / size), unit);
}

// The small part of standard Markdown that `markdown` blocks need.
export function markdown(source, world) {
  return source.split(/\n{2,}/).map((part) => {
    const heading = part.match(/^(#{1,6})\s+(.*)$/s);
    if (heading) return h(`h${Math.min(6, heading[1].length + 2)}`, {}, ...inline(toMrkdwn(heading[2]), world));
    const rows = part.split("\n");
    if (rows.every((row) => /^[-*]\s/.test(row))) return h("ul", {}, rows.map((row) => h("li", {}, ...inline(toMrkdwn(row.slice(2)), world))));
    return h("p", {}, ...mrkdwn(toMrkdwn(part), world));
  });
}

const toMrkdwn = (source) => source
  .replace(/\[([^\]]+)\]\((https?:[^)\s]+)\)/g, "<$2|$1>")
  .replace(/\*\*([^*\n]+)\*\*/g, "\u0001$1\u0001")
  .replace(/(?<![\w*])\*([^*\n]+)\*(?![\w*])/g, "_$1_")
  .replace(/\u0001/g, "*");
