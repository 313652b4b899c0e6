// The page: asks for what one person's screen shows, draws it, and sends what they do.
import { $, h, reconcile } from "./dom.js";
import { blocks } from "./blocks.js";
import { showModal } from "./dialogs.js";
import { formatted, mrkdwn } from "./mrkdwn.js";
import { composer } from "./composer.js";

const GROUP_S = 300; // messages of one person closer together than this share one head
const remembered = (name) => sessionStorage.getItem(name);
const place = { me: remembered("me") ?? "U0ANA", room: remembered("room") ?? "C0GPU", thread: null, tab: "messages" };
let state = null;

const read = JSON.parse(localStorage.getItem("read") ?? "{}"); // person/channel -> newest message seen

const world = {
  get me() { return place.me; },
  get tz() { return state.people[place.me].tz; },
  people: () => Object.entries(state.people).filter(([, person]) => !person.is_bot).map(([id, person]) => ({ id, name: person.real_name })),
  personName: (id) => state.people[id]?.name ?? (id === "USLACKBOT" ? "Slackbot" : id),
  channelName: (id) => state.channels.find((room) => room.id === id)?.name,
  groupHandle: (id) => state.groups[id]?.handle,
  suggest: async (action_id, query) => (await post("suggestions", { action_id, query }))?.options ?? [],
  upload: (name, content) => post("file", { name, content }),
};

async function post(path, body) {
  const answer = await fetch(`/playground/${path}`, { method: "POST", body: JSON.stringify({ user: place.me, ...body }) });
  const { ok, error, result } = await answer.json();
  if (!ok) toast(error);
  else if (result?.error && path !== "command" && path !== "view_submit") toast(result.error);
  return ok ? result : { error };
}

function toast(sentence) {
  $("toast").textContent = sentence;
  $("toast").hidden = false;
  clearTimeout(toast.timer);
  toast.timer = setTimeout(() => { $("toast").hidden = true; }, 6000);
}

let asking = false;
let askAgain = false;

async function refresh() {
  if (asking) { askAgain = true; return; }
  asking = true;
  try {
    do {
      askAgain = false;
      const answer = await fetch(`/playground/state?user=${encodeURIComponent(place.me)}`);
      const next = await answer.json();
      if (next.me === place.me) draw(next);
      else askAgain = true;
    } while (askAgain);
  } finally {
    asking = false; // one lost answer must not be the last one asked for
  }
}

function draw(next) {
  const before = state?.me === next.me ? state : null;
  state = next;
  if (!state.channels.some((room) => room.id === place.room)) place.room = state.channels[0].id;
  markRead();
  drawSidebar();
  drawRoom();
  drawThread();
  showModal(state.view, state.depth, world, viewActions);
  if (before) announce(before);
}

const room = () => state.channels.find((one) => one.id === place.room);
const top = (messages) => messages.filter((message) => !message.thread_ts || message.thread_ts === message.ts || (message.only_for && !messages.some((one) => one.ts === message.thread_ts)));
const newest = (one) => one.messages.at(-1)?.ts ?? "";
const unread = (one) => one.messages.some((message) => message.user !== place.me && message.ts > (read[`${place.me}/${one.id}`] ?? ""));

function markRead() {
  if (document.hidden) return;
  read[`${place.me}/${place.room}`] = newest(room());
  localStorage.setItem("read", JSON.stringify(read));
}

function drawSidebar() {
  $("workspace").textContent = state.workspace;
  $("connection").textContent = state.connected ? "gpujob is connected" : "gpujob is not connected";
  $("connection").className = `connection ${state.connected ? "on" : "off"}`;
  const entry = (one) => ({ key: one.id, print: `${one.id === place.room} ${unread(one)} ${place.me}`, make: () => roomEntry(one) });
  reconcile($("channels"), state.channels.filter((one) => one.kind !== "im").map(entry));
  reconcile($("dms"), state.channels.filter((one) => one.kind === "im").map(entry));
  const people = Object.entries(state.people).filter(([, person]) => !person.is_bot);
  reconcile($("people"), people.map(([id, person]) => ({ key: id, print: String(id === place.me), make: () => personEntry(id, person) })));
}

function roomEntry(one) {
  const fresh = unread(one);
  const name = one.kind === "im" ? state.people[one.with].name : one.name;
  return h("li", {}, h("button", {
    type: "button", class: fresh ? "unread" : "", "aria-current": one.id === place.room ? "page" : null, data: { focus: one.id },
    onclick: () => go(one.id),
  },
    one.kind === "im" ? avatar(one.with, "small") : h("span", { class: "sign", "aria-hidden": "true" }, one.kind === "private" ? "🔒" : "#"),
    h("span", { class: "name" }, name),
    one.with && state.people[one.with].is_bot && h("span", { class: "badge" }, "APP"),
    fresh && h("span", { class: "dot" }, h("span", { class: "hidden" }, "unread"))));
}

function personEntry(id, person) {
  const chosen = id === place.me;
  return h("button", {
    type: "button", role: "radio", "aria-checked": String(chosen), tabindex: chosen ? "0" : "-1", data: { focus: id, person: person.name },
    onclick: () => become(id),
    onkeydown: (event) => {
      const step = { ArrowDown: 1, ArrowRight: 1, ArrowUp: -1, ArrowLeft: -1 }[event.key];
      if (!step) return;
      event.preventDefault();
      const all = [...$("people").children];
      const other = all[(all.indexOf(event.currentTarget) + step + all.length) % all.length];
      other.focus();
      become(other.dataset.key);
    },
  }, avatar(id, "small"), h("span", { class: "name" }, person.real_name), h("span", { class: "role" }, person.role));
}

function become(id) {
  place.me = id;
  place.thread = null;
  place.tab = "messages";
  sessionStorage.setItem("me", id);
  showModal(null);
  refresh();
}

function go(id) {
  Object.assign(place, { room: id, thread: null, tab: "messages" });
  sessionStorage.setItem("room", id);
  draw(state);
  $("composer-text").focus();
}

function drawRoom() {
  const one = room();
  const name = one.kind === "im" ? state.people[one.with].name : `#${one.name}`;
  const isApp = Boolean(one.with && state.people[one.with].is_bot);
  $("room-title").textContent = name;
  $("room-topic").textContent = one.topic;
  $("room-members").textContent = one.kind === "im" ? "" : `${one.members} members`;
  $("tabs").hidden = !isApp;
  const home = isApp && place.tab === "home";
  for (const tab of ["home", "messages"]) $(`tab-${tab}`).setAttribute("aria-selected", String(place.tab === tab));
  $("home").hidden = !home;
  $("messages").hidden = $("composer").hidden = home;
  $("composer-text").placeholder = `Message ${name}`;
  document.title = `${name} · ${state.workspace}`;
  if (home) drawHome();
  else drawMessages($("messages"), top(one.messages), one, false);
}

function drawHome() {
  const { home } = state;
  const use = (block, element, value) => post("view_click", { action_id: element.action_id, block_id: block.block_id, value });
  reconcile($("home"), [{ key: "home", print: home?.hash ?? "", make: () => home
    ? h("div", {}, ...blocks(home.blocks, world, use))
    : h("p", { class: "empty" }, "The app has not published its home tab yet.") }]);
}

function drawThread() {
  const one = room();
  const parent = place.thread && one.messages.find((message) => message.ts === place.thread);
  $("thread").hidden = !parent;
  $("app").classList.toggle("with-thread", Boolean(parent));
  if (!parent) return;
  $("thread-room").textContent = one.kind === "im" ? "" : `#${one.name}`;
  const replies = one.messages.filter((message) => message.ts !== parent.ts && message.thread_ts === parent.ts);
  drawMessages($("thread-messages"), [parent, ...replies], one, true);
}

function drawMessages(list, messages, one, inThread) {
  const atEnd = list.scrollHeight - list.scrollTop - list.clientHeight < 80 || list.dataset.room !== `${place.me}${one.id}${inThread ? place.thread : ""}`;
  list.dataset.room = `${place.me}${one.id}${inThread ? place.thread : ""}`;
  const entries = [];
  let last = null;
  for (const message of messages) {
    const day = formatted(new Date(message.ts * 1000), "date_long_pretty", world);
    if (!inThread && (!last || last.day !== day)) entries.push({ key: `day-${day}`, print: day, make: () => h("div", { class: "day", role: "separator" }, h("span", {}, day)) });
    const follows = last && last.day === day && last.message.user === message.user && message.ts - last.message.ts < GROUP_S && !message.only_for && !last.message.only_for && !inThread;
    const replies = inThread ? [] : one.messages.filter((reply) => reply.thread_ts === message.ts && reply.ts !== message.ts);
    const print = JSON.stringify([message, follows, replies.length, replies.at(-1)?.ts, place.me, place.thread === message.ts]);
    entries.push({ key: message.ts, print, make: () => messageNode(message, one, { follows, replies, inThread }) });
    last = { day, message };
  }
  if (!messages.length) entries.push({ key: "empty", print: one.id, make: () => h("p", { class: "empty" }, one.kind === "im" ? "This is the beginning of your conversation." : `This is the beginning of #${one.name}. Type /gpujob help to start.`) });
  reconcile(list, entries);
  if (atEnd) list.scrollTop = list.scrollHeight;
}

function messageNode(message, one, { follows, replies, inThread }) {
  const person = state.people[message.user];
  const name = person?.name ?? "Slackbot";
  const time = formatted(new Date(message.ts * 1000), "time", world);
  const use = (block, element, value) => post("click", { channel: one.id, ts: message.ts, action_id: element.action_id, block_id: block.block_id, value });
  const body = message.blocks?.length ? blocks(message.blocks, world, use) : h("div", { class: "text" }, ...mrkdwn(message.text, world));
  return h("article", { class: `message ${follows ? "follows" : ""} ${message.only_for ? "private" : ""} ${place.thread === message.ts && !inThread ? "open" : ""}`, data: { ts: message.ts }, "aria-label": `${name}, ${time}` },
    message.only_for && h("p", { class: "only" }, eye(), "Only visible to you"),
    follows ? h("time", { class: "aside", "aria-hidden": "true" }, time.replace(/ [AP]M/, "")) : avatar(message.user),
    h("div", { class: "content" },
      !follows && h("div", { class: "head" }, h("strong", {}, name), (person?.is_bot || !person) && h("span", { class: "badge" }, "APP"), h("time", {}, time)),
      body,
      message.edited && h("span", { class: "edited" }, "(edited)"),
      (message.files ?? []).map(fileNode),
      message.reactions && h("div", { class: "reactions" }, message.reactions.map((reaction) => h("span", {}, ...mrkdwn(`:${reaction.name}: `, world), String(reaction.count)))),
      replies.length > 0 && h("button", { type: "button", class: "replies", data: { focus: "replies" }, onclick: () => openThread(message.ts) },
        avatar(replies.at(-1).user, "small"), h("b", {}, replies.length === 1 ? "1 reply" : `${replies.length} replies`),
        h("span", { class: "quiet" }, `Last reply ${formatted(new Date(replies.at(-1).ts * 1000), "date_short_pretty", world).toLowerCase()} at ${formatted(new Date(replies.at(-1).ts * 1000), "time", world)}`))),
    !inThread && !message.only_for && h("div", { class: "hover" }, h("button", { type: "button", data: { focus: "thread" }, "aria-label": `Reply to ${name} in thread`, title: "Reply in thread", onclick: () => openThread(message.ts) }, bubble())));
}

function fileNode(file) {
  return h("details", { class: "file" }, h("summary", {}, h("b", {}, file.title ?? file.name), h("span", { class: "quiet" }, ` ${file.size.toLocaleString("en")} bytes`)), file.content && h("pre", {}, h("code", {}, file.content)));
}

function avatar(id, size = "") {
  const person = state.people[id];
  const name = person?.real_name ?? "Slackbot";
  return h("span", { class: `avatar ${size} ${person?.is_bot ? "bot" : ""}`, "aria-hidden": "true", data: { person: person?.name ?? "slackbot" } }, person?.is_bot ? "g" : name.slice(0, 1));
}

const SVG = "http://www.w3.org/2000/svg";

function icon(path) {
  const svg = document.createElementNS(SVG, "svg");
  svg.setAttribute("viewBox", "0 0 20 20");
  svg.setAttribute("aria-hidden", "true");
  const line = document.createElementNS(SVG, "path");
  line.setAttribute("d", path);
  svg.append(line);
  return svg;
}

const eye = () => icon("M2 10s3-5 8-5 8 5 8 5-3 5-8 5-8-5-8-5zm8 2.2a2.2 2.2 0 1 0 0-4.4 2.2 2.2 0 0 0 0 4.4z");
const bubble = () => icon("M3 4.5h14v9H9l-4 3v-3H3z");

function openThread(ts) {
  place.thread = ts;
  draw(state);
  $("thread-text").focus();
}

function closeThread() {
  const ts = place.thread;
  place.thread = null;
  draw(state);
  (document.querySelector(`#messages [data-key="${CSS.escape(ts ?? "")}"] .replies`) ?? $("composer-text")).focus();
}

function announce(before) {
  const seen = new Set(before.channels.flatMap((one) => one.messages.map((message) => `${one.id} ${message.ts}`)));
  const fresh = state.channels.flatMap((one) => one.messages
    .filter((message) => message.user !== place.me && !seen.has(`${one.id} ${message.ts}`))
    .map((message) => `${world.personName(message.user)}: ${h("p", {}, ...mrkdwn(message.text, world)).textContent}`));
  if (fresh.length) $("live").textContent = fresh.slice(-3).join(". ");
}

const viewActions = {
  click: (block, element, value, values) => post("view_click", { action_id: element.action_id, block_id: block.block_id, value, values }),
  submit: (values) => post("view_submit", { values }),
  close: () => post("view_close", {}),
};

async function send(text, thread) {
  if (text.startsWith("/") && !thread) {
    const result = await post("command", { channel: place.room, text });
    if (result?.error && !result.error.includes("failed with the error")) toast(result.error);
    return;
  }
  if (text.startsWith("/") && thread) { toast(`${text.split(" ")[0]} is not supported in threads. Write to @gpujob instead.`); return; }
  await post("message", { channel: place.room, text, thread_ts: thread });
}

composer($("composer"), { send: (text) => send(text, null), commands: () => state?.commands ?? {}, hints: $("hints") });
composer($("thread-composer"), { send: (text) => send(text, place.thread), commands: () => ({}), hints: null });
$("thread-close").addEventListener("click", closeThread);
$("tab-home").addEventListener("click", () => { place.tab = "home"; draw(state); post("home", {}); });
$("tab-messages").addEventListener("click", () => { place.tab = "messages"; draw(state); });
document.addEventListener("keydown", (event) => { if (event.key === "Escape" && place.thread && !$("modal").open && !$("confirm").open) closeThread(); });
document.addEventListener("visibilitychange", () => state && draw(state));
const stream = new EventSource("/playground/stream");
stream.onmessage = refresh;
stream.onerror = () => { $("connection").textContent = "The playground has stopped"; $("connection").className = "connection off"; };
refresh().then(() => $("composer-text").focus());
