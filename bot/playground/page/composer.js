// A box to write in: Enter sends, the arrow keys choose a command.
import { h } from "./dom.js";

export function composer(form, { send, commands, hints }) {
  const box = form.querySelector("textarea");
  const button = form.querySelector("button.send");
  const past = [];
  let back = 0;

  const fit = () => {
    box.style.height = "auto";
    box.style.height = `${Math.min(box.scrollHeight, 240)}px`;
    button.disabled = !box.value.trim();
  };
  const put = (text) => { box.value = text; fit(); hint(); };
  const submit = () => {
    const text = box.value.trim();
    if (!text) return;
    past.push(text);
    back = 0;
    put("");
    send(text);
  };

  function hint() {
    if (!hints) return;
    const offered = box.value.startsWith("/") ? suggestions(box.value, commands()) : [];
    hints.hidden = !offered.length;
    hints.replaceChildren(...offered.map(([command, meaning], index) => h("li", {
      role: "option", id: `hint-${index}`, "aria-selected": String(index === 0), onmousedown: (event) => { event.preventDefault(); choose(command); },
    }, h("b", {}, command), h("span", {}, meaning))));
    mark(0);
  }

  function mark(index) {
    const all = [...hints.children];
    all.forEach((item, at) => item.setAttribute("aria-selected", String(at === index)));
    if (all.length) { box.setAttribute("aria-activedescendant", `hint-${index}`); all[index].scrollIntoView({ block: "nearest" }); }
    else box.removeAttribute("aria-activedescendant");
  }

  const marked = () => [...hints.children].findIndex((item) => item.getAttribute("aria-selected") === "true");
  const choose = (command) => { put(`${command} `); hints.hidden = true; box.focus(); };

  function hintKey(event) {
    if (!hints || hints.hidden) return false;
    const all = [...hints.children];
    const step = { ArrowDown: 1, ArrowUp: -1 }[event.key];
    if (step) { mark((marked() + step + all.length) % all.length); return true; }
    if (event.key === "Escape") { hints.hidden = true; return true; }
    if (event.key === "Tab" && !event.shiftKey) { choose(all[marked()].querySelector("b").textContent); return true; }
    return false;
  }

  box.addEventListener("input", () => { fit(); hint(); });
  box.addEventListener("keydown", (event) => {
    if (event.isComposing) return;
    if (hintKey(event)) { event.preventDefault(); event.stopPropagation(); return; }
    if (event.key === "Enter" && !event.shiftKey) { event.preventDefault(); submit(); }
    if (event.key === "ArrowUp" && !box.value && past.length) { event.preventDefault(); back = Math.min(back + 1, past.length); put(past[past.length - back]); }
  });
  box.addEventListener("blur", () => { if (hints) hints.hidden = true; });
  form.addEventListener("submit", (event) => { event.preventDefault(); submit(); });
}

function suggestions(typed, commands) {
  return Object.entries(commands).flatMap(([command, words]) => Object.entries(words).map(([word, meaning]) => [`${command} ${word}`, meaning]))
    .filter(([command]) => command.startsWith(typed) && command !== typed);
}
