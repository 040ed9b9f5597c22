"""Value zeroing: how much the state of each token changes in every block if the value of one token is zero.

The method comes from arXiv:2301.12971. The model runs on as many copies of a sequence as there are tokens. In copy j,
the value of token j is zero in every attention call. Every block gets its input from the unchanged run, so that changes
do not reach the next block, and one pass gives all blocks.

Values are replaced in calls of the fused kernel, and in products whose left side is a softmax over the last axis.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from attnscope.core.errors import RefusalError
from attnscope.hf.anatomy.anatomy import Anatomy, Block, Stack
from attnscope.hf.anatomy.example import run
from attnscope.hf.intercepting.owners import arguments, at, repeated, with_argument
from attnscope.hf.intercepting.restoring import Restoring, evaluating, without_cache, without_gradients
from attnscope.hf.intercepting.wrappers import without_fast_path

AT_ONCE = 16
_CARRIED = frozenset(("dropout", "to", "type_as", "float", "contiguous", "clone", "view", "reshape"))
_PRODUCTS = frozenset(("matmul", "__matmul__", "bmm"))


class _ZeroValues(TorchFunctionMode):
    """Set the values of copy c to 0 at token `places[c]` inside this context."""

    def __init__(self, places: Int[Tensor, " copy"], tokens: int) -> None:
        super().__init__()
        self._places, self._tokens = places, tokens
        self._patterns: dict[int, Tensor] = {}
        self.zeroed = 0

    def __torch_function__(
        self, func: Any, types: Iterable[type], args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        name = getattr(func, "__name__", "")
        if func is F.scaled_dot_product_attention:
            attend: Any = func
            if len(args) > 2:
                return attend(*args[:2], self._without(args[2]), *args[3:], **kwargs)
            return attend(*args, **{**kwargs, "value": self._without(kwargs["value"])})
        if name in _PRODUCTS and len(args) > 1 and id(args[0]) in self._patterns:
            return func(args[0], self._without(args[1]), *args[2:], **kwargs)
        answer = func(*args, **kwargs)
        if (name == "softmax" and answer.shape[-1] == self._tokens and answer.ndim >= 3) or (
            name in _CARRIED and args and id(args[0]) in self._patterns
        ):
            self._patterns[id(answer)] = answer
        return answer

    def _without(self, value: Float[Tensor, " ..."]) -> Float[Tensor, " ..."]:
        copies = len(self._places)
        if value.shape[-2] != self._tokens or value.numel() % copies:
            return value
        self.zeroed += 1
        folded = value.reshape(copies, -1, *value.shape[-2:]).clone()
        folded[torch.arange(copies, device=value.device), :, self._places] = 0
        return folded.reshape(value.shape)


def moved_by_zeroing(
    model: nn.Module, batch: Mapping[str, Any], found: Anatomy, name: str, tokens: int
) -> Float[Tensor, "layer token token"]:
    """Return `[l, i, j]`: the cosine distance between token i after block l with and without the value of token j."""
    stack = found.stack(name)
    if stack is None or not stack.chained:
        raise RefusalError(
            f"{found.model_class} has no blocks with one residual stream, which value zeroing compares: leave "
            "value_zeroing out."
        )
    with evaluating(model), without_cache(model), without_gradients(), without_fast_path(found.fast_path):
        entered, left = _streams(model, batch, stack)
        moved = left[0].new_zeros(len(stack.blocks), tokens, tokens)
        for begin in range(0, tokens, AT_ONCE):
            places = torch.arange(begin, min(begin + AT_ONCE, tokens), device=left[0].device)
            with _ZeroValues(places, tokens) as zero:
                changed = _streams(model, repeated(batch, len(places)), stack, entered)[1]
            if zero.zeroed < sum(block.attends for block in stack.blocks):
                raise RefusalError(
                    f"Value zeroing cannot change how {found.model_class} mixes values: leave value_zeroing out, or "
                    "load the model with attn_implementation='sdpa'."
                )
            for layer, (own, other) in enumerate(zip(left, changed, strict=True)):
                moved[layer, :, places] = _apart(own, other).T.to(moved.dtype)
    return moved


def _apart(untouched: Float[Tensor, "#copy token width"], changed: Float[Tensor, "copy token width"]) -> Tensor:
    """Return the cosine distance as half the squared difference of unit vectors: exactly 0 for a state that does not
    change."""
    return (F.normalize(untouched.double(), dim=-1) - F.normalize(changed.double(), dim=-1)).square().sum(-1) / 2


def _streams(
    model: nn.Module, batch: Mapping[str, Any], stack: Stack, instead: list[Tensor] | None = None
) -> tuple[list[Tensor], list[Tensor]]:
    """Run the model. Return the inputs and outputs of all blocks, batch first. `instead` replaces the inputs."""
    entered: dict[int, Tensor] = {}
    left: dict[int, Tensor] = {}
    layers = [block.layer for block in stack.blocks]
    inputs = {} if instead is None else dict(zip(layers, instead, strict=True))

    def enter(block: Block, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        stream = stack.turned(arguments(args, kwargs)[block.enters])
        entered[block.layer] = stream.clone()
        if instead is None:
            return None
        return with_argument(args, kwargs, block.enters, stack.turned(inputs[block.layer].expand(stream.shape).clone()))

    def leave(block: Block, output: Any) -> None:
        left[block.layer] = stack.turned(at(output, block.leaves)).clone()

    with Restoring() as changes:
        changes.nth_calls(model, stack.calls, before=enter, after=leave)
        run(model, batch)
    return [entered[layer] for layer in layers], [left[layer] for layer in layers]
