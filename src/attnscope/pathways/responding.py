"""Let attention patterns respond to a change of the stream, while norms and gates stay frozen.

Followed parts are here *differences* from the stream that entered, one for every changed copy. Constants are dropped
(`constants=None`), because a constant adds nothing to a difference. Linear rules hold for differences as they hold for
sums of paths. Two functions are not linear, and inside `responding()` they get a rule of their own:

    a product of two followed tensors      d(Q K) = (Q + dQ)(K + dK) - Q K,   also P V
    a softmax                              dP = softmax(S + dS) - softmax(S)

So patterns are recomputed from changed queries and keys, and everything else stays as in the frozen network.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor

from attnscope.pathways.graded import Graded, leaves, plain
from attnscope.pathways.sums import Sums, split_axis


class Responses:
    """Counts the patterns that were recomputed."""

    patterns = 0


_responses: ContextVar[Responses | None] = ContextVar("responses", default=None)


@contextmanager
def responding() -> Iterator[Responses]:
    """Recompute patterns from changed queries and keys inside this context."""
    responses = Responses()
    token = _responses.set(responses)
    try:
        yield responses
    finally:
        _responses.reset(token)


def patterns_respond() -> bool:
    return _responses.get() is not None


def responding_product(left: Graded, right: Graded, value: Tensor) -> Graded:
    """Return the product of two followed tensors, as a difference from `value`."""
    return left.made(value, lambda: _differences(_changed(left) @ _changed(right), value), gated=False)


def responding_softmax(scores: Graded, dim: int, value: Tensor) -> Graded:
    _count()
    own = scores.value

    def make() -> Sums:
        return _differences(_changed(scores).softmax(dim if dim < 0 else dim + 1), own.softmax(dim))

    return scores.made(value, make, gated=False)


def responding_attention(arguments: dict[str, Any], value: Tensor) -> Graded:
    """Return fused attention with changed queries, keys and values, as a difference from `value`."""
    _count()
    named = ("query", "key", "value")
    followed = next(x for x in leaves(arguments) if isinstance(x, Graded))
    others = {name: plain(x) for name, x in arguments.items() if name not in named}

    def make() -> Sums:
        changed = [_changed(arguments[name]) for name in named]
        copies = max(len(x) for x in changed)
        query, key, values = (x.expand(copies, *x.shape[1:]).flatten(0, 1) for x in changed)
        mixed = F.scaled_dot_product_attention(query, key, values, **others)
        return _differences(split_axis(mixed, 0, copies, -1), value)

    return followed.made(value, make, gated=False)


def _count() -> None:
    responses = _responses.get()
    assert responses is not None
    responses.patterns += 1


def _changed(tensor: Tensor) -> Float[Tensor, " copy *shape"]:
    """Return the tensor of every changed copy; one copy of a tensor that is not followed."""
    if not isinstance(tensor, Graded):
        own: Tensor = plain(tensor)
        return own[None]
    return tensor.value + tensor.sums.parts[:, 0, 0]


def _differences(changed: Float[Tensor, " copy *shape"], own: Tensor) -> Sums:
    return Sums((changed - own)[:, None, None])
