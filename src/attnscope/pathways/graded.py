"""A tensor that knows which paths it is made of, and stays so while a model's own code computes with it.

Freeze, for one input, every attention pattern, every norm's denominator and every activation's ratio g(z) = phi(z)/z:
the network is then linear in the stream that enters it, plus constants (biases, shifts of norms). Its output is a sum
over paths, and a path takes, at every layer, either the skip or one head (and, at every MLP, either the skip or the
MLP). `Graded` carries the sums of all paths with equally many attention edges, and equally many MLP edges, beside the
value:

    value == parts.sum(over sources, attention edges and MLP edges)

Operations keep that equality by three rules, so no architecture has to be known:

    linear      shapes, sums, products with weights: applied to every part alike; a bias is a new path, in the source
                of constants
    frozen      any other function of the stream gives `Frozen`: it depends on the input but is no longer followed. What
                is multiplied with Frozen is linear still; what is added to it is lost, and becomes Frozen itself
    edges       a matrix product of Frozen with Graded mixes tokens: an attention edge. An activation, or a product with
                a frozen gate, is an MLP edge. An edge moves every part one place up

If the stream itself ever becomes Frozen, the function that did it is named and the model refused.
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
"""`attention`: MLP edges are not counted. `both`: in an index of their own. `edges`: together with attention edges.
`none`: nothing is counted, there is one part for each source."""

Edge = Literal["attention", "mlp"]
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
    """Inside, `watch` is called at every edge of that kind that a path goes through, and may return what to go on with.

    Attention: `watch(mixed, pattern)`, mixed is [batch, head, query, channel], or [batch * head, query, channel] where
    the model computes so. MLP: `watch(activated, gate)`, the gate is what the linear map before it was multiplied by.
    """
    token = _watches.set((*_watches.get(), (edge, watch)))
    try:
        yield
    finally:
        _watches.reset(token)


class Frozen(Tensor):
    """Depends on the input, is not followed. `gate`: it went through an activation; `origin`: what froze it; `pattern`:
    a softmax gave it; `beside`: a followed tensor that it was made of."""

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
    """The value, and its parts by source, attention edges and MLP edges."""

    deferred: Deferred
    constants: Constants
    count: Count
    gated: bool  # an activation gave it, and no linear map came after: in a product with the stream it is the gate

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
        """The stream that enters the network: one path of length zero. Source 0 is the stream, source 1 constants;
        without `sources` both are one."""
        if not sources:
            return Graded.of(stream, stream[None, None, None], 0, count)

        def apart() -> Sums:
            return Sums(torch.stack([stream, torch.zeros_like(stream)])[:, None, None])

        return Graded.later(stream, apart, 1, count)

    def like(self, value: Tensor, parts: Parts, gated: bool | None = None) -> Graded:
        """Another tensor of the same count and sources."""
        return self.made(value, lambda: Sums(parts), gated)

    def made(self, value: Tensor, make: Callable[[], PathSums], gated: bool | None = None) -> Graded:
        return Graded.later(value, make, self.constants, self.count, self.gated if gated is None else gated)

    @property
    def sums(self) -> Sums:
        """The parts, without places that have no path."""
        sums = self.deferred()
        assert isinstance(sums, Sums)
        return sums

    @property
    def parts(self) -> Parts:
        """All parts, from zero edges on."""
        return self.sums.dense

    @property
    def value(self) -> Tensor:
        """The plain tensor."""
        answer: Tensor = plain(self)
        return answer

    def axis(self, edge: Edge) -> int | None:
        """Where an edge of that kind counts."""
        return _AXES[self.count][edge]

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        from attnscope.pathways.rules import call

        return call(func, args, kwargs or {})


def plain(thing: Any) -> Any:
    """The same without parts; lists, tuples and dictionaries are walked through."""
    if isinstance(thing, (Graded, Frozen)):
        with torch._C.DisableTorchFunctionSubclass():
            return thing.as_subclass(Tensor)
    if isinstance(thing, (list, tuple)) and not hasattr(thing, "_fields"):
        return type(thing)(plain(item) for item in thing)
    if isinstance(thing, dict):
        walked = {key: plain(item) for key, item in thing.items()}
        return walked if type(thing) is dict else type(thing)(**walked)  # outputs of models are dictionaries too
    return thing


def watched(edge: Edge) -> bool:
    """Whether anybody watches edges of that kind."""
    return any(kind == edge for kind, _ in _watches.get())


def passed(mixed: Graded, edge: Edge, factor: Callable[[], Tensor]) -> Graded:
    """What the watches make of an edge; `factor` gives the frozen pattern or gate."""
    for kind, watch in _watches.get():
        if kind == edge:
            answer = watch(mixed, factor())
            mixed = mixed if answer is None else answer
    return mixed


# What is not followed: the answer of a function without a rule depends on the input, and is taken as it is.

Rule = Callable[[Any, str, tuple[Any, ...], dict[str, Any], Any], Any]
"""`rule(func, name, args, kwargs, value)`: the answer, when `value` is what `func` gives on plain tensors."""

GATES = frozenset(["sigmoid", "tanh", "erf", "softplus", "hardsigmoid", "logsigmoid", "sigmoid_", "tanh_"])

CHOICES = frozenset(["topk", "gather", "sort", "take_along_dim"])  # a router's weights scale an edge and are none


def freeze_answer(func: Any, name: str, args: Any, kwargs: Any, value: Any) -> Any:
    """Floating tensors that come out are frozen; shapes, flags and integers are what they are."""
    if isinstance(value, (tuple, list)) and not hasattr(value, "_fields"):
        return type(value)(freeze_answer(func, name, args, kwargs, item) for item in value)
    if not isinstance(value, Tensor) or not value.is_floating_point():
        return value
    given = leaves((args, kwargs))
    before = [leaf for leaf in given if isinstance(leaf, Frozen)]
    gate = name in GATES or (name not in CHOICES and any(leaf.gate for leaf in before))
    pattern = name == "softmax" or any(leaf.pattern for leaf in before)
    beside = [leaf if isinstance(leaf, Graded) else leaf.beside for leaf in given if isinstance(leaf, Graded | Frozen)]
    return Frozen.of(value, before[0].origin if before else name, gate, pattern, next(iter(beside), None))


def leaves(thing: Any) -> list[Any]:
    """Everything in nested lists, tuples and dictionaries, in order."""
    if isinstance(thing, (tuple, list)):
        return [leaf for item in thing for leaf in leaves(item)]
    if isinstance(thing, dict):
        return [leaf for item in thing.values() for leaf in leaves(item)]
    return [thing]


def lifted(thing: Any, beside: Graded, shape: Any = None) -> Graded:
    """A constant as a graded tensor: one path of length zero that begins here."""
    if isinstance(thing, Graded):
        return thing
    value = thing if isinstance(thing, Tensor) else torch.as_tensor(thing, dtype=beside.value.dtype)
    value = plain(value).detach() if shape is None else plain(value).detach().expand(shape)
    deferred, constants = beside.deferred, beside.constants

    return Graded.later(value, lambda: deferred().beginning(value, constants), constants, beside.count)
