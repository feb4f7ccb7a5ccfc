"use strict";
(() => {
  const lost = document.getElementById("lost");
  const find = document.getElementById("find");
  const main = document.querySelector("main");
  let heard = Date.now();
  let next;
  // Of the last question: an answer to an earlier one comes too late.
  let asked = 0;
  let stream;
  // A server that has no place for this stream is asked for one again later.
  let listenAt = 0;

  function query() {
    const fields = [...new FormData(find)].filter(([key, value]) => value && !(key === "by" && value === first));
    return fields.length ? "?" + new URLSearchParams(fields) : "";
  }

  function head(title, icon) {
    if (document.title !== title) document.title = title;
    const link = document.querySelector("link[rel=icon]");
    if (link.getAttribute("href") !== icon) link.href = icon;
  }

  // Nobody can copy text, or read the words at a mark, that are swapped under the mouse.
  const isHeld = (part) => !getSelection().isCollapsed || part.querySelector(".mark:hover");

  function put(part, now) {
    if (isHeld(part)) return;
    const focused = part.contains(document.activeElement) && document.activeElement.id;
    part.replaceWith(now);
    if (focused) document.getElementById(focused)?.focus({ preventScroll: true });
  }

  function answered() {
    heard = Date.now();
    lost.hidden = true;
    document.body.classList.remove("lost");
  }

  function showPage(fresh) {
    head(fresh.title, fresh.querySelector("link[rel=icon]").getAttribute("href"));
    const now = fresh.querySelector("main");
    // Another version runs by now.
    if (now.dataset.build !== main.dataset.build) return location.reload();
    main.dataset.again = now.dataset.again;
    for (const part of document.querySelectorAll(".live")) put(part, fresh.getElementById(part.id));
    document.getElementById("nodes").hidden = fresh.getElementById("nodes").hidden;
  }

  const missed = new Map();

  function showParts(message) {
    if (message.build && message.build !== main.dataset.build) return location.reload();
    if (message.parts) {
      head(message.title, message.icon);
      document.getElementById("nodes").hidden = !message.nodes;
      for (const [id, element] of Object.entries(message.parts)) missed.set(id, element);
    }
    // The server sends a part only when it has changed.
    for (const [id, element] of missed) {
      const part = document.getElementById(id);
      if (isHeld(part)) continue;
      missed.delete(id);
      const frame = document.createElement("template");
      frame.innerHTML = element;
      put(part, frame.content.firstElementChild);
    }
  }

  // Without a stream.
  async function refresh() {
    clearTimeout(next);
    const mine = ++asked;
    try {
      const answer = await fetch("/" + query(), { cache: "no-store", signal: AbortSignal.timeout(3000) });
      if (!answer.ok) throw new Error(answer.status);
      const fresh = new DOMParser().parseFromString(await answer.text(), "text/html");
      if (mine !== asked) return;
      showPage(fresh);
      answered();
    } catch {
      if (mine !== asked) return;
      const seconds = Math.round((Date.now() - heard) / 1000);
      lost.textContent = `Baton has not answered for ${seconds} s. This page shows its last answer.`;
      lost.hidden = false;
      document.body.classList.add("lost");
    }
    plan();
  }

  function plan() {
    clearTimeout(next);
    const again = Number(main.dataset.again);
    next = setTimeout(() => {
      if (document.hidden || Date.now() < listenAt) refresh();
      else listen();
    }, document.hidden ? Math.max(again, 5000) : again);
  }

  // A hidden page needs no stream; a browser has few connections to a server.
  function listen() {
    stream?.close();
    stream = undefined;
    asked++;
    if (document.hidden) return plan();
    const mine = (stream = new EventSource("/live" + query()));
    const quiet = () => {
      if (stream !== mine) return;
      mine.close();
      stream = undefined;
      listenAt = Date.now() + 10000;
      refresh();
    };
    clearTimeout(next);
    // The server sends something each second.
    next = setTimeout(quiet, 3000);
    mine.onmessage = (message) => {
      if (stream !== mine) return;
      clearTimeout(next);
      next = setTimeout(quiet, 3000);
      answered();
      showParts(JSON.parse(message.data));
    };
    mine.onerror = () => {
      // The browser connects again by itself, but not after an answer that is no stream.
      if (mine.readyState === EventSource.CLOSED) quiet();
    };
  }

  function search() {
    history.replaceState(null, "", "/" + query());
    listenAt <= Date.now() ? listen() : refresh();
  }

  const first = document.querySelector("select[name=by]").options[0].value;
  let typed;
  addEventListener("input", () => {
    clearTimeout(typed);
    typed = setTimeout(search, 150);
  });
  document.addEventListener("visibilitychange", listen);
  find.addEventListener("submit", (event) => event.preventDefault());
  listen();
})();
