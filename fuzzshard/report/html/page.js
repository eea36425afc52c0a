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
