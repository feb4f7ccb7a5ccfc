"use strict";
(() => {
  const lost = document.getElementById("lost");
  const find = document.getElementById("find");
  let heard = Date.now();
  let next;
  // Of the last question: an answer to an earlier one comes too late.
  let asked = 0;

  function address() {
    const fields = [...new FormData(find)].filter(([key, value]) => value && !(key === "by" && value === first));
    return fields.length ? "/?" + new URLSearchParams(fields) : "/";
  }

  function show(fresh) {
    document.title = fresh.title;
    document.querySelector("link[rel=icon]").href = fresh.querySelector("link[rel=icon]").href;
    // Nobody can copy text that is swapped under the mouse.
    if (!getSelection().isCollapsed) return;
    const parts = [...document.querySelectorAll(".live, main > section")];
    // Another version runs by now.
    if (parts.some((part) => !fresh.getElementById(part.id))) return location.reload();
    for (const part of parts) {
      const now = fresh.getElementById(part.id);
      if (part.matches(".live")) part.replaceWith(now);
      else part.hidden = now.hidden;
    }
  }

  async function refresh() {
    clearTimeout(next);
    const mine = ++asked;
    try {
      const answer = await fetch(address(), { cache: "no-store", signal: AbortSignal.timeout(3000) });
      if (!answer.ok) throw new Error(answer.status);
      const fresh = new DOMParser().parseFromString(await answer.text(), "text/html");
      if (mine !== asked) return;
      show(fresh);
      heard = Date.now();
      lost.hidden = true;
    } catch {
      if (mine !== asked) return;
      const seconds = Math.round((Date.now() - heard) / 1000);
      lost.textContent = `Baton has not answered for ${seconds} s. This page shows its last answer.`;
      lost.hidden = false;
    }
    document.body.classList.toggle("lost", !lost.hidden);
    plan();
  }

  function plan() {
    const again = Number(document.getElementById("now").dataset.again);
    next = setTimeout(refresh, document.hidden ? Math.max(again, 5000) : again);
  }

  function search() {
    history.replaceState(null, "", address());
    refresh();
  }

  const first = document.querySelector("select[name=by]").options[0].value;
  let typed;
  addEventListener("input", () => {
    clearTimeout(typed);
    typed = setTimeout(search, 150);
  });
  find.addEventListener("submit", (event) => event.preventDefault());
  plan();
})();
