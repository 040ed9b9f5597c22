"""Keys that no query attends to: how small the mass of a key can get, under softmax and double normalisation.

The mass of key j is m_j = sum_i A_ij. Double normalisation (arXiv:2009.14308) divides e^s_ij, for logits s_ij, first by
its sum over queries, which gives xi_ij <= 1, then by the sum over keys, which is at most n. So A_ij >= xi_ij / n and
m_j >= (1/n) sum_i xi_ij = 1/n, for any logits. Softmax has no such bound: a key that has a low logit for every query
loses all its mass (it is "explained away").

The paper illustrates this by a mixture of Gaussians with bandwidth h: queries q are centres, keys k are points, and one
application of doubly normalised attention is a step of soft clustering in which every point must be explained by some
centre. The logits -|q - k|^2 / (2 h^2) are dot products of (q, 1, -|q|^2/2) and (k, -|k|^2/2, 1), with scale 1/h^2.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

import torch
from jaxtyping import Float
from torch import Tensor

from attnscope.matrix.plain_attention import softmax_pattern
from attnscope.matrix.visibility import AttentionInputs
from attnscope.papers.models.nano import Block, Nano
from attnscope.papers.models.tasks import Task
from attnscope.papers.trials.model_patterns import model_patterns
from attnscope.variants.doubly_normalised import doubly_normalised

Heads = Float[Tensor, "batch head token dim"]
PatternTensor = Float[Tensor, "batch head query key"]
KINDS = ("softmax", "doubly_normalised")
FEW = 0.1
CLUSTERS = ((0.0, 0.0), (4.0, 0.0), (2.0, 4.0))


def pattern_of(kind: str, query: Heads, key: Heads, scale: float) -> PatternTensor:
    """Return the pattern of softmax, or that of double normalisation, by applying the variant to identity values."""
    identity = torch.eye(key.shape[-2], dtype=key.dtype).expand(*key.shape[:2], -1, -1)
    inputs = AttentionInputs(query, key, identity, scale=scale)
    rows: Tensor = softmax_pattern(inputs) if kind == "softmax" else doubly_normalised(inputs)
    return rows


def key_mass(pattern: PatternTensor) -> Float[Tensor, "batch head key"]:
    return pattern.sum(-2)


def disliked(tokens: int, dim: int, seed: int, by: float = 170.0) -> tuple[Heads, Heads]:
    """Return random queries and keys; the logit of one key is lower by `by` for every query."""
    rng = torch.Generator().manual_seed(seed)
    query, key = torch.randn(2, 1, 1, tokens, dim, generator=rng, dtype=torch.float64) / dim**0.25
    query[..., 0], key[..., 0] = 1.0, 0.0
    key[..., tokens // 2, 0] = -by
    return query, key


def mass_of_disliked_key(kind: str, tokens: int, dim: int, seed: int, by: float = 170.0) -> float:
    """Return the mass m_j of the key whose logit is lower by `by` for every query.

    Under double normalisation it does not depend on `by`: a term common to a column cancels in xi (derived).
    """
    query, key = disliked(tokens, dim, seed, by)
    return float(key_mass(pattern_of(kind, query, key, 1.0))[0, 0, tokens // 2])


def least_masses(tokens: int, dim: int, seed: int, sizes: tuple[float, ...]) -> dict[str, float]:
    """Return n times the smallest mass of a key, over random logits of several sizes and logits with a disliked key."""
    scores = [disliked(tokens, dim, seed)]
    rng = torch.Generator().manual_seed(seed + 1)
    for size in sizes:
        query, key = torch.randn(2, 1, 1, tokens, dim, generator=rng, dtype=torch.float64)
        scores.append((size * query, key))
    return {
        kind: tokens * min(float(key_mass(pattern_of(kind, query, key, dim**-0.5)).min()) for query, key in scores)
        for kind in KINDS
    }


def lifted(points: Float[Tensor, "token 2"], *, key: bool) -> Heads:
    """Add two coordinates, so that the dot product of a query and a key is -|q - k|^2/2."""
    half, one = -points.square().sum(-1, keepdim=True) / 2, torch.ones_like(points[:, :1])
    return torch.cat([points, half, one] if key else [points, one, half], -1)[None, None]


def clustering(kind: str, tokens: int, width: float, steps: int, seed: int) -> list[list[float]]:
    """Return the distance of each cluster to its nearest centre at each step; centres start in the first two."""
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
    """Return the share of keys with less than a tenth (our limit) of the mass that uniform attention gives them.

    Uniform attention gives a key the mass 1 if all queries see it; under a causal mask key j gets the sum over i >= j
    of 1/(i + 1). Only keys that at least half of the queries see are counted: the last key of a text is seen by a
    single query, and one small weight does not show that all queries avoid it.
    """
    visible = (pattern > 0).flatten(0, -3).any(0).double()
    uniform = (visible / visible.sum(-1, keepdim=True)).sum(-2)
    seen = visible.sum(-2) >= pattern.shape[-2] / 2
    return float((pattern.sum(-2) < FEW * uniform)[..., seen].double().mean())


def explained_away_in(model: str, samples: int, tokens: int, seed: int) -> float:
    """Return the share of keys explained away in all blocks and heads of a trained model, averaged over sequences."""
    sequences = model_patterns(model, samples=samples, max_tokens=tokens, seed=seed)
    shares = [explained_away(patterns) for patterns in sequences]
    return sum(shares) / len(shares)


@torch.no_grad()
def explained_away_by_queries(model: Nano, task: Task) -> Mapping[str, float]:
    """Return the share of keys that softmax of a nano encoder's queries and keys explains away on test sequences."""
    seen: list[Tensor] = []
    hooks = []
    for block in model.blocks:
        assert isinstance(block, Block)
        for part in (block.attention.query, block.attention.key):
            hooks.append(part.register_forward_hook(lambda _module, _inputs, out: seen.append(out)))
    try:
        model(**task.batch(task.test))
    finally:
        for hook in hooks:
            hook.remove()
    heads, dim = model.config.heads, model.config.dim
    split = [projected.reshape(*projected.shape[:2], heads, dim).transpose(1, 2).double() for projected in seen]
    shares = [
        explained_away(pattern_of("softmax", query, key, 1 / math.sqrt(dim)))
        for query, key in zip(split[::2], split[1::2], strict=True)
    ]
    return {"explained_away": sum(shares) / len(shares)}
