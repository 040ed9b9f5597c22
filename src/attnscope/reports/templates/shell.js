"use strict";
/* What every page does: its theme, numbers under pointer, finger and arrow keys, charts saved as pictures and as
   specifications, and a print with nothing folded away. Text only ever enters the page as text. */
const page = (() => {
  const byId = (id) => document.getElementById(id);
  const all = (query, root = document) => [...root.querySelectorAll(query)];
  const make = (tag, properties = {}, ...children) => {
    const element = Object.assign(document.createElement(tag), properties);
    element.append(...children);
    return element;
  };
  document.documentElement.classList.add("js");

  /* One tooltip for the page. */
  const tooltip = byId("tooltip");
  let told = null;
  const settle = () => {
    if (!told) return;
    const box = told.getBoundingClientRect(), own = tooltip.getBoundingClientRect();
    const left = Math.min(Math.max(8, box.left + box.width / 2 - own.width / 2), innerWidth - own.width - 8);
    const above = box.top - own.height - 10;
    tooltip.style.transform = `translate(${left}px, ${above > 8 ? above : box.bottom + 10}px)`;
  };
  const tell = (text, element) => {
    told = element;
    tooltip.textContent = text;
    tooltip.hidden = false;
    settle();
  };
  const hush = () => {
    told = null;
    tooltip.hidden = true;
  };
  const telling = (element) => told === element;
  addEventListener("scroll", settle, { passive: true, capture: true });

  /* Light, dark, or as the system has it. */
  const themes = ["system", "light", "dark"];
  const wear = (theme) => {
    if (theme === "system") delete document.documentElement.dataset.theme;
    else document.documentElement.dataset.theme = theme;
    byId("theme").textContent = `Theme: ${theme}`;
    try { localStorage.setItem("attnscope-theme", theme); } catch { /* private windows keep no choices */ }
  };
  let theme = "system";
  try { theme = localStorage.getItem("attnscope-theme") || theme; } catch { /* as above */ }
  wear(themes.includes(theme) ? theme : "system");
  byId("theme").hidden = false;
  byId("theme").addEventListener("click", () => {
    theme = themes[(themes.indexOf(document.documentElement.dataset.theme || "system") + 1) % 3];
    wear(theme);
  });

  /* Charts: every mark that can be read carries its own sentence. */
  const READABLE = ".mark-symbol.role-mark path[aria-label], .mark-rect.role-mark path[aria-label], [data-reading]";
  const sentence = (mark) => mark.dataset.reading || mark.getAttribute("aria-label");
  for (const plot of all(".plot")) {
    if (!all(READABLE, plot).length) continue;
    let readings = [], at = -1;
    const shown = () => { /* of the drawings of a chart only one is seen, which changes with the width of the window */
      const now = all(READABLE, plot).filter((mark) => mark.getClientRects().length);
      if (now[0] !== readings[0]) [readings, at] = [now, -1];
    };
    const read = (index) => {
      if (readings[at]) readings[at].classList.remove("read");
      at = index;
      readings[at].classList.add("read");
      tell(sentence(readings[at]), readings[at]);
    };
    const leave = () => {
      if (readings[at]) readings[at].classList.remove("read");
      hush();
    };
    const nearest = (event) => {
      shown();
      let best = -1, least = Infinity;
      readings.forEach((reading, index) => {
        const box = reading.getBoundingClientRect();
        const across = Math.max(box.left - event.clientX, event.clientX - box.right, 0);
        const down = Math.max(box.top - event.clientY, event.clientY - box.bottom, 0);
        const distance = Math.hypot(across, 0.3 * down);
        if (distance < least) [best, least] = [index, distance];
      });
      const under = readings.indexOf(event.target.closest("[data-reading]")); /* lines have boxes that overlap */
      if (under >= 0 || best >= 0) read(under >= 0 ? under : best);
    };
    plot.addEventListener("pointermove", nearest);
    plot.addEventListener("pointerdown", nearest); /* a finger does not hover */
    plot.addEventListener("pointerleave", (event) => { if (event.pointerType === "mouse") leave(); });
    plot.addEventListener("blur", leave);
    plot.addEventListener("keydown", (event) => {
      const step = { ArrowRight: 1, ArrowLeft: -1, Home: -Infinity, End: Infinity }[event.key];
      if (!step) return;
      shown();
      if (!readings.length) return;
      event.preventDefault();
      read(Math.min(Math.max(at + step, 0), readings.length - 1));
    });
  }
  addEventListener("pointerdown", (event) => { if (!event.target.closest(".plot, #grid")) hush(); });

  /* Charts as files. */
  const save = (blob, name) => {
    const address = URL.createObjectURL(blob);
    make("a", { href: address, download: name }).click();
    setTimeout(() => URL.revokeObjectURL(address), 1000);
  };
  const LOOKS = ["fill", "fill-opacity", "stroke", "stroke-opacity", "stroke-width", "stroke-dasharray", "opacity", "font-family", "font-size", "font-weight", "text-anchor", "visibility"];
  const picture = (svg) => {
    /* Colours are variables of this page: a picture on its own needs them as they are now. */
    const copy = svg.cloneNode(true), box = svg.viewBox.baseVal;
    const marks = [svg, ...all("*", svg)], copies = [copy, ...all("*", copy)];
    marks.forEach((mark, index) => {
      const style = getComputedStyle(mark);
      for (const look of LOOKS) copies[index].setAttribute(look, style.getPropertyValue(look));
      copies[index].removeAttribute("class");
    });
    copy.setAttribute("xmlns", "http://www.w3.org/2000/svg");
    copy.setAttribute("width", box.width);
    copy.setAttribute("height", box.height);
    const image = new Image();
    return new Promise((resolve, reject) => {
      image.onerror = reject;
      image.onload = () => {
        const canvas = make("canvas", { width: 2 * box.width, height: 2 * box.height });
        const context = canvas.getContext("2d");
        context.fillStyle = getComputedStyle(document.documentElement).getPropertyValue("--surface");
        context.fillRect(0, 0, canvas.width, canvas.height);
        context.drawImage(image, 0, 0, canvas.width, canvas.height);
        canvas.toBlob(resolve, "image/png");
      };
      image.src = `data:image/svg+xml;charset=utf-8,${encodeURIComponent(new XMLSerializer().serializeToString(copy))}`;
    });
  };
  for (const button of all("[data-picture]")) {
    button.addEventListener("click", async () => {
      const drawings = all(".plot svg", button.closest("figure")).filter((svg) => svg.getBoundingClientRect().width);
      save(await picture(drawings[0]), `${button.dataset.picture}.png`);
    });
  }
  for (const button of all("[data-save]")) {
    button.addEventListener("click", () => {
      const specification = JSON.parse(byId("specifications").textContent)[button.dataset.save];
      save(new Blob([JSON.stringify(specification, null, 1)], { type: "application/json" }), `${button.dataset.save}.vl.json`);
    });
  }

  /* Paper has no fold to open, and an address inside a fold should be seen. */
  let folded = [];
  addEventListener("beforeprint", () => {
    folded = all("details:not([open])");
    for (const fold of folded) fold.open = true;
  });
  addEventListener("afterprint", () => { for (const fold of folded) fold.open = false; });
  const unfold = () => {
    const target = location.hash.length > 1 && !location.hash.includes("=") && byId(decodeURIComponent(location.hash.slice(1)));
    if (target) for (const fold of [target.closest("details"), ...all(":scope > details", target)]) if (fold) fold.open = true;
  };
  addEventListener("hashchange", unfold);
  unfold();

  return { byId, all, make, tell, hush, telling };
})();
