"""Walk a batch a few sequences at a time, with padding set to zero.

A stream of 64 x 128 x 384 floats is 12 MB: every elementwise pass over it reads and writes main memory, and every
temporary is as large as the stream. A few sequences fit into a core's own cache: the same formula costs less, needs a
megabyte beside the stream, and half-precision streams are widened only there.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

CACHE_BYTES = 1 << 20
Tokens = Float[Tensor, "batch token width"]
TokenMask = Bool[Tensor, "batch token"]


@dataclass(frozen=True)
class Sequences:
    """Some sequences of a batch, in float32 or float64, with zeros for padding."""

    tokens: Tokens
    count: Float[Tensor, " batch"]
    mask: TokenMask | None  # None without padding
    padding: Int[Tensor, " row"] | None  # the padding rows in tokens.flatten(0, 1); None without padding

    def blank(self, rows: Tokens) -> Tokens:
        """Set the padding rows of a matrix made from these tokens to zero, in place."""
        if self.padding is not None:
            rows.view(-1, rows.shape[-1]).index_fill_(0, self.padding, 0.0)
        return rows

    def mean(self) -> Float[Tensor, "batch 1 width"]:
        """Return the mean token; zero for a sequence without tokens."""
        return self.tokens.sum(dim=-2, keepdim=True) / self.count.clamp_min(1.0)[:, None, None]

    def number(self) -> Int[Tensor, "batch token"]:
        """Number the tokens from the first real one, so that padding on the left does not shift them."""
        if self.mask is None:
            return torch.arange(self.tokens.shape[1], device=self.tokens.device).expand(self.tokens.shape[:2])
        return (self.mask.cumsum(dim=-1) - 1).clamp_min(0)

    def residual(self) -> Tokens:
        """Return X - 1 mean^T."""
        return self.blank(self.tokens - self.mean())


def sequences(stream: Tokens, token_mask: TokenMask | None, most_bytes: int = CACHE_BYTES) -> Iterator[Sequences]:
    """Yield the batch in order, in groups of at most `most_bytes` (at least one sequence each)."""
    batch, tokens, width = stream.shape
    dtype = accumulation_dtype(stream)
    mask = None if token_mask is None or bool(token_mask.all()) else token_mask
    group = max(1, most_bytes // max(1, tokens * width * dtype.itemsize))
    for start in range(0, batch, group):
        some = stream[start : start + group].to(dtype)
        if mask is None:
            yield Sequences(some, some.new_full((len(some),), float(tokens)), None, None)
            continue
        real = mask[start : start + group]
        # Filled, not multiplied by zero: padding rows may be NaN. (masked_fill is four times slower.)
        copy, padding = some.clone(memory_format=torch.contiguous_format), (~real).flatten().nonzero().squeeze(-1)
        part = Sequences(copy, real.sum(dim=-1).to(dtype), real, padding)
        part.blank(copy)
        yield part


def accumulation_dtype(values: Tensor) -> torch.dtype:
    """Return float64 for float64, float32 for everything narrower."""
    return torch.promote_types(values.dtype, torch.float32)


def row_mean(
    rows: Float[Tensor, "batch head query"], query_mask: Bool[Tensor, "batch query"]
) -> Float[Tensor, "batch head"]:
    """Return the mean over a sequence's real rows; zero if there are no rows."""
    kept = rows.to(accumulation_dtype(rows)).masked_fill(~query_mask[:, None, :], 0.0)
    return kept.sum(dim=-1) / query_mask.sum(dim=-1).clamp_min(1)[:, None]


def spread_tokens(token_mask: TokenMask, most: int) -> tuple[Tensor, Bool[Tensor, "batch sample"]]:
    """Return indices of at most `most` evenly spaced real tokens per sequence, and which of them are in use.

    A sequence of c tokens gives its tokens of rank floor(j c / m), j < m = min(c, most); short ones leave slots unused.
    """
    slots = min(most, token_mask.shape[-1])
    order = token_mask.to(torch.uint8).argsort(dim=-1, descending=True, stable=True)  # real tokens first, in order
    count = token_mask.sum(dim=-1, keepdim=True)
    taken = count.clamp_max(slots)
    slot = torch.arange(slots, device=token_mask.device)[None, :]
    used = slot < taken
    rank = torch.where(used, slot * count // taken.clamp_min(1), 0)
    return order.gather(-1, rank), used
