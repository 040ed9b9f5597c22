"""Charts of a compiled head: target, realised pattern and error, side by side."""

from __future__ import annotations

import base64
import struct
import zlib
from collections.abc import Iterator, Sequence
from typing import Any, Literal

import altair as alt
import numpy as np
from jaxtyping import Float, UInt8

from attnscope.commands.compile.record import Compiled
from attnscope.commands.compile.words import LARGEST_SIDE, pooling_words
from attnscope.core.words import numeral
from attnscope.reports.colours import sequential

# The three maps have one shape, with at most `LARGEST_SIDE` cells a side. `pooled` makes them from larger arrays: each
# cell is the largest number of its block, because single entries would vanish in a mean. The error has a logarithmic
# colour, so that a leak of 0.001 is visible beside one of 0.5.
PIXELS = 512  # least length of the longer side of a picture
NARROW, AXIS, SPACING = 480, 48, 24  # pixels: maps of narrower charts are stacked; size of an axis; gap between maps
MOST_READINGS = 64  # rows with a tooltip
FLOOR = 1e-6  # smaller errors have the colour of zero
COLOURS = 256


def pooled(
    blocks: Iterator[tuple[int, Float[np.ndarray, "some_rows key"]]], n: int, n_keys: int, side: int = LARGEST_SIDE
) -> Float[np.ndarray, "cell_row cell_key"]:
    """Return a small map of an n x n_keys array that comes in blocks (first row, rows). A cell is its largest entry."""
    height, width = min(n, side), min(n_keys, side)
    cells = np.zeros((height, width))
    key_edges = np.ceil(np.arange(width) * n_keys / width).astype(int)  # first key of each cell
    for first, rows in blocks:
        narrow = np.maximum.reduceat(rows, key_edges, axis=1)
        np.maximum.at(cells, (first + np.arange(len(rows))) * height // n, narrow)
    return cells


def pattern_panels(
    target: Float[np.ndarray, "cell_row cell_key"],
    realised: Float[np.ndarray, "cell_row cell_key"],
    error: Float[np.ndarray, "cell_row cell_key"],
    *,
    size: tuple[int, int],
    title: str = "Pattern and head",
    subtitle: str = "",
    theme: str = "light",
    width: int = 940,
) -> alt.HConcatChart | alt.VConcatChart:
    """Draw three maps side by side, or below each other if the chart is narrow.

    `size` is (queries, keys) of the pattern, for the axes. `width` is the width of the whole chart. Maps are embedded
    pictures, because 3 x 65,536 marks take half a minute to draw. Their colours are fixed, so they need `theme`.
    """
    ramp = sequential("dark" if theme == "dark" else "light", COLOURS)
    legend = list(sequential("dark" if theme == "dark" else "light"))
    share = alt.Scale(type="sqrt", domain=[0, 1], range=legend)  # on a linear scale a row of eight keys would be pale
    beside = width >= NARROW
    side = (width - 2 * SPACING) // 3 - AXIS if beside else width - AXIS
    far = alt.Scale(type="log", domain=[FLOOR, 1], range=legend)
    panels = [
        _panel(_shade(target), size, side, ramp, share, "Target", "share of attention"),
        _panel(_shade(realised), size, side, ramp, share, "Realised", "share of attention"),
        _panel(_shade(error, log=True), size, side, ramp, far, "Error", "|realised − target|", error_rows(error, size)),
    ]
    together = alt.hconcat(*panels, spacing=SPACING) if beside else alt.vconcat(*panels, spacing=SPACING)
    chart = together.resolve_scale(color="independent")
    words = [line for line in (subtitle, pooling_words(size)) if line]
    return chart.properties(title=alt.TitleParams(title, subtitle=words, offset=14)) if title else chart


def error_rows(error: Float[np.ndarray, "cell_row cell_key"], size: tuple[int, int]) -> list[dict[str, Any]]:
    """Return tooltip rows for the error, each for one or a few rows of the pattern: `from, to, label`."""
    height, width = error.shape
    step = -(-height // MOST_READINGS)
    rows = []
    for first in range(0, height, step):
        band = np.nan_to_num(error[first : first + step], nan=np.inf, posinf=np.inf)
        at = int(band.argmax()) % width
        low, high = first * size[0] // height, min((first + step) * size[0] // height, size[0])
        query = f"query {low}" if high - low == 1 else f"queries {low} to {high - 1}"
        key = f"key {at}" if size[1] == width else f"about key {at * size[1] // width}"
        largest = float(band.max())
        said = f"{numeral(largest)} at {key}" if np.isfinite(largest) else f"not finite, at {key}"
        rows.append({"from": low, "to": high, "left": 0, "right": size[1], "label": f"{query}: largest error {said}"})
    return rows


def _shade(
    cells: Float[np.ndarray, "cell_row cell_key"], *, log: bool = False
) -> UInt8[np.ndarray, "cell_row cell_key"]:
    """Return the colour index of each cell. NaN and infinity get the last colour, so that they are not overlooked."""
    cells = np.clip(np.nan_to_num(cells, nan=1.0, posinf=1.0), 0.0, 1.0)
    share = 1 - np.log(np.maximum(cells, FLOOR)) / np.log(FLOOR) if log else np.sqrt(cells)
    return np.asarray(np.round(share * (COLOURS - 1)), dtype=np.uint8)


def _panel(
    shades: UInt8[np.ndarray, "cell_row cell_key"],
    size: tuple[int, int],
    side: int,
    ramp: tuple[str, ...],
    scale: alt.Scale,
    title: str,
    meaning: str,
    readings: Sequence[dict[str, Any]] = (),
) -> alt.LayerChart:
    """Draw one map inside its axes. Invisible marks provide the legend and the tooltips of rows."""
    longest = max(size)
    shape = {"width": max(24, side * size[1] // longest), "height": max(24, side * size[0] // longest)}
    axis = alt.Axis(tickCount=5, format="d", grid=False, domain=False)
    x = alt.X("key:Q", title="key", scale=alt.Scale(domain=[0, size[1]], nice=False), axis=axis)
    y = alt.Y("query:Q", title="query", scale=alt.Scale(domain=[0, size[0]], reverse=True, nice=False), axis=axis)
    length = min(160, shape["width"])
    legend = alt.Legend(orient="bottom", gradientLength=length, gradientThickness=8, **_ticks(scale))
    low, high = scale["domain"]
    corner = {"key": 0, "query": 0, "low": low, "high": high}
    picture = alt.Chart(alt.InlineData(values=[corner | {"picture": data_uri(shades, ramp)}]))
    ends = alt.Chart(alt.InlineData(values=[corner | {"number": low}, corner | {"number": high}]))
    layers: list[Any] = [
        picture.mark_image(align="left", baseline="top", aspect=False, **shape).encode(x=x, y=y, url="picture:N"),
        ends.mark_point(opacity=0).encode(
            x=x, y=y, color=alt.Color("number:Q", scale=scale, title=meaning, legend=legend)
        ),
    ]
    if readings:
        across = {"x": alt.X("left:Q", scale=x["scale"], title="key"), "x2": "right:Q"}
        down = {"y": alt.Y("from:Q", scale=y["scale"], title="query"), "y2": "to:Q"}
        rows = alt.Chart(alt.InlineData(values=list(readings)))
        tooltip = [alt.Tooltip("label:N", title=" ")]
        layers.append(rows.mark_rect(fillOpacity=0).encode(**across, **down, description="label:N", tooltip=tooltip))
    return alt.layer(*layers).properties(title=alt.TitleParams(title, fontSize=12, offset=6), **shape)


def _ticks(scale: alt.Scale) -> dict[str, Any]:
    if scale["domain"][0] == 0:
        return {"values": [0, 0.1, 0.5, 1], "format": "~g"}
    return {"values": [1e-6, 1e-4, 1e-2, 1], "format": ".0e"}


def data_uri(shades: UInt8[np.ndarray, "cell_row cell_key"], ramp: tuple[str, ...]) -> str:
    """Return a PNG with the ramp as its palette, enlarged by whole pixels, so that no renderer blurs the cells.

    https://www.w3.org/TR/png: signature, then chunks of (length, kind, data, CRC); each line begins with its filter, 0.
    """
    times = -(-PIXELS // max(shades.shape))
    large = shades.repeat(times, axis=0).repeat(times, axis=1)
    lines = np.concatenate([np.zeros((len(large), 1), dtype=np.uint8), large], axis=1)
    palette = b"".join(bytes.fromhex(colour[1:]) for colour in ramp)
    header = struct.pack(">IIBBBBB", large.shape[1], large.shape[0], 8, 3, 0, 0, 0)  # 8 bits, palette
    chunks = ((b"IHDR", header), (b"PLTE", palette), (b"IDAT", zlib.compress(lines.tobytes(), 9)), (b"IEND", b""))
    png = b"\x89PNG\r\n\x1a\n" + b"".join(
        struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data)) for kind, data in chunks
    )
    return "data:image/png;base64," + base64.b64encode(png).decode()


_NUMBERS_AT_ONCE = 2**22  # entries in a block of rows
Map = Float[np.ndarray, "cell_row cell_key"]
What = Literal["target", "realised", "error"]
WHAT: tuple[What, ...] = ("target", "realised", "error")


def chart(compiled: Compiled, *, theme: str = "light") -> Any:
    """Draw target, realised pattern and error in a theme, "light" or "dark"."""
    certificate = compiled.certificate
    return pattern_panels(
        *maps(compiled),
        size=(compiled.target.n, compiled.target.n_keys),
        title=f"{compiled.target.name}: {compiled.method} at width {certificate.d}",
        subtitle=f"{certificate.dtype}, worst row: ratio error {numeral(certificate.ratio_error)}, "
        f"leak {numeral(certificate.leak)}; {compiled.verdict}",
        theme=theme,
    )


def maps(compiled: Compiled) -> tuple[Map, Map, Map]:
    """Return target, realised pattern and error, with at most `LARGEST_SIDE` cells per side."""
    target, realised, error = (
        pooled(_blocks(compiled, what), compiled.target.n, compiled.target.n_keys) for what in WHAT
    )
    return target, realised, error


def _blocks(compiled: Compiled, what: What) -> Iterator[tuple[int, np.ndarray]]:
    """Yield blocks of rows (first row, rows) of the target, of the realised pattern, or of the error."""
    n = compiled.target.n
    step = max(1, _NUMBERS_AT_ONCE // compiled.target.n_keys)
    for first in range(0, n, step):
        last = min(first + step, n)
        if what == "target":
            yield first, compiled.target.dense(first, last)
        elif what == "realised":
            yield first, attention(compiled, first, last)
        else:
            yield first, np.abs(attention(compiled, first, last) - compiled.target.dense(first, last))


def attention(compiled: Compiled, first: int, last: int) -> Float[np.ndarray, "some_rows key"]:
    """Return the attention of rows `first` to `last`, in float32 (float64 for float64 heads).

    Rows that overflow are NaN. The chart shows them as the largest error.
    """
    with np.errstate(over="ignore", invalid="ignore"):
        logits = compiled.queries[first:last] @ compiled.keys.T
        logits *= logits.dtype.type(compiled.queries.shape[1] ** -0.5)
        if compiled.target.causal:
            logits[np.arange(logits.shape[1]) > np.arange(first, last)[:, None]] = -np.inf
        shares = np.exp(logits - logits.max(axis=1, keepdims=True))
        shares /= shares.sum(axis=1, keepdims=True)
    return np.asarray(shares, dtype=np.float64)
