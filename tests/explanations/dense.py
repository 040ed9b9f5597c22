"""A slow reference for relevance: full attention maps, their gradients from autograd, and the rules on matrices.

    maps = written_out(model, batch, number)              every map of the run, in the order of the calls
    by_the_rule(placed(maps, calls))                      relevance from them, by stack

It shares nothing with the fast route except which stack a call belongs to. A map is what the model multiplied its
values with, and its gradient comes from autograd.
"""

from collections.abc import Callable, Collection, Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass, replace
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from attnscope.hf.anatomy.example import run
from attnscope.hf.intercepting.observed_call import observe_written_out
from attnscope.hf.intercepting.owners import first_output
from attnscope.hf.intercepting.restoring import without_cache
from attnscope.hf.intercepting.torch_calls import Seen, SoftmaxWatch, WrittenOutCall
from attnscope.hf.intercepting.wrappers import without_fast_path
from attnscope.matrix.relevance import AttentionCall


@dataclass(frozen=True)
class PlacedCall:
    """A map with its gradient, `[head, query, key]`, and the weight of every query in the answer."""

    stack: str
    keys_from: str
    pattern: Tensor
    gradient: Tensor
    reach: Tensor  # for every query, the norm of the gradient at A V

    @property
    def abar(self) -> Tensor:
        """Return the mean over heads of (dA * A)^+ (equation 5)."""
        return (self.pattern * self.gradient).clamp_min(0).double().mean(0)


def by_the_rule(maps: Sequence[PlacedCall], read: Collection[str] = ()) -> dict[str, Tensor]:
    """Return the row of R (arXiv:2103.15679, equations 6 to 11) that gives the answer, minus the identity, by stack.

    The answer is read from the last stack that it depends on, among those in `read` if there are any."""
    own = [one for one in maps if one.stack == one.keys_from and bool(one.reach.any())]
    last = next(iter([one for one in own if one.stack in read][-1:] or own[-1:]))
    followed = {last.stack, *(one.keys_from for one in maps if one.stack == last.stack)}
    maps = [one for one in maps if one.stack in followed and one.keys_from in followed]
    tokens = {one.keys_from: one.pattern.shape[-1] for one in maps}
    tokens |= {one.stack: one.pattern.shape[-2] for one in maps}
    R = {(a, b): torch.zeros(tokens[a], tokens[b], dtype=torch.float64) for a in tokens for b in tokens}
    for stack, count in tokens.items():
        R[stack, stack] = torch.eye(count, dtype=torch.float64)
    for one in maps:
        here, there = one.stack, one.keys_from
        if here == there:
            for other in tokens:
                R[here, other] = R[here, other] + one.abar @ R[here, other]
        else:
            across = normalised(R[here, here]).T @ one.abar @ normalised(R[there, there])
            R[here, here] = R[here, here] + one.abar @ R[there, here]  # 0 if there is no gradient
            R[here, there] = R[here, there] + across
    start = (last.reach / last.reach.sum()).double()
    R[last.stack, last.stack] -= torch.eye(tokens[last.stack], dtype=torch.float64)
    return {other: start @ R[last.stack, other] for other in tokens}


def normalised(R: Tensor) -> Tensor:
    """Return Rbar = I + rownorm(R - I); rows of zeros stay zero (equations 8 and 9)."""
    own = torch.eye(len(R), dtype=R.dtype)
    sums = (R - own).sum(-1, keepdim=True)
    return own + torch.where(sums > 0, (R - own) / sums.where(sums > 0, torch.ones_like(sums)), 0.0)


@dataclass(frozen=True)
class WrittenOut:
    """One map in the layout of the model, and the gradients of it and of its product with values."""

    call: WrittenOutCall
    of_pattern: Tensor
    of_output: Tensor

    def placed(self, like: AttentionCall) -> PlacedCall | None:
        """Return this map for a call of the fast route, or None if the shapes differ."""
        heads = like.scores.query.shape[1]
        seen, slope = (observe_written_out(one, heads, None) for one in (self.call, self._sloped()))
        assert seen.passed_on is not None
        pattern, gradient = seen.scores.pattern, slope.scores.pattern
        assert pattern is not None
        assert gradient is not None
        reach = seen.passed_on.laid_out(self.of_output)
        if tuple(pattern.shape) != (1, heads, like.scores.query.shape[2], like.scores.key.shape[2]):
            return None
        return PlacedCall(like.stack, like.keys_from, pattern[0], gradient[0], reach[0].flatten(1).norm(dim=-1))

    def _sloped(self) -> WrittenOutCall:
        return replace(self.call, pattern=self.of_pattern)


def placed(maps: Sequence[WrittenOut], calls: Sequence[AttentionCall]) -> list[PlacedCall] | None:
    """Return the maps of the calls, or None if their number or shapes differ. Windowed attention is skipped, because
    relevance does not pass through it."""
    if len(maps) != len(calls):
        return None
    whole = [(one, call) for one, call in zip(maps, calls, strict=True) if len(call.scores.query) == 1]
    found = [one.placed(call) for one, call in whole]
    return [one for one in found if one is not None] if None not in found else None


def written_out(
    model: nn.Module, batch: Mapping[str, Any], number: Callable[[Tensor], Tensor], eager: bool = True
) -> tuple[list[WrittenOut], float]:
    """Run a copy of the model with full attention maps, and return every map and the answer.

    Without `eager`, fused calls are computed by their definition, because the eager attention of some models is another
    function (it ignores `is_causal`, for example)."""
    copy: Any = deepcopy(model).eval()
    if eager and callable(getattr(copy, "set_attn_implementation", None)) and copy._can_set_attn_implementation():
        copy.set_attn_implementation("eager")
    for parameter in copy.parameters():
        parameter.requires_grad_(parameter.is_floating_point())  # so that maps have a gradient
    calls: list[WrittenOutCall] = []
    with torch.enable_grad(), without_cache(copy), without_fast_path(), _WrittenOutWatch(calls):
        value = number(first_output(run(copy, batch))).sum()
    tensors = [tensor for call in calls for tensor in (call.pattern, call.output)]
    live = [tensor for tensor in tensors if tensor.requires_grad]  # some calls may have no gradient
    slopes = iter(torch.autograd.grad(value, live, allow_unused=True) if live else ())
    known = [next(slopes) if tensor.requires_grad else None for tensor in tensors]
    full = [torch.zeros_like(t) if slope is None else slope for t, slope in zip(tensors, known, strict=True)]
    return [WrittenOut(*one) for one in zip(calls, full[::2], full[1::2], strict=True)], float(value.detach())


class _WrittenOutWatch(SoftmaxWatch):
    """Records every softmax that multiplies values. Fused calls are computed by their definition."""

    def __init__(self, calls: list[WrittenOutCall]) -> None:
        def seen(call: Seen) -> None:
            assert isinstance(call, WrittenOutCall)
            calls.append(call)

        super().__init__(seen)

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is F.scaled_dot_product_attention:
            with self:
                return _written_out(*args, **(kwargs or {}))
        return super().__torch_function__(func, types, args, kwargs)


def _written_out(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attn_mask: Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> Tensor:
    if enable_gqa:
        key, value = (one.repeat_interleave(query.shape[-3] // one.shape[-3], dim=-3) for one in (key, value))
    logits = query @ key.transpose(-1, -2) * (query.shape[-1] ** -0.5 if scale is None else scale)
    if is_causal:
        future = torch.ones(logits.shape[-2:], dtype=torch.bool).triu(1)
        logits = logits.masked_fill(future, float("-inf"))
    if attn_mask is not None:
        logits = logits.masked_fill(~attn_mask, float("-inf")) if attn_mask.dtype == torch.bool else logits + attn_mask
    return logits.softmax(-1) @ value
