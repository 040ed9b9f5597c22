"""Taking skips and MLPs out of a model, for as long as a context lasts: the four variants of arXiv:2103.03404.

    with cut(model, anatomy(model), CUTS["san"]):
        model(**batch)

What the variants mean, in one place. A block is a chain of states: every write of a module is added to a state, and
post-norm blocks normalise the sum (`hf.anatomy.writes` finds them by arithmetic). Norms stay where they are in all
variants.

    no skip     the state is not added to the attention write: x <- f(x) where it was x <- x + f(x), and norm(f(x))
                where it was norm(x + f(x)). The skip past the MLP stays, as in the authors' own surgery;
                `mlp_skip=False` takes it out too
    no MLP      the MLP writes nothing: its skip hands the state on (through the norm, in post-norm blocks)
    parallel    x + attention(x) + mlp(x) has one skip: without it attention(x) + mlp(x) is left
    shared      a block that is used several times (ALBERT) is cut in each of its uses
    hybrid      in a block without attention, what stands in its place (Mamba, linear attention) is treated as attention
                is; one that is an MLP alone hands its stream on where MLPs are left out

It is done by hooks on the modules that write: one returns its write less the state, so that the model's own addition
leaves the write alone, the other returns zeros. The rounding that this costs is of the size of the rounding of the
state itself.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Literal

import torch
from jaxtyping import Float
from torch import Tensor, nn

from attnscope.core.errors import RefusalError
from attnscope.hf.anatomy.anatomy import Anatomy, Block, Site
from attnscope.hf.anatomy.recording import Location
from attnscope.hf.anatomy.weights import output_weight
from attnscope.hf.intercepting.restoring import Restoring
from attnscope.hf.intercepting.slots import arguments, at

# Taking heads out of a model for a while, or for good.
#
#     with without_heads(model, found, [(3, 5), (7, 0)]):       # (block, head)
#         model(**batch)
#
# A head is out when nothing of it is written: its rows of the output projection are zero. So a pruned model is an
# ordinary model with other weights; a bias of the projection belongs to no head and stays.


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


# Heads really removed: several copies of one sequence run together, each without a head of its own.
#
#     with one_head_removed(model, site, [0, 1, 2], "zero"):
#         model(**three_copies)           # copy 0 without head 0, copy 1 without head 1, ...
#
# What a head gives to the output projection is replaced, so everything behind it recomputes: other patterns, other
# norms, other gates. `zero` writes nothing; `mean` writes, at every token, the mean over the tokens of this sequence,
# which keeps what the head always says and takes away what depends on where. `pruning.without_heads` does the same as
# `zero` to the weights, one head at a time: the slow obvious way that this is tested against.

Replacement = Literal["zero", "mean"]


@contextmanager
def one_head_removed(model: nn.Module, site: Site, heads: Sequence[int], by: Replacement) -> Iterator[None]:
    """Inside, row r of a batch has no head `heads[r]` at `site`."""
    assert site.projections.output is not None
    module = model.get_submodule(site.projections.output.parameter.rpartition(".")[0])

    def hook(_: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        mixed = args[0] if args else None
        if not isinstance(mixed, Tensor) or len(mixed) != len(heads) or mixed.shape[-1] % site.heads:
            raise RefusalError(
                f"Heads of block {site.layer} cannot be told apart where its output is projected: leave removal out "
                "(--removal none)."
            )
        return (_without(mixed, heads, site.heads, by), *args[1:]), kwargs

    with Restoring() as changes:
        changes.before(module, hook)
        yield


def _without(mixed: Tensor, heads: Sequence[int], count: int, by: Replacement) -> Tensor:
    apart = mixed.reshape(*mixed.shape[:-1], count, -1).clone()
    for row, head in enumerate(heads):
        mine = apart[row, ..., head, :]
        mine.copy_(torch.zeros_like(mine) if by == "zero" else mine.mean(-2, keepdim=True).expand_as(mine))
    return apart.reshape(mixed.shape)


@dataclass(frozen=True)
class Cut:
    """What is left of every block besides attention and norms."""

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
    """What becomes of one write: multiplied with `keep`, less `state` / multiplier."""

    write: Location
    state: Location | None  # taken away from the write; None: nothing is
    multiplier: float
    keep: bool


@contextmanager
def cut(model: nn.Module, found: Anatomy, variant: Cut) -> Iterator[None]:
    """Inside the context every block of the model is the variant; outside it is itself again."""
    edits = [edit for stack in found.stacks for block in stack.blocks for edit in _edits(found, block, variant)]
    surgeon = _Surgeon(edits)
    with Restoring() as changes:
        changes.before(model, surgeon.begin, prepend=True)
        for path in surgeon.paths():
            module = model.get_submodule(path)
            changes.before(module, surgeon.took(path))
            changes.after(module, surgeon.gave(path))
        yield


def _edits(found: Anatomy, block: Block, variant: Cut) -> Iterator[_Edit]:
    writes = block.writes
    if not writes.separable:
        raise RefusalError(
            f"What attention and MLP write cannot be told apart in {block.path} of {found.model_class} (its stream is "
            "not a sum of what entered and what the two wrote), so its skips cannot be cut: choose another model; "
            "`scan` shows the attention and the streams of this one."
        )
    entered = Location(block.path, block.nth, "input", block.enters)
    attention = block.attention_writes
    for identity in writes.identities:
        state = identity.before or entered
        for write in identity.writes:
            attends = write in attention
            if not attends and not variant.mlp:
                yield _Edit(write, None, identity.multiplier, keep=False)
            elif not (variant.skip if attends else variant.mlp_skip or writes.norm == "parallel"):
                yield _Edit(write, state, identity.multiplier, keep=True)


class _Surgeon:
    def __init__(self, edits: list[_Edit]) -> None:
        self.edits = {(edit.write.path, edit.write.nth): edit for edit in edits}
        self.states = {edit.state for edit in edits if edit.state is not None}
        self.begin()

    def begin(self, *ignored: Any) -> None:
        self.entered: Counter[str] = Counter()
        self.left: Counter[str] = Counter()
        self.read: dict[Location, Tensor] = {}

    def paths(self) -> list[str]:
        return sorted({place.path for place in self.states} | {path for path, _ in self.edits})

    def took(self, path: str) -> Callable[..., None]:
        wanted = [place for place in self.states if (place.path, place.side) == (path, "input")]

        def hook(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
            nth = self.entered[path]
            self.entered[path] += 1
            for place in wanted:
                if place.nth == nth:
                    self.read[place] = arguments(args, kwargs)[place.slot]

        return hook

    def gave(self, path: str) -> Callable[..., Any]:
        wanted = [place for place in self.states if (place.path, place.side) == (path, "output")]

        def hook(module: nn.Module, args: tuple[Any, ...], output: Any) -> Any:
            nth = self.left[path]
            self.left[path] += 1
            edit = self.edits.get((path, nth))
            if edit is not None:
                output = self._edited(edit, output)
            for place in wanted:
                if place.nth == nth:
                    self.read[place] = at(output, place.slot)
            return output

        return hook

    def _edited(self, edit: _Edit, output: Any) -> Any:
        write = at(output, edit.write.slot)
        if not edit.keep:
            new = torch.zeros_like(write)
        else:
            assert edit.state is not None
            new = write - self.read.pop(edit.state).reshape(write.shape) / edit.multiplier
        if isinstance(output, Tensor):
            return new
        slot = edit.write.slot
        return type(output)(new if index == slot else value for index, value in enumerate(output))
