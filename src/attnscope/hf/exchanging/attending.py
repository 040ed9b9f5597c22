"""Answer an attention call with an installed variant. The arguments of a variant say where it acts:

query, key, value     the variant replaces the model's own attention in the treated heads
mixed, stream         the model's own attention, then the variant on the outputs of the heads
value, stream         the variant on the values, then the model's own attention
value, first_value    the same, with the values of the stack's first block
"""

from __future__ import annotations

from contextlib import ExitStack
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from attnscope.core.errors import RefusalError
from attnscope.core.variant import ATTENTION
from attnscope.hf.anatomy.anatomy import Stack
from attnscope.hf.exchanging.call import AttentionRequest, InstalledVariant, on_variant
from attnscope.hf.intercepting.observed_call import ReportedPattern, VariantReport, is_observed, report
from attnscope.hf.intercepting.owners import arguments, float_tensors
from attnscope.matrix.gate import gate
from attnscope.matrix.plain_attention import plain_attention, softmax_pattern
from attnscope.matrix.visibility import AttentionInputs, mix


def watch_stream(changes: ExitStack, module: nn.Module, stack: Stack) -> None:
    """Store the input of the module in its variant's `held["stream"]` while the module runs."""

    def keep(part: InstalledVariant, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        three = (t for _, t in float_tensors(arguments(args, kwargs)) if t.ndim == 3)
        stream = next((t for t in three if t.shape[-1] == part.size.width), None)
        part.held["stream"] = None if stream is None else stack.turned(stream)

    changes.callback(module.register_forward_pre_hook(on_variant(keep), with_kwargs=True).remove)
    changes.callback(module.register_forward_hook(on_variant(_drop_stream), always_call=True).remove)


def _drop_stream(part: InstalledVariant, *_: Any) -> None:
    part.held.pop("stream", None)


def report_exchange(part: InstalledVariant, call: AttentionInputs) -> None:
    """Report a variant's pattern to observers, and which statistics are valid for it.

    A variant of kind `logits` is softmax attention with other queries and keys, which its fused call shows. Other
    variants compute their pattern, if its columns are tokens. Nothing is computed without an observer.
    """
    if not is_observed():
        return
    card = part.variant.card
    if card.kind == "logits":
        report(VariantReport(logits_of=tuple(range(call.query.shape[1])) if part.heads is None else part.heads))
    elif part.variant.pattern is None or not card.keys_are_tokens:
        reason = (
            f"{card.name} has no weight for each single token, so there is no pattern to measure: measure the model "
            "with another variant, or by its loss."
        )
        report(VariantReport(unseen=reason))
    else:
        weights = ReportedPattern(
            write_out=lambda: pattern_of(part, call),
            visible=call.visible,
            causal=call.causal,
            scale=call.scale,
            holds=frozenset(card.statistics),
            sums_to_one=card.rows_sum_to_one,
        )
        report(VariantReport(weights=weights))


def _treated(part: InstalledVariant, call: AttentionInputs) -> AttentionInputs:
    return call if part.heads is None else call.of_heads(part.heads)


def pattern_of(part: InstalledVariant, call: AttentionInputs) -> Tensor:
    """Return `[batch, head, query, key]`: the variant's pattern on its heads, softmax on the others."""
    assert part.variant.pattern is not None
    own: Tensor = part.variant.pattern(_treated(part, call), **part.arguments)
    if part.heads is None:
        return own
    plain = softmax_pattern(call)
    return plain.index_copy(1, torch.tensor(part.heads, device=plain.device), own.to(plain.dtype))


def answer(part: InstalledVariant, request: AttentionRequest) -> tuple[Tensor, Any]:
    """Return `[batch, token, head, dim]` and attention weights or None, as functions of the registry do."""
    takes, module, value = part.variant.card.takes, request.module, request.value
    if takes == ATTENTION:
        call = request.read()
        if part.held.get("comparing") is not None:
            return _compared(part, call, request.plain())
        rest = None if part.heads is None else request.plain()[0]
        report_exchange(part, call)
        return exchanged(part, call, rest, request.dropout), None
    if takes == ("mixed", "stream"):
        mixed, weights = request.plain()
        heads = mixed.reshape(*mixed.shape[:2], request.query.shape[1], -1)
        stream = stream_of(part, module, heads.shape[1])
        report(VariantReport(attended=heads, gate=_gates(part, heads, stream)))
        return _on_heads(part, heads, stream).reshape(mixed.shape), weights
    if takes == ("value", "stream"):
        stream, offered = stream_of(part, module, value.shape[2]), value.transpose(1, 2)
        changed = _on_heads(part, offered, stream).transpose(1, 2)
        report(VariantReport(value=changed, gate=_gates(part, offered, stream)))
        return request.plain(changed)
    if part.role == "sees":
        call = request.read()
        _refuse_unequal(part, call)
        shape = (request.query.shape[0], request.query.shape[2])
        part.carried.tensors["rule"] = (call.visible, call.causal, shape)
        return request.plain()
    assert takes == ("value", "first_value"), takes
    changed = _with_first(part, module, value)
    report(VariantReport(value=changed))
    return request.plain(changed)


def exchanged(part: InstalledVariant, call: AttentionInputs, rest: Tensor | None, dropout: float) -> Tensor:
    """Return the output `[batch, token, head, dim]`: the variant's for its heads, `rest` for the others."""
    variant, treated = part.variant, _treated(part, call)
    _refuse_unequal(part, call)
    if not dropout:
        mixed: Tensor = variant(treated, **part.arguments)
    elif variant.pattern is None or variant.slow is not None:
        raise RefusalError(
            f"{variant.card.name} has no pattern to which the model's attention dropout ({dropout:g}) could be "
            "applied: set the attention dropout to 0 in the configuration, or choose another variant."
        )
    else:  # dropout of attention weights needs the pattern
        mixed = mix(F.dropout(variant.pattern(treated, **part.arguments), dropout), treated.value)
    mixed = mixed.transpose(1, 2)
    if part.heads is None:
        return mixed.contiguous()
    assert rest is not None
    whole = rest.reshape(*rest.shape[:2], call.query.shape[1], -1)
    return whole.index_copy(2, torch.tensor(part.heads, device=whole.device), mixed.to(whole.dtype))


def _refuse_unequal(part: InstalledVariant, call: AttentionInputs) -> None:
    """Refuse a cache of earlier tokens for variants that count positions or merge tokens."""
    card = part.variant.card
    if call.query.shape[2] != call.key.shape[2] and not (card.cross and card.keys_are_tokens):
        raise RefusalError(
            f"{card.name} needs all tokens at once, but there are {call.query.shape[2]} queries and "
            f"{call.key.shape[2]} keys: run the model without a cache (use_cache=False)."
        )


def _compared(part: InstalledVariant, call: AttentionInputs, theirs: tuple[Tensor, Any]) -> tuple[Tensor, Any]:
    """Store how much the model's attention differs from softmax attention with the same arguments."""
    plain = plain_attention(call).transpose(1, 2)
    own = theirs[0].reshape(plain.shape)
    largest = own.abs().max().clamp_min(1e-30)
    part.held["comparing"] = max(part.held["comparing"], float((own - plain).abs().max() / largest))
    return theirs


def stream_of(part: InstalledVariant, module: nn.Module, tokens: int) -> Tensor:
    """Return the input of the module, as `watch_stream` stored it."""
    stream = part.held.get("stream")
    if not isinstance(stream, Tensor):
        raise RefusalError(
            f"{part.variant.card.name} needs a stream of width {part.size.width}, and {type(module).__name__} has no "
            "such input: choose a variant of kind pattern, logits or block."
        )
    if stream.shape[1] != tokens:
        raise RefusalError(
            f"{part.variant.card.name} got {stream.shape[1]} tokens for {tokens} values, because of a cache of earlier "
            "tokens: run the model without a cache (use_cache=False)."
        )
    return stream


def _on_heads(part: InstalledVariant, heads: Tensor, stream: Tensor) -> Tensor:
    """Apply an output variant to its heads, `[batch, token, head, dim]`."""
    if part.heads is None:
        changed: Tensor = part.variant(heads, stream, **part.arguments)
        return changed
    mine = torch.tensor(part.heads, device=heads.device)
    return heads.index_copy(2, mine, part.variant(heads[:, :, mine], stream, **part.arguments))


def _gates(part: InstalledVariant, heads: Tensor, stream: Tensor) -> Tensor | None:
    """Return the gates `[batch, token, head, 1 or dim]`, which are 1 for untreated heads.

    Return None if the variant is not a gate, or nobody observes it.
    """
    if "gate_weight" not in part.arguments or not is_observed():
        return None
    with torch.no_grad():
        treated, own = heads.shape[2] if part.heads is None else len(part.heads), part.arguments
        gates = gate(stream, own["gate_weight"], own["gate_bias"], own.get("gain", 2.0))
        gates = gates.reshape(*heads.shape[:2], treated, -1)
        if part.heads is None:
            return gates
        mine = torch.tensor(part.heads, device=gates.device)
        return gates.new_ones(*heads.shape[:3], gates.shape[-1]).index_copy(2, mine, gates)


def _with_first(part: InstalledVariant, module: nn.Module, value: Tensor) -> Tensor:
    """Mix in the values of the first block, which stores them for the others. The last block drops them."""
    kept = part.carried.tensors
    if part.role == "first":
        kept["first"] = value
        return value
    first = kept.get("first")
    if first is None or first.shape != value.shape:
        raise RefusalError(
            f"{type(module).__name__} needs the values of the stack's first block, which did not run in this pass: run "
            "the whole model, without gradient checkpointing."
        )
    if part.role == "last":
        kept.clear()
    heads, others = value.transpose(1, 2), first.transpose(1, 2)
    if part.heads is None:
        changed: Tensor = part.variant(heads, others, **part.arguments)
    else:
        mine = torch.tensor(part.heads, device=value.device)
        changed = heads.index_copy(2, mine, part.variant(heads[:, :, mine], others[:, :, mine], **part.arguments))
    return changed.transpose(1, 2)
