"""Signal propagation in transformers: as tokens align, queries and keys stop learning (arXiv:2206.03126).

When all tokens are equal, the gradients of W_Q and W_K are zero, because softmax then weighs equal values, and no
weighing of equal values changes the answer; W_V still learns. Near alignment (derived): what a logit changes is a
difference of values, and what W_Q changes in it a difference of keys; each is of size sqrt(1 - rho) for tokens of
cosine rho, so the gradients are of size 1 - rho.

Measured on random weights in float64, for the loss <G, output> with a fixed random G:

    alignment   one layer, tokens drawn with cosine rho: gradients of W_Q and W_V as rho goes to one
    depth       stacks without skips, with skips, and with skips and branches scaled by 1/sqrt(L): the cosine of tokens
                that enter the last layer, and the gradients of W_Q there
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor

from attnscope.core.experiment import Bound, Claim, Figure, Point, Result, Session, experiment
from attnscope.papers.models.nano import Block, Config, Nano
from attnscope.papers.models.plant import entering

PAPER = "2206.03126"
STACKS = ("attention alone", "skip", "skip, branch / sqrt(L)")


@dataclass(frozen=True)
class Params:
    width: int = 64
    heads: int = 1
    tokens: int = 32
    sequences: int = 4
    misalignments: tuple[float, ...] = (1.0, 0.3, 0.1, 0.03, 0.01, 1e-3, 1e-4)  # 1 - rho
    depths: tuple[int, ...] = (1, 2, 4, 8, 16, 32)


FULL = replace(Params(), width=256, heads=4, tokens=64, depths=(1, 2, 4, 8, 16, 32, 64))


def aligned(params: Params, misalignment: float, rng: torch.Generator) -> Tensor:
    """Unit-variance tokens any two of which have cosine 1 - misalignment, up to chance."""
    shape = (params.sequences, params.tokens, params.width)
    own, shared = (torch.randn(s, generator=rng, dtype=torch.float64) for s in (shape, (shape[0], 1, shape[2])))
    return shared * math.sqrt(1 - misalignment) + own * math.sqrt(misalignment)


def model_of(params: Params, stack: str, layers: int, seed: int) -> Nano:
    """Attention without MLP and biases, norms before it where there are skips, and behind it where there are none."""
    config = Config(
        inputs=params.width,
        out=params.width,
        width=params.width,
        heads=params.heads,
        layers=layers,
        positions="none",
        biases=False,
        norm="post" if stack == "attention alone" else "pre",
        skip=0 if stack == "attention alone" else 1,
        branch=layers**-0.5 if "sqrt" in stack else 1.0,
    )
    model = Nano(config, seed).double()
    model.embedding = torch.nn.Identity()
    return model


def gradients(model: Nano, tokens: Tensor, seed: int) -> dict[str, float]:
    """Norms of the gradients of <G, output> in the last layer, and the mean cosine of the tokens that enter it."""
    stream, mask = entering(model, {"vectors": tokens})
    for block in list(model.blocks)[:-1]:
        stream = block(stream, mask)
    last = model.blocks[-1]
    assert isinstance(last, Block)
    output = last(stream, mask)
    weights = torch.randn(output.shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    loss = (weights * output).sum() / output.numel() ** 0.5
    parameters = [last.attention.query.weight, last.attention.key.weight, last.attention.value.weight]
    query, key, value = torch.autograd.grad(loss, parameters)
    unit = torch.nn.functional.normalize(stream.detach(), dim=-1)
    n = unit.shape[1]
    cosine = ((unit @ unit.mT).sum((-2, -1)) - n) / (n * (n - 1))
    return {
        "query": float(query.norm()),
        "key": float(key.norm()),
        "value": float(value.norm()),
        "cosine": float(cosine.mean()),
    }


def measured_once(params: Params, seed: int, session: Session) -> list[dict[str, Any]]:
    rng = torch.Generator().manual_seed(seed)
    rows: list[dict[str, Any]] = []
    for off in params.misalignments:
        model = model_of(params, "skip", 1, seed)
        rows.append(
            {
                "stack": "one layer",
                "seed": seed,
                "misalignment": off,
                **gradients(model, aligned(params, off, rng), seed),
            }
        )
    tokens = aligned(params, 1.0, rng)
    for stack in STACKS:
        for layers in params.depths:
            session.advance(f"{stack}, {layers} layers", layers, params.depths[-1])
            rows.append(
                {
                    "stack": stack,
                    "seed": seed,
                    "layers": layers,
                    **gradients(model_of(params, stack, layers, seed), tokens, seed),
                }
            )
    return rows


def numbers_of(rows: Sequence[Mapping[str, Any]]) -> dict[str, float]:
    """What the claims ask of one seed."""
    one = sorted((row for row in rows if row["stack"] == "one layer"), key=lambda row: -row["misalignment"])
    near = [row for row in one if row["misalignment"] <= 0.1]
    slope = np.polyfit(np.log([r["misalignment"] for r in near]), np.log([r["query"] for r in near]), 1)[0]
    by_stack = {stack: [row for row in rows if row["stack"] == stack] for stack in STACKS}
    kept = {stack: some[-1]["query"] / max(row["query"] for row in some) for stack, some in by_stack.items()}
    return {
        "query_gradient_kept_near_alignment": one[-1]["query"] / one[0]["query"],
        "key_gradient_kept_near_alignment": one[-1]["key"] / one[0]["key"],
        "value_gradient_kept_near_alignment": one[-1]["value"] / one[0]["value"],
        "query_gradient_power_of_misalignment": float(slope),
        "query_gradient_kept_without_skips": kept["attention alone"],
        "query_gradient_kept_with_scaled_skips": kept["skip, branch / sqrt(L)"],
        "scaled_over_unscaled_query_gradient": by_stack["skip, branch / sqrt(L)"][-1]["query"]
        / by_stack["skip"][-1]["query"],
        "cosine_without_skips": by_stack["attention alone"][-1]["cosine"],
        "cosine_with_skips": by_stack["skip"][-1]["cosine"],
        "cosine_with_scaled_skips": by_stack["skip, branch / sqrt(L)"][-1]["cosine"],
    }


def figures_of(rows: Sequence[Mapping[str, Any]]) -> tuple[Figure, ...]:
    def curve(some: Sequence[Mapping[str, Any]], x: str, y: str, series: str) -> list[Point]:
        return [
            Point.over([row[y] for row in some if row[x] == at], at, series)
            for at in dict.fromkeys(row[x] for row in some)
        ]

    one = [row for row in rows if row["stack"] == "one layer"]
    align = [point for name in ("query", "key", "value") for point in curve(one, "misalignment", name, f"W of {name}")]
    deep = {stack: [row for row in rows if row["stack"] == stack] for stack in STACKS}
    return (
        Figure(
            "alignment",
            "Gradients as tokens align",
            "One layer, random weights; median and range over seeds.",
            "1 - cosine of tokens",
            "norm of gradient",
            tuple(align),
            log=True,
            log_x=True,
        ),
        Figure(
            "depth-gradient",
            "Gradient of W_Q in the last layer",
            "Random weights; median and range over seeds.",
            "layers",
            "norm of gradient",
            tuple(p for s, some in deep.items() for p in curve(some, "layers", "query", s)),
            log=True,
            log_x=True,
        ),
        Figure(
            "depth-cosine",
            "Cosine of tokens entering the last layer",
            "Random weights; median and range over seeds.",
            "layers",
            "cosine",
            tuple(p for s, some in deep.items() for p in curve(some, "layers", "cosine", s)),
            log_x=True,
        ),
    )


CLAIMS = (
    Claim(
        "queries_and_keys_stop_learning",
        PAPER,
        "As tokens align, the gradients of W_Q and W_K vanish.",
        "at cosine .9999 at most a hundredth of what they are for independent tokens",
        holds=(
            Bound("query_gradient_kept_near_alignment", "<=", 0.01),
            Bound("key_gradient_kept_near_alignment", "<=", 0.01),
        ),
        fails=(Bound("query_gradient_kept_near_alignment", ">=", 0.5),),
    ),
    Claim(
        "values_go_on_learning",
        PAPER,
        "The gradient of W_V does not vanish.",
        "at cosine .9999 at least half of what it is for independent tokens",
        holds=(Bound("value_gradient_kept_near_alignment", ">=", 0.5),),
        fails=(Bound("value_gradient_kept_near_alignment", "<=", 0.01),),
    ),
    Claim(
        "gradient_is_linear_in_misalignment",
        PAPER,
        "Near alignment the gradient of W_Q is proportional to 1 - cosine (our derivation, above; not in the paper).",
        "power between .9 and 1.1 below a misalignment of .1",
        holds=(
            Bound("query_gradient_power_of_misalignment", ">=", 0.9),
            Bound("query_gradient_power_of_misalignment", "<=", 1.1),
        ),
    ),
    Claim(
        "depth_without_skips_stops_learning",
        PAPER,
        "Without skips, depth aligns tokens, and W_Q of the last layer stops learning.",
        "at the deepest, at most a millionth of the largest; cosine above .999",
        holds=(Bound("query_gradient_kept_without_skips", "<=", 1e-6), Bound("cosine_without_skips", ">=", 0.999)),
        fails=(Bound("query_gradient_kept_without_skips", ">=", 0.1),),
    ),
    Claim(
        "scaling_keeps_tokens_apart",
        PAPER,
        "With skips and branches scaled by 1/sqrt(L), tokens do not align, however deep.",
        "cosine at most .5 at the deepest, and below that of unscaled skips",
        holds=(Bound("cosine_with_scaled_skips", "<=", 0.5), Bound("cosine_advantage_of_scaling", ">", 0.0)),
        fails=(Bound("cosine_with_scaled_skips", ">=", 0.9),),
    ),
    Claim(
        "scaling_keeps_gradients",
        PAPER,
        "With branches scaled by 1/sqrt(L), W_Q of the last layer learns more than with unscaled ones.",
        "at the deepest, a larger gradient, though the factor 1/sqrt(L) itself makes it smaller",
        holds=(Bound("scaled_over_unscaled_query_gradient", ">", 1.0),),
        fails=(Bound("scaled_over_unscaled_query_gradient", "<=", 0.5),),
    ),
)


@experiment(
    title="Aligned tokens stop queries and keys from learning",
    paper=PAPER,
    summary="Gradients of W_Q and W_K vanish as tokens align; scaling branches by 1/sqrt(L) keeps tokens apart.",
    advice=(
        "If queries and keys stop learning early, look at how alike the tokens are that enter the layer: their "
        "gradients shrink in proportion to what is left of the differences. Scale residual branches by "
        "1/sqrt(layers) at the start of training, or use another remedy that keeps tokens apart; values go on "
        "learning either way, so a falling loss does not tell that queries and keys are dead."
    ),
    presets={"quick": Params(), "paper": FULL},
    takes={"quick": "10 s", "paper": "2 min"},
    seeds={"quick": 3, "paper": 5},
    claims=CLAIMS,
)
def noci2022(params: Params, seeds: tuple[int, ...], session: Session) -> Result:
    rows = [
        row
        for seed in seeds
        for row in session.part(f"gradients-{seed}", partial(measured_once, params, seed, session))
    ]
    measured: dict[str, list[float]] = {}
    for seed in seeds:
        numbers = numbers_of([row for row in rows if row["seed"] == seed])
        numbers["cosine_advantage_of_scaling"] = numbers["cosine_with_skips"] - numbers["cosine_with_scaled_skips"]
        for name, value in numbers.items():
            measured.setdefault(name, []).append(value)
    return Result(measured, tuple(rows), figures_of(rows))
