"""Keys that nobody attends to: how small a key's mass can get under softmax, and under double normalisation.

The mass of key j is m_j = sum_i A_ij. Doubly normalised (arXiv:2009.14308), xi_ij = e^s_ij / sum_i e^s_ij is at most 1,
so a row's sum of xi is at most n, A_ij >= xi_ij / n, and m_j >= (1/n) sum_i xi_ij = 1/n, whatever the scores. Softmax
has no such bound: a key that every query finds unlikely is gone ("explained away").

The paper's picture is a mixture of Gaussians: queries are centres, keys are points, and one application of doubly
normalised attention is a step of soft clustering in which every point must be explained by some centre. Logits
-|q - k|^2 / (2 h^2) are plain dot products of (q, 1, -|q|^2/2) and (k, -|k|^2/2, 1), with scale 1/h^2.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from attnscope.heads.accuracy import Accuracy
from attnscope.heads.certificate import certify
from attnscope.heads.head import Head
from attnscope.heads.pattern import Pattern
from attnscope.matrix.plain_attention import softmax_pattern
from attnscope.papers.models.nano import Block, Nano
from attnscope.papers.models.tasks import Task
from attnscope.papers.trials.localising import model_patterns
from attnscope.variants.doubly_normalised import doubly_normalised

# One attention module, drawn before any pattern is seen, and inputs that make it attend as asked.
#
# W_Q and W_K are the halves of a Gaussian matrix W = [W_Q W_K] of size 2d x 2d. For queries Q and keys K the input
# X = [Q K] W^(-1) has X W_Q = Q and X W_K = K. What is judged is what the module does with X, all in float32: products,
# softmax and rounding are the module's own, and a width too small or a W too near to singular shows as a pattern
# missed.


class FixedModule(NamedTuple):
    """W_Q and W_K, and for them both the way back from queries and keys to an input."""

    query: Float[Tensor, "twice width"]
    key: Float[Tensor, "twice width"]
    inverse: Float[Tensor, "twice twice"]


def fixed_module(width: int, rng: np.random.Generator) -> FixedModule:
    weights = torch.from_numpy(rng.standard_normal((2 * width, 2 * width)) / (2 * width) ** 0.5)
    rounded = weights.float()
    return FixedModule(rounded[:, :width], rounded[:, width:], torch.linalg.inv(rounded.double()))


def serves(module: FixedModule, head: Head, pattern: Pattern, accuracy: Accuracy) -> bool:
    """Whether the module, given the input that this head's queries and keys ask for, meets the accuracy."""
    stream = (torch.cat([head.queries, head.keys], dim=1).double() @ module.inverse).float()
    seen = Head(stream @ module.query, stream @ module.key, pattern.causal, "through a fixed module")
    return certify(seen, pattern, accuracy).reached


Heads = Float[Tensor, "batch head token dim"]
PatternTensor = Float[Tensor, "batch head query key"]
KINDS = ("softmax", "doubly_normalised")
FEW = 0.1
CLUSTERS = ((0.0, 0.0), (4.0, 0.0), (2.0, 4.0))


def pattern_of(kind: str, query: Heads, key: Heads, scale: float) -> PatternTensor:
    """Softmax, or the fast form of the variant, which works by logarithms, applied to the identity."""
    call: dict[str, Any] = {"visible": None, "causal": False, "scale": scale}
    if kind == "softmax":
        return softmax_pattern(query, key, **call)
    identity = torch.eye(key.shape[-2], dtype=key.dtype).expand(*key.shape[:2], -1, -1)
    rows: Tensor = doubly_normalised(query, key, identity, **call)
    return rows


def key_mass(pattern: PatternTensor) -> Float[Tensor, "batch head key"]:
    return pattern.sum(-2)


def hated(tokens: int, dim: int, seed: int, by: float = 170.0) -> tuple[Heads, Heads]:
    """Random queries and keys at scale 1, and one key whose logit is lower by `by` for every query."""
    rng = torch.Generator().manual_seed(seed)
    query, key = torch.randn(2, 1, 1, tokens, dim, generator=rng, dtype=torch.float64) / dim**0.25
    query[..., 0], key[..., 0] = 1.0, 0.0
    key[..., tokens // 2, 0] = -by
    return query, key


def mass_of_hated_key(kind: str, tokens: int, dim: int, seed: int, by: float = 170.0) -> float:
    """m_j of the key that all queries find unlikely. Doubly normalised it does not depend on `by`: what is common to a
    column cancels in xi (derived)."""
    query, key = hated(tokens, dim, seed, by)
    return float(key_mass(pattern_of(kind, query, key, 1.0))[0, 0, tokens // 2])


def least_masses(tokens: int, dim: int, seed: int, sizes: tuple[float, ...]) -> dict[str, float]:
    """n times the smallest mass of a key, over random scores of several sizes and over those with a hated key."""
    scores = [hated(tokens, dim, seed)]
    rng = torch.Generator().manual_seed(seed + 1)
    for size in sizes:
        query, key = torch.randn(2, 1, 1, tokens, dim, generator=rng, dtype=torch.float64)
        scores.append((size * query, key))
    return {
        kind: tokens * min(float(key_mass(pattern_of(kind, query, key, dim**-0.5)).min()) for query, key in scores)
        for kind in KINDS
    }


def lifted(points: Float[Tensor, "token 2"], *, key: bool) -> Heads:
    """Two more coordinates, in which dot products are -|q - k|^2/2."""
    half, one = -points.square().sum(-1, keepdim=True) / 2, torch.ones_like(points[:, :1])
    return torch.cat([points, half, one] if key else [points, one, half], -1)[None, None]


def clustering(kind: str, tokens: int, width: float, steps: int, seed: int) -> list[list[float]]:
    """For each step and cluster, how far the nearest centre is: centres begin in the first two of three clusters."""
    rng = torch.Generator().manual_seed(seed)
    middles = torch.tensor(CLUSTERS, dtype=torch.float64)
    noise = 0.3 * torch.randn(2, tokens, 2, generator=rng, dtype=torch.float64)
    number = torch.arange(tokens)
    points, centres = middles[number % 3] + noise[0], middles[number % 2] + noise[1]
    far = [torch.cdist(middles, centres).amin(-1).tolist()]
    for _ in range(steps):
        rows = pattern_of(kind, lifted(centres, key=False), lifted(points, key=True), 1 / width**2)
        centres = (rows @ points)[0, 0]
        far.append(torch.cdist(middles, centres).amin(-1).tolist())
    return far


def explained_away(pattern: Float[Tensor, "*more query key"]) -> float:
    """The share of keys with less than a tenth of the mass that uniform attention gives them (the tenth is ours).

    Where each query sees all keys, uniform attention gives each of them 1; under a causal mask key j gets the sum over
    later i of 1/(i + 1). Only keys that half of the queries see are counted: the last key of a text is asked by one
    query alone, and one small weight is no key that all find unlikely.
    """
    visible = (pattern > 0).flatten(0, -3).any(0).double()
    uniform = (visible / visible.sum(-1, keepdim=True)).sum(-2)
    asked = visible.sum(-2) >= pattern.shape[-2] / 2
    return float((pattern.sum(-2) < FEW * uniform)[..., asked].double().mean())


def explained_away_in(model: str, samples: int, tokens: int, seed: int) -> float:
    """Over all layers and heads of a trained model, the mean over sequences."""
    shares = [explained_away(one) for one in model_patterns(model, samples=samples, max_tokens=tokens, seed=seed)]
    return sum(shares) / len(shares)


@torch.no_grad()
def explained_away_by_queries(model: Nano, task: Task) -> Mapping[str, float]:
    """The same of a nano encoder on a task's test sequences: softmax of its own queries and keys."""
    seen: list[Tensor] = []
    hooks = []
    for block in model.blocks:
        assert isinstance(block, Block)
        for part in (block.attention.query, block.attention.key):
            hooks.append(part.register_forward_hook(lambda _module, _given, out: seen.append(out)))
    try:
        model(**task.batch(task.test))
    finally:
        for hook in hooks:
            hook.remove()
    heads, dim = model.config.heads, model.config.dim
    split = [one.reshape(*one.shape[:2], heads, dim).transpose(1, 2).double() for one in seen]
    shares = [
        explained_away(softmax_pattern(query, key, visible=None, causal=False, scale=1 / math.sqrt(dim)))
        for query, key in zip(split[::2], split[1::2], strict=True)
    ]
    return {"explained_away": sum(shares) / len(shares)}
