"""The rule for each torch function on a graded tensor: linear, an edge, or frozen (the default).

Functions are identified by name, so `x.add(y)`, `x + y` and `torch.add(x, y)` share a rule. The value is always
computed by the function itself on plain tensors, never summed from parts. Parts are computed on first use.
"""

from __future__ import annotations

import inspect
from typing import Any, NoReturn

import torch
import torch.nn.functional as F
from torch import Tensor

from attnscope.core.errors import RefusalError
from attnscope.pathways import attention_rules, elementwise_rules, linear_rules, shape_rules
from attnscope.pathways.graded import Frozen, Graded, Rule, freeze_answer, leaves, lifted, plain
from attnscope.pathways.network import cached
from attnscope.pathways.sums import Deferred

_SIGNATURE = inspect.signature(F.multi_head_attention_forward)
_RARE = ("bias_k", "bias_v", "use_separate_proj_weight", "add_zero_attn", "static_k", "static_v")


def _multihead(func: Any, name: str, args: Any, kwargs: Any, value: Any) -> Any:
    """Follow nn.MultiheadAttention, which runs as one function, by writing it out in functions that have rules.

    The answer is (mixed tokens, averaged patterns or None).
    """
    bound = _SIGNATURE.bind(*args, **kwargs)
    bound.apply_defaults()
    options = bound.arguments
    values = options["value"]
    unusual = any(options[key] is not None and options[key] is not False for key in _RARE)
    if not isinstance(values, Graded) or values.value.ndim != 3 or unusual:
        return freeze_answer(func, name, args, kwargs, value)
    with torch._C._EnableTorchFunction():
        mixed = _written_out(options, values)
    first = values.made(value[0], mixed.deferred, gated=False)
    return first, None if value[1] is None else Frozen.of(value[1], name)


def _written_out(options: dict[str, Any], values: Graded) -> Graded:
    """Run multi-head attention on [token, batch, width]."""
    heads, (weight_q, weight_k, weight_v) = options["num_heads"], options["in_proj_weight"].chunk(3)
    biases = (None, None, None) if options["in_proj_bias"] is None else options["in_proj_bias"].chunk(3)

    def split(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        projected = F.linear(x, weight, bias)
        return projected.reshape(*projected.shape[:2], heads, -1).permute(1, 2, 0, 3)  # [batch, head, token, channel]

    q = split(options["query"], weight_q, biases[0])
    k = split(options["key"], weight_k, biases[1])
    v = split(values, weight_v, biases[2])
    mixed = F.scaled_dot_product_attention(q, k, v, attn_mask=_mask(options, plain(q)))
    tokens = mixed.permute(2, 0, 1, 3).reshape(q.shape[2], q.shape[0], -1)
    answer = F.linear(tokens, options["out_proj_weight"], options["out_proj_bias"])
    assert isinstance(answer, Graded)
    return answer


def _mask(options: dict[str, Any], q: Tensor) -> Tensor | None:
    """Return the sum of torch's two masks, to be added to the logits."""
    total = None
    for key in ("attn_mask", "key_padding_mask"):
        mask = plain(options[key])
        if mask is None:
            continue
        if mask.dtype == torch.bool:  # True means hidden
            mask = q.new_zeros(mask.shape).masked_fill(mask, -torch.inf)
        if key == "key_padding_mask":
            mask = mask[:, None, None, :]
        elif mask.ndim == 3:
            mask = mask.reshape(q.shape[0], -1, *mask.shape[1:])
        total = mask if total is None else total + mask
    return total


_NAMED: dict[str, Rule] = {
    **shape_rules.RULES,
    **linear_rules.RULES,
    **attention_rules.RULES,
    **elementwise_rules.RULES,
    "multi_head_attention_forward": _multihead,
}
_MADE_LIKE = frozenset(["zeros_like", "ones_like", "full_like", "new_zeros", "new_ones", "new_full"])
_CASTS = frozenset(["to", "type", "type_as", "float"])
_IN_PLACE_OPERATORS = frozenset(["__iadd__", "__isub__", "__imul__", "__itruediv__"])


def call(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Run a torch function with some graded or frozen arguments; both tensor classes dispatch to this function."""
    name = getattr(func, "__name__", str(func))
    if name == "__get__":
        name = {"T": "t", "mT": "mT", "data": "detach"}.get(func.__self__.__name__, name)
    if name in _CASTS and _lowers(args, kwargs):
        return args[0]
    if name == "linear" or name in attention_rules.PRODUCTS:
        args = _as_wide_as_the_stream(args)
    if name in _MADE_LIKE and kwargs.get("dtype") is torch.float32 and _lowers(args, kwargs):
        kwargs = {**kwargs, "dtype": torch.float64}
    if kwargs.get("inplace"):  # gates divide by the input, which must not be overwritten; the answer is the same
        kwargs = {**kwargs, "inplace": False}
    with torch._C.DisableTorchFunctionSubclass():
        if torch.is_grad_enabled():  # only parts may be differentiated
            with torch.no_grad():
                value = cached(name, lambda: func(*plain(args), **plain(kwargs)))
        else:  # the usual case; entering a context thousands of times takes as long as a forward pass
            value = cached(name, lambda: func(*plain(args), **plain(kwargs)))
        followed = [leaf for leaf in leaves((args, kwargs)) if isinstance(leaf, Graded)]
        writes = _in_place(name)
        if writes or name == "__setitem__":
            _refuse_writing_into_constants(name, args, kwargs)
        if name in _MADE_LIKE and followed:
            made = lifted(value.clone(), followed[0])  # it has the stream's shape, but none of its paths
            return made.made(value, made.deferred)  # later writes into `value` must not change the constant
        if followed:
            rule: Rule = _NAMED.get(name, freeze_answer)
        elif name in attention_rules.PRODUCTS:
            rule = attention_rules.of_another_stack
        else:
            rule = freeze_answer
        answer = rule(func, name, args, kwargs, value)
        if writes and args and isinstance(args[0], Tensor):
            return _written_back(args[0], answer)
        return answer


def _lowers(args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
    """Return whether a cast would round float64 to float32, as many norms do; followed tensors stay exact instead."""
    wanted = [x.dtype if isinstance(x, Tensor) else x for x in (*args[1:], *kwargs.values())]
    single = any(w is torch.float32 for w in wanted) or len(wanted) == 0  # `x.float()` has no argument
    return isinstance(args[0], Tensor) and args[0].dtype == torch.float64 and single


def _as_wide_as_the_stream(args: tuple[Any, ...]) -> tuple[Any, ...]:
    """Widen float32 weights to float64 if the stream is float64 because its cast was skipped (experts, routers)."""
    if not args or not isinstance(args[0], Graded | Frozen) or args[0].dtype != torch.float64:
        return args

    def narrow(x: Any) -> bool:
        return isinstance(x, Tensor) and not isinstance(x, Graded | Frozen) and x.dtype == torch.float32

    return tuple(x.double() if narrow(x) else x for x in args)


def _in_place(name: str) -> bool:
    return name in _IN_PLACE_OPERATORS or (name[-1] == "_" and name[-2:] != "__")


def _refuse_writing_into_constants(name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    """Refuse a write of the stream into a plain tensor: it would count as a constant, and no check of sums would
    notice.
    """
    if not args or isinstance(args[0], Graded | Frozen):
        return
    if any(isinstance(leaf, Graded | Frozen) for leaf in leaves((args[1:], kwargs))):
        raise RefusalError(
            f"The model writes its stream into a tensor of constants ('{name}'), and paths cannot be followed there: "
            "choose another model or stack."
        )


def _written_back(target: Tensor, answer: Any) -> Any:
    """Give the target of an in-place function the parts of the answer; its values have already been overwritten."""
    if isinstance(target, Graded) and isinstance(answer, Graded):
        target.deferred, target.gated = answer.deferred, answer.gated
        return target
    if isinstance(target, Graded) and isinstance(answer, Frozen):
        target.deferred = Deferred(lambda: _refuse_lost_stream(answer.origin))
    return answer


def _refuse_lost_stream(origin: str) -> NoReturn:
    raise RefusalError(
        f"The model writes into its stream with '{origin}', which is not linear and has no rule, so that paths "
        "cannot be followed through it: choose another model or stack."
    )
