"""Find where pictures and sounds enter a model: the first block of every stack that does not read another stack.

Patches of a picture are not looked up in a table. Their vectors are the input of the first block, including positions
and the tokens before the patches ([CLS], registers). To find the stacks that begin with such vectors, noise is added at
the known entrances: a stack whose input does not change does not read them, and so has an entrance of its own.

A two-way decoder (arXiv:2304.02643) has two streams: a few prompt tokens, which attend to themselves, and the patches
of a picture, which attend to the prompt and are attended to. Its calls are assigned to the streams by their numbers of
tokens. A stream enters at the outermost module that contains the first attention reading it and that takes a row of
that many vectors. The encoder of the picture is ignored.
"""

from __future__ import annotations

from collections.abc import Mapping
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

PICTURES = ("pixel_values", "image_embeddings")
IMAGE, PROMPT = "image", "prompt"
Lengths = tuple[int, int]  # numbers of queries and of keys
Rows = dict[str, Tensor]


def two_way(model: nn.Module, batch: Mapping[str, Any], found: Anatomy) -> tuple[Entrance, ...]:
    """Return the entrances of picture and prompt, or () if the model has no two-way decoder."""
    crosses = [site for site in found.sites if site.site == "cross" and found.stack(site.stack) is None]
    argument = next((name for name in PICTURES if isinstance(batch.get(name), Tensor)), None)
    if argument is None or len({site.stack for site in crosses}) < 2:
        return ()
    around = set.intersection(*(set(_above(site.path)) for site in crosses))
    decoder = max(around, key=len, default="")
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
            f"The streams of {found.model_class} have equally many tokens, or are more than two, so attention between "
            "them cannot be assigned: give another point."
        )
    (image,) = others
    both = []
    for name, tokens in ((IMAGE, image), (PROMPT, prompt)):
        first = next(site.path for site, lengths in seen if tokens in lengths)
        fitting = ((path, slot) for path in _above(first) for slot, count in rows.get(path, ()) if count == tokens)
        path, slot = next(fitting, (None, None))
        if path is None:
            raise RefusalError(
                f"The {tokens} {name} tokens of {found.model_class} enter no module as a row of vectors, so their "
                "relevance cannot be computed: choose another model."
            )
        both.append(Entrance(name, argument if name == IMAGE else PROMPT, path, 0, False, slot))
    return tuple(both)


def _watched(
    model: nn.Module, batch: Mapping[str, Any], found: Anatomy, sites: list[Site]
) -> tuple[list[tuple[Site, Lengths]], dict[str, list[tuple[Slot, int]]]]:
    """Return the attention calls of one run with their lengths, and the rows of vectors in the inputs of modules.

    Rows are keyed by the path of the module: each is a slot and the number of vectors there.
    """
    by_name = {site.key: site for site in sites}
    seen: list[tuple[Site, Lengths]] = []
    rows: dict[str, list[tuple[Slot, int]]] = {}

    def receive(frame: Any) -> None:
        if isinstance(frame, AttentionFrame) and (frame.stack, frame.site, frame.layer) in by_name:
            lengths = frame.scores.query.shape[2], frame.scores.key.shape[2]
            seen.append((by_name[frame.stack, frame.site, frame.layer], lengths))

    def enter(path: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        tensors = float_tensors(arguments(args, kwargs))
        rows[path] = [(slot, tensor.shape[-2]) for slot, tensor in tensors if _is_row(tensor)]

    above = dict.fromkeys(path for site in sites for path in _above(site.path))
    with Restoring() as changes, evaluating(model), without_cache(model), without_gradients():
        changes.nth_calls(model, {(path, 0): path for path in above}, before=enter)
        with tap(model, found, receive):
            run(model, batch)
    return seen, rows


def _above(path: str) -> list[str]:
    """Return the paths of the modules that contain `path`, outermost first, and `path` itself."""
    words = path.split(".")
    return [".".join(words[:count]) for count in range(1, len(words) + 1)]


def _is_row(given: Tensor) -> bool:
    """Return whether a tensor is `[1, token, width]` or `[1, 1, token, width]` (prompts of one picture)."""
    return given.ndim in (3, 4) and all(size == 1 for size in given.shape[:-2])


def with_streams(
    model: nn.Module, batch: Mapping[str, Any], found: Anatomy, tables: tuple[Entrance, ...]
) -> tuple[Entrance, ...]:
    """Return the entrances of pictures and sounds, then those of tokens, each with its stack."""
    argument = next(name for name in MEDIA if isinstance(batch.get(name), Tensor))
    names = dict.fromkeys(site.stack for site in found.sites)  # in the order in which they first attend
    stacks = [stack for name in names if (stack := found.stack(name)) is not None]
    untouched = _rows(model, batch, stacks, ())
    placed: list[Entrance] = []
    for table in tables:
        changed = _changed(untouched, _rows(model, batch, stacks, (table,)))
        if not changed:
            raise RefusalError(
                f"No stack of {found.model_class} reads its {table.argument}, so their relevance cannot be computed: "
                "choose another model."
            )
        reached = changed[0]
        if untouched[reached].shape[1] == batch[table.argument].shape[1]:
            placed.append(replace(table, stack=reached))
        # Otherwise words and patches form one row, which enters as a whole. ViLT shuffles it in every run.
        elif not torch.equal(untouched[reached], _rows(model, batch, stacks, (), seed=1)[reached]):
            raise RefusalError(
                f"{found.model_class} shuffles the patches in every run, so they have no fixed positions: choose a "
                "model that reads them in order."
            )
    streams: list[Entrance] = []
    for stack in stacks:
        if any(entrance.stack == stack.name for entrance in placed):
            continue
        if stack.name in _changed(untouched, _rows(model, batch, stacks, (*placed, *streams))):
            continue
        if untouched[stack.name].ndim != 3 or untouched[stack.name].shape[0] != 1:
            raise RefusalError(
                f"The stack {stack.name} of {found.model_class} reads windows of a picture, and relevance needs one "
                "row of patches: choose another model."
            )
        streams.append(_first_block(stack, stack.name, argument))
    return (*streams, *placed)


def _first_block(stack: Stack, name: str, argument: str) -> Entrance:
    first = stack.blocks[0]
    return Entrance(name, argument, first.path, first.nth, stack.sequence_first, first.enters)


def entering_rows(model: nn.Module, batch: Mapping[str, Any], entrances: tuple[Entrance, ...]) -> Rows:
    """Return the vectors that enter at each entrance in a run of the model, `[batch, token, width]` by stack."""
    rows: Rows = {}

    def keep(stack: str, vectors: Tensor) -> Tensor:
        rows[stack] = vectors.detach().clone()
        return vectors

    with (
        evaluating(model),
        without_cache(model),
        same_chance(model),
        without_gradients(),
        entering(model, entrances, keep),
    ):
        run(model, batch)
    return rows


def _rows(
    model: nn.Module, batch: Mapping[str, Any], stacks: list[Stack], moved: tuple[Entrance, ...], seed: int = 0
) -> Rows:
    """Return the input of every stack's first block in a run with noise added at the entrances `moved`."""
    rows: Rows = {}
    noisy = {entrance.stack for entrance in moved if not entrance.looks_up}
    watched = tuple(_first_block(stack, f"watched {stack.name}", "") for stack in stacks if stack.name not in noisy)

    def give(stack: str, vectors: Tensor) -> Tensor:
        if stack.startswith("watched "):
            rows[stack.removeprefix("watched ")] = vectors.detach().clone()
            return vectors
        return vectors + torch.randn_like(vectors) * (vectors.std() + 1)

    with evaluating(model), without_cache(model), same_chance(model), without_gradients(), Restoring() as changes:
        changes.enter_context(entering(model, (*moved, *watched), give))
        torch.manual_seed(seed)  # inside `same_chance`, which restores the generator
        run(model, batch)
    return rows


def _changed(before: Rows, after: Rows) -> list[str]:
    """Return the stacks whose input changed, in the order of `before`."""
    return [name for name in before if name in after and not torch.equal(before[name], after[name])]
