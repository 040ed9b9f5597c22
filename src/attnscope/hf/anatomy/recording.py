"""What happens inside one block during a probe: streams, linear maps and attention, kept as a few small
copies.

Copies, because models change tensors in place; a few tokens of each, from the first to the last, because a
residual identity that holds for all of those holds for every token (windows keep the order of the first few
only); projections are recognised at the first token, where rotary embeddings do nothing.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn

from attnscope.hf.intercepting.observed_call import ObservedCall
from attnscope.hf.intercepting.owners import Slot

_TOKENS = 6


@dataclass(frozen=True)
class Location:
    """Where a tensor can be read: an input or output of the `nth` call of a module."""

    path: str
    nth: int
    side: str  # "input" or "output"
    slot: Slot


@dataclass(frozen=True)
class StreamRecord:
    """A tensor of the stream's shape that went into or came out of a module, with when."""

    place: Location
    module: nn.Module
    tensor: Float[Tensor, "batch token width"]
    order: int
    alone: bool  # the only floating tensor on its side


@dataclass(frozen=True)
class LinearMap:
    """x -> x W, seen at the first token; `matrix` says where W is."""

    matrix: Matrix
    taken: Float[Tensor, "batch inner"]
    given: Float[Tensor, "batch outer"]


@dataclass(frozen=True)
class Matrix:
    """A matrix of a model: a parameter (or some of its rows), as `[in, out]` or the other way round.

    A parameter with a head axis of its own may have any order of axes: `axes` puts them in the order in which the first
    `inner` of them, taken together, are the matrix's rows.
    """

    parameter: str
    first_row: int
    rows: int
    out_in: bool
    axes: tuple[int, ...] = ()
    inner: int = 1

    def of(self, parameters: Mapping[str, Tensor]) -> Float[Tensor, "inner outer"]:
        whole = parameters[self.parameter].detach()
        if self.axes:
            return whole.permute(self.axes).flatten(0, self.inner - 1).flatten(1)
        flat = whole.flatten(1)[self.first_row : self.first_row + self.rows]
        return flat.t() if self.out_in else flat


@dataclass(frozen=True)
class Change:
    """What a module made of a tensor, at the first token: how norms of queries and keys are followed."""

    path: str
    taken: Float[Tensor, "batch channel"]
    given: Float[Tensor, "batch channel"]


@dataclass
class BlockRecording:
    """One block's recording."""

    batch: int
    shape: tuple[int, int, int] | None
    sequence_first: bool
    streams: list[StreamRecord] = field(default_factory=list)
    maps: list[LinearMap] = field(default_factory=list)
    changes: list[Change] = field(default_factory=list)
    observed: list[tuple[int, int, ObservedCall]] = field(default_factory=list)  # which, when, what

    def stream(self, tensor: Tensor) -> Float[Tensor, "batch token width"] | None:
        """Some tokens of a tensor that has the stream's shape, or its numbers with tokens in one row."""
        if self.shape is None or tensor.shape[-1] != self.shape[-1] or tensor.numel() != _count(self.shape):
            return None
        whole = tensor.detach().reshape(self.shape)
        if self.sequence_first:
            whole = whole.transpose(0, 1)
        some = torch.linspace(0, whole.shape[1] - 1, min(_TOKENS, whole.shape[1])).round().long()
        return whole[:, some.to(whole.device)].to(torch.float64)

    def first_token(self, tensor: Tensor) -> list[Float[Tensor, "batch channel"]]:
        """The first token of every sequence, flat; both readings where it is open which axis has tokens."""
        tensor = tensor.detach()
        if tensor.ndim < 2:
            return []
        if tensor.ndim == 2:
            if tensor.shape[0] % self.batch or not tensor.numel():
                return []
            tokens = tensor.shape[0] // self.batch
            return [tensor[::tokens], tensor[: self.batch]]
        if tensor.shape[0] == self.batch:
            found = [tensor[:, 0].flatten(1)]
            return [*found, tensor[:, :, 0].flatten(1)] if tensor.ndim == 4 else found
        return [tensor[0].flatten(1)] if tensor.shape[1] == self.batch else []


def _count(shape: Iterable[int]) -> int:
    product = 1
    for size in shape:
        product *= size
    return product


def parameter_matrix(weight: Any, owners: Mapping[int, tuple[str, Tensor]], out_in: bool) -> Matrix | None:
    """Which parameter (or rows of it) a weight tensor is, however the parameter lies in memory.

    Only of two axes: where heads are an axis of their own, a product alone does not tell in which order its result was
    laid out, and `hf.anatomy.parameters` finds out by trying.
    """
    if not isinstance(weight, Tensor) or weight.ndim != 2 or not weight.is_floating_point():
        return None
    owner = owners.get(weight.untyped_storage().data_ptr())
    if owner is None or owner[1].ndim != 2:
        return None
    name, parameter = owner
    if not _rows_of(weight, parameter):
        weight, out_in = weight.t(), not out_in
    if not _rows_of(weight, parameter):
        return None
    first = (weight.storage_offset() - parameter.storage_offset()) // max(parameter.stride(0), 1)
    return Matrix(name, first, weight.shape[0], out_in)


def _rows_of(weight: Tensor, parameter: Tensor) -> bool:
    """Whether a tensor in a parameter's memory is some of its rows, in order.

    Strides decide, not contiguity: a parameter stored by columns is a transposed view, and so is a weight that is turned
    for its product.
    """
    pairs = zip(weight.shape, weight.stride(), parameter.stride(), strict=True)
    alike = all(own == other for size, own, other in pairs if size > 1)
    offset, step = int(weight.storage_offset() - parameter.storage_offset()), max(int(parameter.stride(0)), 1)
    within = offset >= 0 and offset % step == 0 and offset // step + weight.shape[0] <= parameter.shape[0]
    return alike and within and weight.shape[1:] == parameter.shape[1:]
