"""Heads without softmax, sum_j X W1_j X^T X W2_j, and their convex twin (arXiv:2205.08078).

Entry by entry, with X_s the token s and G = X^T X,

    (X W1 G W2)[s, b] = sum_{a,k,l}  X[s, a] G[k, l] W1[a, k] W2[l, b],

which is linear in Z = vec(W1) vec(W2)^T, of shape d^2 x dc. Heads add up their Z, and beta/2 (||W1||^2 + ||W2||^2),
least over all ways to split Z into heads, is beta ||Z||_*: training any number of heads with weight decay has the
optimum of a convex problem as its floor, and reaches it once there are as many heads as Z has rank. `heads_of` writes
them down.

With gates D (1 where a fixed random head looks, as ReLU would let through), (D * X W1 X^T) X W2 is the same with
G_s[k, l] = sum_t D[s, t] X[t, k] X[t, l] in the place of G, one Z for each gate: gated ReLU heads.
"""

from __future__ import annotations

import torch
from jaxtyping import Float
from torch import Tensor, nn

from attnscope.heads.solvers.nuclear_norm import Problem

Tokens = Float[Tensor, "sample token width"]


class BilinearHeads(nn.Module):
    """The heads themselves; `gates` are the fixed matrices H of 1{X H X^T >= 0}, one for each group of heads."""

    gates: Tensor | None

    def __init__(
        self,
        first: Float[Tensor, "gate head width width"],
        second: Float[Tensor, "gate head width answer"],
        gates: Float[Tensor, "gate width width"] | None = None,
        pooled: bool = False,
    ) -> None:
        super().__init__()
        self.first, self.second = nn.Parameter(first), nn.Parameter(second)
        self.register_buffer("gates", gates)
        self.pooled = pooled

    def forward(self, x: Tokens) -> Float[Tensor, "sample answered answer"]:
        scores = torch.einsum("nsa,ghak,ntk->nghst", x, self.first, x)
        if self.gates is not None:
            scores = scores * opened(x, self.gates).transpose(0, 1)[:, :, None]
        mixed = torch.einsum("nghst,ntl,ghlb->nsb", scores, x, self.second)
        return mixed.mean(1, keepdim=True) if self.pooled else mixed

    def penalty(self) -> Tensor:
        return (self.first.square().sum() + self.second.square().sum()) / 2


def opened(x: Tokens, gates: Float[Tensor, "gate width width"] | None) -> Float[Tensor, "gate sample token token"]:
    """1 where the gate's head gives zero or more; without gates, everywhere."""
    if gates is None:
        return torch.ones(1, len(x), x.shape[1], x.shape[1], dtype=x.dtype)
    return (torch.einsum("nsa,gak,ntk->gnst", x, gates, x) >= 0).to(x.dtype)


def convex_twin(
    x: Tokens,
    answers: Float[Tensor, "sample answered answer"],
    beta: float,
    gates: Float[Tensor, "gate width width"] | None = None,
    pooled: bool = False,
) -> Problem:
    """The convex problem whose optimum is the floor of every set of heads with this data and penalty."""
    inner = torch.einsum("gnst,ntk,ntl->gnskl", opened(x, gates), x, x)
    features = torch.einsum("nsa,gnskl->gnsakl", x, inner)  # [gate, sample, token, a, k, l]
    if pooled:
        features = features.mean(2, keepdim=True)
    width = x.shape[-1]
    return Problem(features.flatten(1, 2).flatten(2), answers.flatten(0, 1), width * width, beta)


def heads_of(
    blocks: Float[Tensor, "gate row column"], width: int
) -> tuple[Float[Tensor, "gate head width width"], Float[Tensor, "gate head width answer"]]:
    """Z = sum_j s_j u_j v_j^T as heads: W1 = sqrt(s) u, W2 = sqrt(s) v, whose squares cost s each; tiny ones go."""
    left, values, right = torch.linalg.svd(blocks, full_matrices=False)
    count = max(1, int((values > 1e-6 * values.max()).sum(-1).max()))
    root = values[:, :count].sqrt()
    first = (left[..., :count] * root[:, None]).mT.reshape(len(blocks), count, width, width)
    second = (right[:, :count] * root[..., None]).reshape(len(blocks), count, width, -1)
    return first, second
