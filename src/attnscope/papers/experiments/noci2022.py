"""Signal propagation in transformers: as tokens align, queries and keys stop learning (arXiv:2206.03126).

If all tokens are equal, so are the values, and their weighted mean does not depend on the weights: the gradients of W_Q
and W_K are zero, and only W_V still learns. Near alignment (derived), the output depends on a logit through differences
of values, and the logits depend on W_Q through differences of keys. Both are of size sqrt(1 - rho) for tokens of cosine
rho, so the gradients of W_Q and W_K are of size 1 - rho.

We measure, with random weights in float64 and the loss <G, output> for a fixed random G:

    alignment   the gradients of W_Q, W_K and W_V in one block, for tokens drawn with cosine rho, as rho goes to one
    depth       the cosine of the tokens that enter the last block, and the gradients there, in stacks without skips,
                with skips, and with skips and branches scaled by 1/sqrt(L), L being the number of blocks
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import torch
from torch import Tensor

from attnscope.core.experiment import Figure, Result, Session, claims, experiment
from attnscope.papers.models.nano import Block, Config, Nano
from attnscope.papers.models.nano_paths import entering
from attnscope.papers.trials.curves import Rows, curve, curves, measure_seeds, power_in, select

PAPER = "2206.03126"
ALONE, SKIP, SCALED = STACKS = ("attention alone", "skip", "skip, branch / sqrt(L)")


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
    """Draw tokens of unit variance; any two have an expected cosine of 1 - misalignment."""
    shape = (params.sequences, params.tokens, params.width)
    own, shared = (torch.randn(s, generator=rng, dtype=torch.float64) for s in (shape, (shape[0], 1, shape[2])))
    return shared * math.sqrt(1 - misalignment) + own * math.sqrt(misalignment)


def model_of(params: Params, stack: str, layers: int, seed: int) -> Nano:
    """Return a stack without MLPs and biases, with pre-norm if it has skips and post-norm otherwise."""
    width = params.width
    config = Config(
        width=width, heads=params.heads, layers=layers, inputs=width, out=width, positions="none", biases=False
    )
    if stack == ALONE:
        config = replace(config, norm="post", skip=0)
    elif stack == SCALED:
        config = replace(config, branch=layers**-0.5)
    model = Nano(config, seed).double()
    model.embedding = torch.nn.Identity()
    return model


def gradients(model: Nano, tokens: Tensor, seed: int) -> dict[str, float]:
    """Return the norms of the gradients of <G, output> in the last block, and the mean cosine of its input tokens."""
    stream, mask = entering(model, {"vectors": tokens})
    for block in list(model.blocks)[:-1]:
        stream = block(stream, mask)
    last = model.blocks[-1]
    assert isinstance(last, Block)
    output = last(stream, mask)
    weights = torch.randn(output.shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    loss = (weights * output).sum() / output.numel() ** 0.5
    parameters = [last.attention.query.weight, last.attention.key.weight, last.attention.value.weight]
    norms = [float(gradient.norm()) for gradient in torch.autograd.grad(loss, parameters)]
    unit = torch.nn.functional.normalize(stream.detach(), dim=-1)
    n = unit.shape[1]
    cosine = ((unit @ unit.mT).sum((-2, -1)) - n) / (n * (n - 1))
    return {**dict(zip(("query", "key", "value"), norms, strict=True)), "cosine": float(cosine.mean())}


def measured_once(params: Params, seed: int, session: Session) -> list[dict[str, Any]]:
    rng = torch.Generator().manual_seed(seed)
    rows: list[dict[str, Any]] = []
    for off in params.misalignments:
        norms = gradients(model_of(params, SKIP, 1, seed), aligned(params, off, rng), seed)
        rows.append({"stack": "one layer", "seed": seed, "misalignment": off, **norms})
    tokens = aligned(params, 1.0, rng)
    for stack in STACKS:
        for layers in params.depths:
            session.advance(f"{stack}, {layers} blocks", layers, params.depths[-1])
            norms = gradients(model_of(params, stack, layers, seed), tokens, seed)
            rows.append({"stack": stack, "seed": seed, "layers": layers, **norms})
    return rows


def numbers_of(rows: Rows) -> dict[str, float]:
    """Return the measured quantities of one seed."""
    single_block = sorted(select(rows, stack="one layer"), key=lambda row: -row["misalignment"])
    first, last = single_block[0], single_block[-1]
    near = [row for row in single_block if row["misalignment"] <= 0.1]
    alone, skip, scaled = (select(rows, stack=stack) for stack in STACKS)

    def kept(some: Rows) -> float:
        return float(some[-1]["query"] / max(row["query"] for row in some))

    return {
        **{f"{name}_gradient_kept_near_alignment": last[name] / first[name] for name in ("query", "key", "value")},
        "query_gradient_power_of_misalignment": power_in(near, "misalignment", "query"),
        "query_gradient_kept_without_skips": kept(alone),
        "query_gradient_kept_with_scaled_skips": kept(scaled),
        "scaled_over_unscaled_query_gradient": scaled[-1]["query"] / skip[-1]["query"],
        "cosine_without_skips": alone[-1]["cosine"],
        "cosine_with_skips": skip[-1]["cosine"],
        "cosine_with_scaled_skips": scaled[-1]["cosine"],
        "cosine_advantage_of_scaling": skip[-1]["cosine"] - scaled[-1]["cosine"],
    }


def figures(rows: Rows) -> tuple[Figure, ...]:
    one = select(rows, stack="one layer")
    deep = [row for row in rows if row["stack"] in STACKS]
    align = tuple(p for name in ("query", "key", "value") for p in curve(one, "misalignment", name, f"W of {name}"))
    query, cosine = (tuple(curves(deep, "layers", column, "stack", STACKS)) for column in ("query", "cosine"))
    title, caption = "Gradients as tokens align", "One block, random weights; median and range over seeds."
    axes = ("1 - cosine of tokens", "norm of gradient")
    of_depth = "Random weights; median and range over seeds."
    last, entry = "Gradient of W_Q in the last block", "Cosine of tokens entering the last block"
    return (
        Figure("alignment", title, caption, *axes, align, log=True, log_x=True),
        Figure("depth-gradient", last, of_depth, "blocks", "norm of gradient", query, log=True, log_x=True),
        Figure("depth-cosine", entry, of_depth, "blocks", "cosine", cosine, log_x=True),
    )


CLAIMS = claims(
    PAPER,
    """
    queries_and_keys_stop_learning: As tokens align, the gradients of W_Q and W_K vanish.
        expected: at cosine .9999 at most a hundredth of what they are for independent tokens
        holds: query_gradient_kept_near_alignment <= 0.01, key_gradient_kept_near_alignment <= 0.01
        fails: query_gradient_kept_near_alignment >= 0.5
    values_go_on_learning: The gradient of W_V does not vanish.
        expected: at cosine .9999 at least half of what it is for independent tokens
        holds: value_gradient_kept_near_alignment >= 0.5; fails: value_gradient_kept_near_alignment <= 0.01
    gradient_is_linear_in_misalignment: Near alignment the gradient of W_Q is proportional to 1 - cosine (our
            derivation, not in the paper).
        expected: power between .9 and 1.1 below a misalignment of .1
        holds: query_gradient_power_of_misalignment >= 0.9, query_gradient_power_of_misalignment <= 1.1
    depth_without_skips_stops_learning: Without skips, depth aligns tokens, and W_Q of the last block stops learning.
        expected: at the deepest, at most a millionth of the largest; cosine above .999
        holds: query_gradient_kept_without_skips <= 1e-6, cosine_without_skips >= 0.999
        fails: query_gradient_kept_without_skips >= 0.1
    scaling_keeps_tokens_apart: With skips and branches scaled by 1/sqrt(L), tokens do not align at any depth.
        expected: cosine at most .5 at the deepest, and below that of unscaled skips
        holds: cosine_with_scaled_skips <= 0.5, cosine_advantage_of_scaling > 0; fails: cosine_with_scaled_skips >= 0.9
    scaling_keeps_gradients: With branches scaled by 1/sqrt(L), W_Q of the last block learns more than without scaling.
        expected: a larger gradient at the deepest, although the factor 1/sqrt(L) itself makes it smaller
        holds: scaled_over_unscaled_query_gradient > 1; fails: scaled_over_unscaled_query_gradient <= 0.5
    """,
)


@experiment(
    title="Aligned tokens stop queries and keys from learning",
    paper=PAPER,
    summary="Gradients of W_Q and W_K vanish as tokens align; scaling branches by 1/sqrt(L) keeps tokens apart.",
    advice=(
        "If queries and keys stop learning early, check how alike the tokens are that enter the block: the gradients "
        "shrink in proportion to the remaining differences. Scale residual branches by 1/sqrt(blocks) at the start of "
        "training, or use another remedy that keeps tokens apart. Values go on learning either way, so a falling loss "
        "does not show that queries and keys still learn."
    ),
    presets={"quick": Params(), "paper": FULL},
    takes={"quick": "10 s", "paper": "2 min"},
    seeds={"quick": 3, "paper": 5},
    claims=CLAIMS,
)
def noci2022(params: Params, seeds: tuple[int, ...], session: Session) -> Result:
    work = partial(measured_once, params)
    rows = [row for seed in seeds for row in session.part(f"gradients-{seed}", partial(work, seed, session))]
    return Result(measure_seeds(rows, seeds, numbers_of), tuple(rows), figures(rows))
