"""Keys that do not depend on the pattern: n unit vectors in a given width, for which queries are computed later.

Which keys are good depends on how queries are found. Interpolation (`frame`) needs small coherence mu = max |k_i .
k_j|, which is never below the Welch bound sqrt((n - d) / (d (n - 1))). Separation (`margin`) needs the support of every
row to be a face of the polytope of the keys: keys on a trigonometric curve have coherence close to 1 and yet every
floor(d/2) of them are a face (cyclic polytopes, Gale 1963).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal, get_args

import numpy as np
from jaxtyping import Int

from attnscope.core.errors import RefusalError, nearest
from attnscope.heads.accuracy import Dtype, KeyArray

Kind = Literal["gaussian", "orthogonal_blocks", "low_coherence", "reed_solomon", "alltop", "torus"]
KINDS: tuple[Kind, ...] = get_args(Kind)

_BLOCK = 1024
_SPEEDS_PRODUCTS = 2**24
_STRIP = 6  # up to this many waves, a strip of frequencies did better than a disc in measurements
_DESCENT_PRODUCTS = 6e8  # limit on inner products over all steps for low-coherence keys


@dataclass(frozen=True, eq=False)
class Keys:
    """Keys and their coherence. `seed` is None if a running generator made them."""

    array: KeyArray
    kind: Kind
    coherence: float
    welch_bound: float
    seed: int | None = None

    @property
    def width(self) -> int:
        return int(self.array.shape[1])

    def facts(self) -> dict[str, object]:
        """Return the notes of a construction about its keys."""
        return {"keys": self.kind, "coherence": self.coherence, "welch_bound": self.welch_bound}


def make_keys(n: int, width: int, kind: str, rng: np.random.Generator, *, separated: bool, dtype: Dtype) -> Keys:
    """Make keys of one kind; `auto` takes the best kind for interpolation or, if `separated`, for separation."""
    if n < 1 or width < 1:
        raise RefusalError(f"There are no {n} keys of width {width}: ask for at least one key of width 1.")
    chosen = best_kind(n, width, separated=separated, dtype=dtype) if kind == "auto" else _known(kind)
    array = _MAKERS[chosen](n, width, rng)
    return Keys(array, chosen, coherence(array), welch_bound(n, width))


def _known(kind: str) -> Kind:
    for known in KINDS:
        if kind == known:
            return known
    raise RefusalError(f"There are no keys called '{kind}'.{nearest(kind, [*KINDS, 'auto'])}")


def best_kind(n: int, width: int, *, separated: bool, dtype: Dtype) -> Kind:
    """Return the kind that did best in measurements at this size and precision.

    Separation on the torus needs a little more than 3k coordinates, Gaussian keys 2k ln(n/d), but the torus needs
    queries of norm 1e3 to 1e6, which half precision cannot hold.
    """
    if n <= width:
        return "orthogonal_blocks"
    if separated and dtype in ("float32", "float64") and width > 1:
        return "torus"
    return "low_coherence"


def coherence(keys: KeyArray) -> float:
    """Return max |k_i . k_j| / (|k_i| |k_j|) over pairs, in blocks; 0 for a single key and for orthogonal keys."""
    unit = _unit(keys)
    largest = 0.0
    for first in range(0, len(unit), _BLOCK):
        products = np.abs(unit[first : first + _BLOCK] @ unit.T)
        here = np.arange(len(products))
        products[here, first + here] = 0
        largest = max(largest, float(products.max()))
    return largest


def welch_bound(n: int, width: int) -> float:
    """Return Welch's bound (1974): n unit vectors in `width` dimensions have at least this coherence."""
    return float(np.sqrt((n - width) / (width * (n - 1)))) if n > width else 0.0


def gaussian(n: int, width: int, rng: np.random.Generator) -> KeyArray:
    """Return independent random directions: coherence about sqrt(4 ln n / d)."""
    return _unit(rng.standard_normal((n, width)))


def orthogonal_blocks(n: int, width: int, rng: np.random.Generator) -> KeyArray:
    """Return random orthonormal bases, one after the other: keys of one basis do not leak to each other."""
    blocks = np.linalg.qr(rng.standard_normal((-(-n // width), width, width)))[0]
    return np.ascontiguousarray(blocks.reshape(-1, width)[:n])


def low_coherence(n: int, width: int, rng: np.random.Generator) -> KeyArray:
    """Return Gaussian keys pushed apart by descent on the soft maximum ln sum exp(t (k_i . k_j)^2) with t rising.

    The gradient is sum_j w_ij (k_i . k_j) k_j with softmax weights w, so only the worst pairs move. The number of inner
    products is bounded; if that allows only few steps, the keys stay close to Gaussian keys.
    """
    keys = gaussian(n, width, rng).astype(np.float32)
    if width == 1 or n == 1:
        return keys.astype(np.float64)
    steps = int(np.clip(_DESCENT_PRODUCTS / n**2, 12, 200))
    best, lowest, speed = keys, np.inf, np.zeros_like(keys)
    for step in range(steps + 1):
        gradient, largest = _soft_coherence_gradient(keys, sharpness=width * (2 + 10 * step / steps))
        if largest < lowest:
            best, lowest = keys, largest
        gradient -= (gradient * keys).sum(1, keepdims=True) * keys
        size = np.sqrt((gradient**2).sum(1).mean())
        if size == 0:
            break
        speed = 0.8 * speed + 0.2 * gradient / size
        rate = 0.3 * max(welch_bound(n, width), n**-0.5) * (1 - step / (steps + 1))
        keys = _unit(keys - rate * speed).astype(np.float32)
    return _unit(best.astype(np.float64))


def _soft_coherence_gradient(keys: KeyArray, sharpness: float) -> tuple[np.ndarray, float]:
    gradient, largest = np.empty_like(keys), 0.0
    for first in range(0, len(keys), _BLOCK):
        products = keys[first : first + _BLOCK] @ keys.T
        here = np.arange(len(products))
        products[here, first + here] = 0
        squares = products * products
        worst = float(squares.max())
        largest = max(largest, worst)
        # Exponents are cut off at -30: smaller terms do not matter, and subnormal numbers are slow to multiply.
        squares -= worst
        squares *= sharpness
        np.exp(np.maximum(squares, -30, out=squares), out=squares)
        products *= squares
        gradient[first : first + _BLOCK] = products @ keys
    return gradient, largest


def reed_solomon(n: int, width: int, rng: np.random.Generator) -> KeyArray:
    """Return graphs of the polynomials of degree <= r over F_p as 0/1 vectors on the p x p grid, over sqrt(p) (DeVore
    2007).

    Two polynomials of degree <= r agree in at most r of p places, so p^(r+1) keys in width p^2 have coherence r/p, and
    exactly r/p as soon as n > p^r. The largest p with p^2 <= width is taken; the rest of the width stays zero.
    """
    p = max((q for q in primes(int(width**0.5))), default=0)
    if p == 0 or n > p**p:
        usable = next(q for q in primes(max(5, n)) if q**q >= n) ** 2
        raise RefusalError(
            f"There are no {n} Reed-Solomon keys of width {width}: the nearest usable width is {usable}."
        )
    degree = next(r for r in range(n) if p ** (r + 1) >= n)
    digits = np.arange(n)[:, None] // p ** np.arange(degree + 1) % p
    values = np.zeros((n, p), dtype=np.int64)
    for coefficient in digits.T[::-1]:
        values = (values * np.arange(p) + coefficient[:, None]) % p
    keys = np.zeros((n, width))
    keys[np.arange(n)[:, None], np.arange(p) * p + values] = p**-0.5
    return keys


def alltop(n: int, width: int, rng: np.random.Generator) -> KeyArray:
    """Return Alltop's keys (1980), f_ab(t) = exp(2 pi i ((t + a)^3 + b t) / p) / sqrt(p), p >= 5 prime: p^2 keys of
    coherence 1/sqrt(p).

    The keys are complex. In real form (real parts, then imaginary parts) their products are the real parts of the
    complex ones, so coherence stays below 1/sqrt(p), but p complex coordinates take a width of 2 p. The largest such p
    is taken; the rest of the width stays zero.
    """
    p = max((q for q in primes(width // 2) if q >= 5), default=0)
    if p == 0 or n > p**2:
        usable = 2 * next(q for q in primes(2 * int(n**0.5) + 10) if q >= 5 and q**2 >= n)
        raise RefusalError(
            f"There are no {n} Alltop keys of width {width} (p complex coordinates take 2 p real ones): the nearest "
            f"usable width is {usable}."
        )
    shift, tone, coordinate = np.arange(n)[:, None] // p, np.arange(n)[:, None] % p, np.arange(p)
    angle = 2 * np.pi / p * (((coordinate + shift) ** 3 + tone * coordinate) % p)
    keys = np.zeros((n, width))
    keys[:, :p], keys[:, p : 2 * p] = np.cos(angle) / p**0.5, np.sin(angle) / p**0.5
    return keys


def torus(n: int, width: int, rng: np.random.Generator) -> KeyArray:
    """Return waves on a torus: key j lies at the angles (j, a j) 2 pi / p and holds exp(i f . angles) for f in a set F.

    A query is then a trigonometric polynomial with frequencies in F and -F. Take any set H of frequencies whose
    differences lie in F, -F and 0. For any k <= |H| - 1 keys S some combination g of its waves vanishes on S, and
    -|g|^2 is a query with its maximum 0 on S and below it wherever else g is not 0: S is a face. With H = {0, .., m -
    1} on a circle this is the cyclic polytope: width 2k, the least there is (Radon), but g is tiny all around S, and
    logits grow like n^(2k). With two rows of such waves, H = {0..m} x {0} and {1..m} x {1}, there are k = 2m keys for
    |H - H| - 1 = 6m = 3k coordinates, and g can vanish in a plane instead of on a line, so that float32 still resolves
    its values. So F is the strip |f_2| <= 1, narrow columns first, up to width 12. In greater widths a disc of
    frequencies did better in measurements: queries are shorter at about the same 3k to 4k coordinates, but there is no
    such proof.

    p is the first prime >= n, so that no two waves of F are the same or share zeros on all keys of a line; the speed a
    is the one of lowest coherence, and rng shuffles which key stands where, so that no pattern is special. In width 2
    this is the circle, and in width 3 keys lie on a golden spiral on the sphere, where any one of them is a face.
    """
    if width < 2:
        raise RefusalError(f"A circle does not fit into width {width}: the nearest usable width is 2.")
    order = rng.permutation(n)
    if width == 3:
        height = 1 - (2 * np.arange(n) + 1) / n
        angle = np.pi * (3 - 5**0.5) * np.arange(n)
        radius = np.sqrt(1 - height**2)
        return _unit(np.stack([radius * np.cos(angle), radius * np.sin(angle), height], axis=1)[order])
    p = n if width == 2 else next(q for q in primes(2 * n + 3) if q >= max(n, 5))
    waves = _frequencies(width // 2)
    waves = waves[:, 0] + _speed(waves, p) * waves[:, 1]
    angles = 2 * np.pi / p * (np.arange(n)[:, None] * (waves % p) % p)
    columns = [np.cos(angles), np.sin(angles)]
    if width % 2:  # alternating signs: entries of equal size keep all keys on one sphere
        columns.append(1.0 - 2.0 * (np.arange(n)[:, None] % 2))
    return _unit(np.concatenate(columns, axis=1)[order])


def _frequencies(count: int) -> Int[np.ndarray, "wave two"]:
    """Return the `count` lowest frequencies (f_1, f_2), one of each pair f, -f, in a strip if `count` is small, else in
    a disc.
    """
    if count <= _STRIP:
        every = [(f, 0) for f in range(1, count + 1)] + [(f, 1) for f in range(-count, count + 1)]
        return np.array(sorted(every, key=lambda f: (abs(f[0]) + f[1] / 2, f[1], -f[0]))[:count])
    reach = int(count**0.5) + 2
    every = [(f, g) for f in range(-reach, reach + 1) for g in range(reach + 1) if g > 0 or f > 0]
    return np.array(sorted(every, key=lambda f: (f[0] ** 2 + f[1] ** 2, -f[1], f[0]))[:count])


def _speed(waves: Int[np.ndarray, "wave two"], p: int) -> int:
    """Return the speed a for which the waves f_1 + a f_2 modulo p give the least coherent keys.

    The product of two keys depends only on the distance s of their places, as sum over f of cos(2 pi f s / p): one
    table of the cosine serves every a.
    """
    count = max(1, min(p // 2, _SPEEDS_PRODUCTS // (p * len(waves))))
    speeds = np.unique(np.linspace(2, max(2, p // 2), count).astype(int))
    cosine = np.cos(2 * np.pi / p * np.arange(p))
    place = np.arange(1, p)[:, None]
    worst = [float(cosine[place * ((waves[:, 0] + a * waves[:, 1]) % p) % p].sum(1).max()) for a in speeds.tolist()]
    return int(speeds[int(np.argmin(worst))])


def primes(last: int) -> list[int]:
    """Return the primes up to and including `last`."""
    sieve = np.ones(max(last + 1, 2), dtype=bool)
    sieve[:2] = False
    for number in range(2, int(max(last, 0) ** 0.5) + 1):
        sieve[number * number :: number] = False
    return [int(number) for number in np.flatnonzero(sieve[: last + 1])]


def _unit(vectors: np.ndarray) -> np.ndarray:
    return np.asarray(vectors / np.sqrt(np.einsum("kd,kd->k", vectors, vectors))[:, None])


_MAKERS: dict[Kind, Callable[[int, int, np.random.Generator], np.ndarray]] = {
    "gaussian": gaussian,
    "orthogonal_blocks": orthogonal_blocks,
    "low_coherence": low_coherence,
    "reed_solomon": reed_solomon,
    "alltop": alltop,
    "torus": torus,
}
