/* The page of a timeline: one measure over layers and steps, heads of one block as lines, the loss above, alarms as
   marks. Codes stay folded in the page until a measure is chosen. */
(() => {
  const STEPS = 25, LEVELS = 250, BROKEN = 254, WIDE = 1000;
  const { byId, all, make, tell, hush } = page;
  const data = JSON.parse(byId("data").textContent);
  const maps = data.maps;
  if (!maps.length) return;
  const svg = (tag, attributes) => {
    const element = document.createElementNS("http://www.w3.org/2000/svg", tag);
    for (const [name, value] of Object.entries(attributes)) element.setAttribute(name, value);
    return element;
  };
  const numeral = (value, figures = 3) => {
    if (value === null || !Number.isFinite(value)) return "not finite";
    const size = Math.abs(value), short = (text) => (text.includes(".") ? text.replace(/\.?0+$/, "") : text);
    if (size !== 0 && (size < 1e-3 || size >= 999950)) {
      const [mantissa, exponent] = value.toExponential(figures - 1).split("e");
      return `${short(mantissa)}e${Number(exponent)}`;
    }
    return size >= 999.5 ? Math.round(value).toLocaleString("en") : short(value.toPrecision(figures));
  };
  const grouped = (step) => step.toLocaleString("en");

  /* From folded text to codes [layer, head, column], once for each measure. */
  const unfolded = new Map();
  const unfold = async (index) => {
    if (!unfolded.has(index)) {
      unfolded.set(index, await Promise.all(maps[index].runs.map(async (run) => {
        const folded = Uint8Array.from(atob(run.packed), (letter) => letter.charCodeAt(0));
        const stream = new Blob([folded]).stream().pipeThrough(new DecompressionStream("deflate"));
        return new Uint8Array(await new Response(stream).arrayBuffer());
      })));
    }
    return unfolded.get(index);
  };
  const valueOf = (map, code) => (map.log ? map.low * (map.high / map.low) ** (code / LEVELS) : map.low + (map.high - map.low) * (code / LEVELS));

  /* Steps to places, the same in all runs. */
  const first = Math.min(...data.runs.flatMap((run) => run.steps.slice(0, 1)));
  const last = Math.max(...data.runs.flatMap((run) => run.until.slice(-1)));
  const at = (step) => (WIDE * (step - first)) / Math.max(last - first, 1);
  const reaches = data.runs.map((run) => {
    const widths = run.steps.slice(1).map((step, n) => step - run.steps[n]).sort((a, b) => a - b);
    const usual = widths.length ? widths[widths.length >> 1] : 1;
    return run.steps.map((step, n) => [at(step), Math.min(at(run.steps[n + 1] ?? step + usual), WIDE)]).map(([a, b]) => [a, Math.max(b, a + 1)]);
  });
  const state = { map: data.opened, rows: "mean", layer: 0, codes: [] };

  /* Rows of the heat map: a code for each column, null where there is none. */
  const rowsOf = (run) => {
    const map = maps[state.map], shape = map.runs[run], codes = state.codes[run], many = data.runs[run].steps.length;
    const heads = Math.max(shape.heads, 1), rows = [];
    const code = (layer, head, column) => codes[(layer * heads + head) * many + column];
    for (let layer = 0; layer < shape.layers; layer++) {
      if (shape.heads && state.rows === "every") {
        for (let head = 0; head < heads; head++) rows.push({ layer, head, code: (column) => code(layer, head, column) });
        continue;
      }
      rows.push({ layer, head: null, code: (column) => {
        let found = [], broken = false;
        for (let head = 0; head < heads; head++) {
          const one = code(layer, head, column);
          if (one <= LEVELS) found.push(one); else broken = broken || one === BROKEN;
        }
        if (!found.length) return broken ? BROKEN : 255;
        if (state.rows === "smallest") return Math.min(...found);
        if (state.rows === "largest") return Math.max(...found);
        return map.log ? LEVELS * Math.log(found.reduce((sum, one) => sum + valueOf(map, one), 0) / found.length / map.low) / Math.log(map.high / map.low) : found.reduce((sum, one) => sum + one, 0) / found.length;
      } });
    }
    return rows;
  };
  const rowWords = (map, row, layers) => {
    const where = map.rows === "entering block" && row.layer === layers - 1 && map.site === "stream" ? "after the last block" : `${map.rows} ${row.layer}`;
    return row.head === null ? where : `block ${row.layer}, head ${row.head}`;
  };

  const ticks = () => {
    const line = make("div", { className: "ticks" });
    const many = innerWidth < 700 ? 2 : 4;
    for (let n = 0; n <= many; n++) line.append(make("span", {}, grouped(Math.round(first + ((last - first) * n) / many))));
    return line;
  };
  const loudly = (alarm) => alarm.severity !== "note";
  const marks = (picture, run) => {
    for (const alarm of data.runs[run].alarms.filter(loudly)) {
      const line = make("i", { className: "mark-line" });
      line.style.left = `${at(alarm.step) / WIDE * 100}%`;
      picture.append(line);
    }
  };
  const label = (text, share) => {
    const made = make("span", {}, text);
    made.style.top = `${100 * share}%`;
    return made;
  };

  const lossOf = (run) => {
    const { loss, steps } = data.runs[run];
    const known = data.runs.flatMap((one) => one.loss.filter((value) => value !== null));
    if (!known.length) return [];
    const low = Math.min(...known), high = Math.max(...known, low + 1e-9);
    const picture = make("div", { className: "picture" });
    const drawing = svg("svg", { class: "curves loss", viewBox: `0 0 ${WIDE} 100`, preserveAspectRatio: "none", "aria-hidden": "true" });
    drawing.append(svg("path", { class: "frame", d: `M0 100H${WIDE}` }));
    drawing.append(svg("path", { class: "whole", d: line(loss.map((value, n) => (value === null ? null : [at(steps[n]), 100 - (100 * (value - low)) / (high - low)]))) }));
    picture.append(drawing);
    marks(picture, run);
    return [make("div", { className: "steps" }, make("div", { className: "labels" }, label(numeral(high), 0.06), label(numeral(low), 0.94)), picture)];
  };
  const line = (points) => {
    let d = "", pen = "M";
    for (const point of points) {
      if (!point) { pen = "M"; continue; }
      d += `${pen}${point[0].toFixed(1)} ${point[1].toFixed(1)}`;
      pen = "L";
    }
    return d;
  };

  const heatOf = (run) => {
    const map = maps[state.map], rows = rowsOf(run), reach = reaches[run], layers = map.runs[run].layers;
    const strokes = {};
    rows.forEach((row, place) => {
      let from = 0, before = null;
      const flush = (column) => { if (before !== null && from < column) (strokes[before] ??= []).push(`M${reach[from][0].toFixed(1)} ${place}H${reach[column - 1][1].toFixed(1)}`); };
      for (let column = 0; column <= reach.length; column++) {
        const code = column < reach.length ? row.code(column) : null;
        const colour = code === null || code > LEVELS ? (code === BROKEN ? "void" : "") : `${map.ramp}${Math.round((code / LEVELS) * (STEPS - 1))}`;
        if (colour !== before || column === reach.length) { flush(column); from = column; before = colour; }
      }
    });
    const drawing = svg("svg", { class: "heat", viewBox: `0 -0.5 ${WIDE} ${rows.length}`, preserveAspectRatio: "none", "aria-hidden": "true" });
    for (const [colour, d] of Object.entries(strokes)) if (colour) drawing.append(svg("path", { class: colour, d: d.join("") }));
    drawing.style.setProperty("--height", `${Math.min(Math.max(rows.length * 16, 150), 480)}px`);
    const marker = make("i", { className: "marker", hidden: true });
    const picture = make("div", { className: "picture", tabIndex: 0, role: "group", ariaLabel: `${map.title} of ${data.runs[run].name}: blocks downwards, steps to the right. Arrow keys read it, Enter shows the heads of a block.` }, drawing, marker);
    picture.setAttribute("aria-roledescription", "map");
    marks(picture, run);
    let here = [0, 0];
    const read = (column, place) => {
      here = [Math.min(Math.max(column, 0), reach.length - 1), Math.min(Math.max(place, 0), rows.length - 1)];
      const [c, r] = here, code = rows[r].code(c), { steps, until } = data.runs[run];
      const value = code <= LEVELS ? `about ${numeral(valueOf(map, code))} ${map.unit}` : code === BROKEN ? "not finite" : "not measured";
      const when = steps[c] === until[c] ? `Step ${grouped(steps[c])}` : `Steps ${grouped(steps[c])} to ${grouped(until[c])}`;
      const near = data.runs[run].alarms.filter((alarm) => alarm.step >= steps[c] && alarm.step <= until[c]).map((alarm) => `\n${alarm.sentence}`);
      Object.assign(marker.style, { left: `${reach[c][0] / WIDE * 100}%`, width: `${(reach[c][1] - reach[c][0]) / WIDE * 100}%`, top: `${100 * r / rows.length}%`, height: `${100 / rows.length}%` });
      marker.hidden = false;
      tell(`${when}, ${rowWords(map, rows[r], layers)}\n${map.title}: ${value}${near.join("")}`, marker);
    };
    const under = (event) => {
      const box = drawing.getBoundingClientRect(), x = (event.clientX - box.left) / box.width * WIDE;
      let column = reach.findIndex(([from, to]) => x >= from && x < to);
      if (column < 0) column = x < reach[0][0] ? 0 : reach.length - 1;
      read(column, Math.floor(((event.clientY - box.top) / box.height) * rows.length));
    };
    const leave = () => { marker.hidden = true; hush(); };
    const choose = () => { state.layer = rows[here[1]].layer; draw(); };
    picture.addEventListener("pointermove", under);
    picture.addEventListener("pointerdown", under);
    picture.addEventListener("pointerleave", leave);
    picture.addEventListener("blur", leave);
    picture.addEventListener("click", choose);
    picture.addEventListener("keydown", (event) => {
      const moves = { ArrowRight: [1, 0], ArrowLeft: [-1, 0], ArrowDown: [0, 1], ArrowUp: [0, -1], Home: [-Infinity, 0], End: [Infinity, 0] };
      if (event.key === "Enter") choose();
      else if (moves[event.key]) read(here[0] + moves[event.key][0], here[1] + moves[event.key][1]);
      else return;
      event.preventDefault();
    });
    const labels = make("div", { className: "labels" });
    const every = Math.max(1, Math.ceil(rows.length / (Math.min(Math.max(rows.length * 16, 150), 480) / 15)));
    rows.forEach((row, place) => {
      const words = row.head === null ? (place % every ? "" : String(row.layer)) : row.head === 0 ? String(row.layer) : "";
      if (words) labels.append(label(words, (place + 0.5) / rows.length));
    });
    return make("div", { className: "steps" }, labels, picture, ticks());
  };

  const linesOf = (run) => {
    const map = maps[state.map], shape = map.runs[run], many = data.runs[run].steps.length, heads = Math.max(shape.heads, 1);
    const layer = Math.min(state.layer, shape.layers - 1), codes = state.codes[run], steps = data.runs[run].steps;
    const loud = new Set(data.runs[run].alarms.filter((alarm) => alarm.stack === map.stack && alarm.site === map.site).flatMap((alarm) => alarm.heads.filter(([l]) => l === layer).map(([, h]) => h)));
    const picture = make("div", { className: "picture" });
    const drawing = svg("svg", { class: "curves", viewBox: `0 0 ${WIDE} ${LEVELS}`, preserveAspectRatio: "none", "aria-hidden": "true" });
    drawing.append(svg("path", { class: "frame", d: `M0 ${LEVELS}H${WIDE}M0 0H${WIDE}` }));
    const share = map.alarm === null ? NaN : map.log ? Math.log(map.alarm / map.low) / Math.log(map.high / map.low) : (map.alarm - map.low) / (map.high - map.low);
    if (share > 0 && share < 1) drawing.append(svg("path", { class: "threshold", d: `M0 ${LEVELS * (1 - share)}H${WIDE}` }));
    const lines = [];
    for (let head = 0; head < heads; head++) {
      const own = codes.subarray((layer * heads + head) * many, (layer * heads + head + 1) * many);
      const path = svg("path", { class: loud.has(head) ? "loud" : shape.heads ? "" : "whole", d: line([...own].map((code, n) => (code > LEVELS ? null : [at(steps[n]), LEVELS - code]))) });
      lines.push([own, path]);
      drawing.append(path);
    }
    for (const head of loud) if (lines[head]) drawing.append(lines[head][1]); /* above the others */
    picture.append(drawing);
    marks(picture, run);
    let shown = null;
    const leave = () => { if (shown) shown.classList.remove("told"); shown = null; hush(); };
    const under = (event) => {
      const box = drawing.getBoundingClientRect(), x = (event.clientX - box.left) / box.width * WIDE, y = LEVELS * (1 - (event.clientY - box.top) / box.height);
      let column = 0;
      steps.forEach((step, n) => { if (Math.abs(at(step) - x) < Math.abs(at(steps[column]) - x)) column = n; });
      let best = -1;
      lines.forEach(([own], head) => { if (own[column] <= LEVELS && (best < 0 || Math.abs(own[column] - y) < Math.abs(lines[best][0][column] - y))) best = head; });
      leave();
      if (best < 0) return;
      shown = lines[best][1];
      shown.classList.add("told");
      const who = shape.heads ? `head ${best} of block ${layer}` : rowWords(map, { layer, head: null }, shape.layers);
      tell(`Step ${grouped(steps[column])}, ${who}\n${map.title}: about ${numeral(valueOf(map, lines[best][0][column]))} ${map.unit}`, shown);
    };
    picture.addEventListener("pointermove", under);
    picture.addEventListener("pointerdown", under);
    picture.addEventListener("pointerleave", leave);
    const title = shape.heads ? `Heads of block ${layer}` : rowWords(map, { layer, head: null }, shape.layers);
    const key = [make("i", { className: "key" }), shape.heads ? "heads" : map.title];
    if (loud.size) key.push(" ", make("i", { className: "key loud" }), `named by an alarm: ${[...loud].sort((a, b) => a - b).join(", ")}`);
    return [make("p", { className: "soft row-choice" }, `${title}: `, ...key), make("div", { className: "steps" }, make("div", { className: "labels" }, label(numeral(map.high), 0.03), label(numeral(map.low), 0.97)), picture, ticks())];
  };

  const legend = () => {
    const map = maps[state.map];
    const ramp = make("span", { className: "ramp" }, ...Array.from({ length: STEPS }, (_, i) => make("i", { className: map.ramp + i })));
    const pieces = [make("span", {}, numeral(map.low)), ramp, make("span", {}, `${numeral(map.high)} ${map.unit}`), make("span", {}, `Colours run ${map.why}.`)];
    if (data.runs.some((run) => run.alarms.some(loudly))) pieces.push(make("span", {}, make("i", { className: "key alarm" }), "an alarm began"));
    byId("legend").replaceChildren(...pieces);
  };
  const draw = async () => {
    const map = maps[state.map];
    state.codes = await unfold(state.map);
    const deepest = Math.max(...map.runs.map((run) => run.layers)), heads = Math.max(...map.runs.map((run) => run.heads));
    state.layer = Math.min(state.layer, deepest - 1);
    byId("layer").replaceChildren(...Array.from({ length: deepest }, (_, n) => make("option", { value: n }, String(n))));
    byId("layer").value = state.layer;
    byId("rows-choice").hidden = !heads;
    byId("rows").value = state.rows;
    byId("which").textContent = map.title;
    byId("about").textContent = map.summary;
    place.value = map.place;
    measure.replaceChildren(...maps.flatMap((one, n) => (one.place === map.place ? [make("option", { value: n }, one.title)] : [])));
    measure.value = state.map;
    const told = data.runs.map((run, n) => make("div", { className: "run twin" }, ...(data.runs.length > 1 ? [make("h4", {}, run.name)] : []), ...(run.steps.length ? [...lossOf(n).flatMap((strip) => [make("p", { className: "soft row-choice" }, "Loss"), strip]), make("p", { className: "soft row-choice" }, `${map.title}, ${map.rows} downwards`), heatOf(n), ...linesOf(n)] : [make("p", { className: "soft" }, "No looks yet.")])));
    const focus = document.activeElement?.matches?.("#runs .picture");
    byId("runs").replaceChildren(...told);
    if (focus) byId("runs").querySelector(".picture[tabindex]").focus();
    for (const thumbnail of all("#thumbnails figure")) thumbnail.setAttribute("aria-current", String(Number(thumbnail.dataset.map) === state.map));
    legend();
  };
  const loudest = (map) => data.runs.flatMap((run) => run.alarms).find((alarm) => alarm.stack === map.stack && alarm.site === map.site)?.layers[0];
  const choose = (index) => {
    Object.assign(state, { map: index, rows: maps[index].rowsOf, layer: loudest(maps[index]) ?? state.layer });
    draw();
  };

  const place = byId("place"), measure = byId("measure");
  const places = [...new Set(maps.map((map) => map.place))];
  place.append(...places.map((text) => make("option", { value: text }, text)));
  byId("place-choice").hidden = places.length < 2;
  place.addEventListener("change", () => choose(maps.findIndex((map) => map.place === place.value)));
  measure.addEventListener("change", () => choose(Number(measure.value)));
  byId("rows").addEventListener("change", () => { state.rows = byId("rows").value; draw(); });
  byId("layer").addEventListener("change", () => { state.layer = Number(byId("layer").value); draw(); });
  const calmly = () => (matchMedia("(prefers-reduced-motion: reduce)").matches ? "auto" : "smooth");
  for (const thumbnail of all("#thumbnails figure")) {
    const title = thumbnail.querySelector("b");
    title.replaceWith(make("button", { type: "button" }, title.textContent));
    thumbnail.addEventListener("click", () => { choose(Number(thumbnail.dataset.map)); byId("steps").scrollIntoView({ behavior: calmly() }); });
  }
  byId("explorer-of-steps").hidden = false;
  choose(data.opened);
})();
