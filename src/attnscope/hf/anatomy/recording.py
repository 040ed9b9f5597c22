"""What happens inside one block during a probe: streams, linear maps and attention, kept as a few small copies.

Copies, because models change tensors in place. Of each tensor a few tokens from the first to the last are kept: a
residual identity that holds for all of those holds for every token (windows keep the order of the first few only).
Projections are recognised at the first token, where rotary embeddings do nothing.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn

from attnscope.hf.intercepting.observed_call import ObservedCall
from attnscope.hf.intercepting.owners import Slot, arguments, at
from attnscope.hf.intercepting.restoring import Restoring

_TOKENS = 6


@dataclass(frozen=True)
class Location:
    """Where a tensor can be read: an input or output of the `nth` call of a module."""

    path: str
    nth: int
    side: str  # "input" or "output"
    slot: Slot


def read_at(
    changes: Restoring, model: nn.Module, wanted: Iterable[Location], keep: Callable[[Location, Tensor], None]
) -> None:
    """Call `keep(location, tensor)` at each wanted location, in every forward pass of `model`."""
    inputs: dict[tuple[str, int], list[Location]] = {}
    outputs: dict[tuple[str, int], list[Location]] = {}
    for location in wanted:
        side = inputs if location.side == "input" else outputs
        side.setdefault((location.path, location.nth), []).append(location)

    def entered(locations: list[Location], args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        for location in locations:
            keep(location, arguments(args, kwargs)[location.slot])

    def left(locations: list[Location], output: Any) -> None:
        for location in locations:
            keep(location, at(output, location.slot))

    changes.nth_calls(model, inputs, before=entered)
    changes.nth_calls(model, outputs, after=left)


@dataclass(frozen=True)
class StreamRecord:
    """A tensor of the stream's shape that went into or came out of a module, and when."""

    place: Location
    module: nn.Module
    tensor: Float[Tensor, "batch token width"]
    order: int
    alone: bool  # the only floating tensor on its side


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
class LinearMap:
    """x -> x W, seen at the first token; `matrix` says where W is."""

    matrix: Matrix
    taken: Float[Tensor, "batch inner"]
    given: Float[Tensor, "batch outer"]


@dataclass(frozen=True)
class Change:
    """The change that a module made to a tensor at the first token. Used to follow norms of queries and keys."""

    path: str
    taken: Float[Tensor, "batch channel"]
    given: Float[Tensor, "batch channel"]


@dataclass
class BlockRecording:
    batch: int
    shape: tuple[int, int, int] | None
    sequence_first: bool
    streams: list[StreamRecord] = field(default_factory=list)
    maps: list[LinearMap] = field(default_factory=list)
    changes: list[Change] = field(default_factory=list)
    attention: list[tuple[int, int, ObservedCall]] = field(default_factory=list)  # index of the call, when, what

    def stream(self, tensor: Tensor) -> Float[Tensor, "batch token width"] | None:
        """Return some tokens of a tensor that has the stream's shape, or its numbers with tokens in one row."""
        if self.shape is None or tensor.shape[-1] != self.shape[-1] or tensor.numel() != math.prod(self.shape):
            return None
        whole = tensor.detach().reshape(self.shape)
        if self.sequence_first:
            whole = whole.transpose(0, 1)
        some = torch.linspace(0, whole.shape[1] - 1, min(_TOKENS, whole.shape[1])).round().long()
        return whole[:, some.to(whole.device)].to(torch.float64)

    def first_token(self, tensor: Tensor) -> list[Float[Tensor, "batch channel"]]:
        """Return the first token of every sequence, flat; both readings if it is unknown which axis has tokens."""
        tensor = tensor.detach()
        if tensor.ndim < 2:
            return []
        if tensor.ndim == 2:
            if tensor.shape[0] % self.batch or not tensor.numel():
                return []
            return [tensor[:: tensor.shape[0] // self.batch], tensor[: self.batch]]
        if tensor.shape[0] == self.batch:
            both = [tensor[:, 0].flatten(1), tensor[:, :, 0].flatten(1)] if tensor.ndim == 4 else None
            return both or [tensor[:, 0].flatten(1)]
        return [tensor[0].flatten(1)] if tensor.shape[1] == self.batch else []


def parameter_matrix(weight: Any, owners: Mapping[int, tuple[str, Tensor]], out_in: bool) -> Matrix | None:
    """Return which parameter (or rows of it) a weight tensor is, however the parameter is stored.

    Only for two axes: if heads are an axis of their own, a product alone does not show in which order its result was
    laid out, and `hf.anatomy.parameters` finds out by trying.
    """
    if not isinstance(weight, Tensor) or weight.ndim != 2 or not weight.is_floating_point():
        return None
    name, parameter = owners.get(weight.untyped_storage().data_ptr(), ("", None))
    if parameter is None or parameter.ndim != 2:
        return None
    if not _rows_of(weight, parameter):
        weight, out_in = weight.t(), not out_in
    if not _rows_of(weight, parameter):
        return None
    first = (weight.storage_offset() - parameter.storage_offset()) // max(parameter.stride(0), 1)
    return Matrix(name, first, weight.shape[0], out_in)


def _rows_of(weight: Tensor, parameter: Tensor) -> bool:
    """Return whether a tensor in a parameter's memory is some of its rows, in order.

    Strides decide, not contiguity: a parameter stored by columns is a transposed view, and so is a weight that is
    transposed for its product.
    """
    pairs = zip(weight.shape, weight.stride(), parameter.stride(), strict=True)
    alike = all(own == other for size, own, other in pairs if size > 1)
    offset, step = int(weight.storage_offset() - parameter.storage_offset()), max(int(parameter.stride(0)), 1)
    within = offset >= 0 and offset % step == 0 and offset // step + weight.shape[0] <= parameter.shape[0]
    return alike and within and weight.shape[1:] == parameter.shape[1:]
