"""Mind the gap: attention also loses rank with width, unless its mean is subtracted (arXiv:2410.07799).

Random Markov attention A = softmax(sqrt(ln 2) G), with G a matrix of independent normal entries, has one singular value
near 1 and all others near 2/sqrt(n) or below, where n is the number of tokens and of coordinates. So the output of a
block is close to one direction, and the closer the larger n is. Subtracting J = 11^T/n removes that singular value. We
measure X_l = A_l X_(l-1) W_l with random value weights W_l and X_0 X_0^T = I; `papers/trials/random_markov.py` derives
the laws. The value weights matter: without them the stable ranks of A - J are twice as large.

Differences from the paper: we train no models, and we measure only how gradients grow: with tokens and coordinates
together, and with tokens alone at a fixed width (our question).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import torch

from attnscope.core.experiment import Figure, Point, Result, Session, claims, experiment, median
from attnscope.core.words import count
from attnscope.papers.trials.curves import Rows, curve, measure_seeds, power_in, select
from attnscope.papers.trials.random_markov import (
    gradients_in_width,
    kept_rank,
    key_query_singular_values,
    softmax_excess,
    stacked,
)

PAPER = "2410.07799"
WIDTH = 64  # number of coordinates in the runs of fixed width
FIXED_WIDTH_SEED = 1_000_003  # added to the seed in the runs of fixed width
EXCESS_BEFORE = {64: (4.3e-2, 2.2e-5, 6.4e-9), 1024: (3.0e-3, 5.1e-9, 6.7e-15)}
RANK_BEFORE = {64: (3.8, 3.1, 2.5), 1024: (66.8, 35.9, 24.0)}


@dataclass(frozen=True)
class Params:
    sizes: tuple[int, ...] = (64, 256, 1024)  # numbers of tokens; there are as many coordinates
    layers: int = 3
    draws_times_tokens: int = 1024  # short sequences vary more, so they are drawn more often


FULL = replace(Params(), sizes=(64, 128, 256, 512, 1024, 2048), draws_times_tokens=4096)


def measured_once(params: Params, seed: int, session: Session) -> list[dict[str, Any]]:
    """Return a row for each size, with geometric means over draws."""

    def mean(values: Sequence[float]) -> float:
        return math.exp(sum(math.log(value) for value in values) / len(values))

    rows = []
    for done, tokens in enumerate(params.sizes):
        rng = torch.Generator().manual_seed(seed)
        draws = []
        for draw in range(max(1, params.draws_times_tokens // tokens)):
            session.advance(f"{tokens} tokens, draw {draw + 1}", done, len(params.sizes))
            draws.append(stacked(tokens, params.layers, rng))
        key_query = key_query_singular_values(tokens, rng)
        row: dict[str, Any] = {
            "seed": seed,
            "tokens": tokens,
            "s1": mean([draw["singular"][0] for draw in draws]),
            "s2": mean([draw["singular"][1] for draw in draws]),
            "key_query_s1": key_query[0],
            "key_query_s2": key_query[1],
        }
        apart = torch.Generator().manual_seed(seed + FIXED_WIDTH_SEED)
        fixed = [gradients_in_width(tokens, WIDTH, params.layers, apart) for _ in draws]
        for name in ("softmax", "A - J"):
            row[f"gradient {name}"] = mean([draw["gradient"][name] for draw in draws])
            row[f"gradient {name}, fixed width"] = mean([draw[name] for draw in fixed])
        for layer in range(1, params.layers + 1):
            row[f"softmax {layer}"] = mean([draw["softmax"][layer - 1] for draw in draws])
            for name in ("A - J", "A - J, no values"):
                row[f"{name} {layer}"] = mean([1 + draw[name][layer - 1] for draw in draws])
        rows.append(row)
    return rows


def numbers_of(rows: Rows, layers: int) -> dict[str, float]:
    """Return the measured quantities of one seed."""
    above = [(row["s1"] - 1) * row["tokens"] for row in rows]
    second = [row["s2"] * row["tokens"] ** 0.5 for row in rows]
    numbers = {
        "least_of_n_times_s1_above_one": min(above),
        "largest_of_n_times_s1_above_one": max(above),
        "least_of_sqrt_n_s2": min(second),
        "largest_of_sqrt_n_s2": max(second),
        "key_query_s1": rows[-1]["key_query_s1"],
        "key_query_sqrt_n_s2": rows[-1]["key_query_s2"] * rows[-1]["tokens"] ** 0.5,
    }
    for name, suffix in (("softmax", ""), ("A - J", "_without_mean")):
        numbers[f"gradient_power_of_n{suffix}"] = power_in(rows, "tokens", f"gradient {name}")
        alone = power_in(rows, "tokens", f"gradient {name}, fixed width")
        numbers[f"gradient_power_of_tokens_alone{suffix}"] = alone
    for layer in range(1, layers + 1):
        numbers[f"power_of_n_after_{layer}"] = power_in(rows, "tokens", f"softmax {layer}")
        numbers[f"power_of_n_without_mean_after_{layer}"] = power_in(rows, "tokens", f"A - J {layer}")
        for row in rows:
            numbers[f"excess_of_{row['tokens']}_tokens_after_{layer}"] = row[f"softmax {layer}"]
            numbers[f"rank_kept_of_{row['tokens']}_tokens_after_{layer}"] = row[f"A - J {layer}"]
    return numbers


def within(quantity: str, known: Sequence[float], factor: float) -> str:
    """Return bounds that keep `quantity_after_1`, `quantity_after_2`, ... within `factor` of the known values."""
    return ", ".join(
        f"{quantity}_after_{layer} >= {value / factor}, {quantity}_after_{layer} <= {value * factor}"
        for layer, value in enumerate(known, 1)
    )


def listed(values: Sequence[float], digits: str) -> str:
    return ", ".join(f"{value:{digits}}" for value in values)


RANKS = [f"power_of_n_without_mean_after_{layer}" for layer in (1, 2, 3)]
CLAIMS = claims(
    PAPER,
    """
    one_singular_value_at_one: The largest singular value of random attention goes to 1 as the sequence grows.
        expected: n (s_1 - 1) between .25 and 1 at every length (derived: 1/2; measured before: .50, .49, .51)
        holds: least_of_n_times_s1_above_one >= 0.25, largest_of_n_times_s1_above_one <= 1
    all_others_small: The second largest is 2/sqrt(n).
        expected: sqrt(n) s_2 between 1.7 and 2.4 at every length (the paper: goes to 2; measured before: 2.04 to 2.13)
        holds: least_of_sqrt_n_s2 >= 1.7, largest_of_sqrt_n_s2 <= 2.4; fails: largest_of_sqrt_n_s2 >= 8
    queries_and_keys_have_the_gap_too: Attention from random queries and keys has the same gap as independent entries.
        expected: s_1 within .02 of 1, sqrt(n) s_2 at most 3 at the longest (our limits)
        holds: key_query_s1 >= 0.98, key_query_s1 <= 1.02, key_query_sqrt_n_s2 <= 3; fails: key_query_sqrt_n_s2 >= 10
    """,
    *(
        f"""
        rank_collapses_in_width_after_{layer}: After {count(layer, "block")} the stable rank falls to 1 as n^{
            1 - 2 * layer
        }.
            expected: power of n within .3 of {1 - 2 * layer} (theorem: sr - 1 = O(n^(1-2l)))
            holds: power_of_n_after_{layer} >= {0.7 - 2 * layer}, power_of_n_after_{layer} <= {1.3 - 2 * layer}
            fails: power_of_n_after_{layer} >= 0
        """
        for layer in (1, 2, 3)
    ),
    *(
        f"""
        collapse_of_{n}_tokens_in_numbers: At n = {n} the stable rank is above 1 by {listed(known, ".1e")}.
            expected: each within a factor 2 after 1, 2, 3 blocks (measured before)
            holds: {within(f"excess_of_{n}_tokens", known, 2.0)}
        """
        for n, known in EXCESS_BEFORE.items()
    ),
    f"""
    without_mean_rank_grows_with_width: Without J the stable rank does not fall with n but grows in proportion to it.
        expected: power of n between .8 and 1.2 after 1, 2, 3 blocks (derived: 1)
        holds: {", ".join(f"{power} >= 0.8, {power} <= 1.2" for power in RANKS)}
        fails: {", ".join(f"{power} <= 0" for power in RANKS)}
    """,
    *(
        f"""
        without_mean_rank_of_{n}_tokens_in_numbers: Without J at n = {n} the stable rank is {listed(known, "g")}.
            expected: each within a factor 1.35 after 1, 2, 3 blocks (measured before)
            holds: {within(f"rank_kept_of_{n}_tokens", known, 1.35)}
        """
        for n, known in RANK_BEFORE.items()
    ),
    f"""
    gradients_grow_with_size: Under softmax, gradients of early value weights grow with tokens and coordinates together;
            without J they do not.
        expected: powers of n within .1 of 1/2 and -1/2 (derived for three blocks and as many coordinates as tokens)
        holds: gradient_power_of_n >= 0.4, gradient_power_of_n <= 0.6,
            gradient_power_of_n_without_mean >= -0.6, gradient_power_of_n_without_mean <= -0.4
        fails: gradient_power_of_n <= 0
    gradients_do_not_grow_with_length_alone: In a fixed width they do not grow with the number of tokens, and fall
            without J (our question).
        expected: powers of n within .15 of 0 and -1, {WIDTH} coordinates, independent tokens (derived for three blocks)
        holds: gradient_power_of_tokens_alone >= -0.15, gradient_power_of_tokens_alone <= 0.15,
            gradient_power_of_tokens_alone_without_mean >= -1.15, gradient_power_of_tokens_alone_without_mean <= -0.85
        fails: gradient_power_of_tokens_alone >= 0.4
    """,
)


@experiment(
    title="Mind the gap: rank collapse in width",
    paper=PAPER,
    summary="One singular value of random attention is 1, the rest vanish with n: rank falls, but not for A - J.",
    advice=(
        "Longer contexts make collapse worse, not only deeper stacks: at the start of training one direction survives "
        "a block of random attention, and the rest fade as the number of tokens grows. If you train from scratch on "
        "long sequences and the stable rank falls to one in the first blocks, subtract the mean of attention "
        "(`minus_uniform`) or scale branches down. Gradients grow with tokens and coordinates together; at a fixed "
        "width a longer text alone does not make them grow."
    ),
    presets={"quick": Params(), "paper": FULL},
    takes={"quick": "25 s", "paper": "15 min"},
    seeds={"quick": 3, "paper": 5},
    claims=CLAIMS,
)
def mind_the_gap2024(params: Params, seeds: tuple[int, ...], session: Session) -> Result:
    work = partial(measured_once, params)
    rows = [row for seed in seeds for row in session.part(f"stacks-{seed}", partial(work, seed, session))]
    measured = measure_seeds(rows, seeds, partial(numbers_of, layers=params.layers))
    return Result(measured, tuple(rows), figures(rows, params), remarks(rows, params))


def figures(rows: Rows, params: Params) -> tuple[Figure, ...]:
    falling, kept, gradients = [], [], []
    for layer in range(1, params.layers + 1):
        series = f"after {layer}"
        falling += curve(rows, "tokens", f"softmax {layer}", series)
        falling += [Point(n, softmax_excess(n, layer), series, dashed=True) for n in params.sizes]
        kept += curve(rows, "tokens", f"A - J {layer}", series)
        kept += [Point(n, kept_rank(n, layer), series, dashed=True) for n in params.sizes]
    for name in ("softmax", "A - J"):
        gradients += curve(rows, "tokens", f"gradient {name}", name)
        gradients += curve(rows, "tokens", f"gradient {name}, fixed width", name, dashed=True)
    full = "Full: measured, median and range over seeds; dashed: "
    drawn = (
        (
            "rank-softmax",
            "Softmax attention: how far tokens are from one direction",
            f"Stable rank of X X^T, less 1, after 1, 2, 3 blocks. {full}(2l + 1) n^(1 - 2l), derived.",
            "stable rank - 1",
            falling,
        ),
        (
            "rank-without-mean",
            "A - J: the stable rank that is kept",
            f"The same stacks without J. {full}the law of products of normal matrices.",
            "stable rank",
            kept,
        ),
        (
            "gradients",
            "Gradient of the last block's output by the first block's value weights",
            f"Frobenius norm, {params.layers} blocks; median and range over seeds. Full: as many coordinates as "
            f"tokens; dashed: {WIDTH} coordinates.",
            "norm of gradient",
            gradients,
        ),
    )
    return tuple(
        Figure(name, title, caption, "tokens", y, tuple(points), log=True, log_x=True)
        for name, title, caption, y, points in drawn
    )


def remarks(rows: Rows, params: Params) -> tuple[str, ...]:
    n = params.sizes[-1]
    longest = select(rows, tokens=n)

    def ranks(name: str) -> str:
        by_layer = [median([row[f"{name} {layer}"] for row in longest]) for layer in range(1, params.layers + 1)]
        return ", ".join(f"{rank:.1f}" for rank in by_layer)

    return (
        f"What follows: with random weights a longer context makes collapse worse, not better. At {n} tokens "
        f"{median([row['softmax 1'] for row in longest]):.1e} of stable rank is left above 1 after one block, so "
        "skips, or A - J (treat --remedy minus_uniform), matter most for long sequences. Without J, writes shrink "
        "with the length, which a norm behind attention or larger value weights must compensate.",
        f"The value weights are part of the set-up: with them A - J keeps {ranks('A - J')} at {n} tokens, without them "
        f"{ranks('A - J, no values')}.",
    )
