"""With and without gradients, whatever mode the caller is in, and never in inference mode.

Models keep tensors that they make on the way (position tables, windows) for the next run. One that was made in
inference mode can never be used in training again, so a measurement must not make any.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor


@contextmanager
def without_gradients() -> Iterator[None]:
    with torch.inference_mode(False), torch.no_grad():
        yield


@contextmanager
def with_gradients() -> Iterator[None]:
    with torch.inference_mode(False), torch.enable_grad():
        yield


def outside_inference(tensor: Tensor) -> Tensor:
    """The tensor itself, or a copy of one that was made in inference mode and could not be used outside it."""
    return tensor.clone() if tensor.is_inference() and not torch.is_inference_mode_enabled() else tensor
