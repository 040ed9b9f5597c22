"""An attention function that is not the model's own tells whoever looks on what it did.

From outside, another attention cannot be told from the arguments of its call: it mixes other values, passes on
something else than A V, or has weights that are no softmax. The function says so, and the watch of the registry
believes it in place of its own guess; the verifier still compares what is told with what is passed on.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from threading import local

from jaxtyping import Bool, Float
from torch import Tensor


@dataclass(frozen=True)
class Weights:
    """A pattern that is not softmax's: how to write it out, who sees whom, and which statistics of it hold."""

    write_out: Callable[[], Float[Tensor, "batch head query key"]]
    visible: Bool[Tensor, "#batch #head #query key"] | None
    causal: bool
    scale: float
    holds: frozenset[str]
    sums_to_one: bool


@dataclass(frozen=True)
class Told:
    """What was done in one call, where it is not what its arguments say."""

    value: Float[Tensor, "batch kv_head key value_dim"] | None = None  # the values that were mixed
    attended: Float[Tensor, "batch query head value_dim"] | None = None  # A V, of which something else was made
    gate: Float[Tensor, "batch token head gates"] | None = None  # what heads, or values, were multiplied by
    weights: Weights | None = None
    logits_of: tuple[int, ...] | None = None  # heads whose queries and keys are those of the last fused call
    unseen: str | None = None  # a sentence: why nobody can look at this attention


class _Listening(local):
    def __init__(self) -> None:
        self.ears: list[list[Told]] = []


_LISTENING = _Listening()


def tell(told: Told) -> None:
    """Said to the innermost listener of this thread, if there is one."""
    if _LISTENING.ears:
        _LISTENING.ears[-1].append(told)


def somebody_listens() -> bool:
    return bool(_LISTENING.ears)


@contextmanager
def listening() -> Iterator[list[Told]]:
    heard: list[Told] = []
    _LISTENING.ears.append(heard)
    try:
        yield heard
    finally:
        _LISTENING.ears.pop()
