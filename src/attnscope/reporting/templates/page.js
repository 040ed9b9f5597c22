"use strict";
/* Hover, filter and click-through for the report. Text only ever enters the page as text. */
(() => {
  const STEPS = 25;
  const byId = (id) => document.getElementById(id);
  const all = (query, root = document) => [...root.querySelectorAll(query)];
  const data = JSON.parse(byId("data").textContent);
  const make = (tag, properties = {}, ...children) => {
    const element = Object.assign(document.createElement(tag), properties);
    element.append(...children);
    return element;
  };
  const drawn = (tag, attributes) => {
    const element = document.createElementNS("http://www.w3.org/2000/svg", tag);
    for (const [name, value] of Object.entries(attributes)) element.setAttribute(name, value);
    return element;
  };
  document.documentElement.classList.add("js");

  /* The same four figures as in the rest of the page. */
  const numeral = (value) => {
    if (value === null || value === undefined) return "not a number";
    const size = Math.abs(value);
    const short = (text) => (text.includes(".") ? text.replace(/\.?0+$/, "") : text);
    if (size !== 0 && (size < 1e-3 || size >= 999950)) {
      const [mantissa, exponent] = value.toExponential(3).split("e");
      return `${short(mantissa)}e${Number(exponent)}`;
    }
    if (size >= 999.95) return Math.round(value).toLocaleString("en");
    return short(value.toPrecision(4));
  };

  /* Tooltip, shared by maps and profiles. */
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
  byId("theme").addEventListener("click", () => {
    theme = themes[(themes.indexOf(document.documentElement.dataset.theme || "system") + 1) % 3];
    wear(theme);
  });

  /* Findings by severity. */
  const severities = all(".titled .filter button");
  for (const button of severities) {
    button.addEventListener("click", () => {
      for (const other of severities) other.setAttribute("aria-pressed", String(other === button));
      for (const finding of all(".finding")) {
        finding.hidden = !["all", finding.dataset.severity].includes(button.dataset.severity);
      }
    });
  }

  /* Profiles: every reading carries its own sentence. */
  for (const plot of all(".plot")) {
    const readings = all(".mark-symbol.role-mark path[aria-label]", plot);
    let at = -1;
    const read = (index) => {
      if (readings[at]) readings[at].classList.remove("read");
      at = index;
      readings[at].classList.add("read");
      tell(readings[at].getAttribute("aria-label"), readings[at]);
    };
    const leave = () => {
      if (readings[at]) readings[at].classList.remove("read");
      hush();
    };
    plot.addEventListener("pointermove", (event) => {
      let best = -1, nearest = Infinity;
      readings.forEach((reading, index) => {
        const box = reading.getBoundingClientRect();
        const distance = Math.hypot(box.left + box.width / 2 - event.clientX, 0.3 * (box.top + box.height / 2 - event.clientY));
        if (distance < nearest) [best, nearest] = [index, distance];
      });
      if (best >= 0) read(best);
    });
    plot.addEventListener("pointerleave", leave);
    plot.addEventListener("blur", leave);
    plot.addEventListener("keydown", (event) => {
      const step = { ArrowRight: 1, ArrowLeft: -1, Home: -Infinity, End: Infinity }[event.key];
      if (!step || !readings.length) return;
      event.preventDefault();
      read(Math.min(Math.max(at + step, 0), readings.length - 1));
    });
  }
  const specifications = byId("specifications");
  for (const button of all("[data-save]")) {
    button.addEventListener("click", () => {
      const specification = JSON.parse(specifications.textContent)[button.dataset.save];
      const address = URL.createObjectURL(new Blob([JSON.stringify(specification, null, 1)], { type: "application/json" }));
      make("a", { href: address, download: `${button.dataset.save}.vl.json` }).click();
      setTimeout(() => URL.revokeObjectURL(address), 1000);
    });
  }

  /* Maps of layers and heads. */
  const maps = data.maps;
  if (!maps.length) return;
  const grid = byId("grid"), place = byId("place"), measure = byId("measure");
  const where = (map) => `${map.stack}|${map.site}`;
  const state = { map: 0, mode: "first", lit: null, cells: [], layer: 0, head: 0 };
  byId("explorer").hidden = false;

  const share = (map, value) => (map.log ? Math.log(value / map.low) / Math.log(map.high / map.low) : (value - map.low) / (map.high - map.low));
  const step = (part) => Math.round(Math.min(Math.max(part, 0), 1) * (STEPS - 1));
  const valueAt = (index) => {
    const map = maps[state.map], change = data.changes[state.map];
    if (state.mode === "first" || !change) return map.mean[index];
    const second = change.mean[index];
    if (state.mode === "second") return second;
    return second === null || map.mean[index] === null ? null : second - map.mean[index];
  };
  const colour = (index) => {
    const map = maps[state.map], value = valueAt(index);
    if (state.mode !== "second" && map.broken[index]) return "void";
    if (value === null) return "none"; /* a block without attention, or with fewer heads */
    if (state.mode === "change") return `d${step((value / data.changes[state.map].reach + 1) / 2)}`;
    const part = share(map, value);
    return Number.isNaN(part) ? "q0" : `q${step(part)}`;
  };
  const describe = (layer, head) => {
    const map = maps[state.map], index = layer * map.heads + head, change = data.changes[state.map];
    const lines = [`Layer ${layer}, head ${head}`];
    if (valueAt(index) === null && !map.broken[index]) return `${lines[0]}\nno such head was measured`;
    if (state.mode === "change") {
      lines.push(`${map.title} ${numeral(map.mean[index])} → ${numeral(change.mean[index])}`, `difference ${numeral(valueAt(index))} ${map.unit}`);
    } else {
      lines.push(`${map.title} ${numeral(valueAt(index))} ${map.unit}`);
      if (map.p10 && state.mode === "first" && map.p10[index] !== null) lines.push(`p10 ${numeral(map.p10[index])}, p90 ${numeral(map.p90[index])}`);
    }
    for (const [label, found] of Object.entries(map.usual)) if (found[index] >= 0) lines.push(`${label} ${found[index]}`);
    if (map.broken[index]) lines.push(`NaN or infinite in ${map.broken[index]} observations`);
    return lines.join("\n");
  };

  const build = () => {
    const map = maps[state.map];
    grid.replaceChildren();
    grid.style.setProperty("--columns", map.layers);
    state.cells = Array.from({ length: map.layers }, () => []);
    for (let head = 0; head < map.heads; head++) {
      const row = make("div", { role: "row" });
      const label = map.heads <= 16 || head % 4 === 0 ? String(head) : "";
      const title = make("span", { role: "rowheader", className: "tick head", ariaLabel: `head ${head}` }, label);
      row.append(title);
      for (let layer = 0; layer < map.layers; layer++) {
        const cell = make("div", { role: "gridcell", tabIndex: -1 });
        cell.dataset.layer = layer;
        cell.dataset.head = head;
        state.cells[layer].push(cell);
        row.append(cell);
      }
      grid.append(row);
    }
    const every = map.layers <= 16 ? 1 : map.layers <= 48 ? 2 : 8;
    const feet = make("div", { role: "row" }, make("span", { role: "columnheader", className: "tick head" }, "layer"));
    for (let layer = 0; layer < map.layers; layer++) {
      feet.append(make("span", { role: "columnheader", className: "tick", ariaLabel: `layer ${layer}` }, layer % every ? "" : String(layer)));
    }
    grid.append(feet);
  };
  const legend = () => {
    const map = maps[state.map], two = state.mode === "change";
    const reach = two ? data.changes[state.map].reach : 0;
    const ramp = make("span", { className: "ramp" }, ...Array.from({ length: STEPS }, (_, i) => make("i", { className: (two ? "d" : "q") + i })));
    const alarm = two || map.alarm === null ? NaN : share(map, map.alarm);
    if (alarm >= 0 && alarm <= 1) {
      const mark = make("i", { className: "mark" });
      mark.style.setProperty("--at", `${100 * alarm}%`);
      ramp.append(mark);
    }
    const pieces = [make("span", {}, two ? `−${numeral(reach)}` : numeral(map.low)), ramp, make("span", {}, `${two ? "+" : ""}${numeral(two ? reach : map.high)} ${map.unit}`)];
    if (alarm >= 0 && alarm <= 1) pieces.push(make("span", {}, `line: ${numeral(map.alarm)} deserves a look`));
    if (Object.keys(map.broken).length) pieces.push(make("span", { className: "cell void" }), make("span", {}, "NaN or infinite"));
    byId("legend").replaceChildren(...pieces);
  };
  const paint = () => {
    const map = maps[state.map];
    if (state.cells.length !== map.layers || state.cells[0].length !== map.heads) build();
    state.layer = Math.min(state.layer, map.layers - 1);
    state.head = Math.min(state.head, map.heads - 1);
    state.cells.forEach((column, layer) => column.forEach((cell, head) => {
      const lit = state.lit && state.lit.has(`${layer},${head}`) ? " lit" : "";
      const chosen = cell.classList.contains("chosen") ? " chosen" : "";
      cell.className = `cell ${colour(layer * map.heads + head)}${lit}${chosen}`;
      cell.ariaLabel = describe(layer, head).replaceAll("\n", "; ");
      cell.tabIndex = layer === state.layer && head === state.head ? 0 : -1;
    }));
    grid.classList.toggle("spotlight", Boolean(state.lit));
    byId("unlight").hidden = !state.lit;
    byId("about").textContent = map.summary;
    byId("mode").hidden = !data.changes[state.map];
    place.value = where(map);
    measure.replaceChildren(...maps.flatMap((one, i) => (where(one) === where(map) ? [make("option", { value: i }, one.title)] : [])));
    measure.value = state.map;
    for (const thumbnail of all("#thumbnails figure")) thumbnail.setAttribute("aria-current", String(Number(thumbnail.dataset.map) === state.map));
    legend();
  };
  const choose = (index, lit = null) => {
    Object.assign(state, { map: index, lit, mode: data.changes[index] ? state.mode : "first" });
    paint();
  };
  const walk = (layer, head) => {
    const map = maps[state.map];
    if (layer < 0 || head < 0 || layer >= map.layers || head >= map.heads) return null;
    const before = state.cells[state.layer][state.head], now = state.cells[layer][head];
    before.tabIndex = -1;
    before.classList.remove("chosen");
    now.tabIndex = 0;
    Object.assign(state, { layer, head });
    return now;
  };

  const places = new Map(maps.map((map) => [where(map), map.place]));
  place.append(...[...places].map(([value, text]) => make("option", { value }, text)));
  byId("place-choice").hidden = places.size < 2;
  place.addEventListener("change", () => {
    const now = maps[state.map];
    const here = maps.map((map, i) => [map, i]).filter(([map]) => where(map) === place.value);
    choose((here.find(([map]) => map.measure === now.measure && map.part === now.part) || here[0])[1]);
  });
  measure.addEventListener("change", () => choose(Number(measure.value), state.lit));
  byId("unlight").addEventListener("click", () => choose(state.map));
  const modes = all("#mode button");
  if (data.names.length) [modes[0].textContent, modes[1].textContent] = data.names;
  for (const button of modes) {
    button.addEventListener("click", () => {
      for (const other of modes) other.setAttribute("aria-pressed", String(other === button));
      state.mode = button.dataset.mode;
      paint();
    });
  }
  const cellOf = (event) => event.target.closest("#grid .cell");
  grid.addEventListener("pointermove", (event) => {
    const cell = cellOf(event);
    if (cell && cell !== told) tell(describe(Number(cell.dataset.layer), Number(cell.dataset.head)), cell);
  });
  grid.addEventListener("pointerleave", hush);
  grid.addEventListener("focusin", (event) => {
    const cell = cellOf(event);
    if (cell && cell.matches(":focus-visible")) tell(describe(Number(cell.dataset.layer), Number(cell.dataset.head)), cell);
  });
  grid.addEventListener("focusout", hush);
  grid.addEventListener("click", (event) => {
    const cell = cellOf(event);
    if (cell) open(Number(cell.dataset.layer), Number(cell.dataset.head));
  });
  grid.addEventListener("keydown", (event) => {
    const map = maps[state.map];
    const moves = { ArrowRight: [1, 0], ArrowLeft: [-1, 0], ArrowDown: [0, 1], ArrowUp: [0, -1], Home: [-state.layer, 0], End: [map.layers - 1 - state.layer, 0] };
    if (event.key === "Enter" || event.key === " ") open(state.layer, state.head);
    else if (moves[event.key]) walk(state.layer + moves[event.key][0], state.head + moves[event.key][1])?.focus();
    else return;
    event.preventDefault();
  });
  const calmly = () => (matchMedia("(prefers-reduced-motion: reduce)").matches ? "auto" : "smooth");
  for (const thumbnail of all("#thumbnails figure")) {
    const title = thumbnail.querySelector("b");
    title.replaceWith(make("button", { type: "button" }, title.textContent));
    thumbnail.addEventListener("click", () => {
      choose(Number(thumbnail.dataset.map));
      byId("heads").scrollIntoView({ behavior: calmly() });
    });
  }
  for (const button of all("[data-finding]")) {
    button.addEventListener("click", () => {
      const finding = data.findings[Number(button.dataset.finding)];
      const here = maps.map((map, i) => [map, i]).filter(([map]) => map.stack === finding.stack && (!finding.site || map.site === finding.site));
      const found = here.find(([map]) => map.measure === button.dataset.measure) || here[0] || [null, state.map];
      choose(found[1], new Set(finding.heads.map((pair) => pair.join(","))));
      byId("heads").scrollIntoView({ behavior: calmly() });
    });
  }

  /* One head: where it stands among the others. */
  const drawer = byId("drawer");
  const strip = (map, index) => {
    const seen = map.mean.filter((value) => value !== null).sort((a, b) => a - b);
    const own = map.mean[index];
    const scale = (value) => (map.log && seen[0] > 0 ? Math.log(Math.max(value, seen[0])) : value);
    const low = scale(seen[0]), width = scale(seen[seen.length - 1]) - low;
    const at = (value) => (width > 0 ? Math.min(Math.max((100 * (scale(value) - low)) / width, 0), 100) : 50).toFixed(2);
    const every = Math.max(1, Math.floor(seen.length / 300));
    const picture = drawn("svg", { viewBox: "0 0 100 20", preserveAspectRatio: "none", "aria-hidden": "true" });
    picture.append(drawn("path", { class: "ticks", d: seen.filter((_, i) => i % every === 0).map((value) => `M${at(value)} 4v12`).join("") }));
    if (map.p10 && map.p10[index] !== null) picture.append(drawn("path", { class: "span", d: `M${at(map.p10[index])} 10H${at(map.p90[index])}` }));
    if (own !== null) picture.append(drawn("path", { class: "own", d: `M${at(own)} 10h0` }));
    const below = seen.filter((value) => value < own).length / Math.max(seen.length, 1);
    return [picture, own === null ? "no finite number" : `above ${Math.round(100 * below)}% of ${seen.length} heads`];
  };
  const portrait = () => {
    const { layer, head } = state, now = maps[state.map];
    state.cells[layer][head].classList.add("chosen");
    byId("drawer-title").textContent = `Layer ${layer}, head ${head}`;
    byId("drawer-place").textContent = now.place;
    const concerned = data.findings.filter((f) => f.stack === now.stack && (!f.site || f.site === now.site) && f.heads.some(([l, h]) => l === layer && h === head));
    byId("drawer-findings").replaceChildren(...concerned.map((f) => make("p", { className: f.severity }, f.sentence)));
    byId("portrait").replaceChildren(...maps.flatMap((map, i) => {
      if (where(map) !== where(now) || layer >= map.layers || head >= map.heads) return [];
      const index = layer * map.heads + head, change = data.changes[i];
      const value = numeral(map.mean[index]) + (change ? ` → ${numeral(change.mean[index])}` : "");
      const [picture, rank] = strip(map, index);
      return [make("div", {}, make("dt", {}, make("span", {}, map.title), make("b", {}, `${value} ${map.unit}`)), make("dd", {}, picture, make("span", { className: "soft" }, rank)))];
    }));
  };
  const remember = (hash) => { try { history.replaceState(null, "", hash); } catch { /* some viewers forbid it */ } };
  const open = (layer, head) => {
    hush();
    if (!walk(layer, head)) return;
    portrait();
    drawer.hidden = false;
    document.body.classList.add("with-drawer");
    drawer.scrollTop = 0;
    byId("drawer-title").focus();
    remember(`#head=${encodeURIComponent(maps[state.map].stack)}/${maps[state.map].site}/${layer}/${head}`);
  };
  const close = () => {
    if (drawer.hidden) return;
    drawer.hidden = true;
    document.body.classList.remove("with-drawer");
    remember("#heads");
    state.cells[state.layer][state.head].classList.remove("chosen");
    state.cells[state.layer][state.head].focus({ preventScroll: true });
    hush();
  };
  byId("close").addEventListener("click", close);
  addEventListener("keydown", (event) => { if (event.key === "Escape") close(); });
  for (const button of all("[data-walk]")) {
    const [layers, heads] = button.dataset.walk.split(",").map(Number);
    button.addEventListener("click", () => { if (walk(state.layer + layers, state.head + heads)) { portrait(); remember(`#head=${encodeURIComponent(maps[state.map].stack)}/${maps[state.map].site}/${state.layer}/${state.head}`); } });
  }

  const preferred = maps.findIndex((map) => map.measure === "sink_mass");
  choose(Math.max(preferred, 0));
  const link = /^#head=([^/]+)\/([^/]+)\/(\d+)\/(\d+)$/.exec(location.hash);
  if (link) {
    const found = maps.findIndex((map) => map.stack === decodeURIComponent(link[1]) && map.site === link[2]);
    if (found >= 0) { choose(found); open(Number(link[3]), Number(link[4])); }
  }
})();
