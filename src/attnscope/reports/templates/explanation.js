/* One method at a time. Without this script, and on paper, all are shown. */
(() => {
  const choice = document.getElementById("method-switch");
  if (!choice) return;
  const buttons = [...choice.querySelectorAll("button")], panels = [...document.querySelectorAll(".method")];
  const show = (name) => {
    for (const button of buttons) button.setAttribute("aria-pressed", String(button.dataset.method === name));
    for (const panel of panels) panel.classList.toggle("away", panel.dataset.of !== name);
  };
  choice.hidden = false;
  choice.addEventListener("click", (event) => {
    const button = event.target.closest("button");
    if (button) show(button.dataset.method);
  });
  show(buttons[0].dataset.method);
})();
