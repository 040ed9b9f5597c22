"""The residual identity on a real batch: what leaves a block is what entered plus what its modules wrote."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from attnscope.hf.anatomy.anatomy import Anatomy, Block
from attnscope.hf.anatomy.recording import Location
from attnscope.hf.intercepting.owners import arguments, at
from attnscope.hf.intercepting.restoring import Restoring


@contextmanager
def residual_identities(model: nn.Module, found: Anatomy, note: Callable[[Tensor], None]) -> Iterator[None]:
    """While active, `note` receives |result - (before + writes)| / max |result|, block by block."""
    reader = _Reader(found, note)
    with Restoring() as changes:
        changes.before(model, reader.begin)
        for path in reader.paths():
            module = model.get_submodule(path)
            changes.before(module, reader.took(path))
            changes.after(module, reader.gave(path))
        yield


class _Reader:
    def __init__(self, found: Anatomy, note: Callable[[Tensor], None]) -> None:
        self.note = note
        self.wanted: set[Location] = set()
        self.ends: dict[tuple[str, int], Block] = {}
        for stack in found.stacks:
            for block in stack.blocks:
                if block.writes.separable:
                    self.ends[block.path, block.nth] = block
                    self.wanted.add(Location(block.path, block.nth, "input", block.enters))
                for identity in block.writes.identities:
                    self.wanted.update(p for p in (identity.result, identity.before, *identity.writes) if p)
        self.begin()

    def begin(self, *ignored: Any) -> None:
        self.entered: Counter[str] = Counter()
        self.left: Counter[str] = Counter()
        self.read: dict[Location, Tensor] = {}

    def paths(self) -> set[str]:
        return {place.path for place in self.wanted} | {path for path, _ in self.ends}

    def took(self, path: str) -> Callable[..., None]:
        slots = self._slots(path, "input")

        def hook(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
            nth = self.entered[path]
            self.entered[path] += 1
            for slot in slots[nth]:
                self._keep(Location(path, nth, "input", slot), arguments(args, kwargs)[slot])

        return hook

    def gave(self, path: str) -> Callable[..., None]:
        slots = self._slots(path, "output")

        def hook(module: nn.Module, args: tuple[Any, ...], output: Any) -> None:
            nth = self.left[path]
            self.left[path] += 1
            for slot in slots[nth]:
                self._keep(Location(path, nth, "output", slot), at(output, slot))
            if (path, nth) in self.ends:
                self._compare(self.ends[path, nth], output)

        return hook

    def _slots(self, path: str, side: str) -> dict[int, list[Any]]:
        slots: dict[int, list[Any]] = defaultdict(list)
        for place in self.wanted:
            if (place.path, place.side) == (path, side):
                slots[place.nth].append(place.slot)
        return slots

    def _keep(self, place: Location, tensor: Tensor) -> None:
        self.read[place] = tensor.detach().to(torch.float64, copy=True)

    def _compare(self, block: Block, output: Any) -> None:
        entered = self.read[Location(block.path, block.nth, "input", block.enters)]
        left = at(output, block.leaves).detach().double()
        for identity in block.writes.identities:
            result = left if identity.result is None else self.read[identity.result].reshape(entered.shape)
            before = entered if identity.before is None else self.read[identity.before].reshape(entered.shape)
            written = sum(self.read[place].reshape(entered.shape) for place in identity.writes)
            finite = result.isfinite()  # where the model itself makes NaN there is nothing to compare
            difference = (result - before - identity.multiplier * written)[finite].abs()
            if difference.numel():
                self.note(difference / result[finite].abs().max().clamp_min(1e-30))
        self.read.clear()
