"""Rules for sums, and for products with weights."""

from __future__ import annotations

from typing import Any

import torch.nn.functional as F
from torch import Tensor

from attnscope.pathways.graded import Frozen, Graded, Rule, freeze_answer, lifted, plain
from attnscope.pathways.sums import LEADING, Backwards, PathSums

_SUMS = (
    *("add", "__add__", "__radd__", "add_", "__iadd__"),
    *("sub", "__sub__", "__rsub__", "rsub", "sub_", "__isub__", "subtract"),
)


def _sum(func: Any, name: str, args: Any, kwargs: Any, value: Any) -> Any:
    terms = (args[0], args[1] if len(args) > 1 else kwargs["other"])
    if any(isinstance(x, Frozen) for x in terms):
        return freeze_answer(func, name, args, kwargs, value)
    first = next(x for x in terms if isinstance(x, Graded))
    left, right = (lifted(x, first, value.shape) for x in terms)
    if name in ("rsub", "__rsub__"):
        left, right = right, left
    factor = kwargs.get("alpha", 1) * (-1 if "sub" in name else 1)
    a, b, ndim, shape = left.deferred, right.deferred, value.ndim, value.shape

    def make() -> PathSums:
        scaled = b() if factor == 1 else b().through(lambda p: factor * p)
        return a().fitted(ndim).plus(scaled.fitted(ndim)).expanded(tuple(shape))

    return first.made(value, make, all(x.gated for x in terms if isinstance(x, Graded)))


def _index_add(func: Any, name: str, args: Any, kwargs: Any, value: Any) -> Any:
    """Add rows to others by index, as experts add their outputs to the tokens routed to them.

    The router chose those tokens from this input. The choice is frozen, like the router's weights.
    """
    names = ("self", "dim", "index", "source")
    arguments = {**dict(zip(names, args, strict=False)), **kwargs}
    target, dim, index, source = (arguments[word] for word in names)
    if isinstance(target, Frozen) or isinstance(source, Frozen):
        return freeze_answer(func, name, args, kwargs, value)
    first = target if isinstance(target, Graded) else source
    into, rows, alpha = lifted(target, first).deferred, lifted(source, first).deferred, arguments.get("alpha", 1)
    axis = dim % value.ndim

    def make() -> PathSums:
        both = (into(), rows())
        return both[0].joined(both, lambda before, added: before.index_add(axis, index, added, alpha=alpha))

    return first.made(value, make, gated=False)


def _affine(func: Any, name: str, args: Any, kwargs: Any, value: Any) -> Any:
    """Follow F.linear(x, W, b)."""
    x, weight = args[0] if args else kwargs["input"], args[1] if len(args) > 1 else kwargs["weight"]
    bias = args[2] if len(args) > 2 else kwargs.get("bias")
    if not isinstance(x, Graded) or isinstance(weight, (Graded, Frozen)) or isinstance(bias, (Graded, Frozen)):
        return freeze_answer(func, name, args, kwargs, value)
    return _times_weight(x, value, weight.detach().mT, bias)


def _addmm(func: Any, name: str, args: Any, kwargs: Any, value: Any) -> Any:
    """Follow torch.addmm(b, x, W), as GPT-2's Conv1D calls it. (baddbmm computes attention logits and is frozen.)"""
    bias, x, weight = args[:3]
    followed = isinstance(x, Graded) and not isinstance(weight, (Graded, Frozen))
    if not followed or isinstance(bias, (Graded, Frozen)) or kwargs:
        return freeze_answer(func, name, args, kwargs, value)
    return _times_weight(x, value, weight.detach(), bias)


def _times_weight(x: Graded, value: Tensor, weight: Tensor, bias: Tensor | None) -> Graded:
    """Follow x W + b. After a linear map, an activation's output is an ordinary part of the stream."""
    sums, constants = x.deferred, x.constants
    backwards = Backwards(lambda g: F.linear(g, weight), tuple(value.shape))

    def make() -> PathSums:
        product = sums().through(lambda p: F.linear(p, weight.mT), backwards)
        return product if bias is None else product.plus_constant(bias.detach(), constants)

    return x.made(value, make, gated=False)


def _convolution(func: Any, name: str, args: Any, kwargs: Any, value: Any) -> Any:
    """Apply a convolution over tokens or pixels to all parts at once. It is linear and not an attention edge."""
    options = {**dict(zip(("input", "weight", "bias"), args, strict=False)), **kwargs}
    x, weight, bias = options.pop("input"), options.pop("weight"), options.pop("bias", None)
    batched = isinstance(x, Graded) and x.value.ndim == weight.ndim
    if not batched or isinstance(weight, (Graded, Frozen)) or isinstance(bias, (Graded, Frozen)):
        return freeze_answer(func, name, args, kwargs, value)
    sums, constants, rest = x.deferred, x.constants, args[3:]

    def on_parts(parts: Tensor) -> Tensor:
        answer: Tensor = func(parts.flatten(0, LEADING), weight.detach(), None, *rest, **options)
        return answer.reshape(*parts.shape[: LEADING + 1], *answer.shape[1:])

    def make() -> PathSums:
        product: PathSums = sums().through(on_parts)
        if bias is None:
            return product
        return product.plus_constant(bias.detach().reshape(-1, *[1] * (weight.ndim - 2)).expand(value.shape), constants)

    return x.made(value, make, gated=False)


def _batch_norm(func: Any, name: str, args: Any, kwargs: Any, value: Any) -> Any:
    """Follow gamma (x - mean) / sigma + beta; in evaluation mode, mean and sigma are learned constants."""
    names = ("input", "running_mean", "running_var", "weight", "bias", "training", "momentum", "eps")
    options = {"weight": None, "bias": None, "training": False, "eps": 1e-5}
    options |= {**dict(zip(names, args, strict=False)), **kwargs}
    x, mean, weight, bias = (options[key] for key in ("input", "running_mean", "weight", "bias"))
    if not isinstance(x, Graded) or options["training"] or mean is None:
        return freeze_answer(func, name, args, kwargs, value)

    def by_channel(vector: Tensor) -> Tensor:
        return vector.detach().reshape(-1, *[1] * (value.ndim - 2))

    scale = by_channel((options["running_var"] + options["eps"]).rsqrt() * (1 if weight is None else weight))
    shift = (0 if bias is None else by_channel(bias)) - by_channel(mean) * scale
    sums, constants, shape = x.deferred, x.constants, value.shape

    def make() -> PathSums:
        return sums().through(lambda p: p * scale).plus_constant(shift.expand(shape), constants)

    return x.made(value, make)


def times_constant(stream: Graded, matrix: Tensor, value: Tensor, from_left: bool) -> Graded:
    """Return the product of a followed tensor with a plain matrix: weights, or a fixed mixing of tokens."""
    sums, matrix = stream.deferred, plain(matrix).detach()
    ndim = value.ndim if from_left or matrix.ndim > 2 else stream.value.ndim

    def make() -> PathSums:
        return sums().fitted(ndim).through(lambda p: matrix @ p if from_left else p @ matrix)

    return stream.made(value, make, gated=False)


RULES: dict[str, Rule] = {
    **dict.fromkeys(_SUMS, _sum),
    **dict.fromkeys(("index_add", "index_add_"), _index_add),
    **dict.fromkeys(("conv1d", "conv2d"), _convolution),
    "batch_norm": _batch_norm,
    "linear": _affine,
    "addmm": _addmm,
}
