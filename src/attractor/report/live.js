// Asks for this page again every few seconds, and puts in place what has changed.
const SECONDS = 2;
const SILENT = document.querySelector(".gone").textContent;
const REMOVED = "This run is no longer in the watched folder; what stands here is what it said last.";
let last = "";

async function look() {
  try {
    const look = document.querySelector("main").dataset.look; // of the list alone, which answers with what is new
    const answer = await fetch(look ? `?since=${look}` : location.href, { cache: "no-store" });
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

function address(row) {
  return row.querySelector("a").getAttribute("href");
}

function put(page) {
  const open = [...document.querySelectorAll("details")].map((details) => details.open);
  const focused = document.activeElement?.getAttribute("href");
  document.querySelector("header").replaceWith(page.querySelector("header"));
  const [main, added] = [document.querySelector("main"), page.querySelector("main")];
  if ("part" in added.dataset) {
    const rows = new Map([...main.querySelectorAll("tbody tr")].map((row) => [address(row), row]));
    for (const row of added.querySelectorAll("tbody tr")) rows.get(address(row)).replaceWith(row);
    main.dataset.look = added.dataset.look;
  } else main.replaceWith(added);
  document.title = page.title;
  document.querySelectorAll("details").forEach((details, i) => { details.open = open[i] ?? details.open; });
  if (focused) [...document.querySelectorAll("a")].find((link) => link.getAttribute("href") === focused)?.focus();
}

look();
