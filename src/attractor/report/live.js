// Asks for this page again every few seconds, and puts in place what has changed.
const SECONDS = 2;
const SILENT = document.querySelector(".gone").textContent;
const REMOVED = "This run is no longer in the watched folder; what stands here is what it said last.";
let last = "";

async function look() {
  try {
    const answer = await fetch(location.href, { cache: "no-store" });
    if (answer.status === 404) return say(REMOVED);
    if (!answer.ok) return say(SILENT);
    const text = await answer.text();
    if (text !== last && last !== "") put(new DOMParser().parseFromString(text, "text/html"));
    last = text;
    document.querySelector(".gone").hidden = true;
  } catch {
    say(SILENT);
  } finally {
    setTimeout(look, 1000 * SECONDS);
  }
}

function say(text) {
  const gone = document.querySelector(".gone");
  gone.textContent = text;
  gone.hidden = false;
}

function put(page) {
  const open = [...document.querySelectorAll("details")].map((details) => details.open);
  const focused = document.activeElement?.getAttribute("href");
  for (const part of ["header", "main"]) document.querySelector(part).replaceWith(page.querySelector(part));
  document.title = page.title;
  document.querySelectorAll("details").forEach((details, i) => { details.open = open[i] ?? details.open; });
  if (focused) [...document.querySelectorAll("a")].find((link) => link.getAttribute("href") === focused)?.focus();
}

look();
