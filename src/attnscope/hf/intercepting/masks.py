"""Read the masks that models pass to attention, and replace them by a small rule if it is exact.

Models merge padding, causality and windows into one `[batch, 1, query, key]` tensor, boolean or float. Most of these
are a rule (causal, window) and a row of allowed keys, for which a statistic needs O(n) memory. A mask is replaced by a
rule only if the rule reproduces every entry. Other masks are kept.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import torch
from jaxtyping import Bool, Float, Shaped
from torch import Tensor

from attnscope.matrix.scores import Scores

FORBIDDING = -1e4  # additive masks use -1e4, finfo.min or -inf; exp of any of them is zero
_ROWS = 1024  # rows compared at a time, so that the comparison needs no second n x n tensor
_REMEMBERED = 8  # a model makes a few masks and passes the same objects to every block
Allowed = Bool[Tensor, "batch heads query key"]


@dataclass(frozen=True)
class Rule:
    """The content of a mask, in the fields of `Scores`."""

    causal: bool = False
    window: int | None = None
    allowed: Bool[Tensor, "#batch #heads #query key"] | None = None
    bias: Float[Tensor, "#batch #heads #query key"] | None = None


class MaskReader:
    """Reads each mask once, even if many blocks pass it: the last few are remembered by identity."""

    def __init__(self) -> None:
        self._read: list[tuple[Tensor, int, Rule]] = []

    def read(self, mask: Shaped[Tensor, " ..."] | None, queries: int) -> Rule:
        if mask is None:
            return Rule()
        for tensor, length, rule in self._read:
            if tensor is mask and length == queries:
                return rule
        rule = read_mask(mask.detach(), queries)
        self._read = [*self._read[-_REMEMBERED + 1 :], (mask, queries, rule)]
        return rule

    def forget(self) -> None:
        self._read.clear()


def read_mask(mask: Shaped[Tensor, " ..."], queries: int) -> Rule:
    """Return the rule of one mask of up to four axes, for `queries` rows."""
    four = mask[(None,) * (4 - mask.ndim)]
    for axis in (0, 1, 2):  # expanded axes (stride 0) repeat the same numbers
        if four.shape[axis] > 1 and four.stride(axis) == 0:
            four = four.narrow(axis, 0, 1)
    if not four.is_floating_point():
        return _rule(four if four.dtype == torch.bool else four != 0, queries)
    forbidden = four <= FORBIDDING
    if bool(((four == 0) | forbidden).all()):
        return _rule(~forbidden, queries)
    # A bias. Replace huge negative numbers by -inf, so that later steps do not depend on the range of the dtype.
    hidden = four <= torch.finfo(four.dtype).min / 2
    return Rule(bias=four.masked_fill(hidden, float("-inf")) if bool(hidden.any()) else four)


def _rule(allowed: Allowed, queries: int) -> Rule:
    keys = allowed.shape[3]
    reached = allowed.any(dim=2, keepdim=True)  # keys that some query may see: all but padding
    reached = reached[:, :1] if bool((reached == reached[:, :1]).all()) else reached
    row = None if bool(reached.all()) else reached
    if allowed.shape[2] == 1 or _same(allowed, reached, causal=False, window=None):
        return Rule(allowed=row)
    if allowed.shape[2] == queries == keys:
        back, ahead = _reach(allowed)
        causal = ahead == 0
        window = None if max(back, ahead) >= keys - 1 else max(back, ahead) + 1
        if (causal or window is not None) and _same(allowed, reached, causal=causal, window=window):
            return Rule(causal=causal, window=window, allowed=row)
        if causal and _same(allowed, reached, causal=causal, window=None):
            return Rule(causal=True, allowed=row)
    return Rule(allowed=allowed)


def _reach(allowed: Allowed) -> tuple[int, int]:
    """Return the largest distance back and the largest distance ahead that any query sees."""
    back = ahead = 0
    for start in range(0, allowed.shape[2], _ROWS):
        seen = allowed[:, :, start : start + _ROWS].flatten(0, 1).any(dim=0)  # [row, key]
        rows, keys = torch.nonzero(seen, as_tuple=True)
        if len(rows):
            distance = rows + start - keys
            back, ahead = max(back, int(distance.max())), max(ahead, int(-distance.min()))
    return back, ahead


def _same(allowed: Allowed, reached: Bool[Tensor, "batch heads2 1 key"], *, causal: bool, window: int | None) -> bool:
    """Return whether `allowed` is exactly the rule (causal, window) restricted to reached keys."""
    key = torch.arange(allowed.shape[3], device=allowed.device)
    for start in range(0, allowed.shape[2], _ROWS):
        rows = allowed[:, :, start : start + _ROWS]
        distance = torch.arange(start, start + rows.shape[2], device=allowed.device)[:, None] - key
        expected = distance >= 0 if causal else torch.ones_like(distance, dtype=torch.bool)
        if window is not None:
            expected &= distance.abs() < window
        if not bool((rows == (expected & reached)).all()):
            return False
    return True


def dense_pattern(scores: Scores) -> Float[Tensor, "batch heads query key"]:
    """Return the n x n pattern in float64, from the definition; rows without visible keys are zero.

    This is the reference for all routes. It shares no code with the statistics, so that they cannot share an error.
    """
    if scores.pattern is not None:
        return scores.pattern.double()
    query, key = scores.query.double(), scores.key.double()
    key = key.repeat_interleave(query.shape[1] // key.shape[1], dim=1)
    logits = scores.scale * query @ key.transpose(-1, -2)
    if scores.softcap is not None:
        logits = scores.softcap * torch.tanh(logits / scores.softcap)
    if scores.bias is not None:
        logits = logits + scores.bias.double()
    logits = logits.masked_fill(~visible(scores), float("-inf"))
    if scores.sinks is not None:
        sinks = scores.sinks.double()[None, :, None, None].expand(*logits.shape[:3], 1)
        return torch.cat([logits, sinks], dim=-1).softmax(-1)[..., :-1].nan_to_num(0.0)
    return logits.softmax(-1).nan_to_num(0.0)


def visible(scores: Scores) -> Bool[Tensor, "#batch #heads query key"]:
    """Return which keys each query may see; for a pattern without a rule, those with a positive weight."""
    if scores.pattern is not None and scores.allowed is None:
        return scores.pattern > 0
    rows = torch.arange(scores.query.shape[2], device=scores.query.device)[:, None]
    distance = rows - torch.arange(scores.key.shape[2], device=scores.query.device)
    seen = torch.ones_like(distance, dtype=torch.bool)
    if scores.causal:
        seen &= distance >= 0
    if scores.window is not None:
        seen &= distance.abs() < scores.window
    seen = seen[None, None]
    if scores.allowed is not None:
        seen = seen & scores.allowed
    return seen if scores.bias is None else seen & ~scores.bias.isneginf()


def dense_mixed(
    scores: Scores, value: Float[Tensor, "batch kv_heads key value_dim"]
) -> Float[Tensor, "batch query heads value_dim"]:
    """Return A V, the pattern times the values, with the pattern of one sequence in memory at a time."""
    rows = []
    for index in range(scores.query.shape[0]):
        pattern = dense_pattern(one_sequence(scores, index))
        mine = value[index : index + 1].double()
        repeated = mine.repeat_interleave(scores.query.shape[1] // mine.shape[1], dim=1)
        rows.append((pattern @ repeated).transpose(1, 2))
    return torch.cat(rows)


def one_sequence(scores: Scores, index: int) -> Scores:
    """Return the scores of one sequence of the batch."""

    def pick(tensor: Tensor | None) -> Tensor | None:
        return None if tensor is None else tensor[index : index + 1] if tensor.shape[0] > 1 else tensor

    row = slice(index, index + 1)
    some: dict[str, Any] = {name: pick(getattr(scores, name)) for name in ("allowed", "bias", "lse", "pattern")}
    return replace(scores, query=scores.query[row], key=scores.key[row], **some)
