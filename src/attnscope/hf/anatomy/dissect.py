"""A second probe run, which finds the writes, norms and projections inside each block.

The recording of a block is evaluated and dropped when the block ends, so that memory does not grow with depth.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from attnscope.hf.anatomy.call_log import ATTENTION
from attnscope.hf.anatomy.example import Batch
from attnscope.hf.anatomy.probe import CallMatcher, OpenCall, probe_run
from attnscope.hf.anatomy.projections import Projections, find_projections
from attnscope.hf.anatomy.recording import BlockRecording, Change, LinearMap, Location, StreamRecord, parameter_matrix
from attnscope.hf.anatomy.stacks import FoundBlock, Placement
from attnscope.hf.anatomy.writes import Writes, find_writes
from attnscope.hf.intercepting.observed_call import ObservedCall
from attnscope.hf.intercepting.owners import arguments, at, float_tensors, same_numbers
from attnscope.hf.intercepting.wrappers import is_offloaded


@dataclass(frozen=True)
class Dissected:
    writes: dict[tuple[str, int], Writes]  # by stack and block
    projections: tuple[Projections, ...]  # in the order of attention calls
    chained: dict[str, bool]  # by stack: whether the output of every block is the input of the next


class LinearWatch(TorchFunctionMode):
    """Calls `seen(weight, out_in, input, result)` for every product with a matrix, stored as [out, in] if `out_in`."""

    def __init__(self, seen: Callable[[Any, bool, Tensor, Tensor], None]) -> None:
        super().__init__()
        self._seen = seen

    def __torch_function__(
        self, func: Any, types: Iterable[type], args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
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
            # Only matrices on the last axis; `hf.anatomy.parameters` finds weights with more axes.
            inputs, _, out = args[0].replace(" ", "").partition("->")
            left, right = inputs.split(",")
            if left[:-1] == out[:-1] and right in (left[-1] + out[-1:], out[-1:] + left[-1]):
                self._seen(args[2], right[0] != left[-1], args[1], result)
        return result


class _Dissection(CallMatcher[OpenCall]):
    call_class = OpenCall

    def __init__(self, model: nn.Module, placement: Placement) -> None:
        super().__init__(model, placement.sites)
        parameters = dict(model.named_parameters(remove_duplicate=True))
        self.owners = _by_memory(parameters)
        self.offloaded = is_offloaded(model)
        weight = next((p for p in parameters.values() if p.is_floating_point()), None)
        self.eps = float(torch.finfo(torch.float32 if weight is None else weight.dtype).eps)
        self.blocks: dict[tuple[str, int], FoundBlock] = {(b.path, b.nth): b for b in placement.blocks}
        self.order = 0
        self.recordings: list[BlockRecording] = []
        self.entered: list[Tensor] = []
        self.left: dict[str, Tensor] = {}
        self.writes: dict[tuple[str, int], Writes] = {}
        self.projections: dict[int, Projections] = {}
        self.chained: dict[str, bool] = {}

    def began(self, call: OpenCall, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        taken = arguments(args, kwargs)
        block = self.blocks.get((call.path, call.nth))
        if block is not None:
            self.recordings.append(BlockRecording(block.batch, block.shape, block.sequence_first))
            stream = self.recordings[-1].stream(taken[block.enters])
            assert stream is not None
            before = self.left.get(block.stack)
            # Another width begins another stage. Changes between stages belong to no block.
            same = before is None or before.shape != stream.shape or same_numbers(before, stream)
            self.chained[block.stack] = self.chained.get(block.stack, True) and same
            self.entered.append(stream)
        elif self.recordings:
            self._record(call, "input", taken)

    def ended(self, call: OpenCall, args: tuple[Any, ...], kwargs: dict[str, Any], output: Any) -> None:
        block = self.blocks.get((call.path, call.nth))
        if block is not None:
            self._finish(block, output)
        elif self.recordings:
            self._record(call, "output", output)
            self._note_change(call.path, arguments(args, kwargs), output)

    def _record(self, call: OpenCall, side: str, values: Any) -> None:
        recording = self.recordings[-1]
        tensors = list(float_tensors(values))
        for slot, tensor in tensors:
            stream = recording.stream(tensor)
            if stream is not None:
                self.order += 1
                place = Location(call.path, call.nth, side, slot)
                recording.streams.append(StreamRecord(place, call.module, stream, self.order, len(tensors) == 1))

    def _note_change(self, path: str, taken: dict[Any, Any], output: Any) -> None:
        inputs, outputs = list(float_tensors(taken)), list(float_tensors(output))
        if len(inputs) == len(outputs) == 1 and inputs[0][1].shape == outputs[0][1].shape:
            recording = self.recordings[-1]
            pairs = zip(recording.first_token(inputs[0][1]), recording.first_token(outputs[0][1]), strict=True)
            recording.changes.extend(Change(path, a.clone(), b.clone()) for a, b in pairs)

    def multiplied(self, weight: Any, out_in: bool, taken: Tensor, given: Tensor) -> None:
        matrix = parameter_matrix(weight, self._owners(), out_in) if self.recordings else None
        if matrix is not None:
            recording = self.recordings[-1]
            pairs = zip(recording.first_token(taken), recording.first_token(given), strict=False)
            recording.maps.extend(LinearMap(matrix, a.clone(), b.clone()) for a, b in pairs)

    def _owners(self) -> Mapping[int, tuple[str, Tensor]]:
        """Return parameters by memory address. Offloaded weights have an address only while their module runs."""
        if not self.offloaded or not self.open:
            return self.owners
        inside = self.open[-1].module.named_parameters(prefix=self.open[-1].path)
        return {**self.owners, **_by_memory(dict(inside))}

    def attended(self, index: int, observed: ObservedCall) -> None:
        if self.recordings:
            self.order += 1
            self.recordings[-1].attention.append((index, self.order, observed))
        else:
            self.projections[index] = Projections(observed.scores.scale)

    def _finish(self, block: FoundBlock, output: Any) -> None:
        recording, entered = self.recordings.pop(), self.entered.pop()
        left = recording.stream(at(output, block.leaves))
        assert left is not None
        self.left[block.stack] = left
        attended = [when for _, when, _ in recording.attention]
        if block.kind not in (ATTENTION, "MLP"):
            attended = [0]  # the replacement of attention writes first
        with torch._C.DisableTorchFunction():  # do not observe our own arithmetic
            self.writes[block.stack, block.layer] = find_writes(entered, left, recording.streams, attended, self.eps)
            self.settle(recording)

    def settle(self, recording: BlockRecording) -> None:
        for index, _, observed in recording.attention:
            self.projections[index] = find_projections(observed, recording, self.eps)


def _by_memory(parameters: Mapping[str, Tensor]) -> dict[int, tuple[str, Tensor]]:
    return {p.untyped_storage().data_ptr(): (name, p) for name, p in parameters.items() if not p.is_meta}


def dissect(model: nn.Module, batch: Batch, placement: Placement, fast_path: bool) -> Dissected:
    """Run the model once more on the probe batch and evaluate every block as it finishes."""
    placed = placement.sites
    dissection = _Dissection(model, placement)
    outside = BlockRecording(placed[0].seen.batch, None, sequence_first=False)
    if any(p.block is None for p in placed):
        dissection.recordings.append(outside)  # match attention outside blocks against the whole run
    probe_run(model, batch, dissection, fast_path=fast_path, also=(LinearWatch(dissection.multiplied),))
    dissection.settle(outside)
    projections = tuple(dissection.projections[index] for index in range(len(placed)))
    return Dissected(dissection.writes, projections, dissection.chained)
