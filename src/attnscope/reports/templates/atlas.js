/* The table of the atlas: sorted by the column whose heading is chosen; a second choice turns the order. */
(() => {
  const table = document.getElementById("atlas");
  if (!table) return;
  const body = table.tBodies[0];
  for (const button of table.querySelectorAll(".sort")) {
    button.addEventListener("click", () => {
      const column = Number(button.dataset.column) + 1;
      const down = button.getAttribute("aria-sort") !== "descending";
      for (const other of table.querySelectorAll(".sort")) other.removeAttribute("aria-sort");
      button.setAttribute("aria-sort", down ? "descending" : "ascending");
      const key = (row) => row.querySelectorAll("td")[column].dataset.key;
      const compared = (a, b) => (isNaN(a) || isNaN(b) || a === "" || b === "" ? String(a).localeCompare(b) : a - b);
      const rows = [...body.rows].sort((a, b) => (down ? -1 : 1) * compared(key(a), key(b)));
      body.append(...rows);
    });
  }
})();
