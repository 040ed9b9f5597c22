"""From a torch-level attention call to one shape for everybody: `[batch, head, query, ...]`.

Models lay their heads out in many ways: grouped keys, heads folded into the batch, sequence first,
einsum with letters of their own. A `ObservedCall` is the same call in the one layout that frames use.
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
from attnscope.hf.intercepting.torch_calls import FusedCall, Product, WrittenOutCall, mixing_axes
from attnscope.matrix.scores import Scores
from attnscope.matrix.visibility import for_every_head

# An attention function that is not the model's own tells whoever looks on what it did.
#
# From outside, another attention cannot be told from the arguments of its call: it mixes other values, passes on
# something else than A V, or has weights that are no softmax. The function says so, and the watch of the registry
# believes it in place of its own guess; the verifier still compares what is told with what is passed on.


@dataclass(frozen=True)
class ReportedPattern:
    """A pattern that is not softmax's: how to write it out, who sees whom, and which statistics of it hold."""

    write_out: Callable[[], Float[Tensor, "batch head query key"]]
    visible: Bool[Tensor, "#batch #head #query key"] | None
    causal: bool
    scale: float
    holds: frozenset[str]
    sums_to_one: bool


@dataclass(frozen=True)
class VariantReport:
    """What was done in one call, where it is not what its arguments say."""

    value: Float[Tensor, "batch kv_head key value_dim"] | None = None  # the values that were mixed
    attended: Float[Tensor, "batch query head value_dim"] | None = None  # A V, of which something else was made
    gate: Float[Tensor, "batch token head gates"] | None = None  # what heads, or values, were multiplied by
    weights: ReportedPattern | None = None
    logits_of: tuple[int, ...] | None = None  # heads whose queries and keys are those of the last fused call
    unseen: str | None = None  # a sentence: why nobody can look at this attention


class _Listening(local):
    def __init__(self) -> None:
        self.ears: list[list[VariantReport]] = []


_LISTENING = _Listening()


def report(told: VariantReport) -> None:
    """Said to the innermost listener of this thread, if there is one."""
    if _LISTENING.ears:
        _LISTENING.ears[-1].append(told)


def is_observed() -> bool:
    return bool(_LISTENING.ears)


@contextmanager
def collecting_reports() -> Iterator[list[VariantReport]]:
    heard: list[VariantReport] = []
    _LISTENING.ears.append(heard)
    try:
        yield heard
    finally:
        _LISTENING.ears.pop()


@dataclass(frozen=True)
class ObservedCall:
    """One attention call as it was seen."""

    scores: Scores
    value: Float[Tensor, "batch kv_heads key value_dim"]
    mixed: Float[Tensor, "batch query heads value_dim"]
    route: str
    given: tuple[Tensor, Tensor] | None = None  # queries and values as the model made them, gradients and all
    attended: Float[Tensor, "batch query heads value_dim"] | None = None  # A V, where `mixed` is more than that
    holds: frozenset[str] | None = None  # statistics that mean what they mean for softmax; None: all
    sums_to_one: bool = True
    passed_on: PassedOn | None = None  # A V as the model made it, gradients and all
    gate: Float[Tensor, "batch token gated_heads gates"] | None = None  # of heads or values, where there are gates
    rows: Bool[Tensor, "batch query"] | None = None  # queries that this call answers, where another answers the rest


def observe_fused(call: FusedCall, masks: MaskReader) -> ObservedCall:
    """A fused call outside any registry. Without a head axis there is one head."""
    query, key, value, output = (
        t.detach() if t.ndim == 4 else t.detach().unsqueeze(-3).flatten(0, -4)
        for t in (call.query, call.key, call.value, call.output)
    )
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
    return ObservedCall(scores, value, output.transpose(1, 2), "sdpa", passed_on=PassedOn(call.output, _of_fused))


def _of_fused(output: Float[Tensor, " ..."]) -> Float[Tensor, "batch query heads value_dim"]:
    return (output if output.ndim == 4 else output.unsqueeze(-3).flatten(0, -4)).transpose(1, 2)


def observe_written_out(call: WrittenOutCall, heads: int | None, batch: int | None) -> ObservedCall:
    """A call whose pattern the model made. `heads` or `batch` tells how to unfold a melted leading axis."""
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
    scores = Scores(
        query=queries,
        key=keys,
        scale=queries.shape[-1] ** -0.5 if queries.shape[-1] else 1.0,
        pattern=pattern,
    )
    return ObservedCall(scores, value, laid_out(call.output), "softmax", passed_on=PassedOn(call.output, laid_out))


def _permute(tensor: Shaped[Tensor, " ..."], have: str, want: str) -> Shaped[Tensor, " ..."]:
    """Axes in the wanted order; a letter that is missing becomes an axis of length one."""
    tensor = tensor.detach()
    for letter in want:
        if letter not in have:
            tensor, have = tensor.unsqueeze(-1), have + letter
    return tensor.permute([have.index(letter) for letter in want])


def _unfold(tensor: Shaped[Tensor, " ..."], heads: int | None, batch: int | None) -> Shaped[Tensor, "batch head a b"]:
    """Exactly one batch and one head axis: melted ones are split, several head axes are melted."""
    if tensor.ndim == 4:
        return tensor
    if tensor.ndim > 4:
        return tensor.flatten(1, -3)
    count = tensor.shape[0]
    per = heads if heads is not None and count % heads == 0 else count // (batch or count)
    return tensor.reshape(count // per, per, *tensor.shape[1:])


def _factors(
    product: Product | None,
    pattern: Float[Tensor, "batch head query key"],
    heads: int | None,
    batch: int | None,
) -> tuple[Float[Tensor, "batch head query dim"], Float[Tensor, "batch head key dim"]]:
    """Queries and keys of the product the logits began with; of width zero where none fits."""
    nothing = (
        pattern.new_zeros(*pattern.shape[:3], 0),
        pattern.new_zeros(*pattern.shape[:2], pattern.shape[3], 0),
    )
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
    fits = queries.shape[:3] == pattern.shape[:3] and keys.shape[2] == pattern.shape[3]
    return (queries, keys) if fits and torch.is_floating_point(queries) else nothing


# A observed put right by what the attention function itself told of its call.


def with_report(seen: ObservedCall, told: VariantReport, calls: Sequence[FusedCall], masks: MaskReader) -> ObservedCall:
    """Values, A V, pattern, or queries and keys, where they are others than the call's arguments say."""
    if told.unseen is not None:
        raise RefusalError(told.unseen)
    value = seen.value if told.value is None else told.value.detach()
    attended = None if told.attended is None else told.attended.detach()
    if told.attended is not None:
        seen = replace(seen, passed_on=PassedOn(told.attended, lambda output: output))
    if told.gate is not None:
        seen = replace(seen, gate=told.gate.detach())
    scores = seen.scores
    if told.logits_of is not None:
        scores = _with_queries_of(calls, scores, told.logits_of)
    if told.weights is None:
        return replace(seen, scores=scores, value=value, attended=attended)
    return replace(
        seen,
        scores=_with_pattern(scores, told.weights, masks),
        value=value,
        attended=attended,
        holds=told.weights.holds,
        sums_to_one=told.weights.sums_to_one,
    )


def _with_pattern(scores: Scores, weights: ReportedPattern, masks: MaskReader) -> Scores:
    rule = masks.read(weights.visible, scores.query.shape[2])
    allowed = rule.allowed
    if allowed is None:  # said outright: a weight of 0 does not mean that a key is hidden
        allowed = torch.ones(1, 1, 1, scores.key.shape[2], dtype=torch.bool, device=scores.query.device)
    with torch.no_grad():
        pattern = weights.write_out().detach()
    return Scores(
        query=scores.query,
        key=scores.key,
        scale=weights.scale,
        causal=weights.causal or rule.causal,
        window=rule.window,
        allowed=allowed,
        pattern=pattern,
    )


def _with_queries_of(calls: Sequence[FusedCall], scores: Scores, heads: tuple[int, ...]) -> Scores:
    """Logits made from other queries and keys than the call's: those that the fused kernel was given."""
    if not calls:
        raise RefusalError("The exchanged attention did not use the fused kernel, so its logits were not seen.")
    count = scores.query.shape[1]
    if len(heads) == count:
        return replace(scores, query=calls[-1].query.detach(), key=calls[-1].key.detach(), lse=calls[-1].lse)
    mine = torch.tensor(heads, device=scores.query.device)

    def joined(own: Tensor, other: Tensor) -> Tensor:
        return for_every_head(own, count).index_copy(1, mine, other.detach().to(own.dtype))

    query, key = joined(scores.query, calls[-1].query), joined(scores.key, calls[-1].key)
    return replace(scores, query=query, key=key, lse=None)
