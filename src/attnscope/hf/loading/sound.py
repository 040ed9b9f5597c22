"""Whether weights are numbers at all: not NaN, not infinite.

A row of an embedding that no text uses shows in no activation, so the weights themselves are looked at.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from attnscope.core.errors import RefusalError
from attnscope.hf.loading.load import Loaded
from attnscope.hf.seeing.offloaded import in_reach

_MOST_NAMED = 5


def broken_weights(model: nn.Module) -> tuple[str, ...]:
    """Names of the first parameters that hold NaN or infinite numbers."""
    found: list[str] = []
    with torch.no_grad():
        for name, parameter in in_reach(model).items():
            if len(found) < _MOST_NAMED and not _finite(parameter):
                found.append(name)
    return tuple(found)


def refuse_broken_weights(loaded: Loaded) -> None:
    for name in broken_weights(loaded.model)[:1]:
        raise RefusalError(f"The weights {name} of {loaded.name} hold NaN or infinite numbers: give sound ones.")


def _finite(tensor: Tensor) -> bool:
    """By sums: they are NaN or infinite where a number is, and need no second tensor; large sums are looked at."""
    if tensor.is_meta or not tensor.is_floating_point():
        return True
    return bool(tensor.sum().isfinite()) or bool(tensor.isfinite().all())
