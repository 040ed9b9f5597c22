"""What goes wrong inside a decomposition, as a sentence: memory that does not suffice, code that has no rule."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from attnscope.core.errors import RefusalError
from attnscope.hf.loading.experts import experts_in
from attnscope.hf.loading.load import Loaded
from attnscope.hf.loading.material import out_of_memory


@contextmanager
def refusing_what_is_not_followed(loaded: Loaded) -> Iterator[None]:
    """A model's own code may do to a stream of parts what no rule foresees: that is a refusal, not a crash."""
    try:
        yield
    except (AttributeError, IndexError, KeyError, NotImplementedError, RuntimeError, TypeError, ValueError) as error:
        if out_of_memory(error):
            raise
        reason = (str(error).strip().splitlines() or ["no reason given"])[0][:160]
        experts = experts_in(loaded.model)
        cause = (
            "its blocks do something with their stream that has no rule here; choose another model or stack"
            if experts is None
            else f"its mixture of experts ({experts}) computes in a precision or an order of its own, which has no "
            "rule here; choose a dense model of the same kind"
        )
        raise RefusalError(
            f"The paths through {loaded.class_name} cannot be followed ({type(error).__name__}: {reason}): {cause}."
        ) from error


@contextmanager
def fitting(tokens: int) -> Iterator[None]:
    """Says how many tokens to try where memory runs out."""
    try:
        yield
    except (MemoryError, RuntimeError) as error:
        if not out_of_memory(error):
            raise
        tokens = max(tokens, 2)
        raise RefusalError(
            f"Paths of {tokens} tokens do not fit into memory: give a text of {tokens // 2} tokens, or pass --dtype "
            "float32."
        ) from error
