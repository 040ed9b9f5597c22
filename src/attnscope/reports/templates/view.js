/* One head as lines between tokens or as a grid, and all heads as small maps. */
(() => {
  const { byId, all, make, tell, hush } = page, { view, MEAN, mean, those, step, pixels } = maps;
  const LEAST = 0.02, LONGEST = 15; /* a line that is drawn among all; letters of a word */
  let paper = false;
  const state = { part: view.opened.part, layer: view.opened.layer, head: view.opened.head ?? MEAN, form: "lines" };
  let shown = null, at = null, cell = null; /* weights in sight; token of a column {side, place}; place in the grid */

  /* Words. */
  const tokens = (side) => view.inputs[view.parts[state.part][side]];
  const share = (weight) => `${(100 * weight).toFixed(Math.abs(weight) < 0.1 ? 2 : 1)}%`;
  const short = (word) => word.length > LONGEST ? `${word.slice(0, LONGEST - 1)}…` : word;
  const named = (side, place) => `'${tokens(side)[place]}' (token ${place})`;
  const weightOf = (i, j) => shown.weights[i * shown.columns + j];
  const top = ({ side, place }) => {
    const other = side === "queries" ? "keys" : "queries";
    const found = tokens(other).map((_, n) => [side === "queries" ? weightOf(place, n) : weightOf(n, place), n]);
    const first = found.sort((one, two) => two[0] - one[0]).slice(0, 3).filter(([weight]) => weight > 0);
    const list = first.map(([weight, n]) => `${named(other, n)} ${share(weight)}`).join("\n");
    return side === "queries" ? `${named(side, place)} looks at\n${list}` : `${named(side, place)} is looked at by\n${list || "nobody"}`;
  };

  /* Lines between two columns of tokens. Only rows in sight are drawn, on a canvas as large as the window onto them. */
  const lines = byId("lines"), threads = byId("threads"), items = { queries: [], keys: [] };
  const fill = () => {
    for (const side of ["queries", "keys"]) {
      items[side] = tokens(side).map((word, place) => {
        const item = make("li", { textContent: short(word) || " " });
        item.dataset.side = side;
        item.dataset.place = place;
        return item;
      });
      byId(side).replaceChildren(...items[side]);
    }
  };
  const shade = () => {
    for (const side of ["queries", "keys"]) items[side].forEach((item, place) => {
      item.className = "";
      if (!at || !shown) return;
      if (at.side === side && at.place === place) item.classList.add("chosen");
      if (at.side === side) return;
      const weight = side === "keys" ? weightOf(at.place, place) : weightOf(place, at.place);
      if (weight) item.classList.add(`${shown.signed ? "d" : "q"}${step(weight, shown.signed)}`);
    });
  };
  const drawLines = () => {
    if (!shown || state.form !== "lines" || !items.queries.length) return;
    const row = items.queries[0].getBoundingClientRect().height || 21.6;
    const box = threads.parentElement, width = box.clientWidth;
    const content = row * Math.max(shown.rows, shown.columns);
    const height = Math.min(content, lines.clientHeight - box.offsetTop);
    const ratio = devicePixelRatio || 1;
    threads.width = Math.max(1, Math.round(width * ratio));
    threads.height = Math.max(1, Math.round(height * ratio));
    threads.style.height = `${height}px`;
    const context = threads.getContext("2d");
    context.scale(ratio, ratio);
    const style = getComputedStyle(document.documentElement);
    const colour = paper ? "#0b62a4" : style.getPropertyValue("--series-0");
    const against = paper ? "#c8500a" : style.getPropertyValue("--series-1");
    const above = lines.scrollTop, middle = (place) => (place + 0.5) * row - above;
    const from = Math.floor(above / row), to = Math.ceil((above + height) / row);
    const thread = (i, j) => {
      const weight = weightOf(i, j);
      if (Math.abs(weight) < (at ? 0.002 : LEAST)) return;
      context.strokeStyle = weight < 0 ? against : colour;
      const strength = Math.min(1, Math.abs(weight));
      context.globalAlpha = at ? Math.sqrt(strength) : strength; /* of all lines at once the strong ones are to be seen */
      context.lineWidth = 0.75 + 1.75 * strength;
      context.beginPath();
      context.moveTo(0, middle(i));
      context.bezierCurveTo(width * 0.35, middle(i), width * 0.65, middle(j), width, middle(j));
      context.stroke();
    };
    if (at && at.side === "queries") for (let j = 0; j < shown.columns; j++) thread(at.place, j);
    else if (at) for (let i = 0; i < shown.rows; i++) thread(i, at.place);
    else for (let i = 0; i < shown.rows; i++) {
      const inside = i >= from && i <= to;
      if (inside) for (let j = 0; j < shown.columns; j++) thread(i, j);
      else for (let j = Math.max(0, from); j < Math.min(shown.columns, to + 1); j++) thread(i, j);
    }
  };
  const point = (next, speak = true) => {
    at = next;
    shade();
    drawLines();
    if (at && speak && shown) tell(top(at), items[at.side][at.place]);
    else hush();
  };
  const overToken = (event) => {
    const item = event.target.closest("li");
    if (item) point({ side: item.dataset.side, place: Number(item.dataset.place) });
  };
  lines.addEventListener("pointerover", overToken);
  lines.addEventListener("pointerdown", overToken);
  lines.addEventListener("pointerleave", (event) => { if (event.pointerType === "mouse") point(null); });
  lines.addEventListener("blur", () => point(null));
  lines.addEventListener("scroll", drawLines, { passive: true });
  lines.addEventListener("keydown", (event) => {
    const move = { ArrowDown: 1, ArrowUp: -1, Home: -Infinity, End: Infinity }[event.key];
    const side = { ArrowLeft: "queries", ArrowRight: "keys" }[event.key];
    if (event.key === "Escape") return point(null);
    if (!move && !side) return;
    event.preventDefault();
    const next = { side: side ?? at?.side ?? "queries", place: at ? at.place : move ? -1 : 0 };
    next.place = Math.min(Math.max(next.place + (move ?? 0), 0), items[next.side].length - 1);
    items[next.side][next.place].scrollIntoView({ block: "nearest" });
    point(next);
  });

  /* The grid: rows are the tokens that look, columns the tokens looked at. Words stand beside it where they have room. */
  const square = byId("square"), sheet = byId("grid-of-weights"), marker = byId("marker");
  let place = { left: 0, top: 0, cell: 1 };
  const drawGrid = () => {
    if (!shown || state.form !== "grid") return;
    const width = sheet.parentElement.clientWidth, ratio = devicePixelRatio || 1, style = getComputedStyle(sheet);
    const font = "12px ui-monospace, Menlo, Consolas, monospace", context = sheet.getContext("2d");
    context.font = font;
    const longest = (side) => Math.ceil(Math.max(...tokens(side).map((word) => context.measureText(short(word)).width))) + 6;
    let left = longest("queries"), above = longest("keys");
    let size = (width - left) / shown.columns;
    if (size < 3) [left, above, size] = [0, 0, width / shown.columns];
    const every = Math.ceil(13 / size); /* of cells that are smaller than a word is high, every second or third is named */
    size = Math.min(size, 30, 1600 / shown.rows + width / shown.columns);
    const height = above + size * shown.rows;
    sheet.width = Math.round(width * ratio);
    sheet.height = Math.round(height * ratio);
    sheet.style.height = `${height}px`;
    context.scale(ratio, ratio);
    context.imageSmoothingEnabled = size < 1;
    context.drawImage(pixels(shown), left, above, size * shown.columns, size * shown.rows);
    if (left) {
      context.font = font;
      context.fillStyle = paper ? "#1b2430" : getComputedStyle(document.documentElement).getPropertyValue("--ink") || style.color;
      context.textBaseline = "middle";
      context.textAlign = "right";
      tokens("queries").forEach((word, i) => i % every || context.fillText(short(word), left - 4, above + (i + 0.5) * size));
      context.textAlign = "left";
      tokens("keys").forEach((word, j) => {
        if (j % every) return;
        context.save();
        context.translate(left + (j + 0.5) * size, above - 4);
        context.rotate(-Math.PI / 2);
        context.fillText(short(word), 0, 0);
        context.restore();
      });
    }
    place = { left, top: above, cell: size };
  };
  const read = (next) => {
    cell = next;
    marker.hidden = !cell;
    if (!cell) return hush();
    const size = Math.max(place.cell, 5), shift = (place.cell - size) / 2;
    Object.assign(marker.style, {
      left: `${place.left + cell.j * place.cell + shift}px`, top: `${place.top + cell.i * place.cell + shift}px`, width: `${size}px`, height: `${size}px`,
    });
    const forbidden = view.parts[state.part].causal && cell.j > cell.i;
    tell(forbidden ? `${named("queries", cell.i)} cannot see ${named("keys", cell.j)}, which comes later` : `${named("queries", cell.i)} gives ${share(weightOf(cell.i, cell.j))} to ${named("keys", cell.j)}`, marker);
  };
  const overCell = (event) => {
    const box = sheet.getBoundingClientRect();
    const i = Math.floor((event.clientY - box.top - place.top) / place.cell), j = Math.floor((event.clientX - box.left - place.left) / place.cell);
    if (shown && i >= 0 && j >= 0 && i < shown.rows && j < shown.columns) read({ i, j });
  };
  square.addEventListener("pointermove", overCell);
  square.addEventListener("pointerdown", overCell);
  square.addEventListener("pointerleave", (event) => { if (event.pointerType === "mouse") read(null); });
  square.addEventListener("blur", () => read(null));
  square.addEventListener("keydown", (event) => {
    const [down, across] = { ArrowDown: [1, 0], ArrowUp: [-1, 0], ArrowRight: [0, 1], ArrowLeft: [0, -1] }[event.key] ?? [0, 0];
    if (event.key === "Escape") return read(null);
    if (!down && !across) return;
    event.preventDefault();
    const now = cell ?? { i: 0, j: across > 0 ? -1 : 0 };
    read({ i: Math.min(Math.max(now.i + down, 0), shown.rows - 1), j: Math.min(Math.max(now.j + across, 0), shown.columns - 1) });
    marker.scrollIntoView({ block: "nearest" });
  });

  /* What is chosen. */
  const layerChoice = byId("layer"), headChoice = byId("choice"), partChoice = byId("part");
  const options = (select, values, several, chosen) => {
    const list = values.map((value) => make("option", { value, textContent: value }));
    if (values.length > 1) list.push(make("option", { value: MEAN, textContent: several }));
    select.replaceChildren(...list);
    select.value = chosen;
  };
  const offer = () => {
    const { heads } = view.parts[state.part];
    options(layerChoice, [...new Set(heads.map((one) => one.layer))], "mean of all", state.layer);
    const there = heads.filter((one) => state.layer === MEAN || one.layer === state.layer).map((one) => one.head);
    options(headChoice, [...new Set(there)], "mean of all", state.head);
    if (partChoice) partChoice.value = state.part;
  };
  const draw = () => {
    drawLines();
    drawGrid();
    if (cell) read(cell);
  };
  let asked = 0;
  const load = async () => {
    const mine = ++asked, found = await mean(state);
    if (mine !== asked || !found) return;
    shown = found;
    const heads = those(state);
    const who = state.head === MEAN ? "mean of heads" : `head ${state.head}`;
    byId("which").textContent = `${state.layer === MEAN ? "All blocks" : `Block ${state.layer}`}, ${who}`;
    byId("facts").textContent = heads.length === 1 ? heads[0].facts : `mean of ${heads.length} maps`;
    shade();
    draw();
    byId("viewer").dataset.drawn = `${state.part} ${state.layer} ${state.head}`;
    wall.drawAll();
  };
  const go = (change) => {
    const before = state.part;
    Object.assign(state, change);
    const { heads } = view.parts[state.part];
    if (!those(state).length) [state.layer, state.head] = [heads[0].layer, heads[0].head];
    if (before !== state.part) [at, cell] = [null, null];
    if (before !== state.part || wall.empty()) {
      fill();
      wall.build();
    }
    wall.mark();
    offer();
    for (const button of all("[data-form]")) button.setAttribute("aria-pressed", String(button.dataset.form === state.form));
    lines.hidden = state.form !== "lines";
    square.hidden = state.form !== "grid";
    load();
  };
  const wall = wallOf(state, go);
  const number = (text) => text === MEAN ? MEAN : Number(text);
  layerChoice.addEventListener("change", () => go({ layer: number(layerChoice.value) }));
  headChoice.addEventListener("change", () => go({ head: number(headChoice.value) }));
  partChoice?.addEventListener("change", () => go({ part: Number(partChoice.value) }));
  for (const button of all("[data-form]")) button.addEventListener("click", () => go({ form: button.dataset.form }));

  /* An address may name a place: #layer=3&head=5, part=1, form=grid. */
  const fromAddress = () => {
    const words = new URLSearchParams(location.hash.slice(1)), change = {};
    for (const name of ["part", "layer", "head"]) if (words.has(name)) change[name] = number(words.get(name));
    if (["lines", "grid"].includes(words.get("form"))) change.form = words.get("form");
    if (!view.parts[change.part ?? state.part]) delete change.part;
    return change;
  };
  addEventListener("hashchange", () => { if (location.hash.includes("=")) go(fromAddress()); });
  const again = () => {
    draw();
    wall.again();
  };
  new MutationObserver(again).observe(document.documentElement, { attributes: true, attributeFilter: ["data-theme"] });
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", again);
  addEventListener("resize", draw);
  const ink = (light) => () => {
    paper = light;
    maps.onPaper(light);
    draw();
  };
  addEventListener("beforeprint", ink(true));
  addEventListener("afterprint", ink(false));
  byId("viewer").hidden = false;
  go(fromAddress());
})();
