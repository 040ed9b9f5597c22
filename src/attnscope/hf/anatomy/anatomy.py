"""Find the parts of a model by running it on a few tokens, without a table of architectures or names.

    found = anatomy(model)                  # or anatomy(model, example_inputs=batch) for models of your own
    print(found)

An `Anatomy` lists every attention call with its stack, its block, the route by which it is observed, and the parameters
of its projections. For every block it says where the residual stream enters, leaves, and can be read between attention
and MLP, and where the norms are.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from torch import Tensor, nn

from attnscope.core.errors import RefusalError, nearest
from attnscope.core.words import blocks as blocks_in_words
from attnscope.hf.anatomy.call_log import ATTENTION, CallLog, configured_kinds, log_calls
from attnscope.hf.anatomy.dissect import Dissected, dissect
from attnscope.hf.anatomy.example import Batch, cut_down, example_batch, few_rows, rows_of, same_chance
from attnscope.hf.anatomy.expected import (
    refuse_equal_lengths,
    refuse_mixed_rows,
    refuse_without_attention,
    what_does_not_add_up,
)
from attnscope.hf.anatomy.lineage import own_streams
from attnscope.hf.anatomy.parameters import settled
from attnscope.hf.anatomy.projections import Projections, reading
from attnscope.hf.anatomy.recording import Location
from attnscope.hf.anatomy.stacks import PlacedCall, Placement, place_calls
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
    """One attention call of a forward pass: the `nth` call that the module at `path` makes."""

    path: str
    nth: int
    stack: str
    layer: int
    site: str  # "self", "cross", or "uneven": self-attention with pooled tokens on one side
    route: str  # "interface", "sdpa", "softmax" or "pieces"
    rebuilt: bool  # whether the pattern is computed from queries and keys, or the model's own pattern is used
    heads: int
    kv_heads: int
    dim: int
    value_dim: int
    causal: bool
    keys_from: str  # the stack whose tokens are the keys
    projections: Projections

    @property
    def key(self) -> tuple[str, str, int]:
        """Stack, site and block: the key of its frames."""
        return self.stack, self.site, self.layer


@dataclass(frozen=True)
class Block:
    """One block of a stack: the `nth` call of the module at `path`, and where to read its stream."""

    path: str
    nth: int
    layer: int
    enters: Slot
    leaves: Slot
    overwrites: bool  # whether it changes its input stream in place
    writes: Writes
    kind: str = ATTENTION  # or what replaces attention: "Mamba", "linear attention", "MLP"

    @property
    def attends(self) -> bool:
        return self.kind == ATTENTION

    @property
    def attention_writes(self) -> set[Location]:
        """The writes of attention (or of its replacement): those before `middle`, or `middle` in a parallel block."""
        writes = self.writes
        if self.kind == "MLP":
            return set()
        if writes.norm == "parallel":
            return {writes.middle} if writes.middle else set()
        upto = next((i for i, each in enumerate(writes.identities) if i and each.before == writes.middle), None)
        if writes.middle is None or upto is None:
            upto = len(writes.identities)  # attention writes last, or alone
        return {location for identity in writes.identities[:upto] for location in identity.writes}


@dataclass(frozen=True)
class Stack:
    """A list of blocks that share a residual stream. `mask` is the name of the model's argument that marks padding."""

    name: str
    blocks: tuple[Block, ...]
    width: int
    sequence_first: bool
    mask: str | None
    chained: bool  # whether the output of every block is the input of the next

    @property
    def calls(self) -> dict[tuple[str, int], Block]:
        """The blocks, keyed by path and call number."""
        return {(block.path, block.nth): block for block in self.blocks}

    def turned(self, stream: Tensor) -> Tensor:
        """Swap the axes of batch and tokens if the model has tokens first. A second call undoes the first."""
        return stream.transpose(0, 1) if self.sequence_first else stream


@dataclass(frozen=True)
class Anatomy:
    """The parts of a model, as paths and numbers. Holds no tensors."""

    model_class: str
    sites: tuple[Site, ...]
    stacks: tuple[Stack, ...]
    fast_path: bool
    notes: tuple[str, ...] = ()  # notes on attention that is not observed, and on mismatches with the configuration

    @property
    def routes(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys(site.route for site in self.sites))

    def without_stream(self, stack: str) -> tuple[int, ...]:
        """Return the attending blocks whose stream cannot be read: it changes shape, or has no axis of tokens."""
        blocks = {block.layer for each in self.stacks if each.name == stack for block in each.blocks}
        return tuple(sorted({site.layer for site in self.sites if site.stack == stack} - blocks))

    def stack(self, name: str) -> Stack | None:
        return next((s for s in self.stacks if s.name == name), None)

    def self_attention(self, stack: str | None = None) -> list[Site]:
        """Return the self-attention of one stack, in order of blocks; `stack` may be None if there is only one."""
        sites = sorted((s for s in self.sites if s.site == "self"), key=lambda s: (s.layer, s.nth))
        if not sites:
            raise RefusalError(f"{self.model_class} has no self-attention: choose another model.")
        stacks = list(dict.fromkeys(site.stack for site in self.sites if site.site == "self"))
        if stack is None and len(stacks) > 1:
            raise RefusalError(f"{self.model_class} has the stacks {', '.join(stacks)}: choose one with `stack=`.")
        if stack is not None and stack not in stacks:
            raise RefusalError(
                f"{self.model_class} has no stack '{stack}' with self-attention.{nearest(stack, stacks)}"
            )
        return [site for site in sites if site.stack == (stack or stacks[0])]

    def self_attention_at(self, block: int, head: int, stack: str | None = None) -> Site:
        """Return the self-attention of one block; refuse a block or a head that does not exist."""
        sites = self.self_attention(stack)
        site = next((site for site in sites if site.layer == block), None)
        if site is None:
            there = blocks_in_words(site.layer for site in sites)
            raise RefusalError(f"{self.model_class} attends in {there}, not in block {block}: choose one of those.")
        if not 0 <= head < site.heads:
            raise RefusalError(
                f"Block {block} of {self.model_class} has heads 0 to {site.heads - 1}, not {head}: choose one of those."
            )
        return site

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
    """Probe a model. `example_inputs` is any batch it can run on; most transformers models do not need it."""
    refuse_compiled(model)
    with keeping_its_modules(model), evaluating(model), same_chance(model), without_gradients():
        batch, log = _on_a_small_batch(model, example_inputs)
        refuse_without_attention(model, log)
        own = own_streams(model, batch, log)
        attention = tuple(seen.looking(own[n]) if n in own else seen for n, seen in enumerate(log.attention))
        log = replace(log, attention=attention)
        if len(own) < len(log.attention):
            refuse_equal_lengths(model, log)
        placement = place_calls(log, configured_kinds(getattr(model, "config", None)))
        placed = placement.sites
        refuse_mixed_rows(model, batch, log, placed)
        dissected = dissect(model, batch, placement, log.fast_path)
        projections = settled(model, batch, placed, dissected.projections, log.fast_path)
    return Anatomy(
        model_class=type(model).__name__,
        sites=tuple(_site(model, p, placed, parts) for p, parts in zip(placed, projections, strict=True)),
        stacks=_stacks(placement, batch, dissected),
        fast_path=log.fast_path,
        notes=what_does_not_add_up(model, log, placement, rows_of(batch)),
    )


def _on_a_small_batch(model: nn.Module, example_inputs: Batch | None) -> tuple[Batch, CallLog]:
    """Log a run on a generated batch or on a small part of the caller's batch, or on all of it if no part runs.

    Some models cannot run on a part: pictures and boxes belong to certain tokens, or a minimum length is needed.
    """
    if example_inputs is None:
        batch = example_batch(model)
        try:
            return batch, log_calls(model, batch)
        except RefusalError:
            raise
        except Exception as error:
            raise RefusalError(
                f"{type(model).__name__} does not run on the probe input that was made for it ({error}): "
                "pass `example_inputs=`, a small batch that it can run on."
            ) from error
    for smaller in (cut_down, few_rows):
        part = smaller(model, example_inputs)
        try:
            with keeping_its_modules(model):
                return part, log_calls(model, part)
        except ExchangedModulesError:
            continue
        except RefusalError:
            raise
        except Exception:  # a model may raise any error on part of a batch
            continue
    return example_inputs, log_calls(model, example_inputs)


def _site(model: nn.Module, mine: PlacedCall, placed: tuple[PlacedCall, ...], projections: Projections) -> Site:
    seen, keys_from = mine.seen, mine.stack
    width = key_width = None if mine.block is None else mine.block.shape[2]
    if seen.crossing:  # find the stack of the keys by its number of tokens
        others = (p.stack for p in placed if p.stack != mine.stack and p.seen.queries == seen.keys)
        keys_from = next(others, "memory")
        widths = [p.block.shape[2] for p in placed if p.stack == keys_from and p.block is not None]
        key_width = widths[-1] if widths else None
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


def _stacks(placement: Placement, batch: Batch, dissected: Dissected) -> tuple[Stack, ...]:
    stacks = []
    for name in dict.fromkeys(block.stack for block in placement.blocks):
        members = sorted((b for b in placement.blocks if b.stack == name), key=lambda block: block.layer)
        blocks = tuple(
            Block(b.path, b.nth, b.layer, b.enters, b.leaves, b.overwrites, dissected.writes[name, b.layer], b.kind)
            for b in members
        )
        flipped, (first, second, width) = members[0].sequence_first, members[0].shape
        mask = _mask_argument(name, first if flipped else second, batch)
        stacks.append(Stack(name, blocks, width, flipped, mask, dissected.chained.get(name, True)))
    return tuple(stacks)


def _mask_argument(stack: str, tokens: int, batch: Batch) -> str | None:
    """Return the name of the argument that marks padding for a stack: a mask with as many tokens as the stack."""
    if not isinstance(batch, Mapping):
        return None
    fitting = [n for n, v in batch.items() if marks_padding(n, v) and v.shape[1] == tokens]
    return next((name for name in fitting if name.startswith(stack)), next(iter(fitting), None))


def marks_padding(name: str, value: object) -> bool:
    """Return whether an argument of a model marks padding tokens."""
    return name.endswith(("attention_mask", "padding_mask")) and isinstance(value, Tensor) and value.ndim == 2
