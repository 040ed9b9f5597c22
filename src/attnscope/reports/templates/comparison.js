"use strict";
/* Maps of differences: both numbers of a head under pointer, finger and arrow keys. */
(() => {
  const data = JSON.parse(page.byId("data").textContent);
  const told = (value) => (value === null ? "not a number" : value.toLocaleString("en", { maximumSignificantDigits: 4 }));
  for (const box of page.all(".difference")) {
    const map = data.maps[Number(box.dataset.map)];
    const spot = page.make("i", { className: "spot", hidden: true });
    box.append(spot);
    let at = null;
    const read = (layer, head) => {
      at = [layer, head];
      const index = layer * map.heads + head;
      const [before, after] = [map.before[index], map.after[index]];
      spot.hidden = false;
      spot.style.left = `${(100 * layer) / map.layers}%`;
      spot.style.width = `${100 / map.layers}%`;
      spot.style.top = `${(100 * head) / map.heads}%`;
      spot.style.height = `${100 / map.heads}%`;
      const change = before === null || after === null ? "" : ` (${after < before ? "−" : "+"}${told(Math.abs(Number((after - before).toPrecision(4))))})`;
      page.tell(`Block ${layer}, head ${head}\n${map.title} ${told(before)} → ${told(after)} ${map.unit}${change}`, spot);
    };
    const leave = () => {
      spot.hidden = true;
      if (page.telling(spot)) page.hush();
    };
    const within = (value, most) => Math.min(Math.max(value, 0), most - 1);
    const point = (event) => {
      const { left, top, width, height } = box.getBoundingClientRect();
      read(within(Math.floor(((event.clientX - left) / width) * map.layers), map.layers), within(Math.floor(((event.clientY - top) / height) * map.heads), map.heads));
    };
    box.addEventListener("pointermove", point);
    box.addEventListener("pointerdown", (event) => {
      event.stopPropagation(); /* the page hushes where something else is touched */
      point(event);
    });
    box.addEventListener("pointerleave", (event) => { if (event.pointerType === "mouse") leave(); });
    box.addEventListener("blur", leave);
    box.addEventListener("keydown", (event) => {
      const step = { ArrowRight: [1, 0], ArrowLeft: [-1, 0], ArrowDown: [0, 1], ArrowUp: [0, -1], Home: [-Infinity, 0], End: [Infinity, 0] }[event.key];
      if (!step) return;
      event.preventDefault();
      read(...(at === null ? [0, 0] : [within(at[0] + step[0], map.layers), within(at[1] + step[1], map.heads)]));
    });
  }
})();
