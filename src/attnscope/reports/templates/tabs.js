/* One tab at a time. Without this script, and on paper, all are shown. */
for (const group of page.all(".tabs")) {
  const choice = group.querySelector(".filter");
  if (!choice) continue;
  const buttons = page.all("button", choice), panels = page.all(".tab", group);
  const show = (chosen) => {
    buttons.forEach((button, index) => button.setAttribute("aria-pressed", String(index === chosen)));
    panels.forEach((panel, index) => panel.classList.toggle("away", index !== chosen));
  };
  choice.hidden = false;
  choice.addEventListener("click", (event) => {
    const button = event.target.closest("button");
    if (button) show(buttons.indexOf(button));
  });
  show(0);
}
