/* Maps, packed in the page as text: unfolded when they are asked for, averaged, and made into pixels. */
const maps = (() => {
  const { byId, make } = page;
  const view = JSON.parse(byId("view").textContent);
  const MEAN = "mean";

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
  const onPaper = (now) => { paper = now; };
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
    const across = Uint32Array.from({ length: found.columns }, (_, j) => Math.floor(j * width / found.columns));
    for (let i = 0, from = 0; i < found.rows; i++) {
      const row = Math.floor(i * height / found.rows) * width;
      for (let j = 0; j < found.columns; j++) {
        const weight = found.weights[from++];
        if (weight && Math.abs(weight) > Math.abs(largest[row + across[j]])) largest[row + across[j]] = weight;
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

  return { view, MEAN, mean, unfold, those, step, pixels, onPaper };
})();
