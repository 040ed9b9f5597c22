"""Remove skips, MLPs or heads from a model, for as long as a context lasts.

    with cut(model, anatomy(model), CUTS["san"]):                  the four variants of arXiv:2103.03404
        model(**batch)
    with without_heads(model, prunable(model, found), [(3, 5)]):   block 3 without head 5
        model(**batch)
    with one_head_removed(model, site, [0, 1, 2], "zero"):         copy 0 without head 0, copy 1 without head 1, ...
        model(**three_copies)

The meaning of a `Cut`. A block is a chain of states: every write of a module is added to a state, and post-norm blocks
normalise the sum (`hf.anatomy.writes` finds these writes). Norms stay in all cuts.

    no skip     the state is not added to the attention write: x <- f(x) instead of x <- x + f(x), and norm(f(x))
                instead of norm(x + f(x)). The skip around the MLP stays, as in the authors' code; `mlp_skip=False`
                removes it too
    no MLP      the MLP writes nothing: the state passes unchanged (through the norm, in post-norm blocks)
    parallel    x + attention(x) + mlp(x) has one skip: attention(x) + mlp(x) remains without it
    shared      a block that is used several times (ALBERT) is cut each time
    hybrid      in a block without attention, its replacement (Mamba, linear attention) is treated like attention; a
                block that is only an MLP passes its stream on unchanged if MLPs are removed

Hooks on the writing modules do this: for a skip the module returns its write minus the state, so that the model's own
addition leaves only the write; for an MLP it returns zeros. This adds a rounding error as large as the error of the
state.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Literal

import torch
from jaxtyping import Float
from torch import Tensor, nn

from attnscope.core.errors import RefusalError
from attnscope.hf.anatomy.anatomy import Anatomy, Block, Site
from attnscope.hf.anatomy.recording import Location, read_at
from attnscope.hf.anatomy.weights import output_weight
from attnscope.hf.intercepting.owners import at, with_output
from attnscope.hf.intercepting.restoring import Restoring


def prunable(model: nn.Module, found: Anatomy, stack: str | None = None) -> dict[int, Site]:
    """Return the self-attention of every block of a stack (default: the last); refuse if no head can be removed."""
    name = stack or found.stacks[-1].name
    sites = [site for site in found.sites if site.stack == name and site.site == "self"]
    owners = [None if site.projections.output is None else site.projections.output.parameter for site in sites]
    for site, owner in zip(sites, owners, strict=True):
        if owner is None:
            raise RefusalError(
                f"The output projection of block {site.layer} of {found.model_class} was not recognised, so no head can"
                " be removed: choose a model with a plain linear output projection."
            )
        if owners.count(owner) > 1:
            raise RefusalError(
                f"Blocks of {found.model_class} share their weights, so a head removed from one is removed from all: "
                "choose a model whose blocks have their own."
            )
    if not sites:
        raise RefusalError(f"{found.model_class} has no self-attention in its {name}: choose another stack or model.")
    with torch.no_grad():
        for site in sites:
            _rows(model, site)
    return {site.layer: site for site in sites}


@contextmanager
def without_heads(model: nn.Module, sites: dict[int, Site], heads: Iterable[tuple[int, int]]) -> Iterator[None]:
    """Set the heads' rows of the output projection to zero inside this context, and restore them afterwards.

    The bias of the projection belongs to no head and stays.
    """
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
    """Return the output projection by head, as a view of the model's own weight."""
    matrix = site.projections.output
    assert matrix is not None
    parameter = model.get_parameter(matrix.parameter)
    rows = output_weight(matrix, site.heads, {matrix.parameter: parameter})
    if rows is None or rows.untyped_storage().data_ptr() != parameter.untyped_storage().data_ptr():
        raise RefusalError(
            f"The output projection of block {site.layer} cannot be changed in place, so no head can be removed: "
            "choose a model with a plain linear output projection."
        )
    return rows


Replacement = Literal["zero", "mean"]


@contextmanager
def one_head_removed(model: nn.Module, site: Site, heads: Sequence[int], by: Replacement) -> Iterator[None]:
    """Remove head `heads[r]` at `site` from row r of a batch inside this context.

    The head's input to the output projection is replaced, and everything after it is recomputed: patterns, norms and
    gates. `zero` removes the write. `mean` writes the mean over the tokens of this sequence at every token: this keeps
    the constant part of the head and removes the part that depends on the position.
    """
    assert site.projections.output is not None
    module = model.get_submodule(site.projections.output.parameter.rpartition(".")[0])

    def hook(_: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        mixed = args[0] if args else None
        if not isinstance(mixed, Tensor) or len(mixed) != len(heads) or mixed.shape[-1] % site.heads:
            raise RefusalError(
                f"The input of the output projection of block {site.layer} does not separate heads: leave removal out "
                "(`removal='none'`)."
            )
        apart = mixed.reshape(*mixed.shape[:-1], site.heads, -1).clone()
        for row, head in enumerate(heads):
            mine = apart[row, ..., head, :]
            mine.copy_(torch.zeros_like(mine) if by == "zero" else mine.mean(-2, keepdim=True).expand_as(mine))
        return (apart.reshape(mixed.shape), *args[1:]), kwargs

    with Restoring() as changes:
        changes.before(module, hook)
        yield


@dataclass(frozen=True)
class Cut:
    """The parts of every block that are kept besides attention and norms."""

    title: str
    skip: bool
    mlp: bool
    mlp_skip: bool = True


CUTS = {
    "san": Cut("attention only", skip=False, mlp=False),
    "san+mlp": Cut("attention + MLP", skip=False, mlp=True),
    "san+skip": Cut("attention + skip", skip=True, mlp=False),
    "whole": Cut("whole model", skip=True, mlp=True),
}


@dataclass(frozen=True)
class _Edit:
    """Replace one write by zeros, or subtract `state` / multiplier from it if there is a state."""

    write: Location
    state: Location | None
    multiplier: float


@contextmanager
def cut(model: nn.Module, found: Anatomy, variant: Cut) -> Iterator[None]:
    """Cut every block of the model as `variant` says, inside this context."""
    edits = [edit for stack in found.stacks for block in stack.blocks for edit in _edits(found, block, variant)]
    states: dict[Location, Tensor] = {}

    def edited(edit: _Edit, output: Any) -> Any:
        write = at(output, edit.write.slot)
        if edit.state is None:
            return with_output(output, edit.write.slot, torch.zeros_like(write))
        state = states.pop(edit.state).reshape(write.shape)
        return with_output(output, edit.write.slot, write - state / edit.multiplier)

    with Restoring() as changes:
        changes.before(model, lambda *_: states.clear(), kwargs=False, prepend=True)
        changes.nth_calls(model, {(edit.write.path, edit.write.nth): edit for edit in edits}, after=edited)
        read_at(changes, model, {edit.state for edit in edits if edit.state is not None}, states.__setitem__)
        yield


def _edits(found: Anatomy, block: Block, variant: Cut) -> Iterator[_Edit]:
    writes = block.writes
    if not writes.separable:
        raise RefusalError(
            f"The writes of attention and MLP cannot be separated in {block.path} of {found.model_class} (its output "
            "is not the sum of its input and these writes), so its skips cannot be cut: choose another model, or use "
            "`scan`, which needs no cuts."
        )
    entered = Location(block.path, block.nth, "input", block.enters)
    attention = block.attention_writes
    for identity in writes.identities:
        for write in identity.writes:
            attends = write in attention
            if not attends and not variant.mlp:
                yield _Edit(write, None, identity.multiplier)
            elif not (variant.skip if attends else variant.mlp_skip or writes.norm == "parallel"):
                yield _Edit(write, identity.before or entered, identity.multiplier)
