"""Taking heads out of a model for a while, or for good.

    with without_heads(model, found, [(3, 5), (7, 0)]):       # (block, head)
        model(**batch)

A head is out when nothing of it is written: its rows of the output projection are zero. So a pruned model is an
ordinary model with other weights; a bias of the projection belongs to no head and stays.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager

import torch
from jaxtyping import Float
from torch import Tensor, nn

from attnscope.core.errors import RefusalError
from attnscope.hf.anatomy.anatomy import Anatomy, Site
from attnscope.hf.anatomy.projections import output_weight


def prunable(model: nn.Module, found: Anatomy, stack: str | None = None) -> dict[int, Site]:
    """The self-attention of every block of a stack (the last one) whose heads can be taken out; refused where one
    cannot."""
    name = stack or found.stacks[-1].name
    sites = [site for site in found.sites if site.stack == name and site.site == "self"]
    owners = [None if site.projections.output is None else site.projections.output.parameter for site in sites]
    for site, owner in zip(sites, owners, strict=True):
        if owner is None:
            raise RefusalError(
                f"The output projection of block {site.layer} of {found.model_class} was not recognised, so no head can"
                " be taken out: choose a model with a plain linear output projection."
            )
        if owners.count(owner) > 1:
            raise RefusalError(
                f"Blocks of {found.model_class} share their weights, so a head taken out of one is taken out of all: "
                "choose a model whose blocks have their own."
            )
    if not sites:
        raise RefusalError(f"{found.model_class} has no self-attention in its {name}: there is no head to take out.")
    with torch.no_grad():
        for site in sites:
            _rows(model, site)
    return {site.layer: site for site in sites}


@contextmanager
def without_heads(model: nn.Module, sites: dict[int, Site], heads: Iterable[tuple[int, int]]) -> Iterator[None]:
    """Inside, the heads write nothing; outside, also after an exception, every weight is the one it was."""
    chosen = [_rows(model, sites[block])[head] for block, head in heads]
    kept = [(rows, rows.clone()) for rows in chosen]
    try:
        with torch.no_grad():
            for rows, _ in kept:
                rows.zero_()
        yield
    finally:
        with torch.no_grad():
            for rows, was in kept:
                rows.copy_(was)


def _rows(model: nn.Module, site: Site) -> Float[Tensor, "heads value_dim width"]:
    """The output projection by head, as a view of the model's own weight."""
    matrix = site.projections.output
    parameter = None if matrix is None else model.get_parameter(matrix.parameter)
    rows = None if parameter is None else output_weight(matrix, site.heads, {matrix.parameter: parameter})  # type: ignore[union-attr]
    if rows is None or parameter is None or rows.untyped_storage().data_ptr() != parameter.untyped_storage().data_ptr():
        raise RefusalError(
            f"The output projection of block {site.layer} cannot be changed in place, so no head can be taken out: "
            "choose a model with a plain linear output projection."
        )
    return rows
