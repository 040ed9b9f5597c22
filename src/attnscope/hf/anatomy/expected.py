"""What a model's configuration and its module tree say should attend, beside what was seen to.

Attention that the routes do not see must not pass for attention that is not there: what does not add up is said in a
note that goes with every survey, and where nothing was seen at all it is a refusal.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator
from typing import Any

from torch import nn

from attnscope.core.errors import RefusalError
from attnscope.core.words import count, ranges
from attnscope.hf.anatomy.call_log import ATTENTION, UNSEEN, CallLog, unseen_attention
from attnscope.hf.anatomy.stacks import Placement


def refuse_without_attention(model: nn.Module, census: CallLog) -> None:
    """A refusal that says why: no attention at all, or attention of a kind that is not seen."""
    if census.attention:
        return
    name = type(model).__name__
    unseen = unseen_attention(census)
    if unseen:
        how = (
            "what its softmax gives does not multiply values of tokens in one product (blocks or windows of keys, or "
            "gates over channels)"
            if census.loose
            else "it takes no softmax over keys (hashing, kernels, correlation or linear attention)"
        )
        raise RefusalError(
            f"{name} attends in {_names(unseen)}, in a way that is not supported: {how}. A model of the same kind with "
            "full softmax attention can be measured."
        )
    holding = {call.around for call in census.calls}
    inner = (call for n, call in enumerate(census.calls) if n in holding and not _OUTER.search(call.class_name))
    mixers = tuple(dict.fromkeys(call.class_name for call in inner if _MIXER.search(call.class_name)))
    what = f" (its blocks mix tokens by {_names(mixers)})" if mixers else ""
    raise RefusalError(
        f"{name} has no softmax attention{what}: no call of transformers' attention functions or of "
        "scaled_dot_product_attention was made, and no softmax multiplied values. Choose a model with attention."
    )


def what_does_not_add_up(
    model: nn.Module, census: CallLog, placement: Placement, sequences: int | None
) -> tuple[str, ...]:
    """Sentences on what the configuration promises and the probe did not see, and on what it cannot show."""
    return (
        *_unseen(model, census),
        *_stream_only(placement),
        *_between_shapes(placement),
        *_uneven(placement),
        *_folded(placement, sequences),
        *_against_configuration(model, placement),
    )


_MIXER = re.compile(r"mixer|mamba|rwkv|retention|recurrent|conv1d|fourier|pooling|hyena", re.IGNORECASE)


_OUTER = re.compile(r"Model$|For[A-Z]|Block$|Layer$|Encoder$|Decoder$")


def _unseen(model: nn.Module, census: CallLog) -> Iterator[str]:
    """Modules that are called attention, ran, took softmaxes, and in which no attention was seen."""
    loose = {number for scope in census.loose for number in scope}
    seen = {inside for attention in census.attention for inside in attention.inside}
    names = {
        census.calls[n].class_name
        for n in loose - seen
        if re.search("attention|attn", census.calls[n].class_name, re.IGNORECASE)
    }
    if names:
        yield (
            f"INCOMPLETE: {type(model).__name__} also attends in {_names(sorted(names))}, in pieces (blocks or windows "
            "of keys) that are not supported: none of that attention is in this survey."
        )


def _stream_only(placement: Placement) -> Iterator[str]:
    """Blocks of a stack that have no softmax attention, by kind."""
    for stack in dict.fromkeys(block.stack for block in placement.blocks):
        own = [block for block in placement.blocks if block.stack == stack]
        for kind in dict.fromkeys(b.kind for b in own if b.kind != ATTENTION):
            layers = [b.layer for b in own if b.kind == kind]
            which = f"Block{'s' if len(layers) > 1 else ''} {ranges(layers)} of the {stack} ({kind})"
            if kind == UNSEEN:
                yield f"{which}: the stream is measured, the attention is not."
            else:
                yield f"{which} {'have' if len(layers) > 1 else 'has'} no softmax attention: stream only."


def _between_shapes(placement: Placement) -> Iterator[str]:
    """Layers of a stack that attend and are no blocks of it, because what leaves them has another shape."""
    for stack in dict.fromkeys(block.stack for block in placement.blocks):
        own = {p.layer for p in placement.sites if p.stack == stack and p.block is None}
        if own:
            yield (
                f"Block{'s' if len(own) > 1 else ''} {ranges(own)} of the {stack} give their stream another shape: it "
                "is measured where other blocks begin and end, not there."
            )


def _uneven(placement: Placement) -> Iterator[str]:
    """Self-attention that is not square."""
    for stack in dict.fromkeys(p.stack for p in placement.sites if p.seen.site == "uneven"):
        layers = {p.layer for p in placement.sites if p.stack == stack and p.seen.site == "uneven"}
        yield (
            f"Self-attention of the {stack} has unequally many queries and keys in {count(len(layers), 'block')} "
            "(pooled tokens, global tokens with rows of their own, or further streams beside its own): measures that "
            "need a diagonal are left out there."
        )


def _folded(placement: Placement, sequences: int | None) -> Iterator[str]:
    """Attention whose rows are not sequences."""
    for stack in dict.fromkeys(p.stack for p in placement.sites):
        rows = {p.seen.batch for p in placement.sites if p.stack == stack}
        if sequences is not None and any(count_ > sequences for count_ in rows):
            yield (
                f"The {stack} makes several rows of every sequence before it attends (windows, frames or channels): "
                "its numbers are means over those rows, and tokens attend within their own row only."
            )
        elif sequences is not None and any(count_ < sequences for count_ in rows):
            yield f"The {stack} packs a batch into fewer rows than it has sequences: its numbers are of those rows."


def _against_configuration(model: nn.Module, placement: Placement) -> Iterator[str]:
    config = getattr(model, "config", None)
    if config is None:
        return
    alone = {(p.stack, p.layer) for p in placement.sites if p.block is None}
    sizes = list(Counter([*(b.stack for b in placement.blocks), *(stack for stack, _ in alone)]).values())
    for what, layers in _promised(config):
        if layers in sizes:
            sizes.remove(layers)
        elif layers != sum(sizes):
            left = f" (what was seen beside has {' and '.join(map(str, sizes))})" if sizes else ""
            yield (
                f"The configuration speaks of {count(layers, 'layer')}{what}, and no stack of as many ran on this "
                f"batch{left}: that part of the model is not in this survey, or is numbered otherwise."
            )
    heads = {h for _, h in _promised_heads(config)}
    other = sorted({p.seen.heads for p in placement.sites} - heads)
    if heads and other:
        yield (
            f"The configuration speaks of {' or '.join(map(str, sorted(heads)))} heads, and attention with "
            f"{' and '.join(map(str, other))} was seen."
        )


_LAYERS = {
    "": ("num_hidden_layers", "num_layers", "n_layer", "n_layers"),
    "encoder": ("encoder_layers", "num_encoder_layers"),
    "decoder": ("decoder_layers", "num_decoder_layers"),
}
_HEADS = (
    "num_attention_heads",
    "n_head",
    "n_heads",
    "num_heads",
    "encoder_attention_heads",
    "decoder_attention_heads",
)


def _promised(config: Any) -> Iterator[tuple[str, int]]:
    """Layers by tower, as the configuration has them; of configurations inside it too."""
    found = {
        where: next((v for name in names if isinstance(v := _number(config, name), int)), None)
        for where, names in _LAYERS.items()
    }
    depths = _number(config, "depths")
    if isinstance(depths, (list, tuple)) and depths and all(isinstance(depth, int) for depth in depths):
        found = dict.fromkeys(found) | {"": sum(depths)}  # what such models call layers are stages of blocks
    if getattr(config, "is_encoder_decoder", False):
        found["encoder"] = found["encoder"] or found[""]
        found[""] = None
    elif found[""] is not None:
        found["encoder"] = found["decoder"] = None
    inside = [(f" in {name}", value) for name, inner in _inside(config) for _, value in _promised(inner)]
    if inside and not any(_number(config, name) is not None for name in _HEADS):
        found[""] = None  # a configuration of configurations without heads of its own: the sum of theirs, or one again
    yield from ((f" in the {where}" if where else "", value) for where, value in found.items() if value)
    yield from inside


def _promised_heads(config: Any) -> Iterator[tuple[str, int]]:
    for name in _HEADS:
        value = _number(config, name)
        values = value if isinstance(value, (list, tuple)) else [value]
        yield from ((name, one) for one in values if isinstance(one, int))
    for _, inner in _inside(config):
        yield from _promised_heads(inner)


def _inside(config: Any) -> Iterator[tuple[str, Any]]:
    for name, value in vars(config).items():
        if name.endswith("config") and hasattr(value, "model_type"):
            yield name, value


def _number(config: Any, name: str) -> Any:
    value = getattr(config, name, None)
    return None if isinstance(value, bool) else value


def _names(classes: Any) -> str:
    some = list(classes)
    return ", ".join(some[:3]) + (" and others" if len(some) > 3 else "")
