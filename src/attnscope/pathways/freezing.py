"""What is not followed: the answer of a function without a rule depends on the input, and is taken as it is."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from attnscope.pathways.graded import Frozen, Graded, plain

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
