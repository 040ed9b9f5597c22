"""Where pictures and sounds enter: the first block of every stack that reads them rather than another stack.

A patch of a picture has no table to be looked up in. Its vector is the one that the first block is given, position and
all, in one row with what stands before patches ([CLS], registers). Which stacks begin with such a row, and which go on
with what others made, is found by moving what is known to enter and looking at what the other stacks are given: a stack
that stays as it was is a beginning of its own.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn

from attnscope.core.errors import RefusalError
from attnscope.data.frame import AttentionFrame
from attnscope.hf.anatomy.anatomy import Anatomy, Site, Stack
from attnscope.hf.anatomy.example import run, same_chance
from attnscope.hf.intercepting.owners import Slot, arguments, float_tensors
from attnscope.hf.intercepting.restoring import Restoring, evaluating, without_cache, without_gradients
from attnscope.hf.tapping.entrances import MEDIA, Entrance, entering
from attnscope.hf.tapping.tap import tap

# Where tokens enter a two-way decoder (arXiv:2304.02643): a few prompt tokens that attend to themselves, and the
# places of a picture, which attend to them and are attended to.
#
#     found = two_way(model, batch, anatomy)      # the entrances of image and prompt, or () without such a decoder
#
# Its blocks hand two streams on, and are no stack of one. Which calls are about which is told by how many tokens they
# have. A stream enters where it is first seen as a row of that many vectors, in the outermost module on the way to the
# first attention that reads it. What a picture's encoder did before, in windows perhaps, is no part of it.

PICTURES = ("pixel_values", "image_embeddings")
IMAGE, PROMPT = "image", "prompt"
Lengths = tuple[int, int]  # of queries and of keys


def two_way(model: nn.Module, batch: Mapping[str, Any], found: Anatomy) -> tuple[Entrance, ...]:
    """Both entrances; none where the model has no such decoder."""
    crosses = [site for site in found.sites if site.site == "cross" and found.stack(site.stack) is None]
    argument = next((name for name in PICTURES if isinstance(batch.get(name), Tensor)), None)
    if argument is None or len({site.stack for site in crosses}) < 2:
        return ()
    ways = [set(_above(site.path)) for site in crosses]
    decoder = max(set.intersection(*ways), key=len, default="")  # what all of them are in
    within = [site for site in found.sites if site.path.startswith(f"{decoder}." if decoder else "")]
    seen, rows = _watched(model, batch, found, within)
    crossing = {lengths for site, lengths in seen if site.site == "cross"}
    attending = {lengths[0] for site, lengths in seen if site.site == "self"}
    if not any(lengths[::-1] in crossing for lengths in crossing) or len(attending) != 1:
        return ()
    (prompt,) = attending
    others = {length for lengths in crossing for length in lengths} - {prompt}
    if len(others) != 1:
        raise RefusalError(
            f"The two streams of {found.model_class} hold equally many tokens, or are more than two, so that attention "
            "between them cannot be told apart: give another point."
        )
    (image,) = others
    made = []
    for name, tokens in ((IMAGE, image), (PROMPT, prompt)):
        first = next(site.path for site, lengths in seen if tokens in lengths)
        place = _outermost(first, tokens, rows)
        if place is None:
            raise RefusalError(
                f"The {tokens} {name} tokens of {found.model_class} enter no module as a row of vectors, so that their "
                "part in the answer cannot be followed: choose another model."
            )
        made.append(Entrance(name, argument if name == IMAGE else PROMPT, place[0], 0, False, place[1]))
    return tuple(made)


def _watched(
    model: nn.Module, batch: Mapping[str, Any], found: Anatomy, sites: list[Site]
) -> tuple[list[tuple[Site, Lengths]], dict[str, list[tuple[Slot, int]]]]:
    """The attention calls of one run with their lengths, and what rows of vectors modules on the way were given first:
    the slot and how many."""
    by_name = {(site.stack, site.site, site.layer): site for site in sites}
    seen: list[tuple[Site, Lengths]] = []
    rows: dict[str, list[tuple[Slot, int]]] = {}

    def receive(frame: Any) -> None:
        if isinstance(frame, AttentionFrame) and (frame.stack, frame.site, frame.layer) in by_name:
            lengths = frame.scores.query.shape[2], frame.scores.key.shape[2]
            seen.append((by_name[frame.stack, frame.site, frame.layer], lengths))

    def watch(path: str) -> Callable[..., None]:
        def hook(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
            given = float_tensors(arguments(args, kwargs))
            rows.setdefault(path, [(slot, one.shape[-2]) for slot, one in given if _a_row(one)])

        return hook

    with Restoring() as changes, evaluating(model), without_cache(model), without_gradients():
        for path in dict.fromkeys(above for site in sites for above in _above(site.path)):
            changes.before(model.get_submodule(path), watch(path))
        with tap(model, found, receive):
            run(model, batch)
    return seen, rows


def _above(path: str) -> list[str]:
    """The modules that a path leads through, outermost first."""
    words = path.split(".")
    return [".".join(words[:count]) for count in range(1, len(words) + 1)]


def _a_row(given: Tensor) -> bool:
    """`[1, token, width]`, or with a second axis of one (several prompts of one picture) in between."""
    return given.ndim in (3, 4) and all(size == 1 for size in given.shape[:-2])


def _outermost(path: str, tokens: int, rows: Mapping[str, list[tuple[Slot, int]]]) -> tuple[str, Slot] | None:
    for above in _above(path):
        for slot, count in rows.get(above, ()):
            if count == tokens:
                return above, slot
    return None


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
