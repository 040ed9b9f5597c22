"""Tell self-attention from cross-attention by following values back through the autograd graph.

In a third probe run, with gradients on, every tensor that enters an element of a module list (a block, or half of one)
becomes a leaf of the graph. The graph then shows from which leaves the queries and the values of each attention call
come.

    self    values come from the same tensors as queries, or from some of them, one of which passes through the block
    cross   values come from elsewhere: an encoder, a picture, or the other of two streams

Lengths are not enough: self-attention with pooled keys (PVT, Segformer) or pooled queries (Funnel) has different
numbers of queries and keys, and an encoder may have as many tokens as its decoder.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from attnscope.hf.anatomy.call_log import CallLog
from attnscope.hf.anatomy.example import Batch, same_chance
from attnscope.hf.anatomy.probe import OpenCall, ProbeObserver, probe_run
from attnscope.hf.intercepting.observed_call import ObservedCall
from attnscope.hf.intercepting.owners import Slot, float_tensors
from attnscope.hf.intercepting.restoring import outside_inference, with_gradients
from attnscope.hf.intercepting.torch_calls import FusedCall, ReportedCall, Seen

Fingerprint = tuple[tuple[int, ...], float, float]  # shape and two sums, to recognise a tensor


@dataclass
class _Call(OpenCall):
    """A module call with its roots (a leaf for each input tensor), and the attention calls in it."""

    listed: bool = False
    roots: dict[int, Tensor] = field(default_factory=dict)  # keyed by the id() of the root
    prints: dict[int, Fingerprint] = field(default_factory=dict)
    seen: list[tuple[int, frozenset[int], frozenset[int]]] = field(default_factory=list)


class _Tree(ProbeObserver[_Call]):
    """Finds for every attention call where its queries and values come from."""

    call_class = _Call

    def __init__(self, model: nn.Module, log: CallLog) -> None:
        super().__init__(model)
        self.listed = {call.path for call in log.calls if call.listed}
        self.attended = 0
        self.own: dict[int, bool] = {}  # by number of the attention call: whether it reads its own stream
        self.left: dict[tuple[str, ...], set[Fingerprint]] = {}  # by list of blocks: outputs of its elements

    def began(
        self, call: _Call, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> tuple[tuple[Any, ...], dict[str, Any]] | None:
        call.listed = call.path in self.listed
        if not call.listed:
            return None
        known: dict[int, Tensor] = {}
        first = next((slot for slot, _ in float_tensors({**dict(enumerate(args)), **kwargs})), None)

        def rooted(slot: Slot, value: Any) -> Any:
            if not isinstance(value, Tensor) or not value.is_floating_point() or "mask" in str(slot):
                return value
            if value.ndim != 3 and (value.ndim < 3 or slot != first):
                return value
            if id(value) not in known:
                root = value.detach().clone().requires_grad_(True)
                call.roots[id(root)] = root
                call.prints[id(root)] = _fingerprint(value)
                known[id(value)] = root.clone()
            return known[id(value)]

        return tuple(rooted(n, v) for n, v in enumerate(args)), {n: rooted(n, v) for n, v in kwargs.items()}

    def ended(self, call: _Call, args: tuple[Any, ...], kwargs: dict[str, Any], output: Any) -> None:
        gave = [_fingerprint(tensor) for _, tensor in float_tensors(output)]
        shapes = {shape for shape, *_ in gave}
        passing = {root for root, (shape, *_) in call.prints.items() if shape in shapes}
        container = tuple(part for part in call.path.split(".")[:-1] if not part.isdigit())
        earlier = self.left.setdefault(container, set())
        for number, asked, looked_at in call.seen:
            own = looked_at == asked or (looked_at <= asked and bool(looked_at & passing))
            # Pooled queries with keys that are not pooled: both are outputs of the previous block.
            pooled = not looked_at & (asked | passing) and all(call.prints[root] in earlier for root in looked_at)
            self.own[number] = own or pooled
        if call.listed:
            earlier.update(gave)

    def saw(self, call: Seen) -> None:
        if isinstance(call, FusedCall):
            self._note(call.query, call.value)
        elif isinstance(call, ReportedCall):
            self._note(*call.observed.given)
        else:
            self._note(call.pattern if call.logits is None else call.logits.left, call.value)

    def saw_interface(self, module: nn.Module, observed: ObservedCall) -> None:
        assert observed.given is not None
        self._note(*observed.given)

    def _note(self, query: Tensor, value: Tensor) -> None:
        number, self.attended = self.attended, self.attended + 1
        block = next((call for call in reversed(self.open) if call.listed and call.roots), None)
        if block is not None:
            asked, looked_at = (_roots(tensor, block.roots) for tensor in (query, value))
            if looked_at:
                block.seen.append((number, asked, looked_at))


def own_streams(model: nn.Module, batch: Batch, log: CallLog) -> dict[int, bool]:
    """Return whether each attention call, keyed by number, reads its own stream. Omit calls that cannot be decided."""
    tree = _Tree(model, log)
    try:
        with same_chance(model):
            probe_run(model, _usable(batch), tree, fast_path=log.fast_path, also=(with_gradients(),))
    except RuntimeError:
        return {}  # operations in place, or without gradients, have no graph
    return tree.own if tree.attended == len(log.attention) else {}


def _usable(batch: Batch) -> Batch:
    """Return the batch with copies of tensors from inference mode, which cannot be used with gradients."""

    def used(value: Any) -> Any:
        return outside_inference(value) if isinstance(value, Tensor) else value

    with torch.inference_mode(False):
        if isinstance(batch, Mapping):
            return {name: used(value) for name, value in batch.items()}
        return [used(value) for value in batch]


def _roots(tensor: Tensor, wanted: Mapping[int, Tensor]) -> frozenset[int]:
    """Return which of the `wanted` leaves a tensor depends on."""
    waiting, met, roots = [tensor.grad_fn], set(), set()
    while waiting:
        node = waiting.pop()
        if node is None or node in met:
            continue
        met.add(node)
        root = getattr(node, "variable", None)
        if root is not None and id(root) in wanted:
            roots.add(id(root))
        waiting.extend(parent for parent, _ in node.next_functions)
    return frozenset(roots)


def _fingerprint(tensor: Tensor) -> Fingerprint:
    numbers = tensor.detach().double()
    return tuple(tensor.shape), float(numbers.sum()), float(numbers.abs().sum())
