/* All heads: a small map each, drawn when it comes into sight. `state` says which part is looked at, `go` goes to a head. */
const wallOf = (state, go) => {
  const { byId, make, tell, hush } = page, { view, unfold, pixels } = maps;
  const SIDE = 48; /* pixels of a small map */
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
  /* Those in sight first, one after the other; then, while nothing else is to be done, the rest: for paper, and for those
     who scroll fast. Nothing begins before the head that is looked at is drawn. */
  const near = new Set();
  const watching = new IntersectionObserver((entries) => {
    for (const entry of entries) near[entry.isIntersecting ? "add" : "delete"](entry.target);
  }, { rootMargin: "200px" });
  const idle = (work) => (window.requestIdleCallback ?? setTimeout)(work, { timeout: 200 });
  let drawing = false;
  const drawAll = async () => {
    if (drawing) return;
    drawing = true;
    const waits = (box) => !box.firstChild && box.isConnected;
    for (let next; (next = [...near].find(waits) ?? [...cells.values()].find(waits));) {
      await new Promise((resolve) => { idle(resolve); });
      await small(next);
    }
    drawing = false;
  };
  const build = () => {
    watching.disconnect();
    near.clear();
    cells = new Map();
    const { heads } = view.parts[state.part], numbers = [...new Set(heads.map((one) => one.head))].sort((a, b) => a - b);
    const layers = [...new Set(heads.map((one) => one.layer))];
    wall.style.setProperty("--columns", layers.length);
    const first = make("div", {}, make("span"), ...layers.map((layer) => make("span", { className: "top", textContent: layer, role: "columnheader" })));
    first.setAttribute("role", "row");
    wall.replaceChildren(first, ...numbers.map((head) => {
      const row = make("div", {}, make("span", { className: "left", textContent: head, role: "rowheader" }));
      row.setAttribute("role", "row");
      for (const layer of layers) {
        const index = heads.findIndex((one) => one.layer === layer && one.head === head);
        const box = make("span", { role: "gridcell", tabIndex: -1 });
        box.setAttribute("role", "gridcell");
        row.append(box);
        if (index < 0) continue;
        box.dataset.index = index;
        box.setAttribute("aria-label", `Block ${layer}, head ${head}: ${heads[index].facts}`);
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
    const large = byId("head"); /* unless it stands beside */
    if (large.getBoundingClientRect().bottom < wall.getBoundingClientRect().top) large.scrollIntoView();
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
    const now = ofBox(box), axis = down ? "head" : "layer", same = down ? "layer" : "head";
    const onward = heads.filter((one) => one[same] === now[same] && (one[axis] - now[axis]) * (down + across) > 0);
    const next = onward.sort((one, two) => Math.abs(one[axis] - now[axis]) - Math.abs(two[axis] - now[axis]))[0];
    if (!next) return;
    go({ layer: next.layer, head: next.head });
    const target = cells.get(`${next.layer} ${next.head}`);
    target.focus();
    sayHead(target);
  });
  const mark = () => {
    const chosen = `${state.layer} ${state.head}`;
    for (const [name, box] of cells) {
      box.setAttribute("aria-selected", String(name === chosen));
      box.tabIndex = name === chosen ? 0 : -1;
    }
    if (!cells.has(chosen)) [...cells.values()][0].tabIndex = 0;
  };
  const again = () => { for (const box of cells.values()) if (box.firstChild) small(box); };
  return { build, mark, drawAll, again, empty: () => !cells.size };
};
