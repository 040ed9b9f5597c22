"""Inside, a model may be run without a trace in the training around it.

Modes of modules, the random state of torch, NumPy and Python, and buffers that a forward may write are as they were
when the context is left; no gradient is recorded, and torch.autocast is off until somebody asks for it.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
import torch
from torch import Tensor, nn

from attnscope.hf.anatomy.example import same_chance
from attnscope.hf.seeing.exclusive import looking_at
from attnscope.hf.seeing.gradients import without_gradients
from attnscope.hf.seeing.intact import evaluating


@contextmanager
def untouched(model: nn.Module) -> Iterator[None]:
    kind = next((p.device.type for p in model.parameters()), "cpu")
    buffers: dict[Tensor, Tensor] = {one: one.detach().clone() for one in model.buffers()}
    python, numpy = random.getstate(), np.random.get_state()
    try:
        with (
            looking_at(model),
            same_chance(model),
            evaluating(model),
            without_gradients(),
            torch.autocast(kind, enabled=False),
        ):
            yield
    finally:
        random.setstate(python)
        np.random.set_state(numpy)
        with torch.no_grad():
            for one, was in buffers.items():
                if not torch.equal(one, was):
                    one.copy_(was)
