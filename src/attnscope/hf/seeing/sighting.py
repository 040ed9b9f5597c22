"""From a torch-level attention call to one shape for everybody: `[batch, head, query, ...]`.

Models lay their heads out in many ways: grouped keys, heads folded into the batch, sequence first,
einsum with letters of their own. A `Sighting` is the same call in the one layout that frames use.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float, Shaped
from torch import Tensor

from attnscope.hf.seeing.masks import MaskReader
from attnscope.hf.seeing.primitives import FusedCall, Product, WrittenOutCall, mixing_axes
from attnscope.matrix.scores import Scores
from attnscope.trace.frame import PassedOn


@dataclass(frozen=True)
class Sighting:
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


def sight_fused(call: FusedCall, masks: MaskReader) -> Sighting:
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
    return Sighting(scores, value, output.transpose(1, 2), "sdpa", passed_on=PassedOn(call.output, _of_fused))


def _of_fused(output: Float[Tensor, " ..."]) -> Float[Tensor, "batch query heads value_dim"]:
    return (output if output.ndim == 4 else output.unsqueeze(-3).flatten(0, -4)).transpose(1, 2)


def sight_written_out(call: WrittenOutCall, heads: int | None, batch: int | None) -> Sighting:
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
    return Sighting(scores, value, laid_out(call.output), "softmax", passed_on=PassedOn(call.output, laid_out))


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
