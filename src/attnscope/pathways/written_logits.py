"""Find scale, bias and cap of logits that a model writes out: X = scale P + bias, P the product of queries and keys.

A model without fused attention computes P, scales it, adds a bias (ALiBi, relative positions) and a mask, and calls
softmax on the result X. The block runs with queries multiplied by t = 0, 1 and 2, which multiplies P by t:

    bias = X(0),      scale P = y_1,      y_t = X(t) - X(0),      and y_2 = 2 y_1 only if X is affine in P.

Logits that are capped, y_t = c tanh(t scale P / c), satisfy y_2 = 2 y_1 / (1 + (y_1/c)^2) instead, because tanh 2x = 2
tanh x / (1 + tanh^2 x). One entry gives c, all others check it, and scale P = c artanh(y_1/c).

A bias that itself reads the stream (disentangled attention) is no constant: it changes if the tokens of the stream are
reversed, and is refused.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
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
        if name == "baddbmm" and "batch1" in kwargs:  # Bloom names its arguments
            args, kwargs = (*args, kwargs["batch1"], kwargs["batch2"]), {**kwargs}
            del kwargs["batch1"], kwargs["batch2"]
        at = 1 if name == "baddbmm" else 0
        sides = args[at : at + 2]
        if (name in PRODUCTS or at) and len(sides) == 2 and all(isinstance(side, Graded) for side in sides):
            args = (*args[:at], sides[0] * self.factor, *args[at + 1 :])
        if name == "softmax":
            self.softmax_of.append(plain(args[0] if args else kwargs["input"]))
        return func(*args, **kwargs)


@dataclass(frozen=True)
class WrittenOut:
    """How logits follow from a product: scale, cap, and the bias with minus infinity where a key is hidden."""

    scale: float
    softcap: float | None
    bias: Logits


@torch.no_grad()
def written_out_rule(found: Entering, sides: Sides, head: int) -> WrittenOut:
    """Return the rule of the logits; refuse any other rule."""
    none, once, twice = (_softmax_of(found, found.stream, head, factor) for factor in (0.0, 1.0, 2.0))
    turned = _softmax_of(found, found.stream.flip(1), head, 0.0)
    seen = none > HIDDEN
    product = sides.query @ sides.key.mT
    first, second = (once - none)[seen], (twice - none)[seen]
    allowed = ALLOWED.get(product.dtype, 0.0)
    cap = None if _near(second, 2 * first, allowed) else _cap(first, second)
    scaled = first if cap is None else cap * (first / cap).clamp(-1, 1).atanh()
    expected = 2 * first if cap is None else 2 * first / (1 + (first / cap).square())
    scale = float((scaled * product[seen]).sum() / product[seen].square().sum().clamp_min(1e-300))
    both = seen & (turned > HIDDEN)
    rules = (
        (second, expected, "changes them by a rule that is not linear"),
        (turned[both] + first.abs().max(), none[both] + first.abs().max(), "adds something that depends on the text"),
        (scaled, scale * product[seen], "does not scale them by one number"),
    )
    for one, other, words in rules:
        if not _near(one, other, 10 * allowed):
            raise RefusalError(
                f"The logits of block {found.block} of {found.network.name} cannot be decomposed, because the model "
                f"{words}: choose another model."
            )
    return WrittenOut(scale, cap, none.masked_fill(~seen, -torch.inf))


def _near(one: Float[Tensor, " entry"], other: Float[Tensor, " entry"], allowed: float) -> bool:
    """Return whether two lists differ by at most `allowed` of the largest entry; NaN is not near anything."""
    return not one.numel() or float((one - other).abs().max()) <= allowed * float(other.abs().max()) + 1e-300


def _cap(first: Float[Tensor, " entry"], second: Float[Tensor, " entry"]) -> float:
    """Return c of y_2 = 2 y_1 / (1 + (y_1/c)^2) from the largest entry; NaN if there is no such number."""
    at = first.abs().argmax()
    return float((first[at].square() / (2 * first[at] / second[at] - 1)).sqrt())


def _softmax_of(found: Entering, stream: Float[Tensor, "batch token width"], head: int, factor: float) -> Logits:
    with _Multiplied(factor) as seen:
        found.network.blocks[found.block](Graded.entering(stream, "none"))
    if len(seen.softmax_of) != 1:
        raise RefusalError(
            f"Block {found.block} of {found.network.name} calls softmax {len(seen.softmax_of)} times, so its logits "
            "cannot be told apart: choose another model."
        )
    logits: Tensor = seen.softmax_of[0]
    by_head: Tensor = logits.reshape(-1, *logits.shape[-2:])
    return by_head[head]
