"""How a part answers an attention call: the model's own attention, with the variant where it acts.

query, key, value     another attention instead of the model's own, on the heads that are treated
mixed, stream         the model's own attention, then the variant on what heads give
value, stream         the variant on the values, then the model's own attention
value, first_value    the same, with the values of the stack's first block
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import ExitStack
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from attnscope.core.errors import RefusalError
from attnscope.hf.anatomy.anatomy import Stack
from attnscope.hf.exchanging.call import Call, InstalledVariant, read_call, variant_in
from attnscope.hf.intercepting.observed_call import ReportedPattern, VariantReport, is_observed, report
from attnscope.hf.intercepting.slots import arguments, float_tensors
from attnscope.matrix.gate import gate
from attnscope.matrix.plain_attention import plain_attention, softmax_pattern
from attnscope.matrix.visibility import for_every_head, mix

# What an attention module is given, kept for the part below it while the module runs.


def watch_stream(changes: ExitStack, module: nn.Module, stack: Stack) -> None:
    """Before every call of the module its tokens are put where the part finds them; after it they are let go."""
    before = _keep_flipped if stack.sequence_first else _keep
    changes.callback(module.register_forward_pre_hook(before, with_kwargs=True).remove)
    changes.callback(module.register_forward_hook(_let_go, always_call=True).remove)


def _keep(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    part = variant_in(module)
    if part is not None:
        fitting = (t for _, t in float_tensors(arguments(args, kwargs)) if t.ndim == 3)
        part.held["stream"] = next((t for t in fitting if t.shape[-1] == part.size.width), None)


def _keep_flipped(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    _keep(module, args, kwargs)
    part = variant_in(module)
    if part is not None and part.held["stream"] is not None:
        part.held["stream"] = part.held["stream"].transpose(0, 1)


def _let_go(module: nn.Module, args: tuple[Any, ...], output: Any) -> None:
    part = variant_in(module)
    if part is not None:
        part.held.pop("stream", None)


# What whoever looks on is told of an attention that was exchanged: its own pattern, and which statistics of it hold.
#
# A variant of kind `logits` is softmax attention of other queries and keys: those that the fused kernel was given. Any
# other writes its pattern out by its own slow form. Where columns of a pattern are no tokens, there is none to look at.


def report_exchange(part: InstalledVariant, call: Call) -> None:
    """Nothing is computed unless somebody listens and asks."""
    if not is_observed():
        return
    card = part.variant.card
    heads = tuple(range(call.query.shape[1])) if part.heads is None else part.heads
    if card.kind == "logits":
        report(VariantReport(logits_of=heads))
    elif part.variant.pattern is None or not card.keys_are_tokens:
        report(
            VariantReport(
                unseen=f"{card.name} does not give every token a weight of its own, so there is no pattern of tokens "
                "to look at: measure the model with another variant, or by its loss."
            )
        )
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


def pattern_of(part: InstalledVariant, call: Call) -> Tensor:
    """`[batch, head, query, key]`: the variant's pattern on its heads, softmax on the others."""
    assert part.variant.pattern is not None
    if part.heads is None:
        whole: Tensor = part.variant.pattern(call.query, call.key, **call.rule, **part.arguments)
        return whole
    plain = softmax_pattern(call.query, call.key, **call.rule)
    mine, count, visible = list(part.heads), call.query.shape[1], call.visible
    visible = visible[:, mine] if visible is not None and visible.shape[1] != 1 else visible
    key = for_every_head(call.key, count)[:, mine]
    rule = {**call.rule, "visible": visible}
    own: Tensor = part.variant.pattern(call.query[:, mine], key, **rule, **part.arguments)
    return plain.index_copy(1, torch.tensor(mine, device=plain.device), own.to(plain.dtype))


Original = Callable[..., tuple[Tensor, Any]]


def answer(
    part: InstalledVariant,
    original: Original,
    module: nn.Module,
    tensors: tuple[Tensor, Tensor, Tensor],
    mask: Any,
    asked: Mapping[str, Any],
    *,
    fused: bool,
) -> tuple[Tensor, Any]:
    """`[batch, token, head, dim]` and no weights, as the registry wants it."""
    query, key, value = tensors
    takes = part.variant.card.takes
    if takes == ("query", "key", "value"):
        call = read_call(module, tensors, mask, asked, fused=fused)
        if part.held.get("comparing") is not None:
            return _compared(part, call, original(module, query, key, value, mask, **asked))
        rest = None if part.heads is None else original(module, query, key, value, mask, **asked)[0]
        report_exchange(part, call)
        return exchanged(part, call, rest), None
    if takes == ("mixed", "stream"):
        mixed, weights = original(module, query, key, value, mask, **asked)
        shape = mixed.shape
        heads = mixed.reshape(*mixed.shape[:2], query.shape[1], -1)
        stream = stream_of(part, module, heads.shape[1])
        report(VariantReport(attended=heads, gate=_gates(part, heads, stream)))
        return _on_heads(part, heads, stream).reshape(shape), weights
    if takes == ("value", "stream"):
        stream, offered = stream_of(part, module, value.shape[2]), value.transpose(1, 2)
        changed = _on_heads(part, offered, stream).transpose(1, 2)
        report(VariantReport(value=changed, gate=_gates(part, offered, stream)))
        return original(module, query, key, changed, mask, **asked)
    if part.role == "sees":
        call = read_call(module, tensors, mask, asked, fused=fused)
        _refuse_unequal(part, call)
        part.carried.tensors["rule"] = (call.visible, call.causal, (query.shape[0], query.shape[2]))
        return original(module, query, key, value, mask, **asked)
    assert takes == ("value", "first_value"), takes
    changed = _with_first(part, module, value)
    report(VariantReport(value=changed))
    return original(module, query, key, changed, mask, **asked)


def exchanged(part: InstalledVariant, call: Call, rest: Tensor | None) -> Tensor:
    """The variant on its heads, `rest` on the others; `[batch, token, head, dim]`."""
    variant, count = part.variant, call.query.shape[1]
    _refuse_unequal(part, call)
    query, key, value, visible = call.query, call.key, call.value, call.visible
    if part.heads is not None:
        mine = list(part.heads)
        query, key, value = (for_every_head(one, count)[:, mine] for one in (query, key, value))
        visible = visible[:, mine] if visible is not None and visible.shape[1] != 1 else visible
    rule = {**call.rule, "visible": visible}
    if call.dropout:
        mixed = _dropped(part, (query, key, value), rule, call.dropout)
    else:
        mixed = variant(query, key, value, **rule, **part.arguments)
    mixed = mixed.transpose(1, 2)
    if part.heads is None:
        return mixed.contiguous()
    assert rest is not None
    whole = rest.reshape(*rest.shape[:2], count, -1)
    return whole.index_copy(2, torch.tensor(part.heads, device=whole.device), mixed.to(whole.dtype))


def _dropped(
    part: InstalledVariant, tensors: tuple[Tensor, Tensor, Tensor], rule: dict[str, Any], share: float
) -> Tensor:
    """Dropout of attention weights, as the model asks for it in training: the pattern is written out for it."""
    variant, (query, key, value) = part.variant, tensors
    if variant.pattern is None or variant.slow is not None:
        raise RefusalError(
            f"{variant.card.name} has no pattern of tokens from which the model's attention dropout ({share:g}) could "
            "take some away: set the dropout of attention to 0 in its configuration, or choose another variant."
        )
    return mix(F.dropout(variant.pattern(query, key, **rule, **part.arguments), share), value)


def _refuse_unequal(part: InstalledVariant, call: Call) -> None:
    """With a cache of earlier tokens a variant that counts places, or joins tokens, does not know where it is."""
    card = part.variant.card
    if call.query.shape[2] != call.key.shape[2] and not (card.cross and card.keys_are_tokens):
        raise RefusalError(
            f"{card.name} needs all tokens at once, and there are {call.query.shape[2]} queries for "
            f"{call.key.shape[2]} keys: run the model without a cache (use_cache=False)."
        )


def _compared(part: InstalledVariant, call: Call, theirs: tuple[Tensor, Any]) -> tuple[Tensor, Any]:
    """Whether the call, as it was read, is the attention that the model computes: asked once, on the way in."""
    plain = plain_attention(call.query, call.key, call.value, **call.rule).transpose(1, 2)
    own = theirs[0].reshape(plain.shape)
    largest = own.abs().max().clamp_min(1e-30)
    part.held["comparing"] = max(part.held["comparing"], float((own - plain).abs().max() / largest))
    return theirs


def stream_of(part: InstalledVariant, module: nn.Module, tokens: int) -> Tensor:
    """What the module was given, as the hook before it saw it."""
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
    """An output variant on its heads, `[batch, token, head, dim]`."""
    if part.heads is None:
        changed: Tensor = part.variant(heads, stream, **part.arguments)
        return changed
    mine = torch.tensor(part.heads, device=heads.device)
    return heads.index_copy(2, mine, part.variant(heads[:, :, mine], stream, **part.arguments))


def _gates(part: InstalledVariant, heads: Tensor, stream: Tensor) -> Tensor | None:
    """`[batch, token, head, 1 or dim]`, 1 for heads that are not treated; None where the variant is no gate, or nobody
    listens."""
    if "gate_weight" not in part.arguments or not is_observed():
        return None
    with torch.no_grad():
        treated = heads.shape[2] if part.heads is None else len(part.heads)
        own = part.arguments
        gates = gate(stream, own["gate_weight"], own["gate_bias"], own.get("gain", 2.0))
        gates = gates.reshape(*heads.shape[:2], treated, -1)
        if part.heads is None:
            return gates
        mine = torch.tensor(part.heads, device=gates.device)
        return gates.new_ones(*heads.shape[:3], gates.shape[-1]).index_copy(2, mine, gates)


def _with_first(part: InstalledVariant, module: nn.Module, value: Tensor) -> Tensor:
    """The first block keeps its values for the others; the last of them lets go."""
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
