"""Read the projections of every attention call from a model, as frames of weights."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import torch
from jaxtyping import Float
from torch import Tensor, nn

from attnscope.data.frame import TrainingFrame, WeightsFrame
from attnscope.hf.anatomy.anatomy import Anatomy, Site
from attnscope.hf.anatomy.projections import Columns
from attnscope.hf.anatomy.recording import Matrix
from attnscope.hf.intercepting.wrappers import in_reach


def weights(model: nn.Module, found: Anatomy) -> tuple[WeightsFrame, ...]:
    """Return the current projections of every attention call, split by head."""
    return tuple(weights_in_turn(model, found))


def weights_in_turn(model: nn.Module, found: Anatomy) -> Iterator[WeightsFrame]:
    """Yield the frames of `weights` one by one, to save memory: frames of grouped heads hold copies."""
    parameters = ParametersInEffect(model)
    for site in found.sites:
        p = site.projections
        yield WeightsFrame(
            stack=site.stack,
            site=site.site,
            layer=site.layer,
            scale=p.scale,
            query_weight=_head_weights(p.query, site.heads, model, parameters),
            key_weight=_head_weights(p.key, site.heads, model, parameters),
            value_weight=_head_weights(p.value, site.heads, model, parameters),
            output_weight=output_weight(p.output, site.heads, parameters),
        )


def _head_weights(
    columns: Columns | None, heads: int, model: nn.Module, parameters: Mapping[str, Tensor]
) -> Float[Tensor, "heads inner dim"] | None:
    """Return a matrix for every query head; shared keys and values are repeated."""
    if columns is None:
        return None
    matrix = columns.matrix.of(parameters)
    parts = torch.stack([matrix[:, start : start + columns.dim] for start in columns.starts])
    if columns.norm is not None:
        try:
            gain = _gain(model.get_submodule(columns.norm), columns, parts)
        except (IndexError, RuntimeError, TypeError, ValueError):
            return None  # not a norm over channels (for example a convolution over tokens), so not a matrix
        parts = parts * gain[:, None, :]
    return parts.repeat_interleave(heads // parts.shape[0], dim=0)


def _gain(norm: nn.Module, columns: Columns, like: Tensor) -> Float[Tensor, "head dim"]:
    """Return the gain of a norm for each channel: a norm maps +1, -1, +1, ... to gain times that, plus bias."""
    whole = norm.get_parameter("weight").numel() if "weight" in dict(norm.named_parameters()) else columns.dim
    sign = torch.ones(whole, dtype=like.dtype, device=like.device)
    sign[1::2] = -1
    with torch.no_grad():
        gain: Tensor = (norm.forward(sign[None]) - norm.forward(-sign[None]))[0] / 2 * sign
    if whole == columns.dim:
        return gain.expand(len(columns.starts), -1)
    return torch.stack([gain[start : start + columns.dim] for start in columns.starts])


def output_weight(
    matrix: Matrix | None, heads: int, parameters: Mapping[str, Tensor]
) -> Float[Tensor, "heads value_dim width"] | None:
    """Return the output projection as one matrix per head, without a copy."""
    if matrix is None:
        return None
    whole = matrix.of(parameters)
    return whole.view(heads, whole.shape[0] // heads, whole.shape[1])


class ParametersInEffect(Mapping[str, Tensor]):
    """Maps the name of a parameter to the value with which the model computes, read when it is looked up.

    A weight that an installed variant changes in every forward pass is returned changed. An offloaded one is loaded.
    """

    def __init__(self, model: nn.Module) -> None:
        self._model = model
        self._reach: Mapping[str, Tensor] | None = None

    def __getitem__(self, name: str) -> Tensor:
        path, _, last = name.rpartition(".")
        owner = self._model.get_submodule(path)
        for child in owner.children() if last == "weight" else ():
            change = getattr(child, "weight_in_effect", None)
            if change is not None:
                changed: Tensor = change(owner)
                return changed
        parameter = self._model.get_parameter(name)
        if not parameter.is_meta:
            return parameter
        self._reach = in_reach(self._model) if self._reach is None else self._reach
        return self._reach[name]

    def __iter__(self) -> Iterator[str]:
        return (name for name, _ in self._model.named_parameters())

    def __len__(self) -> int:
        return sum(1 for _ in self)


def projection_parameters(found: Anatomy) -> tuple[str, ...]:
    """Return the names of all parameters that project queries, keys, values and outputs."""
    matrices = (matrix for site in found.sites for matrix in site.projections.matrices.values())
    return tuple(dict.fromkeys(matrix.parameter for matrix in matrices))


def training_frames(model: nn.Module, found: Anatomy, before: Mapping[str, Tensor] | None) -> Iterator[TrainingFrame]:
    """Yield a frame for every attention call: its projections now and before the step, and their gradients.

    `before` holds the parameters before the step, by name. `gradient` is None unless all parameters of
    the call's projections have one.
    """
    now = {name: p.detach() for name, p in model.named_parameters()}
    gradients = {name: p.grad.detach() for name, p in model.named_parameters() if p.grad is not None}
    for site in found.sites:
        names = {matrix.parameter for matrix in site.projections.matrices.values()}
        yield TrainingFrame(
            stack=site.stack,
            site=site.site,
            layer=site.layer,
            weight=_projected(site, now),
            gradient=_projected(site, gradients) if names and names <= gradients.keys() else None,
            weight_before=None if before is None or not names <= before.keys() else _projected(site, before),
        )


def _projected(site: Site, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    made: dict[str, Tensor] = {}
    for name, matrix in site.projections.matrices.items():
        whole, columns = matrix.of(tensors), getattr(site.projections, name)
        made[name] = _own_columns(whole, columns) if isinstance(columns, Columns) else whole
    return made


def _own_columns(whole: Tensor, columns: Columns) -> Tensor:
    """Return the columns of one projection in a shared matrix; a view if they are adjacent."""
    first, width = min(columns.starts), len(columns.starts) * columns.dim
    if sorted(columns.starts) == list(range(first, first + width, columns.dim)):
        return whole[:, first : first + width]
    return whole[:, torch.tensor(columns.numbers, device=whole.device)]
