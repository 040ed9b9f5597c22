"""What enters every attention call (the tokens its projections read, after whatever norm stands before it), and what
the block adds to the stream for it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from jaxtyping import Float
from torch import Tensor, nn

from attnscope.hf.anatomy.anatomy import Anatomy, Site, Stack
from attnscope.hf.seeing.restoring import Restoring
from attnscope.hf.seeing.tensors import arguments, at, float_tensors

Receive = Callable[[Site, Float[Tensor, "batch token width"]], None]


@contextmanager
def attention_inputs(model: nn.Module, found: Anatomy, receive: Receive) -> Iterator[None]:
    """Inside, `receive(site, tokens)` is called before every self-attention of a stack, with tokens second."""
    stacks = {stack.name: stack for stack in found.stacks}
    calls: Counter[str] = Counter()

    def begin(*ignored: Any) -> None:
        calls.clear()

    def watch(path: str) -> Callable[..., None]:
        mine = {site.nth: site for site in found.sites if site.path == path}

        def hook(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
            site = mine.get(calls[path])
            calls[path] += 1
            if site is None or site.site != "self" or site.stack not in stacks:
                return
            stack = stacks[site.stack]
            fitting = (
                t for _, t in float_tensors(arguments(args, kwargs)) if t.ndim == 3 and t.shape[-1] == stack.width
            )
            tokens = next(fitting, None)
            if tokens is not None:
                receive(site, tokens.transpose(0, 1) if stack.sequence_first else tokens)

        return hook

    with Restoring() as changes:
        changes.before(model, begin, kwargs=False, prepend=True)
        for path in dict.fromkeys(site.path for site in found.sites):
            changes.before(model.get_submodule(path), watch(path))
        yield


@contextmanager
def first_writes(
    model: nn.Module, stack: Stack, receive: Callable[[int, Float[Tensor, "batch token width"]], None]
) -> Iterator[None]:
    """Inside, `receive(layer, write)` is called with what every block adds to its stream for attention, scaled and
    all: its first write, or in a parallel block the one that attention made."""
    calls: Counter[str] = Counter()
    places = {
        (place.path, place.nth): (block.layer, place.slot)
        for block in stack.blocks
        if block.attends
        for identity in block.writes.identities[:1]
        for place in identity.writes
        if block.writes.norm != "parallel" or place == block.writes.middle
    }

    def begin(*ignored: Any) -> None:
        calls.clear()

    def watch(path: str) -> Callable[..., None]:
        def hook(module: nn.Module, args: tuple[Any, ...], output: Any) -> None:
            found = places.get((path, calls[path]))
            calls[path] += 1
            if found is not None:
                layer, slot = found
                write = at(output, slot)
                receive(layer, write.transpose(0, 1) if stack.sequence_first else write)

        return hook

    with Restoring() as changes:
        changes.before(model, begin, kwargs=False, prepend=True)
        for path in dict.fromkeys(path for path, _ in places):
            changes.after(model.get_submodule(path), watch(path))
        yield
