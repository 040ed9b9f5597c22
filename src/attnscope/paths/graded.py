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

Count = Literal["attention", "both", "edges"]
"""`attention`: MLP edges are not counted. `both`: in an index of their own. `edges`: together with attention edges."""

Parts = Float[Tensor, "source attention mlp *shape"]
LEADING = 3  # axes of parts before the value's own

Watch = Callable[["Graded", Tensor], "Graded | None"]
_watches: ContextVar[tuple[Watch, ...]] = ContextVar("watches", default=())


@contextmanager
def watching(watch: Watch) -> Iterator[None]:
    """Inside, `watch(mixed, pattern)` is called at every attention edge and may return what to go on with."""
    token = _watches.set((*_watches.get(), watch))
    try:
        yield
    finally:
        _watches.reset(token)


class Frozen(Tensor):
    """Depends on the input, is not followed. `gate`: it went through an activation; `origin`: what froze it."""

    gate: bool
    origin: str

    @staticmethod
    def of(value: Tensor, origin: str, gate: bool = False) -> Frozen:
        frozen = value.as_subclass(Frozen)
        frozen.gate, frozen.origin = gate, origin
        return frozen

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        from attnscope.paths.rules import call

        return call(func, args, kwargs or {})


class Graded(Tensor):
    """The value, and its parts by source, attention edges and MLP edges."""

    parts: Tensor
    constants: int | None
    count: Count
    gated: bool

    @staticmethod
    def of(value: Tensor, parts: Parts, constants: int | None, count: Count, gated: bool = False) -> Graded:
        graded = value.as_subclass(Graded)
        graded.parts, graded.constants, graded.count, graded.gated = parts, constants, count, gated
        return graded

    @staticmethod
    def entering(stream: Float[Tensor, "*shape"], count: Count = "attention") -> Graded:
        """The stream that enters the network: one path of length zero. Source 0 is the stream, source 1 constants."""
        parts = torch.stack([stream, torch.zeros_like(stream)])[:, None, None]
        return Graded.of(stream, parts, 1, count)

    def like(self, value: Tensor, parts: Parts, gated: bool | None = None) -> Graded:
        return Graded.of(value, parts, self.constants, self.count, self.gated if gated is None else gated)

    @property
    def value(self) -> Tensor:
        """The plain tensor."""
        answer: Tensor = plain(self)
        return answer

    def shifted(self, parts: Parts, edge: Literal["attention", "mlp"]) -> Parts:
        """Parts after one more edge: everything moves one place up along the axis on which the edge counts."""
        axis = 1 if edge == "attention" or self.count == "edges" else 2
        if edge == "mlp" and self.count == "attention":
            return parts
        nothing = torch.zeros_like(parts.narrow(axis, 0, 1))
        return torch.cat([nothing, parts], dim=axis)

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        from attnscope.paths.rules import call

        return call(func, args, kwargs or {})


def plain(thing: Any) -> Any:
    """The same without parts; lists, tuples and dictionaries are walked through."""
    if isinstance(thing, (Graded, Frozen)):
        with torch._C.DisableTorchFunctionSubclass():
            return thing.as_subclass(Tensor)
    if isinstance(thing, (list, tuple)) and not hasattr(thing, "_fields"):
        return type(thing)(plain(item) for item in thing)
    if isinstance(thing, dict):
        return {key: plain(item) for key, item in thing.items()}
    return thing


def matched(tensors: list[Graded]) -> list[Parts]:
    """The parts of several tensors with equally many places on both edge axes; places that lack are zero."""
    longest = [max(t.parts.shape[axis] for t in tensors) for axis in (1, 2)]
    return [grown(t.parts, longest[0], longest[1]) for t in tensors]


def grown(parts: Parts, attention: int, mlp: int) -> Parts:
    for axis, size in ((1, attention), (2, mlp)):
        lack = size - parts.shape[axis]
        if lack:
            shape = list(parts.shape)
            shape[axis] = lack
            parts = torch.cat([parts, parts.new_zeros(shape)], dim=axis)
    return parts


def passed(mixed: Graded, pattern: Tensor) -> Graded:
    """What the watches make of an attention edge."""
    for watch in _watches.get():
        answer = watch(mixed, pattern)
        mixed = mixed if answer is None else answer
    return mixed
