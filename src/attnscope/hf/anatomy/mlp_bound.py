"""The Lipschitz constant of every block's MLP, if it is two linear maps with a known activation between them.

|phi(x W_1) W_2 - phi(y W_1) W_2| <= sup|phi'| ||W_1|| ||W_2|| |x - y| in every induced norm, for matrices W_1 and W_2
and an activation phi. The matrices are the linear maps of a block that do not belong to attention, recognised by their
inputs and outputs. The activation is recognised by comparing its output with the outputs of known activations. A gated
MLP (SwiGLU) multiplies two maps of its input and has no such constant. Mixtures of experts are not bounded either.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor, nn

from attnscope.hf.anatomy.anatomy import Anatomy, Block, Stack
from attnscope.hf.intercepting.restoring import Restoring
from attnscope.matrix.residual import largest_column_sum, largest_row_sum

_TOKENS = 8


@dataclass(frozen=True)
class MlpBound:
    """The Lipschitz bound sup|phi'| ||W_1|| ||W_2|| of an MLP in three induced norms."""

    spectral: float
    one: float
    inf: float


_ACTIVATIONS: tuple[tuple[Callable[[Tensor], Tensor], float], ...] = (  # with the largest slope sup|phi'|, rounded up
    (F.relu, 1.0),
    (F.gelu, 1.1290),
    (lambda x: F.gelu(x, approximate="tanh"), 1.1290),
    (F.silu, 1.0999),
    (lambda x: x * torch.sigmoid(1.702 * x), 1.0999),  # quick_gelu
    (torch.tanh, 1.0),
    (lambda x: x, 1.0),
)


@dataclass
class _Map:
    matrix: Float[Tensor, "inner outer"]
    taken: Float[Tensor, "row inner"]
    given: Float[Tensor, "row outer"]


def mlp_bounds(model: nn.Module, found: Anatomy, stack: Stack, inputs: Mapping[str, Any]) -> dict[int, MlpBound] | str:
    """Return the constant of every block, or, if a block has none, the reason as a clause for a sentence."""
    own = [site.projections for site in found.sites if site.stack == stack.name]
    if not all(p.complete for p in own):
        return "the projections of its attention were not recognised"
    attention = {matrix.parameter for p in own for matrix in p.matrices.values()}
    maps = _linear_maps(model, stack, attention, inputs)
    bounds: dict[int, MlpBound] = {}
    for block in stack.blocks:
        bound = _bound(maps[block.layer]) if maps[block.layer] else "it has no MLP"
        if isinstance(bound, str):
            return bound
        bounds[block.layer] = bound
    return bounds


def _linear_maps(
    model: nn.Module, stack: Stack, attention: set[str], inputs: Mapping[str, Any]
) -> dict[int, list[_Map]]:
    """Return the linear maps of every block that do not belong to attention, in order of execution."""
    maps: dict[int, list[_Map]] = {block.layer: [] for block in stack.blocks}
    inside: list[Block] = []
    names = {parameter: name for name, parameter in model.named_parameters()}

    def look(module: nn.Module, args: tuple[Any, ...], output: Any) -> None:
        weight = module._parameters.get("weight")
        if not inside or weight is None or weight.ndim != 2 or names.get(weight) in attention:
            return
        if len(args) != 1 or not isinstance(args[0], Tensor) or not isinstance(output, Tensor):
            return
        linear = _linear(weight.detach(), args[0].flatten(0, -2)[:_TOKENS], output.flatten(0, -2)[:_TOKENS])
        if linear is not None:
            maps[inside[-1].layer].append(linear)

    def enter(block: Block, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        inside.append(block)

    def leave(_: Block, output: Any) -> None:
        inside.pop()

    with Restoring() as changes, torch.no_grad():
        changes.nth_calls(model, {(b.path, b.nth): b for b in stack.blocks}, before=enter, after=leave)
        for path in {block.path for block in stack.blocks}:
            for module in model.get_submodule(path).modules():
                changes.after(module, look)
        model(**inputs)
    return maps


def _linear(weight: Tensor, taken: Tensor, given: Tensor) -> _Map | None:
    for matrix in (weight.T, weight):
        if taken.shape[-1] != matrix.shape[0] or given.shape[-1] != matrix.shape[1]:
            continue
        change = taken[1:] - taken[:-1]  # the bias cancels
        if torch.allclose(change @ matrix, given[1:] - given[:-1], rtol=1e-3, atol=1e-4):
            return _Map(matrix, taken.clone(), given.clone())
    return None


def _bound(maps: list[_Map]) -> MlpBound | str:
    if len(maps) != 2 or maps[0].matrix.shape[1] != maps[1].matrix.shape[0]:
        return "its MLP is not two linear maps (a gated one has no Lipschitz constant)"
    before, after = maps[0].given, maps[1].taken
    slope = next((s for f, s in _ACTIVATIONS if torch.allclose(f(before), after, rtol=1e-4, atol=1e-5)), None)
    if slope is None:
        return "the activation of its MLP is not known"
    first, second = (m.matrix.double() for m in maps)
    return MlpBound(
        *(float(slope * norm(first) * norm(second)) for norm in (_spectral, largest_column_sum, largest_row_sum))
    )


def _spectral(matrix: Float[Tensor, "inner outer"]) -> Tensor:
    """Return the spectral norm of a matrix W from the smaller of W W^T and W^T W: faster than an SVD, and as precise
    for the largest value."""
    gram = matrix @ matrix.T if matrix.shape[0] <= matrix.shape[1] else matrix.T @ matrix
    largest: Tensor = torch.linalg.eigvalsh(gram)[-1]
    return largest.clamp_min(0.0).sqrt()
