"""Convert attention calls into one layout, `[batch, head, query, ...]`.

Models arrange heads in many ways: grouped keys, heads merged into the batch, sequence first, einsum with any letters.
An `ObservedCall` is the same call in the layout that frames use.

The arguments of a call do not show what an installed variant does: it mixes other values, changes A V (the pattern
times the values), or has weights that are not a softmax. So it reports this (`VariantReport`), and observers use the
report instead of the arguments. The verifier still compares the report with the output of the call.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from threading import local

import torch
from jaxtyping import Bool, Float, Shaped
from torch import Tensor

from attnscope.core.errors import RefusalError
from attnscope.data.frame import PassedOn
from attnscope.hf.intercepting.masks import MaskReader
from attnscope.hf.intercepting.torch_calls import FusedCall, Product, Seen, WrittenOutCall, mixing_axes
from attnscope.matrix.scores import Scores
from attnscope.matrix.visibility import for_every_head


@dataclass(frozen=True)
class ReportedPattern:
    """A pattern that is not a softmax: how to compute it, its visible keys, and which statistics are valid for it."""

    write_out: Callable[[], Float[Tensor, "batch head query key"]]
    visible: Bool[Tensor, "#batch #head #query key"] | None
    causal: bool
    scale: float
    holds: frozenset[str]
    sums_to_one: bool


@dataclass(frozen=True)
class VariantReport:
    """The report of an installed variant to observers: only the differences from the arguments of its call."""

    value: Float[Tensor, "batch kv_head key value_dim"] | None = None  # the values that were mixed
    attended: Float[Tensor, "batch query head value_dim"] | None = None  # A V, before the variant changed it
    gate: Float[Tensor, "batch token head gates"] | None = None  # factors on the outputs of heads, or on values
    weights: ReportedPattern | None = None
    logits_of: tuple[int, ...] | None = None  # heads whose queries and keys are taken from the last fused call
    unseen: str | None = None  # a sentence that says why this attention cannot be observed


class _Collecting(local):
    def __init__(self) -> None:
        self.lists: list[list[VariantReport]] = []


_COLLECTING = _Collecting()


def report(by_variant: VariantReport) -> None:
    """Pass a report to the innermost `collecting_reports` of this thread, if there is one."""
    if _COLLECTING.lists:
        _COLLECTING.lists[-1].append(by_variant)


def is_observed() -> bool:
    return bool(_COLLECTING.lists)


@contextmanager
def collecting_reports() -> Iterator[list[VariantReport]]:
    reports: list[VariantReport] = []
    _COLLECTING.lists.append(reports)
    try:
        yield reports
    finally:
        _COLLECTING.lists.pop()


@dataclass(frozen=True)
class ObservedCall:
    """One attention call in the layout of frames."""

    scores: Scores
    value: Float[Tensor, "batch kv_heads key value_dim"]
    mixed: Float[Tensor, "batch query heads value_dim"]
    route: str
    given: tuple[Tensor, Tensor] | None = None  # the model's queries and values, with gradients
    attended: Float[Tensor, "batch query heads value_dim"] | None = None  # A V, if a variant changed it to `mixed`
    holds: frozenset[str] | None = None  # statistics that are valid for this pattern; None: all
    sums_to_one: bool = True
    passed_on: PassedOn | None = None  # the model's A V, with gradients
    gate: Float[Tensor, "batch token gated_heads gates"] | None = None  # factors on outputs of heads or on values
    rows: Bool[Tensor, "batch query"] | None = None  # which queries belong to this call, if another call has the rest


def observe_fused(call: FusedCall, masks: MaskReader) -> ObservedCall:
    """Convert a fused call that was not made through a registry. Without a head axis there is one head."""
    query, key, value, output = (_with_heads(t.detach()) for t in (call.query, call.key, call.value, call.output))
    mask = call.mask
    if mask is not None and call.query.ndim == 3 and mask.ndim == 3:
        mask = mask.unsqueeze(1)
    rule = masks.read(mask, query.shape[2])
    scores = Scores(
        query=query,
        key=key,
        scale=query.shape[-1] ** -0.5 if call.scale is None else float(call.scale),
        causal=call.causal or rule.causal,
        window=rule.window,
        allowed=rule.allowed,
        bias=rule.bias,
        lse=call.lse,
    )
    passed_on = PassedOn(call.output, lambda tensor: _with_heads(tensor).transpose(1, 2))
    return ObservedCall(scores, value, output.transpose(1, 2), "sdpa", passed_on=passed_on)


def _with_heads(tensor: Float[Tensor, " ..."]) -> Float[Tensor, "batch heads token dim"]:
    return tensor if tensor.ndim == 4 else tensor.unsqueeze(-3).flatten(0, -4)


def observe_written_out(call: WrittenOutCall, heads: int | None, batch: int | None) -> ObservedCall:
    """Convert a call whose pattern the model computed. `heads` or `batch` says how to split a merged leading axis."""
    inputs, out = call.equation.split("->")
    left, right = inputs.split(",")
    axes = mixing_axes(call.equation)
    assert axes is not None
    query, key, channel = axes
    shared = "".join(c for c in left if c not in (key, query))
    if len(shared) == 2 and batch is not None and call.pattern.shape[left.index(shared[0])] != batch:
        shared = shared[::-1] if call.pattern.shape[left.index(shared[1])] == batch else shared
    pattern = _unfold(_permute(call.pattern, left, shared + query + key), heads, batch)
    value = _unfold(_permute(call.value, right, shared + key + channel), heads, batch)

    def laid_out(output: Tensor) -> Tensor:
        return _unfold(_permute(output, out, shared + query + channel), heads, batch).transpose(1, 2)

    queries, keys = _factors(call.logits, pattern, heads, batch)
    scale = queries.shape[-1] ** -0.5 if queries.shape[-1] else 1.0
    scores = Scores(query=queries, key=keys, scale=scale, pattern=pattern)
    return ObservedCall(scores, value, laid_out(call.output), "softmax", passed_on=PassedOn(call.output, laid_out))


def _permute(tensor: Shaped[Tensor, " ..."], have: str, want: str) -> Shaped[Tensor, " ..."]:
    """Return the tensor with its axes in the order `want`; a missing letter becomes an axis of length one."""
    tensor = tensor.detach()
    for letter in want:
        if letter not in have:
            tensor, have = tensor.unsqueeze(-1), have + letter
    return tensor.permute([have.index(letter) for letter in want])


def _unfold(tensor: Shaped[Tensor, " ..."], heads: int | None, batch: int | None) -> Shaped[Tensor, "batch head a b"]:
    """Return the tensor with one batch and one head axis: split a merged axis, or merge several head axes."""
    if tensor.ndim == 4:
        return tensor
    if tensor.ndim > 4:
        return tensor.flatten(1, -3)
    count = tensor.shape[0]
    per = heads if heads is not None and count % heads == 0 else count // (batch or count)
    return tensor.reshape(count // per, per, *tensor.shape[1:])


def _factors(
    product: Product | None, pattern: Float[Tensor, "batch head query key"], heads: int | None, batch: int | None
) -> tuple[Float[Tensor, "batch head query dim"], Float[Tensor, "batch head key dim"]]:
    """Return the queries and keys whose product gave the logits, or tensors of width zero if no product fits."""
    rows, columns = pattern.shape[2:]
    nothing = (pattern.new_zeros(*pattern.shape[:2], rows, 0), pattern.new_zeros(*pattern.shape[:2], columns, 0))
    if product is None:
        return nothing
    inputs, out = product.equation.split("->")
    left, right = inputs.split(",")
    dims = [c for c in left if c in right and c not in out]
    if len(dims) != 1 or any(c not in left for c in out[:-1]) or out[-1] in left or out[-2] in right:
        return nothing
    shared = out[:-2]
    queries = _unfold(_permute(product.left, left, shared + out[-2] + dims[0]), heads, batch)
    keys = _unfold(_permute(product.right, right, shared + out[-1] + dims[0]), heads, batch)
    fits = queries.shape[:3] == pattern.shape[:3] and keys.shape[2] == columns
    return (queries, keys) if fits and torch.is_floating_point(queries) else nothing


def with_report(
    observed: ObservedCall, by_variant: VariantReport, calls: Sequence[FusedCall], masks: MaskReader
) -> ObservedCall:
    """Return the call with its arguments replaced by what the variant reports."""
    if by_variant.unseen is not None:
        raise RefusalError(by_variant.unseen)
    changed = observed
    if by_variant.value is not None:
        changed = replace(changed, value=by_variant.value.detach())
    if by_variant.attended is not None:
        passed_on = PassedOn(by_variant.attended, lambda output: output)
        changed = replace(changed, attended=by_variant.attended.detach(), passed_on=passed_on)
    if by_variant.gate is not None:
        changed = replace(changed, gate=by_variant.gate.detach())
    if by_variant.logits_of is not None:
        changed = replace(changed, scores=_with_queries_of(calls, changed.scores, by_variant.logits_of))
    if (pattern := by_variant.weights) is not None:
        scores = _with_pattern(changed.scores, pattern, masks)
        changed = replace(changed, scores=scores, holds=pattern.holds, sums_to_one=pattern.sums_to_one)
    return changed


def _with_pattern(scores: Scores, reported: ReportedPattern, masks: MaskReader) -> Scores:
    rule = masks.read(reported.visible, scores.query.shape[2])
    allowed = rule.allowed
    if allowed is None:  # explicit, because a weight of 0 does not mean that a key is hidden
        allowed = torch.ones(1, 1, 1, scores.key.shape[2], dtype=torch.bool, device=scores.query.device)
    with torch.no_grad():
        pattern = reported.write_out().detach()
    return Scores(
        query=scores.query,
        key=scores.key,
        scale=reported.scale,
        causal=reported.causal or rule.causal,
        window=rule.window,
        allowed=allowed,
        pattern=pattern,
    )


def _with_queries_of(calls: Sequence[FusedCall], scores: Scores, heads: tuple[int, ...]) -> Scores:
    """Take the queries and keys of these heads from the last fused call."""
    if not calls:
        raise RefusalError(
            "The installed variant did not use the fused kernel, so its logits are unknown: choose another variant."
        )
    last, count = calls[-1], scores.query.shape[1]
    if len(heads) == count:
        return replace(scores, query=last.query.detach(), key=last.key.detach(), lse=last.lse)
    mine = torch.tensor(heads, device=scores.query.device)

    def joined(own: Tensor, other: Tensor) -> Tensor:
        return for_every_head(own, count).index_copy(1, mine, other.detach().to(own.dtype))

    return replace(scores, query=joined(scores.query, last.query), key=joined(scores.key, last.key), lse=None)


def observe(call: Seen, masks: MaskReader, *, heads: int | None = None, batch: int | None = None) -> ObservedCall:
    """Return a call in the layout of frames. `heads` and `batch` are used for written-out calls only."""
    if isinstance(call, FusedCall):
        return observe_fused(call, masks)
    if isinstance(call, WrittenOutCall):
        return observe_written_out(call, heads, batch)
    observed: ObservedCall = call.observed
    return observed
