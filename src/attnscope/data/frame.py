"""A frame: the named tensors at one site of one block during one batch.

Measures ask for fields by name. There are four kinds of frames:

    StreamFrame      at site `stream`, the residual stream entering block `layer` (or leaving the last block), or
                     at site `middle`, after the attention write inside it
    AttentionFrame   one attention call in block `layer`, at site `self` or `cross`
    WeightsFrame     the projections of that call, once per model
    TrainingFrame    the same projections after a training step, with their gradients and their values before it
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from jaxtyping import Bool, Float, Int
from torch import Tensor

from attnscope.matrix.scores import Scores


@dataclass(frozen=True)
class StreamFrame:
    """The residual stream at one depth. Padding is False in `token_mask`."""

    stack: str
    site: str  # "stream" or "middle"
    layer: int
    stream: Float[Tensor, "batch token width"]
    token_mask: Bool[Tensor, "batch token"]
    stream_before: Float[Tensor, "batch token width"] | None = None  # input of the block that wrote it; None at block 0


@dataclass(frozen=True)
class PassedOn:
    """A V (the pattern times the values) as the very tensor with which the model continues, so that gradients reach it.
    `laid_out` brings a tensor of its shape, such as its gradient, into the layout of `AttentionFrame.mixed`."""

    tensor: Tensor
    laid_out: Callable[[Tensor], Float[Tensor, "batch query heads value_dim"]]


@dataclass(frozen=True)
class AttentionFrame:
    """One attention call. `mixed` is A V, the pattern times the values, before the output projection; the verifier
    recomputes it.

    If a variant changes A V before it is passed on (a gate), `mixed` is what is passed on, and `attended` is A V.
    `holds` are the statistics that mean the same as for softmax; None means all of them.
    """

    stack: str
    site: str  # "self" or "cross"
    layer: int
    scores: Scores
    value: Float[Tensor, "batch kv_heads key value_dim"]
    mixed: Float[Tensor, "batch query heads value_dim"]
    query_mask: Bool[Tensor, "batch query"]
    key_mask: Bool[Tensor, "batch key"]
    route: str  # "interface", "sdpa", "softmax" or "pieces": how the call was observed
    output_weight: Float[Tensor, "heads value_dim width"] | None = None
    attended: Float[Tensor, "batch query heads value_dim"] | None = None
    holds: frozenset[str] | None = None
    sums_to_one: bool = True
    passed_on: PassedOn | None = None  # if gradients are available
    media: Bool[Tensor, "batch key"] | None = None  # True at tokens of pictures or sound among words, if there are any
    # gates on the heads' output or on values, if any
    gate: Float[Tensor, "batch token gated_heads gates"] | None = None
    tokens: Int[Tensor, "batch key"] | None = None  # token numbers of queries and keys, if known


@dataclass(frozen=True)
class WeightsFrame:
    """The projections of one attention module, split by head. With grouped heads, keys and values are repeated."""

    stack: str
    site: str
    layer: int
    scale: float
    query_weight: Float[Tensor, "heads width dim"] | None
    key_weight: Float[Tensor, "heads key_width dim"] | None
    value_weight: Float[Tensor, "heads key_width value_dim"] | None
    output_weight: Float[Tensor, "heads value_dim width"] | None


@dataclass(frozen=True)
class TrainingFrame:
    """One attention module at one training step. Tensors are keyed by projection (query, key, value, output); a
    projection that was not recognised is missing. `gradient` and `weight_before` are None if unknown."""

    stack: str
    site: str
    layer: int
    weight: Mapping[str, Float[Tensor, "inner outer"]]
    gradient: Mapping[str, Float[Tensor, "inner outer"]] | None = None
    weight_before: Mapping[str, Float[Tensor, "inner outer"]] | None = None
