for (const button of document.querySelectorAll("button[data-copy]")) {
  const code = button.parentElement.querySelector("code");
  button.addEventListener("click", async () => {
    try {
      await navigator.clipboard.writeText(code.textContent);
      button.textContent = "Copied";
    } catch {
      getSelection().selectAllChildren(code);
      button.textContent = "Selected";
    }
    setTimeout(() => { button.textContent = "Copy"; }, 2000);
  });
}
function unfold() {
  const card = document.getElementById(decodeURIComponent(location.hash.slice(1)));
  const folded = card?.closest("details");
  if (folded && !folded.open) {
    folded.open = true;
    card.scrollIntoView();
  }
}
addEventListener("hashchange", unfold);
unfold();

const filters = document.querySelector(".filters");
function show() {
  const chosen = [...filters.elements].filter((field) => field.name);
  const needle = filters.elements.text.value.trim().toLowerCase();
  for (const one of document.querySelectorAll("[data-finding]")) {
    one.hidden = !chosen.every((field) => field.name === "text"
      ? one.dataset.text.includes(needle)
      : field.value === "*" || one.dataset[field.name].split(" ").includes(field.value));
  }
  for (const group of document.querySelectorAll("[data-group]")) {
    group.hidden = !group.querySelector("[data-finding]:not([hidden])");
  }
  const listed = [...document.querySelectorAll("tr[data-finding]")];
  const left = listed.filter((one) => !one.hidden).length;
  filters.querySelector("output").textContent = `${left} of ${listed.length}`;
  remember("filters", Object.fromEntries(chosen.map((field) => [field.name, field.value])));
}
function remember(what, value) {
  try { sessionStorage.setItem(`fuzzshard ${what}`, JSON.stringify(value)); } catch { /* a file may have none */ }
}
function remembered(what) {
  try { return JSON.parse(sessionStorage.getItem(`fuzzshard ${what}`)); } catch { return null; }
}
if (filters) {
  for (const [name, value] of Object.entries(remembered("filters") ?? {})) {
    const field = filters.elements[name];
    if (field && (name === "text" || [...field.options].some((option) => option.value === value))) field.value = value;
  }
  filters.hidden = false;
  filters.addEventListener("input", show);
  filters.addEventListener("submit", (event) => event.preventDefault());
  show();
}
const refresh = Number(document.body.dataset.refresh);
if (refresh) {
  const open = () => [...document.querySelectorAll("details")].map((one) => one.open);
  const before = remembered("open") ?? [];
  document.querySelectorAll("details").forEach((one, i) => { if (before[i]) one.open = true; });
  setTimeout(() => { remember("open", open()); location.reload(); }, refresh * 1000);
}
