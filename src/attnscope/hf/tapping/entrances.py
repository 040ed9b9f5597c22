"""Find the calls that turn tokens into vectors (entrances), and replace these vectors.

    found = entrances(model, batch, anatomy)
    with entering(model, found, give):         # give(stack, looked_up) -> the vectors that the model continues with
        model(**batch)

Tables are found by observing one run: a table is an `nn.Embedding` whose input is an argument of the batch. The model's
own table (`get_input_embeddings`) is preferred, then the largest, because positions and token types have tables too.
Patches of a picture and frames of a sound have no table: their vectors are the input of the first block of the stack
that reads them, or of a two-way decoder (`media_entrances`).
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
from attnscope.hf.intercepting.owners import Slot, arguments, with_argument
from attnscope.hf.intercepting.restoring import Restoring, evaluating, with_gradients, without_cache, without_gradients
from attnscope.hf.tapping.tap import tap

ENCODED, DECODED = "input_ids", "decoder_input_ids"
MEDIA = ("pixel_values", "input_features", "input_values", "visual_feats")


@dataclass(frozen=True)
class Entrance:
    """The `nth` call of the table at `path`, which returns the vectors of the tokens that `stack` reads.

    With a `slot`, the vectors are that argument of the `nth` call of the block at `path` instead.
    """

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
    """Return an entrance for each stack that reads a picture or a sound, then one for each argument with token ids.

    The latter are in the order of stacks. Refuse an argument that is not looked up in a table.
    """
    from attnscope.hf.tapping.media_entrances import two_way, with_streams

    wanted = {name: batch[name] for name in (ENCODED, DECODED) if isinstance(batch.get(name), Tensor)}
    if not wanted and (both := two_way(model, batch, found)):
        return both
    if any(isinstance(batch.get(name), Tensor) for name in MEDIA):
        return with_streams(model, batch, found, _tables(model, batch, found, wanted) if wanted else ())
    if not wanted:
        raise RefusalError(
            f"The batch for {found.model_class} has no input_ids, and explanations need tokens: give a text."
        )
    return _tables(model, batch, found, wanted)


def _tables(
    model: nn.Module, batch: Mapping[str, Any], found: Anatomy, wanted: Mapping[str, Tensor]
) -> tuple[Entrance, ...]:
    seen: list[tuple[int, Entrance]] = []  # each with the number of rows of its table
    calls: Counter[str] = Counter()
    paths = {module: path for path, module in model.named_modules() if isinstance(module, nn.Embedding)}
    table = _own_table(model)

    def look(module: nn.Embedding, args: tuple[Any, ...], output: Any) -> None:
        path = paths[module]
        nth, calls[path] = calls[path], calls[path] + 1
        preferred = module is table or getattr(table, "weight", None) is module.weight
        for name, ids in wanted.items():
            if args and isinstance(args[0], Tensor) and _same(args[0], ids):
                entrance = Entrance(_stack(found, name, wanted), name, path, nth, args[0].shape != ids.shape)
                seen.append((2**62 if preferred else module.num_embeddings, entrance))

    with Restoring() as changes, evaluating(model), without_gradients():
        for module in paths:
            changes.after(module, look)
        run(model, batch)
    chosen = []
    for name in wanted:
        mine = [(rows, entrance) for rows, entrance in seen if entrance.argument == name]
        if not mine:
            raise RefusalError(
                f"{found.model_class} does not look its {name} up in a table of vectors, so their relevance cannot be "
                "computed: choose another model."
            )
        chosen.append(max(mine, key=lambda pair: pair[0])[1])
    if len(chosen) == 1 and len({site.stack for site in found.sites}) > 1:
        chosen = [replace(chosen[0], stack=_first_to_read(model, batch, found, chosen[0]))]
    return tuple(chosen)


def _first_to_read(model: nn.Module, batch: Mapping[str, Any], found: Anatomy, entrance: Entrance) -> str:
    """Return the first of several stacks whose attention depends on the embeddings."""
    reading: list[str] = []

    def receive(frame: Any) -> None:
        if isinstance(frame, AttentionFrame) and frame.passed_on is not None and frame.passed_on.tensor.requires_grad:
            reading.append(frame.stack)

    def give(_: str, looked_up: Tensor) -> Tensor:
        return looked_up.detach().clone().requires_grad_().clone()

    with explaining(model), tap(model, found, receive), entering(model, (entrance,), give):
        run(model, batch)
    return reading[0] if reading else entrance.stack


def _own_table(model: nn.Module) -> Any:
    """Return the model's own table, or None: transformers raises an error for models with two towers."""
    own = getattr(model, "get_input_embeddings", None)
    try:
        return own() if callable(own) else None
    except (NotImplementedError, AttributeError):
        return None


def _same(given: Tensor, ids: Tensor) -> bool:
    alike = given.dtype == ids.dtype and given.numel() == ids.numel()
    return alike and bool(torch.equal(given.flatten(), ids.flatten()))


def _stack(found: Anatomy, name: str, wanted: Mapping[str, Tensor]) -> str:
    """Return the stack that reads an argument: the first for `input_ids` beside `decoder_input_ids`, else the last."""
    names = list(dict.fromkeys(site.stack for site in found.sites))
    return names[-1] if len(wanted) == 1 or name == DECODED else names[0]


@contextmanager
def explaining(model: nn.Module) -> Iterator[None]:
    """Set evaluation mode, no cache, and gradients for inputs but not for parameters, inside this context."""
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
    model: nn.Module, chosen: tuple[Entrance, ...], give: Callable[[str, Float[Tensor, " ..."]], Float[Tensor, " ..."]]
) -> Iterator[None]:
    """Replace the vectors `[batch, token, width]` that enter the model by `give(stack, vectors)`."""

    def replaced(entrance: Entrance, vectors: Tensor) -> Tensor:
        if entrance.sequence_first:
            return give(entrance.stack, vectors.transpose(0, 1)).transpose(0, 1)
        if vectors.ndim == 4:  # one prompt of one picture
            return give(entrance.stack, vectors.squeeze(1)).unsqueeze(1)
        return give(entrance.stack, vectors)

    def enter(entrance: Entrance, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        assert entrance.slot is not None
        return with_argument(args, kwargs, entrance.slot, replaced(entrance, arguments(args, kwargs)[entrance.slot]))

    tables = {(entrance.path, entrance.nth): entrance for entrance in chosen if entrance.looks_up}
    blocks = {(entrance.path, entrance.nth): entrance for entrance in chosen if not entrance.looks_up}
    with Restoring() as changes:
        changes.nth_calls(model, tables, after=replaced)
        changes.nth_calls(model, blocks, before=enter)
        yield
