"""Rules for attention edges, where a frozen pattern mixes the tokens of a followed tensor."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from attnscope.core.errors import RefusalError
from attnscope.pathways.graded import (
    Frozen,
    Graded,
    Rule,
    freeze_answer,
    is_watched,
    leaves,
    lifted,
    plain,
    through_watches,
)
from attnscope.pathways.linear_rules import times_constant
from attnscope.pathways.network import cached_pattern
from attnscope.pathways.responding import (
    patterns_respond,
    responding_attention,
    responding_product,
    responding_softmax,
)
from attnscope.pathways.sums import LEADING, Backwards, PathSums, split_axis


def attention_pattern(
    query: Float[Tensor, "*batch query width"],
    key: Float[Tensor, "*kv_batch key width"],
    attn_mask: Tensor | None = None,
    is_causal: bool = False,
    scale: float | None = None,
    enable_gqa: bool = False,
    **_: Any,
) -> Float[Tensor, "*batch query key"]:
    """Return the pattern of scaled_dot_product_attention: rows of softmax(scale Q K^T + mask), in float32 or better. A
    row without a visible key is zero.
    """
    exact = torch.promote_types(query.dtype, torch.float32)
    query, key = query.to(exact), key.to(exact)
    if enable_gqa and key.shape[-3] != query.shape[-3]:
        key = key.repeat_interleave(query.shape[-3] // key.shape[-3], dim=-3)
    logits = query @ key.mT * (query.shape[-1] ** -0.5 if scale is None else scale)
    if is_causal:
        hidden = torch.ones(logits.shape[-2:], dtype=torch.bool, device=logits.device).triu(1)
        logits = logits.masked_fill(hidden, -torch.inf)
    if attn_mask is not None and attn_mask.dtype == torch.bool:
        logits = logits.masked_fill(~attn_mask, -torch.inf)
    elif attn_mask is not None:
        logits = logits + attn_mask
    pattern = logits.softmax(-1)
    return pattern if attn_mask is None else pattern.nan_to_num(0.0)


def _product(func: Any, name: str, args: Any, kwargs: Any, value: Any) -> Any:
    left, right = args[0], args[1] if len(args) > 1 else next(kwargs[key] for key in ("other", "mat2") if key in kwargs)
    if name == "__rmatmul__":
        left, right = right, left
    if isinstance(left, Graded) and isinstance(right, Graded):
        _show_logits(left, lambda: _transposed(right, right.value.mT))
        if patterns_respond():
            return responding_product(left, right, value)
        return freeze_answer(func, name, args, kwargs, value)
    if isinstance(left, Frozen):
        return _mixed(right, lambda: plain(left), value)
    if isinstance(right, Frozen):  # Y A = (A^T Y^T)^T
        transposed = _transposed(left, left.value.mT)
        return _transposed(_mixed(transposed, lambda: plain(right).mT, value.mT, from_right=True), value)
    if isinstance(left, Graded):
        return times_constant(left, right, value, from_left=False)
    return times_constant(right, left, value, from_left=True)


def _show_logits(query: Graded, key: Callable[[], Graded]) -> None:
    """Pass followed queries and keys to watches on logits: their product is frozen, and its factors are lost."""
    if is_watched("logits"):
        through_watches(query, "logits", key)


def _logits_plus_bias(func: Any, name: str, args: Any, kwargs: Any, value: Any) -> Any:
    """Freeze baddbmm, which adds a product of queries and keys to a bias (ALiBi)."""
    _, query, key = (*args, *(kwargs[name] for name in ("input", "batch1", "batch2")[len(args) :]))[:3]
    if isinstance(query, Graded) and isinstance(key, Graded):
        _show_logits(query, lambda: _transposed(key, key.value.mT))
    return freeze_answer(func, name, args, kwargs, value)


def _transposed(stream: Graded, value: Tensor) -> Graded:
    sums = stream.deferred
    return stream.made(value, lambda: sums().through(lambda p: p.mT))


def _mixed(stream: Graded, pattern: Callable[[], Tensor], value: Tensor, from_right: bool = False) -> Graded:
    """Return A Y for every part Y. All parts are concatenated as columns, so that each head needs one product.

    A pattern that mixes `from_right`, Y A, is an edge too, but its heads cannot be watched.
    """
    sums, axis, own = stream.deferred, stream.axis("attention"), value.shape[:-2]
    shared = stream.value.shape[-3] if stream.value.ndim > 2 else 1  # heads of keys and values

    def beside(parts: Tensor) -> Tensor:
        weights = pattern().detach().to(parts.dtype)
        # Expand batch axes to the shape of the product, but do not repeat heads of keys and values, the last of them.
        parts = parts.expand(*parts.shape[:LEADING], *own[:-1], *parts.shape[LEADING:-2][-1:], *parts.shape[-2:])
        columns = parts.flatten(0, LEADING - 1).movedim(0, -2)  # [..., key, part, channel]
        groups = own[-1] // columns.shape[-4] if own else 1  # query heads that share one head of keys and values
        weights = split_axis(weights, -3, -1, groups).flatten(-3, -2) if groups > 1 else weights
        product = weights @ columns.flatten(-2)
        product = split_axis(product, -2, groups, -1).flatten(-4, -3) if groups > 1 else product
        return split_axis(split_axis(product, -1, *columns.shape[-2:]).movedim(-2, 0), 0, *parts.shape[:LEADING])

    def beside_transposed(g: Tensor) -> Tensor:
        """Return A^T G. Query heads that share keys and values are summed."""
        weights = pattern().detach().to(g.dtype)
        columns = g.flatten(0, LEADING - 1).movedim(0, -2)  # [..., query, part, channel]
        groups = own[-1] // shared if own else 1
        beside = columns.flatten(-2)
        if groups > 1:
            weights, beside = (split_axis(x, -3, -1, groups).flatten(-3, -2) for x in (weights, beside))
        product = split_axis(weights.mT @ beside, -1, *columns.shape[-2:])
        return split_axis(product.movedim(-2, 0), 0, *g.shape[:LEADING])

    backwards = Backwards(beside_transposed, tuple(value.shape))

    def make() -> PathSums:
        mixed = sums().fitted(value.ndim).through(beside, backwards).further(axis)
        if from_right and is_watched("attention"):
            raise RefusalError(
                "A frozen matrix mixes tokens from the right here, so its heads cannot be told apart: ask for lengths "
                "alone."
            )
        if from_right:
            return mixed
        return through_watches(stream.made(value, lambda: mixed), "attention", pattern).deferred()

    return stream.made(value, make, gated=False)


def _einsum(func: Any, name: str, args: Any, kwargs: Any, value: Any) -> Any:
    """Handle einsum of one followed tensor with plain or frozen ones; with a frozen one it is an attention edge."""
    equation, operands = args[0], list(args[1]) if isinstance(args[1], (list, tuple)) else list(args[1:])
    graded = [index for index, x in enumerate(operands) if isinstance(x, Graded)]
    if len(graded) != 1 or "..." in equation or "->" not in equation:
        return freeze_answer(func, name, args, kwargs, value)
    at = graded[0]
    stream, others = operands[at], [plain(x).detach() for x in operands]

    def on_part(part: Tensor) -> Tensor:
        return torch.einsum(equation, *others[:at], part, *others[at + 1 :])

    def every(parts: Tensor) -> Tensor:
        return split_axis(torch.vmap(on_part)(parts.flatten(0, LEADING - 1)), 0, *parts.shape[:LEADING])

    sums, axis = stream.deferred, stream.axis("attention")
    frozen = [index for index, x in enumerate(operands) if isinstance(x, Frozen)]
    if not frozen:
        return stream.made(value, lambda: sums().through(every), gated=False)
    order = _canonical(equation, frozen[0], at)
    if order is None or len(operands) != 2:
        return freeze_answer(func, name, args, kwargs, value)
    back = [order.index(dim) for dim in range(len(order))]

    def make() -> PathSums:
        mixed = _permuted(sums().through(every), order).further(axis)
        seen = stream.made(value.permute(order), lambda: mixed)
        return _permuted(through_watches(seen, "attention", lambda: others[frozen[0]]).deferred(), back)

    return stream.made(value, make, gated=False)


def _permuted(sums: PathSums, order: list[int]) -> PathSums:
    return sums.through(lambda p: p.permute(0, 1, 2, *(axis + LEADING for axis in order)))


def _canonical(equation: str, pattern: int, stream: int) -> list[int] | None:
    """Return the output axes of batch, head, query and channel, identified by the operands in which their letters
    occur.
    """
    inputs, output = equation.replace(" ", "").split("->")
    letters = inputs.split(",")
    both = [x for x in letters[pattern] if x in letters[stream] and x in output]  # batch, then head
    query = [x for x in letters[pattern] if x in output and x not in letters[stream]]
    channel = [x for x in letters[stream] if x in output and x not in letters[pattern]]
    named = [*both, *query, *channel]
    return [output.index(x) for x in named] if len(query) == 1 and len(named) == len(output) else None


def _attention(func: Any, name: str, args: Any, kwargs: Any, value: Any) -> Any:
    """Handle F.scaled_dot_product_attention: the pattern is frozen, values are followed."""
    names = ("query", "key", "value", "attn_mask", "dropout_p", "is_causal")
    arguments = {**dict(zip(names, args, strict=False)), **kwargs}
    values, query, key = (arguments[name] for name in ("value", "query", "key"))
    moves = isinstance(arguments.get("attn_mask"), Graded | Frozen)  # what is added to the logits reads the stream too
    if isinstance(query, Graded) and isinstance(key, Graded) and not moves:
        _show_logits(query, lambda: key)
    if isinstance(values, Frozen):
        return freeze_answer(func, name, args, kwargs, value)
    if patterns_respond():
        return responding_attention(arguments, value)
    if not isinstance(values, Graded):  # in cross-attention, values from the other stack are constants
        return lifted(value, next(x for x in leaves((args, kwargs)) if isinstance(x, Graded)))
    made: list[Tensor] = []
    frozen = {key: plain(x) for key, x in arguments.items() if key not in ("value", "dropout_p")}

    def pattern() -> Tensor:
        if not made:
            made.append(attention_pattern(**frozen))
        return made[0]

    return _mixed(values, cached_pattern(pattern), value)


def _softmax(func: Any, name: str, args: Any, kwargs: Any, value: Any) -> Any:
    """Freeze a softmax of the stream, unless patterns respond to a change of it."""
    scores, dim = args[0] if args else kwargs["input"], args[1] if len(args) > 1 else kwargs.get("dim")
    if patterns_respond() and isinstance(scores, Graded) and isinstance(dim, int):
        return responding_softmax(scores, dim, value)
    return freeze_answer(func, name, args, kwargs, value)


def of_another_stack(func: Any, name: str, args: Any, kwargs: Any, value: Any) -> Any:
    """Handle A V with a frozen pattern and values that are not followed, which is unfused cross-attention. As in fused
    attention, values from the other stack are constants.
    """
    pattern = args[0] if args else None
    values = args[1] if len(args) > 1 else next((kwargs[key] for key in ("other", "mat2") if key in kwargs), None)
    attends = isinstance(pattern, Frozen) and pattern.pattern and pattern.ndim > 2
    if not attends or pattern is None or pattern.beside is None or isinstance(values, Frozen):
        return freeze_answer(func, name, args, kwargs, value)
    return lifted(value, pattern.beside)


PRODUCTS = ("matmul", "__matmul__", "__rmatmul__", "bmm", "mm")
RULES: dict[str, Rule] = {
    **dict.fromkeys(PRODUCTS, _product),
    "baddbmm": _logits_plus_bias,
    "einsum": _einsum,
    "softmax": _softmax,
    "scaled_dot_product_attention": _attention,
}
