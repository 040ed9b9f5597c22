"""Where tokens become vectors: the calls that look token numbers up in a table, found by watching one run.

    found = entrances(model, batch, anatomy)
    with entering(model, found, give):         # give(stack, looked_up) -> what the model goes on with
        model(**batch)

No names are known: a table is whatever `nn.Embedding` is given the very numbers that the batch holds. The table that
the model calls its own (`get_input_embeddings`) is preferred, then the largest: positions and token types are looked up
too. Patches of a picture and moments of a sound have no table: their vectors are those that enter the first block of
the stack that reads them (`media_entrances`), or where a decoder that reads a picture both ways is given them (`two_way`).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn

from attnscope.core.errors import RefusalError
from attnscope.data.frame import AttentionFrame
from attnscope.hf.anatomy.anatomy import Anatomy
from attnscope.hf.anatomy.example import run
from attnscope.hf.intercepting.owners import Slot
from attnscope.hf.intercepting.restoring import Restoring, evaluating, with_gradients, without_cache, without_gradients
from attnscope.hf.tapping.tap import tap

ENCODED, DECODED = "input_ids", "decoder_input_ids"
MEDIA = ("pixel_values", "input_features", "input_values", "visual_feats")


@dataclass(frozen=True)
class Entrance:
    """The `nth` call of the table at `path` makes vectors of the tokens that `stack` reads; with a `slot`, they are
    what the `nth` call of the block at `path` is given there."""

    stack: str
    argument: str
    path: str
    nth: int
    sequence_first: bool = False  # looked up as `[token, batch]`
    slot: Slot | None = None

    @property
    def looks_up(self) -> bool:
        return self.slot is None


def entrances(model: nn.Module, batch: Mapping[str, Any], found: Anatomy) -> tuple[Entrance, ...]:
    """One for each argument of token numbers, in the order of the stacks; refused where one is not looked up. One for
    each stack that reads a picture or a sound, before them."""
    wanted = {name: batch[name] for name in (ENCODED, DECODED) if isinstance(batch.get(name), Tensor)}
    if not wanted:
        from attnscope.hf.tapping.media_entrances import two_way

        if both := two_way(model, batch, found):
            return both
    if any(isinstance(batch.get(name), Tensor) for name in MEDIA):
        from attnscope.hf.tapping.media_entrances import with_streams

        return with_streams(model, batch, found, _tables(model, batch, found, wanted) if wanted else ())
    if not wanted:
        raise RefusalError(
            f"{found.model_class} is given no token numbers (input_ids), and explanations are of tokens: give a text."
        )
    return _tables(model, batch, found, wanted)


def _tables(
    model: nn.Module, batch: Mapping[str, Any], found: Anatomy, wanted: Mapping[str, Tensor]
) -> tuple[Entrance, ...]:
    seen: list[tuple[str, Entrance, int]] = []
    calls: Counter[str] = Counter()

    def watch(path: str, rows: int) -> Callable[..., None]:
        def hook(module: nn.Module, args: tuple[Any, ...], output: Any) -> None:
            nth = calls[path]
            calls[path] += 1
            for name, ids in wanted.items():
                if args and isinstance(args[0], Tensor) and _same(args[0], ids):
                    turned = args[0].shape != ids.shape
                    seen.append((name, Entrance(_stack(found, name, wanted), name, path, nth, turned), rows))

        return hook

    table = _own_table(model)
    with Restoring() as changes, evaluating(model), without_gradients():
        for path, module in model.named_modules():
            if isinstance(module, nn.Embedding):
                preferred = module is table or getattr(table, "weight", None) is module.weight
                changes.after(module, watch(path, 2**62 if preferred else module.num_embeddings))
        run(model, batch)
    chosen = []
    for name in wanted:
        mine = [(rows, one) for argument, one, rows in seen if argument == name]
        if not mine:
            raise RefusalError(
                f"{found.model_class} does not look its {name} up in a table of vectors, so that their part in the "
                "answer cannot be followed: choose another model."
            )
        most = max(rows for rows, _ in mine)
        chosen.append(next(one for rows, one in mine if rows == most))
    if len(chosen) == 1 and len({site.stack for site in found.sites}) > 1:
        chosen = [replace(chosen[0], stack=_first_to_read(model, batch, found, chosen[0]))]
    return tuple(chosen)


def _first_to_read(model: nn.Module, batch: Mapping[str, Any], found: Anatomy, place: Entrance) -> str:
    """Of several stacks (towers, a picture's encoder) the first whose values depend on what is looked up there."""
    reading: list[str] = []

    def receive(frame: Any) -> None:
        if isinstance(frame, AttentionFrame) and frame.passed_on is not None and frame.passed_on.tensor.requires_grad:
            reading.append(frame.stack)

    def give(_: str, looked_up: Tensor) -> Tensor:
        return looked_up.detach().clone().requires_grad_().clone()

    with explaining(model), tap(model, found, receive), entering(model, (place,), give):
        run(model, batch)
    return reading[0] if reading else place.stack


def _own_table(model: nn.Module) -> Any:
    """What the model calls its own table; transformers says of models with two towers that they have none."""
    own = getattr(model, "get_input_embeddings", None)
    try:
        return own() if callable(own) else None
    except (NotImplementedError, AttributeError):
        return None


def _same(given: Tensor, ids: Tensor) -> bool:
    return (
        given.dtype == ids.dtype and given.numel() == ids.numel() and bool(torch.equal(given.flatten(), ids.flatten()))
    )


def _stack(found: Anatomy, name: str, wanted: Mapping[str, Tensor]) -> str:
    """Whose tokens an argument holds: of two the encoder's come first; a single one is read by the last stack."""
    names = list(dict.fromkeys(site.stack for site in found.sites))
    if len(wanted) == 1 or len(names) == 1 or name == DECODED:
        return names[-1]
    return names[0]


@contextmanager
def explaining(model: nn.Module) -> Iterator[None]:
    """Evaluation mode, no cache, gradients on, and none for parameters; all as it was afterwards."""
    wanting = [parameter for parameter in model.parameters() if parameter.requires_grad]
    with evaluating(model), without_cache(model), with_gradients():
        for parameter in wanting:
            parameter.requires_grad_(False)
        try:
            yield
        finally:
            for parameter in wanting:
                parameter.requires_grad_(True)


@contextmanager
def entering(
    model: nn.Module, found: tuple[Entrance, ...], give: Callable[[str, Float[Tensor, " ..."]], Float[Tensor, " ..."]]
) -> Iterator[None]:
    """Inside, the model goes on with `give(stack, vectors)` in place of the vectors that it looked up, which are handed
    over and taken back as `[batch, token, width]`."""
    places = {(one.path, one.nth): one for one in found}
    calls: Counter[str] = Counter()

    def begin(*ignored: Any) -> None:
        calls.clear()

    def given(place: Entrance, vectors: Tensor) -> Tensor:
        if place.sequence_first:
            return give(place.stack, vectors.transpose(0, 1)).transpose(0, 1)
        if vectors.ndim == 4:  # one prompt of one picture
            return give(place.stack, vectors.squeeze(1)).unsqueeze(1)
        return give(place.stack, vectors)

    def watch(path: str) -> Callable[..., Any]:
        def hook(module: nn.Module, args: tuple[Any, ...], output: Any) -> Any:
            place = places.get((path, calls[path]))
            calls[path] += 1
            return None if place is None else given(place, output)

        return hook

    def watch_input(path: str) -> Callable[..., Any]:
        def hook(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
            place = places.get((path, calls[path]))
            calls[path] += 1
            if place is None or place.slot is None:
                return None
            if isinstance(place.slot, str):
                return args, {**kwargs, place.slot: given(place, kwargs[place.slot])}
            changed = list(args)
            changed[place.slot] = given(place, changed[place.slot])
            return tuple(changed), kwargs

        return hook

    with Restoring() as changes:
        changes.before(model, begin, kwargs=False, prepend=True)
        for path in dict.fromkeys(one.path for one in found if one.looks_up):
            changes.after(model.get_submodule(path), watch(path))
        for path in dict.fromkeys(one.path for one in found if not one.looks_up):
            changes.before(model.get_submodule(path), watch_input(path))
        yield
