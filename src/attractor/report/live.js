// Asks for this page again every few seconds, and puts in place what has changed.
const SECONDS = 2;
let last = "";

async function look() {
  try {
    const answer = await fetch(location.href, { cache: "no-store" });
    if (!answer.ok) throw new Error(answer.status);
    const text = await answer.text();
    if (text !== last && last !== "") put(new DOMParser().parseFromString(text, "text/html"));
    last = text;
    document.querySelector(".gone").hidden = true;
  } catch {
    document.querySelector(".gone").hidden = false;
  }
  setTimeout(look, 1000 * SECONDS);
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
