"""FAST: attention whose weights factorise, so that cost grows with n and not with n^2 (arXiv:2402.07901).

exact      the factorised form compared with pattern times values, with and without a causal mask
kernels    order 2 gives no small or negative weights; order 1 needs bounded products q . k
cost       operations and time against n. Verdicts use operations, which are counted; times vary from run to run
learning   models that differ only in attention, trained in the same way on sorting and convex hulls
sharpness  how much weight a key gets if it equals the query (our question)

Differences from the paper: we use small tasks instead of images and the Long Range Arena, and divide a query by its own
norm, not by the largest norm in the sequence, which would depend on future tokens (see `variants/fastmax1.py`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from attnscope.core.experiment import Figure, Point, Result, Session, claims, experiment, median
from attnscope.papers.models.nano import Attend, Config, exchanged, scaled_dot_product
from attnscope.papers.trials import factorised_cost, trained_alike
from attnscope.papers.trials.curves import Row, Rows, curve, curves, power_in, select
from attnscope.papers.trials.trained_alike import has_learned
from attnscope.variants.fastmax1 import fastmax1
from attnscope.variants.fastmax2 import fastmax2

PAPER = "2402.07901"
CORES: Mapping[str, Callable[[Config], Attend]] = {
    "softmax": lambda _: scaled_dot_product,
    "fastmax1": lambda _: exchanged(fastmax1),
    "fastmax2": lambda _: exchanged(fastmax2),
}
SHAPE, SHORT = trained_alike.Shape(), trained_alike.Training(steps=250)


@dataclass(frozen=True)
class Params:
    exact_tokens: int = 64
    exact_dim: int = 16
    kernel_tokens: int = 512
    kernel_dim: int = 20
    dim: int = 32
    lengths: tuple[int, ...] = (256, 512, 1024, 2048, 4096)
    needle_lengths: tuple[int, ...] = (64, 256, 1024)
    shape: trained_alike.Shape = SHAPE
    training: trained_alike.Training = SHORT


FULL = replace(
    Params(),
    lengths=(256, 512, 1024, 2048, 4096, 8192, 16384),
    needle_lengths=(64, 256, 1024, 4096),
    shape=trained_alike.Shape(layers=4, data=(10000, 500)),
    training=trained_alike.Training(steps=1000),
)


def algebra(params: Params, seed: int) -> dict[str, Any]:
    """Return the numbers of one seed that need no training."""
    errors = {
        f"{kind}{', causal' * causal}": factorised_cost.largest_error(
            kind, params.exact_tokens, params.exact_dim, causal, seed
        )
        for kind in ("fastmax1", "fastmax2")
        for causal in (False, True)
    }
    raw, bounded = factorised_cost.negative_share(params.kernel_tokens, params.kernel_dim, seed)
    return {
        "seed": seed,
        "errors": errors,
        "least_kernel": factorised_cost.least_kernel("fastmax2", params.kernel_tokens, params.kernel_dim, seed),
        "negative_unbounded": raw,
        "negative_expected": factorised_cost.expected_negative_share(params.kernel_dim),
        "negative_bounded": bounded,
        "needle": [
            {
                "kind": kind,
                "tokens": n,
                "weight": factorised_cost.needle_weight(kind, n, params.dim, seed),
                "seed": seed,
            }
            for kind in factorised_cost.KINDS
            for n in params.needle_lengths
        ],
    }


def costs(params: Params, session: Session) -> list[dict[str, Any]]:
    rows = []
    for causal in (False, True):
        for done, tokens in enumerate(params.lengths):
            session.advance(f"{tokens} tokens", done, len(params.lengths))
            for kind in factorised_cost.KINDS:
                count, time = (
                    measure(kind, tokens, params.dim, causal)
                    for measure in (factorised_cost.operations, factorised_cost.seconds)
                )
                row = {
                    "kind": kind,
                    "tokens": tokens,
                    "causal": causal,
                    "operations": count,
                    "milliseconds": 1e3 * time,
                }
                rows.append(row)
    return rows


CLAIMS = claims(
    PAPER,
    """
    factorised_is_exact: The factorised form computes the attention that its pattern describes.
        expected: largest difference at most 1e-14 in float64, orders 1 and 2, causal or not (earlier: 3e-15)
        holds: largest_difference_from_pattern <= 1e-14; fails: largest_difference_from_pattern >= 1e-6
    order_2_is_positive: No weight of order 2 is negative, for any logits.
        expected: the kernel is at least 1/2 everywhere (derived), read from the weights of the factorised form in
            float64, at three scales (1e-6 for rounding)
        holds: least_kernel_of_order_2 >= 0.499999; fails: least_kernel_of_order_2 < 0
    order_1_needs_bounded_products: Many weights of order 1 are negative, unless q . k is bounded.
        expected: 41% within .03 at 20 dimensions (earlier; Phi(-1/sqrt(20)) = .4115), and none with the bound
        holds: negative_share_unbounded >= 0.38, negative_share_unbounded <= 0.44, negative_share_bounded <= 0
        fails: negative_share_bounded > 0.01
    """,
    *(
        f"""
        {kind}_is_linear_in_n: The cost of {kind} grows with n and not with n^2.
            expected: power of n in operations, causal and not: at most 1.1 (our limit)
            holds: {kind}_power_of_n <= 1.1; fails: {kind}_power_of_n >= 1.5
        """
        for kind in ("fastmax1", "fastmax2")
    ),
    *(
        f"""
        fastmax{order}_learns_{task}: Trained alike, order {order} is as good as softmax at {task}.
            expected: accuracy at most .05 below softmax, which is .1 above guessing (our limits and tasks)
            holds: {task}_softmax_over_fastmax{order} <= 0.05; fails: {task}_softmax_over_fastmax{order} >= 0.15
            given: {has_learned(task)}
        """
        for order in (2, 1)
        for task in trained_alike.TASKS
    ),
    """
    a_polynomial_is_blunt: A key that equals its query gets much less weight among many than under softmax (our
            question).
        expected: at most a fifth of softmax's weight at the longest (derived at 32 dimensions, 1024 keys: a tenth)
        holds: needle_weight_of_fastmax2_over_softmax <= 0.2; fails: needle_weight_of_fastmax2_over_softmax >= 1
    """,
)


@experiment(
    title="FAST: factorisable attention",
    paper=PAPER,
    summary="A polynomial instead of the exponential: exact, positive, linear in n; what it can and cannot learn.",
    advice=(
        "A polynomial instead of the exponential is exact in linear time and can replace softmax in small tasks. Use "
        "order 2, whose weights are never negative; bound q . k if you must use order 1. It cannot find a needle: a "
        "matching key gets about a tenth of the weight that softmax gives it, so keep softmax in some blocks for "
        "retrieval."
    ),
    presets={"quick": Params(), "paper": FULL},
    takes={"quick": "40 s", "paper": "15 min"},
    seeds={"quick": 1, "paper": 3},
    claims=CLAIMS,
)
def fast2024(params: Params, seeds: tuple[int, ...], session: Session) -> Result:
    known = [session.part(f"algebra-{seed}", partial(algebra, params, seed)) for seed in seeds]
    cost = session.part("costs", partial(costs, params, session))
    models = trained_alike.train_kinds(params.shape, params.training, CORES, seeds, session)

    def longest_needle(row: Row, kind: str) -> float:
        (longest,) = select(row["needle"], kind=kind, tokens=params.needle_lengths[-1])
        return float(longest["weight"])

    powers = {
        kind: max(power_in(select(cost, kind=kind, causal=causal), "tokens", "operations") for causal in (False, True))
        for kind in factorised_cost.KINDS
    }
    measured: dict[str, list[float]] = {
        "largest_difference_from_pattern": [max(row["errors"].values()) for row in known],
        "least_kernel_of_order_2": [row["least_kernel"] for row in known],
        "negative_share_unbounded": [row["negative_unbounded"] for row in known],
        "negative_share_bounded": [row["negative_bounded"] for row in known],
        **{f"{kind}_power_of_n": [power] * len(seeds) for kind, power in powers.items()},
        "needle_weight_of_fastmax2_over_softmax": [
            longest_needle(row, "fastmax2") / longest_needle(row, "softmax") for row in known
        ],
    }
    measured |= trained_alike.accuracy_numbers(models, factorised_cost.KINDS)
    return Result(measured, (*known, *cost, *models), figures(known, cost, models), remarks(cost, measured, params))


def figures(known: Rows, cost: Rows, models: Rows) -> tuple[Figure, ...]:
    def costing(y: str) -> tuple[Point, ...]:
        return tuple(
            point
            for causal, panel in ((False, "all keys"), (True, "causal"))
            for kind in factorised_cost.KINDS
            for point in curve(select(cost, kind=kind, causal=causal), "tokens", y, kind, panel)
        )

    needles = tuple(
        curves([row for part in known for row in part["needle"]], "tokens", "weight", "kind", factorised_cost.KINDS)
    )
    timed = "Forward, float32, one core, shortest of three; softmax in its fused kernel. Varies from run to run."
    counted = "Counted, not timed; softmax does not skip what a causal mask hides."
    needle = "Among random keys, standardised; mean over keys, median and range over seeds."
    log: dict[str, Any] = {"log": True, "log_x": True}
    return (
        Figure("time", "Time of one head", timed, "tokens", "milliseconds", costing("milliseconds"), **log),
        Figure(
            "operations", "Operations in matrix products", counted, "tokens", "operations", costing("operations"), **log
        ),
        trained_alike.accuracy_figure(models, factorised_cost.KINDS),
        Figure("needle", "Weight of a key that equals its query", needle, "tokens", "weight", needles, **log),
    )


def remarks(cost: Rows, measured: Mapping[str, Sequence[float]], params: Params) -> tuple[str, ...]:
    def first_win(kind: str) -> str:
        for tokens in params.lengths:
            here = {row["kind"]: row["milliseconds"] for row in select(cost, tokens=tokens, causal=False)}
            if here[kind] < here["softmax"]:
                return f"from {tokens} tokens on"
        return f"not up to {params.lengths[-1]} tokens"

    blunt = median(measured["needle_weight_of_fastmax2_over_softmax"])
    return (
        f"What follows: with heads of {params.dim} dimensions, fastmax1 was faster than the fused kernel on this "
        f"machine {first_win('fastmax1')}, fastmax2 {first_win('fastmax2')} (all keys). It pays for long sequences and "
        f"narrow heads, in models trained with it. A key that equals its query gets {blunt:.2f} of the weight that "
        f"softmax gives it among {params.needle_lengths[-1]}, so keep some softmax heads where one token out of many "
        "matters.",
    )
