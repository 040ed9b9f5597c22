"""The Lipschitz constant of every block's MLP, where it is two linear maps with a known activation between them.

|phi(x W_1) W_2 - phi(y W_1) W_2| <= sup|phi'| ||W_1|| ||W_2|| |x - y|, in every induced norm. The two maps are the
linear maps of a block that are not attention's, recognised by what they took and gave; the activation by comparing what
it gave with what known ones give. A gated MLP (SwiGLU) multiplies two maps of its input: it has no such constant, and
none is claimed for it, nor for mixtures of experts.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor, nn

from attnscope.hf.anatomy.anatomy import Anatomy, Stack
from attnscope.hf.intercepting.restoring import Restoring
from attnscope.matrix.residual import largest_column_sum, largest_row_sum

_TOKENS = 8


@dataclass(frozen=True)
class MlpBound:
    """sup|phi'| ||W_1|| ||W_2|| in three induced norms."""

    spectral: float
    one: float
    inf: float


# sup|phi'|, rounded up in the last place
_ACTIVATIONS: dict[str, tuple[Callable[[Tensor], Tensor], float]] = {
    "relu": (F.relu, 1.0),
    "gelu": (F.gelu, 1.1290),
    "gelu_tanh": (lambda x: F.gelu(x, approximate="tanh"), 1.1290),
    "silu": (F.silu, 1.0999),
    "quick_gelu": (lambda x: x * torch.sigmoid(1.702 * x), 1.0999),
    "tanh": (torch.tanh, 1.0),
    "identity": (lambda x: x, 1.0),
}


@dataclass
class _Map:
    matrix: Float[Tensor, "inner outer"]
    taken: Float[Tensor, "row inner"]
    given: Float[Tensor, "row outer"]


@dataclass
class _Seen:
    """The linear maps of every call of every block, in the order in which they ran."""

    maps: dict[tuple[str, int], list[_Map]] = field(default_factory=dict)
    calls: Counter[str] = field(default_factory=Counter)
    inside: list[tuple[str, int]] = field(default_factory=list)


def mlp_bounds(model: nn.Module, found: Anatomy, stack: Stack, inputs: Mapping[str, Any]) -> dict[int, MlpBound] | str:
    """By layer; or a few words on why there is no such constant."""
    own = [site.projections for site in found.sites if site.stack == stack.name]
    if any(p.query is None or p.key is None or p.value is None or p.output is None for p in own):
        return "the projections of its attention were not recognised"
    attention = {m.matrix.parameter for p in own for m in (p.query, p.key, p.value) if m is not None}
    attention |= {p.output.parameter for p in own if p.output is not None}
    seen = _watch(model, stack, attention, inputs)
    answer: dict[int, MlpBound] = {}
    for block in stack.blocks:
        maps = seen.maps.get((block.path, block.nth), [])
        if not maps:
            return "it has no MLP"
        one = _constant(maps)
        if isinstance(one, str):
            return one
        answer[block.layer] = one
    return answer


def _watch(model: nn.Module, stack: Stack, attention: set[str], inputs: Mapping[str, Any]) -> _Seen:
    seen = _Seen()
    names = {parameter: name for name, parameter in model.named_parameters()}

    def enter(path: str) -> Callable[..., None]:
        def hook(module: nn.Module, args: tuple[Any, ...]) -> None:
            seen.inside.append((path, seen.calls[path]))
            seen.calls[path] += 1

        return hook

    def leave(module: nn.Module, args: tuple[Any, ...], output: Any) -> None:
        seen.inside.pop()

    def look(module: nn.Module, args: tuple[Any, ...], output: Any) -> None:
        weight = module._parameters.get("weight")
        if not seen.inside or weight is None or weight.ndim != 2 or names.get(weight) in attention:
            return
        if len(args) != 1 or not isinstance(args[0], Tensor) or not isinstance(output, Tensor):
            return
        linear = _linear(weight.detach(), args[0].flatten(0, -2)[:_TOKENS], output.flatten(0, -2)[:_TOKENS])
        if linear is not None:
            seen.maps.setdefault(seen.inside[-1], []).append(linear)

    with Restoring() as changes, torch.no_grad():
        for path in {block.path for block in stack.blocks}:
            block = model.get_submodule(path)
            changes.before(block, enter(path), kwargs=False)
            changes.after(block, leave, always=True)
            for module in block.modules():
                changes.after(module, look)
        model(**inputs)
    return seen


def _linear(weight: Tensor, taken: Tensor, given: Tensor) -> _Map | None:
    for matrix in (weight.T, weight):
        if taken.shape[-1] != matrix.shape[0] or given.shape[-1] != matrix.shape[1]:
            continue
        change = taken[1:] - taken[:-1]  # the bias cancels
        if torch.allclose(change @ matrix, given[1:] - given[:-1], rtol=1e-3, atol=1e-4):
            return _Map(matrix, taken.clone(), given.clone())
    return None


def _constant(maps: list[_Map]) -> MlpBound | str:
    if len(maps) != 2 or maps[0].matrix.shape[1] != maps[1].matrix.shape[0]:
        return "its MLP is not two linear maps (a gated one has no Lipschitz constant)"
    before, after = maps[0].given, maps[1].taken
    slope = next((s for f, s in _ACTIVATIONS.values() if torch.allclose(f(before), after, rtol=1e-4, atol=1e-5)), None)
    if slope is None:
        return "the activation of its MLP is not known"
    first, second = (m.matrix.double() for m in maps)
    return MlpBound(
        *(float(slope * norm(first) * norm(second)) for norm in (_spectral, largest_column_sum, largest_row_sum))
    )


def _spectral(matrix: Float[Tensor, "inner outer"]) -> Tensor:
    """||W|| from the smaller of W W^T and W^T W: faster than its singular values, and as good for the largest."""
    gram = matrix @ matrix.T if matrix.shape[0] <= matrix.shape[1] else matrix.T @ matrix
    largest: Tensor = torch.linalg.eigvalsh(gram)[-1]
    return largest.clamp_min(0.0).sqrt()
