"""Models that make several rows of one sequence before they attend: windows of a picture, frames, channels.

Numbers are kept by sequence, so it must be known which rows are whose. Asked by running the model a second time on the
probe batch with its sequences in reverse: where rows of one sequence stand together, they move together.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from attnscope.core.errors import RefusalError
from attnscope.hf.anatomy.census import Census
from attnscope.hf.anatomy.example import Batch, same_chance
from attnscope.hf.anatomy.probe_run import probe_run
from attnscope.hf.anatomy.stacks import Placed
from attnscope.hf.anatomy.witness import Witness
from attnscope.hf.seeing.sighting import Sighting


def rows_of(batch: Batch) -> int | None:
    """How many sequences a batch holds: its rows of tokens, or rows where all its tensors agree on them."""
    if isinstance(batch, Mapping) and isinstance(ids := batch.get("input_ids"), Tensor) and ids.ndim:
        return len(ids)
    tensors = [v for v in (batch.values() if isinstance(batch, Mapping) else batch) if isinstance(v, Tensor) and v.ndim]
    counts = {len(tensor) for tensor in tensors}
    return counts.pop() if len(counts) == 1 else None


def refuse_mixed_rows(model: nn.Module, batch: Batch, census: Census, placed: tuple[Placed, ...]) -> None:
    """Refuses models that fold sequences into rows in an order of their own."""
    sequences = rows_of(batch)
    if sequences is None or sequences < 2 or not isinstance(batch, Mapping):
        return
    folded = [i for i, p in enumerate(placed) if p.seen.batch > sequences and p.seen.batch % sequences == 0]
    if not folded:
        return
    if any(isinstance(v, Tensor) and v.ndim and len(v) != sequences for v in batch.values()):
        return
    turned = {name: v.flip(0) if isinstance(v, Tensor) and v.ndim else v for name, v in batch.items()}
    one, other = (_sums(model, given, census, placed) for given in (batch, turned))
    for index in folded:
        rows, again = (sums[index].reshape(sequences, -1) for sums in (one, other))
        if not torch.allclose(rows, again.flip(0), rtol=1e-4, atol=1e-6):
            raise RefusalError(
                f"{type(model).__name__} makes {rows.shape[1]} rows of every sequence in {placed[index].seen.owner} "
                "and mixes their order, so that numbers cannot be given back to their sequences: give batches of one "
                "sequence."
            )


def _sums(model: nn.Module, batch: Batch, census: Census, placed: tuple[Placed, ...]) -> dict[int, Tensor]:
    summing = _Summing(model, placed)
    with same_chance(model):
        probe_run(model, batch, summing, fast_path=census.fast_path)
    return summing.sums


class _Summing(Witness):
    """A number for every row of every attention call."""

    def __init__(self, model: nn.Module, placed: tuple[Placed, ...]) -> None:
        super().__init__(model, placed)
        self.open: list[tuple[str, int]] = []
        self.started = 0
        self.sums: dict[int, Tensor] = {}

    def under_way(self) -> list[tuple[str, int]]:
        return self.open

    def enter(self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        self.open.append((self.paths[module], self.started))
        self.started += 1

    def leave(self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], output: Any) -> None:
        self.open.pop()

    def attended(self, index: int, sighting: Sighting) -> None:
        self.sums[index] = sighting.value.double().abs().flatten(1).sum(1)
