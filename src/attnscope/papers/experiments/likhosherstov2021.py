"""On the expressive power of self-attention: any sparse pattern in logarithmic width, one fixed module (2106.03764).

The theorem: for every right-stochastic n x n pattern with at most k non-zeros per row and column, whose non-zeros
differ by at most a factor gamma, there is an input X for which fixed W_Q and W_K approximate the pattern: ratios of
non-zeros are right within a factor 1 + e1, and zeros are below e2 times any non-zero, once the width is of the order of
k^2 ln^2(gamma/e2) ln n / ln^2(1+e1). We measure the paper's own construction (singular values split and projected at
random) without any correction, and report the smallest width at which half of the draws meet both conditions. Patterns
are unions of k random permutations with weights within a factor 4; e2 is the same for every n.

To judge whether the width grows as ln n, this law is compared with others of two constants on the same numbers
(`papers/trials/curves.py`). To judge whether one module serves all patterns, W_Q and W_K are drawn before the patterns,
with a width d below the number of tokens: they are the halves of a Gaussian 2d x 2d matrix W = [W_Q W_K]. For queries Q
and keys K the input X = [Q K] W^(-1) has X W_Q = Q and X W_K = K. The module runs on X in float32, so if the width is
too small or W nearly singular, the pattern is missed.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from attnscope.constructions.random_projection import Drawing, random_projection, success_rate, theorem_for
from attnscope.core.experiment import Figure, Result, Session, claims, experiment
from attnscope.core.words import count
from attnscope.heads.accuracy import Accuracy
from attnscope.heads.certificate import certify
from attnscope.heads.generate import generate
from attnscope.heads.head import Head
from attnscope.heads.pattern import Pattern
from attnscope.heads.rounding import certified
from attnscope.papers.trials.curves import LAWS, Rows, advantage_of_logarithm, curve, gather, power_in, squared_errors

PAPER = "2106.03764"


@dataclass(frozen=True)
class Params:
    sizes: tuple[int, ...] = (16, 32, 64, 128, 256, 512)
    size_k: int = 2  # non-zeros per row when n varies
    largest_seeds: int = 4  # most seeds for the largest n, which takes as long as all other n together
    counts: tuple[int, ...] = (1, 2, 4, 8)
    count_n: int = 128  # number of tokens when k varies
    ratio_error: float = 0.1
    zero_ratio: float = 0.01
    draws: int = 8  # half of the draws must succeed
    halvings: int = 6  # bisections between a width that fails and one 4 times larger that succeeds, down to 2%
    theorem_draws: int = 20
    many: int = 20  # patterns that one module must serve
    many_n: int = 256
    many_k: int = 2
    many_width: int = 128  # width of the module for heads with corrected ratios, far below the theorem's width
    narrow_width: int = 16  # width of a module that must fail, as a control


FULL = Params(
    sizes=(16, 32, 64, 128, 256, 512, 1024, 2048, 4096),
    largest_seeds=1,
    counts=(1, 2, 4, 8, 16),
    count_n=512,
    theorem_draws=50,
    many=100,
)


class FixedModule(NamedTuple):
    """W_Q, W_K, and the inverse that maps queries and keys back to an input."""

    query: Float[Tensor, "twice width"]
    key: Float[Tensor, "twice width"]
    inverse: Float[Tensor, "twice twice"]


def fixed_module(width: int, rng: np.random.Generator) -> FixedModule:
    weights = torch.from_numpy(rng.standard_normal((2 * width, 2 * width)) / (2 * width) ** 0.5)
    rounded = weights.float()
    return FixedModule(rounded[:, :width], rounded[:, width:], torch.linalg.inv(rounded.double()))


def serves(module: FixedModule, head: Head, pattern: Pattern, accuracy: Accuracy) -> bool:
    """Return whether the module reproduces the pattern to this accuracy, given the input made from the head."""
    stream = (torch.cat([head.queries, head.keys], dim=1).double() @ module.inverse).float()
    seen = Head(stream @ module.query, stream @ module.key, pattern.causal, "through a fixed module")
    return certify(seen, pattern, accuracy).reached


def pattern_of(n: int, k: int, seed: int, causal: bool = False) -> Pattern:
    return generate("union_of_permutations", n, k, seed=seed, causal=causal)


def accuracy_for(pattern: Pattern, params: Params) -> Accuracy:
    """Convert the theorem's e2 to a leak: leak / (1 - leak) = e2 z / s, for z zeros and s non-zeros in a row."""
    odds = params.zero_ratio * float(((pattern.visible - pattern.counts) / pattern.counts).max())
    return Accuracy(params.ratio_error, odds / (1 + odds), "float64")


def half_width(pattern: Pattern, params: Params, seed: int, session: Session) -> int:
    """Return the smallest width at which half of the draws succeed.

    The theorem's width is divided by 4 until this fails; then the last factor of 4 is bisected.
    """
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
    for step in range(params.halvings):
        session.advance(f"n = {pattern.n}, k = {pattern.k}", step, params.halvings)
        middle = (low + high) / 2
        low, high = (low, middle) if succeeds(middle) else (middle, high)
    return math.ceil(2**high)


def width_at(n: int, k: int, params: Params, seed: int, session: Session) -> dict[str, Any]:
    pattern = pattern_of(n, k, seed)
    theorem = theorem_for(pattern, accuracy_for(pattern, params)).width
    return {"n": n, "k": k, "seed": seed, "width": half_width(pattern, params, seed, session), "theorem": theorem}


def success_at_theorem(params: Params, seed: int, causal: bool) -> float:
    """Return the share of draws that succeed at the theorem's width."""
    pattern = pattern_of(params.many_n, params.many_k, seed, causal)
    accuracy = accuracy_for(pattern, params)
    rng = np.random.default_rng(seed)
    return success_rate(pattern, theorem_for(pattern, accuracy).width, accuracy, params.theorem_draws, rng)


def served_at_theorem(params: Params, seed: int, causal: bool) -> float:
    """Return the share of patterns for which at least one of two draws succeeds at the theorem's width."""
    met = 0
    for index, pattern in enumerate(many_patterns(params, seed, causal)):
        accuracy, rng = accuracy_for(pattern, params), np.random.default_rng([seed, index])
        met += success_rate(pattern, theorem_for(pattern, accuracy).width, accuracy, 2, rng) > 0
    return met / params.many


def served_by_module(params: Params, width: int, seed: int, session: Session) -> float:
    """Return the share of patterns that one module serves.

    The theorem's width is in the millions. Here the ratios of each head are made exact afterwards, which takes far less
    width; the head must then meet the default accuracy (ratios 10%, leak 1%) in float32.
    """
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


def remark(by_n: Rows) -> str:
    """Say how well each law fits, and what the logarithm predicts for the next doubling."""
    n, d = ([float(row[key]) for row in by_n] for key in ("n", "width"))
    off = {name: math.sqrt(error) for name, error in squared_errors(n, d).items()}
    slope, start = np.polyfit(np.log(n), d, 1)
    words = {"logarithm": "a + b ln n", "cube_root": "a + b n^(1/3)", "root": "a + b n^(1/2)", "power": "b n^p"}
    misses = ", ".join(f"{off[name]:.1%} with {words[name]}" for name in (*LAWS, "power"))
    return (
        f"Widths over n = {min(n):.0f} to {max(n):.0f} miss each law by (root mean square): {misses}. By least squares "
        f"d = {start:.0f} + {slope:.0f} ln n: every doubling of n costs {slope * math.log(2):.0f}. "
        f"The largest n was measured with {count(n.count(max(n)), 'seed')}, the smallest with {n.count(min(n))}."
    )


def width_figure(axis: str, rows: Rows, words: str) -> Figure:
    points = curve(rows, axis, "width", "half of the draws succeed")
    points += curve(rows, axis, "theorem", "the theorem's width", dashed=True)
    title, caption = f"Width against {words}", "The paper's construction as drawn; median and range over seeds."
    return Figure(f"width-{axis}", title, caption, words, "width d", tuple(points), log=True, log_x=True)


CLAIMS = claims(
    PAPER,
    """
    logarithmic_in_n: At fixed k and accuracy, the width grows as the logarithm of n.
        expected: over all seeds d = a + b ln n is likelier than a + b n^(1/3) and b n^p by 3 nats (twenty to one)
        holds: nats_of_logarithm_over_cube_root >= 3, nats_of_logarithm_over_power >= 3
        fails: nats_of_logarithm_over_cube_root <= -3
    at_most_quadratic_in_k: At fixed n and accuracy, the width grows as k^2 or less.
        expected: fitted power of k at most 2
        holds: power_of_k <= 2; fails: power_of_k >= 2.5
    half_the_draws_succeed: At the theorem's width a draw succeeds with probability at least 1/2.
        expected: at least half of the draws
        holds: success_at_theorem_width >= 0.5; fails: success_at_theorem_width < 0.5
    one_module_serves_many: The same W_Q and W_K serve every pattern; only the input changes.
        expected: one Gaussian module serves all, ratios made exact; at the theorem's width one of two draws meets each
        holds: served_by_one_module >= 1, served_at_theorem_width >= 1; fails: served_by_one_module < 0.5
        given: served_by_a_narrow_module < 0.5
    causal_works: It works under a causal mask too.
        expected: at the theorem's width half of the draws succeed, and one of two meets each of many causal patterns
        holds: causal_success_at_theorem_width >= 0.5, causal_served_at_theorem_width >= 1
        fails: causal_success_at_theorem_width < 0.5
    """,
)


@experiment(
    title="On the expressive power of self-attention matrices",
    paper=PAPER,
    summary="Any sparse attention pattern from one fixed module, in a width that grows as the logarithm of the length.",
    advice=(
        "The width of a head rarely limits a sparse pattern: the theorem's own construction pays a fixed price for "
        "every doubling of the context, and constructions for one pattern need a few dozen coordinates where the "
        "theorem asks for millions. So do not widen heads because the context grows. Ask `attnscope capacity` for the "
        "width at your length and number of keys, and let `attnscope compile` build the head if you need it by hand."
    ),
    presets={"quick": Params(), "paper": FULL},
    takes={"quick": "40 s", "paper": "20 min (n = 4096: one seed)"},
    seeds={"quick": 4, "paper": 3},
    claims=CLAIMS,
)
def likhosherstov2021(params: Params, seeds: tuple[int, ...], session: Session) -> Result:
    def widths(n: int, k: int, seed: int) -> Any:
        return session.part(f"width-{n}-{k}-{seed}", partial(width_at, n, k, params, seed, session))

    by_k = {seed: [widths(params.count_n, k, seed) for k in params.counts] for seed in seeds}
    numbers: list[dict[str, float]] = [{"power_of_k": power_in(by_k[seed], "k", "width")} for seed in seeds]
    for seed, of_seed in zip(seeds, numbers, strict=True):
        for causal, kind, prefix in ((False, "both ways", ""), (True, "causal", "causal_")):
            for name, work in (("success", success_at_theorem), ("served", served_at_theorem)):
                share = session.part(f"{name}-{kind}-{seed}", partial(work, params, seed, causal))
                of_seed[f"{prefix}{name}_at_theorem_width"] = share
        for name, width in (("one", params.many_width), ("a_narrow", params.narrow_width)):
            share = session.part(f"module-{width}-{seed}", partial(served_by_module, params, width, seed, session))
            of_seed[f"served_by_{name}_module"] = share
    largest = max(params.sizes)
    by_n = [
        widths(n, params.size_k, seed)
        for n in params.sizes
        for seed in (seeds[: params.largest_seeds] if n == largest else seeds)
    ]
    nats = advantage_of_logarithm(*([float(row[key]) for row in by_n] for key in ("n", "width")))
    measured = gather(numbers) | {f"nats_of_logarithm_over_{law}": [value] for law, value in nats.items()}
    all_k = [row for rows in by_k.values() for row in rows]
    figures = (width_figure("n", by_n, "tokens n"), width_figure("k", all_k, "non-zeros of a row k"))
    return Result(measured, (*by_n, *all_k), figures, (remark(by_n),))
