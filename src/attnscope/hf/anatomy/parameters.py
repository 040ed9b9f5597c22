"""Projections that watching products did not settle, found by trying the parameters of the attention itself.

Two things escape a look at the first token: a constant added to every query (relative positions) where all sequences
begin with the same token, so that no difference frees them of it; and weights that are no `[in, out]` matrix but have
heads as an axis of their own, anywhere. Here every parameter of the module that attends is multiplied with what that
module was given, or normed inside it, in every order of axes that its shape admits. It is a projection if that gives
the queries, keys or values that were seen, at all tokens up to a constant, or at the first token, where rotary
embeddings do nothing; and the output projection if it takes the mixed heads to something that was seen afterwards.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn

from attnscope.hf.anatomy.example import Batch, probe_run
from attnscope.hf.anatomy.folding import CallMatcher
from attnscope.hf.anatomy.projections import Columns, Projections, tolerance_of
from attnscope.hf.anatomy.recording import Matrix
from attnscope.hf.anatomy.stacks import PlacedCall
from attnscope.hf.intercepting.observed_call import ObservedCall
from attnscope.hf.intercepting.owners import arguments, float_tensors
from attnscope.hf.intercepting.wrappers import in_reach

Tokens = Float[Tensor, "batch token width"]
_FEW = 4  # tokens of every sequence that are compared: what holds for all of these is no accident


def settled(
    model: nn.Module, batch: Batch, placed: tuple[PlacedCall, ...], found: tuple[Projections, ...], fast_path: bool
) -> tuple[Projections, ...]:
    """What was found, and what parameters tell of the rest: one more run, and only where something is missing."""
    search = _Search(model, placed, found)
    if not search.homes:
        return found
    probe_run(model, batch, search, fast_path=fast_path)
    return tuple(search.found)


@dataclass
class _Call:
    """A module call under way; where it is a home, what was seen in it before attention happened, and what later."""

    path: str
    number: int
    given: list[Tensor] = field(default_factory=list)
    later: list[Tensor] = field(default_factory=list)
    observed: list[tuple[int, ObservedCall]] = field(default_factory=list)


class _Search(CallMatcher):
    def __init__(self, model: nn.Module, placed: tuple[PlacedCall, ...], found: tuple[Projections, ...]) -> None:
        super().__init__(model, placed)
        self.found = list(found)
        containers = (nn.ModuleList, nn.ModuleDict)
        self.called = {path for module, path in self.paths.items() if not isinstance(module, containers)}
        self.parameters = in_reach(model)
        self.names = tuple(n for n, p in model.named_parameters() if p.is_floating_point() and p.ndim in (2, 3))
        self.tolerance = tolerance_of(model)
        homes = ((i, self._home(p)) for i, p in enumerate(placed) if not _complete(found[i]))
        self.homes = {index: home for index, home in homes if any(self._of(home))}
        self.wanted = set(self.homes.values())
        self.open: list[_Call] = []
        self.started = 0

    def _home(self, one: PlacedCall) -> str:
        """The module that attends, or the outermost around it inside its block, where its projections may be."""
        owner = one.seen.owner
        block = owner if one.block is None else one.block.path
        inside = owner.removeprefix(f"{block}.").split(".") if owner.startswith(f"{block}.") else []
        around = (".".join([block, *inside[: depth + 1]]) for depth in range(len(inside)))
        return next((path for path in around if path in self.called), owner)

    def _of(self, path: str) -> Iterator[str]:
        return (name for name in self.names if not path or name.startswith(f"{path}."))

    def enter(self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        call = _Call(self.paths[module], self.started)
        self.started += 1
        self.open.append(call)
        self._note(arguments(args, kwargs))

    def leave(self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], output: Any) -> None:
        self._note(output)
        call = self.open.pop()
        with torch._C.DisableTorchFunction():  # our own arithmetic is not the model's
            for index, observed in call.observed:
                self.found[index] = self._tried(self.found[index], index, observed, call)

    def _note(self, thing: Any) -> None:
        """Before attention happened: what projections may read (a norm inside the module). Later: what was written."""
        for call in self.open:
            if call.observed:
                call.later.extend(_copies(thing))
            elif call.path in self.wanted:
                call.given.extend(_copies(thing))

    def under_way(self) -> list[tuple[str, int]]:
        return [(call.path, call.number) for call in self.open]

    def attended(self, index: int, observed: ObservedCall) -> None:
        if index in self.homes:
            home = next(call for call in reversed(self.open) if call.path == self.homes[index])
            home.observed.append((index, observed))

    def _tried(self, known: Projections, index: int, observed: ObservedCall, call: _Call) -> Projections:
        weights = {name: self.parameters[name] for name in self._of(call.path)}
        scores, block = observed.scores, self.placed[index].block
        flipped = block is not None and block.sequence_first
        batch, _, queries, _ = scores.query.shape
        asked = [_tokens(t, batch, queries, flipped) for t in call.given]
        looked_at = [_tokens(t, batch, scores.key.shape[2], flipped) for t in call.given]
        later = [_tokens(t, batch, queries, flipped) for t in call.later]
        return replace(
            known,
            query=known.query or self._columns(scores.query, asked, weights),
            key=known.key or self._columns(scores.key, looked_at, weights),
            value=known.value or self._columns(observed.value, looked_at, weights),
            output=known.output or self._output(observed.mixed, asked, later, weights),
        )

    def _columns(
        self, heads: Float[Tensor, "batch head token dim"], given: list[Tensor | None], weights: Mapping[str, Tensor]
    ) -> Columns | None:
        wanted = heads[:, :, :_FEW].double().transpose(1, 2)  # [batch, token, head, dim]
        for tokens in given:
            if tokens is None or not heads.shape[-1]:
                continue
            for matrix in _readers(weights, tokens.shape[-1], heads.shape[-1]):
                made = _product(tokens, matrix, weights)
                for cut in (_varying, _first):
                    starts = _starts(cut(wanted.flatten(2)), cut(made), heads.shape[1], self.tolerance)
                    if starts is not None:
                        return Columns(matrix, starts, heads.shape[-1])
        return None

    def _output(
        self,
        mixed: Float[Tensor, "batch token head dim"],
        given: list[Tensor | None],
        later: list[Tensor | None],
        weights: Mapping[str, Tensor],
    ) -> Matrix | None:
        for matrix in _writers(weights, mixed.shape[2], mixed.shape[3]):
            write = _product(mixed[:, :_FEW].flatten(2), matrix, weights)
            for state in (t for t in later if t is not None and t.shape == write.shape):
                # What is seen may be the write itself, or its sum with what the module was given.
                for base in (None, *(t for t in given if t is not None and t.shape == write.shape)):
                    change = state.double() if base is None else state.double() - base.double()
                    if _parallel(_varying(write).flatten(), _varying(change).flatten(), self.tolerance):
                        return matrix
        return None


def _complete(found: Projections) -> bool:
    return None not in (found.query, found.key, found.value, found.output)


def _copies(thing: Any) -> list[Tensor]:
    """Copies, because models change tensors in place."""
    return [tensor.detach().clone() for _, tensor in float_tensors(thing) if tensor.ndim == 3]


def _tokens(tensor: Tensor, batch: int, count: int, sequence_first: bool) -> Tokens | None:
    tensor = tensor.transpose(0, 1) if sequence_first else tensor
    return tensor[:, :_FEW] if tensor.shape[:2] == (batch, count) else None


def _readers(weights: Mapping[str, Tensor], width: int, dim: int) -> Iterator[Matrix]:
    """Every parameter that can take a stream of that width to heads of that size, in every way it can."""
    for name, weight in weights.items():
        rows = weight.shape[0]
        if weight.ndim == 2:
            for axis in (0, 1):
                if weight.shape[axis] == width:
                    yield Matrix(name, 0, rows, out_in=axis == 1)
        else:
            for inner, middle, last in _ORDERS:
                if (weight.shape[inner], weight.shape[last]) == (width, dim):
                    yield Matrix(name, 0, rows, out_in=False, axes=(inner, middle, last), inner=1)


def _writers(weights: Mapping[str, Tensor], heads: int, dim: int) -> Iterator[Matrix]:
    """Every parameter that can take the heads, side by side, to a stream."""
    for name, weight in weights.items():
        rows = weight.shape[0]
        if weight.ndim == 2:
            for axis in (0, 1):
                if weight.shape[axis] == heads * dim:
                    yield Matrix(name, 0, rows, out_in=axis == 1)
        else:
            for first, second, outer in _ORDERS:
                if (weight.shape[first], weight.shape[second]) == (heads, dim):
                    yield Matrix(name, 0, rows, out_in=False, axes=(first, second, outer), inner=2)


_ORDERS = ((0, 1, 2), (0, 2, 1), (1, 0, 2), (1, 2, 0), (2, 0, 1), (2, 1, 0))


def _product(
    tokens: Float[Tensor, "batch token inner"], matrix: Matrix, weights: Mapping[str, Tensor]
) -> Float[Tensor, "batch token outer"]:
    """In the model's own precision, so that large weights are not copied."""
    weight = matrix.of(weights)
    return (tokens.to(weight.dtype) @ weight).double()


def _varying(tokens: Tokens) -> Float[Tensor, "row width"]:
    """All tokens, less what is the same in all of them."""
    rows = tokens.flatten(0, 1)
    return rows - rows.mean(0)


def _first(tokens: Tokens) -> Float[Tensor, "row width"]:
    return tokens[:, 0]


def _starts(
    wanted: Float[Tensor, "row channel"], made: Float[Tensor, "row outer"], heads: int, tolerance: float
) -> tuple[int, ...] | None:
    """For every head the run of products that is, in all rows at once, a positive multiple of it."""
    dim = wanted.shape[1] // heads
    if made.shape[1] < dim:
        return None
    runs = made.unfold(1, dim, 1).transpose(0, 1).flatten(1)  # [start, row * dim]
    own = wanted.reshape(-1, heads, dim).transpose(0, 1).flatten(1)  # [head, row * dim]
    cosine = nn.functional.normalize(own, dim=1) @ nn.functional.normalize(runs, dim=1).mT
    best = cosine.max(dim=1)
    return tuple(best.indices.tolist()) if bool((best.values >= 1 - tolerance).all()) else None


def _parallel(left: Float[Tensor, " number"], right: Float[Tensor, " number"], tolerance: float) -> bool:
    return bool(nn.functional.cosine_similarity(left, right, dim=0) >= 1 - tolerance)
