"""Sums, and products with weights."""

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
    one, other = args[0], args[1] if len(args) > 1 else kwargs["other"]
    if isinstance(one, Frozen) or isinstance(other, Frozen):
        return freeze_answer(func, name, args, kwargs, value)
    first = one if isinstance(one, Graded) else other
    left, right = lifted(one, first, value.shape), lifted(other, first, value.shape)
    if name in ("rsub", "__rsub__"):
        left, right = right, left
    factor = kwargs.get("alpha", 1) * (-1 if "sub" in name else 1)
    a, b, ndim, shape = left.deferred, right.deferred, value.ndim, value.shape

    def make() -> PathSums:
        scaled = b() if factor == 1 else b().through(lambda p: factor * p)
        both = a().fitted(ndim).plus(scaled.fitted(ndim))
        return both.expanded(tuple(shape))

    return first.made(value, make, all(x.gated for x in (one, other) if isinstance(x, Graded)))


def _index_add(func: Any, name: str, args: Any, kwargs: Any, value: Any) -> Any:
    """Rows added into others by their numbers, as experts give their answers back to the tokens that were sent to them.
    Which tokens those are, the router decided from this input: a frozen choice, like the weights it gives them."""
    given = {**dict(zip(("self", "dim", "index", "source"), args, strict=False)), **kwargs}
    target, dim, index, source = (given[word] for word in ("self", "dim", "index", "source"))
    if isinstance(target, Frozen) or isinstance(source, Frozen):
        return freeze_answer(func, name, args, kwargs, value)
    first = target if isinstance(target, Graded) else source
    into, rows, alpha = lifted(target, first).deferred, lifted(source, first).deferred, given.get("alpha", 1)
    axis = dim % value.ndim

    def make() -> PathSums:
        both = (into(), rows())
        return both[0].joined(both, lambda before, added: before.index_add(axis, index, added, alpha=alpha))

    return first.made(value, make, gated=False)


def _affine(func: Any, name: str, args: Any, kwargs: Any, value: Any) -> Any:
    """F.linear(x, W, b)."""
    x, weight = args[0] if args else kwargs["input"], args[1] if len(args) > 1 else kwargs["weight"]
    bias = args[2] if len(args) > 2 else kwargs.get("bias")
    if not isinstance(x, Graded) or isinstance(weight, (Graded, Frozen)) or isinstance(bias, (Graded, Frozen)):
        return freeze_answer(func, name, args, kwargs, value)
    return _times_weight(x, value, weight.detach().mT, bias)


def _addmm(func: Any, name: str, args: Any, kwargs: Any, value: Any) -> Any:
    """torch.addmm(b, x, W), as GPT-2's Conv1D calls it; baddbmm has attention logits in it, which freeze."""
    bias, x, weight = args[:3]
    followed = isinstance(x, Graded) and not isinstance(weight, (Graded, Frozen))
    if not followed or isinstance(bias, (Graded, Frozen)) or kwargs:
        return freeze_answer(func, name, args, kwargs, value)
    return _times_weight(x, value, weight.detach(), bias)


def _times_weight(x: Graded, value: Tensor, weight: Tensor, bias: Tensor | None) -> Graded:
    """x W + b. Past a linear map an activation's output is an ordinary part of the stream."""
    sums, constants = x.deferred, x.constants
    backwards = Backwards(lambda g: F.linear(g, weight), tuple(value.shape))

    def make() -> PathSums:
        product = sums().through(lambda p: F.linear(p, weight.mT), backwards)
        return product if bias is None else product.plus_constant(bias.detach(), constants)

    return x.made(value, make, gated=False)


def _convolution(func: Any, name: str, args: Any, kwargs: Any, value: Any) -> Any:
    """A weight that slides along tokens or pixels: linear, and no attention. All parts go through at once."""
    given = {**dict(zip(("input", "weight", "bias"), args, strict=False)), **kwargs}
    x, weight, bias = given.pop("input"), given.pop("weight"), given.pop("bias", None)
    batched = isinstance(x, Graded) and x.value.ndim == weight.ndim
    if not batched or isinstance(weight, (Graded, Frozen)) or isinstance(bias, (Graded, Frozen)):
        return freeze_answer(func, name, args, kwargs, value)
    sums, constants, rest = x.deferred, x.constants, args[3:]

    def on_parts(parts: Tensor) -> Tensor:
        found: Tensor = func(parts.flatten(0, LEADING), weight.detach(), None, *rest, **given)
        return found.reshape(*parts.shape[: LEADING + 1], *found.shape[1:])

    def make() -> PathSums:
        product: PathSums = sums().through(on_parts)
        shift = None if bias is None else bias.detach().reshape(-1, *[1] * (weight.ndim - 2)).expand(value.shape)
        return product if shift is None else product.plus_constant(shift, constants)

    return x.made(value, make, gated=False)


def _batch_norm(func: Any, name: str, args: Any, kwargs: Any, value: Any) -> Any:
    """gamma (x - mean) / sigma + beta; in evaluation mean and sigma were learned, and are constants."""
    names = ("input", "running_mean", "running_var", "weight", "bias", "training", "momentum", "eps")
    given = {"weight": None, "bias": None, "training": False, "eps": 1e-5}
    given |= {**dict(zip(names, args, strict=False)), **kwargs}
    x, mean = given["input"], given["running_mean"]
    if not isinstance(x, Graded) or given["training"] or mean is None:
        return freeze_answer(func, name, args, kwargs, value)

    def beside(one: Tensor) -> Tensor:
        return one.detach().reshape(-1, *[1] * (value.ndim - 2))

    scale = beside((given["running_var"] + given["eps"]).rsqrt() * (1 if given["weight"] is None else given["weight"]))
    shift = (0 if given["bias"] is None else beside(given["bias"])) - beside(mean) * scale
    sums, constants, shape = x.deferred, x.constants, value.shape

    def make() -> PathSums:
        return sums().through(lambda p: p * scale).plus_constant(shift.expand(shape), constants)

    return x.made(value, make)


def times_constant(stream: Graded, matrix: Tensor, value: Tensor, from_left: bool) -> Graded:
    """A matrix product with a plain tensor: weights, or a fixed mixing of tokens."""
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
