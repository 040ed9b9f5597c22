"""A trained share between 0 and 1 that can begin at 0.

A clamp has no gradient outside its bounds: a share at 0 that one noisy step pushes below would stay there for good.
Here the value is clamped and the gradient is that of the number itself, so that it can come back.
"""

from __future__ import annotations

import torch
from jaxtyping import Float
from torch import Tensor


def share_of_each(share: Float[Tensor, " head"], dtype: torch.dtype) -> Float[Tensor, "head 1 1"]:
    """One share for each head, to be multiplied with patterns or with what heads give."""
    free = share.to(dtype)[:, None, None]
    return free + (free.clamp(0, 1) - free).detach()
