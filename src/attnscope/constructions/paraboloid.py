"""Keys in the plane, lifted to a paraboloid: width 3 for chains of keys of any length, with logits of the order n.

Derivation. Let key j be (x_j, |x_j|^2) for a point x_j of the plane, and let a query be b (2c, -1). Its logits are

    b (2 c . x_j - |x_j|^2)  =  -b |x_j - c|^2 + b |c|^2:

a query attends to the keys that are nearest to its centre c. For a row with the keys a, b let c be their middle. Both
are equally near, and any other key x is farther by |x - c|^2 - |a - c|^2 = (x - a) . (x - b). On the points of the unit
grid, with a and b neighbours, that is at least 1 for every other point: 1 for the four points beside the pair, 2 for
the two that continue it. So *every* layout of the keys on different grid points works in which the two keys of each row
are neighbours; for a row of one key, c is that key and every other is farther by 1.

If no key has more than two partners, the keys form paths and cycles (`chains`), which can be laid out on the grid. A
closed walk on the grid has an even length. A long one is a comb: t teeth of two columns each over a bottom row of 2 t
points, along which the walk returns; its length is 2 t + 2 (h_1 + .. + h_t) with teeth of any heights h_i >= 1, so
every even length from 4 on is possible. An odd closed walk is the even walk that is one shorter, plus a point one below
the middle of the first edge of its bottom row: (x - a) . (x - b) is 3/4 or 1/2 in that triangle, for three rows, and
3/4 for an edge just below it; the row of grid points that it lies in is left free. A path is a comb that is not closed.
Combs no higher than about sqrt(n) fill a square of area n, so |x|^2 <= n / 2 and logits are of the order n. QED

The queries. With w = ln(A_a / A_b), moving c by (a - b) w / (2 b |a - b|^2) gives the two keys their proportion, for
every b. b is then, for each row, the smallest value at which the row leaks half of the limit. It is found by Newton's
method on a convex function over the keys less than REACH away: a key farther away weighs less than exp(-30) for b >= 4.
Keys are halves and quarters of whole numbers, and b sqrt(width), which queries carry, is made a multiple of a half:
only the tilt towards the stronger key is not a short number, and `heads.rounding` shortens it where logits are so large
that sums would round (n = 16,384 in float32).

Width 2 is not enough: see heads/bounds.py.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

import numpy as np
from jaxtyping import Float

from attnscope.core.construction import construction
from attnscope.core.errors import RefusalError
from attnscope.core.progress import Advance, silent
from attnscope.heads.accuracy import Accuracy, Factors
from attnscope.heads.pattern import Pattern
from attnscope.heads.reduction import Chain, chains

WIDTH = 3
REACH = 3.0
ROUNDS = 60
Point = tuple[float, float]


@construction(
    title="Paraboloid",
    summary="Rows of one or two keys whose keys form paths and cycles, laid on a grid and lifted to a paraboloid.",
    citation="this software; the lift: H. Edelsbrunner, Algorithms in Combinatorial Geometry (1987)",
    universal=False,
    auto="ceiling",
    fixed_width=lambda pattern: WIDTH,
    takes=lambda pattern: chains(pattern) is not None,
)
def paraboloid(
    pattern: Pattern, width: int, accuracy: Accuracy, rng: np.random.Generator, advance: Advance = silent
) -> Factors:
    """Return the head that the derivation constructs. Nothing is random. Coordinates beyond the third stay 0."""
    if width < WIDTH:
        raise RefusalError(f"The paraboloid has width {WIDTH}, not {width}: ask for {WIDTH}, or use joint.")
    parts = chains(pattern)
    if parts is None:
        raise RefusalError(
            "The paraboloid takes rows of one or two keys in which no key has more than two partners: use joint."
        )
    places = layout(parts, pattern.n_keys)
    advance("keys are laid", 1, 2)
    # Centre the keys for small logits. Move by whole steps, so that the numbers stay short.
    places -= np.round((places.max(axis=0) + places.min(axis=0)) / 2)
    queries, sharpness = _queries(pattern, places, accuracy, math.sqrt(width))
    keys = np.zeros((pattern.n_keys, width))
    keys[:, :2], keys[:, 2] = places, (places**2).sum(axis=1)
    answer = np.zeros((pattern.n, width))
    answer[:, :WIDTH] = queries
    return Factors(answer, keys, {"chains": len(parts), "sharpness": float(sharpness.max())})


def layout(parts: Sequence[Chain], n_keys: int) -> Float[np.ndarray, "key 2"]:
    """Return a point in the plane for every key: chains lie in stacked strips of two columns, long chains as combs."""
    height = max(2, math.isqrt(n_keys))
    places = np.zeros((n_keys, 2))
    column, floor = 0, 0
    for part in sorted(parts, key=len, reverse=True):
        odd = part.closed and len(part) % 2 == 1
        even = len(part) - odd
        # t teeth need at least 2 t points in the bottom row and 2 t above it.
        teeth = max(1, min(math.ceil(even / (2 * height)), (even + even % 2) // 4))
        tall = math.ceil(even / (2 * teeth))
        if teeth > 1 or floor + odd + tall > height:
            column, floor = column + 2 * (floor > 0), 0
        walk = list(_comb(even, teeth))
        points = [(x + column, y + floor + odd) for x, y in walk]
        if odd:  # below the edge that closes the walk
            (x, y), (other, _) = points[-1], points[0]
            points.append(((x + other) / 2, y - 1))
        places[list(part.keys)] = points
        if teeth > 1:
            column, floor = column + 2 * teeth, 0
        else:
            floor += odd + tall
    return places


def _comb(length: int, teeth: int) -> Iterator[Point]:
    """Yield a walk of `length` points from (0, 0): up and down every tooth, then back along the bottom row.

    An even walk ends at (1, 0), beside its start. An odd walk (a path) stops one point earlier.
    """
    if length == 1:
        yield 0.0, 0.0
        return
    above = (length + length % 2) // 2 - teeth  # points above the bottom row, in each column of all teeth
    heights = [above // teeth + (tooth < above % teeth) for tooth in range(teeth)]
    walk: list[Point] = [(0.0, 0.0)]
    for tooth, tall in enumerate(heights):
        walk += [(2.0 * tooth, float(y)) for y in range(1, tall + 1)]
        walk += [(2.0 * tooth + 1, float(y)) for y in range(tall, 0, -1)]
    walk += [(float(x), 0.0) for x in range(2 * teeth - 1, 0, -1)]
    yield from walk[:length]


def _queries(
    pattern: Pattern, places: Float[np.ndarray, "key 2"], accuracy: Accuracy, carried: float
) -> tuple[Float[np.ndarray, "row 3"], Float[np.ndarray, " row"]]:
    """Return the queries b (2c, -1) of the derivation, and b of every row."""
    from scipy.spatial import cKDTree

    support, weights, _ = pattern.padded()
    two = pattern.counts == 2
    first, last = places[support[:, 0]], places[support[:, -1]]
    between, ratio = first - last, np.where(two, np.log(weights[:, 0]) - np.log(weights[:, -1]), 0.0)
    middle = (first + last) / 2
    # 2 b c = 2 b middle + tilt: the tilt does not depend on b.
    tilt = between * (ratio / np.maximum((between**2).sum(axis=1), 1e-12))[:, None]
    near = cKDTree(places).query_ball_point(middle, REACH)
    rows = np.repeat(np.arange(pattern.n), [len(keys) for keys in near])
    keys = np.concatenate([np.asarray(keys, dtype=np.int64) for keys in near])
    off = (keys != support[rows, 0]) & (keys != support[rows, -1])
    rows, keys = rows[off], keys[off]
    # How far the logit of a key is below the pair at b = 1, and its change by the tilt, relative to the pair's mass.
    depth = ((places[keys] - middle[rows]) ** 2).sum(axis=1) - ((first - middle) ** 2).sum(axis=1)[rows]
    on = np.stack([(tilt * (end - middle)).sum(axis=1) for end in (first, last)], axis=1)
    mass = np.logaddexp(on[:, 0], np.where(two, on[:, 1], -np.inf))
    tilted = (tilt[rows] * (places[keys] - middle[rows])).sum(axis=1) - mass[rows]
    goal = accuracy.leak / 2 / (1 - accuracy.leak / 2)
    sharp = np.full(pattern.n, 4.0)
    for _ in range(ROUNDS):  # Newton on ln of the odds, which is convex in b
        share = np.exp(tilted - sharp[rows] * depth)
        odds = np.maximum(np.bincount(rows, share, pattern.n), 1e-300)
        slope = np.bincount(rows, share * depth, pattern.n) / odds
        step = np.maximum(np.log(odds / goal), 0.0) / np.maximum(slope, 1e-3)
        sharp += step
        if step.max() < 1e-9:
            break
    sharp = np.ceil(2 * carried * sharp) / (2 * carried)
    centred = 2 * sharp[:, None] * middle + tilt
    return np.concatenate([centred, -sharp[:, None]], axis=1), sharp
