"""How far each token's state moves in every block when the value of one token is zero: arXiv:2301.12971.

The model runs on as many copies of a sequence as there are tokens. In copy j, every attention call reads 0 where the
value of token j was; every block is given the stream that entered it in the untouched run, so that blocks do not hear
of what was done below them. One pass gives all layers.

Values are exchanged where they are mixed: in calls of the fused kernel, and in products whose left side is a softmax
over the last axis.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from attnscope.core.errors import RefusalError
from attnscope.hf.anatomy.anatomy import Anatomy, Block, Stack
from attnscope.hf.anatomy.example import run
from attnscope.hf.intercepting.owners import arguments, at
from attnscope.hf.intercepting.restoring import Restoring, evaluating, without_cache, without_gradients
from attnscope.hf.intercepting.wrappers import without_fast_path

AT_ONCE = 16
_CARRIED = frozenset(("dropout", "to", "type_as", "float", "contiguous", "clone", "view", "reshape"))
_PRODUCTS = frozenset(("matmul", "__matmul__", "bmm"))


class _ZeroValues(TorchFunctionMode):
    """Inside, values of copy c are 0 at token `places[c]`."""

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
            attend: Callable[..., Tensor] = func
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
    """`[l, i, j]`: cosine distance between token i behind block l with and without the value of token j."""
    stack = found.stack(name)
    if stack is None or not stack.chained:
        raise RefusalError(
            f"{found.model_class} has no blocks that pass one stream on, and value zeroing compares streams: leave "
            "value_zeroing out."
        )
    with evaluating(model), without_cache(model), without_gradients(), without_fast_path(found.fast_path):
        entered, left = _streams(model, batch, stack)
        moved = left[0].new_zeros(len(stack.blocks), tokens, tokens)
        for begin in range(0, tokens, AT_ONCE):
            places = torch.arange(begin, min(begin + AT_ONCE, tokens), device=left[0].device)
            wider = {
                key: value.expand(len(places), *value.shape[1:]) if isinstance(value, Tensor) and value.ndim else value
                for key, value in batch.items()
            }
            zero = _ZeroValues(places, tokens)
            changed = _blocks_alone(model, wider, stack, entered, zero)
            if zero.zeroed < len([block for block in stack.blocks if block.attends]):
                raise RefusalError(
                    f"{found.model_class} mixes values in a way that value zeroing does not see: leave value_zeroing "
                    "out, or load the model with attn_implementation='sdpa'."
                )
            for layer, (own, other) in enumerate(zip(left, changed, strict=True)):
                moved[layer, :, places] = _apart(own, other).T.to(moved.dtype)
    return moved


def _apart(one: Float[Tensor, "#copy token width"], other: Float[Tensor, "copy token width"]) -> Tensor:
    """1 - cos as half the square of a difference of unit vectors: what does not move is 0 and no rounding of 1."""
    return (F.normalize(one.double(), dim=-1) - F.normalize(other.double(), dim=-1)).square().sum(-1) / 2


def _streams(model: nn.Module, batch: Mapping[str, Any], stack: Stack) -> tuple[list[Tensor], list[Tensor]]:
    """What enters and leaves every block, `[1, token, width]`."""
    entered: dict[int, Tensor] = {}
    left: dict[int, Tensor] = {}
    _with_blocks(
        model,
        batch,
        stack,
        lambda block, stream: entered.__setitem__(block.layer, stream.clone()),
        lambda block, stream: left.__setitem__(block.layer, stream.clone()),
    )
    return [entered[block.layer] for block in stack.blocks], [left[block.layer] for block in stack.blocks]


def _blocks_alone(
    model: nn.Module, batch: Mapping[str, Any], stack: Stack, entered: list[Tensor], zero: _ZeroValues
) -> list[Tensor]:
    """What leaves every block, each given the stream of the untouched run."""
    given = {block.layer: stream for block, stream in zip(stack.blocks, entered, strict=True)}
    left: dict[int, Tensor] = {}

    def before(block: Block, stream: Tensor) -> Tensor:
        return given[block.layer].expand(stream.shape).clone()

    with zero:
        _with_blocks(model, batch, stack, before, lambda block, stream: left.__setitem__(block.layer, stream.clone()))
    return [left[block.layer] for block in stack.blocks]


def _with_blocks(
    model: nn.Module,
    batch: Mapping[str, Any],
    stack: Stack,
    before: Callable[[Block, Tensor], Tensor | None],
    after: Callable[[Block, Tensor], None],
) -> None:
    """One run in which `before` may exchange the stream that enters a block; streams have their batch first."""
    places = {(block.path, block.nth): block for block in stack.blocks}
    went_in: Counter[str] = Counter()
    came_out: Counter[str] = Counter()

    def turned(stream: Tensor) -> Tensor:
        return stream.transpose(0, 1) if stack.sequence_first else stream

    def enters(path: str) -> Callable[..., Any]:
        def hook(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
            block = places.get((path, went_in[path]))
            went_in[path] += 1
            if block is None:
                return None
            other = before(block, turned(arguments(args, kwargs)[block.enters]))
            if other is None:
                return None
            if isinstance(block.enters, int):
                return (*args[: block.enters], turned(other), *args[block.enters + 1 :]), kwargs
            return args, {**kwargs, block.enters: turned(other)}

        return hook

    def leaves(path: str) -> Callable[..., None]:
        def hook(module: nn.Module, args: tuple[Any, ...], output: Any) -> None:
            block = places.get((path, came_out[path]))
            came_out[path] += 1
            if block is not None:
                after(block, turned(at(output, block.leaves)))

        return hook

    with Restoring() as changes:
        for path in dict.fromkeys(block.path for block in stack.blocks):
            changes.before(model.get_submodule(path), enters(path))
            changes.after(model.get_submodule(path), leaves(path))
        run(model, batch)
