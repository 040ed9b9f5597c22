"""Compare the observed attention with a model's configuration and module tree; refuse or note what is missing.

If part of the attention was not observed, a note says so in every survey. If none was observed, or rows cannot be
assigned to sequences, the model is refused.
"""

from __future__ import annotations

import inspect
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import torch
from torch import Tensor, nn

from attnscope.core.errors import RefusalError
from attnscope.core.words import count, ranges
from attnscope.hf.anatomy.call_log import ATTENTION, UNSEEN, CallLog, unseen_attention
from attnscope.hf.anatomy.example import Batch, rows_of, same_chance
from attnscope.hf.anatomy.probe import CallMatcher, OpenCall, probe_run
from attnscope.hf.anatomy.stacks import PlacedCall, Placement
from attnscope.hf.intercepting.observed_call import ObservedCall

_MIXER = re.compile(r"mixer|mamba|rwkv|retention|recurrent|conv1d|fourier|pooling|hyena", re.IGNORECASE)
_OUTER = re.compile(r"Model$|For[A-Z]|Block$|Layer$|Encoder$|Decoder$")


def refuse_without_attention(model: nn.Module, log: CallLog) -> None:
    """Refuse a model without attention, or with attention of an unsupported kind."""
    if log.attention:
        return
    name = type(model).__name__
    unseen = unseen_attention(log)
    if unseen:
        how = (
            "its softmax does not multiply the values of tokens in one product (blocks or windows of keys, or gates "
            "over channels)"
            if log.loose
            else "it has no softmax over keys (hashing, kernels, correlation or linear attention)"
        )
        raise RefusalError(
            f"The attention of {name} in {_names(unseen)} is not supported, because {how}: choose a model of the same "
            "kind with full softmax attention."
        )
    holding = {call.around for call in log.calls}
    inner = (call for n, call in enumerate(log.calls) if n in holding and not _OUTER.search(call.class_name))
    mixers = tuple(dict.fromkeys(call.class_name for call in inner if _MIXER.search(call.class_name)))
    what = f" (its blocks mix tokens by {_names(mixers)})" if mixers else ""
    raise RefusalError(
        f"{name} has no softmax attention{what}: it called neither transformers' attention functions nor "
        "scaled_dot_product_attention, and no softmax multiplied values. Choose a model with attention."
    )


def refuse_equal_lengths(model: nn.Module, log: CallLog) -> None:
    """Refuse equally long inputs if only lengths can tell cross-attention from self-attention."""
    two = getattr(getattr(model, "config", None), "is_encoder_decoder", False)
    takes_both = two and "decoder_input_ids" in inspect.signature(model.forward).parameters
    if takes_both and not any(seen.crossing for seen in log.attention):
        raise RefusalError(
            f"The encoder and the decoder of {type(model).__name__} read equally many tokens of the example inputs, so "
            "cross-attention cannot be recognised: give decoder_input_ids of another length."
        )


def refuse_mixed_rows(model: nn.Module, batch: Batch, log: CallLog, placed: tuple[PlacedCall, ...]) -> None:
    """Refuse models that split sequences into rows (windows, frames, channels) and do not keep these together.

    Numbers are stored by sequence, so the rows of a sequence must be adjacent. This is checked with a run on the probe
    batch with its sequences in reverse order.
    """
    sequences = rows_of(batch)
    if sequences is None or sequences < 2 or not isinstance(batch, Mapping):
        return
    folded = [i for i, p in enumerate(placed) if p.seen.batch > sequences and p.seen.batch % sequences == 0]
    if not folded or any(isinstance(v, Tensor) and v.ndim and len(v) != sequences for v in batch.values()):
        return
    reverse = {name: v.flip(0) if isinstance(v, Tensor) and v.ndim else v for name, v in batch.items()}
    sums = []
    for inputs in (batch, reverse):
        summing = _Summing(model, placed)
        with same_chance(model):
            probe_run(model, inputs, summing, fast_path=log.fast_path)
        sums.append(summing.sums)
    for index in folded:
        rows, again = (each[index].reshape(sequences, -1) for each in sums)
        if not torch.allclose(rows, again.flip(0), rtol=1e-4, atol=1e-6):
            raise RefusalError(
                f"{type(model).__name__} splits every sequence into {rows.shape[1]} rows in {placed[index].seen.owner} "
                "and mixes their order, so numbers cannot be assigned to sequences: give batches of one sequence."
            )


class _Summing(CallMatcher[OpenCall]):
    """Stores one number for every row of every attention call."""

    call_class = OpenCall

    def __init__(self, model: nn.Module, placed: tuple[PlacedCall, ...]) -> None:
        super().__init__(model, placed)
        self.sums: dict[int, Tensor] = {}

    def attended(self, index: int, observed: ObservedCall) -> None:
        self.sums[index] = observed.value.double().abs().flatten(1).sum(1)


def what_does_not_add_up(
    model: nn.Module, log: CallLog, placement: Placement, sequences: int | None
) -> tuple[str, ...]:
    """Return notes on blocks of the configuration that the probe did not observe, and on limits of a survey."""
    streaming, attending = ({each.stack: None for each in group} for group in (placement.blocks, placement.sites))
    return (
        *_unseen(model, log),
        *(note for stack in streaming for note in _stream_only(placement, stack)),
        *(note for stack in streaming for note in _reshaped(placement, stack)),
        *(note for stack in attending for note in _uneven(placement, stack)),
        *(note for stack in attending for note in _folded(placement, stack, sequences)),
        *_against_configuration(model, placement),
    )


def _unseen(model: nn.Module, log: CallLog) -> Iterator[str]:
    """Yield a note on modules named attention that computed softmaxes, in which no attention was observed."""
    loose = {number for scope in log.loose for number in scope}
    seen = {inside for attention in log.attention for inside in attention.inside}
    classes = {log.calls[n].class_name for n in loose - seen}
    names = sorted(name for name in classes if re.search("attention|attn", name, re.IGNORECASE))
    if names:
        yield (
            f"INCOMPLETE: {type(model).__name__} also attends in {_names(names)}, in blocks or windows of keys, which "
            "is not supported: none of that attention is in this survey."
        )


def _stream_only(placement: Placement, stack: str) -> Iterator[str]:
    """Yield a note on blocks without softmax attention, by kind."""
    own = [block for block in placement.blocks if block.stack == stack]
    for kind in dict.fromkeys(b.kind for b in own if b.kind != ATTENTION):
        layers = [b.layer for b in own if b.kind == kind]
        which = f"Block{'s' if len(layers) > 1 else ''} {ranges(layers)} of the {stack} ({kind})"
        if kind == UNSEEN:
            yield f"{which}: the stream is measured, the attention is not."
        else:
            yield f"{which} {'have' if len(layers) > 1 else 'has'} no softmax attention: stream only."


def _reshaped(placement: Placement, stack: str) -> Iterator[str]:
    """Yield a note on attending modules that are not blocks, because they change the shape of the stream."""
    own = {p.layer for p in placement.sites if p.stack == stack and p.block is None}
    if own:
        yield (
            f"Block{'s' if len(own) > 1 else ''} {ranges(own)} of the {stack} change{'' if len(own) > 1 else 's'} the "
            "shape of the stream: it is measured only where other blocks begin and end."
        )


def _uneven(placement: Placement, stack: str) -> Iterator[str]:
    """Yield a note on self-attention with different numbers of queries and keys."""
    layers = {p.layer for p in placement.sites if p.stack == stack and p.seen.site == "uneven"}
    if layers:
        yield (
            f"Self-attention of the {stack} has different numbers of queries and keys in {count(len(layers), 'block')} "
            "(pooled tokens, separate rows for global tokens, or additional streams): measures that need a diagonal "
            "are left out there."
        )


def _folded(placement: Placement, stack: str, sequences: int | None) -> Iterator[str]:
    """Yield a note if the rows of attention's batch axis are parts of sequences, or several sequences packed
    together."""
    rows = {p.seen.batch for p in placement.sites if p.stack == stack}
    if sequences is not None and max(rows) > sequences:
        yield (
            f"The {stack} splits every sequence into rows before it attends (windows, frames or channels): its numbers "
            "are means over these rows, and tokens attend only within their row."
        )
    elif sequences is not None and min(rows) < sequences:
        yield f"The {stack} packs several sequences into one row: its numbers are of rows, not of sequences."


def _against_configuration(model: nn.Module, placement: Placement) -> Iterator[str]:
    config = getattr(model, "config", None)
    if config is None:
        return
    alone = {(p.stack, p.layer) for p in placement.sites if p.block is None}
    sizes = list(Counter([*(b.stack for b in placement.blocks), *(stack for stack, _ in alone)]).values())
    for what, blocks in _promised(config):
        if blocks in sizes:
            sizes.remove(blocks)
        elif blocks != sum(sizes):
            left = f" (other stacks have {' and '.join(map(str, sizes))})" if sizes else ""
            yield (
                f"The configuration names {count(blocks, 'block')}{what}, but no stack of that size ran on this "
                f"batch{left}: that part of the model is not in this survey, or is numbered differently."
            )
    heads = set(_promised_heads(config))
    other = sorted({p.seen.heads for p in placement.sites} - heads)
    if heads and other:
        yield (
            f"The configuration names {' or '.join(map(str, sorted(heads)))} heads, but attention with "
            f"{' and '.join(map(str, other))} was observed."
        )


_LAYERS = {
    "": ("num_hidden_layers", "num_layers", "n_layer", "n_layers"),
    "encoder": ("encoder_layers", "num_encoder_layers"),
    "decoder": ("decoder_layers", "num_decoder_layers"),
}
_HEADS = ("num_attention_heads", "n_head", "n_heads", "num_heads", "encoder_attention_heads", "decoder_attention_heads")


def _promised(config: Any) -> Iterator[tuple[str, int]]:
    """Yield the number of blocks in each part of the model, from the configuration and nested configurations."""
    promised = {
        where: next((v for name in names if isinstance(v := _number(config, name), int)), None)
        for where, names in _LAYERS.items()
    }
    depths = _number(config, "depths")
    if isinstance(depths, (list, tuple)) and depths and all(isinstance(depth, int) for depth in depths):
        promised = dict.fromkeys(promised) | {"": sum(depths)}  # their `num_layers` counts stages of blocks
    if getattr(config, "is_encoder_decoder", False):
        promised["encoder"] = promised["encoder"] or promised[""]
        promised[""] = None
    elif promised[""] is not None:
        promised["encoder"] = promised["decoder"] = None
    inside = [(f" in {name}", value) for name, inner in _inside(config) for _, value in _promised(inner)]
    if inside and not any(_number(config, name) is not None for name in _HEADS):
        promised[""] = None  # without heads, it repeats the number of blocks of an inner one, or their sum
    yield from ((f" in the {where}" if where else "", value) for where, value in promised.items() if value)
    yield from inside


def _promised_heads(config: Any) -> Iterator[int]:
    for name in _HEADS:
        value = _number(config, name)
        values = value if isinstance(value, (list, tuple)) else [value]
        yield from (heads for heads in values if isinstance(heads, int))
    for _, inner in _inside(config):
        yield from _promised_heads(inner)


def _inside(config: Any) -> Iterator[tuple[str, Any]]:
    for name, value in vars(config).items():
        if name.endswith("config") and hasattr(value, "model_type"):
            yield name, value


def _number(config: Any, name: str) -> Any:
    value = getattr(config, name, None)
    return None if isinstance(value, bool) else value


def _names(classes: Iterable[str]) -> str:
    some = list(classes)
    return ", ".join(some[:3]) + (" and others" if len(some) > 3 else "")
