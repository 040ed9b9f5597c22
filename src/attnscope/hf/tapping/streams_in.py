"""Where pictures and sounds enter: the first block of every stack that reads them rather than another stack.

A patch of a picture has no table to be looked up in. Its vector is the one that the first block is given, position and
all, in one row with what stands before patches ([CLS], registers). Which stacks begin with such a row, and which go on
with what others made, is found by moving what is known to enter and looking at what the other stacks are given: a stack
that stays as it was is a beginning of its own.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn

from attnscope.core.errors import RefusalError
from attnscope.hf.anatomy.anatomy import Anatomy, Stack
from attnscope.hf.anatomy.example import run, same_chance
from attnscope.hf.seeing.gradients import without_gradients
from attnscope.hf.seeing.intact import evaluating, without_cache
from attnscope.hf.seeing.restoring import Restoring
from attnscope.hf.tapping.entrances import MEDIA, Entrance, entering

Rows = dict[str, Tensor]


def with_streams(
    model: nn.Module, batch: Mapping[str, Any], found: Anatomy, tables: tuple[Entrance, ...]
) -> tuple[Entrance, ...]:
    """The entrances of pictures and sounds, then those of tokens: each with the stack that it enters."""
    argument = next(name for name in MEDIA if isinstance(batch.get(name), Tensor))
    stacks = _in_order(found)
    as_it_is = _rows(model, batch, stacks, ())
    placed: list[Entrance] = []
    for table in tables:
        moved = _moved(as_it_is, _rows(model, batch, stacks, (table,)))
        if not moved:
            raise RefusalError(
                f"No stack of {found.model_class} is reached by its {table.argument}, so that their part in the answer "
                "cannot be followed: choose another model."
            )
        reached = moved[0]
        if as_it_is[reached].shape[1] == batch[table.argument].shape[1]:
            placed.append(replace(table, stack=reached))
        else:  # words and patches stand in one row, which enters as a whole
            _refuse_shuffled(model, batch, found, reached, as_it_is, stacks)
    streams: list[Entrance] = []
    for stack in stacks:
        if any(one.stack == stack.name for one in placed):
            continue
        if stack.name in _moved(as_it_is, _rows(model, batch, stacks, (*placed, *streams))):
            continue
        if as_it_is[stack.name].ndim != 3 or as_it_is[stack.name].shape[0] != 1:
            raise RefusalError(
                f"The stack {stack.name} of {found.model_class} reads windows of a picture and not one row of patches: "
                "relevance is carried from token to token, so choose another model."
            )
        first = stack.blocks[0]
        streams.append(Entrance(stack.name, argument, first.path, first.nth, stack.sequence_first, first.enters))
    return (*streams, *placed)


def _refuse_shuffled(
    model: nn.Module, batch: Mapping[str, Any], found: Anatomy, stack: str, as_it_is: Rows, stacks: list[Stack]
) -> None:
    """ViLT draws an order of patches anew in every run: which is which cannot be said."""
    if not torch.equal(as_it_is[stack], _rows(model, batch, stacks, (), seed=1)[stack]):
        raise RefusalError(
            f"{found.model_class} puts patches into another order each time it runs, so that no place can be said for "
            "them: choose a model that reads them in order."
        )


def entering_rows(model: nn.Module, batch: Mapping[str, Any], places: tuple[Entrance, ...]) -> dict[str, Tensor]:
    """What enters at each place in a run of the model, `[batch, token, width]` by stack."""
    found: Rows = {}

    def keep(stack: str, vectors: Tensor) -> Tensor:
        found[stack] = vectors.detach().clone()
        return vectors

    with (
        evaluating(model),
        without_cache(model),
        same_chance(model),
        without_gradients(),
        entering(model, places, keep),
    ):
        run(model, batch)
    return found


def _in_order(found: Anatomy) -> list[Stack]:
    """Stacks in the order in which they first attend."""
    names = dict.fromkeys(site.stack for site in found.sites)
    return [stack for name in names if (stack := found.stack(name)) is not None]


def _rows(
    model: nn.Module, batch: Mapping[str, Any], stacks: list[Stack], moved: tuple[Entrance, ...], seed: int = 0
) -> Rows:
    """What the first block of every stack is given, after what enters at `moved` was changed."""
    found: Rows = {}
    watched = tuple(
        Entrance(f"watched {s.name}", "", s.blocks[0].path, s.blocks[0].nth, s.sequence_first, s.blocks[0].enters)
        for s in stacks
        if s.name not in {one.stack for one in moved if not one.looks_up}
    )

    def give(stack: str, vectors: Tensor) -> Tensor:
        if stack.startswith("watched "):
            found[stack.removeprefix("watched ")] = vectors.detach().clone()
            return vectors
        return vectors + torch.randn_like(vectors) * (vectors.std() + 1)

    with evaluating(model), without_cache(model), same_chance(model), without_gradients(), Restoring() as changes:
        changes.enter_context(entering(model, (*moved, *watched), give))
        torch.manual_seed(seed)  # inside `same_chance`, which puts the generator back
        run(model, batch)
    return found


def _moved(before: Rows, after: Rows) -> list[str]:
    """Stacks that were given something else, in the order of `before`."""
    return [name for name in before if name in after and not torch.equal(before[name], after[name])]
