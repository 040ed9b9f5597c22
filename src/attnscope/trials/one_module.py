"""One attention module, drawn before any pattern is seen, and inputs that make it attend as asked.

W_Q and W_K are the halves of a Gaussian matrix W = [W_Q W_K] of size 2d x 2d. For queries Q and keys K the input
X = [Q K] W^(-1) has X W_Q = Q and X W_K = K. What is judged is what the module does with X, all in float32: products,
softmax and rounding are the module's own, and a width too small or a W too near to singular shows as a pattern missed.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from attnscope.heads.accuracy import Accuracy
from attnscope.heads.certificate import certify
from attnscope.heads.head import Head
from attnscope.patterns.pattern import Pattern


class FixedModule(NamedTuple):
    """W_Q and W_K, and for them both the way back from queries and keys to an input."""

    query: Float[Tensor, "twice width"]
    key: Float[Tensor, "twice width"]
    inverse: Float[Tensor, "twice twice"]


def fixed_module(width: int, rng: np.random.Generator) -> FixedModule:
    weights = torch.from_numpy(rng.standard_normal((2 * width, 2 * width)) / (2 * width) ** 0.5)
    rounded = weights.float()
    return FixedModule(rounded[:, :width], rounded[:, width:], torch.linalg.inv(rounded.double()))


def serves(module: FixedModule, head: Head, pattern: Pattern, accuracy: Accuracy) -> bool:
    """Whether the module, given the input that this head's queries and keys ask for, meets the accuracy."""
    stream = (torch.cat([head.queries, head.keys], dim=1).double() @ module.inverse).float()
    seen = Head(stream @ module.query, stream @ module.key, pattern.causal, "through a fixed module")
    return certify(seen, pattern, accuracy).reached
