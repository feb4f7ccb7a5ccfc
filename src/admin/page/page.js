"use strict";
(() => {
  const lost = document.getElementById("lost");
  let heard = Date.now();

  async function refresh() {
    try {
      const answer = await fetch("/", { cache: "no-store", signal: AbortSignal.timeout(3000) });
      if (!answer.ok) throw new Error(answer.status);
      const whole = new DOMParser().parseFromString(await answer.text(), "text/html");
      const fresh = whole.querySelector("main");
      document.title = whole.title;
      document.querySelector("link[rel=icon]").href = whole.querySelector("link[rel=icon]").href;
      // Nobody can copy text that is swapped under the mouse.
      if (getSelection().isCollapsed) document.querySelector("main").replaceWith(fresh);
      heard = Date.now();
      lost.hidden = true;
    } catch {
      const seconds = Math.round((Date.now() - heard) / 1000);
      lost.textContent = `Baton has not answered for ${seconds} s. This page shows its last answer.`;
      lost.hidden = false;
    }
    document.body.classList.toggle("lost", !lost.hidden);
    setTimeout(refresh, document.hidden ? 5000 : 1000);
  }

  setTimeout(refresh, 1000);
})();
