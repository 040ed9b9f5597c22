"""torch's own encoder layers run as one fused kernel in evaluation, which would hide their attention."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch

_ENABLED_BEFORE: list[bool] = []  # one entry for every context below that is open, all the same


@contextmanager
def without_fast_path(needed: bool = True) -> Iterator[None]:
    """Inside, torch's encoder layers call their attention one step at a time.

    Contexts may overlap in any order: the setting is as it was when the last one is left.
    """
    if not needed:
        yield
        return
    enabled = torch.backends.mha.get_fastpath_enabled()
    _ENABLED_BEFORE.append(_ENABLED_BEFORE[0] if _ENABLED_BEFORE else enabled)
    torch.backends.mha.set_fastpath_enabled(False)
    try:
        yield
    finally:
        before = _ENABLED_BEFORE.pop()
        if not _ENABLED_BEFORE:
            torch.backends.mha.set_fastpath_enabled(before)
