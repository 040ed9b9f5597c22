"""One thread at a time looks at a model.

Every change that a measurement makes for a while acts in its own thread only (`restoring`), so whoever else runs the
model meanwhile gets the model's own output. Two measurements of one model at once are another matter: each would put
back modes and forwards that the other still needs. The second is refused, at once and in a sentence.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from threading import Lock, get_ident

import torch
from torch import nn

from attnscope.core.errors import RefusalError
from attnscope.core.tiles import LIMIT, LIMITED_TO, narrow_products_are_deadly

_LOOKING: dict[nn.Module, int] = {}  # which thread looks at a module
_CHANGING = Lock()


@contextmanager
def looking_at(model: nn.Module) -> Iterator[None]:
    """Inside, no other thread can begin to look at the model, or at a part of it. A thread may look twice."""
    _refuse_deadly_products(model)
    me = get_ident()
    modules = list(model.modules())
    with _CHANGING:
        if any(_LOOKING.get(module, me) != me for module in modules):
            raise RefusalError(
                f"Another scan is looking at this model ({type(model).__name__}) in another thread: wait until it has "
                "ended, or give this one a copy of the model."
            )
        new = [module for module in modules if module not in _LOOKING]
        _LOOKING.update(dict.fromkeys(new, me))
    try:
        yield
    finally:
        with _CHANGING:
            for module in new:
                del _LOOKING[module]


def _refuse_deadly_products(model: nn.Module) -> None:
    here = (p for p in model.parameters() if p.device.type in ("cpu", "meta"))
    narrow = (p for p in here if p.dtype in (torch.bfloat16, torch.float16))
    if next(narrow, None) is not None and narrow_products_are_deadly():
        raise RefusalError(
            "This processor announces AMX and stops the program at the first product in bfloat16 (a virtual machine "
            f"without tiles): set {LIMIT}={LIMITED_TO} in the environment before Python starts, or use float32."
        )
