"""Recordings of the streams, linear maps and attention calls inside one block during a probe.

Tensors are copied, because models change them in place. A few tokens, spread from the first to the last, are kept: a
residual identity that holds for these holds for every token. The first few would not suffice, because models with
windows leave them in place and reorder the others.

Projections are recognised at the first token, where rotary embeddings are the identity.
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
    """An input or output of the `nth` call of a module, where a tensor can be read."""

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
    """An input or output of a module with the shape of the stream, and its order in the run."""

    place: Location
    module: nn.Module
    tensor: Float[Tensor, "batch token width"]
    order: int
    alone: bool  # the only floating-point input (or output) of its module


@dataclass(frozen=True)
class Matrix:
    """A matrix of a model: a parameter or some of its rows, stored as `[in, out]`, or as `[out, in]` if `out_in`.

    A parameter with a separate axis for heads may have any order of axes. `axes` permutes them so that the first
    `inner` axes together are the rows of the matrix.
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
    """A linear map x -> x W with its input and output at the first token; `matrix` says where W is stored."""

    matrix: Matrix
    taken: Float[Tensor, "batch inner"]
    given: Float[Tensor, "batch outer"]


@dataclass(frozen=True)
class Change:
    """Input and output of a module at the first token. Used to follow norms of queries and keys."""

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
    attention: list[tuple[int, int, ObservedCall]] = field(default_factory=list)  # index, order, call

    def stream(self, tensor: Tensor) -> Float[Tensor, "batch token width"] | None:
        """Return some tokens of a tensor if it has the size and the width of the stream, otherwise None."""
        if self.shape is None or tensor.shape[-1] != self.shape[-1] or tensor.numel() != math.prod(self.shape):
            return None
        whole = tensor.detach().reshape(self.shape)
        if self.sequence_first:
            whole = whole.transpose(0, 1)
        some = torch.linspace(0, whole.shape[1] - 1, min(_TOKENS, whole.shape[1])).round().long()
        return whole[:, some.to(whole.device)].to(torch.float64)

    def first_token(self, tensor: Tensor) -> list[Float[Tensor, "batch channel"]]:
        """Return the first token of every sequence, flattened, for each axis that may be the axis of tokens."""
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
    """Return the parameter, or rows of one, that a weight tensor is a view of; None if there is none.

    Only weights with two axes are handled. If heads have a separate axis, a product does not show the order of axes of
    its result, and `hf.anatomy.parameters` tries all orders.
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
    """Return whether a view of a parameter is a range of its rows.

    Strides are compared, because a contiguity check would fail for a parameter that is stored by columns.
    """
    pairs = zip(weight.shape, weight.stride(), parameter.stride(), strict=True)
    alike = all(own == other for size, own, other in pairs if size > 1)
    offset, step = int(weight.storage_offset() - parameter.storage_offset()), max(int(parameter.stride(0)), 1)
    within = offset >= 0 and offset % step == 0 and offset // step + weight.shape[0] <= parameter.shape[0]
    return alike and within and weight.shape[1:] == parameter.shape[1:]
