// Keeps a page up to date: asks for the same address again and puts in place what changed, so that
// scroll positions, opened details, the focus and selected text stay. Without this script the page
// is complete and reloads itself.
"use strict";
(() => {
  const notice = document.getElementById("notice");
  const updated = document.getElementById("updated");
  const pause = document.getElementById("pause");
  let every = Number(document.body.dataset.every) * 1000;
  let tag = "";
  let paused = false;
  let asking = false;
  let timer = 0;

  function key(node) {
    if (node.nodeType !== Node.ELEMENT_NODE) return "";
    return node.dataset.key || node.id || "";
  }

  // Make `old` like `fresh`, changing as little as possible.
  function renew(old, fresh) {
    if (old.isEqualNode(fresh)) return;
    if (old.nodeType !== fresh.nodeType || old.nodeName !== fresh.nodeName || key(old) !== key(fresh)) {
      old.replaceWith(fresh);
      return;
    }
    if (old.nodeType !== Node.ELEMENT_NODE) {
      old.data = fresh.data;
      return;
    }
    const inHand = old.nodeName === "INPUT" || old.nodeName === "SELECT"; // what is being typed stays
    if (inHand) return;
    for (const { name, value } of [...fresh.attributes]) {
      if (old.getAttribute(name) !== value) old.setAttribute(name, value);
    }
    for (const { name } of [...old.attributes]) {
      if (!fresh.hasAttribute(name) && !(name === "open" && old.nodeName === "DETAILS")) {
        old.removeAttribute(name);
      }
    }
    renewChildren(old, fresh);
  }

  function renewChildren(old, fresh) {
    const named = new Map();
    for (const child of old.childNodes) if (key(child)) named.set(key(child), child);
    let at = old.firstChild;
    for (const child of [...fresh.childNodes]) {
      const name = key(child);
      let match = name ? named.get(name) : at;
      if (match && (match.nodeName !== child.nodeName || key(match) !== name)) match = null;
      if (!match) {
        old.insertBefore(child, at);
        continue;
      }
      if (match === at) at = at.nextSibling;
      else old.insertBefore(match, at);
      renew(match, child);
    }
    while (at) {
      const next = at.nextSibling;
      at.remove();
      at = next;
    }
  }

  function say(text) {
    if (notice.textContent !== text) notice.textContent = text;
    notice.hidden = !text;
  }

  function isSelecting() {
    const selection = document.getSelection();
    return Boolean(selection) && !selection.isCollapsed;
  }

  async function ask() {
    const headers = tag ? { "If-None-Match": tag } : {};
    const stop = AbortSignal.timeout(20000);
    return fetch(location.href, { headers, cache: "no-store", signal: stop });
  }

  async function look() {
    if (asking || paused || document.hidden || isSelecting()) return;
    asking = true;
    try {
      const reply = await ask();
      if (reply.status === 401) {
        say("The dashboard was started anew; reload the page to sign in.");
      } else if (reply.status === 304) {
        say("");
        updated.textContent = new Date().toLocaleTimeString();
      } else {
        const found = new DOMParser().parseFromString(await reply.text(), "text/html");
        const main = found.getElementById("main");
        const sentence = found.getElementById("sentence");
        if (reply.ok && main) {
          renew(document.getElementById("main"), main);
          document.title = found.title;
          every = Number(found.body.dataset.every) * 1000 || every;
          tag = reply.headers.get("ETag") || "";
          updated.textContent = new Date().toLocaleTimeString();
          say("");
        } else {
          tag = "";
          say(sentence ? sentence.textContent : "The dashboard failed to answer; trying again.");
        }
      }
    } catch {
      tag = "";
      say("The dashboard does not answer; trying again.");
    } finally {
      asking = false;
      schedule();
    }
  }

  function schedule() {
    clearTimeout(timer);
    timer = setTimeout(async () => {
      await look();
      schedule();
    }, every);
  }

  pause.addEventListener("click", () => {
    paused = !paused;
    pause.setAttribute("aria-pressed", String(paused));
    pause.textContent = paused ? "Go on" : "Pause";
    if (!paused) look();
  });
  document.addEventListener("visibilitychange", () => {
    if (!document.hidden) look();
  });
  updated.textContent = new Date().toLocaleTimeString();
  document.getElementById("live").hidden = false;
  schedule();
})();
