"""FAST: attention whose weights factorise, so that cost grows with n and not with n^2 (arXiv:2402.07901).

exact      the factorised form beside pattern times values, causal and not
kernels    no weight of order 2 is small or negative; order 1 needs bounded products
cost       operations and time against n. Verdicts rest on operations, which are counted: a time is not the same twice
learning   models that differ in attention alone, trained alike on sorting and convex hulls
sharpness  how much weight a key can get that equals its query (our question)

What differs from the paper: small tasks in the place of images and the Long Range Arena; and a query is divided
by its own length, not by the longest of the sequence, which would see the future (see `variants/fastmax1.py`).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from attnscope.core.experiment import Bound, Claim, Result, Session, experiment
from attnscope.papers.models.nano import Attend, exchanged, scaled_dot_product
from attnscope.papers.trials.curves import power_of
from attnscope.papers.trials.factorised_cost import (
    KINDS,
    expected_negative_share,
    factorised_figures,
    factorised_remarks,
    largest_error,
    least_kernel,
    needle_weight,
    negative_share,
    operations,
    seconds,
)
from attnscope.papers.trials.trained_alike import (
    TASKS,
    Shape,
    Training,
    accuracy_numbers,
    has_learned,
    task_of,
    trained_alike,
)
from attnscope.variants.fastmax1 import fastmax1
from attnscope.variants.fastmax2 import fastmax2

PAPER = "2402.07901"
CORES: Mapping[str, Attend] = {
    "softmax": scaled_dot_product,
    "fastmax1": exchanged(fastmax1),
    "fastmax2": exchanged(fastmax2),
}
SHAPE = Shape()
SHORT = Training(steps=250)


@dataclass(frozen=True)
class Params:
    exact_tokens: int = 64
    exact_dim: int = 16
    kernel_tokens: int = 512
    kernel_dim: int = 20
    dim: int = 32
    lengths: tuple[int, ...] = (256, 512, 1024, 2048, 4096)
    needle_lengths: tuple[int, ...] = (64, 256, 1024)
    shape: Shape = SHAPE
    training: Training = SHORT


FULL = replace(
    Params(),
    lengths=(256, 512, 1024, 2048, 4096, 8192, 16384),
    needle_lengths=(64, 256, 1024, 4096),
    shape=Shape(layers=4, data=(10000, 500)),
    training=Training(steps=1000),
)


def algebra(params: Params, seed: int) -> dict[str, Any]:
    """What can be said of the module without training it."""
    errors = {
        f"{kind}{', causal' * causal}": largest_error(kind, params.exact_tokens, params.exact_dim, causal, seed)
        for kind in ("fastmax1", "fastmax2")
        for causal in (False, True)
    }
    raw, bounded = negative_share(params.kernel_tokens, params.kernel_dim, seed)
    return {
        "seed": seed,
        "errors": errors,
        "least_kernel": least_kernel("fastmax2", params.kernel_tokens, params.kernel_dim, seed),
        "negative_unbounded": raw,
        "negative_expected": expected_negative_share(params.kernel_dim),
        "negative_bounded": bounded,
        "needle": [
            {"kind": kind, "tokens": n, "weight": needle_weight(kind, n, params.dim, seed), "seed": seed}
            for kind in KINDS
            for n in params.needle_lengths
        ],
    }


def costs(params: Params, session: Session) -> list[dict[str, Any]]:
    rows = []
    for causal in (False, True):
        for done, tokens in enumerate(params.lengths):
            session.advance(f"{tokens} tokens", done, len(params.lengths))
            rows += [
                {
                    "kind": kind,
                    "tokens": tokens,
                    "causal": causal,
                    "operations": operations(kind, tokens, params.dim, causal),
                    "milliseconds": 1e3 * seconds(kind, tokens, params.dim, causal),
                }
                for kind in KINDS
            ]
    return rows


def learned(name: str, kind: str, params: Params, seed: int, session: Session) -> dict[str, Any]:
    task, config = task_of(name, params.shape, seed)
    return trained_alike(task, config, params.training, kind, seed, session, core=lambda: CORES[kind])


CLAIMS = (
    Claim(
        "factorised_is_exact",
        PAPER,
        "The factorised form computes the attention that its pattern describes.",
        "largest difference at most 1e-14 in float64, orders 1 and 2, causal or not (measured before: 3e-15)",
        holds=(Bound("largest_difference_from_pattern", "<=", 1e-14),),
        fails=(Bound("largest_difference_from_pattern", ">=", 1e-6),),
    ),
    Claim(
        "order_2_is_positive",
        PAPER,
        "No weight of order 2 is negative, whatever the logits.",
        "the kernel is at least 1/2 everywhere (derived), read from the weights of the factorised form in float64, at "
        "three scales (1e-6 for rounding)",
        holds=(Bound("least_kernel_of_order_2", ">=", 0.5 - 1e-6),),
        fails=(Bound("least_kernel_of_order_2", "<", 0.0),),
    ),
    Claim(
        "order_1_needs_bounded_products",
        PAPER,
        "Without a bound on q . k many weights of order 1 are negative; with it none is.",
        "41% within .03 at 20 dimensions (measured before; Phi(-1/sqrt(20)) = .4115), and none",
        holds=(
            Bound("negative_share_unbounded", ">=", 0.38),
            Bound("negative_share_unbounded", "<=", 0.44),
            Bound("negative_share_bounded", "<=", 0.0),
        ),
        fails=(Bound("negative_share_bounded", ">", 0.01),),
    ),
    *(
        Claim(
            f"{kind}_is_linear_in_n",
            PAPER,
            f"The cost of {kind} grows with n and not with n^2.",
            "power of n in operations, causal and not: at most 1.1 (our limit)",
            holds=(Bound(f"{kind}_power_of_n", "<=", 1.1),),
            fails=(Bound(f"{kind}_power_of_n", ">=", 1.5),),
        )
        for kind in ("fastmax1", "fastmax2")
    ),
    *(
        Claim(
            f"fastmax2_learns_{task}",
            PAPER,
            f"Trained alike, order 2 is as good as softmax at {task}.",
            "accuracy at most .05 below that of softmax, which is .1 above guessing (our limits and tasks)",
            holds=(Bound(f"{task}_softmax_over_fastmax2", "<=", 0.05),),
            fails=(Bound(f"{task}_softmax_over_fastmax2", ">=", 0.15),),
            given=(has_learned(task),),
        )
        for task in TASKS
    ),
    *(
        Claim(
            f"fastmax1_learns_{task}",
            PAPER,
            f"Trained alike, order 1 is as good as softmax at {task}.",
            "accuracy at most .05 below that of softmax, which is .1 above guessing (our limits and tasks)",
            holds=(Bound(f"{task}_softmax_over_fastmax1", "<=", 0.05),),
            fails=(Bound(f"{task}_softmax_over_fastmax1", ">=", 0.15),),
            given=(has_learned(task),),
        )
        for task in TASKS
    ),
    Claim(
        "a_polynomial_is_blunt",
        PAPER,
        "A key that equals its query gets much less weight among many others than under softmax (our question).",
        "at most a fifth of softmax's weight at the longest (derived at 32 dimensions, 1024 keys: a tenth)",
        holds=(Bound("needle_weight_of_fastmax2_over_softmax", "<=", 0.2),),
        fails=(Bound("needle_weight_of_fastmax2_over_softmax", ">=", 1.0),),
    ),
)


@experiment(
    title="FAST: factorisable attention",
    paper=PAPER,
    summary="A polynomial in the place of the exponential: exact, positive, linear in n; what it can learn and cannot.",
    advice=(
        "A polynomial in place of the exponential is exact in linear time and can stand in for softmax in small "
        "tasks; take order 2, whose weights are never negative, and bound q . k if you must use order 1. Do not "
        "expect it to find a needle: a matching key gets about a tenth of the weight that softmax gives it, so "
        "tasks of retrieval should keep softmax in some layers."
    ),
    presets={"quick": Params(), "paper": FULL},
    takes={"quick": "40 s", "paper": "15 min"},
    seeds={"quick": 1, "paper": 3},
    claims=CLAIMS,
)
def fast2024(params: Params, seeds: tuple[int, ...], session: Session) -> Result:
    known = [session.part(f"algebra-{seed}", partial(algebra, params, seed)) for seed in seeds]
    cost = session.part("costs", partial(costs, params, session))
    models = [
        session.part(f"{task}-{kind}-{seed}", partial(learned, task, kind, params, seed, session))
        for seed in seeds
        for task in TASKS
        for kind in KINDS
    ]
    powers = {
        kind: max(
            power_of([row["tokens"] for row in some], [row["operations"] for row in some])
            for causal in (False, True)
            if (some := [row for row in cost if row["kind"] == kind and row["causal"] == causal])
        )
        for kind in KINDS
    }
    measured: dict[str, list[float]] = {
        "largest_difference_from_pattern": [max(one["errors"].values()) for one in known],
        "least_kernel_of_order_2": [one["least_kernel"] for one in known],
        "negative_share_unbounded": [one["negative_unbounded"] for one in known],
        "negative_share_bounded": [one["negative_bounded"] for one in known],
        **{f"{kind}_power_of_n": [power] * len(seeds) for kind, power in powers.items()},
        "needle_weight_of_fastmax2_over_softmax": [
            _weight(one, "fastmax2", params) / _weight(one, "softmax", params) for one in known
        ],
    }
    measured |= accuracy_numbers(models, KINDS)
    said = factorised_remarks(cost, measured, params.dim, params.lengths, params.needle_lengths)
    records = (*known, *cost, *models)
    return Result(measured, records, factorised_figures(known, cost, models), said)


def _weight(one: Mapping[str, Any], kind: str, params: Params) -> float:
    longest = params.needle_lengths[-1]
    return next(float(row["weight"]) for row in one["needle"] if (row["kind"], row["tokens"]) == (kind, longest))
