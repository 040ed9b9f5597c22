"""One attention call of a run that ended in a number, and the gradient of that number at what the call gave.

The gradient of the pattern itself needs no map: for O = A V, dA = dO V^T, entry by entry one dot product, where
arXiv:2103.15679 asks a model for both n x n maps. So queries, keys, values and dO are all that is kept of a call, O(n
d) numbers.
"""

from __future__ import annotations

from dataclasses import dataclass

from jaxtyping import Float
from torch import Tensor

from attnscope.matrix.scores import Scores


@dataclass(frozen=True)
class AttentionCall:
    """Queries of `stack` look at keys of `keys_from`; both are the same where tokens attend to each other."""

    stack: str
    keys_from: str
    layer: int
    scores: Scores
    value: Float[Tensor, "batch kv_heads key value_dim"]
    gradient: Float[Tensor, "batch query heads value_dim"]  # of the number, at A V
    sees_last: bool = True  # whether what the call before this one gave had a part in what this one reads
    of_old_states: bool = False  # whether it reads another stream as it was before the last call that changed that one

    @property
    def crosses(self) -> bool:
        return self.stack != self.keys_from
