"""Models that make several rows of one sequence before they attend: windows of a picture, frames, channels.

Numbers are kept by sequence, so it must be known which rows are whose. Asked by running the model a second time on the
probe batch with its sequences in reverse: where rows of one sequence stand together, they move together.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from attnscope.core.errors import RefusalError
from attnscope.hf.anatomy.call_log import CallLog, shared
from attnscope.hf.anatomy.example import Batch, probe_run, same_chance
from attnscope.hf.anatomy.stacks import PlacedCall
from attnscope.hf.intercepting.masks import MaskReader
from attnscope.hf.intercepting.observed_call import ObservedCall, observe_fused, observe_written_out
from attnscope.hf.intercepting.torch_calls import FusedCall, ReportedCall, Seen, WrittenOutCall

# Which attention call of a run is the one just seen: what every watch of a forward pass has to find out.
#
# A watch keeps the module calls that are under way. What is seen inside them belongs to the innermost call that was
# open when it began, and to that module's next attention in the order of the census.


class CallMatcher(ABC):
    def __init__(self, model: nn.Module, placed: tuple[PlacedCall, ...]) -> None:
        self.placed = placed
        self.paths = {module: path for path, module in model.named_modules()}
        self.sites = {(p.seen.owner, p.seen.nth): index for index, p in enumerate(placed)}
        self.masks = MaskReader()
        self._times: Counter[str] = Counter()

    @abstractmethod
    def under_way(self) -> list[tuple[str, int]]:
        """Module calls that have begun and not ended, outermost first: path, and number in the run."""

    @abstractmethod
    def attended(self, index: int, observed: ObservedCall) -> None:
        """The attention call `placed[index]` has happened."""

    def scope(self) -> tuple[int, ...]:
        return tuple(number for _, number in self.under_way())

    def saw(self, call: Seen) -> None:
        begun = call.begun if isinstance(call, WrittenOutCall) else self.scope()
        innermost = shared(begun, self.scope())
        owner = next(path for path, number in self.under_way() if number == innermost)
        seen = self.placed[self.sites[owner, self._times[owner]]].seen
        if isinstance(call, FusedCall):
            self._next_of(owner, observe_fused(call, self.masks))
        elif isinstance(call, ReportedCall):
            self._next_of(owner, call.observed)
        else:
            self._next_of(owner, observe_written_out(call, heads=seen.heads, batch=seen.batch))

    def saw_interface(self, module: nn.Module, observed: ObservedCall) -> None:
        self._next_of(self.paths[module], observed)

    def _next_of(self, owner: str, observed: ObservedCall) -> None:
        index = self.sites[owner, self._times[owner]]
        self._times[owner] += 1
        self.attended(index, observed)


def rows_of(batch: Batch) -> int | None:
    """How many sequences a batch holds: its rows of tokens, or rows where all its tensors agree on them."""
    if isinstance(batch, Mapping) and isinstance(ids := batch.get("input_ids"), Tensor) and ids.ndim:
        return len(ids)
    tensors = [v for v in (batch.values() if isinstance(batch, Mapping) else batch) if isinstance(v, Tensor) and v.ndim]
    counts = {len(tensor) for tensor in tensors}
    return counts.pop() if len(counts) == 1 else None


def refuse_mixed_rows(model: nn.Module, batch: Batch, census: CallLog, placed: tuple[PlacedCall, ...]) -> None:
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


def _sums(model: nn.Module, batch: Batch, census: CallLog, placed: tuple[PlacedCall, ...]) -> dict[int, Tensor]:
    summing = _Summing(model, placed)
    with same_chance(model):
        probe_run(model, batch, summing, fast_path=census.fast_path)
    return summing.sums


class _Summing(CallMatcher):
    """A number for every row of every attention call."""

    def __init__(self, model: nn.Module, placed: tuple[PlacedCall, ...]) -> None:
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

    def attended(self, index: int, observed: ObservedCall) -> None:
        self.sums[index] = observed.value.double().abs().flatten(1).sum(1)
