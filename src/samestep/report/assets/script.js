"use strict";
// The page is whole without this: a wide table opens at its first difference, and commands can be copied.
const lit = document.getElementById("first-difference");
if (lit) {
  const box = lit.closest(".wide");
  box.scrollLeft = lit.offsetLeft + lit.offsetWidth / 2 - box.clientWidth / 2;
}
for (const item of document.querySelectorAll(".commands li")) {
  if (!navigator.clipboard) break;
  const button = document.createElement("button");
  button.type = "button";
  button.textContent = "Copy";
  button.setAttribute("aria-label", "Copy the command");
  button.addEventListener("click", async () => {
    try {
      await navigator.clipboard.writeText(item.querySelector("code").textContent);
      button.textContent = "Copied";
    } catch {
      button.textContent = "Not allowed";
    }
    setTimeout(() => { button.textContent = "Copy"; }, 2000);
  });
  item.append(button);
}
