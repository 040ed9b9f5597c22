"""What a replaced head changes in the query, key or value of every later head, one of the three at a time.

A sender is replaced, and everything after it responds. In a later block its changed queries are taken from that run,
and keys and values from the untouched one: the output of a head is then what it would be if only its query noticed the
sender. Keys and values likewise. Replacing the head by that output (`HeadOutputs.replaced`) measures the edge.

    for block, projection, numbers, outputs in sent(heads, senders): ...     outputs[row] is of senders[numbers[row]]
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any, Literal

import torch
from jaxtyping import Float
from torch import Tensor, nn

from attnscope.core.errors import RefusalError
from attnscope.hf.anatomy.anatomy import Site
from attnscope.hf.editing.replacing import EnoughError, HeadOutputs, Replacement, by_head, close, projecting
from attnscope.hf.intercepting.restoring import Restoring

Projection = Literal["query", "key", "value"]
PROJECTIONS: tuple[Projection, ...] = ("query", "key", "value")


def refuse_unknown_projections(heads: HeadOutputs) -> None:
    for site in heads.sites.values():
        for name in PROJECTIONS:
            columns = getattr(site.projections, name)
            module = None if columns is None else _module(heads.model, site, name)
            if module is None or columns.matrix.first_row:
                raise RefusalError(
                    f"The {name} projection of block {site.layer} of {type(heads.model).__name__} was not recognised, "
                    "so edges between heads are not measured: read the effects of single heads."
                )


@torch.no_grad()
def sent(
    heads: HeadOutputs, senders: Sequence[Replacement]
) -> Iterator[tuple[int, Projection, list[int], Float[Tensor, "sender token head channel"]]]:
    """Yield, for every later block and projection, the senders before it and the outputs of all heads of the block."""
    refuse_unknown_projections(heads)
    first = [min(block for block, _ in sender) for sender in senders]
    order = sorted(range(len(senders)), key=lambda number: first[number])
    stream = heads.streams[0][:0]
    for layer in range(heads.network.layers):
        earlier = len(stream)
        joining = [number for number in order if first[number] == layer]
        stream = torch.cat([stream, heads.streams[layer].expand(len(joining), -1, -1)])
        if not len(stream):
            continue
        kept: dict[Projection, Tensor] = {}
        changed = [
            (row, head, output)
            for row, number in enumerate(order[: len(stream)])
            for (block, head), output in senders[number].items()
            if block == layer
        ]
        if layer not in heads.sites:
            stream = heads.network.blocks[layer](stream)
            continue
        site = heads.sites[layer]
        stream = _run(heads, site, stream, changed, kept)
        if earlier:
            made = _one_at_a_time(heads, site, {name: all_rows[:earlier] for name, all_rows in kept.items()})
            for name, outputs in zip(PROJECTIONS, torch.split(made, earlier), strict=True):
                yield layer, name, order[:earlier], outputs


def _run(
    heads: HeadOutputs,
    site: Site,
    stream: Tensor,
    changed: Sequence[tuple[int, int, Tensor]],
    kept: dict[Projection, Tensor],
) -> Tensor:
    """Run a block with some heads replaced, and keep its queries, keys and values as its projections return them."""

    def change(mixed: Tensor) -> Tensor:
        apart = by_head(mixed, site).clone()
        for row, head, output in changed:
            apart[row, :, head] = output
        return apart.flatten(-2)

    def keep(name: Projection) -> Callable[..., None]:
        def hook(module: nn.Module, args: Any, output: Tensor) -> None:
            kept[name] = output[..., _columns(site, name)].clone()

        return hook

    with Restoring() as changes, projecting(heads.model, site, change):
        for name in PROJECTIONS:
            changes.after(_module(heads.model, site, name), keep(name))
        return heads.network.blocks[site.layer](stream)


def _one_at_a_time(
    heads: HeadOutputs, site: Site, kept: dict[Projection, Tensor]
) -> Float[Tensor, "changed token head channel"]:
    """Run the attention of a block on its own input with one projection changed; the last copy checks the batch."""
    copies = len(kept["query"])
    found: list[Tensor] = []

    def put(number: int, name: Projection) -> Callable[..., Tensor]:
        def hook(module: nn.Module, args: Any, output: Tensor) -> Tensor:
            output = output.clone()
            rows = slice(number * copies, (number + 1) * copies)
            part = output[rows]
            part[..., _columns(site, name)] = kept[name]
            output[rows] = part
            return output

        return hook

    def keep(mixed: Tensor) -> None:
        found.append(by_head(mixed, site))
        raise EnoughError

    def once(forward: Callable[..., Tensor]) -> Callable[..., Tensor]:
        """Compute equal rows once."""

        def projected(taken: Tensor, *more: Any, **options: Any) -> Tensor:
            alike = len(taken) == rows_in_all and taken.ndim == 3
            made = forward(taken[:1] if alike else taken, *more, **options)
            return made.expand(len(taken), -1, -1) if alike else made

        return projected

    rows_in_all = 3 * copies + 1
    stream = heads.streams[site.layer].expand(rows_in_all, -1, -1)
    try:
        with Restoring() as changes, projecting(heads.model, site, keep):
            for module in {_module(heads.model, site, name) for name in PROJECTIONS}:
                changes.forward(module, once(module.forward))
            for number, name in enumerate(PROJECTIONS):
                changes.after(_module(heads.model, site, name), put(number, name))
            heads.network.blocks[site.layer](stream)
    except EnoughError:
        pass
    own = heads.outputs[site.layer]
    if not close(found[0][-1], own):
        raise RefusalError(
            f"Block {site.layer} of {type(heads.model).__name__} gives other numbers in a batch, so edges between "
            "heads are not measured: read the effects of single heads."
        )
    return found[0][:-1]


def _module(model: nn.Module, site: Site, name: Projection) -> nn.Module:
    return model.get_submodule(getattr(site.projections, name).matrix.parameter.rpartition(".")[0])


def _columns(site: Site, name: Projection) -> list[int]:
    numbers: list[int] = getattr(site.projections, name).numbers
    return numbers
