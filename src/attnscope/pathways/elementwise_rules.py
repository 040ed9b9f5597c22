"""Rules for norms, activations and elementwise products, which are linear once denominators and gates are frozen."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from attnscope.pathways.graded import Frozen, Graded, Rule, freeze_answer, plain, through_watches
from attnscope.pathways.network import DENOMINATOR, GATE, cached
from attnscope.pathways.sums import LEADING, Backwards, PathSums

# Activations with phi(0) = 0 are followed as phi(z) = g(z) z. If they multiply another tensor (SwiGLU), they are gates.
_ACTIVATIONS = (
    *("gelu", "silu", "relu6", "leaky_relu", "elu", "selu", "celu", "mish", "hardswish", "tanh", "hardtanh"),
    "softsign",
)
_CLIPPINGS = ("clamp", "clip")
_SCALINGS = (
    *("mul", "__mul__", "__rmul__", "multiply", "mul_", "__imul__"),
    *("div", "__div__", "__truediv__", "true_divide", "divide", "div_", "__itruediv__"),
)


def _scaling(func: Any, name: str, args: Any, kwargs: Any, value: Any) -> Any:
    left, right = args[0], args[1] if len(args) > 1 else kwargs["other"]
    divides = "div" in name
    if (divides and not isinstance(left, Graded)) or "rounding_mode" in kwargs:
        return freeze_answer(func, name, args, kwargs, value)
    if isinstance(left, Graded) and isinstance(right, Graded):
        if divides or left.gated == right.gated:
            return freeze_answer(func, name, args, kwargs, value)  # a product of two followed tensors is not linear
        stream, factor = (right, left) if left.gated else (left, right)
        return _edge(stream, plain(factor), value, gated=False)
    stream, factor = (left, right) if isinstance(left, Graded) else (right, left)
    if isinstance(factor, Frozen) and factor.gate and not divides:
        return _edge(stream, plain(factor), value, gated=True)  # z sigmoid(z) is an activation, and may be a gate
    return _scaled(stream, plain(factor), value, divides)


def _scaled(stream: Graded, factor: Any, value: Tensor, divides: bool = False) -> Graded:
    sums, ndim, shape = stream.deferred, value.ndim, value.shape
    factor = factor.detach() if isinstance(factor, Tensor) else factor

    def times(p: Tensor) -> Tensor:  # this map is its own transpose
        scaled: Tensor = p / factor if divides else p * factor
        return scaled

    def make() -> PathSums:
        return sums().fitted(ndim).through(times, Backwards(times, tuple(shape))).expanded(tuple(shape))

    return stream.made(value, make)


def _edge(stream: Graded, gate: Tensor, value: Tensor, gated: bool) -> Graded:
    """Return an MLP edge: the stream times a gate."""
    scaled, axis = _scaled(stream, gate, value).deferred, stream.axis("mlp")

    def make() -> PathSums:
        return through_watches(stream.made(value, lambda: scaled().further(axis)), "mlp", lambda: gate).deferred()

    return stream.made(value, make, gated)


def _activation(func: Any, name: str, args: Any, kwargs: Any, value: Any) -> Any:
    """Carry path sums through an activation phi, written as phi(z) = g(z) z with the ratio g(z) held fixed.

    At z = 0, where the ratio is 0 / 0, g is the slope of phi between -1e-4 and 1e-4.
    """
    z = args[0] if args else kwargs["input"]
    if not isinstance(z, Graded):
        return freeze_answer(func, name, args, kwargs, value)
    inner = z.value

    def gate() -> Tensor:
        zero = inner.abs() < 1e-30
        ratio: Tensor = value / torch.where(zero, 1.0, inner)
        if not zero.any():
            return ratio
        options = {key: x for key, x in kwargs.items() if key not in ("input", "inplace")}
        step = torch.full((), 1e-4, dtype=inner.dtype, device=inner.device)
        slope = (func(step, *args[1:], **options) - func(-step, *args[1:], **options)) / (2 * step)
        return torch.where(zero, slope, ratio)

    return _edge(z, cached(GATE, gate), value, gated=True)


def _reshaped(func: Any, name: str, args: Any, kwargs: Any, value: Any) -> Any:
    """Follow an elementwise function of an activation's output y that is 0 at y = 0 (relu squared, a clipped gelu). It
    shares the gate of the activation and adds no edge. Any other tensor is frozen, because the function is not linear.
    """
    y = args[0] if args else kwargs["input"]
    clips = name in _CLIPPINGS  # z between two bounds is phi(z) = g(z) z for any z, and adds no edge
    if not isinstance(y, Graded) or not (y.gated or clips) or isinstance(args[1] if len(args) > 1 else None, Tensor):
        return freeze_answer(func, name, args, kwargs, value)
    others = {key: x for key, x in kwargs.items() if key != "input"}
    if float(func(torch.zeros((), dtype=y.value.dtype, device=y.value.device), *args[1:], **others)) != 0:
        return freeze_answer(func, name, args, kwargs, value)
    zero = y.value == 0
    return _scaled(y, torch.where(zero, 1.0 if clips else 0.0, value / torch.where(zero, 1.0, y.value)), value)


def _glu(func: Any, name: str, args: Any, kwargs: Any, value: Any) -> Any:
    """Follow a * sigmoid(b), where a and b are the halves of one tensor."""
    both = args[0] if args else kwargs["input"]
    dim = args[1] if len(args) > 1 else kwargs.get("dim", -1)
    if not isinstance(both, Graded):
        return freeze_answer(func, name, args, kwargs, value)
    dim, sums = dim % value.ndim, both.deferred
    half, gates = both.value.chunk(2, dim)
    stream = both.made(half, lambda: sums().through(lambda p: p.chunk(2, dim + LEADING)[0]))
    return _edge(stream, gates.sigmoid(), value, gated=False)


def _relu(func: Any, name: str, args: Any, kwargs: Any, value: Any) -> Any:
    """Follow relu: the gate is 1 if z > 0, and 0 at z = 0, like torch's derivative."""
    z = args[0] if args else kwargs["input"]
    if not isinstance(z, Graded):
        return freeze_answer(func, name, args, kwargs, value)
    return _edge(z, (value > 0).to(value.dtype), value, gated=True)


def _layer_norm(func: Any, name: str, args: Any, kwargs: Any, value: Any) -> Any:
    """Follow gamma (x - mean x) / sigma + beta with sigma frozen."""
    names = ("input", "normalized_shape", "weight", "bias", "eps")
    arguments = {"weight": None, "bias": None, "eps": 1e-5, **dict(zip(names, args, strict=False)), **kwargs}
    x, axes = arguments["input"], tuple(range(-len(arguments["normalized_shape"]), 0))
    if not isinstance(x, Graded):
        return freeze_answer(func, name, args, kwargs, value)

    def denominator() -> Tensor:
        scale: Tensor = (x.value.var(axes, unbiased=False, keepdim=True) + arguments["eps"]).rsqrt()
        return scale

    scale = cached(DENOMINATOR, denominator)
    sums, constants, weight, bias = x.deferred, x.constants, arguments["weight"], arguments["bias"]
    scale = scale if weight is None else scale * weight.detach()

    def transposed(g: Tensor) -> Tensor:  # subtracting the mean is symmetric
        g = g * scale
        return g.sub_(g.mean(axes, keepdim=True))

    backwards = Backwards(transposed, tuple(value.shape))

    def make() -> PathSums:
        normed = sums().through(lambda p: (p - p.mean(axes, keepdim=True)).mul_(scale), backwards)
        return normed if bias is None else normed.plus_constant(bias.detach(), constants)

    return x.made(value, make)


def _rms_norm(func: Any, name: str, args: Any, kwargs: Any, value: Any) -> Any:
    names = ("input", "normalized_shape", "weight", "eps")
    given = {"weight": None, "eps": None, **dict(zip(names, args, strict=False)), **kwargs}
    x, axes = given["input"], tuple(range(-len(given["normalized_shape"]), 0))
    if not isinstance(x, Graded):
        return freeze_answer(func, name, args, kwargs, value)
    eps = torch.finfo(x.dtype).eps if given["eps"] is None else given["eps"]
    scale = (x.value.square().mean(axes, keepdim=True) + eps).rsqrt()
    weight = given["weight"]
    return _scaled(x, scale if weight is None else scale * weight.detach(), value)


RULES: dict[str, Rule] = {
    **dict.fromkeys(_SCALINGS, _scaling),
    **dict.fromkeys(_ACTIVATIONS, _activation),
    **dict.fromkeys(("relu", "relu_"), _relu),
    **dict.fromkeys(("square", "pow", "__pow__", *_CLIPPINGS), _reshaped),
    "glu": _glu,
    "layer_norm": _layer_norm,
    "rms_norm": _rms_norm,
}
