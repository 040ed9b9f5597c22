/* Maps are unfolded when they are looked at: one head as lines between tokens or as a grid, all heads as small maps. */
(() => {
  const { byId, all, make, tell, hush } = page;
  const view = JSON.parse(byId("view").textContent);
  const MEAN = "mean", ROOM = 48, LEAST = 0.02, LONGEST = 15, SIDE = 48;
  const state = { part: view.opened.part, layer: view.opened.layer, head: view.opened.head ?? MEAN, form: "lines" };
  let shown = null, at = null, cell = null; /* weights in sight; token of a column {side, place}; place in the grid */

  /* From packed text to weights: scales of rows, then codes row by row, of causal maps up to the diagonal. */
  const lengths = (part) => [view.inputs[part.queries].length, view.inputs[part.keys].length];
  const bytes = (text) => Uint8Array.fromBase64 ? Uint8Array.fromBase64(text) : Uint8Array.from(atob(text), (letter) => letter.charCodeAt(0));
  const unfold = async (number, one) => {
    const part = view.parts[number], [rows, columns] = lengths(part);
    const folded = bytes(byId(`map-${number}-${one.layer}-${one.head}`).textContent);
    const stream = new Blob([folded]).stream().pipeThrough(new DecompressionStream("deflate"));
    const raw = await new Response(stream).arrayBuffer();
    const scales = new Float32Array(raw, 0, rows), codes = new Uint8Array(raw, 4 * rows);
    const weights = new Float32Array(rows * columns);
    const zero = one.signed ? 128 : 0, steps = one.signed ? 127 : 255;
    for (let i = 0, from = 0; i < rows; i++) {
      const step = scales[i] / steps, many = part.causal ? i + 1 : columns;
      for (let j = 0; j < many; j++) weights[i * columns + j] = (codes[from++] - zero) * step;
    }
    return { weights, rows, columns, signed: one.signed };
  };
  const those = ({ part, layer, head }) => view.parts[part].heads.filter((one) =>
    (layer === MEAN || one.layer === layer) && (head === MEAN || one.head === head));
  const mean = async (where) => {
    const heads = those(where);
    let total = null;
    for (const one of heads) {
      const found = await unfold(where.part, one);
      if (!total) total = found;
      else {
        for (let n = 0; n < total.weights.length; n++) total.weights[n] += found.weights[n];
        total.signed = total.signed || found.signed;
      }
    }
    if (heads.length > 1) for (let n = 0; n < total.weights.length; n++) total.weights[n] /= heads.length;
    return total;
  };

  /* Colours of the theme in sight; on paper those of the light one. */
  let paper = false;
  const dark = () => !paper && getComputedStyle(document.documentElement).colorScheme.startsWith("dark");
  const channels = (colour) => [1, 3, 5].map((from) => parseInt(colour.slice(from, from + 2), 16));
  const colours = {};
  const ramp = (signed) => {
    const name = `${dark() ? "dark" : "light"} ${signed}`;
    colours[name] ??= view.ramps[dark() ? "dark" : "light"][Number(signed)].map(channels);
    return colours[name];
  };
  const step = (weight, signed) => signed
    ? 12 + Math.round(12 * Math.sign(weight) * Math.sqrt(Math.min(Math.abs(weight), 1)))
    : Math.round(24 * Math.sqrt(Math.min(weight, 1)));
  /* A map as pixels; `side` makes larger maps smaller, each pixel the largest weight under it. */
  const pixels = (found, side = Infinity) => {
    const height = Math.min(found.rows, side), width = Math.min(found.columns, side);
    const largest = new Float32Array(height * width);
    for (let i = 0; i < found.rows; i++) {
      const row = Math.floor(i * height / found.rows) * width;
      for (let j = 0; j < found.columns; j++) {
        const place = row + Math.floor(j * width / found.columns), weight = found.weights[i * found.columns + j];
        if (Math.abs(weight) > Math.abs(largest[place])) largest[place] = weight;
      }
    }
    const image = new ImageData(width, height), palette = ramp(found.signed);
    for (let n = 0; n < largest.length; n++) if (largest[n]) {
      const [red, green, blue] = palette[step(largest[n], found.signed)];
      image.data.set([red, green, blue, 255], 4 * n);
    }
    const canvas = make("canvas", { width, height });
    canvas.getContext("2d").putImageData(image, 0, 0);
    return canvas;
  };

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

  /* The grid: who looks runs down, at whom across. Words stand beside it where they have room. */
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
    if (size < 13) [left, above, size] = [0, 0, width / shown.columns];
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
      tokens("queries").forEach((word, i) => context.fillText(short(word), left - 4, above + (i + 0.5) * size));
      context.textAlign = "left";
      tokens("keys").forEach((word, j) => {
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

  /* All heads: a small map each, drawn when it comes into sight. */
  const wall = byId("wall");
  let cells = new Map();
  const small = async (box) => {
    const one = view.parts[state.part].heads[Number(box.dataset.index)];
    const part = state.part, found = await unfold(part, one);
    if (part !== state.part) return;
    const canvas = make("canvas", { width: SIDE, height: SIDE }), context = canvas.getContext("2d");
    context.imageSmoothingEnabled = false;
    context.drawImage(pixels(found, SIDE), 0, 0, SIDE, SIDE);
    box.replaceChildren(canvas);
  };
  const watching = new IntersectionObserver((entries) => {
    for (const entry of entries) if (entry.isIntersecting) {
      watching.unobserve(entry.target);
      small(entry.target);
    }
  }, { rootMargin: "200px" });
  /* What nobody has come to yet is drawn while nothing else is to be done, for paper and for those who scroll fast. */
  const idle = (work) => (window.requestIdleCallback ?? setTimeout)(work);
  const drawRest = () => idle(async () => {
    const waiting = [...cells.values()].find((box) => !box.firstChild);
    if (!waiting) return;
    watching.unobserve(waiting);
    await small(waiting);
    drawRest();
  });
  const build = () => {
    watching.disconnect();
    cells = new Map();
    const { heads } = view.parts[state.part], columns = [...new Set(heads.map((one) => one.head))].sort((a, b) => a - b);
    const layers = [...new Set(heads.map((one) => one.layer))];
    wall.style.setProperty("--columns", columns.length);
    const first = make("div", {}, make("span"), ...columns.map((head) => make("span", { className: "top", textContent: head, role: "columnheader" })));
    first.setAttribute("role", "row");
    wall.replaceChildren(first, ...layers.map((layer) => {
      const row = make("div", {}, make("span", { className: "layer", textContent: layer, role: "rowheader" }));
      row.setAttribute("role", "row");
      for (const head of columns) {
        const index = heads.findIndex((one) => one.layer === layer && one.head === head);
        const box = make("span", { role: "gridcell", tabIndex: -1 });
        box.setAttribute("role", "gridcell");
        row.append(box);
        if (index < 0) continue;
        box.dataset.index = index;
        box.setAttribute("aria-label", `Layer ${layer}, head ${head}: ${heads[index].facts}`);
        cells.set(`${layer} ${head}`, box);
        watching.observe(box);
      }
      return row;
    }));
  };
  const ofBox = (box) => view.parts[state.part].heads[Number(box.dataset.index)];
  const sayHead = (box) => tell(box.getAttribute("aria-label").replaceAll(" · ", "\n"), box);
  wall.addEventListener("click", (event) => {
    const box = event.target.closest("[data-index]");
    if (!box) return;
    const { layer, head } = ofBox(box);
    go({ layer, head });
    if (innerWidth < 1024) byId("head").scrollIntoView(); /* on wide screens it stands beside */
  });
  wall.addEventListener("pointerover", (event) => {
    const box = event.target.closest("[data-index]");
    if (box) sayHead(box);
  });
  wall.addEventListener("pointerleave", hush);
  wall.addEventListener("focusout", hush);
  wall.addEventListener("keydown", (event) => {
    const box = event.target.closest("[data-index]"), heads = view.parts[state.part].heads;
    const [down, across] = { ArrowDown: [1, 0], ArrowUp: [-1, 0], ArrowRight: [0, 1], ArrowLeft: [0, -1] }[event.key] ?? [0, 0];
    if (!box) return;
    if (event.key === "Enter") return byId("head").scrollIntoView();
    if (!down && !across) return;
    event.preventDefault();
    const now = ofBox(box), axis = down ? "layer" : "head", same = down ? "head" : "layer";
    const onward = heads.filter((one) => one[same] === now[same] && (one[axis] - now[axis]) * (down + across) > 0);
    const next = onward.sort((one, two) => Math.abs(one[axis] - now[axis]) - Math.abs(two[axis] - now[axis]))[0];
    if (!next) return;
    go({ layer: next.layer, head: next.head });
    const target = cells.get(`${next.layer} ${next.head}`);
    target.focus();
    sayHead(target);
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
    byId("which").textContent = `${state.layer === MEAN ? "All layers" : `Layer ${state.layer}`}, ${who}`;
    byId("facts").textContent = heads.length === 1 ? heads[0].facts : `mean of ${heads.length} maps`;
    shade();
    draw();
    if (byId("viewer").dataset.drawn === undefined) drawRest();
    byId("viewer").dataset.drawn = `${state.part} ${state.layer} ${state.head}`;
  };
  const go = (change) => {
    const before = state.part;
    Object.assign(state, change);
    const { heads } = view.parts[state.part];
    if (!those(state).length) [state.layer, state.head] = [heads[0].layer, heads[0].head];
    if (before !== state.part) [at, cell] = [null, null];
    if (before !== state.part || !cells.size) {
      fill();
      build();
    }
    for (const [name, box] of cells) {
      const chosen = name === `${state.layer} ${state.head}`;
      box.setAttribute("aria-selected", String(chosen));
      box.tabIndex = chosen ? 0 : -1;
    }
    if (!cells.has(`${state.layer} ${state.head}`)) [...cells.values()][0].tabIndex = 0;
    offer();
    for (const button of all("[data-form]")) button.setAttribute("aria-pressed", String(button.dataset.form === state.form));
    lines.hidden = state.form !== "lines";
    square.hidden = state.form !== "grid";
    load();
  };
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
    for (const box of cells.values()) if (box.firstChild) small(box);
  };
  new MutationObserver(again).observe(document.documentElement, { attributes: true, attributeFilter: ["data-theme"] });
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", again);
  addEventListener("resize", draw);
  const ink = (light) => () => {
    paper = light;
    draw();
  };
  addEventListener("beforeprint", ink(true));
  addEventListener("afterprint", ink(false));
  byId("viewer").hidden = false;
  go(fromAddress());
})();
