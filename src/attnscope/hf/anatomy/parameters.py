"""Find projections that `projections` missed, by trying every parameter of the attention module.

Two cases cannot be recognised from products at the first token: a constant added to every query (relative positions) if
all sequences begin with the same token, and weights with a separate axis for heads. So every parameter of the module is
multiplied with the tensors that the module read or normed, in every order of axes that fits. It is a projection if the
product equals the observed queries, keys or values at all tokens up to a constant, or at the first token, where rotary
embeddings are the identity. It is the output projection if it maps the mixed heads to a tensor that was observed later.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from itertools import permutations
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn.functional import cosine_similarity, normalize

from attnscope.hf.anatomy.example import Batch
from attnscope.hf.anatomy.probe import CallMatcher, OpenCall, probe_run
from attnscope.hf.anatomy.projections import Columns, Projections, tolerance_of
from attnscope.hf.anatomy.recording import Matrix
from attnscope.hf.anatomy.stacks import PlacedCall
from attnscope.hf.intercepting.observed_call import ObservedCall
from attnscope.hf.intercepting.owners import arguments, float_tensors
from attnscope.hf.intercepting.wrappers import in_reach

Tokens = Float[Tensor, "batch token width"]
_FEW = 4  # tokens of every sequence that are compared


def settled(
    model: nn.Module, batch: Batch, placed: tuple[PlacedCall, ...], found: tuple[Projections, ...], fast_path: bool
) -> tuple[Projections, ...]:
    """Return `found`, completed by trying parameters. Run the model only if projections are missing."""
    search = _Search(model, placed, found)
    if not search.homes:
        return found
    probe_run(model, batch, search, fast_path=fast_path)
    return tuple(search.found)


@dataclass
class _Call(OpenCall):
    """A module call and, if it attends, the tensors seen before and after its attention calls, and these calls."""

    given: list[Tensor] = field(default_factory=list)
    later: list[Tensor] = field(default_factory=list)
    attention: list[tuple[int, ObservedCall]] = field(default_factory=list)


class _Search(CallMatcher[_Call]):
    call_class = _Call

    def __init__(self, model: nn.Module, placed: tuple[PlacedCall, ...], found: tuple[Projections, ...]) -> None:
        super().__init__(model, placed)
        self.found = list(found)
        containers = (nn.ModuleList, nn.ModuleDict)
        self.called = {path for module, path in self.paths.items() if not isinstance(module, containers)}
        self.parameters = in_reach(model)
        self.names = tuple(n for n, p in model.named_parameters() if p.is_floating_point() and p.ndim in (2, 3))
        self.tolerance = tolerance_of(model)
        homes = ((i, self._home(p)) for i, p in enumerate(placed) if not found[i].complete)
        self.homes = {index: home for index, home in homes if any(self._of(home))}

    def _home(self, placed: PlacedCall) -> str:
        """Return the path of the outermost module inside the block that contains the attention and may hold its
        weights."""
        owner = placed.seen.owner
        block = owner if placed.block is None else placed.block.path
        inside = owner.removeprefix(f"{block}.").split(".") if owner.startswith(f"{block}.") else []
        around = (".".join([block, *inside[: depth + 1]]) for depth in range(len(inside)))
        return next((path for path in around if path in self.called), owner)

    def _of(self, path: str) -> Iterator[str]:
        return (name for name in self.names if not path or name.startswith(f"{path}."))

    def began(self, call: _Call, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:  # noqa: ARG002
        self._note(arguments(args, kwargs))

    def ended(self, call: _Call, args: tuple[Any, ...], kwargs: dict[str, Any], output: Any) -> None:
        self._note(output)
        with torch._C.DisableTorchFunction():  # do not observe our own arithmetic
            for index, observed in call.attention:
                self.found[index] = self._tried(self.found[index], index, observed, call)

    def _note(self, values: Any) -> None:
        """Store tensors that projections may read before attention, and tensors that are written after it."""
        for call in self.open:
            if call.attention:
                call.later.extend(_copies(values))
            elif call.path in self.homes.values():
                call.given.extend(_copies(values))

    def attended(self, index: int, observed: ObservedCall) -> None:
        if index in self.homes:
            home = next(call for call in reversed(self.open) if call.path == self.homes[index])
            home.attention.append((index, observed))

    def _tried(self, known: Projections, index: int, observed: ObservedCall, call: _Call) -> Projections:
        weights = {name: self.parameters[name] for name in self._of(call.path)}
        scores, block = observed.scores, self.placed[index].block
        flipped = block is not None and block.sequence_first
        batch, _, queries, _ = scores.query.shape

        def tokens(tensors: list[Tensor], count: int) -> list[Tensor]:
            turned = (tensor.transpose(0, 1) if flipped else tensor for tensor in tensors)
            return [tensor[:, :_FEW] for tensor in turned if tensor.shape[:2] == (batch, count)]

        query_inputs, key_inputs = tokens(call.given, queries), tokens(call.given, scores.key.shape[2])
        return replace(
            known,
            query=known.query or self._columns(scores.query, query_inputs, weights),
            key=known.key or self._columns(scores.key, key_inputs, weights),
            value=known.value or self._columns(observed.value, key_inputs, weights),
            output=known.output or self._output(observed.mixed, query_inputs, tokens(call.later, queries), weights),
        )

    def _columns(
        self, heads: Float[Tensor, "batch head token dim"], given: list[Tensor], weights: Mapping[str, Tensor]
    ) -> Columns | None:
        count, dim = heads.shape[1], heads.shape[3]
        wanted = heads[:, :, :_FEW].double().transpose(1, 2).flatten(2)  # [batch, token, head * dim]
        for tokens in given if dim else ():
            for matrix in _matrices(weights, (tokens.shape[-1],), (dim,)):
                made = _product(tokens, matrix, weights)
                for cut in (_varying, _first):
                    starts = _starts(cut(wanted), cut(made), count, self.tolerance)
                    if starts is not None:
                        return Columns(matrix, starts, dim)
        return None

    def _output(
        self,
        mixed: Float[Tensor, "batch token head dim"],
        inputs: list[Tensor],
        later: list[Tensor],
        weights: Mapping[str, Tensor],
    ) -> Matrix | None:
        for matrix in _matrices(weights, (mixed.shape[2], mixed.shape[3]), ()):
            write = _product(mixed[:, :_FEW].flatten(2), matrix, weights)
            for state in (t for t in later if t.shape == write.shape):
                # A later tensor may be the write itself, or its sum with an input of the module.
                for base in (None, *(t for t in inputs if t.shape == write.shape)):
                    change = state.double() if base is None else state.double() - base.double()
                    cosine = cosine_similarity(_varying(write).flatten(), _varying(change).flatten(), dim=0)
                    if bool(cosine >= 1 - self.tolerance):
                        return matrix
        return None


def _copies(values: Any) -> list[Tensor]:
    """Copy tensors of three axes, because models change them in place."""
    return [tensor.detach().clone() for _, tensor in float_tensors(values) if tensor.ndim == 3]


def _matrices(weights: Mapping[str, Tensor], first: tuple[int, ...], last: tuple[int, ...]) -> Iterator[Matrix]:
    """Yield every parameter as a matrix, in every order of axes that fits.

    A parameter with two axes must have as many rows as the product of `first`. One with three axes must have an order
    that begins with the sizes `first` and ends with the sizes `last`.
    """
    for name, weight in weights.items():
        rows = weight.shape[0]
        if weight.ndim == 2:
            for axis in (0, 1):
                if weight.shape[axis] == torch.Size(first).numel():
                    yield Matrix(name, 0, rows, out_in=axis == 1)
        else:
            for axes in permutations(range(3)):
                shape = tuple(weight.shape[axis] for axis in axes)
                if shape[: len(first)] == first and shape[3 - len(last) :] == last:
                    yield Matrix(name, 0, rows, out_in=False, axes=axes, inner=len(first))


def _product(
    tokens: Float[Tensor, "batch token inner"], matrix: Matrix, weights: Mapping[str, Tensor]
) -> Float[Tensor, "batch token outer"]:
    """Multiply in the model's own precision, so that large weights are not copied."""
    weight = matrix.of(weights)
    return (tokens.to(weight.dtype) @ weight).double()


def _varying(tokens: Tokens) -> Float[Tensor, "row width"]:
    """Return the vectors of all tokens minus their mean."""
    rows = tokens.flatten(0, 1)
    return rows - rows.mean(0)


def _first(tokens: Tokens) -> Float[Tensor, "row width"]:
    return tokens[:, 0]


def _starts(
    wanted: Float[Tensor, "row channel"], made: Float[Tensor, "row outer"], heads: int, tolerance: float
) -> tuple[int, ...] | None:
    """Return the first column, for every head, of the run of columns of `made` that equals it up to a positive
    factor."""
    dim = wanted.shape[1] // heads
    if made.shape[1] < dim:
        return None
    runs = made.unfold(1, dim, 1).transpose(0, 1).flatten(1)  # [start, row * dim]
    own = wanted.reshape(-1, heads, dim).transpose(0, 1).flatten(1)  # [head, row * dim]
    best = (normalize(own, dim=1) @ normalize(runs, dim=1).mT).max(dim=1)
    return tuple(best.indices.tolist()) if bool((best.values >= 1 - tolerance).all()) else None
