"""Mind the gap: attention loses rank in width too, and without its mean it does not (arXiv:2410.07799).

Random Markov attention A = softmax(sqrt(ln 2) G) has one singular value at 1 and all others near 2/sqrt(n) or below:
what a layer writes is one direction, and the more so the larger n, the number of tokens and of coordinates. Taking away
J = 11^T/n takes away that one value. Measured on X_l = A_l X_(l-1) W_l with X_0 X_0^T = I; the set-up and the laws that
follow from it are derived in `papers/trials/random_markov.py`. The value weights decide: without them the stable ranks of
A - J are twice as large.

What differs from the paper: no trained models, and gradients are compared by how they grow only: with tokens and
coordinates together, and with tokens alone in a fixed width (our question).
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import torch

from attnscope.core.experiment import Bound, Claim, Result, Session, experiment
from attnscope.papers.trials.curves import by_seed, power_of
from attnscope.papers.trials.random_markov import (
    gradients_in_width,
    key_query_singular_values,
    markov_figures,
    markov_remarks,
    stacked,
)

PAPER = "2410.07799"
WIDTH = 64  # where it is fixed
BESIDE = 1_000_003  # those draws have numbers of their own
EXCESS_BEFORE = {64: (4.3e-2, 2.2e-5, 6.4e-9), 1024: (3.0e-3, 5.1e-9, 6.7e-15)}
RANK_BEFORE = {64: (3.8, 3.1, 2.5), 1024: (66.8, 35.9, 24.0)}


@dataclass(frozen=True)
class Params:
    sizes: tuple[int, ...] = (64, 256, 1024)  # tokens, and as many coordinates
    layers: int = 3
    draws_times_tokens: int = 1024  # short sequences vary more, and are drawn more often


FULL = replace(Params(), sizes=(64, 128, 256, 512, 1024, 2048), draws_times_tokens=4096)


def within(quantity: str, known: float, factor: float) -> tuple[Bound, Bound]:
    return Bound(quantity, ">=", known / factor), Bound(quantity, "<=", known * factor)


def excess_key(tokens: int, layer: int) -> str:
    return f"excess_of_{tokens}_tokens_after_{layer}"


def rank_key(tokens: int, layer: int) -> str:
    return f"rank_kept_of_{tokens}_tokens_after_{layer}"


def measured_once(params: Params, seed: int, session: Session) -> list[dict[str, Any]]:
    """A row for each size: geometric means over draws."""
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
            "s1": _mean([one["singular"][0] for one in draws]),
            "s2": _mean([one["singular"][1] for one in draws]),
            "key_query_s1": key_query[0],
            "key_query_s2": key_query[1],
        }
        apart = torch.Generator().manual_seed(seed + BESIDE)
        fixed = [gradients_in_width(tokens, WIDTH, params.layers, apart) for _ in draws]
        for name in ("softmax", "A - J"):
            row[f"gradient {name}"] = _mean([one["gradient"][name] for one in draws])
            row[f"gradient {name}, fixed width"] = _mean([one[name] for one in fixed])
        for layer in range(1, params.layers + 1):
            row[f"softmax {layer}"] = _mean([one["softmax"][layer - 1] for one in draws])
            for name in ("A - J", "A - J, no values"):
                row[f"{name} {layer}"] = _mean([1 + one[name][layer - 1] for one in draws])
        rows.append(row)
    return rows


def numbers_of(rows: Sequence[Mapping[str, Any]], layers: int) -> dict[str, float]:
    """What the claims ask of one seed."""
    sizes = [row["tokens"] for row in rows]
    above = [(row["s1"] - 1) * row["tokens"] for row in rows]
    second = [row["s2"] * row["tokens"] ** 0.5 for row in rows]
    numbers = {
        "least_of_n_times_s1_above_one": min(above),
        "largest_of_n_times_s1_above_one": max(above),
        "least_of_sqrt_n_s2": min(second),
        "largest_of_sqrt_n_s2": max(second),
        "key_query_s1": rows[-1]["key_query_s1"],
        "key_query_sqrt_n_s2": rows[-1]["key_query_s2"] * sizes[-1] ** 0.5,
        "gradient_power_of_n": power_of(sizes, [row["gradient softmax"] for row in rows]),
        "gradient_power_of_n_without_mean": power_of(sizes, [row["gradient A - J"] for row in rows]),
    }
    for name, said in (("softmax", ""), ("A - J", "_without_mean")):
        alone = [row[f"gradient {name}, fixed width"] for row in rows]
        numbers[f"gradient_power_of_tokens_alone{said}"] = power_of(sizes, alone)
    for layer in range(1, layers + 1):
        numbers[f"power_of_n_after_{layer}"] = power_of(sizes, [row[f"softmax {layer}"] for row in rows])
        numbers[f"power_of_n_without_mean_after_{layer}"] = power_of(sizes, [row[f"A - J {layer}"] for row in rows])
        for row in rows:
            numbers[excess_key(row["tokens"], layer)] = row[f"softmax {layer}"]
            numbers[rank_key(row["tokens"], layer)] = row[f"A - J {layer}"]
    return numbers


CLAIMS = (
    Claim(
        "one_singular_value_at_one",
        PAPER,
        "The largest singular value of random attention goes to 1 as the sequence grows.",
        "n (s_1 - 1) between .25 and 1 at every length (derived: 1/2; measured before: .50, .49, .51)",
        holds=(
            Bound("least_of_n_times_s1_above_one", ">=", 0.25),
            Bound("largest_of_n_times_s1_above_one", "<=", 1.0),
        ),
    ),
    Claim(
        "all_others_small",
        PAPER,
        "The second largest is 2/sqrt(n).",
        "sqrt(n) s_2 between 1.7 and 2.4 at every length (the paper: goes to 2; measured before: 2.04 to 2.13)",
        holds=(Bound("least_of_sqrt_n_s2", ">=", 1.7), Bound("largest_of_sqrt_n_s2", "<=", 2.4)),
        fails=(Bound("largest_of_sqrt_n_s2", ">=", 8.0),),
    ),
    Claim(
        "queries_and_keys_have_the_gap_too",
        PAPER,
        "Attention from random queries and keys has the gap of the model with independent entries.",
        "s_1 within .02 of 1, sqrt(n) s_2 at most 3 at the longest (our limits)",
        holds=(
            Bound("key_query_s1", ">=", 0.98),
            Bound("key_query_s1", "<=", 1.02),
            Bound("key_query_sqrt_n_s2", "<=", 3.0),
        ),
        fails=(Bound("key_query_sqrt_n_s2", ">=", 10.0),),
    ),
    *(
        Claim(
            f"rank_collapses_in_width_after_{layer}",
            PAPER,
            f"After {layer} layer{'s' * (layer > 1)} the stable rank falls to 1 as n^{1 - 2 * layer}.",
            f"power of n within .3 of {1 - 2 * layer} (theorem: sr - 1 = O(n^(1-2l)))",
            holds=(
                Bound(f"power_of_n_after_{layer}", ">=", 0.7 - 2 * layer),
                Bound(f"power_of_n_after_{layer}", "<=", 1.3 - 2 * layer),
            ),
            fails=(Bound(f"power_of_n_after_{layer}", ">=", 0.0),),
        )
        for layer in (1, 2, 3)
    ),
    *(
        Claim(
            f"collapse_of_{tokens}_tokens_in_numbers",
            PAPER,
            f"At n = {tokens} the stable rank is above 1 by {', '.join(f'{v:.1e}' for v in values)}.",
            "each within a factor 2 after 1, 2, 3 layers (measured before)",
            holds=tuple(
                bound
                for layer, value in enumerate(values, 1)
                for bound in within(excess_key(tokens, layer), value, 2.0)
            ),
        )
        for tokens, values in EXCESS_BEFORE.items()
    ),
    Claim(
        "without_mean_rank_grows_with_width",
        PAPER,
        "Without J the stable rank does not fall with n but grows in proportion to it.",
        "power of n between .8 and 1.2 after 1, 2, 3 layers (derived: 1)",
        holds=tuple(
            bound
            for layer in (1, 2, 3)
            for bound in (
                Bound(f"power_of_n_without_mean_after_{layer}", ">=", 0.8),
                Bound(f"power_of_n_without_mean_after_{layer}", "<=", 1.2),
            )
        ),
        fails=tuple(Bound(f"power_of_n_without_mean_after_{layer}", "<=", 0.0) for layer in (1, 2, 3)),
    ),
    *(
        Claim(
            f"without_mean_rank_of_{tokens}_tokens_in_numbers",
            PAPER,
            f"Without J at n = {tokens} the stable rank is {', '.join(f'{v:g}' for v in values)}.",
            "each within a factor 1.35 after 1, 2, 3 layers (measured before)",
            holds=tuple(
                bound for layer, value in enumerate(values, 1) for bound in within(rank_key(tokens, layer), value, 1.35)
            ),
        )
        for tokens, values in RANK_BEFORE.items()
    ),
    Claim(
        "gradients_grow_with_size",
        PAPER,
        "Gradients of early value weights grow with tokens and coordinates together under softmax, and not without J.",
        "powers of n within .1 of 1/2 and -1/2 (derived for three layers and as many coordinates as tokens)",
        holds=(
            Bound("gradient_power_of_n", ">=", 0.4),
            Bound("gradient_power_of_n", "<=", 0.6),
            Bound("gradient_power_of_n_without_mean", ">=", -0.6),
            Bound("gradient_power_of_n_without_mean", "<=", -0.4),
        ),
        fails=(Bound("gradient_power_of_n", "<=", 0.0),),
    ),
    Claim(
        "gradients_do_not_grow_with_length_alone",
        PAPER,
        "In a fixed width they do not grow with the number of tokens, and fall without J (our question).",
        f"powers of n within .15 of 0 and -1, {WIDTH} coordinates, independent tokens (derived for three layers)",
        holds=(
            Bound("gradient_power_of_tokens_alone", ">=", -0.15),
            Bound("gradient_power_of_tokens_alone", "<=", 0.15),
            Bound("gradient_power_of_tokens_alone_without_mean", ">=", -1.15),
            Bound("gradient_power_of_tokens_alone_without_mean", "<=", -0.85),
        ),
        fails=(Bound("gradient_power_of_tokens_alone", ">=", 0.4),),
    ),
)


@experiment(
    title="Mind the gap: rank collapse in width",
    paper=PAPER,
    summary="One singular value of random attention is 1, the rest vanish with n: rank goes, but not without the mean.",
    advice=(
        "Longer contexts make collapse worse, not only deeper stacks: at the start of training one direction "
        "survives a layer of random attention, and the rest fade as the number of tokens grows. If a model is "
        "trained from scratch on long sequences and its stable rank falls to one in the first layers, subtract the "
        "mean of attention (`minus_uniform`) or scale branches down. Growing gradients come with tokens and "
        "coordinates together; at a fixed width a longer text alone does not make them grow."
    ),
    presets={"quick": Params(), "paper": FULL},
    takes={"quick": "25 s", "paper": "15 min"},
    seeds={"quick": 3, "paper": 5},
    claims=CLAIMS,
)
def mind_the_gap2024(params: Params, seeds: tuple[int, ...], session: Session) -> Result:
    rows = [
        row for seed in seeds for row in session.part(f"stacks-{seed}", partial(measured_once, params, seed, session))
    ]
    measured: dict[str, list[float]] = {}
    for some in by_seed(rows, seeds):
        for name, value in numbers_of(some, params.layers).items():
            measured.setdefault(name, []).append(value)
    figures = markov_figures(rows, params.sizes, params.layers, WIDTH)
    return Result(measured, tuple(rows), figures, markov_remarks(rows, params.sizes, params.layers))


def _mean(values: Sequence[float]) -> float:
    """The geometric mean."""
    return math.exp(sum(math.log(value) for value in values) / len(values))
