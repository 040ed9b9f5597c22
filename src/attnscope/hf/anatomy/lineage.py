"""Does an attention call look at its own stream or at another? Found by what its values descend from, not by lengths.

A third probe run, with gradients on and used as a family tree only: every tensor that enters an element of a module
list (a block, or half of one) becomes a root, and the tree above queries and values says which of those roots they come
from.

    self    values come from what queries come from, and from a tensor that passes through the block
    cross   values come from elsewhere: from an encoder, from pictures, from the other of two streams

Lengths say something else: self-attention over pooled keys (PVT, Segformer), or of pooled queries (Funnel), has fewer
of the ones than of the others, and an encoder may well have as many tokens as its decoder.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from attnscope.hf.anatomy.call_log import CallLog
from attnscope.hf.anatomy.example import Batch, probe_run, same_chance
from attnscope.hf.intercepting.masks import MaskReader
from attnscope.hf.intercepting.observed_call import ObservedCall
from attnscope.hf.intercepting.owners import Slot, float_tensors
from attnscope.hf.intercepting.restoring import outside_inference, with_gradients
from attnscope.hf.intercepting.torch_calls import FusedCall, ReportedCall, Seen

Shape = tuple[int, ...]


@dataclass
class _Open:
    """A module call under way: the roots it was given (a root for every tensor), and the attention seen in it."""

    number: int
    listed: bool
    container: tuple[str, ...]
    roots: dict[int, Tensor] = field(default_factory=dict)  # by the identity of the root
    prints: dict[int, tuple[Shape, float, float]] = field(default_factory=dict)
    seen: list[tuple[int, frozenset[int], frozenset[int]]] = field(default_factory=list)


class _Tree:
    """A watcher of a probe run that asks of every attention call where its queries and values come from."""

    def __init__(self, model: nn.Module, census: CallLog) -> None:
        self.paths: Mapping[nn.Module, str] = {module: path for path, module in model.named_modules()}
        self.listed = {call.path for call in census.calls if call.listed}
        self.masks = MaskReader()
        self.open: list[_Open] = []
        self.started = 0
        self.attended = 0
        self.answers: dict[int, bool] = {}  # by number of the attention call: whether it looks at its own stream
        self.left: dict[tuple[str, ...], set[tuple[Shape, float, float]]] = {}

    def scope(self) -> tuple[int, ...]:
        return tuple(call.number for call in self.open)

    def enter(
        self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> tuple[tuple[Any, ...], dict[str, Any]] | None:
        path = self.paths[module]
        call = _Open(self.started, path in self.listed, _container(path))
        self.started += 1
        self.open.append(call)
        if not call.listed:
            return None
        known: dict[int, Tensor] = {}
        given = (*enumerate(args), *kwargs.items())
        first = next((slot for slot, _ in float_tensors(dict(given))), None)

        def rooted(slot: Slot, value: Any) -> Any:
            if not isinstance(value, Tensor) or not value.is_floating_point() or "mask" in str(slot):
                return value
            if value.ndim != 3 and (value.ndim < 3 or slot != first):
                return value
            if id(value) not in known:
                root = value.detach().clone().requires_grad_(True)
                call.roots[id(root)] = root
                call.prints[id(root)] = _print(value)
                known[id(value)] = root.clone()
            return known[id(value)]

        return tuple(rooted(n, v) for n, v in enumerate(args)), {n: rooted(n, v) for n, v in kwargs.items()}

    def leave(self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], output: Any) -> None:
        call = self.open.pop()
        gave = [_print(tensor) for _, tensor in float_tensors(output)]
        passing = {root for root, print_ in call.prints.items() if print_[0] in {shape for shape, *_ in gave}}
        earlier = self.left.setdefault(call.container, set())
        for number, asked, looked_at in call.seen:
            own = looked_at == asked or (looked_at <= asked and bool(looked_at & passing))
            # Pooled queries beside keys that are not: both come out of the block before, the ones pooled on the way.
            pooled = not looked_at & (asked | passing) and all(call.prints[root] in earlier for root in looked_at)
            self.answers[number] = own or pooled
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

    def _note(self, asking: Tensor, looked_at: Tensor) -> None:
        number, self.attended = self.attended, self.attended + 1
        home = next((call for call in reversed(self.open) if call.listed and call.roots), None)
        if home is None:
            return
        asked, values = (_roots(tensor, home.roots) for tensor in (asking, looked_at))
        if values:
            home.seen.append((number, asked, values))


def own_streams(model: nn.Module, batch: Batch, census: CallLog) -> dict[int, bool]:
    """By number of the attention call: whether it looks at its own stream. Calls that cannot be told are left out."""
    tree = _Tree(model, census)
    try:
        with same_chance(model):
            probe_run(model, _usable(batch), tree, fast_path=census.fast_path, also=(with_gradients(),))
    except RuntimeError:
        return {}  # what a model does in place, or without gradients, has no tree
    return tree.answers if tree.attended == len(census.attention) else {}


def _usable(batch: Batch) -> Batch:
    """What was made in inference mode cannot be used with gradients."""

    def used(value: Any) -> Any:
        return outside_inference(value) if isinstance(value, Tensor) else value

    with torch.inference_mode(False):
        if isinstance(batch, Mapping):
            return {name: used(value) for name, value in batch.items()}
        return [used(value) for value in batch]


def _roots(tensor: Tensor, wanted: Mapping[int, Tensor]) -> frozenset[int]:
    """Which of the wanted roots a tensor descends from."""
    waiting, met, found = [tensor.grad_fn], set(), set()
    while waiting:
        node = waiting.pop()
        if node is None or node in met:
            continue
        met.add(node)
        root = getattr(node, "variable", None)
        if root is not None and id(root) in wanted:
            found.add(id(root))
        waiting.extend(parent for parent, _ in node.next_functions)
    return frozenset(found)


def _print(tensor: Tensor) -> tuple[Shape, float, float]:
    """Enough of a tensor to know it again."""
    numbers = tensor.detach().double()
    return tuple(tensor.shape), float(numbers.sum()), float(numbers.abs().sum())


def _container(path: str) -> tuple[str, ...]:
    return tuple(part for part in path.split(".")[:-1] if not part.isdigit())
