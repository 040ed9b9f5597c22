"""Which halves of blocks carry the prediction: their size, the slope of the loss, and the loss without them.

A factor g on what a half writes is 1 in the model as it is. At a minimum of the training loss the derivative with
respect to g is 0: it equals <dL/dW, W> for the last matrix W of that half. A part that was damaged after training is
not at its minimum. A positive slope says that the loss falls if the part writes less. One backward pass gives the
slopes of all halves and heads. The parts with the largest slopes are then rescaled, one at a time, and the loss is
measured on other windows.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any, get_args

import torch
from jaxtyping import Float
from torch import Tensor, nn

from attnscope.commands.scan.survey.trial import Half
from attnscope.commands.scan.trial.windows import Question, predicted, window_losses
from attnscope.hf.anatomy.anatomy import Anatomy, Block, Site
from attnscope.hf.anatomy.recording import Location, read_at
from attnscope.hf.intercepting.owners import at, with_output
from attnscope.hf.intercepting.restoring import Restoring, with_gradients


@dataclass(frozen=True)
class Place:
    """One half of a block: where it writes, and the state of the stream that it is added to."""

    stack: str
    layer: int
    half: Half
    writes: tuple[tuple[Location, float], ...]  # with the multiplier of each
    before: Location


def places_of(found: Anatomy) -> tuple[Place, ...]:
    """Return the halves of all blocks whose writes are separable, in depth order."""
    places = [place for stack in found.stacks for block in stack.blocks for place in _of_block(stack.name, block)]
    return tuple(_relabelled(places, {(s.name, b.layer): b.path for s in found.stacks for b in s.blocks}))


def shared_blocks(found: Anatomy) -> bool:
    """Return whether a block is used several times (ALBERT). Then the loss is at a minimum only with respect to a
    factor on all uses together, and the slope of one use says nothing.
    """
    paths = [block.path for stack in found.stacks for block in stack.blocks]
    return len(set(paths)) < len(paths)


def _relabelled(places: Sequence[Place], paths: Mapping[tuple[str, int], str]) -> Iterator[Place]:
    """Yield places with the half that their module has in most blocks.

    If attention writes zeros, the anatomy takes the first write that it finds, the MLP's, for the attention's.
    """

    def module(place: Place) -> tuple[str, ...]:
        inside = (write.path.removeprefix(paths[place.stack, place.layer]) for write, _ in place.writes)
        return (place.stack, *inside)

    halves: dict[tuple[str, ...], Counter[Half]] = {}
    for place in places:
        halves.setdefault(module(place), Counter())[place.half] += 1
    for place in places:
        yield replace(place, half=halves[module(place)].most_common(1)[0][0])


def _of_block(stack: str, block: Block) -> Iterator[Place]:
    if not block.writes.separable:
        return
    entered = Location(block.path, block.nth, "input", block.enters)
    attention = block.attention_writes
    pieces: dict[Half, list[tuple[Location, float]]] = {}
    states: dict[Half, Location] = {}
    for identity in block.writes.identities:
        for write in identity.writes:
            half: Half = "attention" if write in attention else "mlp"
            pieces.setdefault(half, []).append((write, identity.multiplier))
            states.setdefault(half, identity.before or entered)
    for half, writes in pieces.items():
        yield Place(stack, block.layer, half, tuple(writes), states[half])


@contextmanager
def scaled(model: nn.Module, places: Sequence[Place], factors: Float[Tensor, " place"]) -> Iterator[None]:
    """Multiply what each place writes by its factor inside this context."""
    numbers = {(w.path, w.nth): (n, w) for n, place in enumerate(places) for w, _ in place.writes}

    def after(kept: tuple[int, Location], output: Any) -> Any:
        number, location = kept
        write = at(output, location.slot)
        return with_output(output, location.slot, write * factors[number].to(write.dtype))

    with Restoring() as changes:
        changes.nth_calls(model, numbers, after=after)
        yield


def head_sites(model: nn.Module, found: Anatomy) -> tuple[Site, ...]:
    """Return the self-attention whose heads can be scaled at the input of the output projection."""
    return tuple(site for site in found.sites if site.site == "self" and _projection(model, site) is not None)


def _projection(model: nn.Module, site: Site) -> str | None:
    output = site.projections.output
    path = "" if output is None else output.parameter.rpartition(".")[0]
    return path if path and isinstance(model.get_submodule(path), nn.Module) else None


@contextmanager
def scaled_heads(model: nn.Module, sites: Sequence[Site], factors: Sequence[Float[Tensor, " head"]]) -> Iterator[None]:
    """Multiply the output of each head by its factor inside this context."""
    used: Counter[str] = Counter()
    calls: dict[tuple[str, int], tuple[Site, Tensor]] = {}
    for site, each in zip(sites, factors, strict=True):
        path = str(_projection(model, site))
        calls[path, used[path]] = (site, each)
        used[path] += 1

    def before(kept: tuple[Site, Tensor], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        site, each = kept
        mixed = args[0] if args else None
        if not isinstance(mixed, Tensor) or mixed.shape[-1] != site.heads * site.value_dim:
            return None
        apart = mixed.reshape(*mixed.shape[:-1], site.heads, site.value_dim) * each[:, None].to(mixed.dtype)
        return (apart.reshape(mixed.shape), *args[1:]), kwargs

    with Restoring() as changes:
        changes.nth_calls(model, calls, before=before)
        yield


@dataclass
class Sizes:
    """What one place writes: its norm relative to the stream for every token, and how much of it varies over tokens."""

    relative: list[Tensor] = field(default_factory=list)
    varies: list[float] = field(default_factory=list)

    @property
    def median(self) -> float:
        """The median over tokens; NaN if the place was never reached."""
        return float(torch.cat(self.relative).median()) if self.relative else math.nan

    @property
    def most_varying(self) -> float:
        return max(self.varies, default=math.nan)


@contextmanager
def sized(model: nn.Module, places: Sequence[Place], sizes: Sequence[Sizes]) -> Iterator[None]:
    """Add to `sizes[n]` what place n writes in every forward pass inside this context."""
    states: dict[Location, Tensor] = {}
    written: dict[Location, Tensor] = {}

    def finish(*_: Any) -> None:
        for number, place in enumerate(places):
            if place.before in states and all(w in written for w, _ in place.writes):
                total = sum((written[w].float() * multiplier for w, multiplier in place.writes), torch.zeros(()))
                state = states[place.before].float().reshape(total.shape)
                norms, whole = total.norm(dim=-1), float(total.norm())
                differing = float((total - total.mean(dim=(0, 1), keepdim=True)).norm())
                sizes[number].relative.append((norms / state.norm(dim=-1).clamp_min(1e-30)).flatten())
                sizes[number].varies.append(differing / whole if whole else 0.0)
        states.clear()
        written.clear()

    with Restoring() as changes:
        read_at(changes, model, {place.before for place in places}, lambda at, t: states.__setitem__(at, t.clone()))
        writes = {write for place in places for write, _ in place.writes}
        read_at(changes, model, writes, lambda at, t: written.__setitem__(at, t.clone()))
        changes.after(model, finish)
        yield


@dataclass(frozen=True)
class Slopes:
    """Derivatives of the mean loss with respect to factors on halves and on heads."""

    places: tuple[float, ...]
    heads: dict[tuple[str, int], tuple[float, ...]]  # by stack and block


def slopes(
    model: nn.Module,
    places: Sequence[Place],
    sites: Sequence[Site],
    asked: Sequence[Question],
    options: Mapping[str, Any],
) -> Slopes | None:
    """Return the slopes over these questions, or None if the model gives no logits."""
    device = next((p.device for p in model.parameters() if not p.is_meta), torch.device("cpu"))
    total = [0.0] * len(places)
    heads = [[0.0] * site.heads for site in sites]
    tokens = sum(sum(question.counts) for question in asked)
    for question in asked:
        factors = torch.ones(len(places), device=device, requires_grad=True)
        of_heads = [torch.ones(site.heads, device=device, requires_grad=True) for site in sites]
        with with_gradients(), scaled(model, places, factors), scaled_heads(model, sites, of_heads):
            inputs = {name: tensor.to(device) for name, tensor in question.inputs.items()}
            logits = predicted(model(**inputs, **options), question.targets)
            if logits is None:
                return None
            counts = torch.tensor(question.counts, device=logits.device)
            losses = window_losses(logits, question.targets.to(logits.device))
            loss = (losses.nan_to_num() * counts).sum() / tokens
            found = torch.autograd.grad(loss, [factors, *of_heads], allow_unused=True)
        first, *rest = [None if each is None else each.tolist() for each in found]
        total = [a + b for a, b in zip(total, first or [0.0] * len(places), strict=True)]
        heads = [
            [a + b for a, b in zip(known, new or [0.0] * len(known), strict=True)]
            for known, new in zip(heads, rest, strict=True)
        ]
    by_site = {(site.stack, site.layer): tuple(each) for site, each in zip(sites, heads, strict=True)}
    return Slopes(tuple(total), by_site)


@contextmanager
def one_scaled(model: nn.Module, place: Place, factor: float) -> Iterator[None]:
    """Multiply what one half of a block writes inside this context."""
    with scaled(model, [place], torch.tensor([factor], dtype=torch.float64)):
        yield


@contextmanager
def one_head_scaled(model: nn.Module, site: Site, head: int, factor: float) -> Iterator[None]:
    """Multiply the output of one head inside this context."""
    factors = torch.ones(site.heads)
    factors[head] = factor
    with scaled_heads(model, [site], [factors]):
        yield


def silent_halves(found: Anatomy) -> Iterator[tuple[str, int, Half]]:
    """Yield halves that write exactly nothing.

    The anatomy finds writes by their effect on the stream, so a half that writes zeros is missing in its block. It
    counts as silent if most blocks of the stack have that half.
    """
    places = places_of(found)
    for stack in found.stacks:
        blocks = [block for block in stack.blocks if block.attends]
        for half in get_args(Half):
            have = {place.layer for place in places if (place.stack, place.half) == (stack.name, half)}
            if 2 * len(have) > len(blocks):
                yield from ((stack.name, block.layer, half) for block in blocks if block.layer not in have)
