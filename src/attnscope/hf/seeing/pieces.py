"""Attention that a model computes in pieces, and mixes in several products: read as the one call that it is.

Sliding windows and blocks of keys multiply values piece by piece, so that no single product shows a pattern. What is
computed all the same is softmax attention under a rule of who may see whom, and that rule is exact. A reader is given
the module, what it was called with, what it gave, and what entered the projection at its end where it has one of its
own (`WRITES`); it says which queries, keys, values and rule that was
(`sliding_windows`, `sparse_blocks`, `neighbouring_blocks`). It is believed no more than any other route: the verifier
recomputes A V from what the reader says and compares it with what the module passed on.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from threading import Lock
from typing import Any

from torch import Tensor, nn

from attnscope.hf.seeing.neighbouring_blocks import neighbouring_blocks
from attnscope.hf.seeing.primitives import SightedCall, announce, is_watched, looking_away
from attnscope.hf.seeing.restoring import Restoring
from attnscope.hf.seeing.sighting import Sighting
from attnscope.hf.seeing.sliding_windows import sliding_windows
from attnscope.hf.seeing.sparse_blocks import sparse_blocks

Reader = Callable[[nn.Module, Mapping[str, Any], Any, Sequence[Tensor]], Iterator[Sighting]]
READERS: Mapping[str, Reader] = {
    "LongformerSelfAttention": sliding_windows,
    "LEDEncoderSelfAttention": sliding_windows,
    "BigBirdBlockSparseAttention": sparse_blocks,
    "BigBirdPegasusBlockSparseAttention": sparse_blocks,
    "LongT5LocalAttention": neighbouring_blocks,
}
WRITES: Mapping[Reader, str] = {neighbouring_blocks: "o"}


class _Pieces:
    """One module whose forward tells of its attention as a whole."""

    def __init__(self, module: nn.Module, reader: Reader) -> None:
        self.module, self.reader = module, reader
        self.forward = module.forward
        self.signature = inspect.signature(module.forward)
        self.users = 0
        self.changes = Restoring()
        self.changes.forward(module, self.telling, everywhere=True)

    def telling(self, *args: Any, **kwargs: Any) -> Any:
        if not is_watched():
            return self.forward(*args, **kwargs)
        given = self.signature.bind(*args, **kwargs)
        given.apply_defaults()
        written: list[Tensor] = []
        with looking_away(), Restoring() as changes:
            if self.reader in WRITES:
                last = self.module.get_submodule(WRITES[self.reader])
                changes.before(last, lambda _, entered: written.append(entered[0]), kwargs=False)
            result = self.forward(*args, **kwargs)
            seen = tuple(self.reader(self.module, given.arguments, result, written))
        for sighting in seen:
            announce(SightedCall(sighting))
        return result


_TELLING: dict[nn.Module, _Pieces] = {}
_CHANGING = Lock()


@contextmanager
def told_in_one_piece(model: nn.Module) -> Iterator[None]:
    """While active, modules of the model that attend in pieces tell whoever watches of one call. Contexts may overlap
    in any order: a forward is wrapped once, and is its old self when the last one has gone."""
    found = [(module, reader) for module in model.modules() if (reader := _reader(module)) is not None]
    with _CHANGING:
        for module, reader in found:
            if module not in _TELLING:
                _TELLING[module] = _Pieces(module, reader)
            _TELLING[module].users += 1
    try:
        yield
    finally:
        with _CHANGING:
            for module, _ in found:
                _TELLING[module].users -= 1
                if not _TELLING[module].users:
                    _TELLING.pop(module).changes.close()


def _reader(module: nn.Module) -> Reader | None:
    """By the class or the class it was derived from: what a forward does in pieces is known of that forward alone."""
    for kind in type(module).__mro__:
        if "forward" in vars(kind):
            return READERS.get(kind.__name__)
    return None
