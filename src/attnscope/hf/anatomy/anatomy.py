"""Where things are in a model, found by running it once on a few tokens: no table of architectures, no names.

    found = anatomy(model)                  # or anatomy(model, example_inputs=batch) for models of your own
    print(found)

`Anatomy` says which attention calls happen, in which block of which stack, how they can be seen (the
route), where the residual stream enters and leaves every block and can be read between attention and
MLP, where norms stand, and which parameters project queries, keys, values and outputs.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace

from torch import Tensor, nn

from attnscope.core.errors import RefusalError
from attnscope.data.frame import WeightsFrame
from attnscope.hf.anatomy.call_log import ATTENTION, CallLog, log_calls, told_kinds
from attnscope.hf.anatomy.dissect import Dissected, dissect
from attnscope.hf.anatomy.example import Batch, cut_down, example_batch, few_rows, same_chance
from attnscope.hf.anatomy.expected import refuse_without_attention, what_does_not_add_up
from attnscope.hf.anatomy.folding import refuse_mixed_rows, rows_of
from attnscope.hf.anatomy.lineage import own_streams
from attnscope.hf.anatomy.parameters import settled
from attnscope.hf.anatomy.projections import Projections, reading, weights_frame
from attnscope.hf.anatomy.stacks import PlacedCall, Placement, place
from attnscope.hf.anatomy.writes import Writes
from attnscope.hf.intercepting.owners import Slot
from attnscope.hf.intercepting.restoring import (
    ExchangedModulesError,
    evaluating,
    keeping_its_modules,
    without_gradients,
)
from attnscope.hf.intercepting.wrappers import refuse_compiled


@dataclass(frozen=True)
class Site:
    """One attention call of a forward pass: the `nth` that the module at `path` makes."""

    path: str
    nth: int
    stack: str
    layer: int
    site: str  # "self", "cross", or "uneven": self-attention with pooled tokens on one side
    route: str  # "interface", "sdpa", "softmax" or "pieces"
    rebuilt: bool  # the pattern follows from queries and keys; otherwise the model's own map is handed on
    heads: int
    kv_heads: int
    dim: int
    value_dim: int
    causal: bool
    keys_from: str  # the stack whose tokens are the keys
    projections: Projections


@dataclass(frozen=True)
class Block:
    """One layer of a stack: the `nth` call of the module at `path`, and where the stream is in it."""

    path: str
    nth: int
    layer: int
    enters: Slot
    leaves: Slot
    overwrites: bool  # changes the stream it is given in place
    writes: Writes
    kind: str = ATTENTION  # or what stands in its place: "Mamba", "linear attention", "MLP"

    @property
    def attends(self) -> bool:
        return self.kind == ATTENTION


@dataclass(frozen=True)
class Stack:
    """Blocks that pass one stream on; `mask` names the model's argument that marks padding."""

    name: str
    blocks: tuple[Block, ...]
    width: int
    sequence_first: bool
    mask: str | None
    chained: bool  # what leaves a block is what enters the next


@dataclass(frozen=True)
class Anatomy:
    """What a probe run found. Holds paths and numbers, no tensors."""

    model_class: str
    sites: tuple[Site, ...]
    stacks: tuple[Stack, ...]
    fast_path: bool
    notes: tuple[str, ...] = ()  # what a reader must know: attention that is not seen, numbers that do not add up

    @property
    def routes(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys(site.route for site in self.sites))

    def without_stream(self, stack: str) -> tuple[int, ...]:
        """Layers of a stack that attend and are no blocks: their stream changes its shape, or is no row of tokens."""
        blocks = {block.layer for one in self.stacks if one.name == stack for block in one.blocks}
        return tuple(sorted({site.layer for site in self.sites if site.stack == stack} - blocks))

    def stack(self, name: str) -> Stack | None:
        return next((s for s in self.stacks if s.name == name), None)

    def __str__(self) -> str:
        lines = [f"{self.model_class}: {len(self.sites)} attention calls, seen by {', '.join(self.routes)}"]
        for stack in self.stacks:
            norms = ", ".join(dict.fromkeys(block.writes.norm for block in stack.blocks))
            first, last = stack.blocks[0].path, stack.blocks[-1].path
            span = first if first == last else f"{first} .. {last}"
            separable = "writes separable" if all(b.writes.separable for b in stack.blocks) else "writes not separable"
            lines.append(f"  stack {stack.name}: {len(stack.blocks)} blocks of width {stack.width} ({span}),")
            lines.append(f"    norm {norms}, {separable}, padding from {stack.mask or 'nowhere'}")
            lines += [f"    block {b.layer} ({b.kind})" for b in stack.blocks if not b.attends]
        for site in self.sites:
            shared = "" if site.heads == site.kv_heads else f" on {site.kv_heads} key heads"
            lines.append(
                f"  {site.stack} {site.layer:>3} {site.site:<5} {site.heads} heads{shared} of {site.dim}"
                f"{', causal' if site.causal else ''}, weights {site.projections}: {site.path}"
            )
        return "\n".join([*lines, *(f"  note: {note}" for note in self.notes)])


def anatomy(model: nn.Module, example_inputs: Batch | None = None) -> Anatomy:
    """Probe a model. `example_inputs` is any batch it can run on; transformers models need none."""
    refuse_compiled(model)
    with keeping_its_modules(model), evaluating(model), same_chance(model), without_gradients():
        if example_inputs is None:
            batch: Batch = example_batch(model)
            census = _first_look(model, batch)
        else:
            batch, census = _on_a_small_batch(model, example_inputs)
        refuse_without_attention(model, census)
        told = own_streams(model, batch, census)
        census = replace(
            census,
            attention=tuple(s.looking(told[n]) if n in told else s for n, s in enumerate(census.attention)),
        )
        if len(told) < len(census.attention):
            _refuse_equal_lengths(model, census)
        placement = place(census, told_kinds(getattr(model, "config", None)))
        placed = placement.sites
        refuse_mixed_rows(model, batch, census, placed)
        found = dissect(model, batch, placement, census.fast_path)
        projections = settled(model, batch, placed, found.projections, census.fast_path)
    return Anatomy(
        model_class=type(model).__name__,
        sites=tuple(_site(model, p, placed, parts) for p, parts in zip(placed, projections, strict=True)),
        stacks=_stacks(placement, batch, found),
        fast_path=census.fast_path,
        notes=what_does_not_add_up(model, census, placement, rows_of(batch)),
    )


def weights(model: nn.Module, found: Anatomy) -> tuple[WeightsFrame, ...]:
    """The projections of every attention call, split by head: parameters as they are now."""
    return tuple(weights_in_turn(model, found))


def weights_in_turn(model: nn.Module, found: Anatomy) -> Iterator[WeightsFrame]:
    """The same, one call after the other: those of grouped heads are copies, and all at once a second model."""
    for s in found.sites:
        yield weights_frame(model, s.projections, s.heads, stack=s.stack, site=s.site, layer=s.layer)


def _on_a_small_batch(model: nn.Module, given: Batch) -> tuple[Batch, CallLog]:
    """The census of a few tokens of a batch, or of the batch as it is where a model does not run on a part of it.

    Pictures have their places among the tokens, boxes their words, and some models a length that they need.
    """
    for smaller in (cut_down, few_rows):
        part = smaller(model, given)
        try:
            with keeping_its_modules(model):
                return part, log_calls(model, part)
        except ExchangedModulesError:
            continue
        except RefusalError:
            raise
        except Exception:  # whatever a model makes of half a batch
            continue
    return given, log_calls(model, given)


def _first_look(model: nn.Module, batch: Batch) -> CallLog:
    try:
        return log_calls(model, batch)
    except RefusalError:
        raise
    except Exception as error:
        raise RefusalError(
            f"{type(model).__name__} does not run on the probe input that was made for it ({error}): "
            "pass example_inputs, a small batch it can run on."
        ) from error


def _refuse_equal_lengths(model: nn.Module, census: CallLog) -> None:
    """Cross-attention is told from self-attention by its lengths: where they are equal it would be taken for it."""
    two = getattr(getattr(model, "config", None), "is_encoder_decoder", False)
    takes_both = two and "decoder_input_ids" in inspect.signature(model.forward).parameters
    if takes_both and not any(seen.crossing for seen in census.attention):
        raise RefusalError(
            f"The encoder and the decoder of {type(model).__name__} read equally many tokens of the example inputs, so "
            "cross-attention cannot be told apart: give decoder_input_ids of another length."
        )


def _site(model: nn.Module, mine: PlacedCall, placed: tuple[PlacedCall, ...], projections: Projections) -> Site:
    seen = mine.seen
    keys_from = _keys_from(mine, placed)
    width = None if mine.block is None else mine.block.shape[2]
    sources = [p.block.shape[2] for p in placed if p.stack == keys_from and p.block is not None]
    key_width = width if keys_from == mine.stack else sources[-1] if sources else None
    return Site(
        path=seen.owner,
        nth=seen.nth,
        stack=mine.stack,
        layer=mine.layer,
        site=seen.site,
        route=seen.route,
        rebuilt=seen.rebuilt,
        heads=seen.heads,
        kv_heads=seen.kv_heads,
        dim=seen.dim,
        value_dim=seen.value_dim,
        causal=seen.causal,
        keys_from=keys_from,
        projections=reading(projections, dict(model.named_parameters()), width, key_width),
    )


def _keys_from(mine: PlacedCall, placed: tuple[PlacedCall, ...]) -> str:
    """Self-attention looks at its own stack, cross-attention at the one with as many tokens as keys."""
    if not mine.seen.crossing:
        return mine.stack
    others = (p.stack for p in placed if p.stack != mine.stack and p.seen.queries == mine.seen.keys)
    return next(others, "memory")


def _stacks(placement: Placement, batch: Batch, found: Dissected) -> tuple[Stack, ...]:
    stacks = []
    for name in dict.fromkeys(block.stack for block in placement.blocks):
        members = sorted((b for b in placement.blocks if b.stack == name), key=lambda block: block.layer)
        blocks = [
            Block(b.path, b.nth, b.layer, b.enters, b.leaves, b.overwrites, found.writes[name, b.layer], b.kind)
            for b in members
        ]
        first = members[0]
        tokens = first.shape[0] if first.sequence_first else first.shape[1]
        mask = _mask_argument(name, tokens, batch)
        stacks.append(
            Stack(name, tuple(blocks), first.shape[2], first.sequence_first, mask, found.chained.get(name, True))
        )
    return tuple(stacks)


def _mask_argument(stack: str, tokens: int, batch: Batch) -> str | None:
    """The argument that marks padding for a stack: the probe's mask with as many tokens as the stack."""
    if not isinstance(batch, Mapping):
        return None
    fitting = [n for n, v in batch.items() if marks_padding(n, v) and v.shape[1] == tokens]
    return next((name for name in fitting if name.startswith(stack)), next(iter(fitting), None))


def marks_padding(name: str, value: object) -> bool:
    """Whether an argument of a model says which tokens are padding."""
    return name.endswith(("attention_mask", "padding_mask")) and isinstance(value, Tensor) and value.ndim == 2
