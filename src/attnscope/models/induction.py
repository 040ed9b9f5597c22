"""Two layers of attention that learn to look up what followed the same context before (arXiv:2409.10559).

    layer 1    head h looks back by places alone: v^h_l = sum_j softmax(w^h)_j x_(l-j), j = 1..window, made 1 long
    kernel     K(l) = sum_S c_S^2 prod_{h in S} <v^h_l, v^h_(n+1)> / sum_S c_S^2, over sets S of at most `degree` heads
    layer 2    y = sum_l softmax(a K)_l x_l

Trained, the heads of layer 1 fetch the parents, the kernel multiplies them (a product of one-hot likenesses is 1 where
all parents are the same), and layer 2 copies what followed: an induction head for contexts of several tokens.

As attention. Layer 1 is softmax over logits that depend on the distance alone, a bias with queries and keys of zero.
A product of inner products is the inner product of outer products, <u, u'><v, v'> = <u (x) v, u' (x) v'>, so that
K(l) is phi_l . phi_(n+1) with the parts c_S / |c| (x)_{h in S} v^h_l in a row: layer 2 is plain dot-product attention
of one query, scale a. `forward` runs both in torch's kernel, where the tap finds them. Training uses a shorter way with
the same numbers (`trials/induction_training.py`).
"""

from __future__ import annotations

import itertools

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor, nn

from attnscope.core.errors import RefusalError


class InductionNetwork(nn.Module):
    """Begins as in the paper: head h leans to lag h by `lean` over `rest`, all sets alike, a small."""

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
            raise RefusalError("An induction network has at most as many heads as lags, and sets of at most all heads.")
        self.symbols, self.window = symbols, window
        self.main_input_name = "input_ids"
        self.sets = [s for size in range(degree + 1) for s in itertools.combinations(range(heads), size)]
        weights = torch.full((heads, window), rest)
        weights[torch.arange(heads), torch.arange(heads)] = lean
        self.lags = nn.Parameter(weights)
        self.sets_weight = nn.Parameter(torch.full((len(self.sets),), start))
        self.sharpness = nn.Parameter(torch.tensor(start))

    def forward(self, input_ids: Int[Tensor, "batch token"]) -> Float[Tensor, "batch symbol"]:
        """What comes after the last token: shares of the symbols."""
        x = F.one_hot(input_ids, self.symbols).to(self.lags)
        looked = F.normalize(self.look_back(x), dim=-1)
        features = self.features(looked)[:, self.window - 1 :]  # of places that have a whole window before them
        mixed: Tensor = F.scaled_dot_product_attention(
            (self.sharpness * features[:, -1:])[:, None], features[:, None, :-1], x[:, None, self.window :], scale=1.0
        )
        return mixed[:, 0, 0]

    def look_back(self, x: Float[Tensor, "batch token symbol"]) -> Float[Tensor, "batch head token symbol"]:
        """Layer 1 for the place behind every token, whose lag 1 is the token itself; over what there is in front."""
        batch, tokens, _ = x.shape
        heads = len(self.lags)
        back = torch.arange(tokens)[:, None] - torch.arange(tokens)  # 0 is lag 1
        near = (back >= 0) & (back < self.window)
        bias = self.lags[:, back.clamp(0, self.window - 1)].masked_fill(~near, -torch.inf)
        rest = torch.zeros(batch, heads, tokens, 1, dtype=x.dtype)
        value = x[:, None].expand(-1, heads, -1, -1)
        return F.scaled_dot_product_attention(rest, rest, value, attn_mask=bias[None], scale=1.0)

    def features(self, looked: Float[Tensor, "batch head place symbol"]) -> Float[Tensor, "batch place feature"]:
        """phi: for every set the outer product of what its heads fetched, times c_S / |c|."""
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
        """p_S = c_S^2 / sum c^2."""
        return (self.sets_weight.square() / self.sets_weight.square().sum()).detach()

    @property
    def lag_weights(self) -> Float[Tensor, "head lag"]:
        return self.lags.detach().softmax(-1)

    def kernel(self, looked: Float[Tensor, "head place symbol"]) -> Float[Tensor, "place place"]:
        """K between any two of the given contexts, by its definition; `looked` is made 1 long."""
        like = looked @ looked.mT
        share = self.sets_weight.square() / self.sets_weight.square().sum()
        products = [like[list(heads)].prod(0) if heads else torch.ones_like(like[0]) for heads in self.sets]
        return torch.einsum("s,suv->uv", share, torch.stack(products))
