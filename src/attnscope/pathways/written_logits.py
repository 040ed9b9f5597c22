"""Find scale and bias of logits that a model writes out: X = scale P + bias, P the product of queries and keys.

A model without fused attention computes P, scales it, adds a bias (ALiBi, relative positions) and a mask, and calls
softmax on the result X. The block runs with queries multiplied by t = 0, 1 and 2, which multiplies P by t:

    bias = X(0),      scale P = X(1) - X(0),      and X(2) - X(0) = 2 (X(1) - X(0)) only if X is affine in P.

A bias that itself reads the stream (disentangled attention) is no constant: it changes if the tokens of the stream are
reversed, and is refused.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor
from torch.overrides import TorchFunctionMode

from attnscope.core.errors import RefusalError
from attnscope.pathways.attention_rules import PRODUCTS
from attnscope.pathways.graded import Graded, plain
from attnscope.pathways.logits import Entering, Sides

HIDDEN = -1e30  # masks add the most negative number of float32 or float64
ALLOWED = {torch.float64: 1e-9, torch.float32: 1e-4}  # relative

Logits = Float[Tensor, "query key"]


class _Multiplied(TorchFunctionMode):
    """Multiplies queries by a factor in products of queries and keys, and keeps the arguments of softmax."""

    def __init__(self, factor: float) -> None:
        super().__init__()
        self.factor, self.softmax_of = factor, list[Tensor]()

    def __torch_function__(
        self, func: Any, types: Iterable[type], args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs, name = kwargs or {}, getattr(func, "__name__", "")
        at = 1 if name == "baddbmm" else 0
        if (name in PRODUCTS or at) and all(isinstance(side, Graded) for side in args[at : at + 2]):
            args = (*args[:at], args[at] * self.factor, *args[at + 1 :])
        if name == "softmax":
            self.softmax_of.append(plain(args[0] if args else kwargs["input"]))
        return func(*args, **kwargs)


@torch.no_grad()
def written_out_rule(found: Entering, sides: Sides, head: int) -> tuple[float, Logits]:
    """Return the scale, and the bias with minus infinity where a key is hidden; refuse other rules."""
    none, once, twice = (_softmax_of(found, found.stream, head, factor) for factor in (0.0, 1.0, 2.0))
    turned = _softmax_of(found, found.stream.flip(1), head, 0.0)
    seen = none > HIDDEN
    product = sides.query @ sides.key.mT
    scaled = (once - none)[seen]
    scale = float((scaled * product[seen]).sum() / product[seen].square().sum().clamp_min(1e-300))
    size = max(float(scaled.abs().max()), float(none[seen].abs().max()), 1e-30)
    errors = (
        ((twice - none)[seen] - 2 * scaled, "changes them by a rule that is not linear"),
        ((turned - none)[seen & (turned > HIDDEN)], "adds something to them that depends on the text"),
        (scaled - scale * product[seen], "does not scale them by one number"),
    )
    for error, words in errors:
        if error.numel() and not float(error.abs().max()) <= ALLOWED.get(product.dtype, 0.0) * size:
            raise RefusalError(
                f"The logits of block {found.block} of {found.network.name} cannot be decomposed, because the model "
                f"{words}: choose another model."
            )
    return scale, none.masked_fill(~seen, -torch.inf)


def _softmax_of(found: Entering, stream: Float[Tensor, "batch token width"], head: int, factor: float) -> Logits:
    with _Multiplied(factor) as seen:
        found.network.blocks[found.block](Graded.entering(stream, "none"))
    if len(seen.softmax_of) != 1:
        raise RefusalError(
            f"Block {found.block} of {found.network.name} calls softmax {len(seen.softmax_of)} times, so its logits "
            "cannot be told apart: choose another model."
        )
    logits = seen.softmax_of[0]
    return logits.reshape(-1, *logits.shape[-2:])[head]
