// Put a copy button on every block of code, let the keyboard scroll what is too wide, and bring the current page into
// view in the table of contents.
document.addEventListener("DOMContentLoaded", () => {
  for (const block of document.querySelectorAll("div.highlight")) {
    const code = block.querySelector("pre");
    if (!code || block.closest(".highlight-output")) continue;
    const button = document.createElement("button");
    button.type = "button";
    button.className = "copy";
    button.textContent = "copy";
    button.addEventListener("click", async () => {
      button.textContent = (await copied(code.textContent)) ? "copied" : "select and copy";
      setTimeout(() => (button.textContent = "copy"), 1500);
    });
    block.append(button);
  }
  for (const wide of document.querySelectorAll("pre, table, .drawing")) {
    if (wide.scrollWidth > wide.clientWidth) wide.tabIndex = 0;
  }
  for (const list of document.querySelectorAll("dt dl")) {  // the parameters of a signature, which define nothing
    list.setAttribute("role", "list");
    for (const parameter of list.children) parameter.setAttribute("role", "listitem");
  }
  const contents = document.querySelector("nav.site");
  const current = contents && [...contents.querySelectorAll("a.current")].pop();
  if (current && current.offsetTop > contents.clientHeight - 60) {
    contents.scrollTop = current.offsetTop - contents.clientHeight / 2;
  }
});

// A page that is opened from disk may not use the clipboard in every browser; there a hidden field is copied.
async function copied(text) {
  try {
    await navigator.clipboard.writeText(text);
    return true;
  } catch {
    const field = document.createElement("textarea");
    field.value = text;
    field.style.position = "fixed";
    document.body.append(field);
    field.select();
    const done = document.execCommand("copy");
    field.remove();
    return done;
  }
}
