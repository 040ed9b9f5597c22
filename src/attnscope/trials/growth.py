"""Which law of growth explains widths best? Laws of two constants each, held against one another on the same numbers.

    logarithm   d = a + b ln n          cube root   d = a + b n^(1/3)
    root        d = a + b n^(1/2)       power       d = b n^p, p free

Errors are taken as Gaussian in ln d, of one unknown size. The likelihood of a law, its constants and that size chosen
best, is then a constant times RSS^(-N/2), RSS the sum of its N squared errors; and as all laws have as many constants,
no law is favoured for bending more easily. What one law has over another is

    N/2 ln(RSS_other / RSS_law)   nats: 3 are odds of twenty to one.

For a + b f(n) with c = a / b, ln d = ln b + ln(c + f(n)): ln b is a mean, and c is searched for along a line.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence

import numpy as np
from jaxtyping import Float
from scipy.optimize import minimize_scalar

LAWS: Mapping[str, Callable[[np.ndarray], np.ndarray]] = {
    "logarithm": np.log,
    "cube_root": np.cbrt,
    "root": np.sqrt,
}
FLOOR = 1e-12  # of a mean squared error: numbers that lie on a law to rounding leave the others infinitely behind
GRID = 121


def squared_errors(n: Sequence[float], d: Sequence[float]) -> dict[str, float]:
    """The mean squared error in ln d of every law, its constants chosen best."""
    sizes, logs = np.asarray(n, dtype=float), np.log(np.asarray(d, dtype=float))
    found = {name: _shifted(law(sizes), logs) for name, law in LAWS.items()}
    found["power"] = float(((logs - np.polyval(np.polyfit(np.log(sizes), logs, 1), np.log(sizes))) ** 2).mean())
    return found


def advantage_of_logarithm(n: Sequence[float], d: Sequence[float]) -> dict[str, float]:
    """Nats by which the logarithm is likelier than each other law."""
    errors = {name: max(error, FLOOR) for name, error in squared_errors(n, d).items()}
    own = errors.pop("logarithm")
    return {name: len(n) / 2 * math.log(error / own) for name, error in errors.items()}


def _shifted(f: Float[np.ndarray, " point"], logs: Float[np.ndarray, " point"]) -> float:
    """min over c of the mean squared error of ln b + ln(c + f): c + min f > 0 is searched by its logarithm."""
    above, spread = f - f.min(), float(np.ptp(f))

    def error(at: float) -> float:
        return float(np.var(logs - np.log(above + spread * math.exp(at))))

    places = np.linspace(-12, 12, GRID)
    best = int(np.argmin([error(at) for at in places]))
    around = places[max(best - 1, 0)], places[min(best + 1, GRID - 1)]
    return min(error(places[best]), float(minimize_scalar(error, bounds=around, method="bounded").fun))
