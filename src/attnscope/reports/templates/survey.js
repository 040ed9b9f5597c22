/* The report of a survey: findings by severity, maps of blocks and heads, and the drawer of one head. */
(() => {
  const STEPS = 25, MOST_WRITTEN = 14; /* blocks: with more there is no room for a number in a square */
  const { byId, all, make, tell, hush, telling } = page;
  const data = JSON.parse(byId("data").textContent);
  const drawn = (tag, attributes) => {
    const element = document.createElementNS("http://www.w3.org/2000/svg", tag);
    for (const [name, value] of Object.entries(attributes)) element.setAttribute(name, value);
    return element;
  };

  /* The same four figures as in the rest of the page. */
  const numeral = (value, figures = 4) => {
    if (value === null || value === undefined) return "not a number";
    const size = Math.abs(value);
    const short = (text) => (text.includes(".") ? text.replace(/\.?0+$/, "") : text);
    if (size !== 0 && (size < 1e-3 || size >= 999950)) {
      const [mantissa, exponent] = value.toExponential(figures - 1).split("e");
      return `${short(mantissa)}e${Number(exponent)}`;
    }
    if (size >= 999.95) return Math.round(value).toLocaleString("en");
    return short(value.toPrecision(figures));
  };

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

  /* Maps of blocks and heads. */
  const maps = data.maps;
  if (!maps.length) return;
  const grid = byId("grid"), place = byId("place"), measure = byId("measure");
  const where = (map) => `${map.stack}|${map.site}`;
  const state = { map: 0, lit: null, cells: [], layer: 0, head: 0 };
  byId("explorer").hidden = false;

  const share = (map, value) => (map.log ? Math.log(value / map.low) / Math.log(map.high / map.low) : (value - map.low) / (map.high - map.low));
  const step = (part) => Math.round(Math.min(Math.max(part, 0), 1) * (STEPS - 1));
  const colour = (index) => {
    const map = maps[state.map], value = map.mean[index];
    if (map.broken[index]) return "void";
    if (value === null) return "absent";
    const part = share(map, value);
    return `${map.ramp}${Number.isNaN(part) ? 0 : step(part)}`;
  };
  const describe = (layer, head) => {
    const map = maps[state.map], index = layer * map.heads + head;
    if (map.mean[index] === null && !map.broken[index]) return `Block ${layer}, head ${head}\nno such head was measured`;
    const lines = [`Block ${layer}, head ${head}`, `${map.title} ${numeral(map.mean[index])} ${map.unit}`];
    if (map.p10 && map.p10[index] !== null) lines.push(`p10 ${numeral(map.p10[index])}, p90 ${numeral(map.p90[index])}`);
    for (const [label, found] of Object.entries(map.usual)) if (found[index] >= 0) lines.push(`${label} ${found[index]}`);
    if (map.broken[index]) lines.push(`NaN or infinite in ${map.broken[index]} observations`);
    return lines.join("\n");
  };

  const build = () => {
    const map = maps[state.map];
    grid.replaceChildren();
    grid.style.setProperty("--columns", map.layers);
    grid.style.setProperty("--rows", map.heads);
    state.cells = Array.from({ length: map.layers }, () => []);
    for (let head = 0; head < map.heads; head++) {
      const row = make("div", { role: "row" });
      const label = map.heads <= 24 || head % 4 === 0 ? String(head) : "";
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
    const every = map.layers <= 16 ? 1 : map.layers <= 32 ? 2 : map.layers <= 64 ? 4 : 8;
    const feet = make("div", { role: "row" }, make("span", { role: "gridcell", className: "tick head", ariaLabel: "block" }));
    for (let layer = 0; layer < map.layers; layer++) {
      feet.append(make("span", { role: "columnheader", className: "tick", ariaLabel: `block ${layer}` }, layer % every ? "" : String(layer)));
    }
    grid.append(feet);
  };
  const legend = () => {
    const map = maps[state.map];
    const ramp = make("span", { className: "ramp" }, ...Array.from({ length: STEPS }, (_, i) => make("i", { className: map.ramp + i })));
    const alarm = map.alarm === null ? NaN : share(map, map.alarm);
    if (alarm >= 0 && alarm <= 1) {
      const mark = make("i", { className: "mark" });
      mark.style.setProperty("--at", `${100 * alarm}%`);
      ramp.append(mark);
    }
    const pieces = [make("span", {}, numeral(map.low)), ramp, make("span", {}, `${numeral(map.high)} ${map.unit}`), make("span", {}, `Colours run ${map.why}.`)];
    if (alarm >= 0 && alarm <= 1) pieces.push(make("span", {}, `Line: ${map.worry} ${numeral(map.alarm)} deserves a look.`));
    if (Object.keys(map.broken).length) pieces.push(make("span", { className: "cell void" }), make("span", {}, "NaN or infinite"));
    byId("legend").replaceChildren(...pieces);
  };
  const paint = () => {
    const map = maps[state.map];
    if (state.cells.length !== map.layers || state.cells[0].length !== map.heads) build();
    const written = map.layers <= MOST_WRITTEN && map.heads <= 24;
    grid.classList.toggle("written", written);
    state.layer = Math.min(state.layer, map.layers - 1);
    state.head = Math.min(state.head, map.heads - 1);
    state.cells.forEach((column, layer) => column.forEach((cell, head) => {
      const lit = state.lit && state.lit.has(`${layer},${head}`) ? " lit" : "";
      const chosen = cell.classList.contains("chosen") ? " chosen" : "";
      const index = layer * map.heads + head;
      cell.className = `cell ${colour(index)}${lit}${chosen}`;
      cell.textContent = written && map.mean[index] !== null && !map.broken[index] ? numeral(map.mean[index], 3) : "";
      const said = describe(layer, head).replaceAll("\n", "; ");
      cell.ariaLabel = said.split(/[\s;:,()]+/).includes(cell.textContent) ? said : `${cell.textContent}; ${said}`; // who speaks to a page says what they see
      cell.tabIndex = layer === state.layer && head === state.head ? 0 : -1;
    }));
    grid.classList.toggle("spotlight", Boolean(state.lit));
    byId("unlight").hidden = !state.lit;
    byId("about").textContent = map.summary;
    place.value = where(map);
    measure.replaceChildren(...maps.flatMap((one, i) => (where(one) === where(map) ? [make("option", { value: i }, one.title)] : [])));
    measure.value = state.map;
    for (const thumbnail of all("#thumbnails figure")) thumbnail.setAttribute("aria-current", String(Number(thumbnail.dataset.map) === state.map));
    legend();
  };
  const choose = (index, lit = null) => {
    Object.assign(state, { map: index, lit });
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
  const cellOf = (event) => event.target.closest("#grid .cell");
  grid.addEventListener("pointermove", (event) => {
    const cell = cellOf(event);
    if (cell && !telling(cell)) tell(describe(Number(cell.dataset.layer), Number(cell.dataset.head)), cell);
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
    if (map.reference) picture.append(drawn("path", { class: "range", d: `M${at(map.reference.low)} 19H${at(map.reference.high)}` }));
    if (own !== null) picture.append(drawn("path", { class: "own", d: `M${at(own)} 10h0` }));
    const below = seen.filter((value) => value < own).length / Math.max(seen.length, 1);
    return [picture, own === null ? "no finite number" : `above ${Math.round(100 * below)}% of ${seen.length} heads${map.reference ? `; ${map.reference.words}` : ""}`];
  };
  const portrait = () => {
    const { layer, head } = state, now = maps[state.map];
    state.cells[layer][head].classList.add("chosen");
    byId("drawer-title").textContent = `Block ${layer}, head ${head}`;
    byId("drawer-place").textContent = now.place;
    const concerned = data.findings.filter((f) => f.stack === now.stack && (!f.site || f.site === now.site) && f.heads.some(([l, h]) => l === layer && h === head));
    byId("drawer-findings").replaceChildren(...concerned.map((f) => make("p", { className: f.level }, f.sentence)));
    byId("portrait").replaceChildren(...maps.flatMap((map) => {
      if (where(map) !== where(now) || layer >= map.layers || head >= map.heads) return [];
      const index = layer * map.heads + head;
      const [picture, rank] = strip(map, index);
      return [make("div", {}, make("dt", {}, make("span", {}, map.title), make("b", {}, `${numeral(map.mean[index])} ${map.unit}`)), make("dd", {}, picture, make("span", { className: "soft" }, rank)))];
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
