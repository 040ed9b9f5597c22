"""Observe transformers' attention registry, from which most models get their attention function.

Inside the context, the function that the registry returns is wrapped. The wrapper calls the original function with the
same arguments and observes the call. The implementation, the masks and the configuration do not change. (A new function
would need a mask function of the same name, or it would get no masks.)
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from threading import Lock, get_ident
from typing import Any

import torch
from torch import Tensor, nn
from transformers.modeling_utils import AttentionInterface

from attnscope.core.errors import RefusalError
from attnscope.data.frame import PassedOn
from attnscope.hf.intercepting.masks import MaskReader, Rule
from attnscope.hf.intercepting.observed_call import ObservedCall, VariantReport, collecting_reports, with_report
from attnscope.hf.intercepting.torch_calls import FusedCall, FusedWatch, unwatched
from attnscope.matrix.scores import Scores


@dataclass(frozen=True, eq=False)
class RegistryWatcher:
    """Calls `seen(module, observed)` after every attention call of a module for which `ours` is true.

    `as_pattern` says for which modules the logits cannot be computed from queries and keys. For these, the model's own
    pattern is used.
    """

    ours: Callable[[nn.Module], bool]
    masks: MaskReader
    seen: Callable[[nn.Module, ObservedCall], None]
    as_pattern: Callable[[nn.Module], bool]
    thread: int = field(default_factory=get_ident)  # forward passes in other threads are ignored


_WATCHERS: list[RegistryWatcher] = []
_ORIGINAL: list[Any] = []  # the registry's method before the first watcher
_CHANGING = Lock()


@contextmanager
def watched_registry(watcher: RegistryWatcher) -> Iterator[None]:
    """Observe the registry. Contexts may overlap: it is wrapped once, and the last one to leave restores it."""
    with _CHANGING:
        if not _WATCHERS:
            _ORIGINAL[:] = [AttentionInterface.get_interface]
            AttentionInterface.get_interface = _watching(AttentionInterface.get_interface)
        _WATCHERS.append(watcher)
    try:
        yield
    finally:
        with _CHANGING:
            _WATCHERS.remove(watcher)
            if not _WATCHERS:
                AttentionInterface.get_interface = _ORIGINAL.pop()


def _watching(original: Callable[..., Any]) -> Callable[..., Any]:
    def get_interface(registry: AttentionInterface, implementation: str, default: Callable[..., Any]) -> Any:
        function = original(registry, implementation, default)
        flash = function is not default and "flash" in str(implementation)

        def attend(module: nn.Module, *args: Any, **options: Any) -> Any:
            thread = get_ident()
            watchers = [w for w in tuple(_WATCHERS) if w.thread == thread and w.ours(module)]
            if not watchers:
                return function(module, *args, **options)
            call = _Call(module, flash, *_named(args, options))
            _refuse_unreadable(module, call.mask, implementation)
            fused: list[FusedCall] = []
            with FusedWatch(fused.append), unwatched(), collecting_reports() as reports:
                result = function(module, *args, **options)
            with unwatched():
                for watcher in watchers:
                    maps = result[1] if watcher.as_pattern(module) else None
                    watcher.seen(module, _observed(call, result[0], maps, fused, reports, watcher.masks))
            return result

        return attend

    return get_interface


@dataclass(frozen=True)
class _Call:
    """The arguments of a call to an attention function of the registry."""

    module: nn.Module
    flash: bool
    query: Tensor
    key: Tensor
    value: Tensor
    mask: Any
    options: dict[str, Any]


def _named(args: tuple[Any, ...], options: dict[str, Any]) -> tuple[Any, ...]:
    """Return query, key, value, mask and the other options, however they were passed."""
    names = ("query", "key", "value", "attention_mask")
    given = {**dict(zip(names, args, strict=False)), **options}
    return (*(given.pop(name, None) for name in names), given)


def _observed(
    call: _Call,
    output: Tensor,
    maps: Tensor | None,
    fused: list[FusedCall],
    reports: list[VariantReport],
    masks: MaskReader,
) -> ObservedCall:
    last = reports[-1] if reports else None
    scores = _scores(call, _own_call(fused, last), masks, maps)
    by_head = partial(_by_head, call.query.shape[1])
    observed = ObservedCall(
        scores,
        call.value.detach()[:, :, : scores.key.shape[2]],
        by_head(output.detach()),
        "interface",
        (call.query, call.value),
        passed_on=PassedOn(output, by_head),
    )
    return observed if last is None else with_report(observed, last, fused, masks)


def _own_call(fused: list[FusedCall], by_variant: VariantReport | None) -> FusedCall | None:
    """Return the fused call that is the model's attention, or None.

    An installed variant may make several fused calls with other keys, such as the blocks of a local window.
    """
    if by_variant is not None and by_variant.logits_of is not None:
        return fused[0]
    foreign = by_variant is not None and by_variant.weights is not None
    return fused[0] if len(fused) == 1 and not foreign else None


def _by_head(heads: int, output: Tensor) -> Tensor:
    """Split the last axis into heads if the function returned them concatenated."""
    return output.reshape(*output.shape[:2], heads, -1) if output.ndim == 3 else output


def _refuse_unreadable(module: nn.Module, mask: Any, implementation: str) -> None:
    """Refuse masks that are not tensors, such as the BlockMask of FlexAttention."""
    if mask is not None and not isinstance(mask, Tensor):
        raise RefusalError(
            f"The mask of {type(module).__name__} is a {type(mask).__name__} ({implementation}), which cannot be read: "
            "load the model with attn_implementation='sdpa' or 'eager'."
        )


def _scores(call: _Call, inner: FusedCall | None, masks: MaskReader, maps: Tensor | None) -> Scores:
    """Return the scores of a call, from its arguments and the fused call that it made, if any."""
    query, key, mask, options = call.query.detach(), call.key.detach(), call.mask, call.options
    causal, window, lse = False, None, None
    scale = options.get("scaling")
    if inner is not None:
        causal, lse = inner.causal, inner.lse
        key = key[:, :, : inner.key.shape[2]]  # a cache longer than the queries is cut before a causal fused call
        scale = inner.scale if scale is None else scale
        if mask is None and inner.mask is not None and query.shape[2] > 1:
            # With a position bias, causality is part of the mask of the fused call.
            corner = inner.mask[..., 0, -1]
            causal = bool((corner <= torch.finfo(query.dtype).min / 2).all())
    elif call.flash:
        # Flash functions take causality and windows as arguments, and padding as a row of keys.
        flag = options.get("is_causal")
        causal = bool(getattr(call.module, "is_causal", True) if flag is None else flag) and query.shape[2] > 1
        window = options.get("sliding_window")
        mask = mask[:, None, None, :].bool() if isinstance(mask, Tensor) and mask.ndim == 2 else mask
    if isinstance(mask, Tensor) and mask.shape[-1] > key.shape[2]:
        mask = mask[..., : key.shape[2]]
    bias = masks.read(options.get("position_bias"), query.shape[2])
    rule = _joined(masks.read(mask, query.shape[2]), bias)
    sinks = options.get("s_aux")
    return Scores(
        query=query,
        key=key,
        scale=query.shape[-1] ** -0.5 if scale is None else float(scale),
        causal=causal or rule.causal,
        window=rule.window if window is None else int(window),
        allowed=rule.allowed,
        bias=rule.bias,
        softcap=options.get("softcap"),
        sinks=None if sinks is None else sinks.detach().reshape(-1),
        lse=lse,
        pattern=None if maps is None else maps.detach(),
    )


def _joined(mask: Rule, added: Rule) -> Rule:
    """Return a mask and a position bias as one rule."""
    if added.bias is None and added.allowed is None:
        return mask
    bias, allowed = added.bias, mask.allowed
    if mask.bias is not None:
        bias = mask.bias if bias is None else mask.bias + bias
    if added.allowed is not None:
        allowed = added.allowed if allowed is None else torch.logical_and(allowed, added.allowed)
    return Rule(mask.causal or added.causal, mask.window, allowed, bias)
