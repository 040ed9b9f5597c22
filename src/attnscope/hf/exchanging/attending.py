"""How an installed variant answers an attention call: the model's own attention, with the variant where it acts.

query, key, value     another attention instead of the model's own, on the heads that are treated
mixed, stream         the model's own attention, then the variant on what heads give
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
from attnscope.hf.anatomy.anatomy import Stack
from attnscope.hf.exchanging.call import AttentionInputs, AttentionRequest, InstalledVariant, on_variant
from attnscope.hf.intercepting.observed_call import ReportedPattern, VariantReport, is_observed, report
from attnscope.hf.intercepting.owners import arguments, float_tensors
from attnscope.matrix.gate import gate
from attnscope.matrix.plain_attention import plain_attention, softmax_pattern
from attnscope.matrix.visibility import for_every_head, mix


def watch_stream(changes: ExitStack, module: nn.Module, stack: Stack) -> None:
    """Keep the tokens that the module is given in its variant's `held["stream"]` while the module runs."""

    def keep(part: InstalledVariant, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        three = (t for _, t in float_tensors(arguments(args, kwargs)) if t.ndim == 3)
        stream = next((t for t in three if t.shape[-1] == part.size.width), None)
        part.held["stream"] = None if stream is None else stack.turned(stream)

    changes.callback(module.register_forward_pre_hook(on_variant(keep), with_kwargs=True).remove)
    changes.callback(module.register_forward_hook(on_variant(_drop_stream), always_call=True).remove)


def _drop_stream(part: InstalledVariant, *_: Any) -> None:
    part.held.pop("stream", None)


def report_exchange(part: InstalledVariant, call: AttentionInputs) -> None:
    """Report an exchanged attention to observers: its own pattern, and which statistics of it hold.

    A variant of kind `logits` is softmax attention of other queries and keys: those that the fused kernel was given.
    Any other writes its pattern out by its own slow form, if the columns of its pattern are tokens. Nothing is computed
    without an observer.
    """
    if not is_observed():
        return
    card = part.variant.card
    if card.kind == "logits":
        report(VariantReport(logits_of=tuple(range(call.query.shape[1])) if part.heads is None else part.heads))
    elif part.variant.pattern is None or not card.keys_are_tokens:
        reason = (
            f"{card.name} does not give every token a weight of its own, so there is no pattern of tokens to look at: "
            "measure the model with another variant, or by its loss."
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


def _treated(part: InstalledVariant, call: AttentionInputs, *tensors: Tensor) -> tuple[list[Tensor], dict[str, Any]]:
    """Return the tensors of the treated heads only, and the rule between them."""
    visible = call.visible
    if part.heads is None:
        return list(tensors), call.rule
    mine = list(part.heads)
    if visible is not None and visible.shape[1] != 1:
        visible = visible[:, mine]
    own = [for_every_head(tensor, call.query.shape[1])[:, mine] for tensor in tensors]
    return own, {**call.rule, "visible": visible}


def pattern_of(part: InstalledVariant, call: AttentionInputs) -> Tensor:
    """Return `[batch, head, query, key]`: the variant's pattern on its heads, softmax on the others."""
    assert part.variant.pattern is not None
    (query, key), rule = _treated(part, call, call.query, call.key)
    own: Tensor = part.variant.pattern(query, key, **rule, **part.arguments)
    if part.heads is None:
        return own
    plain = softmax_pattern(call.query, call.key, **call.rule)
    return plain.index_copy(1, torch.tensor(part.heads, device=plain.device), own.to(plain.dtype))


def answer(part: InstalledVariant, request: AttentionRequest) -> tuple[Tensor, Any]:
    """Return `[batch, token, head, dim]` and no weights, as the registry wants it."""
    takes, module, value = part.variant.card.takes, request.module, request.value
    if takes == ("query", "key", "value"):
        call = request.read()
        if part.held.get("comparing") is not None:
            return _compared(part, call, request.plain())
        rest = None if part.heads is None else request.plain()[0]
        report_exchange(part, call)
        return exchanged(part, call, rest), None
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


def exchanged(part: InstalledVariant, call: AttentionInputs, rest: Tensor | None) -> Tensor:
    """Return the variant on its heads, `rest` on the others; `[batch, token, head, dim]`."""
    variant = part.variant
    _refuse_unequal(part, call)
    (query, key, value), rule = _treated(part, call, call.query, call.key, call.value)
    if not call.dropout:
        mixed: Tensor = variant(query, key, value, **rule, **part.arguments)
    elif variant.pattern is None or variant.slow is not None:
        raise RefusalError(
            f"{variant.card.name} has no pattern of tokens from which the model's attention dropout ({call.dropout:g}) "
            "could take some away: set the dropout of attention to 0 in its configuration, or choose another variant."
        )
    else:  # dropout of attention weights in training: the pattern is written out for it
        mixed = mix(F.dropout(variant.pattern(query, key, **rule, **part.arguments), call.dropout), value)
    mixed = mixed.transpose(1, 2)
    if part.heads is None:
        return mixed.contiguous()
    assert rest is not None
    whole = rest.reshape(*rest.shape[:2], call.query.shape[1], -1)
    return whole.index_copy(2, torch.tensor(part.heads, device=whole.device), mixed.to(whole.dtype))


def _refuse_unequal(part: InstalledVariant, call: AttentionInputs) -> None:
    """Refuse a cache of earlier tokens for variants that count places or join tokens."""
    card = part.variant.card
    if call.query.shape[2] != call.key.shape[2] and not (card.cross and card.keys_are_tokens):
        raise RefusalError(
            f"{card.name} needs all tokens at once, and there are {call.query.shape[2]} queries for "
            f"{call.key.shape[2]} keys: run the model without a cache (use_cache=False)."
        )


def _compared(part: InstalledVariant, call: AttentionInputs, theirs: tuple[Tensor, Any]) -> tuple[Tensor, Any]:
    """Note how far the model's attention is from softmax attention of the call as it was read; done once."""
    plain = plain_attention(call.query, call.key, call.value, **call.rule).transpose(1, 2)
    own = theirs[0].reshape(plain.shape)
    largest = own.abs().max().clamp_min(1e-30)
    part.held["comparing"] = max(part.held["comparing"], float((own - plain).abs().max() / largest))
    return theirs


def stream_of(part: InstalledVariant, module: nn.Module, tokens: int) -> Tensor:
    """Return the input of the module, as `watch_stream` stored it."""
    stream = part.held.get("stream")
    if not isinstance(stream, Tensor):
        raise RefusalError(
            f"{part.variant.card.name} reads what {type(module).__name__} is given, and no stream of width "
            f"{part.size.width} was: choose a variant of kind pattern, logits or block."
        )
    if stream.shape[1] != tokens:
        raise RefusalError(
            f"{part.variant.card.name} was given {stream.shape[1]} tokens for {tokens} values (a cache of earlier "
            "tokens): run the model without a cache (use_cache=False)."
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
    """Return `[batch, token, head, 1 or dim]`, 1 for heads that are not treated.

    None if the variant is no gate, or is not observed.
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
    """Mix in the values of the first block. It stores them for the other blocks, and the last block drops them."""
    kept = part.carried.tensors
    if part.role == "first":
        kept["first"] = value
        return value
    first = kept.get("first")
    if first is None or first.shape != value.shape:
        raise RefusalError(
            f"{type(module).__name__} has no values of the stack's first block at hand (blocks run alone, or with "
            "gradient checkpointing): run the whole model, without gradient checkpointing."
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
