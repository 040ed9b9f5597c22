"""A compiled head as a torch module: the fixed projections of the theorem, and the input that gives the pattern.

    module = head.module()
    module()                     # the attention pattern, [row, key]
    module(value=v)              # what attention makes of values, [row, value_width]
    module(X=other)              # the same projections on another input: they know no pattern (arXiv:2106.03764)

Everything is a buffer, so `module.to(device)` moves it, `state_dict` saves it, and no optimiser touches it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor, nn

if TYPE_CHECKING:
    from attnscope.heads.head import Head


class HeadModule(nn.Module):
    """softmax(X W_Q W_K^T X^T / sqrt(width)), with a causal mask where the head has one."""

    X: Tensor
    W_Q: Tensor
    W_K: Tensor

    def __init__(
        self,
        X: Float[Tensor, "row twice"],
        W_Q: Float[Tensor, "twice width"],
        W_K: Float[Tensor, "twice width"],
        causal: bool,
    ) -> None:
        super().__init__()
        self.register_buffer("X", X.clone())
        self.register_buffer("W_Q", W_Q.clone())
        self.register_buffer("W_K", W_K.clone())
        self.causal = causal

    def forward(
        self,
        X: Float[Tensor, "*batch row twice"] | None = None,
        value: Float[Tensor, "*batch2 row value_width"] | None = None,
    ) -> Float[Tensor, "*any row answer"]:
        """The mixed values; without values, the pattern itself."""
        X = self.X if X is None else X
        # W_Q and W_K only select columns, so these products are exact in any precision. Logits and softmax are then
        # taken in float32 or more, as in the certificate: a bfloat16 head is one whose queries and keys are rounded.
        exact = torch.float64 if X.dtype == torch.float64 else torch.float32
        query, key = (X @ self.W_Q).to(exact), (X @ self.W_K).to(exact)
        mixing = torch.eye(X.shape[-2], dtype=exact, device=X.device) if value is None else value.to(exact)
        mixing = mixing.expand(*query.shape[:-2], *mixing.shape[-2:]) if mixing.ndim < query.ndim else mixing
        mixed = F.scaled_dot_product_attention(query, key, mixing, is_causal=self.causal)
        return mixed if value is None else mixed.to(value.dtype)


def module_of(head: Head) -> HeadModule:
    """The head as a module; heads with more keys than queries have no single input X and are refused."""
    return HeadModule(*head.inputs(), causal=head.causal)
