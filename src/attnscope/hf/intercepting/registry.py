"""The attention registry of transformers: most models ask it for a function and call that with queries,
keys, values.

Inside the context, what the registry hands out is wrapped: the wrapper calls the very function the model
asked for, with the very arguments, and looks on. Implementation, masks and configuration stay as they
are, so nothing can fall out of step with them (a function registered without its mask function would
receive no mask at all).
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

Receiver = Callable[[nn.Module, ObservedCall], None]


@dataclass(frozen=True, eq=False)
class _Watcher:
    ours: Callable[[nn.Module], bool]
    masks: MaskReader
    seen: Receiver
    as_pattern: Callable[[nn.Module], bool]
    thread: int = field(default_factory=get_ident)  # in which it watches: forwards in others are not its own


_WATCHERS: list[_Watcher] = []
_ORIGINAL: list[Any] = []  # what the registry did before the first watcher came
_CHANGING = Lock()


@contextmanager
def watched_registry(
    ours: Callable[[nn.Module], bool],
    masks: MaskReader,
    seen: Receiver,
    as_pattern: Callable[[nn.Module], bool],
) -> Iterator[None]:
    """While active, `seen(module, observed)` follows every attention call of modules that are `ours`.

    `as_pattern` says for which modules the logits cannot be rebuilt from queries and keys, so that the map the model
    itself made is handed on. Contexts may overlap in any order: the registry is wrapped once, for all watchers, and is
    its old self when the last one has gone.
    """
    watcher = _Watcher(ours, masks, seen, as_pattern)
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

        def attend(
            module: nn.Module,
            query: Tensor,
            key: Tensor,
            value: Tensor,
            attention_mask: Any = None,
            *rest: Any,
            **more: Any,
        ) -> Any:
            me = get_ident()
            watchers = [one for one in tuple(_WATCHERS) if one.thread == me and one.ours(module)]
            if not watchers:
                return function(module, query, key, value, attention_mask, *rest, **more)
            _refuse_unreadable(module, attention_mask, implementation)
            calls: list[FusedCall] = []
            with FusedWatch(calls.append), unwatched(), collecting_reports() as heard:
                result = function(module, query, key, value, attention_mask, *rest, **more)
            told = heard[-1] if heard else None
            inner = _own_call(calls, told)
            asked = more | {"flash": inner is None and function is not default and "flash" in str(implementation)}
            mixed = _by_head(query.shape[1], result[0].detach())
            with unwatched():
                for watcher in watchers:
                    maps = result[1] if watcher.as_pattern(module) else None
                    scores = interface_scores(
                        module, query, key, attention_mask, inner=inner, asked=asked, masks=watcher.masks, maps=maps
                    )
                    values = value.detach()[:, :, : scores.key.shape[2]]
                    passed_on = PassedOn(result[0], partial(_by_head, query.shape[1]))
                    observed = ObservedCall(scores, values, mixed, "interface", (query, value), passed_on=passed_on)
                    if told is not None:
                        observed = with_report(observed, told, calls, watcher.masks)
                    watcher.seen(module, observed)
            return result

        return attend

    return get_interface


def _own_call(calls: list[FusedCall], told: VariantReport | None) -> FusedCall | None:
    """The fused call that is the model's attention. One that an exchanged pattern makes inside itself (the blocks of a
    local window, say) is another thing, with keys of its own."""
    if told is not None and told.logits_of is not None:
        return calls[0]
    foreign = told is not None and told.weights is not None
    return calls[0] if len(calls) == 1 and not foreign else None


def _by_head(heads: int, output: Tensor) -> Tensor:
    """Some functions give their heads side by side."""
    return output.reshape(*output.shape[:2], heads, -1) if output.ndim == 3 else output


def _refuse_unreadable(module: nn.Module, mask: Any, implementation: str) -> None:
    """FlexAttention, for one, takes its mask as a program (BlockMask), not as numbers."""
    if mask is not None and not isinstance(mask, Tensor):
        raise RefusalError(
            f"{type(module).__name__} is given a {type(mask).__name__} as its mask ({implementation}), which cannot be "
            "read: load the model with attn_implementation='sdpa' or 'eager'."
        )


def interface_scores(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    mask: Any,
    *,
    inner: FusedCall | None,
    asked: dict[str, Any],
    masks: MaskReader,
    maps: Tensor | None,
) -> Scores:
    """What an attention function does to logits, from its arguments and the fused call it made, if any."""
    query, key = query.detach(), key.detach()
    causal, window, lse = False, None, None
    scale = asked.get("scaling")
    if inner is not None:
        causal, lse = inner.causal, inner.lse
        key = key[:, :, : inner.key.shape[2]]  # a cache longer than the queries is cut before a causal fused call
        scale = inner.scale if scale is None else scale
        if mask is None and inner.mask is not None and query.shape[2] > 1:
            # Causality that was asked for beside a position bias is melted into the mask of the fused call.
            corner = inner.mask[..., 0, -1]
            causal = bool((corner <= torch.finfo(query.dtype).min / 2).all())
    elif asked["flash"]:
        # Flash functions take causality and windows as arguments, and padding as a row of keys.
        flag = asked.get("is_causal")
        causal = bool(getattr(module, "is_causal", True) if flag is None else flag) and query.shape[2] > 1
        window = asked.get("sliding_window")
        mask = mask[:, None, None, :].bool() if isinstance(mask, Tensor) and mask.ndim == 2 else mask
    if isinstance(mask, Tensor) and mask.shape[-1] > key.shape[2]:
        mask = mask[..., : key.shape[2]]
    rule = masks.read(mask, query.shape[2])
    added = masks.read(asked.get("position_bias"), query.shape[2])
    rule = _joined(rule, added)
    sinks = asked.get("s_aux")
    return Scores(
        query=query,
        key=key,
        scale=query.shape[-1] ** -0.5 if scale is None else float(scale),
        causal=causal or rule.causal,
        window=rule.window if window is None else int(window),
        allowed=rule.allowed,
        bias=rule.bias,
        softcap=asked.get("softcap"),
        sinks=None if sinks is None else sinks.detach().reshape(-1),
        lse=lse,
        pattern=None if maps is None else maps.detach(),
    )


def _joined(mask: Rule, added: Rule) -> Rule:
    """A mask and a position bias act together."""
    if added.bias is None and added.allowed is None:
        return mask
    bias = added.bias
    if mask.bias is not None:
        bias = mask.bias if bias is None else mask.bias + bias
    allowed = mask.allowed
    if added.allowed is not None:
        allowed = added.allowed if allowed is None else torch.logical_and(allowed, added.allowed)
    return Rule(mask.causal or added.causal, mask.window, allowed, bias)
