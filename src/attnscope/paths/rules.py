"""How each torch function treats a graded tensor: linear, an edge, or frozen (the default for what is not listed).

Functions are told by their name, so that `x.add(y)`, `x + y` and `torch.add(x, y)` are one rule. The value is always
computed by the function itself on plain tensors: it is the model's own number, bit for bit.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from attnscope.paths.graded import LEADING, Frozen, Graded, Parts, matched, passed, plain

# Linear in every tensor they are given, and the same for each part.
_LINEAR = frozenset(
    (
        *("view", "reshape", "transpose", "permute", "contiguous", "flatten", "unflatten", "squeeze", "unsqueeze"),
        *("expand", "expand_as", "repeat", "roll", "flip", "repeat_interleave", "__getitem__", "narrow", "select"),
        *("split", "split_with_sizes", "chunk", "unbind", "tensor_split", "cat", "concat", "stack", "clone"),
        *("detach", "to", "type", "type_as", "float", "double", "half", "bfloat16", "index_select", "gather"),
        *("sum", "mean", "neg", "__neg__", "movedim", "moveaxis", "swapaxes", "swapdims", "t", "mT", "view_as"),
        *("reshape_as", "tile", "hstack", "vstack", "diagonal", "pad", "cumsum"),
    )
)
_JOINS = frozenset(["cat", "concat", "stack", "hstack", "vstack"])
_CASTS = frozenset(["to", "type", "type_as", "float"])
_SAME = frozenset(["dropout", "alpha_dropout", "feature_dropout", "dropout1d", "dropout2d"])  # when not training
# phi with phi(0) = 0, followed as phi(z) = g(z) z; only a gate where they multiply something else (SwiGLU).
_ACTIVATIONS = (
    *("gelu", "silu", "relu", "relu6", "leaky_relu", "elu", "selu", "celu", "mish", "hardswish", "tanh", "hardtanh"),
    *("relu_", "softsign"),
)
_GATES = frozenset(["sigmoid", "tanh", "erf", "softplus", "hardsigmoid", "logsigmoid", "sigmoid_", "tanh_"])
_PRODUCTS = ("matmul", "__matmul__", "__rmatmul__", "bmm", "mm")
_SCALINGS = (
    *("mul", "__mul__", "__rmul__", "multiply", "mul_", "__imul__"),
    *("div", "__div__", "__truediv__", "true_divide", "divide", "div_", "__itruediv__"),
)
_SUMS = (
    *("add", "__add__", "__radd__", "add_", "__iadd__"),
    *("sub", "__sub__", "__rsub__", "rsub", "sub_", "__isub__", "subtract"),
)


def call(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Run a torch function on arguments of which some are graded or frozen."""
    name = getattr(func, "__name__", str(func))
    if name == "__get__":
        name = {"T": "t", "mT": "mT", "data": "detach"}.get(func.__self__.__name__, name)
    if name in _CASTS and _lowers(args, kwargs):
        return args[0]
    with torch._C.DisableTorchFunctionSubclass():
        value = func(*plain(args), **plain(kwargs))
        graded = [leaf for leaf in _leaves((args, kwargs)) if isinstance(leaf, Graded)]
        answer = _rule(name, graded)(func, name, args, kwargs, value) if graded else _freeze(value, name, args, kwargs)
        if _in_place(name) and isinstance(args[0], Tensor):
            return _written_back(args[0], answer)
        return answer


def _lowers(args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
    """Whether a cast would round a float64 tensor to float32, as many norms do: followed tensors stay exact instead."""
    wanted = [x.dtype if isinstance(x, Tensor) else x for x in (*args[1:], *kwargs.values())]
    single = any(w is torch.float32 for w in wanted) or len(wanted) == 0  # `x.float()` has no argument
    return isinstance(args[0], Tensor) and args[0].dtype == torch.float64 and single


Rule = Callable[[Any, str, tuple[Any, ...], dict[str, Any], Any], Any]


def _rule(name: str, graded: list[Graded]) -> Rule:
    if name in _SAME or name in _LINEAR:
        return _linear
    return _NAMED.get(name, _frozen)


def _in_place(name: str) -> bool:
    return name in ("__iadd__", "__isub__", "__imul__", "__itruediv__") or (name[-1] == "_" and name[-2:] != "__")


def _written_back(target: Tensor, answer: Any) -> Any:
    """An in-place function changes the tensor it was called on: its numbers are new already, its parts follow."""
    if isinstance(target, Graded) and isinstance(answer, Graded):
        target.parts, target.gated = answer.parts, answer.gated
        return target
    return answer


def _frozen(func: Any, name: str, args: Any, kwargs: Any, value: Any) -> Any:
    return _freeze(value, name, args, kwargs)


def _freeze(value: Any, name: str, args: Any, kwargs: Any) -> Any:
    """Floating tensors that come out are frozen; shapes, flags and integers are what they are."""
    if isinstance(value, (tuple, list)) and not hasattr(value, "_fields"):
        return type(value)(_freeze(item, name, args, kwargs) for item in value)
    if not isinstance(value, Tensor) or not value.is_floating_point():
        return value
    before = [leaf for leaf in _leaves((args, kwargs)) if isinstance(leaf, Frozen)]
    gate = name in _GATES or any(leaf.gate for leaf in before)
    return Frozen.of(value, before[0].origin if before else name, gate)


def _leaves(thing: Any) -> list[Any]:
    if isinstance(thing, (tuple, list)):
        return [leaf for item in thing for leaf in _leaves(item)]
    if isinstance(thing, dict):
        return [leaf for item in thing.values() for leaf in _leaves(item)]
    return [thing]


# -- linear


def _linear(func: Any, name: str, args: Any, kwargs: Any, value: Any) -> Any:
    """The same function on every part. Plain tensors beside graded ones (in `cat`) are constants."""
    leaves = _leaves((args, kwargs))
    first = next(leaf for leaf in leaves if isinstance(leaf, Graded))
    if any(isinstance(leaf, Frozen) for leaf in leaves):
        return _freeze(value, name, args, kwargs)
    joined = name in _JOINS
    graded = [_lifted(x, first) if joined and isinstance(x, Tensor) else x for x in leaves]
    followed = [x for x in graded if isinstance(x, Graded)]
    parts = matched(followed)
    shape = parts[0].shape[:LEADING]
    if name in _SAME:
        return first.like(value, parts[0])

    def on_part(*one: Tensor) -> Any:
        rest = iter(one)
        filled_args, filled_kwargs = _refill((args, kwargs), joined, rest)
        return func(*filled_args, **filled_kwargs)

    mapped = torch.vmap(on_part)(*(p.flatten(0, LEADING - 1) for p in parts))
    gated = any(x.gated for x in followed)
    if isinstance(value, Tensor):
        return first.like(value, mapped.unflatten(0, shape), gated)
    return type(value)(first.like(v, m.unflatten(0, shape), gated) for v, m in zip(value, mapped, strict=True))


def _refill(thing: Any, joined: bool, rest: Any) -> Any:
    if isinstance(thing, Graded) or (joined and isinstance(thing, Tensor)):
        return next(rest)
    if isinstance(thing, (tuple, list)):
        return type(thing)(_refill(item, joined, rest) for item in thing)
    if isinstance(thing, dict):
        return {key: _refill(item, joined, rest) for key, item in thing.items()}
    return thing


def _lifted(thing: Any, beside: Graded, shape: Any = None) -> Graded:
    """A constant as a graded tensor: one path of length zero that begins here."""
    if isinstance(thing, Graded):
        return thing
    value = thing if isinstance(thing, Tensor) else torch.as_tensor(thing, dtype=beside.value.dtype)
    value = plain(value) if shape is None else plain(value).expand(shape)
    sources = beside.parts.shape[0]
    parts = value.new_zeros((sources, 1, 1, *value.shape))
    if beside.constants is not None:
        parts[beside.constants, 0, 0] = value
    return Graded.of(value, parts, beside.constants, beside.count)


def _sum(func: Any, name: str, args: Any, kwargs: Any, value: Any) -> Any:
    one, other = args[0], args[1] if len(args) > 1 else kwargs["other"]
    if isinstance(one, Frozen) or isinstance(other, Frozen):
        return _freeze(value, name, args, kwargs)
    first = one if isinstance(one, Graded) else other
    alpha = kwargs.get("alpha", 1)
    both = [_lifted(one, first, value.shape), _lifted(other, first, value.shape)]
    left, right = (_fitted(parts, value.ndim) for parts in matched(both))
    if name in ("rsub", "__rsub__"):
        left, right = right, left
    sign = -1 if "sub" in name else 1
    parts = left + right if sign * alpha == 1 else left + sign * alpha * right
    return first.like(value, parts.expand(*parts.shape[:LEADING], *value.shape), any(x.gated for x in both))


def _fitted(parts: Parts, ndim: int) -> Parts:
    """Room for broadcasting: axes of size one between the edge axes and the value's own."""
    lack = ndim - (parts.ndim - LEADING)
    return parts.reshape(*parts.shape[:LEADING], *[1] * lack, *parts.shape[LEADING:])


def _scaling(func: Any, name: str, args: Any, kwargs: Any, value: Any) -> Any:
    one, other = args[0], args[1]
    divides = "div" in name
    if divides and not isinstance(one, Graded):
        return _freeze(value, name, args, kwargs)
    if isinstance(one, Graded) and isinstance(other, Graded):
        if divides or one.gated == other.gated:
            return _freeze(value, name, args, kwargs)  # a product of two followed tensors is not linear
        stream, factor, edge = (other, one, True) if one.gated else (one, other, True)
    else:
        stream, factor = (one, other) if isinstance(one, Graded) else (other, one)
        edge = isinstance(factor, Frozen) and factor.gate
    factor = plain(factor)
    parts = _fitted(stream.parts, value.ndim)
    parts = parts / factor if divides else parts * factor
    if edge:
        parts = stream.shifted(parts, "mlp")
    return stream.like(value, parts.expand(*parts.shape[:LEADING], *value.shape), stream.gated and not edge)


# -- products with matrices: weights, or attention


def _affine(func: Any, name: str, args: Any, kwargs: Any, value: Any) -> Any:
    """F.linear(x, W, b)."""
    x, weight = args[0], plain(args[1] if len(args) > 1 else kwargs["weight"])
    bias = plain(args[2] if len(args) > 2 else kwargs.get("bias"))
    if not isinstance(x, Graded):
        return _freeze(value, name, args, kwargs)
    return _with_bias(x.like(value, F.linear(x.parts, weight)), bias)


def _addmm(func: Any, name: str, args: Any, kwargs: Any, value: Any) -> Any:
    """torch.addmm(b, x, W), as GPT-2's Conv1D calls it; baddbmm has attention logits in it, which freeze."""
    bias, x, weight = args[:3]
    if (
        not isinstance(x, Graded)
        or isinstance(weight, (Graded, Frozen))
        or isinstance(bias, (Graded, Frozen))
        or kwargs
    ):
        return _freeze(value, name, args, kwargs)
    return _with_bias(x.like(value, x.parts @ weight), bias)


def _with_bias(x: Graded, bias: Tensor | None) -> Graded:
    if bias is not None and x.constants is not None:
        x.parts[x.constants, 0, 0] += bias
    return x


def _product(func: Any, name: str, args: Any, kwargs: Any, value: Any) -> Any:
    one, other = args[0], args[1] if len(args) > 1 else kwargs["other"]
    if name == "__rmatmul__":
        one, other = other, one
    if isinstance(one, Graded) and isinstance(other, Graded):
        return _freeze(value, name, args, kwargs)
    if isinstance(one, Graded):
        if isinstance(other, Frozen):
            return _mixed(other.mT, one.like(one.value.mT, one.parts.mT), value.mT, transposed=True)
        weight = plain(other)
        parts = one.parts @ weight if weight.ndim <= 2 else _fitted(one.parts, value.ndim) @ weight
        return one.like(value, parts)
    if isinstance(one, Frozen):
        return _mixed(one, other, value)
    return other.like(value, plain(one) @ _fitted(other.parts, value.ndim))


def _mixed(pattern: Tensor, stream: Graded, value: Tensor, transposed: bool = False) -> Graded:
    """An attention edge: A Y for every part Y. All parts stand side by side as columns, so that it is one product."""
    pattern = plain(pattern)
    parts = _fitted(stream.parts, value.ndim)
    parts = parts.expand(*parts.shape[:LEADING], *value.shape[:-2], *parts.shape[-2:])
    shape = parts.shape[:LEADING]
    columns = parts.flatten(0, LEADING - 1).movedim(0, -2)  # [..., key, part, channel]
    product = pattern.to(columns.dtype) @ columns.flatten(-2)
    product = product.reshape(*product.shape[:-1], *columns.shape[-2:]).movedim(-2, 0)
    new = product.reshape(*shape, *product.shape[1:])
    mixed = stream.like(value, stream.shifted(new, "attention"))
    if transposed:
        return mixed.like(value.mT, mixed.parts.mT)
    return passed(mixed, pattern)


def _einsum(func: Any, name: str, args: Any, kwargs: Any, value: Any) -> Any:
    """One followed tensor among plain or frozen ones; a frozen one makes it an attention edge."""
    equation, operands = args[0], list(args[1]) if isinstance(args[1], (list, tuple)) else list(args[1:])
    graded = [index for index, x in enumerate(operands) if isinstance(x, Graded)]
    if len(graded) != 1 or "..." in equation:
        return _freeze(value, name, args, kwargs)
    at = graded[0]
    stream = operands[at]
    others = [plain(x) for x in operands]

    def on_part(one: Tensor) -> Tensor:
        return torch.einsum(equation, *others[:at], one, *others[at + 1 :])

    every = torch.vmap(on_part)(stream.parts.flatten(0, LEADING - 1))
    parts = every.reshape(*stream.parts.shape[:LEADING], *every.shape[1:])
    frozen = next((x for x in operands if isinstance(x, Frozen)), None)
    if frozen is None:
        return stream.like(value, parts)
    return passed(stream.like(value, stream.shifted(parts, "attention")), plain(frozen))


def _attention(func: Any, name: str, args: Any, kwargs: Any, value: Any) -> Any:
    """F.scaled_dot_product_attention: the pattern is frozen, values are followed."""
    from attnscope.paths.pattern import attention_pattern

    names = ("query", "key", "value", "attn_mask", "dropout_p", "is_causal")
    given = {**dict(zip(names, args, strict=False)), **kwargs}
    values = given["value"]
    if isinstance(values, Frozen):
        return _freeze(value, name, args, kwargs)
    if not isinstance(values, Graded):  # cross-attention to another stack: what comes from there is a constant
        return _lifted(value, next(x for x in _leaves((args, kwargs)) if isinstance(x, Graded)))
    heads = given["query"].shape[1]
    pattern = attention_pattern(**{key: plain(x) for key, x in given.items() if key not in ("value", "dropout_p")})
    if given.get("enable_gqa") and values.shape[1] != heads:
        groups = heads // values.shape[1]
        values = values.like(values.value, values.parts.repeat_interleave(groups, dim=LEADING + 1))
    return _mixed(pattern, values, value)


# -- norms and activations


def _layer_norm(func: Any, name: str, args: Any, kwargs: Any, value: Any) -> Any:
    """gamma (x - mean x) / sigma + beta with sigma frozen."""
    names = ("input", "normalized_shape", "weight", "bias", "eps")
    given = {"weight": None, "bias": None, "eps": 1e-5, **dict(zip(names, args, strict=False)), **kwargs}
    x, axes = given["input"], tuple(range(-len(given["normalized_shape"]), 0))
    if not isinstance(x, Graded):
        return _freeze(value, name, args, kwargs)
    sigma = (x.value.var(axes, unbiased=False, keepdim=True) + given["eps"]).sqrt()
    parts = (x.parts - x.parts.mean(axes, keepdim=True)) / sigma
    return _with_bias(x.like(value, parts if given["weight"] is None else parts * given["weight"]), given["bias"])


def _rms_norm(func: Any, name: str, args: Any, kwargs: Any, value: Any) -> Any:
    names = ("input", "normalized_shape", "weight", "eps")
    given = {"weight": None, "eps": None, **dict(zip(names, args, strict=False)), **kwargs}
    x, axes = given["input"], tuple(range(-len(given["normalized_shape"]), 0))
    if not isinstance(x, Graded):
        return _freeze(value, name, args, kwargs)
    eps = torch.finfo(x.dtype).eps if given["eps"] is None else given["eps"]
    parts = x.parts * (x.value.square().mean(axes, keepdim=True) + eps).rsqrt()
    return x.like(value, parts if given["weight"] is None else parts * given["weight"])


def _activation(func: Any, name: str, args: Any, kwargs: Any, value: Any) -> Any:
    """phi(z) = g(z) z. At z = 0 the ratio is the slope there, which is the limit wherever phi is smooth."""
    z = args[0] if args else kwargs["input"]
    if not isinstance(z, Graded):
        return _freeze(value, name, args, kwargs)
    inner = z.value
    zero = inner.abs() < 1e-30
    step = torch.full((), 1e-4, dtype=inner.dtype)
    options = {key: x for key, x in kwargs.items() if key not in ("input", "inplace")}
    rest = () if name in ("relu", "silu") else args[1:]
    slope = (func(step, *rest, **options) - func(-step, *rest, **options)) / (2 * step) if zero.any() else 0.0
    gate = torch.where(zero, slope, value / torch.where(zero, 1.0, inner))
    return z.like(value, z.shifted(z.parts * gate, "mlp"), gated=True)


_NAMED: dict[str, Rule] = {
    **dict.fromkeys(_SUMS, _sum),
    **dict.fromkeys(_SCALINGS, _scaling),
    **dict.fromkeys(_PRODUCTS, _product),
    **dict.fromkeys(_ACTIVATIONS, _activation),
    "linear": _affine,
    "addmm": _addmm,
    "einsum": _einsum,
    "layer_norm": _layer_norm,
    "rms_norm": _rms_norm,
    "scaled_dot_product_attention": _attention,
}
