"""Which keys a query may see: bands, masks, shared heads, and rows that see nothing.

`visible` is True where a key is seen, `[batch, head or 1, query or 1, key]`; None hides nothing. `causal` hides keys
after the query (upper-left aligned, as in torch's fused kernels). A row that sees nothing is 0 everywhere, never NaN.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import NamedTuple

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

Query = Float[Tensor, "batch head query dim"]
Key = Float[Tensor, "batch kv_head key dim"]
Value = Float[Tensor, "batch kv_head key value_dim"]
Weights = Float[Tensor, "batch head query key"]
Mixed = Float[Tensor, "batch head query value_dim"]
PerHead = Float[Tensor, " head"]
Visible = Bool[Tensor, "#batch #head #query key"] | None


@dataclass(frozen=True)
class Band:
    """The keys that position alone allows: query i sees key j when i - j <= behind and j - i <= ahead (None: no limit).

    Causal attention, sliding windows and their mirror images (which queries see a key) are all bands.
    """

    behind: int | None = None
    ahead: int | None = None

    @property
    def open(self) -> bool:
        """Whether position forbids nothing."""
        return self.behind is None and self.ahead is None

    @property
    def mirrored(self) -> Band:
        """The same band with the roles of queries and keys exchanged."""
        return Band(behind=self.ahead, ahead=self.behind)

    def visible(self, first: int, last: int, keys: int) -> tuple[int, int]:
        """Return the half-open range of keys that at least one query in first..last (inclusive) sees."""
        start = 0 if self.behind is None else min(max(0, first - self.behind), keys)
        stop = keys if self.ahead is None else min(keys, last + self.ahead + 1)
        return start, max(start, stop)

    def permits(self, row: Int[Tensor, "*rows"], key: Int[Tensor, "*keys"]) -> Bool[Tensor, " ..."]:
        """Return elementwise (broadcast) whether `row` may see `key`."""
        distance = row - key
        permitted = torch.ones_like(distance, dtype=torch.bool)
        if self.behind is not None:
            permitted = permitted & (distance <= self.behind)
        if self.ahead is not None:
            permitted = permitted & (-distance <= self.ahead)
        return permitted


@dataclass(frozen=True)
class AttentionInputs:
    """The inputs of an attention call: queries, keys, values, which keys are seen, and the scale of the logits.

    Keys and values may have fewer heads than queries, which then share them. Derive other inputs from these with
    `dataclasses.replace(inputs, query=...)`.
    """

    query: Query
    key: Key
    value: Value
    visible: Visible = None
    causal: bool = False
    scale: float = field(kw_only=True)

    @property
    def mask(self) -> Visible:
        """Return `visible` and `causal` as one mask; None if everything is seen."""
        if not self.causal:
            return self.visible
        before = past(self.query.shape[-2], self.key.shape[-2], self.query.device)[None, None]
        return before if self.visible is None else self.visible & before

    @property
    def unshared(self) -> AttentionInputs:
        """Return the inputs with separate keys and values for every query head."""
        heads = self.query.shape[1]
        return replace(self, key=for_every_head(self.key, heads), value=for_every_head(self.value, heads))

    def of_heads(self, heads: Sequence[int]) -> AttentionInputs:
        """Return the inputs of some heads only."""
        mine, whole, visible = list(heads), self.unshared, self.visible
        if visible is not None and visible.shape[1] != 1:
            visible = visible[:, mine]
        query, key, value = whole.query[:, mine], whole.key[:, mine], whole.value[:, mine]
        return replace(self, query=query, key=key, value=value, visible=visible)

    def real_keys(self) -> RealKeys | None:
        """Return which keys are real and whether the future is hidden; None if the mask differs between queries in any
        other way.
        """
        visible, causal = self.visible, self.causal
        if visible is None:
            return RealKeys(None, causal)
        if visible.shape[-2] == 1:
            return RealKeys(visible[..., 0, :], causal)
        real = visible[..., -1, :] if visible.shape[-1] <= self.query.shape[-2] else visible.any(-2)
        if bool((visible == real[..., None, :]).all()):
            return RealKeys(real, causal)
        before = past(visible.shape[-2], visible.shape[-1], visible.device)
        if bool(((visible & before if causal else visible) == (real[..., None, :] & before)).all()):
            return RealKeys(real, True)
        return None


class RealKeys(NamedTuple):
    """A mask that only says which keys are real, and whether the future is hidden."""

    real: Bool[Tensor, "#batch #head key"] | None
    causal: bool


def for_every_head(tensor: Key, heads: int) -> Float[Tensor, "batch {heads} key dim"]:
    """Repeat shared keys or values, once for each query head."""
    shared = tensor.shape[1]
    return tensor if shared == heads else tensor.repeat_interleave(heads // shared, dim=1)


def past(queries: int, keys: int, device: torch.device) -> Bool[Tensor, "{queries} {keys}"]:
    return torch.ones(queries, keys, dtype=torch.bool, device=device).tril()


def scores(inputs: AttentionInputs) -> Weights:
    """Return scale q . k, -inf where a key is not seen; in float32 or better."""
    query, key, mask = inputs.query, inputs.key, inputs.mask
    exact = torch.promote_types(query.dtype, torch.float32)
    logits = query.to(exact) @ for_every_head(key, query.shape[1]).to(exact).mT * inputs.scale
    return logits if mask is None else logits.masked_fill(~mask, -torch.inf)


def softmax_rows(logits: Float[Tensor, "*rows key"]) -> Float[Tensor, "*rows key"]:
    """Return the softmax of each row; a row of only -inf is 0 and has no gradient."""
    blind = logits.isneginf().all(-1, keepdim=True)
    return logits.masked_fill(blind, 0.0).softmax(-1).masked_fill(blind, 0.0)


def mix(pattern: Weights, value: Key) -> Query:
    """Return pattern times values, computed in the precision of the pattern, in the dtype of the values."""
    whole = for_every_head(value, pattern.shape[1])
    return (pattern @ whole.to(pattern.dtype)).to(value.dtype)


# Walk a batch a few sequences at a time, with padding set to zero.
#
# A stream of 64 x 128 x 384 floats is 12 MB: every elementwise pass over it reads and writes main memory, and every
# temporary is as large as the stream. A few sequences fit into a core's own cache: the same formula costs less, needs a
# megabyte beside the stream, and half-precision streams are widened only there.

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
        """Return the tokens' positions, counted from the first real token so that padding on the left does not shift
        them.
        """
        if self.mask is None:
            return torch.arange(self.tokens.shape[1], device=self.tokens.device).expand(self.tokens.shape[:2])
        return (self.mask.cumsum(dim=-1) - 1).clamp_min(0)

    def residual(self) -> Tokens:
        """Return the residual X - 1 mean^T."""
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
        # Padding is overwritten, not multiplied by zero: it may be NaN. (masked_fill is four times slower.)
        copy, padding = some.clone(memory_format=torch.contiguous_format), (~real).flatten().nonzero().squeeze(-1)
        part = Sequences(copy, real.sum(dim=-1).to(dtype), real, padding)
        part.blank(copy)
        yield part


def accumulation_dtype(values: Tensor) -> torch.dtype:
    """Return float64 for float64 and float32 for every narrower dtype."""
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
