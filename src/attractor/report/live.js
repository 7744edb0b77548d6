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

// Of the list alone: shows the runs with all words that are sought, ticks those that are chosen, and links to them.
const search = document.querySelector("input[type=search]");
const chosen = new Set();

function arrange() {
  if (!search) return;
  const words = search.value.toLowerCase().split(/\s+/);
  for (const { rows: [study, ...runs] } of document.querySelectorAll("main tbody")) {
    for (const run of runs) {
      const text = `${study.textContent} ${run.textContent}`.toLowerCase();
      run.hidden = !words.every((word) => text.includes(word));
      run.querySelector("input").checked = chosen.has(run.dataset.key);
    }
    study.hidden = runs.every((run) => run.hidden);
  }
  const overlay = document.querySelector(".overlay");
  overlay.hidden = !chosen.size;
  overlay.textContent = `Overlay ${chosen.size} run${chosen.size === 1 ? "" : "s"}`;
  overlay.href = `/overlay?${[...chosen].map((address) => address.replace("/run/", "run=")).join("&")}`;
}

search?.addEventListener("input", arrange);
document.addEventListener("change", ({ target }) => {
  if (target.type !== "checkbox") return;
  chosen[target.checked ? "add" : "delete"](target.value);
  arrange();
});

function nameOf(element) {
  return element?.getAttribute("href") ?? element?.value;
}

function put(page) {
  const open = [...document.querySelectorAll("details")].map((details) => details.open);
  const focused = nameOf(document.activeElement);
  document.querySelector("header").replaceWith(page.querySelector("header"));
  const [main, added] = [document.querySelector("main"), page.querySelector("main")];
  if ("part" in added.dataset) {
    const rows = new Map([...main.querySelectorAll("tbody tr")].map((row) => [row.dataset.key, row]));
    for (const row of added.querySelectorAll("tbody tr")) rows.get(row.dataset.key).replaceWith(row);
    main.dataset.look = added.dataset.look;
  } else main.replaceWith(added);
  document.title = page.title;
  document.querySelectorAll("details").forEach((details, i) => { details.open = open[i] ?? details.open; });
  arrange();
  if (focused && document.activeElement === document.body) {
    [...document.querySelectorAll("main a, main input, .back a")].find((one) => nameOf(one) === focused)?.focus();
  }
}

look();
