"""Finding tensors in what modules take and give: positional, by name, or inside tuples and output classes."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor, nn

Slot = int | str


def float_tensors(thing: Any) -> Iterator[tuple[Slot, Tensor]]:
    """The floating tensors at the top of an output or of a mapping of arguments, with where they were."""
    if isinstance(thing, Tensor):
        thing = (thing,)
    pairs: Any = ()
    if isinstance(thing, Mapping):
        pairs = thing.items()
    elif isinstance(thing, (tuple, list)):
        pairs = enumerate(thing)
    for slot, value in pairs:
        if isinstance(value, Tensor) and value.is_floating_point():
            yield slot, value


def arguments(args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> dict[Slot, Any]:
    """One mapping for positional (by number) and named arguments."""
    every: dict[Slot, Any] = dict(enumerate(args))
    every.update(kwargs)
    return every


def at(thing: Any, slot: Slot) -> Any:
    """What stands at that slot of an output."""
    return thing if isinstance(thing, Tensor) else thing[slot]


def every_tensor(thing: Any) -> Iterator[Tensor]:
    """All tensors of a nested output, in order."""
    if isinstance(thing, Tensor):
        yield thing
    elif isinstance(thing, Mapping):
        for value in thing.values():
            yield from every_tensor(value)
    elif isinstance(thing, (tuple, list)):
        for value in thing:
            yield from every_tensor(value)


def same_numbers(one: Tensor, other: Tensor) -> bool:
    """Equal in shape and in every entry, where NaN equals NaN."""
    return one.shape == other.shape and bool(((one == other) | (one.isnan() & other.isnan())).all())


def by_head(output: Float[Tensor, "batch token width"], heads: int) -> Float[Tensor, "batch token head dim"]:
    """What heads wrote side by side, each by itself."""
    return output.reshape(*output.shape[:-1], heads, -1)


def projected(
    part: nn.Linear, tokens: Float[Tensor, "batch token width"], heads: int
) -> Float[Tensor, "batch head token dim"]:
    """What a projection makes of tokens, by head: the product alone, not a call that others would count."""
    made = F.linear(tokens, part.weight, part.bias)
    return made.view(*made.shape[:2], heads, -1).transpose(1, 2)
