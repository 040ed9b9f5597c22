"""On the expressive power of self-attention: any sparse pattern in logarithmic width, one fixed module (2106.03764).

The theorem: for every right-stochastic pattern with at most k non-zeros in rows and columns there is an input X such
that fixed W_Q and W_K give it, ratios of non-zeros within 1 + e1 and zeros below e2 of any non-zero, once the width is
O(k^2 ln^2(gamma/e2) ln n / ln^2(1+e1)). What is measured is its own construction as drawn (singular values split and
projected at random), with nothing corrected afterwards: the smallest width at which half of the draws meet both
conditions. Patterns are unions of k random permutations with weights within a factor 4; e2 is the same at every n.

That the width grows as ln n is judged against other laws of two constants on the same numbers (papers/trials/curves.py).
That one module serves all patterns is judged by a module with Gaussian W_Q and W_K, drawn before the patterns are
(papers/trials/explaining_away.py), narrower than there are tokens.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

from attnscope.constructions.random_projection import Drawing, random_projection, success_rate, theorem_for
from attnscope.core.experiment import Bound, Claim, Figure, Point, Result, Session, experiment
from attnscope.core.words import count
from attnscope.heads.accuracy import Accuracy
from attnscope.heads.generate import generate
from attnscope.heads.pattern import Pattern
from attnscope.heads.rounding import certified
from attnscope.papers.trials.curves import LAWS, advantage_of_logarithm, squared_errors
from attnscope.papers.trials.explaining_away import fixed_module, serves

PAPER = "2106.03764"
NATS = 3.0  # twenty to one


@dataclass(frozen=True)
class Params:
    sizes: tuple[int, ...] = (16, 32, 64, 128, 256, 512)
    size_k: int = 2  # non-zeros of a row while n grows
    largest_seeds: int = 4  # at most, of the largest n, which takes as long as all others together
    counts: tuple[int, ...] = (1, 2, 4, 8)
    count_n: int = 128  # rows while k grows
    ratio_error: float = 0.1
    zero_ratio: float = 0.01
    draws: int = 8  # of which half must succeed
    halvings: int = 6  # of the gap of a factor 4 between a width that fails and one that does: 2% are left
    theorem_draws: int = 20
    many: int = 20  # patterns that one module must serve
    many_n: int = 256
    many_k: int = 2
    many_width: int = 128  # of the module that serves heads finished with exact ratios: far below the theorem's
    narrow_width: int = 16  # of one that must not: else the rule would pass anything


FULL = Params(
    sizes=(16, 32, 64, 128, 256, 512, 1024, 2048, 4096),
    largest_seeds=1,
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


def half_width(pattern: Pattern, params: Params, seed: int, session: Session) -> int:
    """The smallest width at which half of the draws succeed: by fours down from the theorem's, then by halving."""
    accuracy = accuracy_for(pattern, params)
    drawing = Drawing(pattern, accuracy)

    def succeeds(exponent: float) -> bool:
        rng = np.random.default_rng([seed, round(1e6 * exponent)])
        return drawing.half_succeed(math.ceil(2**exponent), params.draws, rng)

    high = float(math.ceil(math.log2(theorem_for(pattern, accuracy).width)))
    low = high - 2
    while low > 0 and succeeds(low):
        session.advance(f"n = {pattern.n}, k = {pattern.k}", 0, 0)
        low, high = low - 2, low
    fails, works = low, high
    for step in range(params.halvings):
        session.advance(f"n = {pattern.n}, k = {pattern.k}", step, params.halvings)
        middle = (fails + works) / 2
        fails, works = (fails, middle) if succeeds(middle) else (middle, works)
    return math.ceil(2**works)


def width_at(n: int, k: int, params: Params, seed: int, session: Session) -> dict[str, Any]:
    pattern = pattern_of(n, k, seed)
    accuracy = accuracy_for(pattern, params)
    theorem = theorem_for(pattern, accuracy).width
    return {"n": n, "k": k, "seed": seed, "width": half_width(pattern, params, seed, session), "theorem": theorem}


def success_at_theorem(params: Params, seed: int, causal: bool) -> float:
    """Share of draws that succeed at the theorem's width."""
    pattern = pattern_of(params.many_n, params.many_k, seed, causal)
    accuracy = accuracy_for(pattern, params)
    rng = np.random.default_rng(seed)
    return success_rate(pattern, theorem_for(pattern, accuracy).width, accuracy, params.theorem_draws, rng)


def served_at_theorem(params: Params, seed: int, causal: bool) -> float:
    """Share of many patterns with a draw among two that meets the theorem's conditions at its width."""
    met = 0
    for index, pattern in enumerate(many_patterns(params, seed, causal)):
        accuracy, rng = accuracy_for(pattern, params), np.random.default_rng([seed, index])
        met += success_rate(pattern, theorem_for(pattern, accuracy).width, accuracy, 2, rng) > 0
    return met / params.many


def served_by_module(params: Params, width: int, seed: int, session: Session) -> float:
    """Share of many patterns that one module serves. The theorem's width is of millions: here heads are finished with
    exact ratios, which takes far less, and judged by 10% and 1% in float32."""
    accuracy, module = Accuracy(), fixed_module(width, np.random.default_rng([seed, width]))
    met = 0
    for index, pattern in enumerate(many_patterns(params, seed, False)):
        session.advance(f"one module of width {width}, many patterns", index, params.many)
        factors = random_projection(pattern, width, accuracy, np.random.default_rng([seed, index]))
        head, _ = certified(factors, pattern, accuracy, "random_projection")
        met += serves(module, head, pattern, accuracy)
    return met / params.many


def many_patterns(params: Params, seed: int, causal: bool) -> Iterator[Pattern]:
    for index in range(params.many):
        yield pattern_of(params.many_n, params.many_k, params.many * seed + index, causal)


def remarks(by_n: Sequence[Mapping[str, Any]]) -> tuple[str, ...]:
    """How well each law fits, and what the logarithm's says of the next doubling."""
    n, d = ([float(one[key]) for one in by_n] for key in ("n", "width"))
    off = {name: math.sqrt(error) for name, error in squared_errors(n, d).items()}
    slope, start = np.polyfit(np.log(n), d, 1)
    words = {"logarithm": "a + b ln n", "cube_root": "a + b n^(1/3)", "root": "a + b n^(1/2)", "power": "b n^p"}
    said = ", ".join(f"{off[name]:.1%} with {words[name]}" for name in (*LAWS, "power"))
    seeds = n.count(max(n))
    return (
        f"Widths over n = {min(n):.0f} to {max(n):.0f} miss each law by (root mean square): {said}. By least squares "
        f"d = {start:.0f} + {slope:.0f} ln n: every doubling of n costs {slope * math.log(2):.0f}. "
        f"The largest n was measured with {count(seeds, 'seed')}, the smallest with {n.count(min(n))}.",
    )


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
        "over all seeds d = a + b ln n is likelier than a + b n^(1/3) and than b n^p by 3 nats (twenty to one)",
        holds=(
            Bound("nats_of_logarithm_over_cube_root", ">=", NATS),
            Bound("nats_of_logarithm_over_power", ">=", NATS),
        ),
        fails=(Bound("nats_of_logarithm_over_cube_root", "<=", -NATS),),
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
        "one Gaussian module serves all, ratios made exact; at the theorem's width one of two draws meets each",
        holds=(Bound("served_by_one_module", ">=", 1.0), Bound("served_at_theorem_width", ">=", 1.0)),
        fails=(Bound("served_by_one_module", "<", 0.5),),
        given=(Bound("served_by_a_narrow_module", "<", 0.5),),
    ),
    Claim(
        "causal_works",
        PAPER,
        "It works under a causal mask too.",
        "at the theorem's width at least half of the draws succeed, and one of two meets each of many causal patterns",
        holds=(
            Bound("causal_success_at_theorem_width", ">=", 0.5),
            Bound("causal_served_at_theorem_width", ">=", 1.0),
        ),
        fails=(Bound("causal_success_at_theorem_width", "<", 0.5),),
    ),
)


@experiment(
    title="On the expressive power of self-attention matrices",
    paper=PAPER,
    summary="Any sparse attention pattern from one fixed module, in a width that grows as the logarithm of the length.",
    advice=(
        "Head width is rarely what limits a sparse pattern: the theorem's own construction pays a fixed price for "
        "every doubling of the context, and constructions built for one pattern need a few dozen coordinates where "
        "the theorem asks for millions. So do not widen heads because the context grows. Ask `attnscope capacity` "
        "for the width at your length and number of keys, and let `attnscope compile` build the head where you need"
        " it by hand."
    ),
    presets={"quick": Params(), "paper": FULL},
    takes={"quick": "40 s", "paper": "20 min (n = 4096: one seed)"},
    seeds={"quick": 4, "paper": 3},
    claims=CLAIMS,
)
def likhosherstov2021(params: Params, seeds: tuple[int, ...], session: Session) -> Result:
    def widths(n: int, k: int, seed: int) -> dict[str, Any]:
        found: dict[str, Any] = session.part(f"width-{n}-{k}-{seed}", partial(width_at, n, k, params, seed, session))
        return found

    measured: dict[str, list[float]] = {}
    by_k = {seed: [widths(params.count_n, k, seed) for k in params.counts] for seed in seeds}
    for seed in seeds:
        k, d = (np.log([one[name] for one in by_k[seed]]) for name in ("k", "width"))
        numbers = {"power_of_k": float(np.polyfit(k, d, 1)[0])}
        for causal, prefix in ((False, ""), (True, "causal_")):
            kind = "causal" if causal else "both ways"
            rate = session.part(f"success-{kind}-{seed}", partial(success_at_theorem, params, seed, causal))
            met = session.part(f"served-{kind}-{seed}", partial(served_at_theorem, params, seed, causal))
            numbers |= {f"{prefix}success_at_theorem_width": rate, f"{prefix}served_at_theorem_width": met}
        for name, width in (("one", params.many_width), ("a_narrow", params.narrow_width)):
            met = session.part(f"module-{width}-{seed}", partial(served_by_module, params, width, seed, session))
            numbers[f"served_by_{name}_module"] = met
        for name, value in numbers.items():
            measured.setdefault(name, []).append(value)
    largest = max(params.sizes)
    by_n = [
        widths(n, params.size_k, seed)
        for n in params.sizes
        for seed in (seeds[: params.largest_seeds] if n == largest else seeds)
    ]
    sizes, own = ([float(one[key]) for one in by_n] for key in ("n", "width"))
    for law, nats in advantage_of_logarithm(sizes, own).items():
        measured[f"nats_of_logarithm_over_{law}"] = [nats]
    all_k = [one for own in by_k.values() for one in own]
    return Result(measured, (*by_n, *all_k), figures_of(by_n, all_k), remarks(by_n))
