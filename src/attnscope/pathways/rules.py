"""How each torch function treats a graded tensor: linear, an edge, or frozen (the default for what is not listed).

Functions are told by their name, so that `x.add(y)`, `x + y` and `torch.add(x, y)` are one rule. The value is always
computed by the function itself on plain tensors: what that function gives for them, and nothing added up from parts.
Parts are computed when they are asked for.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from attnscope.core.errors import RefusalError
from attnscope.pathways import attention_rules, elementwise_rules, linear_rules, multihead_rule, shape_rules
from attnscope.pathways.freezing import Rule, freeze_answer, leaves, lifted
from attnscope.pathways.graded import Frozen, Graded, plain
from attnscope.pathways.memory import remembered
from attnscope.pathways.sums import Deferred, Sums

_NAMED: dict[str, Rule] = {
    **shape_rules.RULES,
    **linear_rules.RULES,
    **attention_rules.RULES,
    **elementwise_rules.RULES,
    **multihead_rule.RULES,
}
_MADE_LIKE = frozenset(["zeros_like", "ones_like", "full_like", "new_zeros", "new_ones", "new_full"])
_CASTS = frozenset(["to", "type", "type_as", "float"])
_IN_PLACE_OPERATORS = frozenset(["__iadd__", "__isub__", "__imul__", "__itruediv__"])


def call(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Run a torch function on arguments of which some are graded or frozen."""
    name = getattr(func, "__name__", str(func))
    if name == "__get__":
        name = {"T": "t", "mT": "mT", "data": "detach"}.get(func.__self__.__name__, name)
    if name in _CASTS and _lowers(args, kwargs):
        return args[0]
    if name == "linear" or name in attention_rules.PRODUCTS:
        args = _as_wide_as_the_stream(args)
    if name in _MADE_LIKE and kwargs.get("dtype") is torch.float32 and _lowers(args, kwargs):
        kwargs = {**kwargs, "dtype": torch.float64}
    if kwargs.get("inplace"):  # what is overwritten could not be divided by; the answer is the same
        kwargs = {**kwargs, "inplace": False}
    with torch._C.DisableTorchFunctionSubclass():
        with torch.no_grad():  # values are what they are; only parts may be differentiated
            value = remembered(name, lambda: func(*plain(args), **plain(kwargs)))
        followed = [leaf for leaf in leaves((args, kwargs)) if isinstance(leaf, Graded)]
        _refuse_writing_into_constants(name, args, kwargs)
        if name in _MADE_LIKE and followed:
            made = lifted(value.clone(), followed[0])  # of the stream's shape, and made of nothing in it
            return made.made(value, made.deferred)  # what is written into it later does not change what it began as
        graded = bool(followed)
        if not graded and name in attention_rules.PRODUCTS:
            rule: Rule = attention_rules.of_another_stack
        else:
            rule = _NAMED.get(name, freeze_answer) if graded else freeze_answer
        answer = rule(func, name, args, kwargs, value)
        if _in_place(name) and args and isinstance(args[0], Tensor):
            return _written_back(args[0], answer)
        return answer


def _lowers(args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
    """Whether a cast would round a float64 tensor to float32, as many norms do: followed tensors stay exact instead."""
    wanted = [x.dtype if isinstance(x, Tensor) else x for x in (*args[1:], *kwargs.values())]
    single = any(w is torch.float32 for w in wanted) or len(wanted) == 0  # `x.float()` has no argument
    return isinstance(args[0], Tensor) and args[0].dtype == torch.float64 and single


def _as_wide_as_the_stream(args: tuple[Any, ...]) -> tuple[Any, ...]:
    """Weights that a model casts to float32 beside a stream whose own cast was left out (experts and their routers)."""
    if not args or not isinstance(args[0], Graded | Frozen) or args[0].dtype != torch.float64:
        return args
    return tuple(a.double() if _narrower(a) else a for a in args)


def _narrower(thing: Any) -> bool:
    return isinstance(thing, Tensor) and not isinstance(thing, Graded | Frozen) and thing.dtype == torch.float32


def _in_place(name: str) -> bool:
    return name in _IN_PLACE_OPERATORS or (name[-1] == "_" and name[-2:] != "__")


def _refuse_writing_into_constants(name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    """A plain tensor that the stream is written into would pass for a constant afterwards, and all sums be right."""
    if not (_in_place(name) or name == "__setitem__") or not args or isinstance(args[0], Graded | Frozen):
        return
    if any(isinstance(leaf, Graded | Frozen) for leaf in leaves((args[1:], kwargs))):
        raise RefusalError(
            f"The model writes its stream into a tensor of constants ('{name}'), and paths cannot be followed there: "
            "choose another model or stack."
        )


def _written_back(target: Tensor, answer: Any) -> Any:
    """An in-place function changes the tensor it was called on: its numbers are new already, its parts follow."""
    if isinstance(target, Graded) and isinstance(answer, Graded):
        target.deferred, target.gated = answer.deferred, answer.gated
        return target
    if isinstance(target, Graded) and isinstance(answer, Frozen):
        target.deferred = Deferred(_lost_in(answer.origin))  # its numbers are new, and what it was made of is not known
    return answer


def _lost_in(origin: str) -> Callable[[], Sums]:
    def make() -> Sums:
        raise RefusalError(
            f"The model writes into its stream with '{origin}', which is not linear and has no rule, so that paths "
            "cannot be followed through it: choose another model or stack."
        )

    return make
