"""Observe attention in torch functions: fused calls, and softmaxes whose result multiplies values.

`FusedWatch` observes every call of `scaled_dot_product_attention`. On a CPU, if torch would choose the flash kernel, it
calls that kernel directly: the result has the same bits, and the log-sum-exp of every row, which the public function
drops, costs nothing.

`SoftmaxWatch` also observes models that compute attention step by step: it follows the result of a softmax over the
last axis through dropout, casts, views and head masks to the product with the values. A softmax that multiplies nothing
(a router, a classifier) is ignored.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from threading import local
from types import FunctionType
from typing import Any

import torch
import torch.nn.functional as F
from jaxtyping import Float, Shaped
from torch import Tensor
from torch.overrides import TorchFunctionMode

from attnscope.matrix.attend import attend_with_lse

Scope = tuple[int, ...]  # numbers of the module calls that are open, outermost first


@dataclass(frozen=True)
class FusedCall:
    """One call of `scaled_dot_product_attention`, with the log-sum-exp of each row if the kernel returns it."""

    query: Float[Tensor, "*batch query dim"]
    key: Float[Tensor, "*batch2 key dim"]
    value: Float[Tensor, "*batch2 key value_dim"]
    mask: Shaped[Tensor, " ..."] | None
    causal: bool
    scale: float | None
    output: Float[Tensor, "*batch query value_dim"]
    lse: Float[Tensor, "b h query"] | None


@dataclass(frozen=True)
class Product:
    equation: str
    left: Shaped[Tensor, " ..."]
    right: Shaped[Tensor, " ..."]


@dataclass(frozen=True)
class WrittenOutCall:
    """A pattern that the model computed step by step, the values that it multiplied, and the result."""

    equation: str  # einsum notation: pattern,value->output
    pattern: Float[Tensor, " ..."]
    value: Float[Tensor, " ..."]
    output: Float[Tensor, " ..."]
    logits: Product | None  # the product of queries and keys that gave the logits, if it was observed
    begun: Scope = ()  # where the softmax was computed


@dataclass(frozen=True)
class ReportedCall:
    """A call that is not inferred from torch functions: the code that made it describes it as an `ObservedCall`."""

    observed: Any


Seen = FusedCall | WrittenOutCall | ReportedCall


def fused_attention(
    query: Tensor, key: Tensor, value: Tensor, attn_mask: Tensor | None = None, *more: Any, **options: Any
) -> FusedCall:
    """Compute `scaled_dot_product_attention` to the same bits, with log-sum-exps if possible."""
    options |= zip(("dropout_p", "is_causal"), more, strict=False)  # the others are keyword-only
    output, lse = attend_with_lse(query, key, value, attn_mask=attn_mask, **options)
    causal, scale = options.get("is_causal", False), options.get("scale")
    return FusedCall(query, key, value, attn_mask, causal, scale, output, lse)


class FusedWatch(TorchFunctionMode):
    """Passes every fused attention call to `seen` while active."""

    def __init__(self, seen: Callable[[FusedCall], None]) -> None:
        super().__init__()
        self._seen = seen

    def __torch_function__(
        self, func: Any, types: Iterable[type], args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        if func is not F.scaled_dot_product_attention:
            return func(*args, **(kwargs or {}))
        call = fused_attention(*args, **(kwargs or {}))
        self._seen(call)
        return call.output


def _opened(function: Any) -> FunctionType:
    """Return a copy of a torch function; function modes see the calls inside the copy, not the call of the copy."""
    names = {**function.__globals__, "has_torch_function": lambda _tensors: False}
    opened = FunctionType(function.__code__, names, function.__name__, function.__defaults__, function.__closure__)
    opened.__kwdefaults__ = function.__kwdefaults__
    return opened


_OPENED_MULTI_HEAD = _opened(F.multi_head_attention_forward)
_PRODUCTS = frozenset({"matmul", "__matmul__", "bmm", "baddbmm", "einsum"})
_TRANSPARENT = frozenset(  # functions that models apply between the softmax and the product with the values
    {"dropout", "to", "type", "type_as", "float", "half", "bfloat16", "double", "clone", "contiguous"}
    | {"view", "view_as", "reshape", "flatten", "unflatten", "squeeze", "unsqueeze", "expand", "__getitem__"}
    | {"mul", "__mul__", "__rmul__", "masked_fill", "where", "nan_to_num", "narrow"}
)


class _Active(local):
    """The softmax watches that are active in this thread."""

    def __init__(self) -> None:
        self.watches: list[SoftmaxWatch] = []


_ACTIVE = _Active()


class SoftmaxWatch(TorchFunctionMode):
    """Passes fused calls, and softmaxes whose result multiplies values, to `seen` while active.

    `scope` returns the numbers of the open module calls.
    """

    def __init__(self, seen: Callable[[Seen], None], scope: Callable[[], Scope] = tuple) -> None:
        super().__init__()
        self.seen, self._scope = seen, scope
        self._followed: dict[int, tuple[Tensor, Scope]] = {}
        self._products: dict[tuple[int, ...], Product] = {}
        self.begun: list[Scope] = []  # where softmaxes over the last axis were computed
        self.used: list[Scope] = []  # where the softmaxes that multiplied values were computed
        self.lost: list[Scope] = []  # where the result of a softmax entered an unsupported product
        self.muted = False  # set while another route observes the same calls

    def __enter__(self) -> SoftmaxWatch:
        _ACTIVE.watches.append(self)
        super().__enter__()  # type: ignore[no-untyped-call]
        return self

    def __exit__(self, *error: Any) -> None:
        super().__exit__(*error)  # type: ignore[no-untyped-call]
        _ACTIVE.watches.pop()

    def forget(self) -> None:
        """Release all tensors that are being followed."""
        self._followed.clear()
        self._products.clear()

    def __torch_function__(
        self, func: Any, types: Iterable[type], args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        if self.muted:
            return func(*args, **kwargs)
        name = getattr(func, "__name__", "")
        if func is F.multi_head_attention_forward:
            with self:
                return _OPENED_MULTI_HEAD(*args, **kwargs)
        if func is F.scaled_dot_product_attention:
            call = fused_attention(*args, **kwargs)
            self.seen(call)
            return call.output
        result = func(*args, **kwargs)
        if name == "softmax":
            axis = args[1] if len(args) > 1 else kwargs.get("dim")
            if result.ndim >= 3 and axis in (-1, result.ndim - 1):
                self._followed[id(result)] = (result, self._scope())
                self.begun.append(self._scope())
        elif name in _PRODUCTS:
            self._multiply(name, args, kwargs, result)
        elif self._followed and name in _TRANSPARENT:
            source = next((id(a) for a in args if id(a) in self._followed), None)
            if source is not None:
                self._followed[id(result)] = (result, self._followed[source][1])
        return result

    def _multiply(self, name: str, args: tuple[Any, ...], kwargs: dict[str, Any], result: Tensor) -> None:
        named = [kwargs[word] for word in ("input", "batch1", "mat2", "other", "batch2") if word in kwargs]
        factors = (*(args[1:] if name in ("baddbmm", "einsum") else args), *named)
        if len(factors) == 1 and isinstance(factors[0], (list, tuple)):
            factors = tuple(factors[0])
        if len(factors) < 2 or not all(isinstance(f, Tensor) for f in factors[:2]):
            return
        left, right = factors[:2]
        equation = args[0].replace(" ", "") if name == "einsum" else _product_equation(left, right)
        readable = equation is not None and "." not in equation and "->" in equation
        axes = mixing_axes(equation) if equation is not None and readable else None
        followed = left if id(left) in self._followed else right if id(right) in self._followed else None
        if followed is not None and followed.ndim >= 4 and (axes is None or followed is right):
            self.lost.append((*self._scope(),))
        if equation is None or not readable:
            return
        if id(left) in self._followed and axes is not None:
            logits = self._products.get(tuple(left.shape)) or self._by_size(left)
            begun = self._followed[id(left)][1]
            self.used.append(begun)
            self.seen(WrittenOutCall(equation, left, right, result, logits, begun))
            self.forget()
        else:
            self._products.setdefault(tuple(result.shape), Product(equation, left, right))

    def _by_size(self, pattern: Tensor) -> Product | None:
        """Return the first product of the right size: logits may be reshaped before the softmax."""
        for shape, product in self._products.items():
            if shape[-2:] == tuple(pattern.shape[-2:]) and torch.Size(shape).numel() == pattern.numel():
                return product
        return None


def _product_equation(left: Tensor, right: Tensor) -> str | None:
    """Return the einsum of a matrix product over shared leading axes, or None without such axes."""
    if left.ndim != right.ndim or left.ndim < 3:
        return None
    leading = "abcdefg"[: left.ndim - 2]
    return f"{leading}ij,{leading}jz->{leading}iz"


def mixing_axes(equation: str) -> tuple[str, str, str] | None:
    """Return the letters of query, key and channel if the equation multiplies a pattern with values, or None."""
    inputs, out = equation.split("->")
    left, right = inputs.split(",")
    keys = [c for c in left if c in right and c not in out]
    queries = [c for c in left if c in out and c not in right]
    channels = [c for c in right if c in out and c not in left]
    one_each = len(keys) == len(queries) == len(channels) == 1
    return (queries[0], keys[0], channels[0]) if one_each else None


def is_watched() -> bool:
    """Return whether a watch of this thread is active and not muted."""
    return any(not watch.muted for watch in _ACTIVE.watches)


def announce(call: ReportedCall) -> None:
    """Pass the call to the innermost watch that is not muted."""
    watch = next((watch for watch in reversed(_ACTIVE.watches) if not watch.muted), None)
    if watch is not None:
        watch.seen(call)


@contextmanager
def unwatched() -> Iterator[None]:
    """Mute all active watches of this thread inside this context."""
    before = [(watch, watch.muted) for watch in dict.fromkeys(_ACTIVE.watches)]
    for watch, _ in before:
        watch.muted = True
    try:
        yield
    finally:
        for watch, was_muted in before:
            watch.muted = was_muted
