"""Two blocks of attention that learn to look up which symbol followed the same context before (arXiv:2409.10559).

    block 1    head h looks back by position only: v^h_l = sum_j softmax(w^h)_j x_(l-j), j = 1..window, normalised
    kernel     K(l) = sum_S c_S^2 prod_{h in S} <v^h_l, v^h_(n+1)> / sum_S c_S^2, over sets S of at most `degree` heads
    block 2    y = sum_l softmax(a K)_l x_l

Here x_l is the one-hot symbol at position l of n; the logits w^h, the weights c_S and the sharpness a are trained.
After training, the heads of block 1 fetch the parents, the kernel multiplies them (a product of one-hot similarities is
1 if all parents are the same), and block 2 copies the symbol that followed: an induction head for contexts of several
tokens.

Written as attention: block 1 is softmax over logits that depend only on the distance (a bias, with queries and keys of
zero). A product of inner products is the inner product of outer products, <u, u'><v, v'> = <u (x) v, u' (x) v'>, so
K(l) is phi_l . phi_(n+1), where phi_l concatenates c_S / |c| (x)_{h in S} v^h_l over all sets S: block 2 is plain
dot-product attention of one query with scale a. `forward` runs both in torch's kernel, where the tap finds them.
Training computes the same numbers in a shorter way (`papers/trials/induction_training.py`).

Texts (`Chains`): each symbol depends on a few earlier ones, its parents, by a rule drawn anew for each text from
Dirichlet(alpha). With alpha = 0.1 most rows of a rule are nearly deterministic: counting which symbols followed the
same parents predicts well, ignoring the parents does not. With `others` below 1 the rule is a mixture: a rule of all
parents with weight `others`, and a rule of the first parent alone with weight 1 - `others`.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass

import numpy as np
import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor, nn

from attnscope.core.errors import RefusalError


@dataclass(frozen=True)
class ChainText:
    """Texts: the model predicts the last id from the others. `rules` is `[row, first parent, ..., next symbol]`."""

    ids: Int[Tensor, "row token"]
    rules: Float[Tensor, "row ..."]


@dataclass(frozen=True)
class Chains:
    """A distribution of texts. `parents` are distances: 1 is the symbol just before."""

    parents: tuple[int, ...] = (1, 2)
    symbols: int = 3
    tokens: int = 100
    alpha: float = 0.1
    others: float = 1.0

    def __post_init__(self) -> None:
        if not self.parents or min(self.parents) < 1 or max(self.parents) >= self.tokens:
            raise RefusalError(
                "A chain needs parents at distance 1 or more and a text longer than the farthest: change them."
            )
        if self.symbols < 2 or not self.alpha > 0 or not 0 <= self.others <= 1:
            raise RefusalError(
                "A chain needs 2 symbols, alpha over 0 and others between 0 and 1, "
                f"not {self.symbols}, {self.alpha} and {self.others}."
            )

    def rules(self, rows: int, seed: int) -> Float[Tensor, "row ..."]:
        shape = (rows, *(self.symbols for _ in self.parents))
        rng = np.random.default_rng((seed, 0))
        of_all = torch.from_numpy(rng.dirichlet([self.alpha] * self.symbols, size=shape))
        if self.others == 1:
            return of_all
        of_first = torch.from_numpy(rng.dirichlet([self.alpha] * self.symbols, size=shape[:2]))
        spread = of_first.reshape(rows, self.symbols, *(1 for _ in self.parents[1:]), self.symbols)
        return (1 - self.others) * spread + self.others * of_all

    def draw(self, rows: int, seed: int) -> ChainText:
        """Draw texts. The first symbols, which lack parents, are uniform."""
        rules, rng = self.rules(rows, seed), np.random.default_rng((seed, 1))
        ends = rules.cumsum(-1)
        chance = torch.from_numpy(rng.random((rows, self.tokens + 1)))
        first = max(self.parents)
        ids = torch.zeros(rows, self.tokens + 1, dtype=torch.long)
        ids[:, :first] = torch.from_numpy(rng.integers(0, self.symbols, (rows, first)))
        each = torch.arange(rows)
        for place in range(first, self.tokens + 1):
            row = ends[(each, *(ids[:, place - lag] for lag in self.parents))]
            ids[:, place] = (chance[:, place, None] > row).sum(-1).clamp_max(self.symbols - 1)
        return ChainText(ids, rules)


class InductionNetwork(nn.Module):
    """The two blocks, initialised as in the paper.

    Head h starts with logit `lean` at lag h and `rest` at all others; all sets have the same weight, and a is small.
    """

    def __init__(
        self,
        symbols: int = 3,
        heads: int = 3,
        window: int = 5,
        degree: int = 2,
        *,
        lean: float = 3.0,
        rest: float = 0.1,
        start: float = 0.01,
    ) -> None:
        super().__init__()
        if not 1 <= heads <= window or not 1 <= degree <= heads or symbols < 2:
            raise RefusalError(
                "An induction network has at most as many heads as lags and a degree of at most `heads`: give less."
            )
        self.symbols, self.window = symbols, window
        self.main_input_name = "input_ids"
        self.sets = [s for size in range(degree + 1) for s in itertools.combinations(range(heads), size)]
        weights = torch.full((heads, window), rest)
        weights[torch.arange(heads), torch.arange(heads)] = lean
        self.lags = nn.Parameter(weights)
        self.sets_weight = nn.Parameter(torch.full((len(self.sets),), start))
        self.sharpness = nn.Parameter(torch.tensor(start))

    def forward(self, input_ids: Int[Tensor, "batch token"]) -> Float[Tensor, "batch symbol"]:
        """Return the predicted probability of each symbol after the last token."""
        x = F.one_hot(input_ids, self.symbols).to(self.lags)
        looked = F.normalize(self.look_back(x), dim=-1)
        features = self.features(looked)[:, self.window - 1 :]  # only positions with a whole window before them
        mixed: Tensor = F.scaled_dot_product_attention(
            (self.sharpness * features[:, -1:])[:, None], features[:, None, :-1], x[:, None, self.window :], scale=1.0
        )
        return mixed[:, 0, 0]

    def look_back(self, x: Float[Tensor, "batch token symbol"]) -> Float[Tensor, "batch head token symbol"]:
        """Run block 1 for the position after each token, so that lag 1 is the token itself."""
        batch, tokens, _ = x.shape
        heads = len(self.lags)
        back = torch.arange(tokens)[:, None] - torch.arange(tokens)  # distance 0 is lag 1
        near = (back >= 0) & (back < self.window)
        bias = self.lags[:, back.clamp(0, self.window - 1)].masked_fill(~near, -torch.inf)
        rest = torch.zeros(batch, heads, tokens, 1, dtype=x.dtype)
        value = x[:, None].expand(-1, heads, -1, -1)
        return F.scaled_dot_product_attention(rest, rest, value, attn_mask=bias[None], scale=1.0)

    def features(self, looked: Float[Tensor, "batch head place symbol"]) -> Float[Tensor, "batch place feature"]:
        """Return phi: for each set S, the outer product of the outputs of its heads, times c_S / |c|, concatenated."""
        weight = self.sets_weight / self.sets_weight.norm()
        parts = []
        for own, heads in zip(weight, self.sets, strict=True):
            part = torch.ones_like(looked[:, 0, :, :1])
            for head in heads:
                part = (part[..., :, None] * looked[:, head, :, None, :]).flatten(-2)
            parts.append(own * part)
        return torch.cat(parts, dim=-1)

    @property
    def shares(self) -> Float[Tensor, " set"]:
        """The share of each set in the kernel: p_S = c_S^2 / sum over sets of c^2."""
        return (self.sets_weight.square() / self.sets_weight.square().sum()).detach()

    @property
    def lag_weights(self) -> Float[Tensor, "head lag"]:
        return self.lags.detach().softmax(-1)

    def kernel(self, looked: Float[Tensor, "head place symbol"]) -> Float[Tensor, "place place"]:
        """Return K between any two positions, computed by its definition; the vectors of `looked` have unit norm."""
        like = looked @ looked.mT
        share = self.sets_weight.square() / self.sets_weight.square().sum()
        products = [like[list(heads)].prod(0) if heads else torch.ones_like(like[0]) for heads in self.sets]
        return torch.einsum("s,suv->uv", share, torch.stack(products))
