"""Which attention call of a run is the one just seen: what every watch of a forward pass has to find out.

A watch keeps the module calls that are under way. What is seen inside them belongs to the innermost call that was open
when it began, and to that module's next attention in the order of the census.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import Counter

from torch import nn

from attnscope.hf.anatomy.census import shared
from attnscope.hf.anatomy.stacks import Placed
from attnscope.hf.seeing.masks import MaskReader
from attnscope.hf.seeing.primitives import FusedCall, Seen, SightedCall, WrittenOutCall
from attnscope.hf.seeing.sighting import Sighting, sight_fused, sight_written_out


class Witness(ABC):
    def __init__(self, model: nn.Module, placed: tuple[Placed, ...]) -> None:
        self.placed = placed
        self.paths = {module: path for path, module in model.named_modules()}
        self.sites = {(p.seen.owner, p.seen.nth): index for index, p in enumerate(placed)}
        self.masks = MaskReader()
        self._times: Counter[str] = Counter()

    @abstractmethod
    def under_way(self) -> list[tuple[str, int]]:
        """Module calls that have begun and not ended, outermost first: path, and number in the run."""

    @abstractmethod
    def attended(self, index: int, sighting: Sighting) -> None:
        """The attention call `placed[index]` has happened."""

    def scope(self) -> tuple[int, ...]:
        return tuple(number for _, number in self.under_way())

    def saw(self, call: Seen) -> None:
        begun = call.begun if isinstance(call, WrittenOutCall) else self.scope()
        innermost = shared(begun, self.scope())
        owner = next(path for path, number in self.under_way() if number == innermost)
        seen = self.placed[self.sites[owner, self._times[owner]]].seen
        if isinstance(call, FusedCall):
            self._next_of(owner, sight_fused(call, self.masks))
        elif isinstance(call, SightedCall):
            self._next_of(owner, call.sighting)
        else:
            self._next_of(owner, sight_written_out(call, heads=seen.heads, batch=seen.batch))

    def saw_interface(self, module: nn.Module, sighting: Sighting) -> None:
        self._next_of(self.paths[module], sighting)

    def _next_of(self, owner: str, sighting: Sighting) -> None:
        index = self.sites[owner, self._times[owner]]
        self._times[owner] += 1
        self.attended(index, sighting)
