"""What a query may see, and what is asked of it: grouped heads made whole, masks joined, rows that see nothing.

`visible` is True where a key is seen, `[batch, head or 1, query or 1, key]`; None hides nothing. `causal` hides keys
behind the query's own place (upper-left aligned, as in torch's fused kernels). A row that may see nothing is 0
everywhere, never NaN.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

# A band: which keys a query may see by position alone, as two distances.
#
# Causal attention, sliding windows and their mirror images (what a key is seen by) are all bands, so one
# description serves rows and columns: query i sees key j when i - j <= behind and j - i <= ahead; None means no
# limit.


@dataclass(frozen=True)
class Band:
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
        """The half-open range of keys that at least one query in first..last (inclusive) sees."""
        start = 0 if self.behind is None else min(max(0, first - self.behind), keys)
        stop = keys if self.ahead is None else min(keys, last + self.ahead + 1)
        return start, max(start, stop)

    def permits(self, row: Int[Tensor, "*rows"], key: Int[Tensor, "*keys"]) -> Bool[Tensor, " ..."]:
        """Elementwise (broadcast) whether `row` may see `key`."""
        distance = row - key
        permitted = torch.ones_like(distance, dtype=torch.bool)
        if self.behind is not None:
            permitted = permitted & (distance <= self.behind)
        if self.ahead is not None:
            permitted = permitted & (-distance <= self.ahead)
        return permitted


Visible = Bool[Tensor, "#batch #head #query key"] | None


class RealKeys(NamedTuple):
    """A mask that says no more than which keys are real, and whether the future is hidden."""

    real: Bool[Tensor, "#batch #head key"] | None
    causal: bool


def for_every_head(
    tensor: Float[Tensor, "batch kv_head key dim"], heads: int
) -> Float[Tensor, "batch {heads} key dim"]:
    """Keys or values that several query heads share, once for each of them."""
    shared = tensor.shape[1]
    return tensor if shared == heads else tensor.repeat_interleave(heads // shared, dim=1)


def past(queries: int, keys: int, device: torch.device) -> Bool[Tensor, "{queries} {keys}"]:
    return torch.ones(queries, keys, dtype=torch.bool, device=device).tril()


def seen(queries: int, keys: int, visible: Visible, causal: bool, device: torch.device) -> Visible:
    """One mask of both; None where all is seen."""
    if not causal:
        return visible
    before = past(queries, keys, device)[None, None]
    return before if visible is None else visible & before


def real_keys(visible: Visible, causal: bool, queries: int) -> RealKeys | None:
    """What a mask says, if it says no more than which keys are real and that the future is hidden; None where it
    differs from query to query in another way. Whoever needs one list of keys for all queries asks this first."""
    if visible is None:
        return RealKeys(None, causal)
    if visible.shape[-2] == 1:
        return RealKeys(visible[..., 0, :], causal)
    real = visible[..., -1, :] if visible.shape[-1] <= queries else visible.any(-2)
    if bool((visible == real[..., None, :]).all()):
        return RealKeys(real, causal)
    before = past(visible.shape[-2], visible.shape[-1], visible.device)
    if bool(((visible & before if causal else visible) == (real[..., None, :] & before)).all()):
        return RealKeys(real, True)
    return None


def scores(
    query: Float[Tensor, "batch head query dim"],
    key: Float[Tensor, "batch kv_head key dim"],
    visible: Visible,
    causal: bool,
    scale: float,
) -> Float[Tensor, "batch head query key"]:
    """scale q . k, -inf where a key is not seen; in float32 or better."""
    exact = torch.promote_types(query.dtype, torch.float32)
    found = query.to(exact) @ for_every_head(key, query.shape[1]).to(exact).mT * scale
    mask = seen(query.shape[-2], key.shape[-2], visible, causal, query.device)
    return found if mask is None else found.masked_fill(~mask, -torch.inf)


def softmax_rows(logits: Float[Tensor, "*rows key"]) -> Float[Tensor, "*rows key"]:
    """Softmax in which a row of nothing but -inf is 0, and has no gradient."""
    blind = logits.isneginf().all(-1, keepdim=True)
    return logits.masked_fill(blind, 0.0).softmax(-1).masked_fill(blind, 0.0)


def mix(
    pattern: Float[Tensor, "batch head query key"], value: Float[Tensor, "batch kv_head key dim"]
) -> Float[Tensor, "batch head query dim"]:
    """Pattern times values, in the precision of the pattern, handed back in that of the values."""
    whole = for_every_head(value, pattern.shape[1])
    return (pattern @ whole.to(pattern.dtype)).to(value.dtype)
