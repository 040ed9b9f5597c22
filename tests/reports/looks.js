/* The questions of looks.py, each a list of complaints. Put into a page by a test; no page has it. */
const looks = (() => {
  const UNSEEN = ["SCRIPT", "STYLE", "NOSCRIPT", "TITLE", "OPTION"];
  const FOCUSABLE = "a[href], button, select, input, summary, [tabindex='0']";
  /* As in shell.js: marks that carry a sentence. */
  const READABLE = ".mark-symbol.role-mark path[aria-label], .mark-rect.role-mark path[aria-label], [data-reading]";
  const all = (query, root = document) => [...root.querySelectorAll(query)];
  const looked = (element) => getComputedStyle(element);
  const seen = (element) =>
    element.checkVisibility({ visibilityProperty: true, opacityProperty: true, contentVisibilityAuto: true });

  /* Every stretch of text that is seen, with the boxes it stands in. */
  const texts = () => {
    const found = [], walker = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
    while (walker.nextNode()) {
      const node = walker.currentNode, element = node.parentElement;
      if (!node.data.trim() || UNSEEN.includes(element.tagName) || !seen(element)) continue;
      const range = document.createRange();
      range.selectNodeContents(node);
      const boxes = [...range.getClientRects()].filter((box) => box.width > 0 && box.height > 0);
      if (boxes.length) found.push({ element, boxes, words: node.data.trim().slice(0, 60) });
    }
    return found;
  };
  const named = (element) => {
    const around = element.closest("figure, section, header, nav, footer");
    const kind = element.getAttribute("class");
    const place = around ? around.id || around.className || around.tagName.toLowerCase() : "body";
    return `${element.tagName.toLowerCase()}${kind ? "." + kind : ""} in ${place}`;
  };

  const sizes = () => texts().map(({ element, words }) => {
    const size = parseFloat(looked(element).fontSize);
    const matrix = element.ownerSVGElement ? element.getScreenCTM() : null;
    return [matrix ? size * Math.hypot(matrix.a, matrix.b) : size, words, named(element)];
  });

  const wider = (element) => element.scrollWidth > element.clientWidth + 1;
  const scrolls = (element) => ["auto", "scroll"].includes(looked(element).overflowX) && wider(element);
  const scrolled = (element) => {
    for (let above = element; above; above = above.parentElement) if (scrolls(above)) return true;
    return false;
  };
  const cut = () => {
    const root = document.documentElement, complaints = [];
    if (root.scrollWidth > root.clientWidth) complaints.push(`the page is ${root.scrollWidth} px wide on ${root.clientWidth}`);
    for (const { element, boxes, words } of texts()) {
      if (scrolled(element) || element.closest(".skip")) continue;
      const card = element.closest(".panel, .wrap");
      const edge = card ? card.getBoundingClientRect() : { left: 0, right: innerWidth };
      const left = Math.max(0, edge.left), right = Math.min(root.clientWidth, edge.right);
      if (boxes.some((box) => box.left < left - 1 || box.right > right + 1)) complaints.push(`'${words}' leaves its card (${named(element)})`);
    }
    for (const element of all("*", document.body)) {
      if (!seen(element) || element.ownerSVGElement || element.tagName === "svg") continue;
      const hides = ["hidden", "clip"].includes(looked(element).overflowX) && element.clientWidth > 1;
      if (hides && wider(element)) complaints.push(`${named(element)} hides what is in it`);
      /* Links and buttons scroll into sight when they are focused. */
      const reached = element.tabIndex >= 0 || element.querySelector("a[href], button");
      if (scrolls(element) && !reached) complaints.push(`${named(element)} scrolls and no key reaches it`);
    }
    return complaints;
  };

  /* Labels of one chart that lie on each other; a pixel is the room around letters. The box around a slanted label is
     larger than the label, so those are left out. */
  const upright = (element) => {
    const { a, b } = element.getScreenCTM();
    return Math.abs(a * b) < 1e-6;
  };
  const across = (a, b) => Math.min(a.right, b.right) - Math.max(a.left, b.left);
  const down = (a, b) => Math.min(a.bottom, b.bottom) - Math.max(a.top, b.top);
  const overlaps = () => {
    const labels = texts().filter(({ element }) => element.closest(".plot") && element.ownerSVGElement && upright(element))
      .map(({ element, words }) => ({ svg: element.ownerSVGElement, box: element.getBoundingClientRect(), words }));
    return labels.flatMap((one, place) => labels.slice(place + 1)
      .filter((other) => other.svg === one.svg && across(one.box, other.box) > 1 && down(one.box, other.box) > 2)
      .map((other) => `'${one.words}' lies on '${other.words}' (${named(one.svg)})`));
  };

  const several = (grid) => grid && looked(grid).display.includes("grid") && looked(grid).gridTemplateColumns.split(" ").length > 1;
  const narrow = (share) => all(".plot svg").filter((svg) => seen(svg) && !svg.ownerSVGElement).flatMap((svg) => {
    const card = svg.closest(".panel") || svg.closest(".plot");
    const room = card.clientWidth - parseFloat(looked(card).paddingLeft) - parseFloat(looked(card).paddingRight);
    if (several(card.parentElement) || several(svg.parentElement)) return [];
    const width = svg.getBoundingClientRect().width;
    return width < share * room ? [`${Math.round(width)} px of ${Math.round(room)} (${named(svg)})`] : [];
  });

  /* WCAG 2.2: relative luminance and contrast ratio. Any way of writing a colour is read off a painted pixel. */
  const context = document.createElement("canvas").getContext("2d", { willReadFrequently: true });
  const known = new Map();
  const colour = (text) => {
    if (!known.has(text)) {
      context.clearRect(0, 0, 1, 1);
      context.fillStyle = text;
      context.fillRect(0, 0, 1, 1);
      const [r, g, b, a] = context.getImageData(0, 0, 1, 1).data;
      known.set(text, [r, g, b, a / 255]);
    }
    return known.get(text);
  };
  const over = ([r, g, b, a], below) => [r, g, b].map((part, i) => a * part + (1 - a) * below[i]);
  const behind = (element) => {
    const layers = [];
    for (let above = element; above; above = above.parentElement) {
      const painted = colour(looked(above).backgroundColor);
      if (painted[3] > 0) layers.push(painted);
      if (painted[3] === 1) break;
    }
    return layers.reverse().reduce((below, layer) => over(layer, below), [255, 255, 255]);
  };
  const linear = (part) => (part <= 0.04045 ? part / 12.92 : ((part + 0.055) / 1.055) ** 2.4);
  const luminance = (rgb) => {
    const [r, g, b] = rgb.map((part) => linear(part / 255));
    return 0.2126 * r + 0.7152 * g + 0.0722 * b;
  };
  const pale = (least, large) => {
    const complaints = new Set();
    for (const { element, words } of texts()) {
      const style = looked(element), back = behind(element), drawn = element.ownerSVGElement;
      const ink = [...colour(drawn ? style.fill : style.color)];
      if (drawn) ink[3] *= parseFloat(style.fillOpacity);
      for (let above = element; above; above = above.parentElement) ink[3] *= parseFloat(looked(above).opacity);
      const [bright, dim] = [luminance(over(ink, back)), luminance(back)].sort((a, b) => b - a);
      const ratio = (bright + 0.05) / (dim + 0.05), size = parseFloat(style.fontSize);
      const asked = size >= 24 || (size >= 18.66 && parseInt(style.fontWeight) >= 700) ? large : least;
      if (ratio < asked) complaints.add(`${ratio.toFixed(2)} : 1 of '${words}' (${named(element)})`);
    }
    return [...complaints];
  };

  /* Where Tab is now: its name, whether it comes after where it was, whether it shows; null when it has been there. */
  const reachable = () => all(FOCUSABLE).filter((element) => seen(element) && !element.disabled).length;
  const step = () => {
    window.reached ??= [];
    const now = document.activeElement, before = window.reached.at(-1);
    if (now === document.body || window.reached.includes(now)) return null;
    window.reached.push(now);
    const ordered = !before || Boolean(before.compareDocumentPosition(now) & Node.DOCUMENT_POSITION_FOLLOWING);
    return [named(now), ordered, looked(now).outlineStyle !== "none" && parseFloat(looked(now).outlineWidth) >= 1];
  };
  const speaking = () => all(".plot").filter(seen).map((plot) => all(READABLE, plot).some(seen));

  const folded = () => all("details").flatMap((fold) => [...fold.children])
    .filter((child) => child.tagName !== "SUMMARY" && !child.matches(".tools, .screen") && !seen(child)).map(named);
  const beyond = () => texts().filter(({ boxes }) => boxes.some((box) => box.right > innerWidth + 1))
    .map(({ element, words }) => `'${words}' (${named(element)})`);

  return { sizes, cut, overlaps, narrow, pale, reachable, step, speaking, folded, beyond };
})();
