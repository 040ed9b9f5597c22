"""Relevance that every operation conserves, attention included, computed as a gradient with modified rules.

Layer-wise relevance propagation carries the answer back through the model so that the relevance of an operation's
outputs equals the relevance of its inputs. arXiv:2402.05602 gives rules for transformers. All of them have the form R_x
= x * g, where g is a gradient in which some operations have another derivative, so one backward pass is enough and
fused attention can be used:

    linear map          its own derivative: sum of x g = sum of y g_y, minus the share of the bias
    norm                denominators are constants, x / sigma is linear
    activation          phi(z) = (phi(z) / z) z with a constant ratio
    gate                a sigmoid or tanh that multiplies something is a constant
    product             of k factors that all depend on the input, each gets a share 1/k: attention A V, logits Q K^T,
                        the two halves of a gated MLP
    softmax             its own derivative (a first-order expansion); the difference between sum of s g and the incoming
                        relevance belongs to the constant of the expansion

A fused kernel computes Q K^T, softmax, and A V: its values get 1/2 of their gradient, queries and keys 1/2 of 1/2.

Conservation: answer = sum over tokens <e, g> + the share of constants (biases, positions, shifts of norms, softmax).
Every rule above conserves it, so it holds for the whole model up to rounding, which tests check. A custom autograd
function of a model (Bloom's gelu) keeps its own derivative and breaks the sum.
"""

from collections.abc import Callable, Iterable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.overrides import TorchFunctionMode

from attnscope.core.explanation import explanation
from attnscope.matrix.relevance import TokenScores, TokenVectors

Rule = Callable[[Any, str, tuple[Any, ...], dict[str, Any]], Any]
"""`rule(func, name, args, kwargs)` returns the output of an operation with another derivative."""

_ACTIVATIONS = frozenset(
    ("gelu", "silu", "relu", "relu6", "leaky_relu", "elu", "selu", "celu", "mish", "hardswish", "hardtanh", "softsign")
)
_GATES = frozenset(("sigmoid", "erf", "hardsigmoid"))
_DENOMINATORS = frozenset(("rsqrt", "sqrt", "std", "var", "norm", "vector_norm"))
_ENTRYWISE = frozenset(("mul", "__mul__", "__rmul__", "multiply"))
_MATRICES = frozenset(("matmul", "__matmul__", "__rmatmul__", "bmm", "mm", "baddbmm", "einsum"))
_QUOTIENTS = frozenset(("div", "__truediv__", "true_divide", "divide"))
_NORMS = frozenset(("layer_norm", "rms_norm"))
_POWERS = frozenset(("pow", "__pow__", "square"))
_KEEP_GATES = frozenset(("add", "__add__", "__radd__", "mul", "__mul__", "__rmul__", "to", "type_as", "contiguous"))
_TINY = 1e-4  # the ratio phi(z) / z at z = 0 is computed from +-_TINY


@explanation(
    title="Attention-aware LRP",
    summary="The answer propagated back through every operation; only constants take a part of it.",
    citation="arXiv:2402.05602",
    formula="<e, g>, g a gradient whose norms, gates and activations are constants and whose products are shared",
    cost="one backward pass",
    signed=True,
    adds_up="the answer, less what constants (biases, positions, softmax) take",
)
def attention_lrp(embedding: TokenVectors, gradient_under: Callable[..., dict[str, Tensor]]) -> TokenScores:
    gradient = gradient_under(Conserving())
    return {stack: (vectors * gradient[stack]).sum(-1) for stack, vectors in embedding.items()}


class _Shared(torch.autograd.Function):
    """Return the same tensor, but multiply its gradient by a share."""

    @staticmethod
    def forward(context: Any, tensor: Tensor, share: float) -> Tensor:
        context.share = share
        return tensor.view_as(tensor)

    @staticmethod
    def backward(context: Any, *gradients: Any) -> Any:
        return gradients[0] * context.share, None


class _As(torch.autograd.Function):
    """Return the numbers of `value`, bit for bit, with the derivative of `linear`."""

    @staticmethod
    def forward(context: Any, value: Tensor, linear: Tensor) -> Tensor:
        return value.clone()

    @staticmethod
    def backward(context: Any, *gradients: Any) -> Any:
        return None, gradients[0]


def _as(value: Tensor, linear: Tensor) -> Tensor:
    answer: Tensor = _As.apply(value.detach(), linear)  # type: ignore[no-untyped-call]
    return answer


def _shared(tensor: Tensor, share: float) -> Tensor:
    answer: Tensor = _Shared.apply(tensor, share)  # type: ignore[no-untyped-call]
    return answer


def _follows(argument: Any) -> bool:
    """Return whether an argument is a tensor that depends on the input."""
    return isinstance(argument, Tensor) and argument.requires_grad and argument.is_floating_point()


class Conserving(TorchFunctionMode):
    """A mode in which operations on tensors that depend on the input follow the rules above. Values do not change."""

    def __init__(self) -> None:
        super().__init__()
        self._gates: dict[int, Tensor] = {}  # kept alive, so that no other tensor can get the same id

    def __torch_function__(
        self, func: Any, types: Iterable[type], args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        name = getattr(func, "__name__", "")
        arguments = (*args, *kwargs.values())
        if not torch.is_grad_enabled() or not any(map(_follows, _flat(arguments))):
            return func(*args, **kwargs)
        rule = self._rule(func, name)
        if rule is not None:
            return rule(func, name, args, kwargs)
        answer = func(*args, **kwargs)
        return self._gate(answer) if name in _KEEP_GATES and any(id(x) in self._gates for x in arguments) else answer

    def _rule(self, func: Any, name: str) -> Rule | None:
        """Return the rule of an operation, or None if it keeps its own derivative."""
        if func is F.scaled_dot_product_attention:
            return _fused
        if name == "tanh":
            return lambda *call: self._gate(_activated(*call))
        return self._product if name in _ENTRYWISE or name in _MATRICES else _RULES.get(name)

    def _gate(self, answer: Tensor) -> Tensor:
        self._gates[id(answer)] = answer
        return answer

    def _product(self, func: Any, name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        factors = _flat((*args[name == "baddbmm" :], *kwargs.values()))  # the first argument of baddbmm is added
        mine = [factor for factor in factors if _follows(factor)]
        gates = [factor for factor in mine if id(factor) in self._gates]
        if name in _ENTRYWISE and len(mine) > 1 and len(gates) == 1:
            return _with(func, args, kwargs, {id(gates[0]): gates[0].detach()})
        if len(mine) > 1:
            return _with(func, args, kwargs, {id(factor): _shared(factor, 1 / len(mine)) for factor in mine})
        answer = func(*args, **kwargs)
        return self._gate(answer) if gates and name in _ENTRYWISE else answer


def _flat(items: Iterable[Any]) -> list[Any]:
    return [leaf for item in items for leaf in (_flat(item) if isinstance(item, (tuple, list)) else [item])]


def _with(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any], by: dict[int, Tensor]) -> Any:
    """Call the function with some of its tensors replaced."""
    return func(*_exchanged(args, by), **{name: _exchanged(value, by) for name, value in kwargs.items()})


def _exchanged(item: Any, by: dict[int, Tensor]) -> Any:
    if isinstance(item, (tuple, list)):
        return type(item)(_exchanged(inner, by) for inner in item)
    return by.get(id(item), item)


def _fused(func: Any, name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Apply fused attention; both of its products are shared among the factors that depend on the input."""
    names = ("query", "key", "value")
    named = {**dict(zip(names, args[:3], strict=False)), **kwargs}
    q, k, v = (named[side] for side in names)
    rest = {key: value for key, value in kwargs.items() if key not in names}
    of_logits = 1 / max(1, _follows(q) + _follows(k))
    of_pattern = 1 / max(1, _follows(v) + (_follows(q) or _follows(k)))
    shares = (of_pattern * of_logits, of_pattern * of_logits, of_pattern)
    shared = (_shared(t, s) if _follows(t) else t for t, s in zip((q, k, v), shares, strict=True))
    return func(*shared, *args[3:], **rest)


def _constant(func: Any, name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    answer = func(*args, **kwargs)
    return answer.detach() if isinstance(answer, Tensor) else answer


def _quotient(func: Any, name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Divide with the denominator treated as a constant."""
    return func(*(x.detach() if place == 1 and _follows(x) else x for place, x in enumerate(args)), **kwargs)


def _activated(func: Any, name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Tensor:
    z, rest = (args[0], args[1:]) if args else (kwargs["input"], ())
    more = {name: value for name, value in kwargs.items() if name not in ("input", "inplace")}
    with torch.no_grad():
        value = func(z, *rest, **more)
        near = torch.full_like(z[..., :1], _TINY)
        at_zero = (func(near, *rest, **more) - func(-near, *rest, **more)) / (2 * _TINY)
        ratio = torch.where(z == 0, at_zero, value / torch.where(z == 0, 1.0, z))
    return _as(value, z * ratio)


def _power(func: Any, name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Tensor:
    """Compute x^n as x^(n-1) x, with the first factor constant."""
    value = func(*args, **kwargs)
    base = args[0]
    with torch.no_grad():
        ratio = torch.where(base == 0, torch.zeros_like(base), value / torch.where(base == 0, 1.0, base))
    return _as(value, base * ratio)


def _normed(func: Any, name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Tensor:
    """Compute (x - mean) / sigma * weight + bias, with sigma constant."""
    names = ("input", "normalized_shape", "weight", *(("bias",) if name == "layer_norm" else ()), "eps")
    options = {**dict(zip(names, args, strict=False)), **kwargs}
    value, x = func(*args, **kwargs), options["input"]
    axes = tuple(range(-len(options["normalized_shape"]), 0))
    centred = x - x.mean(axes, keepdim=True) if name == "layer_norm" else x
    eps = options.get("eps")
    eps = (1e-5 if name == "layer_norm" else torch.finfo(x.dtype).eps) if eps is None else eps
    linear = centred * (centred.detach().square().mean(axes, keepdim=True) + eps).rsqrt()
    linear = linear if options.get("weight") is None else linear * options["weight"]
    return _as(value, linear if options.get("bias") is None else linear + options["bias"])


_RULES: dict[str, Rule] = {
    **dict.fromkeys(_DENOMINATORS | _GATES, _constant),
    **dict.fromkeys(_ACTIVATIONS, _activated),
    **dict.fromkeys(_NORMS, _normed),
    **dict.fromkeys(_POWERS, _power),
    **dict.fromkeys(_QUOTIENTS, _quotient),
}
