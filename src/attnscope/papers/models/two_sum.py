"""2-Sum by one head: which tokens x have a partner with x + y = 0 modulo M, and which one is it (arXiv:2602.01763).

The key of a token is the code of x, its query the code of -x, both of unit length. A partner's logit is `sharp`, and
one more key, `none`, has `sharp` times something less than 1: attention goes to the partner if there is one, and to
`none` otherwise. The answer is the mass on tokens and the number they stand for.

    full      every key is visible. With a digit for each power of 2 in M the next best logit is 1 - 2/digits, and
              `none` stands in the middle: exact in width log2 M.
    sparse    (B, k): keys stand in blocks of B, each block shows the mean of its keys, and a query sees the k blocks
              with the most similar mean. With random codes of width d the partner's block has (1 + noise) / B and the
              others only noise of sqrt(B/d) / B: the partner is seen where d is large compared with B. (A mean is one
              way to show a block. The paper's bound, B log n, holds for every way.)
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
    """Tokens, and for each the number of its partner, or 0."""

    ids: Int[Tensor, "row token"]
    partners: Int[Tensor, "row token"]


def draw_sums(rows: int, tokens: int, modulus: int, rng: torch.Generator) -> Sums:
    """Draw rows in which half of the tokens have a partner. M is odd and no token is 0, so none is its own partner."""
    pairs = tokens // 4
    kinds = tokens - pairs  # numbers up to sign: the first quarter comes with both signs
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
    """Return a code of +1 and -1 for the binary digits, of unit length."""
    count = math.ceil(math.log2(modulus))
    signs: Tensor = 2.0 * (torch.arange(modulus)[:, None] >> torch.arange(count) & 1) - 1
    return signs / math.sqrt(count)


def random_codes(modulus: int, width: int, rng: torch.Generator) -> Float[Tensor, "number dim"]:
    return F.normalize(torch.randn(modulus, width, generator=rng), dim=-1)


class TwoSum(nn.Module):
    """Full attention, or sparse with `block` and `kept`. `none` is the logit of no partner, 1 that of a partner."""

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
        """Return the mass on tokens, and the mean number of the attended tokens."""
        key, wanted = self.codes[input_ids], self.codes[(len(self.codes) - input_ids) % len(self.codes)]
        visible = None if self.block is None else self.seen(wanted, key)
        # One more coordinate for the key `none`, which stands in front.
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
        """Return the tokens of the blocks whose mean key is most like the query."""
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
    """Return the exact one: n other tokens together weigh at most n e^(-sharp / digits)."""
    codes = digit_codes(modulus)
    return TwoSum(codes, 1 - 1 / codes.shape[1], sharp)


def right(answer: Float[Tensor, "row token 2"], sums: Sums) -> tuple[float, float]:
    """Return the share of partners found, and of tokens without a partner that said so."""
    yes = answer[..., 0] > 0.5
    paired = sums.partners > 0
    found = yes & ((answer[..., 1] - sums.partners).abs() < 0.5)
    return float(found[paired].double().mean()), float((~yes)[~paired].double().mean())


def seen_by_chance(width: int, block: int, kept: int, tokens: int) -> float:
    """Return how often the partner's block is among those kept, taking random codes as Gaussian.

    The block's score is 1 + sqrt((B - 1) / d) z, each of the n/B - 1 others sqrt(B/d) z: at most `kept` - 1 of
    them may be above it. Integrated over z by quadrature.
    """
    from scipy.stats import binom, norm

    z = torch.linspace(-8, 8, 2001, dtype=torch.float64).numpy()
    above = norm.sf((1 + ((block - 1) / width) ** 0.5 * z) / (block / width) ** 0.5)
    chance = binom.cdf(kept - 1, tokens // block - 1, above)
    return float((chance * norm.pdf(z)).sum() * (z[1] - z[0]))
