"""2-Sum with one head: find for each token x a partner y with x + y = 0 modulo M, if there is one (arXiv:2602.01763).

The key of a token is the code of x and its query the code of -x, both with norm 1. A partner's logit is `sharp`. An
extra key, `none`, has the logit `sharp` times a number below 1, so attention goes to the partner if there is one, and
to `none` otherwise. The answer is the attention mass on tokens, and the mean of their numbers.

    full      every key is visible. With codes of binary digits the next best logit is 1 - 2/digits (times `sharp`), and
              `none` lies halfway between it and 1: exact in width log2 M.
    sparse    (B, k): keys are grouped in blocks of B, each block is represented by the mean of its keys, and a query
              sees the k blocks whose mean is most similar. With random codes of width d the partner's block scores (1 +
              noise) / B and the others only noise of size sqrt(B/d) / B: the partner is seen if d is large compared
              with B. (The paper's bound, B log n, holds for every representation of blocks, not only means.)
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from attnscope.core.errors import RefusalError


@dataclass(frozen=True)
class Sums:
    """Rows of tokens, and for each token the number of its partner, or 0 if it has none."""

    ids: Int[Tensor, "row token"]
    partners: Int[Tensor, "row token"]


def draw_sums(rows: int, tokens: int, modulus: int, rng: torch.Generator) -> Sums:
    """Draw rows in which half of the tokens have a partner. M is odd and no token is 0, so no token is its own."""
    pairs = tokens // 4
    kinds = tokens - pairs  # distinct numbers up to sign; some of them occur with both signs
    half = (modulus - 1) // 2
    if modulus % 2 == 0 or half < kinds or tokens < 4:
        raise RefusalError(f"2-Sum of {tokens} tokens needs at least 4 of them and an odd modulus over {2 * kinds}.")
    numbers = torch.stack([torch.randperm(half, generator=rng)[:kinds] + 1 for _ in range(rows)])
    signed = torch.where(torch.rand(rows, kinds, generator=rng) < 0.5, numbers, modulus - numbers)
    ids = torch.cat([signed, modulus - signed[:, :pairs]], dim=1)
    paired = torch.cat([torch.ones(pairs), torch.zeros(kinds - pairs), torch.ones(pairs)]).bool()
    order = torch.stack([torch.randperm(tokens, generator=rng) for _ in range(rows)])
    return Sums(ids.gather(1, order), torch.where(paired, modulus - ids, 0).gather(1, order))


def digit_codes(modulus: int) -> Float[Tensor, "number dim"]:
    """Return the binary digits of each number as +1 and -1, scaled to norm 1."""
    count = math.ceil(math.log2(modulus))
    signs: Tensor = 2.0 * (torch.arange(modulus)[:, None] >> torch.arange(count) & 1) - 1
    return signs / math.sqrt(count)


def random_codes(modulus: int, width: int, rng: torch.Generator) -> Float[Tensor, "number dim"]:
    return F.normalize(torch.randn(modulus, width, generator=rng), dim=-1)


class TwoSum(nn.Module):
    """Full attention, or sparse if `block` and `kept` are given. A partner has logit 1, the key `none` less."""

    codes: Tensor

    def __init__(
        self,
        codes: Float[Tensor, "number dim"],
        none: float,
        sharp: float,
        block: int | None = None,
        kept: int | None = None,
    ) -> None:
        super().__init__()
        if not 0 < none < 1 or sharp <= 0 or (block is None) != (kept is None):
            raise RefusalError(
                "2-Sum needs none between 0 and 1, sharp over 0, and block and kept together or neither."
            )
        self.register_buffer("codes", codes)
        self.none, self.sharp, self.block, self.kept = none, sharp, block, kept
        self.main_input_name = "input_ids"

    def forward(self, input_ids: Int[Tensor, "row token"]) -> Float[Tensor, "row token 2"]:
        """Return the attention mass on tokens, and the attention-weighted mean of their numbers."""
        key, wanted = self.codes[input_ids], self.codes[(len(self.codes) - input_ids) % len(self.codes)]
        visible = None if self.block is None else self.seen(wanted, key)
        # The key `none` comes first and has a coordinate of its own.
        key = F.pad(key, (0, 1, 1, 0))
        key[:, 0, -1] = 1.0
        query = F.pad(wanted, (0, 1), value=self.none)
        number = F.pad(input_ids.to(key), (1, 0))
        value = torch.stack([(number > 0).to(key), number], dim=-1)
        if visible is not None:
            visible = F.pad(visible, (1, 0), value=True)[:, None]
        return F.scaled_dot_product_attention(
            query[:, None], key[:, None], value[:, None], attn_mask=visible, scale=self.sharp
        )[:, 0]

    def seen(
        self, wanted: Float[Tensor, "row token dim"], key: Float[Tensor, "row token dim"]
    ) -> Bool[Tensor, "row token key"]:
        """Return which tokens each query sees: those in the blocks whose mean key is most similar to it."""
        assert self.block is not None
        assert self.kept is not None
        if key.shape[1] % self.block or key.shape[1] // self.block < self.kept:
            raise RefusalError(
                f"{key.shape[1]} tokens are not at least {self.kept} whole blocks of {self.block}: choose another size."
            )
        shown = key.reshape(len(key), -1, self.block, key.shape[2]).mean(2)
        like = wanted @ shown.mT
        chosen = torch.zeros_like(like, dtype=torch.bool).scatter_(-1, like.topk(self.kept, dim=-1).indices, True)
        return chosen.repeat_interleave(self.block, dim=-1)


def full_two_sum(modulus: int, sharp: float = 500.0) -> TwoSum:
    """Return the exact model, in which n wrong keys together get at most n e^(-sharp / digits) of the weight."""
    codes = digit_codes(modulus)
    return TwoSum(codes, 1 - 1 / codes.shape[1], sharp)


def right(answer: Float[Tensor, "row token 2"], sums: Sums) -> tuple[float, float]:
    """Return the share of partners found, and the share of tokens without a partner that are recognised."""
    yes = answer[..., 0] > 0.5
    paired = sums.partners > 0
    found = yes & ((answer[..., 1] - sums.partners).abs() < 0.5)
    return float(found[paired].double().mean()), float((~yes)[~paired].double().mean())


def seen_by_chance(width: int, block: int, kept: int, tokens: int) -> float:
    """Return the probability that the partner's block is among those kept, if random codes are taken as Gaussian.

    Times B, the score of the partner's block is 1 + sqrt((B - 1) / d) z and that of each of the n/B - 1 others
    sqrt(B/d) z', with z and z' standard normal: at most `kept` - 1 of the others may exceed it. The integral over z is
    taken numerically.
    """
    from scipy.stats import binom, norm

    z = torch.linspace(-8, 8, 2001, dtype=torch.float64).numpy()
    above = norm.sf((1 + ((block - 1) / width) ** 0.5 * z) / (block / width) ** 0.5)
    chance = binom.cdf(kept - 1, tokens // block - 1, above)
    return float((chance * norm.pdf(z)).sum() * (z[1] - z[0]))
