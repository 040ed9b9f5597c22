"""What a step of training did to attention: its projections now, before the step, and the gradients between."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import torch
from torch import Tensor, nn

from attnscope.hf.anatomy.anatomy import Anatomy, Site
from attnscope.hf.anatomy.projections import Columns
from attnscope.hf.anatomy.tape import Matrix
from attnscope.trace.frame import TrainingFrame

PROJECTIONS = ("query", "key", "value", "output")


def projection_parameters(found: Anatomy) -> tuple[str, ...]:
    """The names of all parameters that project queries, keys, values and outputs."""
    matrices = (matrix for site in found.sites for matrix in _matrices(site).values())
    return tuple(dict.fromkeys(matrix.parameter for matrix in matrices))


def training_frames(model: nn.Module, found: Anatomy, before: Mapping[str, Tensor] | None) -> Iterator[TrainingFrame]:
    """One frame for every attention call. `before` are parameters as they were before the step, by name; gradients are
    those that the parameters hold now, and are not there unless all of them are."""
    weights = {name: p.detach() for name, p in model.named_parameters()}
    gradients = {name: p.grad.detach() for name, p in model.named_parameters() if p.grad is not None}
    for site in found.sites:
        names = {matrix.parameter for matrix in _matrices(site).values()}
        yield TrainingFrame(
            stack=site.stack,
            site=site.site,
            layer=site.layer,
            weight=_projections(site, weights),
            gradient=_projections(site, gradients) if names and names <= gradients.keys() else None,
            weight_before=None if before is None or not names <= before.keys() else _projections(site, before),
        )


def _matrices(site: Site) -> dict[str, Matrix]:
    found = {name: getattr(site.projections, name) for name in PROJECTIONS}
    return {name: one.matrix if isinstance(one, Columns) else one for name, one in found.items() if one is not None}


def _projections(site: Site, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    made: dict[str, Tensor] = {}
    for name, matrix in _matrices(site).items():
        whole = matrix.of(tensors)
        columns = getattr(site.projections, name)
        made[name] = _own_columns(whole, columns) if isinstance(columns, Columns) else whole
    return made


def _own_columns(whole: Tensor, columns: Columns) -> Tensor:
    """The columns of a projection in a matrix that may hold others too: a view where they stand side by side."""
    first = min(columns.starts)
    width = len(columns.starts) * columns.dim
    if sorted(columns.starts) == list(range(first, first + width, columns.dim)):
        return whole[:, first : first + width]
    chosen = [column for start in columns.starts for column in range(start, start + columns.dim)]
    return whole[:, torch.tensor(chosen, device=whole.device)]
