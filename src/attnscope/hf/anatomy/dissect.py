"""A second probe run that looks inside the blocks the first one found: writes, norms, projections.

Everything about a block is settled when it has finished, and its recording is dropped then, so that a
probe needs the memory of one block, whatever the depth.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from attnscope.hf.anatomy.call_log import ATTENTION
from attnscope.hf.anatomy.example import Batch, probe_run
from attnscope.hf.anatomy.folding import CallMatcher
from attnscope.hf.anatomy.projections import Projections, find_projections
from attnscope.hf.anatomy.recording import BlockRecording, Change, LinearMap, Location, StreamRecord, parameter_matrix
from attnscope.hf.anatomy.stacks import FoundBlock, Placement
from attnscope.hf.anatomy.writes import Writes, find_writes
from attnscope.hf.intercepting.observed_call import ObservedCall
from attnscope.hf.intercepting.owners import arguments, at, float_tensors, same_numbers
from attnscope.hf.intercepting.wrappers import is_offloaded


@dataclass(frozen=True)
class Dissected:
    writes: dict[tuple[str, int], Writes]  # by stack and layer
    projections: tuple[Projections, ...]  # in the order of attention calls
    chained: dict[str, bool]  # by stack: what leaves a block enters the next


class LinearWatch(TorchFunctionMode):
    """Tells `seen` of every product with a parameter."""

    def __init__(self, seen: Callable[[Any, bool, Tensor, Tensor], None]) -> None:
        super().__init__()
        self._seen = seen

    def __torch_function__(
        self,
        func: Any,
        types: Iterable[type],
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        result = func(*args, **(kwargs or {}))
        name = getattr(func, "__name__", "")
        if name == "linear" and args:
            self._seen(args[1] if len(args) > 1 else (kwargs or {}).get("weight"), True, args[0], result)
        elif name == "addmm" and len(args) == 3:
            self._seen(args[2], False, args[1], result)
        elif name in ("matmul", "__matmul__") and len(args) == 2:
            self._seen(args[1], False, args[0], result)
        elif name == "einsum" and len(args) == 3:
            self._einsum(*args, result)
        return result

    def _einsum(self, equation: str, taken: Tensor, weight: Tensor, result: Tensor) -> None:
        """A matrix that acts on the last axis; weights of more axes are found by `hf.anatomy.parameters`."""
        inputs, _, out = equation.replace(" ", "").partition("->")
        left, right = inputs.split(",")
        if left[:-1] == out[:-1] and right in (left[-1] + out[-1:], out[-1:] + left[-1]):
            self._seen(weight, right[0] != left[-1], taken, result)


class _Dissection(CallMatcher):
    def __init__(self, model: nn.Module, placement: Placement) -> None:
        super().__init__(model, placement.sites)
        parameters = dict(model.named_parameters(remove_duplicate=True))
        self.owners = _by_memory(parameters)
        self.modules = {path: module for module, path in self.paths.items()} if is_offloaded(model) else {}
        weight = next((p for p in parameters.values() if p.is_floating_point()), None)
        self.eps = float(torch.finfo(torch.float32 if weight is None else weight.dtype).eps)
        self.blocks: dict[tuple[str, int], FoundBlock] = {(b.path, b.nth): b for b in placement.blocks}
        self.called: Counter[str] = Counter()
        self.order = 0
        self.open: list[tuple[str, int, int]] = []  # path, which call of it, number in the run
        self.started = 0
        self.tapes: list[BlockRecording] = []
        self.entered: list[Tensor] = []
        self.left: dict[str, Tensor] = {}
        self.writes: dict[tuple[str, int], Writes] = {}
        self.projections: dict[int, Projections] = {}
        self.chained: dict[str, bool] = {}

    def enter(self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        path = self.paths[module]
        call = (path, self.called[path])
        self.called[path] += 1
        self.open.append((*call, self.started))
        self.started += 1
        taken = arguments(args, kwargs)
        block = self.blocks.get(call)
        if block is not None:
            self.tapes.append(BlockRecording(block.batch, block.shape, block.sequence_first))
            stream = self.tapes[-1].stream(taken[block.enters])
            assert stream is not None
            before = self.left.get(block.stack)
            # Another width begins another stage: what happened between them is no block's doing.
            same = before is None or before.shape != stream.shape or same_numbers(before, stream)
            self.chained[block.stack] = self.chained.get(block.stack, True) and same
            self.entered.append(stream)
        elif self.tapes:
            self._record(module, call, "input", taken)

    def leave(self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], output: Any) -> None:
        call = self.open.pop()[:2]
        block = self.blocks.get(call)
        if block is not None:
            self._finish(block, output)
        elif self.tapes:
            self._record(module, call, "output", output)
            self._note_change(call[0], arguments(args, kwargs), output)

    def _record(self, module: nn.Module, call: tuple[str, int], side: str, thing: Any) -> None:
        tape = self.tapes[-1]
        tensors = list(float_tensors(thing))
        for slot, tensor in tensors:
            stream = tape.stream(tensor)
            if stream is not None:
                self.order += 1
                place = Location(call[0], call[1], side, slot)
                tape.streams.append(StreamRecord(place, module, stream, self.order, len(tensors) == 1))

    def _note_change(self, path: str, taken: dict[Any, Any], output: Any) -> None:
        inputs, outputs = list(float_tensors(taken)), list(float_tensors(output))
        if len(inputs) == len(outputs) == 1 and inputs[0][1].shape == outputs[0][1].shape:
            tape = self.tapes[-1]
            pairs = zip(tape.first_token(inputs[0][1]), tape.first_token(outputs[0][1]), strict=True)
            tape.changes.extend(Change(path, a.clone(), b.clone()) for a, b in pairs)

    def multiplied(self, weight: Any, out_in: bool, taken: Tensor, given: Tensor) -> None:
        matrix = parameter_matrix(weight, self._owners(), out_in) if self.tapes else None
        if matrix is not None:
            tape = self.tapes[-1]
            pairs = zip(tape.first_token(taken), tape.first_token(given), strict=False)
            tape.maps.extend(LinearMap(matrix, a.clone(), b.clone()) for a, b in pairs)

    def _owners(self) -> Mapping[int, tuple[str, Tensor]]:
        """Weights that are out of memory have a place in it only while their module runs."""
        if not self.modules or not self.open:
            return self.owners
        path = self.open[-1][0]
        inside = self.modules[path].named_parameters(prefix=path)
        return {**self.owners, **_by_memory(dict(inside))}

    def under_way(self) -> list[tuple[str, int]]:
        return [(path, number) for path, _, number in self.open]

    def attended(self, index: int, observed: ObservedCall) -> None:
        if self.tapes:
            self.order += 1
            self.tapes[-1].observed.append((index, self.order, observed))
        else:
            self.projections[index] = Projections(observed.scores.scale)

    def _finish(self, block: FoundBlock, output: Any) -> None:
        tape, entered = self.tapes.pop(), self.entered.pop()
        left = tape.stream(at(output, block.leaves))
        assert left is not None
        self.left[block.stack] = left
        attended = [when for _, when, _ in tape.observed]
        if block.kind not in (ATTENTION, "MLP"):
            attended = [0]  # what stands in attention's place writes first
        with torch._C.DisableTorchFunction():  # our own arithmetic is not the model's
            self.writes[block.stack, block.layer] = find_writes(entered, left, tape.streams, attended, self.eps)
            self.settle(tape)

    def settle(self, tape: BlockRecording) -> None:
        for index, _, observed in tape.observed:
            self.projections[index] = find_projections(observed, tape, self.eps)


def _by_memory(parameters: Mapping[str, Tensor]) -> dict[int, tuple[str, Tensor]]:
    return {p.untyped_storage().data_ptr(): (name, p) for name, p in parameters.items() if not p.is_meta}


def dissect(model: nn.Module, batch: Batch, placement: Placement, fast_path: bool) -> Dissected:
    """Run the model once more on the probe batch and settle every block as it finishes."""
    placed = placement.sites
    work = _Dissection(model, placement)
    outside = BlockRecording(placed[0].seen.batch, None, sequence_first=False)
    if any(p.block is None for p in placed):
        work.tapes.append(outside)  # attention without a block around it is matched against the whole run
    probe_run(model, batch, work, fast_path=fast_path, also=(LinearWatch(work.multiplied),))
    work.settle(outside)
    return Dissected(work.writes, tuple(work.projections[index] for index in range(len(placed))), work.chained)
