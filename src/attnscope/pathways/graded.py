"""Tensors that carry their decomposition into sums of paths while a model's own code computes with them.

Freeze, for one input, every attention pattern, every norm's denominator and every activation's ratio g(z) = phi(z)/z:
the network is then linear in the stream that enters it, plus constants (biases, shifts of norms). Its output is a sum
over paths. A path takes, at every block, either the skip or one head (and, at every MLP, either the skip or the MLP).
Beside its value, `Graded` carries the sums of all paths with equally many attention edges and equally many MLP edges:

    value == parts.sum(over sources, attention edges and MLP edges)

Three kinds of rules keep that equality, so no architecture has to be known:

    linear      shapes, sums, products with weights: applied to every part. A bias begins a new path
    frozen      any other function of the stream returns `Frozen`: it depends on the input and is not followed. A
                product with Frozen is still linear; a sum with Frozen is Frozen
    edges       a matrix product of Frozen with Graded mixes tokens: an attention edge. An activation, or a product
                with a frozen gate, is an MLP edge. An edge moves every part one place up

If the stream itself becomes Frozen, the model is refused and the refusal names the function that did it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any, Literal

import torch
from jaxtyping import Float
from torch import Tensor

from attnscope.pathways.sums import Constants, Deferred, Parts, PathSums, Sums

Count = Literal["attention", "both", "edges", "none"]
"""Which edges are counted. `attention`: no MLP edges. `both`: MLP edges on a separate axis. `edges`: both on one axis.
`none`: nothing is counted; there is one part for each source."""

Edge = Literal["attention", "mlp", "logits"]
_AXES: dict[Count, dict[Edge, int | None]] = {
    "attention": {"attention": 0, "mlp": None},
    "both": {"attention": 0, "mlp": 1},
    "edges": {"attention": 0, "mlp": 0},
    "none": {"attention": None, "mlp": None},
}

Watch = Callable[["Graded", Tensor], "Graded | None"]
Watches = tuple[tuple[Edge, Watch], ...]
_watches: ContextVar[Watches] = ContextVar("watches", default=())


@contextmanager
def watching(watch: Watch, edge: Edge = "attention") -> Iterator[None]:
    """Call `watch` at every edge of that kind; it may return a tensor to continue with.

    Attention: `watch(mixed, pattern)`, where mixed is [batch, head, query, channel], or [batch * head, query, channel]
    in models that merge the two. MLP: `watch(activated, gate)`; the gate is the factor of the linear map before it.
    Logits, which are no edge: `watch(query, key)`, both followed, before attention; its answer is not used.
    """
    token = _watches.set((*_watches.get(), (edge, watch)))
    try:
        yield
    finally:
        _watches.reset(token)


class Frozen(Tensor):
    """A tensor that depends on the input and is not followed. `gate`: it went through an activation; `origin`: the
    function that froze it; `pattern`: it comes from a softmax; `beside`: a followed tensor from which it was computed.
    """

    gate: bool
    origin: str
    pattern: bool
    beside: Graded | None

    @staticmethod
    def of(
        value: Tensor, origin: str, gate: bool = False, pattern: bool = False, beside: Graded | None = None
    ) -> Frozen:
        frozen = value.as_subclass(Frozen)
        frozen.gate, frozen.origin, frozen.pattern, frozen.beside = gate, origin, pattern, beside
        return frozen

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        from attnscope.pathways.rules import call

        return call(func, args, kwargs or {})


class Graded(Tensor):
    """A followed tensor: its value, and its parts by source, attention edges and MLP edges."""

    deferred: Deferred
    constants: Constants
    count: Count
    gated: bool  # an activation's output before any linear map: in a product with the stream it is the gate

    @staticmethod
    def of(value: Tensor, parts: Parts, constants: Constants, count: Count, gated: bool = False) -> Graded:
        return Graded.later(value, lambda: Sums(parts), constants, count, gated)

    @staticmethod
    def later(
        value: Tensor, make: Callable[[], PathSums], constants: Constants, count: Count, gated: bool = False
    ) -> Graded:
        graded = value.as_subclass(Graded)
        graded.deferred, graded.constants, graded.count, graded.gated = Deferred(make), constants, count, gated
        return graded

    @staticmethod
    def entering(stream: Float[Tensor, "*shape"], count: Count = "attention", sources: bool = True) -> Graded:
        """Return the stream that enters the network: one path of length zero. Source 0 is the stream, source 1 the
        constants; without `sources` they share one source."""
        if not sources:
            return Graded.of(stream, stream[None, None, None], 0, count)
        return Graded.later(
            stream, lambda: Sums(torch.stack([stream, torch.zeros_like(stream)])[:, None, None]), 1, count
        )

    def made(self, value: Tensor, make: Callable[[], PathSums], gated: bool | None = None) -> Graded:
        """Return a graded tensor with other parts, but the same count and sources."""
        return Graded.later(value, make, self.constants, self.count, self.gated if gated is None else gated)

    @property
    def sums(self) -> Sums:
        """The parts, without leading entries that have no path."""
        sums = self.deferred()
        assert isinstance(sums, Sums)
        return sums

    @property
    def parts(self) -> Parts:
        """All parts, including leading entries without a path."""
        return self.sums.dense

    @property
    def value(self) -> Tensor:
        """The plain tensor, without parts."""
        answer: Tensor = plain(self)
        return answer

    def axis(self, edge: Edge) -> int | None:
        """Return the edge axis on which an edge of that kind counts, or None."""
        return _AXES[self.count][edge]

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        from attnscope.pathways.rules import call

        return call(func, args, kwargs or {})


_SCALARS = (int, float, str, torch.dtype, torch.device, slice)


def plain(thing: Any) -> Any:
    """Return plain tensors for followed and frozen ones, also inside lists, tuples and dictionaries."""
    if isinstance(thing, Tensor):
        if not isinstance(thing, (Graded, Frozen)):
            return thing
        with torch._C.DisableTorchFunctionSubclass():
            return thing.as_subclass(Tensor)
    if thing is None or isinstance(thing, _SCALARS):
        return thing
    if isinstance(thing, (list, tuple)) and not hasattr(thing, "_fields"):
        return type(thing)(plain(item) for item in thing)
    if isinstance(thing, dict):
        walked = {key: plain(item) for key, item in thing.items()}
        return walked if type(thing) is dict else type(thing)(**walked)  # model outputs are dictionaries too
    return thing


def is_watched(edge: Edge) -> bool:
    return any(kind == edge for kind, _ in _watches.get())


def through_watches(mixed: Graded, edge: Edge, factor: Callable[[], Tensor]) -> Graded:
    """Pass an edge to its watches and return their result; `factor` gives the frozen pattern or gate."""
    for kind, watch in _watches.get():
        if kind == edge:
            answer = watch(mixed, factor())
            mixed = mixed if answer is None else answer
    return mixed


Rule = Callable[[Any, str, tuple[Any, ...], dict[str, Any], Any], Any]
"""`rule(func, name, args, kwargs, value)` returns the followed answer; `value` is `func`'s answer on plain tensors."""

GATES = frozenset(["sigmoid", "tanh", "erf", "softplus", "hardsigmoid", "logsigmoid", "sigmoid_", "tanh_"])
CHOICES = frozenset(["topk", "gather", "sort", "take_along_dim"])  # router weights scale an edge


def freeze_answer(func: Any, name: str, args: Any, kwargs: Any, value: Any) -> Any:
    """Apply the default rule: freeze floating tensors; return shapes, flags and integers unchanged."""
    if isinstance(value, (tuple, list)) and not hasattr(value, "_fields"):
        return type(value)(freeze_answer(func, name, args, kwargs, item) for item in value)
    if not isinstance(value, Tensor) or not value.is_floating_point():
        return value
    arguments = leaves((args, kwargs))
    before = [leaf for leaf in arguments if isinstance(leaf, Frozen)]
    gate = name in GATES or (name not in CHOICES and any(leaf.gate for leaf in before))
    pattern = name == "softmax" or any(leaf.pattern for leaf in before)
    beside = [x if isinstance(x, Graded) else x.beside for x in arguments if isinstance(x, Graded | Frozen)]
    return Frozen.of(value, before[0].origin if before else name, gate, pattern, next(iter(beside), None))


def leaves(thing: Any) -> list[Any]:
    """Return everything in nested lists, tuples and dictionaries, in order."""
    if isinstance(thing, (tuple, list)):
        return [leaf for item in thing for leaf in leaves(item)]
    if isinstance(thing, dict):
        return [leaf for item in thing.values() for leaf in leaves(item)]
    return [thing]


def lifted(thing: Any, beside: Graded, shape: Any = None) -> Graded:
    """Return a constant as a graded tensor: one path of length zero that begins here."""
    if isinstance(thing, Graded):
        return thing
    value = thing if isinstance(thing, Tensor) else torch.as_tensor(thing, dtype=beside.value.dtype)
    value = plain(value).detach() if shape is None else plain(value).detach().expand(shape)
    deferred, constants = beside.deferred, beside.constants
    return Graded.later(value, lambda: deferred().beginning(value, constants), constants, beside.count)
