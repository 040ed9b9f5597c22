"""Rules for functions that only move, cut, copy or sum entries, and therefore act on every part alike.

The most frequent functions act on all parts at once, without touching the leading axes. The others go through `vmap`,
which works for any function but costs more per call.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from typing import Any

import torch
from torch import Tensor

from attnscope.pathways.graded import Frozen, Graded, Rule, freeze_answer, leaves, lifted, plain
from attnscope.pathways.sums import LEADING, Backwards, PathSums, Sums, split_axis

OnParts = Callable[[Tensor], Any]


def _moved(dim: int) -> int:
    """Return an axis of the value as an axis of its parts; negative axes are unchanged."""
    return dim + LEADING if dim >= 0 else dim


def _sizes(rest: tuple[Any, ...]) -> tuple[int, ...]:
    return tuple(rest[0]) if len(rest) == 1 and isinstance(rest[0], (tuple, list)) else rest


def _reshape(ndim: int, *sizes: Any) -> OnParts | None:
    wanted = _sizes(sizes)
    if not all(isinstance(size, int) for size in wanted):
        return None  # `view` with a dtype
    return lambda p: p.reshape(*p.shape[:LEADING], *wanted)


def _expand(ndim: int, *sizes: Any) -> OnParts:
    wanted = _sizes(sizes)
    return lambda p: Sums(p).fitted(len(wanted)).parts.expand(*p.shape[:LEADING], *wanted)


def _permute(ndim: int, *dims: Any) -> OnParts:
    order = [d % ndim + LEADING for d in _sizes(dims)]
    return lambda p: p.permute(0, 1, 2, *order)


def _flatten(ndim: int, start_dim: int = 0, end_dim: int = -1) -> OnParts:
    return lambda p: p.flatten(_moved(start_dim), _moved(end_dim))


def _along(function: Callable[..., Any]) -> Callable[..., OnParts | None]:
    """Return a builder for functions of (tensor, sizes, dim)."""
    return lambda ndim, sizes, dim=0: lambda p: function(p, sizes, dim=_moved(dim))


def _squeeze(ndim: int, dim: Any = None) -> OnParts | None:
    return (lambda p: p.squeeze(_moved(dim))) if isinstance(dim, int) else None


def _item(ndim: int, index: Any) -> OnParts | None:
    places = index if isinstance(index, tuple) else (index,)
    if any(isinstance(p, bool) or not (p is None or p is ... or isinstance(p, int | slice)) for p in places):
        return None
    return lambda p: p[(slice(None),) * LEADING + places]


def _total(function: Callable[..., Tensor]) -> Callable[..., OnParts | None]:
    """Return the rule for `sum` or `mean` over named axes."""

    def build(ndim: int, dim: Any = None, keepdim: bool = False) -> OnParts | None:
        axes = (dim,) if isinstance(dim, int) else dim
        if not axes:
            return None
        return lambda p: function(p, [_moved(axis) for axis in axes], keepdim=keepdim)

    return build


def _same(ndim: int, *_: Any, **__: Any) -> OnParts:
    return lambda p: p


# Each entry builds a function of all parts from the value's ndim and the function's arguments; None means: use vmap.
_DIRECT: dict[str, Callable[..., OnParts | None]] = {
    **dict.fromkeys(("view", "reshape"), _reshape),
    **dict.fromkeys(
        ("transpose", "swapaxes", "swapdims"),
        lambda ndim, dim0, dim1: lambda p: p.transpose(_moved(dim0), _moved(dim1)),
    ),
    **dict.fromkeys(("contiguous", "clone", "detach"), _same),
    **dict.fromkeys(
        ("dropout", "alpha_dropout", "feature_dropout", "dropout1d", "dropout2d"), _same
    ),  # no-op in evaluation
    **dict.fromkeys(("neg", "__neg__"), lambda ndim: torch.neg),
    "expand": _expand,
    "permute": _permute,
    "flatten": _flatten,
    "unflatten": lambda ndim, dim, sizes: lambda p: split_axis(p, _moved(dim), *sizes),
    "unsqueeze": lambda ndim, dim: lambda p: p.unsqueeze(_moved(dim)),
    "squeeze": _squeeze,
    "unbind": lambda ndim, dim=0: lambda p: p.unbind(_moved(dim)),
    "__getitem__": _item,
    "mT": lambda ndim: lambda p: p.mT,
    "sum": _total(torch.sum),
    "mean": _total(torch.mean),
    **{name: _along(getattr(Tensor, name)) for name in ("split", "split_with_sizes", "chunk")},
}
_TURNS = frozenset(["transpose", "swapaxes", "swapdims", "mT"])
_KEEP_ORDER = frozenset(["view", "reshape", "contiguous", "clone", "detach", "flatten", "unflatten", "unsqueeze"])
_MAPPED = (
    *("expand_as", "repeat", "roll", "flip", "repeat_interleave", "narrow", "select", "tensor_split", "to", "type"),
    *("type_as", "float", "double", "half", "bfloat16", "index_select", "gather", "movedim", "moveaxis", "t"),
    *("view_as", "reshape_as", "tile", "diagonal", "pad", "cumsum", "unfold", "interpolate"),
    *("avg_pool1d", "avg_pool2d", "adaptive_avg_pool1d", "adaptive_avg_pool2d"),
)
_SUMMING = ("sum", "mean", "cumsum")
_SHAPED_LIKE = ("expand_as", "view_as", "reshape_as", "type_as")


def _on_every_part(func: Any, name: str, args: Any, kwargs: Any, value: Any) -> Any:
    """Apply the function to every part of one tensor."""
    stream = args[0] if args else kwargs.get("input")
    if name in _SHAPED_LIKE and isinstance(stream, Tensor) and not isinstance(stream, Graded | Frozen):
        return value  # a constant in the stream's shape is still a constant
    padding = name == "pad" and (args[3] if len(args) > 3 else kwargs.get("value"))  # added to every part
    if padding or not isinstance(stream, Graded) or any(isinstance(leaf, Frozen) for leaf in leaves((args, kwargs))):
        return freeze_answer(func, name, args, kwargs, value)
    others = {key: x for key, x in kwargs.items() if key != "input"}
    on_parts = None
    if name in _DIRECT:
        with suppress(TypeError):  # the builder does not know some keyword arguments
            on_parts = _DIRECT[name](stream.value.ndim, *args[1:], **others)
    if on_parts is None:
        on_parts = _mapped(func, plain(args[1:]), plain(others))
    answers = _answers(stream, on_parts, value, _backwards(name, stream, on_parts, value))
    if name in _SUMMING:
        answers.gated = False  # a sum over tokens or channels is not a gate
    return answers


def _backwards(name: str, stream: Graded, on_parts: OnParts, value: Any) -> Backwards | None:
    """Return the transpose of the most frequent functions; for functions that keep the order of entries, a reshape."""
    if not isinstance(value, Tensor) or value.numel() != stream.value.numel():
        return None
    if name in _TURNS:
        return Backwards(on_parts, tuple(value.shape))
    if name in _KEEP_ORDER:
        shape = tuple(stream.value.shape)
        return Backwards(lambda g: g.reshape(*g.shape[:LEADING], *shape), tuple(value.shape))
    return None


def _blanked(func: Any, name: str, args: Any, kwargs: Any, value: Any) -> Any:
    """Follow entries set to 0 by a mask, like padding. Entries set to another value do not come from the stream."""
    options = {**dict(zip(("input", "mask", "value"), args, strict=False)), **kwargs}
    stream, mask, fill = options["input"], options["mask"], options["value"]
    frozen = not isinstance(stream, Graded) or isinstance(mask, Frozen) or isinstance(fill, Graded | Frozen)
    if frozen or float(fill) != 0:
        return freeze_answer(func, name, args, kwargs, value)
    return _answers(stream, lambda p: p.masked_fill(mask, 0), value)


def _mapped(func: Any, rest: Any, others: Any) -> OnParts:
    def on_parts(parts: Tensor) -> Any:
        mapped = torch.vmap(lambda part: func(part, *rest, **others))(parts.flatten(0, LEADING - 1))
        if isinstance(mapped, Tensor):
            return split_axis(mapped, 0, *parts.shape[:LEADING])
        return type(mapped)(split_axis(m, 0, *parts.shape[:LEADING]) for m in mapped)

    return on_parts


def _answers(stream: Graded, on_parts: OnParts, value: Any, backwards: Backwards | None = None) -> Any:
    sums = stream.deferred
    if isinstance(value, Tensor):
        return stream.made(value, lambda: sums().through(on_parts, backwards))

    def nth(index: int) -> Callable[[], PathSums]:
        return lambda: sums().through(lambda p: on_parts(p)[index])

    return type(value)(stream.made(v, nth(index)) for index, v in enumerate(value))


def _joined(func: Any, name: str, args: Any, kwargs: Any, value: Any) -> Any:
    """Concatenate or stack tensors; plain tensors among them are constants."""
    tensors = list(args[0] if args else kwargs["tensors"])
    if any(isinstance(x, Frozen) for x in tensors):
        return freeze_answer(func, name, args, kwargs, value)
    first = next(x for x in tensors if isinstance(x, Graded))
    every = [lifted(x, first) for x in tensors]
    cells = [x.deferred for x in every]
    rest, others = args[1:], {key: x for key, x in kwargs.items() if key != "tensors"}

    def make() -> PathSums:
        return cells[0]().joined([cell() for cell in cells], lambda *parts: func(parts, *rest, **others))

    return first.made(value, make, any(x.gated for x in every))


RULES: dict[str, Rule] = {
    **dict.fromkeys((*_DIRECT, *_MAPPED), _on_every_part),
    **dict.fromkeys(("masked_fill", "masked_fill_"), _blanked),
    **dict.fromkeys(("cat", "concat", "stack", "hstack", "vstack"), _joined),
}
