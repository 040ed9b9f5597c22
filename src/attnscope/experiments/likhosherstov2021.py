"""On the expressive power of self-attention: any sparse pattern in logarithmic width, one fixed module (2106.03764).

The theorem: for every right-stochastic pattern with at most k non-zeros in rows and columns there is an input X such
that fixed W_Q and W_K give it, ratios of non-zeros within 1 + e1 and zeros below e2 of any non-zero, once the width is
O(k^2 ln^2(gamma/e2) ln n / ln^2(1+e1)). What is measured is its own construction as drawn (singular values split and
projected at random), with nothing corrected afterwards: the smallest width at which half of the draws meet both
conditions. Patterns are unions of k random permutations with weights within a factor 4; e2 is the same at every n.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

from attnscope.constructions.random_projection import random_projection, success_rate, theorem_for
from attnscope.core.experiment import Bound, Claim, Desk, Figure, Point, Result, experiment
from attnscope.heads.accuracy import Accuracy
from attnscope.heads.certified import certified
from attnscope.patterns.generate import generate
from attnscope.patterns.pattern import Pattern

PAPER = "2106.03764"


@dataclass(frozen=True)
class Params:
    sizes: tuple[int, ...] = (64, 128, 256, 512)
    size_k: int = 2  # non-zeros of a row while n grows
    counts: tuple[int, ...] = (1, 2, 4, 8)
    count_n: int = 128  # rows while k grows
    ratio_error: float = 0.1
    zero_ratio: float = 0.01
    draws: int = 8  # of which half must succeed
    halvings: int = 6  # of the gap of a factor 4 between a width that fails and one that does: 2% are left
    theorem_draws: int = 20
    many: int = 20  # patterns that one module must serve
    many_n: int = 64
    many_k: int = 4
    many_width: int = 128  # of heads that are finished with exact ratios: far below the theorem's


FULL = Params(
    sizes=(64, 128, 256, 512, 1024, 2048, 4096),
    counts=(1, 2, 4, 8, 16),
    count_n=512,
    theorem_draws=50,
    many=100,
)


def pattern_of(n: int, k: int, seed: int, causal: bool = False) -> Pattern:
    return generate("union_of_permutations", n, k, seed=seed, causal=causal)


def accuracy_for(pattern: Pattern, params: Params) -> Accuracy:
    """The theorem's e2 as the leak that has it: leak / (1 - leak) = e2 z / |S| in the row with most zeros."""
    odds = params.zero_ratio * float(((pattern.visible - pattern.counts) / pattern.counts).max())
    return Accuracy(params.ratio_error, odds / (1 + odds), "float64")


def half_width(pattern: Pattern, params: Params, seed: int, desk: Desk) -> int:
    """The smallest width at which half of the draws succeed: by fours down from the theorem's, then by halving."""
    accuracy = accuracy_for(pattern, params)

    def succeeds(exponent: float) -> bool:
        rng = np.random.default_rng([seed, round(1e6 * exponent)])
        return success_rate(pattern, math.ceil(2**exponent), accuracy, params.draws, rng) >= 0.5

    high = float(math.ceil(math.log2(theorem_for(pattern, accuracy).width)))
    low = high - 2
    while low > 0 and succeeds(low):
        desk.advance(f"n = {pattern.n}, k = {pattern.k}", 0, 0)
        low, high = low - 2, low
    fails, works = low, high
    for step in range(params.halvings):
        desk.advance(f"n = {pattern.n}, k = {pattern.k}", step, params.halvings)
        middle = (fails + works) / 2
        fails, works = (fails, middle) if succeeds(middle) else (middle, works)
    return math.ceil(2**works)


def width_at(n: int, k: int, params: Params, seed: int, desk: Desk) -> dict[str, Any]:
    pattern = pattern_of(n, k, seed)
    accuracy = accuracy_for(pattern, params)
    theorem = theorem_for(pattern, accuracy).width
    return {"n": n, "k": k, "seed": seed, "width": half_width(pattern, params, seed, desk), "theorem": theorem}


def success_at_theorem(params: Params, seed: int, causal: bool) -> float:
    """Share of draws that succeed at the theorem's width."""
    pattern = pattern_of(params.many_n, params.many_k, seed, causal)
    accuracy = accuracy_for(pattern, params)
    rng = np.random.default_rng(seed)
    return success_rate(pattern, theorem_for(pattern, accuracy).width, accuracy, params.theorem_draws, rng)


def served(params: Params, seed: int, causal: bool, desk: Desk) -> dict[str, float]:
    """Many patterns through one module. `share` have a draw among two that meets the theorem's conditions at its width.

    That width is of millions, so heads are built at a small one to look at their W_Q and W_K, and finished with exact
    ratios; `share_finished` of them reach 10% and 1% in float32 there.
    """
    accuracy = Accuracy()
    modules, reached, finished = set(), 0, 0
    for index in range(params.many):
        desk.advance("one module, many patterns", index, params.many)
        pattern = pattern_of(params.many_n, params.many_k, params.many * seed + index, causal)
        rng = np.random.default_rng([seed, index])
        own = accuracy_for(pattern, params)
        reached += success_rate(pattern, theorem_for(pattern, own).width, own, 2, rng) > 0
        factors = random_projection(pattern, params.many_width, accuracy, rng)
        head, certificate = certified(factors, pattern, accuracy, "random_projection")
        finished += certificate.reached
        _, query, key = head.inputs()
        modules.add(query.numpy().tobytes() + key.numpy().tobytes())
    return {"share": reached / params.many, "share_finished": finished / params.many, "modules": len(modules)}


def fitted(widths: Sequence[Mapping[str, Any]]) -> dict[str, float]:
    """d = a + b ln n by least squares: R^2, and d / ln n at the largest n over that at the smallest."""
    x, y = np.log([one["n"] for one in widths]), np.array([one["width"] for one in widths], dtype=float)
    slope, start = np.polyfit(x, y, 1)
    rest = y - (start + slope * x)
    power = np.polyfit(x, np.log(y), 1)[0]
    return {
        "log_fit_r2": float(1 - (rest**2).sum() / ((y - y.mean()) ** 2).sum()),
        "width_per_log_n_growth": float((y[-1] / x[-1]) / (y[0] / x[0])),
        "power_of_n": float(power),
    }


def figures_of(by_n: Sequence[Mapping[str, Any]], by_k: Sequence[Mapping[str, Any]]) -> tuple[Figure, ...]:
    figures = []
    for axis, some, words in (("n", by_n, "tokens n"), ("k", by_k, "non-zeros of a row k")):
        rows = []
        for key, series in (("width", "half of the draws succeed"), ("theorem", "the theorem's width")):
            for at in dict.fromkeys(one[axis] for one in some):
                values = [one[key] for one in some if one[axis] == at]
                rows.append(Point.over(values, at, series, dashed=key == "theorem"))
        title = f"Width against {words}"
        caption = "The paper's construction as drawn; median and range over seeds."
        figures.append(Figure(f"width-{axis}", title, caption, words, "width d", tuple(rows), log=True, log_x=True))
    return tuple(figures)


CLAIMS = (
    Claim(
        "logarithmic_in_n",
        PAPER,
        "At fixed k and accuracy, the width grows as the logarithm of n.",
        "d = a + b ln n with R^2 >= .9; d / ln n grows by at most half, and d slower than n^.35",
        holds=(
            Bound("log_fit_r2", ">=", 0.9),
            Bound("width_per_log_n_growth", "<=", 1.5),
            Bound("power_of_n", "<=", 0.35),
        ),
        fails=(Bound("power_of_n", ">=", 0.5),),
    ),
    Claim(
        "at_most_quadratic_in_k",
        PAPER,
        "At fixed n and accuracy, the width grows as k^2 or less.",
        "fitted power of k at most 2",
        holds=(Bound("power_of_k", "<=", 2.0),),
        fails=(Bound("power_of_k", ">=", 2.5),),
    ),
    Claim(
        "half_the_draws_succeed",
        PAPER,
        "At the theorem's width a draw succeeds with probability at least 1/2.",
        "at least half of the draws",
        holds=(Bound("success_at_theorem_width", ">=", 0.5),),
        fails=(Bound("success_at_theorem_width", "<", 0.5),),
    ),
    Claim(
        "one_module_serves_many",
        PAPER,
        "The same W_Q and W_K serve every pattern; only the input changes.",
        "one module among all heads, and every pattern met by one of two draws at the theorem's width",
        holds=(Bound("modules_used", "<=", 1.0), Bound("patterns_served", ">=", 1.0)),
        fails=(Bound("modules_used", ">=", 2.0),),
    ),
    Claim(
        "causal_works",
        PAPER,
        "It works under a causal mask too.",
        "at least half of the draws at the theorem's width; one module, and every causal pattern met by one of two",
        holds=(
            Bound("causal_success_at_theorem_width", ">=", 0.5),
            Bound("causal_modules_used", "<=", 1.0),
            Bound("causal_patterns_served", ">=", 1.0),
        ),
        fails=(Bound("causal_success_at_theorem_width", "<", 0.5),),
    ),
)


@experiment(
    title="On the expressive power of self-attention matrices",
    paper=PAPER,
    summary="Any sparse attention pattern from one fixed module, in a width that grows as the logarithm of the length.",
    presets={"quick": Params(), "paper": FULL},
    takes={"quick": "30 s", "paper": "hours: n = 4096"},
    seeds={"quick": 2, "paper": 3},
    claims=CLAIMS,
)
def likhosherstov2021(params: Params, seeds: tuple[int, ...], desk: Desk) -> Result:
    def widths(n: int, k: int, seed: int) -> dict[str, Any]:
        found: dict[str, Any] = desk.part(f"width-{n}-{k}-{seed}", partial(width_at, n, k, params, seed, desk))
        return found

    measured: dict[str, list[float]] = {}
    by_n, by_k = [], []
    for seed in seeds:
        own_n = [widths(n, params.size_k, seed) for n in params.sizes]
        own_k = [widths(params.count_n, k, seed) for k in params.counts]
        numbers = fitted(own_n)
        k, d = (np.log([one[name] for one in own_k]) for name in ("k", "width"))
        numbers["power_of_k"] = float(np.polyfit(k, d, 1)[0])
        for causal, prefix in ((False, ""), (True, "causal_")):
            kind = "causal" if causal else "both ways"
            rate = desk.part(f"success-{kind}-{seed}", partial(success_at_theorem, params, seed, causal))
            many = desk.part(f"served-{kind}-{seed}", partial(served, params, seed, causal, desk))
            numbers |= {
                f"{prefix}success_at_theorem_width": rate,
                f"{prefix}patterns_served": many["share"],
                f"{prefix}patterns_served_at_small_width": many["share_finished"],
                f"{prefix}modules_used": many["modules"],
            }
        for name, value in numbers.items():
            measured.setdefault(name, []).append(value)
        by_n += own_n
        by_k += own_k
    return Result(measured, (*by_n, *by_k), figures_of(by_n, by_k))
