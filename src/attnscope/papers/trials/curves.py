"""What experiments do with rows of numbers: one row per seed and setting becomes a curve, and a curve a power law."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import torch.nn.functional as F
from jaxtyping import Float
from scipy.optimize import minimize_scalar

from attnscope.core.experiment import Point, Session
from attnscope.papers.models.decoder import Decoder
from attnscope.papers.trials.sinks_and_spikes import Growth


def curve(
    rows: Iterable[Mapping[str, Any]], x: str, y: str, series: str, panel: str = "", dashed: bool = False
) -> list[Point]:
    """For every x, in the order of the rows, the median of y over seeds and its range."""
    found: dict[Any, list[float]] = {}
    for row in rows:
        found.setdefault(row[x], []).append(row[y])
    return [Point.over(values, at, series, panel, dashed) for at, values in found.items()]


def power_of(sizes: Sequence[float | int], values: Sequence[float | int]) -> float:
    """The exponent p of the best c size^p through the points, by least squares of logarithms; NaN without two sizes."""
    if len(set(sizes)) < 2 or min(values) <= 0:
        return math.nan
    return float(np.polyfit(np.log(sizes), np.log(values), 1)[0])


def by_seed(rows: Iterable[Mapping[str, Any]], seeds: Sequence[int]) -> list[list[Mapping[str, Any]]]:
    """The rows of each seed, in the order of the seeds."""
    known = list(rows)
    return [[row for row in known if row["seed"] == seed] for seed in seeds]


# Which law of growth explains widths best? Laws of two constants each, held against one another on the same numbers.
#
#     logarithm   d = a + b ln n          cube root   d = a + b n^(1/3)
#     root        d = a + b n^(1/2)       power       d = b n^p, p free
#
# Errors are taken as Gaussian in ln d, of one unknown size. The likelihood of a law, its constants and that size chosen
# best, is then a constant times RSS^(-N/2), RSS the sum of its N squared errors; and as all laws have as many
# constants, no law is favoured for bending more easily. What one law has over another is
#
#     N/2 ln(RSS_other / RSS_law)   nats: 3 are odds of twenty to one.
#
# For a + b f(n) with c = a / b, ln d = ln b + ln(c + f(n)): ln b is a mean, and c is searched for along a line.

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


# How long a training step takes with each attention, as a ratio to one of them in the same run.
#
# Steps of all models take turns, so that whatever else the machine does falls on all alike; of each model the fastest
# step counts, in processor time. A ratio of two fastest steps says what the arithmetic costs, not how busy it was.


def paces(growths: Mapping[str, Growth], beside: str, repeats: int, seed: int, session: Session) -> dict[str, Any]:
    """{name: time of forward and backward over that of `beside`}; a first step of each is not counted."""
    first = growths[beside]
    rows = first.text(first.batch, seed, False)
    models = {name: Decoder(growth.shape(rows.vocabulary), seed) for name, growth in growths.items()}
    fastest: dict[str, float] = {}
    for turn in range(repeats + 1):
        session.advance("timing", turn, repeats + 1)
        for name, model in models.items():
            begun = time.process_time()
            F.cross_entropy(model(rows.ids[:, :-1]).flatten(0, 1), rows.ids[:, 1:].flatten()).backward()  # type: ignore[no-untyped-call]
            took = time.process_time() - begun
            model.zero_grad(set_to_none=True)
            if turn:
                fastest[name] = min(took, fastest.get(name, took))
    return {"seed": seed, "paces": {name: took / max(fastest[beside], 1e-9) for name, took in fastest.items()}}
